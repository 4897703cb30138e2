"""Survival arithmetic in NumPy: Kaplan-Meier, Cox regression, the concordance index, and the outcome of new rows.

No dependency: synthesis and evaluation need these many times over. Checked against lifelines in the tests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


def kaplan_meier(time: np.ndarray, event: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct event times and the survival just after each (Kaplan & Meier 1958)."""
    order = np.argsort(time, kind="stable")
    time, event = time[order], event[order] > 0
    at, first = np.unique(time, return_index=True)
    deaths = np.add.reduceat(event.astype(float), first)
    at_risk = len(time) - first
    keep = deaths > 0
    return at[keep], np.cumprod(1 - deaths / at_risk)[keep]


def nelson_aalen(time: np.ndarray, event: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct event times and the cumulative hazard just after each."""
    order = np.argsort(time, kind="stable")
    time, event = time[order], event[order] > 0
    at, first = np.unique(time, return_index=True)
    steps = np.add.reduceat(event.astype(float), first) / (len(time) - first)
    return at[steps > 0], np.cumsum(steps)[steps > 0]


def step_values(at: np.ndarray, values: np.ndarray, t: np.ndarray, start: float = 1.0) -> np.ndarray:
    """A right-continuous step function at times t."""
    return np.r_[start, values][np.searchsorted(at, t, side="right")]


def curve_area(real: tuple[np.ndarray, np.ndarray], synthetic: tuple[np.ndarray, np.ndarray]) -> float:
    """Mean absolute distance between two groups' Kaplan-Meier curves, from 0 to the real follow-up's end, 0 to 1."""
    end = float(real[0].max())
    t = np.linspace(0, end, 2000)
    curves = [step_values(*kaplan_meier(*pair), t) for pair in (real, synthetic)]
    return float(np.abs(curves[0] - curves[1]).mean())


@dataclass(frozen=True, kw_only=True)
class Cox:
    """A Cox regression: log hazard ratios and their covariance."""

    beta: np.ndarray
    covariance: np.ndarray
    log_likelihood: float

    @property
    def error(self) -> np.ndarray:
        return np.sqrt(np.maximum(np.diag(self.covariance), 0))


def fit_cox(
    x: np.ndarray,
    time: np.ndarray,
    event: np.ndarray,
    *,
    ridge: float = 0.0,
    weight: np.ndarray | None = None,
    iterations: int = 40,
) -> Cox:
    """Cox regression by Newton's method, ties after Efron.

    Args:
        x: (rows, covariates) centred here.
        ridge: penalty 1/2 ridge |beta|^2 on the log-likelihood, covariates as they come.
        weight: of each row.

    Raises:
        ValueError: no event.
    """
    if weight is not None:
        x, time, event, weight = (a[weight > 0] for a in (x, time, event, weight))
    if not (event > 0).any():
        raise ValueError("no event to regress on")
    order = np.argsort(-time, kind="stable")
    x, time, event = x[order] - x.mean(0), time[order], event[order] > 0
    w = np.ones(len(x)) if weight is None else weight[order]
    groups = _risk_groups(time)
    beta = np.zeros(x.shape[1])
    value, gradient, hessian = _efron(beta, x, event, w, groups, ridge)
    for _ in range(iterations):
        move = np.linalg.lstsq(hessian + 1e-9 * np.eye(len(beta)), gradient, rcond=None)[0]
        scale = 1.0
        while scale > 1e-4:
            new = _efron(beta + scale * move, x, event, w, groups, ridge)
            if np.isfinite(new[0]) and new[0] >= value - 1e-9:
                break
            scale /= 2
        else:
            break
        beta = beta + scale * move
        done = abs(new[0] - value) < 1e-9 * (abs(value) + 1)
        value, gradient, hessian = new
        if done:
            break
    return Cox(beta=beta, covariance=np.linalg.pinv(hessian), log_likelihood=float(value))


def _risk_groups(time_descending: np.ndarray) -> np.ndarray:
    """First index of each distinct time, times descending, and the end."""
    return np.r_[np.flatnonzero(np.r_[True, np.diff(time_descending) != 0]), len(time_descending)]


def _efron(
    beta: np.ndarray, x: np.ndarray, event: np.ndarray, w: np.ndarray, groups: np.ndarray, ridge: float
) -> tuple[float, np.ndarray, np.ndarray]:
    p = x.shape[1]
    eta = np.clip(x @ beta, -50, 50)
    risk = w * np.exp(eta)
    wx = risk[:, None] * x
    products = (wx[:, :, None] * x[:, None, :]).reshape(len(x), -1)
    s0, s1, s2 = (np.cumsum(a, 0) for a in (risk, wx, products))
    value, gradient, hessian = 0.0, np.zeros(p), np.zeros((p, p))
    last = groups[1:] - 1
    died = np.where(event, 1.0, 0.0)
    start = groups[:-1]
    count = np.add.reduceat(died, start).astype(int)
    d0 = np.add.reduceat(risk * died, start)
    d1 = np.add.reduceat(wx * died[:, None], start)
    d2 = np.add.reduceat(products * died[:, None], start)
    total_w = np.add.reduceat(w * died, start)
    value = float((w * died * eta).sum()) - 0.5 * ridge * float(beta @ beta)
    gradient = (w * died) @ x - ridge * beta
    hessian = ridge * np.eye(p)
    for ties in np.unique(count[count > 0]):
        g = np.flatnonzero(count == ties)
        share = total_w[g] / ties
        for k in range(ties):
            part = k / ties
            a0 = s0[last[g]] - part * d0[g]
            a1 = s1[last[g]] - part * d1[g]
            a2 = s2[last[g]] - part * d2[g]
            mean = a1 / a0[:, None]
            value -= float((share * np.log(a0)).sum())
            gradient -= share @ mean
            hessian += ((share / a0) @ a2).reshape(p, p) - (mean * share[:, None]).T @ mean
    return value, gradient, hessian


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A cumulative hazard as a step function, with the log hazard ratios it belongs to."""

    beta: np.ndarray
    at: np.ndarray
    hazard: np.ndarray

    def times(self, risk: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """Event times of rows with log hazards `risk`, infinite beyond the last observed event."""
        need = -np.log(np.maximum(1 - uniform, 1e-12)) / np.exp(np.clip(risk, -30, 30))
        place = np.searchsorted(self.hazard, need, side="left")
        return np.r_[self.at, np.inf][np.minimum(place, len(self.at))]


def fit_baseline(
    x: np.ndarray, time: np.ndarray, event: np.ndarray, ridge: float, *, weight: np.ndarray | None = None
) -> Baseline:
    """Cox regression and its Breslow cumulative hazard; x must be centred. No event: a hazard of zero.

    Args:
        weight: of each row.
    """
    weight = np.ones(len(x)) if weight is None else weight
    if not (event[weight > 0] > 0).any():
        return Baseline(beta=np.zeros(x.shape[1]), at=np.zeros(0), hazard=np.zeros(0))
    beta = fit_cox(x, time, event, ridge=ridge, weight=weight).beta
    risk = weight * np.exp(np.clip((x - np.average(x, axis=0, weights=weight)) @ beta, -30, 30))
    order = np.argsort(time, kind="stable")
    at, first = np.unique(time[order], return_index=True)
    deaths = np.add.reduceat(weight[order] * (event[order] > 0), first)
    at_risk = np.cumsum(risk[order][::-1])[::-1][first]
    keep = deaths > 0
    # 1 - exp(-H) of one death among equals is the Kaplan-Meier step.
    share = deaths[keep] / at_risk[keep]
    step = -np.log(np.maximum(1 - np.minimum(share, 1 - 1e-9), 1e-9))
    return Baseline(beta=beta, at=at[keep], hazard=np.cumsum(step))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Time and event of new rows given their covariates: proportional hazards for the event and for censoring.

    The hazard ratios of a regression on synthetic rows are then those of the real ones up to sampling noise, and
    follow-up ends where it ended.

    Attributes:
        end: latest follow-up time; who is neither dead nor censored before is censored here.
    """

    event: Baseline
    censoring: Baseline
    center: np.ndarray
    scale: np.ndarray
    end: float

    def draw(self, x: np.ndarray, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(time, event) of rows of the design (see `fit_outcome`) from two uniform numbers a row."""
        z = (x - self.center) / self.scale
        died = self.event.times(z @ self.event.beta, uniform[:, 0])
        left = np.minimum(self.censoring.times(z @ self.censoring.beta, uniform[:, 1]), self.end)
        return np.minimum(died, left), (died <= left).astype(float)


def fit_outcome(x: np.ndarray, time: np.ndarray, event: np.ndarray, *, ridge: float = 0.3) -> Outcome:
    """Fit both hazards on complete covariates (rows, covariates).

    Args:
        ridge: on standardised covariates, in rows' worth of shrinkage; it keeps separated covariates finite. With 1, the levels
            of a column whose first is far from them all (support2's `sfdm2`) had log hazard ratios of -6.6 for -7.7; smaller
            tables did the same with 3 to 0.01.
    """
    center, scale = x.mean(0), np.maximum(x.std(0), 1e-9)
    z = (x - center) / scale
    return Outcome(
        event=fit_baseline(z, time, event, ridge), censoring=fit_baseline(z, time, 1 - (event > 0), ridge),
        center=center, scale=scale, end=float(time.max()),
    )  # fmt: skip
