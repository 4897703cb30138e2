"""Law 5. Exact counts where promised, shares within binomial bounds, special and missing slots never hidden."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tiny import MODALITIES, SPECIAL_IDS, VOCABULARY
from unmask.core.batch import Example, pack
from unmask.core.corruption import (
    KEEP,
    MASK,
    RANDOM,
    Blocks,
    Corruption,
    Mixture,
    Spans,
    Uniform,
    Units,
    maskable_slots,
)
from unmask.core.density import ByBound, LogitNormalDensity, UniformDensity, by_ratio, spread_evenly
from unmask.core.model import corrupt
from unmask.errors import UserError
from unmask.modalities.table.distribution.cells import CellMasks

COPIED = CellMasks(copied=1.0, patterns=np.ones((1, 64), bool))


def batch_of(modality, seed: int, count: int = 40):
    lengths = np.random.default_rng(seed).integers(4, 60, count)
    return pack([modality.example(i, int(n), seed) for i, n in enumerate(lengths)], slots=64)


def counts(batch, hidden) -> tuple[np.ndarray, np.ndarray]:
    """(hidden, maskable) slots of every example."""
    index = batch.index.flatten()
    have = torch.bincount(index[batch.maskable.flatten()])
    return torch.bincount(index[hidden.flat], minlength=len(have)).numpy(), have.numpy()


@pytest.mark.parametrize("ratio", [0.15, 0.4, 0.75])
@pytest.mark.parametrize("select", [Uniform, Spans])
def test_counts_are_exact_within_rounding(modality, select, ratio: float, seed: int):
    batch = batch_of(modality, seed)
    got, have = counts(batch, Corruption(select=select(ratio=ratio)).draw(batch, seed=seed))
    assert (got >= np.maximum(np.floor(ratio * have), 1)).all()
    assert (got <= np.maximum(np.ceil(ratio * have), 1)).all()


def test_rounding_leaves_the_long_run_ratio_exact(modality, seed: int):
    """Rounding up or down at random: over many epochs each example's mean count is ratio x size."""
    batch = batch_of(modality, seed, count=30)
    corruption = Corruption(select=Uniform(ratio=0.37, at_least=0))
    runs = [counts(batch, corruption.draw(batch, seed=seed, epoch=e)) for e in range(400)]
    have = runs[0][1]
    mean = np.mean([got for got, _ in runs], 0)
    # A rounded count deviates by at most half a slot of standard deviation.
    assert (np.abs(mean - 0.37 * have) < 4.5 * 0.5 / math.sqrt(400)).all()


@pytest.mark.parametrize("select", [Uniform(ratio=0.3), Spans(ratio=0.3)], ids=["token", "span"])
def test_every_slot_is_hidden_equally_often(modality, select, seed: int):
    batch = batch_of(modality, seed, count=12)
    total = torch.zeros(batch.segment.numel())
    for epoch in range(500):
        total[Corruption(select=select).draw(batch, seed=seed, epoch=epoch).flat] += 1
    index = batch.index.flatten()
    big = torch.bincount(index[batch.maskable.flatten()])[index.clamp_min(0)] >= 20
    rate = total[batch.maskable.flatten() & big] / 500
    assert ((rate - 0.3).abs() < 4.5 * math.sqrt(0.3 * 0.7 / 500)).all()


@pytest.mark.parametrize(("select", "ratio"), [(Units, 0.15), (Spans, 0.15), (Units, 0.4)])
def test_words_of_all_sizes_and_places_are_hidden_equally_often(select, ratio):
    """Units of 1 to 4 slots, in turn; 20 units of an example, so that the first and the last one are seen apart."""
    unit = np.repeat(np.arange(20), np.arange(20) % 4 + 1)
    value = np.full(len(unit), 6)
    example = [Example(values={"token": value}, identity=i, unit=unit) for i in range(200)]
    batch = pack(example, slots=len(unit))
    hidden = np.zeros(len(unit))
    for epoch in range(60):
        flat = Corruption(select=select(ratio=ratio)).draw(batch, seed=3, epoch=epoch).flat.numpy()
        hidden += np.bincount(flat % len(unit), minlength=len(unit))
    rate, bound = hidden / 12_000, 4.5 * math.sqrt(ratio * (1 - ratio) / 12_000)
    assert np.abs(rate - ratio).max() < bound


@pytest.mark.parametrize(
    "select", [Uniform(ratio=1.0), Units(ratio=1.0), Spans(ratio=1.0), Blocks(ratio=1.0, width=8), COPIED]
)
def test_special_missing_and_padding_are_never_hidden(modality, select, seed: int):
    batch = batch_of(modality, seed)
    hidden = Corruption(select=select).draw(batch, seed=seed).grid(batch.shape)
    allowed = batch.observed & ~batch.special & (batch.segment != 0)
    assert not (hidden & (batch.segment == 0)).any()
    assert not (hidden & batch.special).any()
    assert not (hidden & ~batch.observed).any()
    assert torch.equal(hidden, allowed)  # and at ratio 1 all others are
    if "token" in batch.values:
        assert not np.isin(batch.values["token"][hidden].numpy(), SPECIAL_IDS).any()


def test_eighty_ten_ten_in_the_long_run(modality, seed: int):
    batch = batch_of(modality, seed)
    drawn = [Corruption(select=Uniform(ratio=0.5)).draw(batch, seed=seed, epoch=e) for e in range(40)]
    action = torch.cat([h.action for h in drawn]).numpy()
    for kind, share in ((MASK, 0.8), (RANDOM, 0.1), (KEEP, 0.1)):
        assert abs((action == kind).mean() - share) < 4 * math.sqrt(share * (1 - share) / len(action))


def test_actions_do_not_depend_on_the_slot_or_its_neighbour(seed: int):
    batch = batch_of(MODALITIES["text"], seed)
    draw = Corruption(select=Uniform(ratio=1.0)).draw
    action = torch.cat([draw(batch, seed=seed, epoch=e).action for e in range(20)]).numpy() == MASK
    together = (action[1:] & action[:-1]).mean()
    assert abs(together - 0.64) < 6 * math.sqrt(0.64 * 0.36 / len(action))


def test_random_never_draws_special_ids_and_draws_all_others_alike(seed: int):
    batch = batch_of(MODALITIES["text"], seed)
    codec = MODALITIES["text"].codec()
    corruption = Corruption(select=Uniform(ratio=1.0))
    seen = []
    for epoch in range(60):
        hidden = corruption.draw(batch, seed=seed, epoch=epoch)
        after = corrupt(codec, batch.values, hidden)["token"].flatten()
        seen.append(after[hidden.flat[hidden.action == RANDOM]])
    count = torch.bincount(torch.cat(seen), minlength=VOCABULARY).numpy()
    assert (count[list(SPECIAL_IDS)] == 0).all()
    p = 1 / (VOCABULARY - len(SPECIAL_IDS))
    ordinary = np.delete(count, SPECIAL_IDS)
    assert (np.abs(ordinary / count.sum() - p) < 4.5 * math.sqrt(p * (1 - p) / count.sum())).all()


def test_a_range_gives_each_example_its_own_ratio(modality, seed: int):
    batch = batch_of(modality, seed, count=200)
    got, have = counts(batch, Corruption(select=Uniform(ratio=(0.1, 0.9))).draw(batch, seed=seed))
    assert (got >= np.maximum(np.floor(0.1 * have), 1)).all()
    assert (got <= np.ceil(0.9 * have)).all()
    share = got[have >= 20] / have[have >= 20]
    assert share.min() < 0.2
    assert share.max() > 0.8
    assert abs(share.mean() - 0.5) < 4 * 0.8 / math.sqrt(12 * len(share))


def test_a_schedule_follows_progress(modality, seed: int):
    batch = batch_of(modality, seed)
    corruption = Corruption(select=Uniform(ratio=lambda done: 0.6 - 0.4 * done))
    for done in (0.0, 0.5, 1.0):
        hidden = corruption.draw(batch, seed=seed, progress=done)
        assert abs(len(hidden) / int(batch.maskable.sum()) - (0.6 - 0.4 * done)) < 0.02


def test_at_least_so_many(modality, seed: int):
    batch = batch_of(modality, seed)
    for least in (0, 1, 3):
        got, have = counts(batch, Corruption(select=Uniform(ratio=0.01, at_least=least)).draw(batch, seed=seed))
        assert (got >= np.minimum(least, have)).all()


def test_units_are_hidden_whole(modality, seed: int):
    batch = batch_of(modality, seed)
    slots = maskable_slots(batch)
    total = 0
    for epoch in range(30):
        hidden = Corruption(select=Units(ratio=0.3)).draw(batch, seed=seed, epoch=epoch).grid(batch.shape)
        chosen = hidden.numpy().ravel()[slots.flat]
        for example in range(slots.examples):
            here = slots.example == example
            for unit in np.unique(slots.unit[here]):
                part = chosen[here & (slots.unit == unit)]
                assert part.all() == part.any()
        total += chosen.mean()
    assert abs(total / 30 - 0.3) < 0.02


@pytest.mark.parametrize("lengths", [(10, 20), (60, 128)])
def test_whole_words_of_short_texts_are_hidden_at_the_ratio(seed: int, rng, lengths):
    """Their first word was always hidden, however long: .194 of the tokens where .15 was asked for."""
    examples = []
    for i in range(600):
        n = int(rng.integers(*lengths))
        words = np.repeat(np.arange(n), rng.choice([1, 2, 3, 4, 6], n, p=[0.5, 0.22, 0.13, 0.1, 0.05]))[:n]
        examples.append(Example(values={"token": np.arange(n) + 10}, identity=i, unit=words))
    batch = pack(examples, slots=128)
    found = [len(Corruption(select=Units(ratio=0.15)).draw(batch, seed=seed, epoch=e)) for e in range(10)]
    assert np.mean(found) / sum(map(len, examples)) == pytest.approx(0.15, abs=0.004)


def span_lengths(seed: int, select: Spans, epochs: int = 10) -> np.ndarray:
    examples = [Example(values={"token": np.arange(2000) + 10}, identity=i) for i in range(10)]
    batch = pack(examples, slots=2000)
    lengths = []
    for epoch in range(epochs):
        for row in Corruption(select=select).draw(batch, seed=seed, epoch=epoch).grid(batch.shape).numpy():
            edges = np.flatnonzero(np.diff(np.concatenate([[0], row, [0]]).astype(int)))
            lengths.append(edges[1::2] - edges[::2])
    return np.concatenate(lengths)


def test_spans_have_geometric_lengths_up_to_the_longest(seed: int):
    # At a low ratio few spans touch one another, so runs of hidden slots are spans.
    lengths = span_lengths(seed, Spans(ratio=0.04, mean_length=4, longest=10))
    expected = sum(0.75**k for k in range(10))  # mean of a geometric length cut at 10
    assert abs(lengths.mean() - expected) < 0.4
    assert (lengths == 1).mean() > (lengths == 3).mean() > (lengths == 6).mean()
    assert (lengths > 10).mean() < 0.1
    assert span_lengths(seed, Spans(ratio=0.04, mean_length=1)).mean() < 1.1


def test_blocks_are_square_and_whole(seed: int):
    images = [Example(values={"patch": np.zeros((64, 2), np.float32)}, identity=i) for i in range(6)]
    batch = pack(images, slots=64)
    grid = Corruption(select=Blocks(ratio=0.5, width=8, block=4)).draw(batch, seed=seed).grid(batch.shape)
    blocks = grid.view(6, 2, 4, 2, 4).permute(0, 1, 3, 2, 4).reshape(6, 4, 16)
    assert torch.equal(blocks.all(-1), blocks.any(-1))
    assert (blocks.any(-1).sum(-1) == 2).all()
    with pytest.raises(UserError, match="does not divide"):
        Blocks(width=8, block=3)


def test_a_mixture_is_one_or_the_other_in_each_example(modality, seed: int):
    """The first selector in about the share asked for, drawn anew every epoch, and never a blend of both."""
    batch = batch_of(modality, seed)
    first, second = Uniform(ratio=0.3), Uniform(ratio=0.8)
    index = batch.index.flatten()
    big = torch.bincount(index[batch.maskable.flatten()]).numpy() >= 10
    taken = []
    for epoch in range(40):
        masks = [
            Corruption(select=select).draw(batch, seed=seed, epoch=epoch).grid(batch.shape).flatten()
            for select in (first, second, Mixture(first=first, second=second, share=0.25))
        ]
        same = [
            torch.bincount(index[(m != masks[2]) & (index >= 0)], minlength=len(big)).numpy() == 0 for m in masks[:2]
        ]
        assert (same[0] ^ same[1])[big].all()
        taken.append(same[0][big])
    of_first = np.array(taken)
    assert abs(of_first.mean() - 0.25) < 4.5 * math.sqrt(0.25 * 0.75 / of_first.size)
    assert (of_first.std(0) > 0).mean() > 0.9


@pytest.mark.parametrize(
    "select", [Uniform(), Units(), Spans(), Blocks(width=4), Mixture(first=Units(), second=Uniform())]
)
def test_a_batch_with_nothing_to_hide(select):
    empty = Example(values={"token": np.arange(5)}, identity=1, observed=np.zeros(5, bool))
    assert len(Corruption(select=select).draw(pack([empty], slots=8), seed=0)) == 0


@pytest.mark.parametrize("select", [Uniform, Spans])
def test_uniform_ratios_make_every_count_equally_likely(modality, select, seed: int):
    """Of n slots k = 1..n are hidden, each as often as any other: over the epochs, and over the examples."""
    batch = batch_of(modality, seed, count=30)
    draw = Corruption(select=select(ratio=UniformDensity())).draw
    runs = np.array([counts(batch, draw(batch, seed=seed, epoch=e))[0] for e in range(240)])
    have = counts(batch, draw(batch, seed=seed))[1]
    for found, n in zip(runs.T, have, strict=True):
        assert set(np.unique(found)) <= set(range(1, n + 1))
        share = np.bincount(found, minlength=n + 1)[1:] / len(found)
        assert np.abs(np.cumsum(share) - np.arange(1, n + 1) / n).max() < 0.04  # independent draws: about .09


def test_ratios_of_a_density_are_spread_over_examples_and_epochs(seed: int):
    """Every quarter of (0, 1) is drawn alike among 64 examples that follow each other, and in 64 epochs of one."""
    for identity, epoch in ((np.arange(1000, 1064), 3), (np.full(64, 77), np.arange(64))):
        quarter = np.bincount((spread_evenly(seed, epoch, identity) * 4).astype(int), minlength=4)
        assert (np.abs(quarter - 16) <= 3).all()


@pytest.mark.parametrize("density", [UniformDensity(), LogitNormalDensity(median=0.4, deviation=0.7)])
def test_a_density_draws_what_its_distribution_says(density):
    drawn = np.sort(density.ratio((np.arange(1000) + 0.5) / 1000, 0.0))
    np.testing.assert_allclose(density.cumulative(drawn, 0.0), (np.arange(1000) + 0.5) / 1000, atol=2e-3)
    assert density.cumulative(np.array([0.0, 1.0]), 0.0).tolist() == [0.0, 1.0]


def test_a_bell_lies_around_its_median_and_follows_a_schedule():
    bell = LogitNormalDensity(median=lambda done: 0.6 - 0.4 * done, deviation=0.5, even=0.0)
    for done, median in ((0.0, 0.6), (1.0, 0.2)):
        found = bell.ratio(np.array([0.025, 0.5, 0.975]), done)
        assert found[1] == pytest.approx(median)
        assert found[2] - found[0] < 0.5
    with pytest.raises(UserError, match="bell-shaped"):
        LogitNormalDensity(median=1.0).ratio(np.array([0.5]), 0.0)


def test_weights_by_ratio_make_examples_count_by_their_slots(modality, seed: int):
    batch = batch_of(modality, seed)
    hidden = Corruption(select=Uniform(ratio=UniformDensity()), weigh=by_ratio).draw(batch, seed=seed)
    index = batch.index.flatten()
    have = torch.bincount(index[batch.maskable.flatten()])
    found = torch.zeros(len(have)).index_add(0, index[hidden.flat], hidden.weight)
    torch.testing.assert_close(found, have.float())
    assert hidden.total_weight == pytest.approx(float(have.sum()))


@pytest.mark.parametrize("density", [UniformDensity(), LogitNormalDensity(median=0.4, deviation=0.8)])
def test_weights_by_the_bound_undo_the_density(density, seed: int):
    """Weighted means over draws are those of uniform ratios: of the hidden share, (n + 1) / 2n."""
    n = 20
    batch = pack([Example(values={"token": np.arange(n) + 9}, identity=i) for i in range(600)], slots=n)
    draw = Corruption(select=Uniform(ratio=density), weigh=ByBound(density=density)).draw
    drawn = [draw(batch, seed=seed, epoch=e) for e in range(5)]
    weight = np.concatenate([h.weight.numpy() for h in drawn])
    of = np.concatenate([torch.bincount(h.flat // n, minlength=600)[h.flat // n].numpy() for h in drawn])
    assert weight.sum() / (5 * 600 * n) == pytest.approx(1.0, abs=0.03)
    assert (weight * of / n).sum() / (5 * 600 * n) == pytest.approx((n + 1) / (2 * n), abs=0.02)
