"""What one column is: its kind and its bounds or categories, from its raw cells and what a person says of it."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from unmask.errors import UserError, suggest
from unmask.modalities.table.reading.dates import dates_of
from unmask.modalities.table.reading.decimal_marks import CELL, Spelling, spelling_of
from unmask.modalities.table.reading.findings import Finding, setting
from unmask.modalities.table.reading.parse import AMBIGUOUS, beyond_arithmetic, is_missing, measured, numbers, text_of
from unmask.modalities.table.schema.date_columns import date_fields
from unmask.modalities.table.schema.number_columns import Cells, NumberColumn
from unmask.modalities.table.schema.roles import (
    are_codes,
    is_free_text,
    numbers_are_ids,
    repeats_individuals,
    runs_of,
    spelt_alike,
    texts_are_ids,
    zeros_in_front,
)
from unmask.modalities.table.schema.schema import LEFT_OUT, QUANTITIES, Column, Kind
from unmask.modalities.table.schema.suspicious_values import (
    SHEET_ERROR,
    codes,
    dates_as_numbers,
    kept_words,
    no_value_words,
    repeated_ids,
    spelt_in,
)
from unmask.modalities.table.schema.tick_boxes import unexplained, with_blanks
from unmask.natural import natural

NOT_READ = (dt.timedelta, np.timedelta64, complex, bytes)
"""Types of a cell that are neither a number nor a category by themselves."""
FEW = 5
"""Rows that a column needs a value in, lest most of a table gets the values of a few."""
_DECIDED = {"kind", "structural", "blank"}
"""What a person says of a column who knows that it is sparse."""


def spellings(given: Any) -> tuple[str, ...]:
    """One spelling of a missing value, or several, as texts."""
    return tuple(text_of(m) for m in (given if isinstance(given, list | tuple) else [given]))


def column_of(
    name: str,
    raw: np.ndarray,
    given: Mapping[str, Any],
    *,
    missing: tuple[str, ...],
    spelling: Spelling,
    levels: tuple[str, ...] | None,
    row_name: Callable[[int], int],
) -> tuple[Column, list[Finding], dict[str, int]]:
    """One column; what is `given` is not inferred.

    Args:
        missing: spellings of a missing value in all columns.
        spelling: how it writes numbers.
        levels: what its type declares of categories; see `Frame.levels`.

    Returns:
        The column, what was noticed, and which texts were taken for missing in how many cells.
    """
    allowed = {f.name for f in dataclasses.fields(Column)} - {"name", "given"}
    for key in set(given) - allowed:
        raise UserError(f"schema: column {name!r}: unknown key {key!r}", hint=suggest(key, allowed))
    odd = (
        {t for t in set(map(type, raw)) if t.__hash__ is None or issubclass(t, NOT_READ)}
        if raw.dtype == object
        else set()
    )
    if odd:
        return _not_read(name, raw, odd, given.get("kind"), row_name)
    return _Reading(name, raw, dict(given), missing, spelling, levels, row_name).column()


def _not_read(
    name: str, raw: np.ndarray, odd: set[type], kind: Any, row_name: Callable[[int], int]
) -> tuple[Column, list[Finding], dict[str, int]]:
    """A column of lists, lengths of time and the like: an error, unless it is declared to be left out."""
    if kind in LEFT_OUT:
        return Column(name=name, kind=kind), [], {}
    first = next(i for i, v in enumerate(raw) if type(v) in odd)
    what, hint = "not one value", "Spread it over columns of its own"
    if isinstance(raw[first], dt.timedelta | np.timedelta64):
        what, hint = "a length of time", "Write it as a number, of days say (pandas: .dt.total_seconds() / 86400)"
    elif isinstance(raw[first], NOT_READ):
        what, hint = "not read", "Write it as numbers, or as the names of categories"
    found = Finding(
        severity="error",
        column=name,
        code="not_read",
        text=f"column {name!r}, row {row_name(first)}: a {type(raw[first]).__name__}, {what}",
        add=f"{hint}, or declare the column an id in the schema: it is left out then.",
    )
    return Column(name=name, kind="id"), [found], {}


class _Reading:
    """One column being read; `values` are its distinct cells that hold a value, `counts` how often each
    stands there."""

    def __init__(
        self,
        name: str,
        raw: np.ndarray,
        given: dict[str, Any],
        missing: tuple[str, ...],
        spelling: Spelling,
        levels: tuple[str, ...] | None,
        row_name: Callable[[int], int],
    ) -> None:
        self.name, self.given, self.levels = name, given, levels
        if "decimal" in given:
            spelling = spelling_of(raw, told=given["decimal"])
        self.spelling, self.missing = spelling, missing
        self.own = spellings(given["missing"]) if "missing" in given else ()
        keep = [text_of(t) for t in given["categories"]] if isinstance(given.get("categories"), list | tuple) else None
        self.blank = text_of(given["blank"]) if given.get("blank") is not None else None
        raw = self.raw = with_blanks(raw, self.blank, (*missing, *self.own), name)
        self.empty = is_missing(raw, (*missing, *self.own), () if given.get("kind") in QUANTITIES else keep)
        self.values, self.counts = _distinct(raw[~self.empty])
        broken = {v for v in self.values if isinstance(v, str) and SHEET_ERROR.fullmatch(v.strip())}
        if broken:
            errors = np.array([isinstance(v, str) and v in broken for v in raw])
            self.empty, self.raw = self.empty | errors, raw.copy()
            self.raw[errors] = None
            self.values, self.counts = _distinct(raw[~self.empty])
        self.broken = broken
        self.cells = Cells(
            name=name,
            raw=raw,
            empty=self.empty,
            values=self.values,
            counts=self.counts,
            given=given,
            row_name=row_name,
        )
        self.findings = self.cells.findings
        self.rows = int(self.counts.sum())
        suffixes = [*given.get("suffixes", ()), *([given["unit"]] if isinstance(given.get("unit"), str) else [])]
        self.number, self.bad = measured(self.values, spelling.marks, given.get("limits"), suffixes)

    def column(self) -> tuple[Column, list[Finding], dict[str, int]]:
        kind: Kind = self.given.get("kind") or self._kind()
        fields: dict[str, Any] = {"name": self.name, "kind": kind}
        if self.broken and kind not in LEFT_OUT:
            missing = f"missing = {json.dumps(sorted(self.broken), ensure_ascii=False)}"
            self.cells.error(
                "sheet_error",
                ", a formula without a result",
                f"Correct them in the spreadsheet, or if there is no value: {setting(self.name, missing)}",
                self.broken,
            )
        if kind in ("numeric", "integer"):
            numbers = NumberColumn(cells=self.cells, spelling=self.spelling, number=self.number, bad=self.bad)
            fields |= numbers.fields(whole=kind == "integer")
        elif kind == "datetime":
            fields |= date_fields(self.cells)
        elif kind not in LEFT_OUT:
            fields["categories"] = self._categories()
        if kind in QUANTITIES and not self.rows:
            fields["low"] = float("inf")
            self.cells.note("empty", f"{self.name!r} holds no value at all and is left out")
        fields |= {
            k: tuple(text_of(t) for t in v) if isinstance(v, list | tuple) else v
            for k, v in self.given.items()
            if k not in ("kind", "missing")
        }
        fields |= {"missing": self.own, "blank": self.blank}
        self._unexplained(kind, fields)
        if isinstance(fields.get("event"), str | int | bool):
            fields["event"] = (text_of(fields["event"]),)
        fields["given"] = tuple(k for k in ("low", "high") if k in self.given)
        if fields.get("structural") is False:
            fields["structural"] = None
        if kind == "binary" and len(fields["categories"]) > 2:
            raise UserError(
                f"column {self.name!r}: {len(fields['categories'])} categories in a binary column", hint="Use nominal."
            )
        return Column(**fields), self.findings, self._spelt()

    def _unexplained(self, kind: Kind, fields: Mapping[str, Any]) -> None:
        """Ask what cells without a value mean, where the others hold one value."""
        levels = len(fields.get("categories", ()) if "categories" in self.given else self.levels or ())
        quantity = kind in QUANTITIES
        undecided = kind not in LEFT_OUT and not (quantity and "kind" in self.given)
        if undecided and levels < 2 and not self.given.get("structural"):
            texts, own = list(dict.fromkeys(map(text_of, self.values))), (*self.missing, *self.own)
            self.findings += unexplained(self.name, self.raw, self.empty, texts, own, quantity=quantity)
        held = int((~self.empty).sum())
        if 0 < held < FEW and held * 10 <= len(self.raw) and kind not in LEFT_OUT and not self.given.keys() & _DECIDED:
            self.cells.warn(
                "few_values",
                f"{self.name!r} holds a value in {held} of {len(self.raw)} rows: every other row would get one like "
                "these.",
                setting(self.name, 'kind = "text"') + " leaves it out.",
            )

    # Which kind.

    def _kind(self) -> Kind:
        if not self.rows:
            return "numeric"
        if self.levels is None and not self.bad.any():  # booleans are no numbers
            if are_codes(self.values):
                return self._code_kind()
            return self._numeric_kind()  # of millions of numbers no texts are made
        texts = {text_of(v) for v in self.values}
        if self.levels and len(texts) > 1:
            return "ordinal"
        if all(isinstance(v, bool | np.bool_) for v in self.values):
            return "binary"
        if self.levels == () and not self.bad.any():
            return "binary" if len(texts) <= 2 else "nominal"
        if self.bad.any():
            found = dates_of(dict(zip(self.values.tolist(), self.counts.tolist(), strict=True)))
            if found is not None:
                return "datetime"
        if not self.bad.any() or self._mostly_numbers():
            return self._numeric_kind()
        return self._text_kind(sorted(texts))

    def _mostly_numbers(self) -> bool:
        """Whether numbers are the rule, so that what is none does not fit, rather than a category among categories."""
        plain = int(self.counts[~self.bad].sum())
        if plain >= 0.9 * self.rows:
            return True
        found = [CELL.fullmatch(v) if isinstance(v, str) else None for v in self.values]
        limits = np.array([m is not None and bool(m["limit"]) and not m["suffix"] for m in found], bool)
        whole, distinct = plain + int(self.counts[self.bad & limits].sum()), int((~self.bad).sum())
        if (whole >= 0.5 * self.rows and distinct > 12) or (whole >= 0.9 * self.rows and distinct >= 3):
            return True
        # All of them with one unit behind: "12 mmol/l".
        units = {m["suffix"] for m in found if m is not None and m["suffix"]}
        return len(self.values) > 12 and all(m is not None for m in found) and len(units) == 1

    def _numeric_kind(self) -> Kind:
        good = self.number[~self.bad & ~beyond_arithmetic(self.number) & ~np.isnan(self.number)]
        distinct = np.unique(good)
        if len(good) < len(self.number):
            return (
                "integer"
                if len(good) and bool((good == np.round(good)).all()) and not beyond_arithmetic(self.number).any()
                else "numeric"
            )
        whole = bool((distinct == np.round(distinct)).all())
        if len(distinct) == 2 and whole and (set(distinct.tolist()) in ({0.0, 1.0}, {1.0, 2.0}) or self.rows >= 20):
            return (
                "binary" if len({text_of(v) for v in self.values}) == 2 else "nominal"
            )  # 1 and 1.00 are two spellings
        dated = dates_as_numbers(self.name, distinct) if "kind" not in self.given else []
        if len(distinct) > 2:
            counting = whole and len(distinct) == self.rows and bool((np.diff(self._all_numbers()) == 1).all())
            why = numbers_are_ids(self.name, distinct, self.rows, len(self.raw), whole, counting, self._runs())
            if why is not None:
                self.findings += [] if repeats_individuals(self.name) else dated
                return self._left_out("id", "looks like an identifier", why, len(distinct))
        if whole:
            self.findings += codes(self.name, distinct, self.rows) if "missing" not in self.given else []
        self.findings += dated
        return "integer" if whole else "numeric"

    def _all_numbers(self) -> np.ndarray:
        return numbers(self.raw[~self.empty], self.spelling.marks)[0]

    def _runs(self) -> int:
        return runs_of(self.raw[~self.empty]) if repeats_individuals(self.name) else self.rows

    def _text_kind(self, texts: list[str]) -> Kind:
        if is_free_text(texts, self.rows, len(self.raw)):
            return self._left_out("text", "is free text", "sentences, mostly not repeated", 0)
        why = (
            texts_are_ids(self.name, texts, self.rows, len(self.raw), self._runs())
            if self.levels is None or len(texts) > 12
            else None
        )
        if why is not None:
            return self._left_out("id", "looks like an identifier", why, len(texts))
        return "binary" if len(texts) <= 2 else "nominal"

    def _code_kind(self) -> Kind:
        texts = sorted({text_of(v) for v in self.values})
        kind = self._text_kind(texts)
        if kind == "nominal" or not repeats_individuals(self.name):
            self.findings += zeros_in_front(self.name, texts)
        return kind

    def _left_out(self, kind: Kind, what: str, why: str, distinct: int) -> Kind:
        self.cells.note(kind, f"{self.name!r} {what} and is left out ({why})")
        if distinct and distinct < self.rows and repeats_individuals(self.name):
            self.findings += repeated_ids(self.name, distinct, self.rows)
        return kind

    # What the other kinds need.

    def _categories(self) -> tuple[str, ...]:
        counts: Counter[str] = Counter()
        for value, n in zip(self.values, self.counts, strict=True):
            counts[text_of(value)] += int(n)
        if "categories" not in self.given:
            ambiguous = {t: n for t, n in counts.items() if t.lower() in AMBIGUOUS and t != "NA"}
            self.findings += kept_words(self.name, ambiguous)
            self.findings += spelt_alike(self.name, counts)
            self.findings += no_value_words(self.name, {t: n for t, n in counts.items() if t not in ambiguous})
        if self.levels:
            return tuple(v for v in self.levels if v in counts)
        return tuple(sorted(counts, key=natural))

    # What is said.

    def _spelt(self) -> dict[str, int]:
        return spelt_in(self.raw, self.empty)


def _distinct(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct values, in the order in which they come for objects, and how often each stands there."""
    if values.dtype != object:
        return np.unique(values, return_counts=True)
    counts: dict[Any, int] = {}
    for v in values.tolist():
        counts[v] = counts.get(v, 0) + 1
    if len({type(v) for v in counts}) > 1:  # True and 1 are equal, and not the same
        typed: dict[Any, int] = {}
        for v in values.tolist():
            typed[type(v), v] = typed.get((type(v), v), 0) + 1
        pairs = [(v, n) for (_, v), n in typed.items()]
    else:
        pairs = list(counts.items())
    return np.array([*(v for v, _ in pairs), None], object)[:-1], np.array([n for _, n in pairs], np.int64)
