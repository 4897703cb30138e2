"""What one column is: its kind and its bounds or categories, from its raw cells and what a person says of it."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from unmask.errors import UserError, option, suggest
from unmask.modalities.table.reading.dates import Dates, dates_of, odd_days
from unmask.modalities.table.reading.decimal_marks import CELL, PLAIN, Marks, Spelling, spelling_of
from unmask.modalities.table.reading.findings import Finding, named, setting
from unmask.modalities.table.reading.parse import AMBIGUOUS, days, is_missing, measured, numbers, text_of
from unmask.modalities.table.schema.roles import (
    is_free_text,
    numbers_are_ids,
    repeats_individuals,
    runs_of,
    texts_are_ids,
)
from unmask.modalities.table.schema.schema import LEFT_OUT, QUANTITIES, Column, Kind
from unmask.modalities.table.schema.spelling_variants import are_codes, spelt_alike, zeros_in_front
from unmask.modalities.table.schema.suspicious_values import (
    NO_VALUE_WORDS,
    SENTINELS,
    codes,
    dates_as_numbers,
    extremes,
    far_off,
    kept_words,
    no_value_words,
    repeated_ids,
    sentinel_values,
    sentinels,
    spelt_in,
)
from unmask.natural import natural

NOT_READ = (dt.timedelta, np.timedelta64, complex, bytes)
"""Types of a cell that are neither a number nor a category by themselves."""


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
        self.name, self.raw, self.given, self.levels, self.row_name = name, raw, given, levels, row_name
        self.findings: list[Finding] = []
        if "decimal" in given:
            spelling = spelling_of(raw, told=given["decimal"])
        self.spelling = spelling
        self.own = spellings(given["missing"]) if "missing" in given else ()
        keep = [text_of(t) for t in given["categories"]] if isinstance(given.get("categories"), list | tuple) else None
        self.gone = is_missing(raw, (*missing, *self.own), () if given.get("kind") in QUANTITIES else keep)
        self.values, self.counts = _distinct(raw[~self.gone])
        self.rows = int(self.counts.sum())
        suffixes = [*given.get("suffixes", ()), *([given["unit"]] if isinstance(given.get("unit"), str) else [])]
        self.number, self.bad = measured(self.values, spelling.marks, given.get("limits"), suffixes)

    def column(self) -> tuple[Column, list[Finding], dict[str, int]]:
        kind: Kind = self.given.get("kind") or self._kind()
        fields: dict[str, Any] = {"name": self.name, "kind": kind}
        if kind in ("numeric", "integer"):
            fields |= self._quantity(kind)
        elif kind == "datetime":
            fields |= self._dates()
        elif kind not in LEFT_OUT:
            fields["categories"] = self._categories()
        if kind in QUANTITIES and not self.rows:
            fields["low"] = float("inf")
            self._note("empty", f"{self.name!r} holds no value at all and is left out")
        fields |= {
            k: tuple(text_of(t) for t in v) if isinstance(v, list | tuple) else v
            for k, v in self.given.items()
            if k not in ("kind", "missing")
        }
        fields["missing"] = self.own
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
        good = self.number[~self.bad & np.isfinite(self.number)]
        distinct = np.unique(good)
        if len(good) < len(self.number):
            return (
                "integer"
                if len(good) and bool((good == np.round(good)).all()) and not np.isinf(self.number).any()
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
            why = numbers_are_ids(self.name, distinct, self.rows, whole, counting, self._runs())
            if why is not None:
                self.findings += [] if repeats_individuals(self.name) else dated
                return self._left_out("id", "looks like an identifier", why, len(distinct))
        if whole:
            self.findings += codes(self.name, distinct, self.rows) if "missing" not in self.given else []
        self.findings += dated
        return "integer" if whole else "numeric"

    def _all_numbers(self) -> np.ndarray:
        return numbers(self.raw[~self.gone], self.spelling.marks)[0]

    def _runs(self) -> int:
        return runs_of(self.raw[~self.gone]) if repeats_individuals(self.name) else self.rows

    def _text_kind(self, texts: list[str]) -> Kind:
        if is_free_text(texts, self.rows):
            return self._left_out("text", "is free text", "sentences, mostly not repeated", 0)
        why = (
            texts_are_ids(self.name, texts, self.rows, self._runs()) if self.levels is None or len(texts) > 12 else None
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
        self._note(kind, f"{self.name!r} {what} and is left out ({why})")
        if distinct and distinct < self.rows and repeats_individuals(self.name):
            self.findings += repeated_ids(self.name, distinct, self.rows)
        return kind

    # What a kind needs.

    def _quantity(self, kind: Kind) -> dict[str, Any]:
        self._misfits()
        infinite = ~self.bad & np.isinf(self.number)
        if infinite.any():
            self._error(
                "infinite", "", "Expected a finite number or an empty cell.", self.values[infinite], shown=float
            )
        good = ~self.bad & np.isfinite(self.number)
        values, counts = self.number[good], self.counts[good]
        fields: dict[str, Any] = self._marks(self.spelling.marks)
        if not len(values):
            return fields
        self._apart(*_merged(values, counts))
        # A few cells with more digits than the rest (computed, not measured) do not make a column more precise.
        share = [float(counts[np.round(values, d) == values].sum() / counts.sum()) for d in range(8)]
        decimals = next((d for d, s in enumerate(share) if s >= 0.99), None)
        return fields | {
            "decimals": 0 if kind == "integer" else decimals,
            "low": float(values.min()),
            "high": float(values.max()),
        }

    def _apart(self, values: np.ndarray, counts: np.ndarray) -> None:
        """Numbers apart from the others: codes of no value, slips of the decimal point."""
        far = np.zeros(len(values), bool)
        if not {"low", "high"} <= self.given.keys():
            far = far_off(values, counts)
        near, codes = ~far, {}
        if "missing" not in self.given:
            known = far & np.isin(values, list(SENTINELS))
            codes = dict(zip(values[known].tolist(), counts[known].tolist(), strict=True))
            codes |= sentinel_values(values[~far], counts[~far])
            near, far = ~far & ~np.isin(values, list(codes)), far & ~known
        others = (float(values[near][0]), float(values[near][-1]))
        self.findings += sentinels(self.name, codes, others)
        if far.any():
            hit = ~self.bad & np.isin(self.number, values[far])
            number = dict(zip(self.values[hit].tolist(), self.number[hit].tolist(), strict=True))
            rows = [i for i in np.flatnonzero(~self.gone).tolist() if self.raw[i] in number]
            listed = [(number[self.raw[i]], self.row_name(i)) for i in rows]
            self.findings += extremes(self.name, listed, others)

    def _marks(self, marks: Marks) -> dict[str, Any]:
        """How it writes numbers: said, and refused where it could be two ways."""
        if self.spelling.unclear:
            text = self.spelling.unclear
            found = (CELL.fullmatch(v) if isinstance(v, str) else None for v in self.raw)
            first = next(i for i, m in enumerate(found) if m is not None and m["number"] == text)
            self.findings.append(
                Finding(
                    severity="error",
                    column=self.name,
                    code="marks_unclear",
                    text=f"column {self.name!r}, row {self.row_name(first)}: {text!r} could be a decimal fraction or a "
                    f"number with thousands",
                    add=f"Say which mark parts decimals: {option('decimal', ',')} or {option('decimal', '.')}, or "
                    'decimal = "," in the schema (at its top, or of the column).',
                )
            )
        elif marks != PLAIN and any(isinstance(v, str) for v in self.values):
            parts = f"decimals after {marks.decimal!r}" + (
                f", thousands parted by {marks.thousands!r}" if marks.thousands else ""
            )
            self._note("marks", f"{self.name!r}: numbers are read with {parts} ({self.spelling.why})")
        return {"decimal": marks.decimal, "thousands": "" if marks.lakh else marks.thousands} if marks != PLAIN else {}

    def _misfits(self) -> None:
        """Cells that are no numbers, by what to do about them."""
        wrong = self.values[self.bad]
        if not len(wrong):
            return
        told = self.given.get("kind") in ("numeric", "integer")
        says = " is not a number" if told else " among numbers"
        found = {v: CELL.fullmatch(v) if isinstance(v, str) else None for v in wrong}
        limits = [v for v, m in found.items() if m is not None and m["limit"] and self._reads(m["number"])]
        words = [v for v in wrong if isinstance(v, str) and NO_VALUE_WORDS.fullmatch(v.strip())]
        marked = [
            v
            for v, m in found.items()
            if m is not None and m["suffix"] and v not in limits and self._reads(m["number"])
        ]
        rest = [v for v in wrong if v not in limits and v not in words and v not in marked]
        if limits:
            half = setting(self.name, 'limits = "half"')
            self._error(
                "limits",
                f"{says}: beyond a limit",
                f"Say what values beyond a limit of detection are: {half} (half the limit where it is "
                'below), "value" (the limit itself) or "missing".',
                limits,
            )
        if words:
            listed = json.dumps(list(dict.fromkeys(w.strip() for w in words)), ensure_ascii=False)
            self._error(
                "words",
                says,
                f"If these mean that there is no value: {setting(self.name, f'missing = {listed}')}",
                words,
            )
        if marked:
            marks = json.dumps(sorted({m["suffix"] for v in marked if (m := found[v]) is not None}), ensure_ascii=False)
            self._error(
                "suffix", says, f"To read the numbers before it: {setting(self.name, f'suffixes = {marks}')}", marked
            )
        if rest:
            hint = (
                f"The schema says {self.given['kind']}. Correct the cells, or list the spelling under `missing`."
                if told
                else "Correct the cells, list the spelling under `missing` in the schema, or declare the column "
                "nominal."
            )
            self._error("text_among_numbers", says, hint, rest)

    def _reads(self, text: str) -> bool:
        return not numbers(np.array([text], object), self.spelling.marks)[1][0]

    def _dates(self) -> dict[str, Any]:
        form = self.given.get("format")
        if form is None:
            found = dates_of(dict(zip(self.values.tolist(), self.counts.tolist(), strict=True)))
            form = found.format if found is not None else "%Y-%m-%d"
            if found is not None:
                self._date_problem(found)
        numeric, bad = days(self.values, form)
        if bad.any() and "format" in self.given:
            self._error("date", " is not a date", f"The schema says format = {form!r}.", self.values[bad])
        fields: dict[str, Any] = {"format": form}
        if not bad.all():
            good = numeric[~bad]
            today = (dt.datetime.now(dt.UTC).replace(tzinfo=None) - dt.datetime(1970, 1, 1)).days + 1
            self._odd_days(good, self.counts[~bad], float(today), form)
            fields |= {"low": float(good.min()), "high": float(good.max())}
            fields |= {"decimals": 0} if bool((good == np.round(good)).all()) else {}  # dates without times stay so
        return fields

    def _date_problem(self, found: Dates) -> None:
        first = setting(self.name, f'format = "{found.format}"')
        hint = f"Say which: {first}" + "".join(f' or "{f}"' for f in found.others)
        if found.problem == "unclear":
            cell = next((v for v in self.values if v.strip() not in found.bad), self.values[0])
            self.findings.append(
                Finding(
                    severity="error",
                    column=self.name,
                    code="date_unclear",
                    text=f"column {self.name!r}: dates such as {cell!r} could be day or month first, and no cell says "
                    "which",
                    add=hint,
                )
            )
        if found.problem == "short year":
            self.findings.append(
                Finding(
                    severity="error",
                    column=self.name,
                    code="short_year",
                    text=f"column {self.name!r}: dates such as {self.values[0]!r} have years of two digits",
                    add=f"{hint} (69 to 99 are 1969 to 1999, 00 to 68 are 2000 to 2068), or write the years in full.",
                )
            )
            return
        if found.bad:
            cells = [v for v in self.values if isinstance(v, str) and v.strip() in found.bad]
            also = (
                f"; some fit {', '.join(found.others)}: two ways of writing dates are mixed"
                if found.problem == "mixed"
                else ""
            )
            self._error(
                "date_mixed" if found.problem == "mixed" else "date_impossible",
                f" is no date written {found.format}",
                f"Most of {self.name!r} is written {found.format}{also}. Correct the cells, or list a spelling of none "
                f"under `missing`.",
                cells,
            )
        elif found.format.startswith(("%d/%m", "%m/%d", "%d-%m", "%m-%d")) and found.problem is None:
            first = "day" if found.format.startswith("%d") else "month"
            self._note(
                "date_format",
                f"{self.name!r}: dates are read {first} first ({found.format}), the one order all cells allow",
            )

    def _odd_days(self, found: np.ndarray, counts: np.ndarray, today: float, form: str) -> None:
        def text(day: float) -> str:
            return (dt.datetime(1970, 1, 1) + dt.timedelta(days=day)).strftime(form or "%Y-%m-%d")

        holders, later = odd_days(found, counts.tolist(), today)
        if holders:
            times = {text(d): int(counts[found == d].sum()) for d in holders}
            listed = ", ".join(f"{t} ({n} cells)" for t, n in times.items())
            self._warn(
                "date_placeholder",
                f"{self.name!r} holds {listed}: read as dates; often a placeholder for none. If so:",
                setting(self.name, f"missing = {json.dumps(list(times))}"),
            )
        if later:
            self._warn(
                "date_future",
                f"{self.name!r} holds {len(later)} dates that are still to come: {named([text(d) for d in later])}",
                "",
            )

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
        return spelt_in(self.raw, self.gone)

    def _note(self, code: str, text: str) -> None:
        self.findings.append(Finding(severity="note", column=self.name, code=code, text=text))

    def _warn(self, code: str, text: str, add: str) -> None:
        self.findings.append(Finding(severity="warning", column=self.name, code=code, text=text, add=add))

    def _error(
        self, code: str, wrong: str, hint: str, values: Iterable[Any], shown: Callable[[Any], Any] = lambda v: v
    ) -> None:
        """An error of all cells that hold one of some values."""
        values = set(values)
        rows = [i for i in np.flatnonzero(~self.gone).tolist() if self.raw[i] in values]
        self.findings.append(
            Finding(
                severity="error",
                column=self.name,
                code=code,
                add=hint,
                wrong=wrong,
                text=f"column {self.name!r}: {len(rows)} cells: {named(sorted(map(str, values)))}{wrong}",
                cells=tuple((self.row_name(i), shown(self.raw[i])) for i in rows),
            )
        )


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


def _merged(values: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct numbers of texts that may spell one number in two ways."""
    distinct, at = np.unique(values, return_inverse=True)
    return distinct, np.bincount(at, counts).astype(np.int64)
