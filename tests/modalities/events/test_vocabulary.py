"""Scales of codes: exact for few values, sketched for many, at a cost that does not grow with the number of codes."""

from __future__ import annotations

import time
from statistics import NormalDist

import numpy as np
import pytest

from unmask.modalities.events.records.meds import Events
from unmask.modalities.events.records.vocabulary import FIRST, LEVELS, QuantileSketch, Vocabulary, keys_of, values_of

SHARES = np.linspace(0, 1, 33)


def made(code: np.ndarray, value: np.ndarray, codes: int) -> Events:
    """One patient with these events, a second apart."""
    return Events(
        subjects=np.array([1]),
        offsets=np.array([0, len(code)]),
        time=np.arange(len(code)) * 1_000_000,
        code=code,
        value=value.astype(np.float32),
        codes=[f"c{i:05d}" for i in range(codes)],
    )


@pytest.mark.parametrize("seed", range(3))
def test_few_values_have_exact_quantiles(seed: int):
    rng = np.random.default_rng(seed)
    code = rng.integers(0, 40, 5000)
    value = np.where(code % 3 == 0, rng.integers(-4, 4, 5000), rng.normal(0, 10.0**seed, 5000)).astype(np.float32)
    value[rng.random(5000) < 0.1] = np.nan
    value[code == 7] = np.nan
    sketch = QuantileSketch(41)
    for part in np.array_split(np.arange(5000), 7):
        sketch.add(code[part], value[part])
    found = sketch.quantiles(SHARES)
    for c in range(41):
        mine = value[(code == c) & np.isfinite(value)].astype(np.float64)
        want = np.quantile(mine, SHARES) if len(mine) else np.full(33, np.nan)
        np.testing.assert_array_equal(found[c], want)


@pytest.mark.parametrize("seed", range(3))
def test_many_values_have_nearly_their_quantiles(seed: int):
    rng = np.random.default_rng(seed)
    value = np.sort(rng.gamma(0.5, 100, 200_000)).astype(np.float32)
    if seed:
        rng.shuffle(value)
    sketch = QuantileSketch(2, capacity=1024)
    for part in np.array_split(value, 23):
        sketch.add(np.ones(len(part), np.int64), part)
    assert sum(len(level) for level in sketch.levels) < 10_000
    assert sum(len(level) * 2**h for h, level in enumerate(sketch.levels)) == len(value)
    rank = np.searchsorted(np.sort(value), sketch.quantiles(SHARES)[1]) / len(value)
    assert np.abs(rank - SHARES).max() < 0.006  # four standard deviations; 8 / 1024 can never be passed
    assert sketch.quantiles(SHARES)[1, [0, -1]].tolist() == [value.min(), value.max()]


def test_keys_sort_as_values_do():
    value = np.array([-np.float32(3.4e38), -2.5, -1e-40, 0, 1e-40, 2.5, 3.4e38], np.float32)
    keys = keys_of(np.full(len(value), 5), value)
    assert (np.diff(keys.astype(object)) > 0).all()
    np.testing.assert_array_equal(values_of(keys), value.astype(np.float64))


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_those_of_numpy_code_by_code(seed: int):
    rng = np.random.default_rng(seed)
    code = rng.integers(0, 30, 3000)
    value = np.where(code % 4 == 0, rng.integers(0, 3, 3000), rng.normal(size=3000)).astype(np.float32)
    value[code == 5] = 1.5  # one value alone
    value[(code == 6) | (rng.random(3000) < 0.05)] = np.nan
    events = made(code, value, 30)
    vocabulary = Vocabulary.fit(events, floor=1)
    number = vocabulary.numbers(events.codes)[code]
    asked = np.concatenate([value, value + rng.normal(0, 2, 3000).astype(np.float32)])
    number = np.r_[number, number]
    found = vocabulary.scale(number, asked)
    for c in range(FIRST, len(vocabulary)):
        here, knots = number == c, vocabulary.knots[c]
        if np.isnan(knots[0]):
            assert np.isnan(found[here]).all()
            continue
        low, first = np.unique(knots, return_index=True)
        last = np.r_[first[1:], len(LEVELS)] - 1
        level = (LEVELS[first] + LEVELS[last]) / 2
        middle = np.array([NormalDist().inv_cdf(x) for x in level])
        want = np.where(np.isnan(asked[here]), np.nan, np.interp(asked[here], low, middle))
        np.testing.assert_array_equal(found[here], want.astype(np.float32))


def test_twenty_thousand_codes_cost_little_more_than_three_hundred():
    rng = np.random.default_rng(0)
    value, spent = rng.normal(size=400_000).astype(np.float32), {}
    for codes in (300, 20_000):
        events = made(rng.integers(0, codes, len(value)), value, codes)
        best = np.inf
        for _ in range(8):
            start = time.process_time()
            vocabulary = Vocabulary.fit(events, floor=1)
            vocabulary.scale(vocabulary.numbers(events.codes)[events.code], value)
            best = min(best, time.process_time() - start)
        spent[codes] = best
    # The old way took 100 times as long; dictionaries of 20,000 names are what is left here.
    assert spent[20_000] < 3 * spent[300] + 0.3, spent


@pytest.mark.parametrize("seed", range(3))
def test_typing_mistakes_do_not_move_the_scale(seed: int):
    """Two heart rates of 10 000 000 among 8 000: the median stays, and so does the upper end of what is expected."""
    rng = np.random.default_rng(seed)
    value = np.round(rng.normal(85, 18, 8000))
    wrong = value.copy()
    wrong[rng.integers(0, 8000, 2)] = 10_000_000
    ends = []
    for some in (value, wrong):
        vocabulary = Vocabulary.fit(made(np.zeros(8000, np.int64), some, 1), floor=1)
        ends.append(vocabulary.unscale(FIRST, np.array([0.0, 1.6, 2.5, 5.0])))
    np.testing.assert_allclose(ends[1], ends[0], atol=4)


def test_values_in_the_tail_differ_on_the_scale():
    rng = np.random.default_rng(0)
    value = np.round(rng.normal(87, 18, 100_000))
    vocabulary = Vocabulary.fit(made(np.zeros(100_000, np.int64), value, 1), floor=1)
    scores = vocabulary.scale(np.full(3, FIRST), np.array([110.0, 125.0, 140.0]))
    np.testing.assert_allclose(scores, (np.array([110, 125, 140]) - 87) / 18, atol=0.15)
    for cut in (60, 100, 125, 137):
        assert vocabulary.beyond(FIRST, cut, 1) == pytest.approx((value > cut).mean(), rel=0.2)
        assert vocabulary.beyond(FIRST, cut, -1) == pytest.approx((value < cut).mean(), rel=0.2, abs=0.01)


def test_a_value_that_many_have_is_not_beyond_itself():
    value = np.repeat([3.0, 9.0, 15.0], [200, 300, 500])
    vocabulary = Vocabulary.fit(made(np.zeros(1000, np.int64), value, 1), floor=1)
    assert vocabulary.beyond(FIRST, 15.0, 1) < 0.002
    assert vocabulary.beyond(FIRST, 9.0, -1) == pytest.approx(0.2, abs=0.035)
    assert vocabulary.beyond(FIRST, 9.0, 1) == pytest.approx(0.5, abs=0.035)
