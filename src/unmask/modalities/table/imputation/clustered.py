"""Chained imputation of clustered rows: patients with several visits, centres with several patients.

A column of level one is drawn from a mixed model with a random intercept, and slopes where asked (`mixed_models.py`),
on the other columns and the means that its clusters have of them: without these, what is between clusters would be
taken for what is within (contextual effects; Grund, Luedtke & Robitzsch 2018; as mice with 2l.pan and 2l.groupmean). A
cluster that never measured the column has its random effect drawn from the distribution of these, so columns may be
missing systematically (Jolani and others 2015; Resche-Rigon & White 2018).

A column of level two, constant within clusters, is drawn once per cluster from the cluster's means of all others, and
written into each of its rows.

The parameters of each column's mixed model are kept from round to round: a round takes `INNER` Gibbs steps on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unmask.errors import UserError, option
from unmask.modalities.table.imputation.censored_regression import draw_between
from unmask.modalities.table.imputation.chained import Chain, DrawPlan, association
from unmask.modalities.table.imputation.mixed_models import GroupedRows, LatentModel, MixedModel
from unmask.modalities.table.imputation.regressions import draw_donors, draw_level, draw_linear
from unmask.modalities.table.imputation.scales import DISTINCT, MonotoneScale, best_scale, spike
from unmask.modalities.table.reading.findings import setting
from unmask.modalities.table.schema.censored import Censored
from unmask.modalities.table.schema.clusters import Clusters
from unmask.modalities.table.schema.schema import Schema

INNER, FIRST = 8, 40
"""Gibbs steps of a column's mixed model in a round, and before the first draw of a chain."""
CLUSTERS = 3
"""Clusters per regressor between clusters, at least."""


@dataclass(frozen=True, kw_only=True)
class QuantityModel:
    """The mixed model of a quantity on `scale`, less `center` and by `spread`."""

    model: MixedModel
    scale: MonotoneScale | None
    center: float
    spread: float

    def to(self, y: np.ndarray) -> np.ndarray:
        return ((y if self.scale is None else self.scale.to(y)) - self.center) / self.spread

    def back(self, z: np.ndarray) -> np.ndarray:
        z = z * self.spread + self.center
        return z if self.scale is None else self.scale.back(z)


@dataclass(kw_only=True)
class ClusteredPlan(DrawPlan):
    """How the columns of a table of clusters are drawn.

    Attributes:
        clusters: of the rows.
        slopes: places of the columns whose effects differ between clusters.
        level_two: places of the columns that are constant within clusters.
        contextual: place -> level-one regressors whose cluster means predict it too.
    """

    clusters: Clusters
    slopes: tuple[int, ...] = ()
    level_two: frozenset[int] = frozenset()
    contextual: dict[int, np.ndarray] = field(default_factory=dict)

    def chain(self, rng: np.random.Generator, first: Sequence[np.ndarray] | None = None) -> Chain:
        return ClusteredChain(self, rng, first)

    def units(self, place: int, matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of level two the clusters, with the means of the regressors."""
        if place not in self.level_two:
            return super().units(place, matrix)
        value = self.clusters.of_one_value(self.columns[place])
        return self.clusters.means(matrix)[~np.isnan(value)], value[~np.isnan(value)]

    def select(self) -> None:
        """The regressors of every column, and the cluster means that predict columns of level one. There are no more
        regressors between clusters, these means and columns of level two, than the number of clusters allows."""
        super().select()
        self.contextual = {}
        table = self.regressors(self.start(np.random.default_rng(0)))
        owner = np.array([-1, *table.owner])
        upper = np.isin(owner, list(self.level_two))
        for place in self.order:
            if place in self.level_two:
                continue
            chosen, seen = self.chosen[place], ~self.missing[place]
            there = self.clusters.sums(seen.astype(float)) > 0
            means = self.clusters.means(table.matrix)[there]
            target = self.clusters.sums(np.where(seen, self.columns[place], 0.0))[there]
            target /= self.clusters.sums(seen.astype(float))[there]
            candidates = chosen[means[:, chosen].std(0) > 1e-6]
            most = max(1, int(there.sum()) // CLUSTERS)
            kept = candidates
            if len(candidates) > most:
                strength = association(means[:, candidates], target, 0)
                kept = candidates[np.argsort(-strength, kind="stable")[:most]]
                self.notes.append(
                    f"{self.name(place)!r} is imputed from the {most} most related of {len(candidates)} cluster means "
                    f"and columns of level two: the {int(there.sum())} clusters that have it do not bear more"
                )
            self.chosen[place] = chosen[~upper[chosen] | np.isin(chosen, kept)]
            self.contextual[place] = np.sort(kept[~upper[kept]])


class ClusteredChain(Chain):
    """A chain whose columns of level one are drawn from mixed models, and those of level two once per cluster."""

    plan: ClusteredPlan

    def conditional(self, place: int, rows: np.ndarray) -> np.ndarray:
        """New values of the missing rows of a column, given all others."""
        plan = self.plan
        if place in plan.level_two:
            return self._draw_upper(place, rows)
        seen, number = np.flatnonzero(~plan.missing[place]), plan.clusters.number
        method, y = plan.methods[place], self.now[place][seen]
        if method == "sample" or len(y) < 3 or (y == y[0]).all():
            return super().conditional(place, rows)
        x, z, there = self._design(place, seen)
        grouped = GroupedRows(x[seen], z[seen], np.unique(number[seen], return_inverse=True)[1])
        if plan.sizes[place]:
            latent = self._category(place, grouped, y)
            eta = [x[rows] @ m.beta + (z * m.effects(there, self.rng)[number])[rows].sum(1) for m in latent.models]
            return self.draw_category(place, latent.levels, latent.log_probability(np.column_stack(eta)))
        found = self._quantity(place, grouped, y, x[seen])
        model: MixedModel = found.model
        eta = x @ model.beta + (z * model.effects(there, self.rng)[number]).sum(1)
        if method == "norm":
            drawn = eta[rows] + model.sigma * self.rng.standard_normal(len(rows))
            return found.back(drawn)
        line = np.column_stack([np.ones(len(eta)), eta])
        return self._donated(line[seen], y, line[rows])

    def draw_censored(self, place: int) -> None:
        """Draw the cells that are only bounded anew, by the mixed model of these and the observed ones: parameters and
        cells in turn."""
        plan, cells = self.plan, self.plan.censored[place]
        seen, number, y = np.flatnonzero(~plan.missing[place]), plan.clusters.number, self.now[place]
        x, z, there = self._design(place, seen)
        grouped = GroupedRows(x[seen], z[seen], np.unique(number[seen], return_inverse=True)[1])
        found = self._quantity(place, grouped, y[seen], x[seen])
        for _ in range(INNER):
            model = found.model
            effects = model.effects(there, self.rng)[number[cells.rows]]
            eta = x[cells.rows] @ model.beta + (z[cells.rows] * effects).sum(1)
            mean, sigma = eta * found.spread + found.center, model.sigma * found.spread
            y[cells.rows] = draw_between(mean, sigma, found.scale, cells, self.rng)
            model.draw(grouped, found.to(y[seen])[grouped.order], self.rng)

    def _design(self, place: int, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Regressors of all rows with fixed and with random effects, and which clusters have rows in `seen`."""
        plan, matrix = self.plan, self.regressors.matrix
        means = plan.clusters.means(matrix[:, plan.contextual[place]])[plan.clusters.number]
        own = [k + 1 for k, p in enumerate(self.regressors.owner) if p in plan.slopes and p != place]
        there = np.isin(np.arange(len(plan.clusters)), plan.clusters.number[seen])
        return np.hstack([matrix[:, plan.chosen[place]], means]), matrix[:, [0, *own]], there

    def _donated(self, x: np.ndarray, y: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Values by predictive mean matching."""
        values, log_weight = draw_donors(x, y, target, self.rng)
        return values[np.arange(len(target)), draw_level(log_weight, self.rng.random(len(target)))]

    def _quantity(self, place: int, rows: GroupedRows, y: np.ndarray, x: np.ndarray) -> QuantityModel:
        """The mixed model of a quantity, some steps on."""
        found, steps = self.models.get(place), INNER
        if found is None:
            scale, free = self.scales.get(place), self.plan.methods[place] != "norm"
            if free and place not in self.plan.censored and len(np.unique(y)) >= DISTINCT and spike(y) is None:
                scale = best_scale(y, x)
            on = y if scale is None else scale.to(y)
            found = QuantityModel(
                model=MixedModel(rows, latent=False), scale=scale, center=float(on.mean()), spread=float(on.std())
            )
            self.models[place], steps = found, FIRST
        z = found.to(y)[rows.order]
        for _ in range(steps):
            found.model.draw(rows, z, self.rng)
        return found

    def _category(self, place: int, rows: GroupedRows, y: np.ndarray) -> LatentModel:
        """The model of a category, some steps on."""
        first = place not in self.models
        if first:
            self.models[place] = LatentModel.of(rows, y, ordinal=self.plan.methods[place] == "polr")
        found: LatentModel = self.models[place]
        for _ in range(FIRST if first else INNER):
            found.draw(rows, y[rows.order], self.rng, tune=first)
        return found

    def _draw_upper(self, place: int, rows: np.ndarray) -> np.ndarray:
        """Of level two: one value per cluster, for all of its rows."""
        plan, method = self.plan, self.plan.methods[place]
        value = plan.clusters.of_one_value(plan.columns[place])
        holes, known = np.flatnonzero(np.isnan(value)), np.flatnonzero(~np.isnan(value))
        at, y = np.searchsorted(holes, plan.clusters.number[rows]), value[known]
        if method == "sample" or len(y) < 3 or (y == y[0]).all():
            return self.rng.choice(y, len(holes))[at]
        x = plan.clusters.means(self.predictors(place))
        if plan.sizes[place]:
            latent = self._category(place, GroupedRows(x[known], np.zeros((len(y), 0)), np.arange(len(y))), y)
            eta = x[holes] @ np.column_stack([m.beta for m in latent.models])
            log_probability, u = latent.log_probability(eta), self.rng.random(len(holes))
            self.odds[place] = (latent.levels, log_probability[at], u[at])
            return latent.levels[draw_level(log_probability, u)].astype(float)[at]
        if method == "norm":
            line = draw_linear(x[known], y, self.rng)
            drawn = x[holes] @ line.drawn_beta + line.drawn_sigma * self.rng.standard_normal(len(holes))
        else:
            drawn = self._donated(x[known], y, x[holes])
        return drawn[at]


def without_analysis(schema: Schema, formula: str | None, overrides: Mapping[str, Any]) -> list[str]:
    """What there is of an analysis that two-level imputation cannot agree with, to warn of."""
    if formula is not None:
        raise UserError(
            f"{option('formula', formula)} with {option('cluster')}: covariates are drawn to agree with an analysis of "
            "independent rows only",
            hint="Leave the formula out, and give it to pool: pool('y ~ x + (1 | centre)'). Interactions and squares "
            "are not kept then: compute them as columns.",
        )
    if overrides:
        raise UserError(
            f"{next(iter(overrides))}={next(iter(overrides.values()))!r} with {option('cluster')}: the network takes "
            "rows for independent",
            hint="Leave the settings of the network out.",
        )
    if schema.duration is None:
        return []
    return [
        f"with clusters, covariates are not drawn to agree with a Cox regression: {schema.event!r} and the cumulative "
        f"hazard of {schema.duration!r} predict them, which pulls strong effects towards zero"
    ]


def clustered_plan(
    clusters: Clusters,
    schema: Schema,
    columns: Sequence[np.ndarray],
    start: Sequence[np.ndarray],
    censored: Mapping[int, Censored],
    slopes: Sequence[str],
    *,
    scales: dict[int, MonotoneScale],
    note: Callable[..., None],
    row_name: Callable[[int], Any],
) -> ClusteredPlan:
    """The plan of a table of clusters. Cells of a column that is constant within them take the value that their cluster
    has elsewhere.

    Args:
        columns: as recorded, NaN in missing and in censored cells; `start` has values in these.
        censored, scales: see `DrawPlan`.
        note: called with what is to be said of columns that are constant within clusters.
    """
    upper, first = [], list(start)
    for place, x in enumerate(columns):
        name = schema.column(place).name
        if clusters.is_constant(x):
            if place in censored:
                raise UserError(
                    f"column {name!r}, one value per cluster: {censored[place].words()}",
                    hint="Bounded cells are drawn row by row: say what they are read as, "
                    + setting(name, 'limits = "value"'),
                )
            upper.append(place)
            carried = np.isnan(x) & ~np.isnan(value := clusters.of_one_value(x)[clusters.number])
            if carried.any():
                first[place] = np.where(carried, value, x)
                note(
                    f"{name!r} is constant within clusters: {int(carried.sum())} cells take the value of their cluster"
                )
        elif (slip := clusters.slip(x)) is not None:
            note(
                f"{name!r} is constant within clusters but in {clusters.names[slip[0]]!r}, row {row_name(slip[1])}: it "
                "is imputed row by row. If that is a slip, correct the cell",
                warn=True,
            )
    names = [schema.column(p).name for p in upper]
    if names:
        note(f"one value per cluster is drawn for what is constant within them: {', '.join(map(repr, names))}")
    for name in slopes:
        if name in names:
            raise UserError(f"slopes: {name!r} is constant within clusters", hint="Name columns that vary within them.")
    return ClusteredPlan(
        columns=first,
        sizes=schema.sizes,
        schema=schema,
        censored=censored,
        scales=scales,
        clusters=clusters,
        slopes=tuple(schema.place(name, where="slopes: ") for name in slopes),
        level_two=frozenset(upper),
    )
