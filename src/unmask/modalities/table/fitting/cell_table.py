"""A fitted network over coded columns: point values, intervals, draws and likelihoods of missing cells.

Works on arrays (a column's values or category numbers as floats, NaN where missing); `model.TableModel` adds names,
kinds of tables and files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from unmask.core.batch import PackedBatch
from unmask.core.embed import embed_batches
from unmask.core.inference import one_core
from unmask.core.model import MaskedModel
from unmask.core.score import score_rows
from unmask.modalities.table.fitting.calibration import judged_cells
from unmask.modalities.table.fitting.cell_draws import CellDraws
from unmask.modalities.table.fitting.fit import Fit, fit_cells
from unmask.modalities.table.fitting.imputation_quality import Judged, needed_share
from unmask.modalities.table.fitting.point_values import Imputed, impute
from unmask.modalities.table.fitting.row_passes import RowPasses
from unmask.modalities.table.recipes import TableSettings, settings_of
from unmask.modalities.table.rules.ruled_cell import Ruled
from unmask.modalities.table.rules.rules import Rules

CALIBRATION_LEAST = 30
"""Held-out cells of a column below which its intervals stay as the distributions say."""


class CellTable(RowPasses):
    """A table's network, codings and calibration.

    Attributes:
        scores: column -> sorted conformity scores of held-out cells: how much of the predicted distribution, from its
            median outwards, an interval must hold to reach the truth. The 90 % interval of a column is as wide as nine
            of ten scores ask for.
        judged: column -> the held-out cells these scores are of, and those of categories; after a fit alone.
    """

    def __init__(self, fit: Fit, scores: dict[int, np.ndarray] | None = None) -> None:
        super().__init__(fit.network, fit.codings)
        self.fitted, self.settings, self.scores = fit, fit.settings, scores or {}
        self.judged: dict[int, Judged] = {}

    @classmethod
    @one_core()
    def fit(
        cls,
        columns: Sequence[np.ndarray],
        categories: Sequence[int],
        *,
        settings: TableSettings | None = None,
        weight: np.ndarray | None = None,
        linear: Collection[int] = (),
        calibrate: bool = True,
        watch: Callable[..., None] | None = None,
        **overrides: Any,
    ) -> CellTable:
        """Fit to columns with NaN where missing; `categories` holds 0 for a quantity."""
        settings = settings or settings_of(**overrides)
        fit = fit_cells(columns, categories, settings, weight=weight, linear=linear, calibrate=calibrate, watch=watch)
        table = cls(fit)
        if calibrate:
            table.calibrate(columns)
        fit.held_out = None  # it would keep a linear part a member
        return table

    def impute(self, columns: Sequence[np.ndarray], *, interval: float | None = None) -> Imputed:
        """Point values of missing cells: the mean of a quantity, the likeliest category; observed ones unchanged.

        Args:
            interval: coverage of the intervals, e.g. 0.9; calibrated per column by split conformal prediction.
        """
        return impute(self, columns, None if interval is None else lambda column: self.level(column, interval))

    def level(self, column: int, interval: float) -> float:
        """How much of the predicted distribution the interval must hold, so that the truth is in it as
        often as asked."""
        scores = self.scores.get(column)
        if scores is None or len(scores) < CALIBRATION_LEAST:
            return interval
        return needed_share(scores, interval)

    def calibrate(self, columns: Sequence[np.ndarray]) -> None:
        """Conformity scores, and how well cells are imputed, of rows that neither their member nor its linear part was
        fitted to."""
        if self.network.points_only:
            return  # points, no distributions
        self.judged = judged_cells(self, self.fitted, columns)
        self.scores = {c: np.sort(self.judged[c].needed) for c in self.quantities if c in self.judged}

    def draw(
        self,
        columns: Sequence[np.ndarray],
        *,
        seed: int = 0,
        member: int | None = None,
        shift: dict[int, float] | None = None,
        rules: Rules | None = None,
        rows: np.ndarray | None = None,
        best: bool = False,
    ) -> list[np.ndarray]:
        """One completed copy of the columns: missing cells are drawn one by one, each given those before it.

        Args:
            member: the network to draw from; default a row's own, chosen at random. Drawing each completed table from
                another member makes the draws differ as the fits do, which proper multiple imputation needs.
            shift: column -> added to its drawn values, in its unit (delta adjustment); later cells see the shifted
                ones.
            rules: between the columns; drawn cells are drawn within what they leave, computed ones computed. A cell
                that they leave nothing is drawn as if there were none (see `Rules.broken`).
            rows: complete these alone.
            best: fill in means and likeliest categories, one by one, of the columns under rules alone.
        """
        cells = self.cells(columns)
        out = [np.array(x, np.float64) for x in columns]
        incomplete = np.flatnonzero(~cells.seen.all(1)) if rows is None else rows
        ruled = None if not rules else Ruled(rules, self.codings, shift or {}, best)

        draws = CellDraws(table=self, out=out, seed=seed, member=member, shift=shift or {}, ruled=ruled)
        self.on_cores(draws.complete, cells, incomplete)
        return out

    def log_prob(self, columns: Sequence[np.ndarray]) -> np.ndarray:
        """(rows, columns) log-probability of every observed cell given the others of its row (pseudo-likelihood)."""
        cells = self.cells(columns)
        out = np.full(cells.number.shape, np.nan)

        def score(take: np.ndarray, batch: PackedBatch) -> None:
            out[take] = score_rows(self.network, batch)[: len(take)].numpy()

        self.on_cores(score, cells, np.arange(len(cells)))
        return out

    @one_core()
    def embed(self, columns: Sequence[np.ndarray]) -> np.ndarray:
        """(rows, members * state) states of the rows with nothing hidden."""
        batches = ((batch, take) for take, batch in self.passes(self.cells(columns)))
        return embed_batches(self.network, batches, _states_of_rows, count=len(columns[0]) if len(columns) else 0)


def _states_of_rows(network: MaskedModel, batch: PackedBatch, rows: int) -> Tensor:
    """(rows, members * state): a row's state, or the mean over all its columns', missing ones too."""
    return network.states(batch).float().mean(1)[:rows]
