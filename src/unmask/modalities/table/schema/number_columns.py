"""Columns of numbers and of dates: how they are written, cells that are none, and what stands apart from the others."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import numpy as np

from unmask.errors import option
from unmask.modalities.table.reading.decimal_marks import CELL, PLAIN
from unmask.modalities.table.reading.findings import Finding, named
from unmask.modalities.table.reading.parse import LARGEST, Dates, beyond_arithmetic, dates_of, days, numbers, odd_days
from unmask.modalities.table.schema.censored import LIMIT_WORDS, LOW_TO_HIGH, counted, refused
from unmask.modalities.table.schema.raw_column import RawColumn
from unmask.modalities.table.schema.suspicious_values import (
    NO_VALUE_WORDS,
    extremes,
    sentinels,
    summary_cell,
)
from unmask.odd_numbers import SENTINELS, far_off, sentinel_values


def number_fields(c: RawColumn, *, whole: bool) -> dict[str, Any]:
    """Bounds, decimals and marks of the column; what is odd about its numbers is said."""
    intervals = _censored(c)
    _misfits(c)
    infinite = ~c.bad & beyond_arithmetic(c.number)
    if infinite.any():
        hint = f"Expected a finite number, of at most {LARGEST:.1e}, or an empty cell."
        c.error("infinite", "", hint, c.values[infinite], shown=float)
    good = ~c.bad & ~infinite & ~np.isnan(c.number)
    values, counts = c.number[good], c.counts[good]
    fields = _marks(c)
    if not len(values):
        if intervals:
            value = c.setting('limits = "value"')
            hint = f'Say what they are: {value}, or leave the column out: kind = "text".'
            c.error("censored", " is a limit, and the column holds no number", hint, c.values[~np.isnan(c.low)])
        return fields
    summary_cell(c)
    distinct, at = np.unique(values, return_inverse=True)  # texts may spell one number in two ways
    _outlying(c, distinct, np.bincount(at, counts).astype(np.int64))
    # A few cells with more digits than the rest (computed, not measured) do not make a column more precise.
    share = [float(counts[np.round(values, d) == values].sum() / counts.sum()) for d in range(8)]
    decimals = next((d for d, s in enumerate(share) if s >= 0.99), None)
    ends = [float(values.min()), float(values.max()), *intervals]
    return fields | {"decimals": 0 if whole else decimals, "low": min(ends), "high": max(ends)}


def _censored(c: RawColumn) -> list[float]:
    """Take cells that are only bounded for what they are, and say how many; returns the finite ends of all."""
    inside = ~np.isnan(c.low)
    if not inside.any():
        return []
    bounds = (c.given.get("low", -np.inf), c.given.get("high", np.inf))
    for wrong, here in refused(c.low, c.high, bounds).items():
        if here.any():
            c.error("interval", wrong, LOW_TO_HIGH, c.values[here])
    c.bad, c.number = c.bad & ~inside, np.where(inside, np.nan, c.number)
    where = counted(c.low[inside], c.high[inside], c.counts[inside])
    numbers = [*c.number[~c.bad & ~np.isnan(c.number)], *c.high[inside]]
    floor = "low" not in c.given and bool((c.low == -np.inf).any()) and min(numbers) >= 0
    down = '; as no number is below 0 they go down to 0, unless "low" of the column says how far' if floor else ""
    c.note("censored", f"{c.name!r}: {where}: known to lie there and no more (censored){down}")
    ends = np.concatenate([c.low[inside], c.high[inside]])
    return [float(f"{end:.12g}") for end in ends[np.isfinite(ends)]]


def _outlying(c: RawColumn, values: np.ndarray, counts: np.ndarray) -> None:
    """Numbers apart from the others: codes of no value, slips of the decimal point."""
    codes: dict[float, int] = {}
    while True:  # a code can hide numbers that are far off, and these a code
        left, far = ~np.isin(values, list(codes)), np.zeros(len(values), bool)
        if not {"low", "high"} <= c.given.keys():
            far[left] = far_off(values[left], counts[left])
        if "missing" in c.given:
            break
        known = far & np.isin(values, list(SENTINELS))
        found = dict(zip(values[known].tolist(), counts[known].tolist(), strict=True))
        found |= sentinel_values(values[left & ~far], counts[left & ~far])
        if not found:
            break
        codes |= found
    near = left & ~far
    others = (float(values[near][0]), float(values[near][-1]))
    if codes:
        sentinels(c, codes, others)
    if far.any():
        hit = ~c.bad & np.isin(c.number, values[far])
        number = dict(zip(c.values[hit].tolist(), c.number[hit].tolist(), strict=True))
        rows = [i for i in np.flatnonzero(~c.empty).tolist() if c.raw[i] in number]
        if rows:
            extremes(c, [(number[c.raw[i]], c.row_name(i)) for i in rows], others)


def _marks(c: RawColumn) -> dict[str, Any]:
    """How it writes numbers: said, and refused where it could be two ways."""
    marks = c.spelling.marks
    if text := c.spelling.unclear:
        found = (CELL.fullmatch(v) if isinstance(v, str) else None for v in c.raw)
        first = next(i for i, m in enumerate(found) if m is not None and m["number"] == text)
        what = f"column {c.name!r}, row {c.row_name(first)}: {text!r} could be a decimal fraction or a number with "
        add = (
            f"Say which mark parts decimals: {option('decimal', ',')} or {option('decimal', '.')}, or "
            'decimal = "," in the schema (at its top, or of the column).'
        )
        c.findings.append(Finding("error", c.name, "marks_unclear", f"{what}thousands", add))
    elif marks != PLAIN and any(isinstance(v, str) for v in c.values):
        thousands = f", thousands parted by {marks.thousands!r}" if marks.thousands else ""
        read = f"numbers are read with decimals after {marks.decimal!r}{thousands} ({c.spelling.why})"
        c.note("marks", f"{c.name!r}: {read}")
    return {"decimal": marks.decimal, "thousands": "" if marks.lakh else marks.thousands} if marks != PLAIN else {}


def _misfits(c: RawColumn) -> None:
    """Cells that are no numbers, by what to do about them."""
    declared = c.given.get("kind") in ("numeric", "integer")
    says = " is not a number" if declared else " among numbers"
    words, marked, rest, suffixes = [], [], [], set()
    for v in c.values[c.bad]:
        found = CELL.fullmatch(v) if isinstance(v, str) else None
        reads = found is not None and not numbers(np.array([found["number"]], object), c.spelling.marks)[1][0]
        if isinstance(v, str) and NO_VALUE_WORDS.fullmatch(v.strip()):
            words.append(v)
        elif reads and found is not None and found["suffix"]:
            marked.append(v)
            suffixes.add(found["suffix"])
        else:
            rest.append(v)
    if words:
        listed = json.dumps(list(dict.fromkeys(w.strip() for w in words)), ensure_ascii=False)
        c.error("words", says, f"If these mean that there is no value: {c.setting(f'missing = {listed}')}", words)
    if marked:
        listed = json.dumps(sorted(suffixes), ensure_ascii=False)
        unit = ", if all cells are in one unit" if len(suffixes) > 1 or len(marked) < len(c.values) else ""
        c.error("suffix", says, f"To read the numbers before it{unit}: {c.setting(f'suffixes = {listed}')}", marked)
    if unnamed := [v for v in rest if isinstance(v, str) and LIMIT_WORDS.fullmatch(v)]:
        hint = f"Say what the limit is: {c.setting('lod = 0.5')} (of detection; the upper one is uloq)."
        c.error("limit_word", f"{says}: a limit that nobody gave", hint, unnamed)
        rest = [v for v in rest if v not in unnamed]
    if rest:
        hint = (
            f"The schema says {c.given['kind']}. Correct the cells, or list the spelling under `missing`."
            if declared
            else "Correct the cells, list the spelling under `missing` in the schema, or declare the column nominal."
        )
        c.error("text_among_numbers", says, hint, rest)


def date_fields(c: RawColumn) -> dict[str, Any]:
    """Format and bounds of a column of dates; what is odd about them is said."""
    form = c.given.get("format")
    if form is None:
        found = dates_of(dict(zip(c.values.tolist(), c.counts.tolist(), strict=True)))
        form = found.format if found is not None else "%Y-%m-%d"
        if found is not None:
            _date_problem(c, found)
    numeric, bad = days(c.values, form)
    if bad.any() and "format" in c.given:
        c.error("date", " is not a date", f"The schema says format = {form!r}.", c.values[bad])
    fields: dict[str, Any] = {"format": form}
    if not bad.all():
        good = numeric[~bad]
        _odd_days(c, good, c.counts[~bad], form)
        fields |= {"low": float(good.min()), "high": float(good.max())}
        fields |= {"decimals": 0} if bool((good == np.round(good)).all()) else {}  # dates without times stay so
    return fields


def _date_problem(c: RawColumn, found: Dates) -> None:
    first = c.setting(f'format = "{found.format}"')
    hint = f"Say which: {first}" + "".join(f' or "{f}"' for f in found.others)
    if found.problem == "unclear":
        cell = next((v for v in c.values if v.strip() not in found.bad), c.values[0])
        what = f"column {c.name!r}: dates such as {cell!r} could be day or month first, and no cell says which"
        c.findings.append(Finding("error", c.name, "date_unclear", what, hint))
    if found.problem == "short year":
        what = f"column {c.name!r}: dates such as {c.values[0]!r} have years of two digits"
        add = f"{hint} (69 to 99 are 1969 to 1999, 00 to 68 are 2000 to 2068), or write the years in full."
        c.findings.append(Finding("error", c.name, "short_year", what, add))
        return
    if found.bad:
        mixed = found.problem == "mixed"
        also = f"; some fit {', '.join(found.others)}: two ways of writing dates are mixed" if mixed else ""
        c.error(
            "date_mixed" if mixed else "date_impossible",
            f" is no date written {found.format}",
            f"Most of {c.name!r} is written {found.format}{also}. Correct the cells, or list a spelling of none "
            "under `missing`.",
            [v for v in c.values if isinstance(v, str) and v.strip() in found.bad],
        )
    elif found.format.startswith(("%d/%m", "%m/%d", "%d-%m", "%m-%d")) and found.problem is None:
        first = "day" if found.format.startswith("%d") else "month"
        order = f"dates are read {first} first ({found.format}), the one order all cells allow"
        c.note("date_format", f"{c.name!r}: {order}")


def _odd_days(c: RawColumn, found: np.ndarray, counts: np.ndarray, form: str) -> None:
    def text(day: float) -> str:
        return (dt.datetime(1970, 1, 1) + dt.timedelta(days=day)).strftime(form or "%Y-%m-%d")

    today = (dt.datetime.now(dt.UTC).replace(tzinfo=None) - dt.datetime(1970, 1, 1)).days + 1
    holders, later = odd_days(found, counts.tolist(), float(today))
    if holders:
        times = {text(d): int(counts[found == d].sum()) for d in holders}
        listed = ", ".join(f"{t} ({n} cells)" for t, n in times.items())
        what = f"{c.name!r} holds {listed}: read as dates; often a placeholder for none. If so:"
        c.warn("date_placeholder", what, c.setting(f"missing = {json.dumps(list(times))}"))
    if later:
        listed = named([text(d) for d in later])
        c.warn("date_future", f"{c.name!r} holds {len(later)} dates that are still to come: {listed}")
