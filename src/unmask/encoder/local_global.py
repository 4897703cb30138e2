"""Local attention, and a first slot of each example that sees all and is seen by all (Longformer).

At inference it is `local.LocalInference`; with a first slot that sees all it has no inference form.

Shape letters: rows, heads, slots, depth.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.encoder.attention import Layout
from unmask.encoder.bands import banded, long_for
from unmask.encoder.config import EncoderConfig
from unmask.encoder.kinds import LocalGlobal
from unmask.encoder.local import LocalAttention
from unmask.encoder.transformer import Encoder


class LocalGlobalAttention(LocalAttention):
    """A window, and each example's first slot that sees all and is seen by all (Beltagy et al. 2020, sec. 3.1).

    Such a slot asks with projections of its own, about keys and values of their own; others see its ordinary key.
    """

    def __init__(self, config: EncoderConfig, layer: int) -> None:
        super().__init__(config, layer)
        assert isinstance(config.attention, LocalGlobal)
        self.first_sees_all = config.attention.first_sees_all
        self.qkv_global = nn.Linear(config.width, 3 * config.width)
        # Weights that nothing uses get no gradient, and several processes would wait for it.
        self.qkv_global.requires_grad_(self.first_sees_all)

    def forward(self, x: Tensor, layout: Layout, queries: Tensor | None) -> Tensor:
        if not self.first_sees_all:
            return super().forward(x, layout, queries)
        # Which slots see all, and the few that are asked for: worked out on all of them, then chosen.
        q, k, v = self.project(x, None)
        window = self.window
        assert window is not None
        first = (layout.position == 0) & (layout.segment != 0)
        dropout = self.weight_dropout
        if long_for(window, int(x.shape[1])) and layout.ascending():
            mixed = banded(q, k, v, layout, window, dropout=dropout, extra=_numbered(first))
        else:
            allowed = layout.allowed(None) & (layout.allowed(window) | first[:, None, None])
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, dropout_p=dropout)
        where = _numbered(first)
        mixed = self._overwrite(mixed.transpose(1, 2).flatten(2), x, where, layout, dropout)
        if queries is not None:
            mixed = mixed.gather(1, queries[..., None].expand(-1, -1, mixed.shape[-1]))
        return self.out(mixed)

    def _overwrite(self, mixed: Tensor, x: Tensor, where: Tensor, layout: Layout, dropout: float) -> Tensor:
        """What the first slots make of all of their segment, written in their places."""
        width = self.config.width
        slots = where.clamp_min(0)
        few = x.gather(1, slots[..., None].expand(-1, -1, width))
        weight, bias = self.qkv_global.weight, self.qkv_global.bias
        q = self.split(F.linear(few, weight[:width], bias[:width]))[0]
        k, v = self.split(F.linear(x, weight[width:], bias[width:])).unbind(0)
        allowed = layout.segment.gather(1, slots)[..., None] == layout.segment[:, None]
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed[:, None], dropout_p=dropout)
        row, column = (where >= 0).nonzero(as_tuple=True)
        return mixed.index_put((row, where[row, column]), seen.transpose(1, 2).flatten(2)[row, column])


def _numbered(flags: Tensor) -> Tensor:
    """Boolean (rows, slots) -> (rows, most) slot numbers, ascending, -1 behind the last."""
    most = max(1, int(flags.sum(1).max()))
    slots = flags.shape[1]
    order = torch.where(flags, torch.arange(slots, device=flags.device), slots).sort(1)[0][:, :most]
    return order.masked_fill(order == slots, -1)


class LocalGlobalEncoder(Encoder):
    """Longformer's."""

    made_for = LocalGlobal
    attention = LocalGlobalAttention

    @property
    def has_inference_form(self) -> bool:
        assert isinstance(self.config.attention, LocalGlobal)
        return super().has_inference_form and not self.config.attention.first_sees_all
