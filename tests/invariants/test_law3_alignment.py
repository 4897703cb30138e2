"""Law 3. As many values, targets and positions as hidden slots, each in its place, for mask, random and keep alike."""

from __future__ import annotations

import pytest
import torch

from tiny import Setup, numbers, places, ratio_corruption, true_values
from unmask.core.batch import pack
from unmask.core.corruption import KEEP, MASK, RANDOM
from unmask.core.model import corrupt


@pytest.fixture
def drawn(setup: Setup):
    examples = setup.examples(12, 9, 17, 30, 22)
    batch = pack(examples, slots=40)
    hidden = ratio_corruption(0.5, mask=0.4, random=0.3, keep=0.3).draw(batch, seed=setup.seed)
    assert set(hidden.action.tolist()) == {MASK, RANDOM, KEEP}
    return examples, batch, hidden


def test_targets_are_the_raw_values_of_the_hidden_slots(setup: Setup, drawn):
    examples, batch, hidden = drawn
    targets = setup.model.codec.targets(batch.values, hidden.flat)
    by_identity = {e.identity: true_values(setup.modality, e) for e in examples}
    raw = torch.stack([torch.as_tensor(by_identity[i][p]) for i, p in places(batch, hidden)])
    torch.testing.assert_close(targets, raw, atol=0, rtol=0, equal_nan=True)


def test_counts_agree(setup: Setup, drawn):
    _, batch, hidden = drawn
    prediction = setup.model(batch, hidden)
    targets = setup.model.codec.targets(batch.values, hidden.flat)
    n = len(hidden)
    assert len(prediction) == len(targets) == len(hidden.action) == len(hidden.bits) == n
    assert len(set(hidden.flat.tolist())) == n
    assert hidden.flat.tolist() == sorted(hidden.flat.tolist())
    assert prediction.log_prob(targets).shape == (n,)
    assert prediction.log_prob(targets).isfinite().all()


def test_every_prediction_stands_at_its_own_slot(setup: Setup, drawn):
    """Asked for alone or among others, a slot gets the same prediction."""
    _, batch, hidden = drawn
    with torch.no_grad():
        together = numbers(setup.model(batch, hidden))
        for i in (0, 5, len(hidden) - 1):
            alone = numbers(setup.model(batch, hidden, wanted=hidden.flat[i : i + 1]))
            torch.testing.assert_close(alone[0], together[i], atol=1e-5, rtol=1e-5)
        some = torch.arange(len(hidden))[1::3]
        torch.testing.assert_close(
            numbers(setup.model(batch, hidden, wanted=hidden.flat[some])), together[some], atol=1e-5, rtol=1e-5
        )


def test_corruption_touches_hidden_slots_only(setup: Setup, drawn):
    _, batch, hidden = drawn
    after = corrupt(setup.model.codec, batch.values, hidden)
    changed = hidden.flat[hidden.action != KEEP]
    same = torch.ones(batch.segment.numel(), dtype=torch.bool)
    same[changed] = False
    for name, raw in batch.values.items():
        assert raw.shape == after[name].shape
        a, b = raw.flatten(0, 1)[same], after[name].flatten(0, 1)[same]
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_nothing_hidden_and_everything_hidden(setup: Setup):
    batch = pack(setup.examples(8, 11), slots=20)
    nothing = ratio_corruption(0.0).draw(batch, seed=1)
    assert len(nothing) == len(setup.model(batch, nothing)) == 0
    everything = ratio_corruption(1.0, mask=1.0, random=0.0, keep=0.0).draw(batch, seed=1)
    assert len(everything) == int(batch.maskable.sum())
    assert numbers(setup.model(batch, everything)).isfinite().all()
