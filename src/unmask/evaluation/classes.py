"""How well classes were predicted: confusion, scores of each class, ROC areas, beside always saying the most frequent
class."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from unmask.errors import either, first_of, quoted
from unmask.evaluation.charts import drawn, table
from unmask.evaluation.meanings import legend
from unmask.evaluation.metrics import Z_95, bootstrap_mean, plain, wilson
from unmask.evaluation.resampling import FEWEST, group_numbers, percentile_interval, with_interval
from unmask.given import MISSING_WORDS
from unmask.names import listed_alike

SHOWN = 20
"""Classes that a table of confusions shows."""


def class_figures(
    labels: np.ndarray,
    probabilities: np.ndarray,
    names: Sequence[str],
    *,
    groups: np.ndarray | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Figures of predicted classes, of true class numbers (examples,) and probabilities (examples, classes); `groups`
    is what is independent, such as patients; None takes each example for itself.

    Returns:
        `accuracy` with its bootstrap interval under `intervals`; `most_frequent` (the class) and
        `most_frequent_accuracy` (of always saying it, the most frequent of these examples); `macro_auroc` (mean over
        the classes that occur, one against the rest); `macro_f1` (mean over the classes that occur or are predicted, as
        in scikit-learn); `confusion` (true class by predicted); `by_class`, a row per class: `n`, `precision` and
        `recall` (see `share`), `f1` with a bootstrap interval, `auroc` (see `area`). What is not defined (the precision
        of a class never predicted, scores of a class that does not occur) is None.
    """
    k, predicted = len(names), probabilities.argmax(1)
    confusion = np.zeros((k, k), np.int64)
    np.add.at(confusion, (labels, predicted), 1)
    each = group_numbers(groups, len(labels))
    out: dict[str, Any] = plain({"accuracy": bootstrap_mean((predicted == labels).astype(float), each, seed=seed)})
    often = int(np.bincount(labels, minlength=k).argmax())
    rows: list[dict[str, Any]] = []
    for c, name in enumerate(names):
        there, guessed = labels == c, predicted == c
        rows.append(
            {
                "class": name,
                "n": int(there.sum()),
                "precision": share(there, guessed, groups),
                "recall": share(guessed, there, groups),
                "f1": _f1(there, guessed, groups, seed) if there.any() else None,
                "auroc": area(there, probabilities[:, c], groups),
            }
        )
    present = [r for r in rows if r["n"]]
    scored = [r["f1"]["value"] if r["n"] else 0.0 for c, r in enumerate(rows) if r["n"] or confusion[:, c].any()]
    areas = [r["auroc"]["value"] for r in present if r["auroc"] is not None]
    return out | {
        "n": len(labels),
        "most_frequent": names[often],
        "most_frequent_accuracy": float((labels == often).mean()),
        "macro_f1": float(np.mean(scored)) if scored else None,
        "macro_auroc": float(np.mean(areas)) if areas else None,
        "confusion": confusion.tolist(),
        "by_class": rows,
    }


def share(hits: np.ndarray, among: np.ndarray, groups: np.ndarray | None = None) -> dict[str, Any] | None:
    """The share of hits among some examples (booleans), with Wilson's interval; None of no examples.

    Of groups, what is independent, the interval is that of as many independent examples as have the share's variance
    between groups (Korn and Graubard 1998): at most all, and of a share of 0 or 1, which has no variance, the groups.

    >>> share(np.arange(40) < 20, np.ones(40, bool), np.arange(40) // 10)["interval"] == wilson(1.5, 3)
    True
    """
    n = int(among.sum())
    if not n:
        return None
    value, independent = float(hits[among].sum() / n), float(n)
    if groups is not None:
        beyond = _sums(hits[among] - value, groups[among])
        independent = float(len(beyond))
        if 0 < value < 1 and independent > 1:
            variance = (beyond**2).sum() * independent / (independent - 1) / n**2
            independent = min(float(n), value * (1 - value) / max(float(variance), 1e-12))
    return {"value": value, "interval": wilson(value * independent, independent)}


def area(positive: np.ndarray, score: np.ndarray, groups: np.ndarray | None = None) -> dict[str, Any] | None:
    """Area under the ROC curve: the chance that a positive example has the higher score, ties counting half; None where
    there are no positive or no negative examples.

    Its interval is DeLong's (1988), of groups (what is independent, such as patients) Obuchowski's (1997), cut to 0 and
    1; where the rarer kind has fewer groups than `FEWEST` Newcombe's (2006, from Hanley and McNeil's variance), and of
    an area of 0 or 1, or of one group, Wilson's of as many pairs as the rarer kind has groups.

    >>> area(np.array([True, False, False]), np.array([0.5, 0.5, 0.1]))["value"]
    0.75
    """
    kinds = (np.flatnonzero(positive), np.flatnonzero(~positive))
    if not len(kinds[0]) or not len(kinds[1]):
        return None
    each = group_numbers(groups, len(score))
    scores, placed = [score[kind] for kind in kinds], []
    for own, others in (scores, scores[::-1]):
        ranked = np.sort(others)
        below = np.searchsorted(ranked, own, "left") + np.searchsorted(ranked, own, "right")
        placed.append(below / (2 * len(ranked)))
    placed[1] = 1 - placed[1]
    value = float(placed[0].mean())
    sizes = [len(np.unique(each[kind])) for kind in kinds]
    fewest = min(sizes)
    if value in (0, 1) or fewest < 2:
        return {"value": value, "interval": wilson(value * fewest, fewest)}
    if fewest < FEWEST:
        a = np.linspace(0, 1, 2001)
        spread = a * (1 - a) + (sizes[0] - 1) * (a / (2 - a) - a**2) + (sizes[1] - 1) * (2 * a**2 / (1 + a) - a**2)
        near = a[np.abs(a - value) <= Z_95 * np.sqrt(spread / (sizes[0] * sizes[1]))]
        return {"value": value, "interval": [float(near[0]), float(near[-1])]}
    beyond = np.zeros(len(score))
    for kind, found in zip(kinds, placed, strict=True):
        independent = len(np.unique(each[kind]))
        beyond[kind] = (found - value) / len(kind) * math.sqrt(independent / (independent - 1))
    half = Z_95 * math.sqrt((_sums(beyond, each) ** 2).sum())
    return {"value": value, "interval": [max(0.0, value - half), min(1.0, value + half)]}


def _f1(true: np.ndarray, guess: np.ndarray, groups: np.ndarray | None, seed: int, draws: int = 1000) -> dict[str, Any]:
    """F1 and its percentile interval over resampled examples, of which it needs three counts alone, or groups; of 0 and
    1, which resamples do not leave, Wilson's of as many as are true or predicted."""
    bottom = true.astype(float) + guess
    some = bottom > 0
    value = float(2 * (true & guess).sum() / bottom.sum())
    if value in (0, 1):
        n = int(some.sum()) if groups is None else len(np.unique(groups[some]))
        return {"value": value, "interval": wilson(value * n, n)}
    if groups is not None:
        found = bootstrap_mean(2 * (true & guess)[some] / bottom[some], groups[some], bottom[some], seed=seed)
        alone = math.isnan(found.low)  # one group says nothing of others
        return {"value": found.value, "interval": [0.0, 1.0] if alone else [found.low, found.high]}
    counts = np.array([(true & guess).sum(), (guess & ~true).sum(), (true & ~guess).sum()])
    drawn = np.random.default_rng(seed).multinomial(int(counts.sum()), counts / counts.sum(), draws)
    each = 2 * drawn[:, 0] / np.maximum(2 * drawn[:, 0] + drawn[:, 1] + drawn[:, 2], 1)
    return {"value": value, "interval": percentile_interval(each)}


def _sums(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    return np.bincount(np.unique(groups, return_inverse=True)[1].ravel(), weights=values)


def class_table(found: dict[str, Any]) -> Markup:
    """Scores of each class as a table for a report."""
    rows = [
        [row["class"], row["n"], *(with_interval(row[name]) for name in ("precision", "recall", "f1", "auroc"))]
        for row in found["by_class"]
    ]
    return table(["class", "n", "precision", "recall", "F1", "AUROC"], rows)


def confusion_table(found: dict[str, Any], names: Sequence[str]) -> Markup:
    """True classes by predicted ones, darker where more: of many classes the most frequent ones."""
    confusion = np.array(found["confusion"])
    order = np.sort(np.argsort(-confusion.sum(1), kind="stable")[:SHOWN])
    share = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    rows = [
        (
            names[a],
            [
                ("70,150,90" if a == b else "220,110,40", f"{0.75 * share[a, b]:.2f}", f"{confusion[a, b]:,}")
                for b in order
            ],
        )
        for a in order
    ]
    return drawn("confusion", [names[c] for c in order], rows)


def class_lines(found: dict[str, Any]) -> list[str]:
    """The figures in words, for a terminal."""
    low, high = found["intervals"]["accuracy"]
    span = "" if low is None else f" [{low:.1%}, {high:.1%}]"
    lines = [
        f"{'accuracy':22}{found['accuracy']:.1%}{span} of {found['n']:,}",
        f"{'most frequent class':22}{found['most_frequent_accuracy']:.1%} (always {found['most_frequent']!r})",
    ]
    if found["macro_auroc"] is not None:
        lines.append(f"{'macro AUROC':22}{found['macro_auroc']:.3f}")
    if found["macro_f1"] is not None:
        lines.append(f"{'macro F1':22}{found['macro_f1']:.3f}")
    titles = {"precision": "precision", "recall": "recall", "f1": "F1", "auroc": "AUROC"}
    return [
        *lines,
        *row_lines(found["by_class"], "class", "classes", titles),
        legend(["accuracy", "macro_auroc", *titles]),
    ]


def row_lines(
    rows: Sequence[dict[str, Any]], kind: str, plural: str, titles: Mapping[str, str], *, shares: bool = False
) -> list[str]:
    """Scores by class or label, the first `SHOWN`, for a terminal; with `shares` how often each holds."""
    lines = [f"{kind:22}{'n':>7}{'  share' if shares else ''}  " + "".join(f"{t:22}" for t in titles.values()).rstrip()]
    for row in rows[:SHOWN]:
        share = f" {row['prevalence']:>6.1%}" if shares else ""
        columns = "".join(f"{with_interval(row[name]):22}" for name in titles)
        lines.append(f"{quoted(row[kind])[:21]:22}{row['n']:>7}{share}  {columns}".rstrip())
    if len(rows) > SHOWN:
        lines.append(f"... {len(rows)} {plural} in all; {either('--json gives', f'by_{kind} holds')} every one")
    return lines


def is_spelled(value: Any) -> bool:
    """Whether a text or label is how a missing value is written."""
    return isinstance(value, str) and (value.strip() in ("NA", "None") or value.strip().lower() in MISSING_WORDS)


def is_number(value: Any) -> bool:
    """Whether a value is a number, or a text that is one."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


LISTED = 10
"""Classes that a line lists with their counts."""


def class_counts(counts: Mapping[str, int]) -> list[str]:
    """A line of how often each class is there, and a warning of -1 where it may say that there is none.

    >>> [line.partition(":")[2][:30] for line in class_counts({"-1": 2, "0": 5, "1": 4, "2": 4})]
    [' -1 (2), 0 (5), 1 (4), 2 (4)', ' class -1 (2 times) counts as ']
    """
    lines = [f"classes: {first_of((f'{quoted(c)} ({n:,})' for c, n in counts.items()), LISTED)}"]
    others = set(counts) - {"-1"}
    if "-1" in counts and others not in ({"1"}, {"0", "1"}) and all(name.isdigit() for name in others):
        lines.append(
            f"warning: class -1 ({counts['-1']:,} times) counts as one, beside classes that are no negative numbers: "
            "published sets write it where a label is not known; leave those rows out if so"
        )
    return lines


def label_notes(labels: Iterable[Any]) -> list[str]:
    """In words, how many labels are spelled as missing, and which differ in case, blanks or the spelling of a number
    alone."""
    counts = Counter(label.strip() for label in labels if isinstance(label, str))
    missing = sorted(name for name in counts if is_spelled(name))
    out = []
    if missing:
        out.append(
            f"warning: {sum(counts[name] for name in missing):,} of {counts.total():,} labels are "
            f"{', '.join(map(repr, missing))}, as missing values are written: they count as a class; leave those rows "
            "out if they are none"
        )
    found = listed_alike(counts)
    return (
        [*out, f"warning: labels that differ in case or spelling alone count as classes apart: {found}"]
        if found
        else out
    )
