"""The audit is proven: each planted leak is found by its check and by no other warning, and clean stays raise none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from event_data import labels
from leaks import NOT_LOOKED_FOR, OF_TASKS, PLANTED, Stays, clean

from packages import ROOT
from unmask.modalities.events.audit.audit_people import near_copies, shared_births
from unmask.modalities.events.audit.audit_points import audit
from unmask.modalities.events.records.meds import read_meds
from unmask.modalities.events.records.shards import write_meds

ALSO = {
    "deaths without a time": {"points after death", "tells the outcome"},
    "deaths on dates": {"points after death", "midnight"},
    "points after the outcome": {"tells the outcome"},
    "a patient twice, all events": {"births in common"},
    "a patient twice, nine in ten events": {"births in common"},
}
"""Other warnings that a leak brings with it, which are as true."""


def warned(stays: Stays, folder: Path) -> set[str]:
    write_meds(stays.frame(), folder / "meds", name="made")
    return {f.check for f in audit(folder / "meds", labels(folder / "task", stays.points))[0] if f.level == "warning"}


@pytest.mark.parametrize("seed", range(4))
def test_clean_stays_raise_no_warning(seed: int, tmp_path: Path):
    assert warned(clean(seed), tmp_path) == set()


@pytest.mark.parametrize("name", PLANTED)
def test_each_planted_leak_is_found(name: str, tmp_path: Path):
    _, plant, check = PLANTED[name]
    stays = clean()
    plant(stays)
    found = warned(stays, tmp_path)
    assert check in found
    assert found - {check} <= ALSO.get(name, set())


def test_what_the_package_lists_is_found_or_not_looked_for():
    """All nineteen types of icu-leakage-check are in the table."""
    types = pytest.importorskip("icu_leakage_check.taxonomy", reason="icu-leakage-check is not installed")
    kinds = [kind for table in (PLANTED, OF_TASKS, NOT_LOOKED_FOR) for kind, *_ in table.values()]
    named = {kind.partition(",")[0] for kind in kinds}
    assert {str(code) for code in types.LEAKAGE_TYPES} <= named


def test_the_demo_of_the_package(tmp_path: Path):
    """Its simulated intensive care: clean without a warning, with the column that its leaky pipeline adds found."""
    demo = pytest.importorskip("icu_leakage_check.demo", reason="icu-leakage-check is not installed")
    stays, events = (pl.from_pandas(frame) for frame in demo.make_demo_data(600))
    zero, none = pl.datetime(2020, 1, 1, 8, 17, time_unit="us"), pl.lit(None, pl.Float64)
    of_stays = {"subject_id": pl.col("patientunitstayid")}
    known = events.select(subject_id="entity_id", at="available_time", code="variable", numeric_value="value")
    died = stays.filter(pl.col("died") == 1)
    died = died.select(**of_stays, at="death_offset", code=pl.lit("MEDS_DEATH"), numeric_value=none)
    offset = pl.col("unitdischargeoffset").cast(pl.Float64)
    leak = stays.select(**of_stays, at=pl.lit(0.0), code=pl.lit("unitdischargeoffset"), numeric_value=offset)
    points = stays.select(**of_stays, prediction_time=zero + pl.duration(days=1), boolean_value=pl.col("died") == 1)
    seconds = (pl.col("at") * 60).round().cast(pl.Int64)
    for name, rows in (("clean", [known, died]), ("leaky", [known, died, leak])):
        frame = pl.concat(rows).with_columns(time=zero + pl.duration(seconds=seconds))
        frame = frame.select("subject_id", "time", "code", pl.col("numeric_value").cast(pl.Float32))
        write_meds(frame.sort("subject_id", "time"), tmp_path / name, name="made")
        found = {f.check for f in audit(tmp_path / name, points)[0] if f.level == "warning"}
        assert found == ({"values that know the end"} if name == "leaky" else set())


def test_the_page_has_every_kind():
    sheet = json.loads((ROOT / "docs/results/events-leaks.json").read_text())
    rows = {row[0]: row[1:] for row in sheet["tables"][0]["rows"]}
    expected = {name: [kind, check] for name, (kind, _, check) in PLANTED.items()}
    expected |= {name: [kind, f"{check} (of a task file)"] for name, (kind, check) in OF_TASKS.items()}
    expected |= {name: [kind, f"not looked for: {why}"] for name, (kind, why) in NOT_LOOKED_FOR.items()}
    assert rows == expected


def test_copies_on_two_sides_of_a_split_are_counted(tmp_path: Path):
    stays = clean()
    PLANTED["a patient twice, nine in ten events"][1](stays)
    write_meds(stays.frame(), tmp_path / "meds", name="made")
    splits = pl.DataFrame({"subject_id": [s + 10_000 for s in range(5)], "split": ["held_out"] * 5})
    splits.write_parquet(tmp_path / "meds" / "metadata" / "subject_splits.parquet")
    (found,) = near_copies(read_meds(tmp_path / "meds"))
    assert "12 pairs of subjects" in found.sentence
    assert "5 of them on two sides of the splits" in found.sentence
    assert {b - a for a, b in found.rows} == {10_000}


def test_births_of_years_say_nothing(tmp_path: Path):
    """MIMIC-IV knows years: that half a ward was born on the first of January is no sign of anything."""
    stays = clean()
    stays.rows = [
        (s, t.replace(month=1, day=1, hour=0, minute=0) if c == "MEDS_BIRTH" and t else t, c, v, visit)
        for s, t, c, v, visit in stays.rows
    ]
    write_meds(stays.frame(), tmp_path / "meds", name="made")
    assert list(shared_births(read_meds(tmp_path / "meds"))) == []


def test_constant_values_and_outliers_know_no_end(tmp_path: Path):
    """MechVent, always 1, knew the end of 2,541 stays of PhysioNet-2012 with a correlation of 1.8e308."""
    stays = clean()
    for s, begin in stays.begin.items():
        stays.rows.append((s, begin, "MechVent", 1.0, s))
        stays.rows.append((s, begin if s else stays.end[s], "Weight", 80.0 + s % 7 if s else -1e7, s))
    assert warned(stays, tmp_path) == set()


def test_blocks_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from unmask.modalities.events.audit.audit_people import PEOPLE_CHECKS
    from unmask.modalities.events.records.meds import Events

    stays = clean()
    for name in ("the length of stay at admission", "a patient twice, nine in ten events"):
        PLANTED[name][1](stays)
    write_meds(stays.frame(), tmp_path / "meds", name="made")
    events = read_meds(tmp_path / "meds")
    whole = [f.to_dict() for check in PEOPLE_CHECKS for f in check(events)]
    blocks = Events.blocks
    monkeypatch.setattr(Events, "blocks", lambda self, most=300: blocks(self, most))
    assert [f.to_dict() for check in PEOPLE_CHECKS for f in check(events)] == whole
    assert [f["check"] for f in whole] == ["patients nearly twice", "births in common", "values that know the end"]
    assert np.isclose(whole[2]["rows"][0]["correlation with the time left"], 1)


def test_births_by_chance_and_by_weekday_say_nothing():
    """A register of newborns: many are born on one day, fewer on Sundays."""
    from unmask.modalities.events.records.meds import Events

    rng = np.random.default_rng(0)
    days = rng.choice(365, 20_000, p=(w := np.where(np.arange(365) % 7 == 6, 0.7, 1.0)) / w.sum())
    time = (days * 1440 + rng.integers(0, 1440, len(days))) * 60_000_000
    given = {"code": np.zeros(len(days), np.int32), "value": np.full(len(days), np.nan, np.float32)}
    one = Events(
        subjects=np.arange(len(days)), offsets=np.arange(len(days) + 1), time=time, codes=["MEDS_BIRTH"], **given
    )
    assert list(shared_births(one)) == []
