"""Digits that count: near-certain targets keep their loss and gradient in bf16, scores are made in fp32, ties earn
half."""

from __future__ import annotations

import pytest
import torch

from unmask.core.prediction import Categorical


def gradient(dtype: torch.dtype, margin: float) -> tuple[float, float, float]:
    """(loss, gradient of the target's bias, correct) of one slot whose target leads 99 others by `margin` nats."""
    bias = torch.zeros(100)
    bias[7] = margin
    bias.requires_grad_()
    features = torch.zeros(1, 8, dtype=dtype, requires_grad=True)
    prediction = Categorical(features, torch.zeros(100, 8), bias)
    loss = prediction.loss(torch.tensor([7]))
    loss.backward()
    assert bias.grad is not None
    return float(loss.detach()), float(bias.grad[7]), float(prediction.correct(torch.tensor([7])))


@pytest.mark.parametrize("margin", [2.0, 8.0, 11.0, 14.0])
def test_a_sure_target_keeps_its_loss_and_gradient_in_bf16(margin):
    """At 11 nats the target has 0.9983, which bf16 rounds to 1: loss and gradient were 0. What is left is the rounding
    of the logit: from 16 bits (11.1 nats) on, half a step of bf16 is 0.043 nats, and so 4.4 % of the loss."""
    exact, rounded = gradient(torch.float32, margin), gradient(torch.bfloat16, margin)
    assert rounded[0] == pytest.approx(exact[0], rel=0.02 if margin < 11 else 0.045)
    assert rounded[1] == pytest.approx(exact[1], rel=0.02 if margin < 11 else 0.045)
    assert exact[1] == pytest.approx(-99 / (99 + torch.tensor(margin).exp().item()), rel=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_target_that_shares_first_place_counts_half(dtype):
    assert gradient(dtype, 0.0)[2] == 0.5
    assert gradient(dtype, 1.0)[2] == 1.0
    with torch.no_grad():
        flat = Categorical(torch.zeros(2, 8, dtype=dtype), torch.zeros(5, 8))
        assert float(flat.correct(torch.tensor([0, 3]))) == 1.0


def test_logits_of_a_trained_model_are_fp32_under_autocast():
    """In bf16 logits of this size lie 0.06 apart: pseudo-likelihoods of near-equal sentences were noise at
    that level."""
    torch.manual_seed(0)
    features, weight = torch.randn(50, 64).bfloat16(), torch.randn(200, 64)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found = Categorical(features, weight).log_probs
    exact = (features.double() @ weight.double().t()).log_softmax(-1)
    assert (found - exact).abs().max() < 1e-3
