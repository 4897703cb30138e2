"""The analysis that imputation agrees with: a formula, or a Cox regression of the survival pair."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from unmask.errors import UserError, option
from unmask.modalities.table.imputation.formula import (
    Formula,
    cox_formula,
    finite_design,
    refuse_impossible_outcome,
)
from unmask.modalities.table.imputation.formula_text import cause_number, parse_formula
from unmask.modalities.table.rules.rules import Rules, read_schema
from unmask.modalities.table.schema.schema import Schema
from unmask.modalities.table.survival.hazards import MOST_LEVELS

_SURV = re.compile(r"\s*Surv\(\s*(`[^`]+`|[^,()`]+?)\s*,\s*(`[^`]+`|[^,()`]+?)\s*\)\s*~")


def agreed_analysis(
    formula: str | None,
    schema: Schema,
    columns: list[np.ndarray],
    *,
    family: str | None = None,
    cause: str | None = None,
    note: Callable[..., None],
    row_name: Callable[[int], Any],
) -> Formula | None:
    """The analysis that imputation agrees with: the formula, or a Cox regression of the survival pair on all
    covariates (of competing causes one of each, or the Fine-Gray regression of one); None where there is neither.

    Args:
        columns: of the table, NaN where missing.
        family, cause: as in `parse_formula`.
        note: called with why there is none (and warn=True), and with what is left out.
    """
    if formula is not None:
        found = parse_formula(formula, schema, family=family, cause=cause)
    elif schema.duration is not None and schema.event is not None and family in (None, "cox", "fine-gray"):
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
        number = cause_number(schema.columns[schema.number(schema.event)], cause, family or "cox")
        kept = [p for p, c in own if c.name not in wide + empty]
        found = cox_formula(schema, kept, family=family or "cox", cause=number)
        if whole := {r.columns[0]: r.text.split(":=", 1)[1] for r in Rules.of(schema).formulas}:
            # A column that is computed ("bmi := weight / height**2") moves with its parts when they are drawn.
            terms = [f"I({whole[p]})" if p in whole else f"`{schema.column(p).name}`" for p in found.covariates]
            times = ", ".join(f"`{name}`" for name in (schema.entry, schema.duration, schema.event) if name)
            with contextlib.suppress(UserError):  # dates have no such term
                found = parse_formula(f"Surv({times}) ~ {' + '.join(terms)}", schema, family=family, cause=cause)
    elif family or cause:
        what = f"{option('family', family)}" if family else f"{option('cause', str(cause))}"
        raise UserError(f"{what} without a formula", hint=f"Give {option('formula', 'y ~ x')}.")
    else:
        return None
    if found.cause and found.family == "cox":
        hint = f"Leave it out, and name it where you pool; or impute with {option('family', 'fine-gray')}."
        raise UserError(f"{option('cause', str(cause))}: covariates agree with the hazards of all causes", hint=hint)
    if found.survival:
        time, event = (columns[p] for p in found.outcome)
        levels = found.schema.column(found.outcome[1]).categories
        struck = [k for k in range(1, len(levels)) if (event[~np.isnan(time)] == k).any()]
        if len(levels) > 2 and len(struck) < len(levels) - 1:
            never = next(k for k in range(1, len(levels)) if k not in struck)
            raise UserError(
                f"event {levels[never]!r} of {schema.column(found.outcome[1]).name!r}: no row has it and a known time",
                hint=f"Events that rows have: {', '.join(levels[k] for k in struck) or 'none'}. Leave the others out.",
            )
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
                f"from proportional hazards of {'the event' if len(levels) == 2 else 'every cause'} and of censoring"
            )
    elif np.isnan(columns[found.outcome[0]]).all():
        raise UserError(f"formula {found.text!r}: the outcome is never observed", hint="Name another outcome.")
    refuse_impossible_outcome(found, columns, row_name)
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


def measured_terms(
    formula: str | None, given: Any, schema: Schema, *, family: str | None = None, cause: str | None = None
) -> tuple[Schema, list[str]]:
    """The schema in which no covariate of the formula is empty by its meaning where that was only guessed, for an
    analysis needs a number in every row; and warnings about it. `given`: the schema that a person gave."""
    if formula is None or isinstance(given, Schema):
        return schema, []
    declared: Any = read_schema(given)
    declared = {} if isinstance(declared, Schema) else declared.get("columns", {})
    places = parse_formula(formula, schema, family=family, cause=cause).covariates
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
