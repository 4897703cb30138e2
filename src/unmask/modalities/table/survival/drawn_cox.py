"""Cox regressions fitted many times over to nearly the same rows, with parameters drawn: for imputation.

The estimates are those of `estimators.fit_cox` (ties after Efron); started from the fit before, two steps reach them,
and no sums of squares run over the risk sets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

RIDGE = 0.5
"""On standardised covariates: keeps separated ones finite; 500 rows shrink by a thousandth."""
STEPS, CLOSE = 30, 1e-6


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


class _RiskSets:
    """Rows by falling time; for every death its risk set, and the part of it that Efron's method takes off for ties.

    Args:
        entry: times from which rows are at risk, if not from the beginning: of a death those count that entered before.
    """

    def __init__(self, time: np.ndarray, event: np.ndarray, entry: np.ndarray | None = None) -> None:
        self.order = np.argsort(-time, kind="stable")
        time, dead = time[self.order], event[self.order] > 0
        starts = np.flatnonzero(np.r_[True, np.diff(time) != 0])
        group = np.cumsum(np.r_[True, np.diff(time) != 0]) - 1
        self.ends = np.r_[starts[1:], len(time)] - 1
        self.starts, self.group, self.dead = starts, group, dead
        self.died = np.flatnonzero(dead)
        own = group[self.died]
        first = np.searchsorted(own, own)  # deaths stand in order of their groups
        count = np.bincount(own, minlength=len(starts))
        self.own = own
        self.part = (np.arange(len(own)) - first) / np.maximum(count[own], 1)
        self.tied = bool((count > 1).any())
        self.late: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
        if entry is not None:
            entry, moments = entry[self.order], time[starts]
            by_entry = np.argsort(-entry, kind="stable")
            # Rows, by falling entry; how many of them are not at risk yet at each group's time; the first group (by
            # falling time) that ends at or before each row's entry.
            outside = np.searchsorted(-entry[by_entry], -moments, side="right")
            self.late = by_entry, outside, np.searchsorted(-moments, -entry, side="left")

    def at_risk(self, values: np.ndarray) -> np.ndarray:
        """(groups, ...) sums over the rows at risk at each group's time."""
        sums = np.cumsum(values, 0)[self.ends]
        if self.late is None:
            return sums
        by_entry, outside, _ = self.late
        return sums - np.concatenate([np.zeros_like(values[:1]), np.cumsum(values[by_entry], 0)])[outside]

    def grown(self, grow: np.ndarray) -> np.ndarray:
        """(rows,) what grows by so much at each group's time, over the time that each row was at risk."""
        whole = np.r_[np.cumsum(grow[::-1])[::-1], 0.0]
        found = whole[self.group]
        return found if self.late is None else found - whole[self.late[2]]

    def height(self, beta: np.ndarray, x: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Log partial likelihood less the penalty, risks, and each death's sum over its risk set."""
        score = np.clip(x @ beta, -50, 50)
        risk = np.exp(score)
        below = self.at_risk(risk)[self.own]
        if self.tied:
            below = below - self.part * np.add.reduceat(risk * self.dead, self.starts)[self.own]
        value = float(score[self.died].sum() - np.log(below).sum() - 0.5 * RIDGE * (beta @ beta))
        return value, risk, below

    def derivatives(
        self, beta: np.ndarray, x: np.ndarray, risk: np.ndarray, below: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        weighted = x * risk[:, None]
        mean = self.at_risk(weighted)[self.own]
        if self.tied:
            lost = np.add.reduceat(weighted * self.dead[:, None], self.starts, axis=0)[self.own]
            mean = mean - self.part[:, None] * lost
        mean = mean / below[:, None]
        grow = np.bincount(self.own, 1 / below, len(self.starts))
        hazard = self.grown(grow)  # deaths at the row's time or before, and after its entry
        if self.tied:
            hazard = hazard - np.bincount(self.own, self.part / below, len(self.starts))[self.group] * self.dead
        slope = x[self.died].sum(0) - (risk * hazard) @ x - RIDGE * beta
        information = (weighted * hazard[:, None]).T @ x - mean.T @ mean + RIDGE * np.eye(len(beta))
        return slope, information


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
        start: the estimate to begin with.
        entry: times from which rows are at risk (left truncation).
    """
    beta = np.zeros(z.shape[1]) if start is None or len(start) != z.shape[1] else start
    if not (event > 0).any():
        return Hazard(estimate=beta, beta=np.zeros(z.shape[1]), at=np.zeros(0), jump=np.zeros(0))
    sets = _RiskSets(time, event, entry)
    x = z[sets.order]
    drawn = beta
    if len(beta):
        value, risk, below = sets.height(beta, x)
        for _ in range(STEPS):
            slope, information = sets.derivatives(beta, x, risk, below)
            move = np.linalg.solve(information, slope)
            scale = 1.0
            while (found := sets.height(beta + scale * move, x))[0] < value - 1e-9 and scale > 1e-4:
                scale /= 2
            beta, gain = beta + scale * move, found[0] - value
            value, risk, below = found
            if gain < CLOSE * (abs(value) + 1):
                break
        drawn = beta + np.linalg.solve(np.linalg.cholesky(information).T, rng.standard_normal(len(beta)))
    risk = np.exp(np.clip(x @ drawn, -30, 30))
    deaths = np.bincount(sets.own, minlength=len(sets.starts))
    at_risk = sets.at_risk(risk)
    some = np.flatnonzero(deaths)[::-1]  # from the earliest
    at = time[sets.order][sets.starts[some]]
    return Hazard(estimate=beta, beta=drawn, at=at, jump=deaths[some] / at_risk[some])
