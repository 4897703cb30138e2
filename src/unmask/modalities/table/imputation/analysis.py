"""The analysis that imputation agrees with: a formula, or a Cox regression of the survival pair."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.modalities.table.imputation.formula import Formula, cox_formula, finite_design
from unmask.modalities.table.imputation.formula_text import parse_formula
from unmask.modalities.table.rules.rules import Rules, read_schema
from unmask.modalities.table.schema.schema import Schema
from unmask.modalities.table.survival.hazards import MOST_LEVELS

_SURV = re.compile(r"\s*Surv\(\s*(`[^`]+`|[^,()`]+?)\s*,\s*(`[^`]+`|[^,()`]+?)\s*\)\s*~")


def agreed_analysis(
    formula: str | None, schema: Schema, columns: list[np.ndarray], *, note: Callable[..., None]
) -> Formula | None:
    """The analysis that imputation agrees with: the formula, or a Cox regression of the survival pair on all
    covariates; None where there is neither.

    Args:
        columns: of the table, NaN where missing.
        note: called with why there is none (and warn=True), and with what is left out.
    """
    if formula is not None:
        found = parse_formula(formula, schema)
    elif schema.duration is not None and schema.event is not None:
        if len(schema.causes) > 1:
            note(
                "with competing causes covariates are not drawn to agree with a Cox regression: the event and the "
                "cumulative hazard predict them, which pulls strong effects towards zero",
                warn=True,
            )
            return None
        pair = (schema.duration, schema.event, schema.entry)
        own = [(p, schema.columns[i]) for p, i in enumerate(schema.modelled) if schema.columns[i].name not in pair]
        wide = [c.name for _, c in own if len(c.categories) > MOST_LEVELS]
        empty = [c.name for _, c in own if c.structural is not None]
        for names, why in (
            (wide, f"has more than {MOST_LEVELS} categories"),
            (empty, "is empty by its meaning in some rows"),
        ):
            for name in names:
                note(f"{name!r} {why}: left out of the Cox regression that imputation agrees with")
        found = cox_formula(schema, [p for p, c in own if c.name not in wide + empty])
        if whole := {r.columns[0]: r.text.split(":=", 1)[1] for r in Rules.of(schema).formulas}:
            # A column that is computed ("bmi := weight / height**2") moves with its parts when they are drawn.
            terms = [f"I({whole[p]})" if p in whole else f"`{schema.column(p).name}`" for p in found.covariates]
            times = ", ".join(f"`{name}`" for name in (schema.entry, schema.duration, schema.event) if name)
            with contextlib.suppress(UserError):  # dates have no such term
                found = parse_formula(f"Surv({times}) ~ {' + '.join(terms)}", schema)
    else:
        return None
    if found.family == "cox":
        time, event = (columns[p] for p in found.outcome)
        half = np.isnan(time) ^ np.isnan(event)
        none = np.isnan(time) & np.isnan(event)
        if not (event[~np.isnan(time)] > 0).any():
            note(
                "no event with a known time: covariates are not drawn to agree with a Cox regression, the event "
                "and the cumulative hazard predict them",
                warn=True,
            )
            return None
        if half.any() or none.any():
            note(
                f"{int(none.sum())} rows lack follow-up time and event, {int(half.sum())} one of them: imputed "
                "from proportional hazards of the event and of censoring"
            )
    elif np.isnan(columns[found.outcome[0]]).all():
        raise UserError(f"formula {found.text!r}: the outcome is never observed", hint="Name another outcome.")
    complete = np.all([~np.isnan(x) for x in columns], axis=0)
    if complete.any():
        finite_design(found, [x[complete] for x in columns], np.flatnonzero(complete))
    return found


def survival_pair(
    formula: str | None, names: Sequence[str], schema: Any, duration: str | None, event: str | None
) -> tuple[str | None, str | None]:
    """The columns of time and event: those given, else those that the formula names and the table has.

    >>> survival_pair("Surv(days, `vital status`) ~ age", ["days", "vital status"], None, None, None)
    ('days', 'vital status')
    """
    found, given = _SURV.match(formula or ""), read_schema(schema)
    if found is None or duration or event or isinstance(given, Schema) or given.get("duration") or given.get("event"):
        return duration, event
    pair = found[1].strip("`"), found[2].strip("`")
    return pair if set(pair) <= set(names) else (duration, event)


def measured_terms(formula: str | None, given: Any, schema: Schema) -> tuple[Schema, list[str]]:
    """The schema in which no covariate of the formula is empty by its meaning where that was only guessed, for an
    analysis needs a number in every row; and warnings about it. `given`: the schema that a person gave."""
    if formula is None or isinstance(given, Schema):
        return schema, []
    declared: Any = read_schema(given)
    declared = {} if isinstance(declared, Schema) else declared.get("columns", {})
    places = parse_formula(formula, schema).covariates
    guessed = {
        c.name: c.structural
        for c in (schema.column(p) for p in places)
        if c.structural is not None and "structural" not in declared.get(c.name, {})
    }
    columns = tuple(dataclasses.replace(c, structural=None) if c.name in guessed else c for c in schema.columns)
    sentences = [
        f"{name!r} is empty in every row where {other!r} is {level!r}, and the formula reads it: imputed there "
        "from what the other rows tell. Leave the term out if there is nothing to measure"
        for name, (other, level) in guessed.items()
    ]
    guesses = tuple(f"warning: {name!r} is empty where " for name in guessed)
    notes = tuple(n for n in schema.notes if not n.startswith(guesses))
    return dataclasses.replace(schema, columns=columns, notes=notes), sentences
