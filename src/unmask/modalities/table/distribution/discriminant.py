"""Probabilities of categories by the linear part, and how much its discriminants are shrunk.

A level's log-odds are those of linear discriminant analysis, written with the regression of its indicator `m`, its
marginal share `p` (q = 1 - p) and the share of variance explained `r` (Fisher 1936):

    logit(p) + (m - p) / (p q (1 - r)) - (1/2 - p) r / (p q (1 - r))

The fraction of the third term, r / (p q (1 - r)), is D^2, the squared Mahalanobis distance of the level from the
others; that term keeps the mean share at p. The estimated distance of a rare level is mostly noise, and makes the level
too improbable (five levels of 1 % and less were drawn at 0.3 of their share). So the distance is shrunk, by the factor
that predicts best on rows the linear part was not fitted to: with trust `a` it is a D, the second term is multiplied by
a, the third by a squared.

Shape letters: asked cells, levels, dims (of the linear part).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.special import expit, log_expit, logit
from torch import Tensor

from unmask.core.batch import PackedBatch
from unmask.core.corruption import Hidden

UNEXPLAINED, SURE = 0.1, 7.0
"""Least variance of an indicator, and largest log-odds, the linear part may claim: it is only nearly right."""
MOST, PRIOR = 1.5, 1.0
"""The largest trust, and the precision with which it is taken to be 1 before anything is seen."""


def discriminant(
    move: Float[Tensor, "*cells"], left: Float[Tensor, "*cells"], share: Float[Tensor, "*#cells"]
) -> tuple[Float[Tensor, "*cells"], Float[Tensor, "*cells"]]:
    """The second and the third term, of a level moved by `move` = m - p with `left` = 1 - r of its variance left."""
    left = left.clamp(UNEXPLAINED, 1.0)
    spread = share * (1 - share) * left
    return move / spread, (0.5 - share) * (1 - left) / spread


def log_odds(start: Any, direction: Any, curvature: Any, trust: Any) -> Any:
    """Of a level whose marginal log-odds are `start`, trusted so far; tensors or arrays."""
    return start + trust * direction - trust**2 * curvature


def fit_trust(
    network: Any,
    masked: Iterable[tuple[PackedBatch, Hidden]],
    without: Callable[[int], AbstractContextManager[None]],
    held: Bool[Tensor, "rows members"],
) -> Float[Tensor, "members dims"]:
    """For every member the trust in levels that suits the rows held out from it; 1 for quantities.

    Args:
        network: a `RowModel` with its linear part.
        masked: the same rows, masked several times over.
        without: within `without(m)` the network has the linear part for member m's held-out rows.
    """
    dims = network.dims
    level = dims.level >= 0
    found = torch.ones(held.shape[1], len(dims))
    if not level.any():
        return found
    share = dims.center.clamp(1e-4, 1 - 1e-4)
    parts: list[list[tuple[Tensor, ...]]] = [[] for _ in range(held.shape[1])]
    for batch, hidden in masked:
        hidden_cells = hidden.grid(batch.shape)
        targets = (hidden_cells & batch.observed)[:, dims.column]
        own = (batch.values["bin"][:, dims.column] == dims.level).float()
        for member, list_ in enumerate(parts):
            rows = held[:, member].nonzero().flatten()
            with without(member):
                mean, variance = network.linear({k: v[rows] for k, v in batch.values.items()}, hidden_cells[rows])
            terms = discriminant(dims.scale * mean, variance, share)
            list_.append((*(t[:, level] for t in terms), own[rows][:, level], targets[rows][:, level].float()))
    for member, list_ in enumerate(parts):
        direction, curvature, own, targets = (torch.cat(x) for x in zip(*list_, strict=True))
        found[member, level] = _likeliest(direction, curvature, own, targets, share[level], dims.column[level])
    return found


def _likeliest(
    direction: Float[Tensor, "cells levels"],
    curvature: Float[Tensor, "cells levels"],
    own: Float[Tensor, "cells levels"],
    targets: Float[Tensor, "cells levels"],
    share: Float[Tensor, " levels"],
    column: Int[Tensor, " levels"],
) -> Float[Tensor, " levels"]:
    """The trust under which the cells' categories are likeliest, with shares made as `RowModel.shares` makes them."""
    from scipy.optimize import minimize  # 0.1 s, for fits alone

    first, second, is_own, counts, p = (x.double().numpy() for x in (direction, curvature, own, targets, share))
    is_own = is_own * counts
    columns, group = np.unique(column.numpy(), return_inverse=True)
    together = np.eye(len(columns))[group]
    two = together.sum(0) == 1  # of two categories the second has a dim, and the first has what is left
    rare = np.maximum(1 - p @ together, 1e-9)  # levels without a dim keep their marginal share
    cells = counts @ together / together.sum(0)
    others = cells - is_own @ together
    start = logit(p)

    def loss(trust: np.ndarray) -> tuple[float, np.ndarray]:
        odds = log_odds(start, first, second, trust)
        s = expit(odds)
        known = s @ together
        whole = np.where(two, 1.0, known + rare)
        rest = np.where(two, np.maximum(1 - known, 1e-9), rare)
        likely = (is_own * log_expit(odds)).sum() + (others * np.log(rest) - cells * np.log(whole)).sum()
        slope = is_own * (1 - s) - s * np.where(two, others, cells / whole)[:, group] * np.where(two[group], 1.0, 1 - s)
        slope = (slope * (first - 2 * trust * second)).sum(0)
        return float(PRIOR / 2 * ((trust - 1) ** 2).sum() - likely), PRIOR * (trust - 1) - slope

    bounds = [(0.0, MOST)] * len(p)
    found = minimize(loss, np.full(len(p), 0.5), jac=True, method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-7})
    return torch.tensor(found.x, dtype=torch.float32)
