"""DICOM (pydicom): rescaled values, MONOCHROME1 turned round, frames, slices of a series in their order in space."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unmask.modalities.images.formats.picture import (
    Choice,
    Header,
    Opened,
    Picture,
    Source,
    chosen_planes,
    either,
    file_of,
    lattice,
    not_measured,
    numbers,
    optional,
    reduce_planes,
)

ENDINGS = (".dcm", ".dicom", ".ima")
_PREAMBLE = 128
_DECODERS = "pip install 'unmask[images]' or pip install python-gdcm, or decompress the file first"


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
    """The picture of a file, or its frames."""
    pydicom = optional("pydicom", "a DICOM file")
    data = pydicom.dcmread(file_of(source), stop_before_pixels=True)
    if "Rows" not in data or "Columns" not in data:
        raise ValueError(f"DICOM without a picture (modality {data.get('Modality', 'unknown')})")
    _check_syntax(data)
    kind = str(data.get("PhotometricInterpretation", ""))
    if kind not in ("MONOCHROME1", "MONOCHROME2", "PALETTE COLOR", *COLOUR):
        raise ValueError(f"DICOM photometric interpretation {kind or '(none)'}")
    frames = int(data.get("NumberOfFrames", 1) or 1)
    _check_size(data, frames, len(source) if isinstance(source, bytes) else Path(source).stat().st_size)
    scales = scales_of(data, frames)
    depth, notes = depth_and_notes(data, kind, scales)
    planes: Any = "all" if choice.planes is None else choice.planes
    if planes == "channels":
        raise ValueError("planes=channels: the planes of a DICOM file are its frames")
    kept = chosen_planes(planes, frames) if frames > 1 else [0]
    folded = planes in ("max", "mean") and frames > 1
    if frames > 1:
        notes += (f"planes={planes} of {frames} frames",)
    if has_padding(data, kind):
        notes += ("padding is missing",)
    notes += lattice(*_spacing(data))
    if choice.nodata is not None:
        notes += (f"nodata={choice.nodata:g} is missing",)
    channels = 1 if kind.startswith("MONOCHROME") else 3
    parts = [f"frame={k}" for k in kept] if len(kept) > 1 and not folded else [""]
    group = str(data.get("PatientID", "") or data.get("SeriesInstanceUID", ""))
    headers = [
        Header(
            height=int(data.Rows),
            width=int(data.Columns),
            channels=channels,
            depth=depth,
            part=part,
            notes=notes,
            axes=f"frames={frames}" if frames > 1 else "",
            group=group,
            order=_order(data, number),
        )
        for number, part in enumerate(parts)
    ]

    def decode() -> list[Picture]:
        whole = pydicom.dcmread(file_of(source))
        stored = _stored(whole)
        stored = stored if frames > 1 else stored[None]
        found = [picture(whole, stored[k], kind, depth, scales[k], choice.nodata) for k in kept]
        return [reduce_planes(found, str(planes))] if folded else found

    return Opened(headers=headers, decode=decode)


def _check_size(data: Any, frames: int, size: int) -> None:
    """Compare what the head claims with the size of the file, before anything is made for it."""
    syntax = data.file_meta.get("TransferSyntaxUID") if hasattr(data, "file_meta") else None
    bits = int(data.Rows) * int(data.Columns) * int(data.get("SamplesPerPixel", 1) or 1) * int(data.BitsAllocated)
    # Compressed frames are items of 8 bytes at least (PS3.5, A.4); deflate makes at most 1032 of one.
    halved = data.get("PhotometricInterpretation") == "YBR_FULL_422"  # two pixels share their colours
    each = 8.0 if syntax is not None and syntax.is_encapsulated else bits / 8 * (2 / 3 if halved else 1)
    room = size * 1032 if syntax is not None and syntax.is_deflated else size
    if frames < 1 or frames * each > room:
        raise ValueError(f"DICOM of {frames:,} frames of {data.Rows} x {data.Columns} in {size:,} bytes")


def _check_syntax(data: Any) -> None:
    """Refuse pixels compressed in a way that nothing installed decodes."""
    from pydicom.pixels.decoders.base import get_decoder

    syntax = data.file_meta.get("TransferSyntaxUID") if hasattr(data, "file_meta") else None
    if syntax is None or not syntax.is_compressed:
        return
    register()
    try:
        known = get_decoder(syntax).is_available
    except NotImplementedError:  # pydicom has no decoder at all for this syntax (video, private ones)
        known = False
    if not known:
        raise ValueError(f"DICOM transfer syntax {syntax.name} needs a decoder: {_DECODERS}")


def _stored(data: Any) -> np.ndarray:
    """The stored numbers; why they cannot be decoded names how they are compressed."""
    try:
        return data.pixel_array
    except Exception as error:  # whatever a plug-in raises
        syntax = data.file_meta.get("TransferSyntaxUID")
        reason = f"{str(error).split(chr(10))[0].rstrip(':')} (transfer syntax {getattr(syntax, 'name', syntax)})"
        compressed = getattr(syntax, "is_compressed", False)
        raise ValueError(f"{reason}; it may need another decoder: {_DECODERS}" if compressed else reason) from None


def _spacing(data: Any) -> tuple[float, float]:
    """(height, width) of a pixel, from the spacing in mm or else the aspect ratio; (1, 1) where neither is known."""
    for name in ("PixelSpacing", "ImagerPixelSpacing", "PixelAspectRatio"):
        found = data.get(name)
        if found is not None and not isinstance(found, str) and len(found) == 2:
            return float(found[0]), float(found[1])
    return 1.0, 1.0


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


_LABEL = "imagecodecs"
_JPEG_LS = ("1.2.840.10008.1.2.4.80", "1.2.840.10008.1.2.4.81")
_JPEG = ("1.2.840.10008.1.2.4.51", "1.2.840.10008.1.2.4.57", "1.2.840.10008.1.2.4.70")
DECODER_DEPENDENCIES = dict.fromkeys((*_JPEG, *_JPEG_LS), ("imagecodecs",))


@cache
def register() -> None:
    """Let pydicom use this module, once, after the decoders that it has."""
    from pydicom.pixels.decoders.base import get_decoder
    from pydicom.uid import UID

    if not is_available(""):
        return
    for uid in DECODER_DEPENDENCIES:
        get_decoder(UID(uid)).add_plugin(_LABEL, (__name__, "_decode_frame"))


def is_available(uid: str) -> bool:
    """Whether imagecodecs is installed."""
    return importlib.util.find_spec("imagecodecs") is not None


def _decode_frame(source: bytes, runner: Any) -> bytes:
    """The pixels of a frame, in the colours that they are stored in, channels last."""
    import imagecodecs

    if runner.transfer_syntax in _JPEG_LS:
        found = imagecodecs.jpegls_decode(source)
    else:
        # Colours as they are stored: pydicom turns YBR into RGB itself.
        colours = None if runner.samples_per_pixel == 1 else "rgb"
        found = imagecodecs.jpeg_decode(source, colorspace=colours, outcolorspace=colours)
    expected = (runner.rows, runner.columns) + ((3,) if runner.samples_per_pixel == 3 else ())
    if found.shape != expected:
        raise ValueError(f"a frame of {found.shape}, {expected} expected")
    runner.set_option("bits_allocated", found.dtype.itemsize * 8)
    runner.set_option("planar_configuration", 0)
    return np.ascontiguousarray(found).tobytes()


# What the stored numbers mean: rescaled values, tables, palettes, padding.

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
    """(depth of the pixels given, what is done to them)."""
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
    """One frame's pixels, of those `stored`, (height, width) or (height, width, 3), as pydicom gives them."""
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
    return Picture(pixels=pixels, missing=either(missing, not_measured(pixels, nodata)))


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
