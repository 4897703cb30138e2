"""A prediction is a distribution per hidden slot; every use of a trained model is written on this interface.

A *value* is what the codec's `targets` give and its `write` takes: a token id, the numbers of a patch, (code, value,
has, hours) of an event, (bin, score) of a table's cell. The members mean the same in every modality; tests/invariants
holds them to samples (law 9). What a distribution does not have (the mean of a category) is an error, never something
else.

Shape letters: hidden (slots predicted), width, values (categories), features (numbers of one slot).
"""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from unmask.errors import UserError
from unmask.kernels.fused_linear import batch_invariant
from unmask.kernels.linear_cross_entropy import hits, linear_cross_entropy


@runtime_checkable
class Prediction(Protocol):
    """Distribution per hidden slot, in the order of the slots asked for."""

    def __len__(self) -> int:
        """How many slots."""
        ...

    def loss(self, target: Tensor, weight: Float[Tensor, " hidden"] | None = None) -> Tensor:
        """What training minimises, summed over slots; the loop divides by the number of hidden slots of the whole step,
        or by the sum of their weights.

        The negative log-likelihood, or an error that stands for it (squared error of normalised patches).

        Args:
            weight: what each slot counts; default 1.
        """
        ...

    def log_prob(self, value: Tensor) -> Float[Tensor, " hidden"]:
        """Log-probability of each slot's value; of the parts of it that are numbers, a log-density."""
        ...

    def mode(self) -> Tensor:
        """The likeliest value; of several parts (a code, then its value) the likeliest first part, then the next given
        it."""
        ...

    def mean(self) -> Tensor:
        """The expected value of numbers, in the unit in which `Codec` gives them back (a table's: its column's unit).

        Raises:
            UserError: the value is, or contains, a category, which has no mean.
        """
        ...

    def probabilities(self) -> Float[Tensor, "hidden values"]:
        """Probability of every value that a slot can take; a row adds up to 1.

        Raises:
            UserError: the value is, or contains, a number, which has a density.
        """
        ...

    def sample(
        self, *, generator: torch.Generator | None = None, temperature: float = 1.0, top_k: int | None = None
    ) -> Tensor:
        """One value per slot, drawn independently of the others; at temperature 1 as likely as `log_prob` says.

        Args:
            temperature: below 1 nearer to the mode, which 0 gives.
            top_k: of categories, draw among the k likeliest only.
        """
        ...

    def confidence(self) -> Float[Tensor, " hidden"]:
        """Larger is surer: log-probability of the mode's first part, or, of numbers alone, minus their
        log-variances."""
        ...

    def correct(self, target: Tensor) -> Tensor | None:
        """How many modes equal their target, or None where equality means nothing."""
        ...


def no_mean(what: str) -> UserError:
    """What `mean` raises."""
    return UserError(f"{what} have no mean", hint="Use mode(), or probabilities().")


def no_probabilities(what: str) -> UserError:
    """What `probabilities` raises."""
    return UserError(f"{what} have a density, not probabilities", hint="Use log_prob(), mean() or sample().")


def weighted_sum(values: Float[Tensor, " hidden"], weight: Float[Tensor, " hidden"] | None) -> Float[Tensor, ""]:
    """The sum of the slots' values, each times its weight where there are weights."""
    return values.sum() if weight is None else (values * weight).sum()


class Categorical:
    """A distribution over a vocabulary, held as features and the output projection; logits are made when asked for.

    Args:
        features: (hidden, width) in front of the projection.
        weight, bias: (values, width) and (values,) of the projection.
        forbidden: values that are never proposed by mode, sample or top (special tokens).
        count: how many of the rows of `features` are hidden slots; what follows only rounds the shape up.
    """

    def __init__(
        self,
        features: Float[Tensor, "hidden width"],
        weight: Float[Tensor, "values width"],
        bias: Float[Tensor, " values"] | None = None,
        forbidden: Tensor | None = None,
        count: int | None = None,
    ) -> None:
        self.rounded, self.weight, self.bias, self.forbidden = features, weight, bias, forbidden
        self.features: Tensor = features if count is None else features[:count]
        self._correct: Tensor | None = None
        self._log_probs: Tensor | None = None

    def __len__(self) -> int:
        return len(self.features)

    @property
    def logits(self) -> Float[Tensor, "hidden values"]:
        """In fp32 whatever the encoder computes in: a bf16 logit of 15 is off by up to 0.06, and a score
        adds up many."""
        bias = None if self.bias is None else self.bias.float()
        with torch.autocast(self.features.device.type, enabled=False):
            weight = self.weight.float()
            return batch_invariant(lambda rows: F.linear(rows, weight, bias), self.features.float(), wide=len(weight))

    @property
    def log_probs(self) -> Float[Tensor, "hidden values"]:
        """Log-probabilities of all categories, computed once."""
        if self._log_probs is None:
            self._log_probs = self.logits.log_softmax(-1)
        return self._log_probs

    def loss(self, target: Int[Tensor, " hidden"], weight: Float[Tensor, " hidden"] | None = None) -> Tensor:
        """Sum of the cross-entropies, in nats, each times its weight."""
        if torch.is_grad_enabled() and self.features.requires_grad and len(self.features):
            total, self._correct = linear_cross_entropy(self.rounded, self.weight, self.bias, target, weight)
            return total
        return -weighted_sum(self.log_prob(target), weight)

    def log_prob(self, value: Int[Tensor, " hidden"]) -> Float[Tensor, " hidden"]:
        """Log-probability of each value, in nats."""
        return self.log_probs.gather(1, value[:, None])[:, 0]

    def log_prob_of_draw(self, value: Int[Tensor, " hidden"]) -> Float[Tensor, " hidden"]:
        """Log-probability of drawing each value with `sample` at temperature 1: among those that may be proposed."""
        return self.log_prob(value) - self._proposals().logsumexp(-1)

    def rank(self, value: Int[Tensor, " hidden"]) -> Int[Tensor, " hidden"]:
        """How many values are likelier than this one: 0 is the best."""
        return (self.log_probs > self.log_prob(value)[:, None]).sum(-1)

    def correct(self, target: Tensor) -> Tensor:
        """How many targets are the likeliest value; one that shares first place with others counts half."""
        if self._correct is None:
            others = self.log_probs.scatter(1, target[:, None], -math.inf)
            self._correct = hits(self.log_prob(target), others.amax(-1))
        return self._correct

    def _proposals(self) -> Tensor:
        if self.forbidden is None or not len(self.forbidden):
            return self.log_probs
        out = self.log_probs.clone()
        out[:, self.forbidden] = -math.inf
        return out

    def mode(self) -> Int[Tensor, " hidden"]:
        """The likeliest category of those that may be proposed (special tokens may not)."""
        return self._proposals().argmax(-1)

    def mean(self) -> Tensor:
        """Raises UserError: categories have no mean."""
        raise no_mean("categories")

    def probabilities(self) -> Float[Tensor, "hidden values"]:
        """Of all values; the forbidden ones, which are never proposed, keep theirs."""
        return self.log_probs.exp()

    def top(self, k: int) -> tuple[Int[Tensor, "hidden k"], Float[Tensor, "hidden k"]]:
        """The k likeliest values of those that may be proposed (all of them, where they are fewer), and their
        log-probabilities.
        """
        if k < 1:
            raise UserError(f"top={k}", hint="Expected 1 or more.")
        allowed = len(self.weight) - (0 if self.forbidden is None else len(self.forbidden))
        found = self._proposals().topk(min(k, allowed), -1)
        return found.indices, self.log_probs.gather(1, found.indices)

    def sample(
        self, *, generator: torch.Generator | None = None, temperature: float = 1.0, top_k: int | None = None
    ) -> Int[Tensor, " hidden"]:
        """A category drawn from each distribution, of those that may be proposed; at temperature 0 the mode."""
        if temperature <= 0:
            return self.mode()
        scores = self._proposals() / temperature
        if top_k is not None and top_k < scores.shape[-1]:
            scores = scores.masked_fill(scores < scores.topk(top_k, -1).values[:, -1:], -math.inf)
        return torch.multinomial(scores.softmax(-1), 1, generator=generator)[:, 0]

    def confidence(self) -> Float[Tensor, " hidden"]:
        """Larger is surer: the score of the mode."""
        return self._proposals().amax(-1)


class Gaussian:
    """Independent normals per feature. With no log-variance it is plain squared error (unit variance, no constant).

    Args:
        location: (hidden, features).
        log_variance: same shape, or None.
    """

    def __init__(self, location: Float[Tensor, "hidden features"], log_variance: Tensor | None = None) -> None:
        self.location, self.log_variance = location, log_variance

    def __len__(self) -> int:
        return len(self.location)

    def loss(self, target: Float[Tensor, "hidden features"], weight: Float[Tensor, " hidden"] | None = None) -> Tensor:
        """Sum over slots: the mean squared error of the numbers of each; with variances minus the log-density."""
        if self.log_variance is None:
            return weighted_sum(((self.location - target) ** 2).mean(-1), weight)
        return -weighted_sum(self.log_prob(target), weight)

    def log_prob(self, value: Float[Tensor, "hidden features"]) -> Float[Tensor, " hidden"]:
        """Log-density of each value, in nats; of variance 1 where none is predicted."""
        log_variance = torch.zeros_like(self.location) if self.log_variance is None else self.log_variance
        square = (value - self.location) ** 2 * (-log_variance).exp()
        return -0.5 * (square + log_variance + math.log(2 * math.pi)).sum(-1)

    def mode(self) -> Tensor:
        """The mean, which is the likeliest value."""
        return self.location

    def mean(self) -> Tensor:
        """The expected values."""
        return self.location

    def probabilities(self) -> Tensor:
        """Raises UserError: numbers have densities."""
        raise no_probabilities("numbers")

    def sample(
        self, *, generator: torch.Generator | None = None, temperature: float = 1.0, top_k: int | None = None
    ) -> Tensor:
        """Values drawn from each distribution; at temperature 0 the means."""
        if temperature <= 0:
            return self.location
        spread = 1.0 if self.log_variance is None else (0.5 * self.log_variance).exp()
        noise = torch.randn(self.location.shape, generator=generator, device=self.location.device)
        return self.location + noise * spread * temperature

    def confidence(self) -> Float[Tensor, " hidden"]:
        """Larger is surer: minus the log-variances, summed; 0 where none are predicted."""
        if self.log_variance is None:
            return torch.zeros(len(self.location), device=self.location.device)
        return -self.log_variance.sum(-1)

    def correct(self, target: Tensor) -> None:
        """None: numbers are near or far, not right or wrong."""
        return
