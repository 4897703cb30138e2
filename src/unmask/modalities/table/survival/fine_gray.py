"""Fine & Gray's proportional subdistribution hazards (1999): how covariates shift the cumulative incidence of one of
competing causes.

Who had another cause stays at risk of this one, with the probability that follow-up would still go on: the weight of a
row with a competing event at T is G(t-) / G(T-) at t > T, where G is the Kaplan-Meier curve of censoring; with late
entry it is that of G H, where H is the curve of entry in reversed time (Geskus 2011). Checked in the tests against R's
`finegray` with `coxph`, and `cmprsk::crr`.
"""

from __future__ import annotations

import numpy as np

from unmask.modalities.table.survival.estimators import Cox, PartialLikelihood, inverse, maximum


def censoring_curve(
    time: np.ndarray, event: np.ndarray, entry: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Times of censoring, and G: the Kaplan-Meier share not yet censored, 1 before the first of them and then just
    after each. Events, above 0 of whatever cause, stand before censoring at the same time."""
    at, lost = np.unique(time[event <= 0], return_counts=True)
    at_risk = lost + len(time) - np.searchsorted(np.sort(time), at, side="right")
    if entry is not None:
        at_risk = at_risk - len(entry) + np.searchsorted(np.sort(entry), at, side="left")
    return at, np.r_[1.0, np.cumprod(1 - lost / at_risk)]


def followed_before(at: np.ndarray, time: np.ndarray, event: np.ndarray, entry: np.ndarray | None = None) -> np.ndarray:
    """G (with late entry G H) just before each of some times."""
    lost_at, curve = censoring_curve(time, event, entry)
    share = curve[np.searchsorted(lost_at, at, side="left")]
    if entry is None or entry.max() <= time.min():
        return share
    came_at, came = np.unique(entry, return_counts=True)
    here = np.searchsorted(np.sort(entry), came_at, side="right") - np.searchsorted(
        np.sort(time), came_at, side="right"
    )
    later = np.r_[np.cumprod((1 - came / here)[::-1])[::-1], 1.0]
    return share * later[np.searchsorted(came_at, at, side="left")]


def subdistribution_time(
    time: np.ndarray,
    event: np.ndarray,
    cause: int,
    use: np.ndarray,
    rng: np.random.Generator,
    entry: np.ndarray | None = None,
) -> np.ndarray:
    """Times until one cause or censoring: of rows with another cause, drawn from the curve of censoring after it; the
    longest time of all where the curve does not come down to 0. `use`: rows that the curve is of."""
    at, curve = censoring_curve(time[use], event[use], None if entry is None else entry[use])
    other = np.flatnonzero((event > 0) & (event != cause))
    left = rng.random(len(other)) * curve[np.searchsorted(at, time[other], side="left")]
    out = time.copy()
    out[other] = np.r_[at, time[use].max()][np.searchsorted(-curve[1:], -left, side="left")]
    return out


class SubdistributionLikelihood(PartialLikelihood):
    """The weighted partial likelihood of one cause; see the head of this file.

    Args:
        event: 0 where censored, else the number of the cause.
        cause: the number of the one that is modelled.
    """

    def __init__(
        self, x: np.ndarray, time: np.ndarray, event: np.ndarray, cause: int, entry: np.ndarray | None = None
    ) -> None:
        super().__init__(x, time, event == cause, entry=entry)
        order = np.argsort(time, kind="stable")
        other = (event[order] > 0) & (event[order] != cause)
        self.rivals = np.flatnonzero(other)
        """Rows with a competing event, by their times."""
        ended = time[order][self.rivals]
        self.before = np.searchsorted(ended, self.at, side="left")
        """Number of them before each event time."""
        self.follow_up = followed_before(self.at, time, event, entry)
        self.start = followed_before(ended, time, event, entry)

    def _at_risk(self, values: np.ndarray) -> np.ndarray:
        own = (values[self.rivals].T / self.start).T
        upto = np.concatenate([np.zeros((1, *own.shape[1:])), np.cumsum(own, 0)])
        return super()._at_risk(values) + (upto[self.before].T * self.follow_up).T

    def _exposed(self, rate: np.ndarray) -> np.ndarray:
        found = super()._exposed(rate)
        later = np.concatenate([np.zeros((1, *rate.shape[1:])), np.cumsum((rate.T * self.follow_up).T, 0)])
        found[self.rivals] += ((later[-1] - later[self.until[self.rivals]]).T / self.start).T
        return found


def fit_fine_gray(
    x: np.ndarray, time: np.ndarray, event: np.ndarray, cause: int, *, entry: np.ndarray | None = None
) -> Cox:
    """Log subdistribution hazard ratios of one cause and their robust covariance, each row a cluster (Lin & Wei 1989),
    as R's coxph gives it for data of `finegray`; tied events by Efron's method.

    Raises:
        ValueError: no event of this cause.
    """
    if not (event == cause).any():
        raise ValueError("no event to regress on")
    likelihood = SubdistributionLikelihood(x - x.mean(0), time, event, cause, entry)
    beta, _ = maximum(np.zeros(x.shape[1]), likelihood.value, likelihood.derivatives, solve=lambda h, g: inverse(h) @ g)
    influence = likelihood.score_residuals(beta) @ inverse(likelihood.derivatives(beta)[1])
    return Cox(beta=beta, covariance=influence.T @ influence, log_likelihood=likelihood.value(beta))
