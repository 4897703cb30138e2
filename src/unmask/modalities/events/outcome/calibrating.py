"""Means of predictions, and logistic recalibration: a line through their log-odds, so that they
come true as often as they say.

Cox, Two further applications of a model for binary regression, Biometrika 1958; for models that move to another place:
Steyerberg, Clinical Prediction Models, chapter 20 ("updating").
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SPREAD = 0.5
"""Of the slope around 1 before the points are seen: few points do not turn it round."""
LEAST = 1e-6
"""Probabilities nearer to 0 or 1 are taken as this near."""


def geometric_mean(voices: Sequence[np.ndarray]) -> np.ndarray:
    """The normalised geometric mean of distributions, (points, classes) each; one alone stays as it is."""
    if len(voices) == 1:
        return voices[0]
    mean = np.exp(np.mean([np.log(np.clip(p, 1e-3, 1)) for p in voices], 0))
    return mean / mean.sum(1, keepdims=True)


def log_odds(p: np.ndarray) -> np.ndarray:
    """Of probabilities, within `LEAST` of 0 and 1."""
    p = np.clip(np.asarray(p, np.float64), LEAST, 1 - LEAST)
    return np.log(p) - np.log1p(-p)


def on_line(p: np.ndarray, intercept: float, slope: float) -> np.ndarray:
    """Probabilities whose log-odds are intercept + slope * those given.

    >>> on_line(np.array([0.5, 0.2]), 0.0, 2.0).round(3).tolist()
    [0.5, 0.059]
    """
    return 1 / (1 + np.exp(-(intercept + slope * log_odds(p))))


def logistic_line(p: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Intercept and slope of the logistic regression of outcomes (points,) on the log-odds of predictions (points,),
    by Newton's method; the slope has a normal prior around 1 (`SPREAD`). Both outcomes alike: (0, 1)."""
    x, y = log_odds(p), np.asarray(y, np.float64)
    if not 0 < y.mean() < 1:
        return 0.0, 1.0
    columns, beta, prior = np.stack([np.ones(len(x)), x]), np.array([0.0, 1.0]), np.array([0.0, SPREAD**-2])
    for _ in range(100):
        mean = 1 / (1 + np.exp(-(beta @ columns)))
        uphill = columns @ (y - mean) - prior * (beta - 1)
        move = np.linalg.solve((columns * mean * (1 - mean)) @ columns.T + np.diag(prior), uphill)
        beta += np.clip(move, -1, 1)
        if np.abs(move).max() < 1e-8:
            break
    return float(beta[0]), float(beta[1])
