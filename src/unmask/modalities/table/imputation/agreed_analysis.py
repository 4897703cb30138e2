"""Which analysis multiple imputation has to agree with (`smcfcs.py`): that of a formula, or of a survival pair."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from unmask.errors import UserError
from unmask.modalities.table.imputation.formula import Formula, cox_formula, finite_design, parse_formula
from unmask.modalities.table.schema.schema import Schema
from unmask.modalities.table.survival.hazards import MOST_LEVELS


class Say(Protocol):
    """Notes what was done; `warn` warns of it too."""

    def __call__(self, note: str, *, warn: bool = False) -> None: ...


def agreed_analysis(formula: str | None, schema: Schema, columns: list[np.ndarray], *, say: Say) -> Formula | None:
    """The analysis that imputation agrees with: the formula, or a Cox regression of the survival pair on all
    covariates; None where there is neither.

    Args:
        columns: of the table, NaN where missing.
        say: told why there is none, and what is left out.
    """
    if formula is not None:
        found = parse_formula(formula, schema)
    elif schema.duration is not None and schema.event is not None:
        if len(schema.causes) > 1:
            say(
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
                say(f"{name!r} {why}: left out of the Cox regression that imputation agrees with")
        found = cox_formula(schema, [p for p, c in own if c.name not in wide + empty])
    else:
        return None
    if found.family == "cox":
        time, event = (columns[p] for p in found.outcome)
        half = np.isnan(time) ^ np.isnan(event)
        none = np.isnan(time) & np.isnan(event)
        if not (event[~np.isnan(time)] > 0).any():
            say(
                "no event with a known time: covariates are not drawn to agree with a Cox regression, the event "
                "and the cumulative hazard predict them",
                warn=True,
            )
            return None
        if half.any() or none.any():
            say(
                f"{int(none.sum())} rows lack follow-up time and event, {int(half.sum())} one of them: imputed "
                "from proportional hazards of the event and of censoring"
            )
    elif np.isnan(columns[found.outcome[0]]).all():
        raise UserError(f"formula {found.text!r}: the outcome is never observed", hint="Name another outcome.")
    complete = np.all([~np.isnan(x) for x in columns], axis=0)
    if complete.any():
        finite_design(found, [x[complete] for x in columns], np.flatnonzero(complete))
    return found
