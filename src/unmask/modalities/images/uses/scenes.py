"""Pictures larger than the model: cut into overlapping tiles, and what comes of the tiles put together again."""

from __future__ import annotations

from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.modalities.images.reading.arrays import ImageSet, Tiles
from unmask.modalities.images.uses.model import ImageModel
from unmask.modalities.images.uses.reconstruct import Reconstruction


def fill_scenes(
    model: ImageModel,
    images: Any,
    *,
    box: tuple[int, int, int, int] | None = None,
    mask: np.ndarray | None = None,
    ratio: float | None = None,
    gaps: bool = False,
    reading: dict[str, Any] | None = None,
    **options: Any,
) -> list[Reconstruction]:
    """`ImageModel.reconstruct` at the pictures' own resolution: one result for each picture, of its own size.

    A pixel is hidden where it is in every tile that shows it; there the tiles' predictions are averaged, each weighted
    by how far the pixel lies from the tile's edge.

    Args:
        box: left, top, width, height in pixels of the pictures.
        mask: (height, width) of the pictures; non-zero is hidden.
        reading: how files are read, `overlap` among it; see `sources.read_images`.
        options: see `ImageModel.reconstruct`.
    """
    found = images if isinstance(images, ImageSet) and images.tiles is not None else None
    if found is None:
        found = model.read(images, **({"view": "tile"} | (reading or {})))
    tiles = found.tiles
    assert tiles is not None
    chosen: dict[str, Any] = {"ratio": ratio, "gaps": gaps}
    if box is not None or mask is not None:
        if ratio is not None or gaps or (box is not None and mask is not None):
            raise UserError("more than one of ratio, box, mask and gaps", hint="Give one of them.")
        chosen = {"mask": _cut([_wanted(size, box, mask) for size in tiles.sizes], tiles, model.config.image)}
    r = model.reconstruct(found, **chosen, **options)
    out = []
    for scene, size in enumerate(tiles.sizes):
        here = np.flatnonzero(tiles.scene == scene)
        if len(here):
            out.append(_stitched(r, tiles, here, size))
    return out


def _wanted(size: tuple[int, int], box: tuple[int, int, int, int] | None, mask: np.ndarray | None) -> np.ndarray:
    """(height, width) booleans over a picture."""
    if mask is not None:
        if mask.shape != size:
            raise UserError(
                f"the mask has {mask.shape[1]} x {mask.shape[0]} pixels, the picture {size[1]} x {size[0]}",
                hint="Give a mask of the picture's size.",
            )
        return mask != 0
    assert box is not None
    left, top, wide, high = box
    if min(left, top) < 0 or min(wide, high) < 1 or left + wide > size[1] or top + high > size[0]:
        raise UserError(
            f"box {left},{top},{wide},{high} does not lie within a picture of {size[1]} x {size[0]} pixels",
            hint="Give left,top,width,height in pixels of the picture.",
        )
    out = np.zeros(size, bool)
    out[top : top + high, left : left + wide] = True
    return out


def _cut(wanted: list[np.ndarray], tiles: Tiles, side: tuple[int, int]) -> np.ndarray:
    """(tiles, height, width): each tile's part of its picture's mask."""
    out = np.zeros((len(tiles.scene), *side), bool)
    for number, (scene, top, left) in enumerate(zip(tiles.scene, tiles.top, tiles.left, strict=True)):
        part = wanted[scene][top : top + side[0], left : left + side[1]]
        out[number, : part.shape[0], : part.shape[1]] = part
    return out


def _stitched(r: Reconstruction, tiles: Tiles, here: np.ndarray, size: tuple[int, int]) -> Reconstruction:
    channels, kind = r.original.shape[-1], r.original.dtype
    high, wide = r.original.shape[1:3]
    ramps = (np.minimum(np.arange(n) + 1, n - np.arange(n)) for n in (high, wide))
    weight = np.multiply.outer(*ramps).astype(np.float64)
    original = np.zeros((*size, channels), kind)
    unknown, hidden = np.ones(size, bool), np.ones(size, bool)
    total, share = np.zeros((*size, channels)), np.zeros(size)
    for number in here:
        top, left = int(tiles.top[number]), int(tiles.left[number])
        part = (slice(top, min(top + high, size[0])), slice(left, min(left + wide, size[1])))
        own = (slice(0, part[0].stop - top), slice(0, part[1].stop - left))
        original[part] = r.original[number][own]
        unknown[part] &= False if r.unknown is None else r.unknown[number][own]
        unmeasured = r.hidden[number][own]
        hidden[part] &= unmeasured
        # Predictions alone: what a tile shows is the original's.
        total[part] += np.where(unmeasured[..., None], r.filled[number][own], 0) * weight[own][..., None]
        share[part] += unmeasured * weight[own]
    mean = total / np.maximum(share, 1e-12)[..., None]
    mean = np.round(mean) if kind.kind in "iu" else mean
    filled = np.where(hidden[..., None], mean.astype(kind), original)
    if kind.kind == "f":
        filled[unknown & ~hidden] = np.nan
    gaps = unknown if unknown.any() else None
    return Reconstruction(
        original=original[None], hidden=hidden[None], filled=filled[None], unknown=None if gaps is None else gaps[None]
    )
