"""Records as a generator reads them: facts of each patient, then time stamps with the set of codes of each.

What may be drawn is decided here, by the disclosure rule of synthetic tables: codes of fewer than `LEAST` patients are
left out, and values stay between the `LEAST`-th smallest and largest of the patients' own extremes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unmask.errors import UserError
from unmask.modalities.events.records.histories import YEAR
from unmask.modalities.events.records.meds import BIRTH, DEATH, HOUR, OBSERVATION_END, STATIC, Events
from unmask.modalities.events.records.vocabulary import FIRST, Vocabulary

LEAST = 5
"""Patients that a code, or the values up to an end, must have."""
FEWEST_PATIENTS = 20
UNITS = (24 * HOUR, HOUR, HOUR // 60, HOUR // 3600, HOUR // 3_600_000, 1)
"""Microseconds of a day, an hour, a minute, a second, a millisecond."""
DECIMALS = 4


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """Records of some patients, their time stamps one after the other.

    Attributes:
        vocabulary: of all their codes; `timed` and `static` are the numbers of those that may be drawn, less `FIRST`.
        patient, time: (visits,) whose time stamp it is, and when (microseconds).
        first: (patients + 1,) where the time stamps of a patient begin.
        present, score: (visits, timed) whether a code stands there, and the normal score of its value, NaN without.
        facts, fact_score: (patients, static) the same of facts without a time.
        age: (patients,) years from birth to the first time stamp, NaN where unknown.
        bounds: (codes, 2) ends that no value leaves; NaN where no value may be drawn.
        decimals: (codes,) of its values.
        unit: what all times are multiples of, in microseconds.
        left_out: codes of fewer than `LEAST` patients.
        without: patients who have no event at a time that may be drawn; nothing is learnt from them.
        repeats: events that stand a second time at one time stamp, which are not learnt.
    """

    vocabulary: Vocabulary
    timed: np.ndarray
    static: np.ndarray
    patient: np.ndarray
    time: np.ndarray
    first: np.ndarray
    present: np.ndarray
    score: np.ndarray
    facts: np.ndarray
    fact_score: np.ndarray
    age: np.ndarray
    bounds: np.ndarray
    decimals: np.ndarray
    unit: int
    left_out: list[str]
    without: int
    repeats: int

    def __len__(self) -> int:
        return len(self.facts)

    @property
    def death(self) -> np.ndarray:
        """(timed,) whether a code is a death."""
        return np.array([self.vocabulary.codes[i].startswith(DEATH) for i in self.timed], bool)


def sequences_of(events: Events, subjects: np.ndarray) -> Sequences:
    """The records of some subjects (numbers), up to their death.

    Raises:
        UserError: fewer than `FEWEST_PATIENTS` of them have an event with a time.
    """
    vocabulary = Vocabulary.fit(events, subjects=subjects, floor=1)
    number = vocabulary.numbers(events.codes) - FIRST  # below 0: births, ends of observation, and codes of others
    dead, born = events.begins(DEATH), events.begins(BIRTH)
    marks = born | events.begins(OBSERVATION_END)
    parts = [np.arange(events.offsets[i], events.offsets[i + 1]) for i in subjects.tolist()]
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    rows = np.concatenate(parts)
    time, code = events.time[rows], events.code[rows]
    end, birth = np.full(len(parts), np.iinfo(np.int64).max), np.full(len(parts), STATIC)
    for moment, here in ((end, dead[code] & (time != STATIC)), (birth, born[code] & (time != STATIC))):
        moment[owner[here][::-1]] = time[here][::-1]  # the first of each
    kept = ~marks[code] & (number[code] >= 0) & (time <= end[owner])
    rows, owner, time = rows[kept], owner[kept], time[kept]
    code, value = number[code[kept]], events.value[rows]
    patients = np.unique(owner[time != STATIC])
    if len(patients) < FEWEST_PATIENTS:
        raise UserError(
            f"{len(patients)} patients with an event that has a time", hint=f"Give {FEWEST_PATIENTS} patients or more."
        )
    place = np.full(len(parts), -1)
    place[patients] = np.arange(len(patients))
    kept = place[owner] >= 0
    owner, time, code, value = place[owner[kept]], time[kept], code[kept], value[kept]
    fact, size = time == STATIC, len(vocabulary.codes)

    def carried(which: np.ndarray) -> np.ndarray:
        return np.bincount(np.unique(owner[which] * np.int64(size) + code[which]) % size, minlength=size)

    of_facts, of_time = carried(fact), carried(~fact)
    static, timed = np.flatnonzero(of_facts >= LEAST), np.flatnonzero(of_time >= LEAST)
    score = vocabulary.scale(code + FIRST, value)
    bounds, decimals = _limits(owner, code, value, size)
    score[np.isnan(bounds[code, 0])] = np.nan
    if not len(timed):
        raise UserError(f"no code of {LEAST} patients or more", hint="Give more patients, or coarser codes.")

    column = np.full((2, size), -1)
    column[0, static], column[1, timed] = np.arange(len(static)), np.arange(len(timed))
    facts, fact_score = _grid(len(patients), len(static), owner[fact], column[0, code[fact]], score[fact])
    here = np.flatnonzero(~fact & (column[1, code] >= 0))
    new = (np.diff(owner[here], prepend=-1) != 0) | (np.diff(time[here], prepend=STATIC) != 0)
    visit = np.cumsum(new) - 1
    present, scores = _grid(int(visit[-1]) + 1, len(timed), visit, column[1, code[here]], score[here])
    subject, when = owner[here][new], time[here][new]
    drawable, first, subject = np.unique(subject, return_index=True, return_inverse=True)
    facts, fact_score, born, start = facts[drawable], fact_score[drawable], birth[patients[drawable]], when[first]
    known = born != STATIC
    age = np.where(known, (start - np.where(known, born, 0)) / YEAR, np.nan)
    few = np.flatnonzero((of_facts + of_time > 0) & (of_facts < LEAST) & (of_time < LEAST))
    return Sequences(
        vocabulary=vocabulary,
        timed=timed,
        static=static,
        patient=subject,
        time=when,
        first=np.append(first, len(when)),
        present=present,
        score=scores,
        facts=facts,
        fact_score=fact_score,
        age=age,
        bounds=bounds,
        decimals=decimals,
        unit=next(unit for unit in UNITS if (when % unit == 0).mean() > 0.999),
        left_out=[vocabulary.codes[i] for i in few],
        without=len(parts) - len(drawable),
        repeats=len(here) - int(present.sum()),
    )


def _grid(
    rows: int, columns: int, row: np.ndarray, column: np.ndarray, score: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(rows, columns) what stands there, and its score, the last of several; NaN where there is none."""
    present, scores = np.zeros((rows, columns), bool), np.full((rows, columns), np.nan, np.float32)
    good = column >= 0
    present[row[good], column[good]] = True
    scores[row[good], column[good]] = score[good]
    return present, scores


def _limits(owner: np.ndarray, code: np.ndarray, value: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """(codes, 2) the `LEAST`-th smallest and largest of the patients' extremes; (codes,) decimals of the values."""
    bounds, decimals = np.full((size, 2), np.nan), np.zeros(size, np.int64)
    good = np.flatnonzero(np.isfinite(value))
    good = good[np.lexsort((value[good], owner[good], code[good]))]
    of_code = code[good]
    ends = np.searchsorted(of_code, np.arange(size + 1))
    for i in np.unique(of_code).tolist():
        here = good[ends[i] : ends[i + 1]]
        begins = np.flatnonzero(np.diff(owner[here], prepend=-1))
        low = np.sort(value[here][begins])
        high = np.sort(value[here][np.r_[begins[1:] - 1, len(here) - 1]])
        if len(low) >= LEAST and low[LEAST - 1] <= high[-LEAST]:
            bounds[i] = low[LEAST - 1], high[-LEAST]
        few = value[here][:: max(1, len(here) // 2000)]
        fits = (d for d in range(DECIMALS) if np.mean(np.round(few.astype(float), d).astype(np.float32) == few) > 0.99)
        decimals[i] = next(fits, DECIMALS)
    return bounds, decimals
