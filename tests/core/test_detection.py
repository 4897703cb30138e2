"""Replaced-slot detection: what counts as replaced, where gradients go, and that the loop trains it."""

import numpy as np
import pytest
import torch

from tiny import WIDTH, Setup, Text
from unmask.core.batch import pack
from unmask.core.corruption import ALL_MASK, Corruption, Uniform, hide
from unmask.core.detection import ReplacedSlotDetection
from unmask.core.pretrain import StepContext, pretrain
from unmask.encoder.config import MLP, EncoderConfig
from unmask.encoder.transformer import Encoder


def make(seed):
    generator = Setup(Text(), "in_place", "bert", seed).model
    torch.manual_seed(seed)
    encoder = Encoder(EncoderConfig(width=WIDTH, layers=2, heads=2, feedforward=MLP(inner=64)))
    return ReplacedSlotDetection(generator, encoder)


@pytest.fixture
def batch():
    return pack([Text().example(i, 12) for i in range(8)], slots=24)


def test_only_wrong_fills_count_as_replaced(seed, batch):
    model = make(seed).eval()
    flat = batch.maskable.flatten().nonzero().flatten()[::3]
    found = model(batch, hide(flat))
    real = (batch.segment.flatten() > 0).nonzero().flatten()
    assert len(found.logits) == len(real)
    outside = ~torch.isin(real, flat)
    assert not found.replaced[outside].any()
    assert 0 < int(found.replaced.sum()) <= len(flat)


def test_the_detection_loss_does_not_reach_the_generators_layers(seed, batch):
    model = make(seed)
    found = model(batch, hide(batch.maskable.flatten().nonzero().flatten()[::3]))
    found.detection_loss().backward()
    assert all(p.grad is None for p in model.generator.encoder.parameters())
    # The embeddings are shared: they learn from both losses.
    assert model.codec.word.weight.grad.abs().sum() > 0


def test_the_six_step_loop_trains_it(seed, batch):
    model = make(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def update(progress):
        optimiser.step()
        optimiser.zero_grad()
        return 0.0, True

    corruption = Corruption(select=Uniform(ratio=0.3), replace=ALL_MASK, static=True)
    steps = ((0, [batch]) for _ in range(40))
    losses = [r.loss for r in pretrain(model, steps, corruption, StepContext(update=update), progress=lambda n: 0.0)]
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])


def test_a_visible_only_generator_is_refused(seed):
    generator = Setup(Text(), "visible_only", "bert", seed).model
    with pytest.raises(ValueError, match="in-place"):
        ReplacedSlotDetection(generator, generator.encoder)
