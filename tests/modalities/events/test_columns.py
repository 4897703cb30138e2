"""Events on disk are the events in memory, bit for bit; a builder that was killed goes on; what is damaged is read
again."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from event_data import DAY, shard, table

from unmask.errors import UserError
from unmask.modalities.events.recipes import EventSettings, with_overrides
from unmask.modalities.events.records import columns, parquet
from unmask.modalities.events.records.columns import EventStore
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.meds import Events, read_meds
from unmask.modalities.events.records.vocabulary import Vocabulary
from unmask.modalities.events.uses.pretrain import batch_maker, pretrain
from unmask.training.run import check_run_folder


@pytest.fixture
def meds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four shards of 30 patients, read 50 rows at a time: patients straddle batches."""
    monkeypatch.setattr(parquet, "BATCH", 50)
    rng, subject = np.random.default_rng(0), 0
    for number in range(4):
        rows = []
        for _ in range(30):
            subject += 1
            rows.append((subject, None, f"SEX//{'FM'[subject % 2]}", None))
            rows.append((subject, DAY - timedelta(9000), "MEDS_BIRTH", None))
            for day in range(int(rng.integers(1, 30))):
                code = f"z{9 - number}" if day == 0 else f"c{rng.integers(0, 12)}"
                rows.append((subject, DAY + timedelta(day // 2), code, float(rng.normal()) if day % 3 else None))
        shard(tmp_path / "meds", table(rows).with_columns(pl.col("subject_id").alias("hadm_id")), str(number))
    return tmp_path / "meds"


def disk(folder: Path, said: list[str] | None = None) -> EventStore:
    return EventStore(folder=folder, most=0, say=lambda text: (said if said is not None else []).append(text))


def equal(one: Events, two: Events) -> None:
    for name in ("subjects", "offsets", "time", "code", "value", "visit"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name), err_msg=name)
    assert one.codes == two.codes == sorted(one.codes)
    assert one.digest() == two.digest()


def test_disk_and_memory_hold_the_same(meds: Path, tmp_path: Path):
    here, there = read_meds(meds), read_meds(meds, store=disk(tmp_path / "store"))
    assert here.pages is None
    assert there.pages is not None
    equal(here, there)
    frame = pl.concat([pl.read_parquet(p) for p in sorted((meds / "data").glob("*"))])
    assert [here.codes[c] for c in here.code] == frame["code"].to_list()
    np.testing.assert_array_equal(here.value, frame["numeric_value"].fill_null(float("nan")).to_numpy())
    assert there.time.base is not None
    assert there.code.dtype == np.int32


def test_batches_vocabulary_and_lengths_are_the_same(meds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(columns, "RESIDENT", 1)  # pages are given back all the time
    both = [read_meds(meds), read_meds(meds, store=disk(tmp_path / "store"))]
    train = np.arange(0, 120, 3)
    known = [Vocabulary.fit(e, subjects=train, floor=2) for e in both]
    np.testing.assert_array_equal(known[0].knots, known[1].knots)
    rows = np.concatenate([np.arange(both[0].offsets[i], both[0].offsets[i + 1]) for i in train])
    often = np.flatnonzero(np.bincount(both[0].code[rows]) >= 2)
    assert known[0].codes == known[1].codes
    assert set(known[0].codes) == {c for c in np.array(both[0].codes)[often] if not c.startswith("MEDS_BIRTH")}
    for marks in ("none", "sep", "visit"):
        histories = [Histories(e, v, marks) for e, v in zip(both, known, strict=True)]
        lengths = histories[1].lengths()
        assert lengths.tolist() == [histories[0].length(i) for i in range(120)]
        one, two = (batch_maker(h, 128)([[0, 5], [7]], 3) for h in histories)
        for name, channel in one.values.items():
            np.testing.assert_array_equal(channel, two.values[name], err_msg=name)
        assert histories[0].unknown == histories[1].unknown


def test_a_killed_builder_goes_on(meds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store, said = tmp_path / "store", list[str]()
    whole, read = parquet.batches, list[str]()

    def dying(path: Path, *given: object):
        read.append(path.name)
        for number, part in enumerate(whole(path, *given)):
            if path.name == "2.parquet" and number == 2 and len(read) == 3:
                raise KeyboardInterrupt
            yield part

    monkeypatch.setattr(columns, "batches", dying)
    with pytest.raises(KeyboardInterrupt):
        read_meds(meds, store=disk(store, said))
    found = read_meds(meds, store=disk(store, said))
    assert read == ["0.parquet", "1.parquet", "2.parquet", "2.parquet", "3.parquet"]
    assert said[-1].endswith("2 of 4 shards are there")
    equal(read_meds(meds), found)
    read.clear()
    equal(found, read_meds(meds, store=disk(store)))
    assert not read  # whole: nothing is read again


@pytest.mark.parametrize("name", ["time", "code", "value", "visit", "subjects"])
def test_damage_is_noticed_and_mended(meds: Path, tmp_path: Path, name: str):
    store, said = tmp_path / "store", list[str]()
    read_meds(meds, store=disk(store))
    (folder,) = store.iterdir()
    path = folder / f"{name}.bin"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    equal(read_meds(meds), read_meds(meds, store=disk(store, said)))
    assert "not as it was written" in said[0]


def test_other_data_is_another_store_and_bad_data_leaves_none(meds: Path, tmp_path: Path):
    store = tmp_path / "store"
    read_meds(meds, store=disk(store))
    shard(meds, table([(500, DAY, "new", None), (500, DAY - timedelta(1), "new", None)]), "9")
    with pytest.raises(UserError, match=r"9\.parquet: row 1: the time of subject 500 goes backwards"):
        read_meds(meds, store=disk(store))
    assert len(list(store.iterdir())) == 1
    shard(meds, table([(3, DAY, "new", None)]), "9")
    for where in (None, disk(store)):
        with pytest.raises(UserError, match=r"9\.parquet: subject 3 also stands in .*0\.parquet"):
            read_meds(meds, store=where)
    shard(meds, table([(n, DAY, "new", None) for n in (600, 601, 600)]), "9")
    with pytest.raises(UserError, match="row 2: subject 600 comes again"):
        read_meds(meds, store=disk(store))
    shard(meds, table([(600, DAY, "new", None)]), "9")
    equal(read_meds(meds), read_meds(meds, store=disk(store)))
    assert len(list(store.iterdir())) == 2


def test_training_from_disk_is_training_from_memory(meds: Path, tmp_path: Path):
    few = {"slots": 32, "batch_slots": 512, "width": 16, "inner": 16, "precision": "fp32", "floor": 2, "steps": 3}
    losses = []
    for store in ("memory", "disk"):
        settings = with_overrides(EventSettings(), few | {"store": store})
        pretrain(meds, tmp_path / store, settings=settings, console=False)
        lines = (tmp_path / store / "metrics.jsonl").read_text().splitlines()
        losses.append([json.loads(line).get("loss") for line in lines])
    assert losses[0] == losses[1]
    assert (tmp_path / "disk" / "events").is_dir()
    assert not (tmp_path / "memory" / "events").exists()
    # A run begun in memory goes on from disk.
    settings = with_overrides(EventSettings(), few | {"store": "disk", "steps": 4})
    pretrain(meds, check_run_folder(tmp_path / "memory", resume=True), settings=settings, resume=True, console=False)
