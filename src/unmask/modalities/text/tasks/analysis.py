"""Error analysis in report.html: where a fine-tuned model errs, on what, and which tokens it went by."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from unmask.evaluation.charts import table
from unmask.evaluation.meanings import good
from unmask.evaluation.report import Report, training_curves
from unmask.modalities.text.tasks.classify import Classify, names_of
from unmask.modalities.text.tasks.data import Item
from unmask.modalities.text.tasks.held_out import groups_of
from unmask.modalities.text.tasks.model import TaskFolder
from unmask.modalities.text.tasks.prepared import Prepared
from unmask.modalities.text.tasks.task import TextTask

HARDEST, EXPLAINED, SHOWN_LABELS = 15, 6, 20


def write_report(
    out: Path,
    folder: TaskFolder,
    task: Any,
    checked: Prepared | None,
    predictions: list[dict[str, Any]] | None,
    result: dict[str, Any],
    *,
    examples: bool = False,
) -> Path:
    """Write report.html beside the model; without validation data it holds the training curves alone.

    Args:
        examples: show the rows that it is most wrong about.
    """
    report = Report(f"Fine-tuned: {task.name}", f"{result['rows']:,} training rows, seed {result['seed']}")
    shown = {k: v for k, v in result["metrics"].items() if isinstance(v, float)}
    report.facts(dict(list(shown.items())[:6]))
    report.facts({"steps": result["steps"], "seconds": result["train_seconds"], "precision": result["precision"]})
    report.section("Training", training_curves(out / "metrics.jsonl", loss="", where=""))
    if checked is None or predictions is None:
        return report.write(out / "report.html")
    if result.get("comparison"):
        rows = [
            (
                r["model"],
                r["value"],
                "" if r["low"] is None else f"{r['low']:.3f} to {r['high']:.3f}",
                "kept" if r["kept"] else "",
            )
            for r in result["comparison"]
        ]
        over = "the rows" if groups_of(checked.items) is None else "whole groups"
        note = f"{len(checked.items):,} held-out rows; intervals of 95 % over {over}; {good(result['metric'])}. "
        note += " ".join(result.get("lines", [])[-1:])
        report.section("Beside simpler models", table(("model", result["metric"], "interval", ""), rows), note=note)
    scores = [(name, value, good(name)) for name, value in shown.items()]
    report.section("Scores", table(("metric", "value", "what is good"), scores), note="On the validation data.")
    _lengths(report, task, checked, predictions)
    if isinstance(task, Classify):
        _classes(report, task, predictions, checked.items)
    if not examples:
        return report.write(out / "report.html")
    wrong = np.array([task.error(p, i) for p, i in zip(predictions, checked.items, strict=True)])
    _hardest(report, task, predictions, checked.items, wrong)
    if isinstance(task, Classify) and task.problem == "single" and len(predictions):
        worst = np.argsort(-wrong, kind="stable")[:EXPLAINED]
        _explain(report, folder, task, [checked.items[i] for i in worst], [predictions[i] for i in worst])
    return report.write(out / "report.html")


def _lengths(report: Report, task: Any, checked: Prepared, predictions: Sequence[dict[str, Any]]) -> None:
    """The task's metric by the length of the input in tokens, in quarters."""
    size = np.array([sum(len(checked.examples[i]) for i in group) for group in checked.groups])
    edges = np.unique(np.quantile(size, [0, 0.25, 0.5, 0.75, 1]))
    rows = []
    for low, high in itertools.pairwise(edges):
        mine = np.flatnonzero((size >= low) & ((size < high) | (high == edges[-1]))).tolist()
        if mine:
            scores = task.score([predictions[i] for i in mine], [checked.items[i] for i in mine])
            rows.append((f"{low:.0f} to {high:.0f}", len(mine), scores[task.metric]))
    report.section("By length", table(("tokens", "inputs", task.metric), rows))


def _classes(report: Report, task: Classify, predictions: Sequence[dict[str, Any]], items: Sequence[Item]) -> None:
    """Per label: F1, precision, recall; and which label is taken for which."""
    if task.problem == "regression":
        return
    truth = [names_of(i) for i in items]
    guess = [p.get("labels", [p["label"]]) for p in predictions]
    rows = []
    for label in task.labels:
        right = sum(label in t and label in g for t, g in zip(truth, guess, strict=True))
        there, said = sum(label in t for t in truth), sum(label in g for g in guess)
        value = 2 * right / (there + said) if there + said else 0.0
        rows.append((label, there, said, right / said if said else 0.0, right / there if there else 0.0, value))
    rows.sort(key=lambda r: r[5])
    report.section("By label", table(("label", "rows", "predicted", "precision", "recall", "F1"), rows[:100]))
    if task.problem != "single":
        return
    pairs = Counter((t[0], p["label"]) for t, p in zip(truth, predictions, strict=True))
    if len(task.labels) <= SHOWN_LABELS:
        matrix = [(t, *(pairs[t, g] for g in task.labels)) for t in task.labels]
        body = table(("true \\ predicted", *task.labels), matrix)
    else:
        mixed = [(t, g, n) for (t, g), n in pairs.most_common() if t != g][:30]
        body = table(("true", "predicted", "rows"), mixed)
    report.section("Confusion", body)


def _hardest(
    report: Report, task: TextTask, predictions: Sequence[dict[str, Any]], items: Sequence[Any], wrong: np.ndarray
) -> None:
    rows = []
    for i in np.argsort(-wrong, kind="stable")[:HARDEST]:
        rows.append((*task.in_words(items[i], predictions[i]), float(wrong[i])))
    report.section("Hardest", table(("input", "truth", "prediction", "wrong by"), rows))


def _explain(
    report: Report, folder: TaskFolder, task: Classify, items: list[Item], predictions: list[dict[str, Any]]
) -> None:
    from unmask.modalities.text.tasks.attribution import attributions

    drawn = []
    for item, found, guess in zip(items, attributions(folder, task, items), predictions, strict=True):
        most = max((abs(s) for s in found["shares"]), default=0.0) or 1.0
        marks = [
            Markup('<span style="background: rgba({}, {:.2f})" title="{:+.3f}">{}</span>').format(
                "40,160,80" if share > 0 else "200,60,50", min(1.0, abs(share) / most) * 0.6, share, token
            )
            for token, share in zip(found["tokens"], found["shares"], strict=True)
        ]
        head = Markup("<p><b>{}</b>, predicted {} ({:.2f})</p>").format(
            item.label, guess["label"], guess["probability"]
        )
        drawn.append(head + Markup('<p class="text" dir="auto">{}</p>').format(Markup(" ").join(marks)))
    report.section(
        "Which tokens it went by",
        Markup("").join(drawn),
        note="Integrated gradients of the hardest inputs: green speaks for the predicted label, red against it.",
    )
