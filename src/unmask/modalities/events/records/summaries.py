"""What is simple to say of a history: for each code, how often, and its first, last, lowest, highest and mean value.

One row a prediction point, the same cut and the same scale as the model's; the outcome head and the baselines both
read it. Values are normal scores; a code without values leaves NaN.
"""

from __future__ import annotations

import numpy as np

from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.meds import HOUR, STATIC, Labels
from unmask.modalities.events.records.vocabulary import FIRST

MOST_CODES = 200
KINDS = ("count", "last", "min", "max", "mean", "first", "deviation", "recent", "since")
"""Baselines take the first five, as is usual."""


def summarise(histories: Histories, points: Labels) -> tuple[np.ndarray, list[str]]:
    """(points, features) float32 and the features' names "code|kind", from events known at each point.

    The `MOST_CODES` most frequent codes have features.
    """
    vocabulary, events = histories.vocabulary, histories.events
    count = min(len(vocabulary) - FIRST, MOST_CODES)
    grid = np.full((len(points) * count, len(KINDS)), np.nan, np.float32)
    grid[:, 0] = 0
    more = np.full((len(points), 2), np.nan, np.float32)
    known = [np.zeros(0, np.int64)]
    for i, (subject, moment) in enumerate(zip(points.subject.tolist(), points.time.tolist(), strict=True)):
        known.append(histories.rows(subject, moment))
        more[i] = histories.age(subject, moment, moment) or np.nan, np.log1p(len(known[-1]))
    rows = np.concatenate(known)
    point = np.repeat(np.arange(len(points)), [len(k) for k in known[1:]])
    code = histories.code[rows] - FIRST
    fits = (code >= 0) & (code < count)
    rows, point, code = rows[fits], point[fits], code[fits]
    key = point * count + code
    order = np.argsort(key, kind="stable")  # within a point and code the order stays that of time
    _fill(grid, key[order], histories.score[rows[order]], events.time[rows[order]], points.time[point[order]])
    return np.concatenate([grid.reshape(len(points), count * len(KINDS)), more], 1), names_of(histories)


def names_of(histories: Histories) -> list[str]:
    """The features' names "code|kind", then the patient's age and number of events."""
    return [f"{c}|{k}" for c in histories.vocabulary.codes[:MOST_CODES] for k in KINDS] + ["|age", "|events"]


def _fill(grid: np.ndarray, key: np.ndarray, score: np.ndarray, time: np.ndarray, moment: np.ndarray) -> None:
    """Fill the grid's rows `key` (ascending; events of one row in order of time), columns in the order of KINDS."""
    if not len(key):
        return
    first = np.flatnonzero(np.r_[True, key[1:] != key[:-1]])
    last = np.r_[first[1:], len(key)] - 1
    grid[key[first], 0] = np.log1p(last - first + 1)
    timed = time[last] != STATIC
    since = (moment[last][timed] - time[last][timed]) / HOUR
    grid[key[last][timed], 8] = np.log1p(np.maximum(0.0, since))
    good = np.isfinite(score)
    key, score, time, moment = key[good], score[good].astype(np.float64), time[good], moment[good]
    if not len(key):
        return
    first = np.flatnonzero(np.r_[True, key[1:] != key[:-1]])
    size = np.diff(np.r_[first, len(key)])
    at, last = key[first], first + size - 1
    mean = np.add.reduceat(score, first) / size
    square = np.add.reduceat((score - np.repeat(mean, size)) ** 2, first) / size
    recent = (time == STATIC) | (time >= moment - 12 * HOUR)
    number = np.add.reduceat(recent.astype(np.float64), first)
    total = np.add.reduceat(score * recent, first)
    columns = (
        score[last],
        np.minimum.reduceat(score, first),
        np.maximum.reduceat(score, first),
        mean,
        score[first],
        np.sqrt(square),
        np.where(number > 0, total / np.maximum(number, 1), np.nan),
    )
    grid[at, 1:8] = np.stack(columns, 1)


def usual(names: list[str]) -> np.ndarray:
    """Which features the baselines take: counts, last, min, max and mean of each code, and age."""
    kinds = {*KINDS[:5], "age"}
    return np.array([n.rsplit("|", 1)[1] in kinds for n in names])


def last_values(names: list[str]) -> np.ndarray:
    """Which features carry a code's last value."""
    return np.array([n.rsplit("|", 1)[1] == "last" for n in names])
