"""Missing covariates of a survival analysis, drawn so that they agree with the analysis.

A covariate's distribution given follow-up is nothing simple under proportional hazards; putting the event and the
cumulative hazard among its predictors (White & Royston 2009) is an approximation that pulls strong effects to zero.
So the two parts are kept apart (substantive-model-compatible imputation, Bartlett et al. 2015): the linear part models
the covariates alone, Cox regression the outcome given them, and what the first proposes is accepted as the second finds
it likely (Metropolis-Hastings). Both parts are fitted again to the completed rows in every round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from unmask.core.corruption import uniform
from unmask.table.engine import CellTable
from unmask.table.hazards import Baseline, fit_baseline
from unmask.table.recipes import TableSettings
from unmask.table.survival import step_values

ROUNDS, PROPOSALS = 8, 5
"""Fits of both parts, and proposals a row between them."""
RIDGE = 0.5
"""On standardised covariates: keeps separated ones finite; 500 rows shrink by a thousandth."""


def draw_compatible(
    columns: Sequence[np.ndarray],
    sizes: Sequence[int],
    first: Sequence[np.ndarray],
    *,
    pair: tuple[int, int],
    design: Callable[[Sequence[np.ndarray]], np.ndarray],
    settings: TableSettings,
    weight: np.ndarray,
    seed: int,
) -> list[np.ndarray]:
    """The columns completed once.

    Args:
        columns: values with NaN where missing; the pair is complete.
        sizes: categories of each column, 0 for a quantity.
        first: the columns completed by an approximation, to start from.
        pair: places of time and event.
        design: complete columns -> (rows, regressors) of the Cox regression.
        weight: of each row in both fits, as in the bootstrap.
    """
    time, event = (columns[p] for p in pair)
    covariates = [p for p in range(len(columns)) if p not in pair]
    holes = {p: np.isnan(columns[p]) for p in covariates}
    rows = np.flatnonzero(np.any([holes[p] for p in covariates], axis=0))
    now = [np.array(x) for x in first]
    if not len(rows) or not (event[weight > 0] > 0).any():
        return now
    # Proposals for one row are copies of it, told apart by their number.
    copies = np.tile(rows, PROPOSALS)
    for turn in range(ROUNDS):
        hazard = _Hazard(design(now), time, event, weight)
        model = CellTable.fit(
            [now[p] for p in covariates], [sizes[p] for p in covariates], settings=settings, weight=weight,
            calibrate=False,
        )  # fmt: skip
        proposed = model.draw([columns[p][copies] for p in covariates], seed=seed + turn)
        for k in range(PROPOSALS):
            new = [x[rows] for x in now]
            for p, x in zip(covariates, proposed, strict=True):
                new[p] = np.where(holes[p][rows], x[k * len(rows) : (k + 1) * len(rows)], new[p])
            gain = hazard.log_likelihood(design(new), rows) - hazard.log_likelihood(
                design([x[rows] for x in now]), rows
            )
            accept = np.log(np.maximum(uniform(seed, turn, k, rows, 70), 1e-300)) < gain
            for p in covariates:
                now[p][rows] = np.where(accept, new[p], now[p][rows])
    return now


class _Hazard:
    """Proportional hazards fitted to complete rows, and each row's likelihood under other covariates."""

    def __init__(self, x: np.ndarray, time: np.ndarray, event: np.ndarray, weight: np.ndarray) -> None:
        self.center = np.average(x, axis=0, weights=weight)
        self.scale = np.maximum(x.std(0), 1e-9)
        z = (x - self.center) / self.scale
        found: Baseline = fit_baseline(z, time, event, RIDGE, weight=weight)
        self.beta, self.event = found.beta, event
        self.hazard = step_values(found.at, found.hazard, time, start=0.0)

    def log_likelihood(self, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Up to what does not depend on x."""
        risk = np.clip(((x - self.center) / self.scale) @ self.beta, -30, 30)
        return np.where(self.event[rows] > 0, risk, 0.0) - self.hazard[rows] * np.exp(risk)
