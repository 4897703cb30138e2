"""Every attention kernel agrees with the textbook, forward and backward, with segments, windows and few queries."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tiny import MODALITIES
from unmask.core.batch import pack
from unmask.encoder import attention
from unmask.encoder.attention import AttentionLayout, _Explicit, attend, reference

ROWS, HEADS, SLOTS, DEPTH = 3, 2, 24, 8


@pytest.fixture(params=[[5, 19, 24, 8, 9], [24, 24, 24]], ids=["packed", "one per row"])
def layout(request, seed: int) -> AttentionLayout:
    examples = [MODALITIES["text"].example(i, n) for i, n in enumerate(request.param)]
    batch = pack(examples, slots=SLOTS, rows=ROWS)
    return AttentionLayout(segment=batch.segment, position=batch.position)


def projections(queries: int = SLOTS) -> list[torch.Tensor]:
    return [torch.randn(ROWS, HEADS, n, DEPTH, requires_grad=True) for n in (queries, SLOTS, SLOTS)]


def chosen(queries: int | None) -> torch.Tensor | None:
    return (
        None if queries is None else torch.stack([torch.randperm(SLOTS)[:queries].sort().values for _ in range(ROWS)])
    )


def compare(found: torch.Tensor, expected: torch.Tensor, leaves: list[torch.Tensor]) -> None:
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    grad = torch.randn_like(expected)
    for a, e in zip(*(torch.autograd.grad(x, leaves, grad, retain_graph=True) for x in (found, expected)), strict=True):
        torch.testing.assert_close(a, e, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 0, 3])
@pytest.mark.parametrize("queries", [None, 4, 16])
def test_attend_equals_the_reference(layout: AttentionLayout, window: int | None, queries: int | None):
    q, k, v = leaves = projections(queries or SLOTS)
    which = chosen(queries)
    expected = reference(q, k, v, layout.allowed(window, which), DEPTH**-0.5)
    compare(attend(q, k, v, layout, window=window, queries=which), expected, leaves)
    with torch.no_grad():
        torch.testing.assert_close(
            attend(q, k, v, layout, window=window, queries=which), expected, atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize("window", [None, 3])
def test_explicit_and_fused_kernels_equal_the_reference(layout: AttentionLayout, window: int | None):
    q, k, v = leaves = projections()
    allowed, scale = layout.allowed(window), DEPTH**-0.5
    expected = reference(q, k, v, allowed, scale)
    compare(_Explicit.apply(q, k, v, layout.bias(window, None, q.dtype), scale, 0.0), expected, leaves)
    compare(F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=scale), expected, leaves)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_explicit_gradient_is_the_numerical_one(dropout: float, seed: int):
    leaves = [torch.randn(1, 2, 5, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    bias = torch.zeros(1, 1, 5, 5, dtype=torch.float64).masked_fill(torch.rand(1, 1, 5, 5) < 0.3, -1e9)

    def attention(q, k, v):
        torch.manual_seed(seed)  # the same values are dropped at every call
        return _Explicit.apply(q, k, v, bias, 0.6, dropout)

    assert torch.autograd.gradcheck(attention, leaves)


def test_attention_dropout_keeps_the_mean(layout: AttentionLayout):
    q, k, v = projections()
    expected = attend(q, k, v, layout)
    drawn = torch.stack([attend(q, k, v, layout, dropout=0.25).detach() for _ in range(600)])
    assert not torch.equal(drawn[0], drawn[1])
    error = (drawn.mean(0) - expected.detach()) / (drawn.std(0) / 600**0.5).clamp_min(1e-4)
    assert error.abs().mean() < 1.2  # standard errors: 0.8 for a right mean


def test_few_queries_and_bf16_take_the_explicit_kernel(layout: AttentionLayout, monkeypatch):
    calls = []
    monkeypatch.setattr(attention._Explicit, "apply", lambda *a: calls.append(1) or a[0])
    q, k, v = projections(4)
    attend(q, k, v, layout, queries=chosen(4))
    assert len(calls) == 1
    q, k, v = (t.bfloat16() for t in projections())
    attend(q, k, v, layout)
    assert len(calls) == 2
    attend(*projections(), layout)
    assert len(calls) == 2


def test_bf16_is_close(layout: AttentionLayout):
    q, k, v = projections()
    expected = reference(q, k, v, layout.allowed(3), DEPTH**-0.5)
    found = attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), layout, window=3)
    torch.testing.assert_close(found.float(), expected, atol=0.05, rtol=0.05)


def test_who_sees_whom():
    segment = torch.tensor([[1, 1, 1, 2, 2, 0]])
    layout = AttentionLayout(segment=segment, position=torch.tensor([[0, 1, 2, 0, 1, 0]]))
    full = layout.allowed(None)[0, 0]
    assert full.tolist() == (segment[0][:, None] == segment[0][None]).tolist()
    near = layout.allowed(1)[0, 0]
    assert near[0].tolist() == [True, True, False, False, False, False]
    assert near.any(-1).all()  # no softmax over nothing, padding included
    assert torch.equal(layout.allowed(1, torch.tensor([[2, 4]]))[0, 0], near[[2, 4]])
    assert not layout.everything_seen()
    assert layout.allowed(None) is layout.allowed(None)  # worked out once


def test_masks_of_queries_that_are_gone_are_not_taken_for_those_of_others(seed: int):
    """They were kept by the address of the queries, which the next tensor may have."""
    segment = torch.arange(SLOTS).div(4, rounding_mode="floor").expand(ROWS, -1) + 1
    kept = AttentionLayout(segment=segment, position=torch.arange(SLOTS).expand(ROWS, -1))
    for _ in range(20):
        queries = torch.randint(0, SLOTS, (ROWS, 5))
        fresh = AttentionLayout(segment=kept.segment, position=kept.position)
        for window in (None, 2):
            assert torch.equal(kept.allowed(window, queries), fresh.allowed(window, queries))
            assert torch.equal(kept.bias(window, queries, torch.float32), fresh.bias(window, queries, torch.float32))
        del queries
