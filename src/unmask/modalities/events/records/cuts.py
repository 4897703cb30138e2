"""What is known at many prediction points at once: binary searches in many histories side by side.

`Events.before` cuts one history; these give the same cuts for a million points without a loop over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from unmask.modalities.events.records.meds import BIRTH, DEATH, STATIC, Events, Labels

NEVER = np.iinfo(np.int64).max
ROWS = 4_000_000
"""Events looked at in one go."""


def without_events(events: Events, points: Labels) -> np.ndarray:
    """(points,) whether a point lies before the first event of its patient that has a time, birth apart: nothing but
    facts without a time is known then."""
    return points.time < first_event_times(events)[points.subject]


def first_event_times(events: Events) -> np.ndarray:
    """(subjects,) time of the first event that has one, birth apart; `NEVER` where none has."""
    birth = events.begins(BIRTH)
    return first_times(events, lambda time, code: (time != STATIC) & ~birth[code])


def after_death(events: Events, points: Labels) -> np.ndarray:
    """(points,) whether the death of its patient is known at a point; one without a time always is."""
    return death_times(events)[points.subject] <= points.time


def death_times(events: Events) -> np.ndarray:
    """(subjects,) time of the first death, `STATIC` of one without a time; `NEVER` where the record has none."""
    deadly = events.begins(DEATH)
    return first_times(events, lambda _, code: deadly[code])


def first_times(events: Events, chosen: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """(subjects,) time of the first event that is chosen by time and code; `NEVER` where none is."""
    first = np.full(len(events), NEVER)
    for owners, here in events.blocks():
        hit = chosen(events.time[here], events.code[here])
        np.minimum.at(first, events.owner(owners)[hit], events.time[here][hit])
    return first


def searched(
    values: np.ndarray, start: np.ndarray, stop: np.ndarray, wanted: np.ndarray, side: Literal["left", "right"]
) -> np.ndarray:
    """`numpy.searchsorted` in many parts start:stop of one array, ascending within each, of what is `wanted` in each:
    (n,) places, from the start of the array."""
    low, high = start.astype(np.int64), stop.astype(np.int64)
    open_ = np.flatnonzero(low < high)
    while len(open_):
        middle = (low[open_] + high[open_]) // 2
        found = values[middle]
        behind = found <= wanted[open_] if side == "right" else found < wanted[open_]
        low[open_[behind]] = middle[behind] + 1
        high[open_[~behind]] = middle[~behind]
        open_ = open_[low[open_] < high[open_]]
    return low


def flat(start: np.ndarray, stop: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of all ranges one after another, and which range each is of."""
    size = np.maximum(stop - start, 0)
    which = np.repeat(np.arange(len(size)), size)
    before = np.cumsum(size) - size
    return np.arange(len(which)) - before[which] + start[which], which


@dataclass(frozen=True, kw_only=True)
class Cuts:
    """Some points of the labels (by `number`), patient by patient, and where their histories are cut: the events
    start:known are known at the point, known:stop lie behind it."""

    number: np.ndarray
    subject: np.ndarray
    time: np.ndarray
    start: np.ndarray
    known: np.ndarray
    stop: np.ndarray


def cut(events: Events, points: Labels, most: int = ROWS) -> Iterator[Cuts]:
    """All points in the order of patients, then times, in parts of whole patients: at most about `most` pairs
    of a point and an event of its history."""
    order = np.lexsort((points.time, points.subject))
    subject = points.subject[order]
    length = np.diff(events.offsets)
    patients, first, count = np.unique(subject, return_index=True, return_counts=True)
    part = (np.cumsum(length[patients] * count) - 1) // most
    edges = np.r_[first[np.r_[True, part[1:] != part[:-1]][: len(first)]], len(subject)]
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        number = order[low:high]
        who, when = points.subject[number], points.time[number]
        start, stop = events.offsets[who], events.offsets[who + 1]
        known = searched(events.time, start, stop, when, "right")
        yield Cuts(number=number, subject=who, time=when, start=start, known=known, stop=stop)
        if events.pages is not None:
            events.pages.seen(int(length[np.unique(who)].sum()))
