"""Encounters that the data name, as intervals, and visits, which events without an encounter are counted to as well."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from unmask.modalities.events.records.meds import HOUR, NO_VISIT, Events


@dataclass(frozen=True, kw_only=True)
class Encounters:
    """The encounters of some patients: whose each is, and the times of its first and last event; the `rows` (events,)
    that have one, and which it is (`of`)."""

    subject: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    rows: np.ndarray
    of: np.ndarray

    def __len__(self) -> int:
        return len(self.subject)


def encounters(events: Events, owners: slice, here: slice, chosen: np.ndarray | None = None) -> Encounters:
    """The encounters of the subjects `owners`, whose events are `here`; of the `chosen` ones among those alone."""
    assert events.visit is not None
    visit = events.visit[here]
    has = visit != NO_VISIT
    usable = np.flatnonzero(has if chosen is None else has & chosen)
    subject = events.owner(owners)
    subject, visit, time = subject[usable], visit[usable], events.time[here][usable]
    order = np.lexsort((time, visit, subject))
    ordered = subject[order], visit[order]
    new = np.r_[True, (ordered[0][1:] != ordered[0][:-1]) | (ordered[1][1:] != ordered[1][:-1])][: len(order)]
    first = np.flatnonzero(new)
    last = np.r_[first[1:], len(order)][: len(first)] - 1
    of = np.zeros(len(order), np.int64)
    of[order] = np.cumsum(new) - 1
    return Encounters(
        subject=ordered[0][first], begin=time[order[first]], end=time[order[last]], rows=usable + here.start, of=of
    )


BEGINS = re.compile(r"^(?:(?:HOSPITAL_)?ADMISSION|ENCOUNTER(?:_START)?|VISIT(?:_START)?)(?://|$)|^Visit/")
ENDS = re.compile(r"^(?:(?:HOSPITAL_)?DISCHARGE|ENCOUNTER_END|VISIT_END)(?://|$)")
"""Codes of an encounter's own events: what begins it and what ends it."""


@dataclass(frozen=True, kw_only=True)
class Visits:
    """The visits of one patient: the number of each event's (`of`); when each one begins, at its encounter's own event
    (an admission), else its first event; and whether it is an encounter of the data."""

    of: np.ndarray
    begin: np.ndarray
    encounter: np.ndarray


def own_events(events: Events) -> np.ndarray:
    """(codes,) 1 where a code begins an encounter, -1 where it ends one, else 0."""
    return np.array([1 if BEGINS.search(c) else -1 if ENDS.search(c) else 0 for c in events.codes], np.int8)


def extents(of: np.ndarray, count: int, time: np.ndarray, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Begin and end of each of `count` encounters: the times of its own events (admission, discharge), for one row with
    a wrong time would move a stay by a year; without these, those of its first and last event. `of`: (events,) number
    of each event's encounter; `own`: (events,) as `own_events` has it of their codes."""
    out = []
    for kind, furthest, none in ((1, np.minimum, np.iinfo(np.int64).max), (-1, np.maximum, np.iinfo(np.int64).min)):
        reported, seen = np.full(count, none), np.full(count, none)
        of_kind = own == kind
        furthest.at(reported, of[of_kind], time[of_kind])
        furthest.at(seen, of, time)
        out.append(np.where(reported == none, seen, reported))
    begin, end = out
    return begin, np.maximum(begin, end)


def visits_of(time: np.ndarray, named: np.ndarray | None, gap: float, own: np.ndarray | None = None) -> Visits:
    """The visits of one patient's timed events, in order of time.

    An event belongs to the encounter that it names (none of them for `NO_VISIT`, or where `named` is None); without
    one, to the encounter during which it happened (the one that began last, of several); else to the visit of the event
    before it that has none either, unless more than `gap` hours lie between (with 0 every time stamp is a visit). `own`
    is as `own_events` says of their codes.
    """
    of = np.full(len(time), -1)
    begin: list[int] = []
    if named is not None and (named != NO_VISIT).any():
        has = np.flatnonzero(named != NO_VISIT)
        _, first, number = np.unique(named[has], return_index=True, return_inverse=True)
        number = number.reshape(-1)
        kinds = np.zeros(len(has), np.int8) if own is None else own[has]
        starts, ends = extents(number, len(first), time[has], kinds)
        turn = np.lexsort((first, starts))  # in the order in which they begin
        of[has] = np.argsort(turn)[number]
        starts, ends = starts[turn], ends[turn]
        for k in range(len(starts)):  # later ones win
            of[(named == NO_VISIT) & (time >= starts[k]) & (time <= ends[k])] = k
        begin = starts.tolist()
    encounters, rest = len(begin), np.flatnonzero(of < 0)
    if len(rest):
        new = np.r_[True, np.diff(time[rest]) > gap * HOUR]
        of[rest] = encounters + np.cumsum(new) - 1
        begin += time[rest[new]].tolist()
    return Visits(of=of, begin=np.array(begin, np.int64), encounter=np.arange(len(begin)) < encounters)
