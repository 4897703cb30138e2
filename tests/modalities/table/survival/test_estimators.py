"""Our survival arithmetic equals lifelines'; outcomes drawn from it keep hazards; Rubin's rules give the textbook's
numbers."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tables import patients

from unmask.errors import UserError
from unmask.evaluation.survival import concordance, kaplan_meier, step_values
from unmask.modalities.table.evaluation import fidelity
from unmask.modalities.table.imputation.formula_fit import fit_formula
from unmask.modalities.table.imputation.formula_text import parse_formula
from unmask.modalities.table.imputation.multiple import MultipleImputation
from unmask.modalities.table.imputation.pooling import pool
from unmask.modalities.table.imputation.tipping_point import tipping_point
from unmask.modalities.table.model import TableModel
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.schema.values import encode
from unmask.modalities.table.survival.estimators import (
    cumulative_incidence,
    fit_cox,
    nelson_aalen,
)
from unmask.modalities.table.survival.hazards import fit_outcome


@pytest.fixture
def cohort(rng):
    x = rng.normal(size=(300, 3))
    time = np.ceil(rng.exponential(np.exp(-x @ [0.5, -0.5, 0.0])) * 20)
    event = (rng.random(300) < 0.7).astype(float)
    return x, time, event


def test_cox_kaplan_meier_and_concordance_agree_with_lifelines(cohort):
    lifelines = pytest.importorskip("lifelines")
    x, time, event = cohort
    ours = fit_cox(x, time, event)
    table = pd.DataFrame(x, columns=list("abc")).assign(time=time, event=event)
    theirs = lifelines.CoxPHFitter().fit(table, "time", "event")
    np.testing.assert_allclose(ours.beta, theirs.params_, atol=1e-4)
    np.testing.assert_allclose(ours.error, theirs.standard_errors_, rtol=1e-3)
    curve = lifelines.KaplanMeierFitter().fit(time, event)
    t = np.linspace(0, time.max(), 50)
    np.testing.assert_allclose(step_values(*kaplan_meier(time, event), t), curve.predict(t).to_numpy(), atol=1e-9)
    risk = x @ ours.beta
    from lifelines.utils import concordance_index

    assert concordance(risk, time, event) == pytest.approx(concordance_index(time, -risk, event), abs=1e-9)


def r_figures():
    """Of R's survival, on a cohort with late entry, ties and two causes."""
    found = json.loads((Path(__file__).parent / "survival_r.json").read_text())
    return found, {k: np.array(found[k]) for k in ("x1", "x2", "entry", "time", "cause")}


def test_estimates_do_not_depend_on_the_units_of_the_columns(rng):
    rows, units = 400, np.array([1.0, 7e9, 5e-11])
    x = rng.normal(3, 1, (rows, 3))
    strength = x @ [0.5, 0.4, -0.3] - 1.8
    time, left = rng.exponential(np.exp(-strength)), rng.uniform(0, 3, rows)
    frame = pd.DataFrame(x, columns=["age", "wbc", "calcidiol"])
    frame["time"], frame["died"] = np.minimum(time, left).round(3) + 0.001, (time <= left).astype(int)
    frame["score"], frame["better"] = strength + rng.normal(size=rows), strength + rng.logistic(size=rows) > 0
    schema = TableModel.fit(frame, steps=1, duration="time", event="died").schema
    given = encode(read_frame(frame), schema)
    other = [values * (units[n] if n < 3 else 1) for n, values in enumerate(given)]
    for text in (
        "Surv(time, died) ~ age + wbc + calcidiol",
        "score ~ age + wbc + calcidiol",
        "better ~ age + wbc + calcidiol",
    ):
        formula = parse_formula(text, schema)
        settings = [{}, {"firth": True}] if "better" in text else [{}, {"penalizer": 0.1}] if "Surv" in text else [{}]
        for more in settings:
            a, b = fit_formula(formula, given, **more), fit_formula(formula, other, **more)
            assert np.allclose(b.beta[-3:] * units, a.beta[-3:], rtol=1e-5)
            assert np.allclose(b.error[-3:] * units, a.error[-3:], rtol=1e-5)
            assert np.abs(a.beta[-3:]).min() > 0.1


def test_late_entry_agrees_with_r():
    found, d = r_figures()
    x, event = np.column_stack([d["x1"], d["x2"]]), d["cause"] > 0
    ours, theirs = fit_cox(x, d["time"], event, entry=d["entry"]), found["coxph_entry"]
    np.testing.assert_allclose(ours.beta, theirs["beta"], atol=1e-6)
    np.testing.assert_allclose(ours.error, theirs["error"], atol=1e-6)
    assert ours.log_likelihood == pytest.approx(theirs["log_likelihood"], abs=1e-6)
    at, alive = kaplan_meier(d["time"], event, d["entry"])
    np.testing.assert_allclose(at, found["survfit_entry"]["time"])
    np.testing.assert_allclose(alive, found["survfit_entry"]["survival"], atol=1e-9)
    np.testing.assert_allclose(
        nelson_aalen(d["time"], event, d["entry"])[1], found["survfit_entry"]["hazard"], atol=1e-9
    )


def test_competing_risks_agree_with_r():
    found, d = r_figures()
    x, theirs = np.column_stack([d["x1"], d["x2"]]), found["coxph_cause1"]
    ours = fit_cox(x, d["time"], d["cause"] == 1)
    np.testing.assert_allclose(ours.beta, theirs["beta"], atol=1e-6)
    np.testing.assert_allclose(ours.error, theirs["error"], atol=1e-6)
    for name, entry in (("aalen_johansen", None), ("aalen_johansen_entry", d["entry"])):
        t = np.array(found[name]["time"])
        for cause in (1, 2):
            curve = cumulative_incidence(d["time"], d["cause"], cause, entry)
            np.testing.assert_allclose(step_values(*curve, t, start=0.0), found[name][f"cause{cause}"], atol=1e-9)


def test_weights_count_as_copies(cohort):
    x, time, event = cohort
    weight = np.random.default_rng(0).integers(0, 3, 300).astype(float)
    copies = np.repeat(np.arange(300), weight.astype(int))
    # Breslow and Efron differ in how they see ties of copies: jitter makes times distinct within a row.
    weighted = fit_cox(x, time + np.arange(300) * 1e-6, event, weight=weight)
    copied = fit_cox(x[copies], (time + np.arange(300) * 1e-6)[copies], event[copies])
    np.testing.assert_allclose(weighted.beta, copied.beta, atol=0.02)


def test_drawn_outcomes_keep_hazard_ratios_and_curves(cohort, rng):
    x, time, event = cohort
    outcome = fit_outcome(x, time, event)
    more = x[rng.integers(0, 300, 20000)]
    t, e = outcome.draw(more, rng.random((20000, 2)))
    np.testing.assert_allclose(fit_cox(more, t, e).beta, fit_cox(x, time, event).beta, atol=0.06)
    grid = np.linspace(0, time.max(), 40)
    gap = step_values(*kaplan_meier(t, e), grid) - step_values(*kaplan_meier(time, event), grid)
    assert np.abs(gap).max() < 0.05
    assert t.max() <= time.max()


def test_pooling_by_hand():
    """Rubin's rules on three tables, by pencil: W = 1.1, B = 0.25, T = W + 4/3 B."""
    found = pool([[2.0], [2.5], [3.0]], np.sqrt([[1.0], [1.1], [1.2]]))
    assert found.estimate[0] == 2.5
    assert found.error[0] ** 2 == pytest.approx(1.1 + 4 / 3 * 0.25)
    riv = (4 / 3 * 0.25) / 1.1
    assert found.riv[0] == pytest.approx(riv)
    assert found.df[0] == pytest.approx(2 * (1 + 1 / riv) ** 2)
    small = pool([[2.0], [2.5], [3.0]], np.sqrt([[1.0], [1.1], [1.2]]), complete_df=20)
    assert small.df[0] < min(20, found.df[0])
    assert 0 < found.fmi[0] < 1
    with pytest.raises(UserError):
        pool([[1.0]], [[1.0]])


def test_equal_tables_have_no_missing_information():
    found = pool([[1.0]] * 5, [[0.5]] * 5)
    assert found.riv[0] == 0
    assert found.error[0] == 0.5
    assert found.fmi[0] < 1e-6


def test_pooled_cox_table():
    pytest.importorskip("lifelines")
    done = MultipleImputation(draws=3, seed=1).fit(patients(200, missing=0.15))
    found = done.pool_cox(["age", "sex", "sbp"])
    assert found.names[0] == "age"
    text = found.table(exponentiate=True, label="HR")
    assert "HR (95% CI)" in text
    women = int((done.completed[0]["sex"] == "F").sum())
    assert f"Reference levels: sex = F ({women} rows)." in text
    assert found.rows(exponentiate=True)[0]["estimate"] > 1
    with pytest.raises(UserError, match="Did you mean 'age'"):
        done.pool_cox(["agee"])


def test_tipping_point_moves_the_estimate():
    def mean(table) -> tuple[float, float]:
        return table.dbp.mean(), table.dbp.std() / len(table) ** 0.5

    found = tipping_point(patients(150, missing=0.3)[["age", "dbp", "sbp"]], "dbp", mean, [0, 10], draws=2)
    assert found[1]["estimate"] > found[0]["estimate"] + 1


def test_fidelity_tells_good_from_bad(rng):
    model = TableModel.fit(patients(300), steps=20, members=2)
    from unmask.modalities.table.evaluate import compare
    from unmask.modalities.table.reading.readers import read_frame
    from unmask.modalities.table.schema.values import encode

    real = encode(read_frame(patients(300, seed=7)), model.schema)
    found = compare(model, real, fidelity.bootstrap(real, 1))
    assert found["identical_rows"] == 1.0
    assert found["floor"]["correlation_gap"] > 2 * found["correlation_gap"]
    assert found["floor"]["mean_log_hr_difference"] > found["ceiling"]["mean_log_hr_difference"]
    assert found["beta_recall"] > 0.4
    shuffled = compare(model, real, fidelity.independent(real, 1))
    assert shuffled["two_sample_auc"] > found["two_sample_auc"]


def test_calibration_of_true_risks(rng):
    risk = rng.uniform(0.05, 0.6, 20000)
    time = rng.exponential(-1 / np.log(1 - risk))
    slope, error = fidelity.calibration(risk, np.minimum(time, 2.0), (time <= 2).astype(float), 1.0)
    assert slope == pytest.approx(1, abs=0.05)
    assert error < 0.02


def noise(rows, covariates, seed, beta=()):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, covariates))
    effect = np.r_[np.asarray(beta, float), np.zeros(covariates - len(beta))]
    time, end = rng.exponential(np.exp(-x @ effect)), rng.exponential(2.0, rows)
    return x, np.minimum(time, end), (time <= end).astype(float)


@pytest.mark.parametrize(("rows", "covariates", "seed"), [(150, 150, 0), (200, 60, 1), (200, 60, 2)])
def test_noise_does_not_predict_the_outcome(rows, covariates, seed):
    x, time, event = noise(rows, covariates, seed)
    outcome = fit_outcome(x, time, event)
    z = (x - outcome.center) / outcome.scale
    assert (z @ outcome.causes[0].beta).std() < 0.35
    assert (z @ outcome.censoring.beta).std() < 0.35
    rng = np.random.default_rng(seed)
    new = rng.normal(size=(1000, covariates))
    drawn = outcome.draw(new, rng.random((1000, 2)))
    risk = ((new - outcome.center) / outcome.scale) @ outcome.causes[0].beta
    assert concordance(risk, *drawn) < 0.6


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_real_effects_keep_their_size(seed):
    x, time, event = noise(300, 8, seed, beta=[0.5, -0.4, 0.3])
    outcome = fit_outcome(x, time, event)
    plain = fit_cox((x - outcome.center) / outcome.scale, time, event).beta
    np.testing.assert_allclose(outcome.causes[0].beta, plain, atol=0.02)


@pytest.mark.parametrize("seed", range(20))
def test_concordance_by_sorting_is_that_of_all_pairs(seed):
    """With ties in time, among events and with censoring, and ties in risk."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 60))
    risk, time, event = rng.integers(0, 8, n) / 3, rng.integers(0, 9, n).astype(float), rng.integers(0, 2, n)
    pairs = [
        (risk[i], risk[j])
        for i in range(n)
        for j in range(n)
        if event[i] and (time[j] > time[i] or (time[j] == time[i] and not event[j]))
    ]
    right = sum((b < a) + 0.5 * (b == a) for a, b in pairs)
    assert concordance(risk, time, event) == pytest.approx(right / len(pairs) if pairs else np.nan, nan_ok=True)


@pytest.mark.parametrize("seed", range(20))
def test_concordance_with_late_entry_is_that_of_all_pairs_at_risk(seed):
    """By sorting too: 20 000 rows took 9 seconds, row by row."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 50))
    risk, time, event = rng.integers(0, 6, n) / 3, rng.integers(2, 12, n).astype(float), rng.integers(0, 2, n)
    entry = np.floor(rng.random(n) * time)
    pairs = [
        (risk[i], risk[j])
        for i in range(n)
        for j in range(n)
        if event[i] and (time[j] > time[i] or (time[j] == time[i] and not event[j])) and entry[j] < time[i]
    ]
    right = sum((b < a) + 0.5 * (b == a) for a, b in pairs)
    expected = right / len(pairs) if pairs else np.nan
    assert concordance(risk, time, event, entry) == pytest.approx(expected, nan_ok=True)
