"""PNG, JPEG and all else that Pillow opens, plain TIFFs among them."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from unmask.errors import UserError, setting
from unmask.modalities.images.formats.picture import (
    ALPHA_NOTES,
    DEFLATE,
    LYING,
    Choice,
    Header,
    Opened,
    Picture,
    Source,
    check_claim,
    chosen_planes,
    either,
    file_of,
    not_measured,
    reduce_planes,
    with_alpha,
)

# What Pillow cannot decode is read by others or refused with a reason; its own remarks would stand on the user's screen
# per file.
logging.getLogger("PIL").addHandler(logging.NullHandler())

_DEEP = {"I;16", "I;16B", "I;16L", "I;16N", "I"}
_5_6_5 = "BGR;16"
_GREY = {"1", "L", "LA", "La", "F", *_DEEP}
_BITS_TAG, _PHOTOMETRIC_TAG, _ORIENTATION_TAG = 258, 262, 274
_TARGA_BITS = 17
"""Byte of a TGA's head whose lower half counts the bits of transparency per pixel."""


_OPENING = threading.Lock()


def open_image(source: Source) -> Image.Image:
    """A picture whose head alone is read, whatever its size: `check_claim` compares that with the file and memory."""
    with _OPENING:
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            return Image.open(file_of(source))
        finally:
            Image.MAX_IMAGE_PIXELS = limit


def turned(path: str) -> int:
    """The orientation that the EXIF data of a file say; 1, upright, of files that say none or that others read."""
    try:
        with open_image(path) as image:
            return int(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:  # whatever Pillow does not know
        return 1


def read(source: Source, choice: Choice) -> Opened:
    """A picture, or the frames of an animation: the first of them unless `planes` says otherwise."""
    with open_image(source) as image:
        _check(image)
        frames = int(getattr(image, "n_frames", 1))
        width, height = image.size
        channels = 1 if image.mode in _GREY else 3
        depth = "uint16" if image.mode in _DEEP else "float32" if image.mode == "F" else "uint8"
        bounded = image.format in ("PNG", "JPEG", "MPO", "PPM") or image.info.get("compression") == "raw"
        taken = frames if choice.planes in ("all", "max", "mean") else 1
        # A pixel has one bit at least, a frame a byte; JPEG packs no better than deflate does bits. Before the EXIF
        # data is asked for: of a PNG it may stand behind the pixels, which are decoded then.
        check_claim(
            source,
            f"{taken:,} x {width:,} x {height:,} pixels",
            float(taken) * width * height * channels * np.dtype(depth).itemsize,
            stored=max(width * height / 8, frames * DEFLATE) if bounded else 0.0,
            packing=DEFLATE,
        )
        turned, notes = image.getexif().get(_ORIENTATION_TAG, 1), _notes(image, choice)
        if turned >= LYING:
            width, height = height, width
        if turned in range(2, 9):
            notes += ("turned as EXIF says",)
        if getattr(image, "tag_v2", {}).get(_PHOTOMETRIC_TAG) == 0:
            notes += ("white is zero: inverted",)
        band = choice.alpha == "band" and _transparent(image)
    planes: Any = 0 if choice.planes is None else choice.planes
    if planes == "channels" and frames > 1:
        raise ValueError("planes=channels, but its planes are the frames of an animation")
    kept = chosen_planes(planes, frames) if frames > 1 else [0]
    if frames > 1:
        first = f"the first of {frames} frames ({setting('planes', 'all')} takes them all)"
        notes += (first if choice.planes is None else f"planes={choice.planes} of {frames} frames",)
    folded = planes in ("max", "mean") and frames > 1
    parts = [f"frame={k}" for k in kept] if len(kept) > 1 and not folded else [""]
    headers = [
        Header(
            height=height,
            width=width,
            channels=channels + band,
            depth=depth,
            part=part,
            notes=notes,
            axes=f"frames={frames}" if frames > 1 else "",
            colour=not band,
        )
        for part in parts
    ]

    def decode() -> list[Picture]:
        with open_image(source) as image:
            found = []
            for k in kept:
                image.seek(k)
                found.append(_picture(image, choice))
        return [reduce_planes(found, str(planes))] if folded else found

    return Opened(headers=headers, decode=decode)


def pixels_of(image: Image.Image, choice: Choice) -> np.ndarray:
    """A picture that Pillow holds as the array that its file would give; `nodata` is looked for in the array."""
    try:
        _check(image)
        found = _picture(image, replace(choice, nodata=None))
    except ValueError as error:
        raise UserError(str(error), hint="Give its file, or an array.") from None
    if found.missing is not None:
        raise UserError(
            f"{setting('alpha', 'missing')} of a picture in memory that is transparent in places",
            hint="Give its file, or an array of floats with NaN where nothing was measured.",
        )
    return found.pixels


def _check(image: Image.Image) -> None:
    """Refuse what Pillow would read as something else: FITS (signed numbers, scale and offset are lost), colours of 16
    bits."""
    if image.format == "FITS":
        raise ValueError("FITS, whose scale, offset and direction are not read: save it as TIFF or .npy")
    deep = any(";16" in mode and mode != _5_6_5 for mode in raw_modes(image)) or (
        image.format == "PPM" and _maximum(image) > 255
    )
    if deep and image.mode not in _DEEP:
        raise ValueError(
            f"{image.format} of {image.mode} with 16 bits, of which 8 would be kept: save it as TIFF or PNG"
        )


def raw_modes(image: Image.Image) -> list[str]:
    """What Pillow's decoders are told of a picture that is not loaded yet, its mode in the file among it."""
    return [str(part) for tile in getattr(image, "tile", []) for part in _flat(tile[-1])]


def _flat(arguments: Any) -> tuple[Any, ...]:
    return arguments if isinstance(arguments, tuple) else (arguments,)


def _maximum(image: Image.Image) -> int:
    """What stands for white in a PGM or PPM file."""
    return max((int(part) for part in raw_modes(image) if part.isdigit()), default=255)


def _opaque(image: Image.Image) -> bool:
    """Whether it is a TGA, not loaded yet, whose head counts no bits of transparency: Pillow takes the last ones for
    it."""
    if image.format != "TGA" or not getattr(image, "tile", []):
        return False
    file: Any = getattr(image, "fp", None)
    file.seek(_TARGA_BITS)
    return not file.read(1)[0] & 15


def _transparent(image: Image.Image) -> bool:
    marked = image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info
    return marked and not _opaque(image)


def _notes(image: Image.Image, choice: Choice) -> tuple[str, ...]:
    """What `_picture` does to a picture of this kind."""
    bits = _flat(getattr(image, "tag_v2", {}).get(_BITS_TAG, 8))[0]
    if image.mode == "L" and bits < 8:
        return (f"{bits} bits spread over 0 to 255",)
    if image.format == "PPM" and _maximum(image) not in (1, 255, 65535):
        return (f"0 to {_maximum(image)} spread over the full range",)
    if _transparent(image):
        return (ALPHA_NOTES[choice.alpha or "white"],)
    return {
        "1": ("one bit as 0 and 255",),
        "P": ("palette as RGB",),
        "CMYK": ("CMYK as RGB",),
        "YCbCr": (),
        "LAB": ("Lab as RGB",),
    }.get(image.mode, ())


def _picture(image: Image.Image, choice: Choice) -> Picture:
    """A picture turned upright by its EXIF tag; palettes and CMYK become RGB, what is transparent lies on white unless
    `alpha` says otherwise.
    """
    grey, alpha = image.mode in _GREY, choice.alpha or "white"
    pixels: np.ndarray
    share: np.ndarray | None = None
    clear = image.info.get("transparency")
    for bits in (2, 4):
        if clear is not None and f"L;{bits}" in raw_modes(image):  # Pillow spreads the pixels, not this number
            image.info["transparency"] = clear * 255 // (2**bits - 1)
    opaque = _opaque(image)  # loading ends what tells
    image = ImageOps.exif_transpose(image)
    if image.mode in _DEEP:
        wide = np.asarray(image).astype(np.int64)
        if wide.min() < 0 or wide.max() > 65535:
            raise ValueError("32-bit whole numbers beyond 16 bits")
        pixels = wide.astype(np.uint16)[..., None]
        if clear is not None:
            share = (pixels != clear) * np.uint16(65535)
    elif image.mode == "F":
        pixels = np.asarray(image, dtype=np.float32)[..., None]
    else:
        if _transparent(image) and not opaque:
            image = image.convert("RGBA")
            if alpha == "white":  # with Pillow's own rounding
                image = Image.alpha_composite(Image.new("RGBA", image.size, (255, 255, 255, 255)), image)
            else:
                share = np.asarray(image)[..., 3:]
        pixels = np.asarray(image.convert("L" if grey else "RGB"))
        pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    missing, transparent = not_measured(pixels, choice.nodata), None
    if share is not None:
        pixels, transparent = with_alpha(pixels, share, 65535, alpha)
    return Picture(pixels=pixels, missing=either(missing, transparent))
