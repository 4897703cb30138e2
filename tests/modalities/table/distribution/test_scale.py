"""Bins hold equal shares, atoms come back exactly, scores are monotone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.modalities.table.distribution.factor_analysis import FactorAnalysis, fit_factors
from unmask.modalities.table.distribution.scale import BinScale, fit_scale

VALUES = st.lists(
    st.one_of(st.integers(-5, 5).map(float), st.floats(-1e6, 1e6, allow_nan=False).map(lambda v: round(v, 3))),
    min_size=1,
    max_size=80,
)


@given(VALUES)
@settings(max_examples=60, deadline=None)
def test_any_values(values: list[float]):
    x = np.array(values)
    scale = fit_scale(x)
    number, z = scale.encode(x)
    assert ((number >= 0) & (number < scale.bins)).all()
    assert np.isfinite(z).all()
    back = scale.decode(number, z)
    assert ((back >= x.min() - 1e-6) & (back <= x.max() + 1e-6)).all()
    atoms = scale.atom[number]
    assert np.array_equal(back[atoms], x[atoms])
    order = np.argsort(x, kind="stable")
    assert (np.diff(z[order]) >= -1e-9).all()
    assert scale.edge[0] == 0
    assert scale.edge[-1] == pytest.approx(1)
    again = BinScale.from_dict(scale.to_dict())
    assert np.array_equal(again.encode(x)[1], z)


def test_a_detection_limit_is_an_atom(rng):
    x = np.where(rng.random(500) < 0.3, 0.05, rng.lognormal(size=500))
    scale = fit_scale(x)
    assert scale.value[scale.atom].tolist() == [0.05]
    number, z = scale.encode(x)
    np.testing.assert_allclose(scale.decode(number, z), x, rtol=0.05)
    assert np.abs(np.diff(scale.edge)[~scale.atom] - 0.7 / (~scale.atom).sum()).max() < 0.02


def test_the_linear_part_is_the_normals_conditional(rng):
    """On normal data with gaps: conditional means as the true covariance gives them."""
    loading = rng.normal(size=(5, 2))
    covariance = loading @ loading.T + 0.5 * np.eye(5)
    scale = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(scale, scale)
    x = rng.multivariate_normal(np.zeros(5), correlation, size=3000)
    seen = rng.random(x.shape) > 0.2
    base = FactorAnalysis(fit_factors(x, seen, factors=2, shrink=1.0))
    import torch

    mean, variance = base(torch.tensor(x[:50], dtype=torch.float32), torch.tensor([[1.0, 1, 1, 0, 0]] * 50))
    regression = correlation[3:, :3] @ np.linalg.inv(correlation[:3, :3])
    np.testing.assert_allclose(mean[:, 3:].numpy(), x[:50, :3] @ regression.T, atol=0.12)
    left = np.diag(correlation[3:, 3:] - regression @ correlation[:3, 3:])
    np.testing.assert_allclose(variance[0, 3:].numpy(), left, atol=0.08)
