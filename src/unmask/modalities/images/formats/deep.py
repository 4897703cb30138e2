"""PNG in colour with 16 bits, and JPEG 2000 of more than 8 or with a palette or bands, decoded by imagecodecs: Pillow
would cut the colours to 8 bits, stretch 12 bits to 16, miscount a palette that has a colour twice, and take any fourth
band for transparency."""

from __future__ import annotations

from typing import NamedTuple

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
    content_of,
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
_ALPHA, _MULTIPLIED = (1, 2), 2
"""Kinds of channels of JPEG 2000 that are transparency (ISO 15444-1, I.5.3.6), and the one that colours are multiplied
by already."""
_CMYK = 12
_DRAWN, _STORED = (None, 0, _CMYK, 15, 16, 17, 18), (None, 0, 15, 16, 17)
"""Colour spaces of JPEG 2000 (I.5.3.3; None: a profile, or none named) that Pillow gives as grey or RGB (black and
white, CMYK, sRGB, grey, sYCC), and those whose numbers are grey or RGB as they are."""
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
    content = content_of(source)
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
        return [_picture(found, channels if found.ndim == 3 and found.shape[-1] > channels else None, 65535, choice)]

    return Opened(headers=[header], decode=decode)


def _picture(found: np.ndarray, opacity: int | None, full: int, choice: Choice, multiplied: bool = False) -> Picture:
    """A picture from decoded numbers. `opacity`: which channel is `full` where pixels are not transparent; None: none.
    `multiplied`: the colours are multiplied by it already."""
    found, transparent = found[..., None] if found.ndim == 2 else found, None
    colours = found if opacity is None else np.delete(found, opacity, -1)
    missing = not_measured(colours, choice.nodata)
    if opacity is not None:
        found, transparent = with_alpha(colours, found[..., [opacity]], full, choice.alpha or "white", multiplied)
    return Picture(pixels=numbers(np.ascontiguousarray(found))[0], missing=either(missing, transparent))


def read_jpeg2000(source: Source, choice: Choice) -> Opened:
    """The picture of a JPEG 2000, its numbers as they are (Sentinel-2 has 15 bits); one of 8 bits without a palette and
    with nothing but colours and their transparency is read as everyday ones are."""
    start = content_of(source, _READ)
    size, boxes = _size(start), _boxes(_boxes(start).get(b"jp2h", b""))
    channels, bits, palette, about = len(size.bits), size.bits[0], boxes.get(b"pclr"), boxes.get(b"colr", b"")
    usual = set(size.bits) == {8} and not size.signed
    space = int.from_bytes(about[3:7]) if about[:1] == b"\1" else None
    if space not in (_DRAWN if usual else _STORED):
        raise ValueError(f"JPEG 2000 colours of kind {space}, {bits} bits: save them as RGB or grey")
    entries = np.frombuffer(boxes.get(b"cdef", b"")[2:], ">u2").reshape(-1, 3).tolist()
    opacity, sort = next(((channel, sort) for channel, sort, _ in entries if sort in _ALPHA), (None, 0))
    usual &= palette is None and sort != _MULTIPLIED
    if usual and (channels in (1, 3) or opacity is not None or space == _CMYK):
        return everyday.read(source, choice)
    codecs = optional("imagecodecs", f"a JPEG 2000 of {channels} channels and {max(size.bits)} bits")
    if len(set(size.bits)) > 1:
        raise ValueError(f"JPEG 2000 with channels of {', '.join(map(str, size.bits))} bits")
    kind = np.dtype(f"{'i' if size.signed else 'u'}{1 if bits <= 8 else 2 if bits <= 16 else 4}")
    notes = [] if str(kind) == depth_of(kind) else [f"{kind} taken as {depth_of(kind)}"]
    if palette is not None:
        if channels > 1 or palette[2:6] != b"\3\7\7\7":
            raise ValueError(f"JPEG 2000 with a palette of {palette[2]} columns: save it as RGB")
        kind, channels, opacity, notes = np.dtype(np.uint8), 3, None, ["palette as RGB"]
    elif bits not in (8, 16):
        notes.append(f"{bits} bits, as stored")
    what = f"{size.width:,} x {size.height:,} pixels of {bits} bits"
    check_claim(source, what, float(size.width) * size.height * channels * kind.itemsize)
    if opacity is not None:
        notes.append(ALPHA_NOTES[choice.alpha or "white"])
        channels -= choice.alpha != "band"
    header = Header(
        height=size.height,
        width=size.width,
        channels=channels,
        depth=depth_of(kind),
        notes=tuple(notes),
        colour=channels in (1, 3),
    )

    def decode() -> list[Picture]:
        found = codecs.jpeg2k_decode(content_of(source))
        return [_picture(found, opacity, 2**bits - 1, choice, sort == _MULTIPLIED)]

    return Opened(headers=[header], decode=decode)


def _boxes(content: bytes) -> dict[bytes, bytes]:
    """The content of the first box of each kind (I.4)."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at + 8 <= len(content):
        length, begin = int.from_bytes(content[at : at + 4]), at + 8
        if length == 1:
            length, begin = int.from_bytes(content[begin : begin + 8]), begin + 8
        end = at + length if length else len(content)
        if end < begin:
            break
        found.setdefault(content[at + 4 : at + 8], content[begin:end])
        at = end
    return found


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
