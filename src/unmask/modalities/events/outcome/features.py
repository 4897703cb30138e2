"""What the outcome head reads of every prediction point, in memory or, for very many points, in a temporary file.

A row holds the summaries (`summarise`), then the encoder's pooled states. Rows are made some thousand points at a time,
and whoever reads them takes some at a time: a million labels (7.7 KB each) need no more memory than ten thousand.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from unmask.files import check_room
from unmask.memory import data_in_memory
from unmask.modalities.events.records.columns import Pages
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.meds import HOUR, STATIC, Labels
from unmask.modalities.events.records.vocabulary import FIRST
from unmask.progress import counted

MOST_CODES = 200
KINDS = ("count", "last", "min", "max", "mean", "first", "deviation", "recent", "since")
"""Baselines take the first five, as is usual."""


def summarise(histories: Histories, points: Labels) -> tuple[np.ndarray, list[str]]:
    """(points, features) float32 of the `MOST_CODES` most frequent codes and the features' names "code|kind", from
    events known at each point."""
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
    at, first, size = np.unique(key, return_index=True, return_counts=True)
    last = first + size - 1
    grid[at, 0] = np.log1p(size)
    timed = time[last] != STATIC
    since = (moment[last][timed] - time[last][timed]) / HOUR
    grid[at[timed], 8] = np.log1p(np.maximum(0.0, since))
    good = np.isfinite(score)
    key, score, time, moment = key[good], score[good].astype(np.float64), time[good], moment[good]
    if not len(key):
        return
    at, first, size = np.unique(key, return_index=True, return_counts=True)
    last = first + size - 1
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


POINTS = 4096
"""Points looked at in one go."""


class Features:
    """(points, features) float32 on the disk or in memory, or some rows and columns of them; some points at a time are
    read like an array's: `x[rows]`."""

    def __init__(
        self,
        whole: np.ndarray,
        pages: Pages | None = None,
        *,
        rows: np.ndarray | None = None,
        columns: np.ndarray | None = None,
    ) -> None:
        self._whole, self._pages, self._rows, self._columns = whole, pages, rows, columns
        width = whole.shape[1] if columns is None else len(columns)
        self.shape = (len(whole) if rows is None else len(rows), width)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        """A copy of some points: a slice, numbers or booleans."""
        found = self._whole[rows if self._rows is None else self._rows[rows]]
        if self._columns is not None:
            found = found[:, self._columns]
        elif found.base is not None:
            found = found.copy()
        if self._pages is not None:
            self._pages.seen(len(found))
        return found

    def part(self, rows: np.ndarray) -> Features:
        """Some of the points, where they are."""
        rows = np.arange(len(self))[rows]
        return Features(
            self._whole, self._pages, rows=rows if self._rows is None else self._rows[rows], columns=self._columns
        )

    def some(self, columns: np.ndarray) -> Features:
        """Some of the features, where they are."""
        chosen = np.arange(self.shape[1])[columns]
        chosen = chosen if self._columns is None else self._columns[chosen]
        return Features(self._whole, self._pages, rows=self._rows, columns=chosen)


def blocks(count: int) -> Iterator[slice]:
    """0..count in parts of `POINTS`."""
    most = POINTS
    parts = [slice(start, min(start + most, count)) for start in range(0, count, most)]
    return counted(parts, count, lambda part: part.stop - part.start)


def gather(
    histories: Histories,
    points: Labels,
    states: Callable[[Histories, Labels], np.ndarray] | None,
    *,
    most: float | None = None,
) -> tuple[Features, list[str]]:
    """Features of all points: summaries, then their pooled `states`, if any; and the summaries' names. More than `most`
    bytes (by default 2 GB, or a quarter of the free memory) lie in a temporary file."""
    names = names_of(histories)

    def made(here: slice) -> np.ndarray:
        some = points.take(np.arange(here.start, here.stop))
        parts = [summarise(histories, some)[0]]
        if states is not None:
            parts.append(states(histories, some))
        return np.concatenate(parts, 1, dtype=np.float32)

    shape = (len(points), made(slice(0, min(1, len(points)))).shape[1])
    if 4 * shape[0] * shape[1] <= (data_in_memory("auto") if most is None else most):
        whole = np.zeros(shape, np.float32)
        for here in blocks(len(points)):
            whole[here] = made(here)
        return Features(whole), names
    with tempfile.TemporaryFile(prefix="unmask-features-") as file:  # gone with the process, however that ends
        check_room(
            Path(tempfile.gettempdir()),
            4.0 * shape[0] * shape[1],
            what="features of the prediction points",
            hint="Free space, or name another place for temporary files: TMPDIR=.",
        )
        for here in blocks(len(points)):
            file.write(made(here).data)
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return Features(np.frombuffer(mapped, np.float32).reshape(shape), Pages([mapped], 4 * shape[1])), names
