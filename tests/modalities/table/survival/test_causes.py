"""Competing risks and late entry: drawn outcomes keep cumulative incidence and risk sets; figures by cause."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from unmask.evaluation.survival import concordance, kaplan_meier, step_values
from unmask.modalities.table.evaluate import evaluate_model
from unmask.modalities.table.evaluation import fidelity
from unmask.modalities.table.model import TableModel, load
from unmask.modalities.table.survival.estimators import cumulative_incidence, fit_cox
from unmask.modalities.table.survival.hazards import fit_outcome

HAZARDS = (0.6, 0.3)
EFFECTS = np.array([[0.7, 0.0], [-0.5, 0.4]])


def competing(rows, seed, late=False):
    """Exponential causes with known hazards: (x, time, cause, entry)."""
    rng = np.random.default_rng(seed)
    draws = []
    while sum(len(d[1]) for d in draws) < rows:
        x = rng.normal(size=(rows, 2))
        times = np.stack([rng.exponential(np.exp(-x @ b) / h) for h, b in zip(HAZARDS, EFFECTS, strict=True)], 1)
        end, entry = rng.uniform(0.5, 4.0, rows), rng.uniform(0, 1.0, rows) if late else np.zeros(rows)
        time = np.minimum(times.min(1), end)
        cause = np.where(times.min(1) <= end, times.argmin(1) + 1.0, 0.0)
        seen = time > entry
        draws.append((x[seen], time[seen], cause[seen], entry[seen]))
    return [np.concatenate([d[k] for d in draws])[:rows] for k in range(4)]


def true_incidence(cause, t, seed=0):
    """Mean over covariates of the cumulative incidence under constant hazards."""
    x = np.random.default_rng(seed).normal(size=(4000, 2))
    h = np.stack([k * np.exp(x @ b) for k, b in zip(HAZARDS, EFFECTS, strict=True)], 1)
    total = h.sum(1)
    return np.array([(h[:, cause - 1] / total * (1 - np.exp(-total * v))).mean() for v in t])


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("late", [False, True])
def test_drawn_causes_keep_incidence_and_hazard_ratios(seed, late):
    x, time, cause, entry = competing(1500, seed, late)
    outcome = fit_outcome(x, time, cause, causes=2, entry=entry if late else None)
    rng = np.random.default_rng(seed)
    # Who enters late has come that far: covariates and entry belong together.
    rows = rng.integers(0, 1500, 6000)
    new, at = x[rows], entry[rows] if late else None
    t, k = outcome.draw(new, rng.random((6000, 3)), at)
    assert at is None or (t > at).all()
    grid = np.array([0.3, 0.8, 1.5, 2.5])
    for c in (1, 2):
        found = step_values(*cumulative_incidence(t, k, c, at), grid, start=0.0)
        np.testing.assert_allclose(found, true_incidence(c, grid), atol=0.045)
        beta = fit_cox(new, t, k == c, entry=at).beta
        np.testing.assert_allclose(beta, EFFECTS[c - 1], atol=0.13)


def test_late_entry_is_no_bias():
    x, time, cause, entry = competing(3000, 3, late=True)
    truth = step_values(*kaplan_meier(*competing(3000, 4)[1:3]), np.array([1.0]))
    late = step_values(*kaplan_meier(time, cause, entry), np.array([1.0]))
    naive = step_values(*kaplan_meier(time, cause), np.array([1.0]))
    assert abs(late - truth) < 0.03
    assert naive - truth > 0.08
    np.testing.assert_allclose(fit_cox(x, time, cause == 1, entry=entry).beta, EFFECTS[0], atol=0.1)


def test_concordance_compares_rows_that_were_at_risk():
    risk, time, event, entry = (
        np.array([2.0, 1.0, 3.0]),
        np.array([1.0, 2.0, 3.0]),
        np.ones(3),
        np.array([0.0, 0.0, 1.5]),
    )
    assert concordance(risk, time, event) == pytest.approx(1 / 3)
    assert concordance(risk, time, event, entry) == pytest.approx(1 / 2)


def frame(rows, seed, late=False):
    x, time, cause, entry = competing(rows, seed, late)
    names = np.array(["censored", "relapse", "death"])
    out = pd.DataFrame(
        {"a": x[:, 0].round(2), "b": x[:, 1].round(2), "time": time.round(3), "outcome": names[cause.astype(int)]}
    )
    return out.assign(entry=np.minimum(entry, time * 0.9).round(4)) if late else out


def test_a_cohort_with_causes_and_late_entry(tmp_path):
    data = frame(500, 0, late=True)
    model = TableModel.fit(
        data, duration="time", event="outcome", entry="entry", event_level=["relapse", "death"], steps=0
    )
    assert model.schema.causes == ("relapse", "death")
    made = model.synthesize(1500, seed=1)
    assert (made["time"] > made["entry"]).all()
    assert set(made["outcome"]) == {"censored", "relapse", "death"}
    code = {"censored": 0, "relapse": 1, "death": 2}
    for cause in (1, 2):
        grid = np.array([0.5, 1.0, 2.0])
        real, drawn = (
            step_values(
                *cumulative_incidence(
                    d["time"].to_numpy(), d["outcome"].map(code).to_numpy(), cause, d["entry"].to_numpy()
                ),
                grid,
                start=0.0,
            )
            for d in (data, made)
        )
        np.testing.assert_allclose(drawn, real, atol=0.06)
    model.save(tmp_path / "m")
    assert np.array_equal(load(tmp_path / "m").synthesize(50, seed=2)["time"], model.synthesize(50, seed=2)["time"])
    found = evaluate_model(model, data, rows=400, report=tmp_path / "r.html")
    assert set(found["causes"]) == {"relapse", "death"}
    assert found["causes"]["death"]["incidence_area"] < 0.06
    assert found["incidence_area"] < found["floor"]["incidence_area"] + 0.05
    assert {"c_index_real", "c_index_synthetic"} <= set(found["causes"]["relapse"])
    assert any("(death)" in row["name"] for row in found["hazard_ratios"])
    assert "Cumulative incidence" in (tmp_path / "r.html").read_text()


def test_a_cause_that_is_not_there_is_said():
    x, time, cause, _ = competing(300, 0)
    real = fidelity.Cohort(x, time, cause)
    lacking = fidelity.Cohort(x, time, np.where(cause == 2, 0.0, cause))
    found = fidelity.survival_figures(real, lacking, ["a", "b"], ["relapse", "death"])
    assert found["causes_left_out"] == ["death"]
    assert set(found["causes"]) == {"relapse"}
