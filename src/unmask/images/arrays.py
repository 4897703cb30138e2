"""Pictures as arrays: `ImageSet`, and the arrays, idx, npy and npz files it is made from."""

from __future__ import annotations

import gzip
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unmask.errors import UserError
from unmask.images.decode import resize, scale_of
from unmask.images.recipes import sides

SPLITS = {
    "train": ("train", "training"), "test": ("test", "t10k", "val", "valid", "validation", "dev"),
}  # fmt: skip
"""Names of folders, files and arrays that say which part of a data set they hold."""

FEW_CHANNELS = 4
"""An axis of at most this many entries is the channels, the last axis first."""


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """Pictures of one size and depth, in memory.

    Attributes:
        pixels: (pictures, height, width, channels), uint8, uint16 or float32.
        labels: number of each picture's class, or None where there are no classes.
        classes: names of the classes.
        names: of the pictures: their path within the folder, or their number.
        test: True for pictures of a test part (a folder, file or array named so), or None.
        skipped: (name, reason) of pictures that could not be read.
    """

    pixels: np.ndarray
    labels: np.ndarray | None = None
    classes: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    test: np.ndarray | None = None
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def size(self) -> tuple[int, int]:
        return (int(self.pixels.shape[1]), int(self.pixels.shape[2]))

    @property
    def channels(self) -> int:
        return int(self.pixels.shape[3])

    @property
    def depth(self) -> str:
        return str(self.pixels.dtype)

    def take(self, which: np.ndarray) -> ImageSet:
        """Some of the pictures, in the order given."""
        return replace(
            self, pixels=self.pixels[which], labels=None if self.labels is None else self.labels[which],
            names=[self.names[i] for i in np.arange(len(self))[which]] if self.names else [],
            test=None if self.test is None else self.test[which],
        )  # fmt: skip

    def resized(self, size: int | tuple[int, int] | None) -> ImageSet:
        """The pictures at another size; None leaves them."""
        if size is None or self.size == sides(size) or not len(self):
            return self
        return replace(self, pixels=np.stack([resize(p, *sides(size)) for p in self.pixels]))

    def with_channels(self, channels: int | None) -> ImageSet:
        """Grey repeated into colours, or colours weighed to grey; None leaves them."""
        return self if channels is None else replace(self, pixels=to_channels(self.pixels, channels))


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How pictures are read; see `sources.read_images`."""

    size: int | tuple[int, int] | None = None
    channels: int | None = None
    depth: str | None = None
    workers: int | None = None
    strict: bool = False
    column: str | None = None
    label_column: str | None = None


PLAIN = Reading()


def from_array(pixels: Any, labels: Any = None, name: str = "array", how: Reading = PLAIN) -> ImageSet:
    """Pictures of an array or tensor: (n, height, width), (n, height, width, channels) or (n, channels, height, width).

    Raises:
        UserError: another shape, one that can be read in two ways, NaN, or numbers that are no pixels.
    """
    pixels = as_array(pixels)
    if pixels.ndim == 3 and pixels.shape[-1] in (3, 4):
        raise UserError(
            f"{name} has shape {pixels.shape}: one picture in colour, or {len(pixels)} grey ones?",
            hint="Give one picture as array[None], grey ones as array[..., None].",
        )
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if pixels.ndim != 4 or 0 in pixels.shape[1:]:
        raise UserError(
            f"{name} has shape {pixels.shape}",
            hint="Expected (pictures, height, width), (…, height, width, channels) or (…, channels, height, width).",
        )
    return _image_set(_channels_last(pixels, name, how.channels), labels, name, how.depth)


def from_list(pictures: Sequence[Any], how: Reading = PLAIN) -> ImageSet:
    """A list of arrays, (height, width), (height, width, channels) or (channels, height, width), brought to one size;
    grey ones beside coloured ones are repeated into colours.

    Raises:
        UserError: sizes that differ with no size given, or depths that differ.
    """
    planes = []
    for number, picture in enumerate(map(as_array, pictures)):
        if picture.ndim not in (2, 3) or 0 in picture.shape:
            raise UserError(
                f"picture {number} has shape {picture.shape}",
                hint="Expected (height, width), (height, width, channels) or (channels, height, width).",
            )
        if picture.ndim == 2:
            picture = picture[..., None]
        planes.append(_channels_last(picture[None], f"picture {number}", how.channels)[0])
    if len({p.dtype for p in planes}) > 1:
        other = next(i for i, p in enumerate(planes) if p.dtype != planes[0].dtype)
        raise UserError(
            f"picture 0 holds {planes[0].dtype}, picture {other} {planes[other].dtype}",
            hint="Give pictures of one depth.",
        )
    if how.size is None and len({p.shape[:2] for p in planes}) > 1:
        raise mixed_sizes([(f"picture {i}", p.shape[0], p.shape[1]) for i, p in enumerate(planes)])
    most = max(p.shape[-1] for p in planes)
    size = planes[0].shape[:2] if how.size is None else sides(how.size)
    return _image_set(np.stack([resize(to_channels(p, most), *size) for p in planes]), None, "pictures", how.depth)


class Part(NamedTuple):
    """One array of several that make up a data set."""

    name: str
    test: bool | None
    pixels: np.ndarray
    labels: np.ndarray | None


def joined(parts: Sequence[Part], how: Reading = PLAIN) -> ImageSet:
    """Arrays of one data set as one: classes are numbered over all of them, train and test parts stay known.

    Raises:
        UserError: sizes that differ with no size given, channels or depths that differ.
    """
    sets = [from_array(p.pixels, p.labels, p.name, how).resized(how.size) for p in parts]
    if len({s.size for s in sets}) > 1:
        raise mixed_sizes([(p.name, *s.size) for p, s in zip(parts, sets, strict=True)])
    if len({(s.channels, s.depth) for s in sets}) > 1:
        told = ", ".join(f"{p.name} has {s.channels} of {s.depth}" for p, s in zip(parts, sets, strict=True))
        raise UserError(f"channels differ: {told}", hint="Give files of one kind.")
    raw = [p.labels for p in parts if p.labels is not None]
    labels, classes = number_classes(np.concatenate([r.ravel() for r in raw]) if len(raw) == len(parts) else None)
    known = {p.test for p in parts} == {True, False}
    return ImageSet(
        pixels=np.concatenate([s.pixels for s in sets]), labels=labels, classes=classes,
        test=np.concatenate([np.full(len(s), p.test) for p, s in zip(parts, sets, strict=True)]) if known else None,
    )  # fmt: skip


def as_array(data: Any) -> np.ndarray:
    """An array or tensor as an array; of booleans, black and white."""
    array = np.asarray(data.detach().cpu() if hasattr(data, "detach") else data)
    return array.astype(np.uint8) * 255 if array.dtype == bool else array


def _channels_last(pixels: np.ndarray, name: str, channels: int | None) -> np.ndarray:
    """(n, height, width, channels) from either order.

    An axis of few entries is the channels; with more of them, the one that is as long as `channels`, else the one that
    leaves the other two alike.
    """
    _, first, middle, last = pixels.shape
    if min(first, last) <= FEW_CHANNELS:
        leading = last > FEW_CHANNELS
    elif channels in (first, last):
        leading = channels != last
    elif (first == middle) != (middle == last):
        leading = middle == last
    else:
        raise UserError(
            f"{name} has shape {pixels.shape}: {first} or {last} channels?",
            hint="Say how many there are: channels=, on the command line --set channels=.",
        )
    return pixels.transpose(0, 2, 3, 1) if leading else pixels


def _image_set(pixels: np.ndarray, labels: Any, name: str, depth: str | None) -> ImageSet:
    """(n, height, width, channels) of any numbers, in 8 or 16 bits or float32."""
    if pixels.dtype.kind == "f":
        pixels = pixels.astype(np.float32, copy=False)
        _no_nan(pixels, name)
    elif pixels.dtype.kind in "iu" and pixels.dtype not in (np.uint8, np.uint16):
        low, high = (int(pixels.min()), int(pixels.max())) if pixels.size else (0, 0)
        # A dark picture for a model of 16 bits is no picture of 8 bits.
        kind = depth if depth in ("uint8", "uint16") else "uint8" if high <= 255 else "uint16"
        top = 255 if depth == "uint8" else 65535
        if low < 0 or high > top:
            raise UserError(f"{name} holds whole numbers from {low} to {high}", hint=f"Expected 0 to {top}, or floats.")
        pixels = pixels.astype(kind)
    elif pixels.dtype.kind not in "iu":
        raise UserError(f"{name} holds {pixels.dtype}", hint="Expected whole numbers or floats.")
    if labels is not None:
        labels = np.asarray(labels.cpu() if hasattr(labels, "cpu") else labels).ravel()
        if len(labels) != len(pixels):
            raise UserError(
                f"{name}: {len(pixels)} pictures and {len(labels)} labels", hint="Give one label a picture."
            )
    numbers, classes = number_classes(labels)
    return ImageSet(pixels=np.ascontiguousarray(pixels), labels=numbers, classes=classes)


def _no_nan(pixels: np.ndarray, name: str) -> None:
    bad = ~np.isfinite(pixels).reshape(len(pixels), -1).all(1)
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        row, column, channel = (int(i[0]) for i in np.nonzero(~np.isfinite(pixels[first])))
        raise UserError(
            f"{name}: picture {first} has {pixels[first, row, column, channel]} at row {row}, column {column}, channel "
            f"{channel} ({int(bad.sum())} such pictures)",
            hint="Leave these pictures out, or put numbers in.",
        )


def number_classes(labels: Any) -> tuple[np.ndarray | None, list[str]]:
    """Labels of any kind -> numbers 0.. and names, in sorted order."""
    if labels is None:
        return None, []
    names, numbers = np.unique(labels, return_inverse=True)
    return numbers.astype(np.int64), [str(n) for n in names]


def to_channels(pixels: np.ndarray, channels: int) -> np.ndarray:
    """Grey repeated into colours, or colours weighed to grey (ITU-R 601)."""
    have = pixels.shape[-1]
    if have == channels:
        return pixels
    if have == 1:
        return np.repeat(pixels, channels, -1)
    if have == 3 and channels == 1:
        grey = pixels.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32)
        return (np.round(grey) if pixels.dtype.kind in "iu" else grey).astype(pixels.dtype)[..., None]
    raise UserError(f"pictures with {have} channels, {channels} expected", hint="Give pictures with as many channels.")


def mixed_sizes(found: Sequence[tuple[str, int, int]]) -> UserError:
    """What is said of pictures, (name, height, width), whose sizes differ."""
    first = found[0]
    other = next(f for f in found if f[1:] != first[1:])
    known = sorted({f[1:] for f in found})
    middle = known[len(known) // 2]
    return UserError(
        f"pictures of {len(known)} sizes: {first[0]} has {first[2]} x {first[1]} pixels, {other[0]} has {other[2]} x {other[1]}",
        hint=f"Say which size to bring them to, for example --set image_size={min(middle)}.",
    )


def part_of(name: str) -> bool | None:
    """Whether a folder or file of this name is of a test part; None where the name does not say."""
    start = name.lower().replace("_", "-").split("-")[0].split(".")[0]
    return next((split == "test" for split, names in SPLITS.items() if start in names), None)


def read_numpy(path: Path, how: Reading = PLAIN) -> ImageSet:
    """An .npy, or an .npz with one array of pictures or one for each part (x_train, x_test, y_train, y_test, ...).

    Raises:
        UserError: no pictures, or arrays of them that are no parts of one data set.
    """
    loaded = np.load(path, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return from_array(loaded, None, str(path), how)
    arrays = {key: loaded[key] for key in loaded}
    part = {key: [w for w in key.lower().split("_") if part_of(w) is not None] for key in arrays}
    rest = {key: [w for w in key.lower().split("_") if part_of(w) is None] for key in arrays}
    pictures = [key for key, array in arrays.items() if array.ndim >= 3]
    if not pictures:
        raise UserError(f"{path}: no array of pictures among {', '.join(arrays)}", hint="Expected three or four axes.")
    if len(pictures) > 1 and any(not part[key] or rest[key] != rest[pictures[0]] for key in pictures):
        raise UserError(
            f"{path}: several arrays of pictures: {', '.join(pictures)}",
            hint="Keep one, or name them as parts of one set: x_train, x_test, y_train, y_test.",
        )

    def made(key: str) -> Part:
        columns = [k for k in arrays if arrays[k].ndim < 3 and arrays[k].size == len(arrays[key])]
        labels = next((k for k in columns if len(pictures) == 1 or part[k] == part[key]), None)
        test = part_of(part[key][0]) if part[key] else None
        return Part(f"{path}: {key}", test, arrays[key], None if labels is None else arrays[labels])

    return joined([made(key) for key in pictures], how)


def read_idx(path: str | Path) -> np.ndarray:
    """An array in the idx format of MNIST (LeCun's page; big-endian header), gzipped or not.

    Raises:
        UserError: it is not one, or is cut short.
    """
    path = Path(path)
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    kinds = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in kinds:
        raise UserError(f"{path}: not an idx file", hint="Expected the format of MNIST's files.")
    shape = struct.unpack(f">{raw[3]}I", raw[4 : 4 + 4 * raw[3]])
    kind = np.dtype(kinds[raw[2]])
    expected, body = math.prod(shape) * kind.itemsize, raw[4 + 4 * raw[3] :]
    if len(body) != expected:
        raise UserError(
            f"{path}: {len(body)} bytes of numbers, its header says {expected}", hint="Copy the file again."
        )
    return np.frombuffer(body, kind).reshape(shape).astype(kind.newbyteorder("="))


def as_floats(pixels: np.ndarray) -> np.ndarray:
    """Pixels in 0..1 (floats as they are), channels first: (n, channels, height, width) float32."""
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).astype(np.float32) / np.float32(
        scale_of(str(pixels.dtype))
    )


def channel_statistics(
    images: ImageSet, which: np.ndarray | None = None, most: int = 5000
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(mean, deviation) per channel over at most `most` pictures, evenly taken, in the units of `as_floats`.

    Args:
        which: numbers of the pictures to take them from; default all.
    """
    which = np.arange(len(images)) if which is None else which
    which = which[:: max(1, -(-len(which) // most))]
    count = len(which) * images.size[0] * images.size[1]
    parts = list(chunks(len(which), 256))
    mean = sum(_floats(images.pixels[which[part]]).sum((0, 2, 3)) for part in parts) / count
    square = sum(
        ((_floats(images.pixels[which[part]]) - mean[:, None, None]) ** 2).sum((0, 2, 3)) for part in parts
    ) / count  # fmt: skip
    return tuple(map(float, mean)), tuple(float(d) if d > 1e-8 else 1.0 for d in np.sqrt(square))


def _floats(pixels: np.ndarray) -> np.ndarray:
    return as_floats(pixels).astype(np.float64)


def chunks(count: int, size: int) -> Iterator[slice]:
    """Slices that cut `count` things into parts of `size`."""
    return (slice(i, min(i + size, count)) for i in range(0, count, size))


def evenly(things: np.ndarray, most: int) -> np.ndarray:
    """At most `most` of the things, spread evenly over all of them: files come sorted by class.

    >>> evenly(np.arange(10), 4).tolist()
    [0, 3, 6, 9]
    """
    return things[np.linspace(0, len(things) - 1, min(most, len(things))).astype(int)]
