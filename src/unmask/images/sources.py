"""Pictures from wherever they are: arrays, folders, idx, npy, npz, parquet, Hugging Face datasets -> `ImageSet`."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.files import files_below
from unmask.images.arrays import (
    ImageSet,
    Part,
    Reading,
    from_array,
    from_list,
    joined,
    mixed_sizes,
    number_classes,
    part_of,
    read_idx,
    read_numpy,
)
from unmask.images.decode import Broken, Form, Header, Source, decode_all, is_picture, read_headers
from unmask.images.recipes import sides


def read_images(
    data: Any, *, size: int | tuple[int, int] | None = None, channels: int | None = None, depth: str | None = None,
    workers: int | None = None, strict: bool = False, column: str | None = None, label_column: str | None = None,
) -> ImageSet:  # fmt: skip
    """Read pictures, all brought to one size.

    Args:
        data: an array or tensor ((n, h, w), (n, h, w, c) or (n, c, h, w)), a pair (pictures, labels), a list of
            pictures, an `ImageSet`, a folder (class folders or flat), a picture, .npy, .npz, .idx(.gz), .parquet,
            `hf:NAME[:SPLIT]`, or a list of files.
        size: pictures are brought to it; None demands that all have the same size.
        channels: of files 1 or 3; None takes 1 where all pictures are grey, else 3. Of an array with many of them it
            tells which axis they are.
        depth: of an array of whole numbers that are not 8 or 16 bits wide; None takes 8 bits where they fit.
        strict: a picture that cannot be read is an error instead of being skipped.

    Raises:
        UserError: naming the file or picture at fault.
    """
    how = Reading(
        size=size, channels=channels, depth=depth, workers=workers, strict=strict, column=column, label_column=label_column,
    )  # fmt: skip
    if isinstance(data, ImageSet):
        found = data
    elif isinstance(data, tuple) and len(data) == 2 and not isinstance(data[0], str | Path):
        found = from_array(data[0], data[1], how=how)
    elif hasattr(data, "shape"):
        found = from_array(data, how=how)
    elif isinstance(data, list | tuple) and data and hasattr(data[0], "shape"):
        found = from_list(data, how)
    else:
        found = _from_paths(data, how)
    if not len(found):
        told = f": {found.skipped[0][0]}: {found.skipped[0][1]}" if found.skipped else ""
        raise UserError(f"{_named(data)}: no picture could be read{told}", hint="Give pictures that can be opened.")
    return found.resized(size).with_channels(channels)


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
    files = [f for p in paths for f in (_pictures_below(p) if p.is_dir() else [p])]
    found = decode_files([str(f) for f in files], [str(f) for f in files], how)
    return replace(found, labels=None, classes=[])


def _from_file(path: Path, how: Reading) -> ImageSet:
    name = path.name.lower()
    try:
        if name.endswith((".npy", ".npz")):
            return read_numpy(path, how)
        if name.endswith(".parquet"):
            return _from_parquet(path, how)
        if "idx" in name or "ubyte" in name:
            return joined([_idx_part(path)], how)
    except (OSError, ValueError, EOFError, struct.error, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({error})", hint="The file is damaged or of another kind.") from None
    raise UserError(
        f"{path}: not a kind of file that holds pictures", hint="Known: pictures, .npy, .npz, .idx(.gz), .parquet."
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
    below = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if below and all(part_of(p.name) is not None for p in below):
        files = [(f, p) for p in below for f in _pictures_below(p)]
        test = np.array([part_of(p.name) is True for _, p in files], bool)
    else:
        files, test = [(f, folder) for f in _pictures_below(folder)], None
    if not files:
        raise UserError(f"{folder}: no pictures in it", hint="Expected pictures, or folders of them, one a class.")
    names = [str(f.relative_to(folder)) for f, _ in files]
    inner = [f.relative_to(root).parts for f, root in files]
    labels = [parts[0] for parts in inner] if all(len(parts) > 1 for parts in inner) else None
    found = decode_files([str(f) for f, _ in files], names, how)
    kept = np.isin(names, found.names)
    numbers, classes = number_classes(None if labels is None else np.array(labels)[kept])
    return replace(found, labels=numbers, classes=classes, test=None if test is None else test[kept])


def _pictures_below(folder: Path) -> list[Path]:
    """Pictures in a folder and those below it, sorted; nothing hidden."""
    # A link to nothing is named as broken later; pipes and the like are no pictures.
    return [
        p for p in files_below(folder)
        if is_picture(p) and not any(part.startswith(".") for part in p.relative_to(folder).parts)
        and (p.is_file() or not p.exists())
    ]  # fmt: skip


def decode_files(sources: Sequence[Source], names: Sequence[str], how: Reading) -> ImageSet:
    """Decode pictures: headers first, then pixels in one form; broken ones are named and left out.

    Raises:
        UserError: a broken picture in strict mode, sizes that differ with no size given, nothing readable, channels
            that no file has.
    """
    if how.channels not in (None, 1, 3):
        raise UserError(f"channels={how.channels}: pictures in files have 1 or 3", hint="Give an array with as many.")
    headers = read_headers(sources, how.workers)
    skipped: list[tuple[str, str]] = []
    good: list[tuple[Source, str, Header]] = []
    for source, name, header in zip(sources, names, headers, strict=True):
        if isinstance(header, Broken):
            _skip(name, header.reason, how.strict, skipped)
        else:
            good.append((source, name, header))
    if not good:
        first = f" ({skipped[0][0]}: {skipped[0][1]})" if skipped else ""
        raise UserError(f"none of {len(sources)} pictures could be read{first}", hint="Check the files.")
    known = {(h.height, h.width) for _, _, h in good}
    if how.size is None and len(known) > 1:
        raise mixed_sizes([(name, h.height, h.width) for _, name, h in good])
    high, wide = sides(how.size) if how.size is not None else next(iter(known))
    depths = {h.depth for _, _, h in good}
    form = Form(
        height=high, width=wide, channels=how.channels or (3 if any(h.channels == 3 for _, _, h in good) else 1),
        depth=depths.pop() if len(depths) == 1 else "float32",
    )  # fmt: skip
    pixels = np.empty((len(good), form.height, form.width, form.channels), form.depth)
    kept: list[str] = []
    for (_, name, _), found in zip(
        good, decode_all((s for s, _, _ in good), len(good), form, how.workers), strict=True
    ):
        if isinstance(found, Broken):
            _skip(name, found.reason, how.strict, skipped)
        else:
            pixels[len(kept)] = found
            kept.append(name)
    return ImageSet(pixels=pixels[: len(kept)], names=kept, skipped=skipped)


def _skip(name: str, reason: str, strict: bool, skipped: list[tuple[str, str]]) -> None:
    if strict:
        raise UserError(f"{name}: {reason}", hint="Remove the file, or leave out --strict to skip it.")
    skipped.append((name, reason))


def _from_parquet(path: Path, how: Reading) -> ImageSet:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    names = table.column_names
    column = how.column or next((n for n in ("image", "img", "picture", "bytes") if n in names), None)
    if column is None or column not in names:
        raise UserError(
            f"{path}: no column {column or 'image'!r}",
            hint=f"Name it with --set column=; there are {', '.join(names)}.",
        )
    label_column = how.label_column or next((n for n in ("label", "labels", "class", "target") if n in names), None)
    if label_column is not None and label_column not in names:
        raise UserError(f"{path}: no column {label_column!r}", hint=f"There are {', '.join(names)}.")
    cells = table[column].to_pylist()
    labels = None if label_column is None else table[label_column].to_pylist()
    return _from_cells(cells, labels, str(path), how)


def _from_cells(cells: list[Any], labels: list[Any] | None, name: str, how: Reading) -> ImageSet:
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
    names = [f"row {i}" for i in range(len(sources))]
    found = decode_files(sources, names, how)
    if labels is None:
        return found
    kept = [int(n.split()[1]) for n in found.names]
    if (empty := next((i for i in kept if labels[i] is None), None)) is not None:
        raise UserError(
            f"{name}: row {empty} has no label",
            hint="Leave such rows out, or name another column: --set label_column=.",
        )
    numbers, classes = number_classes([labels[i] for i in kept])
    return replace(found, labels=numbers, classes=classes)


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
            f"hf:{name}: no column of pictures", hint=f"Name it with --set column=; there are {list(table.features)}."
        )
    label_column = how.label_column or next((n for n in ("label", "labels", "fine_label") if n in table.features), None)
    cells = table.cast_column(column, datasets.Image(decode=False))[column]
    labels = None if label_column is None else list(table[label_column])
    return _from_cells(list(cells), labels, f"hf:{name}", how)
