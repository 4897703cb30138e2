"""How pictures are drawn: any depth and channels as colours, original | masked | filled, sheets of several."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from PIL import Image

from unmask.evaluation.charts import drawn
from unmask.writing import written

GREY = 0.5
"""What stands for a hidden patch in a drawing."""
MISSING = np.array([190, 160, 220], np.uint8)
"""The colour of pixels that were not measured."""
THUMB = 96
"""Pixels of a thumbnail's longer side."""
LARGEST = 512
"""Larger pictures are drawn smaller, every n-th pixel."""


class Thumbnail(NamedTuple):
    """A small picture and what stands below it; `tone` 'bad' frames it."""

    image: np.ndarray
    caption: str
    tone: str = ""


Shown = tuple[np.ndarray, np.ndarray]
"""(lowest, highest) shown value of each channel."""


def shown_range(pixels: np.ndarray, missing: np.ndarray | None = None) -> Shown:
    """What is drawn black and white: the range of the measured values but their outermost half per cent, the same for
    grey and colour, of each channel apart where there are others. 8-bit pictures that use a quarter of their range are
    drawn as they are. `pixels`: (..., channels); `missing`: the same without channels."""
    channels = pixels.shape[-1]
    known = pixels.reshape(-1, channels) if missing is None else pixels[~missing]
    known = known[np.isfinite(known).all(-1)][:: max(1, len(known) // 200_000)].astype(np.float64)
    if not len(known):
        return np.zeros(channels), np.ones(channels)
    low, high = np.percentile(known, [0.5, 99.5], axis=0)
    if channels in (1, 3):
        low, high = np.full(channels, low.min()), np.full(channels, high.max())
    if pixels.dtype == np.uint8 and channels in (1, 3) and high[0] - low[0] >= 64:
        return np.zeros(channels), np.full(channels, 255.0)
    return low, high


def to_rgb(pixels: np.ndarray, shown: Shown | None = None, missing: np.ndarray | None = None) -> np.ndarray:
    """(height, width, channels) of any depth -> (height, width, 3) uint8, stretched; two channels are red and green, of
    more than three the first three are drawn. Missing pixels are violet."""
    low, high = shown_range(pixels, missing) if shown is None else shown
    drawn = (np.nan_to_num(pixels.astype(np.float32)) - low) / np.maximum(high - low, 1e-12)
    channels = drawn.shape[-1]
    if channels == 1:
        drawn = np.repeat(drawn, 3, -1)
    elif channels == 2:
        drawn = np.concatenate([drawn, np.zeros_like(drawn[..., :1])], -1)
    rgb = np.round(np.clip(drawn[..., :3], 0, 1) * 255).astype(np.uint8)
    unmeasured = np.isnan(pixels).any(-1) if pixels.dtype.kind == "f" else np.zeros(pixels.shape[:2], bool)
    rgb[unmeasured if missing is None else unmeasured | missing] = MISSING
    return rgb


def enlarge(pixels: np.ndarray, least: int = 96) -> np.ndarray:
    """Small pictures drawn larger, each pixel a square."""
    factor = max(1, -(-least // max(pixels.shape[:2])))
    return pixels.repeat(factor, 0).repeat(factor, 1)


def triptych(
    original: np.ndarray,
    hidden: np.ndarray,
    filled: np.ndarray,
    missing: np.ndarray | None = None,
    shown: Shown | None = None,
) -> np.ndarray:
    """Original, masked and reconstructed, each (height, width, channels), side by side, (height, wide, 3) uint8.
    `hidden`, `missing`: (height, width) booleans over pixels, missing those that the original lacks; drawn is the range
    `shown`, by default the original's."""
    step = max(1, -(-max(original.shape[:2]) // LARGEST))
    original, hidden, filled = original[::step, ::step], hidden[::step, ::step], filled[::step, ::step]
    missing = None if missing is None else missing[::step, ::step]
    shown = shown_range(original, missing) if shown is None else shown
    first = to_rgb(original, shown, missing)
    masked = np.where(hidden[..., None], np.uint8(255 * GREY), first)
    still = None if missing is None else missing & ~hidden
    parts = [enlarge(p) for p in (first, masked, to_rgb(filled, shown, still))]
    gap = np.full((parts[0].shape[0], 4, 3), 255, np.uint8)
    return np.concatenate([parts[0], gap, parts[1], gap, parts[2]], 1)


def heat(
    original: np.ndarray, attention: np.ndarray, missing: np.ndarray | None = None, shown: Shown | None = None
) -> np.ndarray:
    """The picture, and where attention goes: the picture in grey with weights laid over it in orange. `attention`:
    (rows, columns) over the patch grid, non-negative."""
    rgb = to_rgb(original, shown, missing)
    high, wide = rgb.shape[:2]
    weight = attention / max(float(attention.max()), 1e-12)
    weight = weight.repeat(high // weight.shape[0], 0).repeat(wide // weight.shape[1], 1)[..., None]
    grey = rgb.mean(-1, keepdims=True).repeat(3, -1) * 0.6 + 255 * 0.2
    warm = grey * (1 - 0.85 * weight) + np.array([240, 110, 20]) * 0.85 * weight
    parts = [enlarge(rgb), enlarge(warm.astype(np.uint8))]
    return np.concatenate([parts[0], np.full((parts[0].shape[0], 4, 3), 255, np.uint8), parts[1]], 1)


def sheet(pictures: Sequence[np.ndarray], gap: int = 6) -> np.ndarray:
    """Pictures row by row in columns, about as high in all as wide; smaller ones are filled up with white."""
    high, wide = (max(p.shape[axis] for p in pictures) + gap for axis in (0, 1))
    columns = max(1, round(math.sqrt(len(pictures) * high / wide)))
    canvas = np.full((-(-len(pictures) // columns) * high, columns * wide, 3), 255, np.uint8)
    for number, picture in enumerate(pictures):
        top, left = number // columns * high, number % columns * wide
        canvas[top : top + picture.shape[0], left : left + picture.shape[1]] = picture
    return canvas[:-gap, :-gap]


def png(rgb: np.ndarray) -> bytes:
    """PNG file content of an (height, width, 3) uint8 array."""
    out = io.BytesIO()
    Image.fromarray(rgb).save(out, format="PNG")
    return out.getvalue()


def write_png(path: str | Path, rgb: np.ndarray) -> None:
    """Write a PNG, whole or not at all."""
    with written(path) as temporary:
        temporary.write_bytes(png(rgb))


def gallery(pictures: Sequence[np.ndarray], caption: str) -> Markup:
    """Pictures for a report, side by side where there is room."""
    image = Markup(
        '<img alt="{}" style="margin:4px 0;image-rendering:pixelated;max-width:100%" src="data:image/png;base64,{}">'
    )
    drawn = [image.format(caption, base64.b64encode(png(p)).decode()) for p in pictures]
    return Markup('<div style="display:flex;flex-wrap:wrap;gap:0 8px">{}</div>').format(Markup("").join(drawn))


def small(pixels: np.ndarray, missing: np.ndarray | None, side: int = THUMB) -> np.ndarray:
    """A picture as a thumbnail, (height, width, 3) uint8: its longer side `side` pixels, a small one's enlarged."""
    step = max(1, max(pixels.shape[:2]) // (4 * side))
    pixels, missing = pixels[::step, ::step], None if missing is None else missing[::step, ::step]
    rgb = to_rgb(pixels, shown_range(pixels, missing), missing)
    scale = side / max(rgb.shape[:2])
    if scale >= 1:
        return enlarge(rgb, side)
    size = (max(1, round(rgb.shape[1] * scale)), max(1, round(rgb.shape[0] * scale)))
    return np.asarray(Image.fromarray(rgb).resize(size, Image.Resampling.BOX))


def strip(thumbnails: Sequence[Thumbnail]) -> Markup:
    """Thumbnails side by side, as many as there is room for."""
    shown = [(base64.b64encode(png(t.image)).decode(), t.caption, t.tone) for t in thumbnails]
    return drawn("thumbnails", shown)
