"""TIFF: stacks, channels, bands, nodata, as tifffile reads them; plain ones (a page of grey or colour) are left to Pillow.

The axes of a file are its own: OME, ImageJ and tifffile name them, a GeoTIFF's bands are samples of one page. Pages without
a name could be a stack or channels, so they are asked for.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from unmask.images.formats import everyday
from unmask.images.picture import (
    Choice,
    Header,
    Opened,
    Picture,
    Question,
    Source,
    chosen_planes,
    depth_of,
    not_measured,
    numbers,
    reduce_planes,
)

ENDINGS = (".tif", ".tiff", ".btf", ".tf8", ".lsm", ".svs", ".ndpi", ".stk")
MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")

NAMES = {"Z": "z", "T": "time", "C": "channel", "S": "sample", "A": "angle", "P": "phase", "H": "lifetime", "E": "wavelength",
         "L": "exposure", "V": "event", "M": "mosaic", "R": "tile", "I": "page", "Q": "page"}  # fmt: skip
CHANNELS, UNNAMED = "CSE", "IQ"
"""Axes (tifffile's letters) that are channels, and those whose meaning the file does not tell."""
LARGEST = 4 << 30
"""Bytes of one file's pictures beyond which it is not decoded whole."""
_RGB, _PALETTE, _WHITE_IS_ZERO, _YCBCR = 2, 3, 0, 6
_ALPHA = (1, 2)


def read(source: Source, choice: Choice) -> Opened:
    """The pictures of a TIFF.

    Raises:
        Question: its axes, or its alpha band, can be read in two ways.
        ValueError: what cannot be read, and why.
    """
    if _plain(source, choice):
        return everyday.read(source, choice)
    try:
        import tifffile
    except ImportError:
        raise Question("a TIFF of several pages, channels or bands", "Run: pip install 'unmask[images]'") from None
    parts: list[tuple[Header, int, tuple[int, ...]]] = []
    with tifffile.TiffFile(_file(source)) as file:
        kept, dropped = _series(file)
        for number, series in kept:
            layout = _Layout(series, choice)
            notes = (*dropped, *layout.notes)
            for part, where in layout.parts():
                name = ",".join(p for p in (f"series={number}" if len(kept) > 1 else "", part) if p)
                header = Header(
                    height=layout.height, width=layout.width, channels=layout.channels, depth=layout.depth, part=name,
                    axes=layout.axes, notes=notes, colour=layout.colour,
                )  # fmt: skip
                parts.append((header, number, where))

    def decode() -> list[Picture]:
        with tifffile.TiffFile(_file(source)) as file:
            layouts = {number: _Layout(series, choice) for number, series in _series(file)[0]}
            arrays = {number: layout.array() for number, layout in layouts.items()}
            return [layouts[number].picture(arrays[number], where) for _, number, where in parts]

    return Opened(headers=[header for header, _, _ in parts], decode=decode)


def _file(source: Source) -> Any:
    return io.BytesIO(source) if isinstance(source, bytes) else source


def _plain(source: Source, choice: Choice) -> bool:
    """One page of grey or colour without anything beyond: Pillow reads it, as it always did, and needs no extra."""
    try:
        with everyday.open_image(source) as image:
            tags: Any = getattr(image, "tag_v2", {})
            described = str(tags.get(270, ""))
            samples, bits = tags.get(277, 1), tags.get(258, (1,))
            bits = bits if isinstance(bits, tuple) else (bits,)
            kinds = tags.get(339, (1,))
            kinds = kinds if isinstance(kinds, tuple) else (kinds,)
            if getattr(image, "n_frames", 1) > 1 or described.startswith("ImageJ=") or "<OME" in described[:2000]:
                return False
            if 42113 in tags or (choice.alpha and samples in (2, 4)) or (samples == 4 and 33550 in tags):
                return False
            if max(bits) > 8 and (samples > 1 or tags.get(262) == _WHITE_IS_ZERO or (max(bits) > 16 and 1 in kinds)):
                return False
            marked = tags.get(338, (0,))
            # A fourth sample that is not marked as transparency is a band.
            transparent = (marked if isinstance(marked, tuple) else (marked,))[0] in _ALPHA
            expected = {"RGB": 3, "YCbCr": 3, "LAB": 3, "CMYK": 4, "RGBA": 4, "RGBa": 4, "LA": 2, "La": 2}
            known = image.mode in expected or image.mode in ("1", "L", "P", "F", "I;16", "I;16B")
            transparent |= image.mode not in ("RGBA", "RGBa", "LA", "La")
            return known and transparent and samples == expected.get(image.mode, 1) and kinds[0] in (1, 3)
    except Exception:  # what Pillow does not know, tifffile may
        return False


def _series(file: Any) -> tuple[list[tuple[int, Any]], tuple[str, ...]]:
    """The series that hold pictures, numbered, and what is said of those left out (thumbnails, labels of slides)."""
    kept, dropped = [], []
    for number, series in enumerate(file.series):
        name = str(series.name).lower()
        page = series.keyframe
        if len(file.series) > 1 and (page.is_reduced or name in ("thumbnail", "label", "macro", "overview")):
            dropped.append(name or "thumbnail")
        else:
            kept.append((number, series))
    if not kept:
        raise ValueError("no full picture in it")
    notes = [f"left out: {', '.join(sorted(set(dropped)))}"] if dropped else []
    levels = max(len(series.levels) for _, series in kept)
    if levels > 1:
        notes.append(f"the largest of {levels} levels")
    return kept, tuple(notes)


class _Layout:
    """How the axes of a series become pictures: which is which, and what is done to the pixels."""

    def __init__(self, series: Any, choice: Choice) -> None:
        self.series, self.choice, self.page = series, choice, series.keyframe
        shape, letters = tuple(series.shape), str(series.axes)
        # An axis of one entry tells nothing apart.
        pairs = [(a, n) for a, n in zip(letters, shape, strict=True) if n > 1 or a in "YX"]
        self.letters, self.shape = "".join(a for a, _ in pairs), tuple(n for _, n in pairs)
        if self.letters.count("Y") != 1 or self.letters.count("X") != 1:
            raise ValueError(f"axes {letters}: no height and width")
        if series.dtype is None or int(np.prod(shape)) * series.dtype.itemsize > LARGEST:
            raise ValueError(f"{' x '.join(map(str, shape))} pixels: too large to decode whole; cut it up first")
        _decodable(self.page)
        self.planes: Any = choice.planes
        self.unnamed = [a for a in self.letters if a in UNNAMED]
        self.channel_letters = [a for a in self.letters if a in CHANNELS]
        self._settle()
        size = dict(zip(self.letters, self.shape, strict=True))
        self.height, self.width = size["Y"], size["X"]
        self.stacked = [a for a in self.letters if a not in "YX" and a not in self.channel_letters]
        self.alpha = self._alpha()
        count = int(np.prod([size[a] for a in self.channel_letters], initial=1))
        self.palette = self.page.photometric == _PALETTE and self.page.colormap is not None and count == 1
        self.channels = 3 if self.palette else count - (self.alpha in ("white", "missing"))
        rgb = self.page.photometric in (_RGB, _YCBCR) and self.channels == 3 and self.channel_letters == ["S"]
        self.colour = self.channels == 1 or self.palette or rgb
        self.depth = "uint8" if self.palette else depth_of(series.dtype)
        self.nodata = choice.nodata if choice.nodata is not None else _nodata(self.page)
        self.axes = " ".join(f"{NAMES.get(a, a)}={size[a]}" for a in self.letters if a not in "YX")
        self.notes = self._notes()

    def _settle(self) -> None:
        """Unnamed pages are channels or a stack, by what was chosen.

        Raises:
            Question: nothing was.
        """
        if self.unnamed and self.planes is None:
            count = int(np.prod([n for a, n in zip(self.letters, self.shape, strict=True) if a in UNNAMED]))
            raise Question(
                f"{count} pages, and the file does not say whether they are channels or a stack",
                "Say --set planes=channels, or for a stack planes=all (each page a picture), max, mean or a page's number "
                "from 0.",
            )
        if self.planes == "channels":
            self.channel_letters = [a for a in self.letters if a not in "YX"]

    def _alpha(self) -> str | None:
        marked = [s for s in self.page.extrasamples if int(s) in _ALPHA]
        if not marked or "S" not in self.channel_letters:
            return None
        if self.choice.alpha is None and self.page.is_geotiff:
            raise Question(
                "its last band is marked as transparency, as some programs mark every fourth band",
                "Say --set alpha=band (one more channel), missing (where it is 0 nothing was measured) or white.",
            )
        if self.choice.alpha is None and self.page.photometric not in (_RGB, 1):
            return None
        return self.choice.alpha or "white"

    def _notes(self) -> tuple[str, ...]:
        notes = []
        if self.stacked:
            told = " x ".join(
                f"{n} {NAMES.get(a, a)}" for a, n in zip(self.letters, self.shape, strict=True) if a in self.stacked
            )
            how = self.planes if self.planes is not None else "all"
            notes.append(f"planes={how} of {told}")
        elif self.planes == "channels" and self.unnamed:
            notes.append("pages as channels")
        if self.alpha == "white":
            notes.append("transparency laid on white")
        if self.alpha == "band":
            notes.append("the band marked as transparency as a channel")
        if self.alpha == "missing":
            notes.append("missing where the alpha band is 0")
        if self.palette:
            notes.append("palette as RGB")
        if self.page.photometric == _WHITE_IS_ZERO:
            notes.append("white is zero: inverted")
        if self.nodata is not None:
            notes.append(f"nodata={self.nodata:g} is missing")
        if str(self.series.dtype.newbyteorder("=")) != self.depth and not self.palette:
            notes.append(f"{self.series.dtype} taken as {self.depth}")
        return tuple(notes)

    def parts(self) -> list[tuple[str, tuple[int, ...]]]:
        """(name, place on the stacked axes) of every picture; () is all planes folded into one."""
        size = dict(zip(self.letters, self.shape, strict=True))
        counts = [size[a] for a in self.stacked]
        if not self.stacked or self.planes in ("max", "mean"):
            return [("", ())]
        places = list(np.ndindex(*counts))
        kept = chosen_planes("all" if self.planes is None else self.planes, len(places))
        names = [NAMES.get(a, a.lower()) for a in self.stacked]
        return [(",".join(f"{n}={i}" for n, i in zip(names, places[k], strict=True)), places[k]) for k in kept]

    def array(self) -> np.ndarray:
        """(stacked axes..., height, width, channels) as stored."""
        array = self.series.asarray().reshape(self.shape)
        order = [self.letters.index(a) for a in (*self.stacked, "Y", "X", *self.channel_letters)]
        array = array.transpose(order)
        return array.reshape(*array.shape[: len(self.stacked) + 2], -1)

    def picture(self, array: np.ndarray, where: tuple[int, ...]) -> Picture:
        """One picture of `array`."""
        if self.stacked and not where:
            places = np.ndindex(*array.shape[: len(self.stacked)])
            return reduce_planes([self._finished(array[place]) for place in places], str(self.planes))
        return self._finished(array[where])

    def _finished(self, stored: np.ndarray) -> Picture:
        missing = not_measured(stored[..., : self.channels] if self.alpha else stored, self.nodata)
        if self.palette:
            table = np.asarray(self.page.colormap) >> 8
            return Picture(pixels=table.T[stored[..., 0]].astype(np.uint8), missing=missing)
        pixels, _ = numbers(np.ascontiguousarray(stored))
        full = np.iinfo(pixels.dtype).max if pixels.dtype.kind in "iu" else 1.0
        if self.alpha in ("white", "missing"):
            band, pixels = pixels[..., -1:], pixels[..., :-1]
            if self.alpha == "missing":
                gone = band[..., 0] == 0
                missing = gone if missing is None else missing | gone
            else:
                share = band.astype(np.float64) / full
                laid = pixels * share + full * (1 - share)
                pixels = (np.round(laid) if pixels.dtype.kind in "iu" else laid).astype(pixels.dtype)
        if self.page.photometric == _WHITE_IS_ZERO and pixels.dtype.kind in "iu":
            pixels = (2**self.page.bitspersample - 1 - pixels.astype(np.int64)).astype(pixels.dtype)
        return Picture(
            pixels=np.ascontiguousarray(pixels), missing=missing if missing is not None and missing.any() else None
        )


def _nodata(page: Any) -> float | None:
    """GDAL's nodata tag as a number."""
    tag = page.tags.get(42113)
    try:
        return None if tag is None else float(str(tag.value).strip("\0 "))
    except ValueError:
        return None


def _decodable(page: Any) -> None:
    """Raises:
    ValueError: the page is compressed in a way that needs a package which is not there, or that nothing here decodes.
    """
    from tifffile import TIFF

    try:
        TIFF.DECOMPRESSORS[int(page.compression)], TIFF.UNPREDICTORS[int(page.predictor)]
    except KeyError as error:
        name = getattr(page.compression, "name", page.compression)
        told = f"TIFF compression {name}"
        if int(page.predictor) != 1:
            told += f" with predictor {getattr(page.predictor, 'name', page.predictor)}"
        if "imagecodecs" in str(error):
            raise ValueError(f"{told} needs imagecodecs: pip install 'unmask[images]'") from None
        raise ValueError(f"{told} is not known") from None
