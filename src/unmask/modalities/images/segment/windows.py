"""Pictures that are predicted without being read whole: windows of a memory map, masks written a band at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from unmask.modalities.images.formats.picture import Choice
from unmask.modalities.images.network.batches import as_floats
from unmask.modalities.images.reading.decode import survey
from unmask.modalities.images.segment.tiles import Window

LARGE = 2**25
"""Pixels from which on a picture is not read whole, where its file can be mapped."""


def mapped(path: Path, channels: int, depth: str, choice: Choice) -> np.ndarray | None:
    """A large picture as a memory map, (height, width, channels), without a copy; None where it is small, or its file
    is packed, holds several pictures, or is not what the model reads as it is."""
    if path.suffix.lower() not in (".npy", ".tif", ".tiff", ".btf") or choice.nodata is not None:
        return None
    found = survey(str(path), choice)
    if not isinstance(found, list) or len(found) != 1:
        return None
    (header,) = found
    if (header.channels, header.depth) != (channels, depth) or header.height * header.width < LARGE:
        return None
    array = _mapped(path)
    shape = (header.height, header.width)
    if array is None or str(array.dtype) != depth or depth == "float32":  # floats may lack pixels (NaN)
        return None
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim == 3 and array.shape[0] == channels and array.shape[1:] == shape:
        array = array.transpose(1, 2, 0)
    return array if array.shape == (*shape, channels) else None


def _mapped(path: Path) -> Any:
    try:
        if path.suffix.lower() == ".npy":
            return np.load(path, mmap_mode="r", allow_pickle=False)
        import tifffile

        with tifffile.TiffFile(path) as file:
            page: Any = file.pages[0]
            if page.photometric == tifffile.PHOTOMETRIC.MINISWHITE or 274 in page.tags or 42113 in page.tags:
                return None  # inverted, turned, or with a value for what was not measured
        return tifffile.memmap(path, mode="r")
    except (ImportError, ValueError, OSError):
        return None


def window_on(array: np.ndarray, mean: Tensor, deviation: Tensor) -> Window:
    """Windows of a memory map as the model sees them."""
    middle, scale = (t.cpu().numpy().reshape(-1) for t in (mean, deviation))

    def window(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        top, left = int(rows.min()), int(columns.min())
        part = np.array(array[top : int(rows.max()) + 1, left : int(columns.max()) + 1])
        floats = as_floats(part[np.ix_(rows - top, columns - left)][None])[0].transpose(1, 2, 0)
        return ((floats - middle) / scale).astype(np.float32)

    return window


@contextmanager
def written_map(new: Path, shape: tuple[int, ...], kind: Any, suffix: str, extratags: Any = ()) -> Iterator[np.ndarray]:
    """An array of a file (.npy, .tif) that is written as it is filled."""
    if suffix == ".npy":
        array: np.ndarray = np.lib.format.open_memmap(new, "w+", np.dtype(kind), shape)
    else:
        import tifffile

        photometric = "rgb" if len(shape) == 3 else "minisblack"
        array = tifffile.memmap(
            new, shape=shape, dtype=np.dtype(kind), photometric=photometric, metadata=None, extratags=list(extratags)
        )
    yield array
    array.flush()  # type: ignore[attr-defined]
