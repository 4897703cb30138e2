"""MEDS 0.4 folders: read and validate, with pyarrow and polars alone.

    FOLDER/data/**/*.parquet              subject_id, time (null = static), code, numeric_value, an encounter (`VISITS`)
    FOLDER/metadata/codes.parquet         code, description (optional)
    FOLDER/metadata/subject_splits.parquet   subject_id, split (optional)
    TASK/**/*.parquet                     subject_id, prediction_time (inclusive), boolean_value (optional to predict)

A subject stands in one shard, contiguous and in order of time. Anything else is an error that names file and row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from unmask.errors import UserError
from unmask.files import files_below

STATIC = np.iinfo(np.int64).min
"""Time of a static event (null in the file): before all others."""
HOUR = 3_600_000_000
MEDS_VERSION = "0.4.1"
BIRTH, DEATH = "MEDS_BIRTH", "MEDS_DEATH"
VISITS = ("visit_id", "hadm_id", "encounter_id", "visit_occurrence_id")
"""Columns beside MEDS's own that may name the encounter of an event; the first that is there is read."""
NO_VISIT = -1
HELD_OUT = "held_out"
"""MEDS's name for the subjects that nothing is fitted on."""


@dataclass(frozen=True, kw_only=True)
class Events:
    """All events of a folder as flat arrays, subject by subject.

    Attributes:
        subjects: (subjects,) their ids, in the order of the files.
        offsets: (subjects + 1,) the events of subject i are `offsets[i]:offsets[i + 1]`.
        time: (events,) microseconds since 1970, `STATIC` where null.
        code: (events,) number into `codes`.
        value: (events,) float32, NaN where null.
        codes: the distinct codes.
        parents: code -> a more general one (the first of parent_codes), where metadata/codes.parquet says so.
        visit: (events,) number of the encounter, unique within a subject, `NO_VISIT` where none; None without the column.
        splits: (subjects,) each subject's split from metadata/subject_splits.parquet, "" where it names none; None
            without the file.
    """

    subjects: np.ndarray
    offsets: np.ndarray
    time: np.ndarray
    code: np.ndarray
    value: np.ndarray
    codes: list[str]
    parents: dict[str, str] = field(default_factory=dict)
    visit: np.ndarray | None = None
    splits: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.subjects)

    @property
    def held_out(self) -> np.ndarray | None:
        """(subjects,) whether the folder's splits keep a subject from all fitting; None where they hold nobody out."""
        held = None if self.splits is None else self.splits == HELD_OUT
        return held if held is not None and held.any() else None

    def before(self, subject: int, prediction_time: int | None) -> slice:
        """The events of subject number `subject` that are known at `prediction_time` (microseconds, inclusive).

        The single cut of the whole room: nothing later reaches features, model or baselines. Static events are
        always known; None keeps the whole history.
        """
        start, stop = int(self.offsets[subject]), int(self.offsets[subject + 1])
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
        names: class of each point, from categorical_value or integer_value, or None.
        days: (points,) from float_value beside boolean_value: days to the event (True) or to the end of what is
            known (False), or None.
    """

    subject: np.ndarray
    time: np.ndarray
    value: np.ndarray | None = None
    names: list[str] | None = None
    days: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.subject)

    def take(self, chosen: np.ndarray) -> Labels:
        """The chosen points (numbers or booleans)."""
        number = np.arange(len(self))[chosen]
        return Labels(
            subject=self.subject[number], time=self.time[number],
            value=None if self.value is None else self.value[number],
            names=None if self.names is None else [self.names[i] for i in number.tolist()],
            days=None if self.days is None else self.days[number],
        )  # fmt: skip


def _shards(folder: Path, what: str) -> list[Path]:
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder", hint=f"Expected {what}.")
    found = [p for p in files_below(folder) if p.suffix == ".parquet"]
    if not found:
        raise UserError(f"{folder}: no .parquet file in it", hint=f"Expected {what}.")
    return found


def _read(path: Path, wanted: dict[str, str], optional: Iterable[str] = ()) -> pl.DataFrame:
    """The wanted columns of a file, cast where that loses nothing."""
    kinds: dict[str, Any] = {
        "int": pl.Int64,
        "time": pl.Datetime("us"),
        "text": pl.String,
        "float": pl.Float32,
        "bool": pl.Boolean,
    }
    try:
        names = pq.read_schema(path).names
        frame = pl.read_parquet(path, columns=[n for n in names if n in wanted], hive_partitioning=False)
    except Exception as error:  # pyarrow and polars raise many kinds for a damaged file
        first = str(error).splitlines()[0]
        raise UserError(f"{path}: not a whole parquet file ({first})", hint="Write it again.") from None
    out = []
    for name, kind in wanted.items():
        if name not in frame.columns:
            if name in optional:
                continue
            raise UserError(f"{path}: no column {name!r}", hint=f"Found {', '.join(names)}.")
        column, have = frame[name], frame[name].dtype
        right = {
            "int": have.is_integer(), "time": isinstance(have, pl.Datetime), "text": have == pl.String
            or isinstance(have, pl.Categorical), "float": have.is_numeric(), "bool": have == pl.Boolean,
        }[kind]  # fmt: skip
        if have == pl.Null and name in optional:
            right = True
        if not right:
            raise UserError(f"{path}: column {name!r} is of type {have}", hint=f"MEDS has {kinds[kind]} there.")
        if isinstance(have, pl.Datetime) and have.time_zone:
            column = column.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        try:
            out.append(column.cast(kinds[kind]))
        except pl.exceptions.InvalidOperationError:
            row = column.cast(kinds[kind], strict=False).is_null().arg_max() or 0
            raise UserError(
                f"{path}: row {row}: {name} is {column[row]}", hint=f"MEDS has {kinds[kind]} there."
            ) from None
    return pl.DataFrame(out)


def read_meds(folder: str | Path) -> Events:
    """Read and check a MEDS folder.

    Raises:
        UserError: naming file, row and subject where a column is absent or of another type, a code or subject is
            null, times of a subject go backwards, or a subject stands in two places.
    """
    root = Path(folder)
    data = root / "data"
    shards = _shards(data, "a MEDS folder with data/*.parquet")
    wanted = {"subject_id": "int", "time": "time", "code": "text", "numeric_value": "float"}
    parts: list[tuple[np.ndarray, ...]] = []
    visits: list[np.ndarray | None] = []
    numbers: dict[str, int] = {}
    seen: dict[int, Path] = {}
    for path in shards:
        frame = _read(path, wanted, optional=("numeric_value",))
        if "numeric_value" not in frame.columns:
            frame = frame.with_columns(pl.lit(None, dtype=pl.Float32).alias("numeric_value"))
        _check(frame, path)
        for subject in frame["subject_id"].unique().to_list():
            if subject in seen:
                raise UserError(
                    f"{path}: subject {subject} also stands in {seen[subject]}",
                    hint="MEDS keeps a subject in one shard; unmask events convert writes it so.",
                )
            seen[subject] = path
        parts.append(_flat(frame, numbers))
        visits.append(_visits(path))
    ids, time, code, value = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    if not len(ids):
        raise UserError(f"{data}: no events", hint="Give a folder with at least one patient.")
    codes = sorted(numbers)
    place = np.empty(len(codes), np.int64)
    place[[numbers[c] for c in codes]] = np.arange(len(codes))
    first = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]])
    return Events(
        subjects=ids[first], offsets=np.r_[first, len(ids)], time=time, code=place[code], value=value, codes=codes,
        parents=_parents(root / "metadata" / "codes.parquet"),
        visit=None if all(v is None for v in visits) else np.concatenate([
            np.full(len(part[0]), NO_VISIT) if v is None else v for v, part in zip(visits, parts, strict=True)
        ]),
        splits=_splits(root / "metadata" / "subject_splits.parquet", ids[first]),
    )  # fmt: skip


def _visits(path: Path) -> np.ndarray | None:
    """Number of each event's encounter; None where the shard has no such column.

    Raises:
        UserError: its ids are neither numbers nor text.
    """
    name = next((v for v in VISITS if v in pq.read_schema(path).names), None)
    if name is None:
        return None
    column = pl.read_parquet(path, columns=[name], hive_partitioning=False)[name]
    if column.dtype != pl.Null and not column.dtype.is_integer():
        if column.dtype not in (pl.String, pl.Categorical):
            raise UserError(f"{path}: column {name!r} is of type {column.dtype}", hint="Expected integers or text.")
        # Numbered within the shard: a subject stands in one, and encounters are compared within subjects alone.
        column = column.cast(pl.String).rank("dense")
    return column.cast(pl.Int64).fill_null(NO_VISIT).to_numpy()


def _splits(path: Path, subjects: np.ndarray) -> np.ndarray | None:
    """Split of each subject.

    Raises:
        UserError: the file is damaged, lacks a column, or puts a subject into two splits.
    """
    if not path.exists():
        return None
    frame = _read(path, {"subject_id": "int", "split": "text"}).unique()
    if frame["subject_id"].is_duplicated().any():
        subject = frame.filter(frame["subject_id"].is_duplicated())["subject_id"][0]
        raise UserError(f"{path}: subject {subject} is in two splits", hint="Give each subject one split.")
    asked = pl.DataFrame({"subject_id": subjects.astype(np.int64)})
    found = asked.join(frame, on="subject_id", how="left", maintain_order="left")["split"]
    return np.array(found.fill_null("").to_list(), dtype=np.str_)


def as_events(data: str | Path | Events) -> Events:
    """Events read before as they are; a MEDS folder is read."""
    return data if isinstance(data, Events) else read_meds(data)


def _parents(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    try:
        frame = pl.read_parquet(path)
    except Exception as error:  # polars raises many kinds for a damaged file
        first = str(error).splitlines()[0]
        raise UserError(f"{path}: not a whole parquet file ({first})", hint="Write it again.") from None
    if not {"code", "parent_codes"} <= set(frame.columns) or not isinstance(frame["parent_codes"].dtype, pl.List):
        return {}
    pairs = frame.select("code", pl.col("parent_codes").list.first()).drop_nulls()
    return {str(c): str(p) for c, p in pairs.iter_rows() if c != p}


def _flat(frame: pl.DataFrame, numbers: dict[str, int]) -> tuple[np.ndarray, ...]:
    """Subject, time, code and value of a shard as plain arrays; new codes are added to `numbers`."""
    names = frame["code"].unique().to_list()
    for name in names:
        numbers.setdefault(name, len(numbers))
    schema = {"code": pl.String, "number": pl.Int64}
    table = pl.DataFrame({"code": names, "number": [numbers[n] for n in names]}, schema=schema)
    code = frame.select("code").join(table, on="code", how="left", maintain_order="left")["number"].to_numpy()
    value = frame["numeric_value"].fill_null(float("nan")).to_numpy().astype(np.float32)
    time = frame["time"].to_physical().fill_null(int(STATIC)).to_numpy().astype(np.int64)
    value = np.where(np.isfinite(value), value, np.float32(np.nan))
    return frame["subject_id"].to_numpy(), time, code.astype(np.int64), value


def _check(frame: pl.DataFrame, path: Path) -> None:
    for name in ("subject_id", "code"):
        row = frame[name].is_null().arg_max() if frame[name].null_count() else None
        if row is not None:
            raise UserError(f"{path}: row {row}: {name} is null", hint="Every event has a subject and a code.")
    if not len(frame):
        return
    ids = frame["subject_id"].to_numpy()
    time = frame["time"].to_physical().fill_null(int(STATIC)).to_numpy()
    starts = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]])
    if len(np.unique(ids[starts])) != len(starts):
        names, counts = np.unique(ids[starts], return_counts=True)
        subject = names[counts > 1][0]
        row = int(starts[ids[starts] == subject][1])
        raise UserError(
            f"{path}: row {row}: subject {subject} comes again after others", hint="Sort by subject_id, then time."
        )
    back = np.flatnonzero((time[1:] < time[:-1]) & (ids[1:] == ids[:-1]))
    if len(back):
        row = int(back[0]) + 1
        raise UserError(
            f"{path}: row {row}: the time of subject {ids[row]} goes backwards ({frame['time'][row - 1]} to "
            f"{frame['time'][row]})", hint="Sort by subject_id, then time, nulls first.",
        )  # fmt: skip


LABELS = {"boolean_value": "bool", "integer_value": "int", "float_value": "float", "categorical_value": "text"}


def read_labels(folder: str | Path, events: Events, *, need_value: bool = True) -> Labels:
    """Read a task folder (or file) of prediction times and labels.

    boolean_value alone is a yes or no; categorical_value or integer_value names a class; float_value beside
    boolean_value is the time to an event in days, and whether it was seen.

    Raises:
        UserError: naming file and row of a null, an unknown subject, a point given twice, a time that is no number of
            days; or when there is none.
    """
    root = Path(folder)
    shards = [root] if root.is_file() else _shards(root, "a MEDS task folder with *.parquet")
    wanted = {"subject_id": "int", "prediction_time": "time", **LABELS}
    known = {int(s): i for i, s in enumerate(events.subjects)}
    frames: list[pl.DataFrame] = []
    for path in shards:
        frame = _read(path, wanted, optional=LABELS)
        frame = frame.drop(
            [n for n in LABELS if n in frame.columns and frame[n].null_count() == len(frame) and len(frame)]
        )
        for name in frame.columns:
            if frame[name].null_count() and (need_value or name not in LABELS):
                raise UserError(f"{path}: row {frame[name].is_null().arg_max()}: {name} is null", hint="Drop the row.")
        for row, subject in enumerate(frame["subject_id"].to_list()):
            if subject not in known:
                raise UserError(
                    f"{path}: row {row}: subject {subject} has no events in the data",
                    hint="Labels and data must be of the same patients.",
                )
        if frames and frame.columns != frames[0].columns and need_value:
            raise UserError(
                f"{path}: columns {frame.columns}, in {shards[0]} {frames[0].columns}", hint="One task has one kind."
            )
        frames.append(frame)
    whole = pl.concat(frames, how="diagonal")
    if not len(whole):
        raise UserError(f"{root}: no labels", hint="The cohort is empty: give at least one row.")
    twice = whole.select("subject_id", "prediction_time").is_duplicated()
    if twice.any():
        first = whole.filter(twice).row(0)
        raise UserError(
            f"{root}: subject {first[0]} at {first[1]} is given twice", hint="One label a prediction point."
        )
    return Labels(
        subject=np.array([known[s] for s in whole["subject_id"].to_list()], np.int64),
        time=whole["prediction_time"].to_physical().to_numpy().astype(np.int64), **_values(whole, root, need_value),
    )  # fmt: skip


def _values(frame: pl.DataFrame, root: Path, need_value: bool) -> dict[str, Any]:
    """Fields of `Labels` from the value columns that are there and whole."""
    have = [n for n in LABELS if n in frame.columns and not frame[n].null_count()]
    classes = [n for n in have if n in ("integer_value", "categorical_value")]
    if len(classes) + ("boolean_value" in have) > 1 or have == ["float_value"]:
        raise UserError(
            f"{root}: labels in {', '.join(have)}",
            hint="Expected boolean_value, integer_value or categorical_value alone, or float_value (days) with "
            "boolean_value (whether the event was seen).",
        )
    out: dict[str, Any] = {}
    if classes:
        return {"names": [str(v) for v in frame[classes[0]].to_list()]}
    if "boolean_value" in have:
        out["value"] = frame["boolean_value"].to_numpy().astype(np.int64)
    if "float_value" in have:
        out["days"] = frame["float_value"].to_numpy().astype(np.float64)
        bad = np.flatnonzero(~(np.isfinite(out["days"]) & (out["days"] >= 0)))
        if len(bad):
            raise UserError(
                f"{root}: row {bad[0]}: float_value is {out['days'][bad[0]]}",
                hint="Days from the prediction time, 0 or more.",
            )
    if need_value and not out:
        raise UserError(f"{root}: no column of labels", hint=f"Expected one of {', '.join(LABELS)}.")
    return out
