"""Regressions whose parameters are drawn from their posterior: what proper multiple imputation fits for every column.

Each takes complete predictors (rows, predictors), the first of them the constant 1 and the others of about unit
deviation, and returns an estimate and one draw from its (approximate) posterior (Rubin 1987, ch. 5). Below them, the
standard normal distribution between two ends, which bounded cells and latent variables are drawn from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, log_ndtr, log_softmax, ndtri_exp

from unmask.modalities.table.imputation.scales import DISTINCT, MonotoneScale, best_regression, spike
from unmask.modalities.table.survival.estimators import maximum

RIDGE = 1e-5
"""Share that is added to the diagonal of linear regressions, as in R's mice: collinear predictors stay solvable."""
PRIOR = 0.04
"""Precision of the normal prior of logistic coefficients (deviation 5): keeps perfectly predicted levels finite."""
DONORS, KERNEL = 128, 0.4
"""Donors of one row in predictive mean matching at most; the deviation of the kernel that weighs them by the distance
of their predicted means, in residual deviations."""
NEAREST = 5
"""Donors that the kernel reaches at least: a row beyond all predicted means would else have one, whose residual every
imputed value there repeats, and chains that impute several such columns drift."""


@dataclass(frozen=True, kw_only=True)
class LinearDraw:
    """Linear regression: least squares `beta` and `sigma`, and one posterior draw of both."""

    beta: np.ndarray
    sigma: float
    drawn_beta: np.ndarray
    drawn_sigma: float


def draw_linear(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> LinearDraw:
    """Bayesian linear regression under the usual flat prior (Rubin 1987, p. 167)."""
    gram = x.T @ x
    factor = np.linalg.cholesky(gram + np.diag(RIDGE * np.diag(gram) + 1e-12))
    beta = np.linalg.solve(factor.T, np.linalg.solve(factor, x.T @ y))
    left = y - x @ beta
    freedom = max(len(y) - x.shape[1], 1)
    rest = float(left @ left)
    drawn = np.sqrt(max(rest / rng.chisquare(freedom), 1e-24))
    move = np.linalg.solve(factor.T, rng.standard_normal(x.shape[1]))
    return LinearDraw(
        beta=beta,
        sigma=float(np.sqrt(max(rest / freedom, 1e-24))),
        drawn_beta=beta + drawn * move,
        drawn_sigma=float(drawn),
    )


@dataclass(frozen=True, kw_only=True)
class Shares:
    """A model of categories: its estimate (to start the next fit from) and one posterior draw.

    Attributes:
        levels: (seen,) the categories that occur; the others are never drawn.
        kind: "logistic" (two levels), "multinomial" or "ordinal".
    """

    levels: np.ndarray
    kind: str
    estimate: np.ndarray
    drawn: np.ndarray

    def log_probability(self, x: np.ndarray) -> np.ndarray:
        """(rows, seen) of each level that occurs, by the drawn parameters."""
        return log_shares(self.drawn, x, len(self.levels), self.kind)


def draw_shares(
    x: np.ndarray, y: np.ndarray, rng: np.random.Generator, *, ordinal: bool = False, start: Shares | None = None
) -> Shares:
    """Logistic, multinomial or proportional-odds regression by Newton's method; the posterior by its normal
    approximation.

    Args:
        y: numbers of categories.
        start: a fit to nearly the same rows, to begin with.
    """
    levels, number = np.unique(y.astype(int), return_inverse=True)
    size = len(levels)
    kind = "ordinal" if ordinal and size > 2 else ("logistic" if size <= 2 else "multinomial")
    known = start is not None and start.kind == kind and np.array_equal(start.levels, levels)
    if size == 1:
        return Shares(levels=levels, kind=kind, estimate=np.zeros(0), drawn=np.zeros(0))
    parameters = size - 2 + x.shape[1] if kind == "ordinal" else (size - 1) * x.shape[1]
    if known and start is not None and len(start.estimate) == parameters:
        estimate = start.estimate
    else:
        estimate = _first(number, x.shape[1], size, kind)
    prior = np.full(len(estimate), PRIOR)
    prior[slice(0, size - 1) if kind == "ordinal" else slice(None, None, x.shape[1])] = 1e-4  # thresholds, constants

    height, derivatives = _posterior(x, number, size, kind, prior)
    estimate, information = maximum(estimate, height, derivatives, steps=25, enough=1e-6)
    factor = np.linalg.cholesky(information)
    for scale in (1.0, 0.5, 0.25, 0.0):  # thresholds must stay in order
        drawn = estimate + scale * np.linalg.solve(factor.T, rng.standard_normal(len(estimate)))
        if kind != "ordinal" or (np.diff(drawn[: size - 1]) > 0).all():
            break
    return Shares(levels=levels, kind=kind, estimate=estimate, drawn=drawn)


def fit_ordered(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Proportional odds by maximum likelihood: thresholds and coefficients (of all predictors but the constant), and
    their information."""
    levels, number = np.unique(y, return_inverse=True)
    height, derivatives = _posterior(x, number, len(levels), "ordinal", np.zeros(1))
    found, _ = maximum(_first(number, x.shape[1], len(levels), "ordinal"), height, derivatives, enough=1e-14)
    return found, derivatives(found)[1]


def _posterior(
    x: np.ndarray, number: np.ndarray, size: int, kind: str, prior: np.ndarray
) -> tuple[Callable[[np.ndarray], float], Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]]:
    """The log-likelihood less a normal prior of these precisions, and its slope and information."""

    def height(parameters: np.ndarray) -> float:
        if kind == "ordinal" and (np.diff(parameters[: size - 1]) <= 0).any():
            return -np.inf
        likely = log_shares(parameters, x, size, kind)[np.arange(len(x)), number].sum()
        return float(likely - 0.5 * (prior * parameters**2).sum())

    def derivatives(parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        of = _ordinal_derivatives if kind == "ordinal" else _multinomial_derivatives
        slope, information = of(parameters, x, number, size)
        return slope - prior * parameters, information + np.diag(np.broadcast_to(prior, parameters.shape))

    return height, derivatives


def _first(number: np.ndarray, predictors: int, size: int, kind: str) -> np.ndarray:
    """Parameters that give every row the shares of the table."""
    share = (np.bincount(number, minlength=size) + 0.5) / (len(number) + 0.5 * size)
    if kind == "ordinal":
        below = np.cumsum(share)[:-1]
        return np.r_[np.log(below / (1 - below)), np.zeros(predictors - 1)]
    first = np.zeros((size - 1, predictors))
    first[:, 0] = np.log(share[1:] / share[0])
    return first.ravel()


def log_shares(parameters: np.ndarray, x: np.ndarray, size: int, kind: str) -> np.ndarray:
    """(rows, levels) log-probabilities under a model of categories; see `Shares`."""
    if size == 1:
        return np.zeros((len(x), 1))
    if kind == "ordinal":
        return np.log(np.maximum(np.diff(_borders(parameters, x, size), axis=1), 1e-300))
    score = x @ parameters.reshape(size - 1, -1).T
    return log_softmax(np.column_stack([np.zeros(len(x)), score]), axis=1)


def _borders(parameters: np.ndarray, x: np.ndarray, size: int) -> np.ndarray:
    """Proportional odds: (rows, levels + 1) cumulative shares, from 0 to 1."""
    upto = expit(parameters[None, : size - 1] - (x[:, 1:] @ parameters[size - 1 :])[:, None])
    return np.column_stack([np.zeros(len(x)), upto, np.ones(len(x))])


def _multinomial_derivatives(
    parameters: np.ndarray, x: np.ndarray, number: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Gradient of the log-likelihood, and its expected information."""
    share = np.exp(log_shares(parameters, x, size, "multinomial"))[:, 1:]
    own = (number[:, None] == np.arange(1, size)).astype(float)
    slope = ((own - share).T @ x).ravel()
    width = x.shape[1]
    information = np.empty((size - 1, width, size - 1, width))
    for k in range(size - 1):
        for j in range(k, size - 1):
            weight = share[:, k] * ((k == j) - share[:, j])
            information[k, :, j] = (x * weight[:, None]).T @ x
            information[j, :, k] = information[k, :, j].T
    return slope, information.reshape(len(slope), -1)


def _ordinal_derivatives(
    parameters: np.ndarray, x: np.ndarray, number: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Gradient of the log-likelihood, and its observed information. A level's share is F(upper) - F(lower), F being the
    logistic distribution and its borders thresholds less scores."""
    rows, borders = np.arange(len(x)), _borders(parameters, x, size)
    hit = np.maximum(borders[rows, number + 1] - borders[rows, number], 1e-12)
    edges = np.eye(size + 1)[:, 1:size]
    slopes, rates, bends = [], [], []
    for border, sign in ((number + 1, 1.0), (number, -1.0)):
        f = borders[rows, border]
        rates.append(sign * f * (1 - f) / hit)
        bends.append(sign * f * (1 - f) * (1 - 2 * f) / hit)
        slopes.append(np.hstack([edges[border], -x[:, 1:]]))
    total = rates[0][:, None] * slopes[0] + rates[1][:, None] * slopes[1]
    bent = sum((s * b[:, None]).T @ s for s, b in zip(slopes, bends, strict=True))
    return total.sum(0), total.T @ total - bent


@dataclass(frozen=True, kw_only=True)
class Regressed:
    """A quantity's linear regression under draws from a Dirichlet distribution (the Bayesian bootstrap).

    Attributes:
        z: the quantity on the scale where it is about normal; `to` brings other values there.
        weight: of the rows, about 1 in the mean.
        mean, wanted: predicted means of the rows, and of those that get a value.
        leverage: of the rows in the weighted regression.
    """

    z: np.ndarray
    weight: np.ndarray
    mean: np.ndarray
    wanted: np.ndarray
    leverage: np.ndarray
    scale: MonotoneScale | None

    def to(self, y: np.ndarray) -> np.ndarray:
        return y if self.scale is None else self.scale.to(y)

    def residuals(self) -> np.ndarray:
        """Residuals of as much variance as the errors have: a row draws the regression to itself, all the more where
        predictors are extreme, and there are the donors of rows beyond (MacKinnon & White 1985, HC2)."""
        left = (self.z - self.mean) / np.sqrt(np.maximum(1 - self.leverage, 0.1))
        return left - np.average(left, weights=self.weight)


def draw_regression(
    x: np.ndarray,
    y: np.ndarray,
    target: np.ndarray,
    rng: np.random.Generator,
    *,
    other: tuple[np.ndarray, np.ndarray] | None = None,
) -> Regressed:
    """Draw the linear regression of a quantity, on the likeliest of its scales and of two sets of regressors. Arguments
    as of `draw_donors`."""
    scale = None
    if len(np.unique(y)) >= DISTINCT:
        designs = [(x, target)] if other is None else [(x, target), other]
        likeliest, scale = best_regression(y, [design for design, _ in designs])
        x, target = designs[likeliest]
    z = y if scale is None else scale.to(y)
    weight = rng.standard_exponential(len(y))
    weight *= len(y) / weight.sum()
    weighted = x * weight[:, None]
    gram = weighted.T @ x
    solved = np.linalg.solve(gram + np.diag(RIDGE * np.diag(gram) + 1e-12), weighted.T)
    beta = solved @ z
    leverage = np.einsum("ij,ji->i", x, solved)
    return Regressed(z=z, weight=weight, mean=x @ beta, wanted=target @ beta, leverage=leverage, scale=scale)


def draw_donors(
    x: np.ndarray,
    y: np.ndarray,
    target: np.ndarray,
    rng: np.random.Generator,
    *,
    other: tuple[np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Predictive mean matching by local residual draws (Morris, White & Royston 2014, 2.3), the donors under a Bayesian
    bootstrap (Gaffert, Meinfelder & Bosch 2016).

    A row gets its own predicted mean and the residual of a donor whose predicted mean is near, as the nearest value of
    the column. The value of one of the five nearest donors itself, as usual, cannot follow the regression where donors
    are few: of 400 rows, half of a covariate missing by the outcome, intervals of slopes then cover .57 to .78, these
    .95. Donors and regression are weighted by draws from a Dirichlet distribution: the uncertainty of both.

    Residuals are those on the scale where the column is about normal: by a residual from elsewhere a skewed column's
    values would spread beyond its shape. A single value that many cells have (no drink, no pack-year) has a
    logistic regression, and the others theirs.

    Args:
        x, y: of the donors.
        target: (rows, predictors) of the rows that get a value.
        other: x and target on other scales, which are taken where the column is likelier on them.

    Returns:
        (rows, donors) values, and log-weights by which one of them is to be drawn.
    """
    if (single := spike(y)) is not None:
        rest = y != single
        others = None if other is None else (other[0][rest], other[1])
        values, log_weight = draw_donors(x[rest], y[rest], target, rng, other=others)
        log_share = draw_shares(x, ~rest, rng).log_probability(target)
        log_weight = log_softmax(log_weight, axis=1) + log_share[:, :1]
        return np.column_stack([values, np.full(len(target), single)]), np.column_stack([log_weight, log_share[:, 1]])
    found, values = draw_regression(x, y, target, rng, other=other), np.unique(y)
    weight, mean, wanted = found.weight, found.mean, found.wanted
    width = KERNEL * float(np.sqrt(weight @ (found.z - mean) ** 2 / len(y)))
    order = np.argsort(mean, kind="stable")
    mean, residual = mean[order], found.residuals()[order]
    count = min(DONORS, len(y))
    first = np.clip(np.searchsorted(mean, wanted) - count // 2, 0, len(y) - count)
    window = first[:, None] + np.arange(count)[None, :]
    move = wanted[:, None] - mean[window]
    least = max(width, 1e-12 * max(1.0, float(np.abs(mean).max())))
    nearest = min(NEAREST, count) - 1
    reach = np.partition(np.abs(move), nearest, axis=1)[:, [nearest]]
    far = (move / np.maximum(reach, least)) ** 2
    log_weight = np.log(weight[order])[window] - 0.5 * (far - far.min(1, keepdims=True))
    places = found.to(values)
    near = np.searchsorted((places[1:] + places[:-1]) / 2, wanted[:, None] + residual[window])
    return values[near], log_weight


def draw_level(log_probability: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """(rows,) numbers of levels by inversion: with the same uniform numbers a smooth change of odds moves few rows."""
    share = np.exp(log_probability - log_probability.max(1, keepdims=True))
    upto = np.cumsum(share, 1) / share.sum(1, keepdims=True)
    return np.minimum((uniform[:, None] >= upto).sum(1), share.shape[1] - 1)


def truncated_normal(a: np.ndarray, b: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Standard normal numbers between a and b, rising with the uniform ones; exact far out in the tails too."""
    flip = a > 0  # the upper tail by the lower one, where logarithms are precise
    low, high, share = np.where(flip, -b, a), np.where(flip, -a, b), np.where(flip, 1 - uniform, uniform)
    with np.errstate(divide="ignore"):
        log_p = np.logaddexp(log_ndtr(low) + np.log1p(-share), log_ndtr(high) + np.log(share))
    z = np.clip(ndtri_exp(np.minimum(log_p, 0.0)), low, high)
    return np.where(flip, -z, z)


def share_between(a: np.ndarray, b: np.ndarray, z: np.ndarray) -> np.ndarray:
    """The uniform numbers that `truncated_normal` made z of."""
    flip = a > 0
    low, high, at = np.where(flip, -b, a), np.where(flip, -a, b), np.where(flip, -z, z)
    of = np.exp(log_between(low, at) - log_between(low, high))
    return np.clip(np.where(flip, 1 - of, of), 1e-300, 1 - 1e-16)


def log_between(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Logarithm of the standard normal's share between a and b."""
    flip = a > 0
    low, high = log_ndtr(np.where(flip, -b, a)), log_ndtr(np.where(flip, -a, b))
    with np.errstate(divide="ignore", invalid="ignore"):
        return high + np.log(-np.expm1(np.minimum(low - high, 0.0)))
