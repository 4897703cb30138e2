"""What a fine-tuning of a text model returns, which prints itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unmask.evaluation.card import Figure, figures_of
from unmask.evaluation.metrics import Estimate
from unmask.evaluation.results import figures_shown
from unmask.evaluation.shown import Printed, Shown
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
