"""Point values of missing cells, with intervals of quantities and probabilities of categories."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from unmask.core.batch import PackedBatch
from unmask.core.corruption import hide
from unmask.core.inference import inference_mode
from unmask.kernels.threads import on_cores
from unmask.modalities.table.distribution.cells import Cells, batch_of, to_cells
from unmask.modalities.table.distribution.codec import Coding
from unmask.modalities.table.distribution.prediction import Categories, CellPrediction, Quantities
from unmask.modalities.table.distribution.table_network import TableNetwork
from unmask.progress import counted

ROWS = 512
"""Rows per pass, FEW where there are no more: a short pass is padded to as many, so that shapes stay few. The same
table gives the same bits on any number of cores; a row in other company, or a column asked alone, the same to single
precision (1e-5): processors add up products of other shapes in other orders."""
FEW = 32


class RowPasses:
    """A network over the coded columns of a table, and how rows go through it."""

    def __init__(self, network: TableNetwork, codings: list[Coding]) -> None:
        self.network, self.codings = network, codings

    @property
    def quantities(self) -> list[int]:
        return [i for i, c in enumerate(self.codings) if c.scale is not None]

    def cells(self, columns: Sequence[np.ndarray]) -> Cells:
        return to_cells(columns, self.codings)

    def passes(self, cells: Cells, rows: np.ndarray | None = None) -> Iterator[tuple[np.ndarray, PackedBatch]]:
        """Rows in batches of a fixed size."""
        rows = np.arange(len(cells)) if rows is None else rows
        for start in counted(range(0, len(rows), ROWS), len(rows), lambda _: ROWS):
            yield self._pass(cells, rows, start)

    def _pass(self, cells: Cells, rows: np.ndarray, start: int) -> tuple[np.ndarray, PackedBatch]:
        take = rows[start : start + ROWS]
        return take, batch_of(cells[take], take, rows=ROWS if len(rows) > FEW else FEW)

    def on_cores(self, work: Callable[[np.ndarray, PackedBatch], None], cells: Cells, rows: np.ndarray) -> None:
        """`work` on every pass over the rows, each on a core of its own: a pass's products are too small
        for several."""
        with inference_mode(self.network):
            on_cores(lambda start: work(*self._pass(cells, rows, start)), range(0, len(rows), ROWS))


def missing_slots(batch: PackedBatch, rows: int) -> Tensor:
    """Flat numbers of the missing cells of the first `rows` rows."""
    missing = ~batch.observed
    missing[rows:] = False
    return missing.flatten().nonzero().flatten()


BLOCK = 128 * ROWS
"""Rows coded at a time."""
Level = Callable[[int], float]
"""How much of the predicted distribution of a column an interval must hold."""


@dataclass(frozen=True, kw_only=True)
class Imputed:
    """Filled columns; with an interval, its ends for every missing cell of a quantity (NaN elsewhere), and for those of
    categories (rows, (rows, levels) probabilities) by column."""

    point: list[np.ndarray]
    low: list[np.ndarray] | None = None
    high: list[np.ndarray] | None = None
    shares: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    def shares_of(self, column: int, rows: np.ndarray) -> np.ndarray:
        """(rows, levels) probabilities of missing cells of a column."""
        known, shares = self.shares.get(column, (np.zeros(0, np.int64), np.zeros((0, 0))))
        return shares[np.searchsorted(known, rows)] if len(rows) else shares[:0]

    def part(self, start: int, end: int) -> Imputed:
        """Of the rows from `start` to `end` alone."""
        return Imputed(
            point=[x[start:end] for x in self.point],
            low=None if self.low is None else [x[start:end] for x in self.low],
            high=None if self.high is None else [x[start:end] for x in self.high],
            shares={c: _rows_between(rows, shares, start, end) for c, (rows, shares) in self.shares.items()},
        )


def _rows_between(rows: np.ndarray, shares: np.ndarray, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    here = slice(*np.searchsorted(rows, (start, end)))
    return rows[here] - start, shares[here]


def impute(table: RowPasses, columns: Sequence[np.ndarray], level: Level | None = None) -> Imputed:
    """Point values of missing cells: the mean of a quantity, the likeliest category; observed ones unchanged. `level`:
    of each column, how much of the predicted distribution its intervals hold; None for no intervals."""
    rows = len(columns[0]) if len(columns) else 0
    blocks = [
        _impute_block(table, [x[start : start + BLOCK] for x in columns], level)
        for start in counted(range(0, max(rows, 1), BLOCK), rows, lambda _: BLOCK)
    ]
    if len(blocks) == 1:
        return blocks[0]
    point, low, high = (
        None
        if getattr(blocks[0], name) is None
        else [np.concatenate(parts) for parts in zip(*(getattr(b, name) for b in blocks), strict=True)]
        for name in ("point", "low", "high")
    )
    shares: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
    for number, block in enumerate(blocks):
        for c, (row, share) in block.shares.items():
            shares.setdefault(c, []).append((row + number * BLOCK, share))
    assert point is not None
    return Imputed(point=point, low=low, high=high, shares={c: _by_row(parts) for c, parts in shares.items()})


def _impute_block(table: RowPasses, columns: Sequence[np.ndarray], level: Level | None) -> Imputed:
    """`impute` of so many rows at most: coded, a large table would take more memory than it does as it is."""
    cells = table.cells(columns)
    point = [np.array(x, np.float64) for x in columns]
    low, high = ([np.full(len(x), np.nan) for x in columns] if level is not None else [] for _ in range(2))
    incomplete = np.flatnonzero(~cells.seen.all(1))
    shares: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}

    def points(take: np.ndarray, batch: PackedBatch) -> None:
        flat = missing_slots(batch, len(take))
        prediction = table.network(batch, hide(flat))
        row, column = take[(flat // batch.shape[1]).numpy()], (flat % batch.shape[1]).numpy()
        _put(point, row, column, prediction.point().numpy())
        if level is not None:
            for target, values in zip((low, high), _ends(table, prediction, column, level), strict=True):
                _put(target, row, column, values)
            for c, part in _shares(table, prediction, row, column):
                shares.setdefault(c, []).append(part)

    table.on_cores(points, cells, incomplete)
    if level is None:
        return Imputed(point=point)
    return Imputed(point=point, low=low, high=high, shares={c: _by_row(parts) for c, parts in shares.items()})


def _shares(
    table: RowPasses, prediction: CellPrediction, row: np.ndarray, column: np.ndarray
) -> Iterator[tuple[int, tuple[np.ndarray, np.ndarray]]]:
    """(column, (rows, probabilities of its levels)) of the asked cells that have categories."""
    for places, distribution in prediction.pieces:
        if isinstance(distribution, Categories):
            p, probs = places.numpy(), distribution.probabilities().numpy()
            for c in np.unique(column[p]):
                here = column[p] == c
                yield int(c), (row[p][here], probs[here, : table.codings[c].size].astype(np.float64))


def _put(target: list[np.ndarray], row: np.ndarray, column: np.ndarray, value: np.ndarray) -> None:
    for c in np.unique(column):
        here = column == c
        target[c][row[here]] = value[here]


def _ends(
    table: RowPasses, prediction: CellPrediction, column: np.ndarray, level: Level
) -> tuple[np.ndarray, np.ndarray]:
    share = np.array([level(c) for c in range(len(table.codings))])
    ends = []
    for side in (-0.5, 0.5):
        q = torch.tensor(0.5 + side * share[column], dtype=torch.float32)
        value = np.full(len(column), np.nan)
        for places, distribution in prediction.pieces:
            if isinstance(distribution, Quantities):
                value[places.numpy()] = distribution.quantile(q[places]).numpy()
        for c in np.unique(column):
            value[column == c] = _exact(value[column == c], table.codings[c])
        ends.append(value)
    return ends[0], ends[1]


def _by_row(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Passes end in any order; their rows are put in theirs."""
    rows, shares = np.concatenate([r for r, _ in parts]), np.concatenate([s for _, s in parts])
    order = np.argsort(rows)
    return rows[order], shares[order]


def _exact(value: np.ndarray, coding: Coding) -> np.ndarray:
    """Ends that are an atom, as the very number the table holds: in single precision they would miss it by a hair."""
    atoms = np.sort(coding.scale.value[coding.scale.atom]) if coding.scale is not None else np.zeros(0)
    if not len(atoms):
        return value
    after = np.searchsorted(atoms, value).clip(0, len(atoms) - 1)
    before = (after - 1).clip(0)
    near = np.where(np.abs(atoms[after] - value) < np.abs(atoms[before] - value), atoms[after], atoms[before])
    return np.where(np.isclose(value, near, rtol=1e-6, atol=1e-12), near, value)
