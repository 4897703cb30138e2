"""The checks of `audit` that concern prediction points: what is known at each of them, many points at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from unmask.evaluation.card import Use
from unmask.evaluation.charts import table
from unmask.evaluation.report import Report
from unmask.evaluation.shown import Printed, Shown
from unmask.modalities.events.audit.audit_events import CHECKS
from unmask.modalities.events.audit.audit_people import PEOPLE_CHECKS
from unmask.modalities.events.audit.audit_task import task_findings
from unmask.modalities.events.audit.findings import (
    DAY,
    MIDNIGHT,
    SHOWN,
    AuditFinding,
    lines_of,
    matching,
    most_frequent,
    remark,
    shown_cell,
    warning,
)
from unmask.modalities.events.records.cuts import Cuts, after_death, cut, flat, searched, without_events
from unmask.modalities.events.records.encounters import encounters
from unmask.modalities.events.records.histories import FEWEST
from unmask.modalities.events.records.labels import may_be_classes, read_labels
from unmask.modalities.events.records.meds import STATIC, Events, Labels, as_events
from unmask.progress import counted

WINDOW = DAY
"""What "shortly before" a prediction time means."""
TELLING_SHARE = 0.9
"""Share of one outcome among those with a code (its lower bound), or difference between the outcomes in how often they
have it, from which on the code tells the outcome."""
TELLING_AREA = 0.98
"""Likewise, the area under the ROC curve of a code's last value."""
CLOSING = re.compile(r"(_END|DISCHARGE)")
"""Codes that are written when an encounter is over."""
BARE = 0.01
"""Share of the points without an event before them from which on it is warned of."""

MOSTLY, TIMES = 0.5, 20
"""Share of the rarer outcome that has a code, and how many times that of the other outcome it is, from which on it
tells."""


def leakage(events: Events, points: Labels) -> Iterator[AuditFinding]:
    """Codes seen within `WINDOW` before the prediction time (and static facts) that alone tell the outcome."""
    label_columns = outcomes(points)
    seen = _Shortly(events=events, label_columns=label_columns)
    for part in cut(events, points):
        seen.add(part)
    rows: list[tuple[Any, ...]] = []
    for name, y in label_columns.items():
        rows += seen.telling(name, y) + seen.telling_values(name, y)
    if rows:
        codes = len({row[0] for row in rows})
        yield warning(
            check="tells the outcome",
            sentence=f"{codes} codes of the last 24 hours (or without a time) tell the outcome almost by themselves.",
            todo="Look what each is: a consequence of the outcome, its recording, or a code that is given once it is "
            "known, must come later or be left out.",
            columns=("code", "outcome", "patients with it", "share of the outcome with it", "without it"),
            rows=sorted(rows, key=lambda r: -r[2])[:SHOWN],
        )


def outcomes(points: Labels) -> dict[str, np.ndarray]:
    """Name -> (points,) yes or no: what labels of any kind ask; of numbers, whether they are above the median; of times
    to an event whether it was seen, seen within the median of such times, and whether less than the median of all is
    known."""
    if points.names is not None:
        names = np.array(points.names)
        return {str(n): names == n for n in np.unique(names)}
    if points.number is not None:
        if may_be_classes(points.number):
            return {f"{n:g}": points.number == n for n in np.unique(points.number)}
        middle = float(np.median(points.number))
        return {f"above {middle:g}": points.number > middle}
    if points.value is None:
        return {}
    seen = points.value == 1
    out = {"true": seen}
    if points.days is not None and seen.any():
        middle, all_of_it = float(np.median(points.days[seen])), float(np.median(points.days))
        out[f"true within {middle:g} days"] = seen & (points.days <= middle)
        out[f"known for less than {all_of_it:g} days"] = points.days < all_of_it
    return out


@dataclass
class _Shortly:
    """What is known shortly before points, or without a time: (codes,) points and patients that have each code, the
    same of points with each outcome (`label_columns`, see `outcomes`), and codes, points and numbers of all last
    values."""

    events: Events
    label_columns: dict[str, np.ndarray]
    values: tuple[list[np.ndarray], ...] = field(default_factory=lambda: ([], [], []))

    def __post_init__(self) -> None:
        codes = len(self.events.codes)
        self.have, self.patients = np.zeros(codes, np.int64), np.zeros(codes, np.int64)
        self.yes = {name: np.zeros(codes) for name in self.label_columns}

    def add(self, part: Cuts) -> None:
        """Take in points of whole patients."""
        events, codes = self.events, len(self.events.codes)
        static = searched(events.time, part.start, part.known, np.full(len(part.start), STATIC), "right")
        late = searched(events.time, part.start, part.known, part.time - WINDOW, "right")
        both = [flat(part.start, static), flat(np.maximum(static, late), part.known)]
        row, which = (np.concatenate([b[k] for b in both]) for k in (0, 1))
        turn = np.lexsort((row, which))  # events of a point in the order of the file
        row, which = row[turn], which[turn]
        key = which * codes + events.code[row]
        # The last of each (point, code): events come in order of time.
        _, last = np.unique(key[::-1], return_index=True)
        last = len(key) - 1 - last
        row, which = row[last], which[last]
        code, point = events.code[row].astype(np.int64), part.number[which]
        self.have += np.bincount(code, minlength=codes)
        for name, y in self.label_columns.items():
            self.yes[name] += np.bincount(code, y[point].astype(float), codes)
        self.patients += np.bincount(np.unique(part.subject[which] * codes + code) % codes, minlength=codes)
        value = events.value[row]
        good = np.isfinite(value)
        for collected, found in zip(self.values, (code[good].astype(np.int32), point[good], value[good]), strict=True):
            collected.append(found)

    def telling(self, name: str, y: np.ndarray) -> list[tuple[Any, ...]]:
        """Codes that tell the outcome by being there or not."""
        have, patients, yes = self.have, self.patients, self.yes[name]
        positives, total = float(y.sum()), len(y)
        if min(positives, total - positives) < FEWEST:
            return []
        with_it = yes / np.maximum(have, 1)
        without = (positives - yes) / np.maximum(total - have, 1)
        base = positives / total
        sure = np.where(base <= 0.5, _lower(with_it, patients), _lower(1 - with_it, patients))
        of_yes, of_no = yes / positives, (have - yes) / (total - positives)
        often, seldom = (of_yes, of_no) if base <= 0.5 else (of_no, of_yes)
        difference, mostly = np.abs(of_yes - of_no), (often >= MOSTLY) & (often >= TIMES * seldom)
        hit = np.flatnonzero((patients >= FEWEST) & ((difference >= TELLING_SHARE) | (sure >= TELLING_SHARE) | mostly))
        return [
            (self.events.codes[i], name, int(patients[i]), round(float(with_it[i]), 3), round(float(without[i]), 3))
            for i in hit
        ]

    def telling_values(self, name: str, y: np.ndarray) -> list[tuple[Any, ...]]:
        """Codes whose last value parts the outcomes almost wholly; shares are above and below the median."""
        from scipy.stats import rankdata

        code, point, value = self.last_values
        edges = np.r_[0, np.flatnonzero(np.diff(code)) + 1, len(code)]
        out: list[tuple[Any, ...]] = []
        for low, high in pairwise(edges.tolist()):
            values_here, hit = value[low:high], y[point[low:high]]
            a, b = int(hit.sum()), int((~hit).sum())
            if min(a, b) < FEWEST:
                continue
            area = (rankdata(values_here)[hit].sum() - a * (a + 1) / 2) / (a * b)
            if max(area, 1 - area) >= TELLING_AREA:
                above = values_here > np.median(values_here)
                shares = [float(hit[half].mean()) if half.any() else 0.0 for half in (above, ~above)]
                named_so = f"{self.events.codes[code[low]]} (its value: above the median, and not)"
                out.append((named_so, name, len(values_here), *(round(share, 3) for share in shares)))
        return out

    @cached_property
    def last_values(self) -> tuple[np.ndarray, ...]:
        """Codes, points and numbers of all last values, sorted by code."""
        found = [np.concatenate(parts) for parts in self.values if parts]
        turn = np.argsort(found[0], kind="stable") if found else np.zeros(0, np.int64)
        return tuple(part[turn] for part in found) or (turn, turn, turn)


def _lower(share: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Wilson's lower 95 % bound of a share."""
    n, z = np.maximum(n, 1), 1.96
    centre = share + z * z / (2 * n)
    return (centre - z * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))) / (1 + z * z / n)


def points_after_death(events: Events, points: Labels) -> Iterator[AuditFinding]:
    """Points that know of the patient's death."""
    late = after_death(events, points)
    if late.any():
        yield warning(
            check="points after death",
            sentence=f"{int(late.sum()):,} of {len(points):,} prediction points know of the patient's death.",
            todo="Nobody asks then: leave these points out, or look whether deaths stand too early.",
            columns=("subject", "label"),
            rows=[(int(events.subjects[points.subject[i]]), _label(points, i)) for i in np.flatnonzero(late)[:SHOWN]],
        )


def points_without_events(events: Events, points: Labels) -> Iterator[AuditFinding]:
    """Points before the first event of their patient: predictions there know nothing of the patient."""
    bare = without_events(events, points)
    if bare.any():
        yield AuditFinding(
            check="points without events",
            level="warning" if bare.mean() >= BARE else "note",
            sentence=f"{int(bare.sum()):,} of {len(points):,} prediction points lie before the first event of their "
            "patient.",
            todo="Look whether prediction times are right; what is said there is of nobody in particular.",
            columns=("subject", "label"),
            rows=[(int(events.subjects[points.subject[i]]), _label(points, i)) for i in np.flatnonzero(bare)[:SHOWN]],
        )


def _label(points: Labels, i: int) -> str:
    if points.names is not None:
        return points.names[i]
    if points.number is not None:
        return f"{points.number[i]:g}"
    return "" if points.value is None else str(bool(points.value[i])).lower()


def encounter_continues(events: Events, points: Labels) -> Iterator[AuditFinding]:
    """Points that know how an encounter ended which has events more than a day later; points within an encounter. An
    encounter is an interval from its first event to its last, and so is what a closing event gives away: from its own
    time to a day before the last event of its encounter."""
    if events.visit is None:
        return
    closing = matching(events, CLOSING)
    order = np.lexsort((points.time, points.subject))
    subject, time = points.subject[order], points.time[order]
    first = np.searchsorted(subject, np.arange(len(events) + 1))

    def reached(who: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """(intervals,) how many of the patients' points lie in begin <= time < end; marks them in `depth`."""
        a, b = (searched(time, first[who], first[who + 1], moment, "left") for moment in (begin, end))
        full = b > a
        np.add.at(depth, a[full], 1)
        np.add.at(depth, b[full], -1)
        return np.where(full, b - a, 0)

    counts = []
    count = np.zeros(len(events.codes), np.int64)
    for rule in ("knows", "within"):
        depth = np.zeros(len(points) + 1, np.int64)
        for owners, here in events.blocks():
            if first[owners.start] == first[owners.stop]:
                continue
            stays = encounters(events, owners, here)
            if rule == "within":
                reached(stays.subject, stays.begin, stays.end)
                continue
            hit = np.flatnonzero(closing[events.code[stays.rows]])
            of, rows = stays.of[hit], stays.rows[hit]
            end = stays.end[of]
            end = np.where(end == STATIC, STATIC, end - DAY)
            count += np.bincount(
                events.code[rows], reached(stays.subject[of], events.time[rows], end), len(count)
            ).astype(np.int64)
        counts.append(int((np.cumsum(depth[:-1]) > 0).sum()))
    knows, within = counts
    if knows:
        yield warning(
            check="the end is known",
            sentence=f"{knows:,} of {len(points):,} prediction points know how an encounter ended that goes on for "
            "more than a day.",
            todo="Look whether ends of encounters are stamped at their start.",
            **most_frequent(events, count, "points"),
        )
    if within:
        yield remark(
            check="within an encounter",
            sentence=f"{within:,} of {len(points):,} prediction points lie within an encounter that has later events.",
            todo="Usual for tasks during a stay; what is coded for the whole stay must not stand before them.",
        )


def at_the_point(events: Events, points: Labels) -> Iterator[AuditFinding]:
    """Events at exactly the prediction time, which MEDS counts as known."""
    count = np.zeros(len(events.codes), np.int64)
    hits = 0
    for part in cut(events, points):
        at = searched(events.time, part.start, part.known, part.time, "left")
        hits += int((at < part.known).sum())
        count += np.bincount(events.code[flat(at, part.known)[0]], minlength=len(count))
    if hits:
        yield remark(
            check="at the prediction time",
            sentence=f"{hits:,} of {len(points):,} prediction points have events at exactly their time, which count "
            "as known.",
            todo="Where one of them is what is predicted, put the prediction time a moment before it.",
            **most_frequent(events, count, "points"),
        )


def at_midnight(events: Events, points: Labels) -> Iterator[AuditFinding]:
    """Points at midnight, as dates are read, before events of the day that they begin."""
    night = points.time % DAY == 0
    if night.mean() < MIDNIGHT:
        return
    hits = 0
    for part in cut(events, points):
        day = searched(events.time, part.start, part.stop, part.time + DAY - 1, "right")
        hits += int(((day > part.known) & night[part.number]).sum())
    if hits:
        yield remark(
            check="prediction times at midnight",
            sentence=f"{int(night.sum()):,} of {len(points):,} prediction times are 00:00:00, as of dates; after "
            f"{hits:,} of them come events of that day, which are not known there.",
            todo="Where the times are dates and the day itself should be known, write its end.",
        )


TASK_CHECKS = (leakage, points_after_death, points_without_events, encounter_continues, at_the_point, at_midnight)


def lines(found: Sequence[AuditFinding], about: dict[str, Any]) -> list[str]:
    """A heading, then of each finding its sentence, what to do, and the first codes."""
    warnings = sum(f.level == "warning" for f in found)
    examined = ", ".join(f"{count:,} {name}" for name, count in about.items())
    return [f"{examined}: {warnings} warnings, {len(found) - warnings} notes", *lines_of(found)]


def page(
    found: Sequence[AuditFinding], about: dict[str, Any], data: str, out: str | Path, *, examples: bool = False
) -> Path:
    """Write the findings as one HTML page; with `examples` the patients of a finding are listed by their ids."""
    report = Report("Audit of patient events", data)
    report.facts({name.capitalize(): count for name, count in about.items()})
    report.facts({"Warnings": sum(f.level == "warning" for f in found)})
    if not any(f.level == "warning" for f in found):
        report.section("No warning", "No check saw anything that would let a model know the future.")
    for f in found:
        text = Markup("<p>{}</p><p>{}</p>").format(f.sentence, f.todo)
        rows = [[shown_cell(cell) for cell in row] for row in f.rows] if examples or "subject" not in f.columns else []
        note = f"The first {len(rows)}." if len(rows) == SHOWN else ""
        heading = f"{f.level.capitalize()}: {f.check}"
        report.section(heading, text + table(list(f.columns), rows) if rows else text, note=note)
    return report.use(_next(data), heading="What to do next").write(out)


def _next(data: str) -> Markup:
    """What comes after an audit: what it cannot see, and the commands to go on with."""
    commands = (
        ("after a change of the data, once more", "unmask events audit MODEL --labels task --out audit.html"),
        ("pretrain", "unmask pretrain events MODEL --out model"),
        (
            "predict the outcome, beside age and number of events",
            "unmask finetune outcome model MODEL --labels task --out outcome",
        ),
    )
    seen = Markup("<p>{}</p>").format(
        "An audit without warnings is no proof: it looks at single codes within 24 hours before the prediction time, "
        "not at several together nor further back."
    )
    return seen + Use(commands=commands, python="").of(data).html()


class Audited(Printed, tuple[list[AuditFinding], dict[str, Any]]):
    """What an audit gives: all findings, and what was looked at."""

    def shown(self) -> Shown:
        """Each finding with what to do about it."""
        heading, *found = lines(*self)
        return Shown(title=heading, notes=found)

    def to_frame(self) -> Any:
        """A row per finding, as a pandas frame where pandas is installed, else as a polars one."""
        rows = [(f.level, f.check, f.sentence, f.todo) for f in self[0]]
        return Shown(title="", columns=("level", "check", "sentence", "todo"), rows=rows).frame()


def audit(data: Any, labels: Any = None) -> Audited:
    """All findings, warnings first, and what was looked at (events, subjects, points).

    Args:
        labels: as `read_labels` takes them; without, what concerns prediction times is not looked at. Of a task file
            (.yaml) its definition is looked at too.

    Raises:
        UserError: data or labels are not MEDS.
    """
    events = as_events(data)
    points = None if labels is None else read_labels(labels, events)
    every = (*CHECKS, *PEOPLE_CHECKS)
    found = [f for check in counted(every, len(every)) for f in check(events)]
    if points is not None:
        found += [f for task_check in counted(TASK_CHECKS, len(TASK_CHECKS)) for f in task_check(events, points)]
        found += task_findings(labels, events)
    about: dict[str, Any] = {"events": len(events.time), "subjects": len(events), "codes": len(events.codes)}
    about |= {} if points is None else {"points": len(points)}
    return Audited((sorted(found, key=lambda f: f.level != "warning"), about))
