"""Pictures from wherever they are: arrays, folders, idx, npy, npz, parquet, Hugging Face datasets -> `ImageSet`."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from unmask.errors import UserError, setting
from unmask.files import files_below
from unmask.given import array_of
from unmask.modalities.images.array_files import part_of, read_idx, read_numpy
from unmask.modalities.images.arrays import (
    ImageSet,
    Part,
    Reading,
    as_array,
    from_array,
    from_list,
    joined,
    number_classes,
    tiled,
)
from unmask.modalities.images.decode import View, decode_all
from unmask.modalities.images.formats import everyday
from unmask.modalities.images.label_table import FILES, is_label_table, read_label_table
from unmask.modalities.images.listing import File, Listing, list_files, skip, without
from unmask.modalities.images.picture import Alpha, Broken, Slice, Source
from unmask.modalities.images.reader import is_picture
from unmask.modalities.images.shards import Store, build
from unmask.modalities.images.streaming import Stream
from unmask.modalities.images.targets import Parsed, Problem, array_targets, parse_cells


def read_images(
    data: Any,
    *,
    size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    depth: str | None = None,
    workers: int | None = None,
    strict: bool = False,
    column: str | None = None,
    label_column: str | None = None,
    planes: str | int | None = None,
    alpha: Alpha | None = None,
    nodata: float | None = None,
    slice: Slice = "axial",
    view: View = "shrink",
    overlap: int = 0,
    group: str | None = None,
    store: Store | None = None,
    problem: Problem | None = None,
    pictures: str | None = None,
) -> ImageSet:
    """Read pictures, all brought to one size.

    Args:
        data: an array or tensor ((n, h, w), (n, h, w, c) or (n, c, h, w)), a pair (pictures, labels), a list of
            pictures (arrays, Pillow's, encoded ones; a generator of them), an `ImageSet`, a folder (class folders or
            flat), a picture, .npy, .npz, .idx(.gz), .parquet, `hf:NAME[:SPLIT]`, a list of files, or a frame with what
            a table in a file would hold.
        size: pictures are brought to it; None demands that all have the same size.
        channels: 1 or 3 of grey and coloured files; None takes 3 where any is coloured. Of an array, and of .npy files,
            it tells which axis they are.
        depth: of an array of whole numbers that are not 8 or 16 bits wide; None takes 8 bits where they fit.
        strict: a picture that cannot be read is an error instead of being skipped.
        planes, alpha, nodata, slice: see `picture.Choice`.
        view, overlap: 'tile' cuts pictures into pieces of `size` at their own resolution; see `decode.Form`.
        group: what pictures belong to that must not be split: 'folder' (the one a file is in), a folder level from 1
            below the one given, or a column of a table. None: the patient of DICOM files, and the file where it gives
            several.
        store: where pictures of files go that are too many for memory; None keeps all in memory.
        problem: what the labels of a table (.csv, .tsv, .parquet of paths) or of a pair are; see `targets.Problem`.
            None refuses tables of paths, and takes labels of a pair as classes.
        pictures: the folder that the paths of a table are relative to; None: the table's own.

    Raises:
        UserError: naming the file or picture at fault.
    """
    how = Reading(
        size=size,
        channels=channels,
        depth=depth,
        workers=workers,
        strict=strict,
        column=column,
        label_column=label_column,
        planes=planes,
        alpha=alpha,
        nodata=nodata,
        slice=slice,
        view=view,
        overlap=overlap,
        group=group,
        store=store,
        problem=problem,
        pictures=pictures,
    )
    if overlap and view != "tile":
        raise UserError(
            f"overlap={overlap} of pictures that are read whole", hint=f"Tiles overlap: say {setting('view', 'tile')}."
        )
    found = _read(_plain(data), how)
    if not len(found):
        told = f": {found.skipped[0][0]}: {found.skipped[0][1]}" if found.skipped else ""
        raise UserError(f"{_named(data)}: no picture could be read{told}", hint="Give pictures that can be opened.")
    if view == "tile" and found.tiles is None:
        found = tiled(found, how)
    return found.resized(size).with_channels(channels)


def _plain(data: Any) -> Any:
    """Data in memory as what its file would be: columns of a frame as a dict, series and iterators as lists, Pillow's
    pictures as arrays."""
    import narwhals as nw

    if isinstance(data, str | Path | ImageSet | dict) or hasattr(data, "detach"):
        return data
    if isinstance(data, Image.Image):
        return [everyday.pixels_of(data)]
    native = nw.from_native(data, allow_series=True, pass_through=True)
    if isinstance(native, nw.DataFrame):
        return {name: native[name].to_list() for name in native.columns}
    if isinstance(native, nw.Series):
        return _plain(native.to_list())
    if isinstance(data, np.ndarray):
        return _plain(data.ravel().tolist()) if data.dtype.kind in "OSU" else data
    if isinstance(data, Iterator):
        data = list(data)
    if isinstance(data, tuple) and len(data) == 2 and not isinstance(data[0], str | Path):
        return (_plain(data[0]), data[1])
    if isinstance(data, list | tuple):
        return [everyday.pixels_of(one) if isinstance(one, Image.Image) else one for one in data]
    return data


def _read(data: Any, how: Reading) -> ImageSet:
    """Pictures of `_plain` data.

    Raises:
        UserError: it is none of the kinds that hold pictures.
    """
    if isinstance(data, ImageSet):
        return data
    if isinstance(data, tuple):
        return _from_pair(data[0], data[1], how)
    if isinstance(data, dict):
        return _from_columns(data, how)
    if hasattr(data, "shape"):
        return from_array(data, how=how)
    kinds = {type(one) for one in data} if isinstance(data, list) else {type(data)}
    if isinstance(data, list) and data and all(hasattr(one, "shape") for one in data):
        return from_list(data, how)
    if kinds and kinds <= {bytes}:
        return _from_cells(data, None, None, "data", how)
    if all(issubclass(kind, str | Path) for kind in kinds):
        return _from_paths(data, how)
    raise UserError(
        f"pictures of type {', '.join(sorted(kind.__name__ for kind in kinds))}",
        hint="Give a folder, files, an array, or a list of arrays, of Pillow's pictures or of paths.",
    )


def _from_columns(columns: dict[str, list[Any]], how: Reading) -> ImageSet:
    """The table that a frame holds, as its file would be read."""
    name = next((n for n in columns if n == how.column or (how.column is None and n.lower() in FILES)), None)
    first = None if name is None else next((c for c in columns[name] if c is not None), None)
    if name is None or isinstance(first, str | Path):
        return _from_table(Path("the table"), how, columns)
    if not isinstance(first, bytes | dict):
        return _read(_plain([None if c is None else as_array(c) for c in columns[name]]), how)
    return _from_encoded(columns, "the table", how)


def _from_pair(pixels: Any, labels: Any, how: Reading) -> ImageSet:
    labels = array_of(labels)
    row = None
    if isinstance(pixels, list) and pixels and all(isinstance(one, str | Path) for one in pixels):
        paths = [Path(one).expanduser() for one in pixels]
        files = [
            File(source=str(p), name=str(p), label=n, group=_folder_group(p, p.parent, how.group))
            for n, p in enumerate(paths)
        ]
        found = decode_files(files, how)
        assert found.labels is not None
        row = np.array([int(name) for name in found.classes])[found.labels]
        count = len(pixels)
    else:
        found = _read(pixels, how)
        count = len(found)
    if len(labels) != count:
        raise UserError(f"{count} pictures and {len(labels)} labels", hint="Give labels for each picture.")
    labels = labels if row is None else labels[row]
    targets = array_targets(labels, how.problem)
    numbers, classes = number_classes(None if targets is not None or how.problem == "none" else labels.ravel())
    return replace(found, targets=targets, labels=numbers, classes=classes)


def _named(data: Any) -> str:
    return (
        ", ".join(map(str, data))
        if isinstance(data, list | tuple)
        else str(data)
        if isinstance(data, str | Path)
        else "data"
    )


# Files


def _from_paths(data: Any, how: Reading) -> ImageSet:
    items = [data] if isinstance(data, str | Path) else list(data)
    if not items:
        raise UserError("no pictures given", hint="Give a folder, files or an array.")
    if len(items) == 1 and str(items[0]).startswith("hf:"):
        return _from_dataset(str(items[0])[3:], how)
    paths = [Path(item).expanduser() for item in items]
    for path in paths:
        if not path.exists():
            raise UserError(
                f"{path}: no such file or folder", hint="Give a folder, pictures, .npy, .idx.gz or .parquet."
            )
    if len(paths) == 1 and paths[0].is_file() and not is_picture(paths[0]):
        return _from_file(paths[0], how)
    if len(paths) == 1 and paths[0].is_dir():
        return _from_folder(paths[0], how)
    below = [(f, p) for p in paths for f in (_pictures_below(p)[0] if p.is_dir() else [p])]
    files = [
        File(source=str(f), name=str(f), group=_folder_group(f, p if p.is_dir() else p.parent, how.group))
        for f, p in below
    ]
    return decode_files(files, how)


def _from_file(path: Path, how: Reading) -> ImageSet:
    name = path.name.lower()
    try:
        if name.endswith((".npy", ".npz")):
            return read_numpy(path, how)
        if (how.problem is not None or not name.endswith(".parquet")) and is_label_table(path, how.column):
            return _from_table(path, how)
        if name.endswith(".parquet"):
            return _from_parquet(path, how)
        if "idx" in name or "ubyte" in name:
            return joined([_idx_part(path)], how)
    except (OSError, ValueError, EOFError, struct.error, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({error})", hint="The file is damaged or of another kind.") from None
    raise UserError(
        f"{path}: not a kind of file that holds pictures", hint="Known: pictures, .npy, .npz, .idx(.gz), .parquet."
    )


def _from_table(path: Path, how: Reading, columns: dict[str, list[Any]] | None = None) -> ImageSet:
    """Pictures that a table (a file, or the columns of a frame) names, with their labels."""
    if how.problem is None:
        raise UserError(
            f"{path}: a table of pictures and labels",
            hint="Tables are for fine-tuning and what follows it; give the folder of the pictures.",
        )
    table = read_label_table(path, how, lambda file, root: _folder_group(file, root, how.group), columns)
    found = decode_files(table.files, how)
    return replace(_labelled(found, table.parsed), notes=[*found.notes, *table.notes])


def _labelled(found: ImageSet, parsed: Parsed) -> ImageSet:
    """Pictures whose classes are the numbers of their rows, with the labels of these rows."""
    assert found.labels is not None
    row = np.array([int(name) for name in found.classes])[found.labels]
    labels, classes = number_classes(None if parsed.classes is None else np.array(parsed.classes)[row])
    return replace(
        found, labels=labels, classes=classes, targets=None if parsed.targets is None else parsed.targets.take(row)
    )


def _idx_part(path: Path) -> Part:
    labels = _beside(path)
    return Part(str(path), part_of(path.name), read_idx(path), None if labels is None else read_idx(labels))


def _beside(path: Path) -> Path | None:
    """The labels file that belongs to an idx file of pictures."""
    for theirs, ours in (("images-idx3", "labels-idx1"), ("images", "labels")):
        other = path.with_name(path.name.replace(theirs, ours))
        if other != path and other.exists():
            return other
    return None


def _from_folder(folder: Path, how: Reading) -> ImageSet:
    idx = sorted(p for p in folder.iterdir() if "images-idx" in p.name or "images.idx" in p.name)
    if idx:
        return joined([_idx_part(p) for p in idx], how)
    parts, beside = _parts_of(folder)
    listed = [(root, *_pictures_below(root)) for root in parts]
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
            group=_folder_group(f, root, how.group),
        )
        for (f, root), p in zip(found, inner, strict=True)
    ]
    images = decode_files(files, how)
    left = sum((Counter(more) for _, _, more in listed), Counter[str]())
    told = ", ".join(f"{count} {ending}" for ending, count in left.most_common(8))
    notes = [f"left out as no pictures: {told}"] if told else []
    if parts != [folder]:
        held = [f"{root.name} ({len(files):,})" for root, files, _ in listed if part_of(root.name)]
        notes += [f"held apart from training: {', '.join(held)}"] if held else []
    if beside:
        notes.append(f"left out, beside the parts of the data set: {', '.join(beside)}")
    return replace(images, notes=[*images.notes, *notes])


def _parts_of(folder: Path) -> tuple[list[Path], list[str]]:
    """(the folders of the parts of a data set, such as train and test, or the folder itself where it has none; what
    stands beside them and is left out).

    Raises:
        UserError: there is one part, and pictures in other folders beside it: are they parts, or classes?
    """
    below = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    parts = [p for p in below if part_of(p.name) is not None]
    if not parts:
        return [folder], []
    counts = {p: len(_pictures_below(p)[0]) for p in below if p not in parts}
    beside = [f"{p.name} ({count:,} pictures)" for p, count in counts.items() if count]
    if beside and {part_of(p.name) for p in parts} != {True, False}:
        raise UserError(
            f"{folder}: {parts[0].name} is the name of a part of a data set, and beside it is {beside[0]}",
            hint="Give the folder of one of them; name a class otherwise, or label pictures by a table.",
        )
    return parts, beside


def _folder_group(file: Path, root: Path, group: str | None) -> str | None:
    """What a file belongs to by the folders it is in; None where nothing was asked.

    Raises:
        UserError: no such level.
    """
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


def _pictures_below(folder: Path) -> tuple[list[Path], list[str]]:
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


def decode_files(files: Sequence[File], how: Reading) -> ImageSet:
    """Read picture files: what they hold first, then pixels in one form; broken ones are named and left out.

    Raises:
        UserError: see `listing.list_files`.
    """
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


def _in_memory(listing: Listing, how: Reading) -> tuple[Listing, Any, Any]:
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
    """The listing without files that turned out broken while they were decoded, by number; these are noted.

    Raises:
        UserError: in strict mode.
    """
    if not broken:
        return listing
    skipped: list[tuple[str, str]] = []
    starts = np.concatenate([[0], np.cumsum(listing.counts)])
    for number, reason in sorted(broken.items()):
        skip(listing.names[starts[number]].partition("#")[0], reason, strict, skipped)
    kept = ~np.isin(np.arange(len(listing.sources)), list(broken))
    return without(listing, kept, skipped)


def _from_parquet(path: Path, how: Reading) -> ImageSet:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    return _from_encoded({name: table[name].to_pylist() for name in table.column_names}, str(path), how)


def _from_encoded(columns: dict[str, list[Any]], name: str, how: Reading) -> ImageSet:
    """Pictures that a column of a table holds."""
    column = how.column or next((n for n in ("image", "img", "picture", "bytes") if n in columns), None)
    if column is None or column not in columns:
        raise UserError(
            f"{name}: no column {column or 'image'!r}",
            hint=f"Name it with {setting('column')}; there are {', '.join(columns)}.",
        )
    label_column = how.label_column or next((n for n in ("label", "labels", "class", "target") if n in columns), None)
    if label_column is not None and label_column not in columns:
        raise UserError(f"{name}: no column {label_column!r}", hint=f"There are {', '.join(columns)}.")
    if how.group is not None and how.group not in columns:
        raise UserError(
            f"{name}: no column {how.group!r}",
            hint=f"{setting('group')} names a column; there are {', '.join(columns)}.",
        )
    labels = None if label_column is None else columns[label_column]
    return _from_cells(columns[column], labels, None if how.group is None else columns[how.group], name, how)


def _from_cells(
    cells: list[Any], labels: list[Any] | None, groups: list[Any] | None, name: str, how: Reading
) -> ImageSet:
    """Encoded pictures as bytes, or as Hugging Face writes them: {'bytes': ..., 'path': ...}."""
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
            told = "; ".join(f"row {row}: {what}" for row, what in parsed.bad.items())
            raise UserError(f"{name}: {len(parsed.bad)} rows have no proper label: {told}", hint="Leave such rows out.")
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
            group=None if groups is None else str(groups[i]),
        )
        for i, source in enumerate(sources)
    ]
    found = decode_files(files, how)
    return found if parsed is None else replace(_labelled(found, parsed), notes=[*found.notes, *parsed.notes])


def _from_dataset(name: str, how: Reading) -> ImageSet:
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
    label_column = how.label_column or next((n for n in ("label", "labels", "fine_label") if n in table.features), None)
    cells = table.cast_column(column, datasets.Image(decode=False))[column]
    labels = None if label_column is None else list(table[label_column])
    if how.group is not None and how.group not in table.features:
        raise UserError(f"hf:{name}: no column {how.group!r}", hint=f"There are {list(table.features)}.")
    groups = None if how.group is None else list(table[how.group])
    return _from_cells(list(cells), labels, groups, f"hf:{name}", how)
