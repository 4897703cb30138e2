"""Small pictures for tests: three classes of bright bars, made from a seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from unmask.modalities.images.recipes import PIXELS


def bars(count: int = 60, size: tuple[int, int] = (12, 12), seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(count, height, width) uint8 pictures, and labels: a bar across, a bar down, a square."""
    rng = np.random.default_rng(seed)
    height, width = size
    pixels = rng.integers(0, 40, (count, height, width))
    labels = np.arange(count) % 3
    for picture, label in zip(pixels, labels, strict=True):
        y, x = rng.integers(1, height - 5), rng.integers(1, width - 5)
        area = [(slice(y, y + 2), slice(None)), (slice(None), slice(x, x + 2)), (slice(y, y + 4), slice(x, x + 4))][
            label
        ]
        picture[area] = 220
    return pixels.astype(np.uint8), labels


def class_folder(where: Path, count: int = 60, size: tuple[int, int] = (12, 12), seed: int = 0) -> Path:
    """The same pictures as PNG files, one folder a class."""
    pixels, labels = bars(count, size, seed)
    for number, (picture, label) in enumerate(zip(pixels, labels, strict=True)):
        folder = where / ("across", "down", "square")[label]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(folder / f"{number:03d}.png")
    return where


TINY = {
    **PIXELS,
    "width": 32,
    "layers": 2,
    "heads": 2,
    "decoder_width": 16,
    "decoder_layers": 1,
    "decoder_heads": 1,
    "batch": 32,
    "steps": 6,
    "precision": "fp32",
    "holdout": 0.2,
}

NO_DECODER = {"decoder_width": 64, "decoder_layers": 2, "decoder_heads": 2}
"""For models without a decoder, beside `TINY`: the usual sizes; nothing would read others."""

CROPS = TINY | {"view": "crop", "image_size": 16, "patch": 4, "turn": True, "steps": 2}
"""For models that are fine-tuned to segment."""


def discs(count: int, seed: int = 0, size: tuple[int, int] = (44, 52)) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Noisy pictures with brighter discs, and masks with 255 in these."""
    rng = np.random.default_rng(seed)
    down, across = np.mgrid[: size[0], : size[1]]
    pictures, masks = [], []
    for _ in range(count):
        mask = np.zeros(size, np.uint8)
        for y, x, r in zip(
            rng.integers(0, size[0], 4), rng.integers(0, size[1], 4), rng.integers(5, 10, 4), strict=True
        ):
            mask[(down - y) ** 2 + (across - x) ** 2 < r * r] = 255
        pictures.append(np.clip(rng.normal(90, 30, size) + 60 * (mask > 0), 0, 255).astype(np.uint8))
        masks.append(mask)
    return pictures, masks
