"""Error analysis in report.html: where a fine-tuned model errs, on what, and which tokens it went by."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.core.batch import pack
from unmask.evaluation.charts import drawn, table
from unmask.evaluation.classes import SHOWN, class_figures, class_lines, class_table, confusion_table, share
from unmask.evaluation.labels import label_figures, label_lines
from unmask.evaluation.meanings import good, meaning
from unmask.evaluation.report import Report, training_curves
from unmask.evaluation.resampling import with_interval
from unmask.modalities.text.tasks.classify import Classify, names_of
from unmask.modalities.text.tasks.compare import rule
from unmask.modalities.text.tasks.data import Item
from unmask.modalities.text.tasks.encoding import Prepared
from unmask.modalities.text.tasks.held_out import dependent
from unmask.modalities.text.tasks.model import TaskFolder
from unmask.modalities.text.tasks.network import embedding_as

HARDEST, EXPLAINED = 15, 6
REMARKS = ("warning", "saved", "trained on")
"""What the lines begin with that say of a comparison what its table does not."""


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
    """Write report.html beside the model; without validation data it holds the training curves alone."""
    report = Report(f"Fine-tuned: {task.name}", f"{result['rows']:,} training rows, seed {result['seed']}")
    shown = {k: v for k, v in result["metrics"].items() if isinstance(v, float)}
    report.facts({_named(task, name): value for name, value in list(shown.items())[:4]})
    report.facts({"Steps": result["steps"], "Time": f"{result['train_seconds']:.0f} s"})
    report.facts({"Number format": result["precision"]})
    curves = training_curves(out / "metrics.jsonl", loss="", where="")
    if checked is None or predictions is None:
        return report.section("Training", curves).write(out / "report.html")
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
        over = "the rows" if dependent(checked.items) is None else "whole groups, and copies as one"
        note = f"{len(checked.items):,} held-out rows; intervals of 95 % over {over}; {good(result['metric'])}. "
        report.section(
            "Beside simpler models", "\n\n".join(line for line in result["lines"] if line.startswith(REMARKS))
        )
        heads = ("model", _named(task, result["metric"]), "interval", "")
        report.section("", table(heads, rows), note=note)
    scores = [(_named(task, name), value, good(name)) for name, value in shown.items()]
    report.section("Scores", table(("metric", "value", "what is good"), scores), note="On the held-out rows.")
    report.section("Training", curves)
    _lengths(report, task, checked, predictions)
    if isinstance(task, Classify):
        _classes(report, task, predictions, checked.items)
    if not examples:
        return report.write(out / "report.html")
    wrong = np.array([task.error(p, i) for p, i in zip(predictions, checked.items, strict=True)])
    worst = np.argsort(-wrong, kind="stable")
    rows = [(*task.in_words(checked.items[i], predictions[i]), float(wrong[i])) for i in worst[:HARDEST]]
    report.section("Hardest", table(("input", "truth", "prediction", "wrong by"), rows))
    if isinstance(task, Classify) and task.problem == "single" and len(predictions):
        some = worst[:EXPLAINED]
        _explain(report, folder, task, [checked.items[i] for i in some], [predictions[i] for i in some])
    return report.write(out / "report.html")


def _named(task: Any, metric: str) -> str:
    """A metric in words; those of answers go up to 100."""
    found = meaning(metric)
    label = found.label if found else metric.replace("_", " ")
    return f"{label}, of 100" if task.name == "answer" else label


def _lengths(report: Report, task: Any, checked: Prepared, predictions: Sequence[dict[str, Any]]) -> None:
    """The task's metric by the length of the input in tokens, in quarters."""
    size = np.array([sum(len(checked.examples[i]) for i in group) for group in checked.groups])
    edges = np.unique(np.quantile(size, [0, 0.25, 0.5, 0.75, 1]))
    rows = []
    for low, high in itertools.pairwise(edges):
        rows_here = np.flatnonzero((size >= low) & ((size < high) | (high == edges[-1]))).tolist()
        if rows_here:
            scores = task.score([predictions[i] for i in rows_here], [checked.items[i] for i in rows_here])
            rows.append((f"{low:.0f} to {high:.0f}", len(rows_here), scores[task.metric]))
    report.section("By length", table(("tokens", "inputs", _named(task, task.metric)), rows))


def _classes(report: Report, task: Classify, predictions: Sequence[dict[str, Any]], items: Sequence[Item]) -> None:
    """Scores of each label, of classes the worst first, and which class is taken for which."""
    if task.problem == "regression":
        return
    truth = [names_of(item) for item in items]
    if task.problem == "multi":  # counts alone: intervals of areas take longer than many a training
        rows = []
        for label in task.labels:
            there = np.array([label in names for names in truth])
            guessed = np.array([label in p["labels"] for p in predictions])
            found = [share(there, guessed), share(guessed, there)]
            precision, recall = (one["value"] if one else 0.0 for one in found)
            f1 = 2 * precision * recall / (precision + recall) if precision else 0.0
            rows.append((label, int(there.sum()), int(guessed.sum()), precision, recall, f1))
        rows.sort(key=lambda row: row[-1])
        report.section("By label", table(("label", "rows", "predicted", "precision", "recall", "F1"), rows[:100]))
        return
    chance = np.array([[p["probabilities"][name] for name in task.labels] for p in predictions])
    number = np.array([task.number[names[0]] for names in truth])
    figured = class_figures(number, chance, task.labels, groups=dependent(items))
    confusion = confusion_table(figured, task.labels)
    figured["by_class"].sort(key=lambda row: row["f1"]["value"] if row["f1"] else 0.0)
    report.section("By label", class_table(figured | {"by_class": figured["by_class"][:100]}))
    if len(task.labels) > SHOWN:
        pairs = Counter((names[0], p["label"]) for names, p in zip(truth, predictions, strict=True))
        mixed = [(t, g, n) for (t, g), n in pairs.most_common() if t != g][:30]
        confusion = table(("true", "predicted", "rows"), mixed)
    report.section("Confusion", confusion)


def _explain(
    report: Report, folder: TaskFolder, task: Classify, items: list[Item], predictions: list[dict[str, Any]]
) -> None:
    shown = []
    for item, found, guess in zip(items, attributions(folder, task, items), predictions, strict=True):
        most = max((abs(s) for s in found["shares"]), default=0.0) or 1.0
        tokens = [
            (token, "40,160,80" if s > 0 else "200,60,50", f"{min(1.0, abs(s) / most) * 0.6:.2f}", f"{s:+.3f}")
            for token, s in zip(found["tokens"], found["shares"], strict=True)
        ]
        shown.append((item.label, guess["label"], f"{guess['probability']:.2f}", tokens))
    report.section(
        "Which tokens it went by",
        drawn("attributions", shown),
        note="Integrated gradients of the hardest inputs: green speaks for the predicted label, red against it.",
    )


def attributions(folder: TaskFolder, task: Classify, items: Sequence[Item], *, steps: int = 32) -> list[dict[str, Any]]:
    """Each token's share in the logit of the predicted label: for each item label, tokens, shares and gap. The path
    runs from the mask embedding (special tokens stay) to the text; the shares add up to the logit's difference between
    the two ends, up to the error of `steps` midpoints, which is `gap` (relative)."""
    prepared = task.prepare(items, labelled=False)
    masked, out = folder.model.masked, []
    folder.model.eval()
    for e in prepared.examples:
        batch = pack([e], slots=len(e)).to(folder.device)
        codec = masked.codec
        hidden = ~batch.special
        with torch.no_grad():
            end = codec.embed(batch.values, torch.zeros_like(hidden))
            start = codec.embed(batch.values, hidden)
            logits = folder.model(batch, 1)[0]
        chosen = int(logits.argmax()) if len(logits) > 1 else 0
        change = end - start
        total = torch.zeros_like(change)
        for k in range(steps):
            point = (start + (k + 0.5) / steps * change).requires_grad_()
            with embedding_as(codec, _always(point)):
                (gradient,) = torch.autograd.grad(folder.model(batch, 1)[0, chosen], point)
            total += gradient
        with torch.no_grad(), embedding_as(codec, _always(start)):
            base = folder.model(batch, 1)[0, chosen]
        shares = (change * total / steps).sum(-1)[0]
        difference = float(logits[chosen] - base)
        ids = e.values["token"]
        keep = ~np.asarray(e.special)
        out.append(
            {
                "label": task.labels[chosen] if task.labels else float(logits[0]),
                "tokens": [folder.tokenizer.token(int(i)) for i in ids[keep]],
                "shares": shares.cpu().numpy()[keep].tolist(),
                "gap": abs(float(shares.sum()) - difference) / max(abs(difference), 1e-6),
            }
        )
    return out


def _always(x: Tensor) -> Callable[[dict[str, Tensor], Tensor], Tensor]:
    """An embedding that is `x` whatever the values."""
    return lambda values, masked: x


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
        baseline = rule(task, items)
        if baseline is None:
            return {}
        return {"figures": {"rule": {"name": baseline.name, **task.score(baseline.predictions, items)}}}
    labels = task.labels
    chance = np.array([[p["probabilities"][name] for name in labels] for p in predictions])
    number = {name: i for i, name in enumerate(labels)}
    truth = np.zeros((len(items), len(labels)), bool)
    for i, item in enumerate(items):
        truth[i, [number[name] for name in names_of(item)]] = True
    given: dict[str, Any] = {"groups": dependent(items), "seed": seed}
    if task.problem == "multi":
        return {"figures": label_figures(truth, chance, labels, threshold=task.about.get("threshold", 0.5), **given)}
    found = class_figures(truth.argmax(1), chance, labels, **given)
    guessed = np.eye(len(labels), dtype=bool)[chance.argmax(1)]
    detail = label_figures(truth, chance, labels, **given)["by_label"] if len(labels) <= MOST else None
    for c, row in enumerate(found["by_class"]):
        row["sensitivity"] = row["recall"]
        row["specificity"] = share(~guessed[:, c], ~truth[:, c], given["groups"])
        if detail is not None:
            row["auprc"], row["prevalence"] = detail[c]["auprc"], detail[c]["prevalence"]
    out: dict[str, Any] = {"figures": found}
    if len(labels) == 2:
        row = found["by_class"][1]
        out |= {"positive": labels[1], **{k: row[k] for k in ("auroc", "auprc", "sensitivity", "specificity")}}
    return out


def rules(found: dict[str, Any]) -> dict[str, str]:
    """By metric, what a rule without a model scores, in words; nothing of classes and labels, see `lines`."""
    baseline = found.get("figures", {}).get("rule", {})
    return {key: f"{baseline['name']}: {baseline[key]:.4f}" for key in found["metrics"]} if "name" in baseline else {}


def lines(found: dict[str, Any]) -> list[str]:
    """The figures in words, for a terminal."""
    held = found.get("figures")
    if held is None or "name" in held.get("rule", {}):  # that stands beside each figure
        return []
    if "by_label" in held:
        return [line.replace("pictures", "texts") for line in label_lines(held)]
    out = class_lines(held)
    for name in ("auroc", "auprc", "sensitivity", "specificity"):
        figure = found.get(name)
        if figure is not None and figure["value"] is not None:
            out.append(f"{name + ' of ' + repr(found['positive']):32}{with_interval(figure)}")
    return out
