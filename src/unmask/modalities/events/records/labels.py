"""Labels of a task: prediction times and what came of them, of parquet files, of a table in memory, or of an ACES task
file, which is evaluated on the events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from unmask.errors import UserError
from unmask.modalities.events.records.aces import is_task, read_task
from unmask.modalities.events.records.meds import Events, Labels
from unmask.modalities.events.records.parquet import as_frame, read, shards_of, typed
from unmask.modalities.events.records.windows import evaluate_task

FEW = 20
"""Distinct whole numbers up to which they may as well name classes."""


def class_names(labels: Labels) -> list[str] | None:
    """Each point's class: its name, or its number as one; None where labels are of another kind."""
    if labels.names is not None or labels.number is None:
        return labels.names
    return [f"{n:g}" if n != np.round(n) else str(int(n)) for n in labels.number.tolist()]


def may_be_classes(number: np.ndarray) -> bool:
    """Whether labels that are numbers may be classes as well as amounts: whole ones with few distinct values."""
    distinct = np.unique(number)
    return len(distinct) <= FEW and bool((distinct == np.round(distinct)).all())


LABELS = {"boolean_value": "bool", "integer_value": "int", "float_value": "double", "categorical_value": "text"}


def named(labels: Any) -> str:
    """What labels are called in messages: their path, or that they are in memory."""
    return str(labels) if isinstance(labels, str | Path) else "the labels"


def read_labels(labels: Any, events: Events, *, need_value: bool = True) -> Labels:
    """Prediction times and labels of a task folder (or file), of an ACES task file (.yaml), or of a table in memory
    with the columns of one; those read before are given back.

    boolean_value alone is a yes or no; categorical_value names a class; integer_value or float_value alone is a number;
    float_value beside boolean_value is the time to an event in days, and whether it was seen. Labels of subjects
    without events in the data are left out and counted.

    Args:
        need_value: every point has a label; else they may lack it (`Labels.null`), also all of them.

    Raises:
        UserError: naming file and row of a null that is needed, a point given twice, a time that is no number of days,
            a number that is not finite; when there is none, or none of a subject in the data; labels read before are of
            other events; it is no table.
    """
    if isinstance(labels, Labels):
        return _read_before(labels, events, need_value)
    root = Path(labels) if isinstance(labels, str | Path) else named(labels)
    wanted = {"subject_id": "int", "prediction_time": "time", **LABELS}
    parts: list[tuple[Any, pl.DataFrame]]
    if is_task(root):
        parts = [(root, evaluate_task(read_task(root), events).frame(events))]
    elif isinstance(root, Path):
        shards = [root] if root.is_file() else shards_of(root, "a MEDS task folder with *.parquet")
        parts = [(path, read(path, wanted, optional=LABELS)) for path in shards]
    else:
        table = as_frame(labels)
        parts = [(root, typed(table, root, wanted, LABELS, table.columns))]
    frames: list[pl.DataFrame] = []
    for path, frame in parts:
        if "categorical_value" in frame.columns:  # blanks are no part of a class, and alone they are none
            frame = frame.with_columns(pl.col("categorical_value").str.strip_chars().replace("", None))
        frame = frame.drop(
            [n for n in LABELS if n in frame.columns and frame[n].null_count() == len(frame) and len(frame)]
        )
        for name in frame.columns:
            if frame[name].null_count() and (need_value or name not in LABELS):
                row, blank = frame[name].is_null().arg_max(), " or blank" * (name == "categorical_value")
                raise UserError(f"{path}: row {row}: {name} is null{blank}", hint="Drop the row.")
        if frames and frame.columns != frames[0].columns and need_value:
            raise UserError(
                f"{path}: columns {frame.columns}, in {parts[0][0]} {frames[0].columns}", hint="One task has one kind."
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
    order, subjects = np.argsort(events.subjects, kind="stable"), whole["subject_id"].to_numpy()
    place = order[np.searchsorted(events.subjects[order], subjects).clip(max=len(order) - 1)]
    there = events.subjects[place] == subjects
    if not there.any():
        raise UserError(
            f"{root}: none of the {len(whole)} labels is of a subject in the data, such as {whole['subject_id'][0]}",
            hint="Labels and data must be of the same patients.",
        )
    outside, whole = len(whole) - int(there.sum()), whole.filter(pl.Series(there))
    return Labels(
        subject=place[there],
        outside=outside,
        strangers=tuple(dict.fromkeys(subjects[~there][:3].tolist())),
        time=whole["prediction_time"].to_physical().to_numpy().astype(np.int64),
        **_values(whole, root, need_value),
    )


def _read_before(labels: Labels, events: Events, need_value: bool) -> Labels:
    """Labels as they are, where they can be of these events, and are whole where they must be."""
    if len(labels) and labels.subject.max() >= len(events):
        raise UserError(
            f"the labels are of other events: they name subject number {labels.subject.max():,} of {len(events):,}",
            hint="Read them again, with these events.",
        )
    if need_value and labels.value is None and labels.names is None and labels.number is None:
        raise UserError("the labels: no column of labels", hint=f"Expected one of {', '.join(LABELS)}.")
    for name, mask in labels.null.items() if need_value else ():
        raise UserError(f"the labels: row {int(mask.argmax())}: {name} is null", hint="Drop the row.")
    return labels


FIELDS = {"boolean_value": "value", "categorical_value": "names", "integer_value": "number", "float_value": "number"}
"""Columns of labels and the fields of `Labels` they become; float_value beside boolean_value becomes the days."""
EMPTY: dict[str, Any] = {"boolean_value": False, "categorical_value": "", "integer_value": 0, "float_value": 0.0}


def _values(frame: pl.DataFrame, root: Path | str, need_value: bool) -> dict[str, Any]:
    """Fields of `Labels` from the value columns that are there."""
    have = [n for n in LABELS if n in frame.columns]
    both = set(have) == {"float_value", "boolean_value"}
    if len(have) > 1 and not both:
        raise UserError(
            f"{root}: labels in {', '.join(have)}",
            hint="Expected one of boolean_value, integer_value, float_value and categorical_value, or float_value "
            "(days) with boolean_value (whether the event was seen).",
        )
    if need_value and not have:
        raise UserError(f"{root}: no column of labels", hint=f"Expected one of {', '.join(LABELS)}.")
    out: dict[str, Any] = {"null": {}}
    for name in have:
        column = frame[name].fill_null(EMPTY[name])
        column_kind = FIELDS[name] if not both or name == "boolean_value" else "days"
        if frame[name].null_count():
            out["null"][column_kind] = frame[name].is_null().to_numpy()
        if name == "float_value":
            number = column.to_numpy()
            bad = np.flatnonzero(~(np.isfinite(number) & ((number >= 0) | (not both))))
            if len(bad):
                raise UserError(
                    f"{root}: row {bad[0]}: float_value is {number[bad[0]]}",
                    hint="Days from the prediction time, 0 or more." if both else "Give a number, or drop it.",
                )
        if name == "categorical_value":
            out[column_kind] = column.to_list()
        else:
            out[column_kind] = column.to_numpy().astype(np.float64 if name == "float_value" else np.int64)
    return out


def as_predictions(frame: pl.DataFrame) -> pl.DataFrame:
    """Predictions of a yes or no with the columns that the package meds-evaluation reads, and no other; of the points
    that have one.

    Raises:
        UserError: they are of another kind.
    """
    name = "predicted_boolean_probability"
    if name not in frame.columns:
        raise UserError("no predictions of a yes or no: meds-evaluation reads no others", hint="Leave the option out.")
    value = (pl.col(name) >= 0.5).alias("predicted_boolean_value")
    return frame.drop_nulls(name).select("subject_id", "prediction_time", "boolean_value", value, name)
