"""Law 10. Nothing that was known only after a time of asking reaches an answer given at it, in training or in use; and
what stood in the record by then answers no question."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from test_law8_ties import Case

from unmask.modalities.events.questions.queries import ITEMS, Came, Queries, QueryDraws, ends, made, query_batch
from unmask.modalities.events.questions.query_fit import start_questions
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.meds import HOUR, STATIC, Events, Labels
from unmask.modalities.events.records.vocabulary import FIRST
from unmask.modalities.events.uses.query_answers import probabilities

EVERYONE = np.arange(8)


@pytest.fixture
def case(seed: int) -> Case:
    """A random model that answers."""
    case = Case("ask", seed)
    start_questions(
        case.folder.model, case.histories(case.events), EVERYONE, dataclasses.replace(case.settings, until="last")
    )
    return case


def changed_after(events: Events, moment: np.ndarray) -> Events:
    """Other codes, values and times after each patient's moment."""
    later = events.time > np.repeat(moment, np.diff(events.offsets))
    return dataclasses.replace(
        events,
        code=np.where(later, events.code % 9 + 1, events.code),
        value=np.where(later, 5 - events.value, events.value).astype(np.float32),
        time=np.where(later, events.time + HOUR, events.time),
    )


def everything(histories: Histories) -> Queries:
    """Every code, and values of every code above a limit."""
    number = np.flatnonzero(histories.vocabulary.valued)
    code = np.full((2 * len(number), ITEMS), -1)
    code[:, 0] = np.r_[number, number]
    side = np.zeros(code.shape, np.int64)
    side[len(number) :, 0] = 1
    assert len(number) > 5
    assert number.min() >= FIRST
    return made(histories, code, side, np.zeros(code.shape))


def test_an_answer_knows_nothing_of_later(case: Case):
    events = case.events
    stamps = [np.unique(events.time[events.offsets[i] + 4 : events.offsets[i + 1]]) for i in EVERYONE]
    points = Labels(subject=EVERYONE, time=np.array([s[len(s) // 2 - 1] for s in stamps]))
    answers = []
    for known in (events, changed_after(events, points.time)):
        histories = case.histories(known)
        asked = everything(histories)
        answers.append(probabilities(case.folder, histories, points, asked, [1.0] * len(asked))[0])
    np.testing.assert_array_equal(*answers)
    assert np.ptp(answers[0]) > 0


def drawn(case: Case, epoch: int) -> list[Came]:
    histories = case.histories(case.events)
    draws = QueryDraws(histories, ends(case.events, EVERYONE), QueryDraws.shares(histories, EVERYONE))
    return [next(c for e in range(epoch, 99, 3) if (c := draws.draw(int(i), 6, seed=0, epoch=e))) for i in EVERYONE]


def test_a_training_history_knows_nothing_of_later(case: Case):
    """All that is laid beside a batch but the answers."""
    for epoch in range(3):
        came = drawn(case, epoch)
        moments = np.array([c.moment for c in came])
        two = []
        for known in (case.events, changed_after(case.events, moments)):
            rows = [[int(i)] for i in EVERYONE]
            two.append(query_batch(case.histories(known), rows, [[c] for c in came], slots=16, number=8))
        for name, value in two[0].items():
            assert torch.equal(value, two[1][name]), name


def test_what_stands_at_the_time_of_asking_answers_nothing(case: Case):
    """Every yes is told by an event that is strictly later, and the first such."""
    histories, seen = case.histories(case.events), 0
    for epoch in range(3):
        for subject, came in enumerate(drawn(case, epoch)):
            rows = histories.rows(subject)
            rows = rows[case.events.time[rows] != STATIC]
            hours = (case.events.time[rows] - came.moment) / HOUR
            for q in range(len(came.queries)):
                fits = np.zeros(len(rows), bool)
                for code, side, cut in zip(
                    came.queries.code[q], came.queries.side[q], came.queries.cut[q], strict=True
                ):
                    beyond = (side == 0) | (side * (case.events.value[rows] - cut) > 0)
                    fits |= (histories.code[rows] == code) & beyond
                expected = hours[fits & (hours > 0)].min(initial=np.inf)
                assert came.first[q] == expected
                seen += np.isfinite(expected) and bool((fits & (hours == 0)).any())
    assert seen
