"""Regularised linear models of given features: the yardstick of fine-tuning, and where its heads start.

Shape letters: n (rows), d (features), k (outputs). One convex problem for every task, solved by L-BFGS (Liu & Nocedal
1989): the mean loss of the rows + |W|^2 / (2 C n), the intercepts free, which is scikit-learn's C. C is chosen by
cross-validation along a path of values, each solution being the start of the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Kind = Literal["softmax", "sigmoid", "squared", "pointer"]
"""One of k classes; each of k labels or not; k numbers; one row of each segment for each of the k outputs."""
STRENGTHS = (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
FOLDS, ENOUGH = 3, 4000
"""Of cross-validation, and the most rows it looks at."""


@dataclass
class Linear:
    """Outputs = features @ weight (d, k) + bias (k,); `strength` is C."""

    weight: np.ndarray
    bias: np.ndarray
    strength: float = 1.0

    def __call__(self, features: Any) -> np.ndarray:
        """(n, k) outputs."""
        return np.asarray(features @ self.weight + self.bias)


def fit(
    features: Any,
    target: np.ndarray,
    kind: Kind,
    strength: float,
    *,
    weights: np.ndarray | None = None,
    segments: np.ndarray | None = None,
    start: Linear | None = None,
    steps: int = 200,
) -> Linear:
    """Solve for one C. `features`: (n, d), an array or a sparse matrix, fp32; `target`: (n, k), one-hot, 0 and 1,
    numbers, or (pointer) 1 in the row of each segment that is meant; `weights` of the rows (not for pointer), mean 1;
    `segments` (pointer): where each segment's rows begin, ascending from 0."""
    from scipy.optimize import minimize

    n, d = features.shape
    k = target.shape[1]
    count = n if segments is None else len(segments)
    share = (np.ones(n) if weights is None else np.asarray(weights, np.float64)) / count
    penalty = 1.0 / (strength * count)
    transposed = features.T
    initial = np.zeros(d * k + k)
    if start is not None:
        initial = np.concatenate([start.weight.ravel(), start.bias]).astype(np.float64)

    def value(x: np.ndarray) -> tuple[float, np.ndarray]:
        w, b = x[: d * k].reshape(d, k), x[d * k :]
        logits = np.asarray(features @ w.astype(np.float32), np.float64) + b
        loss, slope = _loss(logits, target, kind, segments)
        slope = slope * share[:, None]
        gradient = np.asarray(transposed @ slope.astype(np.float32), np.float64) + penalty * w
        total = float(loss @ (share if segments is None else np.full(count, 1 / count)))
        return total + 0.5 * penalty * float((w**2).sum()), np.concatenate([gradient.ravel(), slope.sum(0)])

    found = minimize(
        value, initial, jac=True, method="L-BFGS-B", options={"maxiter": steps, "ftol": 1e-7, "gtol": 1e-5}
    )
    x = found.x
    return Linear(x[: d * k].reshape(d, k).astype(np.float32), x[d * k :].astype(np.float32), strength)


def _loss(
    logits: np.ndarray, target: np.ndarray, kind: Kind, segments: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """(loss of each row or segment, its derivative by the logits)."""
    if kind == "softmax":
        top = logits.max(1, keepdims=True)
        e = np.exp(logits - top)
        total = e.sum(1, keepdims=True)
        return (np.log(total) + top)[:, 0] - (logits * target).sum(1), e / total - target
    if kind == "sigmoid":
        p = 1 / (1 + np.exp(-logits))
        return (np.logaddexp(0, logits) - logits * target).sum(1), p - target
    if kind == "squared":
        return 0.5 * ((logits - target) ** 2).sum(1), logits - target
    assert segments is not None
    size = np.diff(np.append(segments, len(logits)))
    shifted = logits - np.repeat(np.maximum.reduceat(logits, segments), size, axis=0)
    e = np.exp(shifted)
    total = np.add.reduceat(e, segments)
    loss = np.log(total) - np.add.reduceat(shifted * target, segments)
    return loss.sum(1), e / np.repeat(total, size, axis=0) - target


def losses(model: Linear, features: Any, target: np.ndarray, kind: Kind) -> np.ndarray:
    """(n,) loss of each row."""
    return _loss(np.asarray(model(features), np.float64), target, kind, None)[0]


def pointer_loss(model: Linear, features: Any, target: np.ndarray, segments: np.ndarray) -> float:
    """Mean loss of the segments."""
    return float(_loss(np.asarray(model(features), np.float64), target, "pointer", segments)[0].mean())


def folds(target: np.ndarray, kind: Kind, groups: np.ndarray | None, seed: int, count: int = FOLDS) -> np.ndarray:
    """(n,) number of the fold in which each row is held out; classes spread evenly, rows of a group together (by the
    class of its first row)."""
    each = np.arange(len(target)) if groups is None else groups
    _, first, number = np.unique(each, return_index=True, return_inverse=True)
    order = np.random.default_rng([seed, 17]).permutation(len(first))
    if kind == "softmax":
        order = order[np.argsort(target[first[order]].argmax(1), kind="stable")]
    out = np.empty(len(first), np.int64)
    out[order] = np.arange(len(first)) % count
    return out[number.ravel()]


def cross_validated(
    candidates: Sequence[Any],
    target: np.ndarray,
    kind: Kind,
    *,
    seed: int = 0,
    weights: np.ndarray | None = None,
    groups: np.ndarray | None = None,
    strengths: Sequence[float] = STRENGTHS,
    most: int = ENOUGH,
) -> tuple[int, float, float]:
    """Which features (the number among several candidates, each (n, d)) and which C predict rows held out best, and the
    mean loss of those. By accuracy where classes are predicted, the likelihood decides ties and everything else; with
    fewer than two rows for each fold, the first candidate and C = 1. At most `most` rows, drawn by the seed, are looked
    at. The path ends where two weaker regularisations in a row did no better."""
    chosen = np.arange(len(target))
    if len(chosen) > most:
        chosen = np.sort(np.random.default_rng([seed, 18]).permutation(len(target))[:most])
    target = target[chosen]
    weights = None if weights is None else weights[chosen]
    fold = folds(target, kind, None if groups is None else groups[chosen], seed)
    if np.bincount(fold, minlength=FOLDS).min() < 2:
        return 0, 1.0, float("nan")
    best: tuple[tuple[float, float], int, float] | None = None
    for number, all_rows in enumerate(candidates):
        x = all_rows[chosen]
        solutions: list[Linear | None] = [None] * FOLDS
        own, waited = (-np.inf, -np.inf), 0
        for strength in strengths:
            right, likelihood = 0.0, 0.0
            for i in range(FOLDS):
                inside, outside = fold != i, fold == i
                w = None if weights is None else weights[inside] / weights[inside].mean()
                model = solutions[i] = fit(
                    x[inside], target[inside], kind, strength, weights=w, start=solutions[i], steps=60
                )
                likelihood -= float(losses(model, x[outside], target[outside], kind).sum())
                if kind == "softmax":
                    right += float((model(x[outside]).argmax(1) == target[outside].argmax(1)).sum())
            merit = (right, likelihood)
            if best is None or merit > best[0]:
                best = (merit, number, strength)
            own, waited = (merit, 0) if merit > own else (own, waited + 1)
            if waited == 2:
                break
    assert best is not None
    return best[1], best[2], -best[0][1] / len(target)


def tempered(model: Linear, features: Any, target: np.ndarray, kind: Kind, loss: float) -> Linear:
    """The model with outputs scaled down until its loss on these rows is `loss`; no decision changes.

    A probe of many features separates its training rows: its loss on them is next to nothing, and so is every gradient.
    Scaled to the loss of rows that it has not seen, what it is unsure of is what training works on.
    """
    outputs = np.asarray(model(features), np.float64)
    low, high = 0.0, 1.0
    if not np.isfinite(loss) or _loss(outputs, target, kind, None)[0].mean() >= loss:
        return model
    for _ in range(30):
        middle = (low + high) / 2
        if _loss(outputs * middle, target, kind, None)[0].mean() > loss:
            low = middle
        else:
            high = middle
    return Linear((model.weight * high).astype(np.float32), (model.bias * high).astype(np.float32), model.strength)
