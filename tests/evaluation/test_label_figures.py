"""Several labels at once: one F1 over labels and one over decisions, wherever it stands."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import f1_score

from unmask.evaluation.labels import label_figures, label_lines
from unmask.modalities.text.tasks import scorers

NAMES = ["never held or given", "held never", "held always", "rare", "often"]


@pytest.mark.parametrize("seed", range(5))
def test_f1_is_scikit_learns_in_figures_and_metrics(seed):
    """One model had two macro F1: a label given and never true, or true of every row, counted in one alone."""
    rng = np.random.default_rng(seed)
    truth = rng.random((40, 5)) < [0, 0, 1, 0.1, 0.6]
    given = rng.random((40, 5)) < [0, 0.2, 0.9, 0.2, 0.6]
    found = label_figures(truth, np.where(given, 0.9, 0.1), NAMES)
    sets = [[{NAMES[c] for c in np.flatnonzero(row)} for row in rows] for rows in (truth, given)]
    for how in ("micro", "macro"):
        expected = f1_score(truth, given, average=how, zero_division=np.nan)  # NaN: a label of no row is left out
        assert found[f"{how}_f1"] == pytest.approx(expected)
        assert scorers.multilabel_f1(*sets, average=how) == pytest.approx(expected)
        low, high = found["intervals"][f"{how}_f1"]
        assert low <= found[f"{how}_f1"] <= high


def test_the_rule_gives_labels_that_hold():
    truth = np.array([[1, 0, 1], [0, 0, 1], [1, 0, 1]], bool)
    found = label_figures(truth, np.where(truth, 0.9, 0.1), ["a", "never", "always"])
    assert found["macro_f1"] == 1
    assert found["rule"]["macro_f1"] == pytest.approx((0.8 + 1) / 2)
    assert [row["rule"] and row["rule"]["f1"] for row in found["by_label"]] == [pytest.approx(0.8), None, None]
    nothing = label_figures(np.zeros((3, 2), bool), np.zeros((3, 2)), ["a", "b"])
    assert (nothing["macro_f1"], nothing["rule"]["macro_f1"]) == (None, None)


def test_labels_worse_than_giving_all_of_them_are_warned_of():
    truth = np.eye(4, dtype=bool)[[0, 1, 2, 3] * 3]
    for given, warned in (0.4, True), (0.6, False):
        lines = label_lines(label_figures(truth, np.where(truth, given, 0.1), list("abcd")))
        assert (
            any(line.startswith("warning: macro F1 is below that of always giving every") for line in lines) == warned
        )
    lines = label_lines(label_figures(np.zeros((3, 2), bool), np.zeros((3, 2)), ["a", "b"]))
    assert not any(line.startswith("warning") for line in lines)
