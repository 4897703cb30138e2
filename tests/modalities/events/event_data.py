"""Small MEDS folders and labels."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from unmask.cli import main

DAY = datetime(2020, 1, 1)


def table(rows: list[tuple]) -> pl.DataFrame:
    schema = {"subject_id": pl.Int64, "time": pl.Datetime("us"), "code": pl.String, "numeric_value": pl.Float32}
    return pl.DataFrame(rows, schema=schema, orient="row")


def shard(folder: Path, frame: pl.DataFrame, name: str = "0") -> Path:
    (folder / "data").mkdir(parents=True, exist_ok=True)
    frame.write_parquet(folder / "data" / f"{name}.parquet")
    return folder


def labels(folder: Path, rows: list[tuple]) -> Path:
    folder.mkdir(exist_ok=True)
    schema = {"subject_id": pl.Int64, "prediction_time": pl.Datetime("us"), "boolean_value": pl.Boolean}
    pl.DataFrame(rows, schema=schema, orient="row").write_parquet(folder / "0.parquet")
    return folder


def main_ok(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert not stopped.value.code


def main_fails(arguments: list[Any], capsys: pytest.CaptureFixture[str]) -> str:
    """The message of a command that ends with exit code 2."""
    with pytest.raises(SystemExit) as stopped:
        main([str(a) for a in arguments])
    assert stopped.value.code == 2
    return capsys.readouterr().err
