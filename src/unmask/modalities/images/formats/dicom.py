"""DICOM (pydicom): rescaled values, MONOCHROME1 turned round, frames, slices of a series in their order in space."""

from __future__ import annotations

import importlib.util
import io
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from unmask.modalities.images.formats.dicom_values import COLOUR, depth_and_notes, has_padding, picture, scales_of
from unmask.modalities.images.formats.picture import (
    Choice,
    Header,
    Opened,
    Picture,
    Source,
    chosen_planes,
    lattice,
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
    """The picture of a file, or its frames.

    Raises:
        Undecided: pydicom is not installed.
        ValueError: what cannot be read, and why.
    """
    pydicom = optional("pydicom", "a DICOM file")
    data = pydicom.dcmread(_file(source), stop_before_pixels=True)
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
        whole = pydicom.dcmread(_file(source))
        stored = _stored(whole)
        stored = stored if frames > 1 else stored[None]
        found = [picture(whole, stored[k], kind, depth, scales[k], choice.nodata) for k in kept]
        return [reduce_planes(found, str(planes))] if folded else found

    return Opened(headers=headers, decode=decode)


def _file(source: Source) -> Any:
    return io.BytesIO(source) if isinstance(source, bytes) else source


def _check_size(data: Any, frames: int, size: int) -> None:
    """Compare what the head claims with the size of the file, before anything is made for it.

    Raises:
        ValueError: the file cannot hold so many frames.
    """
    syntax = data.file_meta.get("TransferSyntaxUID") if hasattr(data, "file_meta") else None
    bits = int(data.Rows) * int(data.Columns) * int(data.get("SamplesPerPixel", 1) or 1) * int(data.BitsAllocated)
    # Compressed frames are items of 8 bytes at least (PS3.5, A.4); deflate makes at most 1032 of one.
    halved = data.get("PhotometricInterpretation") == "YBR_FULL_422"  # two pixels share their colours
    each = 8.0 if syntax is not None and syntax.is_encapsulated else bits / 8 * (2 / 3 if halved else 1)
    room = size * 1032 if syntax is not None and syntax.is_deflated else size
    if frames < 1 or frames * each > room:
        raise ValueError(f"DICOM of {frames:,} frames of {data.Rows} x {data.Columns} in {size:,} bytes")


def _check_syntax(data: Any) -> None:
    """Raises:
    ValueError: pixels compressed in a way that nothing installed decodes.
    """
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
    """Raises:
    ValueError: the pixels cannot be decoded; naming how they are compressed.
    """
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
    """The pixels of a frame, in the colours that they are stored in, channels last.

    Raises:
        ValueError: another size, depth or number of channels than the file's header says.
    """
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
