"""Open a picture file of any known format: what pictures it holds, and their pixels.

`survey` says what a file holds without decoding it where the format allows; `pictures` decodes. No torch here: workers
start at once and stay small.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from unmask.modalities.images.formats import deep, dicom, everyday, nifti, tiff
from unmask.modalities.images.formats import numpy as numpy_files
from unmask.modalities.images.formats.picture import (
    PLAIN,
    Asked,
    Broken,
    Choice,
    Header,
    Opened,
    Picture,
    Source,
    Undecided,
)

_ENDINGS: set[str] = set()


def opened(source: Source, choice: Choice = PLAIN) -> Opened | Broken | Asked:
    """A file, by its format: the headers of its pictures and a way to decode them."""
    try:
        return _reader(source)(source, choice)
    except Undecided as undecided:
        return Asked(what=undecided.what, hint=undecided.hint)
    except Exception as error:  # whatever a broken file makes a reader raise
        return _told(error, source)


def survey(source: Source, choice: Choice = PLAIN) -> list[Header] | Broken | Asked:
    """What pictures a file holds; their pixels are not decoded."""
    found = opened(source, choice)
    return list(found.headers) if isinstance(found, Opened) else found


def pictures(source: Source, choice: Choice = PLAIN) -> list[Picture] | Broken | Asked:
    """The pictures of a file, one for each header of `survey`, in that order: native size and depth, (height, width,
    channels), with a mask of the pixels that were not measured."""
    found = opened(source, choice)
    if not isinstance(found, Opened):
        return found
    try:
        return list(found.decode())
    except Exception as error:  # whatever a broken file makes a decoder raise
        return _told(error, source)


def name_of(name: str, part: str) -> str:
    """The name of one picture of a file.

    >>> name_of("a.tif", "z=3"), name_of("a.png", "")
    ('a.tif#z=3', 'a.png')
    """
    return f"{name}#{part}" if part else name


def described(headers: Sequence[Header]) -> list[str]:
    """What was made of files, said once for all of one kind: '12 pictures: z=7 channel=3: planes=max of 7 z'."""
    counts: dict[str, int] = {}
    for header in headers:
        note = ": ".join(p for p in (header.axes, "; ".join(header.notes)) if p)
        if note:
            counts[note] = counts.get(note, 0) + 1
    return [f"{count} pictures: {note}" for note, count in sorted(counts.items(), key=lambda item: -item[1])]


def is_picture(path: Path) -> bool:
    """By the ending, or where there is none by how a file begins: whether it is read as a picture among others."""
    name = path.name.lower()
    if nifti.is_nifti(name) or path.suffix.lower() in _endings():
        return True
    return path.suffix == "" and path.is_file() and dicom.is_dicom(path)


def _endings() -> set[str]:
    if not _ENDINGS:
        known = Image.registered_extensions()
        _ENDINGS.update(e for e, name in known.items() if name in Image.OPEN and name not in ("PDF", "MPEG", "HDF5"))
        _ENDINGS.update((*tiff.ENDINGS, *dicom.ENDINGS))
    return _ENDINGS


def _reader(source: Source):  # type: ignore[no-untyped-def]
    """The reader of a file's format, by how it begins; by its name where that does not tell."""
    if isinstance(source, str):
        name = source.lower()
        if nifti.is_nifti(name):
            return nifti.read
        if name.endswith(".npy"):
            return numpy_files.read
    start = _start(source)
    if start[128:132] == b"DICM":
        return dicom.read
    if start[:6] == b"\x93NUMPY":
        return numpy_files.read
    if start[:4] in tiff.MAGIC:
        return tiff.read
    if deep.is_deep_png(start):
        return deep.read_png
    if deep.is_jpeg2000(start):
        return deep.read_jpeg2000
    return everyday.read


def _start(source: Source) -> bytes:
    if isinstance(source, bytes):
        return source[:132]
    with open(source, "rb") as file:
        return file.read(132)


def _told(error: Exception, source: Source) -> Broken:
    if isinstance(error, FileNotFoundError):
        return Broken(reason="no such file")
    size = len(source) if isinstance(source, bytes) else _size(source)
    if size == 0:
        return Broken(reason="empty (0 bytes)")
    if isinstance(error, UnidentifiedImageError):
        if isinstance(source, str) and source.lower().endswith(dicom.ENDINGS):
            return Broken(reason="not DICOM as a file (no DICM at byte 128): write it anew with its file meta header")
        return Broken(reason="not a picture in a known format")
    if isinstance(error, EOFError):
        return Broken(reason="cut short")
    return Broken(reason=str(error).split("\n")[0] or type(error).__name__)


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return -1
