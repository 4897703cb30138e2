"""Resamples of independent groups, such as patients, the intervals they give, and areas under curves of all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

CELLS = 2_000_000
"""Numbers (draws x examples) held at once."""
FEWEST = 10
"""Groups of either kind, cases and others, below which no resample can say how far a figure of both is off."""


def group_numbers(groups: np.ndarray | None, count: int) -> np.ndarray:
    """(examples,) the number of each one's group, from 0; each its own where there are none."""
    return np.arange(count) if groups is None else np.unique(groups, return_inverse=True)[1].reshape(-1)


def fewest_groups(truth: np.ndarray, groups: np.ndarray | None = None) -> int:
    """How many groups the rarer kind of examples has."""
    each = group_numbers(groups, len(truth))
    return min(len(np.unique(each[truth == kind])) for kind in (0, 1))


def bootstrap_counts(number: int, draws: int, seed: int) -> Iterator[np.ndarray]:
    """(groups,) how often each group stands in each bootstrap resample; nothing for fewer than two groups. The random
    stream is not that of `bootstrap_count_blocks`, and figures that were printed keep theirs."""
    rng = np.random.default_rng(seed)
    for _ in range(draws if number > 1 else 0):
        yield np.bincount(rng.integers(number, size=number), minlength=number)


def bootstrap_count_blocks(patients: np.ndarray, draws: int, seed: int) -> tuple[Iterator[np.ndarray], np.ndarray]:
    """(some draws, patients) how often each patient stands in a bootstrap resample, a block of draws at a time; and
    (points,) the index of each point's patient."""
    number = group_numbers(patients, len(patients))
    rng, count = np.random.default_rng(seed), int(number.max(initial=-1)) + 1
    step = max(1, CELLS // count)
    sizes = (min(step, draws - start) for start in range(0, draws, step))
    return (rng.multinomial(count, np.full(count, 1 / count), size=size).astype(np.int32) for size in sizes), number


def bootstrap_weights(patients: np.ndarray, draws: int, seed: int) -> np.ndarray:
    """(draws, points) how often each point stands in a bootstrap resample of patients."""
    again, number = bootstrap_count_blocks(patients, draws, seed)
    return np.concatenate(list(again))[:, number]


def percentile_interval(drawn: Any, fewest: int = FEWEST) -> list[float] | None:
    """The middle 95 % of what resamples gave, without what is not finite or None; None of nothing, and of figures of
    two kinds of examples where the rarer has fewer than `FEWEST` groups (`fewest_groups`)."""
    values = np.asarray(drawn, np.float64)
    values = values[np.isfinite(values)]
    return np.quantile(values, [0.025, 0.975]).tolist() if len(values) and fewest >= FEWEST else None


def with_interval(figure: dict[str, Any] | None, digits: str = ".3f") -> str:
    """A value with its interval in brackets, where it has one; a dash of none.

    >>> with_interval({"value": 0.5, "interval": [0.4, 0.6]}), with_interval(None)
    ('0.500 [0.400, 0.600]', '-')
    """
    if figure is None or figure["value"] is None:
        return "-"
    low, high = figure.get("interval") or (None, None)
    return f"{figure['value']:{digits}}" + ("" if low is None else f" [{low:{digits}}, {high:{digits}}]")


class Ranking:
    """Examples sorted by score once, so that their areas under any weights take one pass."""

    def __init__(self, truth: np.ndarray, score: np.ndarray) -> None:
        self.order = np.argsort(-score, kind="stable")
        self.truth = truth[self.order]
        ranked = score[self.order]
        self.ends = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)

    def areas(self, weight: np.ndarray) -> np.ndarray:
        """(2, ...) area under the ROC curve, ties counting half, and average precision, ties one step, of weights (...,
        examples); NaN where all or none are true."""
        w = weight.take(self.order, -1).astype(np.float64)
        right, given = (np.cumsum(x, -1).take(self.ends, -1) for x in (w * self.truth, w))
        wrong, gained = given - right, np.diff(right, prepend=0.0)
        positives, negatives = right[..., -1], wrong[..., -1]
        roc = (np.diff(wrong, prepend=0.0) * (right - gained / 2)).sum(-1) / np.maximum(positives * negatives, 1e-12)
        precision = (gained * right / np.maximum(given, 1e-12)).sum(-1) / np.maximum(positives, 1e-12)
        return np.where((positives > 0) & (negatives > 0), [roc, precision], np.nan)


def auroc_auprc(
    y: np.ndarray, p: np.ndarray, weights: np.ndarray | None = None, patients: np.ndarray | None = None
) -> np.ndarray:
    """(2, draws) area under the ROC curve (row 0) and average precision (row 1) for each row of weights, see `Ranking`.

    Args:
        y, p: (points,) outcome 0 or 1, and score.
        weights: (draws, points), by default one row of ones; with `patients` (draws, patients).
        patients: (points,) the index of each point's patient.

    >>> auroc_auprc(np.array([1, 0, 1, 0]), np.array([0.9, 0.8, 0.7, 0.1]))[:, 0].tolist()
    [0.75, 0.8333333333333333]
    """
    weights = np.ones((1, len(y)), np.int32) if weights is None else weights
    ranking, step = Ranking(y, p), max(1, CELLS // max(len(y), 1))
    parts = (weights[k : k + step] for k in range(0, len(weights), step))
    found = [ranking.areas(part if patients is None else part[:, patients]) for part in parts]
    return np.concatenate(found, 1) if found else np.zeros((2, 0))
