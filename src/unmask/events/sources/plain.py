"""A plain event table: one row an event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    for role in ("subject", "time", "code"):
        if columns[role] not in have:
            raise UserError(
                f"{path}: no column {columns[role]!r}", hint=f"Found {', '.join(have)}; name it with --{role}."
            )
    with_value = columns["value"] in have
    wanted = list(dict.fromkeys(columns[r] for r in ("subject", "time", "code", *(["value"] if with_value else []))))
    for frame in chunks(path, wanted, ledger):
        raw = pl.col(columns["value"]) if with_value else pl.lit(None, dtype=pl.String)
        named = frame.select(
            pl.col(columns["subject"]).alias("subject"), pl.col(columns["time"]).alias("when"),
            pl.col(columns["code"]).alias("code"), raw.alias("raw"),
        )  # fmt: skip
        yield parsed(named, ledger, path.name)


def from_frame(frame: pl.DataFrame, columns: Mapping[str, str], ledger: Ledger) -> Iterator[pl.DataFrame]:
    """Events of a DataFrame already in memory.

    Raises:
        UserError: a column is absent.
    """
    columns = {**COLUMNS, **columns}
    for role in ("subject", "time", "code"):
        if columns[role] not in frame.columns:
            raise UserError(f"no column {columns[role]!r}", hint=f"Found {', '.join(frame.columns)}.")
    ledger.rows += len(frame)
    value = pl.col(columns["value"]) if columns["value"] in frame.columns else pl.lit(None, dtype=pl.String)
    named = frame.select(
        pl.col(columns["subject"]).alias("subject"), pl.col(columns["time"]).alias("when"),
        pl.col(columns["code"]).alias("code"), value.alias("raw"),
    )  # fmt: skip
    yield parsed(named, ledger, "table")
