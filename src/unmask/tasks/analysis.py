"""Error analysis in report.html: where a fine-tuned model errs, on what, and which tokens it went by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unmask.evaluation.report import Report, training_curves
from unmask.tasks.model import TaskFolder
from unmask.tasks.task import Prepared


def write_report(
    out: Path, folder: TaskFolder, task: Any, checked: Prepared | None, predictions: list[dict[str, Any]] | None,
    result: dict[str, Any],
) -> Path:  # fmt: skip
    """Write report.html beside the model."""
    report = Report(f"Fine-tuned: {task.name}", f"{result['rows']:,} training rows")
    shown = {k: v for k, v in result["metrics"].items() if isinstance(v, float)}
    report.facts(dict(list(shown.items())[:6]))
    report.facts({"steps": result["steps"], "seconds": result["train_seconds"], "precision": result["precision"]})
    report.section("Training", training_curves(out / "metrics.jsonl"))
    return report.write(out / "report.html")
