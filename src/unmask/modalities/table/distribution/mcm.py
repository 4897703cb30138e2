"""Masked Clinical Modelling as published (arXiv 2410.16811 and its released code), with the hidden values really
hidden.

Attention filter over the cells of a row, an MLP with one hidden layer, values Box-Cox transformed and scaled to 0..1,
squared or absolute error: a point per cell, no distribution. In the released code the attention scores see the hidden
values too; here a hidden cell is zero before anything reads it. Its published settings are the recipe "mcm".

Shape letters: rows, slots (columns), asked.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from unmask.core.batch import PackedBatch
from unmask.core.corruption import Hidden
from unmask.core.model import corrupt
from unmask.core.prediction import no_mean, weighted_sum
from unmask.errors import UserError, option
from unmask.modalities.table.distribution.codec import Coding, TableCodec
from unmask.modalities.table.distribution.table_network import TableNetwork


class AttentionFilter(nn.Module):
    """softmax(W x) * x over the visible cells, then cells -> width -> cells with a sigmoid."""

    def __init__(self, slots: int, width: int) -> None:
        super().__init__()
        self.scores = nn.Linear(slots, slots, bias=False)
        self.mlp = nn.Sequential(nn.Linear(slots, width), nn.ReLU(), nn.Linear(width, slots), nn.Sigmoid())

    def forward(self, x: Float[Tensor, "rows slots"], visible: Tensor) -> Float[Tensor, "rows slots"]:
        # A finite low score: a row with nothing visible would be a softmax over nothing, which is not a number.
        weight = self.scores(x).masked_fill(~visible, -1e9).softmax(-1)
        return self.mlp(weight * x)


class PointPrediction:
    """One number per cell on the 0..1 scale; the part of `core.prediction.Prediction` that a point allows.

    Args:
        scaled: (wanted,) the numbers.
        levels: (wanted,) categories of a cell's column, 0 for a quantity.
        column: (wanted,).
    """

    members = 1

    def __init__(self, scaled: Tensor, levels: Tensor, column: Tensor, codings: list[Coding], loss: str) -> None:
        self.scaled, self.levels, self.column, self.codings, self.kind = scaled, levels, column, codings, loss
        self.pieces: list[Any] = []  # no distribution: intervals and shares do not exist

    def __len__(self) -> int:
        return len(self.scaled)

    def _gap(self, target: Float[Tensor, "wanted 2"]) -> Tensor:
        truth = torch.where(self.levels > 0, target[:, 0] / (self.levels - 1).clamp_min(1), target[:, 1])
        gap = self.scaled - truth
        return gap.abs() if self.kind == "l1" else gap**2

    def loss(self, target: Float[Tensor, "wanted 2"], weight: Float[Tensor, " wanted"] | None = None) -> Tensor:
        return weighted_sum(self._gap(target), weight)

    def log_prob(self, value: Float[Tensor, "wanted 2"]) -> Float[Tensor, " wanted"]:
        """Minus the error: a normal's log-density but for its unknown width."""
        return -self._gap(value)

    def member_log_prob(self, value: Float[Tensor, "wanted 2"]) -> Float[Tensor, "wanted 1"]:
        return self.log_prob(value)[:, None]

    def mode(self) -> Float[Tensor, "wanted 2"]:
        number = torch.round(self.scaled * (self.levels - 1).clamp_min(0)) * (self.levels > 0)
        return torch.stack([number, self.scaled], -1)

    def mean(self) -> Float[Tensor, " wanted"]:
        """In the column's unit."""
        if bool((self.levels > 0).any()):
            raise no_mean("categories")
        return self.point()

    def probabilities(self) -> Tensor:
        """Raises UserError: points have no distribution."""
        raise UserError(
            "MCM's network predicts a point per cell, no probabilities", hint=f"Fit with {option('recipe', 'masked')}."
        )

    def point(self) -> Float[Tensor, " wanted"]:
        """In the column's unit; a category's number."""
        out = self.mode()[:, 0].clone()
        for c in self.column.unique().tolist():
            coding, here = self.codings[c], self.column == c
            if coding.scale is not None:
                out[here] = torch.tensor(coding.unscaled(self.scaled[here].double().numpy()), dtype=out.dtype)
        return out

    def draw(self, uniform: Tensor, member: Tensor, temperature: float = 1.0) -> Float[Tensor, "wanted 2"]:
        """The point itself, with its bin: there is nothing to draw from."""
        out = self.mode()
        value = self.point()
        for c in self.column.unique().tolist():
            coding, here = self.codings[c], self.column == c
            if coding.scale is not None:
                number, score = coding.scale.encode(value[here].double().numpy())
                out[here] = torch.tensor(np.stack([number, score], 1), dtype=out.dtype)
        return out

    def sample(
        self, *, generator: torch.Generator | None = None, temperature: float = 1.0, top_k: int | None = None
    ) -> Float[Tensor, "wanted 2"]:
        return self.mode()

    def confidence(self) -> Float[Tensor, " wanted"]:
        return torch.zeros(len(self))

    def correct(self, target: Tensor) -> None:
        return None


class FilterModel(TableNetwork):
    """MCM's network as a masked model of the core, in place; one example per row."""

    points_only = True

    def __init__(self, codings: list[Coding], width: int, loss: Literal["mse", "l1"] = "mse") -> None:
        super().__init__(TableCodec(codings, width=1, state=1), AttentionFilter(len(codings), width))
        self.kind = loss
        levels = [0 if c.scale is not None else c.size for c in codings]
        self.register_buffer("levels", torch.tensor(levels), persistent=False)

    def forward(self, batch: PackedBatch, hidden: Hidden, wanted: Tensor | None = None) -> PointPrediction:
        wanted = hidden.flat if wanted is None else wanted
        values = corrupt(self.codec, batch.values, hidden)
        visible = (values["seen"] != 0) & ~hidden.grid(batch.shape)
        levels = self.get_buffer("levels")
        coded = torch.where(levels > 0, values["bin"].float() / (levels - 1).clamp_min(1), values["score"].nan_to_num())
        out = self.encoder(torch.where(visible, coded, 0.0), visible)
        column = wanted % batch.shape[1]
        return PointPrediction(out.flatten()[wanted], levels[column], column, self.codec.codings, self.kind)

    def states(self, batch: PackedBatch, wanted: Tensor | None = None) -> Tensor:
        raise UserError(
            "MCM's network has no states to embed with", hint=f"Fit with {option('recipe', 'masked')} or remasker."
        )
