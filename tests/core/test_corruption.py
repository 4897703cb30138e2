"""Hashing, user choices, and errors of corruption; its laws are in tests/invariants."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tiny import MODALITIES
from unmask.core.batch import pack
from unmask.core.corruption import Corruption, Replacement, Uniform, hide, maskable_slots
from unmask.errors import UserError


def test_slots_are_numbered_within_their_example():
    examples = [MODALITIES["text"].example(i, 6) for i in (11, 12, 13)]
    slots = maskable_slots(pack(examples, slots=14, placement=[[0, 1], [2]]))
    assert slots.examples == 3
    assert slots.slot.tolist() == [1, 2, 3, 4] * 3
    assert slots.identity.tolist() == [11] * 4 + [12] * 4 + [13] * 4
    assert slots.flat.tolist() == [1, 2, 3, 4, 7, 8, 9, 10, 15, 16, 17, 18]


def test_slots_without_a_unit_are_units_of_their_own():
    e = MODALITIES["vector"].repeated(5)
    e = type(e)(values=e.values, identity=1, unit=np.array([-1, 0, 0, -1, 1]))
    unit = maskable_slots(pack([e], slots=5)).unit
    assert unit[1] == unit[2]
    assert len(set(unit.tolist())) == 4


def test_hide_sorts_and_masks():
    hidden = hide(torch.tensor([5, 1]))
    assert hidden.flat.tolist() == [1, 5]
    assert hidden.grid((2, 3)).tolist() == [[False, True, False], [False, False, True]]


def test_what_is_causal_at_first_hides_as_any_other_after_that():
    batch = pack([MODALITIES["text"].example(i, 12) for i in range(4)], slots=24)
    plain, first = Corruption(), Corruption(causal=0.25)
    kept = first.draw(batch, seed=3, epoch=2, progress=0.2)
    assert kept.causal
    assert kept.flat.tolist() == [i for i in range(48) if i % 12 not in (0, 11)]
    assert not len(kept.masked)
    assert not len(kept.random[0])
    now, then = (c.draw(batch, seed=3, epoch=2, progress=0.25) for c in (first, plain))
    assert not now.causal
    assert all(torch.equal(getattr(now, n), getattr(then, n)) for n in ("flat", "action", "bits"))


def test_bad_shares_and_ratios_say_what_is_expected():
    with pytest.raises(UserError, match="add up to 1"):
        Replacement(mask=0.8, random=0.3, keep=0.1)
    with pytest.raises(UserError, match="not within 0 to 1"):
        Corruption(select=Uniform(ratio=1.5)).draw(pack([MODALITIES["text"].example(1, 8)], slots=8), seed=0)
