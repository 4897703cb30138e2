"""What the boxes around a JPEG 2000 say of its channels (ISO 15444-1, annex I): palettes, transparency, colours."""

from __future__ import annotations

import numpy as np
import pytest

from picture_files import ramp
from unmask.modalities.images.formats.picture import Broken, Choice
from unmask.modalities.images.reading.decode import pictures, survey

codecs = pytest.importorskip("imagecodecs")

GREY, RGB, CMYK, LAB, SYCC = 17, 16, 12, 14, 18
ALPHA = [(0, 0, 1), (1, 0, 2), (2, 0, 3), (3, 1, 0)]
"""Channel, kind (1: opacity) and which colour it belongs to, of RGB with transparency."""


def whole(*numbers: int, size: int = 2) -> bytes:
    return b"".join(n.to_bytes(size) for n in numbers)


def box(name: bytes, content: bytes) -> bytes:
    return whole(len(content) + 8, size=4) + name + content


def jp2(array, space=RGB, channels=None, palette=None) -> bytes:
    """An array with the boxes asked for. `channels`: entries of `cdef`; `palette`: (entries, columns) uint8."""
    coded = codecs.jpeg2k_encode(array, level=0)
    coded = coded[coded.index(b"\xff\x4f\xff\x51") :]
    height, width, count = (*array.shape, 1)[:3]
    depth = array.dtype.itemsize * 8 - 1
    head = box(b"ihdr", whole(height, width, size=4) + whole(count) + bytes([depth, 7, 0, 0]))
    head += box(b"colr", bytes([1, 0, 0]) + whole(space, size=4))
    if palette is not None:
        entries, columns = palette.shape
        head += box(b"pclr", whole(entries) + bytes([columns, *[7] * columns]) + palette.tobytes())
        head += box(b"cmap", b"".join(whole(0) + bytes([1, k]) for k in range(columns)))
    if channels is not None:
        head += box(b"cdef", whole(len(channels)) + b"".join(whole(*entry) for entry in channels))
    start = box(b"jP  ", b"\r\n\x87\n") + box(b"ftyp", b"jp2 " + whole(0, size=4) + b"jp2 ")
    return start + box(b"jp2h", head) + box(b"jp2c", coded)


def read(content: bytes, **choice):
    header, picture = survey(content, Choice(**choice)), pictures(content, Choice(**choice))
    assert isinstance(header, list), header
    assert isinstance(picture, list), picture
    (h,), (p,) = header, picture
    assert (h.height, h.width, h.channels, h.depth) == (*p.pixels.shape, str(p.pixels.dtype))
    return h, p


@pytest.mark.parametrize("kind", ["uint8", "uint16"])
def test_a_fourth_band_that_nothing_marks_as_transparency_is_a_band(kind):
    """Red, green, blue and near infrared, as GDAL writes them: no channel definition, or one of another kind."""
    bands = np.stack([ramp(16, 20, high=200, dtype=kind, seed=k) for k in range(4)], -1)
    for channels in (None, [(k, 0, k + 1) for k in range(3)] + [(3, 65535, 65535)]):
        header, found = read(jp2(bands, channels=channels))
        np.testing.assert_array_equal(found.pixels, bands)
        assert "transparency" not in " ".join(header.notes)
    _, found = read(jp2(bands[..., :2], space=GREY))
    np.testing.assert_array_equal(found.pixels, bands[..., :2])


@pytest.mark.parametrize("kind", ["uint8", "uint16"])
def test_marked_transparency_lies_on_white_at_any_depth(kind):
    full = np.iinfo(kind).max
    bands = np.stack([ramp(16, 20, high=200, dtype=kind, seed=k) for k in range(4)], -1)
    bands[..., 3] = full
    bands[3:5, 4:9, 3] = 0
    header, found = read(jp2(bands, channels=ALPHA))
    assert header.notes[0] == "an alpha channel: laid on white where it is transparent"
    expected = np.where(bands[..., 3:] == 0, full, bands[..., :3])
    np.testing.assert_array_equal(found.pixels, expected)
    _, found = read(jp2(bands, channels=ALPHA), alpha="missing")
    np.testing.assert_array_equal(found.missing, bands[..., 3] == 0)
    _, found = read(jp2(bands, channels=ALPHA), alpha="band")
    np.testing.assert_array_equal(found.pixels, bands)
    multiplied = [*ALPHA[:3], (3, 2, 0)]
    bands[3:5, 4:9, :3] = 7  # light of its own, on white
    np.testing.assert_array_equal(read(jp2(bands, channels=multiplied))[1].pixels[3, 4], [full] * 3)
    bands[..., 3] = full // 2
    expected = np.minimum(bands[..., :3] + full * (1 - (full // 2) / full), full)
    np.testing.assert_allclose(read(jp2(bands, channels=multiplied))[1].pixels, expected, atol=1)


def test_a_palette_with_a_colour_twice_gives_its_colours():
    palette = np.random.default_rng(0).integers(0, 256, (256, 3), dtype=np.uint8)
    palette[:20] = 0
    numbers = ramp(16, 20, high=255)
    header, found = read(jp2(numbers, palette=palette))
    np.testing.assert_array_equal(found.pixels, palette[numbers])
    assert header.notes == ("palette as RGB",)
    found = pictures(jp2(numbers, palette=palette[:, :2].copy()))
    assert isinstance(found, Broken)
    assert "palette of 2 columns" in found.reason


@pytest.mark.parametrize("kind", ["uint8", "uint16"])
def test_colours_that_are_not_turned_into_rgb_are_refused(kind):
    rgb = np.stack([ramp(16, 20, high=200, dtype=kind, seed=k) for k in range(3)], -1)
    for space in (LAB, 24) if kind == "uint8" else (LAB, CMYK, SYCC, 24):
        found = survey(jp2(rgb, space=space))
        assert isinstance(found, Broken), space
        assert "JPEG 2000 colours" in found.reason
    np.testing.assert_array_equal(read(jp2(rgb))[1].pixels, rgb)
