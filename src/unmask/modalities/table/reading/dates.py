"""How a column writes its dates: the one format that fits, or what keeps it from being known."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from unmask.modalities.table.reading.parse import FORMATS

_DATE_LIKE = re.compile(
    r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}(?:[ T].*)?|\d{1,2}[- ]?[A-Za-z]{3}[- ]?\d{4}|[A-Za-z]{3} \d{1,2}, \d{4}"
)
_SHORT_YEAR = ("%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%d-%m-%y")
PLACEHOLDERS = (
    *("1800-01-01", "1899-12-30", "1899-12-31", "1900-01-01", "1901-01-01", "1970-01-01"),
    *("9999-12-31", "9999-01-01"),
)
"""Dates that programs and people write where none is known."""


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
    if others and any(_day(t, form) != _day(t, other) for other in others for t in fits[form] & fits[other]):
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


def _day(text: str, form: str) -> dt.datetime:
    return dt.datetime.strptime(text, form)


def odd_days(days: np.ndarray, counts: Sequence[int], today: float) -> tuple[list[float], list[float]]:
    """Placeholders among days since 1970 (that stand alone or often), and days that are still to come."""
    order = np.argsort(days)
    days, counts_ = np.asarray(days)[order], np.asarray(counts)[order]
    known = {(dt.date.fromisoformat(d) - dt.date(1970, 1, 1)).days for d in PLACEHOLDERS}
    holders = []
    for i, day in enumerate(days):
        if day in known:
            rest = np.delete(days, i)
            far = len(rest) == 0 or np.abs(rest - day).min() > 365
            if far or counts_[i] > max(2, 3 * np.median(counts_)):
                holders.append(float(day))
    return holders, [float(d) for d in days if d > today and d not in holders]
