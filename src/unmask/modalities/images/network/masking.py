"""What is hidden of an image: patches, square units, rectangles, a box or a mask of the user's own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from unmask.core.corruption import (
    ALL_MASK,
    Corruption,
    Ratio,
    Selector,
    Slots,
    Uniform,
    Units,
    draw_counts,
    own_selector,
)
from unmask.core.hashing import Salt, hash_keys, uniform
from unmask.errors import UserError
from unmask.given import array_of
from unmask.modalities.images.network.codec import MISSING_SHARE, PatchCodecConfig

_RECTANGLES = 24
"""Rectangles drawn per image; at 40 % hidden a handful is needed."""
_RECTANGLE_SALTS = (Salt.RECTANGLE_AREA, Salt.RECTANGLE_SHAPE, Salt.RECTANGLE_TOP, Salt.RECTANGLE_LEFT)


def hidden_count(patches: int, ratio: float) -> int:
    """How many patches are hidden: all but int(patches x (1 - ratio)), as in the official MAE; always the same number.

    >>> hidden_count(196, 0.75), hidden_count(49, 0.75)
    (147, 37)
    """
    return min(max(patches - int(patches * (1 - ratio) + 1e-9), 1), patches - 1)


def unit_numbers(grid: tuple[int, int], block: int) -> np.ndarray:
    """Number of the square unit each patch belongs to; `block` patches a side. Units at the edges may be cut.

    >>> unit_numbers((2, 4), 2).reshape(2, 4)[0].tolist()
    [0, 0, 1, 1]
    """
    row, column = np.divmod(np.arange(grid[0] * grid[1]), grid[1])
    return (row // block) * -(-grid[1] // block) + column // block


@dataclass(frozen=True, kw_only=True)
class Rectangles:
    """Rectangles of random size and shape until the count is reached, the last one cut (BEiT, Bao et al. 2022, alg. 1).

    Args:
        columns: patches in a row of the grid.
        first: position of the first patch (1 where a class token stands in front).
        least: smallest area of a rectangle, in patches.
        aspect: rectangles are between `aspect` and 1 / `aspect` times as wide as high.
    """

    columns: int
    rows: int
    ratio: Ratio = 0.4
    first: int = 1
    least: int = 4
    aspect: float = 0.3
    at_least: int = 1

    def __call__(self, slots: Slots, *, key: tuple[int, int], progress: float = 0.0) -> np.ndarray:
        count = draw_counts(self.ratio, slots, key, progress, self.at_least)
        row, column = np.divmod(slots.position - self.first, self.columns)
        wanted = count[slots.example]
        covered_by = np.full(len(slots.flat), _RECTANGLES, np.int64)
        for number in range(_RECTANGLES):
            area, shape, top, left = (uniform(*key, slots.identity, number, salt) for salt in _RECTANGLE_SALTS)
            low = np.minimum(self.least, wanted)
            size = low + area * np.maximum(wanted - low, 0)
            ratio = np.exp((2 * shape - 1) * -math.log(self.aspect))
            height = np.clip(np.round(np.sqrt(size * ratio)), 1, self.rows)
            width = np.clip(np.round(np.sqrt(size / ratio)), 1, self.columns)
            # They may hang over the edges: else corners would be hidden seven times less often than the middle.
            top = np.floor(top * (self.rows + height - 1)) - (height - 1)
            left = np.floor(left * (self.columns + width - 1)) - (width - 1)
            inside = (row >= top) & (row < top + height) & (column >= left) & (column < left + width)
            covered_by = np.where(inside, np.minimum(covered_by, number), covered_by)
        score = uniform(*key, slots.identity, slots.slot, Salt.RECTANGLE_ORDER)
        order = np.lexsort((score, covered_by, slots.example))
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order)) - np.searchsorted(slots.example, slots.example, side="left")[order]
        return rank < wanted


def image_corruption(
    config: PatchCodecConfig,
    *,
    hide: str = "patch",
    ratio: float = 0.75,
    unit: int | None = None,
    static: bool = False,
    own: str | None = None,
) -> Corruption:
    """The corruption the settings ask for, with the same count in every image: of patches, or of units, of which those
    cut at the picture's edges hold fewer patches. `own`: 'package.module:name' of a user's own selector, instead of
    `hide`; `hide`: 'patch', 'unit' (squares of `unit` pixels; SimMIM: 32 whatever the patch) or 'block'
    (rectangles)."""
    if own is not None:
        return Corruption(select=own_selector(own, ratio), replace=ALL_MASK, static=static)
    patches = config.patches
    select: Selector
    if hide == "unit":
        units = int(unit_numbers(config.grid, unit_block(config, unit)).max()) + 1
        if units < 2:
            raise UserError(
                f"unit={unit} leaves one unit a picture", hint="Nothing would stay visible: use a smaller unit."
            )
        # ceil(ratio x units), as in the official SimMIM.
        select = Units(ratio=min(math.ceil(ratio * units - 1e-9), units - 1) / units)
    elif hide == "block":
        share = hidden_count(patches, ratio) / patches
        select = Rectangles(ratio=share, rows=config.grid[0], columns=config.grid[1], first=int(config.class_token))
    else:
        select = Uniform(ratio=hidden_count(patches, ratio) / patches)
    return Corruption(select=select, replace=ALL_MASK, static=static)


def unit_block(config: PatchCodecConfig, unit: int | None) -> int:
    """Side of a mask unit in patches."""
    unit = config.patch if unit is None else unit
    if unit < config.patch or unit % config.patch:
        fits = [config.patch * k for k in range(1, max(config.grid) + 1)]
        raise UserError(f"unit={unit} is not a multiple of patch={config.patch}", hint=f"Use one of {fits[:8]}.")
    return unit // config.patch


def pixels_in_box(size: tuple[int, int], box: tuple[int, int, int, int], of: str) -> np.ndarray:
    """(height, width) booleans over a picture of this size: the pixels of a box (left, top, width, height); `of`: what
    the box is in pixels of, for a message."""
    left, top, wide, high = box
    height, width = size
    if wide < 1 or high < 1 or left < 0 or top < 0 or left + wide > width or top + high > height:
        raise UserError(
            f"box {left},{top},{wide},{high} does not lie within a picture of {width} x {height} pixels",
            hint=f"Give left,top,width,height in pixels of {of}.",
        )
    touched = np.zeros(size, bool)
    touched[top : top + high, left : left + wide] = True
    return touched


def pixels_in_mask(config: PatchCodecConfig, mask: np.ndarray) -> np.ndarray:
    """(height, width) booleans: the marked pixels; the mask may be over pixels or over the patch grid."""
    mask = array_of(mask) != 0
    if mask.shape == config.grid:
        return mask.repeat(config.patch, 0).repeat(config.patch, 1)
    if mask.shape != config.image:
        raise UserError(
            f"the mask has shape {mask.shape}", hint=f"Expected pixels {config.image} or patches {config.grid}."
        )
    return mask


def patches_in_mask(config: PatchCodecConfig, mask: np.ndarray) -> np.ndarray:
    """Booleans over the patches: those with any marked pixel of (height, width)."""
    (rows, columns), p = config.grid, config.patch
    return mask.reshape(rows, p, columns, p).any((1, 3)).ravel()


def observed_patches(config: PatchCodecConfig, missing: np.ndarray | None) -> np.ndarray:
    """Booleans over (pictures, patches): those of which half of the pixels or more were measured; all where none is
    missing."""
    if missing is None:
        return np.ones((1, config.patches), bool)
    (rows, columns), p = config.grid, config.patch
    share = missing.reshape(len(missing), rows, p, columns, p).mean((2, 4))
    return share.reshape(len(missing), -1) <= MISSING_SHARE


def random_patches(config: PatchCodecConfig, count: int, ratio: float, seed: int) -> np.ndarray:
    """(count, patches) booleans: patches hidden at random, the same number in every image; a pure function
    of the seed."""
    hidden = hidden_count(config.patches, ratio)
    score = hash_keys(seed, np.arange(count)[:, None], np.arange(config.patches)[None], Salt.HIDDEN_PATCHES)
    rank = score.argsort(1).argsort(1)
    return rank < hidden
