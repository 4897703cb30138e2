"""Missing cells of a batch of rows drawn one column after the other, each given those before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.core.batch import PackedBatch
from unmask.core.fill import fill
from unmask.core.hashing import Salt, hash_keys, uniform
from unmask.modalities.table.distribution.prediction import CellPrediction
from unmask.modalities.table.fitting.row_passes import RowPasses, missing_slots
from unmask.modalities.table.rules.ruled_cell import Ruled

_CELL_SALTS = (Salt.CELL_NUMBER, Salt.CELL_WITHIN, Salt.CELL_BROAD)


@dataclass(frozen=True, kw_only=True)
class CellDraws:
    """How cells are drawn; see `CellTable.draw`.

    Attributes:
        out: the columns, which get the drawn values.
        ruled: what rules between columns leave of a cell; None without rules.
    """

    table: RowPasses
    out: list[np.ndarray]
    seed: int
    member: int | None
    shift: dict[int, float]
    ruled: Ruled | None

    def complete(self, take: np.ndarray, batch: PackedBatch) -> None:
        """Draw the missing cells of a batch: of rows `take` of the table."""
        slots = batch.shape[1]
        flat = missing_slots(batch, len(take))
        order = visiting_order(slots, self.seed)
        order = order if self.ruled is None else self.ruled.order(order)
        turn = torch.full((slots,), -1)
        turn[order] = torch.arange(len(order))
        turns = turn[flat % slots]

        def draw(prediction: Any, cells: Tensor) -> Tensor:
            return self.column(prediction, int(cells[0]) % slots, take[(cells // slots).numpy()])

        filled, rest = flat[turns >= 0], flat[turns < 0]
        fill(self.table.network, batch, filled, order=turns[turns >= 0], draw=draw, log_prob=False, hidden=rest)

    def column(self, prediction: CellPrediction, c: int, rows: np.ndarray) -> Tensor:
        """Values of a column's cells, coded, drawn from what is predicted of them; written into `out` too."""
        coding, ruled = self.table.codings[c], self.ruled
        u = np.stack([uniform(self.seed, rows, c, salt, 0) for salt in _CELL_SALTS], -1)
        own = torch.from_numpy(self._members(rows) % prediction.members)
        new = prediction.draw(torch.tensor(u, dtype=torch.float32), own)
        value = coding.decode(new[:, 0].long().numpy(), new[:, 1].double().numpy())
        if c in self.shift:
            value = value + self.shift[c]
        under = ruled is not None and c in ruled.rules.touched
        if ruled is not None and under:
            value = ruled.value(c, value, prediction, own, u, {p: self.out[p][rows] for p in ruled.rules.touched})
        if c in self.shift or under:
            number, score = coding.encode(value)
            new = torch.tensor(np.stack([number, score], -1), dtype=torch.float32)
        self.out[c][rows] = value
        return new

    def _members(self, rows: np.ndarray) -> np.ndarray:
        """The member that each row's cells are drawn from."""
        members = self.table.network.codec.members
        if self.member is not None:
            return np.full(len(rows), self.member % members)
        return (hash_keys(self.seed, rows, Salt.CELL_MEMBER) % np.uint64(members)).astype(np.int64)


def visiting_order(slots: int, seed: int) -> list[int]:
    """Columns in an order that is random but the same for every row of a draw, so that rows do not depend
    on company."""
    return np.argsort(hash_keys(seed, np.arange(slots), Salt.COLUMN_ORDER), kind="stable").tolist()
