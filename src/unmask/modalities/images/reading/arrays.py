"""Pictures as arrays: `ImageSet`, and the arrays it is made from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np

from unmask.errors import UserError, setting
from unmask.given import array_of
from unmask.modalities.images.formats.picture import Choice, Picture, either
from unmask.modalities.images.reading import decode
from unmask.modalities.images.reading.decode import Form, View, examples, fitted, fitting, places, with_channels
from unmask.modalities.images.reading.lazy import LazyArray, PictureStore
from unmask.modalities.images.reading.targets import Problem, Targets, labels_of, number_classes
from unmask.modalities.images.recipes import sides

KEPT_PART = 256e6
"""Bytes up to which a part taken from pictures on disk is read into memory."""
Size = int | tuple[int, int] | Callable[[list[tuple[int, int]]], tuple[int, int]] | None
"""What pictures are brought to: a side, (height, width), or a function of the (height, width) that there are; None
where they have one."""
FEW_CHANNELS = 4
"""An axis of at most this many entries is the channels, the last axis first."""


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """The places of tiles: number of each one's picture (`scene`), and `top` and `left` in pixels there; `names` and
    `sizes` (height, width) of the pictures that they were cut from."""

    scene: np.ndarray
    top: np.ndarray
    left: np.ndarray
    names: list[str]
    sizes: list[tuple[int, int]]

    def take(self, which: np.ndarray) -> Tiles:
        """Some of the tiles, in the order given."""
        return replace(self, scene=self.scene[which], top=self.top[which], left=self.left[which])


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """Pictures of one size and depth, in memory or, read like arrays part by part, on disk.

    Attributes:
        pixels: (pictures, height, width, channels), uint8, uint16 or float32: an array, or one on disk
            (`lazy.StoredArray`, `lazy.StreamedArray`); so is `missing`.
        labels: number of each picture's class, or None where there are no classes.
        classes: names of the classes.
        names: of the pictures: their path within the folder, or their number.
        split: the part of a data set of each (a folder, file, array or cell that says train, validation or test), or
            None.
        skipped: (name, reason) of pictures that could not be read.
        missing: (pictures, height, width), True where a pixel was not measured (it holds 0); None where all were.
        groups: (pictures,) names of what each belongs to (patient, slide, file), whose pictures no split parts;
            None where each is for itself.
        tiles: the place of each in the picture it was cut from; None where pictures are whole.
        notes: what was made of the files.
        targets: several labels or a number for each picture, where the label is not one class; `labels` is then None.
        label_column: the column of a table, or several with commas between, that labels were read from.
        fits: its depth and range were compared with those of the model it is for, or are known to fit.
    """

    pixels: np.ndarray
    labels: np.ndarray | None = None
    classes: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    split: np.ndarray | None = None
    skipped: list[tuple[str, str]] = field(default_factory=list)
    missing: np.ndarray | None = None
    groups: np.ndarray | None = None
    tiles: Tiles | None = None
    notes: list[str] = field(default_factory=list)
    targets: Targets | None = None
    label_column: str | None = None
    fits: bool = False

    def __len__(self) -> int:
        return len(self.pixels)

    def __repr__(self) -> str:
        height, width = self.size
        shown = f"{len(self):,} pictures of {height} x {width}, {self.channels} channels, {self.depth}"
        return f"ImageSet({shown}, {len(self.classes)} classes)" if self.classes else f"ImageSet({shown})"

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) in pixels, of all pictures."""
        return (int(self.pixels.shape[1]), int(self.pixels.shape[2]))

    @property
    def channels(self) -> int:
        """How many channels the pictures have."""
        return int(self.pixels.shape[3])

    @property
    def depth(self) -> str:
        """Type of their pixels, such as uint8 or float32."""
        return str(self.pixels.dtype)

    def take(self, which: np.ndarray) -> ImageSet:
        """Some of the pictures, in the order given."""
        return replace(
            self,
            pixels=_part(self.pixels, which),
            names=[self.names[i] for i in np.arange(len(self))[which]] if self.names else [],
            missing=None if self.missing is None else _part(self.missing, which),
            groups=None if self.groups is None else self.groups[which],
            tiles=None if self.tiles is None else self.tiles.take(which),
            **self._labels_of(which),
        )

    def _labels_of(self, which: np.ndarray) -> dict[str, Any]:
        """Labels, targets and split of some of the pictures, in the order given."""
        return {
            "labels": None if self.labels is None else self.labels[which],
            "targets": None if self.targets is None else self.targets.take(which),
            "split": None if self.split is None else self.split[which],
        }

    def part(self, *wanted: str) -> ImageSet | None:
        """The pictures of the first of these parts of a data set that has any; None where none has."""
        have = [] if self.split is None else [name for name in wanted if (self.split == name).any()]
        return self.take(np.flatnonzero(self.split == have[0])) if have else None

    def resized(self, size: int | tuple[int, int] | None) -> ImageSet:
        """The pictures at another size; None leaves them."""
        if size is None or self.size == sides(size) or not len(self):
            return self
        pixels, missing = resize_all(self.pixels, self.missing, sides(size))
        return replace(self, pixels=pixels, missing=missing, notes=[*self.notes, *fitting([self.size], sides(size))])

    def centred(self, size: tuple[int, int]) -> ImageSet:
        """The middle of every picture, at its own resolution; in memory."""
        rows, columns = (slice((n - m) // 2, (n - m) // 2 + m) for n, m in zip(self.size, size, strict=True))
        at = self.tiles
        tiles = at and replace(at, top=at.top + rows.start, left=at.left + columns.start)
        missing = None if self.missing is None else self.missing[:][:, rows, columns]
        return replace(self, pixels=self.pixels[:][:, rows, columns], missing=missing, tiles=tiles)

    def with_channels(self, channels: int | None) -> ImageSet:
        """Grey repeated into colours, or colours weighed to grey; None leaves them."""
        if channels is None or channels == self.channels:
            return self
        notes = [*self.notes, *decode.recoloured([self.channels] * len(self), channels)]
        return replace(self, pixels=to_channels(self.pixels, channels), notes=notes)


def _part(array: Any, which: np.ndarray) -> Any:
    """Some pictures, in the order given; many of a set on disk stay there."""
    if isinstance(array, LazyArray):
        found = array.part(which)
        return found if found.nbytes > KEPT_PART else found[:]
    return array[which]


def resize_all(
    pixels: Sequence[np.ndarray] | np.ndarray, missing: np.ndarray | None, size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray | None]:
    """Pictures at another size, and which of their pixels are missing there."""
    form = Form(height=size[0], width=size[1], channels=pixels[0].shape[-1], depth=str(pixels[0].dtype))
    found = [fitted(p, None if missing is None else missing[n], form) for n, p in enumerate(pixels)]
    return np.stack([p for p, _ in found]), _stacked([m for _, m in found], size)


def _stacked(missing: Sequence[np.ndarray | None], size: tuple[int, int]) -> np.ndarray | None:
    """(pictures, height, width) of each picture's missing pixels; None where nothing is missing in any."""
    if all(mask is None for mask in missing):
        return None
    return np.stack([np.zeros(size, bool) if mask is None else mask for mask in missing])


@dataclass(frozen=True, kw_only=True)
class ReadOptions(Choice):
    """How pictures are read; see `sources.read_images`."""

    size: Size = None
    depth: str | None = None
    workers: int | None = None
    strict: bool = False
    column: str | None = None
    label_column: str | None = None
    view: View = "shrink"
    overlap: int = 0
    group: str | None = None
    store: PictureStore | None = None
    problem: Problem | None = None
    pictures: str | None = None
    usual: Mapping[str, Any] = field(default_factory=dict)
    inspect: Any = None
    """What looks at files (`inspection.Inspection`) in place of decoding them into one form."""

    @property
    def choice(self) -> Choice:
        """How files are read that can be read in more than one way."""
        return Choice(**{f.name: getattr(self, f.name) for f in fields(Choice)})


PLAIN = ReadOptions()
OF_FILES = ("group", "column", "label_column", "pictures")
"""Options of files and of tables of them alone."""


def refuse_unread(how: ReadOptions, what: str, *names: str) -> None:
    """Refuse options that are not read for pictures of a kind (`what`)."""
    for name in names:
        if (value := getattr(how, name)) not in (getattr(PLAIN, name), how.usual.get(name)):
            raise UserError(f"{setting(name, value)} of {what}: nothing reads it", hint="Leave it out.")


def tile_size(how: ReadOptions) -> tuple[int, int]:
    """(height, width) of the tiles that are asked for."""
    if how.size is None or callable(how.size):
        raise UserError("tiles of no size", hint=f"Say how large they are, for example {setting('image_size', 224)}.")
    return sides(how.size)


def tiled(images: ImageSet, how: ReadOptions) -> ImageSet:
    """Pictures in memory cut into tiles of `how.size`."""
    height, width = tile_size(how)
    form = Form(
        height=height, width=width, channels=images.channels, depth=images.depth, view="tile", overlap=how.overlap
    )
    found = places(*images.size, form)
    which = np.repeat(np.arange(len(images)), len(found))
    unmeasured = [None] * len(images) if images.missing is None else images.missing
    pictures = (Picture(pixels=p, missing=m) for p, m in zip(images.pixels, unmeasured, strict=True))
    cut = [example for picture in pictures for example in examples(picture, form)]
    names = images.names or [str(n) for n in range(len(images))]
    tiles = Tiles(
        scene=which,
        top=np.tile([top for top, _ in found], len(images)),
        left=np.tile([left for _, left in found], len(images)),
        names=names,
        sizes=[images.size] * len(images),
    )
    groups = np.arange(len(images)) if images.groups is None else images.groups
    return replace(
        images,
        pixels=np.stack([c.pixels for c in cut]),
        missing=_stacked([c.missing for c in cut], (height, width)),
        groups=groups[which],
        tiles=tiles,
        names=[f"{names[n]}#y={tiles.top[k]},x={tiles.left[k]}" for k, n in enumerate(which)],
        **images._labels_of(which),
    )


def from_array(pixels: Any, labels: Any = None, name: str = "array", how: ReadOptions = PLAIN) -> ImageSet:
    """Pictures of an array or tensor: (n, height, width), (n, height, width, channels) or (n, channels, height, width).

    (3, height, width) for three channels may be one picture or three, and is refused without labels.
    """
    pixels = as_array(pixels)
    refuse_unread(how, f"{name}, an array", "alpha")
    # For a model of colours three grey pictures may be one in torchvision's order; labels would say how many there are.
    leading = labels is None and len(pixels) == how.channels != 1
    if pixels.ndim == 3 and (pixels.shape[-1] in (3, 4) or leading):
        raise UserError(
            f"{name} has shape {pixels.shape}: one picture in colour, or {len(pixels)} grey ones?",
            hint="Give one picture as array[None], grey ones as array[..., None].",
        )
    pixels = pixels[..., None] if pixels.ndim == 3 else pixels
    if pixels.ndim != 4 or 0 in pixels.shape[1:]:
        raise UserError(
            f"{name} has shape {pixels.shape}",
            hint="Expected (pictures, height, width), (…, height, width, channels) or (…, channels, height, width).",
        )
    return _image_set(_channels_last(pixels, name, how.channels), labels, name, how)


def from_list(pictures: Sequence[Any], how: ReadOptions = PLAIN) -> ImageSet:
    """A list of arrays, (height, width), (height, width, channels) or (channels, height, width), brought to one size;
    among coloured ones grey ones are repeated into colours.
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
    most = max(p.shape[-1] for p in planes)
    notes = decode.recoloured([p.shape[-1] for p in planes], most)
    each = [_image_set(to_channels(p, most)[None], None, f"picture {i}", how) for i, p in enumerate(planes)]
    if how.view == "tile":
        return _tiles_of(each, notes, how)
    size = common_size([(f"picture {i}", p.shape[0], p.shape[1]) for i, p in enumerate(planes)], how.size)
    each = [e.resized(size) for e in each]
    missing = _stacked([None if e.missing is None else e.missing[0] for e in each], size)
    notes = fitting([p.shape[:2] for p in planes], size) + notes
    return ImageSet(pixels=np.concatenate([e.pixels for e in each]), missing=missing, notes=notes)


def _tiles_of(each: Sequence[ImageSet], notes: list[str], how: ReadOptions) -> ImageSet:
    """The tiles of pictures of any size, a set of one each."""
    cut = [tiled(replace(e, names=[str(number)]), how) for number, e in enumerate(each)]
    parts = [c.tiles for c in cut if c.tiles is not None]
    counts, size = [len(c) for c in cut], cut[0].size
    missing = _stacked([None if c.missing is None else c.missing[k] for c in cut for k in range(len(c))], size)
    scene = np.repeat(np.arange(len(cut)), counts)
    top, left = (np.concatenate([getattr(p, name) for p in parts]) for name in ("top", "left"))
    names, sizes = [n for p in parts for n in p.names], [s for p in parts for s in p.sizes]
    return ImageSet(
        pixels=np.concatenate([c.pixels for c in cut]),
        missing=missing,
        names=[name for c in cut for name in c.names],
        groups=scene,
        tiles=Tiles(scene=scene, top=top, left=left, names=names, sizes=sizes),
        notes=notes,
    )


class ArrayPart(NamedTuple):
    """One array of several that make up a data set."""

    name: str
    split: str | None
    pixels: np.ndarray
    labels: np.ndarray | None


def joined(parts: Sequence[ArrayPart], how: ReadOptions = PLAIN) -> ImageSet:
    """Arrays of one data set as one: classes are numbered over all of them, their parts (train, test) stay known."""
    sets = [from_array(p.pixels, p.labels, p.name, how) for p in parts]
    size = common_size([(p.name, *s.size) for p, s in zip(parts, sets, strict=True)], how.size)
    sets = [s.resized(size) for s in sets]
    if len({(s.channels, s.depth) for s in sets}) > 1:
        depths = ", ".join(f"{p.name} has {s.channels} of {s.depth}" for p, s in zip(parts, sets, strict=True))
        raise UserError(f"channels differ: {depths}", hint="Give files of one kind.")
    raw = [p.labels for p in parts if p.labels is not None]
    whole = np.concatenate([r.ravel() for r in raw]) if len(raw) == len(parts) else None
    given = labels_of(whole, how.problem)
    known = {p.split for p in parts} > {"train"} and all(p.split for p in parts)
    missing = None
    if any(s.missing is not None for s in sets):
        missing = np.concatenate([np.zeros(s.pixels.shape[:3], bool) if s.missing is None else s.missing for s in sets])
    return ImageSet(
        pixels=np.concatenate([s.pixels for s in sets]),
        labels=given.numbers,
        classes=given.classes,
        missing=missing,
        notes=list(dict.fromkeys([*(note for s in sets for note in s.notes), *given.notes])),
        targets=given.targets,
        split=np.repeat([p.split for p in parts], [len(s) for s in sets]) if known else None,
    )


def as_array(data: Any) -> np.ndarray:
    """An array or tensor as an array, a masked one as it is; of booleans, black and white."""
    array = data if isinstance(data, np.ma.MaskedArray) else array_of(data)
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
            hint=f"Say how many there are: {setting('channels')}.",
        )
    return pixels.transpose(0, 2, 3, 1) if leading else pixels


def _image_set(pixels: np.ndarray, labels: Any, name: str, how: ReadOptions) -> ImageSet:
    """(n, height, width, channels) of any numbers, in 8 or 16 bits or float32; what is masked, NaN or `how.nodata` is
    missing."""
    refuse_unread(how, f"{name}, an array", "planes", "slice", *OF_FILES)
    depth, masked = how.depth, np.ma.is_masked(pixels)
    missing = np.asarray(np.ma.getmaskarray(pixels).any(-1)) if masked else None
    pixels = np.ma.filled(pixels, 0)
    if how.nodata is not None:
        missing = either(missing, (pixels == how.nodata).any(-1))
    if pixels.dtype.kind == "f":
        # A nodata value is often the largest negative float: compared before it is cut to 32 bits.
        pixels = pixels.astype(np.float32, copy=False)
        missing = either(missing, np.isnan(pixels).any(-1))
        _refuse_infinity(pixels, missing, name)
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
        labels = array_of(labels).ravel()
        if len(labels) != len(pixels):
            raise UserError(f"{name}: {len(pixels)} pictures and {len(labels)} labels", hint="Give one label each.")
    numbers, classes = number_classes(labels)
    pixels, notes = np.ascontiguousarray(pixels), []
    if missing is not None:
        pixels = np.where(missing[..., None], np.zeros((), pixels.dtype), pixels)
        some = int(missing.any((1, 2)).sum())
        notes = [f"{missing.mean():.1%} of the pixels missing, in {some} of {len(pixels)} pictures"]
    return ImageSet(pixels=pixels, labels=numbers, classes=classes, missing=missing, notes=notes)


def _refuse_infinity(pixels: np.ndarray, missing: np.ndarray | None, name: str) -> None:
    infinite = np.isinf(pixels)
    if missing is not None:
        infinite &= ~missing[..., None]
    bad = infinite.reshape(len(pixels), -1).any(1)
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        row, column, channel = (int(i[0]) for i in np.nonzero(infinite[first]))
        raise UserError(
            f"{name}: picture {first} has {pixels[first, row, column, channel]} at row {row}, column {column}, channel "
            f"{channel} ({int(bad.sum())} such pictures)",
            hint=f"Leave these pictures out, or put numbers in; NaN and {setting('nodata')} mark missing pixels.",
        )


def to_channels(pixels: np.ndarray, channels: int) -> np.ndarray:
    """`decode.with_channels`; a UserError where the channels do not go together."""
    try:
        return with_channels(pixels, channels)
    except ValueError as error:
        raise UserError(f"pictures with {error}", hint="Give pictures with as many channels.") from None


def common_size(found: Sequence[tuple[str, int, int]], size: Size) -> tuple[int, int]:
    """(height, width) that pictures, (name, height, width), are brought to; refused where they differ and none is
    said."""
    known = sorted({f[1:] for f in found})
    if callable(size):
        return size(known)
    if size is not None:
        return sides(size)
    if len(known) == 1:
        return known[0]
    first, other = found[0], next(f for f in found if f[1:] != found[0][1:])
    raise UserError(
        f"pictures of {len(known)} sizes: {first[0]} has {first[2]} x {first[1]} pixels, {other[0]} has {other[2]} x "
        f"{other[1]}",
        hint=f"Say which size to bring them to, for example {setting('image_size', min(known[len(known) // 2]))}.",
    )


def some_pictures(images: ImageSet, most: int, seed: int) -> ImageSet:
    """At most so many pictures, drawn at random; of pictures cut into tiles all tiles of those drawn."""
    generator = np.random.default_rng(seed)
    if images.tiles is None:
        return images.take(generator.permutation(len(images))[:most])
    drawn = generator.permutation(np.unique(images.tiles.scene))[:most]
    return images.take(np.flatnonzero(np.isin(images.tiles.scene, drawn)))


def content_digest(images: ImageSet) -> list[Any]:
    """How many pictures there are, and a digest of some 256 of them, for telling data sets apart."""
    step = max(1, len(images) // 256)
    content = hashlib.sha256(np.ascontiguousarray(images.pixels[::step]).tobytes())
    if images.missing is not None:
        content.update(np.packbits(images.missing[::step]).tobytes())
    return [len(images), content.hexdigest()]


def picture_count(images: ImageSet) -> int:
    """How many pictures there are, of tiles those they were cut from."""
    return len(images) if images.tiles is None else len(np.unique(images.tiles.scene))
