"""Pictures in files and folders: what a folder holds, and its files decoded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UserError, setting
from unmask.files import files_below
from unmask.modalities.images.formats.picture import Broken
from unmask.modalities.images.reading.array_files import idx_part, part_of
from unmask.modalities.images.reading.arrays import ImageSet, ReadOptions, joined
from unmask.modalities.images.reading.decode import decode_all
from unmask.modalities.images.reading.listing import File, Listing, list_files, skip, without
from unmask.modalities.images.reading.reader import is_picture
from unmask.modalities.images.reading.shards import build
from unmask.modalities.images.reading.streaming import Stream


def decode_files(files: Sequence[File], how: ReadOptions) -> ImageSet:
    """Read picture files: what they hold first, then pixels in one form; broken ones are named and left out."""
    listing = list_files(files, how)
    form = listing.form
    size = len(listing) * form.height * form.width * form.channels * np.dtype(form.depth).itemsize
    # Of tiles the uses of a model put pictures together again, for which they are in memory.
    tiled = form.view == "tile" and how.store is not None and how.store.folder is None
    if how.store is None or size <= how.store.most or tiled:
        listing, pixels, missing = _in_memory(listing, how)
    elif how.store.folder is None:
        stream = Stream(listing.sources, listing.counts.tolist(), form, choice=how.choice, workers=how.workers)
        pixels, missing = stream.pixels, stream.missing
    else:
        shards, broken = build(
            how.store.folder,
            listing.sources,
            listing.counts.tolist(),
            form,
            choice=how.choice,
            workers=how.workers,
            say=how.store.say,
        )
        pixels, missing = shards.pixels, shards.missing
        listing = _left(listing, broken, how.strict)
    return ImageSet(
        pixels=pixels,
        labels=listing.labels,
        classes=listing.classes,
        names=listing.names,
        test=listing.test,
        skipped=listing.skipped,
        missing=missing,
        groups=listing.groups,
        tiles=listing.tiles,
        notes=listing.notes,
    )


def _in_memory(listing: Listing, how: ReadOptions) -> tuple[Listing, Any, Any]:
    """(listing without broken files, pixels, masks of missing ones or None)."""
    form = listing.form
    pixels = np.empty((len(listing), form.height, form.width, form.channels), form.depth)
    missing: np.ndarray | None = None
    broken: dict[int, str] = {}
    at = 0
    for number, found in enumerate(decode_all(listing.sources, len(listing.sources), form, how.choice, how.workers)):
        if isinstance(found, Broken):
            broken[number] = found.reason
            continue
        for example in found:
            pixels[at] = example.pixels
            if example.missing is not None:
                missing = np.zeros(pixels.shape[:3], bool) if missing is None else missing
                missing[at] = example.missing
            at += 1
    return _left(listing, broken, how.strict), pixels[:at], None if missing is None else missing[:at]


def _left(listing: Listing, broken: dict[int, str], strict: bool) -> Listing:
    """The listing without files that turned out broken while they were decoded, by number; these are noted."""
    if not broken:
        return listing
    skipped: list[tuple[str, str]] = []
    starts = np.concatenate([[0], np.cumsum(listing.counts)])
    for number, reason in sorted(broken.items()):
        skip(listing.names[starts[number]].partition("#")[0], reason, strict, skipped)
    kept = ~np.isin(np.arange(len(listing.sources)), list(broken))
    return without(listing, kept, skipped)


def from_folder(folder: Path, how: ReadOptions) -> ImageSet:
    """The pictures of a folder: of idx files, of class folders or flat, of its training and test parts."""
    idx = sorted(p for p in folder.iterdir() if "images-idx" in p.name or "images.idx" in p.name)
    if idx:
        return joined([idx_part(p) for p in idx], how)
    parts, beside = _parts_of(folder)
    listed = [(root, *pictures_below(root)) for root in parts]
    found = [(f, root) for root, files, _ in listed for f in files]
    if not found:
        raise UserError(f"{folder}: no pictures in it", hint="Expected pictures, or folders of them, one per class.")
    inner = [f.relative_to(root).parts for f, root in found]
    classed = all(len(p) > 1 for p in inner)
    files = [
        File(
            source=str(f),
            name=str(f.relative_to(folder)),
            label=p[0] if classed else None,
            test=part_of(root.name) is True if root != folder else None,
            group=folder_group(f, root, how.group),
        )
        for (f, root), p in zip(found, inner, strict=True)
    ]
    images = decode_files(files, how)
    left = sum((Counter(more) for _, _, more in listed), Counter[str]())
    endings = ", ".join(f"{count} {ending}" for ending, count in left.most_common(8))
    notes = [f"left out as no pictures: {endings}"] if endings else []
    if parts != [folder]:
        held = [f"{root.name} ({len(files):,})" for root, files, _ in listed if part_of(root.name)]
        notes += [f"held apart from training: {', '.join(held)}"] if held else []
    if beside:
        notes.append(f"left out, beside the parts of the data set: {', '.join(beside)}")
    return replace(images, notes=[*images.notes, *notes])


def _parts_of(folder: Path) -> tuple[list[Path], list[str]]:
    """(the folders of the parts of a data set, such as train and test, or the folder itself where it has none; what
    stands beside them and is left out).
    """
    below = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    parts = [p for p in below if part_of(p.name) is not None]
    if not parts:
        return [folder], []
    counts = {p: len(pictures_below(p)[0]) for p in below if p not in parts}
    beside = [f"{p.name} ({count:,} pictures)" for p, count in counts.items() if count]
    if beside and {part_of(p.name) for p in parts} != {True, False}:
        raise UserError(
            f"{folder}: {parts[0].name} is the name of a part of a data set, and beside it is {beside[0]}",
            hint="Give the folder of one of them; name a class otherwise, or label pictures by a table.",
        )
    return parts, beside


def folder_group(file: Path, root: Path, group: str | None) -> str | None:
    """What a file belongs to by the folders it is in; None where nothing was asked."""
    if group is None:
        return None
    if group == "file":
        return str(file)
    if group == "folder":
        return str(file.parent)
    folders = file.relative_to(root).parts[:-1]
    if not group.isdigit() or not 1 <= int(group) <= max(len(folders), 1):
        raise UserError(
            f"group={group}, of files in folders",
            hint="Expected 'folder', 'file' or a folder level from 1 below the one given; a column's name is for "
            "tables.",
        )
    if not folders:
        raise UserError(
            f"{file}: in no folder below {root}",
            hint=f"{setting('group', group)} needs folders: one per patient or slide.",
        )
    return "/".join(folders[: int(group)])


def pictures_below(folder: Path) -> tuple[list[Path], list[str]]:
    """(pictures in a folder and those below it, sorted; endings of the files that are none). Nothing hidden.

    Arrays (.npy) are the pictures where there are no others.
    """
    files = [
        p
        for p in files_below(folder)
        if not any(part.startswith(".") for part in p.relative_to(folder).parts) and (p.is_file() or not p.exists())
    ]
    found = [p for p in files if is_picture(p)] or [p for p in files if p.suffix.lower() == ".npy"]
    taken = set(found)
    return found, [p.suffix.lower() or "without ending" for p in files if p not in taken]
