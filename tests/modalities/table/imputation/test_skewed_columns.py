"""Multiple imputation of columns that are not normal: skewed ones missing together, squares of them, many zeros."""

import numpy as np
import polars as pl
import pytest
from scipy import stats

from unmask.modalities.table.imputation.multiple import MultipleImputation
from unmask.modalities.table.imputation.regressions import draw_donors, draw_level
from unmask.modalities.table.imputation.scales import MonotoneScale, best_scale, draw_scale
from unmask.modalities.table.imputation.smcfcs import _drawn, _Latent

SQUARE = "y ~ x + I(x**2) + z"


def completed(columns, gone, names, seed, **options) -> MultipleImputation:
    """Fitted where the named columns lack the rows of `gone`."""
    holed = {k: np.where(gone, np.nan, v) if k in names else v for k, v in columns.items()}
    frame = pl.DataFrame({k: pl.Series(v).fill_nan(None) for k, v in holed.items()})
    return MultipleImputation(6, seed=seed, **options).fit(frame)


def test_skewed_markers_that_are_missing_together_keep_their_means():
    """Missing completely at random, the survival pair unrelated: the mean of what was drawn is that of what went."""
    off = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        shared = rng.normal(size=300)
        columns = {f"m{k}": np.exp(shared + 0.5 * rng.normal(size=300)).round(3) for k in (1, 2)}
        columns |= {"time": rng.exponential(5, 300).round(3) + 0.001, "event": (rng.random(300) < 0.6).astype(float)}
        gone = rng.random(300) < 0.5
        done = completed(columns, gone, ("m1", "m2"), seed, duration="time", event="event")
        for k in ("m1", "m2"):
            drawn = np.mean([t[k].to_numpy().mean() for t in done.completed])
            off.append((drawn - columns[k].mean()) / 2.95)
    assert abs(np.mean(off)) < 0.06


def test_columns_keep_their_shape_without_an_analysis():
    """Missing completely at random and related to nothing: zeros were imputed for .39 of .58, medians of 41 for 21."""
    off = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        zeros = np.where(rng.random(250) < 0.6, 0, rng.gamma(2, 10, 250)).round(1)
        columns = {"packs": zeros, "troponin": rng.lognormal(3, 2, 250).round(3), "x": rng.normal(size=250)}
        gone = rng.random(250) < 0.3
        done = completed(columns, gone, ("packs", "troponin"), seed)
        assert done.methods_ == {"packs": "pmm", "troponin": "pmm"}
        drawn = {k: np.concatenate([t[k].to_numpy()[gone] for t in done.completed]) for k in done.methods_}
        share = (drawn["packs"] == 0).mean() - (zeros[~gone] == 0).mean()
        off.append([share, np.log(np.median(drawn["troponin"]) / np.median(columns["troponin"][~gone]))])
    assert (np.abs(np.mean(off, 0)) < [0.06, 0.25]).all()


def test_skewed_columns_missing_together_keep_their_means_without_an_analysis():
    """On their scales, but predicted by each other's own, they drove each other to the largest values (+20 %)."""
    off = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        shared, gone = rng.normal(size=300), rng.random(300) < 0.5
        columns = {f"m{k}": np.exp(shared + 0.5 * rng.normal(size=300)).round(3) for k in (1, 2)}
        done = completed(columns | {"z": rng.normal(size=300)}, gone, ("m1", "m2"), seed)
        off += [np.mean([t[k].mean() for t in done.completed]) / columns[k].mean() - 1 for k in columns]
    assert abs(np.mean(off)) < 0.09


def test_a_spike_that_a_method_does_not_draw_is_doubted():
    rng = np.random.default_rng(0)
    x = np.where(rng.random(300) < 0.6, 0, rng.gamma(2, 10, 300)).round(1)
    columns, gone = {"x": x, "z": rng.normal(size=300)}, rng.random(300) < 0.3
    assert completed(columns, gone, ("x",), 0).doubts_ == []
    with pytest.warns(UserWarning, match=r"'x' \(1% of the cells are 0, of observed ones 60%\)"):
        completed(columns, gone, ("x",), 0, method={"x": "norm"})


def test_the_square_of_a_skewed_covariate_is_kept():
    off = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        z = rng.normal(size=500)
        x = np.exp(0.7 * (0.4 * z + 0.84**0.5 * rng.normal(size=500)))
        columns = {"x": x, "z": z, "y": 1 + x + 0.3 * x**2 + 0.5 * z + rng.normal(size=500)}
        gone = rng.random(500) < 0.1 + 0.4 / (1 + np.exp(np.median(columns["y"]) - columns["y"]))
        done = completed(columns, gone, ("x",), seed, formula=SQUARE)
        assert "logarithm" in done.reasons_["x"] or "power" in done.reasons_["x"]
        off.append(done.pool(SQUARE).estimate - [1, 1, 0.3, 0.5])
    assert abs(np.mean(off, 0)[2]) < 0.06


def test_many_zeros_are_drawn_as_such_and_the_rest_on_their_scale():
    off, zeros = [], []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        z = rng.normal(size=400)
        x = np.where(rng.random(400) < 0.5, 0, np.exp(0.5 * z + 0.6 * rng.normal(size=400))).round(3)
        columns = {"x": x, "z": z, "y": 1 + x + 0.5 * z + rng.normal(size=400)}
        gone = rng.random(400) < 0.7 / (1 + np.exp(2 - columns["y"]))
        done = completed(columns, gone, ("x",), seed, formula="y ~ x + z")
        assert done.methods_["x"] == "norm"
        assert "logistic" in done.reasons_["x"]
        off.append(done.pool("y ~ x + z").estimate - [1, 1, 0.5])
        zeros.append(np.mean([(t["x"].to_numpy()[gone] == 0).mean() for t in done.completed]) - (x[gone] == 0).mean())
    assert (np.abs(np.mean(off, 0)) < 0.08).all()
    assert abs(np.mean(zeros)) < 0.06


@pytest.mark.parametrize("power", [0.0, 0.25, 0.5])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_scale_goes_there_and_back_and_its_slope_is_that(power, sign):
    x = np.linspace(1.5, 9.0, 40)
    scale = MonotoneScale(end=0.0 if sign > 0 else 10.0, sign=sign, power=power, unit=3.0)
    z = scale.to(x)
    assert (np.diff(z) > 0).all()
    assert scale.back(z) == pytest.approx(x)
    assert scale.log_slope(x) == pytest.approx(np.log((scale.to(x + 1e-6) - z) / 1e-6), abs=1e-4)


def test_the_scale_of_a_log_normal_column_is_the_logarithm_and_its_draws_are_near_it():
    rng = np.random.default_rng(0)
    x, ones = np.exp(rng.normal(size=800)), np.ones((800, 1))
    scale = best_scale(x, ones)
    assert scale is not None
    assert (scale.power, scale.end, scale.sign) == (0.0, 0.0, 1.0)
    drawn = {draw_scale(scale, x, np.ones(800, bool), ones, rng).power for _ in range(50)}
    assert drawn <= {0.0, 0.125}
    mirrored = best_scale(100 - x, ones)
    assert mirrored is not None
    assert mirrored.sign == -1
    assert best_scale(rng.normal(50, 2, 800), ones) is None


def test_draws_that_are_hardly_ever_accepted_come_from_their_posterior():
    """A standard normal covariate, seen with noise .05 at 3.5: one proposal of 4 000 would be accepted."""
    rng = np.random.default_rng(0)
    rows, precision = 4000, 1 + 1 / 0.05**2
    model = _Latent(
        mean=np.zeros(rows),
        sigma=1.0,
        scale=None,
        spike=None,
        share=np.zeros(rows),
        bounds=(-np.inf, np.inf),
        score=lambda values, which: -0.5 * ((values - 3.5) / 0.05) ** 2,
    )
    now = np.zeros(rows)
    for _ in range(20):
        now, impossible = _drawn(model, now, rng)
    assert impossible == 0
    assert now.mean() == pytest.approx(3.5 / 0.05**2 / precision, abs=0.005)
    assert now.std() == pytest.approx(precision**-0.5, rel=0.1)


def test_draws_with_a_spike_weigh_it_exactly():
    rng = np.random.default_rng(0)
    model = _Latent(
        mean=np.full(20000, 1.0),
        sigma=1.0,
        scale=None,
        spike=0.0,
        share=np.full(20000, 0.5),
        bounds=(-np.inf, np.inf),
        score=lambda values, which: -0.5 * (values - 2) ** 2,
    )
    drawn, _ = _drawn(model, np.zeros(20000), rng)
    at_spike, elsewhere = stats.norm.pdf(0, 2, 1), stats.norm.pdf(1, 2, 2**0.5)
    assert (drawn == 0).mean() == pytest.approx(at_spike / (at_spike + elsewhere), abs=0.015)
    assert drawn[drawn != 0].mean() == pytest.approx(1.5, abs=0.03)


def test_predictive_mean_matching_keeps_the_regression_where_donors_are_few():
    """A row gets the residual of its donor too: values of the donors alone pull the slope of y on x to .9."""
    slopes = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        z = rng.normal(size=400)
        x = 0.7 * z + 0.7 * rng.normal(size=400)
        y = x + z + rng.normal(size=400)
        gone = rng.random(400) < 1 / (1 + np.exp(-y))
        done = completed({"x": x, "z": z, "y": y}, gone, ("x",), seed, method="pmm")
        assert set(done.completed[0]["x"].to_numpy()) <= set(x[~gone])
        slopes.append(done.pool("y ~ x + z").estimate[1:])
    assert np.mean(slopes, 0) == pytest.approx([1, 1], abs=0.06)


def test_donors_vary_as_the_mean_does_that_they_stand_for():
    """Nothing predicts: the mean of what is drawn varies from draw to draw as the mean of the donors does."""
    rng = np.random.default_rng(0)
    y, x = rng.normal(size=30), np.ones((30, 1))
    means = []
    for _ in range(400):
        values, log_weight = draw_donors(x, y, np.ones((2000, 1)), rng)
        means.append(values[np.arange(2000), draw_level(log_weight, rng.random(2000))].mean())
    assert np.std(means) == pytest.approx(y.std() / 31**0.5, rel=0.15)


@pytest.mark.parametrize("rows", [300, 1000])
def test_a_column_is_imputed_from_its_copy_in_another_unit(rows):
    rng = np.random.default_rng(0)
    pressure = rng.normal(135, 18, rows).round()
    columns = {"sbp": pressure, "age": rng.normal(60, 10, rows).round(), "kpa": (pressure / 7.50062).round(1)}
    done = completed(columns, np.arange(rows) == np.argmax(pressure), ("sbp",), 0)
    assert [t["sbp"].max() for t in done.completed] == pytest.approx([pressure.max()] * 6, abs=2)


def test_columns_that_nearly_determine_each_other_are_drawn_that_near():
    rng = np.random.default_rng(0)
    truth = np.linspace(1, 100, 100)
    x, y = truth + rng.normal(0, 0.1, 100), 2 * truth + rng.normal(0, 1, 100)
    no_x = rng.permutation(100)[:30]
    no_y = np.setdiff1d(np.arange(100), no_x)[::3]
    frame = pl.DataFrame({"x": x, "y": y}).with_columns(
        x=pl.when(pl.int_range(100).is_in(no_x)).then(None).otherwise(pl.col("x")),
        y=pl.when(pl.int_range(100).is_in(no_y)).then(None).otherwise(pl.col("y")),
    )
    done = MultipleImputation(5).fit(frame)
    assert done.methods_ == {"x": "norm", "y": "norm"}
    off = np.mean([((t["x"].to_numpy() - x)[no_x] ** 2).mean() for t in done.completed]) ** 0.5
    assert off < 1.0  # x given y is known to .5; a draw is off by that twice over


def test_a_row_beyond_all_predicted_means_has_several_donors():
    """With one donor, every value drawn there repeats its residual, and columns missing together drift."""
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(100), rng.normal(size=100)])
    y = x[:, 1] + 0.2 * rng.normal(size=100)
    beyond = np.array([[1.0, x[:, 1].max() + 1.5], [1.0, x[:, 1].min() - 1.5]])
    donors = []
    for _ in range(50):
        _, log_weight = draw_donors(x, y, beyond, rng)
        share = np.exp(log_weight - log_weight.max(1, keepdims=True))
        share /= share.sum(1, keepdims=True)
        donors.append(1 / (share**2).sum(1))
    assert (np.mean(donors, 0) > 2.5).all()
