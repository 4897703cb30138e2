"""Prepared events are those that pretrain reads from the MEDS folder, whoever prepares them."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from event_data import DAY, shard, table

from unmask import events, text
from unmask.errors import UserError
from unmask.modalities.events.network.prepare import open_prepared
from unmask.modalities.events.recipes import EventSettings, with_overrides
from unmask.modalities.events.records.columns import EventStore
from unmask.modalities.events.records.meds import read_meds
from unmask.modalities.events.records.vocabulary import Vocabulary
from unmask.modalities.events.uses.pretrain import split, subjects_to_learn_from

SMALL = {"slots": 32, "batch_slots": 128, "width": 16, "inner": 16, "steps": 3, "precision": "fp32", "floor": 2}
SETTINGS = with_overrides(EventSettings(), {**SMALL, "device": "cpu"})
RAY = importlib.util.find_spec("ray") is not None


@pytest.fixture
def meds(tmp_path: Path) -> Path:
    """Five shards of 12 patients with codes of their own, encounters in some, and splits."""
    rng, subject = np.random.default_rng(0), 0
    for number in range(5):
        rows = []
        for _ in range(12):
            subject += 1
            rows.append((subject, None, f"SEX//{'FM'[subject % 2]}", None))
            for day in range(int(rng.integers(2, 20))):
                code = f"z{9 - number}" if day == 0 else f"c{rng.integers(0, 12)}"
                rows.append((subject, DAY + timedelta(day // 2), code, float(rng.normal())))
        frame = table(rows)
        frame = frame.with_columns(pl.col("subject_id").alias("hadm_id")) if number % 2 else frame
        shard(tmp_path / "meds", frame, str(number))
    (tmp_path / "meds" / "metadata").mkdir(exist_ok=True)
    splits = pl.DataFrame({"subject_id": [3, 50], "split": ["held_out", "tuning"]})
    splits.write_parquet(tmp_path / "meds" / "metadata" / "subject_splits.parquet")
    return tmp_path / "meds"


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=pytest.mark.skipif(not RAY, reason="no ray"))])
def test_what_is_prepared_is_what_pretrain_reads(meds: Path, tmp_path: Path, monkeypatch, engine: str):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    found = events.prepare(meds, tmp_path / "one", settings=SETTINGS, workers=1)
    events.prepare(meds, tmp_path / "two", settings=SETTINGS, workers=2, engine=engine)
    assert files(tmp_path / "one") == files(tmp_path / "two")
    here = read_meds(meds, store=EventStore(folder=tmp_path / "store", most=0))
    there, vocabulary, seed = open_prepared(tmp_path / "one", SETTINGS)
    for name in ("subjects", "offsets", "time", "code", "value", "visit", "splits"):
        np.testing.assert_array_equal(getattr(here, name), getattr(there, name), err_msg=name)
    assert here.codes == there.codes
    assert here.digest() == there.digest()
    store = next((tmp_path / "store").iterdir())
    for path in store.glob("*.bin"):
        assert path.read_bytes() == (tmp_path / "one" / "events" / path.name).read_bytes()
    training, held_out = split(here, subjects_to_learn_from(here), SETTINGS, seed)
    fitted = Vocabulary.fit(here, subjects=training, floor=2)
    assert json.dumps(fitted.to_dict()) == json.dumps(vocabulary.to_dict())
    assert (found.counts["training"], found.counts["held_out"]) == (len(training), len(held_out))


def test_a_run_on_prepared_events_is_the_run_on_the_folder(meds: Path, tmp_path: Path):
    events.prepare(meds, tmp_path / "p", settings=SETTINGS, workers=1)
    for name, data in (("one", meds), ("two", tmp_path / "p")):
        events.pretrain(data, tmp_path / name, settings=SETTINGS, console=False)
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two
    figures = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("one", "two")]
    losses = [[json.loads(line).get("loss") for line in lines] for lines in figures]
    assert losses[0] == losses[1]
    other = with_overrides(SETTINGS, {"seed": 5})  # other weights and masks, the same patients held out
    events.pretrain(tmp_path / "p", tmp_path / "three", settings=other, console=False)


def test_settings_that_contradict_what_was_prepared_are_refused(meds: Path, tmp_path: Path):
    events.prepare(meds, tmp_path / "p", settings=SETTINGS, workers=1)
    for change, message in (
        ({"floor": 5}, r"floor=5, and .*p was prepared with floor=2"),
        ({"holdout": 0.1}, r"holdout=0.1, and .*p was prepared with holdout=0.05"),
        ({"rollup": "parts:1"}, r"rollup=parts:1, and .*p was prepared with rollup=$"),
        ({"store": "memory"}, r"store=memory, and .* stay on the disk"),
    ):
        with pytest.raises(UserError) as error:
            events.pretrain(tmp_path / "p", tmp_path / "r", settings=with_overrides(SETTINGS, change), console=False)
        error.match(message.replace("$", "\n"))
    with pytest.raises(UserError, match="patients were chosen when it was prepared"):
        events.pretrain(tmp_path / "p", tmp_path / "r", settings=SETTINGS, subjects=np.arange(9), console=False)
    with pytest.raises(UserError, match=r"holds another preparation: floor=2 \(now 5\)"):
        events.prepare(meds, tmp_path / "p", settings=with_overrides(SETTINGS, {"floor": 5}), workers=1)


def test_what_was_cut_short_goes_on(meds: Path, tmp_path: Path, monkeypatch):
    from unmask.engines.local import LocalEngine

    run, tasks_of = LocalEngine.run, []

    def cut(self, function, common, tasks):
        tasks_of.append(len(tasks))
        for i, result in run(self, function, common, tasks):
            if len(tasks_of) == 1 and i == 2:
                raise KeyboardInterrupt
            yield i, result

    events.prepare(meds, tmp_path / "whole", settings=SETTINGS, workers=1)
    monkeypatch.setattr(LocalEngine, "run", cut)
    with pytest.raises(KeyboardInterrupt):
        events.prepare(meds, tmp_path / "cut", settings=SETTINGS, workers=1)
    with pytest.raises(UserError, match="its preparation has not ended"):
        events.pretrain(tmp_path / "cut", tmp_path / "r", settings=SETTINGS, console=False)
    events.prepare(meds, tmp_path / "cut", settings=SETTINGS, workers=1)
    assert tasks_of == [5, 2]
    assert files(tmp_path / "whole") == files(tmp_path / "cut")


def test_what_is_wrong_is_said_and_a_damaged_folder_refused(meds: Path, tmp_path: Path):
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(f"{meds}/", "/meds/", recursive=True)
    try:
        events.prepare("memory://meds", tmp_path / "url", settings=SETTINGS, workers=1)
    finally:
        memory.rm("/meds", recursive=True)
    events.prepare(meds, tmp_path / "p", settings=SETTINGS, workers=1)
    left, right = (files(tmp_path / name) for name in ("url", "p"))
    assert {n: c for n, c in left.items() if n != "prepared.json"} == {
        n: c for n, c in right.items() if n != "prepared.json"
    }
    for name in sorted(files(tmp_path / "p")):
        path = tmp_path / "p" / name
        whole = path.read_bytes()
        at = len(whole) // 2
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(UserError, match=r"not as it was written|altered since it was written|not JSON"):
            events.pretrain(tmp_path / "p", tmp_path / "r", settings=SETTINGS, console=False)
        path.write_bytes(whole)
    with pytest.raises(UserError, match="prepared from events, not from text"):
        text.pretrain(str(tmp_path / "p"), tmp_path / "r", console=False)
    shard(meds, table([(13, DAY, "a", None)]), "9")
    with pytest.raises(UserError, match="subject 13 also stands in"):
        events.prepare(meds, tmp_path / "twice", settings=SETTINGS, workers=1)
