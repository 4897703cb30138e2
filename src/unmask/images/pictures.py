"""Pictures of pictures: original | masked | reconstructed, attention maps; as PNG files and inside a report."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from markupsafe import Markup
from PIL import Image

from unmask.files import written
from unmask.images.decode import scale_of

GREY = 0.5
"""What stands for a hidden patch in a drawing."""


def to_rgb(pixels: np.ndarray, low: float | None = None, high: float | None = None) -> np.ndarray:
    """(height, width, channels) of any depth -> (height, width, 3) uint8. Floats are stretched from `low` to `high`."""
    if pixels.dtype.kind in "iu":
        shown = pixels.astype(np.float32) / scale_of(str(pixels.dtype))
    else:
        low = float(pixels.min()) if low is None else low
        high = float(pixels.max()) if high is None else high
        shown = (pixels.astype(np.float32) - low) / max(high - low, 1e-8)
    channels = shown.shape[-1]
    shown = np.repeat(shown[..., :1], 3, -1) if channels < 3 else shown[..., :3]
    return np.round(np.clip(shown, 0, 1) * 255).astype(np.uint8)


def enlarge(pixels: np.ndarray, least: int = 96) -> np.ndarray:
    """Small pictures drawn larger, each pixel a square."""
    factor = max(1, -(-least // max(pixels.shape[:2])))
    return pixels.repeat(factor, 0).repeat(factor, 1)


def triptych(original: np.ndarray, hidden: np.ndarray, filled: np.ndarray) -> np.ndarray:
    """Original, masked and reconstructed side by side, (height, wide, 3) uint8.

    Args:
        original, filled: (height, width, channels), the same depth.
        hidden: (height, width) booleans over pixels.
    """
    low, high = float(original.min()), float(original.max())
    first = to_rgb(original, low, high)
    masked = np.where(hidden[..., None], np.uint8(255 * GREY), first)
    parts = [enlarge(p) for p in (first, masked, to_rgb(filled, low, high))]
    gap = np.full((parts[0].shape[0], 4, 3), 255, np.uint8)
    return np.concatenate([parts[0], gap, parts[1], gap, parts[2]], 1)


def heat(original: np.ndarray, attention: np.ndarray) -> np.ndarray:
    """The picture, and where attention goes: the picture in grey with weights laid over it in orange.

    Args:
        attention: (rows, columns) over the patch grid, non-negative.
    """
    rgb = to_rgb(original)
    high, wide = rgb.shape[:2]
    weight = attention / max(float(attention.max()), 1e-12)
    weight = weight.repeat(high // weight.shape[0], 0).repeat(wide // weight.shape[1], 1)[..., None]
    grey = rgb.mean(-1, keepdims=True).repeat(3, -1) * 0.6 + 255 * 0.2
    warm = grey * (1 - 0.85 * weight) + np.array([240, 110, 20]) * 0.85 * weight
    parts = [enlarge(rgb), enlarge(warm.astype(np.uint8))]
    return np.concatenate([parts[0], np.full((parts[0].shape[0], 4, 3), 255, np.uint8), parts[1]], 1)


def sheet(pictures: Sequence[np.ndarray], gap: int = 6) -> np.ndarray:
    """Pictures of one size under one another."""
    wide = pictures[0].shape[1]
    rows: list[np.ndarray] = []
    for picture in pictures:
        rows += [picture, np.full((gap, wide, 3), 255, np.uint8)]
    return np.concatenate(rows[:-1])


def png(rgb: np.ndarray) -> bytes:
    """PNG file content of an (height, width, 3) uint8 array."""
    out = io.BytesIO()
    Image.fromarray(rgb).save(out, format="PNG")
    return out.getvalue()


def write_png(path: str | Path, rgb: np.ndarray) -> None:
    """Write a PNG, whole or not at all.

    Raises:
        UserError: the file cannot be written.
    """
    with written(path) as temporary:
        temporary.write_bytes(png(rgb))


def gallery(pictures: Sequence[np.ndarray], told: str) -> Markup:
    """Pictures for a report, side by side where there is room."""
    image = Markup(
        '<img alt="{}" style="margin:4px;image-rendering:pixelated;max-width:100%" src="data:image/png;base64,{}">'
    )
    drawn = [image.format(told, base64.b64encode(png(p)).decode()) for p in pictures]
    return Markup('<div style="display:flex;flex-wrap:wrap">{}</div>').format(Markup("").join(drawn))
