"""What every network over the cells of a row can be asked, beyond what a masked model of the core does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unmask.core.batch import PackedBatch
from unmask.core.corruption import Hidden
from unmask.core.model import MaskedModel
from unmask.kernels.dropout import drop
from unmask.modalities.table.distribution.codec import TableCodec
from unmask.modalities.table.recipes import TableSettings


class TableNetwork(MaskedModel[TableCodec]):
    """A masked model of a table's cells, one example per row; the answers here are those of a transformer over cells.

    Attributes:
        points_only: it predicts a number per cell and no distribution.
        draws_columns: `column_by_column` draws whole rows.
        weighs_heads: heads start at zero, and with zero heads the rest alone predicts, so that `scale_heads` can say
            how far they are used.
    """

    points_only: ClassVar[bool] = False
    draws_columns: ClassVar[bool] = False
    weighs_heads: ClassVar[bool] = False

    def known(self, batch: PackedBatch, hidden: Hidden) -> dict[str, Any]:
        """Keywords of the forward pass that say of a batch what the network itself does not change: made once for
        cells that are looked at again and again."""
        return {}

    def scale_heads(self, weight: float | Tensor) -> None:
        """Multiply what the network says beyond what was fitted before it: by one number, or by one of each (member,
        column)."""
        codec = self.codec
        for block, head, bias in zip(codec.blocks, codec.head, codec.head_bias, strict=True):
            factor: Any = weight
            if isinstance(weight, Tensor):
                each = head.shape[-1] // len(block.columns)
                factor = weight[:, list(block.columns)].repeat_interleave(each, 1)[:, None]
            for parameter in (head, bias):
                parameter.data.mul_(factor)

    def member_parts(self, member: int) -> list[tuple[nn.Parameter, Any]]:
        """Every parameter and where in it a member's own weights are."""
        if self.codec.members == 1:
            return [(p, ...) for p in self.parameters()]
        wide = {id(self.codec.embedding), id(self.codec.slope), id(self.codec.masked)}
        columns = slice(member * self.codec.width, (member + 1) * self.codec.width)
        return [(p, (slice(None), columns) if id(p) in wide else member) for p in self.parameters()]

    def take_parts(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Make room for the parts of a saved model that are there only where they were fitted; the state, as it is
        loaded now."""
        return dict(state)

    def finished(self) -> None:
        """Called once after the last training step, and after loading."""
        self.eval()


class Trunk(nn.Module):
    """Residual MLP over a whole row, `members` of them side by side with weights of their own, in one batched product
    per layer: 4 members cost what one of twice the width does."""

    def __init__(self, slots: int, settings: TableSettings) -> None:
        super().__init__()
        c = settings
        self.cell, self.members, self.dropout = c.cell, c.members, c.dropout
        self.enter = nn.Parameter(torch.randn(c.members, slots * c.cell, c.width) / math.sqrt(slots * c.cell) * 2)
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
        return x @ self.enter[member, slot * self.cell : (slot + 1) * self.cell]

    def forward(self, x: Float[Tensor, "rows slots width"]) -> Float[Tensor, "members rows state"]:
        rows, slots, _ = x.shape
        flat = x.view(rows, slots, self.members, -1).permute(2, 0, 1, 3).reshape(self.members, rows, -1)
        return self.finish(torch.baddbmm(self.enter_bias, self.dropped(flat), self.enter), slice(None))

    def dropped(self, x: Tensor) -> Tensor:
        return drop(x, self.dropout, self.training)

    def finish(self, h: Tensor, member: slice) -> Tensor:
        """From the first layer's sums (members, rows, state) to the states, of all members or some."""
        for up, bias, down in zip(self.up, self.up_bias, self.down, strict=True):
            inner = torch.relu(torch.baddbmm(bias[member], _normed(h), up[member]))
            h = h + torch.bmm(self.dropped(inner), down[member])
        return _normed(torch.relu(h))


def _normed(h: Tensor) -> Tensor:
    return nn.functional.layer_norm(h, h.shape[-1:])
