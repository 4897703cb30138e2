"""Passes of rows of a table through its network: in batches of one size, each on a core of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from torch import Tensor

from unmask.core.batch import PackedBatch
from unmask.core.inference import inference_mode, on_cores
from unmask.modalities.table.distribution.cells import Cells, batch_of, to_cells
from unmask.modalities.table.distribution.codec import Coding
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
    gone = ~batch.observed
    gone[rows:] = False
    return gone.flatten().nonzero().flatten()
