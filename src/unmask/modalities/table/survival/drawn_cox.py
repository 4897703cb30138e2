"""Cox regressions fitted many times over to nearly the same rows, with parameters drawn: for imputation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unmask.modalities.table.survival.estimators import PartialLikelihood, maximum

RIDGE = 0.5
"""On standardised covariates: keeps separated ones finite; 500 rows shrink by a thousandth."""


@dataclass(frozen=True, kw_only=True)
class Hazard:
    """A proportional hazard with drawn parameters.

    Attributes:
        estimate: the posterior's mode, to start the next fit from.
        beta: drawn log hazard ratios.
        at, jump: times, and how much the baseline cumulative hazard grows at each (Breslow's estimate under `beta`).
    """

    estimate: np.ndarray
    beta: np.ndarray
    at: np.ndarray
    jump: np.ndarray

    def risk(self, z: np.ndarray) -> np.ndarray:
        return np.exp(np.clip(z @ self.beta, -30, 30))


def draw_hazard(
    z: np.ndarray,
    time: np.ndarray,
    event: np.ndarray,
    rng: np.random.Generator,
    start: np.ndarray | None = None,
    entry: np.ndarray | None = None,
) -> Hazard:
    """Log hazard ratios drawn from the normal approximation of their posterior, and the baseline that belongs to them.

    Args:
        start: the estimate to begin with: of the fit before, from which two steps reach this one's.
        entry: times from which rows are at risk (left truncation). Rows that enter after they left, as draws of both
            may have it for a round, are never at risk.
    """
    if entry is not None:
        here = entry < time
        z, time, event, entry = z[here], time[here], event[here], entry[here]
    beta = np.zeros(z.shape[1]) if start is None or len(start) != z.shape[1] else start
    if not (event > 0).any():
        return Hazard(estimate=beta, beta=np.zeros(z.shape[1]), at=np.zeros(0), jump=np.zeros(0))
    likelihood = PartialLikelihood(z, time, event, entry=entry, ridge=RIDGE)
    drawn = beta
    if len(beta):
        beta, information = maximum(beta, likelihood.value, likelihood.derivatives, steps=30, enough=1e-6)
        drawn = beta + np.linalg.solve(np.linalg.cholesky(information).T, rng.standard_normal(len(beta)))
    at, deaths, at_risk = likelihood.baseline(drawn)
    return Hazard(estimate=beta, beta=drawn, at=at, jump=deaths / at_risk)
