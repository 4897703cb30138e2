"""MEDS 0.4 folders: read and validate, with pyarrow and polars alone.

    FOLDER/data/**/*.parquet                 subject_id, time (null = static), code, numeric_value, and optionally an
                                             encounter (a column of `columns.VISITS`)
    FOLDER/metadata/codes.parquet            code, description (optional)
    FOLDER/metadata/subject_splits.parquet   subject_id, split (optional; else by data/train, data/tuning and
                                             data/held_out)
    TASK/**/*.parquet                        subject_id, prediction_time (inclusive), boolean_value (not needed to
                                             predict)

The events of a subject are in one shard, contiguous and in order of time. Anything else is an error that names file and
row.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from unmask.errors import UserError
from unmask.guessed import Guessed
from unmask.modalities.events.records.columns import BLOCK, Checked, EventColumns, EventStore, read_columns
from unmask.modalities.events.records.columns import NO_VISIT as NO_VISIT
from unmask.modalities.events.records.columns import STATIC as STATIC
from unmask.modalities.events.records.parquet import as_frame, damaged, read, shards_of, source_of
from unmask.remote import Place, place
from unmask.writing import temporary_folder

HOUR = 3_600_000_000
MEDS_VERSION = "0.4.1"
BIRTH, DEATH = "MEDS_BIRTH", "MEDS_DEATH"
OBSERVATION_END = "OBSERVATION_END"
"""Of an event that says until when a patient was observed (no MEDS code names it); like a birth it is no slot."""
SPLITS = "metadata/subject_splits.parquet"
BY_SPLITS = "the splits of the data"
"""How patients are said to be held out, by that file or by the folders of the shards."""
DATA = "a MEDS folder with data/*.parquet"
TRAIN, TUNING, HELD_OUT = "train", "tuning", "held_out"
"""MEDS's names for the subjects that are learnt from, those that choices are made by, and those that nothing is fitted
on."""


@dataclass(frozen=True, kw_only=True)
class Events(Guessed):
    """All events of a folder as flat arrays, subject by subject.

    Attributes:
        subjects: (subjects,) their ids, in the order of the files.
        offsets: (subjects + 1,) the events of subject i are `offsets[i]:offsets[i + 1]`.
        time: (events,) microseconds since 1970, `STATIC` where null.
        code: (events,) number into `codes`.
        value: (events,) float32, NaN where null.
        codes: the distinct codes.
        parents: code -> a more general one (the first of parent_codes), where metadata/codes.parquet says so.
        visit: (events,) number of the encounter, unique within a subject, `NO_VISIT` where none; None without the
            column.
        splits: (subjects,) each subject's split from metadata/subject_splits.parquet, "" where it names none; without
            the file, the folder of its shard, where that is data/train, data/tuning or data/held_out; else None.
        pages: of columns that are memory maps; None in memory.
    """

    guesses: ClassVar[Mapping[str, str]] = {
        "set_task": "labels= of the task: unmask.finetune(model, meds, labels=task)"
    }

    subjects: np.ndarray
    offsets: np.ndarray
    time: np.ndarray
    code: np.ndarray
    value: np.ndarray
    codes: list[str]
    parents: dict[str, str] = field(default_factory=dict)
    visit: np.ndarray | None = None
    splits: np.ndarray | None = None
    pages: Checked | None = None

    def __len__(self) -> int:
        return len(self.subjects)

    def __repr__(self) -> str:
        return f"Events({len(self):,} patients, {len(self.time):,} events, {len(self.codes):,} codes)"

    @property
    def held_out(self) -> np.ndarray | None:
        """(subjects,) whether the folder's splits keep a subject from all fitting; None where they hold nobody out."""
        held = None if self.splits is None else self.splits == HELD_OUT
        return held if held is not None and held.any() else None

    def digest(self) -> dict[str, int]:
        """CRC-32 of time, code and value: the same in memory and on disk."""
        out: dict[str, int] = {}
        for name in ("time", "code", "value"):
            column = getattr(self, name)
            known = None if self.pages is None else self.pages.known(name, column)
            out[name] = zlib.crc32(np.ascontiguousarray(column).data) if known is None else known
        return out

    def blocks(self, most: int = BLOCK) -> Iterator[tuple[slice, slice]]:
        """All of it in parts of whole subjects, about `most` events each: (numbers of the subjects, their events)."""
        start = 0
        while start < len(self):
            end = int(np.searchsorted(self.offsets, self.offsets[start] + most, side="right")) - 1
            end = min(max(end, start + 1), len(self))
            events = slice(int(self.offsets[start]), int(self.offsets[end]))
            yield slice(start, end), events
            if self.pages is not None:
                self.pages.seen(events.stop - events.start)
            start = end

    def owner(self, subjects: slice) -> np.ndarray:
        """(events,) the number of each event's subject, for the subjects `subjects` (as `blocks` gives them)."""
        size = np.diff(self.offsets[subjects.start : subjects.stop + 1])
        return np.repeat(np.arange(subjects.start, subjects.stop), size)

    def begins(self, prefix: str) -> np.ndarray:
        """(codes,) whether a code begins with `prefix`."""
        return np.array([c.startswith(prefix) for c in self.codes], bool)

    def before(self, subject: int, prediction_time: int | None) -> slice:
        """The events of subject number `subject` that are known at `prediction_time` (microseconds, inclusive).

        The single cut of the whole room: nothing later reaches features, model or baselines. Static events are
        always known; None keeps the whole history.
        """
        start, stop = int(self.offsets[subject]), int(self.offsets[subject + 1])
        if self.pages is not None:
            self.pages.seen(stop - start)
        if prediction_time is None:
            return slice(start, stop)
        return slice(start, start + int(np.searchsorted(self.time[start:stop], prediction_time, side="right")))


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Prediction points of a task, in the order of the files.

    Attributes:
        subject: (points,) subject number in the `Events`.
        time: (points,) microseconds.
        value: (points,) 0 or 1 from boolean_value, or None.
        names: class of each point, from categorical_value, or None.
        number: (points,) from integer_value (int64) or float_value alone (float64), or None: amounts, or the names of
            classes.
        days: (points,) from float_value beside boolean_value: days to the event (True) or to the end of what is
            known (False), or None.
        outside: labels left out because their subjects have no events in the data; `strangers` are the first of these.
        null: field -> (points,) where the file has no label: there the field holds a 0 or "" that means nothing. Fields
            that are whole are not among them, and those of points to learn from or to judge by always are.
    """

    subject: np.ndarray
    time: np.ndarray
    value: np.ndarray | None = None
    names: list[str] | None = None
    number: np.ndarray | None = None
    days: np.ndarray | None = None
    outside: int = 0
    strangers: tuple[int, ...] = ()
    null: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.subject)

    def __repr__(self) -> str:
        return f"Labels({len(self):,} prediction points of {len(np.unique(self.subject)):,} patients)"

    @property
    def amounts(self) -> np.ndarray:
        """(points,) labels that are numbers, in double precision."""
        assert self.number is not None
        return self.number.astype(np.float64)

    @property
    def times(self) -> tuple[np.ndarray, np.ndarray]:
        """(points,) days of labels that are times to an event, and whether it was seen."""
        assert self.days is not None
        assert self.value is not None
        return self.days, self.value

    def take(self, chosen: np.ndarray) -> Labels:
        """The chosen points (numbers or booleans)."""
        number = np.arange(len(self))[chosen]
        arrays = {n: getattr(self, n) for n in ("subject", "time", "value", "number", "days")}
        taken: dict[str, Any] = {n: None if array is None else array[number] for n, array in arrays.items()}
        return replace(
            self,
            **taken,
            names=None if self.names is None else [self.names[i] for i in number.tolist()],
            null={name: mask[number] for name, mask in self.null.items()},
        )

    def column(self, name: str, values: Sequence[Any] | np.ndarray | None, dtype: Any) -> pl.Series:
        """What a field says of each point (`values`; None without it), null where the file has no label."""
        if values is None:
            return pl.Series([None] * len(self), dtype=dtype)
        lacking = self.null.get(name, np.zeros(len(self), bool))
        return pl.Series(values).cast(dtype).set(pl.Series(lacking), None)


def read_meds(folder: str | Path, *, store: EventStore | None = None) -> Events:
    """Read and check a MEDS folder.

    Args:
        store: where events go that do not fit in memory; default: a temporary folder for more than 2 GB of them.

    Raises:
        UserError: naming file, row and subject where a column is absent or of another type, a code or subject is
            null, times of a subject go backwards, or a subject stands in two places.
    """
    root = place(folder)
    store = store or EventStore(say=lambda text: print(text, file=sys.stderr, flush=True))
    found = read_columns(shards_of(root / "data", DATA), store)
    return events_of(found, parents_of(root), splits_of(root, found.subjects))


def events_of(found: EventColumns, parents: dict[str, str], splits: np.ndarray | None) -> Events:
    """Columns that were read, as `Events`."""
    return Events(
        subjects=found.subjects,
        offsets=np.r_[0, np.cumsum(found.counts)],
        codes=found.codes,
        **found.columns,
        parents=parents,
        pages=found.pages,
        splits=splits,
    )


def splits_of(root: Place, subjects: np.ndarray) -> np.ndarray | None:
    """Split of each subject, by the file of a MEDS folder, else by the folders of its shards; None without either."""
    path = root / SPLITS
    if path.exists():
        frame = read(path, {"subject_id": "int", "split": "text"}).unique()
        other = frame.filter(~pl.col("split").fill_null("").is_in([TRAIN, TUNING, HELD_OUT]))
        if len(other):
            names = ", ".join(f"{name or ''!r}" for name in other["split"].unique().sort().head(5).to_list())
            raise UserError(
                f"{path}: {len(other):,} subjects, such as {other['subject_id'][0]}, are in splits called {names}",
                hint=f"Call them {TRAIN}, {TUNING} or {HELD_OUT}; leave subjects without a split out of the file.",
            )
        if len(frame) and len(subjects) and not np.isin(subjects, frame["subject_id"].to_numpy()).any():
            raise UserError(
                f"{path}: none of its {len(frame):,} subjects is in the data, such as {frame['subject_id'][0]}",
                hint="Give the splits of this extract, whose ids are the data's subject_id.",
            )
    elif (table := root / SPLITS.replace(".parquet", ".csv")).exists():
        raise UserError(f"{table}: splits are read of a parquet file", hint=f"Write it as {SPLITS}.")
    else:
        folders = split_folders(root)
        if folders is None:
            return None
        parts = [read(shard, {"subject_id": "int"}).unique() for shard in folders]
        named = [part.with_columns(split=pl.lit(name)) for part, name in zip(parts, folders.values(), strict=True)]
        frame = pl.concat(named).unique()
    if frame["subject_id"].is_duplicated().any():
        subject = frame.filter(frame["subject_id"].is_duplicated())["subject_id"][0]
        raise UserError(f"{path}: subject {subject} is in two splits", hint="Give each subject one split.")
    wanted = pl.DataFrame({"subject_id": subjects.astype(np.int64)})
    found = wanted.join(frame, on="subject_id", how="left", maintain_order="left")["split"]
    return np.array(found.fill_null("").to_list(), dtype=np.str_)


def split_folders(root: Place) -> dict[Place, str] | None:
    """Shard -> its split, where the shards lie in data/train, data/tuning and data/held_out; else None."""
    shards = shards_of(root / "data", DATA)
    folders = {path: str(path).replace("\\", "/").rpartition("/data/")[2].partition("/")[0] for path in shards}
    folders = {path: name.removesuffix(".parquet") for path, name in folders.items()}
    known = {path: name for path, name in folders.items() if name in (TRAIN, TUNING, HELD_OUT)}
    other = next((path for path in shards if path not in known), None)
    if known and other is not None:
        raise UserError(
            f"{other}: not in a split, and {next(iter(known))} is in {next(iter(known.values()))!r}",
            hint=f"Put all shards into data/{TRAIN}, data/{TUNING} and data/{HELD_OUT}, or say the splits in {SPLITS}.",
        )
    return known or None


def as_events(data: Any, *, store: EventStore | None = None) -> Events:
    """Events read before as they are; a MEDS folder, or a table in memory with the columns of one, is read."""
    if isinstance(data, Events):
        return data
    if isinstance(data, str | Path):
        return read_meds(data, store=store)
    table = as_frame(data)
    with temporary_folder() as folder:
        path = Path(folder) / "table.parquet"
        table.write_parquet(path)
        try:
            return events_of(read_columns(shards_of(place(folder), DATA), EventStore(most=float("inf"))), {}, None)
        except UserError as error:  # there is no such file to anyone else
            raise UserError(error.what.replace(str(path), "the table"), hint=error.hint) from None


def parents_of(root: Place) -> dict[str, str]:
    """Code -> a more general one, by the file of a MEDS folder."""
    path = root / "metadata/codes.parquet"
    if not path.exists():
        return {}
    try:
        with source_of(path) as source:
            frame = pl.read_parquet(source)
    except Exception as error:  # polars raises many kinds for a damaged file
        raise damaged(path, error) from None
    if not {"code", "parent_codes"} <= set(frame.columns) or not isinstance(frame["parent_codes"].dtype, pl.List):
        return {}
    pairs = frame.select("code", pl.col("parent_codes").list.first()).drop_nulls()
    return {str(c): str(p) for c, p in pairs.iter_rows() if c != p}


def worded(data: Any) -> np.ndarray | None:
    """(events,) whether an event of a MEDS folder has a text_value, in the order of `read_meds`; None where none has
    one, or where events were read before, without their words."""
    if isinstance(data, Events):
        return None
    if not isinstance(data, str | Path):
        table = as_frame(data)
        return table["text_value"].is_not_null().to_numpy() if "text_value" in table.columns else None
    parts, found = [], False
    for path in shards_of(place(data) / "data", DATA):
        with source_of(path) as source:
            about = pq.read_metadata(source)
        if "text_value" not in about.schema.to_arrow_schema().names:
            parts.append(np.zeros(about.num_rows, bool))
            continue
        with source_of(path) as source:
            parts.append(pl.read_parquet(source, columns=["text_value"])["text_value"].is_not_null().to_numpy())
        found = True
    return np.concatenate(parts) if found else None
