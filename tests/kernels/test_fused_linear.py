"""Products of an encoder at rest: the same with oneDNN's kernels and without, in every number format any CPU is asked
for."""

import pytest
import torch
from torch.nn import functional as F

from unmask.errors import UserError
from unmask.kernels import fused_linear
from unmask.kernels.fused_linear import ACTIVATIONS, EightBitLinear, FusedLinear, Levels, activation


@pytest.fixture(params=[True, False], ids=["kernels of this CPU", "none"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if not request.param:
        monkeypatch.setattr(fused_linear, "has_kernels", lambda dtype: False)
    return request.param


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["none", "gelu", "silu", "relu"])
def test_a_product_is_the_linear_layer(kernels: bool, dtype: torch.dtype, name: str, seed: int):
    assert name in ACTIVATIONS
    x, weight, bias = torch.randn(64, 32), torch.randn(48, 32) / 6, torch.randn(48)
    made = FusedLinear.of(weight, bias, dtype, name)
    assert made.packed == (kernels and fused_linear.has_kernels(dtype))
    expected = F.linear(x, weight, bias)
    close = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.05, "rtol": 0.02}
    found = made(x.to(dtype))
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected if name == "none" else activation(name)(expected), **close)
    if name == "none":
        residual = torch.randn(64, 48)
        torch.testing.assert_close(made.plus(x.to(dtype), residual.to(dtype)).float(), expected + residual, **close)


@pytest.mark.parametrize("rows", [1, 64])
def test_an_8_bit_product_loses_no_digit_of_its_sums(rows: int):
    """Processors without 8-bit dot products add two products in 16 bits, which 255 x 127 x 2 does not fit in."""
    levels = Levels(torch.ones(96), torch.zeros(96), scale=0.01)
    largest = EightBitLinear.of(torch.ones(32, 96), None, levels)
    reached = torch.full((rows, 32), 1.27 * 96)
    found = largest(torch.full((rows, 96), 255, dtype=torch.uint8))
    torch.testing.assert_close(found, reached, rtol=0.01, atol=0)
    found = largest(torch.zeros(rows, 96, dtype=torch.uint8))
    torch.testing.assert_close(found, -1.28 / 1.27 * reached, rtol=0.01, atol=0)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("inputs", [64, 97])
def test_no_activations_are_too_large_for_8_bit_weights(sign: int, inputs: int, seed: int):
    """For each output those that make the sums of its weights the largest."""
    weight = torch.randn(48, inputs)
    levels = Levels(torch.ones(inputs), torch.zeros(inputs), scale=0.01)
    given = (255 * (sign * weight > 0)).to(torch.uint8)
    expected = 0.01 * (given.double() - 128) @ weight.double().t()
    found = EightBitLinear.of(weight, None, levels)(given)
    assert (found - expected).abs().max() < 0.03 * expected.abs().max()


def test_int8_is_refused_where_it_would_lose_digits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fused_linear, "multiplies_exactly", lambda even, odd: False)
    with pytest.raises(UserError, match="lose digits on this CPU"):
        fused_linear.require_int8()


def test_an_8_bit_product_is_near_the_linear_layer(seed: int):
    x, weight, bias = torch.randn(64, 96), torch.randn(48, 96) / 10, torch.randn(48)
    levels = Levels.around(x.amin(0), x.amax(0), weight)
    factor, offset = levels.affine()
    found = EightBitLinear.of(weight, bias, levels)(torch.addcmul(offset, x, factor).clamp(0, 255).to(torch.uint8))
    wrong = found - F.linear(x, weight, bias)
    assert wrong.pow(2).mean().sqrt() < 0.015  # of values that are about 1
