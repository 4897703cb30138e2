"""Questions about what is to come: what is known when they are asked, what answers them, and what is never asked."""

from __future__ import annotations

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from unmask.errors import UserError
from unmask.modalities.events.questions import query_fit
from unmask.modalities.events.questions.queries import (
    ABOVE,
    BELOW,
    ITEMS,
    QueryDraws,
    check_end_known,
    ends,
    features,
    first_after,
    horizons,
    made,
    matches,
    with_questions,
)
from unmask.modalities.events.questions.query_fit import start_questions
from unmask.modalities.events.questions.query_head import QueryHead
from unmask.modalities.events.questions.query_text import checked, parsed
from unmask.modalities.events.recipes import RECIPES, EventSettings, with_overrides
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.meds import HOUR, OBSERVATION_END, STATIC, Events, Labels
from unmask.modalities.events.records.vocabulary import FIRST, Vocabulary
from unmask.modalities.events.uses import pretrain as pretrain_events
from unmask.modalities.events.uses.folder import EventFolder, new_model
from unmask.modalities.events.uses.pretrain import EventPretraining, batch_maker, pretrain
from unmask.modalities.events.uses.query_answers import DEAD, NO_EVENTS, probabilities, unanswerable

SMALL = {"width": 16, "layers": 1, "heads": 2, "inner": 24, "slots": 32, "questions": 8, "until": "last"}


def hospital(seed: int = 0, patients: int = 12) -> Events:
    """Patients with 3 to 9 times of 1 to 3 events each, codes A to F (some with values), a fact without a time, and
    every fourth patient dead at the end."""
    rng = np.random.default_rng(seed)
    names, parts = ["A", "B", "C", "D", "E", "F", "FACT", "MEDS_DEATH"], []
    for i in range(patients):
        sizes = rng.integers(1, 4, rng.integers(3, 10))
        when = np.repeat(np.cumsum(rng.integers(2, 200, len(sizes))), sizes) * HOUR
        code = rng.integers(0, 6, len(when))
        if i % 4 == 0:
            code[-1] = 7
            when[-1] += HOUR
        value = np.where(code < 3, rng.normal(size=len(when)), np.nan)
        parts.append((np.r_[STATIC, when], np.r_[6, code], np.r_[np.nan, value].astype(np.float32)))
    time, code, value = (np.concatenate(p) for p in zip(*parts, strict=True))
    offsets = np.r_[0, np.cumsum([len(p[0]) for p in parts])]
    return Events(subjects=np.arange(patients) + 50, offsets=offsets, time=time, code=code, value=value, codes=names)


def histories_of(events: Events) -> Histories:
    return Histories(events, Vocabulary.fit(hospital(), floor=1))


def drawer(events: Events) -> QueryDraws:
    histories, everyone = histories_of(events), np.arange(len(events))
    return QueryDraws(histories, ends(events, everyone), QueryDraws.shares(histories, everyone))


@pytest.fixture(scope="module")
def folder() -> EventFolder:
    """A random model that answers."""
    settings, histories = with_overrides(EventSettings(), SMALL), histories_of(hospital())
    model = new_model(settings, len(histories.vocabulary)).eval()
    start_questions(model, histories, np.arange(12), settings)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(0)) * 0.1)
    return EventFolder(model=model, vocabulary=histories.vocabulary, settings=settings)


def test_the_minutes_of_a_run_hold_the_calibration_of_its_answers(folder, monkeypatch, tmp_path):
    """`minutes` was spent on training alone, and calibration came on top: 4 minutes took 346 seconds."""
    settings = with_overrides(EventSettings(), SMALL | {"minutes": 10.0})
    trained_for = EventPretraining(hospital(), settings, None).train.minutes
    given = []
    monkeypatch.setattr(pretrain_events, "calibrate", lambda *a: given.append(a[-1]) or [])
    monkeypatch.setattr(pretrain_events, "save_folder", lambda *a, **k: None)
    kind = EventPretraining(hospital(), settings, None)
    kind.prepare(tmp_path, resume=False, first=True, say=lambda line: None)
    kind.job(tmp_path, lambda line: None)
    kind.save(tmp_path, SimpleNamespace(queries=SimpleNamespace(calibrated=0)))
    assert given
    assert trained_for * 60 + given[0] == pytest.approx(600)
    clock = itertools.count()  # a second passes whenever it is read
    monkeypatch.setattr(query_fit.time, "monotonic", lambda: next(clock))
    asked = query_fit._held_out_answers(folder.model, drawer(hospital()), np.arange(12), folder.settings, 4.0)
    assert len(np.unique(asked["patient"])) == 6


def everything(histories: Histories) -> object:
    """A question about each code, and about values of A."""
    codes = [i + FIRST for i, c in enumerate(histories.vocabulary.codes) if c != "FACT"]
    code = np.full((len(codes) + 2, ITEMS), -1)
    code[: len(codes), 0] = codes
    code[len(codes) :, 0] = histories.vocabulary.numbers(["A"])[0]
    side, cut = np.zeros(code.shape, np.int64), np.zeros(code.shape)
    side[-2, 0], side[-1, 0], cut[-1, 0] = 1, -1, 0.3
    return made(histories, code, side, cut)


def changed_after(events: Events, subject: int, moment: int) -> Events:
    """Other codes, values and times after a moment, in every record."""
    later = events.time > moment
    return dataclasses.replace(
        events,
        code=np.where(later & (events.code < 6), (events.code + 1) % 6, events.code),
        value=np.where(later, events.value + 5, events.value).astype(np.float32),
        time=np.where(later, events.time + HOUR, events.time),
    )


def test_nothing_after_the_time_of_asking_reaches_an_answer(folder):
    events = hospital()
    stamps = np.unique(events.time[events.offsets[1] + 1 : events.offsets[2]])
    moment = int(stamps[len(stamps) // 2])
    other = changed_after(events, 1, moment)
    assert (other.code != events.code).any()
    found = []
    for e in (events, other):
        histories, points = histories_of(e), Labels(subject=np.array([1]), time=np.array([moment]))
        asked = everything(histories)
        found.append(
            (
                features(histories, asked, 1, moment),
                probabilities(folder, histories, points, asked, [9.0] * len(asked))[0],
            )
        )
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])
    assert np.ptp(found[0][1]) > 1e-4


def test_rows_of_one_time_stamp_may_stand_in_any_order(folder):
    events, rng = hospital(), np.random.default_rng(3)
    who = np.repeat(np.arange(len(events)), np.diff(events.offsets))
    order = np.lexsort((rng.random(len(who)), events.time, who))
    again = dataclasses.replace(events, code=events.code[order], value=events.value[order])
    assert (again.code != events.code).any()
    a, b = (
        probabilities(
            folder,
            h,
            Labels(subject=np.array([1, 2]), time=h.events.time[h.events.offsets[2:4] - 3]),
            everything(h),
            [9.0] * len(everything(h)),
        )[0]
        for h in map(histories_of, (events, again))
    )
    np.testing.assert_allclose(a, b, atol=1e-5)


def test_what_stands_at_the_time_of_asking_is_known_and_answers_nothing():
    draws, events = drawer(hospital()), hospital()
    for subject in range(len(events)):
        came = next(c for e in range(9) if (c := draws.draw(subject, 16, seed=0, epoch=e)) is not None)
        rows = draws.histories.rows(subject)
        later = rows[events.time[rows] > came.moment]
        hours = (events.time[later] - came.moment) / HOUR
        assert (hours > 0).all()
        again = first_after(came.queries, hours, draws.histories.code[later], events.value[later])
        np.testing.assert_array_equal(came.first, again)
        assert (came.first > 0).all()


def test_questions_are_a_function_of_seed_epoch_and_patient():
    draws, again = drawer(hospital()), drawer(hospital())
    for subject in (3, 0, 5):
        a, b = draws.draw(subject, 8, seed=1, epoch=2), again.draw(subject, 8, seed=1, epoch=2)
        assert a.moment == b.moment
        np.testing.assert_array_equal(a.queries.code, b.queries.code)
        np.testing.assert_array_equal(a.queries.cut, b.queries.cut)
    other = [draws.draw(3, 8, seed=s, epoch=e) for s, e in ((1, 2), (1, 3), (2, 2))]
    assert len({tuple(o.queries.code[:, 0]) for o in other}) == 3


def test_drawing_codes_that_will_come_is_weighed_out():
    """Weighted, the first code of a question is drawn by its share, whatever comes."""
    draws, total = drawer(hospital()), np.zeros(len(drawer(hospital()).share))
    for epoch in range(400):
        came = draws.draw(1, 16, seed=0, epoch=epoch)
        if came is None:
            continue
        np.add.at(total, came.queries.code[:, 0], came.weight)
    np.testing.assert_allclose(total / total.sum(), draws.share, atol=0.02)


def test_a_set_names_a_code_once():
    """Named twice, it would begin at twice its rate, and calibration would lower every answer for it."""
    draws, several = drawer(hospital()), 0
    for epoch in range(20):
        came = draws.draw(1, 16, seed=0, epoch=epoch)
        for code in [] if came is None else came.queries.code:
            assert len(set(code[code >= 0])) == (code >= 0).sum() > 0
            several += (code >= 0).sum() > 1
    assert several


def test_facts_without_a_time_are_never_asked_for():
    draws = drawer(hospital())
    assert draws.share[draws.histories.vocabulary.numbers(["FACT"])[0]] == 0
    assert draws.share[draws.histories.vocabulary.numbers(["MEDS_DEATH"])[0]] > 0


@pytest.mark.parametrize("digits", [1, 2])
def test_a_value_is_never_beyond_itself(digits):
    """Values of events are float32, the numbers of a question decimals: > 0.4 is not >= 0.4, nor is < 37.1 <= 37.1."""
    cuts = np.round(np.arange(1, 11) * 10.0**-digits, digits)
    value = np.repeat(cuts, 100)
    events = Events(
        subjects=np.array([1]),
        offsets=np.array([0, 1000]),
        time=np.arange(1000) * HOUR,
        code=np.zeros(1000, np.int64),
        value=value.astype(np.float32),
        codes=["LAB"],
    )
    histories = Histories(events, Vocabulary.fit(events, floor=1))
    head = SimpleNamespace(share=torch.ones(len(histories.vocabulary)), edges=torch.tensor([1.0, 1000.0]))
    for side, word in ((ABOVE, ">"), (BELOW, "<")):
        queries = checked([parsed(f"LAB {word} {cut} within 1 day") for cut in cuts], histories, head)
        found = matches(queries, histories.code[:], events.value).reshape(len(cuts), -1, 1000)[:, 0].sum(1)
        assert found.tolist() == [int((side * (value - cut) > 0).sum()) for cut in cuts]
        assert np.abs(queries.share[:, 0] - found / 1000).max() < 0.05  # those of one cut are 0.1


def test_horizons_beyond_the_end_of_observation_are_not_asked():
    """The rates of bins behind the end get no gradient; those before it do."""
    head = QueryHead(30, 8, 2)
    head.edges.copy_(torch.from_numpy(np.geomspace(1, 1000, len(head.edges))))
    rates = torch.rand(2, len(head.edges), requires_grad=True)
    end = torch.tensor([0.999 * float(head.edges[4]), 5000.0])
    head.loss(rates, torch.tensor([np.inf, np.inf]), end).sum().backward()
    assert (rates.grad[0, 5:] == 0).all()
    assert (rates.grad[0, :5] > 0).all()
    assert (rates.grad[1] > 0).all()


def test_the_loss_is_that_of_yes_and_no():
    head = QueryHead(30, 8, 2)
    head.edges.copy_(torch.from_numpy(np.geomspace(1, 1000, len(head.edges))))
    rates = torch.rand(1, len(head.edges))
    at = float(head.edges[3])
    no = head.loss(rates, torch.tensor([np.inf]), torch.tensor([at]))
    p = head.probability(rates, torch.tensor([at]))
    torch.testing.assert_close(no, -torch.log(1 - p))
    first_bin = head.loss(rates, torch.tensor([0.5]), torch.tensor([at]))
    p = head.probability(rates, head.edges[:1])
    torch.testing.assert_close(first_bin, -torch.log(p))


def test_an_answer_never_falls_with_the_horizon(folder):
    histories = histories_of(hospital())
    asked = everything(histories)
    points = Labels(subject=np.arange(1, 4), time=histories.events.time[histories.events.offsets[2:5] - 1])
    found = [probabilities(folder, histories, points, asked, [h] * len(asked))[0] for h in (1, 5, 20, 100, 400)]
    assert (np.diff(found, axis=0) >= 0).all()
    assert (np.diff(found, axis=0) > 0).any()


def test_questions_do_not_see_each_other(folder):
    """Alone, among others, and of a patient beside others."""
    histories = histories_of(hospital())
    asked = everything(histories)
    times = histories.events.time[histories.events.offsets[1:] - 2]
    points = Labels(subject=np.arange(1, 12), time=times[1:])
    whole = probabilities(folder, histories, points, asked, [9.0] * len(asked))[0]
    for n in (0, 4):
        alone = probabilities(folder, histories, points.take(np.array([n])), asked.some(slice(2, 3)), [9.0])[0]
        np.testing.assert_allclose(alone[0, 0], whole[n, 2], atol=1e-6)


def test_the_dead_count_as_observed_as_long_as_others():
    events = hospital(patients=40)
    last = ends(events, np.arange(40))
    own = events.time[events.offsets[1:] - 1]
    dead = np.arange(40) % 4 == 0
    assert (last[~dead] == own[~dead]).all()
    assert (last[dead] >= own[dead]).all()
    assert (last[dead] > own[dead]).any()


def test_who_cannot_be_asked_about_is_named(folder):
    events = hospital()
    histories, own = histories_of(events), events.time[events.offsets[1:] - 1]
    points = Labels(subject=np.array([0, 1, 1]), time=np.array([own[0], own[1], -HOUR]))
    assert unanswerable(histories, points) == [DEAD, None, NO_EVENTS]
    p, _ = probabilities(folder, histories, points, everything(histories), [9.0] * len(everything(histories)))
    assert np.isnan(p[[0, 2]]).all()
    assert np.isfinite(p[1]).all()


def test_horizons_follow_the_records():
    events = hospital()
    everyone = np.arange(12)
    last = ends(events, everyone)
    edges = horizons(events, everyone, last, None, None)
    assert edges[0] >= 1
    assert (np.diff(edges) > 0).all()
    np.testing.assert_allclose(horizons(events, everyone, last, 2.0, 50.0)[[0, -1]], [2, 50])


CALIBRATED_ON = ("rates", "beyond", "first", "end", "weight", "patient")


def test_calibration_finds_what_is_wrong_with_the_tails():
    """Rates that are .7 times the logarithm's true ones, and too high by 1/share^.4 where few values are beyond."""
    rng, head, n = np.random.default_rng(0), QueryHead(30, 8, 2), 20_000
    head.edges.copy_(torch.from_numpy(np.geomspace(1, 1000, len(head.edges))))
    share = np.where(rng.random(n) < 0.5, 1.0, 10 ** rng.uniform(-2.5, 0, n))
    rate = np.exp(rng.normal(-7, 0.7, n))
    first, end = rng.exponential(1 / rate), rng.uniform(100, 2000, n)
    width = np.diff(head.edges.numpy(), prepend=0)
    told = (rate / share**0.4)[:, None] * width
    head.calibrate(dict(zip(CALIBRATED_ON, (told, share, first, end, np.ones(n), np.arange(n)), strict=True)))
    assert int(head.calibrated) == n
    slope, _, _, by_share = head.calibration.tolist()
    assert (slope, by_share) == (pytest.approx(1.0, abs=0.06), pytest.approx(0.4, abs=0.06))
    hours = torch.full((n,), 300.0)
    p = head.probability(torch.from_numpy(told).float(), hours, torch.from_numpy(share).float()).numpy()
    for low, high in ((0, 0.03), (0.03, 0.99), (1, 2)):
        here = (share >= low) & (share < high)
        assert p[here].mean() == pytest.approx((1 - np.exp(-300 * rate[here])).mean(), abs=0.015)


def test_questions_of_few_patients_do_not_bend_right_answers():
    """60 patients, each asked 200 times of the same future: chance among them is not taken for a miscalibration."""
    off = []
    for seed in range(10):
        rng, head, n = np.random.default_rng(seed), QueryHead(30, 8, 2), 60
        head.edges.copy_(torch.from_numpy(np.geomspace(1, 1000, len(head.edges))))
        first = np.repeat(rng.exponential(300, n), 200)
        rates = np.tile(np.diff(head.edges.numpy(), prepend=0) / 300, (len(first), 1))
        whole = np.ones(len(first))
        head.calibrate(
            dict(
                zip(
                    CALIBRATED_ON, (rates, whole, first, 2000 * whole, whole, np.repeat(np.arange(n), 200)), strict=True
                )
            )
        )
        p = head.probability(torch.from_numpy(rates[:2]).float(), torch.tensor([20.0, 100.0]), torch.ones(2))
        off.append(np.abs(p.numpy() - (1 - np.exp(-np.array([20, 100]) / 300))))
    assert np.mean(off, 0) == pytest.approx([0, 0], abs=0.015)


def test_a_code_that_ends_every_record_is_not_calibrated_away():
    """A discharge, a fifth of the records per day: what comes at the very end of observation came."""
    rng, head, n = np.random.default_rng(0), QueryHead(30, 8, 2), 4000
    head.edges.copy_(torch.from_numpy(np.geomspace(1, 1000, len(head.edges))))
    first = rng.exponential(120, n)
    rates = np.tile(np.diff(head.edges.numpy(), prepend=0) / 120, (n, 1))
    head.calibrate(dict(zip(CALIBRATED_ON, (rates, np.ones(n), first, first, np.ones(n), np.arange(n)), strict=True)))
    p = head.probability(torch.from_numpy(rates[:1]).float(), torch.tensor([24.0]), torch.ones(1))
    assert float(p[0]) == pytest.approx(1 - np.exp(-0.2), abs=0.01)


@pytest.mark.parametrize("side", [1, -1])
def test_an_answer_falls_as_the_value_moves_outward_and_is_never_above_the_code_alone(folder, side: int):
    histories = histories_of(hospital())
    cuts = side * np.r_[-1e9, np.linspace(-1.5, 1.5, 25)]
    code = np.full((len(cuts), ITEMS), -1)
    code[:, 0] = histories.vocabulary.numbers(["A"])[0]
    code[:, 1] = histories.vocabulary.numbers(["D"])[0]  # a set: the other code counts whatever its value
    sides = np.where((np.arange(ITEMS) == 0) & (np.abs(cuts)[:, None] < 1e8), side, 0)
    asked = made(histories, code, sides, np.where(sides != 0, cuts[:, None], 0.0))
    points = Labels(subject=np.arange(1, 4), time=histories.events.time[histories.events.offsets[2:5] - 2])
    found, _ = probabilities(folder, histories, points, asked, [30.0] * len(cuts))
    assert (np.diff(found, axis=1) <= 1e-7).all()
    assert np.ptp(found, axis=1).min() > 1e-3


def monitored(seed: int, patients: int) -> Events:
    """A skewed marker, measured about daily, that stays near where a patient is; and a visit that some have often."""
    rng = np.random.default_rng(seed)
    parts = []
    for _ in range(patients):
        when = np.sort(rng.uniform(0, 20, 20))
        level = rng.normal() + np.cumsum(rng.normal(0, 0.06, 20))
        visits = np.sort(rng.uniform(0, 20, rng.poisson(20 * rng.gamma(0.5, 0.5))))
        time, code = np.r_[0.0, when, visits], np.r_[0, np.ones(20, np.int64), np.full(len(visits), 2)]
        value = np.r_[np.nan, np.exp(level), np.full(len(visits), np.nan)]
        order = np.argsort(time, kind="stable")
        parts.append((time[order], code[order], value[order]))
    time, code, value = (np.concatenate(p) for p in zip(*parts, strict=True))
    offsets = np.r_[0, np.cumsum([len(p[0]) for p in parts])]
    return Events(
        subjects=np.arange(patients),
        offsets=offsets,
        time=(time * 24 * HOUR).astype(np.int64),
        code=code,
        value=value.astype(np.float32),
        codes=["START", "MARKER", "VISIT"],
    )


def test_answers_begin_as_good_as_a_regression_on_the_last_value_and_on_counts():
    """Before any step of training: a marker beyond what one in ten have, and a visit, of patients not seen."""
    from sklearn.linear_model import LogisticRegression

    events, train, rest = monitored(0, 500), np.arange(300), np.arange(300, 500)
    histories = Histories(events, Vocabulary.fit(events, subjects=train, floor=1))
    settings = with_overrides(EventSettings(), SMALL | {"until": "1970-01-21T00:00"})
    model = new_model(settings, len(histories.vocabulary)).eval()
    start_questions(model, histories, train, settings)
    folder = EventFolder(model=model, vocabulary=histories.vocabulary, settings=settings)
    marker, visit = histories.vocabulary.numbers(["MARKER", "VISIT"])
    cut = float(np.exp(1.3))
    code, side = np.full((2, ITEMS), -1), np.zeros((2, ITEMS), np.int64)
    code[:, 0], side[0, 0] = (marker, visit), 1
    asked = made(histories, code, side, np.where(side, cut, 0.0))
    moment, hours = 10 * 24 * HOUR, 48.0
    x, y = np.zeros((500, 2)), np.zeros((500, 2))
    for i in range(500):
        rows = histories.rows(i)
        known = rows[events.time[rows] <= moment]
        later = rows[events.time[rows] > moment]
        values = events.value[known][histories.code[known] == marker]
        x[i] = np.log(values[-1]) if len(values) else 0, np.log1p((histories.code[known] == visit).sum())
        y[i] = first_after(asked, (events.time[later] - moment) / HOUR, histories.code[later], events.value[later])
    y = y <= hours
    points = Labels(subject=rest, time=np.full(len(rest), moment))
    found, _ = probabilities(folder, histories, points, asked, [hours, hours])
    for q in (0, 1):
        rule = LogisticRegression().fit(x[train, q : q + 1], y[train, q]).predict_proba(x[rest, q : q + 1])[:, 1]
        ours, theirs = (((p - y[rest, q]) ** 2).mean() for p in (found[:, q], rule))
        assert ours <= theirs + 0.005, (q, ours, theirs)


def memoryless(seed: int, patients: int, per_day: float, days: float) -> Events:
    """A code that comes as a Poisson process, of patients who have another one at the start."""
    rng = np.random.default_rng(seed)
    parts = []
    for _ in range(patients):
        when = np.sort(rng.uniform(0, days, rng.poisson(per_day * days)))
        parts.append((np.r_[0.0, when], np.r_[0, np.ones(len(when), np.int64)]))
    time, code = (np.concatenate(p) for p in zip(*parts, strict=True))
    offsets = np.r_[0, np.cumsum([len(p[0]) for p in parts])]
    value = np.full(len(time), np.nan, np.float32)
    stamps = (time * 24 * HOUR).astype(np.int64)
    return Events(
        subjects=np.arange(patients), offsets=offsets, time=stamps, code=code, value=value, codes=["START", "X"]
    )


def came_within(events: Events, until: int | None, epochs: int, days: list[float]) -> list[float]:
    """Of the drawn questions about X alone that were observed so long, the weighted share that came."""
    histories, everyone = Histories(events, Vocabulary.fit(events, floor=1)), np.arange(len(events))
    last = ends(events, everyone, until)
    draws = QueryDraws(histories, last, QueryDraws.shares(histories, everyone))
    x, rows = histories.vocabulary.numbers(["X"])[0], []
    for epoch in range(epochs):
        for i in everyone:
            came = draws.draw(int(i), 4, seed=0, epoch=epoch)
            if came is not None:
                mine = np.flatnonzero((came.queries.code[:, 0] == x) & (came.queries.code[:, 1] < 0))
                rows += [(came.first[q], came.end, came.weight[q]) for q in mine.tolist()]
    first, end, weight = np.array(rows).T
    share = []
    for d in days:
        seen = end >= d * 24
        share.append(float((weight * (first <= d * 24))[seen].sum() / weight[seen].sum()))
    return share


def test_questions_are_asked_at_moments_that_do_not_know_the_future():
    """A memoryless code, every 20 days: within 1, 3, 30 and 90 days as often as it comes."""
    events, days = memoryless(0, 300, 1 / 20, 365), [1.0, 3.0, 30.0, 90.0]
    found = came_within(events, int(365 * 24 * HOUR), 60, days)
    np.testing.assert_allclose(found, 1 - np.exp(-np.array(days) / 20), atol=0.01)


def test_visits_once_a_year_with_the_end_of_observation_as_data():
    """.3 visits per year that count, ten years observed: .259 within a year, also after the last visit."""
    events = memoryless(1, 3000, 0.3 / 365.25, 3652.5)
    days = [365.25]
    truth = 1 - np.exp(-0.3)
    assert came_within(events, int(3652.5 * 24 * HOUR), 4, days)[0] == pytest.approx(truth, abs=0.02)
    end = np.repeat([True, False], [len(events), len(events.time)])
    who = np.r_[np.arange(len(events)), np.repeat(np.arange(len(events)), np.diff(events.offsets))]
    time = np.r_[np.full(len(events), int(3652.5 * 24 * HOUR)), events.time]
    order = np.lexsort((time, who))
    told = dataclasses.replace(
        events,
        codes=[*events.codes, OBSERVATION_END],
        offsets=events.offsets + np.arange(len(events) + 1),
        time=time[order],
        code=np.where(end, 2, np.r_[np.zeros(len(events), np.int64), events.code])[order],
        value=np.full(len(time), np.nan, np.float32),
    )
    assert OBSERVATION_END not in Vocabulary.fit(told, floor=1).codes
    assert Histories(told, Vocabulary.fit(told, floor=1)).age(0, 10**15) == 0  # no birth either
    assert came_within(told, None, 4, days)[0] == pytest.approx(truth, abs=0.02)


def test_the_end_of_observation_is_asked_for_where_visits_are_rare(tmp_path):
    rare, often = memoryless(1, 40, 0.3 / 365.25, 3652.5), memoryless(0, 40, 1 / 20, 365)
    with pytest.raises(UserError, match="nothing says until when patients were observed"):
        check_end_known(rare, np.arange(40))
    check_end_known(often, np.arange(40))
    with pytest.raises(UserError, match=r"have events after until.*the last event is of \d{4}-\d\d-\d\d"):
        ends(often, np.arange(40), int(300 * 24 * HOUR))
    with pytest.raises(UserError, match="until=soon: not a day or a time"):
        with_overrides(EventSettings(), {"until": "soon"})
    for until in ("last", "1981-01-01"):
        settings = with_overrides(EventSettings(), {**SMALL, "until": until, "holdout": 0.2, "steps": 1})
        assert pretrain(rare, tmp_path / until, settings=settings, console=False).result.stopped == "finished"


def test_records_that_end_as_they_begin_cannot_be_asked_about(tmp_path):
    """Each patient's events are at one time, and with `until=last` nothing is observed after it."""
    one_time = dataclasses.replace(hospital(), time=np.where(hospital().time == STATIC, STATIC, HOUR))
    settings = with_overrides(EventSettings(), {**SMALL, "holdout": 0, "steps": 1})
    with pytest.raises(UserError, match="no question can be asked of 12 training patients"):
        pretrain(one_time, tmp_path / "model", settings=settings, console=False)


def test_the_recipe_asks():
    assert with_overrides(EventSettings(), RECIPES["ask"]).questions > 0


def test_the_loss_of_a_batch_is_the_sum_of_its_parts(folder):
    """Gradient accumulation changes nothing: law 7 for questions."""
    draws, rows = drawer(hospital()), [[0, 1], [2], [3, 5], [4]]
    make = with_questions(batch_maker(draws.histories, 64), draws, slots=64, count=8, seed=0)
    batch = make(rows, 4, 2)
    model = folder.model
    with torch.no_grad():
        whole = model.question_loss(batch.extra).sum()
        parts = [model.question_loss(part.extra).sum() for part in batch.cut(1)]
    assert whole > 1
    torch.testing.assert_close(whole, sum(parts))


def test_a_history_cut_between_time_stamps_may_be_longer_when_it_is_asked_early(tmp_path):
    """Cut to whole time stamps, the latest events of a long record can take fewer slots than its earlier ones: a row
    in which a short record fills what they leave had no room for those."""
    long, short = np.repeat(np.arange(1, 5), [4, 4, 3, 9]) * HOUR, np.array([HOUR])
    time = np.concatenate([long, short] * 20)
    offsets = np.r_[0, np.cumsum([len(long), len(short)] * 20)]
    code = np.random.default_rng(0).integers(0, 6, len(time))
    value = np.full(len(time), np.nan, np.float32)
    events = Events(subjects=np.arange(40), offsets=offsets, time=time, code=code, value=value, codes=list("ABCDEF"))
    settings = with_overrides(EventSettings(), {**SMALL, "slots": 12, "batch_slots": 48, "epochs": 4, "holdout": 0.2})
    run = pretrain(events, tmp_path / "run", settings=settings, console=False)
    assert run.result.stopped == "finished"
