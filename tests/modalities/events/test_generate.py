"""New patients: valid, as frequent as in the records, and never what only a few patients have."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from test_meds_package import validate

from unmask.cli import main
from unmask.errors import UserError
from unmask.modalities.events.records.meds import DEATH, read_meds
from unmask.modalities.events.records.shards import write_meds
from unmask.modalities.events.synthesis import generator
from unmask.modalities.events.synthesis.generate import generate
from unmask.modalities.events.synthesis.plan import Bins

DAY = 24 * 3_600_000_000
FIRST_LAST = pl.col("code").first() == "MEDS_BIRTH"


@pytest.fixture(scope="module")
def records():
    """120 patients: half have A, with values about 10, half B, never both; a third die at their last visit; one patient
    has a code and a value of their own."""
    rng, rows = np.random.default_rng(0), []
    for i in range(120):
        sick = i % 2 == 0
        rows.append((i, None, f"SEX//{'FM'[i % 3 == 0]}", None))
        start = int(rng.integers(20_000, 21_000)) * DAY
        rows.append((i, start - int(rng.integers(20, 90) * 365.25) * DAY, "MEDS_BIRTH", None))
        visits = int(rng.integers(3, 7))
        for t in range(visits):
            time = start + t * 30 * DAY
            rows.append((i, time, "A" if sick else "B", float(np.round(rng.normal(10, 1), 1)) if sick else None))
            if i == 7:
                rows.append((i, time, "ALONE", 5.0))
        if i % 3 == 0:
            rows.append((i, time, DEATH, None))
            rows.append((i, time + DAY, "B", None))
    rows.append((0, start, "A", 999.0))
    schema = {"subject_id": pl.Int64, "time": pl.Int64, "code": pl.String, "numeric_value": pl.Float32}
    frame = pl.DataFrame(rows, schema=schema, orient="row").with_columns(pl.col("time").cast(pl.Datetime("us")))
    return frame.sort("subject_id", "time", nulls_last=False, maintain_order=True)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(generator, "STEPS", 300)


def test_patients_are_valid_and_like_the_records(records, tmp_path):
    found = generate(records, 200, tmp_path / "new")
    events = read_meds(tmp_path / "new")  # refuses what is not MEDS, or not in order of time
    frame = pl.concat(pl.read_parquet(p) for p in (tmp_path / "new/data").glob("*.parquet"))
    assert found["rows"] == len(events) == 200
    assert set(frame["code"].unique()) == {"A", "B", DEATH, "MEDS_BIRTH", "SEX//F", "SEX//M"}  # not ALONE
    assert found["left_out"] == 1
    validate(tmp_path / "new")
    each = frame.group_by("subject_id", maintain_order=True)
    sexes = each.agg(pl.col("code").str.starts_with("SEX").sum())["code"]
    assert (sexes == 1).all()
    timed = frame.drop_nulls("time").group_by("subject_id", maintain_order=True)
    assert timed.agg(FIRST_LAST)["code"].all()
    after = frame.join(frame.filter(pl.col("code") == DEATH).select("subject_id", died="time"), on="subject_id")
    assert not (after["time"] > after["died"]).any()
    visits = frame.filter(pl.col("code").is_in(["A", "B"])).select("subject_id", "time").unique(maintain_order=True)
    gaps = visits.select(pl.col("time").diff().over("subject_id")).drop_nulls()["time"].dt.total_days()
    assert set(gaps) == {30}  # as in the records, also of those that would have gone on for too long
    values = frame.filter(pl.col("code") == "A")["numeric_value"]
    assert values.max() < 14
    assert abs(values.mean() - 10) < 0.5
    have = each.agg(*(pl.col("code").eq(c).any().alias(c) for c in ("A", "B", DEATH)))
    assert abs(have["A"].mean() - 0.5) < 0.12
    assert abs(have[DEATH].mean() - 1 / 3) < 0.12
    assert (have["A"] & have["B"]).mean() < 0.1


def test_same_seed_same_bytes(records, tmp_path):
    for name in "xy":
        generate(records, 20, tmp_path / name, seed=3)
    x, y = ((tmp_path / name / "data/0.parquet").read_bytes() for name in "xy")
    assert x == y


def test_conditions_are_met_or_refused(records, tmp_path):
    generate(records, 20, tmp_path / "old", where="age > 60 and not A")
    frame = pl.read_parquet(tmp_path / "old/data/0.parquet")
    assert frame["subject_id"].n_unique() == 20
    assert "A" not in frame["code"]
    for wrong, says in {
        "age > 1.2.3": "not a number",
        "A, B": "condition 'A, B': several codes",
        "A = 3": "'= 3' after A",
        "A and": "'A and' is no code",
        "age": "no age",
    }.items():
        with pytest.raises(UserError, match=says):
            generate(records, 20, tmp_path / "none", where=wrong)
    times = frame.drop_nulls("time").group_by("subject_id").agg(pl.col("time").max() - pl.col("time").min())
    assert (times["time"].dt.total_days() / 365.25 > 60).all()
    about = json.loads((tmp_path / "old/metadata/dataset.json").read_text())
    assert about["conditions"] == {"age > 60": ["age"], "not A": ["A"]}
    with pytest.raises(UserError, match=r"'ALONE' is no code of 5 patients"):
        generate(records, 20, tmp_path / "none", where="ALONE")
    with pytest.raises(UserError, match="0 of 500 patients drawn meet A > 500"):
        generate(records, 5, tmp_path / "none", where="A > 500")
    assert not (tmp_path / "none").exists()


def test_conditions_are_those_of_questions(records, tmp_path):
    found = generate(records, 40, tmp_path / "some", where='any of A >= 9.5, "b" and SEX//F')
    frame = pl.read_parquet(tmp_path / "some/data/0.parquet")
    met = (pl.col("code") == "B") | ((pl.col("code") == "A") & (pl.col("numeric_value") >= 9.5))
    assert frame.group_by("subject_id").agg(met.any())["code"].all()
    assert found["conditions"] == {'any of A >= 9.5, "b"': ["A", "B"], "SEX//F": ["SEX//F"]}
    with pytest.raises(UserError, match="no age"):
        generate(records.filter(pl.col("code") != "MEDS_BIRTH"), 9, tmp_path / "none", where="age > 3")


def test_who_is_not_learnt_from_is_counted(records, tmp_path):
    some = {"subject_id": [500, 501, 502], "time": [None] * 3, "code": ["SEX//F"] * 3, "numeric_value": [None] * 3}
    alone = pl.DataFrame(some, schema=records.schema)
    rare = alone.with_columns(pl.lit(records["time"].max()).alias("time"), code=pl.lit("RARE"))
    found = generate(pl.concat([records, alone, rare.with_columns(pl.col("subject_id") + 9)]), 20, tmp_path / "new")
    assert found["without"] == 6
    assert found["learnt_from"] == 120
    assert not pl.read_parquet(tmp_path / "new/data/0.parquet")["code"].is_in(["RARE"]).any()


def test_too_few_patients_are_refused(records, tmp_path):
    with pytest.raises(UserError, match="5 patients"):
        generate(records.filter(pl.col("subject_id") < 5), 10, tmp_path / "few")


def test_patients_without_a_birth_meet_no_condition_on_age(records, tmp_path):
    known = records.filter((pl.col("code") != "MEDS_BIRTH") | (pl.col("subject_id") % 2 == 0))
    generate(known, 40, tmp_path / "old", where="age > 10")
    frame = pl.read_parquet(tmp_path / "old/data/0.parquet")
    assert (frame.group_by("subject_id").agg(pl.col("code") == "MEDS_BIRTH")["code"].list.any()).all()


def test_what_is_left_of_a_plan_is_not_pressed_together_at_the_end_of_the_records(tmp_path):
    """Visits with a begin and an end, all up to now, now and then years apart: records drawn that come to now too early
    have no gap that is shorter than those of the records."""
    minute, rng, rows = DAY // 1440, np.random.default_rng(0), []
    for i in range(120):
        time = 20_000 * DAY - int(rng.integers(0, 300)) * DAY
        for _ in range(int(rng.integers(5, 30))):
            rows += [(i, time, "BEGIN", None), (i, time + 15 * int(rng.integers(1, 5)) * minute, "END", None)]
            time -= int(rng.integers(5, 20) * 365 if rng.random() < 0.1 else rng.integers(10, 400)) * DAY
    schema = {"subject_id": pl.Int64, "time": pl.Int64, "code": pl.String, "numeric_value": pl.Float32}
    frame = pl.DataFrame(rows, schema=schema, orient="row").with_columns(pl.col("time").cast(pl.Datetime("us")))
    generate(frame.sort("subject_id", "time"), 150, tmp_path / "new")
    drawn = pl.read_parquet(tmp_path / "new/data/0.parquet").select("subject_id", "time").unique().sort("time")
    gaps = drawn.select(pl.col("time").diff().over("subject_id")).drop_nulls()["time"]
    assert gaps.min().total_seconds() == 15 * 60


@pytest.mark.parametrize("having", [6, 60])
def test_a_code_that_few_have_once_is_drawn(having):
    count = np.zeros(600)
    count[:having] = 1
    bins = Bins(count, 6)
    drawn = bins.draw(bins.level(count), np.random.default_rng(0))
    assert np.array_equal(np.rint(drawn), count)


def test_values_are_drawn_as_they_are_spread():
    rng = np.random.default_rng(0)
    count = np.where(rng.random(2000) < 0.1, 0, np.rint(rng.lognormal(1, 1, 2000) + 1))
    bins = Bins(count, 10)
    drawn = np.rint(bins.draw(bins.level(count), rng))
    assert (drawn == 0).sum() == (count == 0).sum()
    assert abs(drawn.mean() / count.mean() - 1) < 0.03


def test_the_command_says_how_to_judge_what_it_drew(records, tmp_path, capsys):
    write_meds(records, tmp_path / "meds", name="some")
    with pytest.raises(SystemExit) as end:
        main(["events", "generate", f"{tmp_path}/meds", "--patients", "3", "--out", f"{tmp_path}/new"])
    assert not end.value.code
    assert f"unmask events compare {tmp_path}/new {tmp_path}/meds" in capsys.readouterr().out
