"""Competing causes, counts and ordered outcomes: pooled as R pools them, and covariates imputed to agree with them."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import unmask
from unmask.errors import UserError
from unmask.evaluation.survival import kaplan_meier, step_values
from unmask.modalities.table.imputation.families import FAMILIES, Given, Response
from unmask.modalities.table.imputation.follow_up import draw_within
from unmask.modalities.table.imputation.formula_fit import fit_formula, log_likelihood
from unmask.modalities.table.imputation.formula_text import parse_formula
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.schema.values import encode
from unmask.modalities.table.survival.fine_gray import subdistribution_time

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
    alone = done.pool_cox("x", cause="1")
    validated = done.validate("x", cause="1")
    np.testing.assert_allclose(validated.estimate[1], alone.estimate[0], rtol=1e-9)
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


def test_intervals_of_follow_up_are_about_a_weibull_regression_of_them(figures):
    table = tables()[0]
    low = np.floor(table["untied"] / 2) * 2
    event = (table["cause"] == 1).to_numpy()
    time = [
        f"{a:g}-{a + 2:g}" if e and a else f"<{a + 2:g}" if e else f"{a:g}" for a, e in zip(low, event, strict=True)
    ]
    seen = table[["x", "g"]].assign(time=time, event=event.astype(int))[event | (low > 0)]
    done = unmask.MultipleImputation(10, duration="time", event="event").fit(seen)
    drawn = done[3]["time"].to_numpy()[event[event | (low > 0)]]
    assert (np.floor(drawn / 2) * 2 == low[event]).all()
    assert not done.doubts_
    found = done.pool_cox(["x", "g"])
    reference, error = np.split(np.array(figures["interval"]), 2)
    assert (np.abs(found.estimate - reference) < 0.4 * error).all()  # another model


def test_a_hazard_ratio_survives_intervals_that_their_middles_would_shrink():
    gaps = []
    for seed in range(6):
        rng, rows = np.random.default_rng(seed), 300
        x = rng.normal(size=rows).round(3)
        died, left = rng.exponential(3 * np.exp(-x)), rng.uniform(4, 12, rows)
        low = np.floor(died / 3) * 3
        event = low + 3 <= left
        time = [f"{a:g}-{a + 3:g}" if e else f"{c:.3f}" for a, e, c in zip(low, event, left, strict=True)]
        seen = pd.DataFrame({"x": x, "time": time, "event": event.astype(int)})
        full = seen.assign(time=np.where(event, died, left))
        middle = seen.assign(time=np.where(event, low + 1.5, left))
        runs = [unmask.MultipleImputation(3, duration="time", event="event").fit(f) for f in (full, seen, middle)]
        whole, ours, naive = (float(run.pool_cox("x").estimate[0]) for run in runs)
        gaps.append((ours - whole, naive - whole))
    ours, naive = np.mean(gaps, 0)
    assert abs(ours) < 0.1 < 0.2 < -naive


def test_an_interval_with_its_ends_swapped_is_refused_with_its_row():
    frame = pd.DataFrame({"x": [1.0, np.nan, 2.5, 3.0] * 5, "time": ["2-4"] * 19 + ["4-2"], "event": [1, 1, 1, 0] * 5})
    with pytest.raises(UserError, match="'time', row 19: '4-2'"):
        unmask.MultipleImputation(2, duration="time", event="event").fit(frame)


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
    assert found.wald_test().names == ("x", "g=b", "g=c")
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


def responses() -> dict[str, Response]:
    """An outcome of each family, of 300 rows; some enter late."""
    rng, rows = np.random.default_rng(3), 300
    z = rng.normal(size=rows)
    time, event = rng.exponential(np.exp(-0.5 * z)) + 0.2, rng.integers(0, 3, rows).astype(float)
    offset, y = np.log(rng.uniform(0.5, 2, rows)), {}
    y["ols"] = z + rng.normal(size=rows)
    y["logit"] = (z + rng.logistic(size=rows) > 0).astype(float)
    y["polr"] = np.digitize(z + rng.logistic(size=rows), [-1, 1]).astype(float)
    y["poisson"] = y["negative-binomial"] = rng.poisson(np.exp(offset + 0.5 * z) * rng.gamma(2, 0.5, rows)).astype(
        float
    )
    plain = {name: Response(y=v, event=v, offset=offset * FAMILIES[name].counts) for name, v in y.items()}
    pair = Response(y=time, event=event, causes=2, entry=time * 0.1, offset=0 * time)
    return plain | {"cox": pair, "fine-gray": dataclasses.replace(pair, cause=1)}


@pytest.mark.parametrize("name", list(FAMILIES))
def test_no_outcome_is_likelier_than_the_likeliest(name):
    """Proposals are accepted with this likelihood less its largest: above 1 it would be no probability."""
    r, rng = responses()[name], np.random.default_rng(4)
    x = rng.normal(size=(300, 2))
    x = np.hstack([np.ones((300, 1)), x]) if FAMILIES[name].constant else x
    law = FAMILIES[name].draw(Given(x=x, r=r, use=np.ones(300, bool), rng=rng))
    eta = rng.normal(scale=3, size=(300, law.beta.shape[1]))
    found = law.log_likelihood(eta, np.arange(300))
    assert found.shape == (300,)
    assert (found <= 1e-9).all()
    assert found.max() > -1  # some come near
    np.testing.assert_allclose(law.log_likelihood(eta[7:9], np.array([7, 8])), found[7:9])


def test_how_likely_counts_are_is_what_scipy_says():
    r, rng = responses()["poisson"], np.random.default_rng(4)
    given, rows = Given(x=np.ones((300, 1)), r=r, use=np.ones(300, bool), rng=rng), np.arange(300)
    law = FAMILIES["poisson"].draw(given)
    eta = np.linspace(-2, 2, 300)
    found = law.log_likelihood(eta[:, None], rows)
    most = stats.poisson.logpmf(r.y, np.maximum(r.y, 1e-30))
    np.testing.assert_allclose(found, stats.poisson.logpmf(r.y, np.exp(eta + r.offset)) - most, atol=1e-9)


def test_all_causes_weigh_a_covariate():
    """Of two rows that differ in nothing but the covariate the one with the higher hazard of its own cause is likelier,
    and the one with the lower hazard of the other."""
    r, rng = responses()["cox"], np.random.default_rng(4)
    law = FAMILIES["cox"].draw(Given(x=rng.normal(size=(300, 1)), r=r, use=np.ones(300, bool), rng=rng))
    none, more = np.zeros((300, 2)), np.column_stack([np.zeros(300), np.ones(300)])
    rows = np.arange(300)
    gain = law.log_likelihood(more, rows) - law.log_likelihood(none, rows)
    assert (gain[r.event < 2] <= 0).all()
    assert gain[(r.event == 2) & (r.y < np.median(r.y))].min() > 0


@pytest.mark.parametrize("entry", [None, 1.0])
def test_times_are_drawn_inside_their_intervals_as_the_hazard_has_them(entry):
    """Of a constant hazard, by what is left of an exponential distribution; of one that nothing tells of, evenly."""
    rng, rows = np.random.default_rng(6), 3000
    whole = rng.exponential(2, rows)
    event, time = np.ones(rows), whole.copy()
    event[:10], late = 0.0, None if entry is None else np.full(rows, entry)
    low, high = np.where(np.arange(rows) % 2 == 0, -np.inf, 1.5), np.where(np.arange(rows) % 2 == 0, 4.0, 6.0)
    low[:10], high[:10] = 5.0, np.inf
    cells = np.arange(400)
    use = (cells[0] + np.arange(rows) >= 400) & (whole > (entry or 0))
    r = Response(y=time, event=event, entry=late, offset=0 * time)
    draw_within(Given(x=np.zeros((rows, 1)), r=r, use=use, rng=rng), {}, cells, (low[cells], high[cells]))
    assert (time[cells] >= np.maximum(low[cells], entry or 0)).all()
    assert (time[cells] <= high[cells]).all()
    np.testing.assert_array_equal(time[400:], whole[400:])
    assert (time[:10] == 5).all()  # who left, left then
    assert len(np.unique(time[10:400])) == 390
    odd = np.arange(11, 400, 2)
    assert time[odd].mean() == pytest.approx(stats.truncexpon(2.25, 1.5, 2).mean(), abs=0.25)


def test_who_had_another_cause_leaves_after_it():
    r, rng = responses()["fine-gray"], np.random.default_rng(5)
    use = rng.random(300) < 0.8
    until = subdistribution_time(r.y, r.event, 1, use, rng, r.entry)
    other = r.event == 2
    np.testing.assert_array_equal(until[~other], r.y[~other])
    assert (until[other] >= r.y[other]).all()
    assert np.isin(until[other], [*r.y[use & (r.event == 0)], r.y[use].max()]).all()
    curve = kaplan_meier(r.y, r.event == 0)
    early = other & (r.y < np.quantile(r.y, 0.1))
    times = np.concatenate([subdistribution_time(r.y, r.event, 1, use | True, rng)[early] for _ in range(200)])
    middle = float(np.median(r.y))
    share = step_values(*curve, np.array([middle]))[0]
    assert (times > middle).mean() == pytest.approx(share, abs=0.05)


CAUSES = {"duration": "time", "event": "status", "event_level": ["relapse", "death"]}
VISITS = "y ~ x + z + offset(log(t))"


def cohort(seed: int, rows: int = 500) -> tuple[pd.DataFrame, np.ndarray]:
    """x raises the hazard of a relapse, lowers that of death, raises the rate of visits; and uniform numbers."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=rows)
    x = 0.5 * z + rng.normal(size=rows)
    first, second = rng.exponential(8 * np.exp(-1.2 * x)), rng.exponential(8 * np.exp(x))
    left = rng.uniform(2, 12, rows)
    status = np.where(left <= np.minimum(first, second), "none", np.where(first <= second, "relapse", "death"))
    t = rng.uniform(0.5, 2, rows).round(3)
    y = rng.poisson(t * np.exp(0.3 + 0.8 * x) * rng.gamma(2, 0.5, rows))
    frame = pd.DataFrame(
        {"x": x.round(3), "z": z.round(3), "time": np.minimum(np.minimum(first, second), left) + 0.001}
    )
    return frame.round(4).assign(status=status, t=t, y=y), rng.random(rows)


def _both_causes(done) -> np.ndarray:
    return np.array([done.pool_cox(["x", "z"], cause=cause).estimate[0] for cause in CAUSES["event_level"]])


def test_the_hazards_of_both_causes_are_kept():
    gaps = []
    for seed in range(6):
        whole, u = cohort(seed)
        whole = whole[["x", "z", "time", "status"]]
        holed = whole.assign(x=whole.x.mask(u < np.where(whole.status == "relapse", 0.6, 0.2)))
        full = _both_causes(unmask.MultipleImputation(2, **CAUSES).fit(whole))
        gaps.append(_both_causes(unmask.MultipleImputation(5, seed=seed, rounds=5, **CAUSES).fit(holed)) - full)
    assert (np.abs(np.mean(gaps, 0)) < 0.1).all(), gaps


@pytest.mark.parametrize(("told", "least", "most"), [(True, -0.05, 0.05), (False, -0.5, -0.1)])
def test_the_rate_ratio_of_counts_is_kept_where_imputation_agrees(told, least, most):
    gaps = []
    for seed in range(4):
        whole, u = cohort(seed)
        whole = whole[["x", "z", "t", "y"]]
        holed = whole.assign(x=whole.x.mask(u < np.where(whole.y > 1, 0.6, 0.2)))
        agrees = {"formula": VISITS, "family": "negative-binomial"} if told else {}
        runs = [unmask.MultipleImputation(3, rounds=5, **agrees).fit(frame) for frame in (whole, holed)]
        full, found = (run.pool(VISITS, family="negative-binomial").estimate[1] for run in runs)
        gaps.append(found - full)
    assert least < np.mean(gaps) < most, gaps


def test_missing_follow_up_of_causes_is_drawn_and_what_is_there_stays():
    whole, u = cohort(1, 200)
    holed = whole[["x", "z", "time", "status"]].assign(x=whole.x.mask(u < 0.3))
    holed.loc[::5, "time"] = np.nan
    holed.loc[::10, "status"] = None
    for more in ({}, {"family": "fine-gray", "cause": "relapse"}):
        done = unmask.MultipleImputation(2, rounds=2, **CAUSES, **more).fit(holed)
        for table in done:
            assert set(table.status) == {"none", "relapse", "death"}
            assert table.time.notna().all()
            for name in holed:
                kept = holed[name].notna()
                assert (table[name][kept] == holed[name][kept]).all()
            assert len(set(table.status[holed.status.isna()])) > 1


def test_missing_counts_and_grades_are_drawn_under_their_analysis():
    whole, u = cohort(2, 300)
    o = pd.Categorical(np.array(["a", "b", "c"])[np.digitize(whole.x, [-0.5, 0.5])], ["a", "b", "c"], ordered=True)
    holed = whole[["x", "t", "y"]].assign(o=o).mask(np.column_stack([u < 0, u < 0, u < 0.3, u > 0.7]))
    visits = unmask.MultipleImputation(2, formula="y ~ x + offset(log(t))", family="poisson", rounds=2).fit(holed)
    assert visits.methods_["y"] == "formula"
    drawn = visits[0].y[holed.y.isna()]
    assert (drawn == drawn.round()).all()
    assert (drawn >= 0).all()
    expected = whole.t * np.exp(0.3 + 0.8 * whole.x)
    assert np.corrcoef(drawn, expected[holed.y.isna()])[0, 1] > 0.6
    assert drawn.mean() == pytest.approx(whole.y[holed.y.isna()].mean(), rel=0.25)
    grades = unmask.MultipleImputation(2, formula="o ~ x", rounds=2).fit(holed.drop(columns=["t", "y"]))
    right = np.asarray(grades[0].o)[holed.o.isna()] == np.asarray(o)[holed.o.isna()]
    assert right.mean() > 0.9  # x decides it


@pytest.mark.parametrize(
    ("change", "options", "says"),
    [
        ({}, {"cause": "relapse"}, "agree with the hazards of all causes"),
        ({}, {"family": "fine-gray"}, "one of relapse, death"),
        ({}, {"family": "fine-gray", "cause": "remission"}, "relapse, death"),
        ({}, {"family": "poisson"}, "without a formula"),
        ({}, {"formula": "y ~ x", "family": "cox"}, "asks for ols or poisson or negative-binomial, not cox"),
        ({}, {"formula": "y ~ x + offset(log(t))"}, "belongs to counts"),
        ({"y": -1.0}, {"formula": VISITS, "family": "poisson"}, "row 7: -1 in 'y'"),
        ({"y": 0.5}, {"formula": VISITS, "family": "negative-binomial"}, "row 7: 0.5 in 'y'"),
        ({"t": 0.0}, {"formula": VISITS, "family": "poisson"}, r"row 7: offset\(log\(t\)\).*'t' is 0"),
        ({"t": np.nan}, {"formula": VISITS, "family": "poisson"}, "row 7.*'t' has no value"),
    ],
)
def test_what_no_analysis_can_be_of_is_refused(change, options, says):
    whole, u = cohort(3, 80)
    holed = whole.assign(x=whole.x.mask(u < 0.3))
    for name, value in change.items():
        holed[name] = holed[name].astype(float)
        holed.loc[7, name] = value
    pair = CAUSES if "formula" not in options else {}
    with pytest.raises(UserError, match=says):
        unmask.MultipleImputation(2, rounds=1, **pair, **options).fit(holed)


def test_a_cause_that_never_occurs_is_named_with_those_that_do():
    whole, u = cohort(3, 80)
    holed = whole[["x", "z", "time", "status"]].assign(x=whole.x.mask(u < 0.3))
    with pytest.raises(UserError, match=r"'remission'.*\n.*death.*none.*relapse"):
        unmask.MultipleImputation(2, **{**CAUSES, "event_level": ["relapse", "death", "remission"]}).fit(holed)
    done = unmask.MultipleImputation(2, rounds=1, **CAUSES).fit(holed)
    with pytest.raises(UserError, match=r"never is that\n.*relapse, death"):
        done.pool_cox("x", cause="remission")
    with pytest.raises(UserError, match=r"competing causes\n.*relapse, death"):
        done.pool_cox("x")
    told = {"family": "fine-gray", "cause": "relapse"}
    with pytest.raises(UserError, match="D1"):
        done.compare("Surv(time, status) ~ x + z", "Surv(time, status) ~ x", method="D3", **told)
    alive = holed.assign(status=holed.status.replace("death", "none"))
    with pytest.raises(UserError, match=r"'death' of 'status': no row has it.*\n.*relapse"):
        unmask.MultipleImputation(2, schema=done.schema_).fit(alive)


def test_categories_without_an_order_have_no_proportional_odds():
    rng = np.random.default_rng(0)
    grade = np.array(["low", "medium", "high"], object)[rng.integers(0, 3, 60)]
    grade[:9] = None
    table = pd.DataFrame({"grade": grade, "x": rng.normal(size=60)})
    with pytest.raises(UserError, match=r"'grade': polr, of 3 categories without an order(.|\n)*ordinal"):
        unmask.MultipleImputation(2, method={"grade": "polr"}).fit(table)
    assert unmask.MultipleImputation(2, method="polr").fit(table).methods_ == {
        "grade": "polyreg"
    }  # for all that it suits


def test_a_cause_is_named_by_its_number_too():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"time": rng.exponential(size=200) + 0.1, "event": rng.integers(0, 3, 200)})
    table["x"] = np.where(rng.random(200) < 0.2, np.nan, rng.normal(size=200))
    done = unmask.MultipleImputation(2, duration="time", event="event").fit(table)
    assert done.survival([1], cause=1).estimate == done.survival([1], cause="1").estimate


@pytest.mark.parametrize("late", [">24", "24"])
def test_follow_up_of_which_no_time_is_exact(late):
    rng = np.random.default_rng(0)
    x = rng.normal(size=300)
    at = rng.exponential(30 * np.exp(-0.7 * x))
    visit = np.floor(at / 6) * 6
    time = [late if t >= 24 else f"{v:g}-{v + 6:g}" if v else "<6" for t, v in zip(at, visit, strict=True)]
    table = pd.DataFrame({"time": time, "event": (at < 24).astype(int), "x": x})
    table.loc[:40, "x"] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = unmask.MultipleImputation(3, duration="time", event="event").fit(table)
    assert done.pool_cox(["x"]).estimate[0] == pytest.approx(0.7, abs=0.25)
    table.loc[table.event[table.event == 0].index[:3], "time"] = "12-18"
    with pytest.warns(UserWarning, match="3 rows without an event have a follow-up time in an interval"):
        unmask.MultipleImputation(2, duration="time", event="event", rounds=1).fit(table)
