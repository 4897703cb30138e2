"""Probabilities: few held-out rows do not decide a temperature, and a span in two windows counts once."""

import numpy as np
import pytest
import torch

from unmask.modalities.text.tasks.answer import _add_spans, _likeliest
from unmask.modalities.text.tasks.classify import Classify, fit_temperature
from unmask.modalities.text.tasks.data import Item
from unmask.modalities.text.tasks.encoding import Window
from unmask.modalities.text.tasks.prepared import Prepared


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
