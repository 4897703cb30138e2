"""Settings refuse what cannot work and say which key, and the schedules are functions of progress alone."""

import importlib
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from unmask.errors import UserError
from unmask.training.schedule import Ramp, rate
from unmask.training.settings import TrainSettings, apply_overrides, lasting, load_toml, parse_set


@dataclass(frozen=True, kw_only=True)
class Inner:
    ratio: float = 0.15


@dataclass(frozen=True, kw_only=True)
class Outer:
    width: int | str = 4
    span: tuple[float, float] | None = None
    inner: Inner = field(default_factory=Inner)


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0},
        {"learning_rate": float("nan")},
        {"clip": 0.0},
        {"beta2": 1.0},
        {"schedule": "cosin"},
        {"steps": 10.5},
        {"warmup": 1.1},
        {"compile": "maybe"},
        {"seed": True},
        {"nan_limit": None},
        {"seed": -1},
        {"seed": 2**63},
    ],
)
def test_a_bad_value_is_refused_by_name(wrong):
    (key, value), *_ = wrong.items()
    with pytest.raises(UserError, match=f"^{key}={value}") as refused:
        TrainSettings(**wrong)
    assert "Expected" in refused.value.hint


def test_one_ending_only():
    assert TrainSettings().epochs == 1.0
    assert TrainSettings(minutes=2).epochs is None
    with pytest.raises(UserError, match="steps=5 and minutes=2"):
        TrainSettings(steps=5, minutes=2)
    with pytest.raises(UserError, match="exceed"):
        TrainSettings(schedule="wsd", warmup=0.6, decay=0.6)


def test_a_run_is_resumed_with_all_but_its_end_and_how_it_is_watched():
    first, other = (
        {"width": 8, "train": asdict(TrainSettings(**more))} for more in ({}, {"steps": 9, "validate_every": 2})
    )
    assert lasting(first) == lasting(other)
    assert lasting(first) != lasting({**first, "width": 9})
    assert lasting(first) != lasting({**first, "initial_attention": "neighbours"})
    assert lasting(first) != lasting({**first, "density": "bell"})
    assert lasting(first) != lasting({**first, "train": asdict(TrainSettings(learning_rate=1.0))})


def test_overrides_parse_to_the_field_type():
    given = parse_set(["learning_rate=3e-4", "steps=1e4", "clip=none", "compile=true", "schedule=wsd"])
    settings = apply_overrides(TrainSettings(), given)
    assert (settings.learning_rate, settings.steps, settings.clip) == (3e-4, 10_000, None)
    assert settings.compile is True
    assert settings.schedule == "wsd"
    assert settings.epochs is None, "another ending replaces the default one"
    assert isinstance(settings.steps, int)
    assert apply_overrides(TrainSettings(), asdict(settings)) == settings


def test_overrides_of_any_dataclass():
    changed = apply_overrides(Outer(), {"inner.ratio": "0.3", "span": "0.1, 0.9", "width": "8"})
    assert changed == Outer(inner=Inner(ratio=0.3), span=(0.1, 0.9), width=8)
    assert apply_overrides(Outer(), {"inner": {"ratio": 0.3}, "width": "auto"}).width == "auto"


@pytest.mark.parametrize(("kind", "settings"), [("text", "TextSettings"), ("events", "EventSettings")])
def test_settings_that_belong_together_are_checked_together(kind: str, settings: str):
    """Neither fits the default of the other."""
    recipes = importlib.import_module(f"unmask.modalities.{kind}.recipes")
    default = getattr(recipes, settings)()
    changed = recipes.with_overrides(default, {"slots": "96", "batch_slots": "2016"})
    assert (changed.slots, changed.train.batch_slots) == (96, 2016)
    with pytest.raises(UserError, match="batch_slots=2016 is not a multiple of slots=100"):
        recipes.with_overrides(default, {"batch_slots": 2016, "slots": 100})


@pytest.mark.parametrize("key", ["leraning_rate", "learning_rate.x"])
def test_unknown_key(key):
    with pytest.raises(UserError, match=f"unknown setting '{key}'"):
        apply_overrides(TrainSettings(), {key: "1"})


def test_toml_errors_name_file_and_line(tmp_path: Path):
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text('steps = 5\nschedule = "cosine"\n')
    bad.write_text("steps = 5\nschedule = cosine\n")
    assert apply_overrides(TrainSettings(), load_toml(good)).schedule == "cosine"
    with pytest.raises(UserError, match=r"bad\.toml.*line 2"):
        load_toml(bad)
    with pytest.raises(UserError, match="no such file"):
        load_toml(tmp_path / "absent.toml")
    with pytest.raises(UserError, match="--set 'steps'"):
        parse_set(["steps"])


def test_settings_do_not_import_torch():
    code = "import sys, unmask.training.schedule; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("schedule", ["linear", "cosine", "wsd", "constant"])
def test_schedule_stays_between_its_ends(schedule):
    settings = TrainSettings(schedule=schedule, minimum_rate=0.0 if schedule == "constant" else 0.2)
    rates = [rate(i / 1000, settings) for i in range(1001)]
    peak = rates.index(max(rates))
    assert rates[0] == 0
    assert max(rates) == pytest.approx(1, abs=1e-9)
    assert rates[-1] == pytest.approx(1.0 if schedule == "constant" else 0.2)
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert max(abs(a - b) for a, b in pairwise(rates)) < 0.02, "no jumps"
    assert rate(1.3, settings) == rates[-1]


@pytest.mark.parametrize("warmup", [0.0, 1.0])
def test_schedule_edges(warmup):
    settings = TrainSettings(warmup=warmup)
    assert rate(0.0, settings) == 1 - warmup
    assert rate(1.0, settings) in (0.0, 1.0)
    assert Ramp(0.3, 0.15)(1.0) == 0.15


def test_what_a_schedule_does_not_read_is_refused_or_goes_with_the_one_that_did():
    for given in ({"decay": 0.3}, {"schedule": "constant", "minimum_rate": 0.1}):
        with pytest.raises(UserError, match=f"{list(given)[-1]}=.*nothing reads this"):
            TrainSettings(**given)
    held = TrainSettings(schedule="wsd", decay=0.3, minimum_rate=0.1)
    other = apply_overrides(held, {"schedule": "cosine"})
    assert (other.decay, other.minimum_rate) == (0.1, 0.1)
    assert apply_overrides(held, {"schedule": "constant"}).minimum_rate == 0


def test_a_rate_of_matrices_that_the_optimiser_does_not_have_is_refused():
    from unmask.modalities.text.recipes import TextSettings, with_overrides

    for name in ("matrix_rate", "train.matrix_rate"):
        with pytest.raises(UserError, match=r"matrix_rate=2.*optimiser='adamw': nothing reads this"):
            with_overrides(TextSettings(), {name: 2})
    assert with_overrides(TextSettings(), {"matrix_rate": 2, "optimiser": "muon"}).train.matrix_rate == 2
    kept = asdict(TextSettings())  # of a run that is gone on with: every key is there
    assert with_overrides(TextSettings(), kept) == TextSettings()
