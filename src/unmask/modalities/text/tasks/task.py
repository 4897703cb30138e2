"""What a task brings to the loop: examples, a loss, predictions from logits, and a score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from unmask.core.batch import Example, PackedBatch

LESS_IS_BETTER = ("rmse", "calibration_error")
"""Metrics that measure an error; of all others more is better."""


def merit(metric: str, value: float) -> float:
    """A metric's value, signed so that more is better; what is not a number is the worst.

    >>> merit("accuracy", 0.9), merit("rmse", 0.9), merit("accuracy", float("nan"))
    (0.9, -0.9, -inf)
    """
    if not np.isfinite(value):
        return -np.inf
    return -value if metric in LESS_IS_BETTER else value


@dataclass
class Prepared:
    """Items made into examples.

    Attributes:
        items: as read.
        examples: one or more an item, in the items' order.
        groups: for each item the numbers of its examples; a step takes whole items.
        extra: whatever the task remembers about them (targets, windows).
    """

    items: Sequence[Any]
    examples: list[Example]
    groups: list[list[int]]
    extra: dict[str, Any] = field(default_factory=dict)


class Task(Protocol):
    """A task. Its `about` is what unmask.json keeps: everything that prediction needs.

    A task that reads long texts in windows says so by a class attribute `windowed = True`: training takes each window as an item.
    """

    name: str
    head: str | None
    metric: str
    about: dict[str, Any]

    @property
    def outputs(self) -> int:
        """Outputs of the head."""
        ...

    def config(self) -> dict[str, Any]:
        """Entries of config.json for transformers."""
        ...

    def prepare(self, items: Sequence[Any], *, labelled: bool) -> Prepared:
        """Items to examples; with targets where `labelled`."""
        ...

    def loss(self, model: Any, batch: PackedBatch, prepared: Prepared, numbers: np.ndarray) -> Tensor:
        """Mean loss of the items whose examples `numbers` are in the batch, in that order."""
        ...

    def terms(self, prepared: Prepared, numbers: np.ndarray) -> float | None:
        """Over how many terms (or what sum of weights) the loss of these examples is a mean; None where it compares the
        examples of a step with each other, so that they must stay together."""
        ...

    def collect(self, logits: Tensor, batch: PackedBatch, prepared: Prepared, numbers: np.ndarray) -> list[np.ndarray]:
        """Model outputs of a batch -> one array an example."""
        ...

    def decode(self, found: list[np.ndarray], prepared: Prepared) -> list[dict[str, Any]]:
        """Arrays of all examples -> one prediction an item."""
        ...

    def score(self, predictions: list[dict[str, Any]], items: Sequence[Any]) -> dict[str, float]:
        """Metrics by name; the first is the task's own."""
        ...

    def calibrate(self, found: list[np.ndarray], prepared: Prepared) -> None:
        """Fit what is fitted on validation data (temperature, thresholds) into `about`."""
        ...
