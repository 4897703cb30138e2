"""Trees of an outcome head, kept as plain arrays in model.safetensors: randomised ones, and boosted ones.

scikit-learn grows them; the arrays give its predictions, and a folder holds no pickle. Both read features as they are,
NaN where missing: a split says on which side what is missing goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

LEAF, SHARE = 3, 0.1
"""Of randomised trees: rows in a leaf, and share of the features looked at in each node."""
BOOSTING: dict[str, Any] = {
    "learning_rate": 0.03,
    "max_iter": 300,
    "max_leaf_nodes": 15,
    "min_samples_leaf": 20,
    "l2_regularization": 10.0,
    "max_features": 0.2,
    "early_stopping": False,
}
"""Of scikit-learn's histogram gradient boosting. Its early stopping would set points aside, not patients."""


class Trees(nn.Module):
    """Trees over (points, features) -> (points, classes), or (points, 1) expected numbers. Leaves of randomised trees
    hold the shares of the classes (or the mean of numbers), and their mean is taken; those of boosted trees (`boosted`)
    are added up from `start`, and give the logits of the classes (or the number)."""

    feature: Tensor
    threshold: Tensor
    missing: Tensor
    child: Tensor
    root: Tensor
    value: Tensor
    start: Tensor

    def __init__(self, *, nodes: int, trees: int, classes: int, boosted: bool) -> None:
        super().__init__()
        self.sizes = {"nodes": nodes, "trees": trees, "classes": classes, "boosted": boosted}
        self.boosted = boosted
        self.register_buffer("feature", torch.zeros(nodes, dtype=torch.int32))
        self.register_buffer("threshold", torch.zeros(nodes))
        self.register_buffer("missing", torch.zeros(nodes, dtype=torch.uint8))  # the side of what is missing
        self.register_buffer("child", torch.zeros(nodes, 2, dtype=torch.int32))
        self.register_buffer("root", torch.zeros(trees, dtype=torch.int32))
        self.register_buffer("value", torch.zeros(nodes, classes))
        self.register_buffer("start", torch.zeros(classes))

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
    ) -> Trees:
        """Extremely randomised trees (Geurts et al. 2006) on (points, features), or a function that gives those of some
        points, and class numbers (points,), or with `classes` None numbers. Of more than `most` points each tree is
        grown on a part: they are dealt at random to groups of trees (pasting, Breiman 1999), so that every point is
        seen, by a share of the trees."""
        from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

        kind = ExtraTreesRegressor if classes is None else ExtraTreesClassifier
        groups = 1 if most is None else min(trees, -(-len(y) // most))
        order = np.arange(len(y)) if groups == 1 else np.random.default_rng([seed, 73]).permutation(len(y))
        grown = []
        for number in range(groups):
            part = np.sort(order[number::groups][:most])
            count = trees // groups + (number < trees % groups)
            model = kind(count, min_samples_leaf=LEAF, max_features=SHARE, random_state=seed + number, n_jobs=1)
            model.fit(_with_values(x(part) if callable(x) else x[part]), y[part])
            known = np.zeros(1, np.int64) if classes is None else model.classes_.astype(np.int64)
            for tree in (each.tree_ for each in model.estimators_):
                value = (
                    tree.value[:, 0] if classes is None else tree.value[:, 0] / tree.value[:, 0].sum(1, keepdims=True)
                )
                left = {"left": tree.children_left, "right": tree.children_right, "leaf": tree.children_left < 0}
                split = {"feature": tree.feature, "threshold": tree.threshold}
                grown.append((left | split | {"missing_left": tree.missing_go_to_left == 1, "value": value}, known))
        return cls._of(grown, 1 if classes is None else classes, np.zeros(0), np.zeros(0, np.int64), boosted=False)

    @classmethod
    def boost(cls, x: np.ndarray, y: np.ndarray, *, rounds: int, classes: int | None, seed: int) -> Trees:
        """Histogram gradient boosting on (points, features) and class numbers (points,), or with `classes` None
        numbers."""
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        kind = HistGradientBoostingRegressor if classes is None else HistGradientBoostingClassifier
        model = kind(**BOOSTING | {"max_iter": rounds}, random_state=seed).fit(_with_values(x), y)
        known = np.zeros(1, np.int64) if classes is None else model.classes_.astype(np.int64)
        start, grown = model._baseline_prediction.ravel(), []
        if len(start) == 1 and len(known) == 2:  # one logit, of the second class
            start, columns = np.r_[0.0, start], known[1:]
        else:
            columns = known
        for each in model._predictors:
            for column, tree in zip(columns, each, strict=True):
                nodes = tree.nodes
                split = {"feature": nodes["feature_idx"], "threshold": nodes["num_threshold"]}
                sides = {"left": nodes["left"], "right": nodes["right"], "leaf": nodes["is_leaf"] == 1}
                value = np.where(nodes["is_leaf"] == 1, nodes["value"], 0.0)[:, None]
                here = sides | split | {"missing_left": nodes["missing_go_to_left"] == 1, "value": value}
                grown.append((here, np.array([column])))
        return cls._of(grown, 1 if classes is None else classes, start, known, boosted=True)

    @classmethod
    def _of(
        cls,
        grown: Sequence[tuple[dict[str, np.ndarray], np.ndarray]],
        classes: int,
        start: np.ndarray,
        known: np.ndarray,
        *,
        boosted: bool,
    ) -> Trees:
        """Of each tree its arrays, and which classes its leaves speak of; a class that `start` does not know never
        comes."""
        sizes = np.array([len(tree["leaf"]) for tree, _ in grown])
        first = np.r_[0, np.cumsum(sizes)[:-1]]
        out = cls(nodes=int(sizes.sum()), trees=len(grown), classes=classes, boosted=boosted)
        for begin, (tree, columns) in zip(first.tolist(), grown, strict=True):
            leaf, here = tree["leaf"], slice(begin, begin + len(tree["leaf"]))
            out.feature[here] = torch.from_numpy(np.where(leaf, 0, tree["feature"]).astype(np.int32))
            out.threshold[here] = torch.from_numpy(_below(np.where(leaf, np.inf, tree["threshold"])))
            out.missing[here] = torch.from_numpy((~tree["missing_left"]).astype(np.uint8))
            # A leaf is its own child: walking on stays there.
            both = [np.where(leaf, np.arange(len(leaf)), tree[side].astype(np.int64)) for side in ("left", "right")]
            out.child[here] = torch.from_numpy((np.stack(both, 1) + begin).astype(np.int32))
            out.value[here, torch.from_numpy(columns)] = torch.from_numpy(tree["value"]).float()
        out.root.copy_(torch.from_numpy(first.astype(np.int32)))
        if boosted:
            out.start.fill_(-torch.inf)
            out.start[torch.from_numpy(known)] = torch.from_numpy(start).float()
        return out

    @torch.no_grad()
    def predict(self, x: np.ndarray) -> np.ndarray:
        """(points, classes) probabilities, or (points, 1) numbers."""
        feature, threshold, child = self.feature.numpy(), self.threshold.numpy(), self.child.numpy()
        missing, value = self.missing.numpy(), self.value.numpy()
        x = np.asarray(x, np.float32)
        total, row = np.zeros((len(x), value.shape[1])), np.arange(len(x))
        for root in self.root.tolist():
            node = np.full(len(x), root, np.int64)
            while True:
                seen = x[row, feature[node]]
                after = child[node, np.where(np.isnan(seen), missing[node], seen > threshold[node]).astype(np.int64)]
                if (after == node).all():
                    break
                node = after.astype(np.int64)
            total += value[node]
        if not self.boosted:
            return total / len(self.root)
        total += self.start.numpy()
        if total.shape[1] == 1:
            return total
        odds = np.exp(total - total.max(1, keepdims=True))
        return odds / odds.sum(1, keepdims=True)


def _with_values(x: np.ndarray) -> np.ndarray:
    """The features, those that are missing everywhere 0: scikit-learn asks for a value."""
    return np.where(np.isnan(x).all(0), np.float32(0), x.astype(np.float32, copy=False))


def _below(threshold: np.ndarray) -> np.ndarray:
    """The largest float32 not above each float64: for a float32 x, `x <= threshold` stays what it was."""
    near = threshold.astype(np.float32)
    return np.where(near > threshold, np.nextafter(near, np.float32(-np.inf)), near)
