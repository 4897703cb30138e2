"""Block-sparse attention (BigBird: Zaheer et al. 2020).

Shape letters: rows, heads, slots, depth; examples (in the whole batch), longest (slots of the longest), block, blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.encoder.attention import AttentionLayout
from unmask.encoder.config import EncoderConfig
from unmask.encoder.full import SelfAttention
from unmask.encoder.kinds import BlockSparse
from unmask.encoder.transformer import Encoder
from unmask.kernels.inference_attention import GroupedBatch, InferenceAttention
from unmask.kernels.packed_attention import example_starts


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

    def project(self, x: Tensor, queries: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        # Long rows are worked out whole: a block's queries share their keys.
        return super().project(x, None if x.shape[1] > self.kind.full_up_to else queries)

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
