"""What the samples of a TIFF's pages mean: palettes, inverted greys, transparency, few bits, nodata,
calibrated values."""

from __future__ import annotations

from typing import Any

import numpy as np

from unmask.errors import setting
from unmask.modalities.images.formats.picture import (
    ALPHA_NOTES,
    Alpha,
    Choice,
    Picture,
    Undecided,
    depth_of,
    either,
    not_measured,
    numbers,
    with_alpha,
)

_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB, _PALETTE, _INKS, _YCBCR = 0, 1, 2, 3, 5, 6
_KNOWN = (_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB, _PALETTE, _INKS, _YCBCR, 34892)
_JPEG_LIKE = (6, 7, 33007, 34892, 50001)
"""Compressions whose decoders turn YCbCr into RGB."""
_MULTIPLIED, _ALPHA = 1, (1, 2)


class Values:
    """What is made of the samples of a series' pixels.

    Attributes:
        channels, depth, colour, notes: as in `picture.Header`.

    Args:
        series: tifffile's.
        count: samples per pixel, over all axes that are channels.
        one_page: these are the samples of one page, so that its transparency is one of them.
        calibration: (slope, intercept) from stored numbers to values.

    Raises:
        Undecided: a band is marked as transparency, and may be none.
        ValueError: colours that nothing here turns into channels.
    """

    def __init__(
        self, series: Any, count: int, one_page: bool, choice: Choice, calibration: tuple[float, float]
    ) -> None:
        self.page, self.dtype, self.calibration = series.keyframe, np.dtype(series.dtype), calibration
        photometric = int(self.page.photometric)
        _check_colours(self.page, count)
        self.table = _colours(series) if photometric == _PALETTE else None
        self.alpha, self.alpha_at = self._alpha(choice, one_page), _marked(self.page) or 0
        self.calibrated = calibration != (1.0, 0.0)
        self.channels = 3 if self.table is not None else count - (self.alpha in ("white", "missing"))
        rgb = photometric in (_RGB, _YCBCR) and self.channels == 3 and one_page
        self.colour = self.channels == 1 or self.table is not None or rgb
        self.unsigned = self.dtype.kind in "bu"
        self.top = 2 ** int(self.page.bitspersample) - 1
        self.inverted = photometric == _WHITE_IS_ZERO and self.unsigned
        self.spread = self.dtype.kind == "b" or (self.dtype == np.uint8 and self.page.bitspersample < 8)
        self.depth = "uint8" if self.table is not None else "float32" if self.calibrated else depth_of(self.dtype)
        self.nodata = choice.nodata if choice.nodata is not None else _nodata(self.page)
        self.notes = self._notes()

    def _alpha(self, choice: Choice, one_page: bool) -> Alpha | None:
        """What the sample marked as transparency is; None where there is none."""
        if _marked(self.page) is None:
            return None
        if not one_page:
            return "band"
        if choice.alpha is None and self.page.is_geotiff:
            raise Undecided(
                "a band is marked as transparency, as some programs mark every fourth band",
                f"Say {setting('alpha', 'band')} (one more channel), missing (where it is 0 nothing was measured) or "
                "white.",
            )
        if choice.alpha is None and self.page.photometric not in (_RGB, _BLACK_IS_ZERO):
            return "band"
        return choice.alpha or "white"

    def _notes(self) -> tuple[str, ...]:
        notes = []
        if self.alpha is not None:
            notes.append(ALPHA_NOTES[self.alpha])
        if self.table is not None:
            notes.append("palette as RGB")
        if self.page.photometric == _INKS:
            notes.append("inks (CMYK) as channels")
        if self.page.photometric == _WHITE_IS_ZERO:
            notes.append("white is zero: inverted" if self.inverted else "white is zero: left as stored")
        if self.nodata is not None:
            notes.append(f"nodata={self.nodata:g} is missing")
        if self.table is not None:
            return tuple(notes)
        if self.spread:
            bits = int(self.page.bitspersample)
            notes.append("black and white as 0 and 255" if bits == 1 else f"{bits} bits spread over 0 to 255")
        elif self.calibrated:
            notes.append(f"stored values x {self.calibration[0]:g} + {self.calibration[1]:g} (ImageJ's calibration)")
        elif str(self.dtype.newbyteorder("=")) != self.depth:
            notes.append(f"{self.dtype} taken as {self.depth}")
        return tuple(notes)

    def picture(self, stored: np.ndarray, outside: np.ndarray | None = None) -> Picture:
        """A picture from its samples.

        Args:
            stored: (height, width, samples).
            outside: (height, width), True where a mask says that nothing was measured.

        Raises:
            ValueError: numbers that cannot be pixels.
        """
        stored = stored.astype(np.uint8) if stored.dtype.kind == "b" else stored
        laid = self.alpha in ("white", "missing")
        missing = not_measured(np.delete(stored, self.alpha_at, -1) if laid else stored, self.nodata)
        missing = either(missing, outside)
        if self.table is not None:
            return Picture(pixels=self.table[stored[..., 0]], missing=missing)
        if self.inverted:
            stored = (self.top - stored.astype(np.int64)).astype(stored.dtype)
        if self.spread:
            stored = np.round(stored * (255 / self.top)).astype(np.uint8)
        pixels, _ = numbers(np.ascontiguousarray(stored))
        if self.calibrated:
            slope, intercept = self.calibration
            pixels = (pixels * slope + intercept).astype(np.float32)
        if laid:
            share, pixels = pixels[..., [self.alpha_at]], np.delete(pixels, self.alpha_at, -1)
            multiplied = int(self.page.extrasamples[0]) == _MULTIPLIED
            pixels, transparent = with_alpha(pixels, share, self._full(), self.alpha or "white", multiplied)
            missing = either(missing, transparent)
        return Picture(pixels=np.ascontiguousarray(pixels), missing=missing)

    def _full(self) -> float:
        """The value of what is not transparent at all."""
        if self.spread:
            return 255.0
        if self.unsigned:
            return float(self.top)
        return float(np.iinfo(self.dtype).max) if self.dtype.kind == "i" else 1.0


def _marked(page: Any) -> int | None:
    """Which sample of a page is marked as transparency."""
    extra = [int(s) in _ALPHA for s in page.extrasamples]
    return int(page.samplesperpixel) - len(extra) + extra.index(True) if any(extra) else None


def _check_colours(page: Any, count: int) -> None:
    """Raises:
    ValueError: colours that are neither grey nor RGB, a palette or inks.
    """
    kind = int(page.photometric)
    name = getattr(page.photometric, "name", page.photometric)
    if kind not in _KNOWN or (kind == _YCBCR and int(page.compression) not in _JPEG_LIKE):
        raise ValueError(f"TIFF colours as {name}: save them as RGB or grey")
    if kind == _PALETTE and (count != 1 or page.colormap is None):
        raise ValueError("a TIFF palette beside other samples, or without its colours: save it as RGB")


def _colours(series: Any) -> np.ndarray:
    """The colours of a palette, (numbers, 3) uint8.

    Raises:
        ValueError: its pages have different ones.
    """
    pages = [page.aspage() for page in series.pages if page is not None]
    first = np.asarray(pages[0].colormap)
    if any(not np.array_equal(first, page.colormap) for page in pages[1:]):
        raise ValueError("pages of different palettes: save them as RGB")
    # Some programs write 8-bit colours where the format wants 16 bits.
    return (first >> 8 if first.max() > 255 else first).T.astype(np.uint8)


def _nodata(page: Any) -> float | None:
    """GDAL's nodata tag as a number."""
    tag = page.tags.get(42113)
    try:
        return None if tag is None else float(str(tag.value).strip("\0 "))
    except ValueError:
        return None
