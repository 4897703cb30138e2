"""One column of a table being read: its cells, the numbers they are, what a person says of it, and what is noticed.

Of columns with a single value and empty cells the user must say what an empty cell means, as the table cannot: in a
tick box it means no; elsewhere the true value is unknown. Treated as missing, every empty cell would be filled with the
one value that the column has.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.given import no_value
from unmask.modalities.table.reading.decimal_marks import Spelling, spelling_of
from unmask.modalities.table.reading.findings import Finding, named, setting, toml_text
from unmask.modalities.table.reading.parse import is_missing, measured, numbers, text_of
from unmask.modalities.table.schema.censored import ends_of
from unmask.modalities.table.schema.schema import QUANTITIES
from unmask.modalities.table.schema.survival_pair import YES_NO, spelled

SHEET_ERROR = re.compile(r"#[¡¿]?[^\W\d_]+(?:/0)?[!?]|#{2,}")
"""What spreadsheets show for a formula without a result, in their languages, or where a column is too narrow."""


def spellings(given: Any) -> tuple[str, ...]:
    """One spelling of a missing value, or several, as texts."""
    return tuple(text_of(m) for m in (given if isinstance(given, list | tuple) else [given]))


class RawColumn:
    """See the module.

    Args:
        missing: spellings of a missing value in all columns.
        spelling: how it writes numbers.
        levels: what its type declares of categories; see `Frame.levels`.

    Attributes:
        raw: the cells, None where a formula has no result (`broken`); empty: which of them hold no value.
        values, counts: the distinct cells that hold one, and how often each stands there.
        number, bad: of each of these, its number, and whether it is none.
        low, high: of each, its interval where it is only bounded (censored), else NaN.
        rows: cells that hold a value.
        findings: what is noticed, in order.
    """

    def __init__(
        self,
        name: str,
        raw: np.ndarray,
        given: Mapping[str, Any],
        *,
        missing: tuple[str, ...],
        spelling: Spelling,
        levels: tuple[str, ...] | None,
        row_name: Callable[[int], Any],
    ) -> None:
        self.name, self.given, self.levels, self.row_name = name, given, levels, row_name
        self.findings: list[Finding] = []
        self.spelling = spelling_of(raw, decimal=given["decimal"]) if "decimal" in given else spelling
        self.own = spellings(given["missing"]) if "missing" in given else ()
        self.missing = (*missing, *self.own)
        keep = [text_of(t) for t in given["categories"]] if isinstance(given.get("categories"), list | tuple) else None
        if keep is None and levels is not None:  # what a type has as a category is a value, whatever it is called
            keep = [t for v in set(raw.tolist()) if not no_value(v) and (t := text_of(v)).strip()]
        self.blank = text_of(given["blank"]) if given.get("blank") is not None else None
        raw = self.raw = self._shown = with_blanks(raw, self.blank, self.missing, name)
        self.empty = is_missing(raw, self.missing, () if given.get("kind") in QUANTITIES else keep)
        self.values, self.counts = _distinct(raw[~self.empty])
        self.broken = {v for v in self.values if isinstance(v, str) and SHEET_ERROR.fullmatch(v.strip())}
        if self.broken:
            errors = np.array([isinstance(v, str) and v in self.broken for v in raw])
            self.empty, self.raw = self.empty | errors, raw.copy()
            self.raw[errors] = None
            self.values, self.counts = _distinct(raw[~self.empty])
        self.rows = int(self.counts.sum())
        suffixes = [*given.get("suffixes", ()), *([given["unit"]] if isinstance(given.get("unit"), str) else [])]
        self.number, self.bad = measured(self.values, self.spelling.marks, given.get("limits"), suffixes)
        limits = given.get("lod"), given.get("uloq")
        self.low, self.high = ends_of(self.values, self.number, self.bad, self.spelling.marks, suffixes, *limits)

    def spelt(self) -> dict[str, int]:
        """Which texts were taken for missing, in how many cells."""
        return spelt_in(self.raw, self.empty)

    def setting(self, line: str) -> str:
        """A line of a schema file about this column."""
        return setting(self.name, line)

    def note(self, code: str, text: str) -> None:
        """Say something that wants no decision."""
        self.findings.append(Finding("note", self.name, code, text))

    def warn(self, code: str, text: str, add: str = "") -> None:
        """Say something that wants a decision, and what to `add` to the schema for it."""
        self.findings.append(Finding("warning", self.name, code, text, add))

    def error(
        self, code: str, wrong: str, hint: str, values: Iterable[Any], shown: Callable[[Any], Any] = lambda v: v
    ) -> None:
        """An error of all cells that hold one of some values."""
        values = set(values)
        rows = [i for i, v in enumerate(self._shown.tolist()) if v.__hash__ is not None and v in values]
        text = f"column {self.name!r}: {len(rows)} cells: {named(sorted(map(str, values)))}{wrong}"
        cells = tuple((self.row_name(i), shown(self._shown[i])) for i in rows)
        self.findings.append(Finding("error", self.name, code, text, hint, cells=cells, wrong=wrong))


def spelt_in(raw: np.ndarray, empty: np.ndarray) -> dict[str, int]:
    """What stands in a column's missing cells (`empty`) -> in how many."""
    cells = raw[empty]
    if cells.dtype == object:
        return dict(Counter(v for v in cells if isinstance(v, str)))
    return dict(Counter(text_of(v) for v in cells if v == v))


def _distinct(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct values, in the order in which they come for objects, and how often each stands there."""
    if values.dtype != object:
        return np.unique(values, return_counts=True)
    counts = Counter(values.tolist())
    pairs = list(counts.items())
    if len(set(map(type, counts))) > 1:  # True and 1 are equal, and not the same
        pairs = [(v, n) for (_, v), n in Counter((type(v), v) for v in values.tolist()).items()]
    return np.array([*(v for v, _ in pairs), None], object)[:-1], np.array([n for _, n in pairs], np.int64)


TICKS = frozenset({"x", "+", "✓", "✔", "☑", "☒", "si", "sí", "sim", "1", "true", "t", "yes", "y", "ja", "j", "oui"})
"""Texts in small letters that tick a box; several of them in one column are one value still."""
_NO = {"x": "no"} | {happened: censored for censored, happened in reversed(YES_NO)}
"""What is written where the box is not ticked."""


def with_blanks(raw: np.ndarray, blank: str | None, own: Sequence[str] = (), name: str = "") -> np.ndarray:
    """Raw cells with those that hold no value replaced by what they mean.

    Args:
        blank: what they mean; None: nothing is known of them.
        own: spellings of a missing value that a person gave, which stay missing.

    >>> with_blanks(np.array(["x", None, "NA", " "], object), "no").tolist()
    ['x', 'no', 'no', 'no']
    """
    if blank is None:
        return raw
    if raw.dtype.kind == "f":
        try:
            value: Any = float(blank)
        except ValueError:
            raise _misfit(name, blank, "numbers", "0") from None
        return np.where(blank_cells(raw, blank, own), value, raw)
    empty = blank_cells(raw, blank, own)
    example = next((v for v in raw[~empty] if not no_value(v)), None)
    value = blank
    if isinstance(example, bool | np.bool_):
        if blank.lower() not in ("true", "false"):
            raise _misfit(name, blank, "true and false", "False")
        value = blank.lower() == "true"
    out = raw.astype(object)
    out[empty] = value
    return out


def blank_cells(raw: np.ndarray, blank: str | None, own: Sequence[str]) -> np.ndarray:
    """Which cells of a column mean something though they hold nothing; see `with_blanks`."""
    return np.zeros(len(raw), bool) if blank is None else is_missing(raw) & ~_spelt(raw, own)


def blank_notes(name: str, raw: np.ndarray, blank: str | None, own: Sequence[str]) -> list[str]:
    """A sentence on these cells, where there are any."""
    count = int(blank_cells(raw, blank, own).sum())
    return [f"{name!r}: {count} empty cells are {blank!r}, as the schema says"] if count else []


def _misfit(name: str, blank: str, what: str, example: str) -> UserError:
    return UserError(
        f"column {name!r}: blank = {blank!r} in a column of {what}", hint=f"Write blank = {toml_text(example)}."
    )


def _spelt(raw: np.ndarray, own: Sequence[str]) -> np.ndarray:
    """Cells that hold a spelling which a person gave; "" for empty ones."""
    known = {text_of(t).lower() for t in own}
    return np.array([("" if no_value(v) else text_of(v).lower()) in known for v in raw.tolist()], bool)


def unexplained(
    name: str, raw: np.ndarray, empty: np.ndarray, texts: Sequence[str], own: Sequence[str], *, quantity: bool = False
) -> list[Finding]:
    """An error where a column holds one value, other cells none, and the schema does not say what these mean. `texts`:
    its distinct values; `own`: spellings of a missing value that a person gave; `quantity`: its values are numbers or
    dates, of which 1 alone ticks a box."""
    values = {" ".join(t.split()).casefold() for t in texts}
    one_value = len(values) == 1 or (bool(values) and values <= TICKS)
    if not one_value or (quantity and values != {"1"}) or values <= set(_NO.values()) or _spelt(raw[empty], own).all():
        return []
    held = int((~empty).sum())
    other = "no" if numbers(np.array(texts, object))[1].any() else "0"
    no = spelled(_NO.get(min(values), other), texts[0])
    no, unknown = setting(name, f"blank = {toml_text(no)}"), setting(name, 'missing = [""]')
    text = (
        f"column {name!r} holds {', '.join(map(repr, texts))} in {held} of {len(raw)} rows, and no value in "
        "the others: an empty cell may mean no, as in a tick box, or that nobody knows"
    )
    add = (
        f"If it means no: {no}. If nobody knows, and all are to be imputed as {texts[0]!r}: {unknown}. "
        'kind = "text" leaves the column out.'
    )
    return [Finding("error", name, "tick_box", text, add)]
