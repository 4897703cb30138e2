"""The pages on a fine-tuned image model: that of its training, and that of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.evaluation.classes import class_lines, class_table, confusion_table
from unmask.evaluation.labels import label_lines, label_table, means_table
from unmask.evaluation.report import Report, training_curves
from unmask.evaluation.values import value_chart, value_lines, value_table

LOSSES = {"single": "nats per picture", "multi": "nats per label", "regression": "squared error, in variances"}
KEPT = {
    "accuracy": "accuracy",
    "macro_auprc": "mean AUPRC of the labels",
    "loss": "mean log loss of the labels",
    "rmse": "RMSE",
}
"""What the best state is kept by, in words."""


def scored_lines(found: Mapping[str, Any]) -> list[str]:
    """Figures of an evaluation in words, for a terminal."""
    made = {"single": class_lines, "multi": label_lines, "regression": value_lines}
    return made[found["problem"]](dict(found))


def finetuned_report(new: Path, out: Path, figures: Mapping[str, Any], settings: Any, notes: Sequence[str]) -> None:
    """`report.html` of a fine-tuning into `new`, of the curves in `out`: figures on its held-out pictures, settings."""
    problem, found = figures["problem"], figures.get("validation")
    page = Report(
        {"single": "Image classification", "multi": "Labels of images"}.get(problem, "A number of images"), str(out)
    )
    shown = {"Pictures": figures["pictures"], "Steps": figures["steps"], "Time": f"{figures['seconds']:.0f} s"}
    if problem != "regression":
        shown = {"Classes" if problem == "single" else "Labels": figures["classes"], **shown}
    page.facts(shown if found is None else _facts(found) | shown)
    if found is not None:
        chosen = " The best epoch was chosen on these pictures: on new ones expect a little less."
        _scores(page, found, chosen if settings.keep_best else "")
    curves = training_curves(out / "metrics.jsonl", loss=LOSSES[problem], where="")
    page.section("Training", curves, note="; ".join(notes))
    page.settings(settings)
    page.write(new / "report.html")


def evaluation_report(
    found: Mapping[str, Any], path: str | Path, *, model: str, data: str, notes: Sequence[str]
) -> None:
    """The page of `unmask evaluate MODEL DATA --report FILE`, of what `Classifier.evaluate` found; `notes`: what was
    made of the pictures."""
    page = Report(f"{model} on {data}").facts(_facts(found) | {"Pictures": found["pictures"]})
    _scores(page, found, "")
    page.section("The pictures", "\n\n".join(notes))
    page.of_model(model).write(path)


def _facts(found: Mapping[str, Any]) -> dict[str, Any]:
    if found["problem"] == "single":
        often = f"{found['most_frequent_accuracy']:.1%} ({found['most_frequent']})"
        facts = {"Accuracy": f"{found['accuracy']:.1%}", "Most frequent class": often}
        raw = found.get("raw_probe_accuracy")
        return facts if raw is None else facts | {"Linear probe of raw pixels": f"{raw:.1%}"}
    if found["problem"] == "multi":
        pairs = {"Macro AUROC": "macro_auroc", "Macro AUPRC": "macro_auprc", "Micro F1": "micro_f1"}
        shown = {title: found[name] for title, name in pairs.items()}
        return {title: "-" if value is None else f"{value:.3f}" for title, value in shown.items()}
    rule = found["mean_rule"]
    r2 = "-" if found["r2"] is None else f"{found['r2']:.3f}"
    return {"R2": r2, "RMSE": f"{found['rmse']:.4g}", "RMSE of the mean": f"{rule['rmse']:.4g}"}


def _scores(page: Report, found: Mapping[str, Any], chosen: str) -> None:
    scores, n = dict(found), f"{found['n']:,} pictures"
    if found["problem"] == "single":
        page.section(
            "What is taken for what",
            confusion_table(scores, found["classes"]),
            note=f"{n}: the true class by row, the predicted one by column; darker where a larger share of the row "
            f"is.{chosen}",
        )
        page.section(
            "By class",
            class_table(scores),
            note="95 % intervals: Wilson's of precision and recall, bootstrap of F1 (Wilson's of 0 and 1), DeLong's "
            "(of few Newcombe's) of the area under the ROC curve, one class against the rest. Pictures of one group "
            "count as one where groups are given.",
        )
    elif found["problem"] == "multi":
        page.section(
            "All labels",
            means_table(scores),
            note=f"{n}. Macro: the mean over labels; micro: over all decisions. Beside them what the labels' shares "
            "alone give, without a look at a picture (F1: always giving every label). 95 % intervals by bootstrap of "
            f"whole groups.{chosen}",
        )
        page.section(
            "By label",
            label_table(scores),
            note=f"A label is given from a probability of {found['threshold']:g} on. Without a look at a picture "
            "AUROC is 0.5 and AUPRC the label's share. Intervals: DeLong's (of few Newcombe's) of AUROC, Wilson's of "
            "precision and recall, bootstrap of AUPRC and F1, over groups where they are given.",
        )
    else:
        page.section("Errors", value_table(scores), note=f"{n}; 95 % intervals by bootstrap of whole groups.{chosen}")
        page.chart(value_chart(scores, str(found["classes"][0])))
