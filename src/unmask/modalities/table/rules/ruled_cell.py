"""Filling one cell under rules: the value that was drawn where the rules allow it, else one drawn within what they
leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from unmask.modalities.table.distribution.codec import Coding
from unmask.modalities.table.distribution.prediction import Categories, CellPrediction, Quantities
from unmask.modalities.table.rules.conditions import Limit
from unmask.modalities.table.rules.rules import Range, Rules

STEPS = 16
"""Quantiles whose mean stands for the mean of a distribution within limits."""


class Ruled:
    """Rules at work in a draw.

    Args:
        shift: columns whose values are moved (delta adjustment): their own bounds do not hold them, rules do.
        best: means and likeliest categories instead of draws, of the columns under rules alone.
    """

    def __init__(self, rules: Rules, codings: Sequence[Coding], shift: Mapping[int, float], best: bool) -> None:
        self.rules, self.codings, self.best = rules, codings, best
        self.bounds = {place: Limit() for place in shift}

    def order(self, order: Sequence[int]) -> list[int]:
        found = self.rules.order(order)
        return [c for c in found if c in self.rules.touched] if self.best else found

    def value(
        self,
        place: int,
        value: np.ndarray,
        prediction: CellPrediction,
        member: Tensor,
        uniform: np.ndarray,
        known: Mapping[int, np.ndarray],
    ) -> np.ndarray:
        """The values of cells of one column.

        Args:
            value: as drawn without rules.
            prediction: of these cells.
            member, uniform: which member each cell is drawn from, and (cells, 3) uniform numbers.
            known: place -> values of the columns under rules in the same rows, NaN where not known yet.
        """
        left = self.rules.limits(place, known, self.bounds)
        if left.dead.any() and left.allowed is None:
            # Recorded cells beyond the range of the training rows: rules go before that range.
            wide = self.rules.limits(place, known, {p: self.rules.floors.get(p, Limit()) for p in known})
            left.low, left.high = (np.where(left.dead, w, x) for w, x in ((wide.low, left.low), (wide.high, left.high)))
        ((order, distribution),) = prediction.pieces
        if self.best:
            value = np.asarray(prediction.point(), np.float64)
        if isinstance(distribution, Quantities):
            value = self.rules.rounded(place, value)
            outside = (value < left.low - 1e-9) | (value > left.high + 1e-9)
        else:
            assert left.allowed is not None
            outside = ~left.allowed[np.arange(len(value)), value.astype(int)]
        outside &= ~left.dead
        if outside.any():
            at = order.numpy()
            again = np.empty(len(value))
            again[at] = self._again(distribution, _taken(left, at), member[order], uniform[at])
            if isinstance(distribution, Quantities):
                again = self.rules.rounded(place, again, left.low, left.high)
            value = np.where(outside, again, value)
        fixed = self.rules.determined(place, known)
        return np.where(np.isnan(fixed), value, fixed)

    def _again(
        self, distribution: Quantities | Categories, left: Range, member: Tensor, uniform: np.ndarray
    ) -> np.ndarray:
        if isinstance(distribution, Quantities):
            return _within_best(distribution, left) if self.best else _within(distribution, left, member, uniform)
        return _allowed_best(distribution, left) if self.best else _allowed(distribution, left, member, uniform)


def _taken(left: Range, rows: np.ndarray) -> Range:
    return Range(
        left.low[rows], left.high[rows], None if left.allowed is None else left.allowed[rows], left.known[rows]
    )


def _ends(distribution: Quantities, left: Range) -> tuple[Tensor, Tensor]:
    """Shares of the distribution below the limits' lower and up to their upper end."""
    low, high = (torch.tensor(x, dtype=torch.float32) for x in (left.low, left.high))
    return distribution.shares_at(low)[0], distribution.shares_at(high)[1]


def _within(distribution: Quantities, left: Range, member: Tensor, uniform: np.ndarray) -> np.ndarray:
    """Draws from the part of each cell's distribution that lies within its limits; of one member each."""
    out = np.zeros(len(left.low))
    u = torch.tensor(uniform[:, 2], dtype=torch.float32)
    for m in torch.unique(member).tolist():
        own = distribution.of_member(m)
        a, b = _ends(own, left)
        here = (member == m).numpy()
        out[here] = own.quantile(a + (b - a) * u).double().numpy()[here]
    return np.clip(out, left.low, left.high)


def _within_best(distribution: Quantities, left: Range) -> np.ndarray:
    """Means of the parts within the limits."""
    a, b = _ends(distribution, left)
    parts = [distribution.quantile(a + (b - a) * (k + 0.5) / STEPS).double().numpy() for k in range(STEPS)]
    return np.clip(np.mean(parts, axis=0), left.low, left.high)


def _allowed(distribution: Categories, left: Range, member: Tensor, uniform: np.ndarray) -> np.ndarray:
    """Draws among the allowed categories."""
    assert left.allowed is not None
    own = distribution.restricted(torch.from_numpy(left.allowed))
    u = torch.tensor(uniform[:, 2:], dtype=torch.float32)
    return own.draw(u, member, 1.0)[:, 0].double().numpy()


def _allowed_best(distribution: Categories, left: Range) -> np.ndarray:
    """The likeliest of the allowed categories."""
    assert left.allowed is not None
    probs = distribution.probabilities()[:, : left.allowed.shape[1]]
    return probs.masked_fill(~torch.from_numpy(left.allowed), -1.0).argmax(-1).double().numpy()
