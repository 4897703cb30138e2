"""Fitting a table model: codings, then the parts before the network, then the network.

With several members every row is held out from exactly one of them (cross-validation for free): a member stops where
the rows it never trained on say so, and the whole table calibrates intervals. For such rows the factor analysis, too,
is one fitted without them. Members differ in weights and in data.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from unmask.core.hashing import Salt, hash_keys
from unmask.modalities.table.distribution.cells import fit_codings, moments_of, to_cells, training_corruption
from unmask.modalities.table.distribution.codec import Coding
from unmask.modalities.table.distribution.table_network import TableNetwork
from unmask.modalities.table.fitting.linear_parts import FitRows, HeldOut
from unmask.modalities.table.fitting.starts import STARTS
from unmask.modalities.table.fitting.train import Watch, train_network
from unmask.modalities.table.recipes import TableSettings


@dataclass(kw_only=True)
class Fit:
    """A fitted network and what it took.

    Attributes:
        fold: (rows,) the member that did not train on a row.
        held_out: the network as it is for the rows held out from a member; None where nothing can be held out.
        history: (step, held-out loss) of every check; step 0 is before the network has learnt anything.
    """

    network: TableNetwork
    settings: TableSettings
    codings: list[Coding]
    moments: np.ndarray
    fold: np.ndarray
    held_out: HeldOut | None = None
    steps: int = 0
    seconds: float = 0.0
    history: list[tuple[int, float]] = field(default_factory=list)

    def without(self, member: int) -> contextlib.AbstractContextManager[None]:
        """Within, the network is as it is for the rows held out from a member."""
        return self.held_out(member) if self.held_out else contextlib.nullcontext()


def _copies(x: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """A column's values as often as a bootstrap sample has them; as they are where weights are no numbers of copies, or
    where none of the values would be left."""
    if weight is None or not np.array_equal(weight, np.round(weight)):
        return x
    copied = np.repeat(x, weight.astype(np.int64))
    return x if np.isnan(copied).all() else copied


def steps_for(rows: int, settings: TableSettings) -> int:
    """Optimiser steps by the size of the table: about 40 passes over a small one, fewer over a large one."""
    if settings.steps is not None:
        return settings.steps
    if settings.train.epochs is not None:
        return max(1, round(rows * settings.train.epochs / settings.rows))
    return int(np.clip(rows * 40 / settings.rows, 60, 500))


def folds(rows: int, settings: TableSettings) -> np.ndarray:
    """Which member a row is held out from: about equal shares, decided by the row alone. One member: a sixth of the
    rows is held out from it (fold 0), the others are marked 1."""
    count = settings.members if settings.members > 1 else 6
    number = (hash_keys(settings.train.seed, np.arange(rows), Salt.FOLD) % np.uint64(count)).astype(np.int64)
    return number if settings.members > 1 else np.minimum(number, 1)


def fit_cells(
    columns: Sequence[np.ndarray],
    categories: Sequence[int],
    settings: TableSettings,
    *,
    weight: np.ndarray | None = None,
    linear: Collection[int] = (),
    calibrate: bool = True,
    watch: Watch | None = None,
) -> Fit:
    """Fit a network to coded columns (see `values.encode`).

    Args:
        categories: of each column, 0 for a quantity.
        weight: (rows,) of each row in the fit, for bootstrap members.
        linear: quantities scored by their distance from the mean; see `codec.Coding`.
        calibrate: held-out rows will be asked for after the fit too.
        watch: called after every step with its report and the number of steps.
    """
    start = time.perf_counter()
    rows = len(columns[0]) if len(columns) else 0
    kind = STARTS[settings.network](settings)
    codings = kind.coded(
        fit_codings([_copies(x, weight) for x in columns], categories, settings.bins, linear), columns, weight
    )
    cells = to_cells(columns, codings)
    moments, steps = moments_of(cells, weight), steps_for(rows, settings) if rows >= 10 else 0
    corruption = training_corruption(settings.low, settings.high, settings.copied, cells.seen, settings.select)
    fold = folds(rows, settings)
    given = FitRows(
        cells=cells, corruption=corruption, fold=fold, weight=weight, training=steps > 0, calibrate=calibrate
    )
    started = kind.network(codings, moments, given)
    fit = Fit(
        network=started.network,
        settings=settings,
        codings=started.network.codec.codings,
        moments=started.moments,
        fold=fold,
        held_out=started.held_out,
    )
    if steps:
        fit.steps, fit.history = train_network(
            fit.network,
            cells,
            corruption,
            settings,
            steps=steps,
            fold=fold,
            without=fit.without,
            weight=weight,
            watch=watch,
        )
    fit.network.finished()
    fit.seconds = time.perf_counter() - start
    return fit
