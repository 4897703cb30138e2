"""How a classifier of pictures is trained: what it brings to `training.finetune`, in parts that fit the memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.kernels.on_host import to_device
from unmask.modalities.images.classify.classifier import Classifier, ClassifierNet
from unmask.modalities.images.classify.classifier_settings import ClassifierSettings
from unmask.modalities.images.network.augment import Augment, mix_batch
from unmask.modalities.images.network.batches import image_batch, model_floats
from unmask.modalities.images.reading.arrays import ImageSet
from unmask.training.budget import MemoryPlan, fit_here, measure_loss
from unmask.training.finetune import Evaluation, Finetunable, planned_steps, shuffled
from unmask.training.launcher import process_count, rank_range
from unmask.training.optimiser import AdamW, layer_groups
from unmask.training.precision import computing
from unmask.training.settings import TrainSettings

MOST_EVALUATIONS = 25
"""Looks at the held-out pictures over a run, about, each at the end of an epoch."""

USED = ("masked.encoder.", ("masked.codec.patch.", "masked.codec.edges.", "masked.codec.cls"), "norm.", "head.")
"""Names of what classification uses: not the decoder, nor the head that predicts patches."""


def groups(net: ClassifierNet, **rates: float) -> list[dict[str, Any]]:
    """`layer_groups` of what classification uses."""
    named = [(name, p) for part in USED for name, p in net.named_parameters() if name.startswith(part)]
    return layer_groups(named, layers=len(net.masked.encoder.layers), embeddings=["masked."], **rates)


class PictureFinetuning(Finetunable):
    """A classifier and labelled pictures, as `training.finetune` trains them: `train` with the `targets` of the loss,
    and `held`, by which the best state is chosen, if any. `from_probe`: the head starts as a linear probe; `precision`
    is that of the steps: what is judged computes as the classifier's model says; `rows`: pictures that go through the
    network at a time."""

    def __init__(
        self,
        classifier: Classifier,
        train: ImageSet,
        targets: Tensor,
        held: ImageSet | None,
        settings: ClassifierSettings,
        *,
        from_probe: bool = False,
        precision: str = "fp32",
    ) -> None:
        super().__init__(classifier.net)
        self.precision = precision
        self.from_probe, self.keep_best = from_probe, settings.keep_best
        self.classifier, self.train, self.targets, self.held = classifier, train, targets, held
        self.settings, self.seed = settings, settings.train.seed
        self.batch = min(settings.batch, len(train))
        self.rows, self.pictures = -(-self.batch // process_count()), 0
        self.augment = Augment(scale=settings.crop, flip=settings.flip)
        codec = classifier.net.masked.codec
        self.mean, self.deviation = codec.mean.cpu(), codec.deviation.cpu()

    @property
    def per_epoch(self) -> int:
        """Steps per epoch."""
        return -(-len(self.train) // self.batch)

    def optimiser(self) -> AdamW:
        """AdamW with rates that fall from the head to the patches."""
        train, decay = self.settings.train, self.settings.layer_decay
        rate = train.learning_rate * (self.settings.probe_rate if self.from_probe else 1.0)
        rates = groups(self.classifier.net, rate=rate, layer_decay=decay, weight_decay=train.weight_decay)
        return AdamW(rates, betas=(train.beta1, train.beta2), eps=train.epsilon, fused=True)

    def schedule(self) -> TrainSettings:
        """How long and how fast the settings ask it to be trained."""
        train = self.settings.train
        steps = planned_steps(steps=train.steps, epochs=train.epochs, per_epoch=self.per_epoch)
        between = self.per_epoch * max(1, steps // self.per_epoch // MOST_EVALUATIONS)
        train = dataclasses.replace(train, validate_every=None if self.held is None else between, patience=None)
        return train if train.minutes is not None else dataclasses.replace(train, steps=steps, epochs=None)

    def batches(self, epoch: int) -> list[np.ndarray]:
        return shuffled(len(self.train), self.batch, self.seed, epoch)

    def backward(self, items: np.ndarray, *, step: int, epoch: int) -> Tensor:
        classifier, net, number = self.classifier, self.classifier.net, step - 1
        seen, target = self._batch(items, epoch, number)
        generator = torch.Generator().manual_seed(hash((self.seed, number, 1)) % 2**31)
        kept = [d.draw(len(seen), generator) for d in net.drop_paths]
        total = torch.zeros((), device=classifier.device)
        own = rank_range(len(seen))
        for start in range(own.start, own.stop, self.rows):
            part = slice(start, min(start + self.rows, own.stop))
            for hook, which in zip(net.drop_paths, kept, strict=True):
                hook.kept = which[part]
            here = target[part]
            loss = self._loss(seen[part], here, items[part]) * (len(here) / len(target))
            loss.backward()
            total += loss.detach()
        for hook in net.drop_paths:
            hook.kept = None
        self.pictures += len(items)
        return total

    def evaluate(self) -> Evaluation:
        assert self.held is not None
        name, value, score = self.classifier.objective.watched(*self.classifier.judged(self.held)[:2])
        return Evaluation.of(score, {name: value})

    @property
    def averages(self) -> bool:
        """Whether the trained weights are averaged with those of the start."""
        return self.from_probe and self.settings.average < 1

    @torch.no_grad()
    def average(self, start: Mapping[str, Tensor]) -> bool:
        """Take the mean of the weights and those of the start, unless the weights alone are right more often on the
        held-out pictures; whether the mean was taken."""
        net, share = self.classifier.net.eval(), self.settings.average
        before = None if self.held is None else self.evaluate()
        trained = {name: t.clone() for name, t in net.state_dict().items()}
        net.load_state_dict({k: t if k not in start else start[k].lerp(t, share) for k, t in trained.items()})
        if before is None or self.evaluate().scores >= before.scores:
            return True
        net.load_state_dict(trained)
        return False

    def start(self) -> dict[str, Tensor]:
        """A copy of the weights as they are, for `average`."""
        return {k: t.clone() for k, t in self.classifier.net.state_dict().items() if t.is_floating_point()}

    def saved(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def restore(self, saved: dict[str, Any]) -> None:
        self.rows = int(saved["rows"])

    def forecast(self) -> MemoryPlan:
        """What the run will need; no more pictures go through the network at a time than fit."""
        net, device, memory = self.classifier.net, self.classifier.device, self.settings.train.memory
        keeps = self.held is not None and self.settings.keep_best

        def loss(rows: int) -> Tensor:
            numbers = np.arange(rows)
            return self._loss(*self._batch(numbers, 0, 0), numbers)

        need = measure_loss(net, loss, device=device)
        weights = (keeps + 2 * self.averages) * sum(t.numel() * t.element_size() for t in net.state_dict().values())
        # The batch's pixels: read, augmented, mixed.
        pixels = 3 * self.batch * net.config.channels * math.prod(net.config.image) * 4
        need = dataclasses.replace(
            need, lasting=need.lasting + weights, saving=weights, any_batch=need.any_batch + pixels
        )
        fitted = fit_here(need, rows=self.rows, device=device, memory=memory, unit="pictures")
        self.rows = fitted.rows
        return fitted

    def _loss(self, seen: Tensor, target: Tensor, numbers: np.ndarray) -> Tensor:
        """Of some pictures, (n, channels, height, width) as the model sees them, which go through the network
        together."""
        classifier, net = self.classifier, self.classifier.net
        packed = image_batch(net.config, seen, numbers).to(classifier.device)
        with computing(self.precision, classifier.device):
            logits = net(packed)
        return classifier.objective.loss(logits, to_device(target, classifier.device))

    def _batch(self, numbers: np.ndarray, epoch: int, number: int) -> tuple[Tensor, Tensor]:
        """Pictures, augmented and mixed, and their targets."""
        train = self.train
        generator = torch.Generator().manual_seed(hash((self.seed, number)) % 2**31)
        pixels = self.augment(model_floats(train, numbers), numbers, key=(self.seed, epoch))
        seen = (pixels - self.mean) / self.deviation
        mixup, cutmix = self.settings.mixup, self.settings.cutmix
        return mix_batch(seen, self.targets[numbers], mixup=mixup, cutmix=cutmix, generator=generator)
