"""The row network: a residual MLP over all cells of a row, with the ensemble's members side by side.

Shape letters: rows, slots (columns), members, width (of all members' embeddings of a cell), state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unmask.encoder.dropout import drop


@dataclass(frozen=True, kw_only=True)
class TrunkConfig:
    """Residual MLP over a whole row, `members` of them side by side with weights of their own.

    Args:
        slots: columns of the table.
        cell: width of a cell's embedding.
        width: of the row's state.
    """

    slots: int
    cell: int = 8
    width: int = 96
    layers: int = 2
    members: int = 4
    dropout: float = 0.1


class Trunk(nn.Module):
    """All members in one batched product per layer: 4 members cost what one of twice the width does."""

    def __init__(self, config: TrunkConfig) -> None:
        super().__init__()
        self.config = config
        c = config
        self.enter = nn.Parameter(torch.randn(c.members, c.slots * c.cell, c.width) / math.sqrt(c.slots * c.cell) * 2)
        self.enter_bias = nn.Parameter(torch.zeros(c.members, 1, c.width))
        self.up = nn.ParameterList(
            [nn.Parameter(torch.randn(c.members, c.width, c.width) * math.sqrt(2 / c.width)) for _ in range(c.layers)]
        )
        self.up_bias = nn.ParameterList([nn.Parameter(torch.zeros(c.members, 1, c.width)) for _ in range(c.layers)])
        self.down = nn.ParameterList(
            [nn.Parameter(torch.randn(c.members, c.width, c.width) / math.sqrt(c.width)) for _ in range(c.layers)]
        )

    def enter_part(self, x: Tensor, slot: int, member: int) -> Tensor:
        """What one slot's embedding (rows, cell) adds to a member's first layer: sampling adds slot by slot."""
        cell = self.config.cell
        return x @ self.enter[member, slot * cell : (slot + 1) * cell]

    def forward(self, x: Float[Tensor, "rows slots width"]) -> Float[Tensor, "members rows state"]:
        rows, slots, _ = x.shape
        members = self.config.members
        flat = x.view(rows, slots, members, -1).permute(2, 0, 1, 3).reshape(members, rows, -1)
        return self.finish(torch.baddbmm(self.enter_bias, self.dropped(flat), self.enter), slice(None))

    def dropped(self, x: Tensor) -> Tensor:
        return drop(x, self.config.dropout, self.training)

    def finish(self, h: Tensor, member: slice) -> Tensor:
        """From the first layer's sums (members, rows, state) to the states, of all members or some."""
        for up, bias, down in zip(self.up, self.up_bias, self.down, strict=True):
            inner = torch.relu(torch.baddbmm(bias[member], _normed(h), up[member]))
            h = h + torch.bmm(self.dropped(inner), down[member])
        return _normed(torch.relu(h))


def _normed(h: Tensor) -> Tensor:
    return nn.functional.layer_norm(h, h.shape[-1:])
