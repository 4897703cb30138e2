"""Rotary positions, split-half (Su et al. 2021): queries and keys are turned by their positions.

Shape letters: rows, heads, slots, depth (width of a head).
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor


def rotation(position: Int[Tensor, "rows slots"], depth: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine tables, (rows, 1, slots, half the depth) each."""
    rate = base ** (-torch.arange(0, depth, 2, device=position.device, dtype=torch.float32) / depth)
    angle = position[:, None, :, None].float() * rate
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Queries or keys, (..., depth), turned by tables that broadcast to (..., half the depth)."""
    cos, sin = table
    first, second = x.chunk(2, -1)
    return torch.cat([torch.addcmul(first * cos, second, sin, value=-1), torch.addcmul(second * cos, first, sin)], -1)
