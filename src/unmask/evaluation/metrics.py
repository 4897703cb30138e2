"""How well hidden slots were predicted, with intervals that respect documents.

Slots of one document share its topic and its author, so they are not independent: every interval here
resamples whole groups (documents), never single slots. Pure functions of arrays plus a seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray

from unmask.evaluation.meanings import short
from unmask.evaluation.resampling import FEWEST, percentile_interval

_CHUNK = 4_000_000  # indices drawn at once: 32 MB, whatever the number of documents


@dataclass(frozen=True)
class Estimate:
    """A number with its interval; the bounds are NaN where one group, or none, leaves nothing to resample.

    >>> print(Estimate(0.51234, 0.49, 0.53, 1200))
    0.5123 [0.4900, 0.5300] (n=1,200)
    >>> print(Estimate(0.5, float("nan"), float("nan"), 3))
    0.5000 (n=3)
    """

    value: float
    low: float
    high: float
    n: int
    """How many values it is made of (hidden slots, not documents)."""

    def __str__(self) -> str:
        bounds = "" if math.isnan(self.low) else f" [{short(self.low)}, {short(self.high)}]"
        return f"{short(self.value)}{bounds} (n={self.n:,})"

    def to_dict(self) -> dict[str, float | int | None]:
        """As JSON can hold it: a number that is not finite becomes None.

        >>> Estimate(1.0, float("nan"), float("nan"), 2).to_dict()
        {'value': 1.0, 'low': None, 'high': None, 'n': 2}
        """
        return {"value": _finite(self.value), "low": _finite(self.low), "high": _finite(self.high), "n": self.n}


@dataclass(frozen=True)
class Band:
    """One row of a table by bands: the mean of the values whose key fell into the band."""

    label: str
    estimate: Estimate


Z_95 = 1.959964
"""Of a 95 % interval."""


def wilson(hits: float, n: float) -> list[float]:
    """Wilson's 95 % interval of a share (1927): inside 0 to 1 and honest at the ends.

    >>> [round(x, 3) for x in wilson(10, 10)]
    [0.722, 1.0]
    """
    share = hits / n
    middle = (share + Z_95**2 / (2 * n)) / (1 + Z_95**2 / n)
    half = Z_95 / (1 + Z_95**2 / n) * math.sqrt(share * (1 - share) / n + Z_95**2 / (4 * n**2))
    return [min(max(0.0, middle - half), share), max(min(1.0, middle + half), share)]


def share_interval(drawn: ArrayLike, value: float, independent: int, fewest: int = FEWEST) -> list[float] | None:
    """`percentile_interval` of what resamples gave of a figure from 0 to 1; at 0 or 1, which they never leave, Wilson's
    of so many `independent` examples.

    >>> share_interval([1.0, 1.0], 1.0, 10) == wilson(10, 10)
    True
    """
    found = percentile_interval(drawn, fewest)
    at_its_end = found is not None and min(abs(value), abs(1 - value)) < 1e-9
    return wilson(independent if value > 0.5 else 0, independent) if at_its_end else found


def bootstrap_mean(
    values: ArrayLike,
    groups: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    draws: int = 1000,
    seed: int = 0,
) -> Estimate:
    """The weighted mean of values, one per slot, with a 95 % percentile interval from resampling whole groups, such as
    documents; any values that can be sorted name the group of each slot.

    Each draw takes as many groups as there are, with replacement, and recomputes the ratio of sums (values over
    weights), so long documents count for more in the mean and their length is resampled with them (Efron & Tibshirani
    1993, chapter 8). 1000 draws leave the bounds a Monte Carlo error of a few percent of the width. A share of 0 or 1
    never varies so: its interval is Wilson's of as many examples as there are groups. With fewer than about 20 groups a
    percentile interval is too narrow. A NaN among the values makes the estimate NaN: it is a fault to be seen, not data
    to be skipped.

    >>> bootstrap_mean([1, 1, 0, 0], groups=[0, 0, 1, 1]).value
    0.5
    """
    value = np.asarray(values, dtype=np.float64).ravel()
    group = np.asarray(groups).ravel()
    weight = np.ones_like(value) if weights is None else np.asarray(weights, dtype=np.float64).ravel()
    if not len(value) == len(group) == len(weight):
        raise ValueError(f"values, groups and weights differ in length: {len(value)}, {len(group)}, {len(weight)}")
    if (weight < 0).any():
        raise ValueError("weights must not be negative")
    if draws < 1:
        raise ValueError(f"draws must be at least 1, got {draws}")
    nan, n = float("nan"), len(value)
    if not weight.sum() > 0:
        return Estimate(nan, nan, nan, n)
    names, which = np.unique(group, return_inverse=True)
    which = which.ravel()
    top = np.asarray(np.bincount(which, weights=value * weight), dtype=np.float64)
    bottom = np.asarray(np.bincount(which, weights=weight), dtype=np.float64)
    mean = float(top.sum() / bottom.sum())
    if len(names) < 2 or not math.isfinite(mean):
        return Estimate(mean, nan, nan, n)
    if mean in (0.0, 1.0) and ((value == 0) | (value == 1)).all():
        low, high = wilson(mean * len(names), len(names))
        return Estimate(mean, low, high, n)
    ratios = _resampled_ratios(top, bottom, draws, seed)
    low, high = percentile_interval(ratios) or (nan, nan)
    return Estimate(mean, low, high, n)


def masked_metrics(
    log_prob: ArrayLike, rank: ArrayLike, document: ArrayLike, *, seed: int = 0
) -> dict[str, Estimate | int]:
    """`loss` (nats per hidden slot), `perplexity` (its exponential, bounds too), `accuracy_at_1`, `accuracy_at_5` as
    estimates, and `hidden_slots`, a count; of the natural log of the probability given to each true value, how many
    values the model held more likely (0 is a hit), and the document each slot comes from, which intervals resample."""
    ranks = np.asarray(rank).ravel()
    loss, at_1, at_5 = (
        bootstrap_mean(values, document, seed=seed)
        for values in (-np.asarray(log_prob, dtype=np.float64).ravel(), ranks < 1, ranks < 5)
    )
    perplexity = Estimate(_exp(loss.value), _exp(loss.low), _exp(loss.high), loss.n)
    return {
        "loss": loss,
        "perplexity": perplexity,
        "accuracy_at_1": at_1,
        "accuracy_at_5": at_5,
        "hidden_slots": loss.n,
    }


def plain(metrics: Mapping[str, Estimate | int]) -> dict[str, Any]:
    """Metrics for `--json`: each name holds one number; the bounds stand apart under `intervals`.

    >>> plain({"loss": Estimate(2.0, 1.5, 2.5, 9), "hidden_slots": 9})
    {'loss': 2.0, 'hidden_slots': 9, 'intervals': {'loss': [1.5, 2.5]}}
    """
    numbers: dict[str, Any] = {name: _finite(m.value) if isinstance(m, Estimate) else m for name, m in metrics.items()}
    numbers["intervals"] = {
        name: [_finite(m.low), _finite(m.high)] for name, m in metrics.items() if isinstance(m, Estimate)
    }
    return numbers


def by_band(
    values: ArrayLike,
    key: ArrayLike,
    edges: Sequence[float] | NDArray[Any],
    groups: ArrayLike,
    labels: Sequence[str],
    *,
    seed: int = 0,
) -> list[Band]:
    """The mean of `values` within bands of `key`, each with its interval, which resamples `groups`. k rising inner
    `edges` make k + 1 bands, the first and the last open-ended; a key equal to an edge falls into the band above it.
    `labels` are the names of the bands.

    >>> [(b.label, b.estimate.value) for b in by_band([0, 1, 1], [1, 5, 9], [5], [0, 1, 2], ["few", "many"])]
    [('few', 0.0), ('many', 1.0)]
    """
    value, keys, group = (np.asarray(one).ravel() for one in (values, key, groups))
    if not len(value) == len(keys) == len(group):
        raise ValueError(f"values, key and groups differ in length: {len(value)}, {len(keys)}, {len(group)}")
    if np.isnan(keys.astype(np.float64)).any():
        raise ValueError("key holds NaN: such slots belong to no band; leave them out first")
    if (np.diff(edges) <= 0).any() or len(labels) != len(edges) + 1:
        raise ValueError(f"edges must rise and make a band per label, got {list(edges)} and {list(labels)}")
    band = np.searchsorted(edges, keys, side="right")
    return [Band(name, bootstrap_mean(value[band == i], group[band == i], seed=seed)) for i, name in enumerate(labels)]


def by_frequency(
    values: ArrayLike, frequency: ArrayLike, groups: ArrayLike, *, bands: int = 10, seed: int = 0
) -> list[Band]:
    """By how often the target token occurred in training: bands equally wide in log frequency.

    Equal width, not equal counts: a few common tokens would fill most equal-count bands, and it is on the
    rare ones that models differ. Tokens never seen form a band of their own besides the (at most) `bands`
    others; bands without a slot are left out.

    >>> [b.label for b in by_frequency([1, 0, 1, 0], [0, 3, 40, 999], groups=[0, 1, 2, 3], bands=3)]
    ['unseen', '3–20', '21–144', '145–999']
    """
    counts = np.asarray(frequency).ravel().astype(np.int64)
    seen = counts[counts > 0]
    lowest, highest = (int(seen.min()), int(seen.max())) if len(seen) else (1, 1)
    inner = np.ceil(np.geomspace(lowest, highest + 1, bands + 1)[1:-1]).astype(np.int64)
    starts = np.unique(np.concatenate([[lowest], inner[(inner > lowest) & (inner <= highest)]]))
    ends = [*(starts[1:] - 1).tolist(), highest]
    labels = ["unseen"]
    labels += [f"{a:,}" if a == b else f"{a:,}–{b:,}" for a, b in zip(starts.tolist(), ends, strict=True)]
    table = by_band(values, counts, starts, groups, labels, seed=seed)
    return [row for row in table if row.estimate.n]


def by_position(
    values: ArrayLike, relative_position: ArrayLike, groups: ArrayLike, *, bands: int = 5, seed: int = 0
) -> list[Band]:
    """By where in its example a slot stands: `relative_position` from 0 (first slot) to 1 (last).

    >>> [b.label for b in by_position([1, 0], [0.1, 1.0], groups=[0, 1], bands=2)]
    ['0–50%', '50–100%']
    """
    edges = np.linspace(0, 1, bands + 1)
    labels = [f"{a:.0%}–{b:.0%}".replace("%–", "–") for a, b in pairwise(edges)]
    return by_band(values, relative_position, edges[1:-1], groups, labels, seed=seed)


def _resampled_ratios(
    top: NDArray[np.float64], bottom: NDArray[np.float64], draws: int, seed: int
) -> NDArray[np.float64]:
    """Ratio of sums in each of `draws` resamples of the groups, in chunks of bounded memory."""
    rng, size = np.random.default_rng(seed), len(top)
    step = max(1, _CHUNK // size)
    ratios = []
    for start in range(0, draws, step):
        chosen = rng.integers(size, size=(min(step, draws - start), size))
        with np.errstate(divide="ignore", invalid="ignore"):  # a resample of weightless groups only
            ratios.append(top[chosen].sum(1) / bottom[chosen].sum(1))
    return np.concatenate(ratios)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else float("inf") if value >= 700 else float("nan")


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def effective_rank(vectors: Float[np.ndarray, "n width"]) -> float:
    """How many directions the vectors spread over: the exponential of the entropy of their variances' shares along the
    principal axes (Roy and Vetterli 2007); 0 where all vectors are equal."""
    centred = vectors.astype(np.float64) - vectors.mean(0, dtype=np.float64)
    variance = np.linalg.svd(centred, compute_uv=False) ** 2
    total = float(variance.sum())
    if total <= 1e-20 * max(float((vectors.astype(np.float64) ** 2).sum()), 1e-300):
        return 0.0
    share = variance[variance > 0] / total
    return math.exp(-float((share * np.log(share)).sum()))


def relative_spread(vectors: Float[np.ndarray, "n width"]) -> float:
    """How much vectors differ from each other: their deviation over their root mean square; 0 where they are equal, 1
    where their mean is 0."""
    wide = vectors.astype(np.float64)
    return float(np.sqrt(wide.var(0).sum() / max(float((wide**2).sum(1).mean()), 1e-300)))
