"""Pictures in requests: base64 to pixels within limits, and pixels back to PNG.

What a file says of its own size is looked at before a pixel is decoded, and only formats are opened whose decoders do
nothing but decode.
"""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from unmask.errors import UserError
from unmask.modalities.images.formats.picture import Asked, Broken, Choice
from unmask.modalities.images.formats.tiff import MAGIC
from unmask.modalities.images.reading.arrays import ImageSet, Reading
from unmask.modalities.images.reading.from_files import decode_files
from unmask.modalities.images.reading.listing import File
from unmask.modalities.images.reading.reader import survey
from unmask.modalities.images.uses.model import ImageModel
from unmask.serving.limits import Limits

STARTS = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"BM", b"P5", b"P6", b"\x93NUMPY", b"\x00\x00\x00\x0cjP  ", *MAGIC)
"""How files begin that are opened: PNG, JPEG, GIF, BMP, PGM and PPM, .npy, JPEG 2000, TIFF; WebP and DICOM are known by
what stands further on."""


def decoded(text: str, at: str) -> bytes:
    """The bytes of a picture in base64, with or without 'data:image/png;base64,' in front."""
    try:
        plain = text.rpartition(",")[2] if text.startswith("data:") else text
        return base64.b64decode("".join(plain.split()), validate=True)  # MIME breaks lines
    except (binascii.Error, ValueError):
        raise UserError(f"{at}: not base64", hint="Send the bytes of the file in base64.") from None


def read(model: ImageModel, files: Sequence[bytes], limits: Limits) -> ImageSet:
    """Pictures for a model, brought to its size and channels."""
    reading = dict(model.folder.reading)
    how = Reading(size=model.config.image, channels=model.config.channels, strict=True, workers=1, **reading)
    pixels = 0
    for number, content in enumerate(files):
        claimed = _claimed(content)
        pixels += claimed if claimed > limits.pixels else _pixels(content, f"images[{number}]", how.choice)
        if pixels > limits.pixels:
            raise UserError(
                f"images[{number}]: {pixels:,} pixels so far, at most {limits.pixels:,} per request",
                hint="Shrink the pictures, or send them one by one.",
            )
    listed = [File(source=content, name=f"images[{n}]") for n, content in enumerate(files)]
    return model.read(decode_files(listed, how))


def _claimed(content: bytes) -> int:
    """Pixels of a PNG by its head, else 0: its EXIF data may stand behind its pixels, which are decoded to see it."""
    png = content.startswith(STARTS[0])
    return int.from_bytes(content[16:20]) * int.from_bytes(content[20:24]) if png else 0


def _pixels(content: bytes, at: str, choice: Choice) -> int:
    """How many pixels a file says it has, of all its pictures and channels."""
    known = content.startswith(STARTS) or content[8:12] == b"WEBP" or content[128:132] == b"DICM"
    if not known and content.lstrip()[:1] in (b"-", b"{"):
        raise UserError(
            f"{at}: {'a form' if content.lstrip()[:1] == b'-' else 'JSON'}, not a picture",
            hint="Send the bytes of the file alone, or JSON with content-type: application/json.",
        )
    if not known:
        raise UserError(f"{at}: not a picture in a known format", hint="Send PNG, JPEG, TIFF, WebP, DICOM or .npy.")
    found = survey(content, choice)
    if isinstance(found, Broken):
        raise UserError(f"{at}: {found.reason}", hint="Send the file again.")
    if isinstance(found, Asked):
        raise UserError(f"{at}: {found.what}", hint="The model was trained on pictures that leave nothing open.")
    return sum(header.height * header.width * header.channels for header in found)


def png(pixels: np.ndarray, low: float, high: float) -> str:
    """Pixels (height, width, channels) as a PNG of 8 bits in base64, for people.

    Args:
        low, high: what is shown black and white.
    """
    shown = pixels.astype(np.float32)
    if pixels.dtype != np.uint8:
        shown = (np.nan_to_num(shown, nan=low) - low) / max(high - low, 1e-12) * 255
    shown = np.clip(np.round(shown), 0, 255).astype(np.uint8)
    if shown.shape[-1] not in (1, 3):
        shown = shown[..., :1]
    buffer = io.BytesIO()
    Image.fromarray(shown[..., 0] if shown.shape[-1] == 1 else shown).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def numbers(array: np.ndarray) -> dict[str, Any]:
    """An array as JSON: its shape, type, and little-endian bytes in base64."""
    plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return {"shape": list(array.shape), "dtype": str(array.dtype), "data": base64.b64encode(plain.tobytes()).decode()}
