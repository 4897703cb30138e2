"""Events as flat columns, 16 bytes each: made shard by shard in bounded batches, in memory or as files of any size.

    FOLDER/KEY/index.json     codes and CRC-32 of the files: written last
               time.bin       int64; code.bin: int32, number among the sorted codes; value.bin: float32
               visit.bin      int64, where the data has encounters
               subjects.bin   int64 id and number of events of each subject
               parts/         until all shards are read: the same of each

KEY is made of the shards' names, sizes, times and last bytes. What was killed goes on with the shard it was at. All
files are read through when they are opened, and their CRC-32 compared. They are memory maps: pages that were looked at
are given back after some hundred megabytes (`Pages`), so that memory stays flat whatever the number of events.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import shutil
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from unmask.errors import UserError, setting
from unmask.files import check_room
from unmask.modalities.events.records.parquet import batches, damaged, source_of
from unmask.remote import Place, Remote
from unmask.writing import locked, replace_json, replacing, temporary_folder

VERSION = 2
STATIC = np.iinfo(np.int64).min
"""Time of a static event (null in the file): before all others."""
KINDS = {"time": np.int64, "code": np.int32, "value": np.float32, "visit": np.int64}
WANTED = {"subject_id": "int", "time": "time", "code": "text", "numeric_value": "float"}
VISITS = ("visit_id", "hadm_id", "encounter_id", "visit_occurrence_id")
"""Columns beside MEDS's own that may name the encounter of an event; the first that is there is read."""
NO_VISIT = -1
INDEX, PARTS, SUBJECTS = "index.json", "parts", "subjects"
RESIDENT = 256 << 20
"""Bytes of mapped pages after which they are given back."""
AROUND = 3 * (64 << 10)
"""Bytes that looking at one history maps beside it: the system maps 64 KB around each page it fetches."""
TAIL = 1 << 16
"""Bytes at the end of each shard that are part of the key: parquet's statistics stand there."""
BLOCK = 1 << 20
"""Events looked at in one go."""


class Shard(NamedTuple):
    """A file of the data, its number of rows, and its column of encounters."""

    path: Place
    rows: int
    visit: str | None


class EventPart(NamedTuple):
    """Some events of a shard, in the order of the file."""

    subject: np.ndarray
    columns: dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class EventColumns:
    """All events of some shards: columns by name, as in `KINDS` (arrays, or memory maps with their `pages`); ids of the
    subjects in the order of the files, and how many events each has; the distinct codes, sorted."""

    columns: dict[str, np.ndarray]
    subjects: np.ndarray
    counts: np.ndarray
    codes: list[str]
    pages: Checked | None = None


@dataclass(frozen=True, kw_only=True)
class EventStore:
    """Where events go that do not fit in memory.

    Attributes:
        folder: holds a folder for each data set; None: a temporary one, removed with the process.
        most: bytes of events that may stay in memory; larger sets go to disk.
        say: called with where they go and how far they are.
    """

    folder: Path | None = None
    most: float = 2e9
    say: Callable[[str], None] = lambda text: None


class Pages:
    """Gives pages of memory maps (`each` bytes per row in all together) back to the system once `RESIDENT` bytes were
    looked at; they are fetched again when needed."""

    def __init__(self, maps: Sequence[mmap.mmap], each: int) -> None:
        self._maps, self._each, self._seen = list(maps), each, 0

    def seen(self, rows: int) -> None:
        """Told that so many rows, one after another, were looked at."""
        self._seen += rows * self._each + AROUND
        if self._seen > RESIDENT:
            self._seen = 0
            if hasattr(mmap, "MADV_DONTNEED"):
                for each in self._maps:
                    each.madvise(mmap.MADV_DONTNEED)


class Checked(Pages):
    """Pages of columns, name -> array on the map beside it, read through once for their CRC-32."""

    def __init__(self, columns: dict[str, np.ndarray], maps: Sequence[mmap.mmap]) -> None:
        super().__init__(maps, bytes_of(columns))
        self._columns = columns
        self.digest = {name: self._crc(column) for name, column in columns.items()}

    def known(self, name: str, column: np.ndarray) -> int | None:
        """CRC-32 of a column, if it is the one of this name on the maps."""
        return self.digest[name] if self._columns.get(name) is column else None

    def _crc(self, column: np.ndarray) -> int:
        found = 0
        for start in range(0, len(column), BLOCK):
            found = zlib.crc32(column[start : start + BLOCK].data, found)
            self.seen(BLOCK)
        return found


def read_columns(paths: Sequence[Place], store: EventStore) -> EventColumns:
    """All events of the shards, in memory or, where that would take more than `store.most`, as memory maps of files."""
    shards = [shard_of(path) for path in paths]
    names = [name for name in KINDS if name != "visit" or any(s.visit for s in shards)]
    if sum(s.rows for s in shards) * bytes_of(names) > store.most:
        if store.folder is not None:
            made = _stored(store.folder, shards, names, store)
        else:
            root = temporary_folder()
            made = _stored(Path(root.name), shards, names, store)
            weakref.finalize(made.pages, root.cleanup)
    else:
        made = _in_memory(shards, names)
    if not len(made.subjects):
        raise UserError(f"{paths[0]}: no events", hint="Give a folder with at least one patient.")
    return made


def bytes_of(names: Iterable[str]) -> int:
    """Bytes per event in columns of these names."""
    return sum(np.dtype(KINDS[name]).itemsize for name in names)


def shard_of(path: Place) -> Shard:
    """What the footer of a shard says of it."""
    try:
        with source_of(path) as source:
            about = pq.read_metadata(source)
        names = about.schema.to_arrow_schema().names
    except Exception as error:  # pyarrow raises many kinds for a damaged file
        raise damaged(path, error) from None
    return Shard(path, int(about.num_rows), next((v for v in VISITS if v in names), None))


@dataclass
class ShardReader:
    """Turns shards into parts, and keeps what is known of subjects and codes on the way."""

    numbers: dict[str, int] = field(default_factory=dict)
    subjects: list[np.ndarray] = field(default_factory=list)
    counts: list[np.ndarray] = field(default_factory=list)
    shards: list[tuple[Place, int]] = field(default_factory=list)
    """Each shard read, and its number of subjects."""

    def parts(self, shard: Shard) -> Iterator[EventPart]:
        """The shard's events, checked; afterwards its subjects are known too."""
        path, ids, counts = shard.path, list[np.ndarray](), list[np.ndarray]()
        before: tuple[int, int] | None = None  # the last event's subject and time
        wanted, optional = dict(WANTED), ["numeric_value"]
        if shard.visit is not None:
            wanted, optional = wanted | {shard.visit: "id"}, [*optional, shard.visit]
        for first, frame in batches(path, wanted, optional):
            if not len(frame):
                continue
            part = self._part(frame, shard, first)
            subject, time = part.subject, part.columns["time"]
            starts = np.r_[before is None or subject[0] != before[0], subject[1:] != subject[:-1]]
            earlier = np.r_[STATIC if before is None else before[1], time[:-1]]
            back = np.flatnonzero((time < earlier) & ~starts)
            if len(back):
                row = int(back[0])
                was = pl.Series([int(earlier[row])]).cast(pl.Datetime("us"))[0]
                raise UserError(
                    f"{path}: row {first + row}: the time of subject {subject[row]} goes backwards ({was} to "
                    f"{frame['time'][row]})",
                    hint="Sort by subject_id, then time, nulls first.",
                )
            before = (int(subject[-1]), int(time[-1]))
            edges = np.flatnonzero(starts)
            sizes = np.diff(np.r_[edges, len(subject)])
            if not starts[0]:
                counts[-1][-1] += int(edges[0]) if len(edges) else len(subject)
            if len(edges):
                ids.append(subject[edges])
                counts.append(sizes)
            yield part
        none = np.zeros(0, np.int64)
        found, sizes = np.concatenate([none, *ids]), np.concatenate([none, *counts])
        _check_once(found, sizes, path)
        self.subjects.append(found)
        self.counts.append(sizes)
        self.shards.append((path, len(found)))

    def _part(self, frame: pl.DataFrame, shard: Shard, first: int) -> EventPart:
        for name in ("subject_id", "code"):
            if frame[name].null_count():
                row = first + (frame[name].is_null().arg_max() or 0)
                raise UserError(
                    f"{shard.path}: row {row}: {name} is null", hint="Every event has a subject and a code."
                )
        names = frame["code"].unique()
        numbers = [self.numbers.setdefault(name, len(self.numbers)) for name in names.to_list()]
        code = frame["code"].replace_strict(names, pl.Series(numbers, dtype=pl.Int32)).to_numpy()
        value = np.full(len(frame), np.nan, np.float32)
        if "numeric_value" in frame.columns:
            value = frame["numeric_value"].fill_null(float("nan")).to_numpy().astype(np.float32)
        time = frame["time"].to_physical().fill_null(int(STATIC)).to_numpy()
        columns = {"time": time, "code": code, "value": value, "visit": np.full(len(frame), NO_VISIT)}
        if shard.visit is not None:
            columns["visit"] = _visits(frame[shard.visit])
        return EventPart(frame["subject_id"].to_numpy(), columns)

    def check_shards(self) -> None:
        """Refuse a subject that is in two shards."""
        ids = np.concatenate([np.zeros(0, np.int64), *self.subjects])
        order = np.argsort(ids, kind="stable")
        twice = np.flatnonzero(ids[order][1:] == ids[order][:-1])
        if len(twice):
            ends = np.cumsum([count for _, count in self.shards])
            one, two = (self.shards[int(np.searchsorted(ends, order[twice[0] + k], "right"))][0] for k in (0, 1))
            raise UserError(
                f"{two}: subject {ids[order[twice[0]]]} also stands in {one}",
                hint="MEDS keeps a subject in one shard; unmask events convert writes it so.",
            )

    def sorted(self) -> tuple[list[str], np.ndarray]:
        """The codes, sorted, and the place of each number among them."""
        codes = sorted(self.numbers)
        place = np.zeros(len(codes), np.int32)
        place[[self.numbers[c] for c in codes]] = np.arange(len(codes))
        return codes, place

    def known(self) -> tuple[np.ndarray, np.ndarray]:
        """All subjects, and how many events each has."""
        self.check_shards()
        none = np.zeros(0, np.int64)
        return np.concatenate([none, *self.subjects]), np.concatenate([none, *self.counts])


def _visits(column: pl.Series) -> np.ndarray:
    """A number per encounter: the same for the same id, and `NO_VISIT` for none."""
    exact = column.cast(pl.Int64, strict=False) if column.dtype.is_integer() else None
    if column.dtype == pl.Null or (exact is not None and exact.null_count() == column.null_count()):
        return column.cast(pl.Int64).fill_null(NO_VISIT).to_numpy()
    # Encounters are compared within subjects alone: 63 bits of a hash are enough.
    hashed = (column.cast(pl.String).hash(seed=7).to_numpy() >> np.uint64(1)).astype(np.int64)
    return np.where(column.is_null().to_numpy(), NO_VISIT, hashed)


def _check_once(ids: np.ndarray, counts: np.ndarray, path: Place) -> None:
    order = np.argsort(ids, kind="stable")
    again = np.flatnonzero(ids[order][1:] == ids[order][:-1])
    if len(again):
        which = order[again[0] + 1]
        raise UserError(
            f"{path}: row {int(counts[:which].sum())}: subject {ids[which]} comes again after others",
            hint="Sort by subject_id, then time.",
        )


def _in_memory(shards: Sequence[Shard], names: Sequence[str]) -> EventColumns:
    reader, at = ShardReader(), 0
    columns = {name: np.zeros(sum(s.rows for s in shards), KINDS[name]) for name in names}
    for shard in shards:
        for part in reader.parts(shard):
            here = slice(at, at + len(part.subject))
            for name, column in columns.items():
                column[here] = part.columns[name]
            at = here.stop
    subjects, counts = reader.known()
    codes, place = reader.sorted()
    for start in range(0, at, BLOCK):
        columns["code"][start : start + BLOCK] = place[columns["code"][start : start + BLOCK]]
    return EventColumns(columns=columns, subjects=subjects, counts=counts, codes=codes)


def _stored(root: Path, shards: Sequence[Shard], names: Sequence[str], store: EventStore) -> EventColumns:
    """What is in the store from the same shards, or what a builder left, gone on with."""
    folder = root / content_key(shards)[:16]
    parts = folder / PARTS
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with locked(folder / "lock", wait=store.say, busy="is reading events into it"):
        found = open_columns(folder)
        if found is not None:
            return found
        if (folder / INDEX).exists():
            store.say(f"{folder}: not as it was written; the events are read again")
            (folder / INDEX).unlink()
        try:
            parts.mkdir(exist_ok=True)
            tasks, total = left(parts, shards, names), sum(s.rows for s in shards) * bytes_of(names)
            hint = f"Free space, or choose another place: {setting('store_folder')}."
            check_room(folder, room_of([s for _, s in tasks], names), what="events as columns", hint=hint)
            done = len(shards) - len(tasks)
            store.say(
                f"{sum(s.rows for s in shards):,} events go to disk ({total / 1e9:.1f} GB): {folder}"
                + (f"; {done} of {len(shards)} shards are there" if done else "")
            )
            for number, shard in tasks:
                write_part(parts, number, shard, names)
            join(parts, folder, shards, names)
        except UserError:
            shutil.rmtree(folder, ignore_errors=True)  # nothing to go on with: the data has to change
            raise
        except OSError as error:
            raise UserError(
                f"{folder}: cannot be written ({error.strerror or error})", hint="Free space; what is read is kept."
            ) from None
        return joined_columns(folder)


def room_of(shards: Sequence[Shard], names: Sequence[str]) -> int:
    """Bytes that shards take while their parts are joined: each is there twice until it is taken up."""
    return (sum(s.rows for s in shards) + max((s.rows for s in shards), default=0)) * bytes_of(names)


def write_part(folder: Path, number: int, shard: Shard, names: Sequence[str]) -> int:
    """Read and check a shard, and write its part: its columns, with codes numbered in order of appearance, and its
    subjects; how many events there are."""
    reader, rows, sums = ShardReader(), 0, dict.fromkeys(names, 0)
    with contextlib.ExitStack() as stack:
        paths = {n: stack.enter_context(replacing(folder / f"{number:06}.{n}.bin")) for n in (*names, SUBJECTS)}
        files = {n: stack.enter_context(open(path, "wb")) for n, path in paths.items()}
        for part in reader.parts(shard):
            rows += len(part.subject)
            for name in names:
                content = np.ascontiguousarray(part.columns[name], KINDS[name])
                sums[name] = zlib.crc32(content.data, sums[name])
                files[name].write(content.data)
        files[SUBJECTS].write(np.stack([reader.subjects[0], reader.counts[0]], 1).tobytes())
    with replacing(folder / f"{number:06}.json") as new:
        new.write_text(json.dumps({"rows": rows, "codes": list(reader.numbers), "sums": sums}))
    return rows


def left(folder: Path, shards: Sequence[Shard], names: Sequence[str]) -> list[tuple[int, Shard]]:
    """The shards whose parts are not there yet, or not in full."""

    def whole(number: int, rows: int) -> bool:
        try:
            sizes = {name: (folder / f"{number:06}.{name}.bin").stat().st_size for name in names}
        except OSError:
            return False
        there = all(size == rows * np.dtype(KINDS[name]).itemsize for name, size in sizes.items())
        return there and (folder / f"{number:06}.json").exists()

    return [(i, shard) for i, shard in enumerate(shards) if not whole(i, shard.rows)]


def join(parts: Path, folder: Path, shards: Sequence[Shard], names: Sequence[str]) -> None:
    """Put the parts one behind another as the columns of one folder, with the codes of all of them numbered in
    alphabetical order. A part is removed when it is taken up."""
    reader, digest = ShardReader(), dict[str, int]()
    abouts = [json.loads((parts / f"{i:06}.json").read_text()) for i in range(len(shards))]
    for i, shard in enumerate(shards):
        found = np.fromfile(parts / f"{i:06}.{SUBJECTS}.bin", np.int64).reshape(-1, 2)
        reader.subjects.append(found[:, 0])
        reader.counts.append(found[:, 1])
        reader.shards.append((shard.path, len(found)))
    known = np.stack(reader.known(), 1)
    codes = sorted({code for about in abouts for code in about["codes"]})
    numbers = {code: i for i, code in enumerate(codes)}
    for name in names:
        with (folder / f"{name}.bin").open("wb") as file:
            digest[name] = 0
            for i, about in enumerate(abouts):
                source, found_sum = parts / f"{i:06}.{name}.bin", 0
                order = np.array([numbers[code] for code in about["codes"]], np.int32)
                with source.open("rb") as part:
                    while len(content := np.fromfile(part, KINDS[name], BLOCK)):
                        found_sum = zlib.crc32(content.data, found_sum)
                        content = order[content] if name == "code" else content
                        digest[name] = zlib.crc32(content.data, digest[name])
                        file.write(content.data)
                source.unlink()
                if found_sum != about["sums"][name]:
                    raise UserError(f"{source}: not as it was written", hint="The disk is damaged: choose another.")
            file.flush()
            os.fsync(file.fileno())
    (folder / f"{SUBJECTS}.bin").write_bytes(known.tobytes())
    digest[SUBJECTS] = zlib.crc32(known.data)
    replace_json(folder / INDEX, {"version": VERSION, "codes": codes, "digest": digest})
    shutil.rmtree(parts)


def joined_columns(folder: Path) -> EventColumns:
    """The columns that were just written."""
    found = open_columns(folder)
    if found is None:
        raise UserError(f"{folder}: not read back as it was written", hint="The disk is damaged: choose another.")
    return found


def open_columns(folder: Path) -> EventColumns | None:
    """The columns of a store; None where its files are not as they were written."""
    columns, maps = {}, []
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        ids = np.fromfile(folder / f"{SUBJECTS}.bin", np.int64).reshape(-1, 2)
        for name in (name for name in KINDS if name in index["digest"]):
            with (folder / f"{name}.bin").open("rb") as file:
                maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            columns[name] = np.frombuffer(maps[-1], KINDS[name])
        pages = Checked(columns, maps)
        if index["version"] != VERSION or pages.digest | {SUBJECTS: zlib.crc32(ids.data)} != index["digest"]:
            return None
        return EventColumns(
            columns=columns, subjects=ids[:, 0].copy(), counts=ids[:, 1].copy(), codes=index["codes"], pages=pages
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def content_key(shards: Sequence[Shard]) -> str:
    """Hash of what shards hold: name, size, time and last bytes of each."""
    content = hashlib.sha256(json.dumps([VERSION, len(shards)]).encode())
    for path in (shard.path for shard in shards):
        if isinstance(path, Remote):
            content.update(json.dumps([str(path), path.mark()]).encode())
            continue
        about = path.stat()
        content.update(json.dumps([str(path.absolute()), about.st_size, about.st_mtime_ns]).encode())
        with path.open("rb") as file:
            file.seek(max(0, about.st_size - TAIL))
            content.update(file.read())
    return content.hexdigest()
