"""A tiny table for the laws: quantities and categories by turns, a quarter of the cells missing."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from unmask.core.batch import Example
from unmask.modalities.table.distribution.codec import Coding, TableCodec
from unmask.modalities.table.distribution.scale import fit_scale

COLUMNS = 6


def codings() -> list[Coding]:
    rng = np.random.default_rng(0)
    values = [rng.normal(size=80), np.round(rng.normal(size=80)), rng.exponential(size=80)]
    scales = [Coding(scale=fit_scale(v, most=6)) for v in values]
    shares = [Coding(share=(0.3, 0.7)), Coding(share=(0.2, 0.5, 0.3)), Coding(share=(0.1,) * 10)]
    return [c for pair in zip(scales, shares, strict=True) for c in pair]


class Table:
    """Cells of six columns, over and over."""

    name = "table"
    raw = "score"

    def example(self, identity: int, length: int, seed: int = 0) -> Example:
        rng = np.random.default_rng([seed, identity])
        column = np.arange(length) % COLUMNS
        sizes = np.array([c.size for c in codings()])
        seen = rng.random(length) > 0.25
        seen[:2] = True
        values = {
            "bin": rng.integers(0, sizes[column]) * seen,
            "score": (rng.normal(size=length) * seen).astype(np.float32),
            "seen": seen.astype(np.int64),
            "column": column,
        }
        return Example(values=values, identity=identity, observed=seen, unit=np.arange(length) // 2)

    def codec(self, width: int = 32) -> nn.Module:
        made = TableCodec(codings(), width=width, state=width)
        for head in (*made.head, *made.head_bias):  # zero in a new model, which would hide every effect
            nn.init.normal_(head, std=0.1)
        return made

    def changed(self, values: dict[str, Tensor], flat: Tensor) -> dict[str, Tensor]:
        """The bin, the score that goes with it, and whether there is a value at all."""
        out = {k: v.clone() for k, v in values.items()}
        out["bin"].view(-1)[flat] = 1 - out["bin"].view(-1)[flat].clamp(max=1)
        out["score"].view(-1)[flat] += 5.0
        out["seen"].view(-1)[flat] = 0
        return out

    def true_values(self, example: Example) -> np.ndarray:
        return np.stack([example.values["bin"], example.values["score"]], -1).astype(np.float32)

    def repeated(self, length: int) -> Example:
        ones = np.ones(length, np.int64)
        values = {"bin": ones, "score": np.full(length, 0.7, np.float32), "seen": ones, "column": ones * 0}
        return Example(values=values, identity=1)


def numbers(prediction) -> Tensor:
    """Log-probabilities of every bin or category, and the normal behind a quantity, one row per cell."""
    widest = 16
    out = torch.zeros(len(prediction), widest)
    for places, d in prediction.pieces:
        parts = [d.log_probs()[0]] + ([d.location[0][:, None], d.deviation[0][:, None]] if hasattr(d, "tilt") else [])
        row = torch.cat(parts, -1)
        out = out.index_copy(0, places, torch.nn.functional.pad(row, (0, widest - row.shape[1])))
    return out
