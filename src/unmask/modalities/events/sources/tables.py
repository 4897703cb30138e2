"""Folders of tables, as data: what of each table makes an event, when it was known, which rows are none, and how
cells are meant (`CellReading`).

`omop.py` and `mimic.py` declare the folders; this file says what a declaration may hold. The page
docs/reference/when-a-fact-was-known.md prints the same declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from unmask.errors import UserError, option, suggest
from unmask.given import MISSING_WORDS
from unmask.modalities.events.records.parquet import LARGEST
from unmask.modalities.events.sources.times import MANY, ORDERS, Order

MISSING = (*sorted(MISSING_WORDS), "nat", "?", ".")
"""Texts that mean an empty cell of a plain table, in any case; `NA`, as R writes it, is one in capitals. As tables have
it."""
DECIMALS = (",", ".")
MARKED = r"^[+-]?\d*[.,]?\d[\d.,]*(?:[eE][+-]?\d+)?$"
"""A number that may hold marks between its digits."""
READ = {
    ",": r"^[+-]?(?:\d+|[1-9]\d{0,2}(?:\.\d{3})+)?(?:,\d+)(?:[eE][+-]?\d+)?$|^[+-]?\d+$",
    ".": r"^[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?$",
}
"""By decimal mark: numbers that it explains. Beside a decimal point commas part thousands; beside a comma points do,
but where no decimals follow (1.234) they may be decimal all the same, and the cell is no number."""


@dataclass(frozen=True, kw_only=True)
class CellReading:
    """What was said of the cells.

    Attributes:
        order: how dates such as 01/02/2020 are meant; None asks.
        decimal: the mark of decimals in values; None is a point, and commas are asked about.
        missing: texts (and values) that mean an empty cell; None: `MISSING` and NA in plain tables, none in the tables
            of OMOP and MIMIC-IV, whose data bases write empty cells (such words are counted there: `empty_words`).
        static: rows of a plain table without a time are facts, deaths and codes that have a time elsewhere too.
    """

    order: Order | None = None
    decimal: str | None = None
    missing: Sequence[str] | None = None
    static: bool = False

    def __post_init__(self) -> None:
        if self.order is not None and self.order not in ORDERS:
            raise UserError(f"dates {self.order!r}", hint=suggest(self.order, ORDERS))
        if self.decimal is not None and self.decimal not in DECIMALS:
            raise UserError(
                f"decimal {self.decimal!r}", hint=f"Say {option('decimal', ',')} or {option('decimal', '.')} (a point)."
            )

    def filled(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The cells of a table, those that mean nothing empty."""
        numbers = [n for n in map(_number, self.missing or ()) if n is not None]
        return frame.with_columns(
            pl.when(self._empty(name)).then(None).otherwise(pl.col(name)).alias(name)
            if kind == pl.String
            else pl.when(pl.col(name).is_in(numbers)).then(None).otherwise(pl.col(name)).alias(name)
            for name, kind in frame.schema.items()
            if kind == pl.String or (kind.is_numeric() and numbers)
        )

    def empty_words(self, frame: pl.DataFrame) -> dict[tuple[str, str], int]:
        """(column, word) -> how many cells of a column hold a word that stands for an empty cell."""
        out: dict[tuple[str, str], int] = {}
        for name, kind in frame.schema.items():
            if kind == pl.String:
                found = frame.lazy().filter(self._empty(name)).select(name).collect()[name].value_counts()
                out |= {(name, str(word)): count for word, count in found.iter_rows()}
        return out

    def _empty(self, name: str) -> pl.Expr:
        text = pl.col(name).str.strip_chars()
        if self.missing is not None:
            return text.str.to_lowercase().is_in([m.strip().lower() for m in self.missing])
        return (text == "NA") | text.str.to_lowercase().is_in(MISSING)

    def numbers(self, raw: pl.Series, where: str) -> tuple[pl.Series, int]:
        """Values as float32, null where they are none; and how many of these are numbers with marks that `decimal` does
        not explain. Those that are infinite or too large for 32 bits are infinite.
        """
        if raw.dtype.is_numeric():
            return _kept(raw.cast(pl.Float64)), 0
        text = raw.cast(pl.String).rename("t").to_frame().select(pl.col("t").str.strip_chars())["t"]
        commas = text.str.contains(",", literal=True) & text.str.contains(MARKED)
        open_ = int(commas.sum() or 0)
        if self.decimal is None and open_ and open_ >= MANY * (len(text) - text.null_count()):
            raise UserError(
                f"{where}: the value {text.filter(commas.fill_null(False))[0]!r} may have a decimal comma "
                f"({open_:,} of {len(text) - text.null_count():,} values)",
                hint=f"Say {option('decimal', ',')} or, where commas part thousands, {option('decimal', '.')} (a "
                "point).",
            )
        if self.decimal == ",":
            plain = text.str.contains(READ[","])
            read = text.str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
            found = read.zip_with(plain.fill_null(False), pl.Series([None], dtype=pl.String)).cast(
                pl.Float64, strict=False
            )
        else:
            bare = text.str.replace_all(",", "", literal=True)
            grouped = text.str.contains(READ["."]).fill_null(False) & (self.decimal == ".")
            found = bare.zip_with(grouped, text).cast(pl.Float64, strict=False)
        found = _kept(found)
        odd = found.is_null() & text.str.contains(MARKED) & text.str.contains("[.,]")
        return found, int(odd.sum() or 0)


def _kept(values: pl.Series) -> pl.Series:
    values = values.fill_nan(None)
    return values.set((values.abs() > LARGEST).fill_null(False), float("inf")).cast(pl.Float32)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event per row.

    Attributes:
        codes: texts with {column}s in them; the first whose columns are all given is the code.
        suffixes: likewise, put behind the code where their columns are given: units, answers.
        times: columns that say when it was known, the first that is given; none for a static fact.
        latest: the latest of `times` instead of the first.
        taken: columns that say when it was taken or begun, the first that is given: nothing is known before, so that
            counts where it is later.
        value: column of the value.
        words: columns of an answer in words, the first that is given.
        optional: rows without this time, or without this code, are simply without this event.
        start: a date alone stands at the start of its day (births); else at its end.
    """

    codes: Sequence[str]
    suffixes: Sequence[str] = ()
    times: Sequence[str] = ()
    latest: bool = False
    taken: Sequence[str] = ()
    value: str | None = None
    words: Sequence[str] = ()
    optional: bool = False
    start: bool = False


@dataclass(frozen=True, kw_only=True)
class NotDone:
    """Rows whose `column` matches `pattern` (a regular expression, capitals or not) did not happen."""

    column: str
    pattern: str


@dataclass(frozen=True, kw_only=True)
class SourceTable:
    """A table by its name, without ending or number of the shard.

    Attributes:
        subject, visit: columns of the ids.
        derived: columns that are made before codes are (see `Folder.context`) -> the file's columns they are made of.
        elsewhere: columns that events of other tables read (`Folder.context`).
        midnight: a time of 00:00:00 is a date alone, in every column.
        dates: columns that hold dates by their published schema: there a time of 00:00:00 is a date alone too (pandas
            writes dates as timestamps).
    """

    name: str
    events: Sequence[Event]
    subject: str = "subject_id"
    visit: str | None = None
    derived: Mapping[str, Sequence[str]] = field(default_factory=dict)
    elsewhere: Sequence[str] = ()
    refused: Sequence[NotDone] = ()
    midnight: bool = False
    dates: Sequence[str] = ()


Files = Mapping[str, Sequence[Path]]
"""Name of a table -> its files."""
Derive = Callable[[SourceTable, pl.DataFrame], pl.DataFrame]


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A kind of folder.

    Attributes:
        known_by: tables that it always has.
        context: files, the descriptions of codes, which it fills, and how cells are meant -> what derives a table's
            columns.
        unread: other tables of this kind -> why they make no event.
        refused: (table, column) -> what a folder is that has it, and is not read.
        helpers: other tables of this kind that are read for codes and times.
    """

    name: str
    known_by: Sequence[str]
    tables: Sequence[SourceTable]
    context: Callable[[Files, dict[str, str], CellReading], Derive]
    unread: Mapping[str, str]
    helpers: Sequence[str] = ()
    refused: Mapping[tuple[str, str], str] = field(default_factory=dict)
