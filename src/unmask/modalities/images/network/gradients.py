"""Histograms of oriented gradients: of patches, from the pixels of each patch alone, and of whole pictures.

Shape letters: patches (any leading dimensions), features (numbers of a patch), cells, n (pictures).
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


ORIENTATIONS, CELLS = 8, 7
"""Of a whole picture's histograms: orientations over the half circle, and cells along a side, at most."""
_FLAT = 1e-4
"""Added to the sum of squares of a block of histograms before its root; pixels have deviation 1."""


def picture_cells(image: tuple[int, int]) -> tuple[int, int]:
    """(rows, columns) of cells in a picture: 7 x 7, fewer where they would be smaller than 2 pixels."""
    return (max(1, min(CELLS, image[0] // 2)), max(1, min(CELLS, image[1] // 2)))


def picture_numbers(image: tuple[int, int]) -> int:
    """How many numbers `picture_gradients` gives for a picture of (height, width) pixels."""
    rows, columns = picture_cells(image)
    return ORIENTATIONS * 4 * max(1, rows - 1) * max(1, columns - 1)


@torch.no_grad()
def picture_gradients(seen: Float[Tensor, "n channels height width"]) -> Float[Tensor, "n numbers"]:
    """Histograms of oriented gradients of whole pictures (Dalal and Triggs 2005): how strongly brightness changes in
    each of 8 orientations, in each of 7 x 7 cells, relative to the two by two cells around. fp32, without a gradient.

    Of several channels, each pixel counts by the one in which it changes most. Where a pixel or one of its neighbours
    was not measured (NaN), it does not count. `seen`: pictures as the model sees them: mean 0, deviation 1."""
    x = seen.float()
    down, across = (_derivative(x, dim) for dim in (2, 3))
    missing = down.isnan() | across.isnan() | x.isnan()
    size = torch.hypot(down, across).masked_fill(missing, 0.0)
    strongest = size.argmax(1, keepdim=True)
    size, down, across = (t.gather(1, strongest)[:, 0] for t in (size, down.nan_to_num(), across.nan_to_num()))
    angle = torch.atan2(down, across).remainder(math.pi) * (ORIENTATIONS / math.pi)
    share, low = angle.frac(), angle.long() % ORIENTATIONS
    both = torch.zeros(len(x), ORIENTATIONS, *x.shape[2:], device=x.device)
    both.scatter_(1, low[:, None], (size * (1 - share))[:, None])
    both.scatter_add_(1, (low[:, None] + 1) % ORIENTATIONS, (size * share)[:, None])
    found = adaptive_avg_pool2d(both, picture_cells((x.shape[2], x.shape[3])))
    rows, columns = (max(1, side - 1) for side in found.shape[2:])
    corners = [(i * (found.shape[2] > 1), j * (found.shape[3] > 1)) for i in (0, 1) for j in (0, 1)]
    blocks = torch.cat([found[:, :, i : i + rows, j : j + columns] for i, j in corners], 1)
    return (blocks / (blocks.square().sum(1, keepdim=True) + _FLAT).sqrt()).flatten(1)


def _derivative(x: Tensor, dim: int) -> Tensor:
    """Central differences, one-sided ones at both ends; 0 along a side of one pixel."""
    if x.shape[dim] < 2:
        return torch.zeros_like(x)
    return torch.gradient(x, dim=dim)[0]
