"""What a clinician wants of predicted numbers: how far off they are, where, and whether the intervals hold what they
say."""

from __future__ import annotations

import numpy as np
from markupsafe import Markup

from unmask.evaluation.charts import number as told
from unmask.evaluation.charts import scatter_chart, table
from unmask.evaluation.report import Report
from unmask.modalities.events.outcome.number import Number, judged
from unmask.modalities.events.outcome.scoring import redrawn
from unmask.modalities.events.records.meds import Labels

RANGES = 5
POINTS = 500
"""Points drawn, evenly taken."""


def sections(page: Report, points: Labels, p: np.ndarray, target: Number, name: str) -> None:
    """Write how far predictions of the held-out `points` are off: in words, point by point, by range."""
    assert points.number is not None
    y, seen = points.number.astype(np.float64), judged(target, p)
    page.section("How far off", in_words(y, seen, target))
    some = np.unique(np.linspace(0, len(y) - 1, min(POINTS, len(y))).astype(int))
    page.chart(
        scatter_chart(
            np.stack([seen[some, 0], y[some]], 1),
            f"Observed {name} against predicted",
            "predicted",
            "observed",
            diagonal=True,
        )
    )
    note = (
        "Held-out points in {} ranges of equal count by what was {}, each mean and share with its 95 % interval over "
        "resampled patients. {}"
    )
    for by, way in (("predicted", seen[:, 0]), ("observed", y)):
        more = {
            "predicted": "Where the observed mean is not near the predicted one, predictions of that size are off as "
            "a whole.",
            "observed": "The lowest are predicted too high and the highest too low by every model that is not perfect.",
        }[by]
        page.section(
            f"Error by {by} value", range_table(y, seen, way, points.subject), note=note.format(RANGES, by, more)
        )


def in_words(y: np.ndarray, seen: np.ndarray, target: Number) -> str:
    """A paragraph about the errors, beside those of always saying the training mean, and the intervals."""
    off, rule = np.abs(y - seen[:, 0]), np.abs(y - target.centre)
    half, most = np.quantile(off, [0.5, 0.9])
    words = [
        f"Half of the predictions are off by {told(half)} or less, nine in ten by {told(most)} or less; "
        f"{told(off.mean())} on average. Who always says {told(target.centre)}, the mean of the training labels, is "
        f"off by {told(rule.mean())} on average."
    ]
    if target.rule is not None and target.rule.weight:
        words.append(
            f"Every prediction is {target.rule.weight:.0%} the {target.rule.name.removeprefix('the ')}, which came "
            "nearer to training patients set apart than networks and trees without it."
        )
    elif target.rule is not None:
        words.append(f"Mixing in the {target.rule.name} gained nothing for training patients set apart.")
    if seen.shape[1] > 1:
        held = float(((y >= seen[:, 1]) & (y <= seen[:, 2])).mean())
        words.append(
            f"The intervals are meant to hold {target.level:.0%} of the numbers and hold {held:.1%}; in the middle "
            f"they are {told(float(np.median(seen[:, 2] - seen[:, 1])))} wide. Their width comes from "
            f"{target.points:,} training points that the predictions about them were not fitted on."
        )
    if target.points and target.points < 2 / (1 - target.level):
        words.append("So few say little of how wide intervals must be.")
    if target.least is not None:
        words.append(f"No training label is below {told(target.least)}: nothing below is predicted.")
    return " ".join(words)


def ranges(y: np.ndarray, seen: np.ndarray, by: np.ndarray, patients: np.ndarray) -> list[dict[str, object]]:
    """For points in `RANGES` of equal count by some number: count, means, mean error and share within the interval,
    each as (value, low, high)."""
    out = []
    edges = np.unique(np.quantile(by, np.linspace(0, 1, RANGES + 1)))
    part = np.clip(np.searchsorted(edges, by, side="right") - 1, 0, max(len(edges) - 2, 0))
    for k in np.unique(part):
        mine = part == k
        row: dict[str, object] = {"from": by[mine].min(), "to": by[mine].max(), "points": int(mine.sum())}
        columns = {"predicted": seen[mine, 0], "observed": y[mine], "off": np.abs(y - seen[:, 0])[mine]}
        if seen.shape[1] > 1:
            columns["held"] = ((y >= seen[:, 1]) & (y <= seen[:, 2]))[mine]
        out.append(row | {name: _mean(column, patients[mine]) for name, column in columns.items()})
    return out


def _mean(values: np.ndarray, patients: np.ndarray, draws: int = 300) -> tuple[float, float, float]:
    """Mean, and the ends of its 95 % interval over resampled patients."""
    again, number = redrawn(patients, draws, 0)
    total, count = np.bincount(number, values), np.bincount(number)
    drawn = np.concatenate([(some @ total) / np.maximum(some @ count, 1) for some in again])
    low, high = np.quantile(drawn, [0.025, 0.975]) if len(total) > 1 else (np.nan, np.nan)
    return float(values.mean()), float(low), float(high)


def range_table(y: np.ndarray, seen: np.ndarray, by: np.ndarray, patients: np.ndarray) -> Markup:
    rows = []
    for row in ranges(y, seen, by, patients):
        cells = [f"{told(row['from'])} to {told(row['to'])}", row["points"]]
        for name in ("predicted", "observed", "off", "held"):
            if name in row:
                cells.append(_with_interval(*row[name], percent=name == "held"))  # type: ignore[misc]
        rows.append(cells)
    headers = ["range", "points", "predicted, mean", "observed, mean", "off by, mean"]
    return table(headers + ["within the interval"] * (seen.shape[1] > 1), rows)


def _with_interval(value: float, low: float, high: float, percent: bool) -> str:
    text = told(value, percent=percent)
    return text if np.isnan(low) else f"{text} ({told(low, percent=percent)} to {told(high, percent=percent)})"


__all__ = ["in_words", "range_table", "ranges", "sections"]
