"""Answers to questions equal a pass of the model for each question alone."""

import numpy as np
import torch

from tiny import Setup, numbers
from unmask.core.batch import pack
from unmask.core.corruption import hide
from unmask.core.fill import Question, answers
from unmask.core.score import scorable


def questions_of(setup: Setup) -> list[Question]:
    """Every example twice: all of two hidden slots, and the last of three hidden ones, asked for out of order."""
    out = []
    for example in setup.examples(9, 14, 6, 11):
        slots = scorable(example)
        out.append(Question(example=example, hidden=slots[[2, 0]]))
        out.append(Question(example=example, hidden=slots[:3], wanted=slots[[2, 1]]))
    return out


def test_answers_equal_a_pass_for_each_question(setup: Setup) -> None:
    questions, met = questions_of(setup), []
    for found, prediction, places in answers(setup.model, questions, slots=64, batch_slots=64):
        for number, at in zip(found, places, strict=True):
            q = questions[number]
            wanted = q.hidden if q.wanted is None else q.wanted
            batch = pack([q.example], slots=len(q.example))
            for slot, place in zip(wanted.tolist(), at.tolist(), strict=True):
                with torch.no_grad():
                    alone = setup.model(batch, hide(torch.from_numpy(q.hidden)), wanted=torch.tensor([slot]))
                torch.testing.assert_close(numbers(prediction)[[place]], numbers(alone), atol=1e-4, rtol=1e-4)
            met.append(number)
    assert sorted(met) == list(range(len(questions)))


def test_no_questions_no_answers(setup: Setup) -> None:
    assert not list(answers(setup.model, [], slots=64))


def test_a_question_without_slots_is_answered_by_nothing(setup: Setup) -> None:
    (example,) = setup.examples(7)
    none = Question(example=example, hidden=np.zeros(0, np.int64))
    some = Question(example=example, hidden=scorable(example)[:1])
    sizes = {
        n: len(at)
        for found, _, places in answers(setup.model, [none, some], slots=64)
        for n, at in zip(found, places, strict=True)
    }
    assert sizes == {0: 0, 1: 1}
