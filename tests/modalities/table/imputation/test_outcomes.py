"""Competing causes, counts and ordered outcomes: pooled as R pools them, and covariates imputed to agree with them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import unmask
from unmask.modalities.table.imputation.formula_fit import fit_formula, log_likelihood
from unmask.modalities.table.imputation.formula_text import parse_formula
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.schema.values import encode

IN_R = Path(__file__).parent / "in_r"
PAIR = {"duration": "time", "event": "cause", "event_level": ["1", "2"]}
LATE = {**PAIR, "entry": "entry"}
ORDERED = {"columns": {"o": {"kind": "ordinal", "categories": ["low", "mid", "high"]}}}


def tables() -> list[pd.DataFrame]:
    """Four tables of 200 rows that differ in a third of x: causes with tied times, counts with an exposure, grades."""
    rng = np.random.RandomState(11)  # its numbers never change
    rows = 200
    x, g = rng.normal(size=rows), rng.choice(["a", "b", "c"], rows)
    shift = pd.Series(g).map({"a": 0.0, "b": 0.4, "c": -0.4}).to_numpy()
    entry = (rng.uniform(size=rows) * 2).round(1)
    first, second = (rng.exponential(6 * np.exp(-slope * x - shift)) for slope in (0.6, -0.3))
    left = rng.uniform(1, 12, rows)
    untied = entry + np.minimum(np.minimum(first, second), left) + 0.05
    cause = np.where(left <= np.minimum(first, second), 0, np.where(first <= second, 1, 2))
    t = (0.5 + rng.exponential(size=rows)).round(3)
    y = rng.poisson(t * np.exp(0.3 + 0.5 * x + shift) * rng.gamma(2, 0.5, size=rows))
    latent = x + shift + rng.logistic(size=rows)
    rest = {
        "g": g,
        "entry": entry,
        "time": (np.ceil(untied * 4) / 4).round(2),
        "untied": untied.round(9),
        "cause": cause,
        "t": t,
        "y": y,
        "o": np.select([latent < -0.7, latent < 0.9], ["low", "mid"], "high"),
    }
    third = np.arange(rows) % 3 == 0
    return [pd.DataFrame({"x": np.where(third, x + rng.normal(size=rows), x).round(6), **rest}) for _ in range(4)]


def completed(schema=None, **pair) -> unmask.MultipleImputation:
    """These tables as if they had been completed."""
    given = [t if "entry" in pair else t.drop(columns="entry") for t in tables()]
    holed = given[0].assign(x=given[0]["x"].where(np.arange(200) % 3 != 0))
    done = unmask.MultipleImputation(2, rounds=1, schema=schema or ORDERED, **pair).fit(holed)
    done.completed, done.doubts_ = given, []
    done._values = [encode(read_frame(t), done.schema_) for t in given]
    return done


@pytest.fixture(scope="module")
def done() -> unmask.MultipleImputation:
    return completed(**PAIR)


@pytest.fixture(scope="module")
def figures() -> dict[str, list[float]]:
    return json.loads((IN_R / "outcomes.json").read_text())


def _numbers(pooled) -> list[float]:
    return np.column_stack([pooled.estimate, pooled.error]).ravel().tolist()


def test_the_hazard_of_one_cause_is_that_of_coxph(done, figures):
    found = done.pool_cox(["x", "g"], cause="1")
    np.testing.assert_allclose(_numbers(found), figures["cause"], rtol=1e-6)
    told = done.pool("Surv(time, cause) ~ x + g", cause=1)
    np.testing.assert_array_equal(told.estimate, found.estimate)
    assert "cause = 1; other causes are censored" in str(found)
    late = completed(**LATE).pool_cox(["x", "g"], cause="2")
    np.testing.assert_allclose(_numbers(late), figures["cause_late"], rtol=1e-6)


def test_a_fine_gray_regression_is_that_of_finegray_and_coxph(done, figures):
    found = done.pool_fine_gray(["x", "g"], cause="1")
    np.testing.assert_allclose(_numbers(found), figures["fine_gray"], rtol=1e-6)
    told = done.pool("Surv(time, cause) ~ x + g", family="fine-gray", cause="1")
    np.testing.assert_array_equal(told.estimate, found.estimate)
    assert found.family == "fine-gray"
    late = completed(**LATE).pool_fine_gray(["x", "g"], cause="1")
    np.testing.assert_allclose(_numbers(late), figures["fine_gray_late"], rtol=1e-6)


def test_a_fine_gray_regression_is_about_that_of_crr(done, figures):
    """Without ties the estimates are the same; errors of crr count that the curve of censoring is an estimate."""
    formula = parse_formula("Surv(time, cause) ~ x + g", done.schema_, family="fine-gray", cause="1")
    columns = list(done._values[0])
    columns[done.schema_.place("time")] = tables()[0]["untied"].to_numpy()
    fit = fit_formula(formula, columns)
    np.testing.assert_allclose(fit.beta, figures["crr"][:3], rtol=1e-6)
    np.testing.assert_allclose(fit.error, figures["crr"][3:], rtol=0.02)


@pytest.mark.parametrize("family", ["poisson", "negative-binomial"])
def test_counts_with_an_exposure_are_those_of_glm(done, figures, family):
    found = done.pool("y ~ x + g + offset(log(t))", family=family)
    np.testing.assert_allclose(_numbers(found), figures[family.replace("-", "_")], rtol=1e-6)
    if family == "negative-binomial":
        np.testing.assert_allclose(np.mean([f.nuisance for f in found.fits]), figures["theta"], rtol=1e-6)
        assert "theta 2." in str(found)
    new = tables()[0].iloc[:3]
    log_rate = found.predict(new).estimate - np.log(new["t"].to_numpy())
    assert log_rate == pytest.approx(found.predict(new.assign(t=1.0)).estimate)


def test_ordered_categories_are_those_of_polr(done, figures):
    found = done.pool("o ~ x + g")
    assert found.names == ("x", "g=b", "g=c", "low|mid", "mid|high")
    np.testing.assert_allclose(_numbers(found), figures["polr"], rtol=1e-6)
    np.testing.assert_allclose([*found.fits[0].beta, *found.fits[0].error], figures["polr_of_mass"], rtol=1e-3)
    assert "o, higher against lower (low < mid < high)" in str(found)
    assert found.predict(tables()[0].iloc[:2]).response.shape == (2,)


def test_likelihoods_are_those_of_r(done, figures):
    told = [("y ~ x + g + offset(log(t))", "poisson"), ("y ~ x + g + offset(log(t))", "negative-binomial")]
    found = []
    for text, family in [*told, ("o ~ x + g", None)]:
        formula = parse_formula(text, done.schema_, family=family)
        fit = fit_formula(formula, done._values[0])
        found.append(log_likelihood(formula, done._values[0], fit.beta, fit.nuisance))
    np.testing.assert_allclose(found, figures["log_likelihoods"], rtol=1e-9)


@pytest.mark.skipif(shutil.which("Rscript") is None, reason="needs R")
def test_the_figures_are_those_of_r(figures, tmp_path):
    packages = "c('mice', 'survival', 'MASS', 'ordinal', 'cmprsk')"
    there = f"quit(status = !all(sapply({packages}, requireNamespace, quietly = TRUE)))"
    if subprocess.run(["Rscript", "-e", there], capture_output=True).returncode:
        pytest.skip(f"needs R's {packages}")
    pd.concat(tables(), keys=range(1, 5), names=[".imp", ".id"]).reset_index().to_csv(tmp_path / "t.csv", index=False)
    subprocess.run(["Rscript", IN_R / "outcomes.R", tmp_path / "t.csv", tmp_path / "f.json"], check=True)
    again = json.loads((tmp_path / "f.json").read_text())
    assert list(again) == list(figures)
    for name, values in again.items():
        np.testing.assert_allclose(values, figures[name], rtol=1e-7 if name != "polr_of_mass" else 1e-3, err_msg=name)
