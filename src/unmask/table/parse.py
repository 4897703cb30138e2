"""Raw cells to numbers, texts and dates, and back: what is missing, what is a number, how a date is written."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

MISSING_SPELLINGS = frozenset({"", "na", "n/a", "nan", "null", "none", "#null!", "#n/a", "<na>", "nat", "?", "."})
"""Texts that mean 'no value', whatever their case, spaces around them aside."""

FORMATS = (
    "%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y/%m/%d", "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y",
)  # fmt: skip
_DATE_LIKE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}")


def no_value(value: Any) -> bool:
    """Whether a cell is None or one of the many NaN: what is not equal to itself, or cannot say (pandas' NA)."""
    if value is None:
        return True
    try:
        return bool(value != value)
    except TypeError:
        return True


def is_missing(raw: np.ndarray, also: Sequence[str] = ()) -> np.ndarray:
    """Which raw cells hold no value; `also` are further spellings of none, in a numeric column as numbers.

    >>> is_missing(np.array([1.0, np.nan])).tolist(), is_missing(np.array(["a", " NA ", None], object)).tolist()
    ([False, True], [False, True, True])
    >>> is_missing(np.array([1.0, -99.0]), also=["-99"]).tolist()
    [False, True]
    """
    if raw.dtype.kind == "f":
        return np.isnan(raw) | np.isin(raw, numbers(np.array(also, object))[0])
    if raw.dtype != object:
        return np.zeros(len(raw), bool)
    spelled = MISSING_SPELLINGS | {text_of(m).lower() for m in also}
    known: dict[Any, bool] = {}
    out = np.zeros(len(raw), bool)
    for i, value in enumerate(raw):
        try:
            gone = known.get(value)
        except TypeError:  # a list, or the like, is something
            continue
        if gone is None:
            gone = known[value] = _gone(value, spelled)
        out[i] = gone
    return out


def _gone(value: Any, spelled: frozenset[str]) -> bool:
    return no_value(value) or text_of(value).lower() in spelled


def numbers(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cells as floats, and which of them are not numbers (booleans are not).

    >>> numbers(np.array(["1.5", "x", 2], object))
    (array([1.5, nan, 2. ]), array([False,  True, False]))
    """
    if values.dtype.kind in "fiu":
        return values.astype(np.float64), np.zeros(len(values), bool)
    out, bad = np.full(len(values), np.nan), np.zeros(len(values), bool)
    for i, v in enumerate(values):
        if isinstance(v, bool | np.bool_ | dt.date):
            bad[i] = True
            continue
        try:
            if isinstance(v, str) and "_" in v:
                raise ValueError
            out[i] = float(v)
        except (TypeError, ValueError):
            bad[i] = True
    return out, bad


def text_of(value: Any) -> str:
    """A category as text: 1.0 and 1 are the same category.

    >>> text_of(1.0), text_of("01"), text_of(True), text_of(2.5)
    ('1', '01', 'True', '2.5')
    """
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    if isinstance(value, str):
        value = value.strip()
        return re.sub(r"^(-?\d+)\.0+$", r"\1", value) if value.endswith(".0") else value
    return str(value)


def datetime_format(values: np.ndarray) -> str | None:
    """The one format in which all the texts are dates; "" for date objects, None for anything else."""
    if not len(values):
        return None
    if all(isinstance(v, dt.date) for v in values):
        return "" if any(isinstance(v, dt.datetime) for v in values) else "%Y-%m-%d"
    if not all(isinstance(v, str) and _DATE_LIKE.match(v.strip()) for v in values):
        return None
    for form in FORMATS:
        try:
            for v in values:
                dt.datetime.strptime(v.strip(), form)
        except ValueError:
            continue
        return form
    return None


def days(values: np.ndarray, form: str) -> tuple[np.ndarray, np.ndarray]:
    """Dates as days since 1970, and which cells are not dates."""
    out, bad = np.full(len(values), np.nan), np.zeros(len(values), bool)
    for i, v in enumerate(values):
        try:
            if isinstance(v, str):
                v = dt.datetime.strptime(v.strip(), form or "%Y-%m-%d")
            elif not isinstance(v, dt.datetime):
                v = dt.datetime(v.year, v.month, v.day)
            out[i] = v.replace(tzinfo=dt.UTC).timestamp() / 86400
        except (AttributeError, ValueError):
            bad[i] = True
    return out, bad


def date_of(day: float) -> dt.datetime:
    """Days since 1970 as a date and time, to the second."""
    return dt.datetime(1970, 1, 1) + dt.timedelta(seconds=round(day * 86400))
