"""How a segmenter is trained: what it brings to `training.finetune`."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.modalities.images.segment.crops import CropSource, Scene, known_of
from unmask.modalities.images.segment.figures import counted, mean_of, quantity_figures, quantity_sums, scores
from unmask.modalities.images.segment.network import SegmentNet
from unmask.modalities.images.segment.settings import SegmenterSettings
from unmask.modalities.images.segment.tiles import picture_answers
from unmask.training.budget import MemoryPlan, fit_here, measure_loss
from unmask.training.finetune import Evaluation, Finetunable, planned_steps
from unmask.training.optimiser import AdamW, layer_groups
from unmask.training.precision import computing
from unmask.training.settings import TrainSettings

MOST_EVALUATIONS = 10
"""Looks at the held-out pictures over a run, in the second half of it: before that the best state does not come."""
SMOOTH = 1.0
"""Pixels added above and below the bar in Dice: a class that a batch does not show has no error."""


class Averaged(nn.Module):
    """A network and the running mean of its weights, batch norms' statistics among them (Polyak and Juditsky 1992;
    Tarvainen and Valpola 2017). With few pictures the mean is far better than any single state."""

    def __init__(self, net: SegmentNet) -> None:
        super().__init__()
        self.net, self.mean = net, copy.deepcopy(net).requires_grad_(False)

    @torch.no_grad()
    def update(self, decay: float) -> None:
        """Move the mean towards the present weights."""
        for mean, now in zip(self.mean.state_dict().values(), self.net.state_dict().values(), strict=True):
            if mean.is_floating_point():
                mean.lerp_(now.to(mean.dtype), 1 - decay)
            else:
                mean.copy_(now)


def class_weights(scenes: Sequence[Scene], classes: int, most: float) -> Float[Tensor, " classes"]:
    """Of each class the inverse root of its share, at most `most` times that of the most frequent; mean over the pixels
    1."""
    counts = np.sum([np.bincount(s.mask[s.mask >= 0], minlength=classes) for s in scenes], 0)
    weight = np.minimum(np.sqrt(counts.max() / np.maximum(counts, 1)), most)
    weight *= counts.sum() / (weight * counts).sum()
    return torch.from_numpy(weight.astype(np.float32))


def segment_loss(
    logits: Float[Tensor, "n classes height width"],
    truth: Int[Tensor, "n height width"],
    weight: Float[Tensor, " classes"],
    dice: float,
) -> Tensor:
    """Cross-entropy per pixel, weighted by class, plus `dice` times 1 - soft Dice of the classes over the batch;
    pixels without a class (below 0) have no part."""
    known = truth >= 0
    entropy = F.cross_entropy(logits, truth, weight=weight, ignore_index=-1, reduction="sum")
    entropy = entropy / weight[truth.clamp_min(0)][known].sum().clamp_min(1e-6)
    share = logits.softmax(1) * known[:, None]
    target = F.one_hot(truth.clamp_min(0), logits.shape[1]).permute(0, 3, 1, 2) * known[:, None]
    both, all_ = (share * target).sum((0, 2, 3)), share.sum((0, 2, 3)) + target.sum((0, 2, 3))
    return entropy + dice * (1 - (2 * both + SMOOTH) / (all_ + SMOOTH)).mean()


def quantity_loss(
    outputs: Float[Tensor, "n 1 height width"], truth: Float[Tensor, "n height width"], scale: tuple[float, float]
) -> Tensor:
    """Mean squared error of the quantity, in deviations of the training pixels; NaN has no part."""
    known = known_of(truth.numpy(force=True))
    where = torch.from_numpy(known).to(outputs.device)
    return F.mse_loss(outputs[:, 0][where], (truth[where] - scale[0]) / scale[1], reduction="sum") / max(known.sum(), 1)


class SegmentFinetuning(Finetunable):
    """A network and pictures with masks, as `training.finetune` trains them: `train`, and `held`, by which the best
    state is kept, if any. `module` is the network and its running mean, which is what counts."""

    divided = False  # batch norms see the whole batch
    evaluations_count = False

    module: Averaged

    def __init__(
        self,
        net: SegmentNet,
        train: Sequence[Scene],
        held: Sequence[Scene],
        settings: SegmenterSettings,
        *,
        precision: str = "fp32",
    ) -> None:
        super().__init__(Averaged(net))
        self.held, self.settings, self.precision = held, settings, precision
        self.keep_best, self.seed, self.batch = settings.keep_best and bool(held), settings.train.seed, settings.batch
        self.classes, size = net.head.out_channels, net.config.image
        self.source = CropSource(train, self.classes, size, settings)
        if net.scale is None:
            self.weight = class_weights(train, self.classes, settings.class_weight).to(net.device)
        self.rows, self.updates = self.batch, 0

    @property
    def per_epoch(self) -> int:
        """Steps per epoch, in which crops show about as many pixels as the pictures have."""
        return max(1, round(self.source.per_epoch / self.batch))

    def optimiser(self) -> AdamW:
        """AdamW with the whole rate for the convolutions, and rates that fall from the encoder's last layer down."""
        train, net = self.settings.train, self.module.net
        pretrained = 1.0 if self.settings.from_scratch else self.settings.encoder_rate
        decay = 1.0 if self.settings.from_scratch else self.settings.layer_decay
        read = (
            "masked.encoder.layers.",
            "masked.encoder.stem.",
            "masked.codec.patch.",
            "masked.codec.edges.",
            "masked.codec.cls",
        )
        named = list(net.named_parameters())
        new = [(n, p) for n, p in named if not n.startswith("masked.")]
        old = [(n, p) for n, p in named if n.startswith(read)]
        layers = len(net.masked.encoder.layers)
        shared: dict[str, Any] = {"embeddings": ["masked."], "weight_decay": train.weight_decay}
        groups = layer_groups(new, layers=layers, rate=train.learning_rate, layer_decay=1.0, **shared)
        groups += layer_groups(
            old, layers=layers, rate=train.learning_rate * pretrained / decay, layer_decay=decay, **shared
        )
        return AdamW(groups, betas=(train.beta1, train.beta2), eps=train.epsilon, fused=True)

    def schedule(self) -> TrainSettings:
        """How long and how fast the settings ask it to be trained."""
        train = self.settings.train
        steps = planned_steps(steps=train.steps, epochs=train.epochs, per_epoch=self.per_epoch)
        every = None
        if self.held:
            every = max(1, steps // (2 * MOST_EVALUATIONS)) if train.minutes is None else 50
        train = dataclasses.replace(train, validate_every=every, patience=None)
        return train if train.minutes is not None else dataclasses.replace(train, steps=steps, epochs=None)

    def batches(self, epoch: int) -> list[np.ndarray]:
        return list(np.arange(self.per_epoch * self.batch).reshape(-1, self.batch))

    def backward(self, items: np.ndarray, *, step: int, epoch: int) -> Tensor:
        net = self.module.net
        # Numbers go on from epoch to epoch: what is drawn is a function of them.
        numbers = items + epoch * self.per_epoch * self.batch
        total = torch.zeros((), device=net.device)
        for start in range(0, len(numbers), self.rows):
            part = numbers[start : start + self.rows]
            loss = self._loss(net, part) * (len(part) / len(numbers))
            loss.backward()
            total += loss.detach()
        return total

    def _loss(self, net: SegmentNet, numbers: np.ndarray) -> Tensor:
        pixels, truth = self.source.crops(numbers, key=(self.seed, 0))
        with computing(self.precision, net.device):
            logits = net(pixels.to(net.device))
        if net.scale is not None:
            return quantity_loss(logits, truth.to(net.device), net.scale)
        return segment_loss(logits, truth.to(net.device), self.weight, self.settings.dice)

    def stepped(self, factor: float, *, applied: bool) -> None:
        """Update the running mean, which at first forgets faster: the first states are far off."""
        if applied:
            self.updates += 1
            self.module.update(min(self.settings.average, self.updates / (self.updates + 10)))

    def evaluate(self) -> Evaluation:
        """Mean Dice of the running mean's masks on the held-out pictures; RMSE of a quantity."""
        found, scale = [(s.mask, self.answers(s)) for s in self.held], self.module.net.scale
        if scale is not None:
            error = quantity_figures([quantity_sums(m, a[0], scale[0]) for m, a in found])["rmse"]["value"]
            return Evaluation.of(np.nan if error is None else -error, {} if error is None else {"rmse": error})
        parts = [counted(mask, answers.argmax(0), self.classes) for mask, answers in found]
        of = scores(np.sum([p.confusion for p in parts], 0), np.sum([p.border for p in parts], 0))
        dice = float(mean_of(of["dice"]))
        return Evaluation.of(dice, {"dice": dice})

    def answers(self, scene: Scene) -> np.ndarray:
        """(classes, height, width) of a picture."""
        with computing(self.precision, self.module.mean.device):
            return picture_answers(self.module.mean, scene.pixels).numpy()

    def saved(self) -> dict[str, Any]:
        return {"rows": self.rows, "updates": self.updates}

    def restore(self, saved: dict[str, Any]) -> None:
        self.rows, self.updates = int(saved["rows"]), int(saved["updates"])

    def forecast(self) -> MemoryPlan:
        """What the run will need; no more crops go through the network at a time than fit."""
        net = copy.deepcopy(self.module.net)  # batch norms count what they see
        need = measure_loss(net, lambda rows: self._loss(net, np.arange(rows)), device=net.device)
        weights = sum(t.numel() * t.element_size() for t in net.state_dict().values())
        crop = math.prod(net.config.image) * net.config.channels * 4
        keeps = (1 + self.keep_best) * weights
        need = dataclasses.replace(need, lasting=need.lasting + keeps, any_batch=need.any_batch + 3 * self.batch * crop)
        memory = self.settings.train.memory
        fitted = fit_here(need, rows=self.rows, device=net.device, memory=memory, unit="crops")
        self.rows = max(fitted.rows, min(2, self.batch))  # a batch norm needs two
        return fitted
