"""Extremely randomised trees (Geurts et al. 2006) as plain arrays, so that they live in a safetensors file.

scikit-learn grows them; what is kept is each node's question and each leaf's class shares (of numbers, their mean).
With few labels they are the strongest part of the outcome head (docs/explanation/measured-events.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

LEAF, SHARE = 3, 0.1
"""Rows in a leaf, and share of the features looked at in each node."""


class Forest(nn.Module):
    """Trees over (points, features) -> (points, classes), or (points, 1) expected numbers.

    Args:
        nodes: of all trees together.
        trees: how many.
        classes: shares a leaf holds; 1 of numbers, which it holds the mean of.
    """

    feature: Tensor
    threshold: Tensor
    child: Tensor
    root: Tensor
    share: Tensor

    def __init__(self, *, nodes: int, trees: int, classes: int) -> None:
        super().__init__()
        self.sizes = {"nodes": nodes, "trees": trees, "classes": classes}
        self.register_buffer("feature", torch.zeros(nodes, dtype=torch.int32))
        self.register_buffer("threshold", torch.zeros(nodes))
        self.register_buffer("child", torch.zeros(nodes, 2, dtype=torch.int32))
        self.register_buffer("root", torch.zeros(trees, dtype=torch.int32))
        self.register_buffer("share", torch.zeros(nodes, classes))

    @classmethod
    def grow(
        cls,
        x: np.ndarray | Callable[[np.ndarray], np.ndarray],
        y: np.ndarray,
        *,
        trees: int,
        classes: int | None,
        seed: int,
        most: int | None = None,
    ) -> Forest:
        """Fit on (points, features) without gaps and class numbers (points,); with `classes` None on numbers.

        Args:
            x: the features, or a function that gives those of some points.
            most: points that a tree may be grown on. More are dealt at random to groups of trees (pasting, Breiman
                1999): every point is seen, by a share of the trees.
        """
        from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

        kind = ExtraTreesRegressor if classes is None else ExtraTreesClassifier
        groups = 1 if most is None else min(trees, -(-len(y) // most))
        order = np.arange(len(y)) if groups == 1 else np.random.default_rng([seed, 73]).permutation(len(y))
        grown: list[tuple[Any, np.ndarray]] = []
        for number in range(groups):
            part = np.sort(order[number::groups][:most])
            count = trees // groups + (number < trees % groups)
            model = kind(count, min_samples_leaf=LEAF, max_features=SHARE, random_state=seed + number, n_jobs=1)
            content = x(part) if callable(x) else x[part]
            model.fit(content.astype(np.float32, copy=False), y[part])
            known = np.zeros(1, np.int64) if classes is None else model.classes_.astype(np.int64)
            grown += [(t.tree_, known) for t in model.estimators_]
        sizes = np.array([tree.node_count for tree, _ in grown])
        first = np.r_[0, np.cumsum(sizes)[:-1]]
        out = cls(nodes=int(sizes.sum()), trees=trees, classes=1 if classes is None else classes)
        for start, (tree, known) in zip(first.tolist(), grown, strict=True):
            here = slice(start, start + tree.node_count)
            inner = tree.children_left >= 0
            out.feature[here] = torch.from_numpy(np.where(inner, tree.feature, 0).astype(np.int32))
            out.threshold[here] = torch.from_numpy(_below(np.where(inner, tree.threshold, np.inf)))
            # A leaf is its own child: walking on stays there.
            own = np.arange(tree.node_count)
            both = np.stack([np.where(inner, c, own) for c in (tree.children_left, tree.children_right)], 1)
            out.child[here] = torch.from_numpy((both + start).astype(np.int32))
            value = tree.value[:, 0]
            shares = value if classes is None else value / value.sum(1, keepdims=True)
            out.share[here, torch.from_numpy(known)] = torch.from_numpy(shares).float()
        out.root.copy_(torch.from_numpy(first.astype(np.int32)))
        return out

    @torch.no_grad()
    def predict(self, x: np.ndarray) -> np.ndarray:
        """(points, classes): the trees' mean."""
        feature, threshold, child = self.feature.numpy(), self.threshold.numpy(), self.child.numpy()
        x = np.asarray(x, np.float32)
        total = np.zeros((len(x), self.share.shape[1]))
        row = np.arange(len(x))
        for root in self.root.tolist():
            node = np.full(len(x), root, np.int64)
            while True:
                after = child[node, (x[row, feature[node]] > threshold[node]).astype(np.int64)]
                if (after == node).all():
                    break
                node = after.astype(np.int64)
            total += self.share.numpy()[node]
        return total / len(self.root)


def _below(threshold: np.ndarray) -> np.ndarray:
    """The largest float32 not above each float64: for a float32 x, `x <= threshold` stays what it was."""
    near = threshold.astype(np.float32)
    return np.where(near > threshold, np.nextafter(near, np.float32(-np.inf)), near)
