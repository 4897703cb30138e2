"""Scorers by the official rules: scikit-learn, scipy and (where installed) seqeval agree, on adversarial data too."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.modalities.text.tasks import scorers

LABELS = [
    (["a", "b", "a"], ["a", "a", "b"]),
    (["a", "a", "a"], ["a", "a", "a"]),  # a single class
    (["a", "b"], ["b", "a"]),
    (["a", "b", "c", "c"], ["c", "c", "c", "c"]),
]


@pytest.mark.parametrize(("truth", "guess"), LABELS)
def test_classification_agrees_with_scikit_learn(truth, guess):
    from sklearn.metrics import accuracy_score, f1_score

    assert scorers.accuracy(truth, guess) == pytest.approx(accuracy_score(truth, guess))
    for average in ("macro", "micro"):
        expected = f1_score(truth, guess, average=average, zero_division=0)
        assert scorers.f1(truth, guess, average=average) == pytest.approx(expected)
    expected = f1_score(truth, guess, labels=["a"], average="macro", zero_division=0)
    assert scorers.f1(truth, guess, average="binary", positive="a") == pytest.approx(expected)


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(-3, 3)), min_size=2, max_size=30))
@settings(max_examples=60, deadline=None)
def test_correlations_agree_with_scipy(pairs):
    from scipy.stats import pearsonr, spearmanr

    x, y = (np.array(v, float) for v in zip(*pairs, strict=True))
    if np.ptp(x) == 0 or np.ptp(y) < 1e-6:
        if np.ptp(x) == 0 or np.ptp(y) == 0:
            assert scorers.pearson(x, y) == scorers.spearman(x, y) == 0.0
        return
    assert scorers.pearson(x, y) == pytest.approx(pearsonr(x, y)[0], abs=1e-9)
    assert scorers.spearman(x, y) == pytest.approx(spearmanr(x, y)[0], abs=1e-9)


def test_multilabel_agrees_with_scikit_learn():
    from sklearn.metrics import f1_score

    truth, guess = [{"a"}, {"a", "b"}, set()], [{"a", "b"}, set(), set()]
    as_array = lambda sets: np.array([[x in s for x in "ab"] for s in sets])  # noqa: E731
    for average in ("micro", "macro"):
        expected = f1_score(as_array(truth), as_array(guess), average=average, zero_division=0)
        assert scorers.multilabel_f1(truth, guess, average=average) == pytest.approx(expected)


def test_spans_of_every_scheme():
    assert scorers.spans_of(["B-X", "L-X", "U-Y", "O"]) == [(0, 2, "X"), (2, 3, "Y")]
    assert scorers.spans_of(["S-X", "B-Y", "E-Y"]) == [(0, 1, "X"), (1, 3, "Y")]
    assert scorers.spans_of(["I-X", "I-X", "I-Y"]) == [(0, 2, "X"), (2, 3, "Y")]  # IO: a type change parts
    assert scorers.spans_of(["I-X", "B-X", "I-X"]) == [(0, 1, "X"), (1, 3, "X")]
    assert scorers.spans_of([]) == [] == scorers.spans_of(["O", "O"])


TAGS = ["O", "B-P", "I-P", "B-L", "I-L"]


def test_entities_agree_with_seqeval():
    seqeval = pytest.importorskip("seqeval.metrics")
    from seqeval.metrics.sequence_labeling import get_entities

    rng = np.random.default_rng(0)
    for tags in itertools.product(TAGS, repeat=4):
        assert [(k, a, b - 1) for a, b, k in scorers.spans_of(tags)] == get_entities(list(tags))
    truth = [[TAGS[i] for i in rng.integers(0, 5, 9)] for _ in range(40)]
    guess = [[t if rng.random() < 0.6 else TAGS[rng.integers(0, 5)] for t in row] for row in truth]
    guess[0] = ["O"] * 9  # nothing predicted
    ours = scorers.entity_scores([scorers.spans_of(t) for t in truth], [scorers.spans_of(g) for g in guess])
    assert ours["f1"] == pytest.approx(seqeval.f1_score(truth, guess))
    assert ours["precision"] == pytest.approx(seqeval.precision_score(truth, guess))


def test_overlapping_and_empty_entities():
    found = scorers.entity_scores([[(0, 4, "X")], []], [[(0, 4, "X"), (2, 6, "X"), (0, 4, "Y")], []])
    assert (found["precision"], found["recall"]) == (pytest.approx(1 / 3), 1.0)
    assert scorers.entity_scores([[]], [[]])["f1"] == 0.0  # as seqeval: nothing to find, nothing found


def test_squad_rules():
    assert scorers.normalise_answer("The  U.S.-led 'Cat', an owl") == "usled cat owl"
    assert scorers.squad_exact("the cat", ["Cat!"]) == 1.0
    assert scorers.squad_f1("big red cat", ["the red cat"]) == pytest.approx(0.8)
    assert scorers.squad_f1("cat cat", ["cat"]) == pytest.approx(2 / 3)  # words are counted, not merely present
    assert scorers.squad_f1("", []) == 1.0 == scorers.squad_exact("", [])  # no answer, none given
    assert scorers.squad_f1("x", []) == 0.0 == scorers.squad_f1("", ["x"])
    # An answer that is punctuation only normalises to nothing: the v2 script drops it, so "no answer" is right.
    assert scorers.squad_exact("", ["..."]) == 1.0
    assert scorers.squad_exact("naïve", ["naive"]) == 0.0
    found = scorers.squad_scores({"a": "x", "b": ""}, {"a": ["x"], "b": [], "c": ["y"]})
    assert found["exact"] == pytest.approx(200 / 3)  # "c" has no guess, which is wrong
    assert found["no_answer_exact"] == 100.0
    assert found["has_answer_exact"] == 50.0


def test_retrieval():
    from sklearn.metrics import ndcg_score

    gains = {0: 1.0, 3: 2.0}
    found = scorers.retrieval_scores([[3, 1, 0, 2]], [gains], k=3)
    expected = ndcg_score([[1.0, 0, 0, 2.0]], [[2, 3, 1, 4]], k=3)
    assert found["ndcg@3"] == pytest.approx(expected)
    assert (found["mrr@3"], found["recall@3"]) == (1.0, 1.0)
    assert scorers.retrieval_scores([[1]], [{}])["mrr@10"] == 0.0


def test_calibration_error_of_a_perfect_and_a_boastful_model():
    assert scorers.calibration_error([1.0, 1.0], [1, 1]) == 0.0
    assert scorers.calibration_error([1.0, 1.0], [1, 0]) == pytest.approx(0.5)
