"""A distribution per cell: over bins (with a density inside each) for quantities, over categories for the rest.

A quantity's distribution is the linear part's normal, moved and widened by the network, times the network's tilt per
bin. So with an untrained network it is exactly the linear model's conditional, and with a trained one it can have any
shape down to a bin, and the normal's within one.

Shape letters: asked (cells predicted), members (networks), bins (padded to the block's largest), categories.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.core.prediction import no_mean, no_probabilities
from unmask.modalities.table.distribution.scale import FINE

BACKGROUND = 0.01
"""Share of the column's marginal mixed into the normal: a bound on how surprised the model can be by an outlier."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The bins of a block of quantities as tensors, one row per column, padded.

    Attributes:
        edge: (columns, bins + 1) borders as normal scores; +-inf at the ends and in the padding.
        mass: (columns, bins) marginal shares, 0 in the padding.
        atom: (columns, bins).
        score: (columns, bins) mean normal score of a bin.
        fine: (columns, bins * FINE + 1) borders of the cells of bins, as normal scores.
        mean: (columns, bins * FINE) mean of the data in each cell, in the column's unit.
        border: (columns, bins * FINE + 1) borders of the cells in the column's unit.
    """

    edge: Tensor
    mass: Tensor
    atom: Tensor
    score: Tensor
    fine: Tensor
    mean: Tensor
    border: Tensor


class Quantities:
    """Distributions of the asked cells that are quantities.

    Args:
        raw: (members, asked, bins + 2) what the network says: tilt of every bin, shift and log-widening.
        location, deviation: (wanted,) the linear part's normal.
        column: (wanted,) row of the grid.
    """

    def __init__(self, raw: Tensor, location: Tensor, deviation: Tensor, column: Tensor, grid: Grid) -> None:
        self.grid, self.column = grid, column
        self.tilt = raw[..., :-2]
        self.location = location + deviation * raw[..., -2]
        self.deviation = deviation * raw[..., -1].clamp(-3, 3).exp()
        self._log_probs: Tensor | None = None

    def of_member(self, member: int) -> Quantities:
        """The distributions of one member alone; of the only one where an untrained network has but one."""
        own = copy.copy(self)
        at = slice(member % len(self.tilt), member % len(self.tilt) + 1)
        own.tilt, own.location, own.deviation, own._log_probs = (
            self.tilt[at],
            self.location[at],
            self.deviation[at],
            None,
        )
        return own

    def _below(self, edge: Tensor) -> Tensor:
        """The normal's distribution function at (wanted, n) borders, less a half: (members, asked, n).

        By erf, in a sixth of ndtr's time: what it rounds off in the tails is far below the background's share.
        """
        return 0.5 * torch.erf((edge - self.location[..., None]) * (math.sqrt(0.5) / self.deviation)[..., None])

    @staticmethod
    def _between(below: Tensor, marginal: Tensor) -> Tensor:
        """Shares between borders: the normal's, and a little of the column's marginal ones."""
        return (1 - BACKGROUND) * below.diff(dim=-1) + BACKGROUND * marginal

    def masses(self) -> Float[Tensor, "members wanted bins"]:
        """Shares of the bins before the tilt."""
        return self._between(self._below(self.grid.edge[self.column]), self.grid.mass[self.column])

    def log_probs(self) -> Float[Tensor, "members wanted bins"]:
        if self._log_probs is None:
            absent = self.grid.mass[self.column] == 0
            # A padded bin has mass 0: its logarithm is kept finite, so that no gradient is NaN, and then taken out.
            logits = self.masses().clamp_min(1e-12).log() + self.tilt
            self._log_probs = logits.masked_fill(absent, -1e9).log_softmax(-1)
        return self._log_probs

    def member_log_prob(self, value: Float[Tensor, "wanted 2"]) -> Float[Tensor, "members wanted"]:
        """Log-probability of (bin, normal score); a density on the normal-score scale unless the bin is an atom."""
        number = value[:, 0].long()
        of_bin = self.log_probs().gather(-1, number.expand(len(self.tilt), -1)[..., None])[..., 0]
        z = value[:, 1]
        standard = -0.5 * ((z - self.location) / self.deviation) ** 2 - self.deviation.log()
        marginal = (-0.5 * z**2).exp() * BACKGROUND
        density = ((1 - BACKGROUND) * standard.exp() + marginal) / math.sqrt(2 * math.pi)
        mass = self.masses().gather(-1, number.expand(len(self.tilt), -1)[..., None])[..., 0]
        within = density.clamp_min(1e-12).log() - mass.clamp_min(1e-12).log()
        return of_bin + torch.where(self.grid.atom[self.column, number], 0.0, within)

    def fine_probs(self) -> Float[Tensor, "wanted cells"]:
        """Share of every cell of every bin, averaged over members."""
        even = (self.grid.mass[self.column] / FINE).repeat_interleave(FINE, -1)
        parts = self._between(self._below(self.grid.fine[self.column]), even)
        members, slots, _ = parts.shape
        parts = parts.view(members, slots, -1, FINE)
        inside = parts / parts.sum(-1, keepdim=True).clamp_min(1e-12)
        return (self.log_probs().exp()[..., None] * inside).mean(0).flatten(1)

    def mean(self) -> Float[Tensor, " wanted"]:
        """The expected value in the column's unit: best under squared error.

        Bins' shares and means come from one evaluation of the normal (half the time of `fine_probs`).
        """
        below, marginal = self._below(self.grid.fine[self.column]), self.grid.mass[self.column]
        parts = self._between(below, (marginal / FINE).repeat_interleave(FINE, -1))
        gather = torch.eye(marginal.shape[-1], device=parts.device).repeat_interleave(FINE, 0)
        mass = self._between(below[..., ::FINE], marginal)
        total = (parts * self.grid.mean[self.column]) @ gather
        logits = mass.clamp_min(1e-12).log() + self.tilt
        p = logits.masked_fill(marginal == 0, -1e9).softmax(-1)
        return (p * total / mass.clamp_min(1e-12)).sum(-1).mean(0)

    def point(self) -> Float[Tensor, " wanted"]:
        """The mean: best under squared error."""
        return self.mean()

    def quantile(self, q: Float[Tensor, " wanted"]) -> Float[Tensor, " wanted"]:
        """The value below which a share `q` lies, in the column's unit."""
        total = self.fine_probs().cumsum(-1)
        total = total / total[:, -1:]
        cell = (total < q[:, None]).sum(-1).clamp_max(total.shape[1] - 1)
        after = total.gather(1, cell[:, None])[:, 0]
        before = torch.where(cell > 0, total.gather(1, (cell - 1).clamp_min(0)[:, None])[:, 0], 0.0)
        share = ((q - before) / (after - before).clamp_min(1e-9)).clamp(0, 1)
        low, high = (self.grid.border[self.column].gather(1, (cell + i)[:, None])[:, 0] for i in (0, 1))
        atom = self.grid.atom[self.column].gather(1, (cell // FINE)[:, None])[:, 0]
        exact = self.grid.mean[self.column].gather(1, cell[:, None])[:, 0]
        return torch.where(atom, exact, low + share * (high - low))

    def shares_at(self, value: Float[Tensor, " wanted"]) -> tuple[Tensor, Tensor]:
        """How much of the distribution lies below a value in the column's unit, and up to it: they differ
        at an atom."""
        p, border = self.fine_probs(), self.grid.border[self.column]
        p = p / p.sum(-1, keepdim=True)
        low, high = border[:, :-1], border[:, 1:]
        v = value[:, None]
        part = ((v - low) / (high - low).clamp_min(1e-9)).clamp(0, 1)
        same = (low == high) | self.grid.atom[self.column].repeat_interleave(FINE, -1)
        center = self.grid.mean[self.column]
        below, upto = (torch.where(same, c.float(), part) for c in (v > center, v >= center))
        return (p * below).sum(-1), (p * upto).sum(-1)

    def draw(self, uniform: Float[Tensor, "wanted 3"], member: Int[Tensor, " wanted"], temperature: float) -> Tensor:
        """(wanted, 2) bins and normal scores, from three uniform numbers per cell and one member each."""
        row = torch.arange(len(member), device=member.device)
        log_p = self.log_probs()[member, row] / temperature
        number = pick(log_p, uniform[:, 0])
        low, high = (self.grid.edge[self.column].gather(1, (number + i)[:, None])[:, 0] for i in (0, 1))
        location, deviation = self.location[member, row], self.deviation[member, row] * math.sqrt(temperature)
        normal = torch.special.ndtr((high - location) / deviation) - torch.special.ndtr((low - location) / deviation)
        broad = self.grid.mass[self.column].gather(1, number[:, None])[:, 0] * BACKGROUND
        use = (uniform[:, 2] * ((1 - BACKGROUND) * normal + broad) < (1 - BACKGROUND) * normal) & (normal > 1e-5)
        location, deviation = torch.where(use, location, 0.0), torch.where(use, deviation, 1.0)
        a, b = torch.special.ndtr((low - location) / deviation), torch.special.ndtr((high - location) / deviation)
        z = location + deviation * torch.special.ndtri((a + (b - a) * uniform[:, 1]).clamp(1e-6, 1 - 1e-6))
        z = torch.minimum(torch.maximum(z, low), high)
        z = torch.where(self.grid.atom[self.column, number], self.grid.score[self.column, number], z)
        return torch.stack([number.to(z.dtype), z], -1)

    def truncated(
        self,
        low: Float[Tensor, " wanted"],
        high: Float[Tensor, " wanted"],
        atoms: Bool[Tensor, "wanted own"],
        *,
        temperature: float = 1.0,
    ) -> TruncatedQuantities:
        """The distributions of the one member there is (see `of_member`), within limits.

        Args:
            low, high: limits as normal scores, of bins that are no atoms; infinite for none.
            atoms: which of the column's own bins lie within the limits, if they are atoms; not read of others.
            temperature: below 1 keeps to the common, above 1 spreads.
        """
        (location,), (deviation,), (tilt,) = self.location, self.deviation, self.tilt
        deviation = deviation * math.sqrt(temperature)
        whole, atom, marginal = self.grid.edge[self.column], self.grid.atom[self.column], self.grid.mass[self.column]

        def below(edge: Tensor) -> Tensor:
            return torch.special.ndtr((edge - location[:, None]) / deviation[:, None])

        edge, within = whole, below(whole)
        marginal_below = F.pad(marginal.cumsum(-1), (1, 0))
        mass = self._between(within, marginal)
        if torch.isfinite(low).any() or torch.isfinite(high).any():
            edge = torch.minimum(torch.maximum(whole, low[:, None]), high[:, None])
            within, marginal_below = below(edge), torch.special.ndtr(edge)
            mass = torch.where(atom, mass, self._between(within, marginal_below.diff(dim=-1)))
        left = (mass > 0) & (marginal > 0) & (_padded(atoms, marginal.shape[-1]) | ~atom)
        logits = mass.clamp_min(1e-30).log() + tilt / temperature
        logits = logits.masked_fill(~left, -torch.inf)
        nothing = ~left.any(-1)
        if nothing.any():  # limits that no bin meets, by a rounding error
            logits[nothing] = torch.where(marginal[nothing] > 0, 0.0, -torch.inf)
        return TruncatedQuantities(
            logits=logits,
            edge=edge,
            below=within,
            marginal_below=marginal_below,
            location=location,
            deviation=deviation,
            atom=atom,
            score=self.grid.score[self.column],
        )

    def mode(self) -> Tensor:
        probs = self.log_probs().exp().mean(0)
        number = probs.argmax(-1)
        low, high = (self.grid.edge[self.column].gather(1, (number + i)[:, None])[:, 0] for i in (0, 1))
        z = torch.minimum(torch.maximum(self.location.mean(0), low), high)
        z = torch.where(self.grid.atom[self.column, number], self.grid.score[self.column, number], z)
        return torch.stack([number.to(z.dtype), z], -1)


@dataclass(frozen=True, kw_only=True)
class TruncatedQuantities:
    """Distributions of quantities within limits, of one member; made by `Quantities.truncated`.

    Attributes:
        logits: (wanted, bins) unnormalised log-shares of the bins within the limits, -inf where nothing of one is left.
        edge: (wanted, bins + 1) borders of the bins as normal scores, moved to the limits.
        below, marginal_below: (wanted, bins + 1) the normal's and the standard normal's share below these borders.
        location, deviation: (wanted,) of the normal.
        atom, score: (wanted, bins) which bins are single values, and their normal scores.
    """

    logits: Tensor
    edge: Tensor
    below: Tensor
    marginal_below: Tensor
    location: Tensor
    deviation: Tensor
    atom: Tensor
    score: Tensor

    def draw(self, uniform: Float[Tensor, "wanted 2"]) -> Float[Tensor, "wanted 2"]:
        """Bins and normal scores from two uniform numbers per cell. Nothing is ever rejected."""
        number = pick(self.logits, uniform[:, 0])[:, None]
        next_ = number + 1

        def between(below: Tensor) -> Tensor:
            """A share drawn evenly between the two borders of the bin."""
            low, high = below.gather(1, number)[:, 0], below.gather(1, next_)[:, 0]
            return low + (high - low) * uniform[:, 1]

        mass = (self.below.gather(1, next_) - self.below.gather(1, number))[:, 0]
        normal = mass > 1e-5  # else the normal is too far away to be told apart there: evenly by the marginal
        p = torch.where(normal, between(self.below), between(self.marginal_below)).clamp(1e-6, 1 - 1e-6)
        z = torch.special.ndtri(p)
        z = torch.where(normal, self.location + self.deviation * z, z)
        z = torch.minimum(torch.maximum(z, self.edge.gather(1, number)[:, 0]), self.edge.gather(1, next_)[:, 0])
        z = torch.where(self.atom.gather(1, number)[:, 0], self.score.gather(1, number)[:, 0], z)
        return torch.stack([number[:, 0].to(z.dtype), z], -1)


class Categories:
    """Distributions of the asked cells that have categories.

    Args:
        raw: (members, asked, categories) what the network adds to the logarithm of the linear part's shares.
        share: (wanted, categories) of the linear part, 0 in the padding.
    """

    def __init__(self, raw: Tensor, share: Tensor) -> None:
        logits = raw + share.clamp_min(1e-9).log()
        self._log_probs = logits.masked_fill(share == 0, -1e9).log_softmax(-1)

    def log_probs(self) -> Float[Tensor, "members wanted categories"]:
        return self._log_probs

    def member_log_prob(self, value: Float[Tensor, "wanted 2"]) -> Float[Tensor, "members wanted"]:
        number = value[:, 0].long().expand(len(self._log_probs), -1)
        return self._log_probs.gather(-1, number[..., None])[..., 0]

    def of_member(self, member: int) -> Categories:
        """The distributions of one member alone."""
        own, at = copy.copy(self), member % len(self._log_probs)
        own._log_probs = self._log_probs[at : at + 1]
        return own

    def restricted(self, allowed: Bool[Tensor, "wanted levels"]) -> Categories:
        """The distributions among the allowed categories alone. `allowed`: of the column's own categories; those of the
        padding never are."""
        own = copy.copy(self)
        refused = ~_padded(allowed, self._log_probs.shape[-1])
        own._log_probs = self._log_probs.masked_fill(refused, -torch.inf).log_softmax(-1)
        return own

    def log_share(self, allowed: Bool[Tensor, "rows levels"], temperature: float = 1.0) -> Float[Tensor, " wanted"]:
        """Logarithm of the share of some of the column's own categories, of the one member there is."""
        marks = _padded(allowed, self._log_probs.shape[-1])
        log_p = (self._log_probs[0] / temperature).log_softmax(-1)
        return log_p.masked_fill(~marks, -torch.inf).logsumexp(-1)

    def probabilities(self) -> Float[Tensor, "wanted categories"]:
        """Averaged over members."""
        return self._log_probs.exp().mean(0)

    def mode(self) -> Tensor:
        number = self.probabilities().argmax(-1)
        return torch.stack([number.float(), torch.zeros_like(number).float()], -1)

    def point(self) -> Float[Tensor, " wanted"]:
        """The number of the likeliest category: right most often."""
        return self.probabilities().argmax(-1).float()

    def draw(self, uniform: Float[Tensor, "wanted n"], member: Int[Tensor, " wanted"], temperature: float) -> Tensor:
        """(wanted, 2) categories and zeros, from the first of the uniform numbers of each cell and one member each."""
        row = torch.arange(len(member), device=member.device)
        number = pick(self._log_probs[member, row] / temperature, uniform[:, 0])
        return torch.stack([number.float(), torch.zeros_like(number).float()], -1)


def _padded(marks: Bool[Tensor, "wanted own"], width: int) -> Bool[Tensor, "wanted width"]:
    """Marks of a column's own bins or categories, False for those of the padding."""
    return F.pad(marks, (0, width - marks.shape[-1]), value=False)


def pick(log_p: Float[Tensor, "wanted values"], uniform: Float[Tensor, " wanted"]) -> Int[Tensor, " wanted"]:
    """Draw a value by inverting the distribution function; one of probability zero is never drawn."""
    p = log_p.softmax(-1)
    total = p.cumsum(-1)
    number = (total <= (uniform * total[:, -1])[:, None]).sum(-1)
    last = (p > 0).long().cumsum(-1).argmax(-1)
    return torch.minimum(number, last)


class CellPrediction:
    """The predictions of the asked cells, in their order, block by block; implements `core.prediction.Prediction`.

    A value is (bin or category, normal score); `mean` and `point` are in the column's unit.

    Args:
        pieces: (places among the asked cells, their distributions).
        weight: (wanted, members) share of each member in the loss, adding up to 1; default equal.
    """

    def __init__(
        self, pieces: list[tuple[Tensor, Quantities | Categories]], requested: int, weight: Tensor | None = None
    ) -> None:
        self.pieces, self.requested, self.weight = pieces, requested, weight

    def __len__(self) -> int:
        return self.requested

    @property
    def members(self) -> int:
        return int(self.pieces[0][1].log_probs().shape[0]) if self.pieces else 1

    def _gathered(self, parts: list[Tensor]) -> Tensor:
        if not parts:
            return torch.zeros(0)
        whole = torch.cat(parts)
        order = torch.cat([p for p, _ in self.pieces])
        return torch.empty_like(whole).index_copy_(0, order, whole)

    def member_log_prob(self, value: Float[Tensor, "wanted 2"]) -> Float[Tensor, "wanted members"]:
        return self._gathered([d.member_log_prob(value[p]).t() for p, d in self.pieces])

    def loss(self, target: Float[Tensor, "wanted 2"], weight: Float[Tensor, " wanted"] | None = None) -> Tensor:
        """Summed over cells; over the members that train on a cell, the mean: each member learns for itself."""
        log_prob = self.member_log_prob(target)
        of_member = 1.0 / max(1, self.members) if self.weight is None else self.weight
        return -(log_prob * of_member).sum() if weight is None else -((log_prob * of_member).sum(-1) * weight).sum()

    def log_prob(self, value: Float[Tensor, "wanted 2"]) -> Float[Tensor, " wanted"]:
        """Of the members' mixture."""
        return self.member_log_prob(value).logsumexp(-1) - math.log(self.members)

    def mode(self) -> Float[Tensor, "wanted 2"]:
        return self._gathered([d.mode() for _, d in self.pieces])

    def mean(self) -> Float[Tensor, " wanted"]:
        """In the column's unit, where all the asked cells are quantities."""
        quantities = [d for _, d in self.pieces if isinstance(d, Quantities)]
        if len(quantities) < len(self.pieces):
            raise no_mean("categories")
        return self._gathered([d.mean() for d in quantities])

    def probabilities(self) -> Float[Tensor, "wanted categories"]:
        """Where all the asked cells have categories; 0 for numbers beyond those of a cell's own column."""
        categories = [d.probabilities() for _, d in self.pieces if isinstance(d, Categories)]
        if len(categories) < len(self.pieces):
            raise no_probabilities("quantities")
        widest = max((p.shape[1] for p in categories), default=0)
        return self._gathered([F.pad(p, (0, widest - p.shape[1])) for p in categories])

    def point(self) -> Float[Tensor, " wanted"]:
        """One guess per cell in its column's unit: the mean of a quantity, the number of the likeliest category."""
        return self._gathered([d.point() for _, d in self.pieces])

    def draw(
        self, uniform: Float[Tensor, "wanted 3"], member: Int[Tensor, " wanted"], temperature: float = 1.0
    ) -> Tensor:
        """Values from given uniform numbers: a row's draws then depend on the row alone."""
        return self._gathered([d.draw(uniform[p], member[p], temperature) for p, d in self.pieces])

    def sample(
        self, *, generator: torch.Generator | None = None, temperature: float = 1.0, top_k: int | None = None
    ) -> Float[Tensor, "wanted 2"]:
        if temperature <= 0:
            return self.mode()
        uniform = torch.rand((self.requested, 3), generator=generator)
        member = torch.randint(0, self.members, (self.requested,), generator=generator)
        return self.draw(uniform, member, temperature)

    def confidence(self) -> Float[Tensor, " wanted"]:
        return self._gathered([d.log_probs().exp().mean(0).amax(-1).log() for _, d in self.pieces])

    def correct(self, target: Float[Tensor, "wanted 2"]) -> Tensor:
        """How many modes are in the right bin or category."""
        with torch.no_grad():
            return (self.mode()[:, 0] == target[:, 0]).sum()
