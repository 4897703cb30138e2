"""Pictures that are not in memory, read like arrays part by part: decoded once and kept on disk (`build`), or decoded
whenever they are looked at (`Stream`).

    folder/KEY/index.json       what the shards hold: the form of the pictures and where each shard begins
               00000.bin        examples one after another, each the bytes of (height, width, channels)
               00000.gone       for examples with missing pixels, their masks, 8 pixels per byte
               00000.json       examples of each file (or why it cannot be read), and of each example a CRC-32
               .lock            held while shards are being made

KEY is made of the files' names, sizes and times and of all that decides what becomes of them, so another set or another
way of reading is another folder. A shard counts once its .json stands: work that was killed goes on with the next one.
Pictures are read by position (`pread`), not through a memory map: pages of a map count as the process's memory and
stall the interpreter while they are fetched. Every picture's CRC is checked when it is read.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from unmask.errors import UserError, setting
from unmask.files import check_room, fsync
from unmask.modalities.images.formats.picture import Broken, Choice, Picture, Source
from unmask.modalities.images.reading.decode import Form, Mapper, PictureFiles, decode, executor, mapper, worker_count
from unmask.writing import LOCK, locked, replace_json

VERSION = 1
SHARD_BYTES = 64_000_000
"""A shard's size, about; what a killed builder loses at most."""
MOST_SHARDS = 400
"""Files that a process may have open are limited: larger sets have larger shards."""
REPORT_EVERY = 10.0
"""Seconds between lines about progress."""


@dataclass(frozen=True, kw_only=True)
class PictureStore:
    """Where pictures go that do not fit in memory.

    Attributes:
        folder: holds a folder for each set; None keeps nothing: files are decoded whenever they are looked at.
        most: bytes of decoded pictures that may stay in memory; larger sets go to disk.
        say: called with lines on how decoding goes.
    """

    folder: Path | None
    most: float
    say: Callable[[str], None] = lambda text: None


class Made(NamedTuple):
    """Of one example: the CRC-32 of its pixels and, where some are missing, its mask."""

    crc: int
    mask: bytes | None


def build(
    folder: Path, files: PictureFiles, *, say: Callable[[str], None] = lambda text: None
) -> tuple[PictureShards, dict[int, str]]:
    """Decode files into shards below `folder`, or go on where a killed builder stopped, or find them done. Returns the
    examples of the files that could be read, file by file in order; and why the others (by number) could not."""
    counts, size = files.counts, files.form.nbytes
    edges, key = _edges(counts, size), _key(files)
    here = Path(folder) / key[:16]
    with locked(here / LOCK, busy="is decoding pictures into it"):
        todo = [n for n in range(len(edges) - 1) if not _whole(here, n, size)]
        if todo:
            check_room(
                here,
                sum(int(counts[edges[n] : edges[n + 1]].sum()) for n in todo) * size,
                what="decoded pictures",
                hint=f"Choose a smaller image_size (or store_size), or another place: {setting('store_folder')}.",
            )
            index = {"version": VERSION, "key": key, "files": len(files), "form": asdict(files.form), "edges": edges}
            replace_json(here / "index.json", index)
            total = int(counts.sum())
            done = total - sum(int(counts[edges[n] : edges[n + 1]].sum()) for n in todo)
            if done:
                say(f"{done:,} of {total:,} pictures are decoded already: {here}")
            started, reported = time.monotonic(), time.monotonic()
            first = done
            with mapper(files.workers) as mapped:
                for number in todo:
                    part = files.part(np.arange(edges[number], edges[number + 1]))
                    _shard(here / f"{number:05d}.bin", part, mapped)
                    done += int(part.counts.sum())
                    if time.monotonic() - reported > REPORT_EVERY or number == todo[-1]:
                        reported = time.monotonic()
                        speed = (done - first) / max(reported - started, 1e-9)
                        say(f"decoded {done:,} of {total:,} pictures ({speed:,.0f}/s) into {here}")
    return _opened(here, edges, files.form)


def _edges(counts: np.ndarray, size: int) -> list[int]:
    """Numbers of the files at which shards begin, and the end; a function of the set alone."""
    most = max(SHARD_BYTES, int(counts.sum()) * size // MOST_SHARDS)
    shard = np.cumsum(counts) * size // most
    return [0, *(np.flatnonzero(np.diff(shard)) + 1).tolist(), len(counts)]


def _key(files: PictureFiles) -> str:
    decided = [VERSION, asdict(files.form), asdict(files.choice), files.counts.tolist()]
    content = hashlib.sha256(json.dumps(decided).encode())
    for source in files.sources:
        if isinstance(source, bytes):
            content.update(hashlib.sha256(source).digest())
            continue
        try:
            about = os.stat(source)
            identity = (os.path.abspath(source), about.st_size, about.st_mtime_ns)
        except OSError:
            identity = (os.path.abspath(source), -1, -1)
        content.update(json.dumps(identity).encode())
    return content.hexdigest()


def _shard(path: Path, files: PictureFiles, mapped: Mapper) -> None:
    size, starts = files.form.nbytes, np.concatenate([[0], np.cumsum(files.counts)]).tolist()
    tasks = [
        (str(path), start * size, source, int(count), files.form, files.choice)
        for source, count, start in zip(files.sources, files.counts, starts[:-1], strict=True)
    ]
    try:
        path.write_bytes(b"")
        found = list(mapped(_write, tasks))
        examples: list[Made] = []
        with path.open("r+b") as file, path.with_suffix(".gone").open("wb") as masks:
            for result, start in zip(found, starts[:-1], strict=True):
                if isinstance(result, str):
                    continue
                if start != len(examples):  # a file before it could not be read: close the hole
                    moved = os.pread(file.fileno(), len(result) * size, start * size)
                    os.pwrite(file.fileno(), moved, len(examples) * size)
                examples += result
            file.truncate(len(examples) * size)
            for made in examples:
                masks.write(made.mask or b"")
        for kept in (path, path.with_suffix(".gone")):
            fsync(kept)
        replace_json(
            path.with_suffix(".json"),
            {
                "files": [r if isinstance(r, str) else len(r) for r in found],
                "crc": [m.crc for m in examples],
                "gone": [i for i, m in enumerate(examples) if m.mask is not None],
                "masks": zlib.crc32(b"".join(m.mask or b"" for m in examples)),
            },
        )
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror or error})", hint="Free space; what is decoded is kept."
        ) from None


def _write(task: tuple[str, int, Source, int, Form, Choice]) -> list[Made] | str:
    """Decode a file and write its examples where they belong; why it cannot be read, where it cannot."""
    path, offset, source, count, form, choice = task
    found = decode(source, form, choice)
    if isinstance(found, Broken):
        return found.reason
    if len(found) != count:
        return f"gave {len(found)} pictures, {count} were announced: the file changed"
    out = []
    target = os.open(path, os.O_WRONLY)
    try:
        for picture in found:
            content = np.ascontiguousarray(picture.pixels).tobytes()
            offset += os.pwrite(target, content, offset)
            mask = None if picture.missing is None else np.packbits(picture.missing).tobytes()
            out.append(Made(zlib.crc32(content), mask))
    finally:
        os.close(target)
    return out


def _whole(folder: Path, number: int, size: int) -> bool:
    """Whether a shard was finished and its pictures are all there."""
    try:
        about = json.loads((folder / f"{number:05d}.json").read_text(encoding="utf-8"))
        return (folder / f"{number:05d}.bin").stat().st_size == len(about["crc"]) * size
    except (OSError, ValueError, KeyError):
        return False


def _opened(folder: Path, edges: Sequence[int], form: Form) -> tuple[PictureShards, dict[int, str]]:
    broken: dict[int, str] = {}
    sizes: list[int] = []
    crc: list[int] = []
    missing: list[tuple[int, int, int]] = []
    for number, first in enumerate(edges[:-1]):
        about = json.loads((folder / f"{number:05d}.json").read_text(encoding="utf-8"))
        broken |= {first + i: reason for i, reason in enumerate(about["files"]) if isinstance(reason, str)}
        before = sum(sizes)
        sizes.append(len(about["crc"]))
        crc += about["crc"]
        missing += [(before + i, number, k) for k, i in enumerate(about["gone"])]
    return PictureShards(folder, np.cumsum([0, *sizes]), np.array(crc, np.uint32), missing, form), broken


class LazyArray(ABC):
    """The pixels, or the masks of missing ones, of `count` examples, or of some of them by their numbers (`which`);
    what is asked for is fetched by `fetch` of a subclass. `each`: the shape of an example."""

    def __init__(self, count: int, form: Form, *, masks: bool) -> None:
        self.which, self.masks = np.arange(count), masks
        self.dtype, self.each = np.dtype(bool if masks else form.depth), form.shape[:2] if masks else form.shape

    def __len__(self) -> int:
        return len(self.which)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), *self.each)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes it would take in memory."""
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def __getitem__(self, which: Any) -> np.ndarray:
        """A copy of some examples (a number, a slice, numbers or booleans), in memory."""
        chosen = self.which[which]
        numbers = np.atleast_1d(chosen)
        following = np.zeros(0, int)
        if isinstance(which, slice) and which.step in (None, 1):
            _, stop, _ = which.indices(len(self))
            following = self.which[stop : stop + len(numbers)]
        out = np.zeros((len(numbers), *self.each), self.dtype)
        self.fetch(numbers, following, out)
        return out[0] if np.ndim(chosen) == 0 else out

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[i] for i in range(len(self)))

    @abstractmethod
    def fetch(self, numbers: np.ndarray, following: np.ndarray, out: np.ndarray) -> None:
        """Write some examples into `out`, which holds zeros. `following`: those that will be asked for next, as far as
        that can be guessed."""

    def part(self, which: np.ndarray) -> Self:
        """Some of the examples, not in memory either."""
        found = copy.copy(self)
        found.which = self.which[which]
        return found


class PictureShards:
    """Decoded examples on disk; `pixels` and `missing` are read like arrays, parts at a time."""

    def __init__(
        self, folder: Path, starts: np.ndarray, crc: np.ndarray, unmeasured: Sequence[tuple[int, int, int]], form: Form
    ) -> None:
        self.folder, self.starts, self.crc, self.form = folder, starts, crc, form
        self.unmeasured = {example: (shard, place) for example, shard, place in unmeasured}
        self._files: dict[str, int] = {}

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def pixels(self) -> StoredArray:
        return StoredArray(self, masks=False)

    @property
    def missing(self) -> StoredArray | None:
        """Masks of missing pixels; None where there are none."""
        return StoredArray(self, masks=True) if self.unmeasured else None

    def _file(self, shard: int, suffix: str) -> int:
        name = f"{shard:05d}{suffix}"
        if name not in self._files:
            try:
                self._files[name] = os.open(self.folder / name, os.O_RDONLY)
            except OSError as error:
                raise UserError(
                    f"{self.folder / name}: {error.strerror}", hint="Remove the folder: pictures are decoded again."
                ) from None
        return self._files[name]

    def read_pixels(self, example: int, out: np.ndarray) -> None:
        """Write the pixels of an example into `out`, compared with their CRC."""
        shard = int(np.searchsorted(self.starts, example, "right")) - 1
        view = memoryview(out.data).cast("B")
        got = os.preadv(self._file(shard, ".bin"), [view], int(example - self.starts[shard]) * len(view))
        if got != len(view) or zlib.crc32(view) != self.crc[example]:
            raise UserError(
                f"{self.folder / f'{shard:05d}.bin'}: example {example - self.starts[shard]} is not as it was written",
                hint=f"The disk or a copy damaged it: remove {self.folder}, and pictures are decoded again.",
            )

    def read_missing(self, example: int, out: np.ndarray) -> None:
        """Write the mask of an example into `out`, which is False everywhere."""
        if example in self.unmeasured:
            shard, place = self.unmeasured[example]
            size = -(-out.size // 8)
            packed = os.pread(self._file(shard, ".gone"), size, place * size)
            out[:] = np.unpackbits(np.frombuffer(packed, np.uint8), count=out.size).reshape(out.shape).astype(bool)

    def __del__(self) -> None:
        for descriptor in self._files.values():
            with contextlib.suppress(OSError):
                os.close(descriptor)


class StoredArray(LazyArray):
    """Examples on disk, or some of them."""

    def __init__(self, shards: PictureShards, *, masks: bool) -> None:
        super().__init__(len(shards), shards.form, masks=masks)
        self._shards = shards

    def fetch(self, numbers: np.ndarray, following: np.ndarray, out: np.ndarray) -> None:
        read = self._shards.read_missing if self.masks else self._shards.read_pixels
        for row, number in zip(out, numbers, strict=True):
            read(int(number), row)

    @property
    def checksums(self) -> np.ndarray:
        """CRC-32 of the pixels of each example, as they were written."""
        return self._shards.crc[self.which]

    def all(self, axis: tuple[int, ...] = (1, 2)) -> np.ndarray:
        """Of masks: whether all pixels of an example are missing."""
        return np.array([n in self._shards.unmeasured and bool(self[i].all()) for i, n in enumerate(self.which)], bool)

    def mean(self) -> float:
        """Of masks: the share of missing pixels."""
        each = [float(self[i].mean()) for i, n in enumerate(self.which) if n in self._shards.unmeasured]
        return sum(each) / max(len(self), 1)


class Stream:
    """The examples of files, decoded at every look; workers decode what follows the last look meanwhile.

    `pixels` and `missing` are indexed along the first axis like arrays. A file that turns out broken gives zeros, and
    its reason stands in `broken` by the number of its first example: whoever looked leaves these examples out.
    """

    def __init__(self, files: PictureFiles) -> None:
        self.files, self.form, self.workers = files, files.form, worker_count(files.workers)
        self.file = np.repeat(np.arange(len(files)), files.counts)
        self.first = np.concatenate([[0], np.cumsum(files.counts)])
        self.broken: dict[int, str] = {}
        self._decoded: dict[int, list[Picture] | None] = {}
        self._coming: dict[int, Future[list[Picture] | Broken]] = {}
        self._pool: ProcessPoolExecutor | None = None

    def __len__(self) -> int:
        return len(self.file)

    @property
    def pixels(self) -> StreamedArray:
        return StreamedArray(self, masks=False)

    @property
    def missing(self) -> StreamedArray:
        return StreamedArray(self, masks=True)

    def read(self, numbers: np.ndarray, following: np.ndarray) -> list[Picture | None]:
        """Some examples (None of broken files), while those `following` are sent to workers."""
        needed = list(dict.fromkeys(self.file[numbers].tolist()))
        self._send(needed + list(dict.fromkeys(self.file[following].tolist())))
        decoded = {n: self._decoded[n] if n in self._decoded else self._take(n) for n in needed}
        # A look at the masks follows one at the pixels: these files need not be decoded again.
        self._decoded = decoded
        found: list[Picture | None] = []
        for number in numbers.tolist():
            file = int(self.file[number])
            pictures = decoded[file]
            found.append(None if pictures is None else pictures[number - int(self.first[file])])
        return found

    def _send(self, files: list[int]) -> None:
        if self.workers <= 1:
            return
        if self._pool is None:
            self._pool = executor(self.workers)
        for n in files:
            if n not in self._coming and n not in self._decoded:
                self._coming[n] = self._pool.submit(decode, self.files.sources[n], self.form, self.files.choice)

    def _take(self, number: int) -> list[Picture] | None:
        coming = self._coming.pop(number, None)
        source, choice = self.files.sources[number], self.files.choice
        found = decode(source, self.form, choice) if coming is None else coming.result()
        count = int(self.first[number + 1] - self.first[number])
        if isinstance(found, Broken):
            self.broken[int(self.first[number])] = found.reason
        elif len(found) != count:
            self.broken[int(self.first[number])] = (
                f"gave {len(found)} pictures, {count} were announced: the file changed"
            )
        else:
            return found
        return None

    def whole(self, numbers: np.ndarray) -> np.ndarray:
        """Booleans: which of these examples could be read, as far as they were looked at."""
        bad = np.isin(self.first[self.file[numbers]], list(self.broken))
        return ~bad

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def __del__(self) -> None:
        self.close()


class StreamedArray(LazyArray):
    """Pixels or masks of a stream, or of some of its examples; indexing decodes what is asked for, zeros of broken
    files."""

    def __init__(self, stream: Stream, *, masks: bool) -> None:
        super().__init__(len(stream), stream.form, masks=masks)
        self.stream = stream

    def fetch(self, numbers: np.ndarray, following: np.ndarray, out: np.ndarray) -> None:
        for row, picture in zip(out, self.stream.read(numbers, following), strict=True):
            if picture is not None and self.masks:
                row[:] = False if picture.missing is None else picture.missing
            elif picture is not None:
                row[:] = picture.pixels

    def whole(self) -> np.ndarray:
        """Booleans: which of the examples could be read, as far as they were looked at."""
        return self.stream.whole(self.which)
