"""Every setting of pretraining on patient events does something, or is refused by name where nothing reads this."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import shutil
from pathlib import Path

import polars as pl
import pytest

from unmask.errors import UserError
from unmask.modalities.events.network.prepare import prepare
from unmask.modalities.events.recipes import EventSettings, with_overrides
from unmask.modalities.events.uses.demo import simulate
from unmask.modalities.events.uses.pretrain import pretrain

SMALL = {"slots": 64, "batch_slots": 512, "width": 32, "steps": 3, "precision": "fp32", "epochs": None, "holdout": 0.1}
OTHER = {
    "structure": "behrt",
    "architecture": "in_place",
    "width": 48,
    "layers": 3,
    "heads": 2,
    "inner": 40,
    "slots": 32,
    "window": 1,
    "global_every": 2,
    "floor": 60,
    "rollup": "parts:1",
    "ratio": 0.4,
    "ratio_from": 0.5,
    "hide": "event",
    "select": "unmask.core.corruption:Uniform",
    "mask": 0.8,
    "random": 0.2,
    "keep": 0.2,
    "code_weight": 0.5,
    "value_weight": 0.5,
    "time_weight": 0.5,
    "questions": 4,
    "question_weight": 1.0,
    "horizon_from": 48.0,
    "horizon": 100.0,
    "until": "2026-01-01",
    "holdout": 0.3,
}
TOGETHER = {
    "structure": {"value_weight": 0.0, "time_weight": 0.0},
    "mask": {"random": 0.1, "keep": 0.1},
    "random": {"mask": 0.8},
    "keep": {"mask": 0.8},
    "questions": {"until": "last"},
}
ALONE = {
    "mask": {"architecture": "in_place"},
    "random": {"architecture": "in_place"},
    "keep": {"architecture": "in_place"},
    "global_every": {"window": 1, "layers": 4},
    "question_weight": {"questions": 4, "until": "last"},
    "horizon_from": {"questions": 4, "until": "last"},
    "horizon": {"questions": 4, "until": "last"},
    "until": {"questions": 4},
}
"""Settings that others must stand beside, which are refused without them."""
NEVER = {
    "hide": ({"select": "unmask.core.corruption:Uniform"}, "event"),
    "store_folder": ({"store": "memory"}, "events"),
}
"""Settings that others make idle."""


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("settings")
    simulate(place, 30, 0)
    pretrain(place / "meds", place / "model", settings=with_overrides(EventSettings(), SMALL), console=False)
    return place


def trained(home: Path, place: Path, **more) -> str:
    settings = with_overrides(EventSettings(), SMALL | more)
    pretrain(home / "meds", place, settings=settings, console=False)
    return hashlib.sha256((place / "model.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def usual_beside(home, tmp_path_factory):
    """A function: the weights that these settings give, trained once."""
    return functools.cache(lambda **beside: trained(home, tmp_path_factory.mktemp("usual") / "run", **beside))


def test_every_setting_has_another_value_here():
    places = {"train", "store", "store_folder"}  # where events lie changes no model
    assert set(OTHER) == {f.name for f in dataclasses.fields(EventSettings)} - places


@pytest.mark.parametrize("name", OTHER)
def test_a_setting_of_pretraining_changes_the_model_or_is_refused(name, home, usual_beside, tmp_path):
    given = {name: OTHER[name]} | TOGETHER.get(name, {})
    if name not in ALONE:
        usual = hashlib.sha256((home / "model" / "model.safetensors").read_bytes()).hexdigest()
        assert trained(home, tmp_path / "run", **given) != usual
        return
    with pytest.raises(UserError, match="nothing reads this"):
        trained(home, tmp_path / "run", **given)
    beside = ALONE[name]
    usual = usual_beside(**beside, **({"until": "last"} if name == "until" else {}))
    assert trained(home, tmp_path / "run", **beside, **given) != usual


@pytest.mark.parametrize("name", NEVER)
def test_a_setting_that_others_make_idle_is_refused(name, home, tmp_path):
    beside, value = NEVER[name]
    with pytest.raises(UserError, match=f"{name}=.*nothing reads this"):
        trained(home, tmp_path / "run", **beside, **{name: value})


def test_a_share_is_not_held_out_of_data_that_say_who_judges_the_run(home, tmp_path):
    shutil.copytree(home / "meds", tmp_path / "meds")
    splits = pl.DataFrame({"subject_id": range(30), "split": ["tuning", *["train"] * 4] * 6})
    splits.write_parquet(tmp_path / "meds" / "metadata" / "subject_splits.parquet")
    settings = with_overrides(EventSettings(), SMALL)
    for name, make in {"run": functools.partial(pretrain, console=False), "prepared": prepare}.items():
        with pytest.raises(UserError, match=r"holdout=0\.1 .*tuning.*nothing reads this"):
            make(tmp_path / "meds", tmp_path / f"wrong {name}", settings=settings)
        make(tmp_path / "meds", tmp_path / name, settings=dataclasses.replace(settings, holdout=0.05))
