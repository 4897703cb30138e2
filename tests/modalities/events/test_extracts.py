"""From an extract as a hospital has it to a judged prediction, by the commands alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import extracts
import numpy as np
import polars as pl
import pytest
from event_data import main_fails

from unmask.cli import main
from unmask.modalities.events.recipes import OutcomeSettings
from unmask.modalities.events.records.meds import read_meds
from unmask.modalities.events.uses.finetune import finetune_outcome

SMALL = ["--set", "slots=64", "--set", "batch_slots=1024", "--set", "width=32", "--precision", "fp32", "--steps", "8"]
HEAD = ["members=1", "trees=30", "epochs=5", "curve=false", "baselines=false"]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: Any) -> dict[str, Any]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main([*(str(a) for a in arguments), "--json"])
        assert not stopped.value.code
        return json.loads(capsys.readouterr().out)

    return run


def split(meds: Path) -> np.ndarray:
    """Hold every fourth subject out, and choose by every fifth of the others."""
    subjects = read_meds(meds).subjects
    names = ["held_out" if s % 4 == 0 else "tuning" if s % 5 == 0 else "train" for s in subjects.tolist()]
    pl.DataFrame({"subject_id": subjects, "split": names}).write_parquet(meds / "metadata" / "subject_splits.parquet")
    return subjects[subjects % 4 == 0]


@pytest.mark.parametrize("make", [extracts.mimic, extracts.omop])
def test_an_extract_becomes_a_judged_prediction(tmp_path: Path, said: Any, make: Any, capsys: Any):
    extract, task = make(tmp_path / "raw")
    meds, model, outcome = (tmp_path / n for n in ("meds", "model", "outcome"))
    found = said("events", "convert", extract, "--out", meds)
    assert found["unused"] == ({"diagnoses_icd": "columns not read: seq_num"} if make is extracts.mimic else {})
    assert set(found["rejected"]) <= {"emar: event_txt Not Given"}
    assert all(count["rows"] for count in found["tables"].values() if count["files"])
    assert said("events", "audit", meds, "--labels", task)["warnings"] == 0
    held = split(meds)

    trained = said("pretrain", "events", meds, "--out", model, *SMALL)
    assert trained["data"]["kept_out"] == len(held)
    assert trained["data"]["held_out"] == 18
    assert trained["data"]["training"] == 120 - len(held) - 18
    more = pl.concat(
        [
            pl.read_parquet(task / "0.parquet"),
            pl.read_parquet(task / "0.parquet")
            .head(2)
            .with_columns(subject_id=pl.lit(9999, pl.Int64) + pl.int_range(2)),
        ]
    )
    more.write_parquet(task / "0.parquet")
    fitted = said(
        "finetune", "outcome", model, meds, "--labels", task, "--out", outcome, *(a for s in HEAD for a in ("--set", s))
    )
    assert (fitted["held_out"], fitted["training"], fitted["outside"]) == (len(held), 120 - len(held), 2)
    assert fitted["held_out_by"] == "the splits of the data"

    assert fitted["without_events"] == {"training": 0, "held_out": 0}
    written = said("predict", outcome, meds, "--labels", task, "--out", tmp_path / "p.parquet")
    assert (written["points"], written["outside"], written["splits"]["held_out"]) == (120, 2, len(held))
    assert written["unknown_share"] < 0.1
    judged = said("evaluate", outcome, meds, "--labels", task)
    assert (judged["points"], judged["split"]) == (len(held), "held_out")
    assert judged["results"]["model"]["auroc"] > 0.65 > judged["results"]["prevalence"]["auroc"] == 0.5
    low, high = judged["results"]["model"]["intervals"]["auroc"]
    assert low < judged["results"]["model"]["auroc"] < high
    assert judged["results"]["model"]["auroc"] == pytest.approx(fitted["results"]["ours"]["auroc"])

    assert judged["results"]["age and number of events"]["n"] == len(held)

    codes = {extracts.mimic: "DIAGNOSIS", extracts.omop: "CONDITION"}[make]
    asked_next = [f"codes={codes}", "members=1", "trees=0", "epochs=5"]
    following = said(
        "finetune", "next-visit", model, meds, "--out", tmp_path / "next", *(f"--set={s}" for s in asked_next)
    )
    assert following["visit"] == "an encounter of the data"
    assert (following["held_out"], following["codes"], following["encounters"]) == (len(held), 2, 120)
    low, high = following["results"]["ours"]["all"]["intervals"]["auroc"]
    assert low <= following["results"]["ours"]["all"]["auroc"] <= high

    shape = said("embed", model, meds, "--labels", task, "--out", tmp_path / "v.parquet")["shape"]
    vectors = pl.read_parquet(tmp_path / "v.parquet")
    assert vectors["embedding"].to_numpy().shape == tuple(shape) == (120, 64)
    asked = pl.read_parquet(task / "0.parquet").head(120)
    assert vectors.select("subject_id", "prediction_time").equals(asked.select("subject_id", "prediction_time"))
    beside = said("embed", model, meds, "--out", tmp_path / "w.npy")["ids"]
    assert pl.read_parquet(beside)["subject_id"].to_list() == read_meds(meds).subjects.tolist()


def test_points_before_any_event_are_counted(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    frame = pl.read_parquet(home / "task" / "0.parquet")
    (tmp_path / "task").mkdir()
    early = (
        pl.when(pl.int_range(len(frame)) % 4 == 0).then(pl.datetime(1901, 1, 1)).otherwise(pl.col("prediction_time"))
    )
    frame.with_columns(prediction_time=early.cast(pl.Datetime("us"))).write_parquet(tmp_path / "task" / "0.parquet")
    bare = -(-len(frame) // 4)
    run = finetune_outcome(
        home / "model",
        home / "meds",
        tmp_path / "task",
        tmp_path / "m",
        settings=OutcomeSettings(epochs=1, members=1, trees=0, curve=False, baselines=False),
    )
    assert sum(run.figures["without_events"].values()) == bare
    for command, more in (("predict", ["--out", str(tmp_path / "p.parquet")]), ("evaluate", [])):
        with pytest.raises(SystemExit):
            main([command, str(tmp_path / "m"), str(home / "meds"), "--labels", str(tmp_path / "task"), *more])
        assert "before the first event of their patient" in capsys.readouterr().out


def test_data_of_other_codes_is_refused(home: Path, tmp_path: Path, said: Any, capsys: pytest.CaptureFixture[str]):
    extract, _ = extracts.omop(tmp_path / "raw", patients=20)
    said("events", "convert", extract, "--out", tmp_path / "m")
    command = ["score", home / "model", tmp_path / "m"]
    assert "% of the events" in main_fails(command, capsys)
    assert said(*command, "--most-unknown", "1")["unknown_share"] > 0.9
    assert "Expected a share" in main_fails([*command, "--most-unknown", "2"], capsys)
