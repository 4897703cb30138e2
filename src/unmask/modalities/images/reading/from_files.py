"""Pictures in files, folders, tables, arrays on disk and Hugging Face datasets."""

from __future__ import annotations

import gzip
import math
import struct
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UserError, setting
from unmask.given import SPLIT_COLUMNS, split_named
from unmask.memory import refuse_more_than_memory
from unmask.modalities.images.formats.picture import DEFLATE, Broken, Source
from unmask.modalities.images.reading.arrays import (
    PLAIN,
    ArrayPart,
    ImageSet,
    ReadOptions,
    from_array,
    joined,
    refuse_unread,
)
from unmask.modalities.images.reading.decode import decode_all
from unmask.modalities.images.reading.label_table import (
    LABELS,
    groups_among,
    labels_among,
    parts_among,
    read_label_table,
)
from unmask.modalities.images.reading.layout import folder_group, mask_notes, part_named, parts_of, pictures_below
from unmask.modalities.images.reading.lazy import Stream, build
from unmask.modalities.images.reading.listing import File, Listing, list_files, skip
from unmask.modalities.images.reading.targets import Parsed, array_targets, number_classes, parse_cells
from unmask.names import individuals_unread, names_individuals


def decode_files(files: Sequence[File], how: ReadOptions) -> ImageSet:
    """Read picture files: what they hold first, then pixels in one form; broken ones are named and left out."""
    if how.inspect is not None:
        inspected: ImageSet = how.inspect(files, how)
        return inspected
    listing = list_files(files, how)
    form = listing.files.form
    # Of tiles the uses of a model put pictures together again, for which they are in memory.
    tiled = form.view == "tile" and how.store is not None and how.store.folder is None
    if how.store is None or len(listing.examples) * form.nbytes <= how.store.most or tiled:
        listing, pixels, missing = _in_memory(listing, how)
    elif how.store.folder is None:
        stream = Stream(listing.files)
        pixels, missing = stream.pixels, stream.missing
    else:
        shards, broken = build(how.store.folder, listing.files, say=how.store.say)
        pixels, missing = shards.pixels, shards.missing
        listing = _left(listing, broken, how.strict)
    return replace(listing.examples, pixels=pixels, missing=missing)


def _in_memory(listing: Listing, how: ReadOptions) -> tuple[Listing, Any, Any]:
    """(listing without broken files, pixels, masks of missing ones or None)."""
    form = listing.files.form
    pixels = np.empty((len(listing.examples), *form.shape), form.depth)
    missing: np.ndarray | None = None
    broken: dict[int, str] = {}
    at = 0
    for number, found in enumerate(decode_all(listing.files)):
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
    files = listing.files
    starts = np.concatenate([[0], np.cumsum(files.counts)])
    for number, reason in sorted(broken.items()):
        skip(listing.examples.names[starts[number]].partition("#")[0], reason, strict, skipped)
    kept = ~np.isin(np.arange(len(files)), list(broken))
    left = listing.examples.take(np.repeat(kept, files.counts))
    examples = replace(left, skipped=left.skipped + skipped)
    return Listing(files=files.part(np.flatnonzero(kept)), examples=examples)


def from_folder(folder: Path, how: ReadOptions) -> ImageSet:
    """The pictures of a folder: of idx files, of class folders or flat, of its training and test parts."""
    idx = sorted(p for p in folder.iterdir() if "images-idx" in p.name or "images.idx" in p.name)
    if idx:
        return joined([idx_part(p) for p in idx], how)
    parts, others = parts_of(folder)
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
            split=part_named(root.name) if root != folder else None,
            group=folder_group(f, root, how.group),
            found=True,
        )
        for (f, root), p in zip(found, inner, strict=True)
    ]
    images = decode_files(files, how)
    left = sum((Counter(more) for _, _, more in listed), Counter[str]())
    endings = ", ".join(f"{count} {ending}" for ending, count in left.most_common(8))
    notes = [f"left out as no pictures: {endings}"] if endings else []
    if parts != [folder]:
        held = [f"{root.name} ({len(files):,})" for root, files, _ in listed if part_named(root.name) != "train"]
        notes += [f"held apart from training: {', '.join(held)}"] if held else []
    if others:
        notes.append(f"left out, beside the parts of the data set: {', '.join(others)}")
    notes += mask_notes([file.name for file in files])
    return replace(images, notes=[*images.notes, *notes])


def from_table(path: Path, how: ReadOptions, columns: dict[str, list[Any]] | None = None) -> ImageSet:
    """Pictures that a table (a file, or the columns of a frame) names, with their labels."""
    if how.problem is None:
        raise UserError(
            f"{path}: a table of pictures and labels",
            hint="Tables are for fine-tuning and what follows it; give the folder of the pictures.",
        )
    if how.problem == "none":
        refuse_unread(how, f"{path}, of which labels are not read", "label_column")
    table = read_label_table(path, how, lambda file, root: folder_group(file, root, how.group), columns)
    found = decode_files(table.files, how)
    found = replace(_labelled(found, table.parsed), notes=[*found.notes, *table.notes])
    found = replace(found, label_column=",".join(table.labels) or None)
    return with_individuals(found, table.unread, table.parsed.classes)


def with_individuals(
    found: ImageSet, columns: Mapping[str, Sequence[Any]], labels: Sequence[Any] | None, *used: str | None
) -> ImageSet:
    """Pictures without groups, with a warning where a column but those `used` says whose they are."""
    left = {name: cells for name, cells in columns.items() if name not in used}
    notes = individuals_unread(left, labels or ()) if found.groups is None else []
    return replace(found, notes=[*found.notes, *notes])


def _labelled(found: ImageSet, parsed: Parsed) -> ImageSet:
    """Pictures whose classes are the numbers of their rows, with the labels of these rows."""
    assert found.labels is not None
    row = np.array([int(name) for name in found.classes])[found.labels]
    labels, classes = number_classes(None if parsed.classes is None else np.array(parsed.classes)[row])
    return replace(
        found, labels=labels, classes=classes, targets=None if parsed.targets is None else parsed.targets.take(row)
    )


def from_encoded(columns: dict[str, list[Any]], name: str, how: ReadOptions) -> ImageSet:
    """Pictures that a column of a table holds."""
    refuse_unread(how, f"{name}, which holds its pictures", "pictures")
    column = how.column or next((n for n in ("image", "img", "picture", "bytes") if n in columns), None)
    if column is None or column not in columns:
        raise UserError(
            f"{name}: no column {column or 'image'!r}",
            hint=f"Name it with {setting('column')}; there are {', '.join(columns)}.",
        )
    usual = (n for n in ("label", "labels", "class", "target") if n in columns)
    label_column = labels_among(columns, how) or next(usual, None)
    if label_column is not None and label_column not in columns:
        raise UserError(f"{name}: no column {label_column!r}", hint=f"There are {', '.join(columns)}.")
    labels = None if label_column is None else columns[label_column]
    found = from_cells(columns[column], labels, columns, name, how)
    found = replace(found, label_column=label_column)
    return with_individuals(found, {} if how.problem == "none" else columns, labels, column, label_column)


def from_cells(
    cells: list[Any], labels: list[Any] | None, columns: Mapping[str, Sequence[Any]], name: str, how: ReadOptions
) -> ImageSet:
    """Encoded pictures as bytes, or as Hugging Face writes them: {'bytes': ..., 'path': ...}. `columns`: which may say
    what part of a data set they are of, and their group."""
    groups, (_, parts, notes) = groups_among(columns, name, how), parts_among(columns)
    sources: list[Source] = []
    for number, cell in enumerate(cells):
        if isinstance(cell, dict):
            cell = cell.get("bytes") or cell.get("path")
        if not isinstance(cell, bytes | str):
            raise UserError(
                f"{name}: row {number} holds {type(cell).__name__}", hint="Expected an encoded picture (bytes)."
            )
        sources.append(cell)
    parsed = None
    if labels is not None and how.problem in ("auto", "multi", "regression"):
        parsed = parse_cells(labels, how.label_column or "label", how.problem)
        parsed = None if parsed.targets is None else parsed
    if parsed is not None:
        if parsed.bad:
            reasons = "; ".join(f"row {row}: {what}" for row, what in parsed.bad.items())
            raise UserError(
                f"{name}: {len(parsed.bad)} rows have no proper label: {reasons}", hint="Leave such rows out."
            )
        labels = list(range(len(cells)))
    if labels is not None and (empty := next((i for i, label in enumerate(labels) if label is None), None)) is not None:
        raise UserError(
            f"{name}: row {empty} has no label",
            hint=f"Leave such rows out, or name another column: {setting('label_column')}.",
        )
    files = [
        File(
            source=source,
            name=f"row {i}",
            label=None if labels is None else labels[i],
            split=None if parts is None else parts[i],
            group=None if groups is None else groups[i],
        )
        for i, source in enumerate(sources)
    ]
    found = decode_files(files, how)
    found = replace(found, notes=[*found.notes, *notes])
    return found if parsed is None else replace(_labelled(found, parsed), notes=[*found.notes, *parsed.notes])


def from_dataset(name: str, how: ReadOptions) -> ImageSet:
    """Pictures of a Hugging Face dataset, `NAME` or `NAME:SPLIT`."""
    try:
        import datasets
    except ImportError:
        raise UserError(f"hf:{name} needs the package 'datasets'", hint="Run: pip install 'unmask[datasets]'") from None
    name, _, split = name.partition(":")
    table = datasets.load_dataset(name, split=split or "train")
    column = how.column or next((k for k, v in table.features.items() if type(v).__name__ == "Image"), None)
    if column is None:
        raise UserError(
            f"hf:{name}: no column of pictures",
            hint=f"Name it with {setting('column')}; there are {list(table.features)}.",
        )
    usual = (n for n in ("label", "labels", "fine_label") if n in table.features)
    label_column = labels_among(table.features, how) or next(usual, None)
    cells = table.cast_column(column, datasets.Image(decode=False))[column]
    labels = None if label_column is None else list(table[label_column])
    if how.group is not None and how.group not in table.features:
        raise UserError(f"hf:{name}: no column {how.group!r}", hint=f"There are {list(table.features)}.")
    read = [n for n in table.column_names if n == how.group or n.lower() in SPLIT_COLUMNS or names_individuals(n)]
    others = {n: list(table[n]) for n in read}  # a column of other pictures would be decoded
    found = replace(from_cells(list(cells), labels, others, f"hf:{name}", how), label_column=label_column)
    return with_individuals(found, {} if how.problem == "none" else others, labels, label_column)


def read_numpy(path: Path, how: ReadOptions = PLAIN) -> ImageSet:
    """An .npy, or an .npz with one array of pictures or one for each part (x_train, x_test, y_train, y_test, ...)."""
    loaded = np.load(path, mmap_mode="r", allow_pickle=False)  # mapped: an array that is not all there is refused
    if isinstance(loaded, np.ndarray):
        refuse_more_than_memory(f"{path}: an array of shape {loaded.shape}", loaded.nbytes)
        return from_array(np.array(loaded), None, str(path), how)
    _check_members(path)
    arrays = {key: loaded[key] for key in loaded}
    part = {key: [w for w in key.lower().split("_") if split_named(w)] for key in arrays}
    rest = {key: [w for w in key.lower().split("_") if not split_named(w)] for key in arrays}
    pictures = [key for key, array in arrays.items() if array.ndim >= 3]
    if not pictures:
        raise UserError(f"{path}: no array of pictures among {', '.join(arrays)}", hint="Expected three or four axes.")
    if len(pictures) > 1 and any(not part[key] or rest[key] != rest[pictures[0]] for key in pictures):
        raise UserError(
            f"{path}: several arrays of pictures: {', '.join(pictures)}",
            hint="Keep one, or name them as parts of one set: x_train, x_test, y_train, y_test.",
        )

    def made(key: str) -> ArrayPart:
        fitting = [k for k in arrays if arrays[k].ndim < 3 and arrays[k].size == len(arrays[key])]
        columns = [k for k in fitting if len(pictures) == 1 or part[k] == part[key]]
        called = [k for k in columns if {"y", *LABELS}.intersection(rest[k])]
        if len(columns) > 1 and len(called) != 1 and how.problem not in (None, "none"):
            raise UserError(
                f"{path}: several arrays may be labels: {', '.join(columns)}", hint="Keep one, or call it y."
            )
        labels = next(iter(called or columns), None)
        split = split_named(part[key][0]) if part[key] else None
        return ArrayPart(f"{path}: {key}", split, arrays[key], None if labels is None else arrays[labels])

    def several(key: str) -> np.ndarray | None:
        of_part = [a for k, a in arrays.items() if a.ndim == 2 and (len(pictures) == 1 or part[k] == part[key])]
        return next((a for a in of_part if len(a) == len(arrays[key]) and np.isin(a, (0, 1)).all()), None)

    found = joined([made(key) for key in pictures], how)
    if found.labels is None and found.targets is None:
        flags = [flags for key in pictures if (flags := several(key)) is not None]
        if len(flags) == len(pictures) and how.problem is not None:
            return replace(found, targets=array_targets(np.concatenate(flags), how.problem))
    return found


def _check_members(path: Path) -> None:
    """Compare what the arrays of an .npz claim with what they unpack to, and that with the memory that is free."""
    total = 0
    with zipfile.ZipFile(path) as archive:
        for each in archive.infolist():
            with archive.open(each) as file:
                version = np.lib.format.read_magic(file)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, kind = read(file)
                claimed = math.prod(shape) * kind.itemsize
                if not kind.hasobject and (
                    claimed > each.file_size - file.tell() or each.file_size > DEFLATE * path.stat().st_size
                ):
                    raise UserError(
                        f"{path}: {each.filename}: its head says an array of {claimed:,} bytes, shape {shape}, and "
                        f"there are {each.file_size - file.tell():,}",
                        hint="Save the array again.",
                    )
            total += claimed
    refuse_more_than_memory(f"{path}: its arrays have {total:,} bytes", total)


def read_idx(path: str | Path) -> np.ndarray:
    """An array in the idx format of MNIST (LeCun's page; big-endian header), gzipped or not."""
    path = Path(path)
    packed = path.suffix.lower() == ".gz"
    kinds = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
    with gzip.open(path) if packed else path.open("rb") as file:
        head = file.read(4)
        if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in kinds:
            raise UserError(f"{path}: not an idx file", hint="Expected the format of MNIST's files.")
        shape = struct.unpack(f">{head[3]}I", file.read(4 * head[3]))
        kind = np.dtype(kinds[head[2]])
        expected = math.prod(shape) * kind.itemsize
        if expected <= path.stat().st_size * (DEFLATE if packed else 1):
            refuse_more_than_memory(f"{path}: numbers of shape {shape}", expected)
            body = file.read(expected + 1)
            if len(body) == expected:
                return np.frombuffer(body, kind).reshape(shape).astype(kind.newbyteorder("="))
    raise UserError(
        f"{path}: not the {expected:,} bytes of numbers that its header says, of shape {shape}",
        hint="Copy the file again.",
    )


def idx_part(path: Path) -> ArrayPart:
    """An idx file of pictures, with the labels file that stands beside it."""
    labels = _labels_of(path)
    return ArrayPart(str(path), split_named(path.name), read_idx(path), None if labels is None else read_idx(labels))


def _labels_of(path: Path) -> Path | None:
    """The labels file that belongs to an idx file of pictures."""
    for theirs, ours in (("images-idx3", "labels-idx1"), ("images", "labels")):
        other = path.with_name(path.name.replace(theirs, ours))
        if other != path and other.exists():
            return other
    return None
