"""Longformer's encoder: what is trained is what is used."""

from __future__ import annotations

import pytest
import torch

from unmask.encoder.build import make_encoder
from unmask.encoder.config import MLP, EncoderConfig, Learned
from unmask.encoder.kinds import LocalGlobal


@pytest.mark.parametrize("first_sees_all", [False, True])
def test_every_weight_that_is_trained_gets_a_gradient(first_sees_all: bool, seed: int):
    """Several processes wait for the gradient of every weight: an unused one ended adapting a Longformer at its second
    step."""
    attention = LocalGlobal(window=2, first_sees_all=first_sees_all)
    config = EncoderConfig(
        width=8, layers=2, heads=2, feedforward=MLP(inner=16), positions=Learned(slots=8), attention=attention
    )
    encoder = make_encoder(config)
    segment = torch.ones(2, 8, dtype=torch.int64)
    states = encoder(torch.randn(2, 8, 8), segment=segment, position=torch.arange(8).expand(2, 8))
    states.square().sum().backward()
    assert {name for name, p in encoder.named_parameters() if p.requires_grad and p.grad is None} == set()
    used = {name for name, p in encoder.named_parameters() if "global" in name and p.requires_grad}
    assert bool(used) == first_sees_all
