"""TIFF: stacks, channels, bands, nodata, as tifffile reads them; plain ones (a page of grey or colour) are left to
Pillow.

The axes of a file are its own: OME, ImageJ and tifffile name them, a GeoTIFF's bands are samples of one page. Pages
without a name could be a stack or channels, so they are asked for.
"""

from __future__ import annotations

import math
import os
import re
from typing import Any

from unmask.modalities.images.formats import everyday
from unmask.modalities.images.formats.picture import (
    LYING,
    Choice,
    Header,
    Opened,
    Picture,
    Source,
    check_claim,
    file_of,
    optional,
)
from unmask.modalities.images.formats.tiff_layout import SeriesLayout

ENDINGS = (".tif", ".tiff", ".btf", ".tf8", ".lsm", ".svs", ".ndpi", ".stk")
MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")

_WHITE_IS_ZERO, _YCBCR, _WEBP = 0, 6, 50001
_ALPHA = (1, 2)
_DEPTH_TAG = 32997


def read(source: Source, choice: Choice) -> Opened:
    """The pictures of a TIFF."""
    if _plain(source, choice):
        return everyday.read(source, choice)
    tifffile = optional("tifffile", "a TIFF of several pages, channels or bands, or lying on its side")
    parts: list[tuple[Header, int, tuple[int, ...]]] = []
    with tifffile.TiffFile(file_of(source)) as file:
        _check_planes(source, file)
        kept, _, dropped = _series(file)
        for number, series in kept:
            _own_planes(file, series)
            layout = SeriesLayout(series, choice, _calibration(file))
            notes = (*dropped, *layout.notes)
            for part, where in layout.parts():
                name = ",".join(p for p in (f"series={number}" if len(kept) > 1 else "", part) if p)
                header = Header(
                    height=layout.height,
                    width=layout.width,
                    channels=layout.channels,
                    depth=layout.depth,
                    part=name,
                    axes=layout.axes,
                    notes=notes,
                    colour=layout.colour,
                )
                parts.append((header, number, where))

    def decode() -> list[Picture]:
        with tifffile.TiffFile(file_of(source)) as file:
            kept, mask, _ = _series(file)
            outside = None if mask is None else ~mask.asarray().reshape(mask.keyframe.shape[:2]).astype(bool)
            layouts = {number: SeriesLayout(series, choice, _calibration(file)) for number, series in kept}
            arrays = {number: layout.array() for number, layout in layouts.items()}
            return [layouts[number].picture(arrays[number], where, outside) for _, number, where in parts]

    return Opened(headers=[header for header, _, _ in parts], decode=decode)


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
            # Pillow 13 mixes up the pixels of uncompressed pictures that lie on their side.
            if tags.get(_DEPTH_TAG, 1) > 1 or tags.get(259) == _WEBP or tags.get(274, 1) >= LYING:
                return False
            # Nor does it read the coefficients that uncompressed YCbCr has.
            if tags.get(262) == _YCBCR and tags.get(259) == 1:
                return False
            if 42113 in tags or (choice.alpha and samples in (2, 4)) or (samples == 4 and 33550 in tags):
                return False
            # Pillow swaps the bytes of some floats, and refuses some planes and tiles of more than 8 bits.
            if max(bits) > 8 or (322 in tags and 273 in tags) or tags.get(284) == 2:
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


def _check_planes(source: Source, file: Any) -> None:
    """Count the planes that OME's metadata claim: tifffile makes an entry for each."""
    for pixels in re.findall(r"<(?:\w+:)?Pixels\b[^>]*>", file.ome_metadata or ""):
        size = {a: int(n) for a, n in re.findall(r'\bSize([XYZCT])="(\d+)"', pixels)}
        planes = math.prod(size.get(a, 1) for a in "ZCT")
        check_claim(source, f"{planes:,} planes", float(planes) * max(size.get("X", 1) * size.get("Y", 1), 100))


def _series(file: Any) -> tuple[list[tuple[int, Any]], Any, tuple[str, ...]]:
    """(series that hold pictures, numbered; the mask of what was measured in the only one of them; what is said of all
    this)."""
    kept, dropped, masks = [], [], []
    for number, series in enumerate(file.series):
        name = str(series.name).lower()
        page = series.keyframe
        if page.is_mask:
            masks.append(series)
        elif len(file.series) > 1 and (page.is_reduced or name in ("thumbnail", "label", "macro", "overview")):
            dropped.append(name or "thumbnail")
        else:
            kept.append((number, series))
    if not kept:
        raise ValueError("no full picture in it")
    full = [m for m in masks if not m.keyframe.is_reduced]
    mask = full[0] if len(full) == 1 and len(kept) == 1 else None
    page = kept[0][1].keyframe
    if mask is not None and (mask.keyframe.imagelength, mask.keyframe.imagewidth) != (
        page.imagelength,
        page.imagewidth,
    ):
        mask = None
    dropped += ["mask"] * (bool(full) and mask is None)
    notes = [f"left out: {', '.join(sorted(set(dropped)))}"] if dropped else []
    if mask is not None:
        notes.append("missing outside the file's own mask")
    levels = max(len(series.levels) for _, series in kept)
    if levels > 1:
        notes.append(f"the largest of {levels} levels")
    return kept, mask, tuple(notes)


def _own_planes(file: Any, series: Any) -> None:
    """Whether the planes of an OME-TIFF are there, and are this file's to give: a set of files is read with its first
    one.
    """
    if not file.is_ome:
        return
    pages = list(series.pages)
    absent = sum(page is None for page in pages)
    if absent:
        raise ValueError(
            f"{absent} of {len(pages)} planes of this OME-TIFF are not there, as if other files of its set were missing"
        )
    first = os.path.basename(pages[0].parent.filename)
    if first != os.path.basename(file.filename):
        raise ValueError(f"part of a set of OME-TIFFs, which is read with {first}")


def _calibration(file: Any) -> tuple[float, float]:
    """(slope, intercept) of ImageJ's linear calibration: it stores signed numbers as unsigned ones with an
    intercept."""
    about = file.imagej_metadata or {}
    if about.get("cf") != 0:  # no function, or one of ImageJ's others (optical density), which is said by no one
        return 1.0, 0.0
    return float(about.get("c1", 1.0)), float(about.get("c0", 0.0))
