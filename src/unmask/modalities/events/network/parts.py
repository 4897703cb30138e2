"""Shards of a MEDS folder read side by side into parts, and the parts put together as the columns of one folder.

parts/000000.time.bin, .number.bin, .value.bin, .visit.bin     as `columns` has them; codes are numbered in the order
                                                               in which they come in the shard
            .subjects.bin                                      int64 id and number of events of each subject
            .json                                              codes, and checksums; written last
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unmask.engines.folder import check_seen, prepared_at, prepared_with, refuse_other
from unmask.errors import UserError, setting
from unmask.files import read_json
from unmask.modalities.events.recipes import EventSettings
from unmask.modalities.events.records.columns import (
    BLOCK,
    KINDS,
    NUMBER,
    SUBJECTS,
    VERSION,
    Reader,
    Shard,
    open_columns,
)
from unmask.modalities.events.records.meds import Events, events_of
from unmask.modalities.events.records.vocabulary import Vocabulary
from unmask.writing import replace_json, replacing

PARTS = "parts"


class Common(NamedTuple):
    """What all workers are told: the folder and the key of the preparation, and the columns that are wanted."""

    folder: str
    key: str
    names: tuple[str, ...]


def read_shard(common: Common, task: tuple[int, Shard]) -> int:
    """Read and check a shard, and write its part; how many events there are."""
    number, shard = task
    check_seen(common.folder, common.key)
    place, reader = Path(common.folder) / PARTS, Reader()
    names = {NUMBER if name == "code" else name: name for name in common.names}
    rows, sums = 0, dict.fromkeys(names, 0)
    with contextlib.ExitStack() as stack:
        paths = {n: stack.enter_context(replacing(place / f"{number:06}.{n}.bin")) for n in (*names, SUBJECTS)}
        files = {n: stack.enter_context(open(path, "wb")) for n, path in paths.items()}
        for part in reader.parts(shard):
            rows += len(part.subject)
            for name, column in names.items():
                content = np.ascontiguousarray(part.columns[column], KINDS[column])
                sums[name] = zlib.crc32(content.data, sums[name])
                files[name].write(content.data)
        subjects = np.stack([reader.subjects[0], reader.counts[0]], 1)
        files[SUBJECTS].write(subjects.tobytes())
    with replacing(place / f"{number:06}.json") as new:
        new.write_text(json.dumps({"rows": rows, "codes": list(reader.numbers), "sums": sums}))
    return rows


def left(folder: Path, shards: Sequence[Shard], names: Sequence[str]) -> list[tuple[int, Shard]]:
    """The shards whose parts are not there yet, or not in full."""
    return [(i, shard) for i, shard in enumerate(shards) if not _whole(folder, i, shard.rows, names)]


def _whole(folder: Path, number: int, rows: int, names: Sequence[str]) -> bool:
    place = folder / PARTS
    try:
        sizes = {name: (place / f"{number:06}.{_file(name)}.bin").stat().st_size for name in names}
        return (place / f"{number:06}.json").exists() and all(
            size == rows * np.dtype(KINDS[name]).itemsize for name, size in sizes.items()
        )
    except OSError:
        return False


def _file(name: str) -> str:
    return NUMBER if name == "code" else name


def join(folder: Path, shards: Sequence[Shard], names: Sequence[str]) -> dict[str, Any]:
    """Put the parts one behind another as the columns of one folder, with the codes of all of them numbered in
    alphabetical order; what index.json says of it.
    """
    place, target, reader = folder / PARTS, folder / EVENTS, Reader()
    abouts = [json.loads((place / f"{i:06}.json").read_text()) for i in range(len(shards))]
    for i, shard in enumerate(shards):
        found = np.fromfile(place / f"{i:06}.{SUBJECTS}.bin", np.int64).reshape(-1, 2)
        reader.subjects.append(found[:, 0])
        reader.counts.append(found[:, 1])
        reader.shards.append((shard.path, len(found)))
    ids, counts = reader.known()
    codes = sorted({code for about in abouts for code in about["codes"]})
    numbers = {code: i for i, code in enumerate(codes)}
    digest = {}
    for name in names:
        with (target / f"{name}.bin").open("wb") as file:
            digest[name] = 0
            for i, about in enumerate(abouts):
                source, found_sum = place / f"{i:06}.{_file(name)}.bin", 0
                order = np.array([numbers[code] for code in about["codes"]], np.int32)
                with source.open("rb") as part:
                    while len(content := np.fromfile(part, KINDS[name], BLOCK)):
                        found_sum = zlib.crc32(content.data, found_sum)
                        content = order[content] if name == "code" else content
                        digest[name] = zlib.crc32(content.data, digest[name])
                        file.write(content.data)
                if found_sum != about["sums"][_file(name)]:
                    raise UserError(f"{source}: not as it was written", hint="The disk is damaged: choose another.")
            file.flush()
            os.fsync(file.fileno())
    known = np.stack([ids, counts], 1)
    (target / f"{SUBJECTS}.bin").write_bytes(known.tobytes())
    index = {
        "version": VERSION,
        "shards": [{"rows": s.rows, "subjects": len(each)} for s, each in zip(shards, reader.subjects, strict=True)],
        "codes": codes,
        "digest": digest | {SUBJECTS: zlib.crc32(known.data)},
        "whole": True,
    }
    replace_json(target / "index.json", index)
    return index


SETTINGS = ("holdout", "floor", "rollup")
"""Settings that decide what is prepared, beside the seed."""
EVENTS, VOCABULARY, PARENTS, SPLIT = "events", "vocabulary.json", "parents.json", "splits.npy"


def settled(settings: EventSettings) -> dict[str, Any]:
    """What of some settings decides what is prepared."""
    return {name: getattr(settings, name) for name in SETTINGS} | {"seed": settings.train.seed}


def prepared_settings(data: str | Path | Sequence[str | Path]) -> dict[str, Any]:
    """The settings that data was prepared with, to be changed by what is asked for; none where it is not prepared.

    >>> prepared_settings("meds")
    {}
    """
    folder = prepared_at(data, "events")
    return {} if folder is None else prepared_with(folder)


def open_prepared(folder: Path, settings: EventSettings) -> tuple[Events, Vocabulary, int]:
    """Events as memory maps, the vocabulary, and the seed by which patients were held out (a run's own may differ)."""
    was = prepared_with(folder)
    for name in SETTINGS:
        refuse_other(folder, name, getattr(settings, name), was[name])
    if settings.store == "memory" or settings.store_folder is not None:
        name = "store" if settings.store == "memory" else "store_folder"
        raise UserError(
            f"{name}={getattr(settings, name)}, and {folder} is prepared: its events stay on the disk, where they are",
            hint=f"Leave {setting(name)} out.",
        )
    index = read_json(folder / EVENTS / "index.json")
    names = [name for name in KINDS if (folder / EVENTS / f"{name}.bin").exists()]
    found = None if index is None else open_columns(folder / EVENTS, index, names)
    if found is None:
        raise UserError(f"{folder / EVENTS}: not as it was written", hint="Prepare it again, or copy the folder again.")
    splits = np.load(folder / SPLIT) if (folder / SPLIT).exists() else None
    parents = read_json(folder / PARENTS) or {}
    vocabulary = Vocabulary.from_dict(json.loads((folder / VOCABULARY).read_text(encoding="utf-8")))
    return events_of(found, parents, splits), vocabulary, int(was["seed"])
