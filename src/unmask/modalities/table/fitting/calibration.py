"""How sure a fitted table may be: what it says of held-out cells, beside the truth (split conformal prediction)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import torch

from unmask.core.batch import PackedBatch
from unmask.core.corruption import ALL_MASK, Corruption, Hidden, hide
from unmask.core.hashing import Salt, hash_keys, uniform
from unmask.core.inference import inference_mode
from unmask.modalities.table.distribution.cells import CellMasks, Cells
from unmask.modalities.table.distribution.prediction import Quantities
from unmask.modalities.table.fitting.fit import Fit
from unmask.modalities.table.fitting.imputation_quality import Judged
from unmask.modalities.table.fitting.row_passes import RowPasses, missing_slots

CALIBRATION_ROWS = 2000
CALIBRATION_WANTED = 200
"""Scores wanted of every quantity: small tables are masked several times over."""
CALIBRATION_ROUNDS = 8
Found = dict[int, list[Judged]]
"""Judged cells by column."""


def judged_cells(table: RowPasses, fit: Fit, columns: Sequence[np.ndarray]) -> dict[int, Judged]:
    """By column, what a fit says of hidden cells of rows that neither their member nor its linear part was fitted
    to."""
    cells = table.cells(columns)
    members = table.network.codec.members
    rows = np.flatnonzero(cells.seen.any(1) & (fit.fold < members))
    if len(rows) > CALIBRATION_ROWS:
        order = np.argsort(hash_keys(fit.settings.train.seed, rows, Salt.CALIBRATION_ROWS), kind="stable")
        rows = rows[np.sort(order[:CALIBRATION_ROWS])]
    lacking = ~cells.seen[~cells.seen.all(1)]
    random = Corruption(select=CellMasks(low=0.05, high=0.5, copied=0.0), replace=ALL_MASK)
    copied = Corruption(select=CellMasks(copied=1.0, patterns=lacking), replace=ALL_MASK)
    # Which of the two a row gets is not a matter of its own cells: so the judged cells of a column are a random
    # sample of its observed ones. (Random masks for the rows alone that a pattern says nothing of would judge
    # columns without holes in those rows alone: where a cause is missing in survivors, age would be judged in
    # survivors.)
    found: tuple[Found, Found] = {}, {}
    for epoch in range(CALIBRATION_ROUNDS):
        borrows = uniform(fit.settings.train.seed, epoch, rows, Salt.COPIED_HOLES) < (0.5 if len(lacking) else 0.0)
        masks = [functools.partial(c.draw, seed=fit.settings.train.seed + 2, epoch=epoch) for c in (random, copied)]
        for member in range(members):
            own = fit.fold[rows] == member
            with fit.without(member):
                _judge(table, columns, cells, rows[own & ~borrows], member, masks[0], found[0])
                _judge(table, columns, cells, rows[own & borrows], member, masks[1], found[1])
        if all(sum(map(len, _chosen(found, c))) >= CALIBRATION_WANTED for c in table.quantities):
            break
    judged = {c: _chosen(found, c) for c in range(len(columns))}
    return {c: Judged.joined(parts) for c, parts in judged.items() if parts}


def _judge(
    table: RowPasses,
    columns: Sequence[np.ndarray],
    cells: Cells,
    rows: np.ndarray,
    member: int,
    mask: Callable[[PackedBatch], Hidden],
    found: Found,
) -> None:
    """Adds to `found`, by column, what the member says of hidden cells of the rows."""
    with inference_mode(table.network):
        for take, batch in table.passes(cells, rows):
            hidden = mask(batch)
            if not len(hidden.flat):
                continue
            lost = missing_slots(batch, len(take))
            prediction = table.network(batch, hide(torch.cat([hidden.flat, lost])), wanted=hidden.flat)
            row, column = (hidden.flat // batch.shape[1]).numpy(), (hidden.flat % batch.shape[1]).numpy()
            for places, distribution in prediction.pieces:
                p = places.numpy()
                truth = np.array([columns[c][r] for c, r in zip(column[p], take[row[p]], strict=True)])
                needed = np.full(len(p), np.nan)
                own = distribution.of_member(member)
                if isinstance(own, Quantities):
                    below, upto = own.shares_at(torch.tensor(truth, dtype=torch.float32))
                    needed = 2 * torch.maximum(below - 0.5, 0.5 - upto).clamp_min(0).numpy()
                point = own.point().double().numpy()
                for c in np.unique(column[p]):
                    at = column[p] == c
                    cells_of = (take[row[p]][at], np.full(int(at.sum()), member), truth[at], point[at], needed[at])
                    found.setdefault(int(c), []).append(Judged(*cells_of))


def _chosen(found: tuple[Found, Found], column: int) -> list[Judged]:
    """The judged cells of a column that were hidden as rows of the table lack them; with those hidden at random where
    they are few, as in columns that no row lacks."""
    random, copied = (f.get(column, []) for f in found)
    return copied if sum(map(len, copied)) >= CALIBRATION_WANTED else [*random, *copied]
