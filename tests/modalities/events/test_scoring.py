"""Figures of predictions, and intervals that know which points are one patient's."""

from __future__ import annotations

import numpy as np
import pytest

from unmask.evaluation import resampling
from unmask.evaluation.resampling import auroc_auprc, bootstrap_weights
from unmask.modalities.events.outcome.clinical import calibration_points, thresholds
from unmask.modalities.events.outcome.scoring import (
    bins_of,
    calibration_error,
    calibration_line,
    figures,
    scored,
)
from unmask.modalities.events.outcome.targets import TimeToEvent
from unmask.modalities.events.records.meds import Labels

PATIENTS, POINTS = 200, 50


def calibration(y: np.ndarray, p: np.ndarray) -> float:
    """The expected calibration error, with what chance adds to it."""
    return float(sum(len(i) * abs(p[i].mean() - y[i].mean()) for i in bins_of(p)) / len(y))


def simulated(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Patients with one label and one risk each, asked about `POINTS` times."""
    label = (rng.random(PATIENTS) < 0.3).astype(np.int64)
    risk = label * 1.0 + rng.normal(size=PATIENTS)
    who = np.repeat(np.arange(PATIENTS), POINTS)
    return label[who], 1 / (1 + np.exp(-(risk[who] + 0.2 * rng.normal(size=len(who))))), who


def coverage(simulations: int, clustered: bool, draws: int = 200) -> float:
    """Share of the simulations whose 95 % interval holds the true AUROC (that of ten thousand patients)."""
    rng = np.random.default_rng(5)
    label = (rng.random(400_000) < 0.3).astype(np.int64)
    truth = auroc_auprc(label, label + rng.normal(size=400_000) * np.sqrt(1.04))[0, 0]
    inside = 0
    for _ in range(simulations):
        y, p, who = simulated(rng)
        drawn = auroc_auprc(y, p, bootstrap_weights(who if clustered else np.arange(len(y)), draws, 0))[0]
        low, high = np.quantile(drawn, [0.025, 0.975])
        inside += low <= truth <= high
    return inside / simulations


def test_intervals_resample_patients_not_points():
    y, p, who = simulated(np.random.default_rng(0))
    alone, together = figures(y, p, draws=15), figures(y, p, who, draws=15)
    assert together["patients"] == PATIENTS
    for name in ("auroc", "auprc", "brier"):
        wide, narrow = (np.diff(f["intervals"][name])[0] for f in (together, alone))
        assert wide > 3 * narrow


def test_coverage_of_the_clustered_interval():
    """200 patients asked about 50 times each: resampling points covered the truth in 20 % of the simulations."""
    assert coverage(60, clustered=True, draws=80) >= 0.88  # 95 % less two and a half standard errors of 60


def test_one_point_each_is_the_usual_bootstrap_and_one_patient_has_no_interval():
    y, p, _ = simulated(np.random.default_rng(1))
    few = slice(0, 5000, 50)
    assert figures(y[few], p[few], draws=20) == figures(y[few], p[few], np.arange(100) * 7, draws=20)
    assert figures(y, p, np.zeros(len(y), int), draws=5)["intervals"] == {}


def test_auroc_is_that_of_scikit_learn_with_ties_and_weights(rng: np.random.Generator):
    from sklearn.metrics import average_precision_score, roc_auc_score

    y, p = rng.integers(0, 2, 200), rng.integers(0, 9, 200) / 9
    weights = rng.integers(0, 4, (3, 200))
    expected = [[f(y, p, sample_weight=w) for w in weights] for f in (roc_auc_score, average_precision_score)]
    np.testing.assert_allclose(auroc_auprc(y, p, weights), expected, atol=1e-12)
    assert np.isnan(auroc_auprc(np.ones(5), np.arange(5.0))).all()


@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (-1.0, 1.0), (0.0, 0.5)])
def test_calibration_line_finds_what_was_planted(shift: float, scale: float):
    rng = np.random.default_rng(3)
    x = rng.normal(size=40_000)
    y = (rng.random(len(x)) < 1 / (1 + np.exp(-(shift + scale * x)))).astype(int)
    intercept, slope = calibration_line(y, 1 / (1 + np.exp(-x)))[:, 0]
    assert slope == pytest.approx(scale, abs=0.05)
    if scale == 1:
        assert intercept == pytest.approx(shift, abs=0.05)
    assert np.isnan(calibration_line(y, np.full(len(y), 0.3))).all()


def test_intervals_do_not_depend_on_how_many_draws_are_held(monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(0)
    who, y, p = rng.integers(0, 50, 300), rng.integers(0, 2, 300), rng.random(300)
    one = figures(y, p, who, draws=40), thresholds(y, p, who, draws=40), bootstrap_weights(who, 40, 3).tolist()
    monkeypatch.setattr(resampling, "CELLS", 170)  # three draws of 50 patients
    assert (
        figures(y, p, who, draws=40),
        thresholds(y, p, who, draws=40),
        bootstrap_weights(who, 40, 3).tolist(),
    ) == one
    assert bootstrap_weights(who, 40, 3).shape == (40, 300)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_calibration_does_not_depend_on_the_order_of_rows(seed: int):
    rng = np.random.default_rng(seed)
    y = (rng.random(403) < 0.2).astype(np.int64)
    few = np.round(rng.random(403), 1)
    found = [calibration(y[o], few[o]) for o in (np.arange(403), np.argsort(y), rng.permutation(403))]
    assert found == pytest.approx([found[0]] * 3, abs=1e-12)
    apart = rng.permutation(403) / 403  # without ties: ten bins of equal count
    parts = np.array_split(np.argsort(apart), 10)
    assert calibration(y, apart) == pytest.approx(sum(len(i) * abs(apart[i].mean() - y[i].mean()) for i in parts) / 403)


@pytest.mark.parametrize(("p", "tolerance"), [(None, 1e-12), (0.5, 1e-12)])
def test_a_constant_is_off_by_its_distance_to_the_share(p: float | None, tolerance: float):
    y = (np.random.default_rng(0).random(400) < 0.2).astype(np.int64)
    said = np.full(400, y.mean() if p is None else p)
    found = figures(y, said)
    assert found["ece"] == pytest.approx(abs(said[0] - y.mean()), abs=tolerance)
    low, high = found["intervals"]["ece"]
    assert low <= found["ece"] <= high
    assert low < high
    lines = calibration_points(y, said)
    assert len(lines) == 1
    assert lines[0] == (pytest.approx(said[0]), pytest.approx(y.mean()))


@pytest.mark.parametrize("size", [1, 5])
def test_the_interval_of_the_calibration_error_holds_0_where_predictions_are_right(size: int):
    """Points of one patient that come together by chance make no miscalibration."""
    count, held, found, plain = 300 if size == 1 else 900, 0, [], []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        p = np.repeat(rng.beta(2, 5, count // size), size)
        y = (np.repeat(rng.random(count // size), size) < p).astype(np.int64)
        who = np.repeat(np.arange(count // size), size)
        error, floor, (low, high) = calibration_error(y, p, who, draws=200)
        assert low <= error <= high
        held += low == 0
        found.append(error)
        plain.append((calibration(y, p), floor))
    assert held >= 54  # none of 120 before
    assert np.mean(found) < 0.5 * np.mean(plain, 0)[0]
    assert np.mean(plain, 0)[1] == pytest.approx(np.mean(plain, 0)[0], rel=0.25)


@pytest.mark.parametrize("count", [300, 3000])
def test_the_calibration_error_is_the_true_one_where_predictions_are_wrong(count: int):
    found, held, truth = [], 0, 0.1
    for seed in range(60):
        rng = np.random.default_rng(seed)
        p = rng.uniform(0.2, 0.8, count)
        y = (rng.random(count) < p + truth * np.where(p > 0.5, 1, -1)).astype(np.int64)
        error, _, (low, high) = calibration_error(y, p, np.arange(count), draws=200)
        found.append(error)
        held += low <= truth <= high
    assert np.mean(found) == pytest.approx(truth, abs=0.025)
    assert held >= 57


def test_few_cases_have_no_bootstrap_interval(rng: np.random.Generator):
    """One case stands in every resample or in none: its rank never varies. 9 of 18 intervals left out .5."""
    p, inside = rng.random(53), 0
    for seed in range(40):
        y = np.zeros(53, np.int64)
        y[np.random.default_rng(seed).choice(53, 1 + seed % 3, replace=False)] = 1
        found = figures(y, p, draws=20)
        assert set(found["intervals"]) == {"auroc", "ece"}
        inside += found["intervals"]["auroc"][0] <= 0.5 <= found["intervals"]["auroc"][1]
    assert inside >= 36
    y[:10] = 1
    assert {"auprc", "slope", "intercept"} <= set(figures(y, p, draws=20)["intervals"])


@pytest.mark.parametrize(("cases", "given"), [(9, False), (10, True)])
def test_an_interval_of_the_c_index_needs_cases(rng: np.random.Generator, cases: int, given: bool):
    days, event = rng.random(60) * 90 + 1, np.arange(60) < cases
    labels = Labels(subject=np.arange(60), time=np.zeros(60, np.int64), value=event, days=days)
    found = scored(TimeToEvent(cuts=(30.0, 60.0), lived=(0.5, 0.5)), labels, rng.random((60, 2)), draws=20)
    assert (found["events"], "c_index" in found["intervals"]) == (cases, given)
