"""Local attention by bands: time and memory grow with the length, not with its square.

Queries are cut into blocks; each block sees the keys of its own block and of `window` slots on either side, as a small
dense product. Shape letters: rows, heads, slots, depth; blocks (of queries), size (slots in a block), seen (keys a
block sees: size + 2 window), extra (slots that every query of the row may see besides, such as a first slot seen by
all).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def block_size(window: int) -> int:
    """Queries in a block: of the window's size, which keeps half to two thirds of the products useful."""
    return max(16, window)


def long_for(window: int, slots: int) -> bool:
    """Whether bands do less work than a masked product of all pairs: from two bands' width on."""
    return slots >= 2 * (block_size(window) + 2 * window)


def cut_keys(x: Tensor, size: int, window: int) -> Tensor:
    """(rows, heads, slots, depth) -> (rows x blocks, heads, seen, depth), overlapping; zeros beyond the ends."""
    rows, heads, slots, depth = x.shape
    blocks = -(-slots // size)
    padded = F.pad(x, (0, 0, window, window + blocks * size - slots))
    cut = padded.unfold(2, size + 2 * window, size)  # rows heads blocks depth seen
    return cut.permute(0, 2, 1, 4, 3).reshape(rows * blocks, heads, size + 2 * window, depth)


def cut_queries(x: Tensor, size: int) -> Tensor:
    """(rows, heads, slots, depth) -> (rows x blocks, heads, size, depth)."""
    rows, heads, slots, depth = x.shape
    blocks = -(-slots // size)
    padded = F.pad(x, (0, 0, 0, blocks * size - slots))
    return padded.view(rows, heads, blocks, size, depth).transpose(1, 2).reshape(rows * blocks, heads, size, depth)


def join(x: Tensor, rows: int, slots: int) -> Tensor:
    """Undo `cut_queries`."""
    blocks = x.shape[0] // rows
    x = x.view(rows, blocks, *x.shape[1:]).transpose(1, 2)
    return x.reshape(rows, x.shape[1], -1, x.shape[-1])[:, :, :slots]


def ascending(segment: Tensor, position: Tensor) -> bool:
    """Whether positions rise from slot to slot within each segment: only then are slots that are at most `window`
    positions apart also at most `window` columns apart, where a band looks for them (some may be left out between)."""
    same = segment[:, 1:] == segment[:, :-1]
    return bool(((position[:, 1:] > position[:, :-1]) | ~same | (segment[:, 1:] == 0)).all())


def band_mask(segment: Tensor, position: Tensor, size: int, window: int, hidden_keys: Tensor | None = None) -> Tensor:
    """Boolean (rows x blocks, 1, size, seen): same segment, and at most `window` positions apart.

    Args:
        segment, position: (rows, slots) each.
        hidden_keys: (rows, slots), keys that no band sees (they are among the extra ones).
    """
    rows, slots = segment.shape
    blocks = -(-slots // size)
    tail = blocks * size - slots
    keys = segment if hidden_keys is None else segment.masked_fill(hidden_keys, -2)
    q = F.pad(segment, (0, tail), value=0).view(rows, blocks, size)
    k = F.pad(keys, (window, window + tail), value=-1).unfold(1, size + 2 * window, size)
    same = q[..., :, None] == k[..., None, :]
    here = F.pad(position, (0, tail)).view(rows, blocks, size)
    there = F.pad(position, (window, window + tail)).unfold(1, size + 2 * window, size)
    near = (here[..., :, None] - there[..., None, :]).abs() <= window
    i = torch.arange(size, device=segment.device)[:, None] + window
    j = torch.arange(size + 2 * window, device=segment.device)[None]
    mask = (same & near).view(rows * blocks, 1, size, size + 2 * window)
    # Padding behind the row sees itself, so that no softmax is over nothing.
    return mask | (~mask.any(-1, keepdim=True) & (i == j))


def banded(
    q: Tensor, k: Tensor, v: Tensor, layout: Any, window: int, *, dropout: float = 0.0, extra: Tensor | None = None
) -> Tensor:
    """Attention within segments and `window` slots, (rows, heads, slots, depth) in and out.

    Args:
        extra: (rows, extra) slots every query of their segment sees besides; no band sees them again. -1 for none.
    """
    rows, slots = q.shape[0], q.shape[2]
    size = block_size(window)
    key = ("band", window, extra is not None)
    if key not in layout._masks:
        layout._masks[key] = _mask(layout.segment, layout.position, size, window, extra)
    keys, values = cut_keys(k, size, window), cut_keys(v, size, window)
    if extra is not None:
        keys, values = (torch.cat([_columns(t, extra, len(c) // rows), c], 2) for t, c in ((k, keys), (v, values)))
    mixed = F.scaled_dot_product_attention(
        cut_queries(q, size), keys, values, attn_mask=layout._masks[key], dropout_p=dropout, scale=q.shape[-1] ** -0.5
    )
    return join(mixed, rows, slots)


def _columns(x: Tensor, extra: Tensor, blocks: int) -> Tensor:
    """The extra slots' keys, repeated for every block of their row: (rows x blocks, heads, extra, depth)."""
    where = extra.clamp_min(0)[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])
    return x.gather(2, where).repeat_interleave(blocks, 0)


def _mask(segment: Tensor, position: Tensor, size: int, window: int, extra: Tensor | None) -> Tensor:
    if extra is None:
        return band_mask(segment, position, size, window)
    rows, slots = segment.shape
    hidden = torch.zeros(rows, slots + 1, dtype=torch.bool, device=segment.device)
    hidden.scatter_(1, torch.where(extra < 0, slots, extra), True)
    band = band_mask(segment, position, size, window, hidden[:, :slots])
    blocks = band.shape[0] // rows
    owner = segment.gather(1, extra.clamp_min(0)).masked_fill(extra < 0, -1)
    q = F.pad(segment, (0, blocks * size - slots)).view(rows, blocks, size)
    columns = (q[..., None] == owner[:, None, None]).view(rows * blocks, 1, size, -1)
    return torch.cat([columns, band], -1)
