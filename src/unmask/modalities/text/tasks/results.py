"""What the verbs of text tasks return: figures and predictions by name, which print themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unmask.evaluation.metrics import Estimate
from unmask.evaluation.shown import Printed, Shown
from unmask.training.job import ModelOfRun

SHOWN = 10
"""Predictions that are printed."""
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


class Predictions(Printed, list[dict[str, Any]]):
    """One prediction per input, in order (`predict` says what each holds)."""

    def shown(self) -> Shown:
        """The first predictions, without what the rows brought along."""
        rows = [{k: v for k, v in row.items() if k not in ("input", "probabilities", "nbest")} for row in self[:SHOWN]]
        columns = list(dict.fromkeys(name for row in rows for name in row))
        left = f", of which the first {SHOWN} are shown" if len(self) > SHOWN else ""
        cells = [[_cell(row.get(name)) for name in columns] for row in rows]
        return Shown(
            title=f"{len(self):,} predictions{left}", columns=columns, rows=cells, next_step="found.to_frame()"
        )

    def to_frame(self) -> Any:
        """All predictions as a pandas frame where pandas is installed, else as a polars one."""
        columns = list(dict.fromkeys(name for row in self for name in row))
        return Shown(title="", columns=columns, rows=[[row.get(n) for n in columns] for row in self]).frame()


def _estimate(row: dict[str, Any]) -> Estimate:
    """The value of a row of the comparison, with its interval where it has one."""
    low, high = (NAN if row[end] is None else float(row[end]) for end in ("low", "high"))
    return Estimate(row["value"], low, high, 0)


def _cell(value: Any) -> Any:
    """A value of a prediction as it is printed: a number, or a text that is not too long."""
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, list) and value and isinstance(value[0], dict):
        value = ", ".join(f"{one.get('text')!r}: {one.get('label', '')}" for one in value)
    elif isinstance(value, dict):
        value = value.get("text", value)
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
