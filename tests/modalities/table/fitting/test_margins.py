"""Means and shares are those of all rows, not of the rows that were seen; bootstrap weights reach them."""

from __future__ import annotations

import numpy as np
import pytest

from unmask import MaskedImputer
from unmask.modalities.table.distribution.cells import fit_codings, moments_of, to_cells
from unmask.modalities.table.distribution.factor_analysis import fit_factors
from unmask.modalities.table.fitting.cell_table import CellTable
from unmask.modalities.table.fitting.fit import fit_cells
from unmask.modalities.table.recipes import settings_of


def selected(seed: int, n: int = 800) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x1, x2 and y = 1 + x1 + x2 + e, and about 45 % of x1 missing, the more the higher y."""
    rng = np.random.default_rng(seed)
    x1 = rng.normal(size=n)
    x2 = 0.5 * x1 + rng.normal(size=n)
    y = 1 + x1 + x2 + rng.normal(size=n)
    return np.column_stack([x1, x2, y]), rng.random(n) < 0.8 / (1 + np.exp(1 - y)) + 0.05, rng.random(n) < 0.2


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_is_missing_by_the_outcome_is_imputed_where_it_is(seed):
    """Anchored at the mean of the rows that were seen, the hidden cells' mean was 0.02 for 0.42."""
    truth, gone, also = selected(seed)
    holed = truth.copy()
    holed[gone, 0], holed[also, 1] = np.nan, np.nan
    filled = MaskedImputer(steps=0).fit_transform(holed)
    assert filled[gone, 0].mean() == pytest.approx(truth[gone, 0].mean(), abs=0.1)
    assert np.sqrt(((filled[gone, 0] - truth[gone, 0]) ** 2).mean()) < 0.74  # 0.79 before; the regression itself 0.66


def test_prevalence_among_the_hidden():
    """0.52 for 0.61 before, on average over these seeds."""
    drawn, true = [], []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=800)
        g = (rng.random(800) < 1 / (1 + np.exp(-0.5 * x))).astype(float)
        y = 1 + x + g + rng.normal(size=800)
        gone = rng.random(800) < 0.8 / (1 + np.exp(1.5 - y)) + 0.05
        columns = [x, np.where(gone, np.nan, g), y]
        table = CellTable.fit(columns, [0, 2, 0], steps=0, seed=seed)
        drawn.append(table.draw(columns, seed=seed)[1][gone].mean())
        true.append(g[gone].mean())
    assert np.mean(drawn) == pytest.approx(np.mean(true), abs=0.05)


def test_a_near_linear_pair_stays_linear():
    """x and y nearly determine each other. Scored by the ranks of the seen values alone, the RMSE of x was 2.2 and of y
    3.9: which rows were seen bent the line."""
    errors = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        line = np.linspace(1, 100, 100)
        truth = np.column_stack([line + rng.normal(0, 0.1, 100), 2 * line + rng.normal(0, 1, 100)])
        gone = np.zeros((100, 2), bool)
        which = rng.permutation(100)
        gone[which[:30], 0] = gone[which[30:54], 1] = True
        filled = MaskedImputer(steps=0).fit_transform(np.where(gone, np.nan, truth))
        errors.append([np.sqrt(((filled - truth)[gone[:, j], j] ** 2).mean()) for j in range(2)])
    x, y = np.mean(errors, axis=0)
    assert x < 2.0
    assert y < 3.4


def test_the_scale_of_a_column_missing_by_another_is_that_of_all():
    """The share below the true quartiles; of the values that were seen it was .40, .68, .88."""
    found = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=1000)
        y = np.exp(0.8 * x + 0.6 * rng.normal(size=1000))
        gone = rng.random(1000) < 1 / (1 + np.exp(-1.5 * x))
        fit = fit_cells([x, np.where(gone, np.nan, y)], [0, 0], settings_of(steps=0, seed=seed))
        scale = fit.codings[1].scale
        found.append(np.interp(np.quantile(y, [0.25, 0.5, 0.75]), scale.knot_x, scale.knot_u))
    assert np.mean(found, axis=0) == pytest.approx([0.25, 0.5, 0.75], abs=0.03)


def test_complete_columns_keep_their_moments():
    rng = np.random.default_rng(0)
    columns = [rng.normal(size=100), rng.integers(0, 3, 100).astype(float)]
    fit = fit_cells(columns, [0, 3], settings_of(steps=0, seed=0))
    cells = to_cells(columns, fit_codings(columns, [0, 3], 24))
    assert np.array_equal(fit.moments, moments_of(cells))
    holed = [np.where(np.arange(100) < 30, np.nan, columns[0]), columns[1]]
    assert fit_cells(holed, [0, 3], settings_of(steps=0, seed=0)).codings[1].share == fit.codings[1].share


def test_an_intercept_of_complete_data_is_the_mean(rng):
    x = rng.normal(size=(300, 1)) @ rng.normal(size=(1, 5)) + rng.normal(size=(300, 5)) + np.arange(5)
    found = fit_factors(x, np.ones(x.shape, bool), factors=2, intercept=True)
    assert found.mean == pytest.approx(x.mean(0), abs=0.02)
    assert (found.loading**2).sum(1) + found.noise == pytest.approx(x.var(0), rel=0.1)


def test_bootstrap_weights_reach_scales_shares_and_moments():
    """A weight of two is the row twice."""
    rng = np.random.default_rng(3)
    columns = [rng.gamma(2, size=60), rng.integers(0, 3, 60).astype(float)]
    weight = np.random.default_rng(4).multinomial(60, np.full(60, 1 / 60)).astype(float)
    copied = [np.repeat(x, weight.astype(int)) for x in columns]
    a = fit_cells(columns, [0, 3], settings_of(steps=0, seed=0), weight=weight, calibrate=False)
    b = fit_cells(copied, [0, 3], settings_of(steps=0, seed=0), calibrate=False)
    assert a.codings[1].share == b.codings[1].share
    assert np.array_equal(a.codings[0].scale.edge, b.codings[0].scale.edge)
    assert a.moments == pytest.approx(b.moments, abs=1e-6)
