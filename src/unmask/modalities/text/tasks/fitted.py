"""What fine-tuning for a text task works on and comes to, and how much work it took."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unmask.modalities.text.tasks import compare
from unmask.modalities.text.tasks.encoding import Prepared
from unmask.modalities.text.tasks.loop import training_items
from unmask.modalities.text.tasks.model import TaskFolder
from unmask.modalities.text.tasks.probe import Probed
from unmask.modalities.text.tasks.settings import TaskSettings
from unmask.modalities.text.tasks.task import TextTask
from unmask.training.finetune import FinetuneResult


@dataclass(frozen=True, kw_only=True)
class TaskRows:
    """The rows of a run.

    Attributes:
        items: all of them; classes are learnt from them.
        training, held_out: those that are trained on before the recipe is settled, and those that choose and calibrate.
        chosen: the held-out rows were taken from the training rows; `shared`: how many are in both.
        columns: names by their parts; `source`: the name of their file, "" for rows in memory.
    """

    items: Sequence[Any]
    training: Sequence[Any]
    held_out: Sequence[Any] | None
    chosen: bool
    shared: int
    columns: dict[str, str]
    source: str = ""


@dataclass(kw_only=True)
class FittedTask:
    """A model after one run.

    Attributes:
        held_out: the rows it was evaluated on.
        tokens, expected_memory: how many were trained on; bytes, estimated before the start.
        predictions: of the kept state on the held-out rows.
        probed: how the head started; None where it was the folder's own, random, or there is none.
        comparison: with the baselines.
        compared_vectors: a linear model of the two texts' frozen vectors was fitted.
        refitted: trained on the held-out rows too, after they were scored.
    """

    folder: TaskFolder
    task: TextTask
    training: Prepared
    held_out: Prepared | None
    outcome: FinetuneResult
    tokens: int = 0
    expected_memory: float = math.nan
    predictions: list[dict[str, Any]] | None = None
    probed: Probed | None = None
    comparison: compare.Comparison | None = None
    compared_vectors: bool = False
    refitted: bool = False

    @property
    def trained_on(self) -> int:
        """On how many rows."""
        return len(self.training.items)

    def lines(self, rows: int) -> list[str]:
        """What was compared, what is kept, and on which of `rows` rows it was trained, for a terminal."""
        if self.comparison is None or self.held_out is None:
            return []
        items = self.held_out.items
        found = self.comparison.lines(self.task.metric, len(items))
        if self.task.problem == "regression" and self.predictions is not None:
            mean = float(self.training.extra["target"].mean())
            of_mean = self.task.score([{"value": mean}] * len(items), items)["rmse"]
            own = self.task.score(self.predictions, items)["rmse"]
            line = f"its rmse is {own:.4g}, that of the mean of the training rows {of_mean:.4g}"
            found.append(line if own < of_mean else f"warning: {line}: as numbers its answers are no better than it")
        whole = "all" if self.trained_on == rows else f"{self.trained_on:,} of"
        seen = "; the scores are of the model before it saw the held-out ones" if self.refitted else ""
        return [*found, f"trained on {whole} {rows:,} rows{seen}"]


PADDED_ROWS = 8
"""Rows per step, padded to the longest of them: the defaults of transformers' Trainer."""
STEP_PASSES = 3.0
"""A training step takes as long as so many forward passes."""
PACKED_SLOTS = 1.07
"""Slots of packed steps for each slot of their texts (1.04 to 1.10 on five sets, steps of 32)."""


def work_ratio(fitted: FittedTask, settings: TaskSettings) -> float:
    """Work of choosing and of training again on all rows, as a multiple of training on all rows for as many epochs in
    padded steps; of a run with rows held out that kept a state after some training."""
    held_out, outcome = fitted.held_out, fitted.outcome
    assert held_out is not None
    width = fitted.folder.text.model.encoder.config.width
    parts = (fitted.training, held_out)
    rest, held = (forward_work(np.array([len(e) for e in part.examples]), width) for part in parts)
    everything = np.concatenate([rest, held])
    items = len(training_items(fitted.task, fitted.training))
    epochs = outcome.steps / -(-items // settings.batch)
    passes = int(fitted.probed is not None) + int(fitted.compared_vectors)
    steps = STEP_PASSES * PACKED_SLOTS * epochs
    spent = rest.sum() * (passes + steps) + held.sum() * (passes + 2 + len(outcome.history))
    again = everything.sum() * (passes + steps * outcome.kept_step / outcome.total)
    return float((spent + again) / padded_work(everything, epochs, settings.seed))


def padded_work(costs: np.ndarray, epochs: float, seed: int) -> float:
    """Work of padded steps over examples of these costs: every one costs as much as the longest of its step."""
    order = np.random.default_rng([seed, 37]).permutation(len(costs))
    steps = np.split(costs[order], range(PADDED_ROWS, len(costs), PADDED_ROWS))
    return float(STEP_PASSES * epochs * sum(len(step) * step.max() for step in steps))


def forward_work(lengths: np.ndarray, width: int) -> np.ndarray:
    """Work of a forward pass over examples, in slots of a very short one."""
    return lengths * (1 + lengths / (1.85 * width))
