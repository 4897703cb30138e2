"""Who trained a head is known by id, unless births say that the ids are other people's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from event_data import main_fails, main_ok

import unmask
from unmask.errors import UserError
from unmask.modalities.events.outcome.calibrating import on_line
from unmask.modalities.events.records.meds import HOUR, Events, Labels
from unmask.modalities.events.records.splits import birth_bits, met, who_trained, with_trained
from unmask.modalities.events.uses.demo import simulate

DAY = 24 * HOUR


def born(seed: int, count: int = 100, codes: tuple[str, ...] = ("A", "MEDS_BIRTH")) -> Events:
    """Patients 0, 1, ... with a birth and one more event."""
    days = np.random.default_rng(seed).integers(-20_000, 0, count)
    return Events(
        subjects=np.arange(count),
        offsets=np.arange(count + 1) * 2,
        codes=list(codes),
        time=np.stack([days * DAY, np.zeros(count, np.int64)], 1).ravel(),
        code=np.tile([1, 0], count).astype(np.int32),
        value=np.full(2 * count, np.nan, np.float32),
    )


def told(events: Events) -> dict[str, str]:
    points = Labels(subject=np.arange(60), time=np.zeros(60, np.int64))
    return who_trained(events, points, np.arange(60) >= 40)


def test_the_same_people_are_known_by_their_ids():
    found = met(born(0), told(born(0)))
    assert (found.compared, found.alike, found.others) == (60, 60, False)
    assert found.split.tolist() == ["train"] * 40 + ["held_out"] * 20 + ["unseen"] * 40
    later = born(0)  # an extract in which some births were mended
    later.time[: 2 * 5 : 2] += 400 * DAY
    assert not met(later, told(born(0))).others


@pytest.mark.parametrize("seed", range(1, 6))
def test_other_people_with_the_same_numbers_are_noticed(seed: int):
    found = met(born(seed), told(born(0)))
    assert found.others
    assert set(found.split.tolist()) == {None}
    assert "other patients" in (found.warning() or "")


def test_without_births_ids_decide():
    bare, few = born(1, codes=("A", "B")), born(1, count=15)
    assert not birth_bits(bare).any()
    for events in (bare, few):
        found = met(events, told(born(0)))
        assert not found.others
        assert found.warning() is None
        assert found.split[0] == "train"


def test_a_bit_of_a_birth_says_little_of_it():
    bits = birth_bits(born(3, count=2000))
    assert set(bits.tolist()) == {2, 3}
    assert abs((bits == 3).mean() - 0.5) < 0.05


@pytest.fixture(scope="module")
def outcome(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An outcome model of the simulated patients."""
    out = tmp_path_factory.mktemp("split") / "outcome"
    given = [x for pair in ("baselines=false", "curve=false", "trees=5", "epochs=2") for x in ("--set", pair)]
    data = [str(home / "meds"), "--labels", str(home / "task"), "--out", str(out)]
    main_ok(["finetune", "outcome", str(home / "model"), *data, *given])
    return out


def test_another_extract_is_judged_whole_with_a_warning(outcome: Path, tmp_path: Path, capsys):
    other = simulate(tmp_path / "other", patients=60, seed=5)  # numbered 0, 1, ... as those of the model
    task, out = str(tmp_path / "other" / "task"), str(outcome)
    found = unmask.load(out).evaluate(other, task)
    assert (found["points"], found["trained"]) == (60, None)
    assert "other patients" in found["warnings"][0]
    capsys.readouterr()
    main_ok(["predict", out, str(other), "--labels", task, "--out", str(tmp_path / "p.parquet")])
    assert "split is empty: of " in capsys.readouterr().out
    assert pl.read_parquet(tmp_path / "p.parquet")["split"].null_count() == 60


def test_a_copy_is_recalibrated_to_another_extract(outcome: Path, tmp_path: Path, capsys):
    """Half of the outcomes are taken away: answers are too high, those of the copy are not, and judged on others."""
    other = simulate(tmp_path / "other", patients=700, seed=5)
    labels = pl.concat([pl.read_parquet(p) for p in sorted((tmp_path / "other" / "task").rglob("*.parquet"))])
    rarer = labels.with_columns(pl.col("boolean_value") & (pl.col("subject_id") % 2 == 0))
    rarer.write_parquet(tmp_path / "rarer.parquet")
    data = [str(outcome), str(other), "--labels", str(tmp_path / "rarer.parquet")]
    capsys.readouterr()
    main_ok(["evaluate", *data, "--recalibrate", str(tmp_path / "copy"), "--json"])
    said = json.loads(capsys.readouterr().out)
    before, after = said["results"]["model"], said["results"]["recalibrated"]
    assert before["intercept"] < -0.3
    assert abs(after["intercept"]) < 0.15
    assert after["brier"] < before["brier"]
    assert "brier" in after["intervals"]
    assert {"GENDER//MALE", "GENDER//FEMALE"} <= {g["group"] for g in said["subgroups"]}
    line = said["recalibrated"]
    p = unmask.load(outcome).predict(other, rarer)["predicted_boolean_probability"].to_numpy()
    copy = unmask.load(tmp_path / "copy")
    told = copy.predict(other, rarer)
    expected = on_line(p, line["intercept"], line["slope"])
    np.testing.assert_allclose(told["predicted_boolean_probability"], expected, atol=1e-5)
    assert told["split"].unique().to_list() == ["train"]  # they trained its line
    with pytest.raises(UserError, match="nothing is left to judge"):
        copy.evaluate(other, rarer)
    again = unmask.events.evaluate(outcome, other, rarer, recalibrate=tmp_path / "again")  # in Python too
    assert again["recalibrated"]["slope"] == pytest.approx(line["slope"])
    assert "already holds a model" in main_fails(["evaluate", *data, "--recalibrate", str(tmp_path / "copy")], capsys)


def test_too_few_patients_are_not_recalibrated_on(outcome: Path, tmp_path: Path, capsys):
    other = simulate(tmp_path / "other", patients=60, seed=5)
    labels = pl.concat([pl.read_parquet(p) for p in sorted((tmp_path / "other" / "task").rglob("*.parquet"))])
    rare = labels.with_columns(pl.col("boolean_value") & (pl.col("subject_id") < 20))
    rare.write_parquet(tmp_path / "rare.parquet")
    given = ["evaluate", outcome, other, "--labels", tmp_path / "rare.parquet", "--recalibrate", tmp_path / "copy"]
    assert "too few to recalibrate on" in main_fails(given, capsys)
    assert not (tmp_path / "copy").exists()


def test_who_was_held_out_and_trains_a_copy_is_held_out_no_longer():
    events = born(3, count=40)
    points = Labels(subject=np.arange(40), time=np.zeros(40, np.int64))
    first = who_trained(events, points, np.arange(40) >= 20)
    more = who_trained(events, points.take(np.arange(30, 40)), np.zeros(10, bool))
    found = met(events, with_trained(first, more))
    assert found.split.tolist() == ["train"] * 20 + ["held_out"] * 10 + ["train"] * 10
    assert found.alike == found.compared == 40
