"""Attention computed example by example, on a CPU: no scores between different examples, almost none for padding.

The examples of a batch are copied end to end into one long row, the packed row, each padded to one of a few lengths.
Examples of one padded length are next to each other and form a group. The attention of a group is one batched matrix
product of its queries and keys, small enough for the CPU's caches. The rest of the encoder works on the packed row too.

Forward and backward, 2 cores, 4096 slots in rows of 512, milliseconds of whole rows / by example (heads x depth):

    examples of    4 x 32, bf16    12 x 32, bf16    12 x 64, bf16    4 x 32, fp32    12 x 64, fp32
    64                54 / 6          137 / 17         171 / 26          36 / 9          186 / 102
    160               38 / 10         136 / 30         195 / 45          35 / 13         209 / 64
    254               40 / 14         129 / 43         141 / 56          35 / 20         206 / 123
    512               39 / 22         119 / 75         157 / 109         33 / 36         197 / 268

Shape letters: packed (places of the packed row), queries (those whose output is wanted), heads, depth.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.kernels.explicit import Weights

SIZES = np.array([16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512])
"""Lengths are padded to one of these, longer ones to a multiple of 128: few shapes, because oneDNN compiles and keeps a
kernel for each."""
ROUND = 256
"""The places of the packed row, and the queries, are rounded up to a multiple of this, for the same reason."""
SCORES = 2**16
"""A group has at most this many attention scores per head, unless a single example has more."""
GROUP_COST = 4_000_000
"""Fixed cost of a further group, in units of scores times the width of all heads."""
MASKED = -1e9


@dataclass(frozen=True)
class Group:
    """Examples of one rounded length.

    Attributes:
        count, size: examples, and slots of each.
        queries: of each example, rounded up.
        bias: (count, 1, 1, size) to be added to the scores of padding, or None where there is none.
    """

    count: int
    size: int
    queries: int
    bias: Tensor | None


@dataclass(frozen=True)
class BlockGather:
    """Copies the heads of slots into one dense matrix per example and head, and back.

    Attributes:
        groups: of the examples, in the order of their matrices.
        source: for each row of the matrices, which row of (slots x heads) it is a copy of; the number of these rows
            where the matrix has a row that no slot fills.
        target: for each row of (slots x heads), which row of the matrices it was copied to; the number of rows of the
            matrices where it was not copied.
        heads: rows per slot.
    """

    groups: list[Group]
    source: Int[Tensor, " gathered"]
    target: Int[Tensor, " rows"]
    heads: int

    @classmethod
    def of(cls, slots: Int[Tensor, " queries"], groups: list[Group], total: int, heads: int) -> BlockGather:
        """Of slots among `total`, listed group by group and example by example; `total` stands for no slot."""
        parts = slots.split([g.count * g.queries for g in groups])
        head = torch.arange(heads)[:, None]
        source = torch.cat(
            [(part.view(g.count, 1, g.queries) * heads + head).flatten() for part, g in zip(parts, groups, strict=True)]
        ).clamp_max(total * heads)
        target = torch.full((total * heads + 1,), len(source))
        target[source] = torch.arange(len(source))
        return cls(groups, source, target[:-1], heads)

    def matrices(self, x: Float[Tensor, "slots heads depth"]) -> list[Float[Tensor, "batch places depth"]]:
        """The matrices of each group; zeros where there is no slot."""
        rows = F.pad(x.reshape(-1, x.shape[-1]), (0, 0, 0, 1))
        return self._views(rows.index_select(0, self.source))

    def _views(self, rows: Float[Tensor, "gathered depth"]) -> list[Float[Tensor, "batch places depth"]]:
        """The matrices of each group, as views of all their rows."""
        parts = rows.split([g.count * g.queries * self.heads for g in self.groups])
        depth = rows.shape[-1]
        return [p.view(g.count * self.heads, g.queries, depth) for p, g in zip(parts, self.groups, strict=True)]

    def buffer(self, like: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Memory for the rows of all matrices and behind them a row of zeros; and the matrices, as views of it."""
        buffer = like.new_empty(len(self.source) + 1, like.shape[-1])
        buffer[-1] = 0
        return buffer, self._views(buffer[:-1])

    def slots(self, buffer: Tensor) -> Float[Tensor, "slots heads depth"]:
        """The rows of such a buffer copied back to their slots; zeros where a slot has none."""
        return buffer.index_select(0, self.target).view(-1, self.heads, buffer.shape[-1])


@dataclass(frozen=True)
class PackedLayout:
    """The map between the slots of a batch and the places of the packed row.

    Attributes:
        source: for each place of the packed row, the flat number of its slot in the batch; for a padding place, the
            last slot of the example it pads.
        place: for each slot of the batch, its place in the packed row; 0 for padding.
        groups: in the order of the packed row; places after the last group only round the total up.
    """

    source: Int[Tensor, " packed"]
    place: Int[Tensor, " slots"]
    groups: list[Group]
    _gathers: dict[int, BlockGather] = field(default_factory=dict)

    def gather(self, heads: int) -> BlockGather:
        """Of all places."""
        if heads not in self._gathers:
            places = torch.arange(sum(g.count * g.size for g in self.groups))
            self._gathers[heads] = BlockGather.of(places, self.groups, len(self.source), heads)
        return self._gathers[heads]

    def queries(self, wanted: Int[Tensor, " wanted"]) -> QuerySubset:
        """Of these slots of the batch alone."""
        place, order = self.place[wanted].sort()
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order))
        count = len(place)
        more = -count % ROUND if count else ROUND
        by_group, groups, start = [], [], 0
        for g in self.groups:
            bounds = torch.searchsorted(place, start + g.size * torch.arange(g.count + 1))
            start += g.count * g.size
            most = int(bounds.diff().max())
            share = next(s for s in (0, g.size // 4, g.size // 2, g.size) if s >= most)
            each = bounds[:-1, None] + torch.arange(share)
            by_group.append(torch.where(each < bounds[1:, None], each, count + more).flatten())
            groups.append(replace(g, queries=share))
        return QuerySubset(F.pad(place, (0, more)), rank, torch.cat(by_group), groups)


@dataclass(frozen=True)
class QuerySubset:
    """The queries of those slots whose output is wanted.

    Attributes:
        places: their places in the packed row, ascending; then zeros that round the count up.
        rank: for each wanted slot, in the caller's order, its index into `places`.
        by_group: indices into `places`, group by group and example by example; the length of `places` where an example
            has fewer wanted slots than its group's matrices have rows.
        groups: as in `PackedLayout`, with `queries` reduced to what the wanted slots need.
    """

    places: Int[Tensor, " queries"]
    rank: Int[Tensor, " wanted"]
    by_group: Int[Tensor, " gathered"]
    groups: list[Group]

    def gather(self, heads: int) -> BlockGather:
        """Of the wanted slots."""
        return BlockGather.of(self.by_group, self.groups, len(self.places), heads)


def example_starts(segment: Int[Tensor, "rows slots"]) -> Bool[Tensor, "rows slots"]:
    """Where an example, or padding, begins."""
    out = torch.ones_like(segment, dtype=torch.bool)
    out[:, 1:] = segment[:, 1:] != segment[:, :-1]
    return out


def packed_layout(segment: Int[Tensor, "rows slots"]) -> PackedLayout:
    """Where the slots of a batch go in the packed row."""
    flat = segment.numpy().ravel()
    first = np.flatnonzero(example_starts(segment).numpy())
    last = np.append(first[1:], flat.size) - 1
    real = flat[last] != 0
    first, last = first[real], last[real]
    lengths = last - first + 1
    sizes = -(-lengths // 128) * 128
    short = lengths <= SIZES[-1]
    sizes[short] = SIZES[np.searchsorted(SIZES, lengths[short])]
    order = np.argsort(-sizes, kind="stable")
    first, last, sizes = first[order], last[order], sizes[order]
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    wanted, most = np.repeat(first, sizes) + within, np.repeat(last, sizes)
    present = wanted <= most
    place = np.zeros(flat.size, np.int64)
    place[wanted[present]] = np.flatnonzero(present)
    bias = torch.from_numpy(np.where(present, 0, MASKED).astype(np.float32))
    groups: list[Group] = []
    at = 0
    for size, left in sorted(Counter(sizes.tolist()).items(), reverse=True):
        while left:
            # Powers of two: few different shapes.
            count = 2 ** (min(left, max(1, SCORES // size**2)).bit_length() - 1)
            here = slice(at, at + count * size)
            groups.append(Group(count, size, size, None if present[here].all() else bias[here].view(count, 1, 1, size)))
            at, left = here.stop, left - count
    source = np.pad(np.minimum(wanted, most), (0, -len(wanted) % ROUND))
    return PackedLayout(torch.from_numpy(source), torch.from_numpy(place), groups)


def costs_less(packed: PackedLayout, segment: Tensor, width: int, *, half: bool) -> bool:
    """Whether attention by example costs less than attention over whole rows. Measured times per score, relative to
    ours: 1.6 for bf16 rows of 256 slots and more, which do not fit into the caches; 0.8 for the library's fp32 kernel.
    """
    rows, slots = segment.shape
    factor = 0.8 if not half else 1.6 if slots >= 256 else 1.0
    scores = sum(g.count * g.size**2 for g in packed.groups)
    return bool(packed.groups) and scores + len(packed.groups) * GROUP_COST / width < rows * slots**2 * factor


def by_example(
    q: Float[Tensor, "queries heads depth"],
    k: Float[Tensor, "packed heads depth"],
    v: Float[Tensor, "packed heads depth"],
    packed: PackedLayout,
    subset: QuerySubset | None = None,
    *,
    dropout: float = 0.0,
) -> Float[Tensor, "queries heads depth"]:
    """Scaled dot-product attention of each example's queries to its own keys."""
    return _ByExample.apply(q, k, v, packed, subset, q.shape[-1] ** -0.5, dropout)


class _ByExample(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        packed: PackedLayout,
        subset: QuerySubset | None,
        scale: float,
        dropout: float,
    ) -> Tensor:
        seen = packed.gather(q.shape[1])
        queried = seen if subset is None else subset.gather(q.shape[1])
        buffer, mixed = queried.buffer(q)
        saved: list[Tensor | None] = []
        ctx.queried, ctx.seen, ctx.scale, ctx.up = queried, seen, scale, 1.0
        learning = any(ctx.needs_input_grad)
        parts = zip(queried.groups, queried.matrices(q), seen.matrices(k), seen.matrices(v), mixed, strict=True)
        for group, queries, keys, values, to in parts:
            bias = None if group.bias is None else group.bias.to(q.dtype)
            found = Weights.of(queries, keys, bias, scale, dropout)
            found.mix(values, out=to)
            ctx.up = found.up
            if learning:
                saved += [queries, keys, values, found.weights, found.keep]
        ctx.save_for_backward(*saved)
        return queried.slots(buffer)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        queried, seen, saved = ctx.queried, ctx.seen, ctx.saved_tensors
        buffers, to = zip(*(g.buffer(grad) for g in (queried, seen, seen)), strict=True)
        for number, g in enumerate(queried.matrices(grad)):
            q, k, v, weights, keep = saved[5 * number : 5 * number + 5]
            Weights(weights, keep, ctx.up).gradients(g, q, k, v, ctx.scale, out=tuple(t[number] for t in to))
        gradients = (g.slots(buffer) for g, buffer in zip((queried, seen, seen), buffers, strict=True))
        return *gradients, None, None, None, None
