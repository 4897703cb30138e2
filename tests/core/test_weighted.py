"""Hiding by the weight of values: exact counts, the promised proportions, and masks that company does not change."""

import numpy as np
import pytest
import torch

from tiny import Text
from unmask.core.batch import Example, pack
from unmask.core.corruption import Corruption, Uniform, Weighted
from unmask.errors import UserError
from unmask.modalities.text.recipes import TextSettings, with_overrides


def examples(size=200, each=40):
    rng = np.random.default_rng(3)
    return [Example(values={"token": rng.integers(5, 15, each)}, identity=i) for i in range(size)]


def hidden(select, data, epoch=0, seed=0):
    batch = pack(data, slots=len(data[0]))
    drawn = Corruption(select=select).draw(batch, seed=seed, epoch=epoch)
    return batch, drawn.flat


def test_counts_are_exact_and_one_slot_follows_its_weight(seed):
    weight = np.ones(15)
    weight[5] = 4.0
    data = examples()
    batch, flat = hidden(Weighted(ratio=1 / 40, weight=weight), data, seed=seed)
    assert torch.equal(torch.bincount(flat // 40, minlength=200), torch.ones(200, dtype=torch.long))
    # Of one slot that is drawn among 40, the chance of value 5 is 4 times its number over the sum of weights.
    tokens = batch.values["token"]
    fives = (tokens == 5).sum(1).double()
    expected = float((4 * fives / (40 + 3 * fives)).sum())
    got = np.mean(
        [
            int((tokens.flatten()[hidden(Weighted(ratio=1 / 40, weight=weight), data, e, seed)[1]] == 5).sum())
            for e in range(30)
        ]
    )
    assert abs(got - expected) < 4.5 * np.sqrt(expected / 30)


def test_equal_weights_hide_every_value_alike(seed):
    data = examples()
    batch, flat = hidden(Weighted(ratio=0.3, weight=np.full(15, 7.0)), data, seed=seed)
    counts = torch.bincount(batch.values["token"].flatten(), minlength=15)[5:]
    rates = torch.bincount(batch.values["token"].flatten()[flat], minlength=15)[5:] / counts
    assert ((rates - 0.3).abs() < 4.5 * (0.21 / counts) ** 0.5).all()


def test_company_and_order_do_not_matter(seed):
    data = [Text().example(100 + i, 20) for i in range(6)]
    select = Corruption(select=Weighted(ratio=0.4, weight=np.linspace(1, 50, 4096)))

    def masks(members):
        batch = pack(members, slots=20)
        flat = select.draw(batch, seed=seed, epoch=2).flat
        pairs = zip(batch.identity.flatten()[flat].tolist(), batch.position.flatten()[flat].tolist(), strict=True)
        return sorted(pairs)

    assert masks(data) == masks(data[::-1]) == sorted(pair for e in data for pair in masks([e]))


def test_all_is_hidden_at_ratio_one_as_without_weights():
    data = examples(size=5)
    weighted = hidden(Weighted(ratio=1.0, weight=np.linspace(1, 2, 15)), data)[1]
    assert torch.equal(weighted, hidden(Uniform(ratio=1.0), data)[1])


@pytest.mark.parametrize("weight", [[1.0, 0.0], [1.0, -1.0], [1.0, np.nan], [1.0, np.inf]])
def test_weights_that_are_none_are_refused(weight):
    with pytest.raises(UserError, match="a weight is not a number above 0"):
        Weighted(weight=np.array(weight))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"rarity": -1}, "rarity=-1"),
        ({"rarity": 0.5, "hide": "word"}, "rarity=0.5 with hide=word"),
        ({"rarity": 0.5, "density": "uniform", "loss_weight": "bound"}, "loss_weight=bound"),
    ],
)
def test_what_does_not_go_together_is_named(given, says):
    with pytest.raises(UserError, match=says):
        with_overrides(TextSettings(), given)


def test_a_run_hides_rare_tokens_more_often(tmp_path):
    from text_corpus import write_corpus
    from unmask.modalities.text.reading.sources import resolve
    from unmask.modalities.text.tokens.batches import batch_maker, corruption_of
    from unmask.modalities.text.tokens.cache import TokenCache
    from unmask.modalities.text.tokens.corpus import build_tokenizer

    source = resolve([str(write_corpus(tmp_path / "corpus.txt"))], tmp_path)
    settings = with_overrides(TextSettings(), {"rarity": 0.5, "vocabulary": 400, "slots": 64, "batch_slots": 256})
    tokenizer = build_tokenizer(source, tmp_path, settings, lambda line: None)
    cache = TokenCache.build(source, tokenizer, tmp_path / "cache", settings=settings)
    batch = batch_maker(cache, 64, tokenizer.special_ids)([[i] for i in range(50)], 50)
    flat = corruption_of(settings, cache).draw(batch, seed=0).flat
    counts = cache.frequencies()
    gone = counts[batch.values["token"].flatten()[flat].numpy()]
    there = counts[batch.values["token"].flatten()[batch.maskable.flatten()].numpy()]
    assert gone.mean() < 0.8 * there.mean()
    with pytest.raises(ValueError, match="corpus"):
        corruption_of(settings)
