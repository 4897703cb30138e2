"""Who trained a head is known by id, unless births say that the ids are other people's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from event_data import main_ok

import unmask
from unmask.modalities.events.records.meds import HOUR, Events, Labels
from unmask.modalities.events.records.splits import birth_bits, met, who_trained

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


def test_another_extract_is_judged_whole_with_a_warning(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from unmask.modalities.events.uses.demo import simulate

    other = simulate(tmp_path / "other", patients=60, seed=5)  # numbered 0, 1, ... as those of the model
    task, out = str(tmp_path / "other" / "task"), str(tmp_path / "m")
    given = [x for pair in ("baselines=false", "curve=false", "trees=5", "epochs=2") for x in ("--set", pair)]
    main_ok(
        [
            "finetune",
            "outcome",
            str(home / "model"),
            str(home / "meds"),
            "--labels",
            str(home / "task"),
            "--out",
            out,
            *given,
        ]
    )
    found = unmask.load(out).evaluate(other, task)
    assert (found["points"], found["trained"]) == (60, None)
    assert "other patients" in found["warnings"][0]
    capsys.readouterr()
    main_ok(["predict", out, str(other), "--labels", task, "--out", str(tmp_path / "p.parquet")])
    assert "split is empty: of " in capsys.readouterr().out
    assert pl.read_parquet(tmp_path / "p.parquet")["split"].null_count() == 60
