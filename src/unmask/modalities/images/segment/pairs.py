"""Pictures and their masks, read together."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UserError, first_of
from unmask.files import are_files, check_there
from unmask.given import array_of
from unmask.modalities.images.formats.everyday import turned
from unmask.modalities.images.formats.picture import LYING, Choice
from unmask.modalities.images.reading.arrays import ImageSet, ReadOptions
from unmask.modalities.images.reading.from_files import decode_files
from unmask.modalities.images.reading.layout import folder_group, pictures_below
from unmask.modalities.images.reading.listing import File
from unmask.modalities.images.segment.crops import without
from unmask.modalities.images.segment.legend import Legend
from unmask.modalities.images.segment.masks import Masks, Problem, RawMask, find_masks, masks_of, raw_mask, read_masks
from unmask.modalities.images.segment.quantity import Quantity
from unmask.modalities.images.segment.scenes import WholePicture, whole_pictures

GEOREFERENCE = (33550, 33922, 34264, 34735, 34736, 34737, 282, 283, 296)
"""Tags that say where the pixels of a TIFF lie (GeoTIFF 1.1, annex B), and how large they are."""
SHOWN = 10
"""Pictures that a message names."""
INVERTED = 0.3
"""Of two classes a mask may be inverted where the usual shares of the two differ by more than this, and the share of
the second lies within a quarter of that difference of the usual one of the first."""


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Pictures with their masks, (height, width) int16 numbers of classes or float32 quantities; what these mean and
    what is to be said of them; (name, reason) of pictures that could not be read; names of those without a mask."""

    pairs: list[tuple[WholePicture, np.ndarray]]
    legend: Legend | Quantity
    notes: list[str]
    skipped: list[tuple[str, str]]
    without: list[str]


def read_pairs(
    model: Any,
    images: Any,
    masks: Any,
    *,
    ignore: str | int | None = "auto",
    legend: Legend | Quantity | None = None,
    problem: Problem = "auto",
    group: str | None = None,
    reading: dict[str, Any] | None = None,
) -> Pairs:
    """Read pictures and masks.

    Args:
        model: the `ImageModel` that says how pictures are read.
        images: a folder, files, or what else `read_images` takes.
        masks: a folder, of pictures in files; else arrays in the order of the pictures.
        legend, problem: what masks hold; see `masks.read_masks`.
        reading: how files are read; see `sources.read_images`.

    Raises:
        UserError: naming the pictures, of masks of another size, or of other pictures.
    """
    if isinstance(masks, str | Path):
        if not are_files(images):
            raise UserError("masks in files of pictures that are none", hint="Give both in files, or both as arrays.")
        how: dict[str, Any] = {"ignore": ignore, "legend": legend, "problem": problem}
        found, known, rest, turns = _from_files(model, images, masks, how, group, reading or {})
    else:
        found, known = _from_memory(model, images, masks, ignore=ignore, legend=legend, problem=problem)
        rest, turns = [], {}
    pairs, used = [], dict.fromkeys(known.of, 0)
    wrong: list[str] = []
    for whole in whole_pictures(found):
        file = whole.name if whole.name in known.of else whole.name.partition("#")[0]
        place, there = used[file], known.of[file]
        used[file] += 1
        if place >= len(there):
            continue
        mask = there[place]
        if mask.shape != whole.pixels.shape[:2]:
            (high, wide), (height, width) = mask.shape, whole.pixels.shape[:2]
            stored = turns.get(whole.name, 1) >= LYING and (high, wide) == (width, height)
            end = ", the size before the picture was turned as its EXIF data say" if stored else ""
            wrong.append(f"{whole.name} has {width} x {height} pixels, its mask {wide} x {high}{end}")
        if whole.missing is not None:
            mask = without(mask, whole.missing) if mask.shape == whole.missing.shape else mask
        pairs.append((whole, mask))
    counts = [f"{n}: {used[n]} pictures, {len(m)} masks" for n, m in known.of.items() if used[n] and used[n] != len(m)]
    if wrong or counts:
        named = first_of([*wrong, *counts], SHOWN, between="; ")
        raise UserError(
            f"{len(wrong) + len(counts)} masks do not fit their pictures: {named}",
            hint="Every pixel of a picture has one in its mask: save masks at the size of the pictures as they are "
            "shown, not resampled.",
        )
    if not pairs:
        reasons = f": {found.skipped[0][0]}: {found.skipped[0][1]}" if found.skipped else ""
        raise UserError(f"no picture with a mask could be read{reasons}", hint="Give pictures that can be opened.")
    notes = [*found.notes, *known.notes, *known.legend.lines([m for _, m in pairs])]
    notes += [*_turned_notes(pairs, turns), *_inverted_notes(pairs, known.legend)]
    if rest:
        notes.append(f"{len(rest):,} pictures without a mask are left out")
    return Pairs(pairs=pairs, legend=known.legend, notes=notes, skipped=found.skipped, without=rest)


def _from_files(
    model: Any,
    images: Any,
    masks: str | Path,
    how: dict[str, Any],
    group: str | None,
    reading: dict[str, Any],
) -> tuple[ImageSet, Masks, list[str], dict[str, int]]:
    root, names = listed(images, masks)
    where = find_masks(names, masks)
    lost = [name for name, files in where.files.items() if any(_elsewhere(root / name, file) for file in files)]
    if lost:
        raise UserError(
            f"{len(lost)} masks lie elsewhere than their pictures, or on another grid: {first_of(lost, SHOWN)}",
            hint="Save them on the pictures' grid, or without a georeference.",
        )
    known = read_masks(where, masks, choice=choice_of(model, reading), **how)
    found = read_files(model, root, list(where.files), group=group, reading=reading)
    return found, known, where.without, {name: turn for name in where.files if (turn := turned(str(root / name))) > 1}


def tags_of_place(picture: Path) -> list[tuple[int, int, int, Any, bool]]:
    """Those of a TIFF that say where its pixels lie, as tifffile writes them."""
    import tifffile

    if picture.suffix.lower() not in (".tif", ".tiff"):
        return []
    with tifffile.TiffFile(picture) as file:
        first: Any = file.pages[0]
        return [(t.code, int(t.dtype), t.count, t.value, True) for t in first.tags if t.code in GEOREFERENCE]


def _elsewhere(picture: Path, mask: Path) -> bool:
    """Whether the georeference of a mask is another one than that of its picture: its scale and tie point, or affine,
    by a hundredth of a pixel."""
    first, second = ({t[0]: np.atleast_1d(t[3]) for t in tags_of_place(path)} for path in (picture, mask))
    for code in (33550, 33922, 34264):
        if code in first and code in second:
            scale = first.get(33550, first[code])
            near = 0.01 * np.abs(scale[scale != 0]).min(initial=1.0)
            if first[code].shape != second[code].shape or (np.abs(first[code] - second[code]) > near).any():
                return True
    return False


def choice_of(model: Any, reading: dict[str, Any]) -> Choice:
    """How files are read that can be read in more than one way: as the model's training pictures were, or as said."""
    names = {f.name for f in dataclasses.fields(Choice)} - {"channels"}
    return Choice(**{name: value for name, value in (model.folder.reading | reading).items() if name in names})


def read_files(
    model: Any, root: Path, names: Sequence[str], *, group: str | None = None, reading: dict[str, Any] | None = None
) -> ImageSet:
    """Pictures in files at their own resolution, in tiles, as the model's training pictures were read."""
    usual = dict(model.folder.reading)
    given = dict(reading or {})
    rescale = bool(given.pop("rescale", False))
    own = {"size": model.config.image, "channels": model.config.channels, "view": "tile", "overlap": 0}
    how = ReadOptions(**{**usual, **given, **own, "usual": usual})
    files = [
        File(source=str(root / name), name=name, group=folder_group(root / name, root, group), found=True)
        for name in names
    ]
    found: ImageSet = model.read(decode_files(files, how), rescale=rescale, view="tile", overlap=0)
    return found


def listed(images: Any, masks: str | Path | None = None) -> tuple[Path, list[str]]:
    """(folder, paths within it) of the pictures of a folder, a file or several, less those in the folder of masks."""
    given = [images] if isinstance(images, str | Path) else list(images)
    for path in given:
        check_there(path, "a folder of pictures, or pictures")
    paths = [Path(p).expanduser() for p in given]
    if len(paths) == 1 and paths[0].is_dir():
        root, found = paths[0], pictures_below(paths[0])[0]
    else:
        found = [f for p in paths for f in (pictures_below(p)[0] if p.is_dir() else [p])]
        root = Path(os.path.commonpath([f.parent for f in found])) if found else Path()
    mask_folder = None if masks is None else Path(masks).expanduser().resolve()
    if mask_folder is not None and mask_folder != root.resolve():
        found = [f for f in found if mask_folder not in f.resolve().parents]
    if not found:
        raise UserError(f"{first_of(given)}: no pictures", hint="Give a folder of pictures, or pictures.")
    return root, [str(f.relative_to(root)) for f in found]


def _from_memory(model: Any, images: Any, masks: Any, **how: Any) -> tuple[ImageSet, Masks]:
    found: ImageSet = model.read(images, view="tile", overlap=0, problem="none")
    assert found.tiles is not None
    names = found.tiles.names
    given = [array_of(mask) for mask in masks]
    if len(given) != len(names):
        raise UserError(f"{len(names)} pictures and {len(given)} masks", hint="Give a mask for each picture.")
    raw: dict[str, list[RawMask]] = {}
    for name, mask in zip(names, given, strict=True):
        if mask.ndim == 3 and mask.shape[-1] not in (1, 3):
            raise UserError(
                f"the mask of picture {name} has shape {mask.shape}",
                hint="Expected (height, width) numbers of classes.",
            )
        raw[name] = [raw_mask(f"the mask of picture {name}", mask if mask.ndim == 3 else mask[..., None])]
    return found, masks_of(raw, "the arrays", **how)


def _turned_notes(pairs: Sequence[tuple[WholePicture, np.ndarray]], turns: dict[str, int]) -> list[str]:
    """A line on pictures that EXIF turns, where no size tells that their masks were drawn on the turned ones."""
    some = [whole for whole, _ in pairs if whole.name in turns]
    if not some or any(turns[w.name] >= LYING and w.pixels.shape[0] != w.pixels.shape[1] for w in some):
        return []
    named = first_of([whole.name for whole in some], SHOWN)
    return [
        f"warning: {len(some):,} pictures are turned as their EXIF data say, and sizes do not tell whether their masks "
        f"are too: masks drawn on the pictures as they are stored would be wrong ({named})"
    ]


def _inverted_notes(pairs: Sequence[tuple[WholePicture, np.ndarray]], legend: Legend | Quantity) -> list[str]:
    """A line on masks of two classes in which these may have changed places."""
    if isinstance(legend, Quantity) or len(legend.names) != 2 or len(pairs) < 3:
        return []
    each = np.array([legend.shares([mask])[legend.names[1]] for _, mask in pairs])
    usual = float(np.median(each))
    far = abs(1 - 2 * usual)
    if far <= INVERTED:
        return []
    odd = np.flatnonzero(np.abs(each - (1 - usual)) <= far / 4).tolist()
    if not odd:
        return []
    named = first_of([f"{pairs[n][0].name} ({each[n]:.0%})" for n in odd], SHOWN)
    return [
        f"warning: {len(odd):,} masks may be inverted: {legend.names[1]} is {usual:.0%} of a usual one, here: {named}"
    ]
