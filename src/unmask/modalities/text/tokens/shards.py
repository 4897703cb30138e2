"""Shards of a prepared corpus: the tokens of one portion each, written by whoever has time, read as one array.

shards/000000.tokens.bin    ids of one example after another
       000000.starts.bin    1 where a unit starts
index/000000.bin, .json     until all are there: tokens of each example (int64), then whether it is held out (uint8);
                            counts and checksums
"""

from __future__ import annotations

import bisect
import contextlib
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unmask.engines.folder import check_seen
from unmask.errors import UserError
from unmask.files import fsync
from unmask.modalities.text.reading.documents import Document, ReadReport
from unmask.modalities.text.reading.sources import mark_of, sound_documents
from unmask.modalities.text.tokens.chunks import Chunks, never_over_white_space
from unmask.modalities.text.tokens.scanning import CorpusReading, Portion, portion_documents
from unmask.modalities.text.tokens.tokenising import Recipe, groups, tokenise
from unmask.writing import replacing

COUNTED = ("documents", "entities", "read", "unknown", "short", "cuts")
BINS = ("tokens", "starts")


class Joined:
    """Arrays one behind another, read as one; what lies across an edge is put together."""

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        self._parts = list(parts)
        self._begins = np.cumsum([0, *map(len, parts)]).tolist()

    def __len__(self) -> int:
        return int(self._begins[-1])

    def __getitem__(self, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(len(self))
        stop = max(start, stop)
        number = bisect.bisect_right(self._begins, start) - 1
        if number >= len(self._parts):
            return self._parts[-1][:0]
        begin = self._begins[number]
        first = self._parts[number][start - begin : stop - begin]
        if stop <= self._begins[number + 1]:
            return first
        found = [first]
        while (number := number + 1) < len(self._parts) and self._begins[number] < stop:
            found.append(self._parts[number][: stop - self._begins[number]])
        return np.concatenate(found)


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """A portion to be tokenised.

    Attributes:
        drop: numbers of its documents that are copies of ones before.
        documents, mark: how many the scan found, and the checksum of their hashes.
    """

    number: int
    portion: Portion
    drop: np.ndarray
    documents: int
    mark: int


def shard(common: tuple[CorpusReading, Recipe], task: ShardTask) -> dict[str, Any]:
    """Tokenise a portion into its shard; counts and checksums of it, which are written last."""
    reading, recipe = common
    folder = Path(reading.folder)
    check_seen(reading.folder, reading.key)
    counts = dict.fromkeys(COUNTED, 0)
    sums = dict.fromkeys(BINS, 0)
    sizes = dict.fromkeys(BINS, 0)
    lengths, held = [np.zeros(0, np.int64)], [np.zeros(0, np.uint8)]
    chunks = Chunks(recipe.tokenizer) if never_over_white_space(recipe.tokenizer) else None
    with contextlib.ExitStack() as stack:
        names = {n: stack.enter_context(replacing(folder / "shards" / f"{task.number:06}.{n}.bin")) for n in BINS}
        files = {n: stack.enter_context(open(name, "wb")) for n, name in names.items()}
        for group in groups(_chosen(reading, task)):
            part = tokenise(group, recipe, chunks)
            for name in BINS:
                content = getattr(part, name).tobytes()
                files[name].write(content)
                sums[name] = zlib.crc32(content, sums[name])
                sizes[name] += len(content)
            lengths.append(part.lengths)
            held.append(part.held)
            for name in COUNTED:
                counts[name] += getattr(part, name)
    index = np.concatenate(lengths).tobytes() + np.concatenate(held).tobytes()
    with replacing(folder / "index" / f"{task.number:06}.bin") as new:
        new.write_bytes(index)
    about = {
        **counts,
        "examples": sum(map(len, held)),
        "tokens": int(sum(part.sum() for part in lengths)),
        "held_out": int(sum(part.sum() for part in held)),
        "sizes": sizes,
        "sums": {**sums, "index": zlib.crc32(index)},
        "recipe": recipe.key,
    }
    with replacing(folder / "index" / f"{task.number:06}.json") as new:
        new.write_text(json.dumps(about))
    return about


def _chosen(reading: CorpusReading, task: ShardTask) -> Iterator[Document]:
    """The documents of a portion but copies."""
    stream = portion_documents(task.portion, reading.column, ReadReport(), reading.entities, reading.document)
    drop, at, marks = set(task.drop.tolist()), 0, 0
    for d, encoded in sound_documents(stream, ReadReport()):
        marks = zlib.crc32(mark_of(encoded), marks)
        if at not in drop:
            yield d
        at += 1
    if (at, marks) != (task.documents, task.mark):
        raise UserError(
            f"{task.portion[0].file}: changed while it was prepared",
            hint="Prepare it again when nobody writes into it.",
        )


def done(folder: Path, number: int, recipe: str) -> dict[str, Any] | None:
    """What was written down of a shard that is whole and of this recipe; None where it is not."""
    try:
        about = json.loads((folder / "index" / f"{number:06}.json").read_text())
        sizes = {name: (folder / "shards" / f"{number:06}.{name}.bin").stat().st_size for name in BINS}
        return about if (sizes, recipe) == (about["sizes"], about["recipe"]) else None
    except (OSError, ValueError, KeyError):
        return None


def write_index(folder: Path, shards: Sequence[dict[str, Any]], tail: int) -> None:
    """Write offsets.bin and split.bin of all shards.

    Args:
        tail: examples at the end of the corpus that are held out.
    """
    with open(folder / "offsets.bin", "wb") as offsets, open(folder / "split.bin", "wb") as split:
        at = 0
        offsets.write(np.zeros(1, np.int64).tobytes())
        for number, about in enumerate(shards):
            place = folder / "index" / f"{number:06}.bin"
            content = place.read_bytes()
            if zlib.crc32(content) != about["sums"]["index"]:
                raise UserError(f"{place}: not as it was written", hint="The disk is damaged: choose another.")
            lengths = np.frombuffer(content, np.int64, about["examples"])
            offsets.write((at + np.cumsum(lengths)).tobytes())
            split.write(content[8 * about["examples"] :])
            at += about["tokens"]
        if tail:
            split.seek(-tail, os.SEEK_END)
            split.write(b"\x01" * tail)
        for file in (offsets, split):
            file.flush()
            os.fsync(file.fileno())
    fsync(folder)
