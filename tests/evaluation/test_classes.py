"""Figures of predicted classes equal scikit-learn's; their intervals cover."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, f1_score, precision_recall_fscore_support, roc_auc_score

from unmask.evaluation.classes import area, class_figures, class_lines, confusion_table, share
from unmask.evaluation.labels import label_figures
from unmask.evaluation.metrics import wilson


def drawn(seed: int, n: int = 300, k: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.choice(k, n, p=[0.6, 0.3, 0.1])
    scores = rng.normal(size=(n, k)) + 1.5 * np.eye(k)[labels]
    scores = np.round(scores, 1)  # ties
    return labels, np.exp(scores) / np.exp(scores).sum(1, keepdims=True)


def test_macro_f1_counts_a_class_that_is_predicted_and_never_true():
    """As scikit-learn and the tasks' own f1_macro have it: one model had two macro F1."""
    labels = np.array([0, 0, 0, 1, 1, 1])
    p = np.eye(4)[[0, 0, 2, 1, 1, 2]]
    found = class_figures(labels, p, ["a", "b", "c", "never"])
    assert found["macro_f1"] == pytest.approx(f1_score(labels, p.argmax(1), average="macro"))
    assert found["by_class"][2]["f1"] is None


@pytest.mark.parametrize("number", range(3))
def test_figures_are_scikit_learns(number):
    labels, p = drawn(number)
    found = class_figures(labels, p, ["a", "b", "c"])
    said = p.argmax(1)
    assert found["confusion"] == confusion_matrix(labels, said).tolist()
    precision, recall, f1, n = precision_recall_fscore_support(labels, said)
    for c, row in enumerate(found["by_class"]):
        assert row["n"] == n[c]
        for name, expected in (("precision", precision), ("recall", recall), ("f1", f1)):
            assert row[name]["value"] == pytest.approx(expected[c])
            assert row[name]["interval"][0] <= expected[c] <= row[name]["interval"][1]
        assert row["auroc"]["value"] == pytest.approx(roc_auc_score(labels == c, p[:, c]))
    assert found["macro_f1"] == pytest.approx(f1.mean())
    assert found["most_frequent"] == "a"
    assert found["most_frequent_accuracy"] == pytest.approx((labels == 0).mean())
    json.dumps(found, allow_nan=False)
    assert "<script>" not in confusion_table(found, ["<script>", "b", "c"])
    assert any("most frequent class" in line for line in class_lines(found))


def test_classes_that_do_not_occur_or_are_never_said_have_no_made_up_scores():
    p = np.array([[0.9, 0.1, 0.0], [0.8, 0.2, 0.0], [0.7, 0.3, 0.0]])
    rows = class_figures(np.array([0, 1, 0]), p, ["a", "b", "c"])["by_class"]
    assert rows[1]["precision"] is None
    assert rows[1]["recall"]["value"] == 0
    assert rows[1]["f1"]["value"] == 0
    assert (rows[2]["recall"], rows[2]["f1"], rows[2]["auroc"]) == (None, None, None)
    assert area(np.array([True, True]), np.array([0.1, 0.2])) is None


def test_intervals_cover_about_as_often_as_they_say():
    rng = np.random.default_rng(0)
    shares, areas = [], []
    for _ in range(400):
        hits = rng.binomial(40, 0.85)
        low, high = wilson(hits, 40)
        shares.append(low <= 0.85 <= high)
        positive, negative = rng.normal(1.0, 1, 40), rng.normal(0, 1, 60)
        low, high = area(np.arange(100) < 40, np.concatenate([positive, negative]))["interval"]
        areas.append(low <= 0.7602 <= high)  # the normal distribution's at 1 / sqrt(2)
    assert 0.92 < np.mean(shares) < 0.98
    assert 0.92 < np.mean(areas) < 0.98


def clustered(rng, patients, each, spread):
    """Patients with an effect of their own on all of their examples: (patient, label, score of class 1)."""
    patient = np.repeat(np.arange(patients), each)
    label = np.repeat(rng.random(patients) < 0.5, each).astype(int)
    return patient, label, np.repeat(rng.normal(0, spread, patients), each) + rng.normal(0, 1, len(patient)) + label


def test_intervals_of_each_class_and_label_cover_patients_with_many_examples():
    rng = np.random.default_rng(3)
    truth = figures_of(*clustered(rng, 40_000, 5, 1.0), groups=None)
    held, alone = Counter(), Counter()
    for number in range(100):
        patient, label, score = clustered(rng, 50, 20, 1.0)
        for found, groups in ((held, patient), (alone, None)):
            for name, figure in figures_of(patient, label, score, groups=groups, labels=number < 10).items():
                found[name] += figure["interval"][0] <= truth[name]["value"] <= figure["interval"][1]
    assert all(87 <= held[name] <= 100 for name in truth), held
    assert all(alone[name] < 70 for name in truth), alone


def figures_of(patient, label, score, *, groups, labels=False):
    """Of class 1; with `labels`, those of it as a label of its own are compared with them."""
    chance = np.stack([1 - (c := 1 / (1 + np.exp(0.5 - score))), c], 1)
    row = class_figures(label, chance, ["a", "b"], groups=groups)["by_class"][1]
    if labels:
        several = label_figures(label[:, None] > 0, chance[:, 1:], ["b"], groups=groups)["by_label"][0]
        assert all(several[name] == row[name] for name in ("precision", "recall", "auroc"))
    return {name: row[name] for name in ("precision", "recall", "f1", "auroc")}


def test_intervals_of_one_patient_or_of_no_mistake_are_wide():
    right, all_of_them = np.ones(40, bool), np.ones(40, bool)
    assert share(right, all_of_them)["interval"][0] > 0.9
    assert share(right, all_of_them, np.repeat([0, 1, 2, 3], 10))["interval"] == wilson(4, 4)
    found = class_figures(np.arange(40) % 2, np.eye(2)[np.arange(40) % 2], ["a", "b"], groups=np.zeros(40))
    assert all(found["by_class"][0][name]["interval"][0] < 0.25 for name in ("precision", "recall", "f1", "auroc"))
    few = area(np.arange(40) < 4, np.arange(40, 0, -1.0))
    assert few == {"value": 1.0, "interval": wilson(4, 4)}


def test_the_interval_of_an_area_is_delongs_and_copies_of_rows_in_groups_leave_it():
    rng = np.random.default_rng(5)
    positive, score = np.arange(60) < 25, rng.normal(0, 1, 60).round(1) + (np.arange(60) < 25)
    low, high = area(positive, score)["interval"]
    placed = (score[:25, None] > score[None, 25:]) + 0.5 * (score[:25, None] == score[None, 25:])
    error = (placed.mean(1).var(ddof=1) / 25 + placed.mean(0).var(ddof=1) / 35) ** 0.5
    assert (high - low) / 2 == pytest.approx(1.959964 * error)
    thrice = area(np.tile(positive, 3), np.tile(score, 3), np.tile(np.arange(60), 3))
    assert thrice["interval"] == pytest.approx([low, high])


@pytest.mark.parametrize("cases", [1, 2, 3, 5, 10])
def test_the_interval_of_an_area_of_few_cases_holds_a_half_where_scores_say_nothing(cases: int):
    """DeLong's left it out in 30 % of draws of two cases: so few do not vary as cases do."""
    rng, truth = np.random.default_rng(cases), np.arange(60) < cases
    missed = 0
    for _ in range(300):
        low, high = area(truth, rng.normal(size=60))["interval"]
        missed += not low <= 0.5 <= high
    assert missed / 300 <= 0.09


def test_average_precision_of_few_cases_has_no_interval():
    rng, truth = np.random.default_rng(0), np.arange(60)[:, None] < [3, 30]
    found = label_figures(truth, rng.random((60, 2)), ["few", "many"])
    assert [row["auprc"]["interval"] == [None, None] for row in found["by_label"]] == [True, False]
    assert found["intervals"]["macro_auprc"] == [None, None] != found["intervals"]["micro_auprc"]


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("groups", [None, np.arange(14) // 2])
def test_an_f1_of_0_or_1_has_an_interval_as_wide_as_its_parts(right, groups):
    """14 pictures of a class, all right: F1 was 1 from 1 to 1 beside a precision and recall from 0.785 on."""
    labels = np.arange(14) % 2
    found = class_figures(labels, np.eye(2)[labels if right else 1 - labels], ["a", "b"], groups=groups)
    row = found["by_class"][0]
    low, high = row["f1"]["interval"]
    assert row["f1"]["value"] == right
    assert low == 0 if not right else 0 < low < 0.9
    assert high == 1 if right else 0.1 < high < 1
