"""Plain tables as R, spreadsheets and other countries write them: read as meant, or refused with what to say."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from event_data import main_fails, main_ok

from unmask.errors import UserError
from unmask.modalities.events.convert import convert


def written(folder: Path) -> pl.DataFrame:
    return pl.read_parquet(folder / "data" / "*.parquet", hive_partitioning=False)


def converted(tmp_path: Path, text: str, **asked: Any) -> tuple[dict[str, Any], pl.DataFrame]:
    (tmp_path / "t.csv").write_text(text)
    found = convert(tmp_path / "t.csv", tmp_path / "m", **asked)
    return found, written(tmp_path / "m")


UNTIMED = (
    "subject_id,time,code,numeric_value\n1,2020-01-01 08:00:00,LAB,1\n1,2020-02-01 08:00:00,DX//A,\n1,,DX//A,\n"
    "2,2020-01-01 08:00:00,LAB,1\n2,,MEDS_DEATH,\n2,,SEX//M,\n3,,SEX//F,\n3,2020-01-01 08:00:00,LAB,1\n"
)


def test_rows_without_a_time_are_facts_only_of_codes_that_never_have_one(tmp_path: Path):
    found, events = converted(tmp_path, UNTIMED)
    assert found["rejected"] == {
        "no time, of a code that has one elsewhere (--static takes it as a fact)": 1,
        "no time of death (--static takes it as a fact)": 1,
    }
    assert found["static"] == {"SEX//M": 1, "SEX//F": 1}
    assert sorted(events.filter(pl.col("time").is_null())["code"]) == ["SEX//F", "SEX//M"]


def test_facts_without_a_time_are_taken_where_one_asks_for_it_and_always_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "t.csv").write_text(UNTIMED)
    main_ok(["events", "convert", str(tmp_path / "t.csv"), "--out", str(tmp_path / "m"), "--static"])
    said = capsys.readouterr().out
    assert "without a time, known from the start: 4" in said
    assert "MEDS_DEATH: 1" in said
    assert written(tmp_path / "m")["time"].null_count() == 4
