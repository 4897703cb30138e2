"""Local attention, and a first slot of each example that sees all and is seen by all (Longformer).

Shape letters: rows, heads, slots, depth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.encoder.attention import AttentionLayout, attend
from unmask.encoder.config import EncoderConfig, Rotary
from unmask.encoder.full import SelfAttention
from unmask.encoder.kinds import Local, LocalGlobal
from unmask.encoder.transformer import Encoder
from unmask.kernels.bands import banded, long_for
from unmask.kernels.inference_attention import GroupedBatch, InferenceAttention, weighted_sum

BAND = 128
"""Fewest queries that are worked on at a time at inference."""


class LocalAttention(SelfAttention):
    """Attention within a window, or to the whole example where the layer has none."""

    def __init__(self, config: EncoderConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.window = config.attention.layer_window(layer)

    @property
    def rotary_base(self) -> float | None:
        positions = self.config.positions
        if isinstance(positions, Rotary) and self.window is not None:
            return positions.local_base
        return super().rotary_base

    def mix(self, q: Tensor, k: Tensor, v: Tensor, layout: AttentionLayout, queries: Tensor | None) -> Tensor:
        return attend(q, k, v, layout, window=self.window, queries=queries, dropout=self.weight_dropout)

    def inference(self, shared: dict[str, Any], dtype: torch.dtype) -> InferenceAttention:
        return LocalInference(window=self.window, **self._for_inference())


@dataclass(frozen=True, kw_only=True)
class LocalInference(InferenceAttention):
    """`LocalAttention` of whole examples; `window` slots are seen on either side, None for all."""

    window: int | None

    def attend_group(self, q: Tensor, k: Tensor, v: Tensor, batch: GroupedBatch, out: Tensor) -> None:
        """Some queries at a time with the keys in reach of them: a block's scores stay in the caches."""
        length, scale = q.shape[2], q.shape[-1] ** -0.5
        if self.window is None or length <= self.window + 1:
            super().attend_group(q, k, v, batch, out)
            return
        k, v, size = k.contiguous(), v.contiguous(), max(BAND, self.window)
        for start in range(0, length, size):
            end = min(start + size, length)
            low, high = max(0, start - self.window), min(length, end + self.window)
            added = _near(batch, end - start, start - low, high - end, self.window, q.dtype)
            keys, values = k[:, :, low:high], v[:, :, low:high]
            out[:, :, start:end].copy_(weighted_sum(q[:, :, start:end], keys, values, added, scale, explicit=True))


def _near(batch: GroupedBatch, queries: int, before: int, behind: int, window: int, dtype: torch.dtype) -> Tensor:
    """What is added to scores of `queries` slots and the keys from `before` in front of them to `behind` after them: 0
    within the window, minus infinity beyond."""

    def made() -> Tensor:
        distance = torch.arange(-before, queries + behind)[None] - torch.arange(queries)[:, None]
        return torch.zeros(distance.shape, dtype=dtype).masked_fill_(distance.abs() > window, -torch.inf)

    return batch.once(("near", queries, before, behind, window, dtype), made)


class LocalEncoder(Encoder):
    """ModernBERT's."""

    made_for = Local
    attention = LocalAttention

    @property
    def all_layers_full(self) -> bool:
        return all(self.config.attention.layer_window(i) is None for i in range(self.config.layers))


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

    def forward(self, x: Tensor, layout: AttentionLayout, queries: Tensor | None) -> Tensor:
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

    def _overwrite(self, mixed: Tensor, x: Tensor, where: Tensor, layout: AttentionLayout, dropout: float) -> Tensor:
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


OFFSETS = (-1, 1, -2, 2)
"""Slots to the left (negative) or right that the first heads attend to; the other heads start at random."""

PEAK = 8.0
"""Score of the slot attended to, before the softmax; the slots next to it have about four fifths of it."""

SLOWEST = 0.25
"""Radians per slot of the slowest rotation used: slower ones make the peak wider, and where there is but one, its peak
comes back every 2 pi slots: two at least are used."""

PASSED = 0.7
"""Factor by which a head reads a neighbour's component along an axis, and by which it writes it (`pass_on`)."""

LAYERS = 2
"""How many layers start this way, from the first."""


@torch.no_grad()
def attend_to_neighbours(embedding: Tensor, layers: Sequence[SelfAttention], offsets: Sequence[int] = OFFSETS) -> None:
    """Initialise the first heads so that each attends to the slot at a fixed distance.

    Queries and keys read one direction that all embeddings get in common, so that scores do not depend on the values at
    first; the rotation of the rotary positions then makes the slot at the head's offset score highest.

    Args:
        embedding: (values, width), drawn at random; the common direction is added in place, as large as what was drawn.
        layers: attention of the first layers, with rotary positions, after a normalised embedding.
        offsets: one per head, from the first; further heads are left as they are.
    """
    width = embedding.shape[1]
    common = torch.randn(width, device=embedding.device, dtype=embedding.dtype)
    common -= common.mean()  # orthogonal to what layer normalisation takes away
    common /= common.norm()
    embedding += embedding.std() * math.sqrt(width) * common
    reader = common / math.sqrt(width / 2)  # a normalised embedding times this is about 1
    for attention in layers:
        heads, base = attention.config.heads, attention.rotary_base
        depth = width // heads
        assert base is not None
        rate = base ** (-torch.arange(depth // 2, device=embedding.device) * 2 / depth)
        used = max(2, int((rate >= SLOWEST).sum()))
        size, rate = math.sqrt(PEAK * math.sqrt(depth) / used), rate[:used]
        weight = attention.qkv.weight
        for head, offset in enumerate(offsets[:heads]):
            query, key = torch.zeros(2, depth, dtype=weight.dtype, device=weight.device)
            query[:used], query[depth // 2 : depth // 2 + used] = (rate * offset).cos(), (rate * offset).sin()
            key[:used] = 1
            rows = slice(head * depth, (head + 1) * depth)
            weight[:width][rows] += size * query[:, None] * reader
            weight[width : 2 * width][rows] += size * key[:, None] * reader


@torch.no_grad()
def pass_on(axes: Tensor, layers: Sequence[SelfAttention], offsets: Sequence[int] = OFFSETS) -> None:
    """Initialise values and output of the heads that attend to neighbours, so that they add the neighbours' components
    along some axes to a slot's state.

    Args:
        axes: (axes, width) orthonormal, the most informative first; a head passes on as many as its depth.
        layers: as of `attend_to_neighbours`.
        offsets: one per head, as there.
    """
    for attention in layers:
        heads, width = attention.config.heads, attention.config.width
        depth = width // heads
        passed = PASSED * axes[:depth].to(attention.qkv.weight)
        for head in range(min(len(offsets), heads)):
            values = slice(head * depth, head * depth + len(passed))
            attention.qkv.weight[2 * width :][values] += passed
            attention.out.weight[:, values] += passed.T
