"""Attention of an encoder at inference: slots of all examples side by side, a dense block for each length, no padding.

Examples come sorted by length, and those of one length form a group, so that no mask for padding is needed anywhere.

Shape letters: slots (of the whole batch), width; rows and length (of a group: examples, and slots of each); heads, depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from unmask.encoder.config import Disentangled, EncoderConfig, Rotary
from unmask.encoder.disentangled import bucket, pairs
from unmask.encoder.block_sparse import sparse
from unmask.encoder.transformer import rotate, rotation

QUERIES, SCORES = 256, 2**21
"""In bf16 plain products beat the fused kernel: 12 heads of 32, 4096 slots in all: 7.0 against 8.8 ms at a length of
32, 9.4 against 11.0 at 64, 15.3 against 17.7 at 128. Longer ones are worked on so many queries at a time, and as many
heads as make so many scores, which stay in the caches (12 heads of 64: 3.5 against 5.7 ms at a length of 512, 14.4
against 20.6 at 1024, 219 against 336 at 4096)."""
BAND = 128
"""Fewest queries of local attention that are worked on at a time."""
GROUPS = list[tuple[int, int]]
"""(rows, length) of the groups in a batch, in the order of their slots."""


def length_groups(lengths: Sequence[int]) -> GROUPS:
    """Groups of a batch whose examples are sorted by length.

    >>> length_groups([7, 7, 5])
    [(2, 7), (1, 5)]
    """
    out: GROUPS = []
    for length in lengths:
        if out and out[-1][1] == length:
            out[-1] = (out[-1][0] + 1, length)
        else:
            out.append((1, length))
    return out


@dataclass(frozen=True)
class GroupedBatch:
    """Where the examples of a batch stand, and what its layers share.

    Attributes:
        position: of each slot in its example.
        kept: tables made by one layer for the others.
    """

    groups: GROUPS
    position: Int[Tensor, " slots"]
    kept: dict[Any, Any] = field(default_factory=dict)

    def rotation(self, depth: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines of rotary positions, (slots, 1, half the depth)."""
        key = ("rotation", base, dtype)
        if key not in self.kept:
            tables = rotation(self.position[None], depth, base, dtype)
            self.kept[key] = tuple(t[0, 0][:, None] for t in tables)
        return self.kept[key]

    def near(self, queries: int, before: int, behind: int, window: int, dtype: torch.dtype) -> Tensor:
        """What is added to scores of `queries` slots and the keys from `before` in front of them to `behind` after
        them: 0 within the window, minus infinity beyond."""
        key = ("near", queries, before, behind, window, dtype)
        if key not in self.kept:
            distance = torch.arange(-before, queries + behind)[None] - torch.arange(queries)[:, None]
            self.kept[key] = torch.zeros(distance.shape, dtype=dtype).masked_fill_(distance.abs() > window, -torch.inf)
        return self.kept[key]


@dataclass(frozen=True)
class Relative:
    """A layer's table of relative positions as keys and as queries, projected once: (heads, positions, depth) each."""

    kind: Disentangled
    key: Tensor | None
    query: Tensor | None

    def bias(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """What relative positions add to the scores of a group, (rows, heads, length, length)."""
        length = q.shape[2]
        rows = bucket(torch.arange(length - 1, -length, -1), self.kind)
        key = None if self.key is None else self.key[:, rows]
        query = None if self.query is None else self.query[:, rows.flip(0)]
        return pairs(q, k, key, query).mul_(scale)


@dataclass(frozen=True)
class InferenceAttention:
    """Attention of one layer within each example.

    Attributes:
        heads, kv_heads: of queries, and of keys and values.
        bias: (heads, distances) to add by relative position, for distances of -(longest - 1) to longest - 1; or a
            table of relative positions that depends on the content too.
        window: slots seen on either side, None for all.
        base: of rotary positions, None without.
        block, again: block-sparse attention, see `sparse.sparse`; 0 without.
    """

    heads: int
    kv_heads: int
    bias: Tensor | Relative | None = None
    window: int | None = None
    base: float | None = None
    block: int = 0
    again: int = 0

    @classmethod
    def of(cls, config: EncoderConfig, layer: int, bias: Tensor | Relative | None) -> InferenceAttention:
        window, base = config.attention.layer_window(layer), None
        if isinstance(config.positions, Rotary):
            base = config.positions.base if window is None else config.positions.local_base
        return cls(
            heads=config.heads, kv_heads=config.attention.kv_heads or config.heads, bias=bias, window=window, base=base,
            block=config.attention.block, again=config.attention.random_blocks,
        )  # fmt: skip

    def __call__(self, qkv: Float[Tensor, "slots all_three"], batch: GroupedBatch) -> Float[Tensor, "slots width"]:
        slots, depth = len(qkv), qkv.shape[1] // (self.heads + 2 * self.kv_heads)
        both = self.heads + self.kv_heads
        x = qkv.view(slots, -1, depth)
        asked, values = x[:, :both], x[:, both:]
        if self.base is not None:
            asked = rotate(asked, batch.rotation(depth, self.base, qkv.dtype))
        out = qkv.new_empty(slots, self.heads * depth)
        start = 0
        for rows, length in batch.groups:
            end = start + rows * length

            def group(x: Tensor, here: slice = slice(start, end), shape: tuple[int, int] = (rows, length)) -> Tensor:
                return x[here].unflatten(0, shape).transpose(1, 2)

            q, k, v = group(asked[:, : self.heads]), group(asked[:, self.heads :]), group(values)
            if self.kv_heads != self.heads:
                k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))
            mixed = out[start:end].view(rows, length, self.heads, depth).transpose(1, 2)
            self._mix(q, k, v, batch, mixed)
            start = end
        out[start:] = 0  # rows that only round the shape up
        return out

    def _mix(self, q: Tensor, k: Tensor, v: Tensor, batch: GroupedBatch, out: Tensor) -> None:
        """Attention of one group, (rows, heads, length, depth), written to `out`."""
        length, scale = q.shape[2], q.shape[-1] ** -0.5
        if self.window is not None and length > self.window + 1:
            self._local(q, k, v, batch, out)
            return
        if self.block and length > (5 + 2 * self.again) * self.block:
            tail = -length % self.block
            q, k, v = (F.pad(t, (0, 0, 0, tail)) for t in (q, k, v))
            lengths = torch.full((len(q),), length)
            out.copy_(sparse(q, k, v, lengths, block=self.block, again=self.again)[:, :, :length])
            return
        if isinstance(self.bias, Relative):
            scale *= self.bias.kind.terms**-0.5
            added: Tensor | None = self.bias.bias(q, k, scale)
        else:
            added = None if self.bias is None else upright_bias(self.bias, length).to(q.dtype)
        if q.dtype == torch.bfloat16 and added is None and length > QUERIES:
            self._in_blocks(q, k, v, scale, out)
            return
        out.copy_(_attend(q, k, v, added, scale, explicit=length <= QUERIES))

    def _in_blocks(self, q: Tensor, k: Tensor, v: Tensor, scale: float, out: Tensor) -> None:
        rows, heads, length, _ = q.shape
        several = max(1, SCORES // (QUERIES * length))
        for row in range(rows):
            for head in range(0, heads, several):
                here = (row, slice(head, head + several))
                # Side by side, or every product of a block would lay them out anew: 432 ms instead of 218.
                keys, values = k[here].contiguous(), v[here].contiguous()
                for start in range(0, length, QUERIES):
                    asked = q[here][:, start : start + QUERIES]
                    out[here][:, start : start + QUERIES] = _attend(asked, keys, values, None, scale, explicit=True)

    def _local(self, q: Tensor, k: Tensor, v: Tensor, batch: GroupedBatch, out: Tensor) -> None:
        """Some queries at a time with the keys in reach of them: a block's scores stay in the caches."""
        assert self.window is not None
        length, scale, size = q.shape[2], q.shape[-1] ** -0.5, max(BAND, self.window)
        k, v = k.contiguous(), v.contiguous()
        for start in range(0, length, size):
            end = min(start + size, length)
            low, high = max(0, start - self.window), min(length, end + self.window)
            added = batch.near(end - start, start - low, high - end, self.window, q.dtype)
            keys, values = k[:, :, low:high], v[:, :, low:high]
            out[:, :, start:end].copy_(_attend(q[:, :, start:end], keys, values, added, scale, explicit=True))


def _attend(q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, scale: float, *, explicit: bool) -> Tensor:
    if not (explicit and q.dtype == torch.bfloat16):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=added, scale=scale)
    scores = torch.matmul(q * scale, k.transpose(-1, -2))
    scores = scores if added is None else scores.add_(added)
    return torch.matmul(torch.softmax(scores, -1), v)


def upright_bias(bias: Tensor, length: int) -> Tensor:
    """(heads, distances) -> (1, heads, length, length), entry [i, j] for the distance j - i."""
    middle = bias.shape[1] // 2
    place = torch.arange(length)
    return bias[:, place[None] - place[:, None] + middle][None]
