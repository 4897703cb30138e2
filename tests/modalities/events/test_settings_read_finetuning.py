"""Every setting of fine-tuning on patient events does something, or is refused by name where nothing reads it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from unmask.errors import UserError
from unmask.modalities.events.outcome.outcome import HeadFinetuning
from unmask.modalities.events.recipes import EventSettings, OutcomeSettings, with_overrides
from unmask.modalities.events.records.meds import read_meds
from unmask.modalities.events.uses.demo import simulate
from unmask.modalities.events.uses.finetune import finetune_outcome
from unmask.modalities.events.uses.next_visit import finetune_next_visit
from unmask.modalities.events.uses.pretrain import pretrain
from unmask.training.settings import apply_overrides

SMALL = {"slots": 64, "batch_slots": 512, "width": 32, "steps": 3, "precision": "fp32", "epochs": None}
QUICK = {
    "members": 2,
    "hidden": 4,
    "trees": 2,
    "boosting": 2,
    "epochs": 20,
    "patience": 1,
    "baselines": False,
    "curve": False,
}
OTHER = {
    "problem": "single",
    "level": 0.8,
    "members": 3,
    "trees": 4,
    "boosting": 4,
    "hidden": 8,
    "dropout": 0.6,
    "weight_decay": 0.9,
    "learning_rate": 1e-2,
    "epochs": 1,
    "patience": 20,
    "holdout": 0.4,
    "states": True,
    "summaries": False,
    "answers": True,
    "worth": True,
    "baselines": True,
    "curve": True,
    "codes": "METFORMIN",
    "visit_gap": 3000.0,
    "checkpoint_seconds": 7.0,
    "examples": True,
    "seed": 1,
    "precision": "bf16",
}
BY_OTHER_TESTS = {"device", "most_unknown"}
"""Where there is one processor, and of codes that the model does not know: nothing changes here."""
BESIDE: dict[str, dict] = {"precision": {"states": True}}
"""Of the encoder, which is not read where summaries hold every code."""
KINDS = {
    "yes or no": {"problem", "level", "codes", "visit_gap", "checkpoint_seconds"},
    "numbers": {"codes", "visit_gap", "checkpoint_seconds", "worth"},
    "times": {"problem", "level", "trees", "boosting", "codes", "visit_gap", "checkpoint_seconds", "worth"},
    "next visit": {"problem", "level", "trees", "boosting", "checkpoint_seconds", "worth", "examples"},
}
"""What nothing reads, of each task."""
TAKEN: list[float] = []
"""Losses of the steps of the last fine-tuning."""
IDLE = set.union(*KINDS.values())
PAIRS = [
    (name, kind)
    for name in OTHER
    for kind in KINDS
    if (name in IDLE or kind not in ("numbers", "times")) and (name, kind) != ("curve", "next visit")
]
"""Numbers and times go through the same lines as yes or no. A next visit has no curve: curve=true is the default."""


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("settings")
    simulate(place, 60, 0)
    more = SMALL | {"questions": 2, "until": "last", "holdout": 0.2}
    pretrain(place / "meds", place / "model", settings=with_overrides(EventSettings(), more), console=False)
    points = pl.read_parquet(place / "task" / "0.parquet")
    rng = np.random.default_rng(0)
    yes, days = pl.Series(rng.random(len(points)) < 0.5), pl.Series(rng.integers(1, 60, len(points)), dtype=pl.Float32)
    for name, more in {
        "yes or no": {"boolean_value": yes},
        "numbers": {"integer_value": pl.Series(rng.integers(0, 5, len(points)))},
        "times": {"boolean_value": yes, "float_value": days},
    }.items():
        (place / name).mkdir()
        points.select("subject_id", "prediction_time").with_columns(**more).write_parquet(place / name / "0.parquet")
    return place


@pytest.fixture(autouse=True, scope="module")
def steps_are_noted():
    """Their losses, in `TAKEN`."""
    with pytest.MonkeyPatch.context() as patched:
        really = HeadFinetuning.backward

        def backward(self, *items, **about):
            loss = really(self, *items, **about)
            TAKEN.append(float(loss))
            return loss

        patched.setattr(HeadFinetuning, "backward", backward)
        yield


def found(home: Path, place: Path, kind: str, given: dict, *, data=None, checkpoints: bool = False) -> list[str]:
    """What a fine-tuning does and leaves: losses of its steps, weights, figures and page, without the time."""
    usual = QUICK | ({"codes": "DIABETES"} if kind == "next visit" else {})
    if kind == "numbers":
        usual |= {"problem": "regression"}
    if kind in ("times", "next visit"):
        usual |= {"trees": 0, "boosting": 0}
    more = {"settings": apply_overrides(OutcomeSettings(), usual | given), "checkpoints": checkpoints}
    data = home / "meds" if data is None else data
    TAKEN.clear()
    if kind == "next visit":
        run = finetune_next_visit(home / "model", data, place, **more)
    else:
        run = finetune_outcome(home / "model", data, home / kind, place, **more)
    page = re.sub(r"\d+ s\b", "", (place / "report.html").read_text()).replace(str(place), "")
    told = json.dumps({k: v for k, v in run.figures.items() if k not in ("seconds", "precision")})
    steps = json.dumps(TAKEN)
    return [steps, hashlib.sha256((place / "model.safetensors").read_bytes()).hexdigest(), told, page]


@pytest.fixture(scope="module")
def usual(home: Path, tmp_path_factory) -> dict[str, list[str]]:
    return {kind: found(home, tmp_path_factory.mktemp("usual") / "run", kind, {}) for kind in KINDS}


def test_every_setting_has_another_value_here():
    assert set(OTHER) | BY_OTHER_TESTS == {f.name for f in dataclasses.fields(OutcomeSettings)}


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_a_setting_of_fine_tuning_changes_what_comes_of_it_or_is_refused(name, kind, home, usual, tmp_path):
    if name in KINDS[kind]:
        with pytest.raises(UserError, match=name):
            found(home, tmp_path / "run", kind, {name: OTHER[name]})
        assert not (tmp_path / "run").exists()
    else:
        more = BESIDE.get(name)
        without = found(home, tmp_path / "without", kind, more) if more else usual[kind]
        assert found(home, tmp_path / "run", kind, {**(more or {}), name: OTHER[name]}) != without


@pytest.mark.parametrize("kind", KINDS)
def test_leaving_out_what_is_not_there_is_no_error(kind, home, tmp_path):
    """No trees, no curve and no baselines can be had of every task."""
    found(home, tmp_path / "run", kind, {"trees": 0, "curve": False, "baselines": False})


def test_settings_that_the_data_answer_are_refused(home, tmp_path):
    """A share held out where the data's splits hold patients out; a gap between visits where all are encounters."""
    events = read_meds(home / "meds")
    held = dataclasses.replace(events, splits=np.where(np.arange(len(events)) % 4, "train", "held_out").astype(object))
    for kind in ("yes or no", "next visit"):
        with pytest.raises(UserError, match=r"holdout=0\.4.*splits"):
            found(home, tmp_path / "run", kind, {"holdout": 0.4}, data=held)
    named = dataclasses.replace(events, visit=events.time // (24 * 3_600_000_000))
    assert found(home, tmp_path / "named", "next visit", {}, data=named)
    with pytest.raises(UserError, match=r"visit_gap=5\.0.*encounter"):
        found(home, tmp_path / "run", "next visit", {"visit_gap": 5.0}, data=named)


def test_seconds_between_checkpoints_are_read_where_there_are_any(home, tmp_path):
    assert found(home, tmp_path / "run", "yes or no", {"checkpoint_seconds": 7.0}, checkpoints=True)
