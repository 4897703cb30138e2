"""What is known at many points at once is what `Events.before` says of each; the checks count as a loop over the points
does."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from unmask.modalities.events.audit.audit_events import CHECKS
from unmask.modalities.events.audit.audit_points import (
    CLOSING,
    WINDOW,
    _Shortly,
    at_the_point,
    encounter_continues,
    outcomes,
    points_after_death,
)
from unmask.modalities.events.audit.findings import DAY
from unmask.modalities.events.records.cuts import cut, searched
from unmask.modalities.events.records.meds import NO_VISIT, STATIC, Events, Labels

CODES = ["A", "B", "DISCHARGE", "MEDS_DEATH", "VISIT_END//X"]


def made(seed: int) -> tuple[Events, Labels]:
    """Short random histories with static events, ties, encounters that overlap, and points at and between
    their events."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 15, 40)
    offsets = np.r_[0, np.cumsum(counts)]
    time, visit = [], []
    for count in counts:
        when = np.sort(rng.integers(0, 40, count)) * (DAY // 8)
        when[: rng.integers(0, 3)] = STATIC
        time.append(when)
        visit.append(rng.choice([NO_VISIT, 1, 2, 3], count))
    code = rng.choice(len(CODES), offsets[-1], p=[0.4, 0.3, 0.15, 0.05, 0.1]).astype(np.int32)
    events = Events(
        subjects=np.arange(40) + 7,
        offsets=offsets,
        time=np.concatenate(time),
        code=code,
        codes=CODES,
        value=np.where(rng.random(offsets[-1]) < 0.5, rng.normal(size=offsets[-1]), np.nan).astype(np.float32),
        visit=np.concatenate(visit),
    )
    return events, Labels(
        subject=rng.integers(0, 40, 300), time=rng.integers(0, 80, 300) * (DAY // 16), value=rng.integers(0, 2, 300)
    )


@pytest.fixture(params=range(5))
def both(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Events, Labels]:
    """Events that are looked at in many blocks."""
    whole = Events.blocks
    monkeypatch.setattr(Events, "blocks", lambda self, most=30: whole(self, most))
    return made(request.param)


def test_cuts_are_those_of_one_history(both: tuple[Events, Labels]):
    events, points = both
    seen = []
    parts = list(cut(events, points, most=200))
    assert len(parts) > 3
    for part in parts:
        seen += part.number.tolist()
        for i, start, known in zip(part.number.tolist(), part.start.tolist(), part.known.tolist(), strict=True):
            assert events.before(int(points.subject[i]), int(points.time[i])) == slice(start, known)
    assert sorted(seen) == list(range(len(points)))
    assert not set.intersection(*(set(p.subject.tolist()) for p in parts[:2]))


@pytest.mark.parametrize("side", ["left", "right"])
def test_many_searches_are_many_single_ones(side):
    rng = np.random.default_rng(0)
    values = np.concatenate([np.sort(rng.integers(0, 9, 10)) for _ in range(20)])
    start = np.repeat(np.arange(20) * 10, 11)
    wanted = np.tile(np.arange(-1, 10), 20)
    stop = start + rng.integers(0, 11, len(start))
    expected = [a + np.searchsorted(values[a:b], w, side) for a, b, w in zip(start, stop, wanted, strict=True)]
    np.testing.assert_array_equal(searched(values, start, stop, wanted, side), expected)


def test_counts_are_those_of_a_loop_over_the_points(both: tuple[Events, Labels]):
    events, points = both
    dead = {i for i, c in enumerate(CODES) if c == "MEDS_DEATH"}
    knows, within, after, at, ends, exact = 0, 0, 0, 0, Counter[str](), Counter[str]()
    for subject, moment in zip(points.subject.tolist(), points.time.tolist(), strict=True):
        known, whole = events.before(subject, moment), events.before(subject, None)
        later = range(known.stop, whole.stop)
        ahead = {int(events.visit[i]) for i in later} - {NO_VISIT}
        far = {int(events.visit[i]) for i in later if events.time[i] > moment + DAY} - {NO_VISIT}
        rows = range(known.start, known.stop)
        within += any(int(events.visit[i]) in ahead for i in rows)
        hit = [CODES[events.code[i]] for i in rows if CLOSING.search(CODES[events.code[i]]) and events.visit[i] in far]
        knows += bool(hit)
        ends.update(hit)
        after += any(int(events.code[i]) in dead for i in rows)
        now = [CODES[events.code[i]] for i in rows if events.time[i] == moment]
        at += bool(now)
        exact.update(now)
    found = {
        f.check: f for check in (encounter_continues, points_after_death, at_the_point) for f in check(events, points)
    }
    for check, count in {
        "the end is known": knows,
        "within an encounter": within,
        "points after death": after,
        "at the prediction time": at,
    }.items():
        assert count > 0
        assert found[check].sentence.startswith(f"{count:,} of 300 ")
    assert dict(found["the end is known"].rows) == ends
    assert dict(found["at the prediction time"].rows) == exact


def test_what_is_seen_shortly_before_is_what_a_loop_finds(both: tuple[Events, Labels]):
    events, points = both
    last: dict[tuple[int, int], int] = {}
    for i, (subject, moment) in enumerate(zip(points.subject.tolist(), points.time.tolist(), strict=True)):
        known = events.before(subject, moment)
        for row in range(known.start, known.stop):
            if events.time[row] == STATIC or events.time[row] > moment - WINDOW:
                last[i, int(events.code[row])] = row
    seen = _Shortly(events=events, label_columns=outcomes(points))
    for part in cut(events, points, most=200):
        seen.add(part)
    truth = points.value == 1
    assert truth is not None
    for code in range(len(CODES)):
        mine = [i for i, c in last if c == code]
        assert seen.have[code] == len(mine)
        assert seen.patients[code] == len({int(points.subject[i]) for i in mine})
        assert seen.yes["true"][code] == truth[mine].sum()
    values = {(int(p), int(c)): float(v) for c, p, v in zip(*seen.last_values, strict=True)}
    assert values == {k: float(events.value[r]) for k, r in last.items() if np.isfinite(events.value[r])}


def test_findings_do_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch):
    events, _ = made(1)
    one = [f.to_dict() for check in CHECKS for f in check(events)]
    whole = Events.blocks
    monkeypatch.setattr(Events, "blocks", lambda self, most=30: whole(self, most))
    assert [f.to_dict() for check in CHECKS for f in check(events)] == one
    assert one


def test_times_to_an_event_are_asked_about_too():
    days = np.arange(1.0, 101.0)
    seen = (np.arange(100) % 2).astype(np.int64)
    points = Labels(subject=np.arange(100), time=np.zeros(100, np.int64), value=seen, days=days)
    asked = outcomes(points)
    assert list(asked) == ["true", "true within 51 days", "known for less than 50.5 days"]
    assert asked["true within 51 days"].tolist() == ((seen == 1) & (days <= 51)).tolist()
    assert asked["known for less than 50.5 days"].tolist() == (days < 50.5).tolist()
