"""`unmask prepare events`: a MEDS folder of any size -> events as memory-mapped columns and the vocabulary, which
`pretrain` takes as data.

Shards are read and checked side by side, each into files of its own; they are put one behind another in the order of
the shards, with the codes numbered anew, and the vocabulary is fitted to that in one pass. So the bytes are the same
whatever the number of workers or the engine, and those that `pretrain` reads from the MEDS folder itself.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unmask.core.hashing import Salt, uniform
from unmask.engines import engine as engine_of
from unmask.engines.folder import (
    ABOUT,
    PLAN,
    begin_or_resume,
    check_seen,
    is_finished,
    prepared_at,
    prepared_with,
    preparing,
    refuse_changed,
)
from unmask.engines.local import Engine
from unmask.errors import UserError, option, setting
from unmask.files import check_room, fingerprint, fsync, read_json, sealed
from unmask.modalities.events.recipes import EventSettings
from unmask.modalities.events.records.columns import (
    INDEX,
    KINDS,
    PARTS,
    VERSION,
    Shard,
    content_key,
    join,
    joined_columns,
    left,
    open_columns,
    room_of,
    shard_of,
    write_part,
)
from unmask.modalities.events.records.meds import DATA, TUNING, Events, events_of, parents_of, split_folders, splits_of
from unmask.modalities.events.records.parquet import shards_of
from unmask.modalities.events.records.vocabulary import Vocabulary
from unmask.progress import counted
from unmask.remote import is_url, place, shared
from unmask.training.settings import refuse_unread
from unmask.version import __version__
from unmask.writing import remove, replace_json, replacing


class Common(NamedTuple):
    """What all workers are told: the folder and the key of the preparation, and the columns that are wanted."""

    folder: str
    key: str
    names: tuple[str, ...]


def read_shard(common: Common, task: tuple[int, Shard]) -> int:
    """As `write_part`, of a worker."""
    check_seen(common.folder, common.key)
    return write_part(Path(common.folder) / PARTS, *task, common.names)


SETTINGS = ("holdout", "floor", "rollup")
"""Settings that decide what is prepared, beside the seed."""
EVENTS, VOCABULARY, PARENTS, SPLIT = "events", "vocabulary.json", "parents.json", "splits.npy"


def settled(settings: EventSettings) -> dict[str, Any]:
    """What of some settings decides what is prepared."""
    return {name: getattr(settings, name) for name in SETTINGS} | {"seed": settings.train.seed}


def open_prepared(folder: Path, settings: EventSettings) -> tuple[Events, Vocabulary, int]:
    """Events as memory maps, the vocabulary, and the seed by which patients were held out (a run's own may differ)."""
    was = prepared_with(folder)
    for name in SETTINGS:
        refuse_changed(folder, name, getattr(settings, name), was[name])
    if settings.store == "memory" or settings.store_folder is not None:
        name = "store" if settings.store == "memory" else "store_folder"
        raise UserError(
            f"{name}={getattr(settings, name)}, and {folder} is prepared: its events stay on the disk, where they are",
            hint=f"Leave {setting(name)} out.",
        )
    found = open_columns(folder / EVENTS)
    if found is None:
        raise UserError(f"{folder / EVENTS}: not as it was written", hint="Prepare it again, or copy the folder again.")
    splits = np.load(folder / SPLIT) if (folder / SPLIT).exists() else None
    parents = read_json(folder / PARENTS) or {}
    vocabulary = Vocabulary.from_dict(json.loads((folder / VOCABULARY).read_text(encoding="utf-8")))
    return events_of(found, parents, splits), vocabulary, int(was["seed"])


OWN = (PARTS, EVENTS, VOCABULARY, PARENTS, SPLIT)
_READ = "unmask.modalities.events.network.prepare:read_shard"


@dataclass(frozen=True, kw_only=True)
class PreparedEvents:
    """A MEDS folder that was prepared.

    Attributes:
        folder: where it lies; what `pretrain` takes as data.
        settings: those that it was prepared with.
        counts: shards, patients, those to train on, those held out, events, codes in the data and in the vocabulary,
            and bytes.
        workers: how many worked side by side.
        seconds: that this call took.
    """

    folder: Path
    settings: EventSettings
    counts: dict[str, int]
    workers: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for --json."""
        about = {"folder": str(self.folder), "settings": settled(self.settings), "data": self.counts}
        return about | {"workers": self.workers}


def prepare(
    data: str | Path,
    out: str | Path,
    *,
    settings: EventSettings | None = None,
    workers: int | None = None,
    engine: str = "local",
    say: Callable[[str], None] | None = None,
) -> PreparedEvents:
    """Read a MEDS folder into columns and fit the vocabulary; the same bytes whatever the number of workers.

    Started again after it was ended, however that was, it goes on where it stood.

    Args:
        data: a MEDS folder, or the URL of one (s3://, gs://).
        out: a folder that is new, empty or of the same preparation. With engine='ray' all machines must see it.
        settings: as for `pretrain`; those that decide what is prepared are `holdout`, `floor`, `rollup` and the seed.
        workers: processes side by side; default the cores there are. A shard is read by one of them.
        engine: 'local', or 'ray' (the cluster that RAY_ADDRESS names, or one on this machine).
        say: called with lines on the progress; default none.

    Raises:
        UserError: for anything wrong with the data, the settings, the folder or the engine.
    """
    settings, tell = settings or EventSettings(), say or (lambda text: None)
    began, out = time.perf_counter(), Path(out)
    if (ready := prepared_at(data, "events")) is not None:
        raise UserError(f"{ready} is prepared already", hint="Give it to `unmask pretrain events` as its data.")
    work = engine_of(engine, workers, tell)
    root = place(data if is_url(data) else Path(data).absolute())  # workers of other machines stand in other folders
    shards = [shard_of(path) for path in shards_of(root / "data", DATA)]
    with work, preparing(out, OWN):
        if not work.alone and not shared(str(data)):
            raise UserError(
                f"{data}: in this process's memory, which no worker sees",
                hint=f"Use {option('workers', 1)} and {option('engine', 'local')}.",
            )
        made_of = [VERSION, __version__, settled(settings), content_key(shards), _hash_of_metadata(root)]
        key = hashlib.blake2b(json.dumps(made_of).encode(), digest_size=16).hexdigest()
        if is_finished(out, key, settled(settings)):
            tell(f"{out}: prepared already")
            for name in (PARTS, PLAN):  # of a process that was killed at the very end
                remove(out / name)
        else:
            _prepared(out, key, root, shards, settings, work, tell)
    counts = json.loads((out / ABOUT).read_text())["counts"]
    seconds = round(time.perf_counter() - began, 3)
    return PreparedEvents(folder=out, settings=settings, counts=counts, workers=work.workers, seconds=seconds)


def _hash_of_metadata(root: Any) -> str:
    """Hash of the parents and splits beside the events."""
    files = [root / "metadata/codes.parquet", root / "metadata/subject_splits.parquet"]
    digest = hashlib.blake2b(digest_size=16)
    for path in files:
        if path.exists():
            with path.open("rb") as file:
                digest.update(file.read())
        digest.update(b"|")
    digest.update(repr([*(split_folders(root) or {}).values()]).encode())
    return digest.hexdigest()


def _prepared(
    out: Path,
    key: str,
    root: Any,
    shards: Sequence[Shard],
    settings: EventSettings,
    work: Engine,
    say: Callable[[str], None],
) -> None:
    names = tuple(name for name in KINDS if name != "visit" or any(s.visit for s in shards))
    events = sum(s.rows for s in shards)
    if not (out / PLAN).exists():
        hint = f"Free space, or choose another {option('out')}."
        check_room(out, room_of(shards, names), what="events as columns", hint=hint)
    replace_json(out / PLAN, begin_or_resume(out, key, OWN, (PARTS, EVENTS), say))
    found = open_columns(out / EVENTS)
    if found is None:
        common = Common(folder=str(out.absolute()), key=key, names=names)
        tasks = left(out / PARTS, shards, names)
        went = f"; {len(shards) - len(tasks):,} are there" if len(tasks) < len(shards) else ""
        say(f"reading {events:,} events in {len(shards):,} shard{'s' * (len(shards) != 1)}{went}")
        for _ in counted(work.run(_READ, common, tasks), len(tasks)):
            pass
        join(out / PARTS, out / EVENTS, shards, names)
        found = joined_columns(out / EVENTS)
    if not len(found.subjects):
        raise UserError(f"{root}: no events", hint="Give a folder with at least one patient.")
    parents, splits = parents_of(root), splits_of(root, found.subjects)
    all_events = events_of(found, parents, splits)
    chosen = subjects_to_learn_from(all_events)
    training, held_out = split(all_events, chosen, settings, settings.train.seed)
    say(f"fitting the vocabulary to {len(training):,} patients")
    vocabulary = Vocabulary.fit(all_events, subjects=training, floor=settings.floor, rollup=settings.rollup)
    replace_json(out / VOCABULARY, vocabulary.to_dict())
    replace_json(out / PARENTS, parents)
    if splits is not None:
        with replacing(out / SPLIT) as new, open(new, "wb") as file:
            np.save(file, splits)
    counts = {
        "shards": len(shards),
        "patients": len(found.subjects),
        "training": len(training),
        "held_out": len(held_out),
        "events": events,
        "codes": len(found.codes),
        "vocabulary": len(vocabulary.codes),
        "bytes": sum(path.stat().st_size for path in (out / EVENTS).iterdir()),
    }
    small = [name for name in (VOCABULARY, PARENTS, SPLIT, f"{EVENTS}/{INDEX}") if (out / name).exists()]
    files = {name: fingerprint(out / name) for name in small}
    about = {"kind": "events", "key": key, "settings": settled(settings), "counts": counts, "files": files}
    replace_json(out / ABOUT, sealed(about))
    for name in (PARTS, PLAN):
        remove(out / name)
    fsync(out)


MOST_HELD = 4096
"""Patients held out."""


def subjects_to_learn_from(events: Events) -> np.ndarray:
    """Numbers of all subjects but those that the folder's splits hold out."""
    return np.arange(len(events)) if events.held_out is None else np.flatnonzero(~events.held_out)


def split(events: Events, chosen: np.ndarray, settings: EventSettings, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the patients to train on and of those held out: the tuning part of the folder's splits, where it has
    one, else a share drawn by the patients' own numbers; refused where nobody is left to train on.
    """
    drawn = uniform(seed, events.subjects[chosen], Salt.HELD_OUT_SUBJECT)
    held = drawn < min(settings.holdout, np.sort(drawn)[MOST_HELD] if len(drawn) > MOST_HELD else 1.0)
    tuning = np.zeros(len(chosen), bool) if events.splits is None else events.splits[chosen] == TUNING
    if tuning.any():
        refuse_unread(settings, ["holdout"], "of data whose splits have a tuning part")
        held = tuning & (drawn <= np.sort(drawn[tuning])[: max(1, MOST_HELD)][-1])
    training = chosen[~(held | tuning)]
    if not len(training):
        raise UserError(
            f"{len(chosen)} patients and none left to train on", hint=f"Give more, or {setting('holdout', 0)}."
        )
    return training, chosen[held]
