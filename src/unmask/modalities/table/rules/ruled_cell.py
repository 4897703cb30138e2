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
    """Rules at work in a draw. `shift`: columns whose values are moved (delta adjustment): their own bounds do not hold
    them, rules do; `best`: means and likeliest categories instead of draws, of the columns under rules alone."""

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
            cells = _taken(left, at), member[order], uniform[at], self.best
            if isinstance(distribution, Quantities):
                again[at] = _within(distribution, *cells)
                again = self.rules.rounded(place, again, left.low, left.high)
            else:
                again[at] = _allowed(distribution, *cells)
            value = np.where(outside, again, value)
        fixed = self.rules.determined(place, known)
        return np.where(np.isnan(fixed), value, fixed)


def _taken(left: Range, rows: np.ndarray) -> Range:
    return Range(
        left.low[rows], left.high[rows], None if left.allowed is None else left.allowed[rows], left.known[rows]
    )


def _within(distribution: Quantities, left: Range, member: Tensor, uniform: np.ndarray, best: bool) -> np.ndarray:
    """Draws from the part of each cell's distribution that lies within its limits, of one member each; or the means of
    these parts."""
    low, high = (torch.tensor(x, dtype=torch.float32) for x in (left.low, left.high))

    def quantile(of: Quantities, u: Tensor | float) -> np.ndarray:
        a, b = of.shares_at(low)[0], of.shares_at(high)[1]
        return of.quantile(a + (b - a) * u).double().numpy()

    if best:
        out = np.mean([quantile(distribution, (k + 0.5) / STEPS) for k in range(STEPS)], axis=0)
    else:
        out, u = np.zeros(len(left.low)), torch.tensor(uniform[:, 2], dtype=torch.float32)
        for m in torch.unique(member).tolist():
            here = (member == m).numpy()
            out[here] = quantile(distribution.of_member(m), u)[here]
    return np.clip(out, left.low, left.high)


def _allowed(distribution: Categories, left: Range, member: Tensor, uniform: np.ndarray, best: bool) -> np.ndarray:
    """Draws among the allowed categories, or the likeliest of these."""
    assert left.allowed is not None
    allowed = torch.from_numpy(left.allowed)
    if best:
        probs = distribution.probabilities()[:, : left.allowed.shape[1]]
        return probs.masked_fill(~allowed, -1.0).argmax(-1).double().numpy()
    u = torch.tensor(uniform[:, 2:], dtype=torch.float32)
    return distribution.restricted(allowed).draw(u, member, 1.0)[:, 0].double().numpy()
