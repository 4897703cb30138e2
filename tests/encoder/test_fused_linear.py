"""Products of an encoder at rest: the same with oneDNN's kernels and without, in every number format any CPU is asked
for."""

import pytest
import torch
from torch.nn import functional as F

from unmask.encoder import fused_linear
from unmask.encoder.fused_linear import ACTIVATIONS, FusedLinear
from unmask.encoder.transformer import activation


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
