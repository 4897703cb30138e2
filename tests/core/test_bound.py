"""The bound on the likelihood: the mean over all orders in which slots can be filled."""

from __future__ import annotations

import dataclasses
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
    sets = [s for size in range(1, len(free) + 1) for s in itertools.combinations(free.tolist(), size)]
    rows = pack([example] * len(sets), slots=len(example), placement=[[row] for row in range(len(sets))])
    flat = torch.tensor([row * len(example) + slot for row, hidden in enumerate(sets) for slot in hidden])
    with torch.no_grad():
        log_prob = iter(setup.model(rows, hide(flat)).log_prob(true[flat % len(example)]).tolist())
    found = {hidden: dict(zip(hidden, itertools.islice(log_prob, len(hidden)), strict=True)) for hidden in sets}
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
    alike = [dataclasses.replace(e, identity=3 * copy + i) for copy in range(20) for i, e in enumerate(examples)]
    found = bound(setup.model, alike, slots=16, draws=30, seed=seed)
    nats = found.nats.reshape(600, 3)  # masks hang on the identity: 20 copies in 30 draws are 600 draws
    error = nats.std(0, ddof=1) / math.sqrt(600)
    assert (np.abs(nats.mean(0) - expected) < 4.5 * error + 1e-4).all()
    assert found.per_slot == pytest.approx(found.nats.mean(0).sum() / found.slots.sum())
    assert found.standard_error < 3 * found.nats.std(0, ddof=1).sum() / math.sqrt(30) / found.slots.sum()


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
