"""Answers questions about what is to come from the encoder's states, at all horizons at once.

A question is a query: its codes (a set of items, pooled), the side of a value that counts, and what the record says of
each. It attends to the states of the history, and gets a rate for each bin of horizons: the probability that it comes
true within dt is 1 - exp(-sum of rates up to dt), which cannot fall as dt grows. That a question comes true in a bin or
not, given that it had not before, is what is trained: yes and no at every horizon that was observed, none beyond.

A value to be passed enters as margins alone (`margins`): the share of the code's values beyond it, and how far the
known values lie beyond it. All of them fall as it moves outward, and none has a weight below 0, so that an answer
cannot rise. A question begins at its code's base rate times that share.

Shape letters: rows, slots, asked (questions of a row), items, bins, width, margins.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.core.batch import PackedBatch
from unmask.modalities.events.histories import Histories
from unmask.modalities.events.meds import DEATH, HOUR, STATIC
from unmask.modalities.events.queries import BINS, FEATURES, QueryDraws
from unmask.modalities.events.vocabulary import FIRST

LAYERS = 2
RAMPS, STEPS = (-0.75, 0.0, 0.75), (3.0, 12.0)
"""Where ramps of the distance between a known value and the one asked about end, normal scores; and how steep steps
are."""
KNOWN = 4 * (len(RAMPS) + len(STEPS))
MARGINS = 2 + KNOWN + 4
QUICK = 8.0
"""By how much faster than others the weights of the margins are learnt: they begin at what is plain."""
VALUED, BEYOND = slice(4, 9), slice(9, 12)
"""`queries.features`: what known values of the code are, and what of them lies beyond the one asked about."""
COUNTED = 4000
"""Training patients whose records the base rates come from."""
BASED = (0.0, 0.25, 0.5, 0.75)
"""Where in time between the first event and the end of observation."""


class Look(nn.Module):
    """A query looks at the states of its history, and is changed by what it finds."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.inner = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(
        self,
        x: Float[Tensor, "rows asked width"],
        states: Float[Tensor, "rows slots width"],
        seen: Bool[Tensor, "rows asked slots"],
    ) -> Float[Tensor, "rows asked width"]:
        rows, _, width = x.shape

        def parted(t: Tensor) -> Tensor:
            return t.view(rows, -1, self.heads, width // self.heads).transpose(1, 2)

        key, value = self.key_value(states).chunk(2, -1)
        found = F.scaled_dot_product_attention(
            parted(self.query(self.norm(x))), parted(key), parted(value), attn_mask=seen[:, None]
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
        share: (codes,) how often each code was asked for in training; 0: never, and it cannot be asked for.
        calibration: of the logarithm of the summed rates, fitted on held-out patients: slope, intercept, what is added
            where a value must be passed, and by the logarithm of the share of values beyond it; 1, 0, 0 and 0 where
            there were none.
        calibrated: how many questions that fit had.
    """

    edges: Tensor
    share: Tensor
    calibration: Tensor
    calibrated: Tensor

    def __init__(self, codes: int, width: int, heads: int) -> None:
        super().__init__()
        told = width + 1 + FEATURES - 3
        self.item = nn.Sequential(nn.Linear(told, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.code = nn.Embedding(codes, width)
        self.pool = nn.Linear(2 * width, width)
        self.states = nn.LayerNorm(width)
        self.looks = nn.ModuleList(Look(width, heads) for _ in range(LAYERS))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, BINS)
        self.base = nn.Embedding(codes, BINS)
        # Weights of the margins in the first bin and in the last; between them on a line.
        self.weigh = nn.Linear(width, 2 * MARGINS)
        nn.init.normal_(self.code.weight, std=0.5)
        nn.init.normal_(self.out.weight, std=0.02)
        nn.init.constant_(self.base.weight, -3.0)
        nn.init.normal_(self.weigh.weight, std=0.02 / QUICK)
        with torch.no_grad():  # the base rate times the share; with a value known, what the last one says
            start = torch.full((MARGINS,), 0.05)
            start[0], start[1], start[2 : 2 + KNOWN : 4] = 1.0, 0.25, 0.5
            self.weigh.bias.copy_(torch.log(torch.expm1(start)).repeat(2) / QUICK)
        self.register_buffer("edges", torch.ones(BINS, dtype=torch.float64))
        self.register_buffer("share", torch.zeros(codes, dtype=torch.float64))
        self.register_buffer("calibration", torch.tensor([1.0, 0.0, 0.0, 0.0]))
        self.register_buffer("calibrated", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def start(self, histories: Histories, train: np.ndarray, last: np.ndarray, edges: np.ndarray) -> None:
        """Begin at how often each code comes in each bin of horizons, among the training patients."""
        self.edges.copy_(torch.from_numpy(edges))
        self.share.copy_(torch.from_numpy(QueryDraws.shares(histories, train)))
        self.base.weight.copy_(torch.from_numpy(base_rates(histories, train, last, edges)).float())

    def forward(
        self,
        states: Float[Tensor, "rows slots width"],
        segment: Int[Tensor, "rows slots"],
        asked: dict[str, Tensor],
    ) -> Float[Tensor, "rows asked bins"]:
        """Rates, uncalibrated.

        Args:
            asked: of `query_batches.asked_values`.
        """
        code, side = asked["code"], asked["side"].float()
        there = code >= 0
        code, plain = code.clamp_min(0), asked["features"]
        plain = torch.cat([plain[..., : BEYOND.start], plain[..., BEYOND.stop :]], -1)
        x = self.item(torch.cat([self.code(code), side[..., None], plain], -1))
        first, last = F.softplus(QUICK * self.weigh(x).float()).chunk(2, -1)
        along = torch.linspace(0, 1, BINS, device=x.device)[:, None]
        margin = margins(asked)[..., None, :]
        passed = ((first[..., None, :] * (1 - along) + last[..., None, :] * along) * margin).sum(-1)
        count = there.sum(-1, keepdim=True).clamp_min(1)
        mean = (x * there[..., None]).sum(-2) / count
        most = x.masked_fill(~there[..., None], -1e4).amax(-2)
        x = self.pool(torch.cat([mean, most], -1))
        seen = (asked["segment"][..., None] == segment[:, None]) & (segment[:, None] != 0)
        seen = seen | (asked["segment"] == 0)[..., None]  # padding looks anywhere: nothing to see is not a number
        states = self.states(states)
        for look in self.looks:
            x = look(x, states, seen)
        base = F.softplus(self.base(code).float()).log() + passed
        base = base.masked_fill(~there[..., None], -30.0).logsumexp(-2).exp().clamp_min(1e-7)
        return F.softplus(self.out(self.norm(x)).float() + base + torch.log(-torch.expm1(-base)))

    def overlap(self, hours: Float[Tensor, " n"]) -> Float[Tensor, "n bins"]:
        """Share of each bin that lies before so many hours."""
        high = self.edges
        low = F.pad(high[:-1], (1, 0))
        return ((hours.double()[..., None] - low) / (high - low)).clamp(0, 1).float()

    def loss(
        self,
        rates: Float[Tensor, "n bins"],
        first: Float[Tensor, " n"],
        end: Float[Tensor, " n"],
    ) -> Float[Tensor, " n"]:
        """Negative log-likelihood of what came, in nats: of no in each bin before, and of yes in the bin where it came
        true, as far as the bin was observed.

        Args:
            first: hours to the first yes; infinite where none was seen.
            end: hours to the end of what was observed.
        """
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
        """That a question comes true within so many hours.

        Args:
            share: of values beyond those to be passed (`share_of`); None: uncalibrated.
        """
        rates = rates.float() if share is None else calibrated(rates, share, self.calibration)
        return -torch.expm1(-(rates * self.overlap(hours)).sum(-1).clamp_min(1e-7))

    def share_of(
        self, code: Int[Tensor, "n items"], side: Int[Tensor, "n items"], share: Float[Tensor, "n items"]
    ) -> Float[Tensor, " n"]:
        """Of the base rate of a question's codes, what is beyond the values to be passed: the share itself for a single
        code; 1 for codes alone."""
        base = F.softplus(self.base(code.clamp_min(0)).float()).mean(-1) * (code >= 0)
        return (base * torch.where(side != 0, share, 1.0)).sum(-1) / base.sum(-1).clamp_min(1e-9)

    @torch.no_grad()
    def calibrate(
        self, rates: np.ndarray, share: np.ndarray, first: np.ndarray, end: np.ndarray, weight: np.ndarray
    ) -> None:
        """Fit `calibration` on questions of held-out patients, by the likelihood of what came: every one is at risk up
        to its first yes or the end of observation, as in training. With fewer than `FEWEST` nothing changes."""
        if len(rates) < FEWEST:
            return
        told = (torch.from_numpy(np.asarray(part, np.float64)) for part in (rates, share, first, end, weight))
        self.calibration.copy_(fitted_calibration(self, *told).float())
        self.calibrated.fill_(len(rates))


FEWEST = 200
"""Questions of held-out patients that a calibration needs."""
TRUSTED = 20.0
"""Weight of the calibration that changes nothing, in questions: few held-out patients change little."""


def margins(asked: dict[str, Tensor]) -> Float[Tensor, "rows asked items margins"]:
    """How far beyond the value asked about things lie; all fall as it moves outward, and are 0 where none is asked.

    The logarithm of the share of the code's values beyond it, where no value is known and where one is; the last, mean,
    most and least extreme known value (0, the middle, where none is known) minus it, in normal scores, as ramps and
    steps; of known values, how many lie beyond it and how lately.
    """
    side, told = asked["side"].float(), asked["features"].float()
    valued, last, mean, least, most = told[..., VALUED].unbind(-1)
    share = asked["share"].float().log()
    above = side > 0
    known = torch.stack([last, mean, torch.where(above, most, least), torch.where(above, least, most)], -1)
    distance = side[..., None] * (known - asked["score"].float()[..., None])
    ramps = [-F.softplus(4 * (ramp - distance)) / 4 for ramp in RAMPS]
    steps = [torch.sigmoid(steep * distance) - 1 for steep in STEPS]
    any_beyond, count, ago = told[..., BEYOND].unbind(-1)
    counted = [any_beyond, count, any_beyond * torch.exp(-3 * ago), any_beyond * torch.exp(-ago)]
    shares = torch.stack([share * (1 - valued), share * valued], -1)
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


@torch.enable_grad()
def fitted_calibration(
    head: QueryHead, rates: Tensor, share: Tensor, first: Tensor, end: Tensor, weight: Tensor
) -> Tensor:
    """(4,) the `calibration` that makes what came likeliest; slope and part of the share are above 0, so that answers
    still fall as the value asked about moves outward."""
    free = torch.tensor([0.0, 0.0, 0.0, 0.1], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([free], max_iter=100, line_search_fn="strong_wolfe")

    def line() -> Tensor:
        return torch.stack([free[0].exp(), free[1], free[2], free[3] ** 2])

    def closure() -> Tensor:
        optimiser.zero_grad()
        found = calibrated(rates, share, line())
        loss = (weight * head.loss(found, first, end)).sum() + TRUSTED * (free**2).sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    return line().detach()


def base_rates(histories: Histories, train: np.ndarray, last: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """(codes, bins) what softplus makes each code's rate of: yes in a bin of those who had not said yes before."""
    events, size = histories.events, len(histories.vocabulary)
    came, risk = np.zeros((size, BINS)), np.zeros(BINS)
    low = np.r_[0.0, edges[:-1]]
    chosen = np.random.default_rng(0).permutation(train)[:COUNTED]
    deadly = events.begins(DEATH)
    for i in chosen.tolist():
        rows = histories.rows(i)
        rows = rows[events.time[rows] != STATIC]
        time = events.time[rows]
        for share in BASED if len(time) else ():
            moment = int(time[0]) + int(share * (last[i] - time[0]))
            known = int(np.searchsorted(time, moment, side="right"))
            if last[i] <= moment or deadly[events.code[rows[:known]]].any():
                continue
            code, first = np.unique(histories.code[rows[known:]], return_index=True)
            hours = (time[known:][first] - moment) / HOUR
            end = (last[i] - moment) / HOUR
            risk += np.clip((end - low) / (edges - low), 0, 1)
            here = hours <= edges[-1]
            np.add.at(came, (code[here], np.searchsorted(edges, hours[here])), 1)
    # Those who said yes are at risk no more.
    left = np.maximum(risk - (np.cumsum(came, 1) - came), came + 1)
    mean = came.sum() / max(left[FIRST:].sum(), 1)
    rate = -np.log1p(-np.minimum((came + 2 * mean) / (left + 2), 0.98))
    return np.log(np.expm1(np.maximum(rate, 1e-5)))


def asked_of(batch: PackedBatch) -> dict[str, Tensor] | None:
    """What `query_batches` laid beside a batch; None where nothing is asked."""
    found = {name[6:]: value for name, value in batch.extra.items() if name.startswith("asked.")}
    return found or None
