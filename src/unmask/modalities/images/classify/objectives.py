"""What a head on an image encoder is trained for: one class per picture, several labels, or a number.

An objective turns labels into targets, logits into answers, and answers into predictions and figures. `n` is pictures,
`outputs` is classes, labels, or 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from unmask.errors import UserError, first_of, quoted, setting
from unmask.modalities.images.network.augment import smoothed
from unmask.modalities.images.reading.arrays import ImageSet


@dataclass
class Objective(ABC):
    """One kind of label; `classes` are the names of the classes or labels, of a number what it is called."""

    classes: list[str]

    problem: ClassVar[str]
    """'single', 'multi' or 'regression'."""

    def about(self) -> dict[str, Any]:
        """What the folder keeps beside `classes`."""
        return {}

    @abstractmethod
    def truth(self, images: ImageSet) -> np.ndarray:
        """(n,) class numbers, (n, labels) of 0 and 1, or (n, 1) numbers in their own unit; labels that are absent, of
        another kind, or not known are refused."""

    @abstractmethod
    def prepare(self, truth: np.ndarray, smoothing: float) -> Float[Tensor, "n outputs"]:
        """Targets of the loss."""

    def bias(self, truth: np.ndarray) -> np.ndarray | None:
        """(outputs,) logits that a head starts with; None for 0."""
        return None

    @abstractmethod
    def loss(self, logits: Float[Tensor, "n outputs"], target: Float[Tensor, "n outputs"]) -> Tensor:
        """One number: the mean over the pictures."""

    @abstractmethod
    def answers(self, logits: np.ndarray) -> np.ndarray:
        """(n, outputs) probabilities, or numbers in their own unit."""

    @abstractmethod
    def rows(self, names: Sequence[str], answers: np.ndarray) -> list[dict[str, Any]]:
        """A prediction for each picture."""

    @abstractmethod
    def watched(self, truth: np.ndarray, answers: np.ndarray) -> tuple[str, float, float]:
        """(name, value, score) of the figure that the best state is kept by; a higher score is better."""

    @abstractmethod
    def figures(self, truth: np.ndarray, answers: np.ndarray, groups: np.ndarray | None, seed: int) -> dict[str, Any]:
        """Figures with intervals beside those of a rule that looks at no picture."""


@dataclass
class OneClass(Objective):
    """One class per picture: softmax and cross-entropy; kept by accuracy."""

    problem = "single"

    def truth(self, images: ImageSet) -> np.ndarray:
        if images.labels is None:
            raise UserError("the pictures have no classes", hint="Give a folder with one folder a class, or labels.")
        known, unknown = self.classes, [c for c in images.classes if c not in self.classes]
        if unknown:
            raise UserError(
                f"class {unknown[0]!r} is not one of the model's", hint=f"Known: {first_of(map(quoted, known), 20)}."
            )
        return np.array([known.index(c) for c in images.classes], np.int64)[images.labels]

    def prepare(self, truth: np.ndarray, smoothing: float) -> Tensor:
        return smoothed(torch.from_numpy(truth), len(self.classes), smoothing)

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits, target)

    def answers(self, logits: np.ndarray) -> np.ndarray:
        return torch.from_numpy(logits).softmax(-1).numpy()

    def rows(self, names: Sequence[str], answers: np.ndarray) -> list[dict[str, Any]]:
        return [
            {"name": name, "label": self.classes[i], "probability": float(row[i])}
            for name, row, i in zip(names, answers, answers.argmax(-1), strict=True)
        ]

    def watched(self, truth: np.ndarray, answers: np.ndarray) -> tuple[str, float, float]:
        accuracy = float((answers.argmax(-1) == truth).mean())
        return "accuracy", accuracy, accuracy

    def figures(self, truth: np.ndarray, answers: np.ndarray, groups: np.ndarray | None, seed: int) -> dict[str, Any]:
        from unmask.evaluation.classes import class_figures

        return class_figures(truth, answers, self.classes, groups=groups, seed=seed)


@dataclass
class SeveralLabels(Objective):
    """Several labels per picture, each for itself: sigmoid and binary cross-entropy; kept by the mean over the labels
    of the area under the precision-recall curve, of equals the one of lower loss (by the loss alone where no label both
    holds and does not hold among the held-out pictures). From the probability `threshold` on a label is given."""

    threshold: float = 0.5

    problem = "multi"

    def about(self) -> dict[str, Any]:
        return {"problem": "multi", "threshold": self.threshold}

    def truth(self, images: ImageSet) -> np.ndarray:
        targets = images.targets
        if targets is None or targets.problem != "multi":
            raise UserError(
                "the pictures have no several labels each",
                hint="Give a table of files and labels, several in one cell parted by |, or columns of 0 and 1.",
            )
        unknown = [n for n in targets.names if n not in self.classes]
        if unknown:
            raise UserError(
                f"label {unknown[0]!r} is not one of the model's",
                hint=f"Known: {first_of(map(quoted, self.classes), 20)}.",
            )
        absent = [n for n in self.classes if n not in targets.names]
        if absent and not targets.listed:
            raise UserError(
                f"no column of the model's label {absent[0]!r} ({len(absent)} are absent)",
                hint="Without it nothing is known of that label: add the columns.",
            )
        out = np.zeros((len(targets), len(self.classes)))
        out[:, [self.classes.index(n) for n in targets.names]] = targets.values
        return out

    def prepare(self, truth: np.ndarray, smoothing: float) -> Tensor:
        return torch.from_numpy(truth).float() * (1 - smoothing) + smoothing / 2

    def bias(self, truth: np.ndarray) -> np.ndarray | None:
        """The log-odds of each label's share, so that training starts at the rule that looks at no picture."""
        share = (truth.sum(0) + 0.5) / (len(truth) + 1)
        return np.log(share / (1 - share))

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits, target)

    def answers(self, logits: np.ndarray) -> np.ndarray:
        return torch.from_numpy(logits).sigmoid().numpy()

    def rows(self, names: Sequence[str], answers: np.ndarray) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "labels": [c for c, x in zip(self.classes, row, strict=True) if x >= self.threshold],
                "probabilities": {c: float(x) for c, x in zip(self.classes, row, strict=True)},
            }
            for name, row in zip(names, answers, strict=True)
        ]

    def watched(self, truth: np.ndarray, answers: np.ndarray) -> tuple[str, float, float]:
        from unmask.evaluation.resampling import auroc_auprc

        found = np.array([auroc_auprc(truth[:, k] > 0, answers[:, k])[1, 0] for k in range(truth.shape[1])])
        p = np.clip(answers.astype(np.float64), 1e-7, 1 - 1e-7)
        loss = float(-np.where(truth > 0, np.log(p), np.log1p(-p)).mean())
        if not np.isnan(found).all():
            value = float(np.nanmean(found))
            return "macro_auprc", value, value - 1e-9 * loss
        return "loss", loss, -loss

    def figures(self, truth: np.ndarray, answers: np.ndarray, groups: np.ndarray | None, seed: int) -> dict[str, Any]:
        from unmask.evaluation.labels import label_figures

        return label_figures(truth > 0, answers, self.classes, threshold=self.threshold, groups=groups, seed=seed)


@dataclass
class OneNumber(Objective):
    """A number per picture: squared error of the number standardised by the training part, of which `mean` and
    `deviation` are, in its own unit; kept by the root mean squared error."""

    mean: float
    deviation: float

    problem = "regression"

    def about(self) -> dict[str, Any]:
        return {"problem": "regression", "scale": [self.mean, self.deviation]}

    def truth(self, images: ImageSet) -> np.ndarray:
        if images.targets is None or images.targets.problem != "regression":
            raise UserError(
                "the pictures have no number each",
                hint="Give a table of files and numbers; where it holds whole ones say "
                f"{setting('problem', 'regression')}.",
            )
        return images.targets.values

    def prepare(self, truth: np.ndarray, smoothing: float) -> Tensor:
        return torch.from_numpy((truth - self.mean) / self.deviation).float()

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(logits, target)

    def answers(self, logits: np.ndarray) -> np.ndarray:
        return logits.astype(np.float64) * self.deviation + self.mean

    def rows(self, names: Sequence[str], answers: np.ndarray) -> list[dict[str, Any]]:
        return [{"name": name, "value": float(row[0])} for name, row in zip(names, answers, strict=True)]

    def watched(self, truth: np.ndarray, answers: np.ndarray) -> tuple[str, float, float]:
        error = float(np.sqrt(((answers - truth) ** 2).mean()))
        return "rmse", error, -error

    def figures(self, truth: np.ndarray, answers: np.ndarray, groups: np.ndarray | None, seed: int) -> dict[str, Any]:
        from unmask.evaluation.values import value_figures

        return value_figures(truth[:, 0], answers[:, 0], mean=self.mean, groups=groups, seed=seed)


def objective_of(train: ImageSet, problem: str, threshold: float) -> Objective:
    """The objective that the labels of training pictures ask for."""
    targets = train.targets
    if train.labels is None and targets is None:
        raise UserError("the pictures have no classes", hint="Give a folder with one folder a class, or labels.")
    found = "single" if targets is None else targets.problem
    if problem not in ("auto", found):
        raise UserError(
            f"problem={problem}, but the pictures have one class each",
            hint="Several labels and numbers are read from a table of files and labels.",
        )
    if targets is None:
        assert train.labels is not None
        if len(np.unique(train.labels)) < 2:
            raise UserError(f"all {len(train)} pictures are of one class", hint="Give two classes or more.")
        return OneClass(list(train.classes))
    if not targets.names or (targets.values == targets.values[:1]).all():
        alike = "the same labels" if found == "multi" else f"the number {targets.values.flat[0]:g}"
        raise UserError(f"all {len(train)} training pictures have {alike}", hint="There is nothing to tell apart.")
    if found == "multi":
        return SeveralLabels(list(targets.names), threshold)
    return OneNumber(list(targets.names), float(targets.values.mean()), float(targets.values.std()))


def objective_from(about: Mapping[str, Any]) -> Objective:
    """The objective that a folder was fine-tuned for."""
    classes, problem = list(about["classes"]), about.get("problem", "single")
    if problem == "multi":
        return SeveralLabels(classes, float(about["threshold"]))
    return OneNumber(classes, *map(float, about["scale"])) if problem == "regression" else OneClass(classes)


def strata(images: ImageSet) -> np.ndarray:
    """A number for each picture, by which parts of a set are made alike: its class, its rarest label, or the fifth of
    the range of numbers it lies in (by rank)."""
    targets = images.targets
    if targets is None:
        assert images.labels is not None
        return images.labels
    if targets.problem == "regression":
        rank = targets.values[:, 0].argsort(kind="stable").argsort(kind="stable")
        return rank * min(5, max(1, len(images) // 2)) // max(len(images), 1)
    often = targets.values.sum(0)
    rarity = np.where(targets.values > 0, often, np.inf)
    return np.where(targets.values.any(1), rarity.argmin(1), targets.values.shape[1])
