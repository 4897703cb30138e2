"""The standard normal distribution between two ends, exact far out in its tails too."""

from __future__ import annotations

import numpy as np
from scipy.special import log_ndtr, ndtri_exp


def truncated_normal(a: np.ndarray, b: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Standard normal numbers between a and b, rising with the uniform ones; exact far out in the tails too."""
    flip = a > 0  # the upper tail by the lower one, where logarithms are precise
    low, high, share = np.where(flip, -b, a), np.where(flip, -a, b), np.where(flip, 1 - uniform, uniform)
    with np.errstate(divide="ignore"):
        log_p = np.logaddexp(log_ndtr(low) + np.log1p(-share), log_ndtr(high) + np.log(share))
    z = np.clip(ndtri_exp(np.minimum(log_p, 0.0)), low, high)
    return np.where(flip, -z, z)


def share_between(a: np.ndarray, b: np.ndarray, z: np.ndarray) -> np.ndarray:
    """The uniform numbers that `truncated_normal` made z of."""
    flip = a > 0
    low, high, at = np.where(flip, -b, a), np.where(flip, -a, b), np.where(flip, -z, z)
    of = np.exp(log_between(low, at) - log_between(low, high))
    return np.clip(np.where(flip, 1 - of, of), 1e-300, 1 - 1e-16)


def log_between(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Logarithm of the standard normal's share between a and b."""
    flip = a > 0
    low, high = log_ndtr(np.where(flip, -b, a)), log_ndtr(np.where(flip, -a, b))
    with np.errstate(divide="ignore", invalid="ignore"):
        return high + np.log(-np.expm1(np.minimum(low - high, 0.0)))
