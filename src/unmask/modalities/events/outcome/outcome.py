"""The outcome head: small networks and randomised trees over pooled encoder states and code summaries.

Every network has a linear path and one hidden layer, all trained side by side in one batched product; each stops on
patients of its own, so that all labelled patients serve both ends. Networks and trees are averaged on the log scale.
Features are read some points at a time, so that memory does not grow with the number of labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from unmask.modalities.events.outcome.features import Features, blocks
from unmask.modalities.events.outcome.targets import NumberTarget, Sorted, Target, TimeToEvent
from unmask.modalities.events.recipes import OutcomeSettings
from unmask.training.finetune import EpochOrder, Evaluation, Finetunable, constant_rate, finetune
from unmask.training.finetune_checkpoints import Checkpointer
from unmask.training.optimiser import AdamW

LEAF, SHARE = 3, 0.1
"""Rows in a leaf, and share of the features looked at in each node."""


class Forest(nn.Module):
    """Trees over (points, features) -> (points, classes), or (points, 1) expected numbers. A leaf holds the shares of
    the classes, or the mean of numbers."""

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
        """Fit on (points, features) without gaps (or a function that gives those of some points) and class numbers
        (points,); with `classes` None on numbers. Of more than `most` points each tree is grown on a part: they are
        dealt at random to groups of trees (pasting, Breiman 1999), so that every point is seen, by a share of the
        trees."""
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


INPUTS = 512e6
"""Bytes of standardised inputs that are kept while a head is trained."""
LOSS_ROWS = 8192
"""Points whose loss is computed in one go."""


class OutcomeHead(nn.Module):
    """Features -> outputs of a target: standardise (missing is 0 and flagged), then `members` networks and a forest.

    A square stands beside each feature: for most measurements both ends of the scale are bad. `flags` of the features
    can be missing: each of these has a flag beside it. `hidden` is the width of a member's hidden layer.
    """

    def __init__(
        self,
        *,
        features: int,
        flags: int,
        members: int,
        hidden: int,
        outputs: int = 1,
        forest: dict[str, int] | None = None,
    ) -> None:
        super().__init__()
        self.sizes = {"features": features, "flags": flags, "members": members, "hidden": hidden, "outputs": outputs}
        inputs = 2 * features + flags
        self.forest = None if forest is None else Forest(**forest)
        for name, length in (("centre", features), ("spread", features)):
            self.register_buffer(name, torch.ones(length))
        self.register_buffer("flagged", torch.zeros(flags, dtype=torch.int64))
        self.linear = nn.Parameter(torch.zeros(members, inputs, outputs))
        self.first = nn.Parameter(torch.randn(members, inputs, hidden) * (1.0 / max(inputs, 1)) ** 0.5)
        self.first_bias = nn.Parameter(torch.zeros(members, 1, hidden))
        self.second = nn.Parameter(torch.randn(members, hidden, outputs) * 0.3 * (1.0 / hidden) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(members, 1, outputs))

    centre: Tensor
    spread: Tensor
    flagged: Tensor

    def shape(self) -> dict[str, Any]:
        return {**self.sizes, "forest": None if self.forest is None else self.forest.sizes}

    def inputs(self, x: np.ndarray) -> Float[Tensor, "points inputs"]:
        raw = torch.from_numpy(np.asarray(x, np.float32))
        z = ((raw - self.centre) / self.spread).clamp(-5, 5).nan_to_num(0.0)
        square = ((z**2 - 1) / 2).clamp_max(5) * (raw.isfinite() & self.spread.isfinite())
        return torch.cat([z, square, raw[:, self.flagged].isnan().float() - 0.5], 1)

    def logits(self, z: Tensor, dropout: float = 0.0) -> Float[Tensor, "members points outputs"]:
        z = z.expand(len(self.linear), *z.shape)
        z = F.dropout(z, dropout, self.training)
        hidden = F.gelu(z @ self.first + self.first_bias)
        hidden = F.dropout(hidden, dropout, self.training)
        return z @ self.linear + hidden @ self.second + self.bias

    @torch.no_grad()
    def predict(self, x: np.ndarray | Features, target: Target, others: Sequence[np.ndarray] = ()) -> np.ndarray:
        """(points, outputs) probabilities: of the networks, the forest and `others`, each counting alike."""
        self.eval()
        if not len(x):
            return np.zeros((0, target.outputs))
        return np.concatenate([self._predict(x[h], target, [voice[h] for voice in others]) for h in blocks(len(x))])

    def _predict(self, x: np.ndarray, target: Target, others: Sequence[np.ndarray]) -> np.ndarray:
        z = self.inputs(x)
        voices = [target.probabilities(self.logits(z)).double().numpy()]
        if self.forest is not None:
            # Of a yes or no the probability of yes alone; of numbers trees say what is expected, and nothing more.
            voices.append(self.forest.predict(z.numpy())[:, -target.outputs :])
        return target.blend([*voices, *others])


def scale_of(x: np.ndarray | Features) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(features,) centre and spread, infinite of a constant one, which is left at 0; and which features are missing for
    between 1 % and 99 % of the points, where that says something. Read some points at a time."""
    count, total, square = (np.zeros(x.shape[1]) for _ in range(3))
    for here in blocks(len(x)):
        part = x[here]
        seen = ~np.isnan(part)
        count += seen.sum(0)
        total += np.where(seen, part, 0).sum(0, dtype=np.float64)
    missing, count = 1 - count / max(len(x), 1), np.maximum(count, 1)
    mean = total / count
    for here in blocks(len(x)):
        part = x[here]
        square += np.where(np.isnan(part), 0, (part - mean) ** 2).sum(0)
    deviation = np.sqrt(square / count)
    flagged = np.flatnonzero((missing > 0.01) & (missing < 0.99))
    return mean, np.where(deviation > 1e-6, deviation, np.inf), flagged


def fit_head(
    x: np.ndarray | Features,
    y: np.ndarray,
    groups: np.ndarray,
    settings: OutcomeSettings,
    target: Target,
    *,
    most: float = INPUTS,
    checkpointer: Checkpointer | None = None,
) -> OutcomeHead:
    """Train the members on (points, features), NaN where missing, and encoded targets; patients (`groups`), not rows,
    are what a member stops on.

    Of more than `most` bytes of standardised inputs those of a step's points are made for that step, with the same
    result, and trees are grown on as many points as fit, see `Forest.grow`. Checkpoints are of the members; trees are
    grown anew by a resumed run. A signal that ends the training raises `StoppedBySignal`.
    """
    generator = np.random.default_rng(settings.seed)
    torch.manual_seed(settings.seed)
    k = settings.members
    centre, spread, flagged = scale_of(x)
    head = OutcomeHead(
        features=x.shape[1], flags=len(flagged), members=k, hidden=settings.hidden, outputs=target.outputs
    )
    for buffer, found in ((head.centre, centre), (head.spread, spread), (head.flagged, flagged)):
        buffer.copy_(torch.from_numpy(found))
    with torch.no_grad():
        head.bias.copy_(torch.from_numpy(target.start(y)).float().expand_as(head.bias))
    wanted, width = torch.from_numpy(y), 2 * x.shape[1] + len(head.flagged)
    all_inputs = head.inputs(x[:]) if 4.0 * len(y) * width <= most else None

    def inputs(part: Tensor) -> Tensor:
        return head.inputs(x[part.numpy()]) if all_inputs is None else all_inputs[part]

    fold = folds(target.strata(y), groups, generator)
    stop = torch.stack([torch.from_numpy(fold == m % 5) for m in range(k)])
    work = HeadFinetuning(head, inputs, wanted, stop, target, settings.dropout, generator)
    optimiser = AdamW(head.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    schedule = constant_rate(
        steps=settings.epochs * work.per_epoch, validate_every=work.per_epoch, patience=settings.patience
    )
    finetune(work, optimiser, schedule, checkpointer=checkpointer, members=k)
    if isinstance(target, TimeToEvent):
        # Stopped after a few epochs, rare hazards are too high on the whole: intercepts are slower than the rest.
        with torch.no_grad():
            parts = torch.arange(len(y)).split(LOSS_ROWS)
            head.bias.add_(target.intercepts(torch.cat([head.logits(inputs(part)) for part in parts], 1), wanted))
    if settings.trees and isinstance(target, Sorted | NumberTarget):
        labels, classes = (y[:, 0], None) if isinstance(target, NumberTarget) else (target.strata(y), target.classes)
        head.forest = Forest.grow(
            lambda part: inputs(torch.from_numpy(part)).numpy(),
            labels,
            trees=settings.trees,
            classes=classes,
            seed=settings.seed,
            most=None if all_inputs is not None else int(most / 4 / width) + 1,
        )
    return head.eval()


class HeadFinetuning(Finetunable):
    """The members of a head, side by side; `inputs` gives the standardised inputs of some points, `wanted` are the
    targets of all, and `stop` (members, points) says whether a member stops on a point instead of learning from it."""

    divided = False

    def __init__(
        self,
        head: OutcomeHead,
        inputs: Callable[[Tensor], Tensor],
        wanted: Tensor,
        stop: Tensor,
        target: Target,
        dropout: float,
        generator: np.random.Generator,
    ) -> None:
        super().__init__(head)
        self.head, self.inputs, self.wanted, self.stop = head, inputs, wanted, stop
        self.target, self.dropout, self.order = target, dropout, EpochOrder(generator)
        # With fewer than five patients some members have nobody to stop on: they watch what they learn from.
        self.watched = stop | ~stop.any(1, keepdim=True)
        self.size = min(256, max(16, len(wanted) // 12))

    @property
    def per_epoch(self) -> int:
        """Steps per epoch."""
        return -(-len(self.wanted) // self.size)

    def batches(self, epoch: int) -> list[np.ndarray]:
        order = self.order.permutation(len(self.wanted), epoch)
        return [order[i : i + self.size] for i in range(0, len(order), self.size)]

    def saved(self) -> dict[str, Any]:
        return self.order.saved()

    def restore(self, saved: dict[str, Any]) -> None:
        self.order.restore(saved)

    def backward(self, items: np.ndarray, *, step: int, epoch: int) -> Tensor:
        part = torch.from_numpy(items)
        loss = self.target.loss(self.head.logits(self.inputs(part), self.dropout), self.wanted[part])
        weight = (~self.stop[:, part]).float()
        total = (loss * weight).sum(1).div(weight.sum(1).clamp_min(1)).sum()
        total.backward()
        return total.detach()

    @torch.no_grad()
    def evaluate(self) -> Evaluation:
        every = torch.arange(len(self.wanted))
        losses = [self.target.loss(self.head.logits(self.inputs(p)), self.wanted[p]) for p in every.split(LOSS_ROWS)]
        held = (torch.cat(losses, 1) * self.watched).sum(1) / self.watched.sum(1)
        return Evaluation(scores=-held.double().numpy())


def folds(y: np.ndarray, groups: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Fold 0..4 of every row, by patient, each kind of label spread evenly."""
    names, first = np.unique(groups, return_index=True)
    number = np.zeros(len(names), np.int64)
    for label in np.unique(y):
        shuffled = generator.permutation(np.flatnonzero(y[first] == label))
        number[shuffled] = np.arange(len(shuffled)) % 5
    return number[np.searchsorted(names, groups)]
