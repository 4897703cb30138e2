"""What a task brings: how its data is read, examples, a loss, predictions from logits, and a score."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from torch import Tensor

from unmask.core.batch import PackedBatch
from unmask.modalities.text.network.folder import TextFolder
from unmask.modalities.text.tasks.data import Problems
from unmask.modalities.text.tasks.encoding import ExampleMaker, Prepared
from unmask.modalities.text.tasks.network import TaskModel
from unmask.modalities.text.tasks.probe import Probed
from unmask.modalities.text.tasks.row_files import Columns
from unmask.modalities.text.tasks.settings import TaskSettings

SHOWN = 300
"""Characters of a text that a report shows."""


class TextTask(ABC):
    """A task on an encoder of text, the base of every task's class.

    `name`, `metric` and the abstract methods are a task's own; the others have defaults.

    Args:
        about: everything that prediction needs, as JSON: what unmask.json keeps.
    """

    name: ClassVar[str]
    """What the command line and unmask.json call it."""
    metric: str
    """What early stopping goes by: one of the names that `score` returns."""
    top: ClassVar[float] = 1.0
    """What a metric that is a share (accuracy, F1, exact) is of perfect predictions."""
    head: ClassVar[str | None] = None
    """Which head stands on the encoder (`families.heads`): 'sequence', 'token', 'span', or None for pooled states."""
    windowed: ClassVar[bool] = False
    """Whether long texts are read in windows: training then takes each window as an item."""
    options: ClassVar[tuple[str, ...]] = ()
    """Arguments of `finetune` that `from_items` takes besides."""
    problem: str = ""
    """What a row's label is, where a task tells: 'single' class, 'multi' (any number of labels) or 'regression'."""
    pairs: bool | None = False
    """Whether a row of two texts without a label is a pair; None where the model does not say."""
    uses_vocabulary: bool = False
    """Whether the loss reads the whole table of word embeddings, as a masked-token loss does."""

    def __init__(self, encoder: ExampleMaker, about: dict[str, Any]) -> None:
        self.encoder, self.about = encoder, about

    @classmethod
    @abstractmethod
    def read(
        cls, data: Any, columns: Columns | None, *, labelled: bool, problems: Problems | None
    ) -> tuple[list[Any], Columns | None]:
        """Items from a file or Python rows, and which columns they came from (None where there is no choice).

        Args:
            labelled: with what is to be predicted.
            problems: notes rows that are wrong.
        """

    def label_remarks(self, items: Sequence[Any]) -> list[str]:
        """What people should know of the labels, in words."""
        return []

    @classmethod
    def remarks(cls, encoder: ExampleMaker, items: Sequence[Any], *, labelled: bool) -> list[str]:
        """What people should know of the items before they are used, in words: what of them is cut or
        cannot be learnt."""
        return []

    @classmethod
    @abstractmethod
    def from_items(cls, encoder: ExampleMaker, items: Sequence[Any], settings: TaskSettings) -> Self:
        """The task to train, as its training items show it."""

    def named(self, items: list[Any]) -> list[Any]:
        """Labelled items whose labels are this model's."""
        return items

    def known(self, item: Any) -> Any:
        """The labelled item, refused where this model does not have its label."""
        return item

    @classmethod
    def outputs_of(cls, about: Mapping[str, Any]) -> int:
        """Outputs of the head of a saved model."""
        return len(about.get("labels") or ())

    @classmethod
    def simpler_of(cls, about: Mapping[str, Any]) -> tuple[str, int]:
        """What a saved baseline is for, and how many numbers it gives; see `baselines.PROBLEMS`."""
        return cls.name, cls.outputs_of(about)

    @property
    def outputs(self) -> int:
        """Outputs of the head."""
        return self.outputs_of(self.about)

    def config(self) -> dict[str, Any]:
        """Entries of config.json for transformers: the names of the labels, where there are any."""
        labels = self.about.get("labels")
        if not labels:
            return {}
        return {
            "num_labels": len(labels),
            "id2label": {str(i): name for i, name in enumerate(labels)},
            "label2id": {name: i for i, name in enumerate(labels)},
        }

    @abstractmethod
    def prepare(self, items: Sequence[Any], *, labelled: bool) -> Prepared:
        """Items to examples; with targets where `labelled`."""

    def start_head(self, text: TextFolder, model: TaskModel, training: Prepared, **given: Any) -> Probed | None:
        """Make the head a linear probe of the frozen encoder; None where it starts at random."""
        return None

    @abstractmethod
    def loss(self, model: TaskModel, batch: PackedBatch, prepared: Prepared, numbers: np.ndarray) -> Tensor:
        """Mean loss of the items whose examples `numbers` are in the batch, in that order."""

    def terms(self, prepared: Prepared, numbers: np.ndarray) -> float | None:
        """Over how many terms (or what sum of weights) the loss of these examples is a mean; None where it compares the
        examples of a step with each other, so that they must stay together."""
        return float(len(numbers))

    def collect(self, logits: Tensor, batch: PackedBatch, prepared: Prepared, numbers: np.ndarray) -> list[np.ndarray]:
        """Model outputs of a batch -> one array per example."""
        return list(logits.cpu().numpy())

    @abstractmethod
    def decode(self, found: list[np.ndarray], prepared: Prepared) -> list[dict[str, Any]]:
        """Arrays of all examples -> one prediction per item."""

    @abstractmethod
    def score(self, predictions: list[dict[str, Any]], items: Sequence[Any]) -> dict[str, float]:
        """Metrics by name; the first is the task's own."""

    def value(self, predictions: list[dict[str, Any]], items: Sequence[Any]) -> float:
        """The task's own metric alone, for those who draw rows a hundred times."""
        return float(self.score(predictions, items)[self.metric])

    def error(self, prediction: dict[str, Any], item: Any) -> float:
        """How wrong one prediction is, for the report's list of the hardest: larger is worse."""
        return -float(self.score([prediction], [item])[self.metric])

    def in_words(self, item: Any, prediction: dict[str, Any]) -> tuple[str, str, str]:
        """(input, truth, prediction) of a row of the report."""
        answer = ", ".join(f"{key} {value}" for key, value in prediction.items())
        return str(getattr(item, "text", item))[:SHOWN], str(getattr(item, "label", "")), answer[:SHOWN]

    def calibrate(self, found: list[np.ndarray], prepared: Prepared) -> None:  # noqa: B027 - most have nothing to fit
        """Fit what is fitted on validation data (temperature, thresholds) into `about`."""

    def judged(self, found: list[np.ndarray], prepared: Prepared) -> list[dict[str, Any]]:
        """Calibrate, and the predictions of these very rows by which the model is judged."""
        self.calibrate(found, prepared)
        return self.decode(found, prepared)
