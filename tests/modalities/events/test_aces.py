"""Tasks in the language of ACES: points and labels as the package gives them, what a definition gives away, and what is
refused."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from event_data import DAY, main_fails, main_ok, shard, table
from task_reference import exchanged, points, random_records, random_task

import unmask
from unmask.errors import UserError
from unmask.modalities.events.audit.audit_points import audit
from unmask.modalities.events.records.aces import read_task
from unmask.modalities.events.records.labels import read_labels
from unmask.modalities.events.records.meds import Events, as_events
from unmask.modalities.events.records.windows import evaluate_task

H = timedelta(hours=1)
READMISSION = """
predicates:
  admission: {code: {regex: "^ADM//"}}
  discharge: {code: DIS}
trigger: admission
windows:
  input:
    start: trigger
    end: start -> discharge
    start_inclusive: False
    end_inclusive: True
    index_timestamp: end
  target:
    start: input.end
    end: start + 30 days
    start_inclusive: False
    end_inclusive: True
    label: admission
"""
"""As ACES publishes it (sample_configs/readmission_risk.yaml)."""
MORTALITY = """
metadata: {description: in-hospital death after the first day}
predicates:
  admission: ???
  discharge: ???
  death: {code: {regex: "MEDS_DEATH.*"}}
  discharge_or_death: {expr: "or(discharge, death)"}
trigger: admission
windows:
  input:
    start: null
    end: trigger + 24h
    start_inclusive: True
    end_inclusive: True
    index_timestamp: end
  gap:
    start: trigger
    end: start + 48h
    start_inclusive: False
    end_inclusive: True
    has:
      admission: (None, 0)
      discharge_or_death: (None, 0)
  target:
    start: gap.end
    end: start -> discharge_or_death
    start_inclusive: False
    end_inclusive: True
    label: death
"""
"""As MEDS-DEV publishes it (tasks/mortality), each data set fills in two predicates."""
OF_THIS_DATA = """
predicates:
  admission: {code: {regex: "^ADM//"}}
  discharge: {code: DIS}
"""


def stays(*rows: tuple[int, float, str]) -> Events:
    """Events of (subject, hours, code)."""
    return as_events(table([(s, DAY + hours * H, code, None) for s, hours, code in rows]))


def task_file(folder: Path, text: str | dict[str, Any], name: str = "task.yaml") -> Path:
    path = folder / name
    path.write_text(text if isinstance(text, str) else yaml.safe_dump(text, sort_keys=False))
    return path


def test_readmission_by_hand(tmp_path: Path):
    events = stays(
        (1, 0, "ADM//a"),
        (1, 48, "DIS"),
        (1, 48 + 24 * 30, "ADM//b"),  # at the very end of the window
        (1, 900, "DIS"),
        (2, 0, "ADM//a"),
        (2, 10, "DIS"),
        (2, 10 + 24 * 30 + 1, "ADM//b"),  # an hour later, and never discharged
    )
    found = evaluate_task(read_task(task_file(tmp_path, READMISSION)), events)
    assert found.frame(events).rows() == [
        (1, DAY + 48 * H, True),
        (1, DAY + 900 * H, False),
        (2, DAY + 10 * H, False),
    ]
    assert found.candidates == 4
    assert found.left_out == {"input: discharge not found": 1}
    assert found.unseen.tolist() == [False, True, False]


def test_mortality_by_hand(tmp_path: Path):
    events = stays(
        *((1, 0, "ADM//a"), (1, 72, "MEDS_DEATH")),
        *((2, 0, "ADM//a"), (2, 48, "DIS")),  # within the gap: its end counts
        *((3, 0, "ADM//a"), (3, 49, "DIS"), (3, 60, "MEDS_DEATH")),  # discharged first
        *((4, 0, "ADM//a"), (4, 47, "LAB")),
    )
    task = read_task(task_file(tmp_path, MORTALITY), task_file(tmp_path, OF_THIS_DATA, "predicates.yaml"))
    found = evaluate_task(task, events)
    assert found.frame(events).rows() == [(1, DAY + 24 * H, True), (3, DAY + 24 * H, False)]
    assert found.left_out["gap: at most 0 discharge_or_death"] == 1
    assert found.left_out["target: discharge_or_death not found"] == 1  # of 4
    assert set(found.future) == {
        "gap: at most 0 admission",
        "gap: at most 0 discharge_or_death",
        "target: discharge_or_death not found",
    }


@pytest.mark.parametrize("seed", range(80))
def test_random_tasks_as_the_plain_evaluation_has_them(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = Events.blocks
    monkeypatch.setattr(Events, "blocks", lambda self, most=20: whole(self, most))
    frame, task = random_records(seed), random_task(seed)
    check(frame, task, points(frame, task), tmp_path)


def check(frame: pl.DataFrame, task: dict[str, Any], expected: list[tuple], folder: Path) -> None:
    """Our points are the expected ones, each once; none and two labels of one point are refused."""
    read, events, once = read_task(task_file(folder, task)), as_events(frame), set(expected)
    if not once or len({row[:2] for row in once}) < len(once):
        with pytest.raises(UserError, match="no point" if not once else "two labels"):
            evaluate_task(read, events)
        return
    assert sorted(evaluate_task(read, events).frame(events).rows()) == sorted(once)


def test_random_tasks_as_the_package_has_them(tmp_path: Path):
    pytest.importorskip("aces", reason="es-aces asks for polars below 2: an environment of its own has it")
    from aces.config import TaskExtractorConfig
    from aces.predicates import get_predicates_df
    from aces.query import query
    from omegaconf import DictConfig

    seeds = [seed for seed in range(80) if not exchanged(random_task(seed))]
    assert len(seeds) > 50
    for seed in seeds:
        frame, task, folder = random_records(seed), random_task(seed), tmp_path / str(seed)
        folder.mkdir()
        frame.write_parquet(folder / "0.parquet")
        config = TaskExtractorConfig.load(task_file(folder, task))
        about = DictConfig({"path": str(folder / "0.parquet"), "standard": "meds", "ts_format": None})
        found = query(config, get_predicates_df(config, about))
        rows = found.select("subject_id", "index_timestamp", pl.col("label").cast(pl.Boolean)) if len(found) else found
        check(frame, task, rows.drop_nulls().rows() if len(found) else [], folder)


def test_a_fact_without_a_time_chooses_subjects(tmp_path: Path):
    frame = table([(s, None, sex, None) for s, sex in ((1, "SEX//F"), (2, "SEX//M"))][:1])
    frame = pl.concat([frame, table([(1, DAY, "ADM//a", None), (1, DAY + H, "DIS", None)])])
    frame = pl.concat([frame, table([(2, None, "SEX//M", None), (2, DAY, "ADM//a", None), (2, DAY + H, "DIS", None)])])
    text = READMISSION + "patient_demographics:\n  female: {code: SEX//F}\n"
    found = evaluate_task(read_task(task_file(tmp_path, text)), as_events(frame))
    assert found.subject.tolist() == [0]
    assert found.candidates == 1


def test_all_that_is_wrong_is_named_at_once(tmp_path: Path):
    text = READMISSION.replace("start + 30 days", "start + 30 moons").replace("code: DIS", "kode: DIS")
    with pytest.raises(UserError) as error:
        read_task(task_file(tmp_path, text.replace("trigger: admission", "trigger: admision")))
    for words in ("'30 moons' is no time", "predicate discharge: kode", "predicate admision: not among"):
        assert words in error.value.what


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("trigger: admission", "trigger: [admission]", "no trigger"),
        ("    index_timestamp: end\n", "", "index_timestamp"),
        ("    label: admission", "    label: admission\n    index_timestamp: start", "one may"),
        ("start: input.end", "start: inputs.end", "neither the trigger"),
        ("start: trigger", "start: target.end", "circle"),
        ("end: start -> discharge", "end: trigger -> discharge", "exactly one end"),
        ("end: start + 30 days", "end: start - 30 days", "not before the end"),
        ("start_inclusive: False", "start_inclusive: 0", "expected True or False"),
        ("code: DIS", 'code: {regex: "("}', "regex"),
        ("code: DIS", "code: DIS, unit: mg", "no other column"),
        ("code: DIS", "code: '???'", "fills it in"),
        ("trigger: admission\n", "trigger: admission\nwindow: {}\n", "windows"),
        ("label: admission", "label: admission\n    has: {admission: '(3, 1)'}", "bounds nothing"),
    ],
)
def test_what_is_no_task_is_refused(old: str, new: str, says: str, tmp_path: Path):
    assert READMISSION.count(old)
    with pytest.raises(UserError, match=says):
        evaluate_task(
            read_task(task_file(tmp_path, READMISSION.replace(old, new))), stays((1, 0, "ADM//a"), (1, 1, "DIS"))
        )


def some_stays(folder: Path) -> Path:
    """Forty subjects, every second of whom comes back within the month; records go on for long."""
    rows = []
    for s in range(1, 41):
        back = 24 * (10 if s % 2 else 50)
        hours = [(0, "ADM//a"), (20, "DIS"), (20 + back, "ADM//b"), (60 + back, "DIS"), (9000, "LAB")]
        rows += [(s, DAY + h * H, code, None) for h, code in hours]
    return shard(folder / "meds", table(rows))


def test_labels_are_written_and_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    meds, task = some_stays(tmp_path), task_file(tmp_path, READMISSION)
    out = tmp_path / "labels"
    main_ok(["events", "labels", str(meds), "--task", str(task), "--out", str(out), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["points"], found["patients"], found["positives"]) == (80, 40, 20)
    assert found["prevalence"] == 0.25
    events = as_events(meds)
    written = read_labels(out, events)
    for given in (task, out / "task.yaml"):
        assert read_labels(given, events).value.tolist() == written.value.tolist()
    assert "exists" in main_fails(["events", "labels", meds, "--task", task, "--out", out], capsys)


def test_what_a_data_set_must_fill_in_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    meds, task = some_stays(tmp_path), task_file(tmp_path, MORTALITY)
    error = main_fails(["events", "labels", meds, "--task", task, "--out", tmp_path / "l"], capsys)
    assert "admission: ???" in error
    assert "discharge: ???" in error
    assert "--predicates" in error
    assert not (tmp_path / "l").exists()
    given = task_file(tmp_path, OF_THIS_DATA, "predicates.yaml")
    error = main_fails(
        ["events", "labels", meds, "--task", task, "--predicates", given, "--out", tmp_path / "l"], capsys
    )
    assert "no point: 80 time stamps with admission" in error  # all leave within two days
    assert "not gap: at most 0 discharge_or_death" in error


def test_written_labels_validate(tmp_path: Path):
    meds = pytest.importorskip("meds", reason="the meds package is a development dependency")
    import pyarrow.parquet as pq

    unmask.events.labels(some_stays(tmp_path), task_file(tmp_path, READMISSION), tmp_path / "labels")
    meds.LabelSchema.validate(pq.ParquetFile(tmp_path / "labels" / "labels.parquet").read())


def checks(found: list) -> dict[str, str]:
    return {f.check: f.level for f in found}


def test_a_sound_definition_gives_nothing_away(tmp_path: Path):
    found = unmask.events.labels(some_stays(tmp_path), task_file(tmp_path, READMISSION))
    assert found.findings == []
    assert "80 points of 40 patients, 25.0% true (20)" in str(found)


@pytest.mark.parametrize(
    ("changed", "check", "level"),
    [
        # the discharge that makes the label true is the moment of the prediction itself
        ({"label": "discharge", "start_inclusive": True}, "the label is known", "warning"),
        ({"label": "discharge", "start": "trigger", "end": "start + 2 days"}, "the label is known", "warning"),
        # codes that this data set does not have: whoever says no is right in 100 % (MEDS-DEV #237)
        ({"label": "lab"}, "one outcome", "warning"),
        ({"label": "lab"}, "predicates without events", "warning"),
        ({"has": {"admission": "(1, None)"}}, "chosen by the future", "note"),
        ({"end": "start + 3000 days"}, "not observed to the end", "warning"),
    ],
)
def test_what_a_definition_gives_away_is_named(changed: dict[str, Any], check: str, level: str, tmp_path: Path):
    content = yaml.safe_load(READMISSION)
    content["predicates"]["lab"] = {"code": "GLUCOSE"}
    content["windows"]["target"] |= changed
    task = task_file(tmp_path, content)
    found = checks(unmask.events.labels(some_stays(tmp_path), task).findings)
    assert found[check] == level
    assert checks(audit(tmp_path / "meds", task)[0])[check] == level


def test_an_overlap_without_an_event_gives_nothing_away(tmp_path: Path):
    content = yaml.safe_load(READMISSION)
    content["windows"]["target"]["start"] = "trigger"
    found = unmask.events.labels(some_stays(tmp_path), task_file(tmp_path, content))
    assert "the label is known" not in checks(found.findings)
