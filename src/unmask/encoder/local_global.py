"""Sparse attention: local, with a first slot of each example that sees all and is seen by all (Longformer), and in
blocks (BigBird: Zaheer et al. 2020).

Shape letters: rows, heads, slots, depth; examples (in the whole batch), longest (slots of the longest), block, blocks.
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
from unmask.encoder.kinds import BlockSparse, Local, LocalGlobal
from unmask.encoder.transformer import Encoder
from unmask.kernels.bands import banded
from unmask.kernels.inference_attention import GroupedBatch, InferenceAttention, weighted_sum
from unmask.kernels.packed_attention import example_starts

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
    """`LocalAttention` of whole examples; `window` slots are seen on either side, None for all; with `first_seen` an
    example's first slot is seen by all."""

    window: int | None
    first_seen: bool = False

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
            if self.first_seen:
                cut = 1 if low == 0 else 0  # the first slot stands in front, and once
                keys, values = (torch.cat([t[:, :, :1], t[:, :, low + cut : high]], 2) for t in (k, v))
                added = F.pad(added[:, cut:], (1, 0))
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
        self.qkv_global = nn.Linear(config.width, 3 * config.width, bias=config.attention.bias)
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
        if layout.in_bands(window, int(x.shape[1])):
            mixed = banded(q, k, v, layout, window, dropout=dropout, extra=_numbered(first))
        else:
            allowed = layout.allowed(None) & (layout.allowed(window) | first[:, None, None])
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, dropout_p=dropout)
        where = _numbered(first)
        mixed = self._overwrite(mixed.transpose(1, 2).flatten(2), x, where, layout, dropout)
        if queries is not None:
            mixed = mixed.gather(1, queries[..., None].expand(-1, -1, mixed.shape[-1]))
        return self.out(mixed)

    def inference_projections(self) -> tuple[Tensor, Tensor | None]:
        if not self.first_sees_all:
            return super().inference_projections()
        weights, biases = zip(*((p.weight, p.bias) for p in (self.qkv, self.qkv_global)), strict=True)
        return torch.cat(weights), torch.cat(biases) if self.config.attention.bias else None

    def inference(self, shared: dict[str, Any], dtype: torch.dtype) -> InferenceAttention:
        if not self.first_sees_all:
            return super().inference(shared, dtype)
        return LocalGlobalInference(window=self.window, first_seen=True, **self._for_inference())

    def _overwrite(self, mixed: Tensor, x: Tensor, where: Tensor, layout: AttentionLayout, dropout: float) -> Tensor:
        """What the first slots make of all of their segment, written in their places."""
        slots = where.clamp_min(0)
        q, k, v = self.project(x, slots, self.qkv_global)
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=layout.allowed(None, slots), dropout_p=dropout)
        row, column = (where >= 0).nonzero(as_tuple=True)
        return mixed.index_put((row, where[row, column]), seen.transpose(1, 2).flatten(2)[row, column])


@dataclass(frozen=True, kw_only=True)
class LocalGlobalInference(LocalInference):
    """`LocalGlobalAttention` whose first slots see all; given both projections, side by side."""

    def __call__(self, qkv: Tensor, batch: GroupedBatch) -> Tensor:
        nearby, every = qkv.chunk(2, 1)
        out, start = super().__call__(nearby, batch), 0
        for rows, length in batch.groups:
            end = start + rows * length
            q, k, v = every[start:end].view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            mixed = weighted_sum(q[:, :, :1], k, v, None, self.scale(q.shape[-1]), explicit=True)
            out[start:end:length] = mixed.flatten(1)
            start = end
        return out


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


class BlockSparseAttention(SelfAttention):
    """BigBird's block-sparse attention (Zaheer et al. 2020, sec. 2, ITC) with the random blocks of the released code.

    A block of queries sees its neighbours, the first block, the last one, and `random_blocks` more. Outside training
    the release has all of these be block 0, counted again in the softmax: here its scores rise by log(1 +
    random_blocks), which is the same. An example of at most (5 + 2 random_blocks) blocks has full attention. Blocks are
    counted from each example's own start, so examples that share a row are laid apart first.
    """

    def __init__(self, config: EncoderConfig, layer: int) -> None:
        super().__init__(config, layer)
        assert isinstance(config.attention, BlockSparse)
        self.kind = config.attention

    def mix(self, q: Tensor, k: Tensor, v: Tensor, layout: AttentionLayout, queries: Tensor | None) -> Tensor:
        block, limit = self.kind.block, self.kind.full_up_to
        if q.shape[2] <= limit:
            return super().mix(q, k, v, layout, queries)
        if layout.causal:
            raise TypeError(f"block-sparse attention of rows longer than {limit} slots is not causal")
        dropout = self.weight_dropout
        parts = _Separated.of(layout, block)
        mixed = torch.zeros_like(q)
        for where, length in parts.groups(limit):
            qs, ks, vs = (parts.take(t, where) for t in (q, k, v))
            if int(length.max()) <= limit:
                seen = torch.arange(where.shape[1], device=q.device) < length[:, None]
                out = F.scaled_dot_product_attention(qs, ks, vs, attn_mask=seen[:, None, None], dropout_p=dropout)
            else:
                out = sparse(qs, ks, vs, length, block=block, again=self.kind.random_blocks, dropout=dropout)
            mixed = parts.put(mixed, out, where)
        return mixed

    def project(self, x: Tensor, queries: Tensor | None, qkv: nn.Linear | None = None) -> tuple[Tensor, Tensor, Tensor]:
        # Long rows are worked out whole: a block's queries share their keys.
        return super().project(x, None if x.shape[1] > self.kind.full_up_to else queries, qkv)

    def forward(self, x: Tensor, layout: AttentionLayout, queries: Tensor | None) -> Tensor:
        out = super().forward(x, layout, queries)
        if queries is not None and out.shape[1] != queries.shape[1]:
            out = out.gather(1, queries[..., None].expand(-1, -1, out.shape[-1]))
        return out

    def inference(self, shared: dict[str, Any], dtype: torch.dtype) -> InferenceAttention:
        return BlockSparseInference(kind=self.kind, **self._for_inference())


@dataclass(frozen=True, kw_only=True)
class BlockSparseInference(InferenceAttention):
    """`BlockSparseAttention` of whole examples; of the same `kind`."""

    kind: BlockSparse

    def attend_group(self, q: Tensor, k: Tensor, v: Tensor, batch: GroupedBatch, out: Tensor) -> None:
        length, block = q.shape[2], self.kind.block
        if length <= self.kind.full_up_to:
            super().attend_group(q, k, v, batch, out)
            return
        q, k, v = (F.pad(t, (0, 0, 0, -length % block)) for t in (q, k, v))
        lengths = torch.full((len(q),), length)
        out.copy_(sparse(q, k, v, lengths, block=block, again=self.kind.random_blocks)[:, :, :length])


class BlockSparseEncoder(Encoder):
    """BigBird's."""

    made_for = BlockSparse
    attention = BlockSparseAttention


class _Separated:
    """Where the examples of packed rows stand, to lay each in a row of its own and back."""

    def __init__(self, layout: AttentionLayout, block: int) -> None:
        segment = layout.segment.flatten()
        self.start = example_starts(layout.segment).flatten().nonzero().flatten()
        end = torch.cat([self.start[1:], self.start.new_tensor([segment.numel()])])
        real = segment[self.start] != 0
        self.start, self.length = self.start[real], (end - self.start)[real]
        self.block = block

    @classmethod
    def of(cls, layout: AttentionLayout, block: int) -> _Separated:
        if "apart" not in layout.shared:
            layout.shared["apart"] = cls(layout, block)
        return layout.shared["apart"]

    def groups(self, limit: int) -> list[tuple[Tensor, Tensor]]:
        """(flat slots, -1 behind an example's end; lengths): the short examples, then the long, by number of blocks."""
        out: list[tuple[Tensor, Tensor]] = []
        blocks = torch.where(self.length <= limit, 0, -(-self.length // self.block))
        for kind in blocks.unique().tolist():
            start, length = self.start[blocks == kind], self.length[blocks == kind]
            column = torch.arange(int(length.max()) if kind == 0 else kind * self.block, device=start.device)
            where = start[:, None] + column
            out.append((where.masked_fill(column >= length[:, None], -1), length))
        return out

    @staticmethod
    def take(x: Tensor, where: Tensor) -> Tensor:
        """(rows, heads, slots, depth) -> (examples, heads, longest, depth), zeros behind an example's end."""
        flat = x.transpose(1, 2).flatten(0, 1)
        out = flat[where.clamp_min(0)].masked_fill((where < 0)[..., None, None], 0)
        return out.transpose(1, 2)

    @staticmethod
    def put(x: Tensor, new: Tensor, where: Tensor) -> Tensor:
        """`x` with the examples' results in their places."""
        rows, _, slots, _ = x.shape
        real = where >= 0
        flat = x.transpose(1, 2).flatten(0, 1).index_put((where[real],), new.transpose(1, 2)[real])
        return flat.view(rows, slots, *flat.shape[1:]).transpose(1, 2)


def sparse(q: Tensor, k: Tensor, v: Tensor, length: Tensor, *, block: int, again: int, dropout: float = 0.0) -> Tensor:
    """Block-sparse attention of examples one per row, all of the same number of blocks (the last may be part full).

    Args:
        q, k, v: (examples, heads, blocks x block, depth).
        length: slots of each example.
        again: how often block 0 counts beside the once.
    """
    examples, heads, slots, depth = q.shape
    blocks, scale = slots // block, depth**-0.5
    seen = torch.arange(slots, device=q.device) < length[:, None]
    ends = torch.cat([q[:, :, :block], q[:, :, -block:]], 2)
    ends = F.scaled_dot_product_attention(ends, k, v, attn_mask=seen[:, None, None], dropout_p=dropout, scale=scale)
    bias = _bias(seen, blocks, block, again, q.dtype)
    keys, values = (_around(t, blocks, block) for t in (k, v))
    inner = q.view(examples, heads, blocks, block, depth)[:, :, 1:-1].transpose(1, 2).flatten(0, 1)
    mixed = F.scaled_dot_product_attention(inner, keys, values, attn_mask=bias, dropout_p=dropout, scale=scale)
    mixed = mixed.view(examples, blocks - 2, heads, block, depth).transpose(1, 2).flatten(2, 3)
    return torch.cat([ends[:, :, :block], mixed, ends[:, :, block:]], 2)


def _around(x: Tensor, blocks: int, block: int) -> Tensor:
    """Keys of the inner blocks: first block, last block, the block before, its own, the one behind."""
    examples, heads, _, depth = x.shape
    cut = x.view(examples, heads, blocks, block, depth)
    first, last = (cut[:, :, i : i + 1].expand(-1, -1, blocks - 2, -1, -1) for i in (0, blocks - 1))
    around = torch.cat([first, last, cut[:, :, :-2], cut[:, :, 1:-1], cut[:, :, 2:]], 3)
    return around.transpose(1, 2).flatten(0, 1)


def _bias(seen: Tensor, blocks: int, block: int, again: int, dtype: torch.dtype) -> Tensor:
    """What is added to the scores, (examples x inner blocks, 1, 1, 5 block): padding out, block 0 counted again, and
    no other block twice."""
    bias = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)
    out = _around(bias[:, None, :, None], blocks, block).view(len(seen), blocks - 2, 5, block).clone()
    out[:, :, 0] += math.log(1 + again)
    out[:, 0, 2] = -torch.inf  # the block before block 1 is the first one
    out[:, -1, 4] = -torch.inf  # the block behind the last inner one is the last one
    return out.view(-1, 1, 1, 5 * block)
