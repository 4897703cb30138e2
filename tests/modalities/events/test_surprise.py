"""Scores of events: parts of one log-probability, visit by visit, and what is unlikely scores low."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from event_data import main_fails, main_ok, shard, table

import unmask
from unmask.core.batch import pack
from unmask.core.corruption import hide
from unmask.modalities.events.records.meds import STATIC, Events, read_meds
from unmask.modalities.events.uses.model import EventModel


@pytest.fixture(scope="module")
def model(home: Path) -> EventModel:
    return unmask.load(home / "model")


def test_a_model_is_shown_in_one_line(model):
    shown = repr(model)
    assert shown.startswith("EventModel(")
    assert f"{len(model.folder.vocabulary)} codes, fp32 on cpu" in shown
    assert "\n" not in shown


def test_events_are_shown_in_one_line(events):
    assert repr(events) == f"Events(12 patients, {len(events.time)} events, {len(events.codes)} codes)"


@pytest.fixture(scope="module")
def events(home: Path) -> Events:
    """The first twelve patients."""
    whole = read_meds(home / "meds")
    end = int(whole.offsets[12])
    return replace(
        whole,
        subjects=whole.subjects[:12],
        offsets=whole.offsets[:13],
        time=whole.time[:end],
        code=whole.code[:end],
        value=whole.value[:end],
    )


def test_every_timed_event_has_a_score_and_no_other(model: EventModel, events: Events):
    frame = model.score(events, by="event")
    timed = (events.time != STATIC) & (model.histories(events).code[:] >= 0)
    assert len(frame) == timed.sum()
    assert frame["time"].to_physical().to_list() == events.time[timed].tolist()
    names = [events.codes[c] for c in events.code[timed]]
    assert frame["code"].to_list() == names
    np.testing.assert_allclose(frame["value"].to_numpy(), events.value[timed])
    assert frame.filter(pl.col("value").is_null() != pl.col("value_score").is_null()).is_empty()
    first = frame.filter(pl.col("visit") == 1)
    assert first["time_score"].null_count() == len(first)  # the origin of time is known
    assert frame.filter(pl.col("visit") > 1)["time_score"].null_count() == 0


def test_a_visit_is_scored_left_to_right_given_all_others(model: EventModel, events: Events):
    """By hand: the last events of a visit hidden one more each time, everything else shown."""
    histories = model.histories(events)
    example = histories.example(3, slots=64)
    slots = np.flatnonzero(np.asarray(example.unit) == 2)
    batch, total = pack([example], slots=len(example)), 0.0
    network = model.folder.model.eval()
    with torch.no_grad():
        for i, slot in enumerate(slots.tolist()):
            wanted = torch.tensor([slot])
            prediction = network(batch, hide(torch.from_numpy(slots[i:])), wanted=wanted)
            total += float(prediction.log_prob(network.codec.targets(batch.values, wanted)))
    visits = model.score(events, by="visit").filter(pl.col("subject_id") == int(events.subjects[3]))
    row = visits.filter(pl.col("visit") == 2).row(0, named=True)
    assert (row["slots"], row["score"]) == (len(slots), pytest.approx(total, abs=1e-3))


def test_rows_add_up(model: EventModel, events: Events):
    by = {name: model.score(events, by=name) for name in ("event", "visit", "patient")}  # type: ignore[arg-type]
    parts = by["event"].select(pl.sum_horizontal("code_score", "value_score", "time_score"))
    np.testing.assert_allclose(parts.to_numpy()[:, 0], by["event"]["score"].to_numpy())
    for name in ("score", "code_score", "value_score", "time_score", "slots"):
        sums = [float(frame[name].sum()) for frame in by.values()]
        assert sums == pytest.approx([sums[0]] * 3)
    assert by["patient"]["subject_id"].to_list() == events.subjects.tolist()


def test_an_impossible_value_is_a_surprise(model: EventModel, events: Events):
    """Glucose of a diabetic's size where everything else says otherwise: its value scores lower than what was there."""
    row = int(np.flatnonzero(events.value > 0)[0])
    value = events.value.copy()
    value[row] = 1e6
    before, after = (
        model.score(e, by="event").filter(pl.col("value").is_not_null())[0, "value_score"]
        for e in (events, replace(events, value=value))
    )
    assert after < before - 0.5


def test_command_line(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    main_ok(["score", str(home / "model"), str(home / "meds"), "--mode", "slot", "--json"])
    found = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert (found["rows"], len(found["results"])) == (240, 240)
    assert set(found["results"][0]) == {
        "subject_id",
        "score",
        "code_score",
        "value_score",
        "time_score",
        "slots",
    }
    bare = shard(tmp_path / "bare", table([(1, None, "GENDER//MALE", None)]))
    out = tmp_path / "s.parquet"
    main_ok(["score", str(home / "model"), str(bare), "--by", "visit", "--out", str(out)])
    assert (len(pl.read_parquet(out)), pl.read_parquet(out).columns[:3]) == (0, ["subject_id", "visit", "time"])
    said = main_fails(["score", home / "model", home / "meds", "--by", "code"], capsys)
    assert "by=code" in said
    assert "patient, visit, event" in said
