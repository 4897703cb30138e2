"""How patients become batches."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unmask.core.batch import Example
from unmask.core.plan import Plan
from unmask.core.pretrain import validate
from unmask.errors import UserError
from unmask.modalities.events import held_out
from unmask.modalities.events import pretrain as room
from unmask.modalities.events.folder import load_folder
from unmask.modalities.events.histories import Histories
from unmask.modalities.events.meds import Events, read_meds
from unmask.modalities.events.pretrain import batch_maker, make_job, pretrain
from unmask.modalities.events.recipes import EventSettings, with_overrides
from unmask.modalities.events.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def events(home: Path) -> Events:
    return read_meds(home / "meds")


def test_batches_hold_the_patients_planned_and_keep_none(events: Events, monkeypatch: pytest.MonkeyPatch):
    histories = Histories(events, Vocabulary.fit(events, np.arange(len(events.code))))
    made: list[weakref.ref[Example]] = []
    whole = Histories.example

    def watched(*given: Any, **named: Any) -> Example:
        example = whole(*given, **named)
        made.append(weakref.ref(example))
        return example

    monkeypatch.setattr(Histories, "example", watched)
    lengths = np.array([histories.length(i) for i in range(len(events))])
    plan = Plan(lengths=lengths, examples=np.arange(len(events)), slots=64, rows=4)
    make = batch_maker(histories, 64)
    step = next(plan.steps())
    batch = make(step.rows, 4)
    for number, row in enumerate(step.rows):
        kept = batch.identity[number][batch.segment[number] > 0].unique_consecutive()
        assert kept.tolist() == row
    assert make([], 2).real_slots == 0
    gc.collect()
    assert len(made) > 5
    assert not [ref for ref in made if ref() is not None]


def test_validation_is_packed_and_says_what_single_rows_say(events: Events):
    settings = with_overrides(EventSettings(), {"slots": 64, "batch_slots": 512, "width": 32, "inner": 32})
    histories = Histories(events, Vocabulary.fit(events, np.arange(len(events.code))))
    lengths = np.array([histories.length(i) for i in range(len(events))])
    model = room.new_model(settings, len(histories.vocabulary))
    held = np.arange(0, 240, 9)
    job = make_job(model, histories, lengths, np.arange(1, 240, 9), held, settings)
    alone = [batch_maker(histories, 64)([[int(i)]], 1) for i in held]
    assert sorted(torch.cat([b.identity.unique() for b in job.validation]).unique().tolist())[1:] == held.tolist()
    assert len(job.validation) * 8 < len(held)  # rows are shared
    packed, single = (validate(model, batches, job.validation_corruption) for batches in (job.validation, alone))
    assert packed["hidden_slots"] == single["hidden_slots"]
    assert packed["loss"] == pytest.approx(single["loss"], rel=1e-4)


def test_a_run_is_resumed_with_the_same_events_alone(events: Events, tmp_path: Path):
    few = {"slots": 64, "batch_slots": 512, "width": 32, "inner": 32, "precision": "fp32"}

    def trained(data: Events, **more: Any) -> Any:
        settings = with_overrides(EventSettings(), few | more)
        return pretrain(data, tmp_path, settings=settings, resume=True, console=False)

    trained(events, steps=1)
    later = dataclasses.replace(events, value=events.value + 1)
    with pytest.raises(UserError, match="started with other data or settings: the events: not the same\n"):
        trained(later, steps=2)
    with pytest.raises(UserError, match=r"settings: ratio=0\.5, was 0\.6; clip=2\.0, was 1\.0\n"):
        trained(events, steps=2, clip=2.0, ratio=0.5)
    assert trained(events, steps=2, validate_every=1).result.steps == 2


def test_held_out_patients_are_a_share_with_a_limit(events: Events, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    few = {"slots": 64, "batch_slots": 512, "width": 32, "inner": 32, "steps": 1, "precision": "fp32", "holdout": 0.5}
    settings = with_overrides(EventSettings(), few)
    whole = pretrain(events, tmp_path / "a", settings=settings, console=False).data
    monkeypatch.setattr(held_out, "MOST_HELD", 10)
    capped = pretrain(events, tmp_path / "b", settings=settings, console=False).data
    assert 80 < whole["held_out"] < 160
    assert (capped["held_out"], capped["training"]) == (10, 230)
    assert load_folder(tmp_path / "b").settings.holdout == 0.5
