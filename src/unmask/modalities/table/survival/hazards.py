"""The outcome of new rows: proportional hazards for every cause and for censoring, shrunk as far as unseen rows ask
for."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unmask.modalities.table.survival.estimators import PartialLikelihood, deviation, fit_cox

RIDGES = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, np.inf)
"""Penalties to choose from, in rows' worth of shrinkage of standardised covariates; with the last nothing is explained.
"""
FOLDS = 5
MOST_LEVELS = 20
"""Categories with more levels are left out of regressions of an outcome."""
CLEAR = 2.0
"""Gain on unseen rows, in units of log-likelihood, below which it may be chance (1.92 is the 5 % of a likelihood
ratio)."""
PLENTY = 10.0
"""Events per covariate from which the least penalty is kept (Peduzzi et al. 1996): noise then explains a log hazard of
deviation .3 at most, and to choose costs more than it brings (the log hazard ratios of synthetic whas500 and gbsg2 rows
were 5 % further from the real ones)."""


@dataclass(frozen=True, kw_only=True)
class BaselineHazard:
    """A cumulative hazard as a step function, with the log hazard ratios it belongs to."""

    beta: np.ndarray
    at: np.ndarray
    hazard: np.ndarray

    def times(self, risk: np.ndarray, uniform: np.ndarray, entry: np.ndarray | None = None) -> np.ndarray:
        """Event times of rows with log hazards `risk`, infinite beyond the last observed event. `entry`: times after
        which they lie: rows are known to have come that far."""
        need = -np.log(np.maximum(1 - uniform, 1e-12)) / np.exp(np.clip(risk, -30, 30))
        if entry is not None:
            need = need + np.r_[0.0, self.hazard][np.searchsorted(self.at, entry, side="right")]
        place = np.searchsorted(self.hazard, need, side="left")
        if entry is not None:
            place = np.maximum(place, np.searchsorted(self.at, entry, side="right"))
        return np.r_[self.at, np.inf][np.minimum(place, len(self.at))]


def fit_baseline(
    x: np.ndarray,
    time: np.ndarray,
    event: np.ndarray,
    ridge: float,
    *,
    entry: np.ndarray | None = None,
    weight: np.ndarray | None = None,
) -> BaselineHazard:
    """Cox regression and its Breslow cumulative hazard; x must be centred. No event: a hazard of zero.

    Args:
        ridge: infinite for hazard ratios of 1.
        entry, weight: as in `fit_cox`.
    """
    weight = np.ones(len(x)) if weight is None else weight
    if not (event[weight > 0] > 0).any():
        return BaselineHazard(beta=np.zeros(x.shape[1]), at=np.zeros(0), hazard=np.zeros(0))
    beta = np.zeros(x.shape[1])
    if np.isfinite(ridge) and len(beta):
        beta = fit_cox(x, time, event, ridge=ridge, entry=entry, weight=weight).beta
    centred = x - np.average(x, axis=0, weights=weight)
    at, deaths, at_risk = PartialLikelihood(centred, time, event, entry=entry, weight=weight).baseline(beta)
    keep = deaths > 0
    # 1 - exp(-H) of one death among equals is the Kaplan-Meier step.
    share = deaths[keep] / at_risk[keep]
    step = -np.log(np.maximum(1 - np.minimum(share, 1 - 1e-9), 1e-9))
    return BaselineHazard(beta=beta, at=at[keep], hazard=np.cumsum(step))


def choose_ridge(x: np.ndarray, time: np.ndarray, event: np.ndarray, *, entry: np.ndarray | None = None) -> float:
    """The smallest penalty that keeps half of what the best one gains over no effect at all, on rows left out.

    The gain is that of the cross-validated partial likelihood: a fold's part of it is the likelihood of all rows less
    that of the others, at coefficients the fold had no part in (Verweij & van Houwelingen 1993). Noise gains nothing
    (or less than CLEAR, by chance), and is shrunk away whole; the best penalty itself would pull every hazard ratio
    that is real towards 1 by a tenth and more.
    """
    events = int((event > 0).sum())
    if not x.shape[1] or events >= PLENTY * x.shape[1]:
        return RIDGES[0]
    order = np.lexsort((time, event > 0))
    fold = np.empty(len(x), int)
    fold[order] = np.arange(len(x)) % FOLDS
    whole, scores = PartialLikelihood(x, time, event, entry=entry), []
    for k in range(FOLDS):
        kept = fold != k
        if not (event[kept] > 0).any():
            return RIDGES[-1]
        others = (x[kept], time[kept], event[kept])
        late = None if entry is None else entry[kept]
        rest = PartialLikelihood(*others, entry=late)
        beta, line = np.zeros(x.shape[1]), []
        for ridge in RIDGES[::-1]:  # from large to small, each from where the last one came to
            if np.isfinite(ridge):
                beta = fit_cox(*others, entry=late, ridge=ridge, start=beta).beta
            line.append(whole.value(beta) - rest.value(beta))
        scores.append(line[::-1])
    gain = np.array(scores).sum(0)
    gain -= gain[-1]
    if gain.max() < CLEAR:
        return RIDGES[-1]
    return RIDGES[int(np.argmax(gain >= gain.max() / 2))]


def informative(
    x: np.ndarray, straight: int, time: np.ndarray, event: np.ndarray, *, entry: np.ndarray | None = None
) -> list[int]:
    """The columns that tell of a hazard: the first, `straight` ones, and of the curves behind them one after the other,
    always that with the greatest score statistic, as long as it raises the partial likelihood by more than the
    extended BIC asks for (Chen & Chen 2008, with events in the place of rows, Volinsky & Raftery 2000) and there are
    `PLENTY` events per covariate."""
    own, events, found = list(range(straight)), float((event > 0).sum()), None
    while len(own) < x.shape[1] and events >= PLENTY * (len(own) + 1):
        found = found or fit_cox(x[:, own], time, event, entry=entry, ridge=RIDGES[0])
        beta = np.zeros(x.shape[1])
        beta[own] = found.beta
        slope, information = PartialLikelihood(x, time, event, entry=entry, ridge=RIDGES[0]).derivatives(beta)
        explained = information[own] * np.linalg.lstsq(information[np.ix_(own, own)], information[own], rcond=None)[0]
        score = slope**2 / np.maximum(np.diag(information) - explained.sum(0), RIDGES[0])
        score[own] = -1.0
        more = [*own, int(np.argmax(score))]
        better = fit_cox(x[:, more], time, event, entry=entry, ridge=RIDGES[0])
        penalty = 0.5 * np.log(events) + np.log(x.shape[1] - straight)
        if better.log_likelihood - found.log_likelihood < penalty:
            break
        own, found = more, better
    return own


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Time and event of new rows given their covariates: proportional hazards for every cause and for censoring.

    The hazard ratios of a regression on synthetic rows are then those of the real ones up to sampling noise, the
    cumulative incidence of every cause is kept, and follow-up ends where it ended.

    Attributes:
        causes: one hazard per cause; a single one where the event is the event.
        end: latest follow-up time; who is neither dead nor censored before is censored here.
    """

    causes: tuple[BaselineHazard, ...]
    censoring: BaselineHazard
    center: np.ndarray
    scale: np.ndarray
    end: float

    def draw(
        self, x: np.ndarray, uniform: np.ndarray, entry: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """(time, event) of rows of the design (see `fit_outcome`); event 0 is censored, k the k-th cause.

        Args:
            uniform: (rows, 1 + causes) numbers.
            entry: times after which all of it happens.
        """
        z = (x - self.center) / self.scale
        left = np.minimum(self.censoring.times(z @ self.censoring.beta, uniform[:, 1], entry), self.end)
        columns = [0, *range(2, 1 + len(self.causes))]
        struck = np.stack(
            [c.times(z @ c.beta, uniform[:, k], entry) for c, k in zip(self.causes, columns, strict=True)], 1
        )
        time, cause = struck.min(1), struck.argmin(1)
        return np.minimum(time, left), np.where(time <= left, cause + 1.0, 0.0)

    def curves(self, x: np.ndarray, at: np.ndarray, entry: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(rows, times) share without an event, and (causes, rows, times) share with each, of rows of the design; given
        that none came up to `entry` (NaN: not known).

        Events of all causes are taken in order of time: each strikes those whom none has struck before, so that the
        shares add up to one at every time.
        """
        z = (x - self.center) / self.scale
        steps = np.unique(np.concatenate([c.at for c in self.causes]))
        risk = np.stack([np.exp(np.clip(z @ c.beta, -30, 30)) for c in self.causes])
        jump = np.zeros((len(self.causes), len(steps)))
        for k, c in enumerate(self.causes):
            jump[k, np.searchsorted(steps, c.at)] = np.diff(np.r_[0.0, c.hazard])
        hazard = risk[:, :, None] * jump[:, None, :]
        if entry is not None:
            hazard = np.where(steps <= entry[:, None], 0.0, hazard)
        total = hazard.sum(0)
        left = np.concatenate([np.ones((len(x), 1)), np.exp(-np.cumsum(total, 1))], 1)
        share = np.divide(hazard, total, out=np.zeros_like(hazard), where=total > 0)
        incidence = np.cumsum(share * -np.diff(left), 2)
        struck = np.concatenate([np.zeros((*incidence.shape[:2], 1)), incidence], 2)
        place = np.searchsorted(steps, at, side="right")
        return left[:, place], struck[:, :, place]


def fit_outcome(
    x: np.ndarray,
    time: np.ndarray,
    event: np.ndarray,
    *,
    causes: int = 1,
    entry: np.ndarray | None = None,
    curves: int = 0,
) -> Outcome:
    """Fit the hazards on complete covariates (rows, covariates).

    Args:
        event: 0 where censored, else the number of the cause, from 1.
        causes: how many there are.
        entry: time from which each row is at risk.
        curves: how many covariates, the last ones, are curves of others: each hazard has those that tell of it.
    """
    center, scale = x.mean(0), deviation(x)
    z = (x - center) / scale

    def fit(happened: np.ndarray) -> BaselineHazard:
        own = informative(z, z.shape[1] - curves, time, happened, entry=entry)
        ridge = choose_ridge(z[:, own], time, happened, entry=entry)
        found, beta = fit_baseline(z[:, own], time, happened, ridge, entry=entry), np.zeros(z.shape[1])
        beta[own] = found.beta
        return replace(found, beta=beta)

    return Outcome(
        causes=tuple(fit((event == k).astype(float)) for k in range(1, causes + 1)),
        censoring=fit(1.0 * (event == 0)),
        center=center,
        scale=scale,
        end=float(time.max()),
    )
