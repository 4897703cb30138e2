"""What a clinician wants of a prediction: the ROC curve, calibration with its diagonal, what follows at a threshold,
codes in words, and time in units that fit."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from markupsafe import Markup

from unmask.evaluation.charts import line_chart, table
from unmask.evaluation.metrics import bootstrap_mean
from unmask.evaluation.resampling import FEWEST, Ranking
from unmask.evaluation.survival import kaplan_meier, step_values
from unmask.modalities.events.outcome.scoring import bins_of, calibration_line
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.meds import HOUR, STATIC, Labels

THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.5)
BINS = 10
UNITS = (("hours", 1.0, 48.0), ("days", 24.0, 2 * 365.25 * 24), ("years", 365.25 * 24, float("inf")))
"""Name, hours in one, and the longest span in hours that is told in it."""


def unit_for(hours: float) -> tuple[str, float]:
    """The unit for a span of so many hours, and how many hours it has: hours up to 48, days up to two years, then
    years.

    >>> unit_for(30)[0], unit_for(100)[0], unit_for(10**6)[0]
    ('hours', 'days', 'years')
    """
    return next((name, size) for name, size, most in UNITS if hours <= most)


def span(hours: float) -> str:
    """A span in words.

    >>> span(36), span(24 * 30)
    ('36 hours', '30 days')
    """
    name, size = unit_for(hours)
    return f"{hours / size:.3g} {name}"


def descriptions(data: Any) -> dict[str, str]:
    """What metadata/codes.parquet of a MEDS folder calls each code; nothing where it does not."""
    path = Path(data) / "metadata" / "codes.parquet" if isinstance(data, str | Path) else None
    if path is None or not path.exists():
        return {}
    frame = pl.read_parquet(path)
    if not {"code", "description"} <= set(frame.columns):
        return {}
    return {str(c): str(d) for c, d in frame.select("code", "description").drop_nulls().iter_rows() if d}


def named(code: str, words: dict[str, str]) -> str:
    """The code's description, and the code behind it; the code alone where there is none."""
    shown = words.get(code)
    return code if shown is None or shown == code else f"{shown} ({code})"


def when_predicted(histories: Histories, points: Labels) -> str:
    """When predictions are asked for: how long after the first timed event known then, and the dates."""
    since = []
    for subject, moment in zip(points.subject.tolist(), points.time.tolist(), strict=True):
        first = histories.events.time[histories.rows(subject, moment)]  # without birth
        first = first[first != STATIC]
        if len(first):
            since.append((moment - first[0]) / HOUR)
    dates = [datetime.fromtimestamp(t / 1e6, UTC).strftime("%Y-%m-%d") for t in (points.time.min(), points.time.max())]
    when = dates[0] if dates[0] == dates[1] else f"{dates[0]} to {dates[1]}"
    if not since:
        return when
    low, middle, high = np.quantile(since, [0.05, 0.5, 0.95])
    spread = "" if low == high else f" (5 to 95 %: {span(low)} to {span(high)})"
    return f"{span(middle)} after the first event{spread}; {when}"


def roc(y: np.ndarray, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """False and true positive rates at every threshold, from (0, 0) to (1, 1)."""
    ranking = Ranking(y, p)
    true, false = (np.cumsum(x)[ranking.ends] for x in (ranking.truth, 1 - ranking.truth))
    return np.r_[0, false / max(false[-1], 1)], np.r_[0, true / max(true[-1], 1)]


def roc_chart(y: np.ndarray, predicted: dict[str, np.ndarray]) -> Markup:
    """ROC curves of several predictions of the same labels, with the diagonal of chance."""
    lines: dict[str, Any] = {name: roc(y, p) for name, p in predicted.items()}
    return line_chart(
        lines | {"chance": ([0, 1], [0, 1])},
        "ROC curve",
        "false positive rate (1 - specificity)",
        "sensitivity",
        from_zero=True,
    )


def calibration_points(y: np.ndarray, p: np.ndarray) -> list[tuple[float, float]]:
    """Predicted and observed share of each bin of equal count; equal predictions share one."""
    return [(float(p[i].mean()), float(y[i].mean())) for i in bins_of(p, BINS)]


def calibration_chart(y: np.ndarray, predicted: dict[str, np.ndarray]) -> Markup:
    """Observed against predicted share in ten bins of equal count, and the diagonal, where they agree."""
    found = {name: calibration_points(y, p) for name, p in predicted.items()}
    lines: dict[str, Any] = {name: ([x for x, _ in some], [share for _, share in some]) for name, some in found.items()}
    top = max((share for some in found.values() for both in some for share in both), default=0.0)
    return line_chart(
        lines | {"perfect calibration": ([0, top], [0, top])},
        "Observed against predicted",
        "predicted probability",
        "observed share",
        from_zero=True,
    )


def time_calibration(labels: Labels, p: np.ndarray, cuts: tuple[float, ...]) -> tuple[Markup, Markup]:
    """Charts of risks (points, cuts) of an event: their mean by each cut beside 1 - Kaplan-Meier, and at the middle cut
    the same in fifths of the risk."""
    (days, seen), at = labels.times, np.array(cuts)
    here = at <= days.max() * (1 + 1e-5)
    observed = 1 - step_values(*kaplan_meier(days, seen), at)
    over = line_chart(
        {"predicted": (at[here], p.mean(0)[here]), "Kaplan-Meier": (at[here], observed[here])},
        "Mean risk over time",
        "days",
        "risk",
        from_zero=True,
    )
    middle = int(here.sum() - 1) // 2
    fifths = bins_of(p[:, middle], 5)
    shown = [float(p[i, middle].mean()) for i in fifths]
    came = [float(1 - step_values(*kaplan_meier(days[i], seen[i]), at[middle : middle + 1])[0]) for i in fifths]
    top = max(*shown, *came)
    by_fifths = line_chart(
        {"fifths of the risk": (shown, came), "perfect calibration": ([0, top], [0, top])},
        f"Observed (Kaplan-Meier) against predicted risk by {cuts[middle]:g} days",
        "predicted risk",
        "observed risk",
        from_zero=True,
    )
    return over, by_fifths


def calibration_words(y: np.ndarray, p: np.ndarray, intervals: dict[str, list[float]]) -> str:
    """Slope and intercept, and what they mean where their intervals exclude what is right."""
    intercept, slope = calibration_line(y, p)[:, 0]
    if not np.isfinite([intercept, slope]).all():
        return "Slope and intercept are not defined here (all predictions or all outcomes are alike)."
    level = _verdict(
        intervals.get("intercept"), 0, "predictions are too high on the whole", "predictions are too low on the whole"
    )
    edge = _verdict(intervals.get("slope"), 1, "predictions are too extreme", "predictions are not extreme enough")
    return (
        f"Slope {slope:.2f} (1 is right; {edge}), intercept {intercept:+.2f} (0 is right; {level}): "
        f"{float(p.mean()):.1%} predicted, {float(y.mean()):.1%} observed."
    )


def _verdict(interval: list[float] | None, right: float, below: str, above: str) -> str:
    if interval is None or not np.isfinite(interval).all():
        return "no interval"
    if interval[0] <= right <= interval[1]:
        return "within chance of it"
    return below if interval[1] < right else above


def thresholds(
    y: np.ndarray, p: np.ndarray, patients: np.ndarray, *, draws: int = 300, seed: int = 0
) -> list[dict[str, Any]]:
    """Sensitivity, specificity, positive and negative predictive value where everyone at or above a threshold is
    flagged, each with its 95 % interval over resampled patients; None where it is not defined. The thresholds are
    fixed: none was chosen on these labels. Shares of fewer patients than `FEWEST` have no interval."""
    out = []
    for cut in THRESHOLDS:
        flag = p >= cut
        shares = {"sensitivity": (flag, y), "specificity": (~flag, 1 - y), "ppv": (y, flag), "npv": (1 - y, ~flag)}
        row: dict[str, Any] = {"threshold": cut, "flagged": int(flag.sum()), "share": float(flag.mean())}
        for name, (hits, among) in shares.items():
            here = among > 0
            found = bootstrap_mean(hits[here], patients[here], draws=draws, seed=seed)
            row[name] = None if np.isnan(found.value) else found.value
            few = len(np.unique(patients[here])) < FEWEST
            row[f"{name}_interval"] = None if few else [found.low, found.high]
        out.append(row)
    return out


def threshold_table(rows: list[dict[str, Any]]) -> Markup:
    """Sensitivity, specificity and predictive values at fixed thresholds, with intervals."""

    def shown(row: dict[str, Any], name: str) -> str:
        if row[name] is None:
            return "–"
        low_high = row[f"{name}_interval"]
        return f"{row[name]:.0%}" + ("" if low_high is None else f" ({low_high[0]:.0%} to {low_high[1]:.0%})")

    names = ("sensitivity", "specificity", "ppv", "npv")
    return table(
        ["flagged at a risk of", "flagged", *("sensitivity", "specificity", "PPV", "NPV")],
        [
            [f"{r['threshold']:.0%} or more", f"{r['flagged']} ({r['share']:.0%})", *(shown(r, n) for n in names)]
            for r in rows
        ],
    )
