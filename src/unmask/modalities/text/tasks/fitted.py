"""What fine-tuning for a text task works on and comes to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unmask.modalities.text.tasks import compare
from unmask.modalities.text.tasks.encoding import Prepared
from unmask.modalities.text.tasks.model import TaskFolder
from unmask.modalities.text.tasks.probe import Probed
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
