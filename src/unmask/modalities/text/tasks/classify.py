"""Classification of texts and pairs: one class of several, several at once, or a number."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.core.batch import PackedBatch
from unmask.errors import UserError, first_of, quoted, setting, suggest
from unmask.evaluation.classes import class_counts
from unmask.families.heads import SEQUENCE
from unmask.given import natural
from unmask.kernels.on_host import to_device
from unmask.modalities.text.network.folder import TextFolder
from unmask.modalities.text.tasks import linear, probe, scorers
from unmask.modalities.text.tasks.data import (
    Item,
    Problems,
    as_items,
    default_label_names,
    label_spelling,
    multi_hot_width,
    number_of,
)
from unmask.modalities.text.tasks.encoding import ExampleMaker, Prepared, cut_line
from unmask.modalities.text.tasks.held_out import judging_folds
from unmask.modalities.text.tasks.missing import refuse_among_numbers, refuse_commas, refuse_joined, spelling_notes
from unmask.modalities.text.tasks.network import TaskModel
from unmask.modalities.text.tasks.row_files import Columns, flags
from unmask.modalities.text.tasks.settings import TaskSettings
from unmask.modalities.text.tasks.task import TextTask
from unmask.names import refuse_decimals_alike, several_in_one
from unmask.odd_numbers import number_notes
from unmask.training.settings import refuse_unread

_PROBLEMS = {"single": "single_label_classification", "multi": "multi_label_classification", "regression": "regression"}

KINDS: dict[str, linear.Kind] = {"single": "softmax", "multi": "sigmoid", "regression": "squared"}
"""What the loss of a linear model is, by problem."""


class Classify(TextTask):
    """One label (or several, or a number) per text or pair. `weights`: one per class for the loss, None for all alike;
    `metric`: what early stopping goes by; default accuracy, micro F1 or Pearson's correlation."""

    name, head, options = "classify", SEQUENCE, ("metric",)

    def __init__(
        self, encoder: ExampleMaker, about: dict[str, Any], *, weights: Tensor | None = None, metric: str | None = None
    ) -> None:
        super().__init__(encoder, about)
        self.weights = weights
        self.joined: list[str] = []
        self.problem, self.labels = about["problem"], list(about.get("labels") or [])
        of_pairs = self.outputs == 1 or any(name.lower().startswith("entail") for name in self.labels)
        self.pairs = about.get("pair", of_pairs or None)  # the folders of others do not say
        self.number = {label: i for i, label in enumerate(self.labels)}
        self.metric = metric or {"single": "accuracy", "multi": "f1_micro", "regression": "pearson"}[self.problem]
        if self.metric not in (known := self._metrics()):
            raise UserError(f"metric={metric}", hint=suggest(str(metric), known))

    @classmethod
    def read(
        cls, data: Any, columns: Columns | None, *, labelled: bool, problems: Problems | None
    ) -> tuple[list[Item], Columns | None]:
        return as_items(data, columns, labelled=labelled, problems=problems)

    @classmethod
    def remarks(cls, encoder: ExampleMaker, items: Sequence[Item], *, labelled: bool) -> list[str]:
        """Texts that are longer than the model reads, missing values that are spelled out, labels spelled
        in two ways."""
        cut = cut_line(encoder, [i.text for i in items], [i.text2 for i in items])
        return [*cut, *spelling_notes(items, labelled=labelled)]

    @classmethod
    def from_items(
        cls, encoder: ExampleMaker, items: Sequence[Item], settings: TaskSettings, *, metric: str | None = None
    ) -> Classify:
        """Look at the training labels: which there are, and what kind of problem they make."""
        if settings.problem == "auto":
            refuse_among_numbers(items)
            refuse_commas(items)
            refuse_joined(items)
        problem = settings.problem if settings.problem != "auto" else guess_problem(items)
        names = {label.strip(): item.where for item in reversed(items) if isinstance(label := item.label, str)}
        if problem == "regression" != settings.problem and len(names) <= len(items) / 2:
            refuse_decimals_alike(names)
        if problem == "multi":
            refuse_joined(items, "[;,]")
            items = [_several(item) for item in items]
        if problem != "multi":
            refuse_unread(settings, ["threshold"], "without several labels per text")
        about: dict[str, Any] = {
            "name": "classify",
            "problem": problem,
            "slots": encoder.slots,
            "temperature": 1.0,
            "abstain": settings.abstain,
            "threshold": settings.threshold,
            "pair": items[0].text2 is not None,
        }
        if problem == "regression":
            refuse_unread(settings, ["class_weights", "abstain"], "of numbers, which have no classes")
            values = np.array([_number(item) for item in items])
            about |= {"labels": [], "low": float(values.min()), "high": float(values.max())}
            return cls(encoder, about, metric=metric)
        places = multi_hot_width(items)
        found = {name for item in items for name in names_of(item)}
        labels = sorted(found, key=natural) if places is None else default_label_names(places)
        if len(labels) < 2:
            shown = labels[0] if labels else "none"
            raise UserError(f"training data has one label only: {shown!r}", hint="Two or more are needed.")
        lists = [item.label for item in items if places is None and isinstance(item.label, tuple)]
        if len(labels) == 2 and len(set(map(len, lists))) == 1 and any(len(set(n)) < len(n) for n in lists):
            raise UserError(
                f"{items[0].where}: labels {items[0].label!r:.60}, of two names in all: a mark per place?",
                hint="Give a 0 or 1 per label, or the names of those that hold.",
            )
        if problem == "single" and len(labels) > len(items) / 2 and len(items) > 4:
            raise UserError(
                f"{len(labels)} labels in {len(items)} training rows",
                hint=f"Is this the label column? For numbers use {setting('problem', 'regression')}; else give more "
                "rows per label.",
            )
        about["labels"] = labels
        weights = None
        if settings.class_weights == "balanced":
            count = np.bincount([labels.index(n) for item in items for n in names_of(item)], minlength=len(labels))
            share = np.maximum(count, 1) / len(items)
            balanced = (1 - share) / share if problem == "multi" else 1 / (len(labels) * share)
            weights = torch.tensor(balanced, dtype=torch.float32)
        task = cls(encoder, about, weights=weights, metric=metric)
        task.joined = several_in_one(names, "text") if problem == "single" != settings.problem else []
        return task

    @classmethod
    def outputs_of(cls, about: Mapping[str, Any]) -> int:
        return 1 if about["problem"] == "regression" else len(about.get("labels") or ()) or 1

    @classmethod
    def simpler_of(cls, about: Mapping[str, Any]) -> tuple[str, int]:
        return str(about["problem"]), cls.outputs_of(about)

    def config(self) -> dict[str, Any]:
        one = {"num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
        return {"problem_type": _PROBLEMS[self.problem], **(super().config() or one)}

    def _metrics(self) -> list[str]:
        """Names of what `score` measures, by scoring one made-up prediction."""
        made_up = self.decode([np.zeros(self.outputs)], Prepared([], [], []))
        label = 0.0 if self.problem == "regression" else self.labels[0]
        return list(self.score(made_up, [Item(text="", label=label)]))

    def named(self, items: list[Item]) -> list[Item]:
        """Labels in this model's spelling ('1.0' for 1), vectors of 0 and 1 as the names of the labels they mark."""
        items = [_several(item) for item in items] if self.problem == "multi" else items
        places = multi_hot_width(items)
        if places is None:
            own = {label_spelling(name): name for name in self.labels} | {name: name for name in self.labels}
            return items if self.problem == "regression" else [_spelled(item, own) for item in items]
        if self.problem != "multi" or places != len(self.labels):
            raise UserError(
                f"{items[0].where}: {places} times 0 or 1, and the model has {len(self.labels)} labels",
                hint=f"They are, in this order: {first_of(map(quoted, self.labels), 20)}.",
            )
        return [
            dataclasses.replace(i, label=tuple(n for n, mark in zip(self.labels, i.label, strict=True) if mark))  # type: ignore[arg-type]
            for i in items
        ]

    def label_remarks(self, items: Sequence[Item]) -> list[str]:
        if self.problem == "regression":
            return number_notes([_number(item) for item in items])
        counts = Counter(name for item in items for name in names_of(item))
        return [*class_counts({label: counts[label] for label in self.labels}), *self.joined]

    def prepare(self, items: Sequence[Item], *, labelled: bool) -> Prepared:
        if any((i.text2 is None) != (items[0].text2 is None) for i in items):
            raise UserError("some rows have a second text and some have none", hint="Fill in the second column.")
        pair = items[0].text2 is not None
        if self.about.get("pair", pair) != pair:
            given, learnt = ("pairs", "single texts") if pair else ("single texts", "pairs")
            raise UserError(
                f"{items[0].where}: the model was fine-tuned on {learnt} and is given {given}",
                hint=f"Give columns text and text2 ({flags(text2='COLUMN')}) to a model of pairs, and one column to "
                "another.",
            )
        if pair and not labelled and "pair" not in self.about and all(i.text2 in self.labels for i in items):
            raise UserError(
                f"{items[0].where}: the second text is {items[0].text2!r}, one of the model's labels",
                hint="Give the texts alone; evaluate reads texts with their labels.",
            )
        examples = self.encoder.whole([i.text for i in items], [i.text2 for i in items])
        extra = {"target": self._targets(items)} if labelled else {}
        return Prepared(items, examples, [[i] for i in range(len(items))], extra)

    def known(self, item: Item) -> Item:
        for name in names_of(item) if self.problem != "regression" else ():
            if name not in self.number:
                raise UserError(
                    f"{item.where}: label {name!r} is not among those of the training data",
                    hint=f"Known: {first_of(map(quoted, self.labels), 20)}.",
                )
        return item

    def _targets(self, items: Sequence[Item]) -> Tensor:
        if self.problem == "regression":
            return torch.tensor([_number(item) for item in items], dtype=torch.float32)
        for item in items:
            self.known(item)
        if self.problem == "single":
            other = next((item for item in items if len(names_of(item)) != 1), None)
            if other is not None:
                raise UserError(
                    f"{other.where}: {len(names_of(other))} labels, where each text has one class",
                    hint=f"Give one per text; {setting('problem', 'multi')} learns several.",
                )
            return torch.tensor([self.number[names_of(item)[0]] for item in items])
        target = torch.zeros(len(items), len(self.labels))
        for i, item in enumerate(items):
            target[i, [self.number[n] for n in names_of(item)]] = 1.0
        return target

    def start_head(self, text: TextFolder, model: TaskModel, training: Prepared, **given: Any) -> probe.Probed | None:
        if self.weights is not None and self.problem == "multi":
            return None  # a probe weighs rows, and here every label weighs a row otherwise
        weights, kind = self.row_weights(training), KINDS[self.problem]
        return probe.start_classifier(text, model, training, training.extra["target"], kind, weights=weights, **given)

    def row_weights(self, prepared: Prepared) -> np.ndarray | None:
        """What `class_weights` make each row weigh, mean 1; None where all weigh the same."""
        if self.weights is None or self.problem != "single":
            return None
        found = self.weights[prepared.extra["target"]].numpy().astype(np.float64)
        return found / found.mean()

    def loss(self, model: TaskModel, batch: PackedBatch, prepared: Prepared, numbers: np.ndarray) -> Tensor:
        logits = model(batch, len(numbers)).float()
        target = to_device(prepared.extra["target"][torch.from_numpy(numbers)], logits.device)
        weights = None if self.weights is None else to_device(self.weights, logits.device)
        if self.problem == "single":
            return F.cross_entropy(logits, target, weight=weights)
        if self.problem == "multi":
            return F.binary_cross_entropy_with_logits(logits, target, pos_weight=weights)
        return F.mse_loss(logits[:, 0], target)

    def terms(self, prepared: Prepared, numbers: np.ndarray) -> float:
        if self.problem == "single" and self.weights is not None:
            return float(self.weights[prepared.extra["target"][torch.from_numpy(numbers)]].sum())
        return float(len(numbers))

    def probabilities(self, found: Sequence[np.ndarray]) -> np.ndarray:
        """(items, labels), calibrated."""
        logits = np.stack(found).astype(np.float64) / self.about.get("temperature", 1.0)
        if self.problem == "multi":
            return 1 / (1 + np.exp(-logits))
        e = np.exp(logits - logits.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    def decode(self, found: list[np.ndarray], prepared: Prepared) -> list[dict[str, Any]]:
        if self.problem == "regression":
            numbers = [float(x[0]) for x in found]
            if self.about.get("activation") == "sigmoid":
                numbers = [1 / (1 + math.exp(-x)) if x > -700 else 0.0 for x in numbers]
            return [{"label": x, "value": x} for x in numbers]
        out = []
        abstain = self.about.get("abstain")
        for p in self.probabilities(found):
            best = int(p.argmax())
            row: dict[str, Any] = {"label": self.labels[best], "probability": float(p[best])}
            row["probabilities"] = {n: float(x) for n, x in zip(self.labels, p, strict=True)}
            if self.problem == "multi":
                row["labels"] = [
                    n for n, x in zip(self.labels, p, strict=True) if x >= self.about.get("threshold", 0.5)
                ]
            if abstain is not None:
                row["abstained"] = bool(p[best] < abstain)
            out.append(row)
        return out

    def score(self, predictions: list[dict[str, Any]], items: Sequence[Item]) -> dict[str, float]:
        if self.problem == "regression":
            guess, value = [p["value"] for p in predictions], [_number(i) for i in items]
            error = np.subtract(guess, value)
            return {
                "pearson": scorers.pearson(guess, value),
                "spearman": scorers.spearman(guess, value),
                "rmse": float(np.sqrt(np.mean(error**2))),
            }
        if self.problem == "multi":
            truth, sets = [names_of(i) for i in items], [p["labels"] for p in predictions]
            both = {f"f1_{a}": scorers.multilabel_f1(truth, sets, average=a) for a in ("micro", "macro")}
            return both | {"exact": scorers.accuracy([set(t) for t in truth], [set(g) for g in sets])}
        one, guessed = [names_of(i)[0] for i in items], [p["label"] for p in predictions]
        chance = [p["probability"] for p in predictions]
        right = [a == b for a, b in zip(one, guessed, strict=True)]
        out = {
            "accuracy": scorers.accuracy(one, guessed),
            "f1_macro": scorers.f1(one, guessed),
            "matthews": scorers.matthews(one, guessed),
            "calibration_error": scorers.calibration_error(chance, right),
        }
        if len(self.labels) == 2:
            out["f1"] = scorers.f1(one, guessed, average="binary", positive=self.labels[1])
        kept = [r for r, p in zip(right, predictions, strict=True) if not p.get("abstained")]
        if self.about.get("abstain") is not None:
            out |= {
                "answered": len(kept) / max(1, len(right)),
                "accuracy_answered": float(np.mean(kept)) if kept else 0.0,
            }
        return out

    def value(self, predictions: list[dict[str, Any]], items: Sequence[Item]) -> float:
        if self.problem == "single" and self.metric == "accuracy":
            return scorers.accuracy([names_of(i)[0] for i in items], [p["label"] for p in predictions])
        return super().value(predictions, items)

    def in_words(self, item: Item, prediction: dict[str, Any]) -> tuple[str, str, str]:
        value = prediction["label"]
        answer = f"{value:.3f}" if isinstance(value, float) else f"{value} ({prediction['probability']:.2f})"
        return item.shown(), str(item.label), answer

    def error(self, prediction: dict[str, Any], item: Item) -> float:
        if self.problem == "single":
            return 1.0 - prediction["probabilities"].get(names_of(item)[0], 0.0)
        if self.problem == "regression":
            return abs(prediction["value"] - float(str(item.label)))
        return super().error(prediction, item)

    def calibrate(self, found: list[np.ndarray], prepared: Prepared) -> None:
        """Temperature by the likelihood of validation labels (Guo et al. 2017, sec. 4.2); it changes no decision."""
        if self.problem != "single" or len(found) < 10:
            return
        logits = torch.from_numpy(np.stack(found)).double()
        self.about["temperature"] = fit_temperature(logits, prepared.extra["target"])

    def judged(self, found: list[np.ndarray], prepared: Prepared) -> list[dict[str, Any]]:
        """Calibrate, and the predictions of these very rows: each at a temperature fitted on the other folds, with its
        exact copies in its own."""
        predictions = super().judged(found, prepared)
        if self.problem != "single" or len(found) < 10:
            return predictions
        logits, target = torch.from_numpy(np.stack(found)).double(), prepared.extra["target"]
        other = copy.copy(self)
        for outside, here in judging_folds(prepared.items):
            other.about = {**self.about, "temperature": fit_temperature(logits[outside], target[outside])}
            for i, row in zip(here, other.decode([found[i] for i in here], prepared), strict=True):
                predictions[i] = row
        return predictions


def fit_temperature(logits: Tensor, target: Tensor) -> float:
    """The likeliest temperature between 0.05 and 20 given the targets and a prior.

    Its logarithm is normal around 0 with a standard deviation of log 2. Where all of a few rows are right, their
    likelihood alone grows down to the bound, and wrong answers are given as certain; hundreds of rows outweigh it.
    """
    from scipy.optimize import minimize_scalar

    def loss(log_t: float) -> float:
        fit = F.cross_entropy(logits / float(np.exp(log_t)), target, reduction="sum")
        return float(fit) + (log_t / np.log(2)) ** 2 / 2

    bounds = (np.log(0.05), np.log(20.0))
    return float(np.exp(minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-8}).x))


def names_of(item: Item) -> list[str]:
    """The labels of an item as names; whole numbers in floats lose their '.0'."""
    label = item.label
    if isinstance(label, tuple):
        if multi_hot_width([item]) is None:
            return [str(n) for n in label]
        return [name for name, mark in zip(default_label_names(len(label)), label, strict=True) if mark]
    return [str(int(label)) if isinstance(label, float) and label.is_integer() else str(label).strip()]


def _several(item: Item) -> Item:
    """An item whose label 'a|b' is the names of several; a lone bar says that none holds."""
    if not isinstance(item.label, str):
        return item
    names = [name.strip() for name in item.label.split("|")] if item.label.strip() != "|" else []
    if "" in names or len(set(names)) < len(names):
        what = "an empty label" if "" in names else "a label twice"
        raise UserError(f"{item.where}: {what} in {item.label!r}", hint="Write a|b, and | where none holds.")
    return dataclasses.replace(item, label=tuple(names))


def _spelled(item: Item, own: Mapping[str, str]) -> Item:
    """An item whose labels are spelled as the model's (own: label or its usual spelling -> the model's)."""
    names = names_of(item)
    found = [own.get(name, own.get(label_spelling(name), name)) for name in names]
    if found == names:
        return item
    return dataclasses.replace(item, label=tuple(found) if isinstance(item.label, tuple) else found[0])


def guess_problem(items: Sequence[Item]) -> str:
    """'multi' for lists, 'regression' for numbers of which some are fractions, else 'single'."""
    if any(isinstance(i.label, tuple) for i in items):
        return "multi"
    try:
        values = np.array([float(i.label) for i in items])  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "single"
    return "single" if (values == np.round(values)).all() else "regression"


def _number(item: Item) -> float:
    return number_of(item, "label", "Regression needs numbers.")
