"""What a figure says, by its name: its label, which direction is good, and what a rule without a model scores.

One place for all kinds of data: reports, model cards and what commands print take it from here. Figures of one kind
alone (of synthetic rows, say) have a table of their own, made of the same `Meaning`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

LOWER, HIGHER = "lower", "higher"


@dataclass(frozen=True)
class Meaning:
    """What a figure says. `better`: "lower", "higher", or "near X" where X is the best there is and both sides of it
    are worse; `best`: the best value there is, NaN where there is none; `short`: the label in a picture."""

    label: str
    better: str
    best: float
    sentence: str
    short: str = ""

    @property
    def good(self) -> str:
        """The direction in words, such as "higher is better"."""
        return f"{self.better} is better" if self.better in (LOWER, HIGHER) else f"{self.better} is best"


_NAN = float("nan")

MEANINGS: dict[str, Meaning] = {
    "loss": Meaning("loss", LOWER, 0, "Mean negative log probability of the hidden values, in nats."),
    "perplexity": Meaning("perplexity", LOWER, 1, "Exponential of the loss: among how many equal values it wavers."),
    "nelbo": Meaning(
        "NELBO",
        LOWER,
        0,
        "Bound on minus the log-likelihood per token, in nats: a causal model's loss compares with it.",
    ),
    "nelbo_perplexity": Meaning("NELBO perplexity", LOWER, 1, "Exponential of the NELBO: bounds a causal perplexity."),
    "nelbo_bits_per_byte": Meaning("NELBO bits per byte", LOWER, 0, "Bound on the bits that a byte of the text takes."),
    "nelbo_bits_per_character": Meaning(
        "NELBO bits per character", LOWER, 0, "Bound on the bits that a character of the text takes."
    ),
    "accuracy": Meaning("accuracy", HIGHER, 1, "Share of the answers that are right."),
    "accuracy_at_1": Meaning("accuracy at 1", HIGHER, 1, "Share of the hidden values that are its first guess."),
    "accuracy_at_5": Meaning("accuracy at 5", HIGHER, 1, "Share of the hidden values among its first five guesses."),
    "auroc": Meaning("AUROC", HIGHER, 1, "How often a positive is given more than a negative; 0.5 is chance."),
    "auprc": Meaning("AUPRC", HIGHER, 1, "Mean precision over all thresholds; chance is the share of positives."),
    "f1": Meaning("F1", HIGHER, 1, "Harmonic mean of precision and recall."),
    "precision": Meaning("precision", HIGHER, 1, "Of what was found, the share that is right."),
    "recall": Meaning("recall", HIGHER, 1, "Of what is there, the share that was found."),
    "sensitivity": Meaning("sensitivity", HIGHER, 1, "Of the positives, the share that was found."),
    "specificity": Meaning("specificity", HIGHER, 1, "Of the negatives, the share that was left alone."),
    "matthews": Meaning("Matthews correlation", HIGHER, 1, "Correlation of true and predicted classes; 0 is chance."),
    "exact": Meaning("exact", HIGHER, 1, "Share of the answers that are right in every part."),
    "brier": Meaning("Brier score", LOWER, 0, "Mean squared error of the probabilities."),
    "ece": Meaning(
        "calibration error", LOWER, 0, "Mean distance of predicted and observed shares, in bins, less what chance adds."
    ),
    "ece_floor": Meaning(
        "chance's part of the calibration error", LOWER, 0, "What chance adds in so few rows: taken off it already."
    ),
    "calibration_error": Meaning("calibration error", LOWER, 0, "Mean distance of confidence and accuracy, in bins."),
    "slope": Meaning("calibration slope", "near 1", 1, "Below 1 the probabilities are too extreme."),
    "intercept": Meaning("calibration intercept", "near 0", 0, "Above 0 the probabilities are too low on average."),
    "log_loss": Meaning("log loss", LOWER, 0, "Mean negative log probability of the true class."),
    "c_index": Meaning(
        "C-index", HIGHER, 1, "How often the patient with the earlier event has the higher risk; 0.5 is chance."
    ),
    "rmse": Meaning("RMSE", LOWER, 0, "Root of the mean squared error, in the unit of the numbers."),
    "sum_mae": Meaning("error of sums", LOWER, 0, "By how much the sum over a picture is off, on average."),
    "nrmse": Meaning(
        "RMSE / deviation", LOWER, 0, "Over the column's deviation: always saying the mean gives about 1."
    ),
    "wrong": Meaning("share wrong", LOWER, 0, "Share of the categories that are wrong."),
    "mae": Meaning("mean error", LOWER, 0, "Mean absolute error, in the unit of the numbers."),
    "r2": Meaning("R²", HIGHER, 1, "Share of the variance that is explained; always saying the mean gives 0."),
    "spearman": Meaning("rank correlation", HIGHER, 1, "Spearman's; 0 is chance."),
    "pearson": Meaning("correlation", HIGHER, 1, "Pearson's; 0 is chance."),
    "coverage": Meaning("within the interval", "near its level", _NAN, "Share of the true numbers in their intervals."),
    "knn_accuracy": Meaning("neighbours", HIGHER, 1, "Accuracy of the nearest neighbours by the model's features."),
    "probe_accuracy": Meaning("linear probe", HIGHER, 1, "Accuracy of a linear classifier on the model's features."),
    "raw_knn_accuracy": Meaning("neighbours, raw pixels", HIGHER, 1, "The same without the model: what it must beat."),
    "raw_probe_accuracy": Meaning(
        "linear probe, raw pixels", HIGHER, 1, "The same without the model: what it must beat."
    ),
    "ndcg": Meaning("nDCG", HIGHER, 1, "How far up the relevant documents stand."),
    "dice": Meaning("Dice", HIGHER, 1, "Twice the pixels that are right, over those of the mask and those predicted."),
    "iou": Meaning("IoU", HIGHER, 1, "Pixels that are right, over those that are in the mask or predicted."),
    "border_f": Meaning("F of borders", HIGHER, 1, "Mean (harmonic) of the shares of true and predicted border found."),
    "mrr": Meaning("MRR", HIGHER, 1, "One over the place of the first relevant document, on average."),
}
"""Meaning by name. Names of averages ("macro_auroc", "f1_micro") and of ranks ("recall@10") fall back to the figure."""

_AVERAGE = re.compile(r"^(macro|micro|validation)_|_(macro|micro)$")
_RANK = re.compile(r"(?:@|_at_)(\d+)$")


def meaning(name: str) -> Meaning | None:
    """What the figure of that name means; None where that is not known.

    >>> meaning("macro_auroc").label, meaning("recall@10").good, meaning("steps")
    ('macro AUROC', 'higher is better', None)
    """
    if name in MEANINGS:
        return MEANINGS[name]
    bare = _AVERAGE.sub("", _RANK.sub("", name))
    found = MEANINGS.get(bare)
    if found is None:
        return None
    label = found.label
    for word in ("macro", "micro", "validation"):
        if word in re.split(r"_|@", name):
            label = f"{word} {label}"
    if rank := _RANK.search(name):
        label = f"{label} at {rank.group(1)}"
    return Meaning(label, found.better, found.best, found.sentence)


def good(name: str) -> str:
    """Which direction of a figure is good, in words; "" where that is not known.

    >>> good("brier"), good("slope"), good("steps")
    ('lower is better', 'near 1 is best', '')
    """
    found = meaning(name)
    return "" if found is None else found.good


def legend(names: Iterable[str]) -> str:
    """One line that says what is good of several figures, for below a table; "" where nothing is known of any.

    >>> legend(["auroc", "brier", "auprc", "slope", "n"])
    'higher is better: AUROC, AUPRC; lower is better: Brier score; near 1 is best: calibration slope'
    """
    by: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        found = meaning(name)
        if found is not None:
            by.setdefault(found.good, []).append(found.label)
    return "; ".join(f"{direction}: {', '.join(labels)}" for direction, labels in by.items())


def placed(meaning: Meaning, value: float, ceiling: float | None, floor: float | None) -> tuple[float | None, bool]:
    """(share of the way from floor to ceiling, whether the floor is at least as good as the ceiling).

    >>> placed(MEANINGS["loss"], 2.0, 1.0, 5.0), placed(MEANINGS["loss"], 2.0, 1.0, 1.0)
    ((0.75, False), (None, True))
    """
    if ceiling is None or floor is None:
        return None, False
    sign = -1 if meaning.better == "lower" else 1
    span = sign * (ceiling - floor)
    if span <= 0:
        return None, ceiling != floor or ceiling != meaning.best
    return sign * (value - floor) / span, False


def figure_lines(
    found: Mapping[str, Any], names: Iterable[str], *, rules: Mapping[str, str] | None = None
) -> list[str]:
    """Figures, and their (low, high) by name under `intervals`, for a terminal, one per line in the order of `names`:
    name, value, interval, direction, and what a rule without a model scores (`rules`); absent ones are passed over.

    >>> figure_lines({"loss": 2.0, "intervals": {"loss": [1.5, 2.5]}}, ["loss"], rules={"loss": "chance 9.0"})
    ['loss              2.0000  [1.5000, 2.5000]  lower is better; chance 9.0']
    """
    intervals, rules = found.get("intervals") or {}, rules or {}
    rows = []
    for name in names:
        if (value := found.get(name)) is None:
            continue
        low, high = intervals.get(name) or (None, None)
        span = "" if low is None or high is None else f"[{short(low)}, {short(high)}]"
        note = "; ".join(part for part in (good(name), rules.get(name, "")) if part)
        rows.append((name, short(value), span, note))
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(3)]
    first = max(16, widths[0])
    return [
        f"{name:{first}}  {value:>{widths[1]}}  {span:{widths[2]}}  {note}".rstrip() for name, value, span, note in rows
    ]


def short(value: float) -> str:
    """A figure in four decimals, of a large one one; a count as it is."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4f}" if abs(value) < 100 else f"{value:,.1f}"
