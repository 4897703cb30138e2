"""What the parts of an outcome head are worth, and that what is worth nothing is left out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from event_data import main_fails, main_ok

import unmask
from unmask.modalities.events.outcome.targets import Binary
from unmask.modalities.events.recipes import OutcomeSettings
from unmask.modalities.events.records.labels import read_labels
from unmask.modalities.events.records.meds import read_meds
from unmask.modalities.events.uses.work import OutcomeWork, worth

QUICK = ["--set", "slots=64", "--set", "batch_slots=1024", "--set", "width=32", "--precision", "fp32"]
FEW = {"members": 2, "epochs": 8, "trees": 20, "boosting": 20, "hidden": 8, "worth": True}


@pytest.fixture(scope="module")
def asking(home: Path) -> Path:
    """A model that answers, hardly trained."""
    out = home / "asked"
    main_ok(
        [
            "pretrain",
            "events",
            str(home / "meds"),
            "--out",
            str(out),
            "--recipe",
            "ask",
            "--steps",
            "3",
            "--set",
            "until=last",
            *QUICK,
        ]
    )
    return out


@pytest.fixture
def work(asking: Path, home: Path) -> OutcomeWork:
    model, events = unmask.load(asking), read_meds(home / "meds")
    points, target = read_labels(home / "task", events), Binary()
    settings = OutcomeSettings(states=True, answers=True, **FEW)
    return OutcomeWork(model, model.histories(events), points, target, target.encode(points), settings)


def test_a_part_of_noise_is_left_out_and_one_that_tells_is_kept(work: OutcomeWork):
    """States replaced by noise, answers by the label and a little noise."""
    rng = np.random.default_rng(0)
    whole = work.whole._whole
    whole[:, work.columns["states"]] = rng.normal(size=(len(whole), len(work.columns["states"])))
    noise = rng.normal(size=(len(whole), len(work.columns["answers"])))
    whole[:, work.columns["answers"]] = work.y + 0.5 * noise
    found = worth(work, np.arange(len(work.y)))
    assert found.settings.answers
    assert not found.settings.states
    assert "states" in found.figures["left_out"]
    told = found.figures["parts"]["answers"]
    assert told["intervals"]["log_likelihood"][0] > 0
    assert told["auroc"] > 0


def test_held_out_patients_have_no_say(work: OutcomeWork):
    train = np.flatnonzero(np.arange(len(work.y)) % 3 > 0)
    before = worth(work, train).figures
    work.y[np.arange(len(work.y)) % 3 == 0] = 1
    work.whole._whole[np.arange(len(work.y)) % 3 == 0] = 0
    assert worth(work, train).figures == before


def test_the_report_says_it_and_the_model_predicts_without_what_was_left_out(
    asking: Path, home: Path, tmp_path: Path, capsys
):
    changes = [word for key, value in FEW.items() for word in ("--set", f"{key}={str(value).lower()}")]
    changes += ["--set", "states=true", "--set", "answers=true", "--set", "curve=false", "--set", "baselines=false"]
    capsys.readouterr()
    words = ["finetune", "outcome", asking, home / "meds", "--labels", home / "task", "--out", tmp_path / "o", "--json"]
    main_ok([str(w) for w in (*words, *changes)])
    found = json.loads(capsys.readouterr().out)
    assert set(found["worth"]["parts"]) == {"states", "answers", "summaries", "members", "trees", "boosting"}
    model = unmask.load(tmp_path / "o")
    for part in found["worth"]["left_out"]:
        assert not model.folder.outcome[part]
    frame, _ = model.predicted(home / "meds", home / "task")
    assert frame["predicted_boolean_probability"].is_between(0, 1).all()
    assert "worth" in (tmp_path / "o" / "report.html").read_text()


def test_answers_of_a_model_without_questions_are_refused(home: Path, tmp_path: Path, capsys):
    words = ["finetune", "outcome", home / "model", home / "meds", "--labels", home / "task", "--out", tmp_path / "o"]
    assert "--recipe ask" in main_fails([*words, "--set", "answers=true"], capsys)
