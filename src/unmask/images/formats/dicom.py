"""DICOM (pydicom): rescaled values, MONOCHROME1 turned round, frames, slices of a series in their order in space."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from unmask.images.picture import (
    Choice,
    Header,
    Opened,
    Picture,
    Question,
    Source,
    chosen_planes,
    not_measured,
    reduce_planes,
)

ENDINGS = (".dcm", ".dicom", ".ima")
_PREAMBLE = 128
_COLOUR = ("RGB", "YBR_FULL", "YBR_FULL_422")


def is_dicom(path: Path) -> bool:
    """Whether a file without an ending begins as DICOM does; the index of a medium (DICOMDIR) is none."""
    if path.name.upper() == "DICOMDIR":
        return False
    try:
        with path.open("rb") as file:
            return file.read(_PREAMBLE + 4)[_PREAMBLE:] == b"DICM"
    except OSError:
        return False


def read(source: Source, choice: Choice) -> Opened:
    """The picture of a file, or its frames.

    Raises:
        Question: pydicom is not installed.
        ValueError: what cannot be read, and why.
    """
    try:
        import pydicom
    except ImportError:
        raise Question("a DICOM file", "Run: pip install 'unmask[images]'") from None
    data = pydicom.dcmread(_file(source), stop_before_pixels=True)
    if "Rows" not in data or "Columns" not in data:
        raise ValueError(f"DICOM without a picture (modality {data.get('Modality', 'unknown')})")
    _check_syntax(data)
    kind = str(data.get("PhotometricInterpretation", ""))
    if kind not in ("MONOCHROME1", "MONOCHROME2", "PALETTE COLOR", *_COLOUR):
        raise ValueError(f"DICOM photometric interpretation {kind or '(none)'}")
    frames = int(data.get("NumberOfFrames", 1) or 1)
    depth, notes = _values(data, kind)
    planes: Any = "all" if choice.planes is None else choice.planes
    if planes == "channels":
        raise ValueError("planes=channels: the planes of a DICOM file are its frames")
    kept = chosen_planes(planes, frames) if frames > 1 else [0]
    folded = planes in ("max", "mean") and frames > 1
    if frames > 1:
        notes += (f"planes={planes} of {frames} frames",)
    if data.get("PixelPaddingValue") is not None:
        notes += ("padding is missing",)
    if choice.nodata is not None:
        notes += (f"nodata={choice.nodata:g} is missing",)
    channels = 1 if kind.startswith("MONOCHROME") else 3
    parts = [f"frame={k}" for k in kept] if len(kept) > 1 and not folded else [""]
    group = str(data.get("PatientID", "") or data.get("SeriesInstanceUID", ""))
    headers = [
        Header(
            height=int(data.Rows), width=int(data.Columns), channels=channels, depth=depth, part=part, notes=notes,
            axes=f"frames={frames}" if frames > 1 else "", group=group, order=_order(data, number),
        )
        for number, part in enumerate(parts)
    ]  # fmt: skip

    def decode() -> list[Picture]:
        whole = pydicom.dcmread(_file(source))
        stored = _stored(whole)
        stored = stored if frames > 1 else stored[None]
        found = [_picture(whole, stored[k], kind, depth, choice) for k in kept]
        return [reduce_planes(found, str(planes))] if folded else found

    return Opened(headers=headers, decode=decode)


def _file(source: Source) -> Any:
    return io.BytesIO(source) if isinstance(source, bytes) else source


def _check_syntax(data: Any) -> None:
    """Raises:
    ValueError: pixels compressed in a way that nothing installed decodes.
    """
    from pydicom.pixels.decoders.base import get_decoder

    syntax = data.file_meta.get("TransferSyntaxUID") if hasattr(data, "file_meta") else None
    if syntax is None or not syntax.is_compressed:
        return
    try:
        known = get_decoder(syntax).is_available
    except NotImplementedError:
        known = False
    if not known:
        raise ValueError(
            f"DICOM transfer syntax {syntax.name} needs a decoder: pip install pylibjpeg pylibjpeg-libjpeg "
            "pylibjpeg-openjpeg, or decompress the file first"
        )


def _stored(data: Any) -> np.ndarray:
    """Raises:
    ValueError: the pixels cannot be decoded; naming how they are compressed.
    """
    try:
        return data.pixel_array
    except Exception as error:  # whatever a plug-in raises
        syntax = data.file_meta.get("TransferSyntaxUID")
        told = str(error).split("\n")[0].rstrip(":")
        raise ValueError(f"{told} (transfer syntax {getattr(syntax, 'name', syntax)})") from None


def _rescale(data: Any) -> tuple[float, float]:
    return float(data.get("RescaleSlope", 1) or 1), float(data.get("RescaleIntercept", 0) or 0)


def _values(data: Any, kind: str) -> tuple[str, tuple[str, ...]]:
    """(depth of the pixels given, what is done to them)."""
    notes: list[str] = []
    if kind == "MONOCHROME1":
        notes.append("MONOCHROME1: turned round, so that more is brighter")
    if kind == "PALETTE COLOR":
        return "uint8", ("palette as RGB",)
    if kind in _COLOUR:
        return ("uint8" if int(data.BitsAllocated) == 8 else "uint16"), ()
    if _rescale(data) != (1.0, 0.0):
        slope, intercept = _rescale(data)
        unit = str(data.get("RescaleType", "") or "")
        return "float32", (*notes, f"stored values x {slope:g} + {intercept:g}{f' ({unit})' if unit else ''}")
    if int(data.get("PixelRepresentation", 0)) or int(data.BitsAllocated) > 16:
        return "float32", (*notes, "whole numbers taken as float32")
    return ("uint8" if int(data.BitsAllocated) <= 8 else "uint16"), tuple(notes)


def _picture(data: Any, stored: np.ndarray, kind: str, depth: str, choice: Choice) -> Picture:
    if kind == "PALETTE COLOR":
        from pydicom.pixels.processing import apply_color_lut

        table = apply_color_lut(stored, data)
        table = table >> 8 if table.dtype == np.uint16 else table
        return Picture(pixels=np.ascontiguousarray(table.astype(np.uint8)[..., :3]))
    if kind in _COLOUR:
        return Picture(pixels=np.ascontiguousarray(stored.astype(depth)))
    wide = stored.astype(np.int64)
    missing = _padding(data, wide)
    if kind == "MONOCHROME1":
        bits, signed = int(data.get("BitsStored", data.BitsAllocated)), int(data.get("PixelRepresentation", 0))
        wide = (-1 if signed else 2**bits - 1) - wide
    slope, intercept = _rescale(data)
    values = wide if (slope, intercept) == (1.0, 0.0) else wide * slope + intercept
    pixels = np.ascontiguousarray(values.astype(depth)[..., None])
    more = not_measured(pixels, choice.nodata)
    missing = missing if more is None else more if missing is None else missing | more
    return Picture(pixels=pixels, missing=missing)


def _padding(data: Any, stored: np.ndarray) -> np.ndarray | None:
    """Pixels outside the field of view: PixelPaddingValue, or from it to its range limit."""
    value = data.get("PixelPaddingValue")
    if value is None:
        return None
    other = data.get("PixelPaddingRangeLimit", value)
    low, high = sorted((int(value), int(other)))
    missing = (stored >= low) & (stored <= high)
    return missing if missing.any() else None


def _order(data: Any, number: int) -> tuple[Any, ...]:
    """(series, place along the slices' normal, instance number, frame): what slices of a series are sorted by."""
    series = str(data.get("SeriesInstanceUID", ""))
    instance = int(data.get("InstanceNumber", 0) or 0)
    place, turned = data.get("ImagePositionPatient"), data.get("ImageOrientationPatient")
    along = 0.0
    if place is not None and turned is not None and len(turned) == 6:
        across, down = np.array(turned[:3], float), np.array(turned[3:], float)
        along = round(float(np.cross(across, down) @ np.array(place, float)), 4)
    return (series, along, instance, number)
