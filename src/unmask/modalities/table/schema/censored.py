"""Cells that are only bounded (censored values): "<0.5", ">1000", "2-4", "<LOD", and cells at a declared limit.

They are no numbers, and not missing either: each is known to lie in an interval. `encode` has NaN there, and the
intervals travel beside the columns (`values.encode_censored`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import numpy as np

from unmask.modalities.table.reading.decimal_marks import CELL, Marks
from unmask.modalities.table.schema.schema import Column

_NUMBER = r"[+\-−]?(?:\d(?:[\d.,'’ \u00a0\u202f]*\d)?|[.,]\d+)(?:[eE][+-]?\d+)?"
_BETWEEN = re.compile(rf"\s*(?P<low>{_NUMBER})\s*[-–—]\s*(?P<high>{_NUMBER})\s*(?P<suffix>\D*?)\s*")
LIMIT_WORDS = re.compile(
    r"\s*(?:(?P<below>(?:<=?|≤)\s*(?:LOD|LOQ|LLOQ|LLD|MDL|DL)|BDL|BLD|BLOD|BLQ|BLOQ)|(?:>=?|≥)\s*U?LOQ|ALOQ)\s*",
    re.IGNORECASE,
)
"""How laboratories write "below the limit" and "above the limit" without the limit."""
LOW_TO_HIGH = "Write it from low to high, as 2-4, or correct the bounds of the column."
LEAST = 5e-324
"""The number above 0."""
COARSE, FINE = 20, 1e4
"""Values at the column's precision that an interval must hold for its cells to be drawn so; else it holds so many."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Censored:
    """The censored cells of one column.

    Attributes:
        rows: (cells,) where they stand.
        low, high: (cells,) ends of the intervals, which belong to them; infinite where there is none.
        digits: decimals that drawn values are rounded to; None: full precision.
    """

    rows: np.ndarray
    low: np.ndarray
    high: np.ndarray
    digits: int | None

    @property
    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Ends for a continuous draw: of whole numbers half a unit further out, as far as rounding reaches."""
        first, last = self._written_ends()
        return (first - 0.5, last + 0.5) if self.digits == 0 else (self.low, self.high)

    def written(self, x: np.ndarray) -> np.ndarray:
        """(cells,) values, rounded, and inside the intervals all the same."""
        return np.clip(x if self.digits is None else np.round(x, self.digits), *self._written_ends()) + 0.0

    def _written_ends(self) -> tuple[np.ndarray, np.ndarray]:
        if self.digits is None:
            return self.low, self.high
        first, last, step = np.round(self.low, self.digits), np.round(self.high, self.digits), 10.0**-self.digits
        first = np.where(first < self.low, np.round(first + step, self.digits), first)
        return first, np.where(last > self.high, np.round(last - step, self.digits), last)

    def mask(self, rows: int) -> np.ndarray:
        """(rows,) which cells of the column are censored."""
        out = np.zeros(rows, bool)
        out[self.rows] = True
        return out

    def words(self) -> str:
        """How many cells lie where.

        >>> inf = np.inf
        >>> Censored(rows=np.arange(3), low=np.array([-inf, -inf, 2]), high=np.array([0.5, 0.5, 4]), digits=1).words()
        '2 cells below 0.5, 1 between two numbers'
        """
        return counted(self.low, self.high, np.ones(len(self.low), int))


def counted(low: np.ndarray, high: np.ndarray, counts: np.ndarray) -> str:
    """How many cells lie below a limit, above one, between two."""
    above = high == np.inf
    below = (low <= LEAST) & ~above
    parts: list[str] = []
    for here, word, ends in ((below, "below", high), (above, "above", low), (~below & ~above, "between", None)):
        if here.any():
            named = [] if ends is None else [f"{end:g}" for end in (ends[here].min(), ends[here].max())]
            where = " to ".join(dict.fromkeys(named)) or "two numbers"
            number = int(counts[here].sum())
            cells = "" if parts else " cell" if number == 1 else " cells"
            parts.append(f"{number}{cells} {word} {where}")
    return ", ".join(parts)


def ends_of(
    values: np.ndarray,
    number: np.ndarray,
    bad: np.ndarray,
    marks: Marks,
    suffixes: Sequence[str] = (),
    lod: float | None = None,
    uloq: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the interval of each cell that is censored, NaN where it is not; an open end is the next number inside.

    Args:
        number, bad: what `measured` made of the values: a number is none, unless it is at or beyond a declared limit.
        lod, uloq: declared limits.

    >>> texts = np.array(["<=0.5", "2 – 4", "7"], object)
    >>> low, high = ends_of(texts, np.array([np.nan, np.nan, 7]), np.array([True, True, False]), Marks())
    >>> low.tolist(), high.tolist()
    ([-inf, 2.0, nan], [0.5, 4.0, nan])
    """
    low, high = np.full(len(values), np.nan), np.full(len(values), np.nan)
    with np.errstate(invalid="ignore"):
        if lod is not None:
            low[number <= lod], high[number <= lod] = -np.inf, lod
        if uloq is not None:
            low[number >= uloq], high[number >= uloq] = uloq, np.inf
    for i in np.flatnonzero(bad).tolist():
        found = _interval(values[i], marks, suffixes, lod, uloq) if isinstance(values[i], str) else None
        if found is not None:
            low[i], high[i] = found
    return low, high


def _interval(
    text: str, marks: Marks, suffixes: Sequence[str], lod: float | None, uloq: float | None
) -> tuple[float, float] | None:
    if word := LIMIT_WORDS.fullmatch(text):
        limit = lod if word["below"] else uloq
        return None if limit is None else (-np.inf, limit) if word["below"] else (limit, np.inf)
    cell, between = CELL.fullmatch(text), _BETWEEN.fullmatch(text)
    found = cell if cell is not None and cell["limit"] else between
    if found is None or (found["suffix"] and found["suffix"] not in suffixes):
        return None
    try:
        if found is between:
            return marks.read(found["low"]), marks.read(found["high"])
        number, sign = marks.read(found["number"]), found["limit"]
    except ValueError:
        return None
    open_ = sign in "<>"
    if sign[0] in "<≤" or sign == "=<":
        return -np.inf, float(np.nextafter(number, -np.inf)) if open_ else number
    return float(np.nextafter(number, np.inf)) if open_ else number, np.inf


def refused(low: np.ndarray, high: np.ndarray, bounds: tuple[float, float]) -> dict[str, np.ndarray]:
    """What is wrong with some intervals, behind their text -> which; `bounds`: those a person gave."""
    with np.errstate(invalid="ignore"):
        swapped = low > high
        outside = ~swapped & ((high < bounds[0]) | (low > bounds[1]))
    return {
        " is no interval: its ends are swapped": swapped,
        f" leaves nothing within the bounds given ({bounds[0]:g} to {bounds[1]:g})": outside,
    }


def floor_of(column: Column) -> float:
    """The least that a cell below a limit can be: the bound given; else 0 where the column has no negative number, a
    little more where it has no 0 either."""
    if column.bounds[0] > -np.inf or column.low is None or column.low < 0:
        return column.bounds[0]
    return LEAST if column.low > 0 else 0.0


def censored(rows: np.ndarray, low: np.ndarray, high: np.ndarray, column: Column) -> Censored:
    """The censored cells of a column, from the ends that their texts name, cut to the column's bounds."""
    floor = floor_of(column)
    low, high = (
        np.where(high > 0, np.maximum(low, floor), np.maximum(low, column.bounds[0])),
        np.minimum(high, column.bounds[1]),
    )
    digits = column.decimals if column.kind != "datetime" else None
    if digits is not None:
        width = float((high - low).min(initial=np.inf))
        held = np.floor(high * 10.0**digits) - np.ceil(low * 10.0**digits) + 1 if np.isfinite(width) else np.inf
        if float(np.min(held, initial=np.inf)) < (2 if column.kind == "integer" else COARSE):
            digits = min(12, max(digits, int(np.ceil(np.log10(FINE / max(width, 1e-12))))))
    return Censored(rows=rows, low=low, high=high, digits=digits)
