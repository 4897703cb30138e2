"""What one column is: its kind and its bounds or categories, from its raw cells and what a person says of it."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unmask.errors import UserError, suggest
from unmask.given import natural
from unmask.modalities.table.reading.decimal_marks import CELL
from unmask.modalities.table.reading.findings import Finding
from unmask.modalities.table.reading.parse import AMBIGUOUS, MISSING_SPELLINGS, beyond_arithmetic, dates_of, text_of
from unmask.modalities.table.schema.number_columns import date_fields, number_fields
from unmask.modalities.table.schema.raw_column import RawColumn, unexplained
from unmask.modalities.table.schema.roles import (
    are_codes,
    is_free_text,
    numbers_are_ids,
    spelt_alike,
    texts_are_ids,
    zeros_in_front,
)
from unmask.modalities.table.schema.schema import LEFT_OUT, QUANTITIES, Column, Kind
from unmask.modalities.table.schema.suspicious_values import (
    codes,
    dates_as_numbers,
    kept_words,
    no_value_words,
    quantities_in_texts,
    repeated_ids,
)
from unmask.names import repeats_individuals

NOT_READ = (dt.timedelta, np.timedelta64, complex, bytes)
"""Types of a cell that are neither a number nor a category by themselves."""
FEW = 5
"""Rows that a column needs a value in, lest most of a table gets the values of a few."""
ROMAN = {"I", "II", "III", "IV", "V"}
"""Stages, whose order the alphabet keeps."""
_DECIDED = {"kind", "structural", "blank"}
"""What a person says of a column who knows that it is sparse."""


def column_of(
    name: str, raw: np.ndarray, given: Mapping[str, Any], **more: Any
) -> tuple[Column, list[Finding], dict[str, int]]:
    """One column; what is `given` is not inferred, `more` is for `RawColumn`. Returns the column, what was noticed, and
    which texts were taken for missing in how many cells."""
    allowed = {f.name for f in dataclasses.fields(Column)} - {"name", "given"}
    for key in set(given) - allowed:
        raise UserError(f"schema: column {name!r}: unknown key {key!r}", hint=suggest(key, allowed))
    types = set(map(type, raw)) if raw.dtype == object else set()
    if odd := {t for t in types if t.__hash__ is None or issubclass(t, NOT_READ)}:
        # Lists, lengths of time and the like: an error, unless the column is declared to be left out.
        if given.get("kind") in LEFT_OUT:
            return Column(name=name, kind=given["kind"]), [], {}
        first = next(i for i, v in enumerate(raw) if type(v) in odd)
        what, hint = "not one value", "Spread it over columns of its own"
        if isinstance(raw[first], dt.timedelta | np.timedelta64):
            what, hint = "a length of time", "Write it as a number, of days say (pandas: .dt.total_seconds() / 86400)"
        elif isinstance(raw[first], NOT_READ):
            what, hint = "not read", "Write it as numbers, or as the names of categories"
        text = f"column {name!r}, row {more['row_name'](first)}: a {type(raw[first]).__name__}, {what}"
        add = f"{hint}, or declare the column an id in the schema: it is left out then."
        return Column(name=name, kind="id"), [Finding("error", name, "not_read", text, add)], {}
    return _read(RawColumn(name, raw, given, **more))


def _read(c: RawColumn) -> tuple[Column, list[Finding], dict[str, int]]:
    kind: Kind = c.given.get("kind") or _kind(c)
    fields: dict[str, Any] = {"name": c.name, "kind": kind}
    if c.broken and kind not in LEFT_OUT:
        missing = f"missing = {json.dumps(sorted(c.broken), ensure_ascii=False)}"
        hint = f"Correct them in the spreadsheet, or if there is no value: {c.setting(missing)}"
        c.error("sheet_error", ", a formula without a result", hint, c.broken)
    if kind in ("numeric", "integer"):
        fields |= number_fields(c, whole=kind == "integer")
    elif kind == "datetime":
        fields |= date_fields(c)
    elif kind not in LEFT_OUT:
        fields["categories"] = _categories(c)
        if kind == "ordinal" and "categories" not in c.given and not c.levels:
            _ask_for_order(c, fields["categories"])
    if kind in QUANTITIES and not c.rows:
        fields["low"] = float("inf")
        c.note("empty", f"{c.name!r} holds no value at all and is left out")
    fields |= {
        k: tuple(text_of(t) for t in v) if isinstance(v, list | tuple) else v
        for k, v in c.given.items()
        if k not in ("kind", "missing")
    }
    fields |= {"missing": c.own, "blank": c.blank}
    _ask_of_blanks(c, kind, fields)
    if isinstance(fields.get("event"), str | int | bool):
        fields["event"] = (text_of(fields["event"]),)
    fields["given"] = tuple(k for k in ("low", "high") if k in c.given)
    if fields.get("structural") is False:
        fields["structural"] = None
    if kind == "binary" and len(fields["categories"]) > 2:
        raise UserError(
            f"column {c.name!r}: {len(fields['categories'])} categories in a binary column", hint="Use nominal."
        )
    return Column(**fields), c.findings, c.spelt()


def _ask_for_order(c: RawColumn, categories: Sequence[str]) -> None:
    """Refuse ordered categories of words: the alphabet is no order of them (high < low < medium)."""
    if len(categories) > 2 and any(natural(t)[0] for t in categories) and not set(categories) <= ROMAN:
        listed = json.dumps(categories, ensure_ascii=False)
        text = f"column {c.name!r} is ordinal, and nothing says in which order its {len(categories)} categories are"
        hint = f"Write them from lowest to highest: {c.setting(f'categories = {listed}')}"
        c.findings.append(Finding("error", c.name, "no_order", text, hint))


def _ask_of_blanks(c: RawColumn, kind: Kind, fields: Mapping[str, Any]) -> None:
    """Ask what cells without a value mean, where the others hold one value."""
    levels = len(fields.get("categories", ()) if "categories" in c.given else c.levels or ())
    quantity = kind in QUANTITIES
    undecided = kind not in LEFT_OUT and not (quantity and "kind" in c.given)
    if undecided and levels < 2 and not c.given.get("structural"):
        texts = list(dict.fromkeys(map(text_of, c.values)))
        c.findings += unexplained(c.name, c.raw, c.empty, texts, c.missing, quantity=quantity)
    if 0 < c.rows < FEW and c.rows * 10 <= len(c.raw) and kind not in LEFT_OUT and not c.given.keys() & _DECIDED:
        c.warn(
            "few_values",
            f"{c.name!r} holds a value in {c.rows} of {len(c.raw)} rows: every other row would get one like these.",
            c.setting('kind = "text"') + " leaves it out.",
        )


# Which kind.


def _kind(c: RawColumn) -> Kind:
    if not c.rows:
        return "numeric"
    if c.levels is None and not c.bad.any():  # booleans are no numbers
        if not are_codes(c.values):
            return _numeric_kind(c)  # of millions of numbers no texts are made
        texts = sorted({text_of(v) for v in c.values})
        kind = _text_kind(c, texts)
        if kind == "nominal" or not repeats_individuals(c.name):
            zeros_in_front(c, texts)
        return kind
    texts = sorted({text_of(v) for v in c.values})
    if c.levels and len(texts) > 1:
        return "ordinal"
    if all(isinstance(v, bool | np.bool_) for v in c.values):
        return "binary"
    if c.levels == () and not c.bad.any():
        return "binary" if len(texts) <= 2 else "nominal"
    if c.bad.any() and dates_of(dict(zip(c.values.tolist(), c.counts.tolist(), strict=True))) is not None:
        return "datetime"
    if not c.bad.any() or (c.levels is None and _mostly_numbers(c)):
        return _numeric_kind(c)
    return _text_kind(c, texts)


def _mostly_numbers(c: RawColumn) -> bool:
    """Whether numbers are the rule, so that what is none does not fit, rather than a category among categories."""
    plain = int(c.counts[~c.bad].sum())
    if plain >= 0.9 * c.rows or c.given.keys() & {"lod", "uloq"}:
        return True
    found = [CELL.fullmatch(v) if isinstance(v, str) else None for v in c.values]
    limits = np.array([m is not None and bool(m["limit"]) and not m["suffix"] for m in found], bool)
    whole, distinct = plain + int(c.counts[c.bad & limits].sum()), int((~c.bad).sum())
    if (whole >= 0.5 * c.rows and distinct > 12) or (whole >= 0.9 * c.rows and distinct >= 3):
        return True
    # All of them with a unit behind: "12 mmol/l"; or with a few, some of them fractions, which no identifier is.
    units = {m["suffix"] for m in found if m is not None and m["suffix"]}
    fractions = any(m is not None and {".", ","} & set(m["number"]) for m in found)
    return len(c.values) > 12 and None not in found and 1 <= len(units) <= (4 if fractions else 1)


def _numeric_kind(c: RawColumn) -> Kind:
    good = c.number[~c.bad & ~beyond_arithmetic(c.number) & ~np.isnan(c.number)]
    if len(good) < len(c.number):
        ends = np.concatenate([good, c.low, c.high])
        ends = np.round(ends[np.isfinite(ends)], 9)
        whole = len(good) and bool((ends == np.round(ends)).all()) and not beyond_arithmetic(c.number).any()
        return "integer" if whole else "numeric"
    distinct = np.unique(good)
    whole = bool((distinct == np.round(distinct)).all())
    if len(distinct) == 2 and whole and (set(distinct.tolist()) in ({0.0, 1.0}, {1.0, 2.0}) or c.rows >= 20):
        return "binary" if len({text_of(v) for v in c.values}) == 2 else "nominal"  # 1 and 1.00 are two spellings
    dated = dates_as_numbers(c.name, distinct) if "kind" not in c.given else []
    if len(distinct) > 2:
        why = numbers_are_ids(c, distinct, whole)
        if why is not None:
            c.findings += [] if repeats_individuals(c.name) else dated
            return _left_out(c, "id", "looks like an identifier", why, len(distinct))
    if whole and "missing" not in c.given:
        codes(c, distinct)
    c.findings += dated
    return "integer" if whole else "numeric"


def _text_kind(c: RawColumn, texts: list[str]) -> Kind:
    if is_free_text(texts, c.rows, len(c.raw)):
        return _left_out(c, "text", "is free text", "sentences, mostly not repeated", 0)
    quantities_in_texts(c, texts)
    if c.levels is None or len(texts) > 12:
        why = texts_are_ids(c, texts)
        if why is not None:
            return _left_out(c, "id", "looks like an identifier", why, len(texts))
    return "binary" if len(texts) <= 2 else "nominal"


def _left_out(c: RawColumn, kind: Kind, what: str, why: str, distinct: int) -> Kind:
    c.note(kind, f"{c.name!r} {what} and is left out ({why})")
    c.findings += repeated_ids(c.name, distinct, c.rows)
    return kind


def _categories(c: RawColumn) -> tuple[str, ...]:
    counts: Counter[str] = Counter()
    for value, n in zip(c.values, c.counts, strict=True):
        counts[text_of(value)] += int(n)
    if "categories" not in c.given:
        ambiguous = {t: n for t, n in counts.items() if t.lower() in AMBIGUOUS | MISSING_SPELLINGS}
        kept_words(c, ambiguous)
        c.findings += spelt_alike(c.name, counts)
        no_value_words(c, {t: n for t, n in counts.items() if t not in ambiguous})
    place = {level: i for i, level in enumerate(c.levels or ())}
    return tuple(sorted(counts, key=lambda t: (place.get(t, len(place)), natural(t))))
