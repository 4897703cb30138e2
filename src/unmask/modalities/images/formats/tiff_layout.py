"""How the axes of a TIFF's series become pictures: which are height, width and channels, which are stacks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from unmask.errors import setting
from unmask.memory import refuse_more_than_memory
from unmask.modalities.images.formats.picture import (
    LYING,
    Choice,
    Picture,
    Undecided,
    chosen_planes,
    reduce_planes,
    upright,
)
from unmask.modalities.images.formats.tiff_values import Values

NAMES = {
    "Z": "z",
    "T": "time",
    "C": "channel",
    "S": "sample",
    "A": "angle",
    "P": "phase",
    "H": "lifetime",
    "E": "wavelength",
    "L": "exposure",
    "V": "event",
    "M": "mosaic",
    "R": "tile",
    "I": "page",
    "Q": "page",
}
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

    Raises:
        Undecided: what the file leaves open.
        ValueError: what cannot be read, and why.
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
        """Unnamed pages are channels or a stack, by what was chosen.

        Raises:
            Undecided: nothing was.
        """
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
        """One picture of `array`.

        Args:
            where: from `parts`.
            outside: (height, width) of what the file's mask leaves out, as stored.
        """
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
    """Raises:
    ValueError: the page is compressed in a way that needs a package which is not there, or that nothing here decodes.
    """
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
