"""One picture as a file holds it: what a reader of a file format gives, before anything is done to it.

A reader never guesses. A file that leaves something open (are five pages a stack or five channels?) is `Ambiguous`: the
run ends and names the setting that answers it. A file that cannot be read is `Broken`: it is named and counted. Readers
raise `Undecided` for the one, and ValueError with the reason for the other.
"""

from __future__ import annotations

import importlib
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from unmask.memory import refuse_more_than_memory

Source = str | bytes
"""A file's path, or its content."""


def file_of(source: Source) -> Any:
    """What readers open: the path, or the content as a file."""
    return io.BytesIO(source) if isinstance(source, bytes) else source


def content_of(source: Source, most: int = -1) -> bytes:
    """The content of a file, or its first bytes, at most so many."""
    with io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb") as file:
        return file.read(most)


Slice = Literal["axial", "coronal", "sagittal"]
Alpha = Literal["white", "missing", "band"]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What a person says of files that can be read in more than one way.

    Attributes:
        planes: of the planes of a stack (depth, time, pages, frames): 'all' (each a picture), 'max' or 'mean' over
            them, a number (that one alone, from 0), or 'channels' (they are the channels). None: 'all' where the file
            says what its planes are, and a question where it does not.
        channels: how many channels pictures have, where a bare array leaves open which of its axes they are.
        alpha: what a band that the file marks as transparency is: 'white' (the picture lies on white), 'missing' (where
            it is 0 nothing was measured) or 'band' (one more channel). None: 'white', and a question for georeferenced
            files.
        nodata: the value of pixels that were not measured, where the file does not say.
        slice: how a volume is cut into pictures.
    """

    planes: str | int | None = None
    channels: int | None = None
    alpha: Alpha | None = None
    nodata: float | None = None
    slice: Slice = "axial"


PLAIN = Choice()
LYING = 5
"""Orientations (EXIF, TIFF) from here on lie on their side."""


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a picture is before it is decoded.

    Attributes:
        height, width: in pixels, upright.
        channels: number of them.
        depth: 'uint8', 'uint16' or 'float32': what its pixels are given as.
        part: which picture of its file it is ('z=3'; '' where it is the only one).
        axes: what the file holds, as axis=length ('z=7 channels=3').
        notes: what was done or dropped on the way from the file to this picture.
        colour: the channels are grey, or red, green and blue: then grey may be repeated into colours and back.
        group: pictures of one group (patient, series) belong on one side of a split; '' for none.
        order: sorts the pictures of a group (position of a slice); None keeps the order of the names.
    """

    height: int
    width: int
    channels: int
    depth: str
    part: str = ""
    axes: str = ""
    notes: tuple[str, ...] = ()
    colour: bool = True
    group: str = ""
    order: tuple[Any, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A decoded picture. `pixels`: (height, width, channels), uint8, uint16 or float32, as the file has them; any
    number where `missing`; `missing`: (height, width), True where any channel was not measured (NaN, nodata); None
    where all were."""

    pixels: np.ndarray
    missing: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A picture that cannot be read, and why."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Ambiguous:
    """A file that can be read in more than one way: what is open, and the setting that answers it."""

    what: str
    hint: str


def optional(package: str, what: str) -> Any:
    """A package of the extra `images`."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise Undecided(what, "Run: pip install 'unmask[images]'") from None


class Undecided(Exception):
    """Raised by a reader where a file leaves something open that a setting answers."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what, self.hint = what, hint


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A file: the headers of its pictures, and how to decode them; readers of formats return it. `headers`: one per
    picture; `decode`: called without arguments, gives the `Picture` of every header in order."""

    headers: Sequence[Header]
    decode: Any = field(repr=False)


DEFLATE = 1032.0
"""Deflate makes at most so many bytes of one (zlib's technical notes)."""


def check_claim(source: Source, what: str, needed: float, *, stored: float = 0.0, packing: float = 1.0) -> None:
    """Compare what a head claims with the size of its file and the memory that is free, before anything is made.

    Args:
        what: the claim in words.
        needed: bytes of the decoded pixels.
        stored: bytes that the file holds at least before they are packed.
        packing: how many times smaller the file may have made them.
    """
    size = len(source) if isinstance(source, bytes) else os.path.getsize(source)
    if stored > packing * size:
        raise ValueError(f"{what} claimed by a file of {size:,} bytes")
    refuse_more_than_memory(what, needed, hint="Cut it up first.")


def numbers(array: np.ndarray, name: str = "pixels") -> tuple[np.ndarray, tuple[str, ...]]:
    """Any numbers as uint8, uint16 or float32 of the same values, and what is to be said of it."""
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    kept = depth_of(array.dtype)
    if str(array.dtype) == kept:
        return array, ()
    if array.dtype == bool:
        return array.astype(np.uint8) * 255, ("black and white as 0 and 255",)
    if array.dtype.kind in "iu" and array.size:
        low, high = int(array.min()), int(array.max())
        if max(abs(low), abs(high)) > 2**24:
            raise ValueError(f"{name} of whole numbers from {low} to {high}, more than 32-bit floats hold exactly")
    return array.astype(kept), (f"{array.dtype} taken as {kept}",)


def depth_of(kind: Any) -> str:
    """What pixels of a NumPy type are given as.

    >>> depth_of(np.uint16), depth_of(np.int16), depth_of(np.float64), depth_of(bool)
    ('uint16', 'float32', 'float32', 'uint8')
    """
    kind = np.dtype(kind).newbyteorder("=")
    if kind.kind == "b":
        return "uint8"
    if kind.kind not in "iuf":
        raise ValueError(f"pixels of type {kind}")
    return kind.name if kind in (np.uint8, np.uint16, np.float32) else "float32"


def not_measured(pixels: np.ndarray, nodata: float | None) -> np.ndarray | None:
    """(height, width), True where any channel is NaN or `nodata`; None where there is no such pixel."""
    missing = np.zeros(pixels.shape[:2], bool)
    if pixels.dtype.kind == "f":
        bad = np.isinf(pixels)
        if nodata is not None and np.isinf(nodata):
            bad &= pixels != nodata
        if bad.any():
            raise ValueError(f"{int(bad.sum())} infinite pixels")
        missing |= np.isnan(pixels).any(-1)
    if nodata is not None and not np.isnan(nodata):
        # GeoTIFFs write the value as text: compared in the pixels' own type.
        missing |= (pixels == np.asarray(nodata).astype(pixels.dtype, casting="unsafe")).any(-1) & _fits(
            nodata, pixels.dtype
        )
    return missing if missing.any() else None


def _fits(value: float, kind: np.dtype) -> bool:
    """Whether pixels of this type can hold the value at all (a nodata of -9999 beside 8-bit pixels marks none)."""
    if kind.kind == "f":
        return True
    return float(value).is_integer() and np.iinfo(kind).min <= value <= np.iinfo(kind).max


def upright(array: np.ndarray, orientation: int) -> np.ndarray:
    """(height, width, ...) turned as the orientation tag of EXIF and TIFF says: where its first row and column stand.

    >>> upright(np.array([[1, 2], [3, 4]]), 6).tolist()
    [[3, 1], [4, 2]]
    """
    if orientation >= LYING:
        array = array.swapaxes(0, 1)
    rows, columns = {2: (1, -1), 3: (-1, -1), 4: (-1, 1), 6: (1, -1), 7: (-1, -1), 8: (-1, 1)}.get(orientation, (1, 1))
    return np.ascontiguousarray(array[::rows, ::columns])


def on_white(pixels: np.ndarray, share: np.ndarray, full: float, multiplied: bool = False) -> np.ndarray:
    """Partly transparent pixels laid on white, whose value is `full`. `share`: (height, width, 1) opacity, from 0 to
    `full`; `multiplied`: the colours are multiplied by it already."""
    part = share.astype(np.float64) / full
    laid = np.clip((pixels if multiplied else pixels * part) + full * (1 - part), 0, full)
    return (np.round(laid) if pixels.dtype.kind in "iu" else laid).astype(pixels.dtype)


ALPHA_NOTES: dict[Alpha, str] = {
    "white": "an alpha channel: laid on white where it is transparent",
    "band": "the band marked as transparency as a channel",
    "missing": "missing where the alpha band is 0",
}


def with_alpha(
    pixels: np.ndarray, share: np.ndarray, full: float, alpha: Alpha, multiplied: bool = False
) -> tuple[np.ndarray, np.ndarray | None]:
    """(partly transparent pixels as `Choice.alpha` says, (height, width) of those that were not measured); arguments
    as `on_white` has them."""
    if alpha == "band":
        return np.concatenate([pixels, share.astype(pixels.dtype)], -1), None
    if alpha == "missing":
        return pixels, share[..., 0] == 0
    return on_white(pixels, share, full, multiplied), None


def either(first: np.ndarray | None, second: np.ndarray | None) -> np.ndarray | None:
    """Two masks as one; None where nothing is marked."""
    both = first if second is None else second if first is None else first | second
    return both if both is not None and both.any() else None


def lattice(height: float, width: float) -> tuple[str, ...]:
    """What is said of pixels (height, width apart) that are no squares.

    >>> lattice(2, 1), lattice(0.5, 0.5)
    (('pixels of 1 x 2: not resampled to squares',), ())
    """
    if height <= 0 or width <= 0 or abs(height / width - 1) < 0.01:
        return ()
    return (f"pixels of {width:g} x {height:g}: not resampled to squares",)


def reduce_planes(planes: Sequence[Picture], how: str) -> Picture:
    """'max' or 'mean' over pictures of one shape, of the pixels measured in them."""
    missing = [np.zeros(p.pixels.shape[:2], bool) if p.missing is None else p.missing for p in planes]
    stack = np.stack([np.where(m[..., None], np.nan, p.pixels) for p, m in zip(planes, missing, strict=True)])
    nowhere = np.logical_and.reduce(missing)
    stack[:, nowhere] = 0
    kind = planes[0].pixels.dtype
    found = np.nanmax(stack, 0) if how == "max" else np.nanmean(stack, 0)
    found = np.round(found) if kind.kind in "iu" else found
    return Picture(pixels=found.astype(kind), missing=nowhere if nowhere.any() else None)


def chosen_planes(planes: str | int, count: int) -> list[int]:
    """The numbers of the planes asked for."""
    if planes in ("all", "max", "mean", "channels"):
        return list(range(count))
    number = int(planes)
    if not 0 <= number < count:
        raise ValueError(f"planes={number}, but its planes are 0 to {count - 1}")
    return [number]
