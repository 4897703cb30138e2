"""Law 2. Positions arrive: hidden slots that differ in position only get different predictions."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from tiny import Setup, numbers
from unmask.core.batch import pack
from unmask.core.corruption import hide


def test_two_hidden_slots_that_differ_in_position_only_differ(setup: Setup):
    batch = pack([setup.modality.repeated(16)], slots=16)
    # One is the other's mirror image: a local window's edges tell them apart no more than their surroundings do.
    hidden = hide(torch.tensor([5, 10]))
    with torch.no_grad():
        first, second = numbers(setup.model(batch, hidden))
        assert (first - second).abs().max() > 1e-3


def test_nothing_but_the_position_made_the_difference(setup: Setup):
    batch = pack([setup.modality.repeated(16)], slots=16)
    batch = dataclasses.replace(batch, position=torch.zeros_like(batch.position))
    with torch.no_grad():
        first, second = numbers(setup.model(batch, hide(torch.tensor([5, 10]))))
    torch.testing.assert_close(first, second, atol=1e-5, rtol=1e-5)


def test_the_decoder_knows_where_visible_values_stood(setup: Setup):
    """Swapping two visible values changes the prediction of a third slot."""
    e = setup.modality.example(3, 12, setup.seed)
    first = next(iter(e.values.values()))
    slot = 1 if e.special is not None else 0
    other = next(i for i in range(6, 11) if (e.observed is None or e.observed[i]) and (first[i] != first[slot]).any())
    order = np.arange(12)
    order[[slot, other]] = other, slot
    swapped = dataclasses.replace(e, values={k: v[order] for k, v in e.values.items()})
    hidden = hide(torch.tensor([5]))
    with torch.no_grad():
        a, b = (numbers(setup.model(pack([x], slots=12), hidden)) for x in (e, swapped))
    assert (a - b).abs().max() > 1e-4
