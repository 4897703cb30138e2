"""An .npy file as one picture: (height, width), or three axes of which one is the channels."""

from __future__ import annotations

import numpy as np

from unmask.errors import setting
from unmask.modalities.images.formats.picture import (
    Choice,
    Header,
    Opened,
    Picture,
    Source,
    Undecided,
    depth_of,
    file_of,
    not_measured,
    numbers,
)

FEW_CHANNELS = 4
"""An axis of at most this many entries is the channels."""


def read(source: Source, choice: Choice) -> Opened:
    """The picture in a file."""
    array = np.load(file_of(source), mmap_mode="r" if isinstance(source, str) else None, allow_pickle=False)
    shape, kind = array.shape, array.dtype  # without the numbers
    del array
    if len(shape) not in (2, 3) or 0 in shape:
        raise ValueError(f"an array of shape {shape}, not a picture of two or three axes")
    leading = len(shape) == 3 and _leading(shape, choice.channels)
    height, width, *rest = (*shape[1:], shape[0]) if leading else shape
    channels = rest[0] if rest else 1
    depth = depth_of(kind)
    notes: tuple[str, ...] = () if str(kind.newbyteorder("=")) == depth else (f"{kind} taken as {depth}",)
    if choice.nodata is not None:
        notes += (f"nodata={choice.nodata:g} is missing",)
    header = Header(
        height=height,
        width=width,
        channels=channels,
        depth=depth,
        notes=notes,
        colour=channels in (1, 3),
        axes=f"{'first' if leading else 'last'} axis {channels} channels" if len(shape) == 3 else "",
    )

    def decode() -> list[Picture]:
        array = np.load(file_of(source), allow_pickle=False)
        array = array[..., None] if array.ndim == 2 else array.transpose(1, 2, 0) if leading else array
        pixels, _ = numbers(np.ascontiguousarray(array))
        return [Picture(pixels=pixels, missing=not_measured(pixels, choice.nodata))]

    return Opened(headers=[header], decode=decode)


def _leading(shape: tuple[int, ...], channels: int | None) -> bool:
    """Whether the first of three axes is the channels, not the last."""
    first, _, last = shape
    if channels is not None and (first == channels) != (last == channels):
        return first == channels
    if (first <= FEW_CHANNELS) != (last <= FEW_CHANNELS):
        return first <= FEW_CHANNELS
    raise Undecided(
        f"an array of shape {shape}: {first} or {last} channels, or a stack?",
        f"Say how many channels there are: {setting('channels')}. A stack of pictures in one array is read where it "
        "is given alone, as (pictures, height, width).",
    )
