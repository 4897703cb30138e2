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
from typing import Any

import numpy as np
from scipy.special import log_expit

from unmask.modalities.table.imputation.chained import Chain, Plan
from unmask.modalities.table.imputation.formula import Formula
from unmask.modalities.table.imputation.regressions import draw_linear, draw_shares
from unmask.modalities.table.survival.drawn_cox import Hazard, draw_hazard
from unmask.modalities.table.survival.estimators import step_values

BLOCK, TRIES = 8192, 4000
"""Proposals judged at once over all rows, and proposals of a row before the likeliest of the last is taken."""
GRID = 256
"""Rows whose missing follow-up is drawn at once."""

Score = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(values, which of the missing rows each is for) -> log-likelihood of the outcome less its largest possible one."""


class Substantive:
    """The analysis, with parameters drawn given the current columns.

    Attributes:
        seen: rows of which the outcome, or one half of a survival pair, was observed. The others take no part in the
            fits, nor do they weigh covariates: what is drawn for them says nothing new.
    """

    def __init__(self, formula: Formula, columns: Sequence[np.ndarray]) -> None:
        self.formula = formula
        self.gone = [np.isnan(columns[p]) for p in formula.outcome]
        self.seen = ~np.logical_and.reduce(self.gone)
        self.weight, self.offset, self.sigma = np.zeros(0), 0.0, 1.0
        self.hazard = np.zeros(0)
        self._before: dict[int, np.ndarray] = {}
        ends = np.cumsum([0, *formula.widths()])
        self._slice = [slice(a, b) for a, b in itertools.pairwise(ends)]

    def draw(self, now: Sequence[np.ndarray], rng: np.random.Generator) -> None:
        """Draw the parameters of the analysis from their posterior given the completed columns."""
        z, center, scale = self._standardised(now)
        outcome, use = [now[p] for p in self.formula.outcome], self.seen
        if self.formula.family == "cox":
            self.death = draw_hazard(z[use], outcome[0][use], outcome[1][use], rng, self._before.get(1))
            self._before[1] = self.death.estimate
            self.hazard = step_values(self.death.at, np.cumsum(self.death.jump), outcome[0], start=0.0)
            first, beta = 0.0, self.death.beta
        else:
            x = np.hstack([np.ones((len(z), int(self.formula.intercept))), z])[use]
            y = outcome[0][use]
            if self.formula.family == "ols":
                found = draw_linear(x, y, rng)
                beta, self.sigma = found.drawn_beta, found.drawn_sigma
            elif (y == y[0]).all():
                beta = np.zeros(x.shape[1])
            else:
                beta = draw_shares(x, y, rng).drawn
            first, beta = (float(beta[0]), beta[1:]) if self.formula.intercept else (0.0, beta)
        self.weight = beta / scale
        self.offset = first - float(center @ self.weight)

    def _standardised(self, now: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        with np.errstate(all="ignore"):
            x = np.nan_to_num(self.formula.design(now), posinf=0.0, neginf=0.0)
        use = x[self.seen]
        center = use.mean(0) if self.formula.intercept else np.zeros(x.shape[1])
        scale = np.maximum(use.std(0), 1e-9)
        return (x - center) / scale, center, scale

    def score(self, place: int, now: Sequence[np.ndarray], rows: np.ndarray) -> Score:
        """How likely the outcome of these rows is under other values of one covariate."""
        own = [n for n, t in enumerate(self.formula.terms) if place in t.places]
        rest = [n for n in range(len(self.formula.terms)) if n not in own]
        terms = [self.formula.terms[n] for n in own]
        weight = np.concatenate([self.weight[self._slice[n]] for n in own])
        part: list[Any] = [x[rows] for x in now]
        fixed = np.full(len(rows), self.offset)
        if rest:
            others = np.concatenate([self.weight[self._slice[n]] for n in rest])
            with np.errstate(all="ignore"):
                fixed = fixed + self.formula.design(part, [self.formula.terms[n] for n in rest]) @ others
        needed = {p for t in terms for p in t.places} - {place}

        def of(values: np.ndarray, which: np.ndarray) -> np.ndarray:
            columns: list[Any] = [None] * len(now)
            for p in needed:
                columns[p] = part[p][which]
            columns[place] = values
            with np.errstate(all="ignore"):
                eta = fixed[which] + self.formula.design(columns, terms) @ weight
                found = self._log_likelihood(eta, now, rows[which])
            return np.where(self.seen[rows[which]], np.where(np.isnan(found), -np.inf, found), 0.0)

        return of

    def _log_likelihood(self, eta: np.ndarray, now: Sequence[np.ndarray], rows: np.ndarray) -> np.ndarray:
        """Of each row's outcome, less the largest it can be."""
        y = now[self.formula.outcome[-1]][rows]
        if self.formula.family == "ols":
            return -0.5 * ((y - eta) / self.sigma) ** 2
        if self.formula.family == "logit":
            return log_expit(np.where(y > 0, eta, -eta))
        log_need = np.log(np.maximum(self.hazard[rows], 1e-12)) + np.clip(eta, -30, 30)
        need = np.exp(log_need)
        return np.where(y > 0, log_need - need + 1, -need)

    def draw_outcome(self, now: list[np.ndarray], rng: np.random.Generator) -> None:
        """Draw what is missing of the outcome, in place, under the analysis."""
        if self.formula.family == "cox":
            self._draw_follow_up(now, rng)
            return
        place = self.formula.outcome[0]
        rows = np.flatnonzero(self.gone[0])
        with np.errstate(all="ignore"):
            eta = np.nan_to_num(self.formula.design([x[rows] for x in now])) @ self.weight + self.offset
        if self.formula.family == "ols":
            now[place][rows] = eta + self.sigma * rng.standard_normal(len(rows))
        else:
            now[place][rows] = np.log(rng.random(len(rows))) < log_expit(eta)

    def _draw_follow_up(self, now: list[np.ndarray], rng: np.random.Generator) -> None:
        """Missing times and events, by proportional hazards of the event and of censoring."""
        time_at, event_at = self.formula.outcome
        no_time, no_event = self.gone
        z = self._standardised(now)[0]
        use = self.seen
        time, event = now[time_at], now[event_at]
        rows = np.flatnonzero(no_event & ~no_time)
        if len(rows):  # both hazards proportional: the log-odds of an event are linear in covariates, smooth in time
            level = np.column_stack([np.log1p(time - time.min()), time])
            level = (level - level.mean(0)) / np.maximum(level.std(0), 1e-12)
            x = np.hstack([np.ones((len(z), 1)), z, level])
            known = ~no_event & use
            found = draw_shares(x[known], event[known], rng)
            share = np.exp(found.log_probability(x[rows])) @ found.levels
            event[rows] = rng.random(len(rows)) < share
        rows = np.flatnonzero(no_time)
        if not len(rows):
            return
        leaving = draw_hazard(z[use], time[use], (event[use] <= 0).astype(float), rng, self._before.get(0))
        self._before[0] = leaving.estimate
        parts = [(1.0, self.death), (0.0, leaving)]
        at = np.concatenate([found.at for _, found in parts])
        kind = np.concatenate([np.full(len(found.at), mark) for mark, found in parts])
        for start in range(0, len(rows), GRID):
            some = rows[start : start + GRID]
            log_mass = np.concatenate(
                [np.log(np.maximum(_mass(p, parts, z[some]), 1e-300)) for p in range(len(parts))], 1
            )
            forced = ~no_event[some]
            log_mass[forced] += np.where(kind[None, :] == event[some][forced, None], 0.0, -1e6)
            share = np.cumsum(np.exp(log_mass - log_mass.max(1, keepdims=True)), 1)
            chosen = (rng.random(len(some))[:, None] * share[:, -1:] >= share).sum(1)
            time[some], event[some] = at[chosen], kind[chosen]


def _mass(number: int, parts: Sequence[tuple[float, Hazard]], z: np.ndarray) -> np.ndarray:
    """(rows, times) probability that follow-up ends at each jump of one of the hazards; an event goes
    before censoring."""
    kind, found = parts[number]
    own = found.risk(z)[:, None]
    mass = np.exp(-own * (np.cumsum(found.jump) - found.jump)) * -np.expm1(-own * found.jump)
    for other, rival in parts:
        if other != kind:
            upto = np.r_[0.0, np.cumsum(rival.jump)]
            place = np.searchsorted(rival.at, found.at, side="left" if kind > 0 else "right")
            mass = mass * np.exp(-rival.risk(z)[:, None] * upto[place])
    return mass


class AgreeingChain(Chain):
    """A chain whose covariates of an analysis, and whose outcome, are drawn to agree with it; others as in `Chain`."""

    def __init__(
        self, plan: Plan, rng: np.random.Generator, analysis: Substantive, first: Sequence[np.ndarray] | None = None
    ) -> None:
        super().__init__(plan, rng, first)
        self.analysis = analysis

    def begin_round(self) -> None:
        """Draw the parameters of the analysis."""
        self.analysis.draw(self.now, self.rng)

    def draw_column(self, place: int) -> None:
        formula = self.analysis.formula
        if place not in formula.outcome:
            super().draw_column(place)
        elif place == next(p for p in self.plan.order if p in formula.outcome):  # time and event at once
            self.analysis.draw_outcome(self.now, self.rng)
            for p in formula.outcome:
                self.update(p)

    def conditional(self, place: int, rows: np.ndarray) -> np.ndarray:
        if place in self.analysis.formula.covariates:
            return draw_covariate(self, self.analysis, place, rows)
        return super().conditional(place, rows)


def draw_covariate(chain: Chain, analysis: Substantive, place: int, rows: np.ndarray) -> np.ndarray:
    """New values of a covariate's missing rows, given the other covariates and the outcome."""
    score = analysis.score(place, chain.now, rows)
    x, y, method = chain.predictors(place), chain.now[place], chain.plan.methods[place]
    if chain.plan.sizes[place]:
        if method == "sample":
            x = x[:, :1]
        found = chain.shares(place, x, y)
        log_probability = found.log_probability(x[rows])
        every = np.arange(len(rows))
        for k, level in enumerate(found.levels):
            log_probability[:, k] += score(np.full(len(rows), float(level)), every)
        return chain.take_level(place, found.levels, log_probability)
    return _accepted(chain, score, _proposals(chain, place, rows, x, y, method), place, rows)


Propose = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Which of the missing rows (repeats allowed) -> a value for each, and whether it is possible at all."""


def _proposals(chain: Chain, place: int, rows: np.ndarray, x: np.ndarray, y: np.ndarray, method: str) -> Propose:
    """Draws from the covariate's regression on the others.

    Normal for "norm"; for "pmm" the regression with its own residuals, as the nearest observed value; "sample": any
    value.
    """
    rng = chain.rng
    seen = np.unique(chain.plan.columns[place][~chain.plan.gone[place]])
    if method == "sample" or len(seen) < 2:
        return lambda which: (rng.choice(y, len(which)), np.ones(len(which), bool))
    low, high = chain.plan.schema.columns[chain.plan.schema.modelled[place]].bounds
    found = draw_linear(x, y, rng)
    mean = x[rows] @ found.drawn_beta

    def normal(which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values = mean[which] + found.drawn_sigma * rng.standard_normal(len(which))
        return values, (values >= low) & (values <= high)

    def of_residuals(which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values = mean[which] + rng.choice(left, len(which))
        near = np.searchsorted((seen[1:] + seen[:-1]) / 2, values)
        half = (seen[-1] - seen[-2]) / 2, (seen[1] - seen[0]) / 2
        return seen[near], (values <= seen[-1] + half[0]) & (values >= seen[0] - half[1])

    left = (y - x @ found.beta) * (found.drawn_sigma / found.sigma)
    return normal if method == "norm" else of_residuals


def _accepted(chain: Chain, score: Score, propose: Propose, place: int, rows: np.ndarray) -> np.ndarray:
    """The first accepted proposal of every row; rows that need most get more at once."""
    rng = chain.rng
    out = chain.now[place][rows].copy()
    waiting, tries = np.arange(len(rows)), 0
    while len(waiting):
        each = int(np.clip(BLOCK // len(waiting), 1, TRIES))
        which = np.repeat(waiting, each)
        values, possible = propose(which)
        likely = np.where(possible, score(values, which), -np.inf)
        accepted = (np.log(rng.random(len(which))) < likely).reshape(len(waiting), each)
        values, likely = values.reshape(accepted.shape), likely.reshape(accepted.shape)
        done = accepted.any(1)
        out[waiting[done]] = values[done, accepted[done].argmax(1)]
        tries += each
        waiting = waiting[~done]
        if tries >= TRIES and len(waiting):
            best = likely[~done]
            usable = np.isfinite(best).any(1)  # else the value of the round before stays
            out[waiting[usable]] = values[~done][usable, best[usable].argmax(1)]
            chain.stuck += len(waiting)
            break
    return out


__all__ = ["AgreeingChain", "Substantive"]
