"""How well several labels per example were predicted: areas and scores of each label and their means, beside the
label's share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from unmask.evaluation.charts import table
from unmask.evaluation.classes import area, row_lines, share
from unmask.evaluation.meanings import legend
from unmask.evaluation.metrics import share_interval
from unmask.evaluation.resampling import (
    FEWEST,
    Ranking,
    bootstrap_counts,
    fewest_groups,
    group_numbers,
    with_interval,
)

SCORES, HOWS = ("auroc", "auprc", "f1"), ("macro", "micro")
DRAWS = 500
"""Bootstrap resamples; each sorts nothing, but passes over all examples once for each label."""


def label_figures(
    truth: np.ndarray,
    probabilities: np.ndarray,
    names: Sequence[str],
    *,
    threshold: float = 0.5,
    groups: np.ndarray | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Figures of predicted labels, of which are true and their probabilities, (examples, labels) each. From the
    threshold on a label counts as given; `groups` is what is independent, such as patients; None takes each example for
    itself.

    Returns:
        `by_label`, a row per label: `n` (examples for which it holds), `prevalence` (its share), `auroc` (see
        `classes.area`), `auprc` (average precision, bootstrap interval), `precision` and `recall` (see
        `classes.share`), `f1` (bootstrap), and `rule`: AUROC, AUPRC and F1 of giving every example the label's
        prevalence (F1: of always giving the label).
        `macro_auroc`, `macro_auprc`: means over the labels that hold for some examples and not for others; `macro_f1`:
        over those that hold or are given for some, as in scikit-learn with zero_division=nan; `micro_auroc`,
        `micro_auprc`, `micro_f1`: over all decisions at once; their bootstrap intervals under `intervals`, and the
        rule's under `rule` (F1: of always giving the labels that hold for some). What is not defined is None.
    """
    truth, given = truth.astype(bool), probabilities >= threshold
    (n, k), each = truth.shape, group_numbers(groups, len(truth))
    rankings = [Ranking(truth[:, c], probabilities[:, c]) for c in range(k)]
    rankings.append(Ranking(truth.ravel(), probabilities.ravel()))
    again = bootstrap_counts(int(each.max(initial=-1)) + 1, DRAWS, seed)
    drawn = np.array([_scores(some[each].astype(float), truth, given, rankings) for some in again])
    found = _scores(np.ones(n), truth, given, rankings)
    fewest = [fewest_groups(truth[:, c], each) for c in range(k)]
    fewest += [min((f for f in fewest if f), default=0), fewest_groups(truth.ravel(), np.repeat(each, k))]

    def figure(name: str, c: int) -> dict[str, Any]:
        """Of a label, or (behind these) the mean over labels and the score over decisions."""
        value = found[SCORES.index(name), c]
        few = FEWEST if name == "f1" else fewest[c]
        some = np.unique(each[truth[:, c] | given[:, c]] if name == "f1" and c < k else each)
        independent = len(some) if name == "f1" else fewest[c]
        interval = share_interval(drawn[:, SCORES.index(name), c], value, independent, few) if len(drawn) else None
        return {"value": None if np.isnan(value) else float(value), "interval": interval or [None, None]}

    held = truth.mean(0)
    rows = []
    for c, name in enumerate(names):
        there, guessed, defined = truth[:, c], given[:, c], 0 < held[c] < 1
        always = float(2 * held[c] / (1 + held[c]))
        rows.append(
            {
                "label": name,
                "n": int(there.sum()),
                "prevalence": float(held[c]),
                "auroc": area(there, probabilities[:, c], groups),
                "auprc": figure("auprc", c) if defined else None,
                "precision": share(there, guessed, groups),
                "recall": share(guessed, there, groups),
                "f1": figure("f1", c) if there.any() else None,
                "rule": {"auroc": 0.5, "auprc": float(held[c]), "f1": always} if defined else None,
            }
        )
    constant = [Ranking(truth[:, c], np.zeros(n)) for c in range(k)] + [Ranking(truth.ravel(), np.tile(held, n))]
    rule = _scores(np.ones(n), truth, np.broadcast_to(held > 0, given.shape), constant)
    means = {f"{how}_{name}": (i, k + j) for j, how in enumerate(HOWS) for i, name in enumerate(SCORES)}
    return {
        "n": n,
        "threshold": threshold,
        "by_label": rows,
        **{name: figure(SCORES[i], c)["value"] for name, (i, c) in means.items()},
        "intervals": {name: figure(SCORES[i], c)["interval"] for name, (i, c) in means.items()},
        "rule": {name: None if np.isnan(rule[at]) else float(rule[at]) for name, at in means.items()},
    }


def _scores(weight: np.ndarray, truth: np.ndarray, given: np.ndarray, rankings: Sequence[Ranking]) -> np.ndarray:
    """(3, labels + 2) AUROC, average precision and F1 of weighted examples: of each label, the mean over labels, and
    over all decisions at once; NaN where they are not defined."""
    k = truth.shape[1]
    out = np.full((3, k + 2), np.nan)
    for c, ranking in enumerate(rankings[:k]):
        out[:2, c] = ranking.areas(weight)
    out[:2, k + 1] = rankings[k].areas(np.repeat(weight, k))
    hit, either_way = weight @ (truth & given), weight @ given + weight @ truth
    out[2, :k] = 2 * hit / np.maximum(either_way, 1e-12)
    out[2, k + 1] = 2 * hit.sum() / max(either_way.sum(), 1e-12)
    for row, counted in zip(out, (*~np.isnan(out[:2, :k]), either_way > 0), strict=True):
        row[k] = row[:k][counted].mean() if counted.any() else np.nan
    return out


def _mean(found: dict[str, Any], key: str) -> str:
    return with_interval({"value": found[key], "interval": found["intervals"][key]})


COLUMNS = ("auroc", "auprc", "precision", "recall", "f1")


def label_table(found: dict[str, Any]) -> Markup:
    """Scores of each label as a table for a report."""
    head = ["label", "n", "share", "AUROC", "AUPRC", "precision", "recall", "F1", "F1 of always"]
    rows = [
        [
            row["label"],
            row["n"],
            f"{row['prevalence']:.1%}",
            *(with_interval(row[name]) for name in COLUMNS),
            "-" if row["rule"] is None else f"{row['rule']['f1']:.3f}",
        ]
        for row in found["by_label"]
    ]
    return table(head, rows)


MEANS = {"auroc": "AUROC", "auprc": "AUPRC", "f1": "F1"}


def means_table(found: dict[str, Any]) -> Markup:
    """The means over labels and over decisions, beside the rule's."""
    rows = [
        [
            f"{how} {title}",
            _mean(found, f"{how}_{name}"),
            with_interval({"value": found["rule"][f"{how}_{name}"]}),
        ]
        for how in HOWS
        for name, title in MEANS.items()
    ]
    return table(["mean", "model", "label's share"], rows)


def label_lines(found: dict[str, Any]) -> list[str]:
    """The figures in words, for a terminal."""
    lines = [f"{found['n']:,} pictures, {len(found['by_label'])} labels, given from {found['threshold']:g} on"]
    for how in HOWS:
        for name, title in MEANS.items():
            key = f"{how}_{name}"
            by_rule = with_interval({"value": found["rule"][key]})
            lines.append(f"{how + ' ' + title:22}{_mean(found, key):24}by the labels' shares {by_rule}")
    if (found["macro_f1"] or 0.0) < (found["rule"]["macro_f1"] or 0.0):
        lines.append(
            "warning: macro F1 is below that of always giving every label (a lower threshold gives more of them)"
        )
    titles = dict(zip(COLUMNS, ("AUROC", "AUPRC", "precision", "recall", "F1"), strict=True))
    return [*lines, *row_lines(found["by_label"], "label", "labels", titles, shares=True), legend(COLUMNS)]
