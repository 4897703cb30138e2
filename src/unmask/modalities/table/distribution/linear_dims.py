"""The cells of a row as what the factor analysis relates: one dim for a quantity, one for each frequent category."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from unmask.modalities.table.distribution.codec import LEVELS, Coding


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
