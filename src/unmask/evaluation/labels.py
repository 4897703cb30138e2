"""How well several labels per example were predicted: areas and scores of each label and their means, beside the
label's share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from unmask.errors import either, quoted
from unmask.evaluation.charts import table
from unmask.evaluation.classes import SHOWN, area, share
from unmask.evaluation.meanings import legend

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
    """Figures of predicted labels.

    Args:
        truth: (examples, labels) booleans.
        probabilities: (examples, labels).
        names: of the labels.
        threshold: from this probability on a label counts as given.
        groups: what is independent, such as patients; None takes each example for itself.

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
    truth, n = truth.astype(bool), len(truth)
    each = np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1].ravel()
    k, given = len(names), probabilities >= threshold
    rankings = [_Ranking(truth[:, c], probabilities[:, c]) for c in range(k)]
    every = _Ranking(truth.ravel(), probabilities.ravel())
    defined = [c for c in range(k) if 0 < truth[:, c].sum() < n]
    ones = np.ones(n)
    value = _scores(ones, truth, given, rankings, every, defined)
    rng, number = np.random.default_rng(seed), int(each.max()) + 1
    drawn = [
        _scores(
            np.bincount(rng.integers(number, size=number), minlength=number)[each].astype(float),
            truth,
            given,
            rankings,
            every,
            defined,
        )
        for _ in range(DRAWS if number > 1 else 0)
    ]
    held = truth.mean(0)
    rows = []
    for c, name in enumerate(names):
        there, guessed = truth[:, c], given[:, c]
        rows.append(
            {
                "label": name,
                "n": int(there.sum()),
                "prevalence": float(held[c]),
                "auroc": area(there, probabilities[:, c], groups),
                "auprc": _figure(value, drawn, "auprc", c),
                "precision": share(there, guessed, groups),
                "recall": share(guessed, there, groups),
                "f1": _figure(value, drawn, "f1", c) if there.any() else None,
                "rule": {"auroc": 0.5, "auprc": float(held[c]), "f1": _always(held[c])} if c in defined else None,
            }
        )
    means = ("macro_auroc", "macro_auprc", "macro_f1", "micro_auroc", "micro_auprc", "micro_f1")
    constant = _scores(
        ones,
        truth,
        np.broadcast_to(held > 0, given.shape),
        [_Ranking(truth[:, c], np.zeros(n)) for c in range(k)],
        _Ranking(truth.ravel(), np.tile(held, n)),
        defined,
    )
    return {
        "n": n,
        "threshold": threshold,
        "by_label": rows,
        **{name: value["mean"][name] for name in means},
        "intervals": {name: _interval([d["mean"][name] for d in drawn]) for name in means},
        "rule": {name: constant["mean"][name] for name in means},
    }


def areas(truth: np.ndarray, score: np.ndarray) -> tuple[float, float] | None:
    """(area under the ROC curve, average precision), ties counted as one step; None where all or none are true.

    >>> areas(np.array([True, False, True, False]), np.array([0.9, 0.8, 0.7, 0.1]))
    (0.75, 0.8333333333333333)
    """
    return _Ranking(truth, score).areas(np.ones(len(truth)))


class _Ranking:
    """Examples sorted by score once, so that their areas under any weights take one pass."""

    def __init__(self, truth: np.ndarray, score: np.ndarray) -> None:
        self.order = np.argsort(-score, kind="stable")
        self.truth = truth[self.order]
        ranked = score[self.order]
        self.ends = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)

    def areas(self, weight: np.ndarray) -> tuple[float, float] | None:
        w = weight[self.order]
        right, said = np.cumsum(w * self.truth)[self.ends], np.cumsum(w)[self.ends]
        positives, wrong = right[-1], said - right
        if not positives or not wrong[-1]:
            return None
        gained = np.diff(right, prepend=0.0)
        # A tie of positives and negatives counts half.
        roc = (np.diff(wrong, prepend=0.0) * (right - gained / 2)).sum() / (positives * wrong[-1])
        return float(roc), float((gained * right / np.maximum(said, 1e-12)).sum() / positives)


def _scores(
    weight: np.ndarray,
    truth: np.ndarray,
    given: np.ndarray,
    rankings: Sequence[_Ranking],
    every: _Ranking,
    defined: list[int],
) -> dict[str, Any]:
    """Scores of weighted examples: of each label by its number, and the means over `defined`."""
    found = {c: a for c in defined if (a := rankings[c].areas(weight)) is not None}
    hit, guessed, there = weight @ (truth & given), weight @ given, weight @ truth
    f1 = {c: float(2 * hit[c] / max(guessed[c] + there[c], 1e-12)) for c in range(truth.shape[1])}
    whole = every.areas(np.repeat(weight, truth.shape[1]))

    def mean(values: list[float]) -> float | None:
        return float(np.mean(values)) if values else None

    return {
        "auroc": {c: a[0] for c, a in found.items()},
        "auprc": {c: a[1] for c, a in found.items()},
        "f1": f1,
        "mean": {
            "macro_auroc": mean([a[0] for a in found.values()]),
            "macro_auprc": mean([a[1] for a in found.values()]),
            "macro_f1": mean([value for c, value in f1.items() if guessed[c] + there[c]]),
            "micro_auroc": whole and whole[0],
            "micro_auprc": whole and whole[1],
            "micro_f1": float(2 * hit.sum() / max(guessed.sum() + there.sum(), 1e-12)),
        },
    }


def _always(share: float) -> float:
    """F1 of always giving a label of this share."""
    return float(2 * share / (1 + share))


def _figure(value: dict[str, Any], drawn: list[dict[str, Any]], name: str, c: int) -> dict[str, Any] | None:
    if c not in value[name]:
        return None
    return {"value": value[name][c], "interval": _interval([d[name].get(c) for d in drawn])}


def _interval(values: list[float | None]) -> list[float | None]:
    known = [v for v in values if v is not None]
    return [float(q) for q in np.quantile(known, [0.025, 0.975])] if known else [None, None]


COLUMNS = ("auroc", "auprc", "precision", "recall", "f1")


def label_table(found: dict[str, Any]) -> Markup:
    """Scores of each label as a table for a report."""
    head = ["label", "n", "share", "AUROC", "AUPRC", "precision", "recall", "F1", "F1 of always"]
    rows = [
        [
            row["label"],
            row["n"],
            f"{row['prevalence']:.1%}",
            *(_told(row[name]) for name in COLUMNS),
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
            _told({"value": found[f"{how}_{name}"], "interval": found["intervals"][f"{how}_{name}"]}),
            _plain(found["rule"][f"{how}_{name}"]),
        ]
        for how in ("macro", "micro")
        for name, title in MEANS.items()
    ]
    return table(["mean", "model", "label's share"], rows)


def label_lines(found: dict[str, Any]) -> list[str]:
    """The figures in words, for a terminal."""
    lines = [f"{found['n']:,} pictures, {len(found['by_label'])} labels, given from {found['threshold']:g} on"]
    for how in ("macro", "micro"):
        for name, title in MEANS.items():
            key = f"{how}_{name}"
            columns = _told({"value": found[key], "interval": found["intervals"][key]})
            lines.append(f"{how + ' ' + title:22}{columns:24}by the labels' shares {_plain(found['rule'][key])}")
    lines.append(
        f"{'label':22}{'n':>7} {'share':>6}  "
        + "".join(f"{t:22}" for t in ("AUROC", "AUPRC", "precision", "recall", "F1")).rstrip()
    )
    for row in found["by_label"][:SHOWN]:
        columns = "".join(f"{_told(row[name]):22}" for name in COLUMNS)
        lines.append(f"{quoted(row['label'])[:21]:22}{row['n']:>7} {row['prevalence']:>6.1%}  {columns}".rstrip())
    if len(found["by_label"]) > SHOWN:
        lines.append(
            f"... {len(found['by_label'])} labels in all; {either('--json gives', 'by_label holds')} every one"
        )
    return [*lines, legend(["auroc", "auprc", "precision", "recall", "f1"])]


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _told(figure: dict[str, Any] | None) -> str:
    if figure is None or figure["value"] is None:
        return "-"
    low, high = figure["interval"]
    return f"{figure['value']:.3f}" + ("" if low is None else f" [{low:.3f}, {high:.3f}]")
