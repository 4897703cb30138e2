"""Vectors from masked learning: what each loss may read, and that the six-step loop trains it."""

import numpy as np
import pytest
import torch

from tiny import WIDTH, Setup, Text
from unmask.core.batch import pack
from unmask.core.corruption import ALL_MASK, Corruption, hide
from unmask.core.pooled import AllButCrop, PooledReconstruction, between
from unmask.core.pretrain import StepContext, pretrain
from unmask.encoder.config import MLP, EncoderConfig, SinCos
from unmask.errors import UserError


def make(seed, **weights):
    masked = Setup(Text(), "in_place", "bert", seed).model
    torch.manual_seed(seed)
    decoder = EncoderConfig(width=WIDTH, layers=1, heads=2, positions=SinCos(), feedforward=MLP(inner=64))
    return PooledReconstruction(masked, decoder, **weights)


@pytest.fixture
def batch():
    return pack([Text().example(i, 12) for i in range(8)], slots=24)


def drawn(batch):
    return Corruption(select=AllButCrop(), replace=ALL_MASK).draw(batch, seed=0)


def test_no_hidden_value_reaches_the_part_or_the_reconstruction(seed, batch):
    model, hidden = make(seed).eval(), drawn(batch)
    other = {k: v.clone() for k, v in batch.values.items()}
    other["token"].view(-1)[hidden.flat] = other["token"].view(-1)[hidden.flat].roll(1)
    changed = pack([Text().example(i, 12) for i in range(8)], slots=24)
    changed.values.update(other)
    assert (batch.values["token"] != changed.values["token"]).any()
    assert torch.equal(model.part(batch, hidden, 8), model.part(changed, hidden, 8))
    targets = model.codec.targets(batch.values, hidden.flat)
    there, elsewhere = (model(b, hidden).log_prob(targets) for b in (batch, changed))
    assert torch.equal(there, elsewhere)
    assert not torch.equal(model.whole(batch, 8), model.whole(changed, 8))


def test_a_part_is_pooled_as_the_example_alone_would_be(seed, batch):
    model = make(seed).eval()
    nothing = hide(torch.zeros(0, dtype=torch.long))
    torch.testing.assert_close(model.part(batch, nothing, 8), model.whole(batch, 8), atol=1e-5, rtol=0)


def test_the_rest_is_what_the_part_is_not(seed, batch):
    model, hidden = make(seed, against="rest").eval(), drawn(batch)
    others = batch.maskable.flatten().clone()
    others[hidden.flat] = False
    complement = hide(others.nonzero().flatten())
    torch.testing.assert_close(model.rest(batch, hidden, 8), model.part(batch, complement, 8))
    torch.testing.assert_close(
        model(batch, hidden).contrast,
        between(model.part(batch, hidden, 8), model.rest(batch, hidden, 8), model.temperature),
    )


def test_the_reconstruction_reads_the_vector(seed, batch):
    model, hidden = make(seed).eval(), drawn(batch)
    targets = model.codec.targets(batch.values, hidden.flat)
    before = model(batch, hidden).log_prob(targets)
    with torch.no_grad():
        model.vector_in.bias += 1.0
    assert not torch.equal(before, model(batch, hidden).log_prob(targets))


def test_the_contrast_of_equal_pairs_is_less_than_of_shuffled_ones_and_of_one_text_nothing():
    vectors = torch.eye(6)
    assert between(vectors, vectors, 0.05) < 1e-6 < between(vectors, vectors.roll(1, 0), 0.05)
    assert between(vectors[:1], vectors[1:2], 0.05) == 0


@pytest.mark.parametrize("weights", [{"reconstruct": 0.0}, {"contrast": 0.0}, {}, {"against": "rest"}])
def test_the_six_step_loop_trains_it(seed, batch, weights):
    model = make(seed, **weights)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def update(progress):
        optimiser.step()
        optimiser.zero_grad()
        return 0.0, True

    corruption = Corruption(select=AllButCrop(), replace=ALL_MASK, static=True)
    steps = ((0, [batch]) for _ in range(30))
    losses = [r.loss for r in pretrain(model, steps, corruption, StepContext(update=update), progress=lambda n: 0.0)]
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])


def test_one_run_of_each_example_is_seen_and_something_always_hidden(seed):
    batch = pack([Text().example(i, n) for i, n in enumerate((2, 5, 9, 30))], slots=32)
    select = AllButCrop(seen=(0.2, 0.4), at_least=2)
    starts = set()
    for epoch in range(20):
        hidden = Corruption(select=select, replace=ALL_MASK).draw(batch, seed=seed, epoch=epoch)
        gone = torch.zeros(batch.segment.numel(), dtype=torch.bool)
        gone[hidden.flat] = True
        for i in range(4):
            there = (batch.maskable.flatten() & (batch.index.flatten() == i)).nonzero().flatten()
            seen = there[~gone[there]]
            assert len(seen) < max(len(there), 1)
            if len(seen):
                assert int(seen[-1] - seen[0]) == len(seen) - 1
            if i == 3:
                assert 0.2 * len(there) - 1 <= len(seen) <= 0.4 * len(there) + 1
                starts.add(int(seen[0]))
    assert len(starts) > 5


@pytest.mark.parametrize("seen", [(0.0, 0.5), (0.5, 0.1), (0.5, 1.0)])
def test_shares_that_show_nothing_or_everything_are_refused(seen):
    with pytest.raises(UserError, match="seen="):
        AllButCrop(seen=seen)
