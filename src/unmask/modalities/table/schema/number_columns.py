"""Columns of numbers: how they are written, cells that are none, and numbers that stand apart from the others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unmask.errors import option
from unmask.modalities.table.reading.decimal_marks import CELL, PLAIN, Marks, Spelling
from unmask.modalities.table.reading.findings import Finding, named, setting
from unmask.modalities.table.reading.parse import LARGEST, beyond_arithmetic, numbers
from unmask.modalities.table.schema.suspicious_values import (
    NO_VALUE_WORDS,
    SENTINELS,
    extremes,
    far_off,
    sentinel_values,
    sentinels,
)


@dataclass(frozen=True, kw_only=True)
class NumberColumn:
    """A column of numbers that is being read.

    Attributes:
        spelling: how it writes them.
        number: of each distinct cell that holds a value; bad: which of these are no numbers.
    """

    cells: Cells
    spelling: Spelling
    number: np.ndarray
    bad: np.ndarray

    def fields(self, *, whole: bool) -> dict[str, Any]:
        """Bounds, decimals and marks of the column; what is odd about its numbers is said."""
        self._misfits()
        infinite = ~self.bad & beyond_arithmetic(self.number)
        if infinite.any():
            self.cells.error(
                "infinite",
                "",
                f"Expected a finite number, of at most {LARGEST:.1e}, or an empty cell.",
                self.cells.values[infinite],
                shown=float,
            )
        good = ~self.bad & ~infinite & ~np.isnan(self.number)
        values, counts = self.number[good], self.cells.counts[good]
        fields: dict[str, Any] = self._marks(self.spelling.marks)
        if not len(values):
            return fields
        self._apart(*_merged(values, counts))
        # A few cells with more digits than the rest (computed, not measured) do not make a column more precise.
        share = [float(counts[np.round(values, d) == values].sum() / counts.sum()) for d in range(8)]
        decimals = next((d for d, s in enumerate(share) if s >= 0.99), None)
        return fields | {
            "decimals": 0 if whole else decimals,
            "low": float(values.min()),
            "high": float(values.max()),
        }

    def _apart(self, values: np.ndarray, counts: np.ndarray) -> None:
        """Numbers apart from the others: codes of no value, slips of the decimal point."""
        far = np.zeros(len(values), bool)
        if not {"low", "high"} <= self.cells.given.keys():
            far = far_off(values, counts)
        near, codes = ~far, {}
        if "missing" not in self.cells.given:
            known = far & np.isin(values, list(SENTINELS))
            codes = dict(zip(values[known].tolist(), counts[known].tolist(), strict=True))
            codes |= sentinel_values(values[~far], counts[~far])
            near, far = ~far & ~np.isin(values, list(codes)), far & ~known
        others = (float(values[near][0]), float(values[near][-1]))
        self.cells.findings.extend(sentinels(self.cells.name, codes, others))
        if far.any():
            hit = ~self.bad & np.isin(self.number, values[far])
            number = dict(zip(self.cells.values[hit].tolist(), self.number[hit].tolist(), strict=True))
            rows = [i for i in np.flatnonzero(~self.cells.empty).tolist() if self.cells.raw[i] in number]
            listed = [(number[self.cells.raw[i]], self.cells.row_name(i)) for i in rows]
            self.cells.findings.extend(extremes(self.cells.name, listed, others))

    def _marks(self, marks: Marks) -> dict[str, Any]:
        """How it writes numbers: said, and refused where it could be two ways."""
        if self.spelling.unclear:
            text = self.spelling.unclear
            found = (CELL.fullmatch(v) if isinstance(v, str) else None for v in self.cells.raw)
            first = next(i for i, m in enumerate(found) if m is not None and m["number"] == text)
            self.cells.findings.append(
                Finding(
                    severity="error",
                    column=self.cells.name,
                    code="marks_unclear",
                    text=f"column {self.cells.name!r}, row {self.cells.row_name(first)}: {text!r} could be a decimal "
                    "fraction or a number with thousands",
                    add=f"Say which mark parts decimals: {option('decimal', ',')} or {option('decimal', '.')}, or "
                    'decimal = "," in the schema (at its top, or of the column).',
                )
            )
        elif marks != PLAIN and any(isinstance(v, str) for v in self.cells.values):
            parts = f"decimals after {marks.decimal!r}" + (
                f", thousands parted by {marks.thousands!r}" if marks.thousands else ""
            )
            self.cells.note("marks", f"{self.cells.name!r}: numbers are read with {parts} ({self.spelling.why})")
        return {"decimal": marks.decimal, "thousands": "" if marks.lakh else marks.thousands} if marks != PLAIN else {}

    def _misfits(self) -> None:
        """Cells that are no numbers, by what to do about them."""
        wrong = self.cells.values[self.bad]
        if not len(wrong):
            return
        declared = self.cells.given.get("kind") in ("numeric", "integer")
        says = " is not a number" if declared else " among numbers"
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
            half = setting(self.cells.name, 'limits = "half"')
            self.cells.error(
                "limits",
                f"{says}: beyond a limit",
                f"Say what values beyond a limit of detection are: {half} (half the limit where it is "
                'below), "value" (the limit itself) or "missing".',
                limits,
            )
        if words:
            listed = json.dumps(list(dict.fromkeys(w.strip() for w in words)), ensure_ascii=False)
            self.cells.error(
                "words",
                says,
                f"If these mean that there is no value: {setting(self.cells.name, f'missing = {listed}')}",
                words,
            )
        if marked:
            marks = json.dumps(sorted({m["suffix"] for v in marked if (m := found[v]) is not None}), ensure_ascii=False)
            self.cells.error(
                "suffix",
                says,
                f"To read the numbers before it: {setting(self.cells.name, f'suffixes = {marks}')}",
                marked,
            )
        if rest:
            hint = (
                f"The schema says {self.cells.given['kind']}. Correct the cells, or list the spelling under `missing`."
                if declared
                else "Correct the cells, list the spelling under `missing` in the schema, or declare the column "
                "nominal."
            )
            self.cells.error("text_among_numbers", says, hint, rest)

    def _reads(self, text: str) -> bool:
        return not numbers(np.array([text], object), self.spelling.marks)[1][0]


def _merged(values: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct numbers of texts that may spell one number in two ways."""
    distinct, at = np.unique(values, return_inverse=True)
    return distinct, np.bincount(at, counts).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Cells:
    """The cells of a column.

    Attributes:
        raw: all of them; gone: which of them hold no value.
        values, counts: the distinct cells that hold one, and how often each stands there.
        given: what a person says of the column.
        row_name: names the row of a cell in messages.
        findings: what is said, in order.
    """

    name: str
    raw: np.ndarray
    empty: np.ndarray
    values: np.ndarray
    counts: np.ndarray
    given: Mapping[str, Any]
    row_name: Callable[[int], int]
    findings: list[Finding] = field(default_factory=list)

    def note(self, code: str, text: str) -> None:
        """Say something that wants no decision."""
        self.findings.append(Finding(severity="note", column=self.name, code=code, text=text))

    def warn(self, code: str, text: str, add: str) -> None:
        """Say something that wants a decision, and what to `add` to the schema for it."""
        self.findings.append(Finding(severity="warning", column=self.name, code=code, text=text, add=add))

    def error(
        self, code: str, wrong: str, hint: str, values: Iterable[Any], shown: Callable[[Any], Any] = lambda v: v
    ) -> None:
        """An error of all cells that hold one of some values."""
        values = set(values)
        rows = [i for i, v in enumerate(self.raw.tolist()) if v.__hash__ is not None and v in values]
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
