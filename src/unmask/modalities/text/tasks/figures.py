"""How well classes and labels of texts were predicted: areas, sensitivity and specificity with intervals, class by
class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from unmask.evaluation.classes import class_figures, share
from unmask.evaluation.labels import label_figures
from unmask.modalities.text.tasks.classify import names_of
from unmask.modalities.text.tasks.compare import rule
from unmask.modalities.text.tasks.held_out import groups_of

MOST = 20
"""Classes up to which each one's area under the precision-recall curve is worked out, with 500 resamples."""


def figures(task: Any, predictions: Sequence[dict[str, Any]], items: Sequence[Any], *, seed: int = 0) -> dict[str, Any]:
    """{"figures": ...}; nothing for a task without a rule, or without rows. Groups of rows count as one in intervals.

    Returns:
        `figures`, as `evaluation.classes.class_figures` (one of several classes) or `evaluation.labels.label_figures`
        (several labels at once) has it. Rows of classes have besides `sensitivity` and `specificity` (Wilson's
        intervals) of the predicted class, and up to 20 classes `auprc` and `prevalence`, what it is by chance. Of two
        classes, `auroc`, `auprc`, `sensitivity` and `specificity` of the second one stand at the top too, with
        `positive`, its name. Of tags, answers, pairs and numbers `figures` holds `rule`: the `name` of what answers
        without a model (`compare.rule`), and what that scores on these rows by every metric of the task.
    """
    if not len(items):
        return {}
    if task.name != "classify" or task.problem == "regression":
        beside = rule(task, items)
        if beside is None:
            return {}
        return {"figures": {"rule": {"name": beside.name, **task.score(beside.predictions, items)}}}
    labels = task.labels
    chance = np.array([[p["probabilities"][name] for name in labels] for p in predictions])
    number = {name: i for i, name in enumerate(labels)}
    truth = np.zeros((len(items), len(labels)), bool)
    for i, item in enumerate(items):
        truth[i, [number[name] for name in names_of(item)]] = True
    given: dict[str, Any] = {"groups": groups_of(items), "seed": seed}
    if task.problem == "multi":
        return {"figures": label_figures(truth, chance, labels, threshold=task.about.get("threshold", 0.5), **given)}
    found = class_figures(truth.argmax(1), chance, labels, **given)
    said = np.eye(len(labels), dtype=bool)[chance.argmax(1)]
    detail = label_figures(truth, chance, labels, **given)["by_label"] if len(labels) <= MOST else None
    for c, row in enumerate(found["by_class"]):
        row["sensitivity"] = row["recall"]
        row["specificity"] = share(~said[:, c], ~truth[:, c], given["groups"])
        if detail is not None:
            row["auprc"], row["prevalence"] = detail[c]["auprc"], detail[c]["prevalence"]
    out: dict[str, Any] = {"figures": found}
    if len(labels) == 2:
        row = found["by_class"][1]
        out |= {"positive": labels[1], **{k: row[k] for k in ("auroc", "auprc", "sensitivity", "specificity")}}
    return out


def rules(found: dict[str, Any]) -> dict[str, str]:
    """By metric, what a rule without a model scores, in words; nothing of classes and labels, see `lines`."""
    beside = found.get("figures", {}).get("rule", {})
    return {key: f"{beside['name']}: {beside[key]:.4f}" for key in found["metrics"]} if "name" in beside else {}


def lines(found: dict[str, Any]) -> list[str]:
    """The figures in words, for a terminal."""
    from unmask.evaluation.classes import class_lines
    from unmask.evaluation.labels import label_lines

    held = found.get("figures")
    if held is None or "name" in held.get("rule", {}):  # that stands beside each figure
        return []
    if "by_label" in held:
        return [line.replace("pictures", "texts") for line in label_lines(held)]
    out = class_lines(held)
    for name in ("auroc", "auprc", "sensitivity", "specificity"):
        figure = found.get(name)
        if figure is not None and figure["value"] is not None:
            low, high = figure["interval"]
            span = "" if low is None else f" [{low:.3f}, {high:.3f}]"
            out.append(f"{name + ' of ' + repr(found['positive']):32}{figure['value']:.3f}{span}")
    return out
