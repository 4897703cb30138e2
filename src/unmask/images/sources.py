"""Pictures from wherever they are: arrays, folders, idx, npy, npz, parquet, Hugging Face datasets -> `ImageSet`."""

from __future__ import annotations

import gzip
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.images.decode import Broken, Form, Header, Source, decode_all, is_picture, read_headers, resize, scale_of
from unmask.images.recipes import sides

SPLITS = {
    "train": ("train", "training"), "test": ("test", "t10k", "val", "valid", "validation", "dev"),
}  # fmt: skip
"""Names of folders and files that say which part of a data set they hold."""


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """Pictures of one size and depth, in memory.

    Attributes:
        pixels: (pictures, height, width, channels), uint8, uint16 or float32.
        labels: number of each picture's class, or None where there are no classes.
        classes: names of the classes.
        names: of the pictures: their path within the folder, or their number.
        test: True for pictures of a test part (a folder or file named so), or None.
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


def read_images(
    data: Any, *, size: int | tuple[int, int] | None = None, channels: int | None = None, workers: int | None = None,
    strict: bool = False, column: str | None = None, label_column: str | None = None,
) -> ImageSet:  # fmt: skip
    """Read pictures, all brought to one size.

    Args:
        data: an array or tensor ((n, h, w), (n, h, w, c) or (n, c, h, w)), a pair (pictures, labels), an `ImageSet`, a
            folder (class folders or flat), a picture, .npy, .npz, .idx(.gz), .parquet, `hf:NAME[:SPLIT]`, or a list of
            files.
        size: pictures are brought to it; None demands that all have the same size.
        channels: None takes 1 where all pictures are grey, else 3.
        strict: a picture that cannot be read is an error instead of being skipped.

    Raises:
        UserError: naming the file or picture at fault.
    """
    if isinstance(data, ImageSet):
        found = data
    elif isinstance(data, tuple) and len(data) == 2 and not isinstance(data[0], str | Path):
        found = _from_array(data[0], data[1])
    elif hasattr(data, "shape"):
        found = _from_array(data)
    elif isinstance(data, list | tuple) and data and hasattr(data[0], "shape"):
        return _one_size([np.asarray(x) for x in data], size)
    else:
        found = _from_paths(data, size, channels, workers, strict, column, label_column)
    if not len(found):
        told = f": {found.skipped[0][0]}: {found.skipped[0][1]}" if found.skipped else ""
        raise UserError(f"{_named(data)}: no picture could be read{told}", hint="Give pictures that can be opened.")
    if size is not None and found.size != sides(size):
        high, wide = sides(size)
        found = replace(found, pixels=np.stack([resize(p, high, wide) for p in found.pixels]))
    if channels is not None and found.channels != channels:
        found = replace(found, pixels=_to_channels(found.pixels, channels))
    return found


def _to_channels(pixels: np.ndarray, channels: int) -> np.ndarray:
    """Grey repeated into colours, or colours weighed to grey (ITU-R 601)."""
    have = pixels.shape[-1]
    if have == 1:
        return np.repeat(pixels, channels, -1)
    if have == 3 and channels == 1:
        grey = pixels.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32)
        return (np.round(grey) if pixels.dtype.kind in "iu" else grey).astype(pixels.dtype)[..., None]
    raise UserError(f"pictures with {have} channels, {channels} expected", hint="Give pictures with as many channels.")


def _named(data: Any) -> str:
    return (
        ", ".join(map(str, data))
        if isinstance(data, list | tuple)
        else str(data)
        if isinstance(data, str | Path)
        else "data"
    )


# Arrays


def _from_array(pixels: Any, labels: Any = None, name: str = "array", channels_last: bool | None = None) -> ImageSet:
    pixels = np.asarray(pixels.detach().cpu() if hasattr(pixels, "detach") else pixels)
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if pixels.ndim != 4 or 0 in pixels.shape[1:]:
        raise UserError(
            f"{name} has shape {pixels.shape}",
            hint="Expected (pictures, height, width), (…, height, width, channels) or (…, channels, height, width).",
        )
    if pixels.shape[-1] > 4 and pixels.shape[1] <= 4:
        pixels = pixels.transpose(0, 2, 3, 1)
    if pixels.dtype == bool:
        pixels = pixels.astype(np.uint8) * 255
    if pixels.dtype.kind == "f":
        pixels = pixels.astype(np.float32, copy=False)
        _no_nan(pixels, name)
    elif pixels.dtype.kind in "iu" and pixels.dtype not in (np.uint8, np.uint16):
        low, high = (int(pixels.min()), int(pixels.max())) if pixels.size else (0, 0)
        if low < 0 or high > 65535:
            raise UserError(f"{name} holds whole numbers from {low} to {high}", hint="Expected 0 to 65535, or floats.")
        pixels = pixels.astype(np.uint8 if high <= 255 else np.uint16)
    elif pixels.dtype.kind not in "iu":
        raise UserError(f"{name} holds {pixels.dtype}", hint="Expected whole numbers or floats.")
    numbers, classes = _classes(labels, len(pixels), name)
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


def _classes(labels: Any, count: int, name: str) -> tuple[np.ndarray | None, list[str]]:
    """Labels of any kind -> numbers 0.. and names, in sorted order."""
    if labels is None:
        return None, []
    labels = np.asarray(labels.cpu() if hasattr(labels, "cpu") else labels).ravel()
    if len(labels) != count:
        raise UserError(f"{name}: {count} pictures and {len(labels)} labels", hint="Give one label a picture.")
    names, numbers = np.unique(labels, return_inverse=True)
    return numbers.astype(np.int64), [str(n) for n in names]


def _one_size(pictures: list[np.ndarray], size: int | tuple[int, int] | None) -> ImageSet:
    shapes = {p.shape[:2] for p in pictures}
    if size is None and len(shapes) > 1:
        raise _mixed([(f"picture {i}", p.shape[0], p.shape[1]) for i, p in enumerate(pictures)])
    planes = [p[..., None] if p.ndim == 2 else p for p in pictures]
    if size is not None:
        planes = [resize(p, *sides(size)) for p in planes]
    return _from_array(np.stack(planes))


def _mixed(found: Sequence[tuple[str, int, int]]) -> UserError:
    first = found[0]
    other = next(f for f in found if f[1:] != first[1:])
    known = sorted({f[1:] for f in found})
    middle = known[len(known) // 2]
    return UserError(
        f"pictures of {len(known)} sizes: {first[0]} has {first[2]} x {first[1]} pixels, {other[0]} has {other[2]} x {other[1]}",
        hint=f"Say which size to bring them to, for example --set image_size={min(middle)}.",
    )


# Files


def _from_paths(
    data: Any, size: int | tuple[int, int] | None, channels: int | None, workers: int | None, strict: bool,
    column: str | None, label_column: str | None,
) -> ImageSet:  # fmt: skip
    items = [data] if isinstance(data, str | Path) else list(data)
    if not items:
        raise UserError("no pictures given", hint="Give a folder, files or an array.")
    if len(items) == 1 and str(items[0]).startswith("hf:"):
        return _from_dataset(str(items[0])[3:], size, channels, workers, strict, column, label_column)
    paths = [Path(item).expanduser() for item in items]
    for path in paths:
        if not path.exists():
            raise UserError(
                f"{path}: no such file or folder", hint="Give a folder, pictures, .npy, .idx.gz or .parquet."
            )
    if len(paths) == 1 and paths[0].is_file() and not is_picture(paths[0]):
        return _from_file(paths[0], size, channels, workers, strict, column, label_column)
    if len(paths) == 1 and paths[0].is_dir():
        return _from_folder(paths[0], size, channels, workers, strict)
    files = [f for p in paths for f in (_pictures_below(p) if p.is_dir() else [p])]
    found = decode_files([str(f) for f in files], [str(f) for f in files], size, channels, workers, strict)
    return replace(found, labels=None, classes=[])


def _from_file(
    path: Path, size: int | tuple[int, int] | None, channels: int | None, workers: int | None, strict: bool,
    column: str | None, label_column: str | None,
) -> ImageSet:  # fmt: skip
    name = path.name.lower()
    try:
        if name.endswith((".npy", ".npz")):
            return _from_numpy(path)
        if "idx" in name or "ubyte" in name:
            labels = _beside(path)
            return _from_array(read_idx(path), None if labels is None else read_idx(labels), str(path))
        if name.endswith(".parquet"):
            return _from_parquet(path, size, channels, workers, strict, column, label_column)
    except (OSError, ValueError, EOFError, struct.error) as error:
        raise UserError(f"{path}: cannot be read ({error})", hint="The file is damaged or of another kind.") from None
    raise UserError(
        f"{path}: not a kind of file that holds pictures", hint="Known: pictures, .npy, .npz, .idx(.gz), .parquet."
    )


def _from_numpy(path: Path) -> ImageSet:
    loaded = np.load(path, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return _from_array(loaded, None, str(path))
    keys = list(loaded.keys())
    pictures = next((k for k in keys if loaded[k].ndim >= 3), None)
    if pictures is None:
        raise UserError(f"{path}: no array of pictures among {', '.join(keys)}", hint="Expected three or four axes.")
    labels = next((k for k in keys if loaded[k].ndim == 1 and len(loaded[k]) == len(loaded[pictures])), None)
    return _from_array(loaded[pictures], None if labels is None else loaded[labels], str(path))


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


def _beside(path: Path) -> Path | None:
    """The labels file that belongs to an idx file of pictures."""
    for theirs, ours in (("images-idx3", "labels-idx1"), ("images", "labels")):
        other = path.with_name(path.name.replace(theirs, ours))
        if other != path and other.exists():
            return other
    return None


def _part(name: str) -> bool | None:
    """Whether a folder or file of this name is of a test part; None where the name does not say."""
    start = name.lower().replace("_", "-").split("-")[0].split(".")[0]
    return next((split == "test" for split, names in SPLITS.items() if start in names), None)


def _from_folder(
    folder: Path, size: int | tuple[int, int] | None, channels: int | None, workers: int | None, strict: bool
) -> ImageSet:
    idx = sorted(p for p in folder.iterdir() if "images-idx" in p.name or "images.idx" in p.name)
    if idx:
        return _joined([(_from_file(p, None, None, None, strict, None, None), _part(p.name)) for p in idx])
    below = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if below and all(_part(p.name) is not None for p in below):
        files = [(f, p) for p in below for f in _pictures_below(p)]
        test = np.array([_part(p.name) is True for _, p in files], bool)
    else:
        files, test = [(f, folder) for f in _pictures_below(folder)], None
    if not files:
        raise UserError(f"{folder}: no pictures in it", hint="Expected pictures, or folders of them, one a class.")
    names = [str(f.relative_to(folder)) for f, _ in files]
    inner = [f.relative_to(root).parts for f, root in files]
    labels = [parts[0] for parts in inner] if all(len(parts) > 1 for parts in inner) else None
    found = decode_files([str(f) for f, _ in files], names, size, channels, workers, strict)
    kept = np.isin(names, found.names)
    numbers, classes = _classes(None if labels is None else np.array(labels)[kept], len(found), str(folder))
    return replace(found, labels=numbers, classes=classes, test=None if test is None else test[kept])


def _pictures_below(folder: Path) -> list[Path]:
    found = (p for p in folder.rglob("*") if p.is_file() and is_picture(p))
    return sorted(p for p in found if not any(part.startswith(".") for part in p.relative_to(folder).parts))


def _joined(parts: list[tuple[ImageSet, bool | None]]) -> ImageSet:
    """Several files of one data set as one; those named train and test keep their parts."""
    sets = [s for s, _ in parts]
    labels = None if any(s.labels is None for s in sets) else np.concatenate([s.labels for s in sets])  # type: ignore[misc]
    known = all(part is not None for _, part in parts) and len({part for _, part in parts}) > 1
    return ImageSet(
        pixels=np.concatenate([s.pixels for s in sets]), labels=labels, classes=max((s.classes for s in sets), key=len),
        test=np.concatenate([np.full(len(s), bool(part)) for s, part in parts]) if known else None,
    )  # fmt: skip


def decode_files(
    sources: Sequence[Source], names: Sequence[str], size: int | tuple[int, int] | None, channels: int | None,
    workers: int | None, strict: bool,
) -> ImageSet:  # fmt: skip
    """Decode pictures: headers first, then pixels in one form; broken ones are named and left out.

    Raises:
        UserError: a broken picture in strict mode, sizes that differ with no size given, nothing readable.
    """
    headers = read_headers(sources, workers)
    skipped: list[tuple[str, str]] = []
    good: list[tuple[Source, str, Header]] = []
    for source, name, header in zip(sources, names, headers, strict=True):
        if isinstance(header, Broken):
            _skip(name, header.reason, strict, skipped)
        else:
            good.append((source, name, header))
    if not good:
        first = f" ({skipped[0][0]}: {skipped[0][1]})" if skipped else ""
        raise UserError(f"none of {len(sources)} pictures could be read{first}", hint="Check the files.")
    known = {(h.height, h.width) for _, _, h in good}
    if size is None and len(known) > 1:
        raise _mixed([(name, h.height, h.width) for _, name, h in good])
    high, wide = sides(size) if size is not None else next(iter(known))
    depths = {h.depth for _, _, h in good}
    form = Form(
        height=high, width=wide, channels=channels or (3 if any(h.channels == 3 for _, _, h in good) else 1),
        depth=depths.pop() if len(depths) == 1 else "float32",
    )  # fmt: skip
    pixels = np.empty((len(good), form.height, form.width, form.channels), form.depth)
    kept: list[str] = []
    for (_, name, _), found in zip(good, decode_all((s for s, _, _ in good), len(good), form, workers), strict=True):
        if isinstance(found, Broken):
            _skip(name, found.reason, strict, skipped)
        else:
            pixels[len(kept)] = found
            kept.append(name)
    return ImageSet(pixels=pixels[: len(kept)], names=kept, skipped=skipped)


def _skip(name: str, reason: str, strict: bool, skipped: list[tuple[str, str]]) -> None:
    if strict:
        raise UserError(f"{name}: {reason}", hint="Remove the file, or leave out --strict to skip it.")
    skipped.append((name, reason))


def _from_parquet(
    path: Path, size: int | tuple[int, int] | None, channels: int | None, workers: int | None, strict: bool,
    column: str | None, label_column: str | None,
) -> ImageSet:  # fmt: skip
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    names = table.column_names
    column = column or next((n for n in ("image", "img", "picture", "bytes") if n in names), None)
    if column is None or column not in names:
        raise UserError(
            f"{path}: no column {column or 'image'!r}",
            hint=f"Name it with --set column=; there are {', '.join(names)}.",
        )
    label_column = label_column or next((n for n in ("label", "labels", "class", "target") if n in names), None)
    if label_column is not None and label_column not in names:
        raise UserError(f"{path}: no column {label_column!r}", hint=f"There are {', '.join(names)}.")
    cells = table[column].to_pylist()
    labels = None if label_column is None else table[label_column].to_pylist()
    return _from_cells(cells, labels, str(path), size, channels, workers, strict)


def _from_cells(
    cells: list[Any],
    labels: list[Any] | None,
    name: str,
    size: Any,
    channels: int | None,
    workers: int | None,
    strict: bool,
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
    names = [f"row {i}" for i in range(len(sources))]
    found = decode_files(sources, names, size, channels, workers, strict)
    if labels is None:
        return found
    kept = [int(n.split()[1]) for n in found.names]
    numbers, classes = _classes([labels[i] for i in kept], len(kept), name)
    return replace(found, labels=numbers, classes=classes)


def _from_dataset(
    name: str,
    size: Any,
    channels: int | None,
    workers: int | None,
    strict: bool,
    column: str | None,
    label_column: str | None,
) -> ImageSet:
    try:
        import datasets
    except ImportError:
        raise UserError(f"hf:{name} needs the package 'datasets'", hint="Run: pip install 'unmask[datasets]'") from None
    name, _, split = name.partition(":")
    table = datasets.load_dataset(name, split=split or "train")
    column = column or next((k for k, v in table.features.items() if type(v).__name__ == "Image"), None)
    if column is None:
        raise UserError(
            f"hf:{name}: no column of pictures", hint=f"Name it with --set column=; there are {list(table.features)}."
        )
    label_column = label_column or next((n for n in ("label", "labels", "fine_label") if n in table.features), None)
    cells = table.cast_column(column, datasets.Image(decode=False))[column]
    labels = None if label_column is None else list(table[label_column])
    return _from_cells(list(cells), labels, f"hf:{name}", size, channels, workers, strict)


def as_floats(pixels: np.ndarray) -> np.ndarray:
    """Pixels in 0..1 (floats as they are), channels first: (n, channels, height, width) float32."""
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).astype(np.float32) / np.float32(
        scale_of(str(pixels.dtype))
    )


def channel_statistics(images: ImageSet, most: int = 5000) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(mean, deviation) per channel over at most `most` pictures, evenly taken, in the units of `as_floats`."""
    step = max(1, len(images) // most)
    values = as_floats(images.pixels[::step]).astype(np.float64)
    mean, deviation = values.mean((0, 2, 3)), values.std((0, 2, 3))
    return tuple(map(float, mean)), tuple(float(d) if d > 1e-8 else 1.0 for d in deviation)


def chunks(count: int, size: int) -> Iterator[slice]:
    """Slices that cut `count` things into parts of `size`."""
    return (slice(i, min(i + size, count)) for i in range(0, count, size))
