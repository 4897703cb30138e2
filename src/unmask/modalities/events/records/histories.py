"""Patients as examples: one slot per event, after a first slot that holds the patient and the prediction time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np

from unmask.core.batch import Example, PackedBatch
from unmask.core.inference import packed_batches
from unmask.modalities.events.records.meds import BIRTH, HOUR, STATIC, Events, Labels
from unmask.modalities.events.records.vocabulary import (
    CLS,
    FIRST,
    LONG,
    MONTHS,
    RARE,
    SEP,
    VISIT_END,
    VISIT_START,
    WEEKS,
    Vocabulary,
)
from unmask.progress import counted

YEAR = 365.25 * 24 * HOUR
BLOCK = 1024
"""Examples held at once."""


class LazyColumn:
    """A column of all events, indexed like an array and computed for the events that are indexed."""

    def __init__(self, of: Callable[[Any], np.ndarray]) -> None:
        self._of = of

    def __getitem__(self, rows: Any) -> Any:
        """Of some events: a slice or numbers; or of one."""
        if np.ndim(rows) == 0 and not isinstance(rows, slice):
            return self._of(np.array([rows]))[0]
        return self._of(rows)


class Histories:
    """The histories of a folder, ready to be cut into examples.

    `code` (number in the vocabulary, below 0 for what is no slot) and `score` (normal score, NaN where none) are
    computed for the events that are indexed, some two million per second; nothing more is kept per event.

    Args:
        marks: slots between visits, see `recipes.Structure`.
    """

    def __init__(self, events: Events, vocabulary: Vocabulary, marks: str = "none") -> None:
        self.events, self.vocabulary, self.marks = events, vocabulary, marks
        numbers = vocabulary.numbers(events.codes)
        self.code = LazyColumn(lambda rows: numbers[events.code[rows]])
        self.score = LazyColumn(lambda rows: vocabulary.scale(self.code[rows], events.value[rows]))
        self._numbers, self._births = numbers, events.begins(BIRTH)

    @cached_property
    def unknown(self) -> dict[str, int]:
        """Codes that the vocabulary does not have, and how many events each has; most frequent first."""
        counts = np.zeros(len(self._numbers), np.int64)
        for _, here in self.events.blocks():
            counts += np.bincount(self.events.code[here], minlength=len(counts))
        rare = np.flatnonzero((self._numbers == RARE) & (counts > 0))
        return {self.events.codes[i]: int(counts[i]) for i in rare[np.argsort(-counts[rare], kind="stable")]}

    def lengths(self) -> np.ndarray:
        """(subjects,) slots of every whole history, however long, the first among them: `length` of all at once."""
        out = np.ones(len(self.events), np.int64)
        between = {"none": 0, "sep": 1, "visit": 3}[self.marks]
        for owners, here in self.events.blocks():
            count = owners.stop - owners.start
            owner = np.repeat(np.arange(count), np.diff(self.events.offsets[owners.start : owners.stop + 1]))
            kept = self.code[here] >= 0
            owner, time = owner[kept], self.events.time[here][kept]
            out[owners] += np.bincount(owner, minlength=count)
            if between:
                timed = time != STATIC
                owner, time = owner[timed], time[timed]
                first = np.r_[True, (owner[1:] != owner[:-1]) | (time[1:] != time[:-1])][: len(owner)]
                visits = np.bincount(owner[first], minlength=count)
                # No time token stands before the first visit.
                out[owners] += between * visits - ((visits > 0) & (self.marks == "visit"))
        return out

    def rows(self, subject: int, prediction_time: int | None = None) -> np.ndarray:
        """Event rows of a subject known at `prediction_time`, birth left out; those of one time stamp in canonical
        order (by code, then value), whatever their order in the file."""
        cut = self.events.before(subject, prediction_time)
        here = np.arange(cut.start, cut.stop)
        here = here[self.code[here] >= 0]
        e = self.events
        return here[canonical(e.time[here], self.code[here], e.code[here], e.value[here])]

    def known(self, subject: int, prediction_time: int | None = None) -> int:
        """How many events of a subject are known at `prediction_time`, birth left out."""
        return int(np.count_nonzero(self.code[self.events.before(subject, prediction_time)] >= 0))

    def slots_of(self, subject: int, prediction_time: int | None = None) -> tuple[np.ndarray, np.ndarray, int]:
        """Event row and code number of every slot behind the first, uncut, and how many of them are static. A mark has
        the row of the event next to it, and a code number of its own."""
        rows = self.rows(subject, prediction_time)
        time = self.events.time[rows]
        static = int(np.searchsorted(time, STATIC, side="right"))
        code = self.code[rows]
        if self.marks == "none" or static == len(rows):
            return rows, code, static
        first = static + np.flatnonzero(np.r_[True, time[static + 1 :] != time[static:-1]])
        last = np.r_[first[1:], len(rows)]
        if self.marks == "sep":
            where, mark, neighbour = last, np.full(len(last), SEP), last - 1
        else:
            gap = np.r_[0, time[first[1:]] - time[last[:-1] - 1]]
            marks = np.stack([time_token(gap), np.full(len(first), VISIT_START), np.full(len(first), VISIT_END)], 1)
            where = np.stack([first, first, last], 1).ravel()[1:]
            mark, neighbour = marks.ravel()[1:], np.stack([first, first, last - 1], 1).ravel()[1:]
        return np.insert(rows, where, rows[neighbour]), np.insert(code, where, mark), static

    def cut(
        self, subject: int, prediction_time: int | None = None, *, slots: int
    ) -> tuple[np.ndarray, np.ndarray, int]:
        """As `slots_of`, of the slots that fit a model of `slots` slots: facts without a time, and the latest others;
        whole time stamps, where the last one fits."""
        rows, codes, static = self.slots_of(subject, prediction_time)
        begin = static + first_fitting(self.events.time[rows[static:]], max(0, slots - 1 - static))
        kept = np.r_[np.arange(static)[: slots - 1], np.arange(begin, len(rows))]
        return rows[kept], codes[kept], min(static, slots - 1)

    def example(
        self, subject: int, prediction_time: int | None = None, *, slots: int, requested: int | None = None
    ) -> Example:
        """One patient: static events, then the latest timed ones that fit.

        Channels, one number per slot:
            code, timed: number in the vocabulary; 1 where the event has a time.
            value, has_value: normal score (0 without one); 1 where there is one.
            hours: since the first kept timed event, the origin.
            age_at_start, start_year: years from birth to the origin (0 where birth is unknown), and from 1970 to it.
            visit: number of the visit, from 1; 0 at static events.
            prediction_hours: from the origin to the time of asking; -1 where the model does not know it.

        Static events and marks are special: never hidden. The position of a slot is the rank of its time stamp, 0 at
        static events.

        Args:
            requested: time of the prediction (microseconds), which the model then knows: that of the first slot, and
                the origin where no timed event comes before it. None: the model does not know it.
        """
        rows, codes, static = self.cut(subject, prediction_time, slots=slots)
        n = len(rows) + 1
        time = self.events.time[rows]
        begin = int(time[static]) if static < len(rows) else requested
        code = np.r_[CLS, codes].astype(np.int64)
        mark = (code >= SEP) & (code < FIRST)
        hours, value = np.zeros(n, np.float32), np.zeros(n, np.float32)
        if begin is not None:
            hours[1 + static :] = (time[static:] - begin) / HOUR
        timed = (np.arange(n) > static).astype(np.int64)
        special = (timed == 0) | mark
        until = -1.0
        if requested is not None and begin is not None:
            until = max(0, requested - begin) / HOUR
            hours[0], timed[0] = until, 1
        score = np.r_[np.float32(np.nan), self.score[rows]]
        has = np.isfinite(score) & ~mark
        value[has] = score[has]
        # A visit is what shares a time stamp.
        visit = np.zeros(n, np.int64)
        visit[1 + static :] = ranks(time[static:])
        return Example(
            values={
                "code": code,
                "value": value,
                "has_value": has.astype(np.int64),
                "hours": hours,
                "timed": timed,
                "age_at_start": np.full(n, self.age(subject, begin, prediction_time), np.float32),
                "start_year": np.full(n, 0 if begin is None else begin / YEAR, np.float32),
                "visit": visit,
                "prediction_hours": np.full(n, until, np.float32),
            },
            identity=int(subject),
            special=special,
            unit=np.where(special, -1, visit),
            position=visit,
        )

    def batches(
        self, points: Labels | None, numbers: np.ndarray, *, slots: int
    ) -> Iterator[tuple[PackedBatch, np.ndarray]]:
        """Examples of the points (or subjects, their histories whole) of these numbers in batches; which of `numbers`
        each batch holds. For a point, the prediction time is an input of the model."""
        for start in counted(range(0, len(numbers), BLOCK), len(numbers), lambda _: BLOCK):
            examples = []
            for i in numbers[start : start + BLOCK].tolist():
                subject, time = (i, None) if points is None else (int(points.subject[i]), int(points.time[i]))
                examples.append(self.example(subject, time, slots=slots, requested=time))
            for batch, held in packed_batches(examples, slots):
                yield batch, start + held

    def age(self, subject: int, moment: int | None, prediction_time: int | None = None) -> float:
        """Years from birth to `moment`; 0 where birth is not known (or not before `prediction_time`)."""
        cut = self.events.before(subject, prediction_time)
        born = np.flatnonzero(self._births[self.events.code[cut]] & (self.events.time[cut] != STATIC))
        if not len(born) or moment is None:
            return 0.0
        return float(moment - self.events.time[cut][born[0]]) / YEAR

    def length(self, subject: int, prediction_time: int | None = None, *, slots: int | None = None) -> int:
        """Slots of a whole history and the first; with `slots`, of what is kept of it."""
        if slots is not None:
            return len(self.cut(subject, prediction_time, slots=slots)[0]) + 1
        return len(self.slots_of(subject, prediction_time)[0]) + 1


def time_token(gap: np.ndarray) -> np.ndarray:
    """The artificial time token of a gap in microseconds (CEHR-BERT: weeks, then months of 30 days, then LT)."""
    days = gap // (24 * HOUR)
    return np.where(days < 28, WEEKS + days // 7, np.where(days < 360, MONTHS + days // 30, LONG))


def canonical(time: np.ndarray, *keys: np.ndarray) -> np.ndarray:
    """The order by time, and within a time stamp by the keys, first key first; NaN stands behind all numbers.

    Rows that agree in all keys are the same event to the model, and may stand in any order.

    >>> canonical(np.array([1, 1, 0]), np.array([5, 4, 9])).tolist()
    [2, 1, 0]
    """
    return np.lexsort((*keys[::-1], time))


def ranks(time: np.ndarray) -> np.ndarray:
    """Rank of each time stamp among those of `time` (ascending), from 1.

    >>> ranks(np.array([3, 3, 8, 9, 9])).tolist()
    [1, 1, 2, 3, 3]
    """
    return np.cumsum(np.r_[np.ones(min(1, len(time)), np.int64), time[1:] != time[:-1]]).astype(np.int64)


def first_fitting(time: np.ndarray, room: int) -> int:
    """Where the latest whole time stamps of `time` (ascending) begin that fit into `room` slots.

    Where the last time stamp alone is larger, its last `room` slots in canonical order are kept (of codes, the rarest).

    >>> first_fitting(np.array([1, 1, 2, 2, 3]), 4), first_fitting(np.array([1, 3, 3, 3]), 2)
    (2, 2)
    """
    start = max(0, len(time) - room)
    if start in (0, len(time)) or time[start] != time[start - 1]:
        return start
    after = int(np.searchsorted(time, time[start], side="right"))
    return after if after < len(time) else start


FAR = 0.5
"""Of the training range's width: values further beyond its ends are said, be it one patient's."""
FEWEST = 20
"""Events, points or patients of a code that a check needs."""
SHOWN = 5
"""Codes named."""


def unknown_of(histories: Histories) -> dict[str, Any]:
    """unknown_share of the events, unknown_events, unknown_codes: the most frequent, with counts; and beyond_codes,
    valueless_codes and absent_codes, see `odd_values`.

    Codes too rare to be learnt count too: they share one number with those never seen.
    """
    count, events = sum(histories.unknown.values()), len(histories.events.time)
    return {
        "unknown_share": count / max(1, events),
        "unknown_events": count,
        "unknown_codes": dict(list(histories.unknown.items())[:SHOWN]),
        **odd_values(histories),
    }


def odd_values(histories: Histories) -> dict[str, dict[str, float]]:
    """Known codes whose values are not those that the model was trained on, or of which there is no event.

    Returns:
        beyond_codes: of whose values (20 at least) more than half lie outside the .1 to 99.9 % of those in training, as
            in another unit, or 20 and 1 % of all are one number there, as a mark for none, or all (be it one) lie
            `FAR` outside; with the share outside.
        valueless_codes: that had at least twice the share of values in training, 20 values here; with the share here.
        absent_codes: of which nobody here has an event, where most training patients had one, and 20 of as many
            patients as are here would; with the share of the training patients.
    """
    events, vocabulary = histories.events, histories.vocabulary
    number = vocabulary.numbers(events.codes)
    low, high = (vocabulary.knots[number, end] for end in (0, -1))  # NaN where there is no scale: nothing is beyond it
    low[number < 0] = high[number < 0] = np.nan
    least, most = _far_ends(low, high)
    count, valued, beyond, near, repeated = np.zeros((5, len(number)))
    ends: Counter[tuple[int, float]] = Counter()
    for _, here in events.blocks():
        code, value = events.code[here], events.value[here]
        outside = (value < low[code]) | (value > high[code])
        count += np.bincount(code, minlength=len(number))
        valued += np.bincount(code[np.isfinite(value)], minlength=len(number))
        beyond += np.bincount(code[outside], minlength=len(number))
        near += np.bincount(code[(value >= least[code]) & (value <= most[code])], minlength=len(number))
        pairs, times = np.unique(np.stack([code[outside], value[outside]]), axis=1, return_counts=True)
        ends.update({(int(c), v): int(n) for (c, v), n in zip(pairs.T.tolist(), times.tolist(), strict=True) if n > 1})
    for (c, _), often in ends.items():
        repeated[c] = max(repeated[c], often)
    share = np.where(number < 0, 0.0, vocabulary.share[number])
    many = (valued >= FEWEST) & ((2 * beyond > valued) | (repeated >= np.maximum(FEWEST, 0.01 * valued)))
    out = np.flatnonzero(many | ((beyond > 0) & (near == 0)))
    without = np.flatnonzero((share * count >= FEWEST) & (2 * valued < share * count))
    present = np.bincount(number[(count > 0) & (number >= 0)], minlength=len(vocabulary))
    carried = vocabulary.carried
    usual = (carried > 0.5) & (carried * len(events) >= FEWEST) & (present == 0)
    return {
        "absent_codes": {
            vocabulary.codes[i - FIRST]: float(carried[i]) for i in np.flatnonzero(usual).tolist() if i >= FIRST
        },
        "beyond_codes": {events.codes[i]: float(beyond[i] / valued[i]) for i in out},
        "valueless_codes": {events.codes[i]: float(valued[i] / count[i]) for i in without},
    }


def _far_ends(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What lies beyond the ends of a range by more than `FAR` of its width; by factors where all of it is above 0,
    for most laboratory values are skewed. Nothing does where all values of a code were the same."""
    with np.errstate(divide="ignore", invalid="ignore"):
        width, factor = FAR * (high - low), (high / low) ** FAR
        least, most = np.where(low > 0, low / factor, low - width), np.where(low > 0, high * factor, high + width)
    return np.where(high > low, least, -np.inf), np.where(high > low, most, np.inf)


def odd_value_lines(found: dict[str, Any]) -> list[str]:
    """What to say of the codes of `odd_values`: no line, or up to three."""

    lines = {
        "values beyond those that the model was trained on (another unit, a mark for none?)": found["beyond_codes"],
        "fewer values than the model was trained on (in another column, or lost?)": found["valueless_codes"],
        "in no event, though most training patients have it (not exported?)": found["absent_codes"],
    }

    def listed(codes: dict[str, float]) -> str:
        named = ", ".join(f"{code} ({share:.0%})" for code, share in list(codes.items())[:SHOWN])
        return named + (f", and {len(codes) - SHOWN} more" if len(codes) > SHOWN else "")

    return [f"{line}: {listed(codes)}" for line, codes in lines.items() if codes]


def unknown_line(found: dict[str, Any]) -> str:
    """One line about them."""
    named = ", ".join(f"{code} ({count:,})" for code, count in found["unknown_codes"].items())
    line = (
        f"{found['unknown_share']:.1%} of the events ({found['unknown_events']:,}) have codes that the model does not "
        "know"
    )
    return f"{line}: {named}" if named else line
