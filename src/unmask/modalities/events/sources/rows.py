"""Rows of raw columns -> events, in chunks, with ids as the whole numbers that MEDS has; every row that cannot be an
event is counted by its reason, a few are kept."""

from __future__ import annotations

import csv
import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from unmask.errors import UserError, first_of
from unmask.modalities.events.records.meds import BIRTH
from unmask.modalities.events.sources.tables import CellReading
from unmask.modalities.events.sources.times import may_mean_none, means_none

WHOLE = r"^-?(?:0|[1-9]\d*)(?:\.0+)?$"
"""A whole number, also as a spreadsheet writes it (7.0). With leading zeros it is a text: 007 and 7 may be two people.
"""


@dataclass
class Subjects:
    """Numbers of subjects. Whole numbers stand for themselves; other ids (texts) are numbered in the order they come,
    and memory grows with them.

    Which of the two a source has is decided by the first ids seen: texts where more than half are no whole numbers, or
    one is beyond 64 bits.
    """

    numbers: dict[str, int] = field(default_factory=dict)
    texts: bool | None = None

    def number(self, name: str) -> int:
        """Of one id that is a text."""
        return self.numbers.setdefault(name, len(self.numbers))

    def of(self, column: pl.Series) -> pl.Series:
        """Int64; null where an id is empty, or no whole number in a source of whole numbers."""
        if column.dtype.is_integer() and not self.texts:
            exact = column.cast(pl.Int64, strict=False)
            if exact.null_count() == column.null_count():
                self.texts = False
                return exact
        given = _text(column)
        whole = given.str.contains(WHOLE)
        number = _whole(given)
        beyond = given.filter((whole & number.is_null()).fill_null(False))
        if self.texts is None and given.null_count() < len(given):
            self.texts = bool(len(beyond)) or 2 * int(whole.sum()) < len(given) - given.null_count()
        if not self.texts:
            if len(beyond):
                raise UserError(
                    f"subject {beyond[0]}: beyond 64 bits, and subjects before it are whole numbers of up to 64 bits",
                    hint="Give ids that fit, or texts (with a letter in front).",
                )
            return number
        found = given.unique(maintain_order=True).drop_nulls()
        new = pl.Series([self.number(name) for name in found.to_list()], dtype=pl.Int64)
        return given.replace_strict(found, new, default=None, return_dtype=pl.Int64)


def encounters(column: pl.Series) -> pl.Series:
    """Int64 of encounters' ids: whole numbers stand for themselves, texts are hashed (63 bits); null where empty."""
    if column.dtype.is_integer() and column.cast(pl.Int64, strict=False).null_count() == column.null_count():
        return column.cast(pl.Int64)
    if column.null_count() == len(column):
        return pl.Series([None], dtype=pl.Int64).new_from_index(0, len(column))
    given = _text(column)
    whole = _whole(given)
    rest = given.filter(whole.is_null()).unique().drop_nulls()
    if not len(rest):
        return whole
    hashed = pl.Series([hashed_id(name) for name in rest.to_list()], dtype=pl.Int64)
    return whole.fill_null(given.replace_strict(rest, hashed, default=None, return_dtype=pl.Int64))


def hashed_id(name: str) -> int:
    """63 bits of a text's hash, the same on any machine."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1


def _text(column: pl.Series) -> pl.Series:
    return column.rename("id").to_frame().select(text("id").alias("id"))["id"]


def _whole(given: pl.Series) -> pl.Series:
    """Whole numbers in any of the spellings of `WHOLE`; null elsewhere."""
    number = given.cast(pl.Int64, strict=False)
    if (number.cast(pl.String) == given).fill_null(True).all() and number.null_count() == given.null_count():
        return number
    return given.str.extract(r"^(-?(?:0|[1-9]\d*))(?:\.0+)?$").cast(pl.Int64, strict=False)


SAMPLES = 20
"""Rejected rows kept of each reason."""
FIRST_SUBJECTS = 3
"""Named of those that a note is about."""
CHUNK_ROWS = 250_000
BLOCK_BYTES = 2 << 20
"""Of a csv: its reader holds some 30 blocks ahead of us, so blocks are small and put together again."""
ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")


@dataclass
class Ledger:
    """What came in, what was left out, and what was decided.

    Attributes:
        rows: rows or resources read.
        kept: those of them that gave an event.
        counts: events left out, by reason. Most rows have one event; one of a person may have a birth and a death too.
        samples: a few of each.
        notes: what was done to events that were kept, and how often.
        static: code -> rows of tables that are facts without a time, known from the start.
        tables: of each table or kind of resource: files, rows, events.
        unused: files that were not read, and why.
        zones: times of day of tables with a zone (True) and without one.
        names: descriptions of codes.
        subjects: their numbers.
        reading: how cells of tables are meant.
    """

    rows: int = 0
    kept: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    samples: list[dict[str, Any]] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    static: Counter[str] = field(default_factory=Counter)
    tables: dict[str, Counter[str]] = field(default_factory=dict)
    unused: dict[str, str] = field(default_factory=dict)
    zones: Counter[bool] = field(default_factory=Counter)
    names: dict[str, str] = field(default_factory=dict)
    subjects: Subjects = field(default_factory=Subjects)
    reading: CellReading = field(default_factory=CellReading)

    def add(self, reason: str, row: Any, count: int = 1) -> None:
        self.counts[reason] += count
        if sum(s["reason"] == reason for s in self.samples) < SAMPLES:
            self.samples.append({"reason": reason, "row": row})

    def table(self, name: str) -> Counter[str]:
        return self.tables.setdefault(name, Counter({"files": 0, "rows": 0, "events": 0}))

    def note(self, what: str, count: int) -> None:
        """Note what was done, where it was done at all."""
        if count:
            self.notes[what] += count

    def note_undescribed(self, others: Mapping[int, str], lacking: str) -> None:
        """Note subjects that have events, and nothing that says who they are ("a row in person.csv"): their numbers ->
        where each was met first."""
        first = list(others.items())[:FIRST_SUBJECTS]
        ids = {number: name for name, number in self.subjects.numbers.items() if number in dict(first)}
        shown = first_of([f"{ids.get(number, number)} in {where}" for number, where in first], between="; ")
        self.note(f"subjects without {lacking}, so of unknown birth and sex; the first: {shown}", len(others))


def is_table(path: Path) -> bool:
    return path.name.lower().endswith(ENDINGS)


def columns_of(path: Path) -> list[str]:
    """Names of a table's columns."""
    try:
        if path.suffix.lower() == ".parquet":
            return list(pq.read_schema(path).names)
        with _csv(path, None, Ledger()) as reader:
            return list(reader.schema.names)
    except UserError:
        raise
    except Exception as error:  # pyarrow raises many kinds for a damaged file
        raise UserError(
            f"{path}: not a table ({str(error).splitlines()[0]})", hint="Give csv in UTF-8, or parquet."
        ) from None


def named_as(path: Path, have: Sequence[str], wanted: Collection[str | None]) -> dict[str, str]:
    """Which column of a table (`have`) each wanted one is, whatever its capitals and the blanks around it; those that
    are absent are left out."""
    found: dict[str, str] = {}
    for name in have:
        called = name.strip().lower()
        if called in found:
            raise UserError(
                f"{path}: the column stands there twice: {found[called]!r}, {name!r}",
                hint="Take one of them out, or give it another name.",
            )
        if called in wanted:
            found[called] = name
    return found


def refuse_nested(frame: pl.DataFrame, where: str | Path) -> None:
    """Refuse a column of lists or structs."""
    for name, kind in frame.schema.items():
        if kind.is_nested():
            raise UserError(
                f"{where}: column {name!r} is of type {kind}",
                hint="A cell is one number, text or time: give one row per element.",
            )


def chunks(path: Path, wanted: list[str], ledger: Ledger) -> Iterator[pl.DataFrame]:
    """The wanted columns of a csv (as text) or parquet (as they are), a chunk at a time; counts the rows."""
    try:
        if path.suffix.lower() == ".parquet":
            for batch in pq.ParquetFile(path).iter_batches(CHUNK_ROWS, columns=wanted):
                frame = _counted(pa.Table.from_batches([batch]), ledger)
                refuse_nested(frame, path)
                yield frame
            return
        with _csv(path, wanted, ledger) as reader:
            waiting: list[pa.RecordBatch] = []
            for batch in reader:
                waiting.append(batch)
                if sum(len(b) for b in waiting) >= CHUNK_ROWS:
                    yield _counted(pa.Table.from_batches(waiting), ledger)
                    waiting = []
            if waiting:
                yield _counted(pa.Table.from_batches(waiting), ledger)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise UserError(f"{path}: {str(error).splitlines()[0]}", hint="The file is damaged; write it again.") from None


def small_table(
    files: Mapping[str, Sequence[Path]], table: str, key: str, *values: str, reading: CellReading | None = None
) -> pl.DataFrame:
    """All rows with a key of a table that others are joined with, as text; a column that is absent is null, and so are
    cells that `reading` names as missing."""
    parts = [pl.DataFrame(schema=dict.fromkeys((key, *values), pl.String))]
    for path in files.get(table, ()):
        lower = named_as(path, columns_of(path), (key, *values))
        for frame in chunks(path, list(lower.values()), Ledger()) if key in lower else ():
            frame = frame.rename({name: n for n, name in lower.items()})
            if reading is not None and reading.missing is not None:
                frame = reading.filled(frame)
            absent = (pl.lit(None, pl.String).alias(n) for n in values if n not in lower)
            part = frame.with_columns(absent).select(text(n).alias(n) for n in (key, *values))
            parts.append(part.drop_nulls(key))
    return pl.concat(parts)


def _counted(table: pa.Table, ledger: Ledger) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    ledger.rows += len(frame)
    return frame


def _csv(path: Path, wanted: list[str] | None, ledger: Ledger) -> Any:
    def broken(row: Any) -> str:
        ledger.rows += 1
        reason = f"{path.name}: {row.actual_columns} cells under {row.expected_columns} columns"
        place = path.name if row.number is None else f"{path.name}, line {row.number}"
        ledger.add(reason, {"where": place, "file": path.name, "line": row.number, "text": row.text[:200]})
        return "skip"

    with pa.input_stream(str(path), compression="detect") as head:
        start = head.read(1 << 20)
    if 0 < len(start) < 1 << 20 and b"\n" not in start:
        raise UserError(f"{path}: one line and nothing below it", hint="Expected a header line and rows.")
    first = start.split(b"\n", 1)[0].decode("utf-8", "replace").rstrip("\r").removeprefix("\ufeff")
    delimiter = max(",\t;|", key=lambda d: len(next(csv.reader([first], delimiter=d), [])))
    names = next(csv.reader([first], delimiter=delimiter), [])
    # Athena writes its vocabulary tab-separated and unquoted: quotation marks in it are part of the names.
    quoted = not (delimiter == "\t" and path.name.lower().startswith("concept"))
    return pa.csv.open_csv(
        pa.input_stream(str(path), compression="detect"),
        read_options=pa.csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False),
        parse_options=pa.csv.ParseOptions(
            delimiter=delimiter,
            quote_char='"' if quoted else False,
            invalid_row_handler=broken,
            newlines_in_values=quoted,
        ),
        convert_options=pa.csv.ConvertOptions(
            column_types={n: pa.string() for n in names},
            include_columns=wanted,
            strings_can_be_null=True,
            quoted_strings_can_be_null=True,
            null_values=[""],
            check_utf8=True,
        ),
    )


def text(name: str) -> pl.Expr:
    """A column as text without surrounding blanks; empty is null."""
    trimmed = pl.col(name).cast(pl.String).str.strip_chars()
    return pl.when(trimmed == "").then(None).otherwise(trimmed)


def parsed(
    frame: pl.DataFrame, ledger: Ledger, where: str, *, first: int = 0, static: bool = True, optional: bool = False
) -> tuple[pl.DataFrame, pl.Series]:
    """Raw columns (subject, when, time, given, dated, code, raw, words, visit, refused) of the file `where`, `first`
    rows before them -> (events, which rows gave one); the others are counted by reason. A value that is no number
    becomes the event's text_value, and is noted.

    Rows without a time are facts where `static`; else they are rejected. Where `optional`, rows without a time, or
    without a code, are no events and no rejects either (a discharge that has not been, a race that is not known).
    """
    subjects, (number, odd) = ledger.subjects, ledger.reading.numbers(frame["raw"], f"{where}, values")
    made = frame.with_columns(
        subjects.of(frame["subject"]).alias("subject_id"),
        encounters(frame["visit"]).alias("visit_id"),
        text("code").alias("code"),
        number.alias("numeric_value"),
    )
    worded = pl.when(pl.col("numeric_value").is_null() & pl.lit(not frame["raw"].dtype.is_numeric())).then(text("raw"))
    made = made.with_columns(pl.coalesce(text("words"), worded).alias("text_value"))
    wrong = "subject is not a whole number" if not subjects.texts else "no subject"
    birth = pl.col("code").str.starts_with(BIRTH).fill_null(False)
    day = pl.col("time").dt.date().dt.strftime("%Y-%m-%d")
    reasons = (
        (pl.col("subject_id").is_null(), pl.lit(wrong)),
        (pl.col("refused").is_not_null(), pl.col("refused")),
        (pl.col("code").is_null(), pl.lit("no code")),
        (~pl.col("given") & ~pl.lit(static), pl.lit("no time")),
        (pl.col("time").is_null() & pl.col("given"), pl.lit("time cannot be read")),
        (pl.col("numeric_value").is_infinite(), pl.lit("a value that is infinite, or beyond 3.4e38")),
        (means_none(pl.col("time"), birth), pl.format("time stands for none: {}", day)),
    )
    made = made.with_row_index("row", offset=first + 1).with_columns(
        pl.coalesce(pl.when(wrong_so).then(why) for wrong_so, why in reasons).alias("reason"),
        ((pl.col("given") | pl.lit(static)) & pl.col("code").is_not_null() | pl.lit(not optional)).alias("asked"),
    )
    bad = made.filter(pl.col("reason").is_not_null() & pl.col("asked"))
    for (name,), part in bad.group_by("reason", maintain_order=True):
        for row in part.head(SAMPLES).select("row", "subject", "when", "code", "raw").to_dicts():
            ledger.add(str(name), {"where": f"{where}, row {row['row']}", "file": where, **row}, 0)
        ledger.counts[str(name)] += len(part)
    good = made.select(pl.col("reason").is_null() & pl.col("asked")).to_series()
    kept = made.filter(good)
    ledger.note("dates without a time of day, at the end of their day", int(kept["dated"].sum()))
    if "zone" in kept.columns:
        ledger.zones.update(dict(kept["zone"].drop_nulls().value_counts().iter_rows()))
    doubtful = kept.filter(may_mean_none(pl.col("time"), birth)).select(
        pl.when(birth).then(pl.lit("births")).otherwise(pl.lit("events")).alias("what"), day.alias("day")
    )
    for what, day, count in doubtful.group_by("what", "day").len().iter_rows():
        ledger.note(f"{what} on {day}, which may stand for none", count)
    facts = kept.filter(pl.col("time").is_null())["code"].value_counts()
    ledger.static.update(dict(facts.iter_rows()))
    text_alone = pl.col("text_value").is_not_null() & pl.col("numeric_value").is_null()
    ledger.note("numbers with a mark that decimal does not explain, kept as text_value", odd)
    ledger.note("values that are no numbers, kept as text_value", kept.select(text_alone.sum()).item())
    return kept.select("subject_id", "time", "code", "numeric_value", "text_value", "visit_id"), good


def first_given(columns: Sequence[str]) -> pl.Expr:
    """The first of these columns that is not empty, as text; null without any."""
    return pl.coalesce(*(text(c) for c in columns)) if columns else pl.lit(None, dtype=pl.String)
