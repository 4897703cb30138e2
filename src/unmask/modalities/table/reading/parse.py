"""Raw cells to numbers, texts and dates, and back: what is missing, what is a number, how a date is written."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from unmask.given import MISSING_WORDS, no_value
from unmask.modalities.table.reading.decimal_marks import CELL, PLAIN, Marks, plain_numbers

MISSING_SPELLINGS = MISSING_WORDS | {"", "nat", "?", "."}
"""Texts that mean 'no value', whatever their case, spaces around them aside; `NA` in capitals is one too."""

AMBIGUOUS = frozenset({"none", "na"})
"""Texts that mean 'no value' among numbers and dates, and may be a value among categories: no complication, sodium."""

FORMATS = (
    *("%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y/%m/%d"),
    *("%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S"),
    *("%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M", "%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S"),
    *("%d/%m/%Y %I:%M %p", "%m/%d/%Y %I:%M %p", "%d/%m/%Y %I:%M:%S %p", "%m/%d/%Y %I:%M:%S %p"),
    *("%d-%m-%Y", "%m-%d-%Y"),
    *("%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%dT%H:%M:%S.%f"),
    *("%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%d %H:%M:%S%z", "%Y-%m-%dT%H:%M:%S.%f%z"),
    *("%d-%b-%Y", "%d %b %Y", "%d%b%Y", "%b %d, %Y"),
)
"""How dates may be written, in the order in which they are tried."""


def is_missing(raw: np.ndarray, also: Sequence[str] = (), keep: Sequence[str] | None = None) -> np.ndarray:
    """Which raw cells hold no value.

    Args:
        also: further spellings of none, in any case; in a column of numbers as numbers.
        keep: the categories of the column, which are values whatever they are called (`NA` for North America). Not
            given: `None` and `Na` are values beside other texts, and no values beside numbers or dates, or where
            nothing else is.

    >>> is_missing(np.array([1.0, np.nan])).tolist(), is_missing(np.array(["a", " NA ", None], object)).tolist()
    ([False, True], [False, True, True])
    >>> is_missing(np.array([1.0, -99.0]), also=["-99"]).tolist()
    [False, True]
    >>> is_missing(np.array(["Na", "K", "NA"], object)).tolist(), is_missing(np.array(["Na", "1.5"], object)).tolist()
    ([False, False, True], [True, False])
    """
    if raw.dtype.kind == "f":
        return np.isnan(raw) | np.isin(raw, numbers(np.array(also, object))[0])
    if raw.dtype != object:
        return np.zeros(len(raw), bool)
    spelled = {text_of(m).lower() for m in also}
    kept = set(keep or ())
    known: dict[Any, bool | None] = {}  # None: it depends on the rest of the column
    out = np.zeros(len(raw), bool)
    # A plain number holds a value, unless it may be one of the further spellings.
    number = plain_numbers(raw)
    plain = ~np.isnan(number) & ~np.isin(number, numbers(np.array([*spelled], object))[0])
    open_ = []
    for i in np.flatnonzero(~plain).tolist():
        value = raw[i]
        try:
            missing = known[value]
        except KeyError:
            missing = known[value] = _missing(value, spelled, kept, keep is not None)
        except TypeError:  # a list, or the like, is something
            continue
        if missing is None:
            open_.append(i)
        else:
            out[i] = missing
    if open_:
        out[open_] = not _texts_stand(
            (v for v, missing in known.items() if missing is False), len({*raw[plain].tolist()})
        )
    return out


def _missing(value: Any, spelled: set[str], kept: set[str], decided: bool) -> bool | None:
    if no_value(value):
        return True
    text = text_of(value)
    if text.lower() in spelled:
        return True
    if text in kept:
        return False
    if text.lower() in MISSING_SPELLINGS or text == "NA":
        return True
    if isinstance(value, str) and text.lower() in AMBIGUOUS:
        return True if decided else None
    return False


_QUANTITY_LIKE = re.compile(r"\s*[<>≤≥]?=?\s*[+\-−]?[.,]?\d.*")


def _texts_stand(values: Iterable[Any], plain: int) -> bool:
    """Whether texts that are not numbers or dates are the rule among a column's distinct values. `plain`: how many more
    there are, which are plain numbers."""
    found = [isinstance(v, str) and not _QUANTITY_LIKE.fullmatch(v) for v in values]
    return bool(found) and 2 * sum(found) > len(found) + plain


def numbers(values: np.ndarray, marks: Marks = PLAIN) -> tuple[np.ndarray, np.ndarray]:
    """Cells as floats, and which of them are not numbers (booleans are not).

    Args:
        marks: how the texts among them write decimals and thousands.

    >>> numbers(np.array(["1.5", "x", 2], object))
    (array([1.5, nan, 2. ]), array([False,  True, False]))
    """
    if values.dtype.kind in "fiu":
        return values.astype(np.float64), np.zeros(len(values), bool)
    bad = np.zeros(len(values), bool)
    out = plain_numbers(values) if marks == PLAIN else np.full(len(values), np.nan)
    for i in np.flatnonzero(np.isnan(out)).tolist():
        v = values[i]
        if isinstance(v, bool | np.bool_ | dt.date):
            bad[i] = True
            continue
        try:
            out[i] = marks.read(v) if isinstance(v, str) else float(v)
        except (TypeError, ValueError):
            bad[i] = True
    return out, bad


LARGEST = float(np.finfo(np.float32).max)
"""Of numbers: networks compute in 32 bits, and the squares of a column's values must sum to a number in 64."""


def beyond_arithmetic(x: np.ndarray) -> np.ndarray:
    """Which numbers are infinite, or so large that means and squares of them would be; not NaN.

    >>> beyond_arithmetic(np.array([1e30, -1e200, np.inf, np.nan]))
    array([False,  True,  True, False])
    """
    return np.abs(x) > LARGEST


def measured(
    values: np.ndarray, marks: Marks = PLAIN, limits: str | None = None, suffixes: Sequence[str] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """`numbers`, of cells that may be beyond a limit of detection or have something written after the number.

    Args:
        limits: what `<0.5` and `>90` are: the "value" of the limit, "half" of it (where it is below; above, the value),
            or "missing" (NaN, not bad). None: not numbers.
        suffixes: what may stand after a number and is passed over, e.g. a unit or `*`.

    >>> measured(np.array(["<0.5", "0.7*", "2", "x"], object), PLAIN, "half", ["*"])
    (array([0.25, 0.7 , 2.  ,  nan]), array([False, False, False,  True]))
    """
    out, bad = numbers(values, marks)
    if limits is None and not suffixes:
        return out, bad
    for i in np.flatnonzero(bad):
        found = CELL.fullmatch(values[i]) if isinstance(values[i], str) else None
        if (
            found is None
            or (found["suffix"] and found["suffix"] not in suffixes)
            or (found["limit"] and limits is None)
        ):
            continue
        try:
            number = marks.read(found["number"])
        except ValueError:
            continue
        if found["limit"]:
            below = found["limit"][0] in "<≤" or found["limit"] == "=<"
            number = {"half": number / 2 if below else number, "missing": np.nan}.get(str(limits), number)
        out[i], bad[i] = number, False
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


def days(values: np.ndarray, form: str) -> tuple[np.ndarray, np.ndarray]:
    """Dates as days since 1970, and which cells are not dates."""
    out, bad = np.full(len(values), np.nan), np.zeros(len(values), bool)
    for i, v in enumerate(values):
        try:
            if isinstance(v, int | float | np.integer) and not isinstance(v, bool):
                v = text_of(v)  # 20200113, with a format that says so
            if isinstance(v, str):
                v = dt.datetime.strptime(v.strip(), form or "%Y-%m-%d")
                v = v.astimezone(dt.UTC) if v.tzinfo else v
            elif not isinstance(v, dt.datetime):
                v = dt.datetime(v.year, v.month, v.day)
            out[i] = v.replace(tzinfo=dt.UTC).timestamp() / 86400
        except (AttributeError, ValueError):
            bad[i] = True
    return out, bad


def date_of(day: float) -> dt.datetime:
    """Days since 1970 as a date and time, to the second."""
    return dt.datetime(1970, 1, 1) + dt.timedelta(seconds=round(day * 86400))


_DATE_LIKE = re.compile(
    r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}(?:[ T].*)?|\d{1,2}[- ]?[A-Za-z]{3}[- ]?\d{4}|[A-Za-z]{3} \d{1,2}, \d{4}"
)
_SHORT_YEAR = ("%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%d-%m-%y")
PLACEHOLDERS = (
    *("1582-10-14", "1800-01-01", "1899-12-30", "1899-12-31", "1900-01-01", "1901-01-01", "1960-01-01", "1970-01-01"),
    *("9999-12-31", "9999-01-01"),
)
"""Dates that programs and people write where none is known; SPSS counts from the first, SAS and Stata from 1960."""


@dataclass(frozen=True, kw_only=True)
class Dates:
    """What was found.

    Attributes:
        format: strptime's; "" for date and time objects.
        problem: None; day and month could be either way round; the cells mix formats, or hold dates that do not exist;
            or years have two digits.
        bad: the texts that the format does not fit.
        others: further formats that fit: of all cells (unclear) or of the bad ones (mixed).
    """

    format: str
    problem: Literal["unclear", "mixed", "impossible", "short year"] | None = None
    bad: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def dates_of(counts: Mapping[Any, int]) -> Dates | None:
    """How a column writes dates, from its distinct values and how often each stands there; None where it holds none.

    >>> dates_of({"2020-01-13": 5}).format, dates_of({"13/02/2020": 1, "01/02/2020": 1}).format
    ('%Y-%m-%d', '%d/%m/%Y')
    >>> dates_of({"01/02/2020": 1, "03/04/2020": 1}).problem, dates_of({"13/02/2020": 3, "02/14/2020": 1}).problem
    ('unclear', 'mixed')
    """
    if not counts:
        return None
    if all(isinstance(v, dt.date) for v in counts):
        return Dates(format="" if any(isinstance(v, dt.datetime) for v in counts) else "%Y-%m-%d")
    texts = {v.strip(): n for v, n in counts.items() if isinstance(v, str)}
    whole = sum(counts.values())
    like = {t: n for t, n in texts.items() if _DATE_LIKE.fullmatch(t)}
    if len(texts) < len(counts) or 2 * sum(like.values()) <= whole:
        return None
    fits = {form: {t for t in like if _is_date(t, form)} for form in FORMATS}
    most = max(len(f) for f in fits.values())
    if 2 * most < len(like):
        short = [form for form in _SHORT_YEAR if all(_is_date(t, form) for t in like)]
        if short:
            return Dates(format=short[0], problem="short year", others=tuple(short[1:]), bad=tuple(texts))
        return None
    best = [form for form, f in fits.items() if len(f) == most]
    form, others = best[0], tuple(best[1:])
    bad = tuple(t for t in texts if t not in fits[form])
    day = dt.datetime.strptime
    if others and any(day(t, form) != day(t, other) for other in others for t in fits[form] & fits[other]):
        return Dates(format=form, problem="unclear", others=others, bad=bad)
    if not bad:
        return Dates(format=form)
    also = tuple(f for f in (*FORMATS, *_SHORT_YEAR) if f != form and any(_is_date(t, f) for t in bad))
    return Dates(format=form, problem="mixed" if also else "impossible", bad=bad, others=also)


def _is_date(text: str, form: str) -> bool:
    try:
        dt.datetime.strptime(text, form)
    except ValueError:
        return False
    return True


def odd_days(days: np.ndarray, counts: Sequence[int], today: float) -> tuple[list[float], list[float]]:
    """Placeholders among days since 1970 (apart from all others, or often), and days that are still to come."""
    order = np.argsort(days)
    days, counts_ = np.asarray(days)[order], np.asarray(counts)[order]
    known = {(dt.date.fromisoformat(d) - dt.date(1970, 1, 1)).days for d in PLACEHOLDERS}
    holders, rest = [], days[~np.isin(days, list(known))]
    for i, day in enumerate(days):
        if day in known:
            far = len(rest) == 0 or day < rest[0] - 365 or day > rest[-1] + 365
            if far or counts_[i] > max(2, 3 * np.median(counts_)):
                holders.append(float(day))
    return holders, [float(d) for d in days if d > today and d not in holders]
