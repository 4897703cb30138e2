"""Chained imputation: each column drawn from a Bayesian regression on the others, in turn, round after round.

Fully conditional specification (van Buuren 2007) with the univariate models of R's mice, under the same names. A column
of an analysis that imputation must agree with is drawn as `smcfcs.py` says instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unmask.evaluation.survival import step_values
from unmask.modalities.table.imputation.censored_regression import draw_bounded
from unmask.modalities.table.imputation.regressions import Shares, draw_donors, draw_level, draw_linear, draw_shares
from unmask.modalities.table.imputation.scales import DISTINCT, MonotoneScale, best_scale, draw_scale, spike
from unmask.modalities.table.imputation.trees import draw_tree_shares, draw_tree_values
from unmask.modalities.table.schema.censored import Censored
from unmask.modalities.table.schema.schema import Schema
from unmask.modalities.table.survival.estimators import nelson_aalen
from unmask.progress import counted

QUANTITY_METHODS = ("norm", "pmm", "cart", "sample")
CATEGORY_METHODS = ("logreg", "polyreg", "polr", "cart", "sample")
LEVELS, RARE = 20, 5
"""As predictors, categories have an indicator for each of so many levels, of at least so many rows; the rest are one.
"""
PARAMETERS = 240
"""Parameters of one multinomial regression at most: fewer predictors are used beyond."""
COLLINEAR = 0.999
START, FEW = 20, 5
"""Rows, and rows per regressor, that suffice for a first fit from what is observed alone, without a random start."""


@dataclass(frozen=True, kw_only=True)
class CompletedColumns:
    """One completed data set.

    Attributes:
        odds: place of a category -> (levels that occur, (rows missing, levels) log-probabilities, uniform numbers) of
            its last draw: what a shift of the log-odds needs.
        trace: (rounds, columns, 2) mean and standard deviation of the imputed values (category numbers) of every round.
        stuck: draws for which the analysis left no value possible: the cells kept the value they had.
        models: place -> a model whose parameters are kept from round to round, as last drawn.
        scales: place -> the scale that the chain drew for a censored column, None for its own.
    """

    columns: list[np.ndarray]
    odds: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]]
    trace: np.ndarray
    stuck: int = 0
    models: dict[int, Any] = field(default_factory=dict)
    scales: Mapping[int, MonotoneScale | None] = field(default_factory=dict)


class Regressors:
    """Complete columns as standardised regressors, kept up to date column by column. `scales`: place -> the scale on
    which a column is one; `wide`: place -> how many regressors a quantity stands for (`write` then takes as many)."""

    def __init__(
        self,
        columns: Sequence[np.ndarray],
        sizes: Sequence[int],
        now: Sequence[np.ndarray],
        scales: Mapping[int, MonotoneScale] | None = None,
        wide: Mapping[int, int] | None = None,
    ) -> None:
        self._scales = {} if scales is None else scales
        self.owner: list[int] = []
        self._levels: list[np.ndarray] = []
        self._scale: list[tuple[float, float]] = []
        self._place: list[slice] = []
        for place, (x, size) in enumerate(zip(columns, sizes, strict=True)):
            seen = x[~np.isnan(x)]
            levels, scale = np.zeros(0), (0.0, 1.0)
            if size:
                count = np.bincount(seen.astype(int), minlength=size)
                frequent = np.argsort(-count, kind="stable")[1 : LEVELS + 1]
                levels = np.sort(frequent[count[frequent] >= min(RARE, max(1, len(seen) // 10))])
                width = len(levels)
            else:
                deviation = float(seen.std()) if len(seen) else 0.0
                scale = (float(seen.mean()), deviation) if deviation > 1e-12 * abs(seen.mean()) else scale
                width = int(deviation > 0) * (wide or {}).get(place, 1)
            start = 1 + len(self.owner)
            self.owner += [place] * width
            self._place.append(slice(start, start + width))
            self._levels.append(levels)
            self._scale.append(scale)
        self.matrix = np.ones((len(columns[0]), 1 + len(self.owner)))
        for place, x in enumerate(now):
            self.write(place, x)

    def write(self, place: int, x: np.ndarray) -> None:
        """Column `place` has become x."""
        at = self._place[place]
        if at.stop == at.start:
            return
        if len(self._levels[place]):
            self.matrix[:, at] = x[:, None] == self._levels[place]
        elif x.ndim == 2:
            self.matrix[:, at] = (x - x.mean(0)) / np.maximum(x.std(0), 1e-12)
        else:
            center, scale = self._scale[place]
            if place in self._scales:
                x = self._scales[place].to(x)
                center, scale = x.mean(), max(x.std(), 1e-300)
            self.matrix[:, at.start] = (x - center) / scale


@dataclass(kw_only=True)
class DrawPlan:
    """What is drawn how: the same for all completed tables.

    Attributes:
        methods: of each column that lacks values; "formula" for the outcome of an analysis imputation agrees with.
        reasons: why, where the method was chosen from the data.
        skip: place -> columns that do not predict it (the outcome of the analysis, for its covariates).
        hazard: places of time and event: the cumulative hazards of its causes stand for the time as predictors.
        order: places in the order they are drawn, fewest missing first.
        scales: place -> the scale on which a skewed column is drawn by "norm", and predicts others.
        spikes: place -> the value that many cells of a covariate have, and the scale of the others (None: their own).
        chosen: place -> the regressors it is predicted from.
        notes: what was left out, for people.
        censored: place -> cells that are only bounded. They are not missing: `columns` has values inside their
            intervals to start with, and chains draw them anew (`censored_regression.py`).
        likely: place -> scales that a censored column may be normal on, and their probabilities; each chain draws one.
        computed: gives the columns under formulas ("bmi := weight / height**2") as these have them, by place, given the
            current values: passive imputation (van Buuren 2018, 6.4.1).
    """

    columns: list[np.ndarray]
    sizes: list[int]
    schema: Schema
    methods: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    scales: dict[int, MonotoneScale] = field(default_factory=dict)
    spikes: dict[int, tuple[float, MonotoneScale | None]] = field(default_factory=dict)
    skip: dict[int, frozenset[int]] = field(default_factory=dict)
    hazard: tuple[int, int] | None = None
    chosen: dict[int, np.ndarray] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    censored: Mapping[int, Censored] = field(default_factory=dict)
    likely: dict[int, tuple[list[MonotoneScale | None], np.ndarray]] = field(default_factory=dict)
    computed: Callable[[list[np.ndarray]], dict[int, np.ndarray]] | None = None

    def __post_init__(self) -> None:
        self.missing = [np.isnan(x) for x in self.columns]
        self.drawn = [
            g | self.censored[p].mask(len(g)) if p in self.censored else g for p, g in enumerate(self.missing)
        ]
        incomplete = [p for p, g in enumerate(self.drawn) if g.any()]
        self.order = sorted(incomplete, key=lambda p: (int(self.drawn[p].sum()), p))

    def name(self, place: int) -> str:
        return self.schema.column(place).name

    def select(self) -> None:
        """Choose the regressors of every incomplete column. Left out are copies of other regressors and those whose
        effect cannot be estimated from the rows where the column is observed (a single value there, or the last of
        levels that cover all these rows); and there are no more than the number of rows allows."""
        filled = [
            np.where(g, np.nanmean(x) if (~g).any() else 0.0, x)
            for x, g in zip(self.columns, self.missing, strict=True)
        ]
        table = self.regressors(filled)
        owner = np.array(table.owner, int)
        matrix = table.matrix[:, 1:]
        copied, copy = _copies(matrix)
        for place in self.order:
            allowed = np.array([p != place and p not in self.skip.get(place, ()) for p in owner], bool)
            known, y = self.units(place, matrix)
            if len(y):
                allowed &= np.ptp(known, 0) > 0
                for other in {p for p in owner[allowed] if self.sizes[p]}:
                    levels = np.flatnonzero(allowed & (owner == other))
                    if not np.ptp(known[:, levels].sum(1)):
                        allowed[levels[known[:, levels].sum(0).argmax()]] = False
            allowed[copy[allowed[copied] & allowed[copy]]] = False
            size = max(self.sizes[place], 2)
            most = max(3, len(y) // 3)
            if self.methods.get(place) == "polyreg":
                most = min(most, max(3, PARAMETERS // (size - 1)))
            columns = np.flatnonzero(allowed)
            if len(columns) > most:
                strength = association(known[:, columns], y, self.sizes[place])
                kept = np.sort(columns[np.argsort(-strength, kind="stable")[:most]])
                self.notes.append(
                    f"{self.name(place)!r} is imputed from the {most} most related of {len(columns)} predictors: its "
                    f"{len(y)} observed values do not bear more"
                )
                columns = kept
            self.chosen[place] = np.r_[0, columns + 1]

    def regressors(self, now: Sequence[np.ndarray], scales: Mapping[int, MonotoneScale] | None = None) -> Regressors:
        """Complete columns as regressors, with hazards in place of follow-up time."""
        if self.hazard is None:
            return Regressors(self.columns, self.sizes, now, scales)
        found = Regressors(self.columns, self.sizes, now, scales, wide={self.hazard[0]: self.sizes[self.hazard[1]] - 1})
        found.write(self.hazard[0], self.hazards(now))
        return found

    def hazards(self, now: Sequence[np.ndarray]) -> np.ndarray:
        """(rows, causes) Nelson-Aalen hazards at the end of follow-up: they and the event predict covariates about
        linearly, time does not (White & Royston 2009; of competing causes Bartlett & Taylor 2016, 2.2)."""
        assert self.hazard is not None
        time, event = (now[p] for p in self.hazard)
        causes = range(1, self.sizes[self.hazard[1]])
        return np.column_stack([step_values(*nelson_aalen(time, event == k), time, start=0.0) for k in causes])

    @functools.cached_property
    def shapes(self) -> dict[int, MonotoneScale]:
        """Place -> the scale on which a skewed quantity is about normal, by its observed values alone."""
        found: dict[int, MonotoneScale] = {}
        for place, (x, missing) in enumerate(zip(self.columns, self.missing, strict=True)):
            seen = x[~missing]
            continuous = not self.sizes[place] and len(np.unique(seen)) >= DISTINCT and spike(seen) is None
            if continuous and self.methods.get(place) != "norm" and place not in (self.hazard or ()):
                scale = best_scale(seen, np.ones((len(seen), 1)))
                found |= {} if scale is None else {place: scale}
        return found

    def units(self, place: int, matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Regressors and values of what a column is observed of: the rows."""
        seen = ~self.missing[place]
        return matrix[seen], self.columns[place][seen]

    def chain(self, rng: np.random.Generator, first: Sequence[np.ndarray] | None = None) -> Chain:
        return Chain(self, rng, first)

    def start(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Every missing cell with an observed value of its column, at random."""
        now = []
        for x, missing in zip(self.columns, self.missing, strict=True):
            x = x.copy()
            seen = x[~missing]
            if missing.any():
                x[missing] = rng.choice(seen, int(missing.sum())) if len(seen) else 0.0
            now.append(x)
        return now


def _copies(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of regressors that are (nearly) the same, as mice's `find.collinear` asks: the numbers of the first ones,
    and of their copies."""
    z = matrix - matrix.mean(0)
    z /= np.maximum(np.sqrt((z**2).sum(0)), 1e-12)
    first, second = np.nonzero(np.triu(np.abs(z.T @ z) > COLLINEAR, 1))
    return first, second


def association(matrix: np.ndarray, y: np.ndarray, size: int) -> np.ndarray:
    """Largest absolute correlation of every regressor with the column, or with an indicator of one of its levels."""
    target = y[:, None] if not size else (y[:, None] == np.arange(size)).astype(float)
    z, t = matrix - matrix.mean(0), target - target.mean(0)
    down = np.sqrt((z**2).sum(0))[:, None] * np.sqrt((t**2).sum(0))[None, :]
    return np.abs(z.T @ t / np.maximum(down, 1e-12)).max(1)


class Chain:
    """One chain: current values, and the turns that draw them anew."""

    def __init__(self, plan: DrawPlan, rng: np.random.Generator, first: Sequence[np.ndarray] | None = None) -> None:
        self.plan, self.rng = plan, rng
        self.now = [x.copy() for x in first] if first is not None else plan.start(rng)
        self.scales = dict(plan.scales)
        self.regressors = plan.regressors(self.now, self.scales)
        self.set_scales({p: scales[rng.choice(len(scales), p=share)] for p, (scales, share) in plan.likely.items()})
        self._shapes = plan.shapes
        self._shaped = plan.regressors(self.now, self._shapes) if self._shapes else None
        # Cells that are observed, or were drawn given such: what a random start had is no part of the first fits.
        self._known = [np.ones(len(g), bool) if first is not None else ~g for g in plan.missing]
        self._fits: dict[int, Shares] = {}
        self.odds: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self.models: dict[int, Any] = {}
        self.stuck, self.round = 0, 0

    def set_scales(self, scales: Mapping[int, MonotoneScale | None]) -> None:
        """Take other scales; None for a column's own."""
        for place, scale in scales.items():
            self.scales.pop(place, None)
            self.scales |= {} if scale is None else {place: scale}
            self.regressors.write(place, self.now[place])

    def run(self, rounds: int) -> CompletedColumns:
        """Draw every incomplete column in turn, so many times."""
        plan = self.plan
        trace = np.full((rounds, len(plan.order), 2), np.nan)
        for turn in counted(range(rounds), rounds):
            self.round = turn
            self.begin_round()
            for place in plan.order:
                self.draw_column(place)
            for place, x in plan.computed(self.now).items() if plan.computed else ():
                self.now[place] = x
                self.update(place)
            for number, place in enumerate(plan.order):
                drawn = self.now[place][plan.drawn[place]]
                trace[turn, number] = drawn.mean(), drawn.std()
            self._known = [np.ones(len(g), bool) for g in plan.missing]
        scales = {p: self.scales.get(p) for p in plan.censored}
        return CompletedColumns(
            columns=self.now, odds=self.odds, trace=trace, stuck=self.stuck, models=self.models, scales=scales
        )

    def begin_round(self) -> None:
        """What is drawn before the columns, once per round: nothing here."""

    def draw_column(self, place: int) -> None:
        """Draw the missing and the censored cells of a column anew, given the current values of all others."""
        if place in self.plan.censored:
            self.draw_censored(place)
        rows = np.flatnonzero(self.plan.missing[place])
        if len(rows):
            self.now[place][rows] = self.conditional(place, rows)
        self._known[place][rows] = self._given(place)[rows]
        self.update(place)

    def draw_censored(self, place: int) -> None:
        """Draw the cells of a column that are only bounded anew."""
        use, scale = ~self.plan.missing[place], self.scales.get(place)
        draw_bounded(self.predictors(place), self.now[place], use, self.plan.censored[place], scale, self.rng)

    def _given(self, place: int) -> np.ndarray:
        """Rows whose predictors of a column are known."""
        owners = {self.regressors.owner[k - 1] for k in self.plan.chosen[place][1:]}
        return np.logical_and.reduce([self._known[p] for p in owners], axis=0) if owners else self._known[place] | True

    def update(self, place: int) -> None:
        """Bring the regressors up to date with the current values of a column."""
        self.regressors.write(place, self.now[place])
        if self._shaped is not None:
            x, seen = self.now[place], self.plan.columns[place]
            self._shaped.write(place, np.clip(x, np.nanmin(seen), np.nanmax(seen)) if place in self._shapes else x)
        if self.plan.hazard is not None and place in self.plan.hazard:
            for regressors in (self.regressors, self._shaped):
                if regressors is not None:
                    regressors.write(self.plan.hazard[0], self.plan.hazards(self.now))

    def predictors(self, place: int) -> np.ndarray:
        return self.regressors.matrix[:, self.plan.chosen[place]]

    def scale(self, place: int, y: np.ndarray, seen: np.ndarray, x: np.ndarray) -> MonotoneScale | None:
        """The scale of a column, its power drawn anew given values and their predictors; None for the column's own."""
        if place not in self.scales or place in self.plan.censored:
            return self.scales.get(place)
        self.scales[place] = draw_scale(self.scales[place], y, seen, x, self.rng)
        return self.scales[place]

    def shares(self, place: int, x: np.ndarray, y: np.ndarray) -> Shares:
        """A draw of the model of a category, its fit started from the one before."""
        found = draw_shares(x, y, self.rng, ordinal=self.plan.methods[place] == "polr", start=self._fits.get(place))
        self._fits[place] = found
        return found

    def draw_category(self, place: int, levels: np.ndarray, log_probability: np.ndarray) -> np.ndarray:
        """Levels drawn for the missing rows; what they were drawn from is kept for shifts."""
        u = self.rng.random(len(log_probability))
        self.odds[place] = (levels, log_probability, u)
        return levels[draw_level(log_probability, u)].astype(float)

    def conditional(self, place: int, rows: np.ndarray) -> np.ndarray:
        """New values of the missing rows, given all other columns."""
        known = np.flatnonzero(~self.plan.missing[place])
        given = known[self._given(place)[known]]
        if not self.plan.sizes[place] and len(given) >= max(START, FEW * len(self.plan.chosen[place])):
            known = given
        return self.by_method(self.plan.methods[place], place, known, rows)

    def by_method(self, method: str, place: int, known: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Values of `rows`, the parameters of a method drawn given the rows `known`: random ones of the column where
        these are fewer than 3, or all are equal; a column with a spike has no normal distribution."""
        y, size = self.now[place][known], self.plan.sizes[place]
        if method == "sample" or len(y) < 3 or (y == y[0]).all():
            return self.rng.choice(y, len(rows)) if len(y) else np.zeros(len(rows))
        x = self.predictors(place)
        if size and method == "cart":
            ordinal = self.plan.schema.column(place).kind == "ordinal"
            return self.draw_category(place, *draw_tree_shares(x[known], y, x[rows], self.rng, ordinal=ordinal))
        if size:
            found = self.shares(place, x[known], y)
            return self.draw_category(place, found.levels, found.log_probability(x[rows]))
        if method == "norm" and place not in self.plan.spikes:
            scale = self.scale(place, y, np.ones(len(y), bool), x[known])
            line = draw_linear(x[known], y if scale is None else scale.to(y), self.rng)
            drawn = x[rows] @ line.drawn_beta + line.drawn_sigma * self.rng.standard_normal(len(rows))
            return drawn if scale is None else scale.back(drawn)
        shaped = x if self._shaped is None else self._shaped.matrix[:, self.plan.chosen[place]]
        other = None if shaped is x else (shaped[known], shaped[rows])
        if method == "cart":
            return draw_tree_values(x[known], y, x[rows], self.rng, other=other)
        values, log_weight = draw_donors(x[known], y, x[rows], self.rng, other=other)
        return values[np.arange(len(rows)), draw_level(log_weight, self.rng.random(len(rows)))]
