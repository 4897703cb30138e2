"""Every leak that is put into clean events is found, and clean events raise no warning."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from event_data import DAY, labels, shard, table

from unmask.cli import main
from unmask.cli.events.uses import odd_points
from unmask.modalities.events.audit.audit_points import audit, lines
from unmask.modalities.events.audit.findings import AuditFinding
from unmask.modalities.events.records.cuts import after_death, without_events
from unmask.modalities.events.records.labels import read_labels
from unmask.modalities.events.records.meds import read_meds
from unmask.modalities.events.records.shards import write_meds
from unmask.modalities.events.uses.demo import simulate

SHARED = Path(os.environ.get("UNMASK_SHARED", Path(__file__).parents[3].parent / "shared")) / "data" / "events"
SUBJECTS = 120
Row = tuple[int, datetime | None, str, float | None, int | None]


def clean(seed: int) -> tuple[list[Row], list[tuple]]:
    """Stays of three days with values in a random order of rows, and an outcome that no code tells."""
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    asked = []
    for subject in range(SUBJECTS):
        begin = datetime(2020, 1, 1) + timedelta(minutes=int(rng.integers(0, 500_000)))
        rows.append((subject, None, f"GENDER//{'MF'[subject % 2]}", None, None))
        rows.append((subject, begin, "ADMISSION", None, subject))
        for _ in range(12):
            moment = begin + timedelta(minutes=int(rng.integers(1, 4200)))
            for code in rng.permutation(["A", "B", "C", "D"])[: rng.integers(3, 5)]:
                rows.append((subject, moment, str(code), float(rng.normal()), subject))
        end = begin + timedelta(minutes=4320)
        rows.append((subject, end, "DISCHARGE", None, subject))
        rows.append((subject, end, "DIAGNOSIS//X", None, subject))
        asked.append((subject, begin + timedelta(days=2), bool(subject % 3 == 0)))
    return rows, asked


def found(folder: Path, rows: list[Row], asked: list[tuple]) -> dict[str, str]:
    """Check -> level."""
    frame = pl.DataFrame(
        rows,
        schema={
            "subject_id": pl.Int64,
            "time": pl.Datetime("us"),
            "code": pl.String,
            "numeric_value": pl.Float32,
            "visit_id": pl.Int64,
        },
        orient="row",
    )
    write_meds(frame, folder / "m", name="made")
    return {f.check: f.level for f in audit(folder / "m", labels(folder / "task", asked))[0]}


def test_one_code_in_several_spellings_is_named(tmp_path):
    """mg/dL, mg/dl and no unit made three codes of one laboratory value, and audit said nothing."""
    spelled = ["GLU//mg/dL", "GLU//mg/dl", "GLU", "NA//mmol/L", "VISIT", "VISIT//IN"]
    kinds = [(code, None if "VISIT" in code else 5.5) for code in spelled]
    rows = [(s, DAY + timedelta(hours=s + k), *kind) for s in range(9) for k, kind in enumerate(kinds)]
    found = audit(read_meds(shard(tmp_path / "m", table(rows))))[0]
    (seen,) = (f for f in found if f.check == "one code spelled in several ways")
    assert seen.level == "warning"
    ((first, others),) = seen.rows
    assert {first, *others.split(", ")} == {"GLU//mg/dL (9)", "GLU//mg/dl (9)", "GLU (9)"}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_clean_events_raise_no_warning(tmp_path: Path, seed: int):
    assert found(tmp_path, *clean(seed)) == {"within an encounter": "note"}


def test_the_patients_of_the_demo_raise_no_warning(tmp_path: Path):
    meds = simulate(tmp_path, patients=120)
    assert [f.check for f in audit(meds, tmp_path / "task")[0] if f.level == "warning"] == []


def test_a_code_that_tells_the_outcome_is_found(tmp_path: Path):
    rows, asked = clean(0)
    rows += [(s, t - timedelta(hours=1), "COMFORT", None, None) for s, t, y in asked if y]
    assert found(tmp_path, rows, asked)["tells the outcome"] == "warning"


def test_a_code_of_most_of_one_outcome_and_hardly_any_of_the_other_is_found(tmp_path: Path):
    rows, asked = clean(0)
    rng = np.random.default_rng(3)
    hours = timedelta(hours=1)
    more: list[Row] = [
        (s, t - hours, "HINT", None, s) for s, t, label in asked if rng.random() < (0.8 if label else 0.01)
    ]
    assert found(tmp_path, rows + more, asked)["tells the outcome"] == "warning"


def test_a_code_that_only_one_outcome_lacks_is_found(tmp_path: Path):
    rows, asked = clean(0)
    rows += [(s, t - timedelta(hours=1), "SENT HOME", None, None) for s, t, y in asked if not y]
    assert found(tmp_path, rows, asked)["tells the outcome"] == "warning"


def test_a_static_fact_and_a_value_that_tell_the_outcome_are_found(tmp_path: Path):
    for name, fact in (
        ("fact", lambda s, t, y: (s, None, f"STATUS//{y}", None, None)),
        ("value", lambda s, t, y: (s, t - timedelta(hours=2), "RISK", float(y) + s / 1000, None)),
    ):
        rows, asked = clean(0)
        (tmp_path / name).mkdir()
        assert found(tmp_path / name, rows + [fact(*a) for a in asked], asked)["tells the outcome"] == "warning"


def test_deaths_and_timed_codes_without_a_time_are_found(tmp_path: Path):
    rows, asked = clean(0)
    asked = [p for p in asked if p[0] not in (3, 4)]
    only = [*rows, (3, None, "MEDS_DEATH", None, None), (4, None, "MEDS_DEATH", None, None)]
    assert found(tmp_path / "deaths", only, asked) == {"within an encounter": "note", "facts without a time": "warning"}
    both = [*rows, (3, None, "DIAGNOSIS//X", None, None)]
    assert found(tmp_path / "both", both, asked) == {"within an encounter": "note", "facts without a time": "warning"}


def test_points_before_any_event_are_found(tmp_path: Path):
    rows, asked = clean(0)
    early = [(subject, datetime(1970, 1, 1), label) for subject, _, label in asked]
    assert found(tmp_path / "all", rows, early)["points without events"] == "warning"
    frame = pl.read_parquet(tmp_path / "all" / "m" / "data" / "*.parquet", hive_partitioning=False)
    events = read_meds(tmp_path / "all" / "m")
    first = frame.drop_nulls("time").group_by("subject_id").agg(pl.col("time").min())
    points = [(s, t - timedelta(microseconds=s % 2), True) for s, t in first.iter_rows()]
    bare = without_events(events, read_labels(labels(tmp_path / "some", points), events))
    assert bare.tolist() == [s % 2 == 1 for s, _, _ in points]


def test_points_after_the_death_are_counted(tmp_path: Path):
    """As `predict`, `evaluate` and `finetune` say them: they answered for the dead without a word."""
    rows, asked = clean(0)
    died = datetime(2020, 1, 1)
    rows = [*rows, (3, died, "MEDS_DEATH", None, None), (4, None, "MEDS_DEATH//HOSPITAL", None, None)]
    points = [(s, died + timedelta(days=d), True) for s in sorted({p[0] for p in asked}) for d in (-1, 0, 1)]
    found(tmp_path, rows, points)
    events = read_meds(tmp_path / "m")
    late = after_death(events, read_labels(tmp_path / "task", events))
    assert late.tolist() == [s == 4 or (s == 3 and t >= died) for s, t, _ in points]
    said = odd_points({"without_events": 0, "after_death": {"training": int(late.sum()), "held_out": 0}})
    assert said == ["warning: 5 points lie after the death of their patient"]


def test_dates_taken_for_times_are_found(tmp_path: Path):
    rows, asked = clean(0)
    for subject, moment, _ in asked:
        rows.append((subject, moment.replace(hour=0, minute=0), "BILLED", None, None))
    assert found(tmp_path, rows, asked)["midnight"] == "warning"


def test_dates_taken_for_prediction_times_are_found(tmp_path: Path):
    rows, asked = clean(0)
    days = [(s, t.replace(hour=0, minute=0, second=0, microsecond=0), y) for s, t, y in asked]
    rows += [(s, t + timedelta(hours=9), "LAB", 1.0, None) for s, t, _ in days]
    assert found(tmp_path / "times", rows, asked).get("prediction times at midnight") is None
    assert found(tmp_path / "dates", rows, days)["prediction times at midnight"] == "note"


def test_deaths_before_their_time_are_found(tmp_path: Path):
    rows, asked = clean(0)
    last = {s: t for s, t, *_ in sorted((r for r in rows if r[1] is not None), key=lambda r: r[1])}
    rows += [(s, last[s].replace(hour=0, minute=0), "MEDS_DEATH", None, None) for s in range(30)]
    checks = found(tmp_path, rows, asked)
    assert checks["death before its time"] == "warning"
    assert "points after death" not in checks


def test_points_behind_a_death_are_found(tmp_path: Path):
    rows, asked = clean(0)
    rows.append((3, asked[3][1] - timedelta(hours=5), "MEDS_DEATH", None, None))
    checks = found(tmp_path, rows, asked)
    assert checks["points after death"] == "warning"
    assert checks["after death"] == "note"


def test_the_end_of_an_observation_period_after_a_death_is_no_care(tmp_path: Path):
    rows, asked = clean(0)
    last = {s: t for s, t, *_ in sorted((r for r in rows if r[1] is not None), key=lambda r: r[1])}
    rows += [(s, last[s] + timedelta(days=2), "MEDS_DEATH", None, None) for s in range(3)]
    rows += [(s, last[s] + timedelta(days=40), "OBSERVATION_END", None, None) for s in range(3)]
    assert "after death" not in found(tmp_path, rows, asked)


def test_diagnoses_stamped_at_admission_and_early_ends_are_found(tmp_path: Path):
    rows, asked = clean(0)
    begin = {s: t for s, t, code, *_ in rows if code == "ADMISSION"}
    early = [(s, begin[s] if c.startswith("DIAG") else t, c, v, e) for s, t, c, v, e in rows]
    assert found(tmp_path, early, asked)["coded early"] == "warning"
    (tmp_path / "b").mkdir()
    ended = [(s, begin[s] if c == "DISCHARGE" else t, c, v, e) for s, t, c, v, e in rows]
    asked = [(s, t - timedelta(hours=12), y) for s, t, y in asked]
    assert found(tmp_path / "b", ended, asked)["the end is known"] == "warning"


def test_events_outside_their_encounter_are_found(tmp_path: Path):
    rows, asked = clean(0)
    begin = {s: t for s, t, code, *_ in rows if code == "ADMISSION"}
    late = [(s, begin[s] + timedelta(days=9), "CULTURE", None, s) for s in range(3)]
    assert found(tmp_path, [*rows, *late], asked)["events after their encounter"] == "note"
    (tmp_path / "b").mkdir()
    stray = (7, begin[7] - timedelta(days=365), "A", 1.0, 7)
    assert found(tmp_path / "b", [*rows, stray], asked)["events outside their encounter"] == "warning"


@pytest.mark.parametrize(("value", "hit"), [(1e7, True), (-9999.0, True), (60.0, False)])
def test_codes_with_absurd_values_are_named(tmp_path: Path, value: float, hit: bool):
    rows, asked = clean(0)
    when = next(t for s, t, code, *_ in rows if s == 3 and code == "ADMISSION")
    checks = found(tmp_path, [*rows, (3, when, "A", value, 3)], asked)
    assert checks.get("absurd values") == ("note" if hit else None)
    if hit:
        (seen,) = (f for f in audit(tmp_path / "m")[0] if f.check == "absurd values")
        assert [row[0] for row in seen.rows] == ["A"]
        assert value in seen.rows[0]


def test_a_mark_for_none_that_stands_in_a_third_of_the_values_is_named(tmp_path: Path):
    rows, asked = clean(0)
    marked = [(*row[:3], -9999.0, *row[4:]) if row[2] == "A" and n % 3 == 0 else row for n, row in enumerate(rows)]
    assert found(tmp_path, marked, asked)["absurd values"] == "note"


@pytest.mark.parametrize("days", [0, 3])
def test_who_is_born_or_dies_at_two_times_is_named(tmp_path: Path, days: int):
    rows, asked = clean(0)
    last = max(t for s, t, *_ in rows if s == 3 and t is not None) + timedelta(days=1)
    deaths = [(3, last + timedelta(days=d, hours=1), "MEDS_DEATH", None, 3) for d in (0, days)]
    births = [(3, last - timedelta(days=9000 + d), "MEDS_BIRTH", None, None) for d in (0, days)]
    without = [row for row in rows if (row[0], row[2]) != (3, "MEDS_BIRTH")]
    checks = found(tmp_path, [*without, *births, *deaths], asked)
    for check in ("several births", "several deaths"):
        assert checks.get(check) == ("warning" if days else None)
    for seen in audit(tmp_path / "m")[0]:
        if seen.check.startswith("several"):
            assert [row[:2] for row in seen.rows] == [(3, 2)]


def test_copies_of_patients_and_of_events_are_found(tmp_path: Path):
    rows, asked = clean(0)
    rows += [(500, *row[1:]) for row in rows if row[0] == 5] + rows[:60]
    checks = found(tmp_path, rows, asked)
    assert checks["patients twice"] == "warning"
    assert checks["duplicates"] == "note"


def test_events_before_birth_are_warned_of_with_examples(tmp_path: Path):
    rows, asked = clean(0)
    first = min(t for s, t, *_ in rows if s == 7 and t is not None)
    rows += [(s, datetime(1950, 1, 1), "MEDS_BIRTH", None, None) for s in range(SUBJECTS) if s != 7]
    assert "before birth" not in found(tmp_path, rows, asked)
    late = (7, first + timedelta(days=400), "MEDS_BIRTH", None, None)
    (tmp_path / "b").mkdir()
    assert found(tmp_path / "b", [*rows, late], asked)["before birth"] == "warning"
    said = next(f for f in audit(tmp_path / "b" / "m")[0] if f.check == "before birth")
    mine = sum(s == 7 and t is not None for s, t, *_ in rows)
    assert said.rows == [(7, f"{late[1]:%Y-%m-%d}", mine, "ADMISSION", f"{first:%Y-%m-%d}")]


@pytest.mark.parametrize(
    ("day", "code", "check"),
    [
        (datetime(1900, 1, 1), "MEDS_BIRTH", "dates for none"),
        (datetime(1900, 1, 1), "A", "dates for none"),
        (datetime(9999, 12, 31), "A", "dates for none"),
        (datetime(2100, 1, 1), "DUE", "dates in the future"),
    ],
)
def test_dates_that_stand_for_none_are_warned_of(tmp_path: Path, day: datetime, code: str, check: str):
    rows, asked = clean(0)
    checks = found(tmp_path, rows + [(s, day, code, None, None) for s in range(0, 30, 2)], asked)
    assert {c for c in checks if c.startswith("dates")} == {check}
    said = next(f for f in audit(tmp_path / "m")[0] if f.check == check)
    assert said.rows == [(code, 15, f"{day:%Y-%m-%d}", f"{day:%Y-%m-%d}")]


def test_a_folder_whose_dates_were_moved_is_not_in_the_future(tmp_path: Path):
    rows, asked = clean(0)
    moved = [(s, t and t + timedelta(days=365 * 150), *more) for s, t, *more in rows]
    asked = [(s, t + timedelta(days=365 * 150), y) for s, t, y in asked]
    assert not [c for c in found(tmp_path, moved, asked) if c.startswith("dates")]


def test_a_constant_order_of_rows_and_points_at_events_are_noted(tmp_path: Path):
    rows, asked = clean(0)
    rows.sort(key=lambda r: (r[0], r[1] or datetime.min, r[2]))
    moment = {s: t for s, t, code, *_ in rows if code == "A"}
    checks = found(tmp_path, rows, [(s, moment.get(s, t), y) for s, t, y in asked])
    assert checks["row order"] == checks["at the prediction time"] == "note"


def test_the_command_says_what_to_do_and_ends_by_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows, asked = clean(0)
    found(tmp_path, rows, asked)
    (tmp_path / "bad").mkdir()
    found(tmp_path / "bad", rows + [(s, t, "COMFORT", None, None) for s, t, y in asked if y], asked)
    for folder, code in ((tmp_path, 0), (tmp_path / "bad", 1)):
        capsys.readouterr()
        page = str(folder / "audit.html")
        with pytest.raises(SystemExit) as stopped:
            main(["events", "audit", str(folder / "m"), "--labels", str(folder / "task"), "--json", "--out", page])
        assert (stopped.value.code or 0) == code
        said = json.loads(capsys.readouterr().out)
        assert said["warnings"] == code
        assert [f["check"] for f in said["findings"] if f["level"] == "warning"] == ["tells the outcome"][:code]
        page = (folder / "audit.html").read_text()
        assert ("COMFORT" in page) == bool(code) == ("No warning" not in page)
        assert not code or page.index("tell the outcome almost by themselves") < page.index("COMFORT")
    with pytest.raises(SystemExit) as stopped:
        main(["events", "audit", str(tmp_path / "absent")])
    assert stopped.value.code == 2


@pytest.mark.skipif(not SHARED.exists(), reason="the real events are not here")
def test_real_events_raise_no_warning():
    task = SHARED / "physionet2012_a" / "tasks" / "in_hospital_death"
    # Synthea writes a few events before their patient's birth, and lives the life of one who died early again under
    # another id, with the same birth: 285 pairs of its 585 patients.
    for folder, asked, said in (
        (SHARED / "physionet2012_a", task, []),
        (SHARED / "synthea_r4", None, ["before birth", "births in common"]),
    ):
        assert [f.check for f in audit(folder, asked)[0] if f.level == "warning"] == said


def test_a_value_is_written_in_as_many_digits_as_it_has():
    """Values in single precision were shown as 6.820000171661377."""
    rows = [("pH", 2758, float(np.float32(6.82)))]
    one = AuditFinding(check="c", level="note", sentence="s", todo="t", columns=("code", "values", "least"), rows=rows)
    assert lines([one], {})[-1] == "    code: pH  values: 2758  least: 6.82"
