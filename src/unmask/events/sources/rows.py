"""Rows of raw text -> events, in chunks; every row that cannot be an event is counted by its reason, a few are kept."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from unmask.errors import UserError

SAMPLES = 20
"""Rejected rows kept of each reason."""
CHUNK_ROWS = 250_000
BLOCK_BYTES = 2 << 20
"""Of a csv: its reader holds some 30 blocks ahead of us, so blocks are small and put together again."""
FORMATS = (
    "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M", "%Y-%m-%d",
    "%Y-%m-%dT%H:%M:%S%.fZ",
)  # fmt: skip
ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")


@dataclass
class Ledger:
    """What came in and what was left out.

    Attributes:
        rows: rows or resources read.
        kept: those of them that gave an event.
        counts: events left out, by reason. Most rows have one event; one of a person may have a birth and a death too.
        samples: a few of each.
    """

    rows: int = 0
    kept: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    samples: list[dict[str, Any]] = field(default_factory=list)

    def add(self, reason: str, row: Any, count: int = 1) -> None:
        self.counts[reason] += count
        if sum(s["reason"] == reason for s in self.samples) < SAMPLES:
            self.samples.append({"reason": reason, "row": row})


def is_table(path: Path) -> bool:
    return path.name.endswith(ENDINGS)


def columns_of(path: Path) -> list[str]:
    """Names of a table's columns.

    Raises:
        UserError: it is no table.
    """
    try:
        if path.suffix == ".parquet":
            return list(pq.read_schema(path).names)
        with _csv(path, None, Ledger()) as reader:
            return list(reader.schema.names)
    except UserError:
        raise
    except Exception as error:  # pyarrow raises many kinds for a damaged file
        raise UserError(f"{path}: not a table ({str(error).splitlines()[0]})", hint="Give csv or parquet.") from None


def chunks(path: Path, wanted: list[str], ledger: Ledger) -> Iterator[pl.DataFrame]:
    """The wanted columns of a csv (as text) or parquet (as they are), a chunk at a time; counts the rows.

    Raises:
        UserError: a file breaks off or is damaged.
    """
    try:
        if path.suffix == ".parquet":
            for batch in pq.ParquetFile(path).iter_batches(CHUNK_ROWS, columns=wanted):
                yield _counted(pa.Table.from_batches([batch]), ledger)
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


def _counted(table: pa.Table, ledger: Ledger) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    ledger.rows += len(frame)
    return frame


def _csv(path: Path, wanted: list[str] | None, ledger: Ledger) -> Any:
    def broken(row: Any) -> str:
        ledger.rows += 1
        ledger.add("wrong number of columns", {"file": path.name, "line": row.number, "text": row.text[:200]})
        return "skip"

    delimiter = "\t" if ".tsv" in path.suffixes else ","
    with pa.input_stream(str(path), compression="detect") as head:
        start = head.read(1 << 20)
    if 0 < len(start) < 1 << 20 and b"\n" not in start:
        raise UserError(f"{path}: one line and nothing below it", hint="Expected a header line and rows.")
    first = start.split(b"\n", 1)[0].decode("utf-8", "replace").rstrip("\r")
    names = next(csv.reader([first.removeprefix("\ufeff")], delimiter=delimiter), [])
    return pa.csv.open_csv(
        pa.input_stream(str(path), compression="detect"),
        read_options=pa.csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False),
        parse_options=pa.csv.ParseOptions(delimiter=delimiter, invalid_row_handler=broken, newlines_in_values=True),
        convert_options=pa.csv.ConvertOptions(
            column_types={n: pa.string() for n in names}, include_columns=wanted, strings_can_be_null=True,
            quoted_strings_can_be_null=True, null_values=[""], check_utf8=True,
        ),
    )  # fmt: skip


def text(name: str) -> pl.Expr:
    """A column as text without surrounding blanks; empty is null."""
    trimmed = pl.col(name).cast(pl.String).str.strip_chars()
    return pl.when(trimmed == "").then(None).otherwise(trimmed)


def refuse_numbers(when: pl.Series, where: str) -> None:
    """Numbers are no times: whether they count days or microseconds, and from when, they do not say.

    Raises:
        UserError: they are numbers.
    """
    if when.dtype.is_numeric():
        raise UserError(
            f"{where}: times are numbers, such as {when.drop_nulls().head(1).to_list()}",
            hint="Give dates, timestamps, or texts such as 2020-01-31 08:30:00.",
        )


def _times(when: pl.Series) -> pl.Series:
    """Times without a zone; null where they cannot be read. Later formats are tried on what the earlier ones left."""
    if when.dtype == pl.String:
        given = when.to_frame("when").select(text("when").alias("when"))["when"]
        time = given.str.to_datetime(FORMATS[0], strict=False, time_unit="us")
        for form in FORMATS[1:]:
            left = time.is_null() & given.is_not_null()
            if not left.any():
                break
            time = time.zip_with(~left, given.str.to_datetime(form, strict=False, time_unit="us"))
        return time
    if isinstance(when.dtype, pl.Datetime) and when.dtype.time_zone:
        when = when.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    return when.cast(pl.Datetime("us"), strict=False)


def parsed(
    frame: pl.DataFrame, ledger: Ledger, where: str, *, static: bool = True, optional: bool = False
) -> tuple[pl.DataFrame, pl.Series]:
    """Raw columns subject, when, code, raw -> (events, which rows gave one); the others are counted by reason.

    Args:
        where: file of the rows, for the samples.
        static: rows without a time are facts; else they are rejected.
        optional: rows without a time are no events and no rejects either (a discharge that has not been).

    Raises:
        UserError: the times are numbers.
    """
    when = frame["when"]
    refuse_numbers(when, where)
    given, time = pl.col("when"), _times(when)
    if when.dtype == pl.String:
        given = text("when")
    raw = text("raw")
    made = frame.with_columns(time.alias("time")).select(
        "subject", "when", "raw", "time", text("subject").cast(pl.Int64, strict=False).alias("subject_id"),
        text("code").alias("code"), raw.cast(pl.Float32, strict=False).alias("numeric_value"),
        given.is_not_null().alias("given"), raw.is_not_null().alias("valued"),
    )  # fmt: skip
    reason = (
        pl.when(pl.col("subject_id").is_null()).then(pl.lit("subject is not a whole number"))
        .when(pl.col("code").is_null()).then(pl.lit("no code"))
        .when(~pl.col("given") & ~pl.lit(static)).then(pl.lit("no time"))
        .when(pl.col("time").is_null() & pl.col("given")).then(pl.lit("time cannot be read"))
        .when(pl.col("numeric_value").is_null() & pl.col("valued")).then(pl.lit("value is not a number"))
    )  # fmt: skip
    made = made.with_columns(reason.alias("reason"), (pl.col("given") | pl.lit(not optional)).alias("asked"))
    bad = made.filter(pl.col("reason").is_not_null() & pl.col("asked"))
    for (name,), part in bad.group_by("reason", maintain_order=True):
        rows = part.head(SAMPLES).select("subject", "when", "code", "raw").to_dicts()
        for row in rows:
            ledger.add(str(name), {"file": where, **row}, 0)
        ledger.counts[str(name)] += len(part)
    good = made.select(pl.col("reason").is_null() & pl.col("asked")).to_series()
    return made.filter(good).select("subject_id", "time", "code", "numeric_value"), good
