"""The linear part of the model: a factor analysis of the cells' normal scores, fitted to incomplete rows.

Given the visible cells of a row it says, in closed form, the mean and variance of every other cell, whatever the
pattern: the multivariate normal's conditional, which is what chained linear imputation converges to. The network
learns what this misses, and starts as its equal.

Shape letters: rows, dims (a quantity has one, a category one per level modelled), factors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from unmask.kernels.threads import on_cores, one_core
from unmask.modalities.table.distribution.codec import LEVELS, Coding


@dataclass(frozen=True, kw_only=True)
class FactorModel:
    """Loadings (dims, factors) and own variances (dims,) of standardised dims; their means (dims,), where these were
    fitted."""

    loading: np.ndarray
    noise: np.ndarray
    mean: np.ndarray | None = None


@one_core()
def fit_factors(
    x: np.ndarray,
    seen: np.ndarray,
    *,
    factors: int,
    iterations: int = 40,
    shrink: float = 3.0,
    weight: np.ndarray | None = None,
    intercept: bool = False,
) -> FactorModel:
    """Expectation maximisation for factor analysis with missing values (Rubin & Thayer 1982), penalised loadings.

    Args:
        x: (rows, dims) standardised; read only where seen.
        shrink: ridge on the loadings in units of rows: a column's loadings are those it would have with as many more
            rows of pure noise.
        weight: of each row, for bootstrap copies.
        intercept: fit the dims' means too. Those of the seen values are not the means of all where what is missing
            depends on what is seen.
    """
    rows, dims = x.shape
    factors = max(1, min(factors, dims - 1, rows - 1)) if dims > 1 else 1
    weight = np.ones(rows) if weight is None else weight
    v = seen.astype(np.float64)
    x = np.where(seen, x, 0.0)
    wx, wv = x * weight[:, None], v * weight[:, None]
    count = np.maximum(wv.sum(0), 1e-9)
    loading, noise = _start(x, v, wx, wv, factors)
    total = np.maximum((x * wx).sum(0), 1e-6 * count)
    parts = [_RowBlock(x[p], seen[p], weight[p]) for p in np.array_split(np.arange(rows), max(1, -(-rows // PART)))]
    eye = np.eye(factors)
    mean = np.zeros(dims)
    first = wx.sum(0)
    for _ in range(iterations):
        gram, cross, scatter, sums, whole = _moments(parts, loading, noise, mean if intercept else None)
        rest, here, moved = total, cross, np.zeros(dims)
        if intercept:  # the regression of x - mean on (1, factors), the constant without a ridge
            here, offset = cross - mean[:, None] * sums, first - mean * count
            rest = total - 2 * mean * first + mean**2 * count
            inner = gram - sums[:, :, None] * sums[:, None, :] / count[:, None, None]
            loading = np.linalg.solve(inner + shrink * eye, (here - sums * (offset / count)[:, None])[:, :, None])[
                :, :, 0
            ]
            moved = (offset - (sums * loading).sum(1)) / count
            rest = rest - 2 * moved * offset + 2 * moved * (loading * sums).sum(1) + moved**2 * count
        else:
            loading = np.linalg.solve(gram + shrink * eye, cross[:, :, None])[:, :, 0]
        left = rest - 2 * (loading * here).sum(1) + np.einsum("df,dfg,dg->d", loading, gram, loading)
        before, noise = noise, np.clip((left + 0.02 * shrink) / (count + shrink), 2e-3, None)
        # Parameter expansion (Liu, Rubin & Wu 1998): the factors' mean and scale go into the dims. Without it the ridge
        # shrinks the loadings of nearly noiseless columns a little more at every round, and convergence is slow.
        center = whole / weight.sum() if intercept else np.zeros(factors)
        moved = moved + loading @ center
        mean = mean + moved
        loading = loading @ np.linalg.cholesky(scatter / weight.sum() - np.outer(center, center) + 1e-9 * eye)
        if max(np.abs(np.log(noise / before)).max(), np.abs(moved).max()) < SETTLED:
            break
    return FactorModel(loading=loading, noise=noise, mean=mean if intercept else None)


SETTLED = 3e-3
"""Rounds end when no dim's own variance changes by more than this share."""


def _start(x: np.ndarray, v: np.ndarray, wx: np.ndarray, wv: np.ndarray, factors: int) -> tuple[np.ndarray, np.ndarray]:
    """Principal directions of the pairwise correlations, and what they leave."""
    value, vector = np.linalg.eigh((x.T @ wx) / np.maximum(v.T @ wv, 1.0))
    order = np.argsort(value)[::-1][:factors]
    rest = value[:-factors].mean() if len(value) > factors else 0.0
    loading = vector[:, order] * np.sqrt(np.maximum(value[order] - rest, 0.05))
    total = np.maximum((x * wx).sum(0) / np.maximum(wv.sum(0), 1e-9), 1e-6)
    return loading, np.clip(total - (loading**2).sum(1), 0.05, None)


class _RowBlock:
    """Some of the rows, and the patterns of seen dims among them: parts are worked on side by side, in memory that
    stays in the caches, and added up in their order, so that the number of cores makes no difference.

    Args:
        x: (rows, dims), 0 where not seen.
        weight: (rows,).
    """

    def __init__(self, x: np.ndarray, seen: np.ndarray, weight: np.ndarray) -> None:
        self.patterns, which = _patterns(seen)
        order = np.argsort(which, kind="stable")
        self.which, self.x, self.weight = which[order], x[order], weight[order]
        self.weighted = self.x * self.weight[:, None]
        self.first = np.searchsorted(self.which, np.arange(len(self.patterns)))
        self.load = np.add.reduceat(self.weight, self.first)

    def moments(self, loading: np.ndarray, noise: np.ndarray, center: np.ndarray | None) -> tuple[np.ndarray, ...]:
        """Sums over the rows, of the factors' second moments as their lower triangles (pairs): by dim where it is seen
        (dims, pairs), of x times the factors (dims, factors), and over all rows (pairs,); and with a mean (dims,) of x
        the sums of the factors themselves: by dim where it is seen (dims, factors), and over all rows (factors,)."""
        row, column = np.tril_indices(loading.shape[1])
        mean, spread = _posterior(self.x, self.patterns, self.which, loading, noise, center)
        outer = mean[:, row] * mean[:, column]
        outer *= self.weight[:, None]
        alike = spread[:, row, column] * self.load[:, None]
        alike += outer if len(alike) == len(outer) else np.add.reduceat(outer, self.first)
        found = self.patterns.T @ alike, self.weighted.T @ mean, alike.sum(0)
        if center is None:
            return *found, np.zeros(0), np.zeros(0)
        sums = np.add.reduceat(mean * self.weight[:, None], self.first)
        return *found, self.patterns.T @ sums, sums.sum(0)


PART = 500
"""Rows of a part."""


def _moments(
    parts: list[_RowBlock], loading: np.ndarray, noise: np.ndarray, center: np.ndarray | None
) -> tuple[np.ndarray, ...]:
    """The parts' sums: (dims, factors, factors), (dims, factors), (factors, factors), and with a mean (dims, factors),
    (factors,)."""
    found: dict[int, tuple[np.ndarray, ...]] = {}

    def work(number: int) -> None:
        found[number] = parts[number].moments(loading, noise, center)

    on_cores(work, range(len(parts)))
    gram, cross, scatter, sums, whole = (sum(found[n][k] for n in range(len(parts))) for k in range(5))
    row, column = np.tril_indices(loading.shape[1])
    square = np.zeros((loading.shape[1],) * 2, np.int64)
    square[row, column] = square[column, row] = np.arange(len(row))
    return (
        np.asarray(gram)[:, square],
        np.asarray(cross),
        np.asarray(scatter)[square],
        np.asarray(sums),
        np.asarray(whole),
    )


def _patterns(seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct rows of `seen` as floats, and which of them every row has."""
    packed = np.packbits(seen, axis=1)
    _, first, which = np.unique(
        packed.view(np.dtype((np.void, packed.shape[1]))).ravel(), return_index=True, return_inverse=True
    )
    return seen[first].astype(np.float64), which.reshape(-1)


def _posterior(
    x: np.ndarray,
    patterns: np.ndarray,
    which: np.ndarray,
    loading: np.ndarray,
    noise: np.ndarray,
    center: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Mean (rows, factors) of the factors given the seen dims (x is 0 elsewhere), and covariance of each pattern.
    `center`: (dims,) mean of x."""
    factors = loading.shape[1]
    row, column = np.tril_indices(factors)
    scaled = loading / noise[:, None]
    precision = np.zeros((len(patterns), factors, factors))
    precision[:, row, column] = patterns @ (scaled[:, row] * loading[:, column])  # the other half is not read
    precision += np.eye(factors)
    spread = torch.cholesky_inverse(torch.linalg.cholesky(torch.from_numpy(precision))).numpy()
    score = x @ scaled
    if center is not None:
        score -= (patterns @ (center[:, None] * scaled))[which]
    if len(patterns) == 1:
        return score @ spread[0], spread
    return (spread[which] @ score[:, :, None])[:, :, 0], spread


class FactorAnalysis(nn.Module):
    """The fitted factor analysis, as constants of the model; see `fit_factors`. `trust`: (dims,) in levels of
    categories; 1 unless fitted, see `discriminant.py`."""

    loading: Tensor
    noise: Tensor
    trust: Tensor

    def __init__(self, factors: FactorModel) -> None:
        super().__init__()
        dims, count = factors.loading.shape
        self.register_buffer("loading", torch.tensor(factors.loading, dtype=torch.float32))
        self.register_buffer("noise", torch.tensor(factors.noise, dtype=torch.float32))
        self.register_buffer("trust", torch.ones(dims))
        self.factors, self.dims = count, dims

    def forward(self, x: Float[Tensor, "rows dims"], v: Float[Tensor, "rows dims"]) -> tuple[Tensor, Tensor]:
        """Mean and variance (rows, dims) of every dim given those with v = 1; x is not read where v = 0.

        A row's result depends on nothing but the row, to single precision.
        """
        scaled = self.loading / self.noise[:, None]
        outer = (scaled[:, :, None] * self.loading[:, None, :]).flatten(1)
        eye = torch.eye(self.factors, device=x.device).flatten()
        precision = torch.addmm(eye, v, outer).view(-1, self.factors, self.factors)
        spread = torch.cholesky_inverse(torch.linalg.cholesky_ex(precision).L)
        mean = (spread * (torch.where(v > 0, x, 0.0) @ scaled)[:, None]).sum(-1)
        products = (self.loading[:, :, None] * self.loading[:, None, :]).flatten(1)
        return mean @ self.loading.t(), torch.addmm(self.noise, spread.flatten(1), products.t())


class Dims(nn.Module):
    """Cells as the linear part's dims: a quantity's score, and an indicator per frequent category, standardised."""

    column: Tensor
    level: Tensor
    center: Tensor
    scale: Tensor
    of_quantity: Tensor

    def __init__(self, codings: list[Coding], moments: np.ndarray) -> None:
        """`moments`: (columns, 2) mean and deviation of the scores of quantities."""
        super().__init__()
        dims: list[tuple[int, int, float, float]] = []
        of_quantity = np.full(len(codings), 0)
        for i, c in enumerate(codings):
            if c.scale is not None:
                of_quantity[i] = len(dims)
                dims.append((i, -1, moments[i, 0], moments[i, 1]))
                continue
            frequent = np.argsort(-np.array(c.share), kind="stable")[:LEVELS]
            for k in sorted(frequent.tolist() if c.size > 2 else [1] if c.size == 2 else []):
                p = min(max(c.share[k], 1e-4), 1 - 1e-4)
                dims.append((i, k, p, math.sqrt(p * (1 - p))))
        kinds = {"column": torch.long, "level": torch.long, "center": torch.float32, "scale": torch.float32}
        for at, (name, kind) in enumerate(kinds.items()):
            self.register_buffer(name, torch.tensor([d[at] for d in dims], dtype=kind), persistent=False)
        self.register_buffer("of_quantity", torch.tensor(of_quantity), persistent=False)
        self.codings = codings

    def __len__(self) -> int:
        return len(self.column)

    def forward(self, number: Tensor, score: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, columns) cells -> (rows, dims) standardised values, 0 where not seen, and what is seen as floats."""
        v = seen[:, self.column]
        raw = torch.where(self.level < 0, score[:, self.column], (number[:, self.column] == self.level).float())
        return torch.where(v, (raw - self.center) / self.scale, 0.0), v.float()

    def standardised(self, dims: Tensor, number: Tensor, score: Tensor) -> Tensor:
        """(rows, dims) of one column's values, all seen."""
        level = self.level[dims]
        raw = torch.where(level < 0, score[:, None], (number[:, None] == level).float())
        return (raw - self.center[dims]) / self.scale[dims]

    def normal(self, mean: Tensor, variance: Tensor, row: Tensor, dim: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation of the score of quantities at (row, dim)."""
        center, scale = self.center[dim], self.scale[dim]
        return center + scale * mean[row, dim], scale * variance[row, dim].sqrt()

    def table(self, columns: tuple[int, ...], size: int) -> tuple[Tensor, Tensor, Tensor]:
        """For a block of categories: (columns, size) dim of each level or -1, its sign, and its marginal share."""
        dim, sign = torch.full((len(columns), size), -1), torch.ones(len(columns), size)
        share = torch.zeros(len(columns), size)
        where = {(int(c), int(k)): d for d, (c, k) in enumerate(zip(self.column, self.level, strict=True))}
        for i, c in enumerate(columns):
            share[i, : self.codings[c].size] = torch.tensor(self.codings[c].share)
            for k in range(self.codings[c].size):
                dim[i, k] = where.get((c, k), -1)
            if self.codings[c].size == 2:
                dim[i, 0], sign[i, 0] = where[(c, 1)], -1
        return dim, sign, share
