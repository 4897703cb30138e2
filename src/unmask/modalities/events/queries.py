"""Questions about what is to come, as numbers: does a code, or any of several, stand in a record within dt after t?

EveryQuery (arXiv 2603.07900) trains on such questions instead of on the next event. Here a question is a hidden slot of
the future: its codes, and the side of a value that counts, are told; whether and when it comes true is predicted.

What is known of a point in time are the events up to it, inclusive; what answers a question is strictly later. A
question is answered yes by the first such event, and no at every horizon up to the end of what was observed of the
patient; beyond that end it is not asked (`ends`).

Shape letters: questions, items (codes of one question, padded), past (events known).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unmask.core.hashing import Salt, uniform
from unmask.modalities.events.histories import Histories
from unmask.modalities.events.meds import DEATH, HOUR, STATIC, Events
from unmask.modalities.events.vocabulary import FIRST

ITEMS = 4
"""Codes of one question at most."""
SETS = 0.25
"""Share of the drawn questions that ask for any of two to `ITEMS` codes."""
SIDED = 0.6
"""Share of the drawn items, of codes with values, that ask for values beyond one."""
TEMPER = 0.5
"""Codes are drawn by this power of the number of patients who have them, so that rare ones are asked too."""
LONGEST = 5 * 365.25 * 24
"""Hours: the longest horizon by default."""
SHORTEST = 1.0
"""Hours: the shortest horizon by default, where a thousandth of the longest one is less."""
BINS = 10
FEATURES = 16
ABOVE, BELOW = 1, -1


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Questions as numbers.

    Attributes:
        code: (questions, items) code numbers, -1 where a question has fewer.
        side: (questions, items) `ABOVE` or `BELOW` where the value must lie beyond one, else 0.
        cut: (questions, items) that value, in the unit of the data; 0 without.
        score: (questions, items) the same as a normal score of the code.
    """

    code: np.ndarray
    side: np.ndarray
    cut: np.ndarray
    score: np.ndarray

    def __len__(self) -> int:
        return len(self.code)

    def some(self, chosen: np.ndarray | slice) -> Asked:
        """Some of the questions."""
        return Asked(code=self.code[chosen], side=self.side[chosen], cut=self.cut[chosen], score=self.score[chosen])


@dataclass(frozen=True, kw_only=True)
class Came:
    """Questions about one patient at one time, and what came.

    Attributes:
        moment: the time they are asked at, microseconds.
        first: (questions,) hours to the first event that answers yes; infinite where none was seen.
        end: hours to the end of what was observed.
        weight: (questions,) of each in the loss: what was drawn more often than its code's share counts for less.
    """

    asked: Asked
    moment: int
    first: np.ndarray
    end: float
    weight: np.ndarray


def matches(asked: Asked, code: np.ndarray, value: np.ndarray) -> np.ndarray:
    """(questions * items, events) whether an event is what the item asks for."""
    wanted, side, cut = (part.ravel()[:, None] for part in (asked.code, asked.side, asked.cut))
    beyond = (side == 0) | (side * (value - cut) > 0)  # never true of a missing value
    return (wanted == code) & beyond


def first_after(asked: Asked, hours: np.ndarray, code: np.ndarray, value: np.ndarray) -> np.ndarray:
    """(questions,) hours of the first of these events, in order of time, that answers a question; infinite where
    none does."""
    if not len(hours):
        return np.full(len(asked), np.inf)
    found = matches(asked, code, value)
    when = np.where(found.any(1), hours[found.argmax(1)], np.inf)
    return when.reshape(asked.code.shape).min(1)


def ends(events: Events, learnt_from: np.ndarray) -> np.ndarray:
    """(subjects,) the end of what was observed of each, microseconds: the last event.

    Nothing more comes of a patient who died, but "no" is known for good: such a patient counts as observed as long as
    another would have been (the length of the record of a drawn living patient, death itself at least), so that deaths
    are neither asked about more often than lives nor cut off by themselves (Fine and Gray 1999, section 3).
    """
    first, last = np.full(len(events), STATIC), np.full(len(events), STATIC)
    dead, deadly = np.zeros(len(events), bool), events.begins(DEATH)
    for i in range(len(events)):
        here = slice(int(events.offsets[i]), int(events.offsets[i + 1]))
        time = events.time[here]
        timed = np.searchsorted(time, STATIC, side="right")
        if timed < len(time):
            first[i], last[i] = time[timed], time[-1]
            dead[i] = bool(deadly[events.code[here]].any())
    living = np.intersect1d(learnt_from, np.flatnonzero(~dead & (last != STATIC)))
    if len(living) and dead.any():
        drawn = living[(uniform(events.subjects[dead], Salt.QUESTION_END) * len(living)).astype(np.int64)]
        last[dead] = np.maximum(last[dead], first[dead] + last[drawn] - first[drawn])
    return last


def horizons(events: Events, learnt_from: np.ndarray, shortest: float | None, longest: float | None) -> np.ndarray:
    """(BINS,) upper edges of the horizons' bins, hours, evenly on the log scale. By default the longest is that which
    nine in ten records are as long as, at most five years, and the shortest a thousandth of it, at least an hour."""
    length = []
    for i in learnt_from.tolist():
        time = events.time[int(events.offsets[i]) : int(events.offsets[i + 1])]
        timed = int(np.searchsorted(time, STATIC, side="right"))
        if timed < len(time):
            length.append(float(time[-1] - time[timed]) / HOUR)
    if longest is None:
        longest = min(LONGEST, float(np.quantile(length, 0.9)) if length else 24.0)
    longest = max(longest, 2 * SHORTEST if shortest is None else 2 * shortest)
    shortest = max(SHORTEST, longest / 1000) if shortest is None else shortest
    return np.geomspace(shortest, longest, BINS)


class QueryDraws:
    """Draws questions about patients, and says what came; all of it a pure function of (seed, epoch, patient).

    Args:
        learnt_from: numbers of the training patients: which codes are asked for comes from them alone.
        last: `ends` of all.

    Attributes:
        share: (codes,) how often each code is asked for; 0 of codes that no training patient ever has with a time.
    """

    def __init__(self, histories: Histories, learnt_from: np.ndarray, last: np.ndarray, share: np.ndarray) -> None:
        self.histories, self.last, self.share = histories, last, share
        self._summed = np.cumsum(share)
        self._valued = histories.vocabulary.valued

    @staticmethod
    def shares(histories: Histories, learnt_from: np.ndarray) -> np.ndarray:
        """(codes,) `share` by the records of the training patients."""
        patients = np.zeros(len(histories.vocabulary))
        for i in learnt_from.tolist():
            rows = histories.events.before(i, None)
            timed = histories.events.time[rows] != STATIC
            patients[np.unique(histories.code[rows][timed])] += 1
        patients[:FIRST] = 0
        share = patients**TEMPER
        return share / max(share.sum(), 1e-9)

    def draw(self, subject: int, count: int, *, seed: int, epoch: int) -> Came | None:
        """`count` questions about a patient at one drawn time; None where the record has fewer than two times."""
        events, histories = self.histories.events, self.histories
        rows = histories.rows(subject)
        rows = rows[events.time[rows] != STATIC]
        time = events.time[rows]
        stamps = np.unique(time)
        if len(stamps) < 2 or not self._summed[-1]:
            return None
        numbers = np.arange(3 + 2 * count + 3 * count * ITEMS)
        u = uniform(seed, epoch, int(subject), numbers, Salt.QUESTIONS)
        at = int(u[0] * (len(stamps) - 1))
        moment = int(stamps[at])
        if u[1] < 0.5:  # between two time stamps
            moment += int(u[2] * (stamps[at + 1] - stamps[at] - 1))
        later = rows[np.searchsorted(time, moment, side="right") :]
        mode, size, per_item = u[3 : 3 + count], u[3 + count : 3 + 2 * count], u[3 + 2 * count :]
        which, side, height = per_item.reshape(3, count, ITEMS)
        code = np.searchsorted(self._summed, which * self._summed[-1], side="right").clip(max=len(self.share) - 1)
        weight = np.ones(count)
        coming = np.unique(histories.code[later])
        coming = coming[(coming >= FIRST) & (self.share[coming] > 0)]
        if len(coming):
            # Half of the questions begin with a code that will stand in the record. Each counts by how much more
            # often it is drawn so than by its share alone: answers stay calibrated, and rare ones are seen.
            toward = mode < 0.5
            code[toward, 0] = coming[(which[toward, 0] * len(coming)).astype(np.int64)]
            drawn = 0.5 * self.share[code[:, 0]] + 0.5 * np.isin(code[:, 0], coming) / len(coming)
            weight = self.share[code[:, 0]] / drawn
        items = np.where(size < SETS, 2 + (size / SETS * (ITEMS - 1)).astype(np.int64), 1)
        code = np.where(np.arange(ITEMS) < items[:, None], code, -1)
        sided = np.where(side < SIDED, np.where(side < SIDED / 2, ABOVE, BELOW), 0)
        sided = np.where((code >= 0) & self._valued[code], sided, 0)
        asked = self._with_cuts(code, sided, 0.02 + 0.96 * height)
        hours = (events.time[later] - moment) / HOUR
        first = first_after(asked, hours, histories.code[later], events.value[later])
        return Came(
            asked=asked, moment=moment, first=first, end=float(self.last[subject] - moment) / HOUR, weight=weight
        )

    def _with_cuts(self, code: np.ndarray, side: np.ndarray, height: np.ndarray) -> Asked:
        """With values drawn at these quantiles of each code's values."""
        vocabulary, cut = self.histories.vocabulary, np.zeros(code.shape)
        for place in zip(*np.nonzero(side), strict=True):
            knots = vocabulary.knots[code[place]]
            cut[place] = np.interp(height[place] * (len(knots) - 1), np.arange(len(knots)), knots)
        return made(self.histories, code, side, cut)


def made(histories: Histories, code: np.ndarray, side: np.ndarray, cut: np.ndarray) -> Asked:
    """Questions from their codes, sides and values."""
    score = np.where(side != 0, histories.vocabulary.scale(code.ravel(), cut.ravel()).reshape(code.shape), 0)
    return Asked(code=code, side=side, cut=cut, score=np.nan_to_num(score).astype(np.float32))


def features(histories: Histories, asked: Asked, subject: int, moment: int) -> np.ndarray:
    """(questions, items, FEATURES) what the known events say of each item: how often, how long ago, at which values.

    Attention can learn to count and to look up, but not from few patients: what is plain is told.
    """
    events = histories.events
    rows = histories.rows(subject, moment)
    time = events.time[rows]
    timed = time != STATIC
    code, score, value = histories.code[rows], histories.score[rows], events.value[rows]
    ago = np.where(timed, (moment - time) / HOUR, 0.0)
    span = float(ago[timed].max(initial=0.0))
    flat = asked.code.ravel()
    out = np.zeros((len(flat), FEATURES), np.float32)
    out[:, 12], out[:, 13] = np.log1p(len(rows)) / 3, _squashed(span)
    names, place = np.unique(flat, return_inverse=True)
    order = np.argsort(code, kind="stable")
    low, high = (np.searchsorted(code[order], names, side=s) for s in ("left", "right"))
    side, cut = asked.side.ravel(), asked.cut.ravel()
    about = np.zeros((len(names), FEATURES), np.float32)
    for n, (begin, stop) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        if names[n] < 0 or begin == stop:
            continue
        mine = order[begin:stop]
        when, x = ago[mine], score[mine]
        about[n, :4] = 1, np.log1p(len(mine)) / 3, _squashed(when[-1]), np.log1p(len(mine) * 24 / (span + 24)) / 3
        if len(mine) > 1:
            gap = (when[0] - when[-1]) / (len(mine) - 1)
            about[n, 14], about[n, 15] = _squashed(gap), min(when[-1] / (gap + 1e-3), 5.0) / 5
        x = x[np.isfinite(x)]
        if len(x):
            about[n, 4:9] = 1, x[-1], x.mean(), x.min(), x.max()
    out[:, :9], out[:, 14:] = about[place, :9], about[place, 14:]
    for i in np.flatnonzero(side).tolist():
        mine = order[low[place[i]] : high[place[i]]]
        beyond = np.flatnonzero(side[i] * (value[mine] - cut[i]) > 0)
        if len(beyond):
            out[i, 9:12] = 1, np.log1p(len(beyond)) / 3, _squashed(ago[mine[beyond[-1]]])
    return out.reshape(*asked.code.shape, FEATURES)


def _squashed(hours: float) -> float:
    return float(np.log1p(max(hours, 0.0))) / 3


def joined(parts: Sequence[Asked]) -> Asked:
    """Questions one after the other."""
    return Asked(**{n: np.concatenate([getattr(p, n) for p in parts]) for n in ("code", "side", "cut", "score")})
