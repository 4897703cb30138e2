"""Questions about what is to come, as numbers: does a code, or any of several, stand in a record within dt after t?

EveryQuery (arXiv 2603.07900) trains on such questions instead of on the next event. Here a question is a hidden slot of
the future: its codes, and the side of a value that counts, are given; whether and when it comes true is predicted.

What is known of a point in time are the events up to it, inclusive; what answers a question is strictly later. A
question is answered yes by the first such event, and no at every horizon up to the end of what was observed of the
patient; beyond that end it is not asked (`ends`).

Points in time are drawn evenly between the first event and that end, or as time stamps, each with a probability in
proportion to the gap before it: nothing in the future decides which moments are asked about. (With the same probability
for every gap, long gaps would be drawn too rarely: a code that followed within a day after .049 of all moments followed
after .153 of the moments drawn so.)

Shape letters: questions, items (codes of one question, padded), past (events known).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unmask.core.batch import Example, PackedBatch, pack
from unmask.core.hashing import Salt, uniform
from unmask.errors import UserError, setting
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.meds import BIRTH, DEATH, HOUR, OBSERVATION_END, STATIC, Events
from unmask.modalities.events.records.vocabulary import FIRST

ITEMS = 4
"""Codes of one question of the training at most."""
MOST_ITEMS = 64
"""Codes of one question that is asked at most."""
SETS = 0.25
"""Share of the drawn questions that ask for any of two to `ITEMS` codes."""
SIDED = 0.6
"""Share of the drawn items, of codes with values, that ask for values beyond one."""
TEMPER = 0.5
"""Codes are drawn by this power of the number of patients who have them, so that rare ones are asked too."""
ON_STAMPS, ON_FIRST = 0.5, 0.05
"""Share of the moments that lie on time stamps, and among them that of the first one."""
OFTEN = 12
"""Distinct times of a record from which on its last event serves as the end of observation, see `check_end_known`."""
LONGEST = 5 * 365.25 * 24
"""Hours: the longest horizon by default."""
SHORTEST = 1.0
"""Hours: the shortest horizon by default, where a thousandth of the longest one is less."""
BINS = 10
FEATURES = 16
SEEN, VALUES, BEYOND, RECORD, RHYTHM = slice(0, 4), slice(4, 9), slice(9, 12), slice(12, 14), slice(14, 16)
"""Columns of `features`, of a code: how often and how long ago it was seen; its known values (any, last, mean, least,
most); those beyond the threshold (any, how many, how long ago); of the record: events and hours; the code's gaps."""
ABOVE, BELOW = 1, -1


@dataclass(frozen=True, kw_only=True)
class Queries:
    """Questions as numbers.

    Attributes:
        code: (questions, items) code numbers, -1 where a question has fewer.
        side: (questions, items) `ABOVE` or `BELOW` where the value must lie beyond one, else 0.
        cut: (questions, items) that value, in the unit of the data; 0 without.
        score: (questions, items) the same as a normal score of the code.
        share: (questions, items) of the code's values, how many lie beyond it; 1 without.
    """

    code: np.ndarray
    side: np.ndarray
    cut: np.ndarray
    score: np.ndarray
    share: np.ndarray

    def __len__(self) -> int:
        return len(self.code)

    def some(self, chosen: np.ndarray | slice) -> Queries:
        """Some of the questions."""
        return Queries(**{n: getattr(self, n)[chosen] for n in PARTS})

    def without_values(self) -> Queries:
        """The same codes, whatever their values."""
        none = np.zeros_like(self.side)
        return Queries(code=self.code, side=none, cut=0.0 * none, score=0 * self.score, share=np.ones_like(self.share))


PARTS = ("code", "side", "cut", "score", "share")


@dataclass(frozen=True, kw_only=True)
class Came:
    """Questions about one patient at one time (`moment`, microseconds), and what came: (questions,) hours to the first
    event that answers yes, infinite where none was seen; hours to the end of what was observed; and the weight of each
    in the loss: what was drawn more often than its code's share counts for less."""

    queries: Queries
    moment: int
    first: np.ndarray
    end: float
    weight: np.ndarray


def matches(queries: Queries, code: np.ndarray, value: np.ndarray) -> np.ndarray:
    """(questions * items, events) whether an event is what the item asks for."""
    wanted, side, cut = (part.ravel()[:, None] for part in (queries.code, queries.side, queries.cut))
    beyond = (side == 0) | (side * (value - cut) > 0)  # never true of a missing value
    return (wanted == code) & beyond


def first_after(queries: Queries, hours: np.ndarray, code: np.ndarray, value: np.ndarray) -> np.ndarray:
    """(questions,) hours of the first of these events, in order of time, that answers a question; infinite where
    none does."""
    if not len(hours):
        return np.full(len(queries), np.inf)
    found = matches(queries, code, value)
    when = np.where(found.any(1), hours[found.argmax(1)], np.inf)
    return when.reshape(queries.code.shape).min(1)


def ends(events: Events, learnt_from: np.ndarray, until: int | None = None) -> np.ndarray:
    """(subjects,) the end of what was observed of each, microseconds: `until`, to which everybody was observed, or else
    the last event (an `meds.OBSERVATION_END` where the data says so).

    Nothing more comes of a patient who died, but "no" is known for good: such a patient counts as observed as long as
    another would have been (the length of the record of a drawn living patient, death itself at least), so that deaths
    are neither asked about more often than lives nor cut off by themselves (Fine and Gray 1999, section 3).
    """
    first, last = np.full(len(events), STATIC), np.full(len(events), STATIC)
    dead, deadly, births = np.zeros(len(events), bool), events.begins(DEATH), events.begins(BIRTH)
    for i in range(len(events)):
        time, code = _timed(events, i, births)
        if len(time):
            first[i], last[i] = time[0], time[-1]
            dead[i] = bool(deadly[code].any())
    if until is not None:
        behind = np.flatnonzero(last > until)
        if len(behind):
            latest = np.datetime64(int(last.max()), "us").astype("datetime64[D]")
            raise UserError(
                f"{len(behind):,} patients have events after until, such as {int(events.subjects[behind[0]])}; the "
                f"last event is of {latest}",
                hint="until is the time up to which everybody's record was written: the extract's date.",
            )
        return np.where(last == STATIC, STATIC, until)
    living = np.intersect1d(learnt_from, np.flatnonzero(~dead & (last != STATIC)))
    if len(living) and dead.any():
        drawn = living[(uniform(events.subjects[dead], Salt.QUESTION_END) * len(living)).astype(np.int64)]
        last[dead] = np.maximum(last[dead], first[dead] + last[drawn] - first[drawn])
    return last


def _timed(events: Events, subject: int, births: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Times, in order, and codes of a subject's events that have a time, births left out."""
    here = slice(int(events.offsets[subject]), int(events.offsets[subject + 1]))
    time, code = events.time[here], events.code[here]
    usable = (time != STATIC) & ~births[code]
    return time[usable], code[usable]


def check_end_known(events: Events, learnt_from: np.ndarray) -> None:
    """Refuse to take the last event for the end of observation where visits are rare.

    Of a record with one visit per year half a year of silence is lost, on average, by ending it at the last visit: what
    comes then seems to come sooner, by a third. With twelve and more times per record it is about a hundredth.
    """
    if events.begins(OBSERVATION_END).any():
        return
    births = events.begins(BIRTH)
    count = [len(np.unique(_timed(events, i, births)[0])) for i in learnt_from.tolist()]
    usual = float(np.median([c for c in count if c] or [OFTEN]))
    if usual < OFTEN:
        raise UserError(
            f"records have {usual:g} times each (median), and nothing says until when patients were observed: silence "
            "after the last one would not count",
            hint=f"{setting('until', '2024-06-30')}, the day of the extract, or events {OBSERVATION_END} (OMOP's "
            f"observation_period_end_date); {setting('until', 'last')} where the last event is the end, such as a "
            "discharge.",
        )


def horizons(
    events: Events, learnt_from: np.ndarray, last: np.ndarray, shortest: float | None, longest: float | None
) -> np.ndarray:
    """(BINS,) upper edges of the horizons' bins, hours, evenly on the log scale; `last`: `ends` of all. By default the
    longest is that which nine in ten records are as long as, at most five years, and the shortest a thousandth of it,
    at least an hour."""
    births = events.begins(BIRTH)
    times = ((i, _timed(events, i, births)[0]) for i in learnt_from.tolist())
    length = [float(last[i] - time[0]) / HOUR for i, time in times if len(time)]
    if longest is None:
        longest = min(LONGEST, float(np.quantile(length, 0.9)) if length else 24.0)
    longest = max(longest, 2 * SHORTEST if shortest is None else 2 * shortest)
    shortest = max(SHORTEST, longest / 1000) if shortest is None else shortest
    return np.geomspace(shortest, longest, BINS)


class QueryDraws:
    """Draws questions about patients, and says what came; all of it a pure function of (seed, epoch, patient). `last`:
    `ends` of all; `share`: (codes,) how often each is asked for, 0 where no training patient ever has it with a time.
    """

    def __init__(self, histories: Histories, last: np.ndarray, share: np.ndarray) -> None:
        self.histories, self.last, self.share = histories, last, share
        self._summed = np.cumsum(share)
        self._valued = histories.vocabulary.valued
        self._deadly = histories.events.begins(DEATH)

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
        """`count` questions about a patient at one drawn time; None where none can be asked then: nothing is known yet,
        the patient is dead, or observation has ended."""
        events, histories = self.histories.events, self.histories
        rows = histories.rows(subject)
        rows = rows[events.time[rows] != STATIC]
        time = events.time[rows]
        stamps, end = np.unique(time), int(self.last[subject])
        if not len(stamps) or end <= stamps[0] or not self._summed[-1]:
            return None
        numbers = np.arange(3 + 2 * count + 3 * count * ITEMS)
        u = uniform(seed, epoch, int(subject), numbers, Salt.QUESTIONS)
        moment = int(stamps[0]) + int(u[0] * (end - stamps[0]))
        if u[1] < ON_STAMPS:  # the next time stamp, so that one is drawn by the gap before it
            at = int(np.searchsorted(stamps, moment)) if u[2] >= ON_FIRST else 0
            if at == len(stamps):
                return None
            moment = int(stamps[at])
        known = rows[: np.searchsorted(time, moment, side="right")]
        if moment >= end or self._deadly[events.code[known]].any():
            return None
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
        again = (code[:, :, None] == code[:, None]) & np.tri(ITEMS, k=-1, dtype=bool)  # a set names a code once
        code = np.where(again.any(-1), -1, code)
        sided = np.where(side < SIDED, np.where(side < SIDED / 2, ABOVE, BELOW), 0)
        sided = np.where((code >= 0) & self._valued[code], sided, 0)
        # Levels of the values: half of them even, a quarter in either tail, evenly on the log scale down to .2 %.
        tail = np.exp(np.log(0.002) + np.where(height < 0.25, height, np.abs(1 - height)) / 0.25 * np.log(0.25 / 0.002))
        level = np.where(height > 0.75, 1 - tail, 0.02 + 0.96 * (2 * height - 0.5))
        level, cut = np.where(height < 0.25, tail, level), np.zeros(code.shape)
        for place in zip(*np.nonzero(sided), strict=True):
            cut[place] = histories.vocabulary.at(int(code[place]), float(level[place]))
        questions = made(histories, code, sided, cut)
        hours = (events.time[later] - moment) / HOUR
        first = first_after(questions, hours, histories.code[later], events.value[later])
        return Came(
            queries=questions, moment=moment, first=first, end=float(self.last[subject] - moment) / HOUR, weight=weight
        )


def made(histories: Histories, code: np.ndarray, side: np.ndarray, cut: np.ndarray) -> Queries:
    """Questions from their codes, sides and values."""
    share = np.ones(code.shape, np.float32)
    for place in zip(*np.nonzero(side), strict=True):
        share[place] = histories.vocabulary.beyond(int(code[place]), float(cut[place]), int(side[place]))
    score = np.where(side != 0, histories.vocabulary.scale(code.ravel(), cut.ravel()).reshape(code.shape), 0)
    return Queries(code=code, side=side, cut=cut, score=np.nan_to_num(score).astype(np.float32), share=share)


def features(histories: Histories, queries: Queries, subject: int, moment: int) -> np.ndarray:
    """(questions, items, FEATURES) what the known events say of each item: how often, how long ago, at which values.
    Attention can learn to count and to look up, but not from few patients, so these simple facts are inputs."""
    events = histories.events
    rows = histories.rows(subject, moment)
    time = events.time[rows]
    timed = time != STATIC
    code, score, value = histories.code[rows], histories.score[rows], events.value[rows]
    ago = np.where(timed, (moment - time) / HOUR, 0.0)
    span = float(ago[timed].max(initial=0.0))
    flat = queries.code.ravel()
    out = np.zeros((len(flat), FEATURES), np.float32)
    out[:, RECORD] = np.log1p(len(rows)) / 3, _squashed(span)
    names, place = np.unique(flat, return_inverse=True)
    order = np.argsort(code, kind="stable")
    low, high = (np.searchsorted(code[order], names, side=s) for s in ("left", "right"))
    side, cut = queries.side.ravel(), queries.cut.ravel()
    about = np.zeros((len(names), FEATURES), np.float32)
    for n, (begin, stop) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        if names[n] < 0 or begin == stop:
            continue
        these = order[begin:stop]
        when, x = ago[these], score[these]
        about[n, SEEN] = 1, np.log1p(len(these)) / 3, _squashed(when[-1]), np.log1p(len(these) * 24 / (span + 24)) / 3
        if len(these) > 1:
            gap = (when[0] - when[-1]) / (len(these) - 1)
            about[n, RHYTHM] = _squashed(gap), min(when[-1] / (gap + 1e-3), 5.0) / 5
        x = x[np.isfinite(x)]
        if len(x):
            about[n, VALUES] = 1, x[-1], x.mean(), x.min(), x.max()
    for part in (SEEN, VALUES, RHYTHM):
        out[:, part] = about[place, part]
    for i in np.flatnonzero(side).tolist():
        these = order[low[place[i]] : high[place[i]]]
        beyond = np.flatnonzero(side[i] * (value[these] - cut[i]) > 0)
        if len(beyond):
            out[i, BEYOND] = 1, np.log1p(len(beyond)) / 3, _squashed(ago[these[beyond[-1]]])
    return out.reshape(*queries.code.shape, FEATURES)


def _squashed(hours: float) -> float:
    return float(np.log1p(max(hours, 0.0))) / 3


def joined(parts: Sequence[Queries]) -> Queries:
    """Questions one after the other."""
    return Queries(**{n: np.concatenate([getattr(p, n) for p in parts]) for n in PARTS})


QUERIES, HISTORY = "query.", "history."
CONTEXT = ("segment", "position")


def with_questions(
    make: Callable[[list[list[int]], int], PackedBatch], draws: QueryDraws, *, slots: int, count: int, seed: int
) -> Callable[..., PackedBatch]:
    """A maker of batches that lays `count` questions per patient beside what `make` makes, drawn anew each epoch."""

    def made(rows: list[list[int]], number: int, epoch: int = 0) -> PackedBatch:
        batch = make(rows, number)
        came = [[draws.draw(i, count, seed=seed, epoch=epoch) for i in row] for row in rows]
        extra_values = query_batch(draws.histories, rows, came, slots=slots, number=number)
        return dataclasses.replace(batch, extra=batch.extra | extra_values)

    return made


def query_batch(
    histories: Histories,
    rows: Sequence[Sequence[int]],
    came: Sequence[Sequence[Came | None]],
    *,
    slots: int,
    number: int,
) -> dict[str, Tensor]:
    """The histories of a batch's patients as they were known when asked, and the questions, row by row."""
    examples: list[Example] = []
    placement: list[list[int]] = []
    questions: list[list[tuple[int, Came, np.ndarray]]] = []
    for row, answers in zip(rows, came, strict=True):
        placement.append(list(range(len(examples), len(examples) + len(row))))
        questions.append([])
        for place, (subject, answer) in enumerate(zip(row, answers, strict=True)):
            moment = None if answer is None else answer.moment
            examples.append(histories.example(subject, moment, slots=slots, requested=moment))
            if answer is not None:
                context = features(histories, answer.queries, subject, answer.moment)
                questions[-1].append((place + 1, answer, context))
    batch = pack(examples, slots=slots, rows=number, placement=placement)
    out = {f"{HISTORY}{name}": value for name, value in batch.values.items()}
    out |= {f"{HISTORY}.{name}": getattr(batch, name) for name in CONTEXT}
    room = empty(number, max([1, *(sum(len(answer.queries) for _, answer, _ in parts) for parts in questions)]))
    for r, parts in enumerate(questions):
        start = 0
        for segment, answer, context in parts:
            here = (r, slice(start, start + len(answer.queries)))
            put(room, here, answer.queries, context, segment)
            room["first"][here], room["end"][here], room["weight"][here] = answer.first, answer.end, answer.weight
            start += len(answer.queries)
    return out | {f"{QUERIES}{name}": torch.from_numpy(value) for name, value in room.items()}


def empty(rows: int, most: int, items: int = ITEMS) -> dict[str, np.ndarray]:
    """Room for `most` questions per row; segment 0 where none stands."""
    out: dict[str, np.ndarray] = {name: np.zeros((rows, most), np.float64) for name in ("first", "end", "weight")}
    out |= {"segment": np.zeros((rows, most), np.int64), "code": np.full((rows, most, items), -1, np.int64)}
    out |= {"side": np.zeros((rows, most, items), np.int64), "score": np.zeros((rows, most, items), np.float32)}
    out |= {"share": np.ones((rows, most, items), np.float32)}
    return out | {"features": np.zeros((rows, most, items, FEATURES), np.float32)}


def put(out: dict[str, np.ndarray], here: tuple[int, slice], some: Queries, context: np.ndarray, segment: int) -> None:
    """Lay questions about one history into their room."""
    out["segment"][here], out["features"][here] = segment, context
    for name in ("code", "side", "score", "share"):
        out[name][here] = getattr(some, name)


def questions_in(extra: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The questions that `query_batch` laid beside a batch; empty where nothing is asked."""
    return {name.removeprefix(QUERIES): value for name, value in extra.items() if name.startswith(QUERIES)}


def history_of(extra: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """(values, segment, position) of the histories that the questions beside a batch are asked of."""
    found = {name.removeprefix(HISTORY): value for name, value in extra.items() if name.startswith(HISTORY)}
    segment, position = (found.pop(f".{name}") for name in CONTEXT)
    return found, segment, position
