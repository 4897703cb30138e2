"""Predictions are distributions: their samples, tops, ranks and probabilities agree."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from tiny import MODALITIES, make_model
from unmask.core.prediction import Categorical, Gaussian, Prediction


@pytest.fixture
def categorical(seed: int) -> Categorical:
    return Categorical(torch.randn(3, 8), torch.randn(12, 8) * 0.6, torch.randn(12), forbidden=torch.tensor([0, 4]))


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def repeated(c: Categorical, n: int) -> Categorical:
    return Categorical(c.features[:1].expand(n, -1), c.weight, c.bias, c.forbidden)


def test_both_fulfil_the_protocol(categorical: Categorical):
    assert isinstance(categorical, Prediction)
    assert isinstance(Gaussian(torch.zeros(2, 3)), Prediction)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_sample_frequencies_are_the_probabilities(categorical: Categorical, seed: int, temperature: float):
    n = 40_000
    drawn = repeated(categorical, n).sample(generator=generator(seed), temperature=temperature)
    scores = categorical.logits[0] / temperature
    scores[categorical.forbidden] = -math.inf
    p = scores.softmax(-1)
    found = torch.bincount(drawn, minlength=12) / n
    assert ((found - p).abs() <= 4.5 * (p * (1 - p) / n).sqrt()).all()
    assert (found[categorical.forbidden] == 0).all()


def test_top_k_sampling_and_temperature_zero(categorical: Categorical, seed: int):
    top, _ = categorical.top(3)
    drawn = repeated(categorical, 2000).sample(generator=generator(seed), top_k=3)
    assert set(drawn.tolist()) == set(top[0].tolist())
    assert torch.equal(categorical.sample(temperature=0), categorical.mode())
    assert torch.equal(categorical.sample(top_k=1), categorical.mode())


def test_top_is_sorted_true_to_the_probabilities_and_never_forbidden(categorical: Categorical):
    values, log_probs = categorical.top(50)
    assert values.shape == (3, 12 - len(categorical.forbidden))
    assert not torch.isin(values, categorical.forbidden).any()
    values, log_probs = categorical.top(5)
    assert (log_probs.diff() <= 0).all()
    torch.testing.assert_close(log_probs, categorical.logits.log_softmax(-1).gather(1, values))
    assert not torch.isin(values, categorical.forbidden).any()
    assert torch.equal(values[:, 0], categorical.mode())
    torch.testing.assert_close(categorical.confidence(), log_probs[:, 0])


def test_forbidden_values_are_never_the_mode_but_keep_their_probability():
    bias = torch.tensor([9.0, 1.0, 0.0])
    c = Categorical(torch.zeros(1, 2), torch.zeros(3, 2), bias, forbidden=torch.tensor([0]))
    assert c.mode().tolist() == [1]
    torch.testing.assert_close(c.log_prob(torch.tensor([0])), bias.log_softmax(-1)[:1])


def test_rank_counts_likelier_values(categorical: Categorical):
    order = categorical.logits.argsort(-1, descending=True)
    for rank in range(12):
        assert categorical.rank(order[:, rank]).tolist() == [rank] * 3


def test_loss_is_the_summed_negative_log_probability(categorical: Categorical):
    target = torch.tensor([3, 7, 1])
    expected = F.cross_entropy(categorical.logits, target, reduction="sum")
    torch.testing.assert_close(categorical.loss(target), expected)
    torch.testing.assert_close(-categorical.log_prob(target).sum(), expected)
    assert categorical.correct(categorical.logits.argmax(-1)) == 3


def test_a_codec_never_proposes_its_special_ids(seed: int):
    codec = make_model(MODALITIES["text"], "in_place", "bert").codec
    prediction = codec.predict(torch.randn(200, 32))
    assert not torch.isin(prediction.mode(), codec.special).any()
    assert not torch.isin(prediction.sample(), codec.special).any()


def test_gaussian_log_probability_and_gradient_are_the_normal_ones(seed: int):
    location, log_variance = torch.randn(5, 3, requires_grad=True), torch.randn(5, 3, requires_grad=True)
    value = torch.randn(5, 3)
    g = Gaussian(location, log_variance)
    expected = torch.distributions.Normal(location, (0.5 * log_variance).exp()).log_prob(value).sum(-1)
    torch.testing.assert_close(g.log_prob(value), expected)
    torch.testing.assert_close(g.loss(value), -expected.sum())
    assert g.correct(value) is None
    assert torch.equal(g.mode(), g.mean())


def test_gaussian_without_spread_is_squared_error():
    g = Gaussian(torch.tensor([[0.0, 2.0], [1.0, 1.0]]))
    assert g.loss(torch.tensor([[1.0, 2.0], [1.0, 4.0]])) == pytest.approx(0.5 + 4.5)
    assert g.confidence().tolist() == [0, 0]


def test_gaussian_samples_have_its_mean_and_spread(seed: int):
    n = 20_000
    location, deviation = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0])
    g = Gaussian(location.expand(n, 2), (2 * deviation.log()).expand(n, 2))
    drawn = g.sample(generator=generator(seed))
    assert ((drawn.mean(0) - location).abs() < 4.5 * deviation / math.sqrt(n)).all()
    assert ((drawn.std(0) / deviation - 1).abs() < 4.5 / math.sqrt(2 * n)).all()
    half = g.sample(generator=generator(seed), temperature=0.5)
    torch.testing.assert_close(half - location, (drawn - location) / 2)
    assert torch.equal(g.sample(temperature=0), g.mode())
    assert (
        Gaussian(location[None], torch.zeros(1, 2)).confidence()
        > Gaussian(location[None], torch.ones(1, 2)).confidence()
    )
