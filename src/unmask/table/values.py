"""Raw columns to the model's floats under a schema, and back to plain values and texts."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import numpy as np

from unmask.errors import UserError, suggest
from unmask.table.frame import Frame
from unmask.table.parse import date_of, days, is_missing, numbers, text_of
from unmask.table.schema import Column, Schema


def encode(frame: Frame, schema: Schema, *, unseen: str = "error") -> list[np.ndarray]:
    """The modelled columns as floats: a quantity's value, or the number of a category; NaN where there is none.

    Args:
        unseen: a category the schema does not have is an "error", or taken as "missing".

    Raises:
        UserError: a column is missing, or a cell does not fit its column, naming column, row and value.
    """
    order = match_columns(frame, schema)
    return [_encode(frame, frame.columns[order[i]], schema.columns[i], schema, unseen) for i in schema.modelled]


def match_columns(frame: Frame, schema: Schema) -> list[int]:
    """Where each of the schema's columns stands in the frame: by place where all names agree, else by name.

    Raises:
        UserError: a column is missing.
    """
    if frame.names == schema.names or isinstance(frame.native, np.ndarray):
        if len(frame.names) != len(schema.names):
            raise UserError(
                f"{frame.source}: {len(frame.names)} columns, the model has {len(schema.names)}",
                hint="Give the same columns.",
            )
        return list(range(len(frame.names)))
    for name in schema.names:
        if name not in frame.names:
            raise UserError(f"{frame.source}: no column {name!r}", hint=suggest(name, frame.names))
    return [frame.names.index(name) for name in schema.names]


def _encode(frame: Frame, raw: np.ndarray, column: Column, schema: Schema, unseen: str) -> np.ndarray:
    gone = is_missing(raw, schema.missing)
    out = np.full(len(raw), np.nan)
    if column.is_quantity:
        values = raw[~gone]
        found, bad = days(values, column.format or "") if column.kind == "datetime" else numbers(values)
        bad = bad | np.isinf(found)
        if bad.any():
            at = int(np.flatnonzero(~gone)[bad.argmax()])
            what = "a date" if column.kind == "datetime" else "a finite number"
            raise UserError(
                f"{frame.source}, column {column.name!r}, row {frame.row_name(at)}: {raw[at]!r} is not {what}",
                hint=f"The column is {column.kind}: correct the cell or leave it empty.",
            )
        out[~gone] = found
        return out
    number = {c: float(i) for i, c in enumerate(column.categories)}
    cache: dict[Any, float] = {}
    for i in np.flatnonzero(~gone):
        value = raw[i]
        code = cache.get(value)
        if code is None:
            code = cache[value] = number.get(text_of(value), -1.0)
        if code < 0:
            if unseen == "error":
                known = ", ".join(column.categories[:8]) + (", ..." if len(column.categories) > 8 else "")
                raise UserError(
                    f"{frame.source}, column {column.name!r}, row {frame.row_name(int(i))}: category {value!r} was not "
                    "seen in training",
                    hint=f"Known: {known}. Correct it, or pass unseen='missing' to treat it as unknown.",
                )
            code = np.nan
        out[i] = code
    return out


def decode(values: np.ndarray, column: Column) -> list[Any]:
    """Model values as plain Python values in the column's own terms: rounded numbers, categories, dates; None for NaN."""
    if not column.is_quantity:
        return [None if v != v else column.categories[int(v)] for v in values]
    if column.kind == "datetime":
        values = values if column.decimals is None else np.round(values, column.decimals)
        return [None if v != v else date_of(v) for v in values]
    if column.decimals is not None:
        values = np.round(values, column.decimals)
    if column.decimals == 0:
        return [None if v != v else int(v) for v in values]
    return [None if v != v else float(v) for v in values]


def writes_point(raw: np.ndarray, column: Column) -> bool:
    """Whether a column of whole numbers is written 83.0 in its file, not 83; so is one of 0 and 1 once it has holes."""
    whole = column.decimals == 0 if column.is_quantity else all(c.lstrip("-").isdecimal() for c in column.categories)
    if not whole or raw.dtype != object:
        return False
    seen = raw[:200][~is_missing(raw[:200])]
    return len(seen) > 0 and all(isinstance(v, str) and v.strip().endswith(".0") for v in seen)


def cell_texts(values: Sequence[Any], column: Column, point: bool = False) -> list[str]:
    """Plain values as the texts of a CSV file."""
    out = []
    for v in values:
        if v is None:
            out.append("")
        elif isinstance(v, dt.datetime):
            out.append(v.strftime(column.format or "%Y-%m-%d %H:%M:%S"))
        else:
            out.append(f"{v}.0" if point else str(v))
    return out
