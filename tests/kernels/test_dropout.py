"""Dropout: shares, scale, gradients, and the same draws from the same seed."""

from __future__ import annotations

import pytest
import torch

from unmask.kernels.dropout import drop


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_shares_and_scale(share: float, dtype: torch.dtype, seed: int):
    x = torch.ones(401, 499, dtype=dtype)
    out = drop(x, share, True)
    zeros = float((out == 0).float().mean())
    assert abs(zeros - share) < 5 * (share * (1 - share) / x.numel()) ** 0.5
    assert out[out != 0].unique().tolist() == pytest.approx([1 / (1 - share)], rel=4e-3)


def test_columns_and_neighbours_are_independent(seed: int):
    kept = (drop(torch.ones(20_000, 8), 0.3, True) != 0).double()
    correlation = torch.corrcoef(kept.T) - torch.eye(8)
    assert correlation.abs().max() < 5 / 20_000**0.5


def test_the_gradient_passes_where_the_value_did(seed: int):
    x = torch.randn(33, 7, requires_grad=True)
    out = drop(x, 0.4, True)
    out.sum().backward()
    torch.testing.assert_close(x.grad, torch.where(out == 0, 0.0, 1 / 0.6), atol=1e-3, rtol=1e-3)


def test_the_same_seed_drops_the_same():
    x = torch.randn(9, 11)
    torch.manual_seed(3)
    first = drop(x, 0.5, True)
    torch.manual_seed(3)
    assert torch.equal(first, drop(x, 0.5, True))
    assert not torch.equal(first, drop(x, 0.5, True))


def test_nothing_outside_training():
    x = torch.randn(5)
    assert drop(x, 0.5, False) is x
    assert drop(x, 0.0, True) is x
    assert drop(x, 1.0, True).abs().sum() == 0
