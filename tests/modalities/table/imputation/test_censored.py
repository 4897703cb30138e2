"""Cells that are only bounded: drawn inside their intervals, part of every regression, written as asked."""

import json
import shutil
import subprocess
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import stats

from unmask import MaskedImputer, MultipleImputation
from unmask.cli import main
from unmask.errors import UserError
from unmask.modalities.table.imputation.censored import started
from unmask.modalities.table.imputation.censored_regression import (
    censored_fits,
    censored_scale,
    draw_between,
)
from unmask.modalities.table.imputation.regressions import share_between, truncated_normal
from unmask.modalities.table.model import TableModel
from unmask.modalities.table.schema.censored import Censored

IN_R = Path(__file__).parent / "in_r"
LIMIT = 0.8


def cohort(n=300, seed=0, *, kind="left", holes=0.0):
    """x log-normal, of which what lies below a limit, above one or anywhere is only bounded; the truth beside."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=n)
    x = np.exp(0.5 * z + rng.normal(size=n))
    y = 1 + np.log(x) + z + rng.normal(size=n)
    if kind == "left":
        cells = [f"<{LIMIT}" if v < LIMIT else repr(float(v)) for v in x]
    elif kind == "right":
        cells = [">2.5" if v > 2.5 else repr(float(v)) for v in x]
    else:
        wide = rng.random(n) < 0.3
        cells = [f"{v * 0.5:.6f}-{v * 1.9:.6f}" if w else repr(float(v)) for v, w in zip(x, wide, strict=True)]
    cells = [None if u < holes else c for u, c in zip(rng.random(n), cells, strict=True)]
    return pd.DataFrame({"x": cells, "z": z, "y": y}), x


def ends(cells):
    low, high = np.full(len(cells), -np.inf), np.full(len(cells), np.inf)
    for i, c in enumerate(cells):
        if c is None:
            continue
        if c[0] == "<":
            high[i] = float(c[1:])
        elif c[0] == ">":
            low[i] = float(c[1:])
        else:
            parts = c.split("-")
            low[i], high[i] = float(parts[0]), float(parts[-1])
    return low, high


def test_a_truncated_normal_is_one_far_out_in_the_tails_too():
    u = np.linspace(1e-6, 1 - 1e-6, 999)
    for a, b in ((-1, 0.5), (-np.inf, -2), (3, np.inf), (-np.inf, np.inf), (8, 8.5), (-38, -37), (30, np.inf)):
        a_, b_ = np.full(999, float(a)), np.full(999, float(b))
        z = truncated_normal(a_, b_, u)
        assert ((z >= a) & (z <= b)).all()
        assert np.allclose(share_between(a_, b_, z), u, atol=1e-6)
        if abs(a) < 9 or abs(b) < 9:
            assert np.allclose(z, stats.truncnorm.ppf(u, a, b), atol=1e-6)


def test_the_scale_and_its_regression_are_those_of_the_column_before_it_was_cut():
    rng = np.random.default_rng(1)
    z = rng.normal(size=4000)
    for transform, power in ((np.exp, 0.0), (lambda v: v, None)):
        x = transform(0.3 + 0.5 * z + 0.7 * rng.normal(size=4000))
        limit = float(np.quantile(x, 0.4))
        rows = np.flatnonzero(x < limit)
        floor = 5e-324 if power == 0.0 else -np.inf
        cells = Censored(rows=rows, low=np.full(len(rows), floor), high=np.full(len(rows), limit), digits=None)
        start = x.copy()
        start[rows] = limit
        found = censored_scale(np.column_stack([np.ones(4000), z]), start, cells, np.ones(4000, bool))
        scale = found.scale
        assert (None if scale is None else scale.power) == power
        unit = 0.0 if scale is None else np.log(scale.unit)
        assert np.allclose([found.beta[0] + unit, found.beta[1], found.sigma], [0.3, 0.5, 0.7], atol=0.05)
        drawn = draw_between(found.beta[0] + found.beta[1] * z[rows], found.sigma, scale, cells, rng)
        assert stats.ks_2samp(drawn, x[rows]).pvalue > 1e-3


def cut_table() -> pd.DataFrame:
    """150 rows: a third below a limit, some above another, some between two numbers, the others as they are."""
    rng = np.random.RandomState(5)  # its numbers never change
    z = rng.normal(size=150)
    x = np.exp(0.4 * z + 0.8 * rng.normal(size=150)).round(6)
    low, high = x.copy(), x.copy()
    wide, below, above = rng.uniform(size=150) < 0.15, x < 0.6, x > 3
    low[wide], high[wide] = 0.8 * x[wide], 1.5 * x[wide]
    low[below], high[below], low[above], high[above] = -np.inf, 0.6, 3, np.inf
    return pd.DataFrame({"z": z.round(6), "low": low.round(6), "high": high.round(6)})


def test_censored_regressions_are_those_of_survreg():
    table, figures = cut_table(), json.loads((IN_R / "censored.json").read_text())
    x = np.column_stack([np.ones(150), table.z])
    rows = np.flatnonzero(table.low != table.high)
    low, high = table.low.to_numpy(), table.high.to_numpy()
    start = np.where(np.isfinite(low) & np.isfinite(high), (low + high) / 2, np.where(np.isfinite(low), low, high))
    for name, floor in (("own", -np.inf), ("log", 5e-324)):
        cells = Censored(rows=rows, low=np.maximum(low[rows], floor), high=high[rows], digits=None)
        fits = censored_fits(x, start, cells, np.ones(150, bool))
        found = next(f for f in fits if (f.scale is None) == (name == "own") and getattr(f.scale, "power", 0) == 0)
        unit = np.log(found.scale.unit) if found.scale else 0.0
        slope = found.scale.log_slope(np.delete(start, rows)).sum() if found.scale else 0.0
        ours = [found.beta[0] + unit, found.beta[1], found.sigma, found.height - slope]
        np.testing.assert_allclose(ours, figures[name], rtol=1e-6, err_msg=name)


@pytest.mark.skipif(shutil.which("Rscript") is None, reason="no R")
def test_the_figures_are_those_of_r(tmp_path):
    cut_table().to_csv(tmp_path / "t.csv", index=False)
    subprocess.run(["Rscript", IN_R / "censored.R", tmp_path / "t.csv", tmp_path / "f.json"], check=True)
    again, figures = (json.loads(p.read_text()) for p in (tmp_path / "f.json", IN_R / "censored.json"))
    for name, values in figures.items():
        np.testing.assert_allclose(again[name], values, rtol=1e-7)


@pytest.mark.parametrize("kind", ["left", "right", "between"])
@pytest.mark.parametrize("formula", [None, "y ~ log(x) + z"])
@pytest.mark.parametrize("holes", [0.0, 0.2])
def test_drawn_values_lie_in_their_intervals_and_observed_cells_stay(kind, formula, holes):
    table, _ = cohort(kind=kind, holes=holes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = MultipleImputation(3, formula=formula, rounds=3).fit(table)
    low, high = ends(table.x)
    plain = low == high
    for one in done:
        assert one.x.dtype == np.float64
        assert not one.x.isna().any()
        assert (one.x >= np.maximum(low, 0)).all()
        assert (one.x <= high).all()
        assert (one.x[plain] == low[plain]).all()
        assert one[["z", "y"]].equals(table[["z", "y"]])
    assert not done[0].x[~plain].equals(done[1].x[~plain])
    assert any("values inside their intervals" in note for note in done.notes_)


def test_a_regression_on_the_censored_column_is_the_one_before_it_was_censored():
    """Means of 8 tables: .03 apart by chance; limit / 2 is .2 off, complete rows are .1 off."""
    found = {None: [], "y ~ log(x) + z": []}
    for seed in range(8):
        table, x = cohort(400, seed)
        for formula in found:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                done = MultipleImputation(5, formula=formula, seed=seed).fit(table)
                pooled = done.pool("y ~ log(x) + z")
            full = np.linalg.lstsq(np.column_stack([np.ones(400), np.log(x), table.z]), table.y, rcond=None)[0]
            means = np.mean([np.log(one.x).mean() for one in done]) - np.log(x).mean()
            found[formula].append([*(pooled.estimate - full), means])
    for formula, differences in found.items():
        assert np.abs(np.mean(differences, 0)).max() < 0.06, formula


@pytest.mark.parametrize("formula", [None, "w ~ y + z"])
def test_a_censored_outcome(formula):
    table, _ = cohort(500, 3)
    rng = np.random.default_rng(0)
    w = 1 + table.y + 0.5 * table.z + rng.normal(size=500)
    limit = float(np.quantile(w, 0.4))
    table = pd.DataFrame({"w": [f"<{limit}" if v < limit else repr(float(v)) for v in w], "y": table.y, "z": table.z})
    low = {"columns": {"w": {"low": -100}}}  # it goes below 0, which no number in the table tells
    done = MultipleImputation(8, formula=formula, schema=low).fit(table)
    estimate = done.pool("w ~ y + z").estimate
    full = np.linalg.lstsq(np.column_stack([np.ones(500), table.y, table.z]), w, rcond=None)[0]
    assert np.abs(estimate - full).max() < 0.1
    assert not any("complete rows give its estimates" in note for note in done.notes_)
    assert all((one.w[w < limit] < limit).all() for one in done)


def test_a_censored_covariate_of_a_cox_regression():
    table, x = cohort(400, 5)
    rng = np.random.default_rng(1)
    died, left = rng.exponential(np.exp(-0.7 * np.log(x))), rng.exponential(2, 400)
    table = table[["x", "z"]].assign(time=np.minimum(died, left), event=(died <= left).astype(int))
    done = MultipleImputation(5, formula="Surv(time, event) ~ log(x) + z").fit(table)
    assert abs(done.pool("Surv(time, event) ~ log(x) + z").estimate[0] - 0.7) < 0.2
    assert done.methods_ == {"x": "censored"}


def test_same_seed_same_tables_and_kept_cells_are_the_texts_they_were(tmp_path):
    table, _ = cohort(120, holes=0.1)
    table.to_csv(tmp_path / "t.csv", index=False)
    one, two = (MultipleImputation(2, rounds=2, seed=4).fit(tmp_path / "t.csv") for _ in range(2))
    assert [a.equals(b) for a, b in zip(one, two, strict=True)] == [True, True]
    assert one[0]["x"].dtype == pl.Float64
    kept = MultipleImputation(2, rounds=2, seed=4, censored="kept").fit(table)
    own = table.x.fillna("").str.startswith("<")
    assert (kept[0].x[own] == table.x[own]).all()
    assert not kept[0].x.isna().any()
    assert kept.cells_ == table.x.isna().sum()
    assert one.cells_ == kept.cells_ + own.sum()
    assert any("kept as they stand" in note for note in kept.notes_)


def test_values_at_the_precision_of_the_column():
    table, x = cohort(200)
    table["x"] = [f"<{LIMIT}" if v < LIMIT else f"{v:.2f}" for v in x]
    table["count"] = [f"<{5}" if v < 5 else str(v) for v in np.random.default_rng(0).poisson(6, 200)]
    done = MultipleImputation(2, rounds=2).fit(table)
    for one in done:
        assert (one.x == one.x.round(2)).all()
        assert (one.x[table.x.str.startswith("<")] < LIMIT).all()
        assert set(one["count"][table["count"] == "<5"]) <= {0, 1, 2, 3, 4}


def test_a_shift_moves_no_cell_out_of_its_interval_and_rules_hold_too():
    table, _ = cohort(150, holes=0.1)
    table["most"] = np.where(table.x.fillna("").str.startswith("<"), 0.4, 900.0)
    schema = {"constraints": ["x <= most"]}
    done = MultipleImputation(2, rounds=2, shift={"x": 100.0}, schema=schema).fit(table)
    own, none = table.x.fillna("").str.startswith("<"), table.x.isna()
    assert (done[0].x[own] <= 0.4).all()
    assert done[0].x[none].mean() > 90


def test_a_model_draws_them_inside_and_leaves_them_in_a_table_of_best_values():
    table, x = cohort(300, holes=0.1)
    own, none = table.x.fillna("").str.startswith("<"), table.x.isna()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = TableModel.fit(table, steps=20)
        points, filled, draws = model.impute(table), model.impute(table, censored="drawn"), model.impute(table, draws=2)
        kept = model.impute(table, draws=1, censored="kept")[0]
    assert (points.x[own] == table.x[own]).all()
    assert not points.x.isna().any()
    for one in (filled, *draws):
        assert one.x.dtype == np.float64
        assert ((one.x[own] > 0) & (one.x[own] < LIMIT)).all()
        assert (one.x[~own & ~none] == table.x[~own & ~none].astype(float)).all()
    assert draws[0].x[own].std() > 0.5 * x[own].std()
    assert (kept.x[own] == table.x[own]).all()
    assert any("drawn inside their intervals" in note for note in model.facts["notes"])


def test_a_transformer_gives_numbers():
    table, _ = cohort(120, holes=0.1)
    own = table.x.fillna("").str.startswith("<")
    imputer = MaskedImputer(steps=0).set_output(transform="pandas")
    for posterior in (False, True):
        found = imputer.set_params(sample_posterior=posterior).fit_transform(table)
        assert found.x.dtype == np.float64
        assert ((found.x[own] > 0) & (found.x[own] < LIMIT)).all()
        assert not found.x.isna().any()


def test_in_rows_of_clusters_they_are_drawn_from_the_mixed_model():
    rng = np.random.default_rng(1)
    centre = np.repeat(np.arange(30), 20)
    log = rng.normal(0, 1, 30)[centre] + rng.normal(size=600)
    y = 1 + 0.8 * log + rng.normal(0, 0.7, 30)[centre] + rng.normal(size=600)
    x, missing = np.exp(log), rng.random(600) < 0.1
    limit = float(np.round(np.quantile(x, 0.4), 2))
    cells = ["" if m else repr(float(v)) if v > limit else f"<{limit}" for v, m in zip(x, missing, strict=True)]
    table = pd.DataFrame({"centre": [f"c{v}" for v in centre], "x": cells, "y": y})
    bounded = np.array([c.startswith("<") for c in cells])
    off = {}
    for cluster in ("centre", None):
        done = MultipleImputation(5, cluster=cluster).fit(table)
        drawn = np.stack([np.asarray(one["x"], float) for one in done])
        assert ((drawn[:, bounded] > 0) & (drawn[:, bounded] < limit)).all()
        assert (drawn[:, ~bounded & ~missing] == x[~bounded & ~missing]).all()
        means = [pd.Series(v[bounded]).groupby(centre[bounded]).mean() for v in (np.log(drawn).mean(0), log)]
        off[cluster] = float(np.abs(means[0] - means[1]).mean())
    again = MultipleImputation(5, cluster="centre").fit(table)
    first = MultipleImputation(5, cluster="centre").fit(table)
    assert all(a.equals(b) for a, b in zip(again, first, strict=True))
    assert off["centre"] < 0.8 * off[None]  # means of the centres below the limit: nearer to the truth
    assert off["centre"] < 0.35


def test_where_nothing_draws_them_they_are_refused():
    table, _ = cohort(120)
    centre = np.repeat(np.arange(24), 5)
    dose = np.where(centre % 3 == 0, "<2", (2 + centre % 5).astype(str))
    upper = table.assign(centre=[f"c{v}" for v in centre], dose=dose)
    with pytest.raises(UserError, match=r"'dose', one value per cluster: 40 cells below 2(.|\n)*limits = "):
        MultipleImputation(2, cluster="centre").fit(upper)
    counts = pd.DataFrame({"n": [f"<{3}" if v < 3 else str(v) for v in range(30)], "z": np.arange(30) % 7})
    with pytest.raises(UserError, match="'n': 3 cells below 3, and an outcome of family poisson"):
        MultipleImputation(2, formula="n ~ z", family="poisson").fit(counts)
    pair = {"time": np.arange(1.0, 41), "event": [0, 1] * 20, "z": np.arange(40)}
    with pytest.raises(UserError, match="lod or uloq of a follow-up time"):
        MultipleImputation(2, schema={"columns": {"time": {"lod": 3}}}, duration="time", event="event").fit(pair)


def test_the_command_writes_what_is_asked_and_nothing_where_a_cell_is_wrong(tmp_path):
    table, _ = cohort(80, holes=0.1)
    table.to_csv(tmp_path / "t.csv", index=False)
    own = table.x.fillna("").str.startswith("<").to_numpy()

    def run(table, out, *options):
        try:
            main(["impute", str(tmp_path / table), "--out", str(tmp_path / out), *options])
        except SystemExit as stop:
            return stop.code or 0
        return 0

    assert run("t.csv", "f.csv", "--proper", "2", "--rounds", "2") == 0
    drawn = pd.read_csv(tmp_path / "f-1.csv")
    assert (drawn.x[own] < LIMIT).all()
    assert run("t.csv", "k.csv") == 0
    assert (pd.read_csv(tmp_path / "k.csv").x[own] == table.x[own]).all()
    table.assign(x=table.x.replace(f"<{LIMIT}", "4-2")).to_csv(tmp_path / "bad.csv", index=False)
    assert run("bad.csv", "no.csv", "--proper", "2") == 2
    assert not list(tmp_path.glob("no*"))


def test_what_is_no_choice_is_refused():
    with pytest.raises(UserError, match="half"):
        MultipleImputation(2, censored="half")
    with pytest.raises(UserError, match="swapped"):
        MultipleImputation(2).fit(pd.DataFrame({"x": ["4-2", *map(str, range(30))], "z": range(31)}))


def test_a_table_that_has_no_such_cell_starts_from_nothing():
    columns = [np.array([1.0, np.nan])]
    out, scales = started(columns, {}, np.random.default_rng(0))
    assert np.array_equal(out[0], columns[0], equal_nan=True)
    assert scales == {}


def test_nothing_is_drawn_below_0_where_no_number_is():
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 3, 200)
    table = pd.DataFrame({"x": ["<0.5" if v < 0.5 else f"{v:.2f}" for v in x], "z": rng.normal(size=200)})
    done = MultipleImputation(3, rounds=2).fit(table)
    assert min(one.x.min() for one in done) > 0
    assert any("they go down to 0" in note for note in done.notes_)
