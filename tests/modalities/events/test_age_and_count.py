"""The rule that knows the patient's age and the number of events alone stands beside every model, fitted on training
points."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from event_data import shard, table

import unmask
from unmask.modalities.events.outcome.candidates import AgeAndCount, age_and_count
from unmask.modalities.events.outcome.scoring import scored
from unmask.modalities.events.outcome.targets import Binary, Classes, NumberTarget, Target, TimeToEvent
from unmask.modalities.events.recipes import OutcomeSettings
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.meds import Labels, read_meds
from unmask.modalities.events.records.vocabulary import Vocabulary
from unmask.modalities.events.uses.finetune import finetune_outcome

DAY = datetime(2020, 1, 1)
QUICK = OutcomeSettings(epochs=2, members=1, hidden=8, trees=0, curve=False)


@pytest.fixture
def made(tmp_path: Path) -> tuple[Histories, np.ndarray, np.ndarray]:
    """Patients of 20 to 89 years (every fifth of unknown age) with 1 to 30 events; ages and counts."""
    rng = np.random.default_rng(0)
    ages, counts = rng.integers(20, 90, 300), rng.integers(1, 31, 300)
    rows = []
    for s, (age, count) in enumerate(zip(ages.tolist(), counts.tolist(), strict=True)):
        if s % 5:
            rows.append((s, DAY - timedelta(days=365.25 * age), "MEDS_BIRTH", None))
        rows += [(s, DAY + timedelta(hours=h), "A", None) for h in range(count)]
        rows.append((s, DAY + timedelta(days=9), "LATER", None))
    events = read_meds(shard(tmp_path / "meds", table(rows)))
    return Histories(events, Vocabulary.fit(events, floor=1)), ages, counts


def points(**columns: np.ndarray | list[str]) -> Labels:
    when = int((DAY + timedelta(days=5) - datetime(1970, 1, 1)).total_seconds()) * 1_000_000
    return Labels(subject=np.arange(300), time=np.full(300, when), **columns)  # type: ignore[arg-type]


def test_what_it_knows_is_known_at_the_point(made):
    histories, ages, counts = made
    found = age_and_count(histories, points())
    assert (np.isnan(found[:, 0]) == (np.arange(300) % 5 == 0)).all()
    told = np.isfinite(found[:, 0])
    np.testing.assert_allclose(found[told, 0], ages[told] + 5 / 365.25, atol=0.01)
    np.testing.assert_allclose(found[:, 1], np.log1p(counts))


@pytest.mark.parametrize("seed", [0, 1])
def test_it_finds_what_age_and_number_say_of_every_kind(made, seed: int):
    histories, _, counts = made
    rng = np.random.default_rng(seed)
    risk = 1 / (1 + np.exp(-(counts - 15) / 3))
    yes = (rng.random(300) < risk).astype(np.int64)
    train, test = np.arange(200), np.arange(200, 300)
    days = rng.exponential(200 * (1 - risk) + 1)
    cases: list[tuple[Target, Labels, str, float]] = [
        (Binary(), points(value=yes), "auroc", 0.8),
        (Classes(names=("few", "many")), points(names=np.where(yes, "many", "few").tolist()), "accuracy", 0.7),
        (NumberTarget(centre=15.0, spread=8.0), points(number=counts + rng.normal(0, 1, 300)), "r2", 0.8),
        (
            TimeToEvent(cuts=(5.0, 20.0, 60.0, 900.0), lived=(0.5,) * 4),
            points(days=days, value=np.ones(300, np.int64)),
            "c_index",
            0.7,
        ),
    ]
    for target, labels, figure, least in cases:
        rule = AgeAndCount.fit(histories, labels.take(train), target.encode(labels.take(train)), target)
        again = AgeAndCount(**json.loads(json.dumps(dataclasses.asdict(rule))))
        p = again.predict(histories, labels.take(test), target)
        assert scored(target, labels.take(test), p, draws=5)[figure] > least


def test_age_that_harms_at_both_ends_is_found(made):
    histories, ages, _ = made
    labels = points(value=((ages < 35) | (ages > 75)).astype(np.int64))
    known = np.flatnonzero(np.arange(300) % 5)
    train, test = labels.take(known[:160]), labels.take(known[160:])
    rule = AgeAndCount.fit(histories, train, Binary().encode(train), Binary())
    assert scored(Binary(), test, rule.predict(histories, test, Binary()), draws=5)["auroc"] > 0.9


def test_it_stands_beside_the_model_in_the_report_and_in_evaluate(home: Path, tmp_path: Path):
    run = finetune_outcome(home / "model", home / "meds", home / "task", tmp_path / "m", settings=QUICK)
    assert "age and number of events" in (tmp_path / "m" / "report.html").read_text()
    model = unmask.load(tmp_path / "m")
    judged = model.evaluate(home / "meds", home / "task")
    assert judged["results"]["age and number of events"] == run.figures["results"]["age and number of events"]


def test_held_out_labels_do_not_reach_it(home: Path, tmp_path: Path):
    kept = []
    truth = pl.read_parquet(home / "task" / "0.parquet")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        truth.write_parquet(tmp_path / name / "0.parquet")
        run = finetune_outcome(home / "model", home / "meds", tmp_path / name, tmp_path / f"{name}m", settings=QUICK)
        kept.append(json.loads((run.folder / "unmask.json").read_text())["outcome"]["age_and_count"])
        split, _ = unmask.load(run.folder).predicted(home / "meds", tmp_path / name)
        flipped = truth["boolean_value"] ^ (split["split"] == "held_out")
        truth = truth.with_columns(boolean_value=flipped)
    assert kept[0] == kept[1]


def test_the_rule_says_of_whom_it_knows_the_age(made):
    """As on PhysioNet, where ages are facts and no births are events: it knows the number of events alone."""
    labels = points(value=np.arange(300) % 2)
    y, events = Binary().encode(labels), made[0].events
    assert AgeAndCount.fit(made[0], labels, y, Binary()).name == "age (known of 80 %) and number of events"
    unborn = dataclasses.replace(events, codes=["AGE" if c == "MEDS_BIRTH" else c for c in events.codes])
    without = AgeAndCount.fit(Histories(unborn, Vocabulary.fit(unborn, floor=1)), labels, y, Binary())
    assert (without.known, without.name) == (0, "number of events")
    assert AgeAndCount(**dataclasses.asdict(without)).name == without.name
