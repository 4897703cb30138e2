"""A fitted network over coded columns: point values, intervals, draws and likelihoods of missing cells.

Works on arrays (a column's values or category numbers as floats, NaN where missing); `model.TableModel` adds names,
kinds of tables and files.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.core.batch import PackedBatch
from unmask.core.corruption import ALL_MASK, Corruption, Hidden, hide
from unmask.core.embed import embed_batches
from unmask.core.fill import fill
from unmask.core.hashing import Salt, hash_keys, uniform
from unmask.core.inference import inference_mode
from unmask.core.model import MaskedModel
from unmask.core.score import score_rows
from unmask.kernels.threads import one_core
from unmask.modalities.table.distribution.cells import CellMasks, Cells, sampled
from unmask.modalities.table.distribution.prediction import CellPrediction, Quantities
from unmask.modalities.table.fitting.fit import Fit, fit_cells
from unmask.modalities.table.fitting.imputation_quality import Judged, needed_share
from unmask.modalities.table.fitting.point_values import Imputed, RowPasses, impute, missing_slots
from unmask.modalities.table.reading.frame import Frame
from unmask.modalities.table.recipes import TableSettings, settings_of
from unmask.modalities.table.rules.rules import Ruled, Rules
from unmask.modalities.table.schema.schema import Schema
from unmask.modalities.table.schema.values import rows_digest
from unmask.modalities.table.writing.writers import new_frame, new_table

CALIBRATION_LEAST = 30
"""Held-out cells of a column below which its intervals stay as the distributions say."""


class CellTable(RowPasses):
    """A table's network, codings and calibration.

    Attributes:
        scores: column -> sorted conformity scores of held-out cells: how much of the predicted distribution, from its
            median outwards, an interval must hold to reach the truth. The 90 % interval of a column is wide enough for
            nine of ten scores.
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
        groups: np.ndarray | None = None,
        calibrate: bool = True,
        watch: Callable[..., None] | None = None,
        **overrides: Any,
    ) -> CellTable:
        """Fit to columns with NaN where missing; `categories` holds 0 for a quantity, `groups` the number of the
        cluster of each row."""
        settings = settings or settings_of(**overrides)
        fit = fit_cells(columns, categories, settings, weight=weight, groups=groups, calibrate=calibrate, watch=watch)
        table = cls(fit)
        if calibrate:
            table.calibrate(columns)
        fit.held_out = None  # it would keep a linear part a member
        return table

    def impute(self, columns: Sequence[np.ndarray], *, interval: float | None = None) -> Imputed:
        """Point values of missing cells: the mean of a quantity, the likeliest category; observed ones unchanged.
        `interval`: coverage of the intervals, e.g. 0.9; calibrated per column by split conformal prediction."""
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
    rows = sampled(rows, CALIBRATION_ROWS, fit.settings.train.seed, Salt.CALIBRATION_ROWS)
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


_CELL_SALTS = (Salt.CELL_NUMBER, Salt.CELL_WITHIN, Salt.CELL_BROAD)


@dataclass(frozen=True, kw_only=True)
class CellDraws:
    """How cells are drawn; see `CellTable.draw`. `out`: the columns, which get the drawn values; `ruled`: what rules
    between columns leave of a cell; None without rules."""

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
        # At random, but the same for every row of a draw, so that rows do not depend on company.
        order = np.argsort(hash_keys(self.seed, np.arange(slots), Salt.COLUMN_ORDER), kind="stable").tolist()
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
        members = self.table.network.codec.members
        each = hash_keys(self.seed, rows, Salt.CELL_MEMBER) % np.uint64(members)
        member = each.astype(np.int64) if self.member is None else np.full(len(rows), self.member % members)
        own = torch.from_numpy(member % prediction.members)
        new = prediction.draw(torch.tensor(u, dtype=torch.float32), own)
        value = coding.decode(new[:, 0].long().numpy(), new[:, 1].double().numpy())
        if c in self.shift:
            value = value + self.shift[c]
        under = ruled is not None and c in ruled.rules.touched
        if ruled is not None and under:
            known = {p: self.out[p][rows] for p in ruled.rules.touched}
            value = ruled.value(c, value, prediction, own, u, known, rows)
        if c in self.shift or under:
            number, score = coding.encode(value)
            new = torch.tensor(np.stack([number, score], -1), dtype=torch.float32)
        self.out[c][rows] = value
        return new


class FittedTable:
    """A network over coded columns, the schema of the table, and what was learnt of its rows.

    Attributes:
        schema: of all columns, in order.
        table: network, codings and calibration of the modelled ones.
        facts: rows, seconds, steps, held-out losses and notes of the fit.
        like: the kind of table it was fitted to; None for a file.
        extra: further arrays that are saved with the model, by name: patterns of missing cells ("holes"), what few rows
            have ("safety.*"), the outcome of new rows ("outcome.*").
    """

    def __init__(self, schema: Schema, table: CellTable, facts: dict[str, Any]) -> None:
        self.schema, self.table, self.facts = schema, table, facts
        self.like: Frame | None = None
        self.extra: dict[str, np.ndarray] = {}

    def fitted_to(self, columns: Sequence[np.ndarray]) -> bool:
        """Whether these are the rows that it was fitted to."""
        return rows_digest(columns) == self.facts["rows_digest"]

    def wrap(self, columns: dict[int, list[Any]]) -> Any:
        """New plain values, by column of the schema, as a table of the kind the model was fitted to; texts
        for a file."""
        if self.like is not None and self.like.native is not None:
            return new_table(self.schema, columns, self.like)
        return new_frame(self.schema, columns, self.facts["point"])
