"""A plain event table: one row an event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import polars as pl

from unmask.errors import UserError
from unmask.events.sources.rows import Ledger, chunks, columns_of, parsed

COLUMNS = {"subject": "subject_id", "time": "time", "code": "code", "value": "numeric_value"}


def read(path: Path, columns: Mapping[str, str], ledger: Ledger) -> Iterator[pl.DataFrame]:
    """Events of a csv, tsv or parquet.

    Args:
        columns: role (subject, time, code, value) -> the table's name for it; see `COLUMNS`.

    Raises:
        UserError: a column is absent.
    """
    columns = {**COLUMNS, **columns}
    have = columns_of(path)
    _check(columns, have, f"{path}: ")
    wanted = [name for name in dict.fromkeys(columns.values()) if name in have]
    for frame in chunks(path, wanted, ledger):
        yield _events(frame, columns, ledger, path.name)


def from_frame(frame: pl.DataFrame, columns: Mapping[str, str], ledger: Ledger) -> Iterator[pl.DataFrame]:
    """Events of a DataFrame already in memory.

    Raises:
        UserError: a column is absent.
    """
    columns = {**COLUMNS, **columns}
    _check(columns, frame.columns, "")
    ledger.rows += len(frame)
    yield _events(frame, columns, ledger, "table")


def _events(frame: pl.DataFrame, columns: Mapping[str, str], ledger: Ledger, where: str) -> pl.DataFrame:
    made, good = parsed(_named(frame, columns), ledger, where)
    ledger.kept += int(good.sum())
    return made


def _check(columns: Mapping[str, str], have: Sequence[str], where: str) -> None:
    for role in ("subject", "time", "code"):
        if columns[role] not in have:
            raise UserError(
                f"{where}no column {columns[role]!r}", hint=f"Found {', '.join(have)}; name it with --{role}."
            )


def _named(frame: pl.DataFrame, columns: Mapping[str, str]) -> pl.DataFrame:
    """The raw columns that `parsed` takes; without a column of values there are none."""
    valued = columns["value"] in frame.columns
    return frame.select(
        pl.col(columns["subject"]).alias("subject"), pl.col(columns["time"]).alias("when"),
        pl.col(columns["code"]).alias("code"),
        (pl.col(columns["value"]) if valued else pl.lit(None, dtype=pl.String)).alias("raw"),
    )  # fmt: skip
