"""Missing covariates of an analysis, drawn so that they agree with it (Bartlett, Seaman, White & Carpenter 2015).

A covariate's distribution given the outcome is nothing simple under an analysis with squares, interactions or
proportional hazards; a regression on the outcome is an approximation that pulls strong effects to zero. So two parts
are kept apart: a regression of the covariate on the other covariates proposes values, and the analysis accepts them as
it finds the outcome likely under them (rejection sampling; categories are weighed exactly). The parameters of the
analysis are drawn anew in every round, those of the regressions for every column.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from unmask.modalities.table.fitting.cell_table import CellTable
from unmask.modalities.table.imputation.censored_regression import draw_between
from unmask.modalities.table.imputation.chained import FEW, START, Chain, CompletedColumns, DrawPlan
from unmask.modalities.table.imputation.families import Given
from unmask.modalities.table.imputation.follow_up import draw_follow_up, draw_within
from unmask.modalities.table.imputation.formula import Formula
from unmask.modalities.table.imputation.regressions import (
    draw_donors,
    draw_level,
    draw_linear,
    share_between,
    truncated_normal,
)
from unmask.modalities.table.imputation.scales import MonotoneScale, draw_scale, written
from unmask.modalities.table.recipes import settings_of
from unmask.modalities.table.schema.censored import Censored
from unmask.modalities.table.survival.estimators import deviation

BLOCK, TRIES = 8192, 128
"""Proposals judged at once over all rows, and proposals of a row before it moves by slice sampling."""
MOVES, SHRINK = 6, 40
"""Steps of slice sampling, and times that the slice of one is narrowed at most."""
WARM = 3
"""Rounds with the outcome among the predictors, before covariates are drawn to agree with the analysis."""

Score = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(values, which of the missing rows each is for) -> log-likelihood of the outcome less its largest possible one; -inf
where a term of the analysis has no finite value."""


class Substantive:
    """The analysis, with parameters drawn given the current columns.

    Attributes:
        seen: rows of which the outcome, or one half of a survival pair, was observed. The others take no part in the
            fits, nor do they weigh covariates: what is drawn for them says nothing new.
    """

    def __init__(self, formula: Formula, columns: Sequence[np.ndarray]) -> None:
        self.formula = formula
        self.missing = [np.isnan(columns[p]) for p in formula.outcome]
        self.seen = ~np.logical_and.reduce(self.missing)
        read = (*formula.outcome, *formula.covariates)
        self.complete = np.logical_and.reduce([~np.isnan(columns[p]) for p in read])
        self._before: dict[int, np.ndarray] = {}
        ends = np.cumsum([0, *formula.widths()])
        self._slice = [slice(a, b) for a, b in itertools.pairwise(ends)]

    def draw(self, now: Sequence[np.ndarray], rng: np.random.Generator, *, initial: bool = False) -> None:
        """Draw the parameters of the analysis from their posterior given the completed columns.

        Args:
            initial: in the first round, from the complete rows alone where they suffice. What the chain started from
                knows no squares or hazards, and chains take many rounds to forget it.
        """
        z, center, scale = self._standardised(now)
        use = self.seen
        if initial and self.complete.sum() >= max(START, FEW * z.shape[1]):
            use = self.complete
        family, constant = self.formula.model, int(self.formula.model.constant and self.formula.intercept)
        x = np.hstack([np.ones((len(z), constant)), z])
        self.law = family.draw(self._given(now, x, use, rng))
        beta = self.law.beta
        self.weight = beta[constant:] / scale[:, None]
        self.offset = beta[:constant].sum(0) - center @ self.weight

    def _given(self, now: Sequence[np.ndarray], x: np.ndarray, use: np.ndarray, rng: np.random.Generator) -> Given:
        return Given(x=x, r=self.formula.response(now), use=use, rng=rng, before=self._before)

    def _standardised(self, now: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        with np.errstate(all="ignore"):
            x = np.nan_to_num(self.formula.design(now), posinf=0.0, neginf=0.0)
        use = x[self.seen]
        center = use.mean(0) if self.formula.intercept else np.zeros(x.shape[1])
        scale = deviation(use)
        return (x - center) / scale, center, scale

    def score(self, place: int, now: Sequence[np.ndarray], rows: np.ndarray) -> Score:
        """How likely the outcome of these rows is under other values of one covariate."""
        own = [n for n, t in enumerate(self.formula.terms) if place in t.places]
        rest = [n for n in range(len(self.formula.terms)) if n not in own]
        terms = [self.formula.terms[n] for n in own]
        weight = np.concatenate([self.weight[self._slice[n]] for n in own])
        part: list[Any] = [x[rows] for x in now]
        fixed = np.broadcast_to(self.offset, (len(rows), len(self.offset)))
        if rest:
            others = np.concatenate([self.weight[self._slice[n]] for n in rest])
            with np.errstate(all="ignore"):
                fixed = fixed + self.formula.design(part, [self.formula.terms[n] for n in rest]) @ others
        needed = {p for t in terms for p in t.places} - {place}
        functions = [t for t in terms if any(f.value is not None for f in t.factors)]

        def of(values: np.ndarray, which: np.ndarray) -> np.ndarray:
            columns: list[Any] = [None] * len(now)
            for p in needed:
                columns[p] = part[p][which]
            columns[place] = values
            with np.errstate(all="ignore"):
                eta = fixed[which] + self.formula.design(columns, terms) @ weight
                found = self.law.log_likelihood(eta, rows[which])
                possible = ~np.isnan(found) & np.isfinite(eta).all(1)
                if functions:  # of the values as they are handed out
                    for p in (*needed, place):
                        columns[p], _ = written(columns[p], self.formula.schema.column(p))
                    possible &= np.isfinite(self.formula.design(columns, functions)).all(1)
            return np.where(possible, np.where(self.seen[rows[which]], found, 0.0), -np.inf)

        return of

    def draw_outcome(self, now: list[np.ndarray], rng: np.random.Generator) -> None:
        """Draw what is missing of the outcome, in place, under the analysis."""
        if self.law.sample is None:
            given = self._given(now, self._standardised(now)[0], self.seen, rng)
            draw_follow_up(given, self.law.hazards, self.missing)
            return
        rows = np.flatnonzero(self.missing[0])
        now[self.formula.outcome[0]][rows] = self.law.sample(self._predictor(now, rows), rows)

    def _predictor(self, now: Sequence[np.ndarray], rows: np.ndarray) -> np.ndarray:
        """(rows, equations) linear predictors of some rows."""
        with np.errstate(all="ignore"):
            return np.nan_to_num(self.formula.design([x[rows] for x in now])) @ self.weight + self.offset

    def draw_bounded(self, now: list[np.ndarray], cells: Censored, rng: np.random.Generator) -> None:
        """Draw the cells of a normal outcome, or of follow-up times, that are only bounded, in place, under the
        analysis."""
        if self.formula.survival:
            given = self._given(now, self._standardised(now)[0], self.seen, rng)
            draw_within(given, self.law.hazards, cells.rows, cells.ends)
            return
        mean = self._predictor(now, cells.rows)[:, 0]
        now[self.formula.outcome[0]][cells.rows] = draw_between(mean, self.law.sigma, None, cells, rng)


class AgreeingChain(Chain):
    """A chain whose covariates of an analysis, and whose outcome, are drawn to agree with it; others as in `Chain`."""

    def __init__(
        self,
        plan: DrawPlan,
        rng: np.random.Generator,
        analysis: Substantive,
        first: Sequence[np.ndarray] | None = None,
        *,
        initial: bool = True,
    ) -> None:
        super().__init__(plan, rng, first)
        self.analysis, self.initial = analysis, initial

    def begin_round(self) -> None:
        """Draw the parameters of the analysis."""
        self.analysis.draw(self.now, self.rng, initial=self.initial and self.round == 0)

    def draw_column(self, place: int) -> None:
        formula = self.analysis.formula
        if place not in formula.outcome:
            super().draw_column(place)
        elif place == next(p for p in self.plan.order if p in formula.outcome):  # time and event at once
            self.analysis.draw_outcome(self.now, self.rng)
            for p in set(formula.outcome) & self.plan.censored.keys():
                self.analysis.draw_bounded(self.now, self.plan.censored[p], self.rng)
            for p in formula.outcome:
                self.update(p)

    def conditional(self, place: int, rows: np.ndarray) -> np.ndarray:
        if place in self.analysis.formula.covariates:
            return draw_covariate(self, self.analysis, place, rows)
        return super().conditional(place, rows)

    def draw_censored(self, place: int) -> None:
        if place not in self.analysis.formula.covariates:
            super().draw_censored(place)
            return
        cells = self.plan.censored[place]
        self.now[place][cells.rows] = draw_covariate(self, self.analysis, place, cells.rows, cells)


def draw_covariate(
    chain: Chain, analysis: Substantive, place: int, rows: np.ndarray, cells: Censored | None = None
) -> np.ndarray:
    """New values of a covariate's missing rows, or of those of its censored `cells`, given the other covariates and the
    outcome."""
    score, every = analysis.score(place, chain.now, rows), np.arange(len(rows))
    x, y, method = chain.predictors(place), chain.now[place], chain.plan.methods[place]
    if chain.plan.sizes[place]:
        if method == "sample":
            x = x[:, :1]
        found = chain.shares(place, x, y)
        log_probability = found.log_probability(x[rows])
        for k, level in enumerate(found.levels):
            log_probability[:, k] += score(np.full(len(rows), float(level)), every)
        return chain.draw_category(place, found.levels, log_probability)
    if cells is None and (method in ("pmm", "sample") or (y == y[0]).all()):
        if method != "pmm":
            x = x[:, :1]
        values, log_weight = draw_donors(x, y, x[rows], chain.rng)
        which = np.repeat(every, values.shape[1])
        log_weight += score(values.ravel(), which).reshape(values.shape)
        drawn, possible = draw_level(log_weight, chain.rng.random(len(rows))), np.isfinite(log_weight).any(1)
        chain.stuck += int((~possible).sum())
        return np.where(possible, values[every, drawn], y[rows])
    seen = ~chain.plan.missing[place]
    spike, share, rest = None, np.zeros(len(rows)), np.arange(len(y))
    if place in chain.plan.spikes and cells is None:
        spike, scale = chain.plan.spikes[place]
        found = chain.shares(place, x, y == spike)
        share = np.exp(found.log_probability(x[rows]))[:, found.levels == 1].sum(1)
        rest = np.flatnonzero(y != spike)
        scale = None if scale is None else draw_scale(scale, y[rest], seen[rest], x[rest], chain.rng)
    else:
        scale = chain.scale(place, y, seen, x)
    line = draw_linear(x[rest], y[rest] if scale is None else scale.to(y[rest]), chain.rng)
    model = _Latent(
        mean=x[rows] @ line.drawn_beta,
        sigma=line.drawn_sigma,
        scale=scale,
        spike=spike,
        share=share,
        bounds=chain.plan.schema.column(place).bounds,
        ends=None if cells is None else cells.ends,
        score=score,
    )
    drawn, impossible = _drawn(model, y[rows], chain.rng)
    chain.stuck += impossible
    return drawn


@dataclass(frozen=True, kw_only=True)
class _Latent:
    """A covariate given the other covariates, as a rising function of a standard normal number, and how likely the
    outcome is then.

    Attributes:
        mean, sigma: of the normal distribution on the scale.
        spike, share: a single value, and (rows,) its probability; the lowest normal numbers stand for it.
        bounds: that a person gave.
        ends: (rows,) lower and upper ends of the intervals of censored cells, to which the normal is truncated.
    """

    mean: np.ndarray
    sigma: float
    scale: MonotoneScale | None
    spike: float | None
    share: np.ndarray
    bounds: tuple[float, float]
    score: Score
    ends: tuple[np.ndarray, np.ndarray] | None = None

    def values(self, z: np.ndarray, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(values, log-likelihoods) at standard normal numbers, each for one of the missing rows."""
        if self.ends is not None:
            low, high = self._cut(which)
            z = truncated_normal(low, high, ndtr(z))
            x = np.clip(self._on_own(self.mean[which] + self.sigma * z), self.ends[0][which], self.ends[1][which])
        elif self.spike is None:
            x = self._on_own(self.mean[which] + self.sigma * z)
        else:
            rest, above = 1 - self.share[which], ndtr(-z)
            single = above >= rest
            z = -ndtri(np.where(single, 0.5, above / np.maximum(rest, 1e-300)))
            x = np.where(single, self.spike, self._on_own(self.mean[which] + self.sigma * z))
        possible = (x >= self.bounds[0]) & (x <= self.bounds[1])
        return x, np.where(possible, self.score(x, which), -np.inf)

    def _on_own(self, x: np.ndarray) -> np.ndarray:
        return x if self.scale is None else self.scale.back(x)

    def _cut(self, which: np.ndarray) -> list[np.ndarray]:
        """Ends of the intervals as standard normal numbers."""
        assert self.ends is not None
        ends = self.ends if self.scale is None else tuple(map(self.scale.to, self.ends))
        return [(end[which] - self.mean[which]) / self.sigma for end in ends]

    def numbers(self, x: np.ndarray, which: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Standard normal numbers that values come from: of the single value any of its own."""
        z = ((x if self.scale is None else self.scale.to(x)) - self.mean[which]) / self.sigma
        if self.ends is not None:
            low, high = self._cut(which)
            return ndtri(share_between(low, high, z))
        if self.spike is None:
            return z
        share = self.share[which]
        above = np.where(x == self.spike, 1 - share * rng.random(len(x)), (1 - share) * ndtr(-z))
        return -ndtri(np.clip(above, 1e-300, 1 - 1e-16))


def _drawn(model: _Latent, now: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, int]:
    """New values of all rows: the first accepted proposal; a row that accepts none of `TRIES` moves by slice sampling.

    Whether proposals are accepted does not depend on the current values, so that both leave the distribution as it is.

    Args:
        now: current values.

    Returns:
        values, and for how many rows the outcome left none possible: they keep theirs.
    """
    out = now.copy()
    waiting, tries = np.arange(len(now)), 0
    while len(waiting) and tries < TRIES:
        each = int(np.clip(BLOCK // len(waiting), 1, TRIES))
        which = np.repeat(waiting, each)
        values, likely = model.values(rng.standard_normal(len(which)), which)
        accepted = (np.log(rng.random(len(which))) < likely).reshape(len(waiting), each)
        done = accepted.any(1)
        out[waiting[done]] = values.reshape(accepted.shape)[done, accepted[done].argmax(1)]
        tries += each
        waiting = waiting[~done]
    if not len(waiting):
        return out, 0
    out[waiting], possible = _slice_sampled(model, out[waiting], waiting, rng)
    return out, int((~possible).sum())


def _slice_sampled(
    model: _Latent, now: np.ndarray, which: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """`MOVES` steps of elliptical slice sampling (Murray, Adams & MacKay 2010) from the current values of some rows;
    and whether each has a possible value."""
    z = model.numbers(now, which, rng)
    likely = model.values(z, which)[1]
    for _ in range(MOVES):
        other = rng.standard_normal(len(z))
        height = likely + np.log(rng.random(len(z)))
        angle = rng.random(len(z)) * 2 * np.pi
        low, high = angle - 2 * np.pi, angle.copy()
        left = np.arange(len(z))
        for _ in range(SHRINK):
            new = z[left] * np.cos(angle[left]) + other[left] * np.sin(angle[left])
            found = model.values(new, which[left])[1]
            above = found > height[left]
            moved = left[above]
            z[moved], likely[moved] = new[above], found[above]
            left = left[~above]
            if not len(left):
                break
            turn = angle[left]
            low[left], high[left] = np.where(turn < 0, turn, low[left]), np.where(turn < 0, high[left], turn)
            angle[left] = low[left] + (high[left] - low[left]) * rng.random(len(left))
    possible = np.isfinite(likely)
    return np.where(possible, model.values(z, which)[0], now), possible


class ChainedDraws:
    """Completed columns of a table, each from a chain of its own.

    Args:
        formula: the analysis that the chains agree with, if any.
        overrides: settings of a model; each chain then starts from a table drawn by a model fitted to a bootstrap
            sample, which without a formula is the imputation.
    """

    def __init__(self, plan: DrawPlan, formula: Formula | None, seed: int, overrides: dict[str, Any]) -> None:
        self.plan, self.formula, self.seed, self.overrides = plan, formula, seed, overrides

    def draw(self, m: int, rounds: int) -> CompletedColumns:
        """The m-th completed columns."""
        plan, rng = self.plan, np.random.default_rng([self.seed, m])
        first = self._modelled(m) if self.overrides else None
        if first is not None and self.formula is None and not plan.censored:
            return CompletedColumns(columns=first, odds={}, trace=np.full((0, len(plan.order), 2), np.nan))
        if self.formula is not None and first is None:
            warm = replace(plan, skip={}, chosen={}, notes=[])
            warm.select()
            first = Chain(warm, rng).run(WARM).columns
        return self._chain(rng, first, initial=True).run(rounds)

    def longer(self, m: int, so_far: CompletedColumns, rounds: int) -> CompletedColumns:
        """The m-th columns after more rounds."""
        rng = np.random.default_rng([self.seed, m, len(so_far.trace)])
        chain = self._chain(rng, so_far.columns, initial=False)
        chain.models = so_far.models
        chain.set_scales(so_far.scales)
        more = chain.run(rounds)
        return replace(more, trace=np.concatenate([so_far.trace, more.trace]), stuck=so_far.stuck + more.stuck)

    def _chain(self, rng: np.random.Generator, first: list[np.ndarray] | None, *, initial: bool) -> Chain:
        if self.formula is None:
            return self.plan.chain(rng, first)
        return AgreeingChain(self.plan, rng, Substantive(self.formula, self.plan.columns), first, initial=initial)

    def _modelled(self, m: int) -> list[np.ndarray]:
        """A table drawn from a model fitted to the m-th bootstrap sample."""
        columns, sizes, rows = self.plan.columns, self.plan.sizes, len(self.plan.columns[0])
        weight = np.random.default_rng([self.seed, m]).multinomial(rows, np.full(rows, 1 / rows)).astype(float)
        settings = settings_of(seed=self.seed + m, **({"members": 1, "steps": 0} | self.overrides))
        table = CellTable.fit(columns, sizes, settings=settings, weight=weight, calibrate=False)
        return table.draw(columns, seed=self.seed + 7919 * (m + 1))
