"""What the stored numbers of a DICOM file mean: rescaled values, tables, palettes, padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from unmask.modalities.images.formats.picture import Picture, not_measured, numbers

COLOUR = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")
"""Colours that pydicom gives as RGB."""
_DEEPEST_COLOUR = 16


class Rescale(NamedTuple):
    """A value is `slope` x the stored number + `intercept`."""

    slope: float
    intercept: float


AS_STORED = Rescale(1.0, 0.0)


def scales_of(data: Any, frames: int) -> list[Rescale]:
    """The scale of each frame: of the file, of its functional groups (enhanced DICOM: shared, then each frame's own),
    or of the grid of a dose."""
    whole = _scale(data)
    if "DoseGridScaling" in data:
        whole = Rescale(float(data.DoseGridScaling), 0.0)
    shared = _grouped(data.get("SharedFunctionalGroupsSequence"), 0)
    each = data.get("PerFrameFunctionalGroupsSequence")
    own = [_grouped(each, k) for k in range(frames)]
    return [next((s for s in (o, shared, whole) if s is not None), AS_STORED) for o in own]


def _scale(data: Any) -> Rescale | None:
    slope, intercept = data.get("RescaleSlope"), data.get("RescaleIntercept")
    if slope is None and intercept is None:
        return None
    return Rescale(float(slope or 1), float(intercept or 0))


def _grouped(groups: Any, number: int) -> Rescale | None:
    if not groups or number >= len(groups):
        return None
    values = groups[number].get("PixelValueTransformationSequence")
    return _scale(values[0]) if values else None


def depth_and_notes(data: Any, kind: str, scales: Sequence[Rescale]) -> tuple[str, tuple[str, ...]]:
    """(depth of the pixels given, what is done to them).

    Raises:
        ValueError: colours deeper than 16 bits.
    """
    bits = int(data.BitsAllocated)
    if kind == "PALETTE COLOR":
        return "uint8", ("palette as RGB",)
    if kind in COLOUR:
        if bits > _DEEPEST_COLOUR:
            raise ValueError(f"DICOM colours of {bits} bits")
        return ("uint8" if bits == 8 else "uint16"), ()
    notes = ["MONOCHROME1: turned round, so that more is brighter"] if kind == "MONOCHROME1" else []
    if "ModalityLUTSequence" in data:
        table = data.ModalityLUTSequence[0]
        unit = str(table.get("ModalityLUTType", "") or "")
        note = "values by the file's own table (modality LUT)" + (f", {unit}" if unit else "")
        return ("uint8" if int(table.LUTDescriptor[2]) <= 8 else "uint16"), (*notes, note)
    if set(scales) != {AS_STORED}:
        unit = str(data.get("RescaleType", "") or data.get("DoseUnits", "") or "")
        ending = f" ({unit})" if unit else ""
        slope, intercept = scales[0]
        note = (
            f"stored values x {slope:g} + {intercept:g}" if len(set(scales)) == 1 else "stored values rescaled by frame"
        )
        return "float32", (*notes, note + ending)
    if "PixelRepresentation" not in data and bits > 16:
        return "float32", tuple(notes)
    if int(data.get("PixelRepresentation", 0)) or bits > 16:
        return "float32", (*notes, "whole numbers taken as float32")
    if bits == 1:
        notes.append("1 bit spread over 0 to 255")
    return ("uint8" if bits <= 8 else "uint16"), tuple(notes)


def has_padding(data: Any, kind: str) -> bool:
    """Whether the file marks pixels outside the field of view; of colours no such mark is read."""
    return kind.startswith("MONOCHROME") and any(data.get(f"{n}PixelPaddingValue") is not None for n in ("", "Float"))


def picture(data: Any, stored: np.ndarray, kind: str, depth: str, scale: Rescale, nodata: float | None) -> Picture:
    """One frame's pixels.

    Args:
        stored: (height, width) or (height, width, 3), as pydicom gives them.
        depth: of the pixels given, from `depth_and_notes`.
        nodata: the value of pixels that were not measured.

    Raises:
        ValueError: numbers that cannot be pixels.
    """
    if kind == "PALETTE COLOR":
        pixels = np.ascontiguousarray(_coloured(data, stored))
        return Picture(pixels=pixels, missing=not_measured(pixels, nodata))
    if kind in COLOUR:
        pixels = np.ascontiguousarray(stored.astype(depth))
        return Picture(pixels=pixels, missing=not_measured(pixels, nodata))
    missing = _padding(data, stored)
    values: np.ndarray = stored if stored.dtype.kind == "f" else stored.astype(np.int64)
    top = 2 ** int(data.get("BitsStored", data.BitsAllocated)) - 1
    if "ModalityLUTSequence" in data:
        from pydicom.pixels.processing import apply_modality_lut

        values = apply_modality_lut(stored, data).astype(np.int64)
        top = 2 ** int(data.ModalityLUTSequence[0].LUTDescriptor[2]) - 1
    if kind == "MONOCHROME1":
        signed = stored.dtype.kind == "i" and "ModalityLUTSequence" not in data
        values = -values if values.dtype.kind == "f" else (-1 if signed else top) - values
    if "ModalityLUTSequence" not in data and scale != AS_STORED:
        values = values * scale.slope + scale.intercept
    elif depth == "float32":
        values, _ = numbers(values)
    elif int(data.BitsAllocated) == 1 and "ModalityLUTSequence" not in data:
        values = values * 255
    pixels = np.ascontiguousarray(values.astype(depth)[..., None])
    more = not_measured(pixels, nodata)
    missing = missing if more is None else more if missing is None else missing | more
    return Picture(pixels=pixels, missing=missing)


def _coloured(data: Any, stored: np.ndarray) -> np.ndarray:
    """A palette's colours, (height, width, 3) uint8."""
    from pydicom.dataelem import DataElement
    from pydicom.pixels.processing import apply_color_lut

    syntax = data.file_meta.get("TransferSyntaxUID") if hasattr(data, "file_meta") else None
    if syntax is not None and not syntax.is_little_endian:
        # pydicom takes the 16-bit entries of a table as the machine's own. Of a copy: every frame comes here.
        data = data.group_dataset(0x0028)
        for colour in ("Red", "Green", "Blue"):
            name = f"{colour}PaletteColorLookupTableData"
            if name in data and data[name].VR == "OW":
                swapped = np.frombuffer(data[name].value, ">u2").astype("<u2").tobytes()
                data[name] = DataElement(data[name].tag, "OW", swapped)
    table = apply_color_lut(stored, data)
    return (table >> 8 if table.dtype == np.uint16 else table).astype(np.uint8)[..., :3]


def _padding(data: Any, stored: np.ndarray) -> np.ndarray | None:
    """Pixels outside the field of view: PixelPaddingValue, or from it to its range limit."""
    real = stored.dtype.kind == "f"
    value = data.get("FloatPixelPaddingValue" if real else "PixelPaddingValue")
    if value is None:
        return None
    other = data.get("FloatPixelPaddingRangeLimit" if real else "PixelPaddingRangeLimit", value)
    low, high = sorted((float(value), float(other)))
    missing = (stored >= low) & (stored <= high)
    return missing if missing.any() else None
