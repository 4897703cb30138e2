"""The checks of `audit` that concern who and how long: one person under several ids, and values that know how long a
stay will be. Memory grows by about 100 bytes per subject."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from unmask.core.hashing import hash_keys
from unmask.modalities.events.audit.findings import (
    DAY,
    SHOWN,
    AuditFinding,
    EventBlock,
    block_of,
    blocks,
    day_of,
    warning,
)
from unmask.modalities.events.records.cuts import NEVER, first_times
from unmask.modalities.events.records.encounters import encounters
from unmask.modalities.events.records.histories import FEWEST
from unmask.modalities.events.records.meds import BIRTH, STATIC, Events

SKETCH, SHARED = 8, 5
"""Events of a subject that are compared with those of others (those with the least hashes: of two histories as large a
share of them is the same as of all their events, Broder 1997), and how many are the same in a copy."""
DONE = np.uint64(0xFFFFFFFFFFFFFFFF)
"""Of a hash that is in the sketch already."""
CROWD = 10
"""Subjects who may share an event that counts: what more have is a mark of the files, not of a person."""
WEEKS = 4
"""Births on the same weekday of the next weeks say how many on the same day chance makes: fewer are on Sundays."""
BORN_TOGETHER, SIGMA, UNEVEN = 0.01, 6.0, 0.05
"""Pairs beyond chance from which on births on the same day are warned of: per subject, in standard deviations of a
Poisson count, and as a share of those that chance makes (holidays)."""
KNOWS, STAYS, LONG = 0.98, 50, 60 * DAY
"""Correlation of a value with the time until the end, encounters that it is looked for in, and the longest record that
is taken for one stay where no encounters are named."""


def near_copies(events: Events) -> Iterator[AuditFinding]:
    """Subjects who share most of their events, with time and value, but not all: one person under two ids."""
    owner, mark, events_of = list[np.ndarray](), list[np.ndarray](), np.zeros(len(events), np.int64)
    for block in blocks(events):
        timed = block.time != STATIC
        value = np.where(np.isnan(block.value), np.float32(0), block.value).view(np.int32)
        key = hash_keys(block.time[timed], block.code[timed].astype(np.int64), value[timed].astype(np.int64))
        subject = block.subject[timed]
        who, start, size = np.unique(subject, return_index=True, return_counts=True)
        events_of[who] = size
        for _ in range(SKETCH if len(start) else 0):
            least = np.minimum.reduceat(key, start)
            kept = (size >= FEWEST) & (least != DONE)
            owner.append(who[kept])
            mark.append(least[kept])
            key[key == np.repeat(least, size)] = DONE
    who, key = (np.concatenate(part) if part else np.zeros(0, np.int64) for part in (owner, mark))
    pairs = _pairs(who, key)
    if not len(pairs):
        return
    copies, times = np.unique(pairs, axis=0, return_counts=True)
    exact = (times == SKETCH) & (events_of[copies[:, 0]] == events_of[copies[:, 1]])  # `duplicates` says so
    copies = copies[(times >= SHARED) & ~exact]
    if len(copies):
        yield warning(
            check="patients nearly twice",
            sentence=f"{len(copies):,} pairs of subjects share most of their events, with time and value"
            f"{_across(events, copies)}.",
            todo="Look whether they are one person under two ids, and give both the same one.",
            columns=("subject", "nearly the same as"),
            rows=[(int(events.subjects[a]), int(events.subjects[b])) for a, b in copies[:SHOWN].tolist()],
        )


def _pairs(who: np.ndarray, key: np.ndarray) -> np.ndarray:
    """(pairs, 2) subjects with an equal key, of keys that 2 to `CROWD` have; a pair stands there once per key."""
    turn = np.lexsort((who, key))
    who, key = who[turn], key[turn]
    _, edges, size = np.unique(key, return_index=True, return_counts=True)
    out = []
    for lag in range(1, CROWD):
        start = np.repeat(edges, np.where(size <= CROWD, np.maximum(size - lag, 0), 0))
        within = np.arange(len(start)) - np.searchsorted(start, start)
        out.append(np.stack([who[start + within], who[start + within + lag]], 1))
    return np.concatenate(out)


def _across(events: Events, pairs: np.ndarray) -> str:
    """How many pairs the splits of the data part."""
    if events.splits is None:
        return ""
    across = int((events.splits[pairs[:, 0]] != events.splits[pairs[:, 1]]).sum())
    return f"; {across:,} of them on two sides of the splits" if across else ""


def shared_births(events: Events) -> Iterator[AuditFinding]:
    """More subjects born on the same day than on days some weeks from each other: ids of visits or stays, not of
    people, so that a split by id has one person on both sides. Nothing is said where births are years."""
    birth = events.begins(BIRTH)
    born = first_times(events, lambda time, code: birth[code] & (time != STATIC))
    known = np.flatnonzero(born != NEVER)
    day = born[known] // DAY
    dates, count = np.unique(day, return_counts=True)
    of_year = (day.astype("datetime64[D]") - day.astype("datetime64[D]").astype("datetime64[Y]")).astype(np.int64)
    if len(known) < FEWEST or np.bincount(of_year).max() > len(known) / 4:
        return
    same = int((count * (count - 1) // 2).sum())
    near = 0
    for lag in range(7, 7 * WEEKS + 1, 7):
        _, a, b = np.intersect1d(dates, dates + lag, return_indices=True)
        near += int((count[a] * count[b]).sum())
    chance = near / WEEKS / 2  # a pair within a day is one pair, and one of two days may stand in either
    if same - chance <= max(BORN_TOGETHER * len(known), SIGMA * np.sqrt(chance + 1), UNEVEN * chance):
        return
    order = np.argsort(-count, kind="stable")[:SHOWN]
    order = order[count[order] > 1]
    turn = np.argsort(day, kind="stable")
    subjects_of = {int(d): known[part] for d, part in zip(dates, np.split(turn, np.cumsum(count)[:-1]), strict=True)}
    yield warning(
        check="births in common",
        sentence=f"{same:,} pairs of subjects are born on the same day, where chance makes {chance:,.0f} (by days a "
        "week or more from each other).",
        todo="Look whether ids are of visits or stays: give all of one person the same id, or hold out by person "
        "(metadata/subject_splits.parquet).",
        columns=("born", "subjects", "such as"),
        rows=[
            (
                day_of(int(dates[i]) * DAY),
                int(count[i]),
                ", ".join(str(events.subjects[k]) for k in subjects_of[int(dates[i])][:3]),
            )
            for i in order.tolist()
        ],
    )


def knows_the_end(events: Events) -> Iterator[AuditFinding]:
    """Codes whose first value in an encounter says how long it will last: a length of stay or a discharge offset that
    was written at its end and stands at its start. Without encounters each record of days is taken for a stay."""
    if events.visit is None and not _short(events):
        return
    codes = len(events.codes)
    sums = np.zeros((2, 6, codes))  # n, x, y, xx, yy, xy, of numbers and of their logarithms
    for owners, here in events.blocks():
        block = block_of(events, owners, here)
        code, value, left = _first_values(events, block, owners, here)
        logarithms = np.sign(value) * np.log1p(np.abs(value)), np.log1p(left)
        for of, (x, y) in zip(sums, ((value, left), logarithms), strict=True):
            for total, part in zip(of, (np.ones(len(code)), x, y, x * x, y * y, x * y), strict=True):
                total += np.bincount(code, part, codes)
    n, found = sums[0, 0], [_correlation(*of) for of in sums]
    # An outlier alone makes a correlation of numbers, and hardly one of logarithms.
    correlation = np.where(np.abs(found[0]) < np.abs(found[1]), *found)
    hit = np.flatnonzero((n >= STAYS) & (np.abs(correlation) >= KNOWS))
    if len(hit):
        yield warning(
            check="values that know the end",
            sentence=f"{len(hit)} codes have first values that say how long the encounter will last from then on.",
            todo="Lengths of stay and times of discharge are known at the discharge: put them there, or leave them "
            "out.",
            columns=("code", "encounters", "correlation with the time left"),
            rows=[(events.codes[i], int(n[i]), round(float(correlation[i]), 3)) for i in hit[:SHOWN].tolist()],
        )


def _correlation(
    n: np.ndarray, x: np.ndarray, y: np.ndarray, xx: np.ndarray, yy: np.ndarray, xy: np.ndarray
) -> np.ndarray:
    """Pearson's, of sums; 0 where one side is constant."""
    n = np.maximum(n, 1)
    a, b = xx - x * x / n, yy - y * y / n
    varies = (a > 1e-9 * xx) & (b > 1e-9 * yy)
    return np.where(varies, (xy - x * y / n) / np.sqrt(np.where(varies, a * b, 1)), 0)


def _short(events: Events) -> bool:
    """Whether nine in ten records last no longer than `LONG`, births left out."""
    birth, length = events.begins(BIRTH), np.zeros(len(events), np.int64)
    for block in blocks(events):
        timed = np.flatnonzero((block.time != STATIC) & ~birth[block.code])
        who, first, size = np.unique(block.subject[timed], return_index=True, return_counts=True)
        time = block.time[timed]
        length[who] = time[first + size - 1] - time[first]
    return bool(len(length)) and bool((length <= LONG).mean() >= 0.9)


def _first_values(
    events: Events, block: EventBlock, owners: slice, here: slice
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Code, value, and hours until the end, of the first value of each code in each encounter."""
    timed = (block.time != STATIC) & ~events.begins(BIRTH)[block.code]
    if events.visit is None:
        rows = np.flatnonzero(timed)
        of, end = block.subject[rows] - owners.start, np.zeros(owners.stop - owners.start, np.int64)
        end[of] = block.time[rows]  # events come in order of time
    else:
        stays = encounters(events, owners, here, timed)
        rows, of, end = stays.rows - here.start, stays.of, stays.end
    good = np.isfinite(block.value[rows])
    rows, of = rows[good], of[good]
    turn = np.lexsort((rows, block.code[rows], of))
    rows, of = rows[turn], of[turn]
    code = block.code[rows]
    first = np.r_[True, (of[1:] != of[:-1]) | (code[1:] != code[:-1])][: len(rows)]
    rows, of = rows[first], of[first]
    return block.code[rows], block.value[rows].astype(float), (end[of] - block.time[rows]) / (DAY / 24)


PEOPLE_CHECKS = (near_copies, shared_births, knows_the_end)
