"""What papers report of completed tables, equal to R's mice, mitml and survival on the same tables."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import unmask
from unmask.errors import UserError
from unmask.modalities.table.imputation.pooled_survival import concordance_with_error
from unmask.modalities.table.imputation.pooled_tests import chi_squared_test
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.schema.values import encode

IN_R = Path(__file__).parent / "in_r"


def tables() -> list[pd.DataFrame]:
    """Six tables of 150 rows that differ in a third of x, of g and of the causes."""
    rng = np.random.RandomState(7)  # its numbers never change
    rows = 150
    x, g = rng.normal(size=rows), rng.choice(["a", "b", "c"], rows)
    out = []
    for _ in range(6):
        filled_x = np.where(np.arange(rows) % 3 == 0, x + rng.normal(size=rows), x).round(6)
        filled_g = np.where(np.arange(rows) % 3 == 1, rng.choice(["a", "b", "c"], rows), g)
        out.append(pd.DataFrame({"x": filled_x, "g": filled_g}))
    shift = pd.Series(g).map({"a": 0.0, "b": 0.5, "c": 1.0}).to_numpy()
    y = (1 + x + shift + rng.normal(size=rows)).round(6)
    sick = np.where(rng.uniform(size=rows) < 1 / (1 + np.exp(-x - shift)), "yes", "no")
    time = np.ceil(rng.exponential(6 * np.exp(-0.5 * x)) + 0.01)
    died = (rng.uniform(size=rows) < 0.7).astype(int)
    for table in out:
        cause = died * np.where(table["x"] + rng.normal(size=rows) > 0, 2, 1)
        table[["y", "sick", "time", "died", "cause"]] = pd.DataFrame(
            {"y": y, "sick": sick, "time": time, "died": died, "cause": cause}
        )
    return out


@pytest.fixture(scope="module")
def done() -> unmask.MultipleImputation:
    """These tables as if they had been completed."""
    given = tables()
    holed = given[0].drop(columns="cause").assign(x=given[0]["x"].where(np.arange(150) % 3 != 0))
    found = unmask.MultipleImputation(2, rounds=1, duration="time", event="died").fit(holed)
    found.completed = [t.drop(columns="cause") for t in given]
    found._values = [encode(read_frame(t), found.schema_) for t in found.completed]
    found.doubts_ = []
    return found


@pytest.fixture(scope="module")
def figures() -> dict[str, list[float]]:
    return json.loads((IN_R / "pooled.json").read_text())


def _numbers(test) -> list[float]:
    return [test.statistic, test.df1, test.df2, test.p, test.riv]


@pytest.mark.parametrize("method", ["D1", "D2", "D3"])
def test_least_squares_is_compared_as_mitml_does(done, figures, method):
    found = done.compare("y ~ x + g", "y ~ x", method=method)
    assert found.names == ("g=b", "g=c")
    np.testing.assert_allclose(_numbers(found), figures[f"{method}_ols"], rtol=1e-6)


@pytest.mark.parametrize("method", ["D1", "D3"])
def test_logistic_regression_is_compared_as_r_does(done, figures, method):
    found = done.compare("sick ~ x + g", "sick ~ x", method=method)
    np.testing.assert_allclose(_numbers(found), figures[f"{method}_logit"], rtol=1e-6)


def test_the_levels_of_a_category_are_tested_together(done, figures):
    found = done.pool("y ~ x + g").wald_test("g")
    np.testing.assert_allclose(_numbers(found), figures["D1_ols"], rtol=1e-6)
    assert done.pool("y ~ x + g").wald_test().df1 == 3
    assert "g=b, g=c" in str(found)


@pytest.mark.parametrize("method", ["D1", "D3"])
def test_cox_regression_is_compared_as_r_does(done, figures, method):
    found = done.compare("Surv(time, died) ~ x + g", "Surv(time, died) ~ x", method=method)
    np.testing.assert_allclose(_numbers(found), figures[f"{method}_cox"], rtol=1e-6)


def test_explained_variance_is_pooled_as_mice_does(done, figures):
    pooled = done.pool("y ~ x + g")
    found = pooled.r_squared()
    np.testing.assert_allclose(found.estimate, figures["r_squared"], rtol=1e-6)
    np.testing.assert_allclose(found.fmi, figures["r_squared_fmi"], rtol=1e-6)
    assert pooled.r_squared(adjusted=True).estimate < found.estimate
    with pytest.raises(UserError, match="least squares"):
        done.pool("sick ~ x").r_squared()


def test_survival_of_a_group_is_pooled_as_survfit_has_it(done, figures):
    found = done.survival([5, 8], by="g")
    place = found.names.index("survival at 5, g=b")
    np.testing.assert_allclose(
        [found.estimate[place], found.low[place], found.high[place]], figures["survival"], rtol=1e-6
    )


def test_before_the_first_event_there_is_no_interval(done):
    found = done.survival([0.5, 5])
    assert found.estimate[0] == 1
    assert np.isnan(found.low[0])
    assert found.low[1] < found.estimate[1] < found.high[1]
    assert "nan" not in str(found)


def test_the_incidence_of_a_cause_is_pooled_as_survfit_has_it(figures):
    given = [t.drop(columns="died") for t in tables()]
    holed = given[0].assign(x=given[0]["x"].where(np.arange(150) % 3 != 0))
    done = unmask.MultipleImputation(2, rounds=1, duration="time", event="cause", event_level=["1", "2"]).fit(holed)
    done._values = [encode(read_frame(t), done.schema_) for t in given]
    done.doubts_ = []
    found = done.survival(5, cause="1")
    np.testing.assert_allclose([*found.estimate, *found.low, *found.high], figures["incidence"], rtol=1e-6)
    with pytest.raises(UserError, match="competing causes"):
        done.survival(5)
    with pytest.raises(UserError, match="cause='3'"):
        done.survival(5, cause="3")


def test_a_risk_from_elsewhere_is_validated_as_concordance_and_coxph_do(done, figures):
    found = done.validate("x")
    np.testing.assert_allclose([found.estimate[0], found.low[0], found.high[0]], figures["c_index"], rtol=1e-6)
    np.testing.assert_allclose(found.estimate[1], figures["slope"], rtol=1e-6)
    assert found.names == ("C-index", "calibration slope")


def test_the_area_under_the_curve_of_two_categories_is_that_of_its_pairs(done):
    risk = done._values[0][0]
    sick = (done.completed[0]["sick"] == "yes").to_numpy()
    pairs = risk[sick][:, None] - risk[~sick][None]
    area = ((pairs > 0) + 0.5 * (pairs == 0)).mean()
    assert np.isclose(concordance_with_error(risk, 1.0 - sick, sick.astype(float))[0], area)
    found = done.validate(lambda table: table["x"], "sick")
    assert found.names[0] == "area under the ROC curve"


def test_statistics_that_do_not_differ_are_a_chi_squared_test():
    found = chi_squared_test(np.full(5, 7.0), ["a", "b"])
    assert found.riv == 0
    assert np.isclose(found.p, np.exp(-3.5))


@pytest.mark.parametrize(
    ("ask", "what"),
    [
        (lambda d: d.compare("y ~ x", "y ~ g"), "g=b, g=c"),
        (lambda d: d.compare("y ~ x + g", "sick ~ x"), "outcome"),
        (lambda d: d.compare("y ~ x + g", "y ~ x", method="D5"), "D1, D2, D3"),
        (lambda d: d.pool("y ~ x").wald_test("z"), "no term 'z'"),
        (lambda d: d.survival(1e6), "follow-up ends"),
        (lambda d: d.survival(5, by="y"), "a quantity"),
        (lambda d: d.validate(lambda t: [1.0]), "completed table 1"),
        (lambda d: d.validate("x", "y"), "two categories"),
    ],
)
def test_what_cannot_be_answered_is_refused(done, ask, what):
    with pytest.raises(UserError, match=what):
        ask(done)


@pytest.mark.skipif(shutil.which("Rscript") is None, reason="needs R")
def test_the_figures_are_those_of_r(figures, tmp_path):
    packages = "quit(status = !all(sapply(c('mice', 'mitml', 'survival'), requireNamespace, quietly = TRUE)))"
    if subprocess.run(["Rscript", "-e", packages], capture_output=True).returncode:
        pytest.skip("needs R's mice, mitml and survival")
    pd.concat(tables(), keys=range(1, 7), names=[".imp", ".id"]).reset_index().to_csv(tmp_path / "t.csv", index=False)
    subprocess.run(["Rscript", IN_R / "pooled.R", tmp_path / "t.csv", tmp_path / "f.json"], check=True)
    again = json.loads((tmp_path / "f.json").read_text())
    assert list(again) == list(figures)
    for name, values in again.items():
        np.testing.assert_allclose(values, figures[name], rtol=1e-9, err_msg=name)
