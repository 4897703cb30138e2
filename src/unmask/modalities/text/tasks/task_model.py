"""An encoder with a task's head on top."""

from __future__ import annotations

from torch import Tensor, nn

from unmask.core.batch import PackedBatch
from unmask.core.embed import Pooling, pool
from unmask.core.model import MaskedModel
from unmask.core.token_codec import TokenCodec
from unmask.families.heads import TaskHead


class TaskModel(nn.Module):
    """Codec and encoder of a masked model with a head on top.

    Args:
        masked: the masked model, in place; its decoder, if it has one, is not used.
        head: None for a task that works on pooled states alone (similarity).
        pooling: of the states where there is no head.
    """

    def __init__(self, masked: MaskedModel[TokenCodec], head: TaskHead | None, pooling: Pooling = "mean") -> None:
        super().__init__()
        self.masked, self.head, self.pooling = masked, head, pooling

    def forward(self, batch: PackedBatch, count: int) -> Tensor:
        """(count, outputs), or for a head on each slot (rows * slots, outputs)."""
        if self.head is None:
            return pool(self.masked, batch, count, self.pooling, True)
        return self.head.logits(self.masked, batch, count)
