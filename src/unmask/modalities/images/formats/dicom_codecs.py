"""JPEG of 12 and 16 bits, lossless JPEG and JPEG-LS in DICOM files, decoded by imagecodecs: a plug-in of pydicom's
decoders.

pydicom imports this module by its name and calls `is_available` and `_decode_frame`.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import numpy as np

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
