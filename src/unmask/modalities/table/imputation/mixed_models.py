"""Mixed models of one column, their parameters drawn by Gibbs sampling: what imputation of clustered rows draws from.

The linear model with random effects, y = x beta + z u_j + e, u_j ~ N(0, psi), e ~ N(0, sigma^2) with one sigma for all
clusters, is that of R's pan and mice's 2l.pan (Schafer & Yucel 2002, section 3). A category is a latent normal variable
of the same model with sigma = 1 (Albert & Chib 1993; Carpenter & Kenward 2013, ch. 5, as R's jomo): two levels by its
sign, ordered ones by cut points (drawn by Metropolis steps without the latent values: Cowles 1996), others by the
largest of one variable per level, of which the first is noise alone.

Priors: beta flat for quantities, N(0, 1 / PRECISION) on standardised regressors for categories; sigma^2 as 1 / sigma^2;
psi by Huang & Wand (2013): deviations half-t with 2 degrees of freedom and scale SCALE, in deviations of the column,
correlations uniform. The inverse-Wishart prior of pan with scale 1 adds a third to a variance of .1 of 30 clusters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, ndtri, roots_hermitenorm

from unmask.modalities.table.imputation.regressions import RIDGE, log_between, truncated_normal

PRECISION, SCALE, FREEDOM = 0.1, 2.0, 2.0
"""Precision of the coefficients of a category; scale and degrees of freedom of the deviations of random effects."""
CUTS = 2.0
"""Deviation of the normal prior of the logarithms of the gaps between cut points."""
NODES = 24
"""Of the quadrature that gives the probabilities of unordered levels."""


class GroupedRows:
    """Regressors of some rows, and their sums within clusters.

    Args:
        x, z: (rows, regressors) with fixed, and (rows, effects) with random effects; none of the latter at level two.
        cluster: (rows,) numbers of clusters, from 0 without a gap.
    """

    def __init__(self, x: np.ndarray, z: np.ndarray, cluster: np.ndarray) -> None:
        order = np.argsort(cluster, kind="stable")
        self.x, self.z, self.cluster, self.order = x[order], z[order], cluster[order], order
        self._starts = np.flatnonzero(np.r_[True, np.diff(self.cluster) > 0])
        self.xx = self.x.T @ self.x
        self.zz = self.sums(self.z[:, :, None] * self.z[:, None, :])
        self.zx = self.sums(self.z[:, :, None] * self.x[:, None, :])

    def sums(self, values: np.ndarray) -> np.ndarray:
        """(clusters, ...) of (rows, ...) in the order of clusters."""
        return np.add.reduceat(values, self._starts, axis=0)

    def predicted(self, beta: np.ndarray, u: np.ndarray) -> np.ndarray:
        """(rows,) in the order of clusters."""
        return self.x @ beta + (self.z * u[self.cluster]).sum(1)


class MixedModel:
    """The parameters of a linear mixed model as last drawn.

    Attributes:
        beta: (regressors,); `u`: (clusters, effects) of the clusters that have rows.
        psi: (effects, effects) covariance of the random effects.
        sigma: of the residuals; 1 and fixed for a latent variable.
    """

    def __init__(self, rows: GroupedRows, *, latent: bool) -> None:
        effects = rows.z.shape[1]
        self.latent, self.sigma = latent, 1.0
        self.beta: np.ndarray = np.zeros(rows.x.shape[1])
        self.u = np.zeros((len(rows.zz), effects))
        self.psi = np.eye(effects) * 0.25

    def draw(self, rows: GroupedRows, y: np.ndarray, rng: np.random.Generator) -> None:
        """One step: beta without the random effects, these given beta, then the variances. `y`: in the order of
        `rows`."""
        s2, effects = self.sigma**2, len(self.psi)
        spread = np.linalg.inv(rows.zz / s2 + np.linalg.inv(self.psi))  # of u given beta
        zy = rows.sums(rows.z * y[:, None])
        weighed = np.einsum("jqp,jqr->jpr", rows.zx, spread) / s2**2
        precision = rows.xx / s2 - np.einsum("jpr,jrk->pk", weighed, rows.zx)
        score = rows.x.T @ y / s2 - np.einsum("jpr,jr->p", weighed, zy)
        prior = np.full(len(score), PRECISION if self.latent else 0.0)
        prior[0] = 1e-2 if self.latent else 0.0
        factor = np.linalg.cholesky(precision + np.diag(prior + RIDGE * np.diag(precision) + 1e-10))
        mean = np.linalg.solve(factor, score)
        self.beta = np.linalg.solve(factor.T, mean + rng.standard_normal(len(mean)))
        center = np.einsum("jqr,jr->jq", spread, zy - rows.zx @ self.beta) / s2
        noise = rng.standard_normal(center.shape)
        self.u = center + np.einsum("jqr,jr->jq", np.linalg.cholesky(spread), noise)
        if not self.latent:
            left = y - rows.predicted(self.beta, self.u)
            self.sigma = float(np.sqrt(max(left @ left / rng.chisquare(len(y)), 1e-12)))
        if effects:
            rate = FREEDOM * np.diag(np.linalg.inv(self.psi)) + 1 / SCALE**2
            mixing = rate / rng.standard_gamma((FREEDOM + effects) / 2, effects)
            scatter = self.u.T @ self.u + 2 * FREEDOM * np.diag(1 / mixing)
            self.psi = inverse_wishart(FREEDOM + effects - 1 + len(self.u), scatter, rng)

    def effects(self, clusters: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """(clusters, effects) of all clusters: those of clusters without rows are drawn from their distribution
        (Resche-Rigon & White 2018, 3.2). `clusters`: booleans, those with rows."""
        u = np.empty((len(clusters), len(self.psi)))
        u[clusters] = self.u
        u[~clusters] = rng.standard_normal((int((~clusters).sum()), len(self.psi))) @ np.linalg.cholesky(self.psi).T
        return u


def inverse_wishart(freedom: float, scatter: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A draw of a covariance matrix, by Bartlett's decomposition of its inverse."""
    size = len(scatter)
    factor = np.diag(np.sqrt(rng.chisquare(freedom - np.arange(size))))
    factor[np.tril_indices(size, -1)] = rng.standard_normal(size * (size - 1) // 2)
    root = np.linalg.cholesky(np.linalg.inv(scatter)) @ factor
    return np.linalg.inv(root @ root.T)


@dataclass(kw_only=True)
class LatentModel:
    """A category as latent normal variables, each of a mixed model.

    Attributes:
        levels: (seen,) the categories that occur, in order; the others are never drawn.
        ordered: one variable and cut points, of which the first is 0; else one variable per level but the first.
        models: of each variable.
        latent: (rows, variables) as last drawn; of unordered levels the first is the noise of the first level.
    """

    levels: np.ndarray
    ordered: bool
    models: list[MixedModel]
    latent: np.ndarray
    cuts: np.ndarray
    step: float = 0.1

    @classmethod
    def of(cls, rows: GroupedRows, y: np.ndarray, *, ordinal: bool) -> LatentModel:
        """Before the first draw. `y`: numbers of categories."""
        levels = np.unique(y.astype(int))
        ordered = ordinal or len(levels) <= 2
        variables = 1 if ordered else len(levels) - 1
        share = np.cumsum([(y == level).mean() for level in levels])[:-1]
        found = cls(
            levels=levels,
            ordered=ordered,
            models=[MixedModel(rows, latent=True) for _ in range(variables)],
            latent=np.zeros((len(y), variables if ordered else len(levels))),
            cuts=ndtri(share) - ndtri(share[0]) if ordered else np.zeros(0),
        )
        if ordered:
            found.models[0].beta[0] = -ndtri(share[0])
        return found

    def draw(self, rows: GroupedRows, y: np.ndarray, rng: np.random.Generator, *, tune: bool = False) -> None:
        """One step. `y`: numbers of categories in the order of `rows`; `tune`: the steps of the cut points."""
        number = np.searchsorted(self.levels, y.astype(int))
        eta = np.column_stack([rows.predicted(m.beta, m.u) for m in self.models])
        if self.ordered:
            if len(self.cuts) > 1:
                self._draw_cuts(eta[:, 0], number, rng, tune=tune)
            ends = np.r_[-np.inf, self.cuts, np.inf]
            self.latent[:, 0] = _inside(eta[:, 0], ends[number], ends[number + 1], rng)
            self.models[0].draw(rows, self.latent[:, 0], rng)
            return
        mean = np.column_stack([np.zeros(len(eta)), eta])
        every = np.arange(len(eta))
        for k in range(mean.shape[1]):  # each given the others: the largest is that of the row's level
            others = np.delete(self.latent, k, axis=1).max(1)
            own = number == k
            top = self.latent[every, number]
            low, high = np.where(own, others, -np.inf), np.where(own, np.inf, top)
            self.latent[:, k] = _inside(mean[:, k], low, high, rng)
        for k, model in enumerate(self.models):
            model.draw(rows, self.latent[:, k + 1], rng)

    def _draw_cuts(self, eta: np.ndarray, number: np.ndarray, rng: np.random.Generator, *, tune: bool) -> None:
        gaps = np.log(np.diff(self.cuts))
        other = gaps + self.step * rng.standard_normal(len(gaps))

        def height(gaps: np.ndarray) -> tuple[float, np.ndarray]:
            cuts = np.r_[0.0, np.cumsum(np.exp(gaps))]
            fit = _between(eta, cuts)[np.arange(len(eta)), number].sum()
            return float(fit - 0.5 * (gaps**2).sum() / CUTS**2), cuts

        (now, _), (then, cuts) = height(gaps), height(other)
        accepted = np.log(rng.random()) < then - now
        self.cuts = cuts if accepted else self.cuts
        if tune:
            self.step *= 1.2 if accepted else 0.9

    def log_probability(self, eta: np.ndarray) -> np.ndarray:
        """(rows, seen) of each level that occurs. `eta`: (rows, variables) means of the latent variables."""
        if self.ordered:
            return _between(eta[:, 0], self.cuts)
        node, weight = roots_hermitenorm(NODES)
        mean = np.column_stack([np.zeros(len(eta)), eta])
        out = np.empty_like(mean)
        for k in range(mean.shape[1]):  # the chance that no other is larger, over the noise of this one
            above = mean[:, [k]] + node[None, :]
            below = sum(log_ndtr(above - mean[:, [j]]) for j in range(mean.shape[1]) if j != k)
            out[:, k] = np.log(np.maximum(np.exp(below) @ weight, 1e-300))
        return out - np.log(np.exp(out).sum(1, keepdims=True))


def _between(eta: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """(rows, levels) log-probabilities that a normal variable with mean eta falls between cut points."""
    if not len(cuts):
        return np.zeros((len(eta), 1))
    at = np.column_stack([np.full(len(eta), -np.inf), cuts[None, :] - eta[:, None], np.full(len(eta), np.inf)])
    return log_between(at[:, :-1], at[:, 1:])


def _inside(mean: np.ndarray, low: np.ndarray, high: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Normal values of deviation 1 between two ends."""
    return mean + truncated_normal(low - mean, high - mean, rng.random(len(mean)))
