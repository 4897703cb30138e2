"""Pictures from wherever they are: arrays, folders, idx, npy, npz, parquet, Hugging Face datasets -> `ImageSet`."""

from __future__ import annotations

import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from unmask.errors import UserError, setting
from unmask.given import array_of
from unmask.modalities.images.formats import everyday
from unmask.modalities.images.formats.picture import Alpha, Choice, Slice
from unmask.modalities.images.reading.arrays import (
    OF_FILES,
    ImageSet,
    ReadOptions,
    Size,
    as_array,
    from_array,
    from_list,
    joined,
    refuse_unread,
    tiled,
)
from unmask.modalities.images.reading.decode import View, is_picture
from unmask.modalities.images.reading.from_files import (
    decode_files,
    from_cells,
    from_dataset,
    from_encoded,
    from_folder,
    from_table,
    idx_part,
    read_numpy,
    with_individuals,
)
from unmask.modalities.images.reading.label_table import (
    FILES,
    LABELS,
    groups_among,
    is_label_table,
    labels_among,
    parquet_columns,
    parts_among,
)
from unmask.modalities.images.reading.layout import folder_group, pictures_below
from unmask.modalities.images.reading.lazy import PictureStore
from unmask.modalities.images.reading.listing import File
from unmask.modalities.images.reading.targets import Problem, labels_of


def read_images(
    data: Any,
    *,
    size: Size = None,
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
    store: PictureStore | None = None,
    problem: Problem | None = None,
    pictures: str | None = None,
    usual: Mapping[str, Any] = {},
) -> ImageSet:
    """Read pictures, all brought to one size.

    Args:
        data: an array or tensor ((n, h, w), (n, h, w, c) or (n, c, h, w)), a pair (pictures, labels), a list of
            pictures (arrays, Pillow's, encoded ones; a generator of them) or of (picture, label), a data set or
            DataLoader of torch, an `ImageSet`, a folder (class folders or
            flat), a picture, .npy, .npz, .idx(.gz), .parquet, `hf:NAME[:SPLIT]`, a list of files, or a frame with what
            a table in a file would hold.
        size: pictures are brought to it; None demands that all have the same size; a function of the (height, width)
            that there are says it.
        channels: 1 or 3 of grey and coloured files; None takes 3 where any is coloured. Of an array, and of .npy files,
            it tells which axis they are.
        depth: of an array of whole numbers that are not 8 or 16 bits wide; None takes 8 bits where they fit.
        strict: a picture that cannot be read is an error instead of being skipped.
        planes, alpha, nodata, slice: see `picture.Choice`.
        view, overlap: 'tile' cuts pictures into pieces of `size` at their own resolution; see `decode.Form`.
        group: what pictures belong to that must not be split: 'folder' (the one a file is in), a folder level from 1
            below the one given, 'name' (up to its first number), or a column of a table. None: the patient of DICOM
            files, and the file where it gives several.
        store: where pictures of files go that are too many for memory; None keeps all in memory.
        problem: what the labels of a table (.csv, .tsv, .parquet of paths) or of a pair are; see `targets.Problem`.
            None refuses tables of paths, and takes labels of a pair as classes.
        pictures: the folder that the paths of a table are relative to; None: the table's own.
        usual: values of planes, alpha, nodata and slice that are no error where nothing reads them, and the columns
            `label_column` and `group` that are read where they are there: those of a model's training.

    Raises:
        UserError: naming the file or picture at fault, or an argument that nothing reads for pictures of this kind.
    """
    options = {name: value for name, value in locals().items() if name != "data"}
    how = ReadOptions(**options)
    if overlap and view != "tile":
        raise UserError(
            f"overlap={overlap} of pictures that are read whole", hint=f"Tiles overlap: say {setting('view', 'tile')}."
        )
    found = as_they_are(data, how)
    learnt = usual.get("label_column")
    if found.targets is not None and found.targets.problem == "multi":
        learnt = None  # labels are known by their own names
    if learnt and label_column is None and found.label_column not in (None, learnt) and not isinstance(data, ImageSet):
        warnings.warn(
            f"labels are those of column {found.label_column!r}; the model was trained on {learnt!r}, which is not "
            f"there ({setting('label_column')} names another)",
            stacklevel=2,
        )
    if not len(found):
        example = f": {found.skipped[0][0]}: {found.skipped[0][1]}" if found.skipped else ""
        raise UserError(f"{_named(data)}: no picture could be read{example}", hint="Give pictures that can be opened.")
    if view == "tile" and found.tiles is None:
        found = tiled(found, how)
    return found.resized(size([found.size]) if callable(size) else size).with_channels(channels)


def as_they_are(data: Any, how: ReadOptions) -> ImageSet:
    """The pictures of `read_images`, not brought to a size or to channels; of files what `how.inspect` makes."""
    return _read(_plain(data, how.choice), how)


def _plain(data: Any, choice: Choice) -> Any:
    """Data in memory as what its file would be: columns of a frame as a dict, series and iterators as lists, Pillow's
    pictures as arrays."""
    import narwhals as nw

    if isinstance(data, str | Path | ImageSet | dict) or hasattr(data, "detach"):
        return data
    if isinstance(data, Image.Image):
        return [everyday.pixels_of(data, choice)]
    native = nw.from_native(data, allow_series=True, pass_through=True)
    if isinstance(native, nw.DataFrame):
        return {name: native[name].to_list() for name in native.columns}
    if isinstance(native, nw.Series):
        return _plain(native.to_list(), choice)
    if isinstance(data, np.ndarray):
        return _plain(data.ravel().tolist(), choice) if data.dtype.kind in "OSU" else data
    if isinstance(data, Iterator):
        data = list(data)
    if isinstance(data, tuple) and len(data) == 2 and not isinstance(data[0], str | Path):
        return (_plain(data[0], choice), data[1])
    if not isinstance(data, list | tuple) and hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return _from_items(data, choice)
    if hasattr(data, "batch_size") and hasattr(data, "dataset"):  # torch's DataLoader
        return _from_items(data.dataset, choice)
    if isinstance(data, list) and data and all(isinstance(one, dict) for one in data):
        return {name: [one.get(name) for one in data] for name in data[0]}
    if isinstance(data, list) and data and all(isinstance(one, tuple) and len(one) == 2 for one in data):
        pictures, labels = zip(*data, strict=True)
        return (_plain(list(pictures), choice), [n.item() if hasattr(n, "item") else n for n in labels])
    if isinstance(data, list | tuple):
        return [everyday.pixels_of(one, choice) if isinstance(one, Image.Image) else one for one in data]
    return data


def _from_items(data: Any, choice: Choice) -> Any:
    """A data set of torch, torchvision or Hugging Face, of which item by item is taken: (picture, label), a dict, or a
    picture. Its `classes` name the labels."""
    found, names = _plain([data[n] for n in range(len(data))], choice), getattr(data, "classes", None)
    return (found[0], [names[n] for n in found[1]]) if names and isinstance(found, tuple) else found


def _read(data: Any, how: ReadOptions) -> ImageSet:
    """Pictures of `_plain` data."""
    if isinstance(data, ImageSet):
        refuse_unread(how, "pictures that were read", "planes", "alpha", "nodata", "slice", *OF_FILES)
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
        refuse_unread(how, "encoded pictures", *OF_FILES)
        return from_cells(data, None, {}, "data", how)
    if all(issubclass(kind, str | Path) for kind in kinds):
        return _from_paths(data, how)
    raise UserError(
        f"pictures of type {', '.join(sorted(kind.__name__ for kind in kinds))}",
        hint="Give a folder, files, an array, or a list of arrays, of Pillow's pictures or of paths.",
    )


def _from_columns(columns: dict[str, list[Any]], how: ReadOptions) -> ImageSet:
    """The table that a frame holds, as its file would be read."""
    if how.column is not None and how.column not in columns:
        raise UserError(f"the table: no column {how.column!r}", hint=f"There are {', '.join(columns)}.")
    name = next((n for n in columns if n == how.column or (how.column is None and n.lower() in FILES)), None)
    first = None if name is None else next((c for c in columns[name] if c is not None), None)
    if name is None or isinstance(first, str | Path):
        return from_table(Path("the table"), how, columns)
    if not isinstance(first, bytes | dict):
        return _from_arrays(columns, name, how)
    return from_encoded(columns, "the table", how)


def _from_arrays(columns: dict[str, list[Any]], name: str, how: ReadOptions) -> ImageSet:
    """A frame whose column `name` holds arrays, or Pillow's pictures."""
    label = labels_among(columns, how) or next((n for n in columns if n.lower() in LABELS), None)
    if label is not None and label not in columns:
        raise UserError(f"the table: no column {label!r}", hint=f"There are {', '.join(columns)}.")
    groups, (_, parts, notes) = groups_among(columns, "the table", how), parts_among(columns)
    pixels = _plain([c if isinstance(c, Image.Image) or c is None else as_array(c) for c in columns[name]], how.choice)
    inner = replace(how, column=None, label_column=None, group=None)
    found = _read(pixels, inner) if label is None else _from_pair(pixels, columns[label], inner)
    found = replace(
        found,
        label_column=label,
        split=None if parts is None else np.array(parts),
        groups=None if groups is None else np.array(groups),
        notes=[*found.notes, *notes],
    )
    return with_individuals(found, columns, None if label is None else columns[label], name, label)


def _from_pair(pixels: Any, labels: Any, how: ReadOptions) -> ImageSet:
    try:
        labels = array_of(labels)
    except ValueError:
        raise UserError(
            "labels are lists of several lengths",
            hint="Give a name or a number each; of several labels an array (pictures, labels) of 0 and 1.",
        ) from None
    row = None
    if isinstance(pixels, list) and pixels and all(isinstance(one, str | Path) for one in pixels):
        refuse_unread(how, "paths", *OF_FILES[1:])
        paths = [Path(one).expanduser() for one in pixels]
        files = [
            File(source=str(p), name=str(p), label=n, group=folder_group(p, p.parent, how.group))
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
    given = labels_of(labels, how.problem)
    return replace(
        found, targets=given.targets, labels=given.numbers, classes=given.classes, notes=[*found.notes, *given.notes]
    )


def _named(data: Any) -> str:
    return (
        ", ".join(map(str, data))
        if isinstance(data, list | tuple)
        else str(data)
        if isinstance(data, str | Path)
        else "data"
    )


def _from_paths(data: Any, how: ReadOptions) -> ImageSet:
    items = [data] if isinstance(data, str | Path) else list(data)
    if not items:
        raise UserError("no pictures given", hint="Give a folder, files or an array.")
    if len(items) == 1 and str(items[0]).startswith("hf:"):
        return from_dataset(str(items[0])[3:], how)
    paths = [Path(item).expanduser() for item in items]
    for path in paths:
        if not path.exists():
            raise UserError(
                f"{path}: no such file or folder", hint="Give a folder, pictures, .npy, .idx.gz or .parquet."
            )
    if len(paths) == 1 and paths[0].is_file() and not is_picture(paths[0]):
        return _from_file(paths[0], how)
    refuse_unread(how, f"{_named(data)}, pictures and folders", *OF_FILES[1:])
    if len(paths) == 1 and paths[0].is_dir():
        return from_folder(paths[0], how)
    below = [(f, p) for p in paths for f in (pictures_below(p)[0] if p.is_dir() else [p])]
    files = [
        File(source=str(f), name=str(f), group=folder_group(f, p if f != p else p.parent, how.group), found=f != p)
        for f, p in below
    ]
    return decode_files(files, how)


def _from_file(path: Path, how: ReadOptions) -> ImageSet:
    name = path.name.lower()
    try:
        if name.endswith((".npy", ".npz")):
            return read_numpy(path, how)
        if (how.problem is not None or not name.endswith(".parquet")) and is_label_table(path, how.column):
            return from_table(path, how)
        if name.endswith(".parquet"):
            return from_encoded(parquet_columns(path), str(path), how)
        if "idx" in name or "ubyte" in name:
            return joined([idx_part(path)], how)
    except (OSError, ValueError, EOFError, struct.error, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({error})", hint="The file is damaged or of another kind.") from None
    raise UserError(
        f"{path}: not a kind of file that holds pictures", hint="Known: pictures, .npy, .npz, .idx(.gz), .parquet."
    )
