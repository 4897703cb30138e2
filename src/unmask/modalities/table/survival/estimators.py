"""Survival arithmetic in NumPy: Nelson-Aalen, Aalen-Johansen and Cox regression, with late entry (Kaplan-Meier:
`evaluation.survival`).

No dependency: synthesis and evaluation need these many times over. Checked against lifelines and R's survival in the
tests.

A row is at risk from its `entry` (not at that very moment) to its `time`, both ends as in R's Surv(entry, time, event);
without `entry`, from the start. Events are 0 where censored; above 0 an event happened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from unmask.evaluation.survival import event_steps, kaplan_meier


def nelson_aalen(time: np.ndarray, event: np.ndarray, entry: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Distinct event times and the cumulative hazard just after each."""
    at, deaths, at_risk = event_steps(time, event, entry)
    return at, np.cumsum(deaths / at_risk)


def cumulative_incidence(
    time: np.ndarray, event: np.ndarray, cause: int, entry: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Distinct event times and the probability that this cause has struck by each, the other causes taken into account
    (Aalen & Johansen 1978). `event`: 0 where censored, else the number of the cause."""
    at, _, at_risk = event_steps(time, event, entry)
    alive = np.r_[1.0, kaplan_meier(time, event, entry)[1]][: len(at)]
    own = np.bincount(np.searchsorted(at, time[event == cause]), minlength=len(at))
    return at, np.cumsum(alive * own / at_risk)


@dataclass(frozen=True, kw_only=True)
class Cox:
    """A Cox regression: log hazard ratios and their covariance."""

    beta: np.ndarray
    covariance: np.ndarray
    log_likelihood: float

    @property
    def error(self) -> np.ndarray:
        """Standard errors of the coefficients."""
        return np.sqrt(np.maximum(np.diag(self.covariance), 0))


def fit_cox(
    x: np.ndarray,
    time: np.ndarray,
    event: np.ndarray,
    *,
    entry: np.ndarray | None = None,
    ridge: float = 0.0,
    weight: np.ndarray | None = None,
    start: np.ndarray | None = None,
) -> Cox:
    """Cox regression by Newton's method; tied events by Efron's method (see `PartialLikelihood`).

    Args:
        x: (rows, covariates) centred here.
        event: above 0 where the event happened; of competing risks, give `event == cause`: other causes censor.
        entry: time from which each row is at risk (left truncation); below `time`.
        ridge: penalty 1/2 ridge |beta|^2 on the log-likelihood, covariates as they come.
        weight: of each row.
        start: log hazard ratios to start from, default 0.

    Raises:
        ValueError: no event.
    """
    x = x - x.mean(0)
    if weight is not None:
        keep = weight > 0
        x, time, event, weight = x[keep], time[keep], event[keep], weight[keep]
        entry = None if entry is None else entry[keep]
    if not (event > 0).any():
        raise ValueError("no event to regress on")
    likelihood = PartialLikelihood(x, time, event, entry=entry, weight=weight, ridge=ridge)
    beta = np.zeros(x.shape[1]) if start is None else start
    beta, _ = maximum(beta, likelihood.value, likelihood.derivatives, solve=lambda h, g: inverse(h) @ g)
    covariance = inverse(likelihood.derivatives(beta)[1])
    return Cox(beta=beta, covariance=covariance, log_likelihood=likelihood.value(beta))


def inverse(information: np.ndarray) -> np.ndarray:
    """The covariance of an information, by least squares where it is singular; taken in units in which each parameter
    has an information of 1, so that cells per litre stand beside moles per litre."""
    unit = 1 / np.sqrt(np.maximum(np.diag(information), np.finfo(float).tiny))
    return unit[:, None] * np.linalg.pinv(unit[:, None] * information * unit, hermitian=True) * unit


def deviation(x: np.ndarray) -> np.ndarray:
    """(columns,) standard deviations, whatever the unit; 1 where a column varies by no more than rounding does."""
    found = x.std(0)
    return np.where(found > 1e-12 * np.abs(x).max(0), found, 1.0)


def maximum(
    x: np.ndarray,
    height: Callable[[np.ndarray], float],
    derivatives: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    *,
    steps: int = 40,
    enough: float = 1e-9,
    solve: Callable[[np.ndarray, np.ndarray], np.ndarray] = np.linalg.solve,
) -> tuple[np.ndarray, np.ndarray]:
    """Where a height is greatest, by Newton's method with steps halved until they do not fall, and the information
    (minus the second derivatives) from which the last step was made.

    Args:
        x: to start from.
        derivatives: slope and information.
        enough: the share of the height that a last step gains at most.
    """
    value, information = height(x), np.eye(len(x))
    for _ in range(steps):
        slope, information = derivatives(x)
        move, scale = solve(information, slope), 1.0
        while not (np.isfinite(new := height(x + scale * move)) and new >= value - 1e-9):
            scale /= 2
            if scale <= 1e-4:
                return x, information
        x, before, value = x + scale * move, value, new
        if abs(value - before) < enough * (abs(before) + 1):
            break
    return x, information


class PartialLikelihood:
    """Cox's partial likelihood of some rows, less 1/2 ridge |beta|^2, and its derivatives; tied events by Efron's
    method.

    Efron's method, on five rows at risk of which the first three have their event at the same time. Write r1 .. r5 for
    their relative risks (exp of the linear predictor), S = r1 + .. + r5 and T = r1 + r2 + r3. The three events happened
    one after the other, in an order that the data does not show. At the first, all five rows are at risk: S. At the
    second, one of the three is no longer at risk; as we do not know which, a third of each is taken off: S - T/3. At
    the last, two thirds are: S - 2T/3. So this event time adds to the log-likelihood

        log(r1 r2 r3) - log(S) - log(S - T/3) - log(S - 2T/3)

    (Breslow's method takes S three times.) With equal risks of 1 the three sums are 5, 4 and 3:

    >>> time, event = np.array([1.0, 1.0, 1.0, 2.0, 3.0]), np.array([1, 1, 1, 0, 0])
    >>> tied = PartialLikelihood(np.zeros((5, 1)), time, event)
    >>> round(tied.value(np.zeros(1)), 6) == round(-float(np.log(5 * 4 * 3)), 6)
    True

    How it is computed: sums over the rows at risk are differences of running sums, and no array is larger than (rows,
    covariates). The matrix of second derivatives is a difference of two matrix products: one over the rows, each
    weighted by the event times that it was at risk at, and one over the mean covariates at those times.
    """

    def __init__(
        self,
        x: np.ndarray,
        time: np.ndarray,
        event: np.ndarray,
        *,
        entry: np.ndarray | None = None,
        weight: np.ndarray | None = None,
        ridge: float = 0.0,
    ) -> None:
        order = np.argsort(time, kind="stable")
        self.x, time = x[order], time[order]
        self.weight = np.ones(len(x)) if weight is None else weight[order]
        self.died = np.flatnonzero(event[order] > 0)
        self.at, self.group = np.unique(time[self.died], return_inverse=True)
        at, self.ridge = self.at, ridge
        self.until = np.searchsorted(at, time, side="right")
        """Number of event times up to the end of each row's follow-up, which rises from row to row."""
        self.first = np.searchsorted(time, at, side="left")
        self.since, self.later = None, np.zeros(0, int)
        if entry is not None:
            entry = entry[order]
            self.since = np.searchsorted(at, entry, side="right")
            """Number of event times that each row came too late for."""
            self.later = np.argsort(entry, kind="stable")
            self.first_later = np.searchsorted(entry[self.later], at, side="left")
        # One line per event; the k-th of n tied events (k from 0) takes off k / n of their risks.
        ties = np.bincount(self.group, minlength=len(at))
        self.firsts = np.cumsum(ties) - ties
        self.line = np.repeat(np.arange(len(at)), ties)
        rank = np.arange(len(self.line)) - np.repeat(self.firsts, ties)
        self.part = rank / ties[self.line]
        self.share = (np.bincount(self.group, self.weight[self.died], len(at)) / np.maximum(ties, 1))[self.line]

    def _at_risk(self, values: np.ndarray) -> np.ndarray:
        """Sums of values over the rows at risk at each event time."""
        total = np.cumsum(values[::-1], 0)[::-1][self.first]
        if self.since is None:
            return total
        late = np.concatenate([np.cumsum(values[self.later][::-1], 0)[::-1], np.zeros_like(values[:1])])
        return total - late[self.first_later]

    def baseline(self, beta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Event times, the deaths at each, and the summed risks of the rows at risk then."""
        risk = self.weight * np.exp(np.clip(self.x @ beta, -30, 30))
        return self.at, np.bincount(self.group, self.weight[self.died], len(self.at)), self._at_risk(risk)

    def value(self, beta: np.ndarray) -> float:
        eta = np.clip(self.x @ beta, -50, 50)
        risk = self.weight * np.exp(eta)
        tied = np.bincount(self.group, risk[self.died], len(self.first))
        total = np.maximum(self._at_risk(risk)[self.line] - self.part * tied[self.line], 1e-300)
        value = float(self.weight[self.died] @ eta[self.died] - self.share @ np.log(total))
        return value - 0.5 * self.ridge * float(beta @ beta)

    def _means(self, beta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Risk of each row; of each event the mean covariates of the rows at risk and its share of the hazard."""
        died, line, part = self.died, self.line, self.part
        risk = self.weight * np.exp(np.clip(self.x @ beta, -50, 50))
        wx = risk[:, None] * self.x
        tied0 = np.bincount(self.group, risk[died], len(self.first))
        tied1 = np.add.reduceat(wx[died], self.firsts, axis=0)
        a0 = np.maximum(self._at_risk(risk)[line] - part * tied0[line], 1e-300)
        mean = (self._at_risk(wx)[line] - part[:, None] * tied1[line]) / a0[:, None]
        return risk, mean, self.share / a0

    def _exposed(self, rate: np.ndarray) -> np.ndarray:
        """Of each row the sum of rates, one per event time (and column), over the event times it was at risk at."""
        upto = np.concatenate([np.zeros((1, *rate.shape[1:])), np.cumsum(rate, 0)])
        return upto[self.until] - (0.0 if self.since is None else upto[self.since])

    def derivatives(self, beta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The gradient of `value`, and minus its second derivatives."""
        x, died = self.x, self.died
        risk, mean, rate = self._means(beta)
        gradient = self.weight[died] @ x[died] - self.share @ mean - self.ridge * beta
        # How much each row's square counts: the rates of the event times it was at risk at, less what ties take away.
        count = self._exposed(np.bincount(self.line, rate, len(self.first)))
        count[died] -= np.bincount(self.line, rate * self.part, len(self.first))[self.group]
        hessian = (x * (risk * count)[:, None]).T @ x - (mean * self.share[:, None]).T @ mean
        return gradient, hessian + self.ridge * np.eye(len(beta))

    def score_residuals(self, beta: np.ndarray) -> np.ndarray:
        """(rows by time, covariates) what each row adds to the score (Therneau & Grambsch 2000, 4.6)."""
        x, died = self.x, self.died
        risk, mean, rate = self._means(beta)
        both, taken = (
            np.add.reduceat(r[:, None] * np.column_stack([np.ones(len(r)), mean]), self.firsts, axis=0)
            for r in (rate, rate * self.part)
        )
        count = self._exposed(both)
        count[died] -= taken[self.group]
        found = risk[:, None] * (count[:, 1:] - x * count[:, :1])
        ties = np.diff(np.r_[self.firsts, len(self.line)])[self.group, None]
        found[died] += self.weight[died, None] * (
            x[died] - np.add.reduceat(mean, self.firsts, axis=0)[self.group] / ties
        )
        return found


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
