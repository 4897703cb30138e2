"""How a TIFF's series becomes pictures: which of its axes are height, width and channels and which are stacks, and what
the samples mean (palettes, inverted greys, transparency, few bits, nodata, calibrated values)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from unmask.errors import setting
from unmask.memory import refuse_more_than_memory
from unmask.modalities.images.formats.picture import (
    ALPHA_NOTES,
    LYING,
    Alpha,
    Choice,
    Picture,
    Undecided,
    chosen_planes,
    depth_of,
    either,
    not_measured,
    numbers,
    reduce_planes,
    upright,
    with_alpha,
)

NAMES = {"Z": "z", "T": "time", "C": "channel", "S": "sample", "A": "angle", "P": "phase", "H": "lifetime"}
NAMES |= {"E": "wavelength", "L": "exposure", "V": "event", "M": "mosaic", "R": "tile", "I": "page", "Q": "page"}
CHANNELS, UNNAMED = "CSE", "IQ"
"""Axes (tifffile's letters) that are channels, and those whose meaning the file does not tell."""
LARGEST = 4 << 30
"""Bytes of one file's pictures beyond which it is not decoded whole."""
_ORIENTATION_TAG = 274


class SeriesLayout:
    """What is made of a series.

    Attributes:
        height, width, channels, depth, colour, axes, notes: as in `picture.Header`.

    Args:
        series: tifffile's.
        calibration: (slope, intercept) from stored numbers to values.
    """

    def __init__(self, series: Any, choice: Choice, calibration: tuple[float, float] = (1.0, 0.0)) -> None:
        self.series, self.page = series, series.keyframe
        shape, letters = tuple(series.shape), str(series.axes)
        # An axis of one entry tells nothing apart.
        pairs = [(a, n) for a, n in zip(letters, shape, strict=True) if n > 1 or a in "YX"]
        self.letters, self.size = "".join(a for a, _ in pairs), dict(pairs)
        if self.letters.count("Y") != 1 or self.letters.count("X") != 1:
            raise ValueError(f"axes {letters}: no height and width")
        what = f"{' x '.join(map(str, shape))} pixels"
        needed = math.inf if series.dtype is None else math.prod(shape) * series.dtype.itemsize
        if needed > LARGEST:
            raise ValueError(f"{what}: too large to decode whole; cut it up first")
        refuse_more_than_memory(f"{what}, decoded whole", needed, hint="Cut it up first.")
        _decodable(self.page)
        self.planes: Any = choice.planes
        self.unnamed = [a for a in self.letters if a in UNNAMED]
        self._ask()
        kept = self.letters if self.planes == "channels" else CHANNELS
        self.channel_letters = [a for a in self.letters if a in kept and a not in "YX"]
        self.stacked = [a for a in self.letters if a not in "YX" and a not in self.channel_letters]
        count = int(np.prod([self.size[a] for a in self.channel_letters], initial=1))
        one_page = self.channel_letters == ["S"]
        self.values = Values(series, count, one_page, choice, calibration)
        tag = self.page.tags.get(_ORIENTATION_TAG)
        self.orientation = int(tag.value) if tag is not None else 1
        self.height, self.width = self.size["Y"], self.size["X"]
        if self.orientation >= LYING:
            self.height, self.width = self.width, self.height
        self.channels, self.depth, self.colour = self.values.channels, self.values.depth, self.values.colour
        self.axes = " ".join(f"{NAMES.get(a, a)}={self.size[a]}" for a in self.letters if a not in "YX")
        self.notes = (*self._notes(), *self.values.notes)

    def _ask(self) -> None:
        """Unnamed pages are channels or a stack, by what was chosen."""
        if self.unnamed and self.planes is None:
            count = int(np.prod([self.size[a] for a in self.unnamed]))
            raise Undecided(
                f"{count} pages, and the file does not say whether they are channels or a stack",
                f"Say {setting('planes', 'channels')}, or for a stack {setting('planes', 'all')} (each page a "
                "picture), max, mean or a page's number from 0.",
            )

    def _notes(self) -> list[str]:
        notes = []
        if self.stacked:
            sizes = " x ".join(f"{self.size[a]} {NAMES.get(a, a)}" for a in self.stacked)
            notes.append(f"planes={'all' if self.planes is None else self.planes} of {sizes}")
        elif self.planes == "channels" and self.unnamed:
            notes.append("pages as channels")
        if self.orientation != 1:
            notes.append(f"turned upright (orientation {self.orientation})")
        return notes

    def parts(self) -> list[tuple[str, tuple[int, ...]]]:
        """(name, place on the stacked axes) of every picture; () is all planes folded into one."""
        counts = [self.size[a] for a in self.stacked]
        if not self.stacked or self.planes in ("max", "mean"):
            return [("", ())]
        places = list(np.ndindex(*counts))
        kept = chosen_planes("all" if self.planes is None else self.planes, len(places))
        names = [NAMES.get(a, a.lower()) for a in self.stacked]
        return [(",".join(f"{n}={i}" for n, i in zip(names, places[k], strict=True)), places[k]) for k in kept]

    def array(self) -> np.ndarray:
        """(stacked axes..., height, width, channels) as stored."""
        array = self.series.asarray().reshape(tuple(self.size[a] for a in self.letters))
        order = [self.letters.index(a) for a in (*self.stacked, "Y", "X", *self.channel_letters)]
        array = array.transpose(order)
        return array.reshape(*array.shape[: len(self.stacked) + 2], -1)

    def picture(self, array: np.ndarray, where: tuple[int, ...], outside: np.ndarray | None = None) -> Picture:
        """One picture of `array`. `where`: from `parts`; `outside`: (height, width) of what the file's mask leaves out,
        as stored."""
        if self.stacked and not where:
            places = np.ndindex(*array.shape[: len(self.stacked)])
            found = reduce_planes([self.values.picture(array[place], outside) for place in places], str(self.planes))
        else:
            found = self.values.picture(array[where], outside)
        if self.orientation == 1:
            return found
        missing = None if found.missing is None else upright(found.missing, self.orientation)
        return Picture(pixels=upright(found.pixels, self.orientation), missing=missing)


def _decodable(page: Any) -> None:
    """Refuse a page compressed in a way that needs a package which is not there, or that nothing here decodes."""
    from tifffile import TIFF

    try:
        TIFF.DECOMPRESSORS[int(page.compression)], TIFF.UNPREDICTORS[int(page.predictor)]
    except KeyError as error:
        name = getattr(page.compression, "name", page.compression)
        method = f"TIFF compression {name}"
        if int(page.predictor) != 1:
            method += f" with predictor {getattr(page.predictor, 'name', page.predictor)}"
        if "imagecodecs" in str(error):
            raise ValueError(f"{method} needs imagecodecs: pip install 'unmask[images]'") from None
        raise ValueError(f"{method} is not known") from None


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
        """A picture from its samples. `stored`: (height, width, samples); `outside`: (height, width), True where a mask
        says that nothing was measured."""
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
    """Refuse colours that are neither grey nor RGB, a palette or inks."""
    kind = int(page.photometric)
    name = getattr(page.photometric, "name", page.photometric)
    if kind not in _KNOWN or (kind == _YCBCR and int(page.compression) not in _JPEG_LIKE):
        raise ValueError(f"TIFF colours as {name}: save them as RGB or grey")
    if kind == _PALETTE and (count != 1 or page.colormap is None):
        raise ValueError("a TIFF palette beside other samples, or without its colours: save it as RGB")


def _colours(series: Any) -> np.ndarray:
    """The colours of a palette, (numbers, 3) uint8."""
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
