"""Placement and packing: nothing lost, nothing over, little waste."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny import MODALITIES
from unmask.core.batch import Example, pack, place_best_fit

SLOTS = 32
LENGTHS = st.lists(st.integers(1, SLOTS), max_size=80)


@settings(max_examples=150, deadline=None)
@given(LENGTHS)
def test_every_example_once_no_row_over_and_few_rows(lengths: list[int]):
    rows = place_best_fit(lengths, SLOTS)
    assert sorted(i for row in rows for i in row) == list(range(len(lengths)))
    assert all(row and sum(lengths[i] for i in row) <= SLOTS for row in rows)
    assert (
        len(rows) <= math.ceil(sum(lengths) / SLOTS) * 1.3 + 1 or len(rows) <= sum(n > SLOTS // 2 for n in lengths) + 1
    )


def test_best_fit_takes_the_fullest_row_with_room():
    assert place_best_fit([6, 5, 2, 3], 8) == [[0, 2], [1, 3]]
    assert place_best_fit([], 8) == []


def test_an_example_longer_than_a_row_is_named():
    with pytest.raises(ValueError, match="example 1 has 9 slots, a row holds 8"):
        place_best_fit([3, 9], 8)
    with pytest.raises(ValueError, match="2 rows are needed, 1 were given"):
        pack([MODALITIES["text"].example(i, 6) for i in range(2)], slots=8, rows=1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(3, SLOTS), min_size=1, max_size=20), st.integers(0, 3), st.sampled_from(["text", "vector"]))
def test_what_is_packed_can_be_unpacked(lengths: list[int], spare: int, name: str):
    examples = [MODALITIES[name].example(50 + i, n) for i, n in enumerate(lengths)]
    rows = len(place_best_fit(lengths, SLOTS)) + spare
    batch = pack(examples, slots=SLOTS, rows=rows)
    assert batch.shape == (rows, SLOTS)
    for number, e in enumerate(examples):
        here = batch.index == number
        assert int(here.sum()) == len(e)
        for channel, raw in e.values.items():
            np.testing.assert_array_equal(batch.values[channel][here].numpy(), raw)
        assert batch.position[here].tolist() == list(range(len(e)))
        assert (batch.identity[here] == e.identity).all()
        assert len(batch.segment[here].unique()) == 1
        np.testing.assert_array_equal(batch.unit[here].numpy(), e.unit)
        if e.observed is not None:
            np.testing.assert_array_equal(batch.observed[here].numpy(), e.observed)
        if e.special is not None:
            np.testing.assert_array_equal(batch.special[here].numpy(), e.special)
    padding = batch.segment == 0
    assert int((~padding).sum()) == batch.real_slots == sum(lengths)
    assert batch.padding_waste == pytest.approx(1 - sum(lengths) / (rows * SLOTS))
    assert not batch.observed[padding].any()
    assert (batch.identity[padding] == -1).all()
    assert (batch.index[padding] == -1).all()


def test_segments_count_from_one_in_each_row():
    batch = pack([MODALITIES["text"].example(i, 5) for i in range(4)], slots=12, placement=[[0, 1], [2, 3]])
    assert batch.segment.tolist() == [[1] * 5 + [2] * 5 + [0] * 2] * 2


def test_positions_and_dtypes_of_ones_own():
    e = Example(
        values={"x": np.zeros((3, 2), np.float32), "n": np.arange(3, dtype=np.uint16)},
        identity=4,
        position=np.array([7, 2, 5]),
    )
    batch = pack([e], slots=4)
    assert batch.position.tolist() == [[7, 2, 5, 0]]
    assert batch.values["x"].dtype == torch.float32
    assert batch.values["x"].shape == (1, 4, 2)
    assert batch.values["n"].dtype == torch.int64


def test_a_batch_moves_whole():
    batch = pack([MODALITIES["vector"].example(0, 6)], slots=8).to("meta")
    assert batch.values["vector"].device == batch.segment.device == batch.index.device == torch.device("meta")
