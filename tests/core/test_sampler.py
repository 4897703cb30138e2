"""The sampler: every example once per epoch, the same at every resume, split without loss."""

from __future__ import annotations

from itertools import islice, takewhile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.core.sampler import PackedSampler, split_rows


def make(seed: int = 3, count: int = 300, pool: int = 4, rows: int = 5) -> PackedSampler:
    lengths = np.random.default_rng(seed).integers(1, 32, count)
    examples = np.flatnonzero(np.arange(count) % 10 != 0)  # every tenth is held out
    return PackedSampler(lengths=lengths, examples=examples, slots=32, rows=rows, seed=seed, pool=pool)


def epoch(sampler: PackedSampler, number: int) -> list:
    steps = takewhile(lambda s: s.epoch <= number, sampler.steps())
    return [s for s in steps if s.epoch == number]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 120), st.integers(1, 6), st.integers(1, 8))
def test_each_example_exactly_once_an_epoch(seed: int, count: int, pool: int, rows: int):
    sampler = make(seed, count + 1, pool, rows)
    for number in (0, 1):
        steps = epoch(sampler, number)
        assert sorted(i for s in steps for row in s.rows for i in row) == sampler.examples.tolist()
        assert all(len(s.rows) == rows for s in steps[:-1])
        assert all(sum(sampler.lengths[i] for i in row) <= sampler.slots for s in steps for row in s.rows)


@pytest.mark.parametrize("skip", [0, 1, 7, 50, 111])
def test_skipping_gives_the_same_tail(skip: int):
    whole = list(islice(make().steps(), skip + 20))
    assert list(islice(make().steps(skip=skip), 20)) == whole[skip:]


def test_epochs_and_seeds_differ_and_runs_repeat():
    first = epoch(make(), 0)
    assert epoch(make(), 0) == first
    assert [s.rows for s in epoch(make(), 1)] != [s.rows for s in first]
    assert [s.rows for s in epoch(PackedSampler(**{**vars(make()), "seed": 4}), 0)] != [s.rows for s in first]
    assert make().steps_per_epoch() == len(first)


def test_long_and_short_examples_are_spread_over_the_epoch():
    sampler = make(count=3000, pool=2)
    steps = epoch(sampler, 0)
    mean = [np.mean([sampler.lengths[i] for row in s.rows for i in row]) for s in steps]
    half = len(mean) // 2
    assert abs(np.mean(mean[:half]) - np.mean(mean[half:])) < 1.5


def test_little_is_wasted():
    sampler = make(count=3000, pool=16)
    steps = epoch(sampler, 0)[:-1]
    used = sum(sampler.lengths[i] for s in steps for row in s.rows for i in row)
    assert used / (len(steps) * sampler.rows * sampler.slots) > 0.95


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 40), st.integers(1, 8))
def test_splitting_partitions_a_step(count: int, parts: int):
    rows = [[i] for i in range(count)]
    shares = split_rows(rows, parts)
    assert len(shares) == parts
    assert sorted(i for share in shares for (i,) in share) == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_nothing_to_train_on_is_an_error_and_no_endless_loop():
    sampler = PackedSampler(lengths=np.array([3]), examples=np.array([], np.int64), slots=8, rows=1)
    with pytest.raises(ValueError, match="no examples"):
        next(sampler.steps())
