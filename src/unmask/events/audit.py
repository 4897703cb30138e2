"""`unmask events audit`: looks for the future in the past of a MEDS folder, before a model finds it.

Each check gives at most one finding: what was seen, how often, in which codes, and what to do. A warning is what may
let a model know what it should predict, or count a patient twice; a note explains what was seen and harms no model of ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from unmask.events.meds import BIRTH, DEATH, HOUR, NO_VISIT, STATIC, Events, Labels, as_events, read_labels

WINDOW = 24 * HOUR
"""What "shortly before" a prediction time means."""
DAY = 24 * HOUR
FEWEST = 20
"""Events, points or patients below which a check says nothing of a code."""
TELLS = 0.9
"""Share of one outcome among those with a code (its lower bound), or difference between the outcomes in how often they
have it, from which on the code tells the outcome."""
TELLING_AREA = 0.98
"""Likewise, the area under the ROC curve of a code's last value."""
MIDNIGHT = 0.5
"""Share of a code's events at 00:00:00 from which on they are dates, not times."""
STEADY = 0.1
"""Variance of a code's place within its time stamps over that of a random order, below which the place is constant."""
SHOWN = 20
"""Codes listed with a finding."""
CODED = re.compile(r"^(CONDITION|DIAG\w*|DRG|ICD\w*)(//|$)")
"""Codes that are written for billing when an encounter is over."""
CLOSING = re.compile(r"(_END|DISCHARGE)")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one check saw.

    Attributes:
        check: its name.
        level: "warning" or "note".
        sentence: what was seen, with figures.
        todo: what to do about it.
        columns, rows: the codes (or patients) concerned, those most so first, `SHOWN` at most.
    """

    check: str
    level: str
    sentence: str
    todo: str
    columns: tuple[str, ...] = ()
    rows: list[tuple[Any, ...]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return {"check": self.check, "level": self.level, "sentence": self.sentence, "todo": self.todo, "rows": rows}


def audit(data: str | Path | Events, labels: str | Path | None = None) -> tuple[list[Finding], dict[str, Any]]:
    """All findings, warnings first, and what was looked at (events, subjects, points).

    Args:
        labels: a MEDS task folder; without it what concerns prediction times is not looked at.

    Raises:
        UserError: data or labels are not MEDS.
    """
    events = as_events(data)
    points = None if labels is None else read_labels(labels, events)
    found = [f for check in CHECKS for f in check(events)]
    if points is not None:
        found += [f for task_check in TASK_CHECKS for f in task_check(events, points)]
    about: dict[str, Any] = {"events": len(events.time), "subjects": len(events), "codes": len(events.codes)}
    about |= {} if points is None else {"points": len(points)}
    return sorted(found, key=lambda f: f.level != "warning"), about


def subject_of(events: Events) -> np.ndarray:
    """(events,) number of each event's subject."""
    return np.repeat(np.arange(len(events)), np.diff(events.offsets))


def _named(events: Events, pattern: re.Pattern[str]) -> np.ndarray:
    """(codes,) whether a code matches."""
    return np.array([bool(pattern.search(c)) for c in events.codes], bool)


def _begins(events: Events, prefix: str) -> np.ndarray:
    return np.array([c.startswith(prefix) for c in events.codes], bool)


def midnights(events: Events) -> Iterator[Finding]:
    """Codes whose events stand at midnight: dates taken for times, visible up to a day before they happened.

    A subject's first time stamp does not count: records are often counted from a nominal midnight.
    """
    first = np.full(len(events), np.iinfo(np.int64).max)
    subject, timed = subject_of(events), (events.time != STATIC) & ~_begins(events, BIRTH)[events.code]
    np.minimum.at(first, subject[timed], events.time[timed])
    counted = timed & (events.time != first[subject])
    night = counted & (events.time % DAY == 0)
    seen = np.bincount(events.code[counted], minlength=len(events.codes))
    at = np.bincount(events.code[night], minlength=len(events.codes))
    share = at / np.maximum(seen, 1)
    hit = np.flatnonzero((seen >= FEWEST) & (share >= MIDNIGHT))
    if not len(hit):
        return
    whole = night.sum() / max(1, counted.sum())
    what = (
        f"{whole:.0%} of all events stand at 00:00:00: the folder knows days, not times"
        if whole >= 0.9
        else f"{len(hit)} codes stand at 00:00:00 in half of their {int(seen[hit].sum()):,} events or more"
    )
    yield Finding(
        check="midnight", level="warning", sentence=what + "; what happened later that day is known from its start.",
        todo="Convert dates to the end of their day (unmask events convert does), or keep prediction times at midnight.",
        columns=("code", "events", "share at midnight"),
        rows=[(events.codes[i], int(seen[i]), round(float(share[i]), 3)) for i in hit[np.argsort(-at[hit])][:SHOWN]],
    )  # fmt: skip


def after_death(events: Events) -> Iterator[Finding]:
    """Events behind a death, and deaths at midnight that stand before events of their day."""
    subject, dead = subject_of(events), _begins(events, DEATH)[events.code] & (events.time != STATIC)
    died = np.full(len(events), np.iinfo(np.int64).max)
    np.minimum.at(died, subject[dead], events.time[dead])
    if not dead.any():
        return
    behind = (events.time > died[subject]) & ~dead
    midnight = behind & (died[subject] % DAY == 0) & (events.time - died[subject] < DAY)
    if midnight.any():
        yield Finding(
            check="death before its time", level="warning",
            sentence=f"{len(np.unique(subject[midnight])):,} subjects die at 00:00:00 and have {int(midnight.sum()):,} events "
            "later that day: their death is known up to a day before it happened.",
            todo="Take the time of death, or the end of its day.", columns=("code", "events"),
            rows=_counted(events, midnight),
        )  # fmt: skip
    rest = behind & ~midnight
    if rest.any():
        late = rest & (events.time - died[subject] > DAY)
        yield Finding(
            check="after death", level="note",
            sentence=f"{int(rest.sum()):,} events of {len(np.unique(subject[rest])):,} of the {int((died < np.iinfo(np.int64).max).sum()):,} "
            f"subjects who died stand after their death, {int(late.sum()):,} of them by more than a day.",
            todo="Results and codes may be written after a death; where care goes on, the date of death is wrong.",
            columns=("code", "events"), rows=_counted(events, rest),
        )  # fmt: skip


def before_birth(events: Events) -> Iterator[Finding]:
    subject, birth = subject_of(events), _begins(events, BIRTH)[events.code] & (events.time != STATIC)
    born = np.full(len(events), STATIC)
    born[subject[birth]] = events.time[birth]
    early = (events.time != STATIC) & (events.time < born[subject])
    if early.any():
        yield Finding(
            check="before birth", level="note",
            sentence=f"{int(early.sum()):,} events of {len(np.unique(subject[early])):,} subjects stand before their birth.",
            todo="Look whether births or times are wrong: ages before 0 are what the model sees.",
            columns=("code", "events"), rows=_counted(events, early),
        )  # fmt: skip


def order(events: Events) -> Iterator[Finding]:
    """Codes whose place among the rows of a time stamp is constant: an artefact of how the files were written."""
    subject, n = subject_of(events), len(events.time)
    new = np.r_[True, (events.time[1:] != events.time[:-1]) | (subject[1:] != subject[:-1])]
    stamp = np.cumsum(new) - 1
    start, size = np.flatnonzero(new), np.bincount(stamp)
    many = (size[stamp] > 2) & (events.time != STATIC)
    if not many.any():
        return
    k, code = size[stamp][many], events.code[many]
    place = (np.arange(n) - start[stamp])[many] / (k - 1)
    count = np.bincount(code, minlength=len(events.codes))
    mean = np.bincount(code, place, len(events.codes)) / np.maximum(count, 1)
    spread = np.bincount(code, place**2, len(events.codes)) / np.maximum(count, 1) - mean**2
    chance = np.bincount(code, (k + 1) / (12 * (k - 1)), len(events.codes)) / np.maximum(count, 1)
    hit = np.flatnonzero((count >= FEWEST) & (spread < STEADY * chance))
    if not len(hit):
        return
    rank = np.argsort(np.argsort(events.codes))[events.code]
    inner = ~new[1:] & (events.time[1:] != STATIC)
    by_code = bool((rank[1:] >= rank[:-1])[inner].all())
    how = "rows of one time stamp are sorted by code" if by_code else "files were written in a fixed order"
    yield Finding(
        check="row order", level="note",
        sentence=f"{len(hit)} codes stand at nearly the same place always among the rows of their time stamp ({how}): a model that "
        "reads the order of rows learns the order, not the patient.",
        todo="MEDS defines no order there: shuffle the rows of each time stamp before a model that reads it.",
        columns=("code", "events", "place (0 first, 1 last)"),
        rows=[(events.codes[i], int(count[i]), round(float(mean[i]), 2)) for i in hit[np.argsort(-count[hit])][:SHOWN]],
    )  # fmt: skip


def duplicates(events: Events) -> Iterator[Finding]:
    """Events given twice, and subjects with the same history under two ids."""
    subject = subject_of(events)
    value = np.where(np.isfinite(events.value), events.value, np.finfo(np.float32).min).astype(np.float32)
    turn = np.lexsort((value, events.code, events.time, subject))
    same = np.ones(max(0, len(turn) - 1), bool)
    for column in (subject, events.time, events.code, value):
        ordered = column[turn]
        same &= ordered[1:] == ordered[:-1]
    again = np.zeros(len(turn), bool)
    again[turn[1:][same]] = True
    if again.sum() >= max(1, 0.001 * len(turn)):
        yield Finding(
            check="duplicates", level="note",
            sentence=f"{int(again.sum()):,} events ({again.mean():.1%}) stand there twice, with the same time and value.",
            todo="Counts and frequencies take them double: look whether a table was exported twice.",
            columns=("code", "copies"), rows=_counted(events, again),
        )  # fmt: skip
    seen: dict[bytes, int] = {}
    twins = []
    for i, (a, b) in enumerate(zip(events.offsets[:-1].tolist(), events.offsets[1:].tolist(), strict=True)):
        if b - a < FEWEST:
            continue
        part = turn[a:b]  # sorted by subject first: the events of subject i in a fixed order
        key = b"".join(column[part].tobytes() for column in (events.time, events.code, value))
        other = seen.setdefault(key, i)
        if other != i:
            twins.append((int(events.subjects[other]), int(events.subjects[i])))
    if twins:
        yield Finding(
            check="patients twice", level="warning",
            sentence=f"{len(twins)} subjects have exactly the events of another one: on two sides of a split they are a leak.",
            todo="Keep one of each, or give both the same id.", columns=("subject", "the same as"), rows=twins[:SHOWN],
        )  # fmt: skip


def coded_early(events: Events) -> Iterator[Finding]:
    """Billing codes at the first moment of encounters that last a day or more: written at the end, dated to the start."""
    if events.visit is None:
        return
    chosen = np.flatnonzero((events.visit != NO_VISIT) & (events.time != STATIC))
    _, visit = np.unique(np.stack([subject_of(events)[chosen], events.visit[chosen]]), axis=1, return_inverse=True)
    visit, time = visit.ravel(), events.time[chosen]
    begin = np.full(visit.max(initial=-1) + 1, np.iinfo(np.int64).max)
    end = np.full(len(begin), STATIC)
    np.minimum.at(begin, visit, time)
    np.maximum.at(end, visit, time)
    asked = _named(events, CODED)[events.code[chosen]] & (end - begin >= DAY)[visit]
    early = asked & (time == begin[visit])
    if asked.sum() < FEWEST or early.sum() < 0.5 * asked.sum():
        return
    mask = np.zeros(len(events.time), bool)
    mask[chosen[early]] = True
    yield Finding(
        check="coded early", level="warning",
        sentence=f"{int(early.sum()):,} of {int(asked.sum()):,} diagnoses of encounters of a day or more stand at the encounter's first "
        "moment: what was coded at its end is known from its start.",
        todo="Put diagnoses that are coded for billing at the discharge.", columns=("code", "events"),
        rows=_counted(events, mask),
    )  # fmt: skip


def _counted(events: Events, rows: np.ndarray) -> list[tuple[Any, ...]]:
    """Code and count of these events, the most frequent first."""
    return _most(events, np.bincount(events.code[rows], minlength=len(events.codes)))


def _most(events: Events, count: np.ndarray) -> list[tuple[Any, ...]]:
    """Code and count of the `SHOWN` codes with the highest counts; those without any are left out."""
    return [(events.codes[i], int(count[i])) for i in np.argsort(-count, kind="stable")[:SHOWN] if count[i]]


def told(events: Events, points: Labels) -> Iterator[Finding]:
    """Codes seen within `WINDOW` before the prediction time (and static facts) that alone tell the outcome."""
    point, code, value = _shortly_before(events, points)
    if not len(point):
        return
    rows: list[tuple[Any, ...]] = []
    for name, y in outcomes(points).items():
        rows += _telling(events, points, point, code, y, name) + _telling_values(events, point, code, value, y, name)
    if rows:
        codes = len({row[0] for row in rows})
        yield Finding(
            check="tells the outcome", level="warning",
            sentence=f"{codes} codes of the last 24 hours (or without a time) tell the outcome almost by themselves.",
            todo="Look what each is: a consequence of the outcome, its recording, or a code that is given once it is known, "
            "must come later or be left out.",
            columns=("code", "outcome", "patients with it", "share of the outcome with it", "without it"),
            rows=sorted(rows, key=lambda r: -r[2])[:SHOWN],
        )  # fmt: skip


def outcomes(points: Labels) -> dict[str, np.ndarray]:
    """Name -> (points,) yes or no: what labels of any kind ask."""
    if points.names is not None:
        names = np.array(points.names)
        return {str(n): names == n for n in np.unique(names)}
    return {} if points.value is None else {"true": points.value == 1}


def _shortly_before(events: Events, points: Labels) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Point, code and last value of every code known shortly before a point, or without a time."""
    who, rows = [], []
    for i, (subject, moment) in enumerate(zip(points.subject.tolist(), points.time.tolist(), strict=True)):
        known = events.before(subject, moment)
        time = events.time[known]
        static, late = np.searchsorted(time, [STATIC, moment - WINDOW], side="right")
        here = np.r_[np.arange(static), np.arange(max(static, late), len(time))] + known.start
        who.append(np.full(len(here), i))
        rows.append(here)
    if not rows:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32)
    point, row = np.concatenate(who), np.concatenate(rows)
    key = point * len(events.codes) + events.code[row]
    # The last of each (point, code): events come in order of time.
    _, last = np.unique(key[::-1], return_index=True)
    last = len(key) - 1 - last
    return point[last], events.code[row[last]], events.value[row[last]]


def _telling(
    events: Events, points: Labels, point: np.ndarray, code: np.ndarray, y: np.ndarray, name: str
) -> list[tuple[Any, ...]]:  # fmt: skip
    n, k = len(events.codes), y[point].astype(float)
    have = np.bincount(code, minlength=n)
    yes = np.bincount(code, k, n)
    _, patients_of = np.unique(np.stack([points.subject[point], code]), axis=1, return_index=True)
    patients = np.bincount(code[patients_of], minlength=n)
    positives, total = float(y.sum()), len(y)
    if min(positives, total - positives) < FEWEST:
        return []
    with_it = yes / np.maximum(have, 1)
    without = (positives - yes) / np.maximum(total - have, 1)
    apart = np.abs(yes / positives - (have - yes) / (total - positives))
    base = positives / total
    sure = np.where(base <= 0.5, _lower(with_it, patients), _lower(1 - with_it, patients))
    hit = np.flatnonzero((patients >= FEWEST) & ((apart >= TELLS) | (sure >= TELLS)))
    return [
        (events.codes[i], name, int(patients[i]), round(float(with_it[i]), 3), round(float(without[i]), 3)) for i in hit
    ]


def _lower(share: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Wilson's lower 95 % bound of a share."""
    n, z = np.maximum(n, 1), 1.96
    centre = share + z * z / (2 * n)
    return (centre - z * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))) / (1 + z * z / n)


def _telling_values(
    events: Events, point: np.ndarray, code: np.ndarray, value: np.ndarray, y: np.ndarray, name: str
) -> list[tuple[Any, ...]]:
    """Codes whose last value parts the outcomes almost wholly; shares are above and below the median."""
    from scipy.stats import rankdata

    good = np.isfinite(value)
    point, code, value = point[good], code[good], value[good]
    turn = np.argsort(code, kind="stable")
    out: list[tuple[Any, ...]] = []
    for part in np.split(turn, np.flatnonzero(np.diff(code[turn])) + 1):
        hit = y[point[part]] if len(part) else np.zeros(0, bool)
        a, b = int(hit.sum()), int((~hit).sum())
        if min(a, b) < FEWEST:
            continue
        area = (rankdata(value[part])[hit].sum() - a * (a + 1) / 2) / (a * b)
        if max(area, 1 - area) >= TELLING_AREA:
            middle = value[part] > np.median(value[part])
            high, low = float(hit[middle].mean()) if middle.any() else 0.0, float(hit[~middle].mean())
            out.append((f"{events.codes[code[part[0]]]} (its value)", name, len(part), round(high, 3), round(low, 3)))
    return out


def points_after_death(events: Events, points: Labels) -> Iterator[Finding]:
    dead = _begins(events, DEATH)
    late = np.array([
        bool(dead[events.code[events.before(s, t)]].any())
        for s, t in zip(points.subject.tolist(), points.time.tolist(), strict=True)
    ], bool) if dead.any() else np.zeros(len(points), bool)  # fmt: skip
    if late.any():
        yield Finding(
            check="points after death", level="warning",
            sentence=f"{int(late.sum()):,} of {len(points):,} prediction points know of the patient's death.",
            todo="Nobody asks then: leave these points out, or look whether deaths stand too early.",
            columns=("subject", "label"),
            rows=[(int(events.subjects[points.subject[i]]), _label(points, i)) for i in np.flatnonzero(late)[:SHOWN]],
        )  # fmt: skip


def _label(points: Labels, i: int) -> str:
    if points.names is not None:
        return points.names[i]
    return "" if points.value is None else str(bool(points.value[i])).lower()


def encounter_goes_on(events: Events, points: Labels) -> Iterator[Finding]:
    """Points that know how an encounter ended which has events more than a day later; points within an encounter."""
    if events.visit is None:
        return
    closing = _named(events, CLOSING)
    knows, within = 0, 0
    count = np.zeros(len(events.codes), np.int64)
    for subject, moment in zip(points.subject.tolist(), points.time.tolist(), strict=True):
        known, whole = events.before(subject, moment), events.before(subject, None)
        later = slice(known.stop, whole.stop)
        ahead = np.unique(events.visit[later][events.visit[later] != NO_VISIT])
        if not len(ahead):
            continue
        within += bool(np.isin(events.visit[known], ahead).any())
        far = np.unique(events.visit[later][(events.visit[later] != NO_VISIT) & (events.time[later] > moment + DAY)])
        hit = np.flatnonzero(closing[events.code[known]] & np.isin(events.visit[known], far)) + known.start
        knows += bool(len(hit))
        np.add.at(count, events.code[hit], 1)
    if knows:
        rows = _most(events, count)
        yield Finding(
            check="the end is known", level="warning",
            sentence=f"{knows:,} of {len(points):,} prediction points know how an encounter ended that goes on for more than a day.",
            todo="Look whether ends of encounters are stamped at their start.", columns=("code", "points"), rows=rows,
        )  # fmt: skip
    if within:
        yield Finding(
            check="within an encounter", level="note",
            sentence=f"{within:,} of {len(points):,} prediction points lie within an encounter that has later events.",
            todo="Usual for tasks during a stay; what is coded for the whole stay must not stand before them.",
        )  # fmt: skip


def at_the_point(events: Events, points: Labels) -> Iterator[Finding]:
    """Events at exactly the prediction time, which MEDS counts as known."""
    count = np.zeros(len(events.codes), np.int64)
    hits = 0
    for subject, moment in zip(points.subject.tolist(), points.time.tolist(), strict=True):
        known = events.before(subject, moment)
        at = known.start + int(np.searchsorted(events.time[known], moment, side="left"))
        hits += at < known.stop
        np.add.at(count, events.code[at : known.stop], 1)
    if hits:
        rows = _most(events, count)
        yield Finding(
            check="at the prediction time", level="note",
            sentence=f"{hits:,} of {len(points):,} prediction points have events at exactly their time, which count as known.",
            todo="Where one of them is what is predicted, put the prediction time a moment before it.",
            columns=("code", "points"), rows=rows,
        )  # fmt: skip


CHECKS = (midnights, after_death, before_birth, coded_early, duplicates, order)
TASK_CHECKS = (told, points_after_death, encounter_goes_on, at_the_point)
