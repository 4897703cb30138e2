"""The checks of `audit` that concern events alone. Memory grows by 24 bytes per subject: a digest of each history, a
time."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np

from unmask.errors import option
from unmask.modalities.events.audit.findings import (
    DAY,
    MIDNIGHT,
    SHOWN,
    AuditFinding,
    DatedTally,
    Tally,
    block_of,
    blocks,
    day_of,
    matching,
    most_frequent,
    ranked,
    remark,
    warning,
)
from unmask.modalities.events.records.cuts import first_event_times, first_times
from unmask.modalities.events.records.encounters import encounters, extents, own_events
from unmask.modalities.events.records.histories import FEWEST
from unmask.modalities.events.records.meds import BIRTH, DEATH, OBSERVATION_END, STATIC, Events
from unmask.modalities.events.records.vocabulary import QuantileSketch
from unmask.modalities.events.sources.times import NONE_DAYS, NONE_YEARS

STEADY = 0.1
"""Variance of a code's place within its time stamps over that of a random order, below which the place is constant."""
VALUES, FAR = 200, 100.0
"""Values of a code that the check needs, and how many times the spread of the middle 98 % of the others
a value lies beyond that from which on it is absurd."""
CODED = re.compile(r"^(CONDITION|DIAG\w*|DRG|ICD\w*)(//|$)")
"""Codes that are written for billing when an encounter is over."""


def midnights(events: Events) -> Iterator[AuditFinding]:
    """Codes whose events stand at midnight: dates taken for times, visible up to a day before they happened. A
    subject's first time stamp does not count: records are often counted from a nominal midnight."""
    birth, first = events.begins(BIRTH), first_event_times(events)
    counted, night = Tally(len(events.codes)), Tally(len(events.codes))
    for block in blocks(events):
        later = (block.time != STATIC) & ~birth[block.code] & (block.time != first[block.subject])
        counted.add(block, later)
        night.add(block, later & (block.time % DAY == 0))
    share = night.count / np.maximum(counted.count, 1)
    hit = np.flatnonzero((counted.count >= FEWEST) & (share >= MIDNIGHT))
    if not len(hit):
        return
    whole = night.events / max(1, counted.events)
    what = (
        f"{whole:.0%} of all events stand at 00:00:00: the folder knows days, not times"
        if whole >= 0.9
        else f"{len(hit)} codes stand at 00:00:00 in half of their {int(counted.count[hit].sum()):,} events or more"
    )
    yield warning(
        check="midnight",
        sentence=what + "; what happened later that day is known from its start.",
        todo="Convert dates to the end of their day (unmask events convert does), or keep prediction times at "
        "midnight.",
        columns=("code", "events", "share at midnight"),
        rows=[
            (events.codes[i], int(counted.count[i]), round(float(share[i]), 3))
            for i in hit[np.argsort(-night.count[hit])][:SHOWN]
        ],
    )


def after_death(events: Events) -> Iterator[AuditFinding]:
    """Events after a death, and deaths at midnight before events of the same day. The end of an observation period is
    no care: records are kept beyond a death."""
    death, ended = events.begins(DEATH), events.begins(OBSERVATION_END)
    if not death.any():
        return
    same_day, rest, late, dead = (Tally(len(events.codes)) for _ in range(4))
    first = first_times(events, lambda time, code: (time != STATIC) & death[code])
    for block in blocks(events):
        die, died = death[block.code] & (block.time != STATIC), first[block.subject]
        behind = (block.time > died) & ~die & ~ended[block.code]
        midnight = behind & (died % DAY == 0) & (block.time - died < DAY)
        same_day.add(block, midnight)
        rest.add(block, behind & ~midnight)
        late.add(block, behind & ~midnight & (block.time - died > DAY))
        dead.add(block, die)
    if same_day.events:
        yield warning(
            check="death before its time",
            sentence=f"{same_day.subjects:,} subjects die at 00:00:00 and have {same_day.events:,} events "
            "later that day: their death is known up to a day before it happened.",
            todo="Take the time of death, or the end of its day.",
            **most_frequent(events, same_day.count),
        )
    if rest.events:
        yield remark(
            check="after death",
            sentence=f"{rest.events:,} events of {rest.subjects:,} of the {dead.subjects:,} "
            f"subjects who died stand after their death, {late.events:,} of them by more than a day.",
            todo="Results and codes may be written after a death; where care goes on, the date of death is wrong.",
            **most_frequent(events, rest.count),
        )


def several_times(events: Events) -> Iterator[AuditFinding]:
    """Subjects who are born or die at two times or more: two people under one id, or one date that is wrong."""
    for check, does, code in (("several births", "are born", BIRTH), ("several deaths", "die", DEATH)):
        hit, rows = events.begins(code), list[tuple[Any, ...]]()
        for block in blocks(events):
            here = hit[block.code] & (block.time != STATIC)
            who, when = np.unique(np.stack([block.subject[here], block.time[here]]), axis=1)
            subject, first, times = np.unique(who, return_index=True, return_counts=True)
            for i in np.flatnonzero(times > 1).tolist():
                days = (day_of(when[k]) for k in (first[i], first[i] + times[i] - 1))
                rows.append((int(events.subjects[subject[i]]), int(times[i]), *days))
        if rows:
            yield warning(
                check=check,
                sentence=f"{len(rows):,} subjects {does} more than once, at different times; everything here takes the "
                "first.",
                todo="Look whether two people share an id, or which source's date is right, and keep that one.",
                columns=("subject", "times", "the first", "the last"),
                rows=rows[:SHOWN],
            )


def without_time(events: Events) -> Iterator[AuditFinding]:
    """Codes whose events have a time in some rows and none in others, and deaths without one: known from the start."""
    static, timed = Tally(len(events.codes)), Tally(len(events.codes))
    for block in blocks(events):
        static.add(block, block.time == STATIC)
        timed.add(block, block.time != STATIC)
    dead = events.begins(DEATH)
    count = np.where((timed.count > 0) | dead, static.count, 0)
    if not count.any():
        return
    deaths = int(static.count[dead].sum())
    with_deaths = f", {deaths:,} of them deaths" if deaths else " that have one in other rows"
    what = f"{int(count.sum()):,} events of {int((count > 0).sum())} codes have no time{with_deaths}"
    yield warning(
        check="facts without a time",
        sentence=f"{what}: they count as known from the start, before they happened.",
        todo=f"Give them their time, or leave them out (converting rejects them, unless {option('static', True)} is "
        "said).",
        columns=("code", "without a time", "with one"),
        rows=ranked(events, count, timed.count),
    )


def before_birth(events: Events) -> Iterator[AuditFinding]:
    """Events before their subject's birth (the last one, where it has several)."""
    birth, early = events.begins(BIRTH), Tally(len(events.codes))
    rows: list[tuple[Any, ...]] = []
    for block in blocks(events):
        born = np.full(int(block.subject[-1] - block.subject[0]) + 1, STATIC)
        births = birth[block.code] & (block.time != STATIC)
        number = block.subject - block.subject[0]
        born[number[births]] = block.time[births]
        hit = np.flatnonzero((block.time != STATIC) & (block.time < born[number]))
        early.add(block, hit)
        who, first, count = np.unique(block.subject[hit], return_index=True, return_counts=True)
        for subject, at, many in zip(who.tolist(), hit[first].tolist(), count.tolist(), strict=True):
            if len(rows) < SHOWN:
                code, times = events.codes[block.code[at]], (born[number[at]], block.time[at])
                rows.append((int(events.subjects[subject]), day_of(times[0]), many, code, day_of(times[1])))
    if early.events:
        yield warning(
            check="before birth",
            sentence=f"{early.events:,} events of {early.subjects:,} of {len(events):,} subjects stand before their "
            "birth.",
            todo="Look whether births or times are wrong (another patient, another unit, a birth that was moved): the "
            "model sees ages below 0, and the birth counts as known from the start.",
            columns=("subject", "born", "events before", "the first", "on"),
            rows=rows,
        )


def dates_for_none(events: Events) -> Iterator[AuditFinding]:
    """Dates that programs write where there is none, and dates after today where half of all are before it (patients
    whose dates were moved live in the future)."""
    days = np.array(NONE_DAYS, "datetime64[us]").astype(np.int64)
    years = [f"{year:04}-01-01" for year in (NONE_YEARS[0] + 1, NONE_YEARS[1])]
    first, last = np.array(years, "datetime64[us]").astype(np.int64).tolist()
    today = int(datetime.now(UTC).timestamp()) * 1_000_000 + DAY
    none, future, whole = DatedTally(len(events.codes)), DatedTally(len(events.codes)), 0
    for block in blocks(events):
        timed = block.time != STATIC
        whole += int(timed.sum())
        sentinel = timed & ((block.time < first) | (block.time >= last) | np.isin(block.time // DAY * DAY, days))
        none.add(block, sentinel)
        future.add(block, timed & ~sentinel & (block.time > today))
    if none.events:
        yield warning(
            check="dates for none",
            sentence=f"{none.events:,} events of {none.subjects:,} subjects stand on dates that programs write for "
            "none.",
            todo="Leave them out, or their times: births of 1900-01-01 make ages above 100, and events of 9999-12-31 "
            "are never known.",
            columns=DatedTally.COLUMNS,
            rows=none.rows(events),
        )
    if 0 < 2 * future.events <= whole:
        yield warning(
            check="dates in the future",
            sentence=f"{future.events:,} of {whole:,} events, of {future.subjects:,} subjects, stand after today.",
            todo="What is planned is known when it is planned: put it there. A date that means none (2100-01-01) is "
            "none.",
            columns=DatedTally.COLUMNS,
            rows=future.rows(events),
        )


def order(events: Events) -> Iterator[AuditFinding]:
    """Codes whose place among the rows of a time stamp is constant: an artefact of how the files were written."""
    codes, by_code = len(events.codes), True
    count = np.zeros(codes, np.int64)
    place_sum, square_sum, chance_sum = np.zeros(codes), np.zeros(codes), np.zeros(codes)
    ranks = np.argsort(np.argsort(events.codes))
    for block in blocks(events):
        time, subject = block.time, block.subject
        new = np.r_[True, (time[1:] != time[:-1]) | (subject[1:] != subject[:-1])]
        inner = ~new[1:] & (time[1:] != STATIC)
        rank = ranks[block.code]
        by_code &= bool((rank[1:] >= rank[:-1])[inner].all())
        stamp = np.cumsum(new) - 1
        start, size = np.flatnonzero(new), np.bincount(stamp)
        many = (size[stamp] > 2) & (time != STATIC)
        k, code = size[stamp][many], block.code[many]
        place = (np.arange(len(time)) - start[stamp])[many] / (k - 1)
        count += np.bincount(code, minlength=codes)
        place_sum += np.bincount(code, place, codes)
        square_sum += np.bincount(code, place**2, codes)
        chance_sum += np.bincount(code, (k + 1) / (12 * (k - 1)), codes)
    mean = place_sum / np.maximum(count, 1)
    spread = square_sum / np.maximum(count, 1) - mean**2
    chance = chance_sum / np.maximum(count, 1)
    hit = np.flatnonzero((count >= FEWEST) & (spread < STEADY * chance))
    if not len(hit):
        return
    how = "rows of one time stamp are sorted by code" if by_code else "files were written in a fixed order"
    yield remark(
        check="row order",
        sentence=f"{len(hit)} codes stand at nearly the same place always among the rows of their time stamp ({how}): "
        "a model that reads the order of rows learns the order, not the patient.",
        todo="MEDS defines no order there: shuffle the rows of each time stamp before a model that reads it.",
        columns=("code", "events", "place (0 first, 1 last)"),
        rows=[(events.codes[i], int(count[i]), round(float(mean[i]), 2)) for i in hit[np.argsort(-count[hit])][:SHOWN]],
    )


def duplicates(events: Events) -> Iterator[AuditFinding]:
    """Events given twice, and subjects with the same history under two ids."""
    again = Tally(len(events.codes))
    seen: dict[bytes, int] = {}
    twins = []
    for block in blocks(events):
        value = np.where(np.isfinite(block.value), block.value, np.finfo(np.float32).min).astype(np.float32)
        turn = np.lexsort((value, block.code, block.time, block.subject))
        ordered = [column[turn] for column in (block.subject, block.time, block.code, value)]
        same = np.ones(max(0, len(turn) - 1), bool)
        for column in ordered:
            same &= column[1:] == column[:-1]
        again.add(block, turn[1:][same])
        edges = np.r_[0, np.flatnonzero(np.diff(ordered[0])) + 1, len(turn)]
        for a, b in pairwise(edges.tolist()):
            if b - a < FEWEST:
                continue
            content = hashlib.blake2b(digest_size=16)
            for column in ordered[1:]:
                content.update(column[a:b].tobytes())
            i = int(ordered[0][a])
            other = seen.setdefault(content.digest(), i)
            if other != i:
                twins.append((int(events.subjects[other]), int(events.subjects[i])))
    share = again.events / max(1, len(events.time))
    if again.events >= max(1, 0.001 * len(events.time)):
        yield remark(
            check="duplicates",
            sentence=f"{again.events:,} events ({share:.1%}) stand there twice, with the same time and value.",
            todo="Counts and frequencies take them double: look whether a table was exported twice.",
            **most_frequent(events, again.count, "copies"),
        )
    if twins:
        yield warning(
            check="patients twice",
            sentence=f"{len(twins)} subjects have exactly the events of another one: on two sides of a split they are "
            "a leak.",
            todo="Keep one of each, or give both the same id.",
            columns=("subject", "the same as"),
            rows=twins[:SHOWN],
        )


def absurd_values(events: Events) -> Iterator[AuditFinding]:
    """Codes whose greatest or least value, however often it stands there, lies far beyond the others."""
    codes = len(events.codes)
    values, every, others = Tally(codes), QuantileSketch(codes), QuantileSketch(codes)
    for block in blocks(events):
        values.add(block, np.isfinite(block.value))
        every.add(block.code, block.value)
    for block in blocks(events):
        inner = (block.value > every.low[block.code]) & (block.value < every.high[block.code])
        others.add(block.code, np.where(inner, block.value, np.nan))
    found: dict[int, tuple[Any, ...]] = {}
    for sketch in (every, others):  # of a code with two values there are no others
        low, high = sketch.quantiles(np.array([0.01, 0.99])).T
        far = np.maximum(every.high - high, low - every.low)
        for i in np.flatnonzero((values.count >= VALUES) & (high > low) & (far > FAR * (high - low))).tolist():
            four = (float(v[i]) for v in (every.low, low, high, every.high))
            found[i] = (events.codes[i], int(values.count[i]), *four)
    if found:
        yield remark(
            check="absurd values",
            sentence=f"{len(found)} codes have values more than {FAR:g} times as far out as the middle 98 % of the "
            "others is wide.",
            todo="Look for typing mistakes, other units and marks for none (9999): leave such values out.",
            columns=("code", "values", "least", "1 %", "99 %", "greatest"),
            rows=sorted(found.values(), key=lambda row: -row[1])[:SHOWN],
        )


def code_spellings(events: Events) -> Iterator[AuditFinding]:
    """Codes that differ in case or blanks alone, and codes of values with a unit beside the same without one: one
    measurement, of which a question about either sees a part."""
    values, every = Tally(len(events.codes)), Tally(len(events.codes))
    for block in blocks(events):
        every.add(block, np.ones(len(block.code), bool))
        values.add(block, np.isfinite(block.value))
    alike: dict[str, set[int]] = {}
    for i in np.flatnonzero(every.count).tolist():
        name = "".join(events.codes[i].casefold().split())
        alike.setdefault(name, set()).add(i)
    for name in list(alike):
        bare = name.rpartition("//")[0]
        if all(any(values.count[i] for i in alike.get(n, ())) for n in (name, bare)):
            alike[bare] |= alike.pop(name)
    found = [sorted(same, key=lambda i: -every.count[i]) for same in alike.values() if len(same) > 1]
    found.sort(key=lambda same: -every.count[same].sum())
    if found:
        counted = [[f"{events.codes[i]} ({every.count[i]:,})" for i in same] for same in found[:SHOWN]]
        yield warning(
            check="one code spelled in several ways",
            sentence=f"{len(found)} codes are spelled in several ways: in other case, or with and without a unit.",
            todo="Write each in one way before it is converted; a question about one spelling sees only its events.",
            columns=("code", "spelled too"),
            rows=[(first, ", ".join(others)) for first, *others in counted],
        )


def coded_early(events: Events) -> Iterator[AuditFinding]:
    """Billing codes at the first moment of encounters that last a day or more: written at the end, dated to
    the start."""
    if events.visit is None:
        return
    coded, examined, early = matching(events, CODED), 0, Tally(len(events.codes))
    for owners, here in events.blocks():
        block = block_of(events, owners, here)
        stays = encounters(events, owners, here, block.time != STATIC)
        rows = stays.rows - here.start
        billed = coded[block.code[rows]] & (stays.end - stays.begin >= DAY)[stays.of]
        examined += int(billed.sum())
        early.add(block, rows[billed & (block.time[rows] == stays.begin[stays.of])])
    if examined < FEWEST or early.events < 0.5 * examined:
        return
    yield warning(
        check="coded early",
        sentence=f"{early.events:,} of {examined:,} diagnoses of encounters of a day or more stand at the encounter's "
        "first moment: what was coded at its end is known from its start.",
        todo="Put diagnoses that are coded for billing at the discharge.",
        **most_frequent(events, early.count),
    )


def outside_encounters(events: Events) -> Iterator[AuditFinding]:
    """Events more than a day before their encounter's own begin, or after its end: times that are wrong, or results
    that came late."""
    if events.visit is None:
        return
    early, late, own = Tally(len(events.codes)), Tally(len(events.codes)), own_events(events)
    for owners, here in events.blocks():
        block = block_of(events, owners, here)
        stays = encounters(events, owners, here, block.time != STATIC)
        rows = stays.rows - here.start
        begin, end = extents(stays.of, len(stays), block.time[rows], own[block.code[rows]])
        early.add(block, rows[block.time[rows] < begin[stays.of] - DAY])
        late.add(block, rows[block.time[rows] > end[stays.of] + DAY])
    if early.events:
        yield warning(
            check="events outside their encounter",
            sentence=f"{early.events:,} events of {early.subjects:,} subjects stand more than a day before the "
            "admission that begins their encounter.",
            todo="Look at their times: a year mistyped is known a year too early. The encounter begins at its own "
            "event all the same.",
            **most_frequent(events, early.count),
        )
    if late.events:
        yield remark(
            check="events after their encounter",
            sentence=f"{late.events:,} events of {late.subjects:,} subjects stand more than a day after the "
            "end of their encounter.",
            todo="Results may come after a discharge; other events may have a wrong time.",
            **most_frequent(events, late.count),
        )


CHECKS = (
    *(midnights, after_death, several_times, without_time, before_birth, dates_for_none, coded_early),
    *(outside_encounters, absurd_values, code_spellings, duplicates, order),
)
