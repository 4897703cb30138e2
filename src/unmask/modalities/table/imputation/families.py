"""The regressions that a formula stands for, one class each: how it is fitted to a completed table, how likely an
outcome is under it, and how its parameters are drawn from their posterior.

| family | outcome | exp(coefficient) |
|---|---|---|
| ols | a quantity | |
| logit | two categories | odds ratio |
| polr | ordered categories, proportional odds (McCullagh 1980) | odds ratio of a higher category |
| poisson, negative-binomial | counts (NB2: variance m + m^2 / theta), `offset(log(t))` | rate ratio |
| cox | time and event; one of several causes, the others censored | hazard ratio |
| fine-gray | time and one of several causes (Fine & Gray 1999) | subdistribution hazard ratio |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import numpy as np
from scipy import stats
from scipy.special import digamma, expit, gammaln, log_expit, polygamma

from unmask.errors import UserError, option
from unmask.evaluation.survival import step_values
from unmask.modalities.table.imputation.regressions import (
    PRIOR,
    draw_level,
    draw_linear,
    draw_shares,
    fit_ordered,
    log_shares,
)
from unmask.modalities.table.survival.estimators import Hazard, PartialLikelihood, draw_hazard, fit_cox, maximum
from unmask.modalities.table.survival.fine_gray import fit_fine_gray, subdistribution_time

STEEP = 50.0
"""Linear predictors of counts are cut here, so that their exponentials stay finite."""
MOST_THETA = math.log(1e6)
"""Counts of which theta would be larger are as good as Poisson's."""


@dataclass(frozen=True, kw_only=True)
class Response:
    """The outcome of an analysis on complete columns.

    Attributes:
        y: (rows,) the outcome; of a survival pair the time.
        event: of a survival pair, 0 where censored, else the number of the cause.
        causes: how many there are; `cause`: the number of the one that is analysed, 0 for all of them.
        entry: times from which rows are at risk, where they enter late.
        offset: added to the linear predictor.
    """

    y: np.ndarray
    event: np.ndarray
    causes: int = 1
    cause: int = 0
    entry: np.ndarray | None = None
    offset: np.ndarray

    @property
    def happened(self) -> np.ndarray:
        """Where the event that is analysed came."""
        return (self.event == self.cause) if self.cause else self.event > 0

    def of(self, rows: np.ndarray) -> Response:
        entry = None if self.entry is None else self.entry[rows]
        return replace(self, y=self.y[rows], event=self.event[rows], entry=entry, offset=self.offset[rows])


class Fit(NamedTuple):
    """An estimate and its covariance; degrees of freedom left; and a parameter beside the coefficients: the variance of
    residuals of least squares by maximum likelihood, theta of a negative binomial regression."""

    beta: np.ndarray
    covariance: np.ndarray
    df: float
    nuisance: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Given:
    """What the parameters of an analysis are drawn given.

    Attributes:
        x: (rows, regressors) standardised, of the outcome `r`.
        use: rows that are fitted to.
        before: estimates of the round before, to start from, by equation (of hazards by cause); kept up to date.
    """

    x: np.ndarray
    r: Response
    use: np.ndarray
    rng: np.random.Generator
    before: dict[int, np.ndarray] = field(default_factory=dict)

    def hazard(self, cause: int) -> Hazard:
        """The drawn hazard of one cause, or of censoring (0)."""
        seen, start = self.r.of(self.use), self.before.get(cause)
        happened = (seen.event == cause).astype(float)
        found = draw_hazard(self.x[self.use], seen.y, happened, self.rng, start, seen.entry)
        self.before[cause] = found.estimate
        return found

    def hazards(self) -> dict[int, Hazard]:
        """Number of the cause -> its drawn hazard."""
        return {cause: self.hazard(cause) for cause in range(1, self.r.causes + 1)}


@dataclass(frozen=True, kw_only=True)
class Law:
    """An analysis with drawn parameters.

    Attributes:
        beta: (regressors, equations), one equation per cause of competing hazards.
        log_likelihood: ((rows, equations) linear predictors, numbers of the rows) -> (rows,) of the outcome, less the
            largest it can be.
        sample: ((rows, equations), numbers of the rows) -> a drawn outcome; survival pairs are drawn by `follow_up`.
        hazards: of a survival pair, number of the cause -> its hazard.
        sigma: of least squares, the deviation of the residuals; else 0.
    """

    beta: np.ndarray
    log_likelihood: Callable[[np.ndarray, np.ndarray], np.ndarray]
    sample: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    hazards: dict[int, Hazard] = field(default_factory=dict)
    sigma: float = 0.0


class Family:
    """One kind of regression.

    Attributes:
        takes: the kind of its outcome: "quantity", "binary", "ordered" or "survival".
        title, ratio: what tables call it, and exp(coefficient); "" where that is nothing.
        constant: whether a constant is one of its regressors.
        counts: whether the outcome is 0, 1, 2, ..., with an offset where the formula has one.
    """

    name: ClassVar[str]
    takes: ClassVar[str]
    title: ClassVar[str]
    ratio: ClassVar[str] = ""
    constant: ClassVar[bool] = True
    counts: ClassVar[bool] = False

    def back(self, eta: np.ndarray) -> np.ndarray:
        """From the linear predictor to the scale of the outcome."""
        return np.exp(eta)

    def fit(self, x: np.ndarray, r: Response, *, firth: bool, penalizer: float) -> Fit:
        """By maximum likelihood, of regressors of about unit length."""
        raise NotImplementedError

    def log_likelihood(self, x: np.ndarray, r: Response, beta: np.ndarray, nuisance: float) -> float:
        """Of coefficients; the partial likelihood of a Cox regression."""
        raise NotImplementedError

    def scores(self, x: np.ndarray, r: Response, found: Fit) -> np.ndarray:
        """(rows, regressors) what each row adds to the slope of the log-likelihood."""
        raise UserError(
            f"errors robust to clusters of a {self.title}", hint=f"They are not built: leave {option('cluster')} out."
        )

    def draw(self, given: Given) -> Law:
        """Parameters drawn from their (approximate) posterior."""
        raise NotImplementedError


class LeastSquares(Family):
    name, takes, title = "ols", "quantity", "Least squares"

    def back(self, eta: np.ndarray) -> np.ndarray:
        return eta

    def fit(self, x: np.ndarray, r: Response, *, firth: bool, penalizer: float) -> Fit:
        df = len(x) - x.shape[1]
        if df < 1:
            raise UserError(f"{len(x)} rows for {x.shape[1]} regressors", hint="Use fewer.")
        beta = np.linalg.lstsq(x, r.y, rcond=None)[0]
        variance = float(((r.y - x @ beta) ** 2).mean())
        return Fit(beta, np.linalg.inv(x.T @ x) * variance * len(x) / df, df, variance)

    def log_likelihood(self, x: np.ndarray, r: Response, beta: np.ndarray, nuisance: float) -> float:
        return float(stats.norm.logpdf(r.y, x @ beta, math.sqrt(nuisance)).sum())

    def scores(self, x: np.ndarray, r: Response, found: Fit) -> np.ndarray:
        return x * ((r.y - x @ found.beta) * found.df / len(x) / found.nuisance)[:, None]

    def draw(self, given: Given) -> Law:
        r, use, rng = given.r, given.use, given.rng
        found = draw_linear(given.x[use], r.y[use], rng)
        sigma = found.drawn_sigma
        return Law(
            beta=found.drawn_beta[:, None],
            log_likelihood=lambda eta, rows: -0.5 * ((r.y[rows] - eta[:, 0]) / sigma) ** 2,
            sample=lambda eta, rows: eta[:, 0] + sigma * rng.standard_normal(len(rows)),
            sigma=sigma,
        )


class Logistic(Family):
    name, takes, title, ratio = "logit", "binary", "Logistic regression", "odds ratio"

    def back(self, eta: np.ndarray) -> np.ndarray:
        return np.asarray(expit(eta))

    def fit(self, x: np.ndarray, r: Response, *, firth: bool, penalizer: float) -> Fit:
        """
        Args:
            firth: the likelihood times the root of the determinant of the information (Firth 1993; Heinze & Schemper
                2002), whose estimates are finite under separation too.
        """
        beta = np.zeros(x.shape[1])
        for _ in range(200 if firth else 50):
            share = expit(x @ beta)
            weighted = x * np.sqrt(share * (1 - share))[:, None]
            information = weighted.T @ weighted
            score = r.y - share
            if firth:
                leverage = (weighted * np.linalg.solve(information, weighted.T).T).sum(1)
                score = score + leverage * (0.5 - share)
            move = np.linalg.lstsq(information, x.T @ score, rcond=None)[0]
            beta = beta + move * min(1.0, 5 / max(np.abs(x @ move).max(), 1e-12))
            if np.abs(x @ move).max() < 1e-9:
                return Fit(beta, np.linalg.inv(information), len(x) - x.shape[1])
        raise UserError(
            "the outcome is perfectly predicted, or does not vary",
            hint="Leave out the term that separates the two outcomes, or pool with firth=True.",
        )

    def log_likelihood(self, x: np.ndarray, r: Response, beta: np.ndarray, nuisance: float) -> float:
        return float(log_expit(np.where(r.y > 0, 1, -1) * (x @ beta)).sum())

    def scores(self, x: np.ndarray, r: Response, found: Fit) -> np.ndarray:
        return x * (r.y - expit(x @ found.beta))[:, None]

    def draw(self, given: Given) -> Law:
        x, r, use, rng = given.x, given.r, given.use, given.rng
        y = r.y[use]
        beta = np.zeros(x.shape[1]) if (y == y[0]).all() else draw_shares(x[use], y, rng).drawn
        return Law(
            beta=beta[:, None],
            log_likelihood=lambda eta, rows: log_expit(np.where(r.y[rows] > 0, eta[:, 0], -eta[:, 0])),
            sample=lambda eta, rows: np.log(rng.random(len(rows))) < log_expit(eta[:, 0]),
        )


class ProportionalOdds(Family):
    """Coefficients, then thresholds, as R's polr has them: log-odds of more than a category are x beta - threshold."""

    name, takes, title, ratio = "polr", "ordered", "Proportional odds regression", "odds ratio"
    constant = False

    def fit(self, x: np.ndarray, r: Response, *, firth: bool, penalizer: float) -> Fit:
        beta, information = fit_ordered(np.hstack([np.ones((len(x), 1)), x]), r.y)
        last = np.r_[len(beta) - x.shape[1] : len(beta), 0 : len(beta) - x.shape[1]]
        return Fit(beta[last], np.linalg.inv(information)[np.ix_(last, last)], len(x) - len(beta))

    def log_likelihood(self, x: np.ndarray, r: Response, beta: np.ndarray, nuisance: float) -> float:
        own, cuts = beta[: x.shape[1]], beta[x.shape[1] :]
        return float(_of_thresholds(cuts, x @ own, np.arange(len(cuts) + 1.0), r.y).sum())

    def draw(self, given: Given) -> Law:
        x, r, use, rng = given.x, given.r, given.use, given.rng
        found = draw_shares(np.hstack([np.ones((use.sum(), 1)), x[use]]), r.y[use], rng, ordinal=True)
        cuts = found.drawn[: len(found.levels) - 1]
        beta = found.drawn[len(cuts) :] if len(cuts) else np.zeros(x.shape[1])
        return Law(
            beta=beta[:, None],
            log_likelihood=lambda eta, rows: _of_thresholds(cuts, eta[:, 0], found.levels, r.y[rows]),
            sample=lambda eta, rows: found.levels[draw_level(_each(cuts, eta[:, 0]), rng.random(len(rows)))],
        )


def _each(cuts: np.ndarray, eta: np.ndarray) -> np.ndarray:
    """(rows, levels) log-probabilities; of two levels `cuts` is the constant of a logistic regression."""
    kind = "ordinal" if len(cuts) > 1 else "logistic"
    return log_shares(np.r_[cuts, 1.0], np.column_stack([np.ones(len(eta)), eta]), len(cuts) + 1, kind)


def _of_thresholds(cuts: np.ndarray, eta: np.ndarray, levels: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(rows,) of the level that each row has; 0 for one that the fit has not seen."""
    number = np.minimum(np.searchsorted(levels, y), len(levels) - 1)
    return np.where(levels[number] == y, _each(cuts, eta)[np.arange(len(y)), number], 0.0)


class Poisson(Family):
    name, takes, title, ratio = "poisson", "quantity", "Poisson regression", "rate ratio"
    counts = True
    dispersed: ClassVar[bool] = False
    """Whether theta is estimated too (its logarithm, after the coefficients); else it is infinite."""

    def fit(self, x: np.ndarray, r: Response, *, firth: bool, penalizer: float) -> Fit:
        if not r.y.any():
            raise UserError("all counts are 0", hint="There is nothing to regress on.")
        width = x.shape[1]
        height, derivatives = self._posterior(x, r, np.zeros(width + self.dispersed))
        found, _ = maximum(self._first(x, r), height, derivatives, steps=200, enough=1e-14)
        # The covariance is the one given theta, as R's glm.nb has it.
        information = derivatives(found)[1][:width, :width]
        return Fit(found[:width], np.linalg.inv(information), len(x) - width, self._theta(found))

    def log_likelihood(self, x: np.ndarray, r: Response, beta: np.ndarray, nuisance: float) -> float:
        mean = np.exp(x @ beta + r.offset)
        if not self.dispersed:
            return float(stats.poisson.logpmf(r.y, mean).sum())
        return float(stats.nbinom.logpmf(r.y, nuisance, nuisance / (nuisance + mean)).sum())

    def scores(self, x: np.ndarray, r: Response, found: Fit) -> np.ndarray:
        mean = np.exp(x @ found.beta + r.offset)
        return x * ((r.y - mean) / (1 + mean / found.nuisance))[:, None]

    def draw(self, given: Given) -> Law:
        x, r, use, rng, before = given.x, given.r, given.use, given.rng, given.before
        prior = np.full(x.shape[1] + self.dispersed, PRIOR)
        prior[: x.shape[1]][(x == 1).all(0)] = 1e-4  # the constant
        seen = r.of(use)
        height, derivatives = self._posterior(x[use], seen, prior)
        start = before.get(0, np.zeros(0))
        start = start if len(start) == len(prior) else self._first(x[use], seen)
        before[0], information = maximum(start, height, derivatives, enough=1e-9)
        drawn = before[0] + np.linalg.solve(np.linalg.cholesky(information).T, rng.standard_normal(len(prior)))
        theta = self._theta(drawn)

        def log_likelihood(eta: np.ndarray, rows: np.ndarray) -> np.ndarray:
            y = r.y[rows]
            return _kernel(eta[:, 0] + r.offset[rows], y, theta) - _kernel(np.log(np.maximum(y, 1e-30)), y, theta)

        def sample(eta: np.ndarray, rows: np.ndarray) -> np.ndarray:
            mean = np.exp(np.minimum(eta[:, 0] + r.offset[rows], STEEP / 2))
            return rng.poisson(mean * (rng.gamma(theta, size=len(rows)) / theta if self.dispersed else 1.0)).astype(
                float
            )

        return Law(beta=drawn[: x.shape[1], None], log_likelihood=log_likelihood, sample=sample)

    def _theta(self, parameters: np.ndarray) -> float:
        return float(np.exp(np.clip(parameters[-1], -STEEP, MOST_THETA))) if self.dispersed else math.inf

    def _first(self, x: np.ndarray, r: Response) -> np.ndarray:
        """Parameters under which all rows have the same rate, as far as a constant allows, and theta is 1."""
        first = np.zeros(x.shape[1] + self.dispersed)
        rate = np.log(max(r.y.mean(), 0.5 / len(r.y))) - np.log(np.exp(r.offset).mean())
        first[: x.shape[1]] = np.linalg.lstsq(x, np.full(len(x), rate), rcond=None)[0]
        return first

    def _posterior(
        self, x: np.ndarray, r: Response, prior: np.ndarray
    ) -> tuple[Callable[[np.ndarray], float], Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]]:
        """The log-likelihood less the prior, and its slope and expected information (of theta the observed one)."""
        y, width = r.y, x.shape[1]

        def height(parameters: np.ndarray) -> float:
            theta = self._theta(parameters)
            value = _kernel(x @ parameters[:width] + r.offset, y, theta).sum()
            if self.dispersed:
                value += (gammaln(y + theta) - gammaln(theta) - y * np.log(theta)).sum()
            return float(value - 0.5 * (prior * parameters**2).sum())

        def derivatives(parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            theta, mean = self._theta(parameters), np.exp(_cut(x @ parameters[:width] + r.offset))
            shrink = 1 / (1 + mean / theta)
            slope, information = np.zeros(len(prior)), np.diag(prior)
            slope[:width] = x.T @ ((y - mean) * shrink)
            information[:width, :width] += (x * (mean * shrink)[:, None]).T @ x
            if self.dispersed:
                both = y + theta, theta + mean
                first = (
                    digamma(both[0]) - digamma(theta) + np.log(theta) + 1 - np.log(both[1]) - both[0] / both[1]
                ).sum()
                second = polygamma(1, both[0]) - polygamma(1, theta) + 1 / theta - 2 / both[1] + both[0] / both[1] ** 2
                slope[-1] = theta * first
                information[-1, -1] += max(abs(theta * first + theta**2 * second.sum()), 1e-3)
            return slope - prior * parameters, information

        return height, derivatives


class NegativeBinomial(Poisson):
    name, title = "negative-binomial", "Negative binomial regression"
    dispersed = True


def _cut(eta: np.ndarray) -> np.ndarray:
    return np.clip(eta, -STEEP, STEEP)


def _kernel(eta: np.ndarray, y: np.ndarray, theta: float) -> np.ndarray:
    """The log-likelihood of counts, but for what does not depend on the linear predictor."""
    eta = _cut(eta)
    mean = np.exp(eta)
    return y * eta - (mean if theta == math.inf else (y + theta) * np.log1p(mean / theta))


class ProportionalHazards(Family):
    name, takes, title, ratio = "cox", "survival", "Cox regression", "hazard ratio"
    constant = False

    def fit(self, x: np.ndarray, r: Response, *, firth: bool, penalizer: float) -> Fit:
        happened = r.happened
        if not happened.any():
            raise UserError("no event", hint="A Cox regression needs events.")
        if r.entry is not None and penalizer:
            raise UserError("a penalised Cox regression with late entry", hint="Leave the penalizer out.")
        beta, covariance = _penalised_cox(x, r.y, happened, penalizer) if penalizer else self._estimate(x, r)
        return Fit(beta, covariance, int(happened.sum()) - x.shape[1])

    def _estimate(self, x: np.ndarray, r: Response) -> tuple[np.ndarray, np.ndarray]:
        found = fit_cox(x, r.y, r.happened, entry=r.entry)
        return found.beta, found.covariance

    def log_likelihood(self, x: np.ndarray, r: Response, beta: np.ndarray, nuisance: float) -> float:
        return PartialLikelihood(x - x.mean(0), r.y, r.happened, entry=r.entry).value(beta)

    def scores(self, x: np.ndarray, r: Response, found: Fit) -> np.ndarray:
        by_time = PartialLikelihood(x - x.mean(0), r.y, r.happened, entry=r.entry).score_residuals(found.beta)
        return by_time[np.argsort(np.argsort(r.y, kind="stable"), kind="stable")]

    def draw(self, given: Given) -> Law:
        """The hazards of all causes (Bartlett & Taylor 2016)."""
        r, hazards = given.r, given.hazards()
        causes = np.arange(1, r.causes + 1)
        cumulative = np.column_stack([_cumulative(found, r) for found in hazards.values()])

        def log_likelihood(eta: np.ndarray, rows: np.ndarray) -> np.ndarray:
            log_need = np.log(np.maximum(cumulative[rows], 1e-12)) + np.clip(eta, -30, 30)
            need = np.exp(log_need)
            return np.where(r.event[rows, None] == causes, log_need - need + 1, -need).sum(1)

        beta = np.column_stack([found.beta for found in hazards.values()])
        return Law(beta=beta, log_likelihood=log_likelihood, hazards=hazards)


def _cumulative(found: Hazard, r: Response) -> np.ndarray:
    """(rows,) the baseline cumulative hazard over each row's time at risk."""
    grown = np.cumsum(found.jump)
    own = step_values(found.at, grown, r.y, start=0.0)
    return own if r.entry is None else own - step_values(found.at, grown, r.entry, start=0.0)


class FineGray(ProportionalHazards):
    name, title, ratio = "fine-gray", "Fine-Gray regression", "subdistribution hazard ratio"

    def _estimate(self, x: np.ndarray, r: Response) -> tuple[np.ndarray, np.ndarray]:
        found = fit_fine_gray(x, r.y, r.event, r.cause, entry=r.entry)
        return found.beta, found.covariance

    def log_likelihood(self, x: np.ndarray, r: Response, beta: np.ndarray, nuisance: float) -> float:
        raise UserError("D3 of a Fine-Gray regression: a weighted likelihood is none", hint="Use D1.")

    scores = Family.scores

    def draw(self, given: Given) -> Law:
        """A Cox regression of the time until this cause or censoring: when a row with another cause would have been
        censored is drawn from the curve of censoring (Lau & Lesko 2018; Bonneville et al. 2024, 3.2)."""
        r = given.r
        until = subdistribution_time(r.y, r.event, r.cause, given.use, given.rng, r.entry)
        own = replace(r, y=until, event=(r.event == r.cause).astype(float), causes=1, cause=0)
        return replace(super().draw(replace(given, r=own)), hazards={})


def _penalised_cox(
    x: np.ndarray, time: np.ndarray, event: np.ndarray, penalizer: float
) -> tuple[np.ndarray, np.ndarray]:
    try:
        from lifelines import CoxPHFitter
    except ImportError:
        raise UserError("a penalised Cox regression needs lifelines", hint="pip install 'unmask[survival]'") from None
    import pandas as pd

    keys = [f"x{i}" for i in range(x.shape[1])]
    data = pd.DataFrame(x, columns=keys).assign(time=time, event=event)
    fitted = CoxPHFitter(penalizer=penalizer).fit(data, "time", "event")
    return fitted.params_[keys].to_numpy(), fitted.variance_matrix_.loc[keys, keys].to_numpy()


FAMILIES: dict[str, Family] = {
    f.name: f
    for f in (
        LeastSquares(),
        Logistic(),
        ProportionalOdds(),
        Poisson(),
        NegativeBinomial(),
        ProportionalHazards(),
        FineGray(),
    )
}
"""By the names that `family=` takes; the first that takes a kind of outcome is its default."""
