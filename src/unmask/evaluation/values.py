"""How well numbers were predicted: R2 and errors with intervals, beside always saying the training part's mean."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from markupsafe import Markup

from unmask.evaluation.charts import scatter_chart, table
from unmask.evaluation.meanings import legend
from unmask.evaluation.resampling import bootstrap_counts, group_numbers, percentile_interval, with_interval

POINTS = 500
"""Pairs of true and predicted numbers that are kept for a picture."""
DRAWS = 1000


def value_figures(
    truth: np.ndarray, predicted: np.ndarray, *, mean: float, groups: np.ndarray | None = None, seed: int = 0
) -> dict[str, Any]:
    """Figures of predicted numbers, (examples,) in their own unit. `mean` of the training part is what the rule that
    looks at nothing always says; `groups` is what intervals resample whole; None takes each example for itself.

    Returns:
        `r2` (1 - squared error over that of these examples' own mean; None where they are all alike), `mae`, `rmse`,
        each with its percentile interval under `intervals` and the rule's under `mean_rule`; `n`; `points`, at most 500
        (true, predicted) pairs, evenly taken.
    """
    truth, predicted = truth.astype(np.float64), predicted.astype(np.float64)
    each = group_numbers(groups, len(truth))
    centre = truth.mean() if len(truth) else 0.0  # so that squares of large numbers keep their digits
    y, error = truth - centre, predicted - truth
    terms = np.stack([np.ones_like(y), y, y**2, np.abs(error), error**2])
    sums = np.stack([np.bincount(each, weights=t) for t in terms])
    value = of_sums(sums.sum(1))
    drawn = [of_sums(sums @ some) for some in bootstrap_counts(sums.shape[1], DRAWS, seed)]
    off = mean - truth
    rule = of_sums(np.stack([np.ones_like(y), y, y**2, np.abs(off), off**2]).sum(1))
    kept = np.unique(np.linspace(0, len(truth) - 1, min(POINTS, len(truth))).astype(int))
    return {
        **value,
        "intervals": {name: percentile_interval([d[name] for d in drawn]) or [None, None] for name in value},
        "mean_rule": {"value": mean, **rule},
        "n": len(truth),
        "points": [[float(truth[i]), float(predicted[i])] for i in kept],
    }


def of_sums(sums: np.ndarray) -> dict[str, float | None]:
    """Figures from (count, sum of the truth, its squares, absolute errors, squared errors)."""
    n, total, squares, absolute, squared = map(float, sums)
    spread = squares - total**2 / n
    return {
        "r2": 1 - squared / spread if spread > 1e-12 * max(squares, 1e-300) else None,
        "mae": absolute / n,
        "rmse": math.sqrt(squared / n),
    }


TITLES = {"r2": "R2", "mae": "MAE", "rmse": "RMSE"}


def value_lines(found: dict[str, Any]) -> list[str]:
    """The figures in words, for a terminal."""
    rule = found["mean_rule"]
    lines = [f"{found['n']:,} pictures; the rule always says {rule['value']:.4g}, the training part's mean"]
    for name, title in TITLES.items():
        own, other = _cells(found, name)
        lines.append(f"{title:8}{own:32}the rule {other}")
    return [*lines, legend(TITLES)]


def value_table(found: dict[str, Any]) -> Markup:
    """The figures as a table for a report."""
    rows = [[title, *_cells(found, name)] for name, title in TITLES.items()]
    return table(["figure", "model", "always the training part's mean"], rows)


def value_chart(found: dict[str, Any], name: str) -> Markup:
    """Predicted numbers against true ones, with the diagonal on which they agree."""
    points = np.array(found["points"], np.float64).reshape(-1, 2)
    return scatter_chart(points, f"Predicted {name} against true", f"true {name}", f"predicted {name}")


def _cells(found: dict[str, Any], name: str) -> tuple[str, str]:
    """A figure of the model, and of the rule."""
    own = {"value": found[name], "interval": found["intervals"][name]}
    return with_interval(own, ".4g"), with_interval({"value": found["mean_rule"][name]}, ".4g")
