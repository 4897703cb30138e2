"""Histograms of oriented gradients of patches, from the pixels of each patch alone.

Shape letters: patches (any leading dimensions), features (numbers of a patch), cells.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

DIRECTIONS = 8
"""Of gradients, over the whole circle."""
_FLOOR = 0.05
"""Added to the sum of squares of a patch's histogram before its root: flat patches stay near 0. Pixels have deviation
1."""
_SCALE = 4.0
"""Length of a histogram with strong edges; the pixels of a patch of 7 x 7 have a length of about 7."""


def cells_of(patch: int) -> int:
    """Rows (and columns) of cells in a patch: of about 2 pixels or more, at most 3."""
    return max(1, min(3, patch // 2))


def gradient_numbers(patch: int, channels: int) -> int:
    """How many numbers `oriented_gradients` gives for a patch."""
    return channels * DIRECTIONS * cells_of(patch) ** 2


def oriented_gradients(
    patches: Float[Tensor, "*patches features"], patch: int, channels: int
) -> Float[Tensor, "*patches numbers"]:
    """How strongly brightness rises in each of 8 directions, in each cell of each patch, relative to the whole patch.

    After Dalal and Triggs 2005 (HOG) and Lowe 2004 (SIFT), with two differences: derivatives take no pixel from beyond
    the patch, so that hidden neighbours cannot be read from it, and a gradient counts for each direction by the cosine
    between them. Numbers of a patch come by channel, direction, row and column of the cell; fp32.
    """
    x = patches.float().reshape(-1, patch, patch, channels).permute(0, 3, 1, 2)
    down, across = (_derivative(x, dim) for dim in (2, 3))
    angle = torch.arange(DIRECTIONS, device=x.device) * (2 * math.pi / DIRECTIONS)
    towards = across[:, :, None] * angle.cos()[:, None, None] + down[:, :, None] * angle.sin()[:, None, None]
    found = adaptive_avg_pool2d(towards.relu().flatten(1, 2), cells_of(patch)).flatten(1)
    found = _SCALE * found / (found.square().sum(1, keepdim=True) + _FLOOR).sqrt()
    return found.view(*patches.shape[:-1], -1)


def _derivative(x: Tensor, dim: int) -> Tensor:
    """Central differences, one-sided ones at both ends; 0 along a side of one pixel."""
    if x.shape[dim] < 2:
        return torch.zeros_like(x)
    return torch.gradient(x, dim=dim)[0]


__all__ = ["cells_of", "gradient_numbers", "oriented_gradients"]
