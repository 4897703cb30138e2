"""How patients become batches."""

from __future__ import annotations

import collections
import dataclasses
import gc
import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from event_data import main_ok

from unmask.core.batch import Example
from unmask.core.pretrain import validate
from unmask.core.sampler import PackedSampler
from unmask.errors import UserError
from unmask.modalities.events.network import prepare
from unmask.modalities.events.recipes import EventSettings, with_overrides
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.meds import STATIC, Events, read_meds
from unmask.modalities.events.records.vocabulary import Vocabulary
from unmask.modalities.events.uses import pretrain as room
from unmask.modalities.events.uses.folder import load_folder
from unmask.modalities.events.uses.pretrain import batch_maker, make_job, pretrain


@pytest.fixture(scope="module")
def events(home: Path) -> Events:
    return read_meds(home / "meds")


def test_batches_hold_the_patients_planned_and_keep_none(events: Events, monkeypatch: pytest.MonkeyPatch):
    histories = Histories(events, Vocabulary.fit(events))
    made: list[weakref.ref[Example]] = []
    whole = Histories.example

    def watched(*given: Any, **named: Any) -> Example:
        example = whole(*given, **named)
        made.append(weakref.ref(example))
        return example

    monkeypatch.setattr(Histories, "example", watched)
    lengths = np.array([histories.length(i) for i in range(len(events))])
    sampler = PackedSampler(lengths=lengths, examples=np.arange(len(events)), slots=64, rows=4)
    make = batch_maker(histories, 64)
    step = next(sampler.steps())
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
    histories = Histories(events, Vocabulary.fit(events))
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
    monkeypatch.setattr(prepare, "MOST_HELD", 10)
    capped = pretrain(events, tmp_path / "b", settings=settings, console=False).data
    assert 80 < whole["held_out"] < 160
    assert (capped["held_out"], capped["training"]) == (10, 230)
    assert load_folder(tmp_path / "b").settings.holdout == 0.5


def test_the_accuracy_of_a_run_stands_beside_that_of_rules(home: Path, tmp_path: Path, capsys):
    """The most frequent code, and the most frequent one that is visible of the patient, on the very events that the
    model is judged on."""
    words = ["pretrain", "events", home / "meds", "--out", tmp_path / "m", "--steps", "3"]
    words += [f"--set={pair}" for pair in ("slots=64", "batch_slots=512", "width=32", "holdout=0.2")]
    capsys.readouterr()
    main_ok([str(word) for word in [*words, "--json"]])
    said = json.loads(capsys.readouterr().out)
    folder = load_folder(tmp_path / "m")
    histories = Histories(read_meds(home / "meds"), folder.vocabulary)
    everybody = np.arange(len(histories.events))
    train, held = prepare.split(histories.events, everybody, folder.settings, 0)
    frequent = collections.Counter(
        code
        for i in train
        for row, code in zip(histories.rows(i), histories.code[histories.rows(i)], strict=True)
        if histories.events.time[row] != STATIC
    )
    best, right = max(frequent, key=lambda c: (frequent[c], -c)), collections.Counter[str]()
    lengths = np.minimum(histories.lengths(), 64)
    job = make_job(folder.model, histories, lengths, train, held, folder.settings)
    for batch in job.validation:
        hidden = set(job.validation_corruption.draw(batch, seed=0).flat.tolist())
        code, who, open_ = (x.flatten().tolist() for x in (batch.values["code"], batch.identity, batch.maskable))
        for slot in hidden:
            seen = [code[i] for i in range(len(code)) if open_[i] and i not in hidden and who[i] == who[slot]]
            own = max(set(seen), key=lambda c: (seen.count(c), frequent[c], c), default=best)
            right.update({"n": 1, "most frequent code": int(code[slot] == best), "own": int(code[slot] == own)})
    rules = said["data"]["rules"]
    assert rules["most frequent code"] == pytest.approx(right["most frequent code"] / right["n"])
    assert rules["most frequent code of the patient"] == pytest.approx(right["own"] / right["n"])
    assert 0.05 < rules["most frequent code"] < rules["most frequent code of the patient"] + 0.2
    results = json.loads((tmp_path / "m" / "unmask.json").read_text())["results"]
    assert {r["of"]: r["value"] for r in results if r["name"] == "accuracy"}.keys() == {"model", *rules}
    page = (tmp_path / "m" / "report.html").read_text()
    main_ok([*map(str, words[:3]), "--out", str(tmp_path / "again"), *map(str, words[5:])])
    line = capsys.readouterr().out
    for name, share in rules.items():
        assert f"; {name} {share:.1%}" in line
        assert f">{name}</th>" in page
        assert f"{share:.3f}" in page
