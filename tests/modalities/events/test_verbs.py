"""The verbs of patient events in Python: data first, settings as keywords, frames in memory, results that print
themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import unmask
from unmask.errors import UserError
from unmask.modalities.events.uses.finetune import OutcomeRun

QUICK: dict[str, Any] = {"epochs": 4, "members": 1, "hidden": 8, "trees": 5, "curve": False, "baselines": False}


def meds(home: Path) -> pl.DataFrame:
    return pl.concat(pl.read_parquet(file) for file in sorted((home / "meds" / "data").rglob("*.parquet")))


@pytest.fixture(scope="module")
def tuned(home: Path) -> OutcomeRun:
    return unmask.events.finetune(home / "model", home / "meds", labels=home / "task", **QUICK)


def test_pretraining_takes_settings_as_keywords_and_a_frame(home):
    run = unmask.events.pretrain(meds(home), console=False, steps=2, width=16, slots=64, batch_slots=512)
    assert (run.settings.width, run.result.steps) == (16, 2)
    assert run.model.embed(home / "meds").shape == (240, 32)
    assert str(run).startswith("A masked model of the events of ")
    assert "most frequent code of the patient" in str(run)
    assert "next: run.model.finetune(meds, labels=task)" in str(run)
    with pytest.raises(UserError, match="Did you mean 'steps'"):
        unmask.events.pretrain(home / "meds", step=3)


def test_the_task_is_known_from_the_labels(home, tuned):
    assert tuned.figures["kind"] == "binary"
    points = pl.read_parquet(home / "task" / "0.parquet")
    loaded = unmask.load(home / "model")
    again = unmask.events.finetune(loaded, meds(home), points, **QUICK)
    assert loaded.folder.head is None
    for run in (tuned, again):
        frame = run.model.predict(home / "meds", labels=points)
        assert frame.equals(unmask.events.predict(run.folder, home / "meds", home / "task"))
    small = {name: value for name, value in QUICK.items() if name not in ("trees", "curve")}
    visits = unmask.events.finetune(home / "model", home / "meds", task="next-visit", codes="GLUCOSE,SYSTOLIC", **small)
    assert visits.figures["kind"] == "multi_label"
    assert str(visits).startswith("A model of the codes of the next visit")
    with pytest.raises(UserError, match="for what"):
        unmask.events.finetune(home / "model", home / "meds")
    with pytest.raises(UserError, match="task='mortality' with labels"):
        unmask.events.finetune(home / "model", home / "meds", labels=home / "task", task="mortality")


def test_a_verb_of_a_folder_is_that_of_the_loaded_model(home, tuned, tmp_path):
    frame = unmask.events.predict(tuned.folder, home / "meds", tmp_path / "p.parquet", labels=home / "task")
    assert frame.equals(pl.read_parquet(tmp_path / "p.parquet"))
    with pytest.raises(UserError, match="predict without labels="):
        unmask.events.predict(tuned.folder, home / "meds", tmp_path / "q.parquet")
    assert not (tmp_path / "q.parquet").exists()
    tuned.model.save(tmp_path / "copy")
    copied = unmask.load(tmp_path / "copy")
    assert copied.predict(home / "meds", labels=home / "task").equals(frame)
    assert copied.folder.about == tuned.model.folder.about
    both = copied.predict_proba(home / "meds", home / "task")
    assert (both[:, 1] == frame["predicted_boolean_probability"].to_numpy()).all()
    other = meds(home).with_columns(pl.col("subject_id") + 10_000_000)
    points = pl.read_parquet(home / "task" / "0.parquet").with_columns(pl.col("subject_id") + 10_000_000)
    judged = unmask.events.evaluate(tuned.folder, other, points)
    assert judged == tuned.model.evaluate(other, labels=points)
    assert judged["points"] == len(points)


def test_results_print_figures_beside_rules(home, tuned):
    lines = str(tuned).splitlines()
    assert lines[0].startswith("A model of a yes or no, of ")
    assert lines[2].split()[:3] == ["held", "out", "model"]
    assert any(line.startswith("AUROC") for line in lines)
    assert "run.model.save(folder) keeps" in str(tuned)
    judged = unmask.events.evaluate(tuned.folder, *(shifted(home)))
    assert str(judged).splitlines()[2].split()[:3] == ["figure", "model", "prevalence"]
    audited = unmask.events.audit(home / "meds", home / "task")
    found, about = audited
    assert len(audited.to_frame()) == len(found)
    assert str(audited).startswith(f"{about['events']:,} events")


def shifted(home: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Other people of the same kind."""
    points = pl.read_parquet(home / "task" / "0.parquet")
    return tuple(frame.with_columns(pl.col("subject_id") + 10_000_000) for frame in (meds(home), points))
