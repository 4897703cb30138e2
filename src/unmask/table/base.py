"""The linear part of the model: a factor analysis of the cells' normal scores, fitted to incomplete rows.

Given the visible cells of a row it says, in closed form, the mean and variance of every other cell, whatever the
pattern: the multivariate normal's conditional, which is what chained linear imputation converges to. The network
learns what this misses, and starts as its equal.

Shape letters: rows, dims (a quantity has one, a category one per level modelled), factors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Factors:
    """Loadings (dims, factors) and own variances (dims,) of standardised dims."""

    loading: np.ndarray
    noise: np.ndarray


def fit_factors(
    x: np.ndarray,
    seen: np.ndarray,
    *,
    factors: int,
    iterations: int = 40,
    shrink: float = 3.0,
    weight: np.ndarray | None = None,
) -> Factors:
    """Expectation maximisation for factor analysis with missing values (Rubin & Thayer 1982), penalised loadings.

    Args:
        x: (rows, dims) standardised; read only where seen.
        shrink: ridge on the loadings in units of rows: a column's loadings are those it would have with as many more
            rows of pure noise.
        weight: of each row, for bootstrap copies.
    """
    rows, dims = x.shape
    factors = max(1, min(factors, dims - 1, rows - 1)) if dims > 1 else 1
    weight = np.ones(rows) if weight is None else weight
    v = seen.astype(np.float64)
    x = np.where(seen, x, 0.0)
    wx = x * weight[:, None]
    count = np.maximum((v * weight[:, None]).sum(0), 1e-9)
    # Start: principal directions of the pairwise correlations.
    pair = np.maximum(v.T @ (v * weight[:, None]), 1.0)
    correlation = (x.T @ wx) / pair
    value, vector = np.linalg.eigh(correlation)
    order = np.argsort(value)[::-1][:factors]
    loading = vector[:, order] * np.sqrt(
        np.maximum(value[order] - value[:-factors].mean() if dims > factors else value[order], 0.05)
    )
    total = np.maximum((x * wx).sum(0) / count, 1e-6)
    noise = np.clip(total - (loading**2).sum(1), 0.05, None)
    eye = np.eye(factors)
    for _ in range(iterations):
        mean, spread = posterior(x, v, loading, noise)
        spread_flat = spread.reshape(rows, -1)
        second = (mean[:, :, None] * mean[:, None, :]).reshape(rows, -1) + spread_flat
        gram = (v * weight[:, None]).T @ second
        cross = wx.T @ mean
        system = gram.reshape(dims, factors, factors) + shrink * eye
        loading = np.linalg.solve(system, cross[:, :, None])[:, :, 0]
        left = (
            total * count
            - 2 * (loading * cross).sum(1)
            + np.einsum("df,dfg,dg->d", loading, gram.reshape(dims, factors, factors), loading)
        )
        noise = np.clip((left + 0.02 * shrink) / (count + shrink), 2e-3, None)
        # Parameter expansion (Liu, Rubin & Wu 1998): the factors' scale goes into the loadings. Without it the ridge
        # shrinks the loadings of nearly noiseless columns a little more at every round, and convergence is slow.
        scatter = (weight @ second).reshape(factors, factors) / weight.sum()
        loading = loading @ np.linalg.cholesky(scatter + 1e-9 * eye)
    return Factors(loading=loading, noise=noise)


def posterior(x: np.ndarray, v: np.ndarray, loading: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean (rows, factors) and covariance (rows, factors, factors) of the factors given the seen dims."""
    factors = loading.shape[1]
    outer = (loading[:, :, None] * loading[:, None, :] / noise[:, None, None]).reshape(len(noise), -1)
    patterns, where = np.unique(v.astype(bool), axis=0, return_inverse=True)
    precision = (patterns @ outer).reshape(-1, factors, factors) + np.eye(factors)
    spread = np.linalg.inv(precision)[where.reshape(-1)]
    mean = np.einsum("rfg,rg->rf", spread, (x * v / noise) @ loading)
    return mean, spread


class FactorBase(nn.Module):
    """The fitted factor analysis, as constants of the model; see `fit_factors`."""

    loading: Tensor
    noise: Tensor
    outer: Tensor
    spread_out: Tensor

    def __init__(self, factors: Factors) -> None:
        super().__init__()
        dims, count = factors.loading.shape
        self.register_buffer("loading", torch.tensor(factors.loading, dtype=torch.float32))
        self.register_buffer("noise", torch.tensor(factors.noise, dtype=torch.float32))
        self.factors, self.dims = count, dims

    def forward(self, x: Float[Tensor, "rows dims"], v: Float[Tensor, "rows dims"]) -> tuple[Tensor, Tensor]:
        """Mean and variance (rows, dims) of every dim given those with v = 1; x is not read where v = 0.

        A row's result depends on nothing but the row.
        """
        scaled = self.loading / self.noise[:, None]
        outer = (scaled[:, :, None] * self.loading[:, None, :]).flatten(1)
        eye = torch.eye(self.factors, device=x.device)
        precision = (v @ outer).view(-1, self.factors, self.factors) + eye
        spread = torch.cholesky_inverse(torch.linalg.cholesky(precision))
        mean = torch.einsum("rfg,rg->rf", spread, torch.where(v > 0, x, 0.0) @ scaled)
        products = (self.loading[:, :, None] * self.loading[:, None, :]).flatten(1)
        return mean @ self.loading.t(), spread.flatten(1) @ products.t() + self.noise
