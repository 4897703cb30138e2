"""Answers questions about future events from the encoder's states, at all horizons at once.

A question is a set of items: codes, each with a threshold that its value must pass, if any. With features of the record
(`queries.features`) they are pooled into a query, which attends to the states of the history and gets a rate for each
bin of horizons: the probability that it comes true within dt is 1 - exp(-sum of rates up to dt), which cannot fall as
dt grows. In the loss each observed bin is a yes or no: does the question come true in it, if it has not before?

A threshold on a value enters through its margins alone (`margins`): which share of the code's values lies beyond it,
which share of those that followed a last value like the known one, and how far the known values lie beyond it. All of
them fall as the threshold moves outward and none has a negative weight, so the answer cannot rise. Before training a
question is answered by a regression for its code, on the margins and on simple features of the record, added to the
code's base rate (`query_fit.start_questions`).

Shape letters: rows, slots, queries (questions of a row), items, bins, width, margins.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.modalities.events.questions.queries import BEYOND, BINS, FEATURES, RECORD, RHYTHM, SEEN, VALUES

LAYERS = 2
RAMP_ENDS, STEP_SLOPES = (-0.75, 0.0, 0.75), (3.0, 12.0)
"""How far a known value lies beyond the threshold (normal scores) enters as ramps that end at these distances, and as
logistic steps at 0 of these slopes."""
KNOWN_MARGINS = 4 * (len(RAMP_ENDS) + len(STEP_SLOPES))
MARGINS = 2 + KNOWN_MARGINS + 4
MARGIN_RATE = 8.0
"""How many times faster than other weights those of the margins are learnt: they begin at what is plain."""
PLAIN_FEATURES = np.r_[SEEN, RECORD, RHYTHM].tolist()
"""Columns of `queries.features` that do not depend on values."""
COVARIATES = MARGINS + len(PLAIN_FEATURES)
CODE_WEIGHTS = 2 * COVARIATES + BINS
"""Of a code and side: weights of margins and plain features in the first bin and in the last, and what is added in each
bin."""
PRIOR_WEIGHTS = np.zeros((2, COVARIATES))
"""Weights before anything is known of a code: 1 for the log of the share beyond the threshold, .5 for that after a last
value like the known one, .25 for the margins of the last value, .05 for all other margins."""
PRIOR_WEIGHTS[:, :MARGINS] = 0.05
PRIOR_WEIGHTS[:, :2] = 1.0, 0.5
PRIOR_WEIGHTS[:, 2 : 2 + KNOWN_MARGINS : 4] = 0.25
LAST_GROUPS = 8
"""Groups of a code's last values, by their size: the values that came next are counted in each."""
NEXT_QUANTILES = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.995)
"""Shares of a group's next values below its knots."""
TAIL_DECAY = 4.0
"""How fast the share of next values falls beyond the last knot, per normal score."""
MIN_QUESTIONS = 200
"""Questions of held-out patients that a calibration needs."""
CALIBRATION_PENALTY = 20.0
"""Weight of the calibration that changes nothing, in questions of as many patients (`design_effect`): few held-out
patients change little."""


class CrossAttention(nn.Module):
    """Cross-attention from a query to the states of its history, then a feed-forward; both with residuals."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.inner = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(
        self,
        x: Float[Tensor, "rows queries width"],
        states: Float[Tensor, "rows slots width"],
        seen: Bool[Tensor, "rows queries slots"],
    ) -> Float[Tensor, "rows queries width"]:
        rows, _, width = x.shape

        def split_heads(t: Tensor) -> Tensor:
            return t.view(rows, -1, self.heads, width // self.heads).transpose(1, 2)

        key, value = self.key_value(states).chunk(2, -1)
        found = F.scaled_dot_product_attention(
            split_heads(self.query(self.norm(x))), split_heads(key), split_heads(value), attn_mask=seen[:, None]
        )
        x = x + self.out(found.transpose(1, 2).reshape(x.shape))
        return x + self.inner(self.between(x))


class QueryHead(nn.Module):
    """Questions -> a rate in each bin of horizons.

    Args:
        codes: numbers in the vocabulary.
        width, heads: of the encoder's states, and of the attention to them.

    Attributes:
        edges: (bins,) upper edges of the bins, hours.
        share: (codes,) how often questions of the training were about each code; a code with 0 cannot be asked about.
        lasts, nexts: (codes, groups) means of groups of a code's last values, and (codes, groups, knots) quantiles of
            the values that came next, normal scores, see `next_share`; NaN where a code has no two values in a row.
        calibration: of the logarithm of the summed rates, fitted on held-out patients: slope, intercept, what is added
            where a value must be passed, and by the logarithm of the share of values beyond it; 1, 0, 0 and 0 where
            there were none.
        calibrated: how many questions that fit had.
    """

    edges: Tensor
    share: Tensor
    lasts: Tensor
    nexts: Tensor
    calibration: Tensor
    calibrated: Tensor

    def __init__(self, codes: int, width: int, heads: int) -> None:
        super().__init__()
        wide = width + 1 + FEATURES - 3
        self.item = nn.Sequential(nn.Linear(wide, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.code = nn.Embedding(codes, width)
        self.pool = nn.Linear(2 * width, width)
        self.states = nn.LayerNorm(width)
        self.attention = nn.ModuleList(CrossAttention(width, heads) for _ in range(LAYERS))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, BINS)
        self.base = nn.Embedding(codes, BINS)
        # Each code's own `CODE_WEIGHTS`, by side, and what the question and the record change of those of the margins.
        self.code_weights = nn.Embedding(3 * codes, CODE_WEIGHTS)
        self.weigh = nn.Linear(width, 2 * MARGINS, bias=False)
        nn.init.normal_(self.code.weight, std=0.5)
        nn.init.normal_(self.out.weight, std=0.02)
        nn.init.constant_(self.base.weight, -3.0)
        nn.init.normal_(self.weigh.weight, std=0.02 / MARGIN_RATE)
        with torch.no_grad():
            self.code_weights.weight.copy_(self.inverse(torch.from_numpy(np.r_[PRIOR_WEIGHTS.ravel(), np.zeros(BINS)])))
        self.register_buffer("edges", torch.ones(BINS, dtype=torch.float64))
        self.register_buffer("share", torch.zeros(codes, dtype=torch.float64))
        self.register_buffer("lasts", torch.full((codes, LAST_GROUPS), float("nan")))
        self.register_buffer("nexts", torch.full((codes, LAST_GROUPS, len(NEXT_QUANTILES)), float("nan")))
        self.register_buffer("calibration", torch.tensor([1.0, 0.0, 0.0, 0.0]))
        self.register_buffer("calibrated", torch.zeros((), dtype=torch.int64))

    @staticmethod
    def inverse(weights: Float[Tensor, "... weights"]) -> Float[Tensor, "... weights"]:
        """What `code_weights` holds, of weights and of what is added: those of the margins cannot fall below 0."""
        each, added = weights.split([2 * COVARIATES, BINS], -1)
        above, free = each.unflatten(-1, (2, COVARIATES)).split([MARGINS, COVARIATES - MARGINS], -1)
        held = torch.cat([torch.log(torch.expm1(above.clamp_min(0.01))), free], -1)
        return torch.cat([held.flatten(-2), added], -1).float()

    def forward(
        self, states: Float[Tensor, "rows slots width"], segment: Int[Tensor, "rows slots"], queries: dict[str, Tensor]
    ) -> Float[Tensor, "rows queries bins"]:
        """Rates, uncalibrated, of the questions of `queries.query_batch`."""
        code, side = queries["code"], queries["side"].float()
        there = code >= 0
        code, plain = code.clamp_min(0), queries["features"]
        plain = torch.cat([plain[..., : BEYOND.start], plain[..., BEYOND.stop :]], -1)
        x = self.item(torch.cat([self.code(code), side[..., None], plain], -1))
        held, added = self.code_weights(3 * code + queries["side"] + 1).split([2 * COVARIATES, BINS], -1)
        above, free = held.unflatten(-1, (2, COVARIATES)).split([MARGINS, COVARIATES - MARGINS], -1)
        above = F.softplus(above + MARGIN_RATE * self.weigh(x).float().unflatten(-1, (2, MARGINS)))
        more = along_bins(torch.cat([above, free], -1), covariates_of(queries, self.next_share(queries))) + added
        count = there.sum(-1, keepdim=True).clamp_min(1)
        mean = (x * there[..., None]).sum(-2) / count
        most = x.masked_fill(~there[..., None], -1e4).amax(-2)
        x = self.pool(torch.cat([mean, most], -1))
        seen = (queries["segment"][..., None] == segment[:, None]) & (segment[:, None] != 0)
        seen = seen | (queries["segment"] == 0)[..., None]  # padding looks anywhere: nothing to see is not a number
        states = self.states(states)
        for attend in self.attention:
            x = attend(x, states, seen)
        base = F.softplus(self.base(code).float()).log() + more
        base = base.masked_fill(~there[..., None], -30.0).logsumexp(-2).exp().clamp_min(1e-7)
        return F.softplus(self.out(self.norm(x)).float() + base + torch.log(-torch.expm1(-base)))

    @torch.no_grad()
    def next_share(self, queries: dict[str, Tensor]) -> Float[Tensor, "rows queries items"]:
        """Share beyond the threshold of the values that followed a last value like the known one: interpolated between
        the two nearest groups of last values. Where the code has no groups, the share of all its values."""
        code, cut = queries["code"].clamp_min(0), queries["score"].double()[..., None, None]
        lasts, knots = self.lasts[code].double(), self.nexts[code].double()
        # Knots at one place are set apart, so that the share is a line between each two.
        knots = knots + 1e-4 * torch.arange(len(NEXT_QUANTILES), device=cut.device)
        levels = torch.tensor(NEXT_QUANTILES, dtype=torch.float64, device=cut.device)
        place = (knots <= cut).sum(-1, keepdim=True).clamp(1, len(NEXT_QUANTILES) - 1)
        low, high = knots.gather(-1, place - 1), knots.gather(-1, place)
        below = levels[place - 1] + (levels[place] - levels[place - 1]) * ((cut - low) / (high - low)).clamp(0, 1)
        under = torch.exp(-TAIL_DECAY * (knots[..., :1] - cut).clamp_min(0))
        over = torch.exp(-TAIL_DECAY * (cut - knots[..., -1:]).clamp_min(0))
        below = torch.where(cut > knots[..., -1:], 1 - (1 - levels[-1]) * over, below * under)[..., 0]
        share = torch.where(queries["side"][..., None] > 0, 1 - below, below)
        last = queries["features"][..., VALUES][..., 1:2].double()
        group = (lasts <= last).sum(-1, keepdim=True).clamp(1, LAST_GROUPS - 1)
        near, far = lasts.gather(-1, group - 1), lasts.gather(-1, group)
        part = ((last - near) / (far - near).clamp_min(1e-6)).clamp(0, 1)
        found = (share.gather(-1, group - 1) * (1 - part) + share.gather(-1, group) * part)[..., 0]
        return torch.where(found.isfinite(), found.clamp_min(1e-6), queries["share"].double()).float()

    def overlap(self, hours: Float[Tensor, " n"]) -> Float[Tensor, "n bins"]:
        """Share of each bin that lies before so many hours."""
        high = self.edges
        low = F.pad(high[:-1], (1, 0))
        return ((hours.double()[..., None] - low) / (high - low)).clamp(0, 1).float()

    def loss(
        self, rates: Float[Tensor, "n bins"], first: Float[Tensor, " n"], end: Float[Tensor, " n"]
    ) -> Float[Tensor, " n"]:
        """Negative log-likelihood of what came, in nats: of no in each bin before, and of yes in the bin where it came
        true, as far as the bin was observed. `first`: hours to the first yes, infinite where none was seen; `end`: to
        the end of what was observed."""
        came = (first <= end) & (first <= self.edges[-1])
        observed = self.overlap(end.clamp(max=float(self.edges[-1])))
        bin_of = torch.searchsorted(self.edges, torch.where(came, first, 0.0).double()).clamp(max=BINS - 1)
        before = torch.arange(BINS, device=rates.device) < bin_of[..., None]
        quiet = torch.where(came[..., None], before.float(), observed)
        # What ends the record itself (a discharge) came in its bin, whatever of that was left.
        seen = torch.where(first < end, observed.gather(-1, bin_of[..., None])[..., 0], 1.0)
        there = rates.gather(-1, bin_of[..., None])[..., 0] * seen
        yes = torch.log(-torch.expm1(-there.clamp_min(1e-6)))
        return (rates * quiet).sum(-1) - torch.where(came, yes, 0.0)

    def probability(
        self, rates: Float[Tensor, "n bins"], hours: Float[Tensor, " n"], share: Float[Tensor, " n"] | None = None
    ) -> Float[Tensor, " n"]:
        """That a question comes true within so many hours; `share`: of values beyond those to be passed (`share_of`),
        None: uncalibrated."""
        rates = rates.float() if share is None else calibrated(rates, share, self.calibration)
        return -torch.expm1(-(rates * self.overlap(hours)).sum(-1).clamp_min(1e-7))

    def share_of(
        self, code: Int[Tensor, "n items"], side: Int[Tensor, "n items"], share: Float[Tensor, "n items"]
    ) -> Float[Tensor, " n"]:
        """Of the base rate of a question's codes, what is beyond the values to be passed: the share itself for a single
        code; 1 for codes alone."""
        base = F.softplus(self.base(code.clamp_min(0)).float()).mean(-1) * (code >= 0)
        return (base * torch.where(side != 0, share, 1.0)).sum(-1) / base.sum(-1).clamp_min(1e-9)

    @torch.enable_grad()
    def calibrate(self, questions: Mapping[str, np.ndarray]) -> None:
        """Fit `calibration` on questions of held-out patients, by the likelihood of what came: every one is at risk up
        to its first yes or the end of observation, as in training. With fewer than `MIN_QUESTIONS` nothing changes.
        Slope and part of the share are above 0, so that answers still fall as the threshold moves outward.

        Args:
            questions: (n, ...) arrays: `rates`, `first` and `end` as `loss` has them, `beyond` (`share_of`), `weight`
                in the loss, and number of the `patient`.
        """
        if len(questions["rates"]) < MIN_QUESTIONS:
            return
        names = ("rates", "beyond", "first", "end", "weight")
        rates, share, first, end, weight = (torch.from_numpy(np.asarray(questions[n], np.float64)) for n in names)
        level = torch.zeros(len(rates), dtype=torch.float64, requires_grad=True)
        (weight * self.loss(rates * level.exp()[:, None], first, end)).sum().backward()
        assert level.grad is not None
        trusted = CALIBRATION_PENALTY * design_effect(level.grad, torch.from_numpy(questions["patient"]))
        free = torch.tensor([0.0, 0.0, 0.0, 0.1], dtype=torch.float64, requires_grad=True)
        optimiser = torch.optim.LBFGS([free], max_iter=100, line_search_fn="strong_wolfe")

        def line() -> Tensor:
            return torch.stack([free[0].exp(), free[1], free[2], free[3] ** 2])

        def closure() -> Tensor:
            optimiser.zero_grad()
            found = calibrated(rates, share, line())
            loss = (weight * self.loss(found, first, end)).sum() + trusted * (free**2).sum()
            loss.backward()
            return loss

        optimiser.step(closure)
        self.calibration.copy_(line().detach().float())
        self.calibrated.fill_(len(rates))


def along_bins(
    weights: Float[Tensor, "... 2 covariates"], values: Float[Tensor, "... covariates"]
) -> Float[Tensor, "... bins"]:
    """Covariates weighed in the first bin and in the last, and between them on a line."""
    first, last = (weights * values[..., None, :]).sum(-1)[..., None].unbind(-2)
    along = torch.linspace(0, 1, BINS, device=values.device, dtype=values.dtype)
    return first * (1 - along) + last * along


def covariates_of(
    queries: dict[str, Tensor], next_share: Float[Tensor, "rows queries items"]
) -> Float[Tensor, "rows queries items covariates"]:
    """`margins`, and the plain features."""
    return torch.cat([margins(queries, next_share), queries["features"][..., PLAIN_FEATURES].float()], -1)


def margins(
    queries: dict[str, Tensor], next_share: Float[Tensor, "rows queries items"]
) -> Float[Tensor, "rows queries items margins"]:
    """How far beyond the threshold things lie; all fall as it moves outward, and are 0 where there is none.

    Where no value is known, the logarithm of the share of the code's values beyond it, and where one is, of
    `next_share`; the last, mean, most and least extreme known value (0, the middle, where none is known) minus it, in
    normal scores, as ramps and steps; of known values, how many lie beyond it and how lately.
    """
    side, features = queries["side"].float(), queries["features"].float()
    valued, last, mean, least, most = features[..., VALUES].unbind(-1)
    above = side > 0
    known = torch.stack([last, mean, torch.where(above, most, least), torch.where(above, least, most)], -1)
    distance = side[..., None] * (known - queries["score"].float()[..., None])
    ramps = [-F.softplus(4 * (ramp - distance)) / 4 for ramp in RAMP_ENDS]
    steps = [torch.sigmoid(steep * distance) - 1 for steep in STEP_SLOPES]
    any_beyond, count, ago = features[..., BEYOND].unbind(-1)
    counted = [any_beyond, count, any_beyond * torch.exp(-3 * ago), any_beyond * torch.exp(-ago)]
    shares = torch.stack([queries["share"].float().log() * (1 - valued), next_share.log() * valued], -1)
    found = torch.cat([shares, *ramps, *steps, torch.stack(counted, -1)], -1)
    return found * side.abs()[..., None]


def calibrated(
    rates: Float[Tensor, "n bins"], share: Float[Tensor, " n"], line: Float[Tensor, " 4"]
) -> Float[Tensor, "n bins"]:
    """Rates whose sums up to each bin went through `QueryHead.calibration`."""
    total = rates.cumsum(-1).clamp_min(1e-7).log()
    passed = (share < 1).to(total)
    more = line[1] + line[2] * passed + line[3] * share.clamp_min(1e-4).log()
    total = torch.exp(line[0] * total + more[:, None]).clamp(1e-9, 50)
    return torch.diff(total, prepend=torch.zeros_like(total[:, :1]))


def design_effect(score: Tensor, patient: Tensor) -> float:
    """By how much the sum of questions' scores varies more than if each were of another patient (Kish 1965): those of
    one patient come together or not at all."""
    score = score - score.mean()
    of_each = score.new_zeros(int(patient.max()) + 1).index_add(0, patient, score)
    return max(1.0, float((of_each**2).sum() / (score**2).sum().clamp_min(1e-12)))
