"""Normal regression of a column with cells that are only bounded: its maximum, and draws inside the intervals.

Data augmentation for censored normal regression (Tanner & Wong 1987; Wei & Tanner 1990): given the current draws of
censored cells, the parameters are drawn as if all cells had been observed; given the parameters, a censored cell is
drawn from the normal distribution truncated to its interval. Left-censored covariates of an analysis follow Lubin et
al. (2004, Environmental Health Perspectives 112:1691) and Bernhardt, Wang & Zhang (2015, Statistics in Medicine 34):
draws agree with the outcome. In place of a value a cell starts with a draw from the column's own censored normal
distribution, on the scale where that is likeliest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unmask.modalities.table.imputation.regressions import draw_linear, log_between, truncated_normal
from unmask.modalities.table.imputation.scales import POWERS, MonotoneScale, scale_from
from unmask.modalities.table.schema.censored import Censored

STEPS = 60
"""Of the EM algorithm, for one scale."""
EVIDENCE = 2.0
"""Difference of log-likelihoods from which on data speak for another power than the logarithm."""
INNER = 3
"""Draws of parameters and censored cells of a column per turn: they depend on each other more than on other columns."""


@dataclass(frozen=True, kw_only=True)
class CensoredRegression:
    """A censored normal regression at its maximum: `height` is its log-likelihood, on the column's own scale."""

    beta: np.ndarray
    sigma: float
    height: float
    scale: MonotoneScale | None = None


def _tobit(x: np.ndarray, z: np.ndarray, rows: np.ndarray, low: np.ndarray, high: np.ndarray) -> CensoredRegression:
    """Maximum likelihood by EM. z: values, of which those of `rows` are known to lie between low and high."""
    z, spread = z.copy(), float(z.std()) or 1.0
    gram = x.T @ x
    gram += np.diag(1e-9 * np.diag(gram) + 1e-12)
    seen = np.ones(len(z), bool)
    seen[rows] = False
    beta, sigma, more = np.linalg.solve(gram, x.T @ z), spread, 0.0
    for _ in range(STEPS):
        mean = x[rows] @ beta
        a, b = (low - mean) / sigma, (high - mean) / sigma
        log_share = np.maximum(log_between(a, b), -700.0)
        at_a, at_b = (
            np.exp(-0.5 * np.where(np.isfinite(e), e, 1e6) ** 2 - log_share) / np.sqrt(2 * np.pi) for e in (a, b)
        )
        shift = at_a - at_b
        z[rows] = np.clip(mean + sigma * shift, low, high)
        ends = np.where(np.isfinite(a), a, 0) * at_a - np.where(np.isfinite(b), b, 0) * at_b
        more = float(sigma**2 * np.clip(1 + ends - shift**2, 0, 1).sum())
        beta = np.linalg.solve(gram, x.T @ z)
        sigma = float(np.sqrt(max((((z - x @ beta) ** 2).sum() + more) / len(z), (1e-9 * spread) ** 2)))
    left = (z - x @ beta)[seen] / sigma
    mean = x[rows] @ beta
    height = -0.5 * left @ left - seen.sum() * np.log(sigma * np.sqrt(2 * np.pi))
    return CensoredRegression(
        beta=beta,
        sigma=sigma,
        height=float(height + log_between((low - mean) / sigma, (high - mean) / sigma).sum()),
    )


def censored_scale(x: np.ndarray, y: np.ndarray, cells: Censored, use: np.ndarray) -> CensoredRegression:
    """The censored normal regression of a column on the scale where it is likeliest, None for its own; on another power
    than the logarithm only where that is clearly likelier, for what lies below a limit hangs on it.

    Args:
        x: (rows, predictors) of `use`.
        y: the column, with values inside the intervals in censored cells.
    """
    return max(censored_fits(x, y, cells, use), key=lambda one: one.height)


def censored_fits(x: np.ndarray, y: np.ndarray, cells: Censored, use: np.ndarray) -> list[CensoredRegression]:
    """The regressions on all scales, their heights less what speaks against a scale before any data."""
    at = np.flatnonzero(use)
    rows = np.searchsorted(at, cells.rows)
    y, ends = y[use], cells.ends
    plain = np.delete(y, rows)
    named = np.concatenate([plain, *(e[np.isfinite(e)] for e in ends)])
    low, high = float(named.min()), float(named.max())
    margin = (high - low) / len(y) or 1.0
    scales: list[MonotoneScale | None] = [None]
    if (ends[0] > -np.inf).all():
        below = 0.0 if low >= 0 and (plain > 0).all() else low - margin
        scales += [scale_from(y if not len(plain) else plain, below, 1.0, power) for power in POWERS]
    if (ends[1] < np.inf).all():
        scales += [scale_from(y if not len(plain) else plain, high + margin, -1.0, power) for power in POWERS]
    found = []
    for scale in scales:
        to = (lambda v: v) if scale is None else scale.to
        one = _tobit(x, to(y), rows, to(ends[0]), to(ends[1]))
        more = 0.0 if scale is None else float(scale.log_slope(plain).sum()) - EVIDENCE * (scale.power > 0)
        found.append(replace(one, height=one.height + more, scale=scale))
    return found


def draw_bounded(
    x: np.ndarray,
    y: np.ndarray,
    use: np.ndarray,
    cells: Censored,
    scale: MonotoneScale | None,
    rng: np.random.Generator,
) -> None:
    """Draw the censored cells of a column anew, in place, given its predictors. `use`: rows of the regression."""
    for _ in range(INNER):
        line = draw_linear(x[use], y[use] if scale is None else scale.to(y[use]), rng)
        y[cells.rows] = draw_between(x[cells.rows] @ line.drawn_beta, line.drawn_sigma, scale, cells, rng)


def draw_between(
    mean: np.ndarray, sigma: float, scale: MonotoneScale | None, cells: Censored, rng: np.random.Generator
) -> np.ndarray:
    """Values from normal distributions on the scale, each truncated to its cell's interval."""
    low, high = cells.ends
    a, b = ((end if scale is None else scale.to(end)) for end in (low, high))
    z = mean + sigma * truncated_normal((a - mean) / sigma, (b - mean) / sigma, rng.random(len(mean)))
    return np.clip(z if scale is None else replace(scale, low=-np.inf, high=np.inf).back(z), low, high)
