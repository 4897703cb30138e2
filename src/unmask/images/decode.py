"""Picture files to arrays, in worker processes. No torch here: a worker starts at once and stays small."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

Source = str | bytes
"""A file's path, or its content."""

INLINE = 64
"""Up to this many files are decoded in this process: starting workers costs more."""

_DEEP = {"I;16", "I;16B", "I;16L", "I;16N", "I"}
_GREY = {"1", "L", *_DEEP, "F"}


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a picture is before it is decoded: size in pixels, channels (1 or 3), depth ('uint8', 'uint16', 'float32')."""

    height: int
    width: int
    channels: int
    depth: str


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A picture that cannot be read, and why."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Form:
    """What every picture of a set is brought to."""

    height: int
    width: int
    channels: int
    depth: str


def _open(source: Source) -> Image.Image:
    return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source)


def _told(error: Exception, source: Source) -> Broken:
    if isinstance(error, FileNotFoundError):
        return Broken(reason="no such file")
    size = len(source) if isinstance(source, bytes) else _size(source)
    if size == 0:
        return Broken(reason="empty (0 bytes)")
    if isinstance(error, UnidentifiedImageError):
        return Broken(reason="not a picture in a known format")
    return Broken(reason=str(error).split("\n")[0] or type(error).__name__)


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return -1


def read_header(source: Source) -> Header | Broken:
    """Size and kind of a picture; its pixels are not decoded."""
    try:
        with _open(source) as image:
            width, height = image.size
            if image.getexif().get(0x0112, 1) >= 5:  # turned by a quarter
                width, height = height, width
            depth = "uint16" if image.mode in _DEEP else "float32" if image.mode == "F" else "uint8"
            grey = image.mode in _GREY or image.mode in ("LA", "La")
            return Header(height=height, width=width, channels=1 if grey else 3, depth=depth)
    except Exception as error:  # whatever a broken file makes a decoder raise
        return _told(error, source)


def to_array(image: Image.Image, channels: int) -> np.ndarray:
    """(height, width, channels), in 8 bits, 16 bits or float as the picture has it.

    Turned upright by its EXIF tag; palettes and CMYK become RGB; what is transparent lies on white; of an animation the
    first frame is taken.
    """
    image = ImageOps.exif_transpose(image)
    if image.mode in _DEEP:
        array = np.asarray(image).astype(np.int64)
        if array.min() < 0 or array.max() > 65535:
            raise ValueError("32-bit whole numbers beyond 16 bits")
        return _with_channels(array.astype(np.uint16)[..., None], channels)
    if image.mode == "F":
        array = np.asarray(image, dtype=np.float32)
        if not np.isfinite(array).all():
            raise ValueError("pixels that are NaN or infinite")
        return _with_channels(array[..., None], channels)
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    image = image.convert("L" if channels == 1 else "RGB")
    array = np.asarray(image)
    return array[..., None] if array.ndim == 2 else array


def _with_channels(array: np.ndarray, channels: int) -> np.ndarray:
    return np.repeat(array, channels, -1) if array.shape[-1] == 1 else array


def resize(array: np.ndarray, height: int, width: int) -> np.ndarray:
    """Bring a picture to a size: shrunk or enlarged to cover it (bicubic, antialiased), then cut to the middle."""
    if array.shape[:2] == (height, width):
        return array
    if array.dtype == np.uint8 and array.shape[-1] in (1, 3):
        image = Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array)
        fitted = np.asarray(ImageOps.fit(image, (width, height), Image.Resampling.BICUBIC))
        return fitted[..., None] if fitted.ndim == 2 else fitted
    planes = [
        np.asarray(ImageOps.fit(Image.fromarray(array[..., c].astype(np.float32)), (width, height), Image.Resampling.BICUBIC))
        for c in range(array.shape[-1])
    ]  # fmt: skip
    # Bicubic sampling swings beyond sharp edges.
    out = np.clip(np.stack(planes, -1), array.min(), array.max())
    return (np.round(out) if array.dtype.kind in "iu" else out).astype(array.dtype)


def scale_of(depth: str) -> float:
    """What a pixel is divided by to lie in 0..1; floats are taken as they are."""
    return {"uint8": 255.0, "uint16": 65535.0}.get(depth, 1.0)


def decode(source: Source, form: Form) -> np.ndarray | Broken:
    """One picture in the form asked for, or why it cannot be read."""
    try:
        with _open(source) as image:
            array = to_array(image, form.channels)
    except Exception as error:  # whatever a broken file makes a decoder raise
        return _told(error, source)
    array = resize(array, form.height, form.width)
    if str(array.dtype) != form.depth:
        array = (array.astype(np.float32) / scale_of(str(array.dtype)) * scale_of(form.depth)).astype(form.depth)
    return array


def _decode_pair(pair: tuple[Source, Form]) -> np.ndarray | Broken:
    return decode(*pair)


@contextlib.contextmanager
def _mapper(count: int, workers: int | None) -> Iterator[Any]:
    workers = min(os.cpu_count() or 1, 8) if workers is None else workers
    if workers <= 1 or count <= INLINE:
        yield map
        return
    # Forked workers touch nothing but Pillow and NumPy, so threads of the parent do not matter to them.
    kind = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context(kind)) as pool:
        yield lambda function, items: pool.map(function, items, chunksize=16)


def read_headers(sources: Sequence[Source], workers: int | None = None) -> list[Header | Broken]:
    """Headers of many pictures, in order."""
    with _mapper(len(sources), workers) as mapped:
        return list(mapped(read_header, sources))


def decode_all(sources: Iterable[Source], count: int, form: Form, workers: int | None = None) -> Iterator[Any]:
    """Many pictures in one form, in order: arrays, or `Broken`."""
    with _mapper(count, workers) as mapped:
        yield from mapped(_decode_pair, ((s, form) for s in sources))


def is_picture(path: Path) -> bool:
    """By the ending: whether Pillow reads such files."""
    return path.suffix.lower() in _endings()


def _endings() -> set[str]:
    if not _ENDINGS:
        known = Image.registered_extensions()
        _ENDINGS.update(e for e, name in known.items() if name in Image.OPEN and name not in ("PDF", "MPEG", "HDF5"))
    return _ENDINGS


_ENDINGS: set[str] = set()
