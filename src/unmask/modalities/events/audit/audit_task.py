"""Labels of an ACES task file, and what the definition of the task itself gives away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from unmask.errors import first_of
from unmask.evaluation.shown import Printed, Shown
from unmask.modalities.events.audit.findings import SHOWN, AuditFinding, lines_of, remark, warning
from unmask.modalities.events.records.aces import Task, is_task, read_task
from unmask.modalities.events.records.meds import Events, as_events
from unmask.modalities.events.records.windows import TaskPoints, evaluate_task
from unmask.writing import check_absent, written_folder

UNSEEN = 0.05
"""Share of the labels that are false from which on those not observed to the end are warned of."""


@dataclass(frozen=True, kw_only=True)
class TaskLabels(Printed):
    """The points of a task, and what was seen of its definition.

    Attributes:
        frame: MEDS labels: subject_id, prediction_time, boolean_value.
        points: the same with the windows of the label, by subject number.
        findings: as those of an audit.
    """

    frame: pl.DataFrame
    points: TaskPoints
    findings: list[AuditFinding]

    def to_dict(self) -> dict[str, Any]:
        """Counts, and the findings, as plain data."""
        found, positives = self.points, None if self.points.value is None else int(self.points.value.sum())
        return {
            "points": len(found),
            "patients": len(np.unique(found.subject)),
            "positives": positives,
            "prevalence": None if positives is None else positives / len(found),
            "candidates": found.candidates,
            "left_out": dict(found.left_out),
            "repeated": found.repeated,
            "warnings": sum(f.level == "warning" for f in self.findings),
            "findings": [f.to_dict() for f in self.findings],
        }

    def lines(self) -> list[str]:
        """How many points, of how many patients, how often true; what left candidates out; the findings."""
        about, found = self.to_dict(), self.points
        true = "without a label" if found.value is None else f"{about['prevalence']:.1%} true ({about['positives']:,})"
        out = [f"{len(found):,} points of {about['patients']:,} patients, {true}"]
        out.append(f"of {found.candidates:,} time stamps with the trigger; left out, by each condition that failed:")
        out += [f"  {count:,} not {what}" for what, count in found.left_out.items() if count]
        out = out if any(found.left_out.values()) else [*out[:-1], out[-1].partition(";")[0]]
        out += [f"{found.repeated:,} of them give a point that another gives too"] if found.repeated else []
        return out + lines_of(self.findings)

    def shown(self) -> Shown:
        heading, *rest = self.lines()
        return Shown(title=heading, notes=rest)


def labels(
    data: Any, task: str | Path, out: str | Path | None = None, *, predicates: str | Path | None = None
) -> TaskLabels:
    """Prediction times and labels of an ACES task.

    Args:
        data: a MEDS folder, a table with the columns of one, or events read before.
        task: a task file (.yaml), as es-aces and MEDS-DEV have them.
        out: folder to make: labels.parquet, and task.yaml with the predicates that were used.
        predicates: a second file, whose predicates take the place of the task's.

    Raises:
        UserError: the task or the data are not right, no time stamp is a point, `out` exists.
    """
    import yaml

    if out is not None:
        check_absent(out)
    read, events = read_task(task, predicates), as_events(data)
    points = evaluate_task(read, events)
    found = TaskLabels(frame=points.frame(events), points=points, findings=list(definition(read, points, events)))
    if out is not None:
        with written_folder(out) as folder:
            found.frame.write_parquet(folder / "labels.parquet")
            text = yaml.safe_dump(dict(read.text), sort_keys=False, allow_unicode=True)
            (folder / "task.yaml").write_text(text, encoding="utf-8")
    return found


def task_findings(given: Any, events: Events) -> list[AuditFinding]:
    """What the definition of a task gives away, where labels are given as a task file; else nothing."""
    if not is_task(given):
        return []
    task = read_task(given)
    return list(definition(task, evaluate_task(task, events), events))


def definition(task: Task, points: TaskPoints, events: Events) -> Iterator[AuditFinding]:
    """What a task's definition gives away, or asks of a model what it cannot know."""
    yield from _without_events(task, points)
    if points.value is None or points.known is None or points.unseen is None:
        return
    label = task.labelled
    assert label is not None
    assert label.label is not None
    if points.known.any():
        rows = [int(events.subjects[s]) for s in points.subject[points.known][:SHOWN].tolist()]
        yield warning(
            check="the label is known",
            sentence=f"At {int(points.known.sum()):,} of {len(points):,} points the {label.label} that makes the label "
            f"true stands at the prediction time or before it: window {label.name} overlaps with what is known.",
            todo=f"Let {label.name} begin after the index_timestamp ({task.indexed.name}.{task.indexed.index}), with "
            "start_inclusive: False.",
            columns=("subject",),
            rows=[(subject,) for subject in rows],
        )
    true = int(points.value.sum())
    if true in (0, len(points)):
        yield warning(
            check="one outcome",
            sentence=f"All {len(points):,} labels are {str(bool(true)).lower()}: whoever always says so is right in "
            "100 % of them, and has learnt nothing.",
            todo=f"Look at {label.label}, and at the conditions that leave out the other outcome.",
        )
    chosen = [f"{what} ({points.left_out[what]:,})" for what in points.future if points.left_out[what]]
    if chosen:
        yield remark(
            check="chosen by the future",
            sentence="Points were chosen by what is known after their prediction time only (left out by it): "
            + ", ".join(chosen)
            + ".",
            todo="Figures are of these points; whoever asks at the prediction time does not know which they are.",
        )
    unseen = points.unseen & ~points.value
    if unseen.any():
        share = float(unseen.sum() / max(1, (~points.value).sum()))
        yield AuditFinding(
            check="not observed to the end",
            level="warning" if share >= UNSEEN else "note",
            sentence=f"{int(unseen.sum()):,} labels are false ({share:.1%} of these) of living patients whose record "
            f"ends before the window {label.name} does.",
            todo="Nobody knows whether it came: end the windows at the day of the extract, or label the time to the "
            "event (float_value with boolean_value).",
        )


def _without_events(task: Task, points: TaskPoints) -> Iterator[AuditFinding]:
    """Predicates that no event is."""
    if not points.without:
        return
    used = {task.trigger} | {b.event for w in task.windows.values() for b in (w.start, w.end) if b.event}
    used |= {p for w in task.windows.values() for p in (*w.has, *([w.label] if w.label else []))}
    whole = [
        name
        for name in sorted(used & task.predicates.keys())
        if all(part.name in points.without for part in task.plain_parts(name))
    ]
    yield AuditFinding(
        check="predicates without events",
        level="warning" if whole else "note",
        sentence=f"No event is {first_of(points.without)}"
        + (f": {first_of(whole)} never occurs, and what asks for it asks for nothing." if whole else "."),
        todo="Look at the codes of the data, and at the unit of the bounds; leave out what is not here.",
    )
