"""Patients as examples: one slot an event, behind a first slot that holds the patient."""

from __future__ import annotations

import numpy as np

from unmask.core.batch import Example
from unmask.events.meds import HOUR, STATIC, Events
from unmask.events.vocabulary import CLS, Vocabulary

YEAR = 365.25 * 24 * HOUR


class Histories:
    """The histories of a folder, numbered and scaled by a vocabulary, ready to be cut into examples."""

    def __init__(self, events: Events, vocabulary: Vocabulary) -> None:
        self.events, self.vocabulary = events, vocabulary
        self.code = vocabulary.numbers(events.codes)[events.code]
        known = self.code >= 0
        self.score = np.full(len(self.code), np.nan, np.float32)
        self.score[known] = vocabulary.scale(self.code[known], events.value[known])
        self.unknown = int((self.code == 1).sum())

    def rows(self, subject: int, prediction_time: int | None = None) -> np.ndarray:
        """Event rows of a subject known at `prediction_time`, birth left out."""
        cut = self.events.before(subject, prediction_time)
        here = np.arange(cut.start, cut.stop)
        return here[self.code[here] >= 0]

    def example(self, subject: int, *, slots: int, prediction_time: int | None = None) -> Example:
        """One patient: static events, then the latest timed ones that fit.

        Channels: code; value (normal score, 0 where none) and has; hours since the first kept timed event (the origin)
        and timed; born: age in years at the origin, the same in every slot (0 where birth is unknown). Static events
        are special: known facts, never hidden.
        """
        rows = self.rows(subject, prediction_time)
        time = self.events.time[rows]
        static = time == STATIC
        room = max(0, slots - 1 - int(static.sum()))
        timed = np.flatnonzero(~static)
        kept = np.r_[np.flatnonzero(static)[: slots - 1], timed[len(timed) - min(room, len(timed)) :]]
        rows, time, static = rows[kept], time[kept], static[kept]
        n = len(rows) + 1
        begin = int(time[~static][0]) if (~static).any() else None
        hours = np.zeros(n, np.float32)
        if begin is not None:
            hours[1:][~static] = (time[~static] - begin) / HOUR
        code = np.full(n, CLS, np.int64)
        code[1:] = self.code[rows]
        score = self.score[rows]
        has = np.isfinite(score)
        value, flag, moment = np.zeros(n, np.float32), np.zeros(n, np.int64), np.zeros(n, np.int64)
        value[1:][has], flag[1:], moment[1:] = score[has], has, ~static
        # A visit is what shares a time stamp.
        new = np.r_[True, time[1:] != time[:-1]] & ~static if len(rows) else np.zeros(0, bool)
        return Example(
            values={
                "code": code, "value": value, "has": flag, "hours": hours, "timed": moment,
                "born": np.full(n, self.age(subject, begin, prediction_time), np.float32),
            },
            identity=int(subject), special=moment == 0, unit=np.where(moment == 1, np.r_[-1, np.cumsum(new) - 1], -1),
        )  # fmt: skip

    def age(self, subject: int, moment: int | None, prediction_time: int | None = None) -> float:
        """Years from birth to `moment`; 0 where birth is not known (or not before `prediction_time`)."""
        cut = self.events.before(subject, prediction_time)
        born = np.flatnonzero((self.code[cut] == -1) & (self.events.time[cut] != STATIC))
        if not len(born) or moment is None:
            return 0.0
        return float(moment - self.events.time[cut][born[0]]) / YEAR

    def length(self, subject: int, slots: int, prediction_time: int | None = None) -> int:
        return min(slots, len(self.rows(subject, prediction_time)) + 1)
