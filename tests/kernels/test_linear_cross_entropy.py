"""The projection's loss and gradients in bf16 on a CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from unmask.kernels import linear_cross_entropy as module
from unmask.kernels.linear_cross_entropy import linear_cross_entropy


def case(seed: int, *, scale: float = 1.0, offset: float = 0.0, hidden: int = 90, values: int = 500, width: int = 48):
    """States that bf16 holds exactly, weights, biases, targets."""
    g = torch.Generator().manual_seed(seed)
    h = (torch.randn(hidden, width, generator=g) * scale).bfloat16()
    w = torch.randn(values, width, generator=g) / width**0.5
    b = torch.randn(values, generator=g) + offset
    return h, w.bfloat16().float(), b.bfloat16().float(), torch.randint(values, (hidden,), generator=g)


def both(h, w, b, y, factor: float = 1.0):
    """(loss, right, gradients) by the function in bf16, and by autograd in double precision."""
    out = []
    for exact in (False, True):
        leaves = [t.double() if exact else t.clone() for t in (h, w, b)]
        leaves = [t.requires_grad_() for t in leaves]
        if exact:
            logits = F.linear(*leaves)[: len(y)]
            loss, right = F.cross_entropy(logits, y, reduction="sum"), (logits.argmax(-1) == y).sum()
        else:
            loss, right = linear_cross_entropy(*leaves, y)
        out.append((loss.detach(), float(right), torch.autograd.grad(loss * factor, leaves)))
    return out


def near(found, exact, share: float) -> None:
    """Within a share of the largest value, bf16 having three digits."""
    for a, e in zip(found, exact, strict=True):
        assert a.isfinite().all()
        assert (a.double() - e).abs().max() <= share * e.abs().max()


@pytest.mark.parametrize("chunk", [1024, 64])
@pytest.mark.parametrize("block", [8192, 128])
def test_loss_and_gradients_in_bf16_are_those_of_double_precision(monkeypatch, seed, chunk, block):
    monkeypatch.setattr(module, "CHUNK", chunk)
    monkeypatch.setattr(module, "BLOCK", block)
    (loss, right, found), (exact_loss, exact_right, exact) = both(*case(seed), factor=0.25)
    assert float(loss) == pytest.approx(float(exact_loss), rel=2e-3)
    assert right == pytest.approx(exact_right, abs=2)
    near(found, exact, 0.02)


@pytest.mark.parametrize("offset", [300.0, -300.0])
def test_logits_beyond_the_range_of_the_exponential_are_shifted(seed, offset):
    """exp(300) is infinite and exp(-300) is 0 in every 32-bit format. Of bf16 logits near 300 one nat is left."""
    h, w, b, y = case(seed)
    b = b - b + offset
    (loss, _, found), (exact_loss, _, exact) = both(h, w, b, y)
    assert float(loss) == pytest.approx(float(exact_loss), rel=0.2)
    near(found[:2], exact[:2], 0.7)
    h, w, _, y = case(seed, scale=120.0)
    (loss, _, found), (exact_loss, _, exact) = both(h, w, torch.zeros(len(w)), y)
    assert float(exact_loss) / len(y) > 150
    assert float(loss) == pytest.approx(float(exact_loss), rel=0.01)
    near(found, exact, 0.3)


def test_rows_that_round_the_shape_change_nothing_in_bf16(seed):
    h, w, b, y = case(seed)
    (loss, right, found), _ = both(h, w, b, y)
    rounded = torch.cat([h, torch.full((38, h.shape[1]), 1e4).bfloat16()])
    (more_loss, more_right, more), _ = both(rounded, w, b, y)
    assert (float(more_loss), more_right) == (pytest.approx(float(loss), rel=1e-3), right)
    assert not more[0][len(h) :].any()
    near((more[0][: len(h)], *more[1:]), [t.double() for t in found], 0.01)


def test_a_value_no_other_competes_with_costs_nothing():
    """With all others at exp(-200) of it, loss and gradient are 0 and finite."""
    h, w = torch.zeros(3, 8).bfloat16().requires_grad_(), torch.zeros(5, 8)
    b = torch.tensor([0.0, -200, -200, -200, -200], requires_grad=True)
    loss, right = linear_cross_entropy(h, w, b, torch.zeros(3, dtype=torch.int64))
    (grad,) = torch.autograd.grad(loss, [b])
    assert (float(loss.detach()), float(right)) == (0.0, 3.0)
    assert not grad.any()


@pytest.mark.parametrize("chunk", [1024, 64])
def test_two_losses_in_bf16_before_one_backward(monkeypatch, seed, chunk):
    """Memory that is kept between steps belongs to one loss at a time, whatever is computed meanwhile."""
    monkeypatch.setattr(module, "CHUNK", chunk)
    h, w, b, y = case(seed)
    leaves = [t.requires_grad_() for t in (h, w, b)]
    parts = (slice(0, 40), slice(40, 90))
    first, second = (linear_cross_entropy(leaves[0][s], *leaves[1:], y[s])[0] for s in parts)
    other = case(seed + 1)
    linear_cross_entropy(other[0].requires_grad_(), *other[1:])
    found = torch.autograd.grad(first + 2 * second, leaves)
    weights = torch.cat([torch.ones(40), torch.full((50,), 2.0)]).double()
    exact = [t.detach().double().requires_grad_() for t in leaves]
    loss = (F.cross_entropy(F.linear(*exact), y, reduction="none") * weights).sum()
    near(found, torch.autograd.grad(loss, exact), 0.02)
    assert all(g.data_ptr() != other[0].data_ptr() for g in found)


@pytest.mark.parametrize("chunk", [1024, 32])
@pytest.mark.parametrize("biased", [True, False])
def test_values_that_only_round_the_shape_are_never_likely(monkeypatch, seed, chunk, biased):
    """As on GPUs: 500 values stand in 512."""
    h, w, b, y = case(seed)
    leaves = [h.float().requires_grad_(), w.requires_grad_(), *([b.requires_grad_()] if biased else [])]
    arguments = (*leaves, *(() if biased else (None,)), y)
    monkeypatch.setattr(module, "CHUNK", chunk)
    plain, plain_right = linear_cross_entropy(*arguments)
    expected = torch.autograd.grad(plain, leaves)
    monkeypatch.setattr(module, "ROUNDED_ON", ("cpu",))
    loss, right = linear_cross_entropy(*arguments)
    torch.testing.assert_close((loss, right), (plain, plain_right))
    torch.testing.assert_close(torch.autograd.grad(loss, leaves), expected)
