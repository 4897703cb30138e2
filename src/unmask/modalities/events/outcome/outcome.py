"""The outcome head: small networks, randomised trees and boosted trees over pooled encoder states and code summaries.

Every network has a linear path and one hidden layer, all trained side by side in one batched product; each stops on
patients of its own, so that all labelled patients serve both ends. The three are averaged on the log scale: their
errors differ, and the mean is better than each of them, most of all on patients from elsewhere.
Features are read some points at a time, so that memory does not grow with the number of labels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from unmask.modalities.events.outcome.features import Features, blocks
from unmask.modalities.events.outcome.targets import NumberTarget, Sorted, Target, TimeToEvent
from unmask.modalities.events.outcome.trees import Trees
from unmask.modalities.events.recipes import OutcomeSettings
from unmask.training.finetune import EpochOrder, Evaluation, Finetunable, constant_rate, finetune
from unmask.training.finetune_checkpoints import Checkpointer
from unmask.training.optimiser import AdamW

INPUTS = 512e6
"""Bytes of standardised inputs that are kept while a head is trained."""
LOSS_ROWS = 8192
"""Points whose loss is computed in one go."""


class OutcomeHead(nn.Module):
    """Features -> outputs of a target: standardise (missing is 0 and flagged), then `members` networks; beside
    them trees (`forest`) and boosted trees (`boosted`), which read the features as they are.

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
        forest: dict[str, Any] | None = None,
        boosted: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.sizes = {"features": features, "flags": flags, "members": members, "hidden": hidden, "outputs": outputs}
        inputs = 2 * features + flags
        self.forest = None if forest is None else Trees(**forest)
        self.boosted = None if boosted is None else Trees(**boosted)
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
        trees = {"forest": self.forest, "boosted": self.boosted}
        return self.sizes | {name: None if part is None else part.sizes for name, part in trees.items()}

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
    def voices(self, x: np.ndarray | Features, target: Target) -> dict[str, np.ndarray]:
        """(points, outputs) probabilities by each part of the head: networks, trees, boosting. Of a yes or no that of
        yes; of numbers trees say what is expected, (points, 1), and nothing more."""
        self.eval()
        found: dict[str, list[np.ndarray]] = {}
        for part in [x[here] for here in blocks(len(x))] or [x[:0]]:
            if self.sizes["members"]:
                p = target.probabilities(self.logits(self.inputs(part))).double().numpy()
                found.setdefault("networks", []).append(p)
            for name, trees in (("trees", self.forest), ("boosting", self.boosted)):
                if trees is not None:
                    found.setdefault(name, []).append(trees.predict(part)[:, -target.outputs :])
        return {name: np.concatenate(parts) for name, parts in found.items()}

    def predict(self, x: np.ndarray | Features, target: Target) -> np.ndarray:
        """(points, outputs) probabilities of all parts, each counting alike."""
        return target.blend([*self.voices(x, target).values()])


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
    result, trees are grown on as many points as fit (`Trees.grow`), and boosted on a random part of the points.
    Checkpoints are of the members; trees are grown anew by a resumed run. A signal that ends the training raises
    `StoppedBySignal`.
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

    if k:
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
    if isinstance(target, Sorted | NumberTarget):
        labels, classes = (y[:, 0], None) if isinstance(target, NumberTarget) else (target.strata(y), target.classes)
        few = None if all_inputs is not None else int(most / 4 / width) + 1
        given: dict[str, Any] = {"classes": classes, "seed": settings.seed}
        if settings.trees:
            head.forest = Trees.grow(x.__getitem__, labels, trees=settings.trees, most=few, **given)
        if settings.boosting:
            part = (
                np.arange(len(y))
                if few is None
                else np.sort(np.random.default_rng([settings.seed, 107]).permutation(len(y))[:few])
            )
            head.boosted = Trees.boost(x[part], labels[part], rounds=settings.boosting, **given)
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
