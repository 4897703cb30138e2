"""Follow-up times and events that are missing, or known to lie in an interval, drawn by proportional hazards of every
cause and of censoring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from unmask.evaluation.survival import step_values
from unmask.modalities.table.imputation.families import Given
from unmask.modalities.table.imputation.regressions import draw_level, draw_shares
from unmask.modalities.table.survival.estimators import Hazard

GRID = 256
"""Rows whose missing follow-up is drawn at once."""
KNOTS = 21
"""Of the baseline hazard of times that are known to lie in an interval."""


def draw_follow_up(given: Given, hazards: Mapping[int, Hazard], missing: Sequence[np.ndarray]) -> None:
    """Draw them, in place.

    Args:
        hazards: of the causes, where the analysis has drawn them; else they are drawn here.
        missing: which rows lack the time, and which the event.
    """
    z, r, use, rng = given.x, given.r, given.use, given.rng
    no_time, no_event = missing
    time, event = r.y, r.event
    rows = np.flatnonzero(no_event & ~no_time)
    if len(rows):  # all hazards proportional: the log-odds of an event are linear in covariates, smooth in time
        level = np.column_stack([np.log1p(time - time.min()), time])
        level = (level - level.mean(0)) / np.maximum(level.std(0), 1e-12)
        x = np.hstack([np.ones((len(z), 1)), z, level])
        known = ~no_event & use
        found = draw_shares(x[known], event[known], rng)
        event[rows] = found.levels[draw_level(found.log_probability(x[rows]), rng.random(len(rows)))]
    rows = np.flatnonzero(no_time)
    if not len(rows):
        return
    hazards = hazards or given.hazards()
    parts = [*hazards.items(), (0, given.hazard(0))]
    at = np.concatenate([found.at for _, found in parts])
    kind = np.concatenate([np.full(len(found.at), mark) for mark, found in parts])
    for start in range(0, len(rows), GRID):
        some = rows[start : start + GRID]
        log_mass = np.concatenate([np.log(np.maximum(_mass(p, parts, z[some]), 1e-300)) for p in range(len(parts))], 1)
        if r.entry is not None:  # who was seen to enter stayed until then
            log_mass[at[None, :] <= r.entry[some][:, None]] -= 1e6
        forced = ~no_event[some]
        log_mass[forced] += np.where(kind[None, :] == event[some][forced, None], 0.0, -1e6)
        chosen = draw_level(log_mass, rng.random(len(some)))
        time[some], event[some] = at[chosen], kind[chosen]


def draw_within(
    given: Given, hazards: Mapping[int, Hazard], rows: np.ndarray, ends: tuple[np.ndarray, np.ndarray]
) -> None:
    """Draw times that are known to lie in an interval (interval censoring), in place, given the event: data
    augmentation (Tanner & Wong 1987; of interval-censored times Pan 2000). The baseline hazard is constant between
    knots, the quantiles of the ends of the intervals: where it grows inside of one follows from the others alone, and
    its jumps at the times drawn before would draw the next ones to themselves. Where follow-up ended without an event
    at a time that is only known to be late enough, it ended then.

    Args:
        rows, ends: (cells,) and the least and greatest time of each.
        hazards: see `draw_follow_up`.
    """
    z, r, use, rng = given.x, given.r, given.use, given.rng
    time, event = r.y, r.event
    low = np.maximum(ends[0], 0.0 if r.entry is None else r.entry[rows])
    hazards = hazards or given.hazards()
    finite = np.concatenate(ends)[np.isfinite(np.concatenate(ends))]
    knots = np.quantile(finite, np.linspace(0, 1, KNOTS), method="nearest")
    knots = np.unique(np.r_[knots[knots > 0], time[use].max()])
    knots = np.r_[0.0, knots]
    since, length = knots[:-1], np.diff(knots)
    kinds = [*hazards.items(), (0, given.hazard(0))]
    grown = {k: np.diff(step_values(h.at, np.cumsum(h.jump), knots, start=0.0)) for k, h in kinds}
    for start in range(0, len(rows), GRID):
        part = slice(start, start + GRID)
        some, first, last = rows[part], low[part], ends[1][part]
        every = {k: h.risk(z[some])[:, None] * grown[k] for k, h in kinds}
        total = np.maximum(sum(every.values()), 1e-12)
        own = np.select([event[some, None] == k for k in every], list(every.values()))
        with np.errstate(over="ignore"):  # two knots may be next to each other
            begin, end = (np.clip((x[:, None] - since) / length, 0, 1) for x in (first, last))
        reach = -np.expm1(-total * np.maximum(end - begin, 0))
        mass = np.exp(total - np.cumsum(total, 1) - total * begin) * own / total * reach
        u, v = rng.random((2, len(some)))
        drawn = first + u * np.where(np.isfinite(last), last - first, 0.0)
        known = np.flatnonzero(mass.sum(1) > 0)
        if len(known):
            at = known, draw_level(np.log(np.maximum(mass[known], 1e-300)), v[known])
            drawn[known] = since[at[1]] + length[at[1]] * (begin[at] - np.log1p(-u[known] * reach[at]) / total[at])
        time[some] = np.where((event[some] == 0) & ~np.isfinite(last), first, drawn)


def _mass(number: int, parts: Sequence[tuple[int, Hazard]], z: np.ndarray) -> np.ndarray:
    """(rows, times) probability that follow-up ends at each jump of one of the hazards; an event goes before
    censoring."""
    kind, found = parts[number]
    own = found.risk(z)[:, None]
    mass = np.exp(-own * (np.cumsum(found.jump) - found.jump)) * -np.expm1(-own * found.jump)
    for other, rival in parts:
        if other != kind:
            upto = np.r_[0.0, np.cumsum(rival.jump)]
            place = np.searchsorted(rival.at, found.at, side="left" if kind > 0 else "right")
            mass = mass * np.exp(-rival.risk(z)[:, None] * upto[place])
    return mass
