"""Attention of an encoder at inference: slots of all examples side by side, a dense block for each length, no padding.

Examples come sorted by length, and those of one length form a group, so that no mask for padding is needed anywhere.

Shape letters: slots (of the whole batch), width; rows and length (of a group: examples, and slots of each); heads,
depth.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from unmask.kernels.explicit import rotate, rotation

QUERIES, SCORES = 256, 2**21
"""In bf16 plain products beat the fused kernel: 12 heads of 32, 4096 slots in all: 7.0 against 8.8 ms at a length of
32, 9.4 against 11.0 at 64, 15.3 against 17.7 at 128. Longer ones are worked on so many queries at a time, and as many
heads as make so many scores, which stay in the caches (12 heads of 64: 3.5 against 5.7 ms at a length of 512, 14.4
against 20.6 at 1024, 219 against 336 at 4096)."""
GROUPS = list[tuple[int, int]]
"""(rows, length) of the groups in a batch, in the order of their slots."""


def length_groups(lengths: Sequence[int]) -> GROUPS:
    """Groups of a batch whose examples are sorted by length.

    >>> length_groups([7, 7, 5])
    [(2, 7), (1, 5)]
    """
    return [(len(list(alike)), length) for length, alike in itertools.groupby(lengths)]


@dataclass(frozen=True)
class GroupedBatch:
    """Where the examples of a batch stand, and what its layers share.

    Attributes:
        position: of each slot in its example.
        cache: tables made by one layer for the others.
    """

    groups: GROUPS
    position: Int[Tensor, " slots"]
    cache: dict[Any, Any] = field(default_factory=dict)

    def rotation(self, depth: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines of rotary positions, (slots, 1, half the depth)."""

        def made() -> tuple[Tensor, Tensor]:
            cos, sin = rotation(self.position[None], depth, base, dtype)
            return cos[0, 0][:, None], sin[0, 0][:, None]

        return self.once(("rotation", base, dtype), made)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` gives, made once for all layers."""
        if key not in self.cache:
            self.cache[key] = make()
        return self.cache[key]


@dataclass(frozen=True, kw_only=True)
class InferenceAttention:
    """Attention of one layer within each example: full, and what all kinds have in common.

    A kind of its own overrides `added` (and `scale`) or `attend_group`.

    Attributes:
        heads, kv_heads: of queries, and of keys and values.
        base: of rotary positions, None without.
    """

    heads: int
    kv_heads: int
    base: float | None = None

    def __call__(self, qkv: Float[Tensor, "slots all_three"], batch: GroupedBatch) -> Float[Tensor, "slots width"]:
        slots, depth = len(qkv), qkv.shape[1] // (self.heads + 2 * self.kv_heads)
        both = self.heads + self.kv_heads
        x = qkv.view(slots, -1, depth)
        both_heads, values = x[:, :both], x[:, both:]
        if self.base is not None:
            both_heads = rotate(both_heads, batch.rotation(depth, self.base, qkv.dtype))
        out = qkv.new_empty(slots, self.heads * depth)
        start = 0
        for rows, length in batch.groups:
            end = start + rows * length

            def group(x: Tensor, here: slice = slice(start, end), shape: tuple[int, int] = (rows, length)) -> Tensor:
                return x[here].unflatten(0, shape).transpose(1, 2)

            q, k, v = group(both_heads[:, : self.heads]), group(both_heads[:, self.heads :]), group(values)
            if self.kv_heads != self.heads:
                k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))
            mixed = out[start:end].view(rows, length, self.heads, depth).transpose(1, 2)
            self.attend_group(q, k, v, batch, mixed)
            start = end
        out[start:] = 0  # rows that only round the shape up
        return out

    def scale(self, depth: int) -> float:
        """What scores are multiplied with, of heads of this width."""
        return float(depth**-0.5)

    def added(self, q: Tensor, k: Tensor, scale: float) -> Tensor | None:
        """What is added to the scaled scores, broadcast to (rows, heads, length, length); None for nothing."""
        return None

    def attend_group(self, q: Tensor, k: Tensor, v: Tensor, batch: GroupedBatch, out: Tensor) -> None:
        """Attention of the examples of one length, (rows, heads, length, depth) each, written to `out`."""
        length, scale = q.shape[2], self.scale(q.shape[-1])
        added = self.added(q, k, scale)
        if q.dtype == torch.bfloat16 and added is None and length > QUERIES:
            self._in_blocks(q, k, v, scale, out)
        else:
            out.copy_(weighted_sum(q, k, v, added, scale, explicit=length <= QUERIES))

    def _in_blocks(self, q: Tensor, k: Tensor, v: Tensor, scale: float, out: Tensor) -> None:
        rows, heads, length, _ = q.shape
        several = max(1, SCORES // (QUERIES * length))
        for row in range(rows):
            for head in range(0, heads, several):
                here = (row, slice(head, head + several))
                # Side by side, or every product of a block would lay them out anew: 432 ms instead of 218.
                keys, values = k[here].contiguous(), v[here].contiguous()
                for start in range(0, length, QUERIES):
                    queries = q[here][:, start : start + QUERIES]
                    out[here][:, start : start + QUERIES] = weighted_sum(
                        queries, keys, values, None, scale, explicit=True
                    )


def weighted_sum(q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, scale: float, *, explicit: bool) -> Tensor:
    """softmax(q k' * scale + added) v, by plain products where `explicit` and in bf16, else by the library's kernel."""
    if not (explicit and q.dtype == torch.bfloat16):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=added, scale=scale)
    scores = torch.matmul(q * scale, k.transpose(-1, -2))
    scores = scores if added is None else scores.add_(added)
    return torch.matmul(torch.softmax(scores, -1), v)
