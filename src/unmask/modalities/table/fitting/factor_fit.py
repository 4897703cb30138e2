"""The factor analysis as it is fitted to rows of a table: with so many factors, and on a sample where they are many."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from unmask.core.hashing import Salt, hash_keys
from unmask.modalities.table.distribution.cells import Cells
from unmask.modalities.table.distribution.factor_analysis import Factors, fit_factors
from unmask.modalities.table.distribution.linear_dims import Dims

MOST_ROWS = 10_000
"""Rows that it is fitted on at most: its parameters are few. Of 50 000 x 20 (`benchmarks/tables_scale.py sample`) 3
000, 10 000 and all rows gave an RMSE of .5947, .5915 and .5905 in 1.8, 4.2 and 19.5 s."""


@dataclass(frozen=True, kw_only=True)
class FactorFit:
    """A factor analysis of some of the rows of a table; see `fit_factors`.

    Attributes:
        factors: at most; fewer for few dims or rows.
        shrink: ridge on the loadings, in rows.
        seed: decides the sample, where rows are many.
        weight: (rows,) of each row, for bootstrap copies.
    """

    dims: Dims
    cells: Cells
    factors: int
    shrink: float
    seed: int
    weight: np.ndarray | None = None

    def count(self, rows: int) -> int:
        """How many factors so many rows bear; 0 where there is nothing to relate."""
        if not self.factors or len(self.dims) < 2 or rows < 8:
            return 0
        return max(1, min(self.factors, len(self.dims) - 1, rows // 4))

    def of(self, rows: np.ndarray) -> Factors:
        """Fitted to these rows, or to `MOST_ROWS` of them."""
        if len(rows) > MOST_ROWS:
            order = np.argsort(hash_keys(self.seed, rows, Salt.LINEAR_PART_ROWS), kind="stable")
            rows = np.sort(rows[order[:MOST_ROWS]])
        return self.of_exactly(rows, factors=self.count(len(rows)))

    def of_exactly(self, rows: np.ndarray, *, factors: int, intercept: bool = False, iterations: int = 40) -> Factors:
        """Fitted to all of these rows.

        Args:
            intercept: fit the means of the dims too.
            iterations: at most.
        """
        part = self.cells[rows]
        x, seen = self.dims(torch.from_numpy(part.number), torch.from_numpy(part.score), torch.from_numpy(part.seen))
        return fit_factors(
            x.double().numpy(),
            seen.numpy() > 0,
            factors=factors,
            shrink=self.shrink,
            intercept=intercept,
            iterations=iterations,
            weight=None if self.weight is None else self.weight[rows],
        )
