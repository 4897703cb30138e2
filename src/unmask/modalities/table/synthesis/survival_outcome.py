"""The outcome of new rows: learnt from the training rows, kept with the model as arrays, drawn given the covariates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from unmask.modalities.table.fitting.cell_table import FittedTable
from unmask.modalities.table.imputation.training_range import beyond_range
from unmask.modalities.table.reading.frame import Frame
from unmask.modalities.table.schema.values import encode, widened
from unmask.modalities.table.survival.hazards import MOST_LEVELS, BaselineHazard, Outcome, fit_outcome

TIMES = 60
"""Times at which a curve is given where none are asked for."""


def outcome_design(model: FittedTable, columns: Sequence[np.ndarray]) -> np.ndarray:
    """Complete covariates as regressors: quantities as they are, an indicator for every category but the first; and
    curves of the quantities, their normal scores and the squares of these."""
    parts = [regressors(model, columns)[0]]
    for place in covariates(model):
        if model.schema.column(place).is_quantity:
            score = model.table.codings[place].encode(columns[place])[1]
            parts.append(np.stack([score, score**2], 1) + 0 * columns[place][:, None])
    return np.hstack(parts)


def regressors(model: FittedTable, columns: Sequence[np.ndarray]) -> tuple[np.ndarray, list[str]]:
    """The design and the names of its regressors, which are those of the columns, with the level where there are more
    than two."""
    parts, names = [np.zeros((len(columns[0]), 0))], []
    for place in covariates(model):
        x, column = columns[place], model.schema.column(place)
        levels = column.categories
        if column.is_quantity:
            parts.append(x[:, None])
            names.append(column.name)
        elif len(levels) <= MOST_LEVELS:
            parts.append((x[:, None] == np.arange(1, len(levels))).astype(float))
            names += [column.name if len(levels) == 2 else f"{column.name}={level}" for level in levels[1:]]
    return np.hstack(parts), names


def covariates(model: FittedTable) -> list[int]:
    """Places among the modelled columns of what explains the outcome: all but the pair, late entry and structural
    columns."""
    schema = model.schema
    return [
        place
        for place, i in enumerate(schema.modelled)
        if schema.columns[i].name not in (schema.duration, schema.event, schema.entry)
        and schema.columns[i].structural is None
    ]


def learn_outcome(model: FittedTable, columns: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Fit the outcome of new rows on the training rows, missing covariates drawn; as arrays to be saved."""
    time, event = pair_places(model)
    known = ~np.isnan(columns[time]) & ~np.isnan(columns[event])
    if known.sum() < 10 or not covariates(model) or not (columns[event][known] > 0).any():
        return {}
    complete = model.table.draw(columns, seed=model.table.settings.train.seed)
    entry = entries(model, columns)
    if entry is not None:
        known &= ~np.isnan(entry)
    design = outcome_design(model, complete)[known]
    found = fit_outcome(
        design,
        columns[time][known],
        columns[event][known],
        causes=len(model.schema.causes),
        entry=None if entry is None else entry[known],
        curves=design.shape[1] - regressors(model, complete)[0].shape[1],
    )
    out = {"outcome.center": found.center, "outcome.scale": found.scale, "outcome.end": np.array([found.end])}
    names = [*_cause_names(len(found.causes)), "censoring"]
    for name, base in zip(names, [*found.causes, found.censoring], strict=True):
        out |= {f"outcome.{name}.{k}": getattr(base, k) for k in ("beta", "at", "hazard")}
    return out


def _cause_names(causes: int) -> list[str]:
    """What the hazards are called in a model's file: event, event2, event3, ..."""
    return ["event", *(f"event{k}" for k in range(2, causes + 1))]


def pair_places(model: FittedTable) -> tuple[int, int]:
    schema = model.schema
    assert schema.duration is not None
    assert schema.event is not None
    return schema.place(schema.duration), schema.place(schema.event)


def entries(model: FittedTable, columns: Sequence[np.ndarray]) -> np.ndarray | None:
    """Times from which rows are at risk; None where all are from the start."""
    return None if model.schema.entry is None else columns[model.schema.place(model.schema.entry)]


def stored_outcome(model: FittedTable) -> Outcome | None:
    if "outcome.end" not in model.extra:
        return None
    causes = sum(key.startswith("outcome.event") and key.endswith(".beta") for key in model.extra)
    names = [f"outcome.{name}" for name in [*_cause_names(causes), "censoring"]]
    extra = model.extra
    bases = [BaselineHazard(beta=extra[f"{n}.beta"], at=extra[f"{n}.at"], hazard=extra[f"{n}.hazard"]) for n in names]
    return Outcome(
        causes=tuple(bases[:-1]),
        censoring=bases[-1],
        center=model.extra["outcome.center"],
        scale=model.extra["outcome.scale"],
        end=float(model.extra["outcome.end"][0]),
    )


def survival(
    model: FittedTable, frame: Frame, *, absent: Sequence[str], times: Sequence[float] | None, draws: int, seed: int
) -> dict[str, Any]:
    """The survival of rows given their covariates, and that they came as far as their entry; covariates beyond the
    training range are taken for its ends. A follow-up that they have is not read, and a warning says so.

    Args:
        times: at which it is given; default evenly up to the last follow-up.
        draws: of missing covariates, over which the curves are averaged.

    Returns:
        times, per row survival (the share who had no event by then) and incidence (cause -> the share who had it), the
        last follow-up, and warnings.
    """
    outcome = stored_outcome(model)
    assert outcome is not None
    schema = model.schema
    columns = encode(widened(frame, schema, absent)[0], schema)
    followed = any(not np.isnan(columns[place]).all() for place in pair_places(model))
    for place in pair_places(model):
        columns[place] = np.full(len(frame), np.nan)
    warnings = beyond_range(schema, model.table.codings, columns, frame.row_name)
    if followed:
        warnings.append(
            f"{schema.duration!r} and {schema.event!r} of these rows are not read: this is the survival from "
            f"{'the start' if schema.entry is None else repr(schema.entry)} on. Of rows without an event by a time, "
            "divide by the survival at that time"
        )
    entry = entries(model, columns)
    for place in covariates(model):
        scale = model.table.codings[place].scale
        if scale is not None:
            columns[place] = columns[place].clip(scale.knot_x[0], scale.knot_x[-1])
    at = np.linspace(0, outcome.end, TIMES) if times is None else np.sort(np.asarray(times, np.float64))
    if not any(np.isnan(columns[place]).any() for place in covariates(model)):
        draws = 1  # nothing that the curves depend on is drawn
    alive: Any = 0.0
    struck: Any = 0.0
    for number in range(draws):
        known = model.table.draw(columns, seed=seed + number)
        one, each = outcome.curves(outcome_design(model, known), at, entry)
        alive, struck = alive + one / draws, struck + each / draws
    names = list(schema.causes) or ["event"]
    rows = [
        {"survival": alive[row].tolist(), "incidence": {name: struck[k, row].tolist() for k, name in enumerate(names)}}
        for row in range(len(frame))
    ]
    return {"warnings": warnings, "times": at.tolist(), "results": rows, "last": outcome.end}
