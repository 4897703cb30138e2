"""What the fit of an imputer is told of the outcome: further columns that no later table has."""

from __future__ import annotations

from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.modalities.table.schema.infer import infer_schema
from unmask.modalities.table.schema.schema import Column


def outcome_columns(
    y: Any, duration: Any, event: Any, wanted: bool, rows: int
) -> tuple[list[Column], list[np.ndarray]]:
    """Columns of an outcome and their raw values: time and event of a survival pair, or one of numbers or classes.

    Args:
        y: numbers, classes, or a structured array of a boolean (event) and a number field (time); or None.
        duration, event: the survival pair; it goes before `y`.
        wanted: an outcome has to be there.
        rows: of the table.
    """
    if (duration is None) != (event is None):
        raise UserError(
            "a survival pair needs both: " + ("no duration" if duration is None else "no event"),
            hint="Pass fit(X, duration=times, event=events); in a pipeline set_fit_request(duration=True, event=True).",
        )
    if duration is not None:
        return _pair(duration, event, rows)
    if y is None:
        if wanted:
            raise UserError("use_outcome=True without an outcome", hint="Pass y, or duration and event, to `fit`.")
        return [], []
    y = np.asarray(y)
    if y.dtype.names is not None:
        return _pair(*_fields(y), rows)
    values = y.reshape(len(y), -1)
    if values.shape[1] != 1:
        raise UserError(f"y of {values.shape[1]} columns", hint="Expected one outcome, or a survival pair.")
    return _column("(outcome)", values[:, 0], rows)


def _fields(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(times, events) of a structured array, as scikit-survival makes it."""
    assert y.dtype.names is not None
    events = [n for n in y.dtype.names if y[n].dtype.kind == "b"]
    times = [n for n in y.dtype.names if y[n].dtype.kind in "fiu"]
    if len(events) != 1 or len(times) != 1:
        kinds = ", ".join(f"{n}: {y[n].dtype}" for n in y.dtype.names)
        raise UserError(f"y with the fields {kinds}", hint="Expected a boolean field (event) and a number (time).")
    return y[times[0]], y[events[0]]


def _pair(duration: Any, event: Any, rows: int) -> tuple[list[Column], list[np.ndarray]]:
    """Time and event; their joint distribution with the covariates is what carries the outcome (White &
    Royston 2009)."""
    try:
        time = np.asarray(duration, np.float64)
    except (TypeError, ValueError):
        raise UserError("duration: not numbers", hint="Follow-up times are numbers, 0 or more.") from None
    wrong = np.flatnonzero(~(time >= 0))
    if len(wrong):
        raise UserError(
            f"duration, row {wrong[0]}: {time[wrong[0]]}", hint="Follow-up times are numbers, 0 or more, none missing."
        )
    happened = np.asarray(event)
    odd = [v for v in np.unique(happened) if v not in (0, 1)]
    if odd:
        raise UserError(f"event: {odd[0]!r}", hint="Expected 0 or False (censored), 1 or True (event happened).")
    parts = [
        _column("(time)", time, rows, {"kind": "numeric"}),
        _column("(event)", happened.astype(int), rows, {"kind": "binary"}),
    ]
    return [c for columns, _ in parts for c in columns], [v for _, values in parts for v in values]


def _column(
    name: str, values: np.ndarray, rows: int, given: dict[str, Any] | None = None
) -> tuple[list[Column], list[np.ndarray]]:
    if len(values) != rows:
        raise UserError(f"{len(values)} outcomes for {rows} rows", hint="Give one outcome per row.")
    raw = values.astype(np.float64) if values.dtype.kind in "fiu" else values.astype(object)
    column = infer_schema([name], [raw], override={"columns": {name: given or {}}}, source="y", row_name=int).columns[0]
    return [column], [raw]
