"""Files to examples, in worker processes: opened by the reader of their format, brought to one form, cut into tiles
where that is asked for.

No torch here: a worker starts at once and stays small.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from unmask.errors import UserError
from unmask.modalities.images.formats import deep, dicom, everyday, nifti, tiff
from unmask.modalities.images.formats import numpy as numpy_files
from unmask.modalities.images.formats.picture import (
    PLAIN,
    Ambiguous,
    Broken,
    Choice,
    Header,
    Opened,
    Picture,
    Source,
    Undecided,
    content_of,
)
from unmask.progress import counted

INLINE = 64
"""Up to this many files are decoded in this process: starting workers costs more."""
MEASURED = 0.5
"""A pixel of a resized picture is missing where less than this share of what it is made of was measured."""

CUT = 0.005
"""Less than this share of a picture cut off is rounding."""

View = Literal["shrink", "tile"]


@dataclass(frozen=True, kw_only=True)
class Form:
    """What every picture of a set is brought to. `view`: 'shrink' brings a picture to the size (covers it, cut to the
    middle); 'tile' cuts it into pieces of the size at its own resolution, each an example; `overlap`: pixels that
    neighbouring tiles share, at least; refused where that is all of one."""

    height: int
    width: int
    channels: int
    depth: str
    view: View = "shrink"
    overlap: int = 0

    def __post_init__(self) -> None:
        if self.view == "tile" and self.overlap >= min(self.height, self.width):
            what = f"overlap={self.overlap} of tiles of {self.width} x {self.height}"
            raise UserError(what, hint="Expected less than their side.")

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.height, self.width, self.channels)

    @property
    def nbytes(self) -> int:
        """Bytes of an example."""
        return math.prod(self.shape) * np.dtype(self.depth).itemsize


@dataclass(frozen=True, kw_only=True)
class PictureFiles:
    """Picture files to decode, the examples that each gives, and the form and the way in which they are read."""

    sources: Sequence[Source]
    counts: np.ndarray
    form: Form
    choice: Choice = PLAIN
    workers: int | None = None

    def __len__(self) -> int:
        return len(self.sources)

    def part(self, which: np.ndarray) -> PictureFiles:
        """Some of the files, by their numbers."""
        return replace(self, sources=[self.sources[n] for n in which], counts=self.counts[which])


def places(height: int, width: int, form: Form) -> list[tuple[int, int]]:
    """Where the examples stand that a picture of this size gives, (top, left) in its own pixels: one, or its tiles row
    by row.

    Tiles cover the whole picture; they are spread evenly, so that neighbours share `overlap` pixels or more. A picture
    smaller than a tile gives one, whose rest is missing.

    >>> [left for _, left in places(64, 150, Form(height=64, width=64, channels=1, depth="uint8", view="tile"))]
    [0, 43, 86]
    """
    if form.view == "shrink":
        return [(0, 0)]
    tops, lefts = (starts(n, side, form.overlap) for n, side in ((height, form.height), (width, form.width)))
    return [(top, left) for top in tops for left in lefts]


def starts(length: int, side: int, overlap: int) -> list[int]:
    """Where tiles begin along a side: evenly, neighbours sharing `overlap` pixels or a little more."""
    if length <= side:
        return [0]
    count = 1 + -(-(length - side) // (side - overlap))
    return [round(k * (length - side) / (count - 1)) for k in range(count)]


def examples(picture: Picture, form: Form) -> list[Picture]:
    """A picture's examples in the form asked for, one for each of `places`.

    Raises:
        ValueError: its channels cannot be brought to those of the form.
    """
    array = with_channels(picture.pixels, form.channels)
    if form.view == "shrink":
        return [_of_depth(Picture(pixels=p, missing=m), form.depth) for p, m in [fitted(array, picture.missing, form)]]
    found = places(array.shape[0], array.shape[1], form)
    return [_of_depth(_tile(array, picture.missing, place, form), form.depth) for place in found]


def fitting(sizes: Iterable[tuple[int, int]], size: tuple[int, int]) -> list[str]:
    """A line on what `fitted` does to pictures of these (heights, widths); none where all are of the size.

    >>> fitting([(24, 96)], (24, 24)), fitting([(32, 32)], (224, 224))
    (['were 96 x 24 pixels: 75% of each cut off'], ['were 32 x 32 pixels: enlarged 7 times'])
    >>> fitting([(40, 40), (80, 100)], (40, 40))
    ['were 40 x 40 to 100 x 80 pixels: shrunk to 0.5 of their sides at most, up to 20% of each cut off']
    """
    old = np.array(sorted(set(sizes), key=lambda s: s[0] * s[1]))
    scale, cut = np.max(np.array(size) / old, 1), cut_shares(old, size)
    (low, wide), (high, broad) = old[0], old[-1]
    one = len(old) == 1
    were = f"were {wide} x {low}" + ("" if one else f" to {broad} x {high}") + " pixels"
    parts = [f"enlarged {'' if one else 'up to '}{scale.max():.2g} times"] if scale.max() > 1 else []
    if scale.min() < 1:
        parts.append(f"shrunk to {scale.min():.2g} of their sides{'' if one else ' at most'}")
    if cut.max() >= CUT:
        parts.append(f"{'' if one else 'up to '}{cut.max():.0%} of each cut off")
    return [f"{were}: {', '.join(parts)}"] if parts else []


def cut_shares(sizes: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Share of each picture that `fitted` cuts off; `sizes`: (pictures, 2) height, width; `size`: of the form."""
    scale = np.max(np.array(size) / sizes, 1) if len(sizes) else np.zeros(0)
    return 1 - np.prod(size) / (np.prod(sizes, 1) * scale**2)


def fitted(array: np.ndarray, missing: np.ndarray | None, form: Form) -> tuple[np.ndarray, np.ndarray | None]:
    """A picture shrunk or enlarged to cover the form's size and cut to the middle, from the pixels that
    were measured."""
    size = (form.height, form.width)
    if missing is None or array.shape[:2] == size:
        return resize(array, *size), missing
    known = _fit((~missing).astype(np.float32), *size)
    measured = array[~missing]
    low, high = (float(measured.min()), float(measured.max())) if measured.size else (0.0, 0.0)
    planes = [_fit(np.where(missing, 0, array[..., c]).astype(np.float32), *size) for c in range(array.shape[-1])]
    found = np.clip(np.stack(planes, -1) / np.maximum(known, MEASURED)[..., None], low, high)
    unmeasured = known < MEASURED
    found[unmeasured] = 0
    kind = array.dtype
    return (np.round(found) if kind.kind in "iu" else found).astype(kind), unmeasured if unmeasured.any() else None


def _tile(array: np.ndarray, missing: np.ndarray | None, place: tuple[int, int], form: Form) -> Picture:
    top, left = place
    here = (slice(top, top + form.height), slice(left, left + form.width))
    part, unmeasured = array[here], None if missing is None else missing[here]
    high, wide = part.shape[:2]
    if (high, wide) != (form.height, form.width):
        beyond = ((0, form.height - high), (0, form.width - wide))
        unmeasured = np.pad(
            np.zeros((high, wide), bool) if unmeasured is None else unmeasured, beyond, constant_values=True
        )
        part = np.pad(part, (*beyond, (0, 0)))
    return Picture(
        pixels=np.ascontiguousarray(part), missing=unmeasured if unmeasured is not None and unmeasured.any() else None
    )


def _of_depth(picture: Picture, depth: str) -> Picture:
    """Pixels at another depth, full range to full range; 0 where missing."""
    array = picture.pixels
    if picture.missing is not None:
        array = np.where(picture.missing[..., None], np.zeros((), array.dtype), array)
    if str(array.dtype) != depth:
        array = (array.astype(np.float32) / scale_of(str(array.dtype)) * scale_of(depth)).astype(depth)
    return Picture(pixels=array, missing=picture.missing)


def with_channels(pixels: np.ndarray, channels: int) -> np.ndarray:
    """Grey repeated into three colours, or colours weighed to grey (ITU-R 601; of 8 bits as Pillow rounds), of one
    picture or several, channels last.

    Raises:
        ValueError: any other change.
    """
    have = pixels.shape[-1]
    if have == channels:
        return pixels
    if (have, channels) == (1, 3):
        return np.repeat(pixels, 3, -1)
    if (have, channels) != (3, 1):
        raise ValueError(f"{have} channels, {channels} expected")
    if pixels.dtype == np.uint8:
        return ((pixels @ np.array([19595, 38470, 7471], np.int32) + 2**15) >> 16).astype(np.uint8)[..., None]
    grey = pixels.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32)
    return (np.round(grey) if pixels.dtype.kind in "iu" else grey).astype(pixels.dtype)[..., None]


def recoloured(found: Iterable[int], channels: int) -> list[str]:
    """A line on what `with_channels` does to pictures of so many channels each; none where all have as many.

    >>> recoloured([1, 3, 1], 3), recoloured([3], 1)
    (['2 pictures: grey repeated into 3 channels'], ['1 pictures: colours weighed to grey'])
    """
    count = sum(have != channels for have in found)
    line = "colours weighed to grey" if channels == 1 else "grey repeated into 3 channels"
    return [f"{count} pictures: {line}"] if count else []


def resize(array: np.ndarray, height: int, width: int) -> np.ndarray:
    """Bring a picture to a size: shrunk or enlarged to cover it (bicubic, antialiased), then cut to the middle."""
    if array.shape[:2] == (height, width):
        return array
    if array.dtype == np.uint8 and array.shape[-1] in (1, 3):
        image = Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array)
        found = np.asarray(ImageOps.fit(image, (width, height), Image.Resampling.BICUBIC))
        return found[..., None] if found.ndim == 2 else found
    planes = [_fit(array[..., c].astype(np.float32), height, width) for c in range(array.shape[-1])]
    # Bicubic sampling swings beyond sharp edges.
    out = np.clip(np.stack(planes, -1), array.min(), array.max())
    return (np.round(out) if array.dtype.kind in "iu" else out).astype(array.dtype)


def _fit(plane: np.ndarray, height: int, width: int) -> np.ndarray:
    return np.asarray(ImageOps.fit(Image.fromarray(plane), (width, height), Image.Resampling.BICUBIC))


def scale_of(depth: str) -> float:
    """What a pixel is divided by to lie in 0..1; floats are taken as they are."""
    return {"uint8": 255.0, "uint16": 65535.0}.get(depth, 1.0)


def decode(source: Source, form: Form, choice: Choice = PLAIN) -> list[Picture] | Broken:
    """All examples of a file in the form asked for, picture by picture, or why it cannot be read."""
    found = pictures(source, choice)
    if isinstance(found, Ambiguous):
        return Broken(reason=found.what)
    if isinstance(found, Broken):
        return found
    try:
        return [example for picture in found for example in examples(picture, form)]
    except ValueError as error:
        return Broken(reason=str(error))


Mapper = Callable[[Any, Iterable[Any]], Iterator[Any]]


@contextlib.contextmanager
def mapper(workers: int | None, count: float = math.inf) -> Iterator[Mapper]:
    """What maps a function over `count` things or so, in worker processes where these are worth their start."""
    workers = worker_count(workers)
    if workers <= 1 or count <= INLINE:
        yield map
        return
    with executor(workers) as pool:
        yield lambda function, items: pool.map(function, items, chunksize=8)


def worker_count(requested: int | None) -> int:
    """How many worker processes decode: by default one per core, at most eight."""
    return min(os.cpu_count() or 1, 8) if requested is None else requested


def executor(workers: int) -> ProcessPoolExecutor:
    """Worker processes, which end with this one, however it ends."""
    # Forked workers touch nothing but the readers and NumPy, so threads of the parent do not matter to them.
    kind = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context(kind), initializer=_die_with_parent)


def _die_with_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def survey_all(
    sources: Sequence[Source], choice: Choice = PLAIN, workers: int | None = None
) -> list[list[Header] | Broken | Ambiguous]:
    """What pictures many files hold, in order."""
    with mapper(workers, len(sources)) as mapped:
        return list(counted(mapped(functools.partial(survey, choice=choice), sources), len(sources)))


def decode_all(files: PictureFiles) -> Iterator[list[Picture] | Broken]:
    """The examples of many files, file by file in order."""
    with mapper(files.workers, len(files)) as mapped:
        decoding = functools.partial(decode, form=files.form, choice=files.choice)
        yield from counted(mapped(decoding, files.sources), len(files))


def opened(source: Source, choice: Choice = PLAIN) -> Opened | Broken | Ambiguous:
    """A file, by its format: the headers of its pictures and a way to decode them."""
    try:
        return _reader(source)(source, choice)
    except Undecided as undecided:
        return Ambiguous(what=undecided.what, hint=undecided.hint)
    except Exception as error:  # whatever a broken file makes a reader raise
        return broken(error, source)


def survey(source: Source, choice: Choice = PLAIN) -> list[Header] | Broken | Ambiguous:
    """What pictures a file holds; their pixels are not decoded."""
    found = opened(source, choice)
    return list(found.headers) if isinstance(found, Opened) else found


def pictures(source: Source, choice: Choice = PLAIN) -> list[Picture] | Broken | Ambiguous:
    """The pictures of a file, one for each header of `survey`, in that order: native size and depth, (height, width,
    channels), with a mask of the pixels that were not measured."""
    found = opened(source, choice)
    if not isinstance(found, Opened):
        return found
    try:
        return list(found.decode())
    except Exception as error:  # whatever a broken file makes a decoder raise
        return broken(error, source)


def name_of(name: str, part: str) -> str:
    """The name of one picture of a file.

    >>> name_of("a.tif", "z=3"), name_of("a.png", "")
    ('a.tif#z=3', 'a.png')
    """
    return f"{name}#{part}" if part else name


def described(headers: Sequence[Header]) -> list[str]:
    """What was made of files, said once for all of one kind: '12 pictures: z=7 channel=3: planes=max of 7 z'."""
    notes = (": ".join(p for p in (header.axes, "; ".join(header.notes)) if p) for header in headers)
    return [f"{count} pictures: {note}" for note, count in Counter(filter(None, notes)).most_common()]


def is_picture(path: Path) -> bool:
    """By the ending, or where there is none by how a file begins: whether it is read as a picture among others."""
    name = path.name.lower()
    if nifti.is_nifti(name) or path.suffix.lower() in _endings():
        return True
    return path.suffix == "" and path.is_file() and dicom.is_dicom(path)


@functools.cache
def _endings() -> frozenset[str]:
    known = Image.registered_extensions().items()
    readable = {e for e, name in known if name in Image.OPEN and name not in ("PDF", "MPEG", "HDF5")}
    return frozenset(readable.union(tiff.ENDINGS, dicom.ENDINGS))


def _reader(source: Source):  # type: ignore[no-untyped-def]
    """The reader of a file's format, by how it begins; by its name where that does not tell."""
    if isinstance(source, str):
        name = source.lower()
        if nifti.is_nifti(name):
            return nifti.read
        if name.endswith(".npy"):
            return numpy_files.read
    start = content_of(source, 132)
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


def broken(error: Exception, source: Source) -> Broken:
    if isinstance(error, FileNotFoundError):
        return Broken(reason="no such file")
    with contextlib.suppress(OSError):
        if not content_of(source, 1):
            return Broken(reason="empty (0 bytes)")
    if isinstance(error, UnidentifiedImageError):
        if isinstance(source, str) and source.lower().endswith(dicom.ENDINGS):
            return Broken(reason="not DICOM as a file (no DICM at byte 128): write it anew with its file meta header")
        return Broken(reason="not a picture in a known format")
    if isinstance(error, EOFError):
        return Broken(reason="cut short")
    return Broken(reason=str(error).split("\n")[0] or type(error).__name__)
