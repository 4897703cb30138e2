"""What fine-tuning for a text task works on and comes to: its rows, the model after a run, and the result that prints
itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.evaluation.card import Figure, figures_of
from unmask.evaluation.metrics import Estimate
from unmask.evaluation.results import figures_shown
from unmask.evaluation.shown import Printed, Shown
from unmask.modalities.text.tasks import compare
from unmask.modalities.text.tasks.encoding import Prepared
from unmask.modalities.text.tasks.model import TaskFolder
from unmask.modalities.text.tasks.probe import Probed
from unmask.modalities.text.tasks.task import TextTask
from unmask.training.finetune import FinetuneResult
from unmask.training.job import ModelOfRun

NAN = float("nan")


class TaskRun(ModelOfRun, Printed, dict[str, Any]):
    """What came of a fine-tuning: its figures by name (`finetune` lists them)."""

    @property
    def folder(self) -> Path:  # type: ignore[override]
        """Where the fine-tuned model is."""
        return Path(self["out"])

    def shown(self) -> Shown:
        """The metric beside those of the baselines, or all metrics; what was said of them."""
        metric, saved = self["metric"], f"run.model.save({self['task']!r})"
        title = f"Fine-tuned for {self['task']}, {self['steps']} steps in {self['train_seconds']:.0f} s: {self.folder}"
        if self["stopped"] == "signal":
            return Shown(title=title, notes=["stopped before its end: resume=True goes on"])
        if not (rivals := self["comparison"]):
            rows = list(self["metrics"].items())
            notes = [] if rows else ["no rows were held out: nothing is judged"]
            return Shown(title=title, columns=("metric", "held-out rows"), rows=rows, notes=notes, next_step=saved)
        notes = [line for line in self["lines"] if line.startswith(("warning", "trained on"))]
        rows = [(row["model"], _estimate(row), "kept" if row["kept"] else "") for row in rivals]
        return Shown(title=title, columns=("model", metric, ""), rows=rows, notes=notes, next_step=saved)


def judged_shown(found: Mapping[str, Any]) -> Shown:
    """What of a task's figures on labelled rows a person looks at, beside those of a rule without a model."""
    ends, metrics = {found["metric"]: (found["low"], found["high"])}, found["metrics"]
    figures = figures_of({**metrics, "intervals": ends}, list(metrics))
    held = found.get("figures") or {}
    if "most_frequent_accuracy" in held:
        of = f"always {held['most_frequent']!r}"
        figures.append(Figure(name="accuracy", value=held["most_frequent_accuracy"], of=of))
    elif "by_label" in held:
        rule = {f"f1_{how}": held["rule"][f"{how}_f1"] for how in ("micro", "macro")}
        figures += figures_of(rule, list(rule), of="every label that occurs")
    elif "rule" in held:
        figures += figures_of(held["rule"], list(metrics), of=held["rule"]["name"])
    return figures_shown(f"{found['task']}: {found['rows']:,} labelled rows judged", figures)


def _estimate(row: dict[str, Any]) -> Estimate:
    """The value of a row of the comparison, with its interval where it has one."""
    low, high = (NAN if row[end] is None else float(row[end]) for end in ("low", "high"))
    return Estimate(row["value"], low, high, 0)


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
