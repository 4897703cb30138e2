"""The bound on the likelihood: the mean over all orders in which slots can be filled."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from tiny import MODALITIES, Setup
from unmask.core.batch import Example, pack
from unmask.core.corruption import hide
from unmask.core.score import bound
from unmask.errors import UserError


def by_order(setup: Setup, example: Example) -> float:
    """Minus the log-probability of filling the example's slots one by one, averaged over all orders."""
    batch = pack([example], slots=len(example))
    free = batch.maskable.flatten().nonzero().flatten()
    true = setup.model.codec.targets(batch.values, torch.arange(len(example)))
    found: dict[tuple[int, ...], dict[int, float]] = {}
    with torch.no_grad():
        for size in range(1, len(free) + 1):
            for hidden in itertools.combinations(free.tolist(), size):
                flat = torch.tensor(hidden)
                log_prob = setup.model(batch, hide(flat)).log_prob(true[flat])
                found[hidden] = dict(zip(hidden, log_prob.tolist(), strict=True))
    totals = []
    for order in itertools.permutations(free.tolist()):
        totals.append(-sum(found[tuple(sorted(order[i:]))][slot] for i, slot in enumerate(order)))
    return float(np.mean(totals))


@pytest.mark.parametrize("name", ["text", "vector", "table", "events"])
@pytest.mark.parametrize("architecture", ["in_place", "visible_only"])
def test_the_bound_is_the_mean_over_all_orders(name: str, architecture: str, seed: int):
    setup = Setup(MODALITIES[name], architecture, "bert", seed)
    examples = [setup.modality.example(i, 6, seed) for i in range(3)]
    expected = np.array([by_order(setup, e) for e in examples])
    found = bound(setup.model, examples, slots=16, draws=600, seed=seed)
    error = found.nats.std(0, ddof=1) / math.sqrt(600)
    assert (np.abs(found.nats.mean(0) - expected) < 4.5 * error + 1e-4).all()
    assert found.per_slot == pytest.approx(found.nats.mean(0).sum() / found.slots.sum())
    assert found.standard_error < 3 * error.sum() / found.slots.sum()


def test_the_same_seed_gives_the_same_bound_wherever_examples_stand(seed: int):
    setup = Setup(MODALITIES["text"], "in_place", "bert", seed)
    examples = [setup.modality.example(i, 6 + i, seed) for i in range(5)]
    first = bound(setup.model, examples, slots=32, draws=3, seed=seed)
    again = bound(setup.model, examples[::-1], slots=16, draws=3, seed=seed, batch_slots=16)
    np.testing.assert_allclose(first.nats, again.nats[:, ::-1], rtol=1e-4)
    assert not np.allclose(first.nats, bound(setup.model, examples, slots=32, draws=3, seed=seed + 1).nats)
    assert math.isnan(bound(setup.model, examples, slots=32, draws=1).standard_error)
    with pytest.raises(UserError, match="draws=0"):
        bound(setup.model, examples, slots=32, draws=0)
