"""The points and labels of a task: its windows found in the events, a block of whole subjects at a time.

What is counted are time stamps (the distinct times of a subject) and, at each, how many events are a predicate (1 for
`and`, `or` and _ANY_EVENT); facts without a time belong to no window. Window ends of candidates are found by binary
search, and counts are differences of running sums, so time and memory do not grow with the length of windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from unmask.errors import UserError, first_of
from unmask.modalities.events.records.aces import (
    ANY_EVENT,
    RECORD_END,
    RECORD_START,
    TRIGGER,
    Boundary,
    Predicate,
    Task,
)
from unmask.modalities.events.records.cuts import NEVER, death_times, searched
from unmask.modalities.events.records.meds import STATIC, Events
from unmask.progress import counted

UNBOUND = "not found"
"""Of candidates without the time stamp that a window ends with."""


@dataclass(frozen=True, kw_only=True)
class TaskPoints:
    """The points of a task, in the order of subjects and candidates.

    Attributes:
        subject: (points,) subject number.
        time: (points,) prediction time, microseconds.
        value: (points,) whether the label's predicate occurs in its window; None of a task without a label.
        start, end: (points,) the label's window, microseconds; None without a label.
        known: (points,) whether an event that makes the label true stands in its window at the prediction time or
            before: it is known by then; None without a label.
        unseen: (points,) whether the label's window reaches beyond the last event of a subject who did not die; None
            without a label.
        candidates: time stamps with the trigger, of subjects with the demographics.
        subjects: of these.
        left_out: what was not met ("WINDOW: 0 to 0 death", "WINDOW: death not found") -> candidates that did not meet
            it. One may fail at several.
        future: those of `left_out` that are known after the prediction time only.
        without: candidates' predicates that no event is.
        repeated: candidates that give a point that another gives too: each stands once.
    """

    subject: np.ndarray
    time: np.ndarray
    value: np.ndarray | None
    start: np.ndarray | None
    end: np.ndarray | None
    known: np.ndarray | None
    unseen: np.ndarray | None
    candidates: int
    subjects: int
    left_out: Mapping[str, int]
    future: tuple[str, ...]
    without: tuple[str, ...]
    repeated: int

    def __len__(self) -> int:
        return len(self.subject)

    def frame(self, events: Events) -> pl.DataFrame:
        """MEDS labels: subject_id, prediction_time, boolean_value."""
        columns = {"subject_id": events.subjects[self.subject].astype(np.int64), "prediction_time": self.time}
        columns |= {} if self.value is None else {"boolean_value": self.value}
        return pl.DataFrame(columns).with_columns(pl.col("prediction_time").cast(pl.Datetime("us")))


@dataclass
class _Stamps:
    """The time stamps of a block of subjects, and how many events of each are a predicate.

    Attributes:
        subject, time: (stamps,) subject number within the block, microseconds.
        first: (subjects + 1,) where each subject's stamps begin.
        count: predicate -> (stamps,).
        fact: predicate -> (subjects,) how many facts without a time are it.
        sums: running sums of `count`, of the predicates that were asked for.
    """

    subject: np.ndarray
    time: np.ndarray
    first: np.ndarray
    count: dict[str, np.ndarray]
    fact: dict[str, np.ndarray]
    sums: dict[str, np.ndarray] = field(default_factory=dict)

    def between(self, name: str, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """How often a predicate occurs in stamps low:high (places)."""
        if name not in self.sums:
            self.sums[name] = np.r_[0, np.cumsum(self.count[name])]
        return self.sums[name][np.maximum(high, low)] - self.sums[name][low]

    def places(self, who: np.ndarray, time: np.ndarray, *, behind: bool) -> np.ndarray:
        """Place of each subject's first stamp at or after a time; with `behind` after it."""
        return searched(self.time, self.first[who], self.first[who + 1], time, "right" if behind else "left")

    def nearest(
        self, name: str, who: np.ndarray, time: np.ndarray, *, before: bool, inclusive: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Time of the next (or last) stamp with a predicate, and whether there is one."""
        if name == RECORD_START:
            place, there = self.first[who], np.ones(len(who), bool)
        elif name == RECORD_END:
            place, there = self.first[who + 1] - 1, np.ones(len(who), bool)
        else:
            hits = np.flatnonzero(self.count[name] > 0)
            at = np.searchsorted(hits, self.places(who, time, behind=before == inclusive)) - before
            place = hits[at.clip(0, max(len(hits) - 1, 0))] if len(hits) else np.zeros(len(who), np.int64)
            there = (at >= 0) & (at < len(hits)) & (self.first[who] <= place) & (place < self.first[who + 1])
        found = self.time[place]
        beyond = (found > time) if before else (found < time)
        return found, there & ~beyond & (inclusive | (found != time))


def evaluate_task(task: Task, events: Events) -> TaskPoints:
    """The points of a task.

    Raises:
        UserError: no candidate is a point, with what the candidates did not meet; two candidates give one point two
            labels.
    """
    matches = {name: matching(p, events.codes) for name, p in task.predicates.items() if not p.parts}
    without = [n for n, hit in matches.items() if not hit.any()]
    seen, found = dict.fromkeys(matches, 0), list[dict[str, np.ndarray]]()
    left_out, future, candidates, subjects = dict[str, int](), set[str](), 0, 0
    died = death_times(events)
    for owners, here in counted(events.blocks(), len(events), lambda both: both[0].stop - both[0].start):
        stamps = _stamps(task, events, owners, here, matches, seen)
        allowed = np.ones(owners.stop - owners.start, bool)
        for name in task.demographics + tuple(n for n, p in task.predicates.items() if p.static and not p.parts):
            allowed &= stamps.fact[name] > 0
        trigger = np.flatnonzero((stamps.count[task.trigger] > 0) & allowed[stamps.subject])
        candidates += len(trigger)
        subjects += len(np.unique(stamps.subject[trigger]))
        if len(trigger):
            part = _realized(task, stamps, trigger, left_out, future)
            part["unseen"] = (died[owners][part["subject"]] == NEVER) & part.pop("beyond")
            found.append(part | {"subject": part["subject"] + owners.start})
    without += [n for n, count in seen.items() if not count and n not in without]
    whole = {n: np.concatenate([part[n] for part in found]) for n in found[0]} if found else {}
    if not len(whole.get("time", ())):
        raise _no_points(task, candidates, left_out, without)
    labelled = task.labelled is not None
    kept = _once(task, events, whole, labelled)
    return TaskPoints(
        subject=whole["subject"][kept],
        time=whole["time"][kept],
        **{n: whole[n][kept] if labelled else None for n in ("value", "start", "end", "known", "unseen")},
        candidates=candidates,
        subjects=subjects,
        left_out=left_out,
        future=tuple(n for n in left_out if n in future),
        without=tuple(without),
        repeated=len(whole["time"]) - len(kept),
    )


def matching(predicate: Predicate, names: Sequence[str]) -> np.ndarray:
    """(codes,) whether each code is a predicate's, whatever its value."""
    codes = pl.Series(names, dtype=pl.String)
    if predicate.regex is None:
        return codes.is_in(list(predicate.codes)).to_numpy()
    try:
        return codes.str.contains(predicate.regex).to_numpy()
    except pl.exceptions.ComputeError as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"predicate {predicate.name}: regex {predicate.regex!r}: {reason}", hint="Mend the regex."
        ) from None


def _stamps(
    task: Task, events: Events, owners: slice, here: slice, matches: Mapping[str, np.ndarray], seen: dict[str, int]
) -> _Stamps:
    """The stamps of a block; `seen` counts events that are each predicate."""
    subject, time = events.owner(owners) - owners.start, events.time[here]
    code, value = events.code[here], events.value[here]
    timed = time != STATIC
    who, when = subject[timed], time[timed]
    new = np.r_[True, (when[1:] != when[:-1]) | (who[1:] != who[:-1])][: len(when)]
    stamp, size = np.cumsum(new) - 1, int(new.sum())
    people = owners.stop - owners.start
    stamps = _Stamps(
        subject=who[new],
        time=when[new],
        first=np.searchsorted(who[new], np.arange(people + 1)),
        count={ANY_EVENT: np.ones(size, np.int64)},
        fact={},
    )
    stamps.count |= {n: np.zeros(size, np.int64) for n in (RECORD_START, RECORD_END)}
    there = np.flatnonzero(np.diff(stamps.first))
    stamps.count[RECORD_START][stamps.first[there]] = 1
    stamps.count[RECORD_END][stamps.first[there + 1] - 1] = 1
    has_facts = np.bincount(subject[~timed], minlength=people) > 0
    for name, p in task.predicates.items():
        if p.parts:
            parts = [_at_stamps(task.predicates.get(n), stamps, n, has_facts) > 0 for n in p.parts]
            stamps.count[name] = (np.logical_and if p.every else np.logical_or).reduce(parts).astype(np.int64)
            continue
        hit = matches[name][code] & _within(p, value)
        seen[name] += int(hit.sum())
        stamps.count[name] = np.bincount(stamp[hit[timed]], minlength=size)
        stamps.fact[name] = np.bincount(subject[hit & ~timed], minlength=people)
    return stamps


def _at_stamps(predicate: Predicate | None, stamps: _Stamps, name: str, has_facts: np.ndarray) -> np.ndarray:
    """(stamps,) counts of a part; a fact without a time holds at every stamp of its subject (of a subject without any
    fact, what its first stamp says, as the package has it)."""
    if predicate is None or not predicate.static or predicate.parts:
        return stamps.count[name]
    first = np.zeros(len(has_facts), np.int64)
    there = np.flatnonzero(np.diff(stamps.first))
    first[there] = stamps.count[name][stamps.first[there]]
    return np.where(has_facts, stamps.fact[name], first)[stamps.subject]


def _within(p: Predicate, value: np.ndarray) -> np.ndarray:
    """(events,) whether values lie in a predicate's bounds, compared in single precision, as they are kept."""
    hit = np.ones(len(value), bool)
    if p.least is not None:
        least = np.float32(p.least)
        hit &= value >= least if p.least_inclusive else value > least
    if p.most is not None:
        most = np.float32(p.most)
        hit &= value <= most if p.most_inclusive else value < most
    return hit


def _realized(
    task: Task, stamps: _Stamps, trigger: np.ndarray, left_out: dict[str, int], future: set[str]
) -> dict[str, np.ndarray]:
    """The candidates of a block that are points, with their windows."""
    who, moment = stamps.subject[trigger], {TRIGGER: stamps.time[trigger]}
    whole = np.ones(len(trigger), bool)  # all windows are there
    met: list[tuple[str, np.ndarray]] = []
    bound: list[tuple[str, np.ndarray, np.ndarray]] = []
    for name, window in task.windows.items():
        inner, outer = ("start", "end") if window.start.of == "end" else ("end", "start")
        for which in (outer, inner):
            boundary: Boundary = getattr(window, which)
            of = moment[boundary.of if which == outer else f"{name}.{outer}"]
            inclusive = which == inner and (window.start_inclusive if which == "start" else window.end_inclusive)
            moment[f"{name}.{which}"], found = _moment(stamps, boundary, who, of, inclusive=inclusive)
            if boundary.event:
                met.append((f"{name}: {boundary.event} {UNBOUND}", found | ~whole))
                whole = whole & found
                bound.append((met[-1][0], moment[f"{name}.{which}"], whole))
    when = moment[f"{task.indexed.name}.{task.indexed.index}"]
    future.update(what for what, time, there in bound if (there & (time > when)).any())
    out = {"subject": who, "time": when, "beyond": np.zeros(len(who), bool)}
    for name, window in task.windows.items():
        start, end = moment[f"{name}.start"], moment[f"{name}.end"]
        low = stamps.places(who, start, behind=not window.start_inclusive)
        high = stamps.places(who, end, behind=window.end_inclusive)
        for predicate, (least, most) in window.has.items():
            count = stamps.between(predicate, low, high)
            within = (count >= (least or 0)) & (count <= (np.iinfo(np.int64).max if most is None else most))
            met.append((f"{name}: {_span_of(least, most)} {predicate}", within | ~whole))
            if (whole & (end > when)).any():
                future.add(met[-1][0])
        if window.label:
            known = np.minimum(high, stamps.places(who, when, behind=True))
            out |= {
                "value": stamps.between(window.label, low, high) > 0,
                "known": stamps.between(window.label, low, known) > 0,
                "start": start,
                "end": end,
                "beyond": end > stamps.time[stamps.first[who + 1] - 1],
            }
    for what, ok in met:
        left_out[what] = left_out.get(what, 0) + int((~ok).sum())
    kept = np.logical_and.reduce([whole, *(ok for _, ok in met)])
    return {n: column[kept] for n, column in out.items()}


def _moment(
    stamps: _Stamps, boundary: Boundary, who: np.ndarray, of: np.ndarray, *, inclusive: bool
) -> tuple[np.ndarray, np.ndarray]:
    """(candidates,) time of one end of a window, and whether it is there."""
    if boundary.event is None:
        return of + boundary.offset, np.ones(len(of), bool)
    return stamps.nearest(boundary.event, who, of, before=boundary.before, inclusive=inclusive)


def _span_of(least: int | None, most: int | None) -> str:
    if most is None:
        return f"at least {least}"
    return f"at most {most}" if not least else f"{least} to {most}"


def _once(task: Task, events: Events, whole: Mapping[str, np.ndarray], labelled: bool) -> np.ndarray:
    """Numbers of the points, each once, in their order; refused where one has two labels."""
    pairs = np.stack([whole["subject"], whole["time"]])
    _, first, of = np.unique(pairs, axis=1, return_index=True, return_inverse=True)
    if labelled:
        other = np.flatnonzero(whole["value"] != whole["value"][first[of.ravel()]])
        if len(other):
            i = int(other[0])
            when = np.datetime64(int(whole["time"][i]), "us")
            raise UserError(
                f"{task.path}: {len(other):,} points have two labels, such as subject "
                f"{events.subjects[whole['subject'][i]]} at {when}",
                hint=f"Several {task.trigger} lead to one prediction time: let index_timestamp follow the trigger.",
            )
    return np.sort(first)


def _no_points(task: Task, candidates: int, left_out: Mapping[str, int], without: list[str]) -> UserError:
    conditions = [f"{n:,} not {what}" for what, n in sorted(left_out.items(), key=lambda item: -item[1]) if n]
    what = f"{task.path}: no point: {candidates:,} time stamps with {task.trigger}"
    what += f" (left out: {'; '.join(conditions)})" if conditions else ""
    nothing = f"No event is {first_of(without)}: does the data call them otherwise? " if without else ""
    return UserError(what, hint=nothing + "Look at the codes (metadata/codes.parquet) and the windows.")
