"""Fits on any number of cores: the very same model, settings of the caller put back, no threads that spin."""

import time

import numpy as np
import pytest
import torch
from tables import patients

from unmask.modalities.table.distribution.boosted_stumps import groups_of
from unmask.modalities.table.distribution.factor_analysis import PART, fit_factors
from unmask.modalities.table.fitting import margins, point_values
from unmask.modalities.table.fitting.cell_table import CellTable
from unmask.modalities.table.model import TableModel
from unmask.modalities.table.recipes import settings_of


@pytest.fixture
def threads():
    """Sets torch's threads for a test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def table_of(rows: int, columns: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(rows, 3)) @ rng.normal(size=(3, columns)) + rng.normal(size=(rows, columns))
    return [np.where(rng.random(rows) < 0.1, np.nan, x) for x in z.T]


def test_the_model_is_the_same_on_any_number_of_cores(threads):
    table, found = patients(150, missing=0.15), []
    for count in (1, 3):
        threads(count)
        model = TableModel.fit(table, steps=12)
        assert torch.get_num_threads() == count
        found.append((model.table.network.state_dict(), model.table.scores, model.embed(table)))
    (weights, scores, states), (others, other_scores, other_states) = found
    assert [k for k in weights if not torch.equal(weights[k], others[k])] == []
    assert all(np.array_equal(scores[c], other_scores[c]) for c in scores)
    assert np.array_equal(states, other_states)


def test_a_fit_with_more_threads_than_cores_costs_no_more(threads):
    """Threads that share a product wait for each other spinning; with sixteen of them the fit took 2.7
    times the work."""
    table, spent = table_of(300, 8), []
    CellTable.fit(table, [0] * 8, steps=2)
    for count in (1, 16):
        threads(count)
        start = time.process_time()
        CellTable.fit(table, [0] * 8, steps=20)
        spent.append(time.process_time() - start)
    assert spent[1] < 1.5 * spent[0] + 0.3


def test_the_linear_part_of_many_rows_is_that_of_one_product(seed):
    """Sums over parts of the rows, with weights, complete rows and alike patterns among them, against plain sums over
    rows."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(PART + 120, 2)) @ rng.normal(size=(2, 6)) + rng.normal(size=(PART + 120, 6))
    seen = rng.random(x.shape) < 0.8
    seen[: PART // 2] = True
    weight = rng.integers(0, 3, len(x)).astype(float)
    found = fit_factors(x, seen, factors=2, weight=weight, iterations=1)
    start = fit_factors(x, seen, factors=2, weight=weight, iterations=0)
    gram, cross, scatter, count, left = (
        np.zeros((6, 2, 2)),
        np.zeros((6, 2)),
        np.zeros((2, 2)),
        np.zeros(6),
        np.zeros(6),
    )
    for row, v, w in zip(x, seen, weight, strict=True):
        load = start.loading[v] / start.noise[v, None]
        spread = np.linalg.inv(np.eye(2) + load.T @ start.loading[v])
        mean = spread @ (load.T @ row[v])
        second = spread + np.outer(mean, mean)
        gram[v] += w * second
        cross[v] += w * row[v, None] * mean
        scatter += w * second
        count[v] += w
        left[v] += w * row[v] ** 2
    loading = np.linalg.solve(gram + 3 * np.eye(2), cross[:, :, None])[:, :, 0]
    left += -2 * (loading * cross).sum(1) + np.einsum("df,dfg,dg->d", loading, gram, loading)
    np.testing.assert_allclose(found.noise, (left + 0.06) / (count + 3), rtol=1e-9)
    loading = loading @ np.linalg.cholesky(scatter / weight.sum() + 1e-9 * np.eye(2))
    np.testing.assert_allclose(found.loading, loading, rtol=1e-8, atol=1e-10)


def test_dims_are_boosted_in_whole_columns():
    column = torch.tensor([0, 1, 2, 2, 2, 2, 2, 2, 2, 2, *range(3, 20)])
    groups = groups_of(column)
    assert torch.equal(torch.cat(groups).sort().values, torch.arange(len(column)))
    parts = [set(column[g].tolist()) for g in groups]
    assert sum(map(len, parts)) == len(set().union(*parts)) == 20
    assert len(groups) == 2


def test_a_large_table_is_imputed_block_by_block(monkeypatch):
    table = table_of(700, 4)
    table.append(np.where(np.isnan(table[0]), np.nan, (np.nan_to_num(table[1]) > 0).astype(float)))
    model = CellTable.fit(table, [0] * 4 + [2], steps=0)
    whole = model.impute(table, interval=0.9)
    monkeypatch.setattr(point_values, "BLOCK", 256)
    parts = model.impute(table, interval=0.9)
    for name in ("point", "low", "high"):
        for x, y in zip(getattr(whole, name), getattr(parts, name), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
    rows = np.flatnonzero(np.isnan(table[4]))
    np.testing.assert_allclose(whole.shares_of(4, rows), parts.shares_of(4, rows), atol=1e-5)


def test_of_many_rows_the_linear_part_takes_a_sample_of_those_it_is_given(monkeypatch):
    """Rows that are held out are not in it."""
    table = table_of(300, 4)
    model = CellTable.fit(table, [0] * 4, steps=0, calibrate=False)
    cells = model.cells(table)
    fit = margins.FactorFit(dims=model.network.dims, cells=cells, settings=settings_of(factors=2, seed=0))
    given = np.arange(150, 300)
    requested, original = [], type(cells).__getitem__
    monkeypatch.setattr(margins, "MOST_ROWS", 60)
    monkeypatch.setattr(type(cells), "__getitem__", lambda self, rows: requested.append(rows) or original(self, rows))
    fit.of(given)
    assert len(requested[0]) == 60
    assert set(requested[0]) <= set(given)
