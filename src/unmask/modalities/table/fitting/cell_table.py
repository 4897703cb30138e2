"""A fitted network over coded columns: point values, intervals, draws and likelihoods of missing cells.

Works on arrays (a column's values or category numbers as floats, NaN where missing); `model.TableModel` adds names,
kinds of tables and files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.core.batch import PackedBatch
from unmask.core.corruption import ALL_MASK, Corruption, hide
from unmask.core.embed import embed_batches
from unmask.core.fill import fill
from unmask.core.hashing import Salt, hash_keys, uniform
from unmask.core.inference import inference_mode, on_cores, one_core
from unmask.core.model import MaskedModel
from unmask.core.score import score_rows
from unmask.modalities.table.distribution.cells import CellMasks, Cells, batch_of, to_cells
from unmask.modalities.table.distribution.codec import Coding
from unmask.modalities.table.distribution.prediction import Categories, CellPrediction, Quantities
from unmask.modalities.table.fitting.fit import Fit, fit_cells
from unmask.modalities.table.fitting.imputation_quality import Judged, needed_share
from unmask.modalities.table.recipes import TableSettings, settings_of
from unmask.modalities.table.rules.ruled_cell import Ruled
from unmask.modalities.table.rules.rules import Rules
from unmask.progress import counted

ROWS = 512
"""Rows per pass, FEW where there are no more: a short pass is padded to as many, so that shapes stay few. The same
table gives the same bits on any number of cores; a row in other company, or a column asked alone, the same to single
precision (1e-5): processors add up products of other shapes in other orders."""
FEW = 32
BLOCK = 128 * ROWS
"""Rows coded at a time."""
CALIBRATION_ROWS = 2000
CALIBRATION_LEAST = 30
CALIBRATION_WANTED = 200
"""Scores wanted of every quantity: small tables are masked several times over."""
CALIBRATION_ROUNDS = 8
_CELL_SALTS = (Salt.CELL_NUMBER, Salt.CELL_WITHIN, Salt.CELL_BROAD)
Found = dict[int, list[Judged]]
"""Judged cells by column."""


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


class CellTable:
    """A table's network, codings and calibration.

    Attributes:
        scores: column -> sorted conformity scores of held-out cells: how much of the predicted distribution, from its
            median outwards, an interval must hold to reach the truth. The 90 % interval of a column is as wide as nine
            of ten scores ask for.
        judged: column -> the held-out cells these scores are of, and those of categories; after a fit alone.
    """

    def __init__(self, fit: Fit, scores: dict[int, np.ndarray] | None = None) -> None:
        self.fitted, self.settings, self.scores = fit, fit.settings, scores or {}
        self.network, self.codings = fit.network, fit.codings
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

    def impute(self, columns: Sequence[np.ndarray], *, interval: float | None = None) -> Imputed:
        """Point values of missing cells: the mean of a quantity, the likeliest category; observed ones unchanged.

        Args:
            interval: coverage of the intervals, e.g. 0.9; calibrated per column by split conformal prediction.
        """
        rows = len(columns[0]) if len(columns) else 0
        blocks = [
            self._impute_block([x[start : start + BLOCK] for x in columns], interval)
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

    def _impute_block(self, columns: Sequence[np.ndarray], interval: float | None) -> Imputed:
        """`impute` of so many rows at most: coded, a large table would take more memory than it does as it is."""
        cells = self.cells(columns)
        point = [np.array(x, np.float64) for x in columns]
        low, high = ([np.full(len(x), np.nan) for x in columns] if interval is not None else [] for _ in range(2))
        incomplete = np.flatnonzero(~cells.seen.all(1))
        shares: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}

        def points(take: np.ndarray, batch: PackedBatch) -> None:
            flat = missing_slots(batch, len(take))
            prediction = self.network(batch, hide(flat))
            row, column = take[(flat // batch.shape[1]).numpy()], (flat % batch.shape[1]).numpy()
            self._put(point, row, column, prediction.point().numpy())
            if interval is not None:
                for target, values in zip((low, high), self._ends(prediction, column, interval), strict=True):
                    self._put(target, row, column, values)
                for c, part in self._shares(prediction, row, column):
                    shares.setdefault(c, []).append(part)

        self.on_cores(points, cells, incomplete)
        if interval is None:
            return Imputed(point=point)
        return Imputed(point=point, low=low, high=high, shares={c: _by_row(parts) for c, parts in shares.items()})

    def _shares(
        self, prediction: CellPrediction, row: np.ndarray, column: np.ndarray
    ) -> Iterator[tuple[int, tuple[np.ndarray, np.ndarray]]]:
        """(column, (rows, probabilities of its levels)) of the asked cells that have categories."""
        for places, distribution in prediction.pieces:
            if isinstance(distribution, Categories):
                p, probs = places.numpy(), distribution.probabilities().numpy()
                for c in np.unique(column[p]):
                    here = column[p] == c
                    yield int(c), (row[p][here], probs[here, : self.codings[c].size].astype(np.float64))

    @staticmethod
    def _put(target: list[np.ndarray], row: np.ndarray, column: np.ndarray, value: np.ndarray) -> None:
        for c in np.unique(column):
            here = column == c
            target[c][row[here]] = value[here]

    def _ends(self, prediction: CellPrediction, column: np.ndarray, interval: float) -> tuple[np.ndarray, np.ndarray]:
        level = np.array([self.level(c, interval) for c in range(len(self.codings))])
        ends = []
        for side in (-0.5, 0.5):
            q = torch.tensor(0.5 + side * level[column], dtype=torch.float32)
            value = np.full(len(column), np.nan)
            for places, distribution in prediction.pieces:
                if isinstance(distribution, Quantities):
                    value[places.numpy()] = distribution.quantile(q[places]).numpy()
            for c in np.unique(column):
                value[column == c] = _exact(value[column == c], self.codings[c])
            ends.append(value)
        return ends[0], ends[1]

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
        cells = self.cells(columns)
        members = self.network.codec.members
        rows = np.flatnonzero(cells.seen.any(1) & (self.fitted.fold < members))
        if len(rows) > CALIBRATION_ROWS:
            order = np.argsort(hash_keys(self.settings.train.seed, rows, Salt.CALIBRATION_ROWS), kind="stable")
            rows = rows[np.sort(order[:CALIBRATION_ROWS])]
        lacking = ~cells.seen[~cells.seen.all(1)]
        random = Corruption(select=CellMasks(low=0.05, high=0.5, copied=0.0), replace=ALL_MASK)
        copied = Corruption(select=CellMasks(copied=1.0, patterns=lacking, else_random=False), replace=ALL_MASK)
        # Which of the two a row gets is not a matter of its own cells: so the judged cells of a column are a random
        # sample of its observed ones. (Random masks for the rows alone that a pattern says nothing of would judge
        # columns without holes in those rows alone: where a cause is missing in survivors, age would be judged in
        # survivors.)
        found: tuple[Found, Found] = {}, {}
        for epoch in range(CALIBRATION_ROUNDS):
            borrows = uniform(self.settings.train.seed, epoch, rows, Salt.COPIED_HOLES) < (0.5 if len(lacking) else 0.0)
            for member in range(members):
                own = self.fitted.fold[rows] == member
                with self.fitted.without(member):
                    self._judge(columns, cells, rows[own & ~borrows], member, random, epoch, found[0])
                    self._judge(columns, cells, rows[own & borrows], member, copied, epoch, found[1])
            if all(sum(map(len, _chosen(found, c))) >= CALIBRATION_WANTED for c in self.quantities):
                break
        judged = {c: _chosen(found, c) for c in range(len(columns))}
        self.judged = {c: Judged.joined(parts) for c, parts in judged.items() if parts}
        self.scores = {c: np.sort(self.judged[c].needed) for c in self.quantities if c in self.judged}

    def _judge(
        self,
        columns: Sequence[np.ndarray],
        cells: Cells,
        rows: np.ndarray,
        member: int,
        corruption: Corruption,
        epoch: int,
        found: Found,
    ) -> None:
        """Adds to `found`, by column, what the member says of hidden cells of the rows."""
        with inference_mode(self.network):
            for take, batch in self.passes(cells, rows):
                hidden = corruption.draw(batch, seed=self.settings.train.seed + 2, epoch=epoch)
                if not len(hidden.flat):
                    continue
                lost = missing_slots(batch, len(take))
                prediction = self.network(batch, hide(torch.cat([hidden.flat, lost])), wanted=hidden.flat)
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

        def complete(take: np.ndarray, batch: PackedBatch) -> None:
            self._draw_batch(take, batch, out, seed, member, shift or {}, ruled)

        self.on_cores(complete, cells, incomplete)
        return out

    def _draw_batch(
        self,
        take: np.ndarray,
        batch: PackedBatch,
        out: list[np.ndarray],
        seed: int,
        member: int | None,
        shift: dict[int, float],
        ruled: Ruled | None,
    ) -> None:
        slots = batch.shape[1]
        flat = missing_slots(batch, len(take))
        order = visiting_order(slots, seed)
        order = order if ruled is None else ruled.order(order)
        turn = torch.full((slots,), -1)
        turn[order] = torch.arange(len(order))
        turns = turn[flat % slots]
        members = self.network.codec.members

        def draw(prediction: Any, cells: Tensor) -> Tensor:
            """Values of the cells of one column."""
            c, identity = int(cells[0]) % slots, take[(cells // slots).numpy()]
            u = np.stack([uniform(seed, identity, c, salt, 0) for salt in _CELL_SALTS], -1)
            if member is None:
                which = (hash_keys(seed, identity, Salt.CELL_MEMBER) % np.uint64(members)).astype(np.int64)
            else:
                which = np.full(len(identity), member % members)
            own = torch.from_numpy(which % prediction.members)
            new = prediction.draw(torch.tensor(u, dtype=torch.float32), own)
            value = self.codings[c].decode(new[:, 0].long().numpy(), new[:, 1].double().numpy())
            if c in shift:
                value = value + shift[c]
            under = ruled is not None and c in ruled.rules.touched
            if ruled is not None and under:
                value = ruled.value(c, value, prediction, own, u, {p: out[p][identity] for p in ruled.rules.touched})
            if c in shift or under:
                number, score = self.codings[c].encode(value)
                new = torch.tensor(np.stack([number, score], -1), dtype=torch.float32)
            out[c][identity] = value
            return new

        filled, rest = flat[turns >= 0], flat[turns < 0]
        fill(self.network, batch, filled, order=turns[turns >= 0], draw=draw, log_prob=False, hidden=rest)

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


def missing_slots(batch: PackedBatch, rows: int) -> Tensor:
    """Flat numbers of the missing cells of the first `rows` rows."""
    gone = ~batch.observed
    gone[rows:] = False
    return gone.flatten().nonzero().flatten()


def _by_row(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Passes end in any order; their rows are put in theirs."""
    rows, shares = np.concatenate([r for r, _ in parts]), np.concatenate([s for _, s in parts])
    order = np.argsort(rows)
    return rows[order], shares[order]


def visiting_order(slots: int, seed: int) -> list[int]:
    """Columns in an order that is random but the same for every row of a draw, so that rows do not depend
    on company."""
    return np.argsort(hash_keys(seed, np.arange(slots), Salt.COLUMN_ORDER), kind="stable").tolist()


def _exact(value: np.ndarray, coding: Coding) -> np.ndarray:
    """Ends that are an atom, as the very number the table holds: in single precision they would miss it by a hair."""
    atoms = np.sort(coding.scale.value[coding.scale.atom]) if coding.scale is not None else np.zeros(0)
    if not len(atoms):
        return value
    after = np.searchsorted(atoms, value).clip(0, len(atoms) - 1)
    before = (after - 1).clip(0)
    near = np.where(np.abs(atoms[after] - value) < np.abs(atoms[before] - value), atoms[after], atoms[before])
    return np.where(np.isclose(value, near, rtol=1e-6, atol=1e-12), near, value)


def _chosen(found: tuple[Found, Found], column: int) -> list[Judged]:
    """The judged cells of a column that were hidden as rows of the table lack them; with those hidden at random where
    they are few, as in columns that no row lacks."""
    random, copied = (f.get(column, []) for f in found)
    return copied if sum(map(len, copied)) >= CALIBRATION_WANTED else [*random, *copied]
