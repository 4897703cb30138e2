"""Pixels as the floats that models read, and the mean and deviation of a set of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from unmask.modalities.images.reading.arrays import ImageSet
from unmask.modalities.images.reading.decode import scale_of
from unmask.progress import counted


def as_floats(pixels: np.ndarray) -> np.ndarray:
    """Pixels in 0..1 (floats as they are), channels first: (n, channels, height, width) float32."""
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).astype(np.float32) / np.float32(
        scale_of(str(pixels.dtype))
    )


def model_floats(pixels: np.ndarray, missing: np.ndarray | None) -> np.ndarray:
    """`as_floats`, NaN where a pixel is missing, as the model reads them."""
    floats = as_floats(pixels)
    if missing is not None and missing.any():
        floats[np.broadcast_to(missing[:, None], floats.shape)] = np.nan
    return floats


def channel_statistics(
    images: ImageSet, which: np.ndarray | None = None, most: int = 5000
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(mean, deviation) per channel of the measured pixels of at most `most` pictures, evenly taken, in the units of
    `as_floats`. `which`: numbers of the pictures to take them from; default all."""
    which = np.arange(len(images)) if which is None else which
    which = which[:: max(1, -(-len(which) // most))]
    # 64 MB of floats at a time; small pictures by 256, as ever: the sum's last digits hang on it.
    rows = min(256, max(1, int(64e6 / (8 * images.size[0] * images.size[1] * images.channels))))
    parts = [which[part] for part in chunks(len(which), rows)]
    count = len(which) * images.size[0] * images.size[1]
    if images.missing is not None:
        count = max(sum(int((~images.missing[part]).sum()) for part in parts), 1)
    mean = sum(_measured(images, part, 0.0).sum((0, 2, 3)) for part in parts) / count
    square = sum((_measured(images, part, mean[:, None, None]) ** 2).sum((0, 2, 3)) for part in parts) / count
    return tuple(map(float, mean)), tuple(float(d) if d > 1e-8 else 1.0 for d in np.sqrt(square))


def _measured(images: ImageSet, which: np.ndarray, shift: np.ndarray | float) -> np.ndarray:
    """Floats less `shift`, 0 where missing."""
    floats = as_floats(images.pixels[which]).astype(np.float64) - shift
    return floats if images.missing is None else floats * ~images.missing[which][:, None]


def chunks(count: int, size: int) -> Iterator[slice]:
    """Slices that cut `count` things into parts of `size`."""
    parts = [slice(i, min(i + size, count)) for i in range(0, count, size)]
    return counted(parts, count, lambda part: part.stop - part.start)


def evenly(things: np.ndarray, most: int) -> np.ndarray:
    """At most `most` of the things, spread evenly over all of them: files come sorted by class.

    >>> evenly(np.arange(10), 4).tolist()
    [0, 3, 6, 9]
    """
    return things[np.linspace(0, len(things) - 1, min(most, len(things))).astype(int)]
