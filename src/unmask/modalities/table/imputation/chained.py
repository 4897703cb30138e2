"""Chained imputation: each column drawn from a Bayesian regression on the others, in turn, round after round.

Fully conditional specification (van Buuren 2007) with the univariate models of R's mice, under the same names. A column
of an analysis that imputation must agree with is drawn as `smcfcs.py` says instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.special import ndtr

from unmask.errors import UserError, suggest
from unmask.modalities.table.imputation.regressions import Shares, draw_level, draw_linear, draw_shares, match_donors
from unmask.modalities.table.schema.schema import Column, Schema
from unmask.modalities.table.survival.estimators import nelson_aalen, step_values
from unmask.progress import counted

QUANTITY_METHODS = ("norm", "pmm", "sample")
CATEGORY_METHODS = ("logreg", "polyreg", "polr", "sample")
LEVELS, RARE = 20, 5
"""As predictors, categories have an indicator for each of so many levels, of at least so many rows; the rest are one.
"""
PARAMETERS = 240
"""Parameters of one multinomial regression at most: fewer predictors are used beyond."""
COLLINEAR = 0.999


@dataclass(frozen=True, kw_only=True)
class Completed:
    """Columns completed once.

    Attributes:
        odds: place of a category -> (levels that occur, (rows missing, levels) log-probabilities, uniform numbers) of
            its last draw: what a shift of the log-odds needs.
        trace: (rounds, columns, 2) mean and deviation of the imputed values (category numbers) of every round.
        stuck: draws for which no proposal was accepted; the likeliest ones were taken.
    """

    columns: list[np.ndarray]
    odds: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]]
    trace: np.ndarray
    stuck: int = 0


class Regressors:
    """Complete columns as standardised regressors, kept up to date column by column."""

    def __init__(self, columns: Sequence[np.ndarray], sizes: Sequence[int], now: Sequence[np.ndarray]) -> None:
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
                scale = (float(seen.mean()), deviation) if deviation > 1e-12 * max(1.0, abs(seen.mean())) else scale
                width = int(deviation > 0)
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
        else:
            center, scale = self._scale[place]
            self.matrix[:, at.start] = (x - center) / scale


@dataclass(kw_only=True)
class Plan:
    """What is drawn how: the same for all completed tables.

    Attributes:
        methods: of each column that lacks values; "formula" for the outcome of an analysis imputation agrees with.
        reasons: why, where the method was chosen from the data.
        skip: place -> columns that do not predict it (the outcome of the analysis, for its covariates).
        hazard: places of time and event: the cumulative hazard stands for the time as a predictor.
        order: places in the order they are drawn, fewest missing first.
        limits: place -> bounds a person gave.
        chosen: place -> the regressors it is predicted from.
        notes: what was left out, for people.
    """

    columns: list[np.ndarray]
    sizes: list[int]
    schema: Schema
    methods: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    skip: dict[int, frozenset[int]] = field(default_factory=dict)
    hazard: tuple[int, int] | None = None
    chosen: dict[int, np.ndarray] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gone = [np.isnan(x) for x in self.columns]
        incomplete = [p for p, g in enumerate(self.gone) if g.any()]
        self.order = sorted(incomplete, key=lambda p: (int(self.gone[p].sum()), p))

    def name(self, place: int) -> str:
        return self.schema.columns[self.schema.modelled[place]].name

    def select(self) -> None:
        """Choose the regressors of every incomplete column: no copies of another, and no more than its rows
        can bear."""
        filled = [
            np.where(g, np.nanmean(x) if (~g).any() else 0.0, x) for x, g in zip(self.columns, self.gone, strict=True)
        ]
        table = Regressors(self.columns, self.sizes, filled)
        owner = np.array(table.owner, int)
        matrix = table.matrix[:, 1:]
        unique = _without_copies(matrix)
        for place in self.order:
            allowed = np.array([p != place and p not in self.skip.get(place, ()) for p in owner], bool) & unique
            seen = ~self.gone[place]
            size = max(self.sizes[place], 2)
            most = max(3, int(seen.sum()) // 3)
            if self.methods.get(place) == "polyreg":
                most = min(most, max(3, PARAMETERS // (size - 1)))
            columns = np.flatnonzero(allowed)
            if len(columns) > most:
                strength = _association(matrix[seen][:, columns], self.columns[place][seen], self.sizes[place])
                kept = np.sort(columns[np.argsort(-strength, kind="stable")[:most]])
                self.notes.append(
                    f"{self.name(place)!r} is imputed from the {most} most related of {len(columns)} predictors: its "
                    f"{int(seen.sum())} observed values do not bear more"
                )
                columns = kept
            self.chosen[place] = np.r_[0, columns + 1]

    def start(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Every missing cell with an observed value of its column, at random."""
        now = []
        for x, gone in zip(self.columns, self.gone, strict=True):
            x = x.copy()
            seen = x[~gone]
            if gone.any():
                x[gone] = rng.choice(seen, int(gone.sum())) if len(seen) else 0.0
            now.append(x)
        return now


def _without_copies(matrix: np.ndarray) -> np.ndarray:
    """Which regressors are not (nearly) another one that stands before them, as mice's `find.collinear` asks."""
    if not matrix.shape[1]:
        return np.zeros(0, bool)
    z = matrix - matrix.mean(0)
    length = np.sqrt((z**2).sum(0))
    z = z / np.maximum(length, 1e-12)
    alike = np.triu(np.abs(z.T @ z) > COLLINEAR, 1)
    return ~alike.any(0) & (length > 1e-12)


def _association(matrix: np.ndarray, y: np.ndarray, size: int) -> np.ndarray:
    """Largest absolute correlation of every regressor with the column, or with an indicator of one of its levels."""
    target = y[:, None] if not size else (y[:, None] == np.arange(size)).astype(float)
    z, t = matrix - matrix.mean(0), target - target.mean(0)
    down = np.sqrt((z**2).sum(0))[:, None] * np.sqrt((t**2).sum(0))[None, :]
    return np.abs(z.T @ t / np.maximum(down, 1e-12)).max(1)


class Chain:
    """One chain: current values, and the turns that draw them anew."""

    def __init__(self, plan: Plan, rng: np.random.Generator, first: Sequence[np.ndarray] | None = None) -> None:
        self.plan, self.rng = plan, rng
        self.now = [x.copy() for x in first] if first is not None else plan.start(rng)
        self.regressors = Regressors(plan.columns, plan.sizes, self.now)
        self._fits: dict[int, Shares] = {}
        self.odds: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self.stuck = 0
        if plan.hazard is not None:
            self._write_hazard()

    def run(self, rounds: int) -> Completed:
        """Draw every incomplete column in turn, so many times."""
        plan = self.plan
        trace = np.full((rounds, len(plan.order), 2), np.nan)
        for turn in counted(range(rounds), rounds):
            self.begin_round()
            for number, place in enumerate(plan.order):
                self.draw_column(place)
                drawn = self.now[place][plan.gone[place]]
                trace[turn, number] = drawn.mean(), drawn.std()
        return Completed(columns=self.now, odds=self.odds, trace=trace, stuck=self.stuck)

    def begin_round(self) -> None:
        """What is drawn before the columns, once per round: nothing here."""

    def draw_column(self, place: int) -> None:
        """Draw the missing cells of a column anew, given the current values of all others."""
        rows = np.flatnonzero(self.plan.gone[place])
        self.now[place][rows] = self.conditional(place, rows)
        self.update(place)

    def update(self, place: int) -> None:
        """Bring the regressors up to date with the current values of a column."""
        self.regressors.write(place, self.now[place])
        if self.plan.hazard is not None and place in self.plan.hazard:
            self._write_hazard()

    def _write_hazard(self) -> None:
        """The event and the Nelson-Aalen hazard predict covariates about linearly, time does not (White & Royston
        2009)."""
        assert self.plan.hazard is not None
        time, event = (self.now[p] for p in self.plan.hazard)
        at, hazard = nelson_aalen(time, event)
        own = step_values(at, hazard, time, start=0.0)
        self.regressors.write(self.plan.hazard[0], (own - own.mean()) / max(own.std(), 1e-12))

    def predictors(self, place: int) -> np.ndarray:
        return self.regressors.matrix[:, self.plan.chosen[place]]

    def shares(self, place: int, x: np.ndarray, y: np.ndarray) -> Shares:
        """A draw of the model of a category, its fit started from the one before."""
        found = draw_shares(x, y, self.rng, ordinal=self.plan.methods[place] == "polr", start=self._fits.get(place))
        self._fits[place] = found
        return found

    def take_level(self, place: int, levels: np.ndarray, log_probability: np.ndarray) -> np.ndarray:
        """Levels drawn for the missing rows; what they were drawn from is kept for shifts."""
        u = self.rng.random(len(log_probability))
        self.odds[place] = (levels, log_probability, u)
        return levels[draw_level(log_probability, u)].astype(float)

    def conditional(self, place: int, rows: np.ndarray) -> np.ndarray:
        """New values of the missing rows, given all other columns."""
        method, seen = self.plan.methods[place], ~self.plan.gone[place]
        y = self.now[place][seen]
        if method == "sample" or len(y) < 3 or (y == y[0]).all():
            return self.rng.choice(y, len(rows)) if len(y) else np.zeros(len(rows))
        x = self.predictors(place)
        if self.plan.sizes[place]:
            found = self.shares(place, x[seen], y)
            return self.take_level(place, found.levels, found.log_probability(x[rows]))
        found_line = draw_linear(x[seen], y, self.rng)
        if method == "norm":
            return x[rows] @ found_line.drawn_beta + found_line.drawn_sigma * self.rng.standard_normal(len(rows))
        donor = match_donors(x[rows] @ found_line.drawn_beta, x[seen] @ found_line.beta, self.rng)
        return y[donor]


def _check_method(method: str, column: Column, size: int) -> None:
    """Refuse a method that is none, or not for a column of this kind and so many categories."""
    allowed = CATEGORY_METHODS if size else QUANTITY_METHODS
    if method not in allowed:
        raise UserError(
            f"method of {column.name!r}: {method!r}", hint=f"A {column.kind} column takes one of {', '.join(allowed)}."
        )
    if method == "logreg" and size > 2:
        raise UserError(f"method of {column.name!r}: logreg, with {size} categories", hint="Use polyreg or polr.")


def choose_methods(plan: Plan, asked: Mapping[str, str] | str | None, rng: np.random.Generator) -> None:
    """Set the method of every incomplete column: the one asked for, else by its kind and its data.

    A quantity is drawn from a normal linear regression where the data do not speak against it, and by predictive mean
    matching (observed values of similar rows) where they do.

    Raises:
        UserError: an unknown column or method, or one that does not suit the column's kind.
    """
    schema = plan.schema
    for name, told in asked.items() if isinstance(asked, Mapping) else ():
        place = schema.place(name, where="method: ")
        _check_method(told, schema.columns[schema.modelled[place]], plan.sizes[place])  # of complete columns too
    for place in plan.order:
        column, size = schema.columns[schema.modelled[place]], plan.sizes[place]
        allowed = CATEGORY_METHODS if size else QUANTITY_METHODS
        method = asked.get(column.name) if isinstance(asked, Mapping) else asked
        if isinstance(asked, str) and asked not in QUANTITY_METHODS + CATEGORY_METHODS:
            raise UserError(f"method {asked!r}", hint=suggest(asked, QUANTITY_METHODS + CATEGORY_METHODS))
        if isinstance(asked, str) and asked not in allowed:
            method = None  # one name for all columns: it holds for those it suits
        if method is not None:
            _check_method(method, column, size)
        if method is None and size:
            method = "logreg" if size == 2 else ("polr" if column.kind == "ordinal" else "polyreg")
        plan.methods[place] = method or "pmm"
    unsettled = [
        p
        for p in plan.order
        if not plan.sizes[p]
        and not (asked.get(plan.name(p)) if isinstance(asked, Mapping) else asked in QUANTITY_METHODS)
    ]
    plan.select()
    if not unsettled:
        return
    trial = dataclasses.replace(plan, skip={}, chosen={}, notes=[])
    trial.select()
    chain = Chain(trial, rng)
    chain.run(2)
    chain.plan = plan  # a covariate of the analysis is judged by the regression that proposes it: without the outcome
    for place in unsettled:
        why = _against_normal(chain, place)
        plan.methods[place] = "norm" if why is None else "pmm"
        plan.reasons[place] = why or "a normal linear regression fits"


def _against_normal(chain: Chain, place: int) -> str | None:
    """What speaks against a normal linear regression of a column on the others; None where nothing does.

    Large departures are looked for, not significant ones: small ones do not matter to imputation.
    """
    plan = chain.plan
    seen = ~plan.gone[place]
    y = plan.columns[place][seen]
    values, counts = np.unique(y, return_counts=True)
    if len(y) < 20:
        return "fewer than 20 observed values"
    if len(values) < 20:
        return f"{len(values)} distinct values"
    if counts.max() > 0.05 * len(y):
        return f"{counts.max() / len(y):.0%} of the values are {values[counts.argmax()]:g}"
    x = chain.predictors(place)
    found = draw_linear(x[seen], y, chain.rng)
    fitted = x @ found.beta
    left = (y - fitted[seen]) / found.sigma
    spread = left.std()
    if spread < 1e-6:
        return "the other columns determine it"
    skew, tail = float((left**3).mean() / spread**3), float((left**4).mean() / spread**4 - 3)
    if abs(skew) > 0.75 or tail > 2:
        return f"its residuals are {'skewed' if abs(skew) > 0.75 else 'heavy-tailed'}"
    bent = np.column_stack([np.ones(len(y)), fitted[seen], fitted[seen] ** 2])
    bent[:, 1:] = (bent[:, 1:] - bent[:, 1:].mean(0)) / np.maximum(bent[:, 1:].std(0), 1e-12)
    rest = left - bent @ np.linalg.lstsq(bent, left, rcond=None)[0]
    gain = 1 - (rest**2).sum() / max((left**2).sum(), 1e-12)
    if gain > 0.02 and gain * len(y) > 11:
        return "its regression on the others is not a straight line"
    low, high = plan.schema.columns[plan.schema.modelled[place]].bounds
    low = max(low, 0.0) if y.min() >= 0 else low
    beyond = ndtr((low - fitted[~seen]) / found.sigma) + ndtr((fitted[~seen] - high) / found.sigma)
    if beyond.mean() > 0.005:
        return (
            "a normal would draw impossible values" if low or high < np.inf else "a normal would draw negative values"
        )
    return None


__all__ = ["Chain", "Completed", "Plan", "Regressors", "choose_methods"]
