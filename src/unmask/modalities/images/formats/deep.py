"""PNG in colour with 16 bits, and JPEG 2000 of more than 8: Pillow would cut the colours to 8 bits and stretch 12 bits
to 16, so imagecodecs decodes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unmask.modalities.images.formats import everyday
from unmask.modalities.images.formats.picture import (
    ALPHA_NOTES,
    DEFLATE,
    Choice,
    Header,
    Opened,
    Picture,
    Source,
    check_claim,
    depth_of,
    either,
    not_measured,
    numbers,
    optional,
    with_alpha,
)

PNG, JP2, CODESTREAM = b"\x89PNG\r\n\x1a\n", b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51"
_GREY, _COLOURED = 0, (2, 4, 6)
"""Colour types of PNG: grey; RGB, grey with alpha, RGB with alpha."""
_READ = 65536
"""Bytes within which the sizes of a JPEG 2000 stand."""


class Size(NamedTuple):
    """What a JPEG 2000 says of its pixels."""

    height: int
    width: int
    bits: tuple[int, ...]
    signed: bool


def is_deep_png(start: bytes) -> bool:
    """By its first 26 bytes: whether it is a PNG of colours or transparency with 16 bits."""
    return start[:8] == PNG and start[24:25] == b"\x10" and start[25] in _COLOURED


def is_jpeg2000(start: bytes) -> bool:
    """Whether a file begins as JPEG 2000 does."""
    return start.startswith((JP2, CODESTREAM))


def read_png(source: Source, choice: Choice) -> Opened:
    """The picture of a PNG of 16 bits; what is transparent lies on white unless `alpha` says otherwise."""
    codecs = optional("imagecodecs", "a PNG in colour with 16 bits")
    content = _content(source, None)
    coded = content[25]
    alpha, channels = coded in (4, 6), 1 if coded == 4 else 3
    # Which number is transparent, where no channel says how far pixels are: decoders give it as one more channel.
    alpha |= b"tRNS" in content[: content.index(b"IDAT")]
    width, height = (int.from_bytes(content[i : i + 4]) for i in (16, 20))
    wide = width * height * (channels + alpha) * 2.0
    check_claim(source, f"{width:,} x {height:,} pixels of 16 bits", wide, stored=wide / 2, packing=DEFLATE)
    how = choice.alpha or "white"
    band = alpha and how == "band"
    notes = (ALPHA_NOTES[how],) if alpha else ()
    header = Header(height=height, width=width, channels=channels + band, depth="uint16", notes=notes, colour=not band)

    def decode() -> list[Picture]:
        found = codecs.png_decode(content)
        found = found[..., None] if found.ndim == 2 else found
        transparent = None
        if found.shape[-1] > channels:
            found, transparent = with_alpha(found[..., :channels], found[..., channels:], 65535, how)
        missing = either(not_measured(found[..., :channels], choice.nodata), transparent)
        return [Picture(pixels=np.ascontiguousarray(found), missing=missing)]

    return Opened(headers=[header], decode=decode)


def read_jpeg2000(source: Source, choice: Choice) -> Opened:
    """The picture of a JPEG 2000, its numbers as they are (Sentinel-2 has 15 bits); of 8 bits as everyday ones are."""
    size = _size(_content(source, _READ))
    if set(size.bits) == {8} and not size.signed:
        return everyday.read(source, choice)
    codecs = optional("imagecodecs", f"a JPEG 2000 of {max(size.bits)} bits")
    if len(set(size.bits)) > 1:
        raise ValueError(f"JPEG 2000 with channels of {', '.join(map(str, size.bits))} bits")
    bytes_each = 1 if size.bits[0] <= 8 else 2 if size.bits[0] <= 16 else 4
    kind = np.dtype(f"{'i' if size.signed else 'u'}{bytes_each}")
    depth, channels = depth_of(kind), len(size.bits)
    what = f"{size.width:,} x {size.height:,} pixels of {size.bits[0]} bits"
    check_claim(source, what, float(size.width) * size.height * channels * bytes_each)
    notes: tuple[str, ...] = () if str(kind) == depth else (f"{kind} taken as {depth}",)
    if size.bits[0] not in (8, 16):
        notes += (f"{size.bits[0]} bits, as stored",)
    header = Header(
        height=size.height, width=size.width, channels=channels, depth=depth, notes=notes, colour=channels in (1, 3)
    )

    def decode() -> list[Picture]:
        found: Any = codecs.jpeg2k_decode(_content(source, None))
        pixels, _ = numbers(np.ascontiguousarray(found[..., None] if found.ndim == 2 else found))
        return [Picture(pixels=pixels, missing=not_measured(pixels, choice.nodata))]

    return Opened(headers=[header], decode=decode)


def _content(source: Source, most: int | None) -> bytes:
    if isinstance(source, bytes):
        return source if most is None else source[:most]
    with Path(source).open("rb") as file:
        return file.read() if most is None else file.read(most)


def _size(start: bytes) -> Size:
    """From the marker SIZ (ISO 15444-1, A.5.1)."""
    at = start.find(CODESTREAM)
    if at < 0 or len(start) < at + 45:
        raise ValueError("JPEG 2000 without a codestream in its first 64 KB, or cut short")

    def whole(offset: int) -> int:
        return int.from_bytes(start[at + offset : at + offset + 4])

    width, height = whole(8) - whole(16), whole(12) - whole(20)
    count = int.from_bytes(start[at + 40 : at + 42])
    marks = [start[at + 42 + 3 * k] for k in range(count)]
    return Size(height, width, tuple((m & 0x7F) + 1 for m in marks), any(m & 0x80 for m in marks))
