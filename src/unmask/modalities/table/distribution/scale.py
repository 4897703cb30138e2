"""Quantities on the model's scale: quantile bins with exact atoms, and the normal score of every value.

A column's distribution is cut into bins of about equal share. A value that alone has the share of a bin (zero, a
detection limit, a heaped value) is an *atom*: a bin of its own, given back exactly. The normal score z of a value is
the standard normal quantile of its place in the column's distribution; an atom has the mean of its interval.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

FINE = 4
"""Cells per bin for means: a bin's mean depends on where in it the density lies."""
_PHI = 1.0 / np.sqrt(2 * np.pi)


@dataclass(frozen=True, kw_only=True)
class BinScale:
    """Bins of one quantity.

    Attributes:
        edge: (bins + 1) shares of the distribution at the bins' borders, 0 to 1.
        atom: (bins,) whether a bin is a single value.
        knot_u, knot_x: the quantile function as a polyline over the continuous bins (share, value).
        mean: (bins x FINE) mean of the data in each part of a bin.
    """

    edge: np.ndarray
    atom: np.ndarray
    value: np.ndarray
    knot_u: np.ndarray
    knot_x: np.ndarray
    mean: np.ndarray
    floor: float

    @property
    def bins(self) -> int:
        return len(self.atom)

    @property
    def score_edge(self) -> np.ndarray:
        """(bins + 1) borders on the normal-score scale, infinite at both ends."""
        return ndtri(self.edge)

    @property
    def atom_score(self) -> np.ndarray:
        """(bins,) mean normal score of each bin's interval."""
        z = self.score_edge
        return _PHI * (np.exp(-0.5 * z[:-1] ** 2) - np.exp(-0.5 * z[1:] ** 2)) / np.diff(self.edge)

    def encode(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values (no NaN) -> (bin, normal score). Values outside the data's range count as its end."""
        x = np.clip(x, self.knot_x[0], self.knot_x[-1])
        # Atoms stand in the polyline as vertical steps, so a value's share is found between its neighbours.
        u = np.interp(x, self.knot_x, self.knot_u)
        number = np.clip(np.searchsorted(self.edge, u, side="right") - 1, 0, self.bins - 1)
        places = np.flatnonzero(self.atom)
        if len(places):
            near = np.clip(np.searchsorted(self.value[places], x), 0, len(places) - 1)
            exact = self.value[places[near]] == x
            number = np.where(exact, places[near], number)
            lost = self.atom[number] & ~exact
            # A value beside an atom belongs to whichever continuous neighbour holds it, else to the atom.
            up = np.minimum(number + 1, self.bins - 1)
            down = np.maximum(number - 1, 0)
            other = np.where(x > self.value[number], up, down)
            number = np.where(lost & ~self.atom[other], other, number)
        z = ndtri(np.clip(u, self.floor, 1 - self.floor))
        lo, hi = self.score_edge[number], self.score_edge[number + 1]
        z = np.where(self.atom[number], self.atom_score[number], np.clip(z, lo, hi))
        return number.astype(np.int64), z.astype(np.float64)

    def decode(self, number: np.ndarray, z: np.ndarray) -> np.ndarray:
        """(bin, normal score) -> values; atoms exactly, others within the data's range."""
        x = np.interp(ndtr(z), self.knot_u, self.knot_x)
        return np.where(self.atom[number], self.value[number], x)

    def score_at(self, x: np.ndarray) -> np.ndarray:
        """The normal score below which the values below x lie: far out (-30 or 30) beyond the data."""
        u = np.interp(x, self.knot_x, self.knot_u, left=0.0, right=1.0)
        return np.clip(ndtri(u), -30, 30)

    def to_dict(self) -> dict[str, Any]:
        """As plain data, what a model's folder keeps."""
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in vars(self).items()}

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> BinScale:
        """From what `to_dict` gave."""
        arrays = {k: np.asarray(v, bool if k == "atom" else np.float64) for k, v in found.items() if k != "floor"}
        return cls(**arrays, floor=found["floor"])


def fit_scale(x: np.ndarray, *, most: int = 24, weight: np.ndarray | None = None) -> BinScale:
    """Bins for the observed values of a column.

    Args:
        most: bins, about; fewer for few rows (sqrt(n)), so that every bin has data enough to learn its share.
        weight: (values,) how much of the distribution each stands for, of any sum; default evenly.
    """
    order = np.argsort(x, kind="stable")
    x = np.asarray(x, np.float64)[order]
    n = len(x)
    weight = np.ones(n) if weight is None else weight[order] * n / weight.sum()
    bins = int(np.clip(np.sqrt(n), 3, most))
    values, first, seen = np.unique(x, return_index=True, return_counts=True)
    counts = np.add.reduceat(weight, first)
    is_atom = seen >= max(2, n / bins) if len(values) > bins else np.ones(len(values), bool)
    if len(values) == 1:
        is_atom = np.ones(1, bool)
    edge, atom, value, parts = [0.0], [], [], []
    start = 0
    while start < len(values):
        if is_atom[start]:
            edge.append(edge[-1] + counts[start] / n)
            atom.append(True)
            value.append(values[start])
            parts.append(np.full(FINE, values[start]))
            start += 1
            continue
        stop = start
        while stop < len(values) and not is_atom[stop]:
            stop += 1
        mass = counts[start:stop].sum()
        pieces = max(1, min(round(mass * bins / n), stop - start))
        cut = np.cumsum(counts[start:stop]) - counts[start:stop] / 2
        which = np.minimum((cut / mass * pieces).astype(int), pieces - 1)
        for piece in np.unique(which):
            inside = slice(start + int((which < piece).sum()), start + int((which <= piece).sum()))
            edge.append(edge[-1] + counts[inside].sum() / n)
            atom.append(False)
            own = slice(first[inside.start], first[inside.stop - 1] + seen[inside.stop - 1])
            expanded, w = x[own], weight[own]
            value.append(np.average(expanded, weights=w))
            quarters = ((np.cumsum(w) - w) * FINE / w.sum()).astype(int).clip(max=FINE - 1)
            fallback = np.quantile(expanded, (np.arange(FINE) + 0.5) / FINE)
            parts.append(
                np.array(
                    [
                        np.average(expanded[quarters == q], weights=w[quarters == q])
                        if (quarters == q).any()
                        else fallback[q]
                        for q in range(FINE)
                    ]
                )
            )
        start = stop
    edges = np.array(edge) / edge[-1]
    knot_u, knot_x = _polyline(values, counts, n)
    return BinScale(
        edge=edges,
        atom=np.array(atom),
        value=np.array(value),
        knot_u=knot_u,
        knot_x=knot_x,
        mean=np.concatenate(parts),
        floor=0.5 / n,
    )


def _polyline(values: np.ndarray, counts: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The quantile function through the mid-ranks of the values, thinned; ends at the smallest and largest."""
    middle = (np.cumsum(counts) - counts / 2) / n
    if len(values) > 400:
        keep = np.unique(
            np.r_[np.linspace(0, len(values) - 1, 400).astype(int), np.arange(5), len(values) - 1 - np.arange(5)]
        )
        values, middle = values[keep], middle[keep]
    return middle, values
