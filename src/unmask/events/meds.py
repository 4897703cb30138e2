"""MEDS 0.4 folders: read, validate and write, with pyarrow and polars alone.

    FOLDER/data/**/*.parquet              subject_id, time (null = static), code, numeric_value; others are ignored
    FOLDER/metadata/codes.parquet         code, description (optional)
    TASK/**/*.parquet                     subject_id, prediction_time (inclusive), boolean_value (optional to predict)

A subject stands in one shard, contiguous and in order of time. Anything else is an error that names file and row.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from unmask.errors import UserError
from unmask.files import fsync

STATIC = np.iinfo(np.int64).min
"""Time of a static event (null in the file): before all others."""
HOUR = 3_600_000_000
MEDS_VERSION = "0.4.1"
BIRTH = "MEDS_BIRTH"


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
    """

    subjects: np.ndarray
    offsets: np.ndarray
    time: np.ndarray
    code: np.ndarray
    value: np.ndarray
    codes: list[str]

    def __len__(self) -> int:
        return len(self.subjects)

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
        value: (points,) 0 or 1, or None where the files have no boolean_value.
    """

    subject: np.ndarray
    time: np.ndarray
    value: np.ndarray | None

    def __len__(self) -> int:
        return len(self.subject)


def _shards(folder: Path, what: str) -> list[Path]:
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder", hint=f"Expected {what}.")
    found = sorted(folder.rglob("*.parquet"))
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
    except UserError:
        raise
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
        out.append(column.cast(kinds[kind]))
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
    frames: list[pl.DataFrame] = []
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
        frames.append(frame)
    whole = pl.concat(frames)
    if not len(whole):
        raise UserError(f"{data}: no events", hint="Give a folder with at least one patient.")
    return _flat(whole)


def _flat(frame: pl.DataFrame) -> Events:
    ids = frame["subject_id"].to_numpy()
    first = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]])
    categories = frame["code"].unique().sort()
    table = pl.DataFrame({"code": categories, "number": np.arange(len(categories))})
    code = frame.select("code").join(table, on="code", how="left", maintain_order="left")["number"].to_numpy()
    value = frame["numeric_value"].fill_null(float("nan")).to_numpy().astype(np.float32)
    value = np.where(np.isfinite(value), value, np.float32(np.nan))
    return Events(
        subjects=ids[first], offsets=np.r_[first, len(ids)],
        time=frame["time"].to_physical().fill_null(int(STATIC)).to_numpy().astype(np.int64), code=code.astype(np.int64),
        value=value, codes=categories.to_list(),
    )  # fmt: skip


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


def read_labels(folder: str | Path, events: Events, *, need_value: bool = True) -> Labels:
    """Read a task folder (or file) of prediction times and labels.

    Raises:
        UserError: naming file and row of a null, an unknown subject, a point given twice; or when there is none.
    """
    root = Path(folder)
    shards = [root] if root.is_file() else _shards(root, "a MEDS task folder with *.parquet")
    wanted = {"subject_id": "int", "prediction_time": "time", "boolean_value": "bool"}
    known = {int(s): i for i, s in enumerate(events.subjects)}
    frames = []
    for path in shards:
        frame = _read(path, wanted, optional=() if need_value else ("boolean_value",))
        for name in frame.columns:
            if frame[name].null_count() and (need_value or name != "boolean_value"):
                raise UserError(f"{path}: row {frame[name].is_null().arg_max()}: {name} is null", hint="Drop the row.")
        for row, subject in enumerate(frame["subject_id"].to_list()):
            if subject not in known:
                raise UserError(
                    f"{path}: row {row}: subject {subject} has no events in the data",
                    hint="Labels and data must be of the same patients.",
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
    value = None
    if "boolean_value" in whole.columns and not whole["boolean_value"].null_count():
        value = whole["boolean_value"].to_numpy().astype(np.int64)
    return Labels(
        subject=np.array([known[s] for s in whole["subject_id"].to_list()], np.int64),
        time=whole["prediction_time"].to_physical().to_numpy().astype(np.int64), value=value,
    )  # fmt: skip


def write_meds(frame: pl.DataFrame, out: str | Path, *, name: str, codes: dict[str, str] | None = None) -> Path:
    """Write events (subject_id, time, code, numeric_value) as a MEDS folder, sorted; whole or not at all.

    Raises:
        UserError: `out` exists.
    """
    target = Path(out)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.new")
    if target.exists():
        raise UserError(f"{target} exists", hint="Choose another --out.")
    frame = frame.select(
        pl.col("subject_id").cast(pl.Int64), pl.col("time").cast(pl.Datetime("us")), pl.col("code").cast(pl.String),
        pl.col("numeric_value").cast(pl.Float32),
    ).sort("subject_id", "time", nulls_last=False, maintain_order=True)  # fmt: skip
    try:
        (temporary / "data").mkdir(parents=True)
        (temporary / "metadata").mkdir()
        frame.write_parquet(temporary / "data" / "0.parquet")
        known = codes or {}
        names = frame["code"].unique().sort().to_list()
        described = pl.DataFrame(
            {"code": names, "description": [known.get(n) for n in names]},
            schema={"code": pl.String, "description": pl.String},
        )
        described.write_parquet(temporary / "metadata" / "codes.parquet")
        about: dict[str, Any] = {"dataset_name": name, "etl_name": "unmask", "meds_version": MEDS_VERSION}
        (temporary / "metadata" / "dataset.json").write_text(json.dumps(about), encoding="utf-8")
        fsync(temporary / "data" / "0.parquet")
        temporary.rename(target)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise UserError(f"could not write {target}: {error}", hint="Choose another --out.") from None
    return target
