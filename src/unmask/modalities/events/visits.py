"""What a visit is: an encounter where the data names them, else events that follow each other within hours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unmask.modalities.events.meds import HOUR, NO_VISIT


@dataclass(frozen=True, kw_only=True)
class Visits:
    """The visits of one patient.

    Attributes:
        of: (events,) number of each event's visit.
        begin: (visits,) time of each one's first event.
        encounter: (visits,) whether it is an encounter of the data.
    """

    of: np.ndarray
    begin: np.ndarray
    encounter: np.ndarray


def visits_of(time: np.ndarray, named: np.ndarray | None, gap: float) -> Visits:
    """The visits of one patient's timed events, in order of time.

    An event belongs to the encounter that it names; without one, to the encounter during which it happened (the one
    that began last, of several); else to the visit of the event before it that has none either, unless more than `gap`
    hours lie between.

    Args:
        time: (events,) microseconds, ascending.
        named: (events,) encounters, `NO_VISIT` for none; None where the data names none.
        gap: hours; with 0 every time stamp is a visit.
    """
    of = np.full(len(time), -1)
    begin: list[int] = []
    if named is not None and (named != NO_VISIT).any():
        has = np.flatnonzero(named != NO_VISIT)
        _, first, number = np.unique(named[has], return_index=True, return_inverse=True)
        rank = np.argsort(np.argsort(first, kind="stable"))  # in the order in which they begin
        of[has] = rank[number.reshape(-1)]
        starts, ends = (np.full(len(first), v) for v in (np.iinfo(np.int64).max, np.iinfo(np.int64).min))
        np.minimum.at(starts, of[has], time[has])
        np.maximum.at(ends, of[has], time[has])
        for k in range(len(starts)):  # later ones win
            of[(named == NO_VISIT) & (time >= starts[k]) & (time <= ends[k])] = k
        begin = starts.tolist()
    encounters, rest = len(begin), np.flatnonzero(of < 0)
    if len(rest):
        new = np.r_[True, np.diff(time[rest]) > gap * HOUR]
        of[rest] = encounters + np.cumsum(new) - 1
        begin += time[rest[new]].tolist()
    return Visits(of=of, begin=np.array(begin, np.int64), encounter=np.arange(len(begin)) < encounters)


__all__ = ["Visits", "visits_of"]
