"""Survival curves, and the validation of a risk, of completed tables: with standard errors, and pooled.

Checked against R's survival and cmprsk in the tests.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from unmask.errors import UserError, option, suggest
from unmask.evaluation.survival import event_steps, kaplan_meier, step_values
from unmask.modalities.table.imputation.formula import Factor, Formula, Term
from unmask.modalities.table.imputation.formula_fit import fit_formula
from unmask.modalities.table.imputation.grouped_fit import Grouping
from unmask.modalities.table.imputation.pooling import Pooled, joined, pool
from unmask.modalities.table.reading.parse import text_of
from unmask.modalities.table.schema.clusters import Clusters
from unmask.modalities.table.schema.schema import Schema
from unmask.modalities.table.survival.estimators import cumulative_incidence

BLOCK = 4_000_000
"""Pairs of rows that are compared at once."""


def survival_at(
    times: Sequence[float], time: np.ndarray, event: np.ndarray, entry: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Kaplan-Meier survival at some times and its standard error (Greenwood 1926)."""
    at, deaths, at_risk = event_steps(time, event, entry)
    survival = kaplan_meier(time, event, entry)[1]
    with np.errstate(divide="ignore"):
        spread = np.cumsum(deaths / (at_risk * (at_risk - deaths)))
    t = np.asarray(times, float)
    found = step_values(at, survival, t)
    with np.errstate(invalid="ignore"):
        return found, np.where(found > 0, found * np.sqrt(step_values(at, spread, t, start=0.0)), 0.0)


def incidence_at(
    times: Sequence[float], time: np.ndarray, event: np.ndarray, cause: int, entry: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Cumulative incidence of one of competing causes at some times (Aalen-Johansen), and its standard error by the
    delta method (Marubini & Valsecchi 1995, 10.11). `event`: 0 where censored, else the number of the cause."""
    at, deaths, at_risk = event_steps(time, event, entry)
    own = np.bincount(np.searchsorted(at, time[event == cause]), minlength=len(at))
    before = np.r_[1.0, kaplan_meier(time, event, entry)[1]][: len(at)]
    curve = cumulative_incidence(time, event, cause, entry)[1]
    errors = []
    for t in times:
        until = at <= t
        d, d1, n, s, f = (x[until] for x in (deaths, own, at_risk, before, curve))
        rest = (f[-1] if len(f) else 0.0) - f
        with np.errstate(divide="ignore", invalid="ignore"):
            first = np.where(rest > 0, rest**2 * d / (n * (n - d)), 0.0)
        errors.append(np.sqrt((first + s**2 * d1 * (n - d1) / n**3 - 2 * rest * s * d1 / n**2).sum()))
    return step_values(at, curve, np.asarray(times, float), start=0.0), np.array(errors)


def concordance_with_error(
    risk: np.ndarray,
    time: np.ndarray,
    event: np.ndarray,
    entry: np.ndarray | None = None,
    clusters: Clusters | None = None,
) -> tuple[float, float]:
    """Harrell's C (see `unmask.evaluation.survival.concordance`) and its standard error by the infinitesimal jackknife,
    as R's survival has it: the root of the summed squares of what each row, or cluster, adds to C."""
    failed = np.flatnonzero(event > 0)
    won, pairs = np.zeros(len(time)), np.zeros(len(time))
    for start in range(0, len(failed), size := max(1, BLOCK // max(len(time), 1))):
        i = failed[start : start + size, None]
        longer = (time > time[i]) | ((time == time[i]) & (event <= 0))
        if entry is not None:
            longer &= entry < time[i]
        wins = longer * ((risk < risk[i]) + 0.5 * (risk == risk[i]))
        won += wins.sum(0)
        pairs += longer.sum(0)
        won[i[:, 0]] += wins.sum(1)
        pairs[i[:, 0]] += longer.sum(1)
    total = pairs.sum() / 2
    c = won.sum() / 2 / total
    added = (won - c * pairs) / total
    return float(c), float(np.sqrt(((added if clusters is None else clusters.sums(added)) ** 2).sum()))


def pooled_survival(
    tables: Sequence[Sequence[np.ndarray]],
    schema: Schema,
    times: Sequence[float] | float,
    *,
    by: str | None,
    cause: str | None,
    coverage: float,
) -> Pooled:
    """See `CompletedTables.survival`.

    Args:
        tables: coded columns of each completed table.
        schema: with the survival pair that is meant.
    """
    assert schema.duration is not None
    time, event = schema.place(schema.duration), schema.place(str(schema.event))
    cause = None if cause is None else text_of(cause)
    if cause is not None and cause not in schema.causes:
        raise UserError(f"cause={cause!r}", hint=suggest(cause, schema.causes))
    if cause is None and len(schema.causes) > 1:
        raise UserError(
            f"survival: {schema.event!r} has competing causes",
            hint=f"Give {option('cause')}, one of {', '.join(schema.causes)}.",
        )
    groups = [(math.nan, "")]
    if by is not None:
        column = schema.column(group := schema.place(by, where="by: "))
        if column.is_quantity:
            raise UserError(f"by={by!r}: a quantity, not a category", hint="Give a column of few levels.")
        groups = [(number, f", {by}={level}") for number, level in enumerate(column.categories)]
    wanted = [float(t) for t in np.ravel(times)]
    estimates, errors = [], []
    for columns in tables:
        for number, name in groups:
            rows = np.ones(len(columns[time]), bool) if by is None else columns[group] == number
            t, e = columns[time][rows], columns[event][rows]
            if max(wanted) > t.max(initial=0):
                raise UserError(
                    f"survival at {max(wanted):g}: follow-up ends at {t.max(initial=0):g}{name}", hint="Ask earlier."
                )
            entry = None if schema.entry is None else columns[schema.place(schema.entry)][rows]
            number_of = 0 if cause is None else schema.causes.index(cause) + 1
            found = incidence_at(wanted, t, e, number_of, entry) if cause else survival_at(wanted, t, e, entry)
            estimates.append(found[0])
            errors.append(found[1])
    q, u = (np.reshape(x, (len(tables), -1)) for x in (estimates, errors))
    what = "survival" if cause is None else f"incidence of {cause}"
    # Before the first event, and where nobody is left, there is no interval on this scale.
    certain = ((q <= 0) | (q >= 1)).any(0)
    pooled = pool(
        np.where(certain, 0.5, q),
        np.where(certain, 0.0, u),
        names=[f"{what} at {t:g}{name}" for _, name in groups for t in wanted],
        coverage=coverage,
        scale="cloglog",
    )
    none: dict[str, Any] = {
        k: np.where(certain, np.nan, getattr(pooled, k)) for k in ("error", "low", "high", "df", "riv", "fmi")
    }
    none |= {"estimate": np.where(certain, q.mean(0), pooled.estimate), "p": np.full_like(pooled.p, np.nan)}
    return dataclasses.replace(pooled, **none)


def pooled_validation(
    tables: Sequence[Sequence[np.ndarray]],
    formula: Formula,
    risks: Sequence[np.ndarray],
    *,
    coverage: float,
    grouping: Grouping | None = None,
) -> Pooled:
    """See `CompletedTables.validate`.

    Args:
        formula: of the outcome alone.
        risks: of each table, a linear predictor per row.
    """
    areas, slopes, clusters = [], [], None if grouping is None else grouping.clusters
    for columns, risk in zip(tables, risks, strict=True):
        r = formula.response(columns)
        fit = fit_formula(dataclasses.replace(formula, terms=(_itself(risk),)), columns, grouping=grouping)
        # Without times a pair is of one with the outcome and one without.
        time = r.y if formula.survival else 1 - r.y
        areas.append(concordance_with_error(risk, time, r.happened, r.entry, clusters))
        slopes.append((fit.beta[-1], fit.error[-1], fit.df))
    (c, c_error), (slope, slope_error, df) = np.transpose(areas), np.transpose(slopes)
    name = "C-index" if formula.survival else "area under the ROC curve"
    return joined(
        pool(c[:, None], c_error[:, None], names=[name], coverage=coverage, scale="logit"),
        pool(slope[:, None], slope_error[:, None], names=["calibration slope"], coverage=coverage, complete_df=df[0]),
    )


def _itself(values: np.ndarray) -> Term:
    """A term of the same values, whatever the columns."""
    return Term(factors=(Factor(name="risk", places=(), value=lambda columns: values),))
