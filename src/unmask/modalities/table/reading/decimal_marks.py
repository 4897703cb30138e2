"""How a file writes its numbers: decimal and thousands marks, found from all cells of a column, with the evidence said.

`1,5` is read as one and a half where every number of the column allows it. `1,234` alone may be either: the file's
other columns, semicolons between cells (which spreadsheets write where the comma is the decimal mark) or the person
decide. So may `1.234` where semicolons part cells, or commas decimals elsewhere: nothing but the person decides then.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Literal

import numpy as np

CELL = re.compile(
    r"\s*(?P<limit><=|>=|=<|=>|[<>≤≥])?\s*"
    r"(?P<number>[+\-−]?(?:\d(?:[\d.,'’ \u00a0\u202f]*\d)?|[.,]\d+)[.,]?(?:[eE][+-]?\d+)?)\s*(?P<suffix>\D*?)\s*"
)
"""A number as people write it: perhaps with a sign of a limit before it, and a unit or a mark after it."""


@dataclass(frozen=True)
class Marks:
    """The decimal mark, and what parts thousands (nothing, as a rule); `lakh` groups by two after the first three."""

    decimal: Literal[".", ","] = "."
    thousands: str = ""
    lakh: bool = False

    def read(self, text: str) -> float:
        """A number from its text.

        >>> Marks(",").read("1,5"), Marks(",", ".").read("-1.234,5"), Marks(".", ",", True).read("12,34,567")
        (1.5, -1234.5, 1234567.0)

        Raises:
            ValueError: it is none in this spelling.
        """
        text = text.strip().replace("−", "-")
        if "_" in text:
            raise ValueError(text)
        if self.decimal == "." and not self.thousands:
            return float(text)
        if self.decimal == "," and "." in text and self.thousands != ".":
            raise ValueError(text)
        if self.thousands and self.thousands in text:
            t, d = re.escape(self.thousands), re.escape(self.decimal)
            groups = rf"[1-9]\d?(?:{t}\d{{2}})*{t}\d{{3}}" if self.lakh else rf"[1-9]\d{{0,2}}(?:{t}\d{{3}})+"
            if not re.fullmatch(rf"[+-]?{groups}(?:{d}\d*)?", text):
                raise ValueError(text)
            text = text.replace(self.thousands, "")
        if self.decimal == ",":
            if "." in text:
                raise ValueError(text)
            text = text.replace(",", ".")
        return float(text)

    def write(self, text: str) -> str:
        """A number's plain text in this spelling.

        >>> Marks(",", ".").write("-1234567.5"), Marks(",").write("0.25"), Marks(".", ",", True).write("1234567")
        ('-1.234.567,5', '0,25', '12,34,567')
        """
        if "e" in text or "n" in text:
            return text.replace(".", self.decimal)
        sign, text = ("-", text[1:]) if text.startswith("-") else ("", text)
        whole, point, rest = text.partition(".")
        if self.thousands and len(whole) > 3:
            head, tail = whole[:-3], whole[-3:]
            step = 2 if self.lakh else 3
            parts = [head[max(0, i - step) : i] for i in range(len(head), 0, -step)][::-1]
            whole = self.thousands.join([*parts, tail])
        return sign + whole + (self.decimal if point else "") + rest


PLAIN = Marks()
POINTS = Marks(",", ".")
_STYLES = (
    PLAIN,
    *(Marks(",", thousands) for thousands in ("", ".", " ", "\u00a0", "\u202f", "'", "’")),
    Marks(".", ","),
    Marks(".", ",", True),
    *(Marks(".", thousands) for thousands in ("'", "’", " ", "\u00a0", "\u202f")),
)


@dataclass(frozen=True)
class Spelling:
    """How a column writes its numbers: the marks, and the evidence where they are not the plain ones. `unclear`: a cell
    that could be two numbers, and nothing in the file says which."""

    marks: Marks = PLAIN
    why: str = ""
    unclear: str = ""


def spelling_of(column: np.ndarray, *, decimal: str | None = None) -> Spelling:
    """How a column of texts writes its numbers, the file apart; the plain spelling where it holds none. `decimal`: the
    decimal mark as a person gave it."""
    return _decide(_numbers_in(column) if column.dtype == object else [], ",", frozenset(), decimal, None)


def spellings_of(
    columns: Sequence[np.ndarray],
    *,
    delimiter: str = ",",
    decimal: str | None = None,
    priors: Sequence[Marks | None] | None = None,
) -> list[Spelling]:
    """How each column of a file writes its numbers; columns that can be read in one way only speak for the others.
    A semicolon as delimiter speaks for decimal commas; `decimal`: the decimal mark as a person gave it; `priors`: the
    spellings of the table that a model was fitted on."""
    texts = [_numbers_in(c) if c.dtype == object else [] for c in columns]
    certain = [_certain(t) for t in texts]
    count = Counter(certain)
    others = [{mark for mark in (".", ",") if count[mark] > (mark == own)} for own in certain]
    priors = priors or [None] * len(columns)
    return [_decide(t, delimiter, other, decimal, prior) for t, other, prior in zip(texts, others, priors, strict=True)]


def _numbers_in(column: np.ndarray) -> list[str]:
    """The numbers in a column's distinct texts, in the order in which they come, where most of these are numbers."""
    texts = [v for v in dict.fromkeys(v for v in column.tolist() if isinstance(v, str)) if v.strip()]
    plain = ~np.isnan(plain_numbers(texts))
    matches = [None if p else CELL.fullmatch(v) for v, p in zip(texts, plain.tolist(), strict=True)]
    found = [m["number"] if m else v for v, p, m in zip(texts, plain.tolist(), matches, strict=True) if m or p]
    return found if 2 * len(found) >= len(texts) else []


def _viable(texts: list[str]) -> list[Marks]:
    """The spellings that read most of the texts."""
    together = "\n".join(texts)
    if not any(c in together for c in ",'’ \u00a0\u202f.") and texts:
        return [PLAIN]
    odd = [t for t, n in zip(texts, plain_numbers(texts).tolist(), strict=True) if n != n]
    if texts and all(_reads(PLAIN, t) for t in odd):
        # Marks that nowhere stand change nothing.
        same = [s for s in _STYLES if s.decimal == "." and s.thousands not in together]
        return [PLAIN, *(s for s in _STYLES[1:] if s in same or all(_reads(s, t) for t in texts))]
    counts = {style: sum(_reads(style, t) for t in texts) for style in _STYLES}
    most = max(counts.values(), default=0)
    return [s for s, n in counts.items() if n == most] if most else []


def _reads(style: Marks, text: str) -> bool:
    try:
        style.read(text)
    except ValueError:
        return False
    return True


def _certain(texts: list[str]) -> str:
    """The decimal mark that a column has whatever else the file says; "" where it has none or could have either."""
    viable = _viable(texts)
    decimals = {s.decimal for s in viable}
    if len(decimals) != 1 or not any(c in t for t in texts for c in ",."):
        return ""
    return decimals.pop()


def _decide(texts: list[str], delimiter: str, elsewhere: Set[str], mark: str | None, prior: Marks | None) -> Spelling:
    viable = _viable(texts)
    if not viable:
        return Spelling(Marks(mark) if mark == "," else PLAIN)  # type: ignore[arg-type]
    if mark is not None:
        fitting = [s for s in viable if s.decimal == mark] or [s for s in _STYLES if s.decimal == mark]
        return Spelling(fitting[0], "as told")
    first = viable[0]
    if first == PLAIN and prior is None:
        # Where commas part decimals, or may, points part thousands: 1.081 beside 611, even beside a slip (12.5).
        commas = "," in elsewhere or (delimiter == ";" and "." not in {*elsewhere, _certain(texts)})
        grouped = next((t for t in texts if "." in t and _differ(POINTS, PLAIN, [t])), "") if commas else ""
        if grouped:
            return Spelling(first, unclear=grouped)
    sure = next(iter(elsewhere)) if len(elsewhere) == 1 else ""
    other = next((s for s in viable if s.decimal != first.decimal and _differ(s, first, texts)), None)
    if other is None:
        same = [s for s in viable if s.decimal == sure] or viable
        why = "" if same[0] == PLAIN else "every number of the column allows it"
        return Spelling(PLAIN if PLAIN in viable else same[0], why)
    example = next(t for t in texts if _reads(first, t) and _reads(other, t) and first.read(t) != other.read(t))
    if first == PLAIN and sure != ",":
        return Spelling()  # points are decimal marks unless the file uses commas for these
    if prior is not None and prior in viable and prior != PLAIN:
        return Spelling(prior, "as in the table the model was fitted on")
    if first != PLAIN:
        if sure:
            return Spelling(first if first.decimal == sure else other, "other columns of the file are certain")
        if delimiter == ";":
            return Spelling(first if first.decimal == "," else other, "semicolons part the cells")
    return Spelling(first, unclear=example)


def _differ(a: Marks, b: Marks, texts: list[str]) -> bool:
    return any(_reads(a, t) and _reads(b, t) and a.read(t) != b.read(t) for t in texts)


PLAIN_NUMBER = r"^-?[0-9]{1,18}(?:\.[0-9]{1,18})?$"
FEWEST = 500
"""Cells from which on reading them at once is worth it."""


def plain_numbers(values: np.ndarray | Sequence[object]) -> np.ndarray:
    """The number of every cell that is a text such as -12 or 3.50; NaN for all other cells, and for all of a few cells.

    The numbers are those of `float`, bit for bit.
    """
    if len(values) < FEWEST:
        return np.full(len(values), np.nan)
    import polars as pl

    listed = values.tolist() if isinstance(values, np.ndarray) else values
    if not {*map(type, listed)} <= {str, type(None)}:
        listed = [v if type(v) is str else None for v in listed]
    try:
        texts = pl.DataFrame({"text": pl.Series(listed, dtype=pl.String)})
    except UnicodeError:  # halves of characters, which only Python's texts may hold
        return np.full(len(values), np.nan)
    plain = pl.when(pl.col("text").str.contains(PLAIN_NUMBER)).then(pl.col("text"))
    return texts.select(plain.cast(pl.Float64).fill_null(float("nan")))["text"].to_numpy().copy()
