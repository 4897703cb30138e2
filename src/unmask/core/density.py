"""Densities of the hidden ratio: each example's ratio is drawn anew every epoch, and what its slots then count for.

Masked diffusion trains on ratios from all of (0, 1) and weighs an example's hidden slots by 1 / ratio: the mean over
draws is then a bound on the negative log-likelihood (Sahoo et al. 2024, MDLM; Nie et al. 2025, LLaDA, section 2).
Counts are exact here: of n slots k are hidden, and uniform ratios give every k of 1..n the same probability. With
weights n / k this is the bound of order-agnostic models without approximation (Hoogeboom et al. 2022, section 3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from unmask.core.hashing import Salt, hash_keys
from unmask.errors import UserError

_STEPS = (np.uint64(0xC13FA9A902A6328F), np.uint64(0x91E10DA5C79E7B1D))
"""2^64 divided by the plastic number and by its square, odd: the lattice R2 (Roberts 2018)."""


def spread_evenly(seed: int, epoch: int | np.ndarray, identity: np.ndarray) -> np.ndarray:
    """(examples,) numbers within (0, 1): uniform for each example, and spread more evenly than independent draws.

    Independent draws leave gaps and clusters. These are points of a low-discrepancy sequence instead: they start at a
    random number of the seed; each next identity moves them by one fixed step and each next epoch by another, modulo 1.
    So the numbers of consecutive examples in one epoch, and of one example over the epochs, cover (0, 1) evenly.

    A pure function of (seed, epoch, identity). A training step takes its examples in random order, so within one step
    the numbers are no more even than independent draws; they could be only if an example's number depended on the
    other examples of its step, and then on packing.
    """
    with np.errstate(over="ignore"):
        point = hash_keys(seed, Salt.HIDDEN_DENSITY) + identity.astype(np.int64).view(np.uint64) * _STEPS[0]
        point = point + np.asarray(epoch).astype(np.int64).view(np.uint64) * _STEPS[1]
    return ((point >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


@runtime_checkable
class Density(Protocol):
    """A density of the hidden ratio on (0, 1)."""

    def ratio(self, u: np.ndarray, progress: float) -> np.ndarray:
        """Ratios of this density, from numbers that are uniform on (0, 1)."""
        ...

    def cumulative(self, ratio: np.ndarray, progress: float) -> np.ndarray:
        """The share of the draws that lies below `ratio`, which may be 0 and 1."""
        ...


@dataclass(frozen=True, kw_only=True)
class UniformDensity:
    """Every ratio alike."""

    def ratio(self, u: np.ndarray, progress: float) -> np.ndarray:
        return u

    def cumulative(self, ratio: np.ndarray, progress: float) -> np.ndarray:
        return ratio


@dataclass(frozen=True, kw_only=True)
class LogitNormalDensity:
    """Bell-shaped: the logit of the ratio is normal. Ratios in the middle are drawn more often, those near 0 and 1,
    from which little is learnt, less often (the idea is that of Hong et al. 2026, arXiv 2605.13026, of which only the
    abstract was read: the shape is ours).

    Args:
        median: half of the ratios lie below it: a number, or a schedule over training progress in [0, 1].
        deviation: standard deviation of the logit. Above sqrt(2) (at a median of .5) the density has two modes.
        even: share of the draws that are uniform instead. Without them an example is almost never hidden completely,
            which is where generation begins, and the factor by which `ByBound` corrects `by_ratio` has no limit; with
            them it is at most 1 / even.
    """

    median: float | Callable[[float], float] = 0.5
    deviation: float = 1.0
    even: float = 0.1

    def _logit(self, progress: float) -> float:
        median = self.median(progress) if callable(self.median) else self.median
        if not 0 < median < 1 or self.deviation <= 0:
            raise UserError(
                f"a bell-shaped density with median {median} and deviation {self.deviation}",
                hint="Expected a median between 0 and 1, neither included, and a deviation above 0.",
            )
        return float(np.log(median) - np.log1p(-median))

    def ratio(self, u: np.ndarray, progress: float) -> np.ndarray:
        u = np.asarray(u, np.float64)
        normal = torch.special.ndtri(torch.from_numpy(np.maximum(u - self.even, 1e-12) / (1 - self.even)))
        bell = torch.sigmoid(self._logit(progress) + self.deviation * normal).numpy()
        return np.where(u < self.even, u / max(self.even, 1e-12), bell)

    def cumulative(self, ratio: np.ndarray, progress: float) -> np.ndarray:
        logit = torch.logit(torch.from_numpy(np.asarray(ratio, np.float64)))
        bell = torch.special.ndtr((logit - self._logit(progress)) / self.deviation).numpy()
        return self.even * np.asarray(ratio) + (1 - self.even) * bell


Weigh = Callable[[np.ndarray, np.ndarray, float], np.ndarray]
"""(hidden, maskable slots of each example; training progress) -> what each hidden slot of the example counts."""


def by_ratio(hidden: np.ndarray, maskable: np.ndarray, progress: float) -> np.ndarray:
    """maskable / hidden: every example counts by its maskable slots, however few of them are hidden."""
    return maskable / np.maximum(hidden, 1)


@dataclass(frozen=True, kw_only=True)
class ByBound:
    """As `by_ratio`, corrected for the density: divided by how much more often than a uniform one it draws this number
    of hidden slots. The expected gradient is then that of the bound on the likelihood, whatever the density. (The loop
    divides by maskable slots, not by the sum of the weights: that sum is random and would bias the gradient.)"""

    density: Density

    def __call__(self, hidden: np.ndarray, maskable: np.ndarray, progress: float) -> np.ndarray:
        n = np.maximum(maskable, 1)
        high, low = (self.density.cumulative(np.clip(k, 0, n) / n, progress) for k in (hidden, hidden - 1))
        return by_ratio(hidden, maskable, progress) / np.maximum((high - low) * n, 1e-6)


def make_density(name: str, median: float | Callable[[float], float], deviation: float) -> Density | None:
    """The density of a setting: 'uniform', 'bell' (around `median`) or 'fixed', which is none."""
    if name == "bell":
        return LogitNormalDensity(median=median, deviation=deviation)
    return UniformDensity() if name == "uniform" else None


def make_loss_weights(name: str, density: Density | None) -> Weigh | None:
    """What hidden slots count by a setting: 'slot' (each 1), 'ratio', or 'bound': without a density as 'ratio'."""
    if name == "bound" and density is not None:
        return ByBound(density=density)
    return None if name == "slot" else by_ratio
