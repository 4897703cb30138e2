"""Attention by example, on a CPU: nothing is worked out between examples that share a row, and next to nothing for
padding.

The examples of a batch are laid side by side in one row, each rounded up to one of a few lengths, those of one rounded
length next to each other: these are groups, and attention is dense products of a group's queries and keys, small enough
to stay in the caches. All other work of the encoder is done on that one row.

Forward and backward, 2 cores, 4096 slots in rows of 512, milliseconds of whole rows / by example (heads x depth):

    examples of    4 x 32, bf16    12 x 32, bf16    12 x 64, bf16    4 x 32, fp32    12 x 64, fp32
    64                54 / 6          137 / 17         171 / 26          36 / 9          186 / 102
    160               38 / 10         136 / 30         195 / 45          35 / 13         209 / 64
    254               40 / 14         129 / 43         141 / 56          35 / 20         206 / 123
    512               39 / 22         119 / 75         157 / 109         33 / 36         197 / 268

Shape letters: laid (slots of the one row), asked (those whose output is wanted), heads, depth.
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

from unmask.encoder.explicit import Weights

SIZES = np.array([16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512])
"""Lengths are rounded up to one of these, longer ones to a multiple of 128: oneDNN makes and keeps a kernel for every
shape."""
ROUND = 256
"""All laid slots, and those asked, are rounded up to a multiple of this, for the same reason."""
SCORES = 2**16
"""Most scores of a head that a group has, unless one example alone has more."""
START = 4_000_000
"""What one more group costs, in scores times the width of all heads."""
MASKED = -1e9


@dataclass(frozen=True)
class Group:
    """Examples of one rounded length.

    Attributes:
        count, size: examples, and slots of each.
        asked: queries of each, rounded up.
        bias: (count, 1, 1, size) to be added to the scores of padding, or None where there is none.
    """

    count: int
    size: int
    asked: int
    bias: Tensor | None


@dataclass(frozen=True)
class BlockGather:
    """Slots dealt to dense matrices, one for each example and head, and back: a gather each way.

    Attributes:
        groups: whose matrices they are, in this order.
        order: of each dealt row the row of (slots x heads); their number where there is none.
        back: of each row of (slots x heads) where it was dealt; the number dealt where it was not.
        heads: rows per slot.
    """

    groups: list[Group]
    order: Int[Tensor, " dealt"]
    back: Int[Tensor, " rows"]
    heads: int

    @classmethod
    def of(cls, slots: Int[Tensor, " asked"], groups: list[Group], total: int, heads: int) -> BlockGather:
        """Gather `slots`, which name for each example of each group its slots, `total` where there is none."""
        parts = slots.split([g.count * g.asked for g in groups])
        head = torch.arange(heads)[:, None]
        order = torch.cat(
            [(part.view(g.count, 1, g.asked) * heads + head).flatten() for part, g in zip(parts, groups, strict=True)]
        ).clamp_max(total * heads)
        back = torch.full((total * heads + 1,), len(order))
        back[order] = torch.arange(len(order))
        return cls(groups, order, back[:-1], heads)

    def out(self, x: Float[Tensor, "slots heads depth"]) -> list[Float[Tensor, "batch places depth"]]:
        """The matrices of each group; zeros where there is no slot."""
        rows = F.pad(x.reshape(-1, x.shape[-1]), (0, 0, 0, 1))
        return self.cut(rows.index_select(0, self.order))

    def cut(self, dealt: Float[Tensor, "dealt depth"]) -> list[Float[Tensor, "batch places depth"]]:
        """The matrices of each group, as views."""
        parts = dealt.split([g.count * g.asked * self.heads for g in self.groups])
        depth = dealt.shape[-1]
        return [p.view(g.count * self.heads, g.asked, depth) for p, g in zip(parts, self.groups, strict=True)]

    def room(self, like: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Room for all that is dealt, with a row of zeros for slots that were not; and its matrices."""
        room = like.new_empty(len(self.order) + 1, like.shape[-1])
        room[-1] = 0
        return room, self.cut(room[:-1])

    def home(self, room: Tensor) -> Float[Tensor, "slots heads depth"]:
        """Back from there."""
        return room.index_select(0, self.back).view(-1, self.heads, room.shape[-1])


@dataclass(frozen=True)
class PackedLayout:
    """How a batch is laid side by side.

    Attributes:
        take: of each laid slot the slot of the batch, counted over its rows; an example's last one where it is padding.
        back: of each slot of the batch where it is laid; 0 for padding.
        groups: in the order they are laid; laid slots behind them only round the number up.
    """

    take: Int[Tensor, " laid"]
    back: Int[Tensor, " slots"]
    groups: list[Group]
    _deals: dict[int, BlockGather] = field(default_factory=dict)

    def deal(self, heads: int) -> BlockGather:
        """Of all laid slots."""
        if heads not in self._deals:
            self._deals[heads] = BlockGather.of(
                torch.arange(sum(g.count * g.size for g in self.groups)), self.groups, len(self.take), heads
            )
        return self._deals[heads]

    def asked(self, needed: Int[Tensor, " needed"]) -> QuerySubset:
        """Of these slots of the batch."""
        where, order = self.back[needed].sort()
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order))
        count = len(where)
        more = -count % ROUND if count else ROUND
        dealt, groups, start = [], [], 0
        for g in self.groups:
            bounds = torch.searchsorted(where, start + g.size * torch.arange(g.count + 1))
            start += g.count * g.size
            most = int(bounds.diff().max())
            share = next(s for s in (0, g.size // 4, g.size // 2, g.size) if s >= most)
            each = bounds[:-1, None] + torch.arange(share)
            dealt.append(torch.where(each < bounds[1:, None], each, count + more).flatten())
            groups.append(replace(g, asked=share))
        return QuerySubset(F.pad(where, (0, more)), place, torch.cat(dealt), groups)


@dataclass(frozen=True)
class QuerySubset:
    """Slots whose output is wanted.

    Attributes:
        slots: where they are laid, ascending; then zeros.
        place: of the slots asked, in the order asked, the place among these.
        order: group by group, for each example its places; their number where there is none.
        groups: with the numbers asked.
    """

    slots: Int[Tensor, " asked"]
    place: Int[Tensor, " needed"]
    order: Int[Tensor, " dealt"]
    groups: list[Group]

    def deal(self, heads: int) -> BlockGather:
        """Of the slots asked."""
        return BlockGather.of(self.order, self.groups, len(self.slots), heads)


def starts(segment: Int[Tensor, "rows slots"]) -> Bool[Tensor, "rows slots"]:
    """Where an example, or padding, begins."""
    out = torch.ones_like(segment, dtype=torch.bool)
    out[:, 1:] = segment[:, 1:] != segment[:, :-1]
    return out


def lay(segment: Int[Tensor, "rows slots"]) -> PackedLayout:
    """Lay a batch side by side."""
    flat = segment.numpy().ravel()
    first = np.flatnonzero(starts(segment).numpy())
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
    kept = wanted <= most
    back = np.zeros(flat.size, np.int64)
    back[wanted[kept]] = np.flatnonzero(kept)
    bias = torch.from_numpy(np.where(kept, 0, MASKED).astype(np.float32))
    groups: list[Group] = []
    at = 0
    for size, left in sorted(Counter(sizes.tolist()).items(), reverse=True):
        while left:
            # Powers of two: few different shapes.
            count = 2 ** (min(left, max(1, SCORES // size**2)).bit_length() - 1)
            here = slice(at, at + count * size)
            groups.append(Group(count, size, size, None if kept[here].all() else bias[here].view(count, 1, 1, size)))
            at, left = here.stop, left - count
    take = np.pad(np.minimum(wanted, most), (0, -len(wanted) % ROUND))
    return PackedLayout(torch.from_numpy(take), torch.from_numpy(back), groups)


def cheaper(laid: PackedLayout, segment: Tensor, width: int, *, half: bool) -> bool:
    """Whether this costs less than whole rows in one product. Long rows leave the caches: 1.6 times the time a score in
    bf16; in fp32 the library's own kernel for rows takes 0.8 times ours."""
    rows, slots = segment.shape
    factor = 0.8 if not half else 1.6 if slots >= 256 else 1.0
    scores = sum(g.count * g.size**2 for g in laid.groups)
    return bool(laid.groups) and scores + len(laid.groups) * START / width < rows * slots**2 * factor


def by_example(
    q: Float[Tensor, "asked heads depth"],
    k: Float[Tensor, "laid heads depth"],
    v: Float[Tensor, "laid heads depth"],
    laid: PackedLayout,
    asked: QuerySubset | None = None,
    *,
    dropout: float = 0.0,
) -> Float[Tensor, "asked heads depth"]:
    """Scaled dot-product attention of each example's queries to its own keys."""
    return _ByExample.apply(q, k, v, laid, asked, q.shape[-1] ** -0.5, dropout)


class _ByExample(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        laid: PackedLayout,
        asked: QuerySubset | None,
        scale: float,
        dropout: float,
    ) -> Tensor:
        seen = laid.deal(q.shape[1])
        deal = seen if asked is None else asked.deal(q.shape[1])
        room, mixed = deal.room(q)
        saved: list[Tensor | None] = []
        ctx.deal, ctx.seen, ctx.scale, ctx.up = deal, seen, scale, 1.0
        learning = any(ctx.needs_input_grad)
        parts = zip(deal.groups, deal.out(q), seen.out(k), seen.out(v), mixed, strict=True)
        for group, queries, keys, values, to in parts:
            bias = None if group.bias is None else group.bias.to(q.dtype)
            found = Weights.of(queries, keys, bias, scale, dropout)
            found.mix(values, out=to)
            ctx.up = found.up
            if learning:
                saved += [queries, keys, values, found.weights, found.keep]
        ctx.save_for_backward(*saved)
        return deal.home(room)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        deal, seen, saved = ctx.deal, ctx.seen, ctx.saved_tensors
        rooms, to = zip(*(d.room(grad) for d in (deal, seen, seen)), strict=True)
        for number, g in enumerate(deal.out(grad)):
            q, k, v, weights, keep = saved[5 * number : 5 * number + 5]
            Weights(weights, keep, ctx.up).gradients(g, q, k, v, ctx.scale, out=tuple(t[number] for t in to))
        back = (d.home(room) for d, room in zip((deal, seen, seen), rooms, strict=True))
        return *back, None, None, None, None
