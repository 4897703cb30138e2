"""Probabilities: few held-out rows do not decide a temperature, and a span in two windows counts once."""

import numpy as np
import pytest
import torch

from unmask.modalities.text.tasks.answer import Answer, SquadQuestion, _add_spans, _likeliest
from unmask.modalities.text.tasks.classify import Classify, fit_temperature
from unmask.modalities.text.tasks.data import Item
from unmask.modalities.text.tasks.encoding import Prepared, Window
from unmask.modalities.text.tasks.held_out import judging_folds


@pytest.mark.parametrize("seed", range(3))
def test_a_few_right_rows_do_not_make_certain(seed):
    target = torch.arange(12) % 3
    logits = torch.randn(12, 3, generator=torch.Generator().manual_seed(seed)).double() / 4
    logits[range(12), target] += 2
    assert 0.3 < fit_temperature(logits, target) < 1


@pytest.mark.parametrize("true", [0.3, 1.0, 4.0])
def test_many_rows_decide_the_temperature(true):
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(2000, 3, generator=draw).double() * 3
    target = torch.multinomial(torch.softmax(logits / true, -1), 1, generator=draw)[:, 0]
    assert fit_temperature(logits, target) == pytest.approx(true, rel=0.1)


def probabilities(windows, tokens, scores):
    """Span -> probability, where every window sees the scores of its tokens."""
    table = np.full((tokens, 4), -np.inf)
    for w in windows:
        _add_spans(table, np.concatenate([np.zeros((w.shift, 2)), scores[w.first : w.last]]), w)
    spans, total = _likeliest(table)
    return {(a, b): np.exp(s - total) for s, a, b in spans}


def test_a_span_in_two_windows_counts_once():
    scores = np.random.default_rng(0).normal(size=(9, 2))
    scores[4] += 12
    whole = probabilities([Window(owner=0, first=0, last=9, shift=2)], 9, scores)
    parts = [Window(owner=0, first=0, last=6, shift=2), Window(owner=0, first=3, last=9, shift=2)]
    found = probabilities(parts, 9, scores)
    assert whole[4, 4] > 0.999
    assert found[4, 4] == pytest.approx(whole[4, 4], abs=1e-4)


def test_probabilities_of_all_spans_sum_to_1():
    scores = np.random.default_rng(1).normal(size=(5, 2))
    parts = [Window(owner=0, first=0, last=3, shift=1), Window(owner=0, first=2, last=5, shift=1)]
    found = probabilities(parts, 5, scores)
    assert len(found) == 3 + 2 + 1 + 3 + 2 + 1 - 1, "the one token that both have counts once"
    assert sum(found.values()) == pytest.approx(1)


def test_what_is_judged_had_no_say_in_the_temperature():
    draw = torch.Generator().manual_seed(3)
    logits = torch.randn(60, 3, generator=draw).numpy()
    labels = torch.randint(3, (60,), generator=draw).tolist()

    def judged(labels):
        items = [Item(text=f"text {i // 2}", label=f"label {n}") for i, n in enumerate(labels)]
        task = Classify(None, {"labels": ["label 0", "label 1", "label 2"], "problem": "single"})
        prepared = Prepared(items, [], [], {"target": torch.tensor(labels)})
        return [row["probabilities"] for row in task.judged(list(logits), prepared)], task.about["temperature"]

    before, temperature = judged(labels)
    other = labels.copy()
    other[8], other[9] = (labels[8] + 1) % 3, (labels[9] + 1) % 3  # of one text, twice there
    after, moved = judged(other)
    assert temperature != moved, "what is kept is fitted on all rows"
    assert before[8] == after[8]
    assert before[9] == after[9]
    assert before != after, "the labels of the other folds decide"


def asked(answers, gaps):
    """A task, and 40 questions about contexts of one word, every other answered; their outputs have these gaps."""
    items = [
        SquadQuestion(name=str(i), question=f"what {i}", context=f"word{i // 2}", answers=a)
        for i, a in enumerate(answers)
    ]
    n = len(items)
    windows = [Window(owner=i, first=0, last=1, shift=1) for i in range(n)]
    prepared = Prepared(items, [], [[i] for i in range(n)], {"windows": windows, "offsets": [np.array([[0, 5]])] * n})
    task = Answer(None, {"no_answer": True, "null_threshold": None})
    return task, [np.array([[gap, 0.0], [0.0, 0.0]]) for gap in gaps], prepared


def answers_of(rows):
    return [((f"word{i // 2}"[:5], 0),) if there else () for i, there in enumerate(rows)]


def test_what_is_judged_had_no_say_in_the_no_answer_threshold():
    gaps = np.random.default_rng(0).normal(size=40)
    there = gaps + np.random.default_rng(1).normal(size=40) < 0.3
    task, found, prepared = asked(answers_of(there), gaps)
    before, threshold = task.judged(found, prepared), task.about["null_threshold"]
    changed = False
    for _, here in judging_folds(prepared.items):
        other = there.copy()
        other[here] = ~there[here]
        task, _, prepared = asked(answers_of(other), gaps)
        after = task.judged(found, prepared)
        assert [after[i]["answer"] for i in here] == [before[i]["answer"] for i in here]
        changed |= task.about["null_threshold"] != threshold
    assert changed, "what is kept is fitted on all rows"


def test_a_second_calibration_forgets_the_first():
    task, found, prepared = asked(answers_of(np.arange(40) < 20), np.arange(40.0))
    task.judged(found, prepared)
    assert task.about["null_threshold"] == 19.5
    task.judged([x + np.array([[100, 0], [0, 0]]) for x in found], prepared)
    assert task.about["null_threshold"] == 119.5


def test_a_threshold_of_the_settings_stays():
    task, found, prepared = asked(answers_of(np.arange(40) < 20), np.arange(40.0))
    task = Answer(None, {"no_answer": True, "null_threshold": 3.0})
    assert sum(row["answer"]["text"] != "" for row in task.judged(found, prepared)) == 4
    assert task.about["null_threshold"] == 3.0


def test_folds_for_judging_hold_every_row_once_and_copies_together():
    items = [Item(text=f"Text  {i // 3}" if i % 2 else f"text {i // 3}") for i in range(60)]
    parts = list(judging_folds(items))
    assert sorted(np.concatenate([here for _, here in parts])) == list(range(60))
    assert len(parts) == 5
    for outside, here in parts:
        assert not {items[i].text.split()[1] for i in outside} & {items[i].text.split()[1] for i in here}
        assert len(outside) + len(here) == 60
