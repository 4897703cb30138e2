"""Answers questions about what is to come from the encoder's states, at all horizons at once.

A question is a query: its codes (a set of items, pooled), the side of a value that counts, and what the record says of
each. It attends to the states of the history, and gets a rate for each bin of horizons: the probability that it comes
true within dt is 1 - exp(-sum of rates up to dt), which cannot fall as dt grows. That a question comes true in a bin or
not, given that it had not before, is what is trained: yes and no at every horizon that was observed, none beyond.

Shape letters: rows, slots, asked (questions of a row), items, bins, width.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.core.batch import PackedBatch
from unmask.modalities.events.histories import Histories
from unmask.modalities.events.meds import HOUR, STATIC
from unmask.modalities.events.queries import BINS, FEATURES, QueryDraws
from unmask.modalities.events.vocabulary import FIRST

LAYERS = 2
PIECES = 8
COUNTED = 4000
"""Training patients whose records the base rates come from."""


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
        calibration: slope and intercept of the logarithm of the summed rates, fitted on held-out patients; 1 and 0
            where there were none.
        calibrated: how many questions that fit had.
    """

    edges: Tensor
    share: Tensor
    calibration: Tensor
    calibrated: Tensor
    heights: Tensor

    def __init__(self, codes: int, width: int, heads: int) -> None:
        super().__init__()
        told = width + 2 + PIECES + FEATURES + 1
        self.item = nn.Sequential(nn.Linear(told, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.code = nn.Embedding(codes, width)
        self.pool = nn.Linear(2 * width, width)
        self.states = nn.LayerNorm(width)
        self.looks = nn.ModuleList(Look(width, heads) for _ in range(LAYERS))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, BINS)
        self.base = nn.Embedding(codes, BINS)
        nn.init.normal_(self.code.weight, std=0.5)
        nn.init.normal_(self.out.weight, std=0.02)
        nn.init.constant_(self.base.weight, -3.0)
        self.register_buffer("edges", torch.ones(BINS, dtype=torch.float64))
        self.register_buffer("share", torch.zeros(codes, dtype=torch.float64))
        self.register_buffer("calibration", torch.tensor([1.0, 0.0]))
        self.register_buffer("calibrated", torch.zeros((), dtype=torch.int64))
        self.register_buffer("heights", torch.linspace(-2.1, 2.1, PIECES), persistent=False)

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
        code = code.clamp_min(0)
        score = asked["score"]
        # Ramps of the value asked for, beside the side it must lie on.
        pieces = (score[..., None] - self.heights).clamp(-1, 1) * side.abs()[..., None]
        beyond = (asked["features"][..., 5] - score) * side * asked["features"][..., 4]
        told = [self.code(code), pieces, side[..., None], (score * side)[..., None], asked["features"]]
        x = self.item(torch.cat([*told, beyond[..., None]], -1))
        count = there.sum(-1, keepdim=True).clamp_min(1)
        mean = (x * there[..., None]).sum(-2) / count
        most = x.masked_fill(~there[..., None], -1e4).amax(-2)
        x = self.pool(torch.cat([mean, most], -1))
        seen = (asked["segment"][..., None] == segment[:, None]) & (segment[:, None] != 0)
        seen = seen | (asked["segment"] == 0)[..., None]  # padding looks anywhere: nothing to see is not a number
        states = self.states(states)
        for look in self.looks:
            x = look(x, states, seen)
        base = self.base(code).masked_fill(~there[..., None], -30.0).logsumexp(-2)
        return F.softplus(self.out(self.norm(x)).float() + base.float())

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
        there = rates.gather(-1, bin_of[..., None])[..., 0] * observed.gather(-1, bin_of[..., None])[..., 0]
        yes = torch.log(-torch.expm1(-there.clamp_min(1e-6)))
        return (rates * quiet).sum(-1) - torch.where(came, yes, 0.0)

    def probability(
        self, rates: Float[Tensor, "n bins"], hours: Float[Tensor, " n"], calibrated: bool = True
    ) -> Float[Tensor, " n"]:
        """That a question comes true within so many hours."""
        total = (rates.float() * self.overlap(hours)).sum(-1).clamp_min(1e-7)
        if calibrated:
            total = torch.exp(self.calibration[0] * total.log() + self.calibration[1])
        return -torch.expm1(-total)

    @torch.no_grad()
    def calibrate(
        self, rates: np.ndarray, first: np.ndarray, end: np.ndarray, weight: np.ndarray, u: np.ndarray
    ) -> None:
        """Fit slope and intercept on questions of held-out patients, each at a horizon drawn on the log scale among
        those that were observed.

        Args:
            u: (questions,) uniform numbers, the horizons.
        """
        low, high = float(self.edges[0]), np.minimum(end, float(self.edges[-1]))
        fits = high > low
        if fits.sum() < FEWEST:
            return
        hours = low * (high[fits] / low) ** u[fits]
        total = (torch.from_numpy(rates[fits]).float() * self.overlap(torch.from_numpy(hours))).sum(-1)
        logged, came = total.clamp_min(1e-7).log().double(), torch.from_numpy(first[fits] <= hours)
        found = fitted_line(logged, came, torch.from_numpy(weight[fits]).double())
        self.calibration.copy_(found.float())
        self.calibrated.fill_(int(fits.sum()))


FEWEST = 200
"""Questions of held-out patients that a calibration needs."""
TRUSTED = 20.0
"""Weight of the line that changes nothing, in questions: few held-out patients change little."""


@torch.enable_grad()
def fitted_line(logged: Tensor, came: Tensor, weight: Tensor) -> Tensor:
    """(slope, intercept) of the log of the summed rates that make what came likeliest; the slope is above 0."""
    line = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([line], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        total = torch.exp(line[0].exp() * logged + line[1]).clamp(1e-9, 50)
        yes = torch.log(-torch.expm1(-total))
        loss = -(weight * torch.where(came, yes, -total)).sum() + TRUSTED * (line**2).sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    return torch.stack([line[0].exp(), line[1]]).detach()


def base_rates(histories: Histories, train: np.ndarray, last: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """(codes, bins) what softplus makes each code's rate of: yes in a bin of those who had not said yes before."""
    events, size = histories.events, len(histories.vocabulary)
    came, risk = np.zeros((size, BINS)), np.zeros(BINS)
    low = np.r_[0.0, edges[:-1]]
    chosen = np.random.default_rng(0).permutation(train)[:COUNTED]
    for i in chosen.tolist():
        rows = histories.rows(i)
        rows = rows[events.time[rows] != STATIC]
        stamps = np.unique(events.time[rows])
        for at in np.unique(np.linspace(0, len(stamps) - 2, 3).astype(int)) if len(stamps) > 1 else ():
            later = rows[np.searchsorted(events.time[rows], stamps[at], side="right") :]
            code, first = np.unique(histories.code[later], return_index=True)
            hours = (events.time[later][first] - stamps[at]) / HOUR
            end = (last[i] - stamps[at]) / HOUR
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
