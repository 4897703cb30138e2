"""A plain event table: one row per event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import polars as pl

from unmask.errors import UserError
from unmask.modalities.events.meds import BIRTH
from unmask.modalities.events.sources.ids import Subjects
from unmask.modalities.events.sources.rows import Ledger, chunks, columns_of, parsed
from unmask.modalities.events.sources.times import Order, read_times

COLUMNS = {"subject": "subject_id", "time": "time", "code": "code", "value": "numeric_value", "visit": "visit_id",
           "text": "text_value"}  # fmt: skip


def read(
    path: Path, columns: Mapping[str, str], ledger: Ledger, subjects: Subjects, order: Order | None
) -> Iterator[pl.DataFrame]:
    """Events of a csv, tsv or parquet.

    Args:
        columns: role (subject, time, code, value, visit, text) -> the table's name for it; see `COLUMNS`.

    Raises:
        UserError: a column is absent.
    """
    have = columns_of(path)
    _check(columns, have, f"{path}: ")
    columns = {**COLUMNS, **columns}
    wanted = [name for name in dict.fromkeys(columns.values()) if name in have]
    unread = [name for name in have if name not in wanted]
    if unread:
        ledger.unused[path.name] = f"columns not read: {', '.join(unread)}"
    for frame in chunks(path, wanted, ledger):
        yield _events(frame, columns, ledger, path.name, subjects, order)


def from_frame(
    frame: pl.DataFrame, columns: Mapping[str, str], ledger: Ledger, subjects: Subjects, order: Order | None
) -> Iterator[pl.DataFrame]:
    """Events of a DataFrame already in memory.

    Raises:
        UserError: a column is absent.
    """
    _check(columns, frame.columns, "")
    ledger.rows += len(frame)
    yield _events(frame, {**COLUMNS, **columns}, ledger, "table", subjects, order)


def _events(
    frame: pl.DataFrame, columns: Mapping[str, str], ledger: Ledger, where: str, subjects: Subjects, order: Order | None
) -> pl.DataFrame:
    when = frame[columns["time"]]
    times = read_times(when, f"{where}, column {columns['time']!r}", order=order)
    born = frame[columns["code"]].cast(pl.String).str.starts_with(BIRTH).fill_null(False)
    if (born & times["dated"]).any():  # a birth alone stands at the start of its day: nothing precedes it
        times = times.with_columns(
            pl.when(born).then(pl.col("time").dt.truncate("1d")).otherwise("time").alias("time"),
            (pl.col("dated") & ~born).alias("dated"),
        )
    empty = pl.lit(None, dtype=pl.String)

    def role(name: str) -> pl.Expr:
        return pl.col(columns[name]) if columns[name] in frame.columns else empty

    raw = frame.select(
        role("subject").alias("subject"), role("code").alias("code"), role("value").alias("raw"),
        role("text").alias("words"), role("visit").alias("visit"), when.alias("when"), empty.alias("refused"),
    ).with_columns(times)  # fmt: skip
    made, good = parsed(raw, ledger, where, subjects)
    ledger.kept += int(good.sum())
    table = ledger.table(where)
    table["files"] = 1
    table["rows"] += len(frame)
    table["events"] += len(made)
    return made


def _check(columns: Mapping[str, str], have: Sequence[str], where: str) -> None:
    """The columns that are needed are there, and so is every other that was named."""
    for role, usual in COLUMNS.items():
        named = columns.get(role, usual)
        needed = role in ("subject", "time", "code") or named != usual
        if needed and named not in have:
            raise UserError(f"{where}no column {named!r}", hint=f"Found {', '.join(have)}; name it with --{role}.")
