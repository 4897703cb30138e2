"""A table as arrays of cells, as packed batches, and what is hidden of them in training."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unmask.core.batch import PackedBatch
from unmask.core.corruption import ALL_MASK, Corruption, Slots, Uniform, own_selector
from unmask.core.hashing import Salt, hash_keys, uniform
from unmask.modalities.table.distribution.codec import Coding
from unmask.modalities.table.distribution.scale import fit_scale


@dataclass(frozen=True, kw_only=True)
class Cells:
    """(rows, columns) arrays: bin or category, normal score, and whether there is a value at all."""

    number: np.ndarray
    score: np.ndarray
    seen: np.ndarray

    def __len__(self) -> int:
        return len(self.number)

    def __getitem__(self, rows: np.ndarray | slice) -> Cells:
        return Cells(number=self.number[rows], score=self.score[rows], seen=self.seen[rows])


def fit_codings(columns: Sequence[np.ndarray], categories: Sequence[int], bins: int) -> list[Coding]:
    """A coding for every modelled column.

    Args:
        columns: values with NaN where there is none.
        categories: of each column, 0 for a quantity.
    """
    out = []
    for x, size in zip(columns, categories, strict=True):
        x = x[~np.isnan(x)]
        if size == 0:
            out.append(Coding(scale=fit_scale(x, most=bins)))
            continue
        # Half a row is added to each category, so that none is impossible.
        count = np.bincount(x.astype(int), minlength=size) + 0.5
        out.append(Coding(share=tuple((count / count.sum()).tolist())))
    return out


def box_cox(coding: Coding, x: np.ndarray) -> Coding:
    """The coding with scores as MCM has them: Box-Cox of x - smallest + 1, then 0..1 over the data's range."""
    from scipy.stats import boxcox

    x = x[~np.isnan(x)]
    if coding.scale is None or len(x) < 3 or x.min() == x.max():
        low, span = (float(x.min()), max(float(np.ptp(x)), 1e-9)) if len(x) else (0.0, 1.0)
        return coding if coding.scale is None else dataclasses.replace(coding, linear=(low, span))
    y, power = boxcox(x - x.min() + 1)
    return dataclasses.replace(
        coding, power=(float(x.min()), float(power)), linear=(float(y.min()), max(float(np.ptp(y)), 1e-9))
    )


def to_cells(columns: Sequence[np.ndarray], codings: Sequence[Coding]) -> Cells:
    """Code the values; what is missing holds 0 and is not seen."""
    rows = len(columns[0]) if len(columns) else 0
    number = np.zeros((rows, len(columns)), np.int32)
    score = np.zeros((rows, len(columns)), np.float32)
    seen = np.zeros((rows, len(columns)), bool)
    for i, (x, coding) in enumerate(zip(columns, codings, strict=True)):
        seen[:, i] = ~np.isnan(x)
        number[seen[:, i], i], score[seen[:, i], i] = coding.encode(x[seen[:, i]])
    return Cells(number=number, score=score, seen=seen)


def sampled(rows: np.ndarray, most: int, seed: int, salt: Salt) -> np.ndarray:
    """The rows, or so many of them where there are more, in order."""
    return rows if len(rows) <= most else np.sort(rows[np.argsort(hash_keys(seed, rows, salt), kind="stable")[:most]])


def moments_of(cells: Cells, weight: np.ndarray | None = None) -> np.ndarray:
    """(columns, 2) mean and deviation of the seen scores. `weight`: of each row, for bootstrap copies."""
    out = np.ones((cells.seen.shape[1], 2))
    for i in range(len(out)):
        here = cells.seen[:, i]
        z, w = cells.score[here, i], None if weight is None else weight[here]
        if not len(z) or (w is not None and not w.any()):
            out[i] = 0.0, 1.0
            continue
        mean = np.average(z, weights=w)
        out[i] = mean, max(float(np.sqrt(np.average((z - mean) ** 2, weights=w))), 0.05)
    return out


def batch_of(
    cells: Cells, identity: np.ndarray, *, rows: int | None = None, extra: dict[str, Tensor] | None = None
) -> PackedBatch:
    """One example per row, a slot per column; rows beyond the cells' are padding."""
    here, columns = cells.number.shape
    count = here if rows is None else rows
    grid = torch.arange(columns).expand(count, columns)

    def padded(a: np.ndarray) -> Tensor:
        t = torch.from_numpy(np.ascontiguousarray(a))
        return t if count == here else torch.cat([t, t.new_zeros((count - here, columns))])

    def by_row(a: np.ndarray) -> Tensor:
        full = torch.full((count,), -1, dtype=torch.long)
        full[:here] = torch.from_numpy(np.asarray(a, np.int64))
        return full[:, None].expand(count, columns)

    segment = torch.zeros((count, columns), dtype=torch.long)
    segment[:here] = 1
    seen = padded(cells.seen)
    return PackedBatch(
        values={"bin": padded(cells.number).long(), "score": padded(cells.score), "seen": seen.long(), "column": grid},
        segment=segment,
        position=grid,
        observed=seen,
        special=torch.zeros_like(seen),
        unit=grid,
        identity=by_row(identity),
        index=by_row(np.arange(here)),
        extra=extra or {},
    )


@dataclass(frozen=True, kw_only=True)
class CellMasks:
    """Which cells are hidden: a random share of them, or those another row of the table lacks (copy masking, CACTI).

    Where rows lack cells, a random share is one of all cells, and a row that lacks another cell copies instead: a row
    that lacks one of two columns would else show the other alone more often than complete rows do, and what is learnt
    given few cells would be that of the rows with most holes.

    Args:
        low, high: range of the share; 0 to 1 learns every conditional that any-order sampling needs.
        copied: share of rows that copy a missingness pattern; in a complete table they hide 5 to 50 %.
        patterns: (n, columns) cells missing in the training rows that lack any.
    """

    low: float = 0.0
    high: float = 1.0
    copied: float = 0.5
    patterns: np.ndarray | None = None

    def __call__(self, slots: Slots, *, key: tuple[int, int], progress: float = 0.0) -> np.ndarray:
        if not self.copied:
            return Uniform(ratio=(self.low, self.high))(slots, key=key, progress=progress)
        borrows = uniform(*key, slots.identity, Salt.CELL_HOLES_COPIED) < self.copied
        if self.patterns is None or not len(self.patterns):
            ratios = (self.low, self.high), (0.05, 0.5)
            wide, copied = (Uniform(ratio=r)(slots, key=key, progress=progress) for r in ratios)
            return np.where(borrows, copied, wide)
        donor = (hash_keys(*key, slots.identity, Salt.CELL_DONOR) % np.uint64(len(self.patterns))).astype(np.int64)
        shape = slots.examples, self.patterns.shape[1]
        seen = np.zeros(shape, bool)
        seen[slots.example, slots.slot] = True
        identity = slots.identity[np.searchsorted(slots.example, np.arange(len(seen)))]
        example, slot = (x.ravel() for x in np.indices(shape))
        every = dataclasses.replace(slots, example=example, identity=identity[example], slot=slot)
        wide = Uniform(ratio=(self.low, self.high))(every, key=key, progress=progress).reshape(shape)
        borrows |= ~(wide | seen).min(1)[slots.example]
        return np.where(borrows, self.patterns[donor, slots.slot], wide[slots.example, slots.slot])


def training_corruption(
    low: float, high: float, copied: float, seen: np.ndarray, select: str | None = None
) -> Corruption:
    """The corruption of a training run; hidden cells are always masked, never noised or kept. `select`:
    'package.module:name' of a user's own selector, instead of these three."""
    if select is not None:
        return Corruption(select=own_selector(select, (low, high)), replace=ALL_MASK)
    lacking = ~seen[~seen.all(1)]
    return Corruption(
        select=CellMasks(low=low, high=high, copied=copied, patterns=lacking if len(lacking) else None),
        replace=ALL_MASK,
    )
