"""Arrays in files (npy, npz, idx) as pictures, and which part of a data set a name says."""

from __future__ import annotations

import gzip
import math
import struct
import zipfile
from pathlib import Path

import numpy as np

from unmask.errors import UserError
from unmask.given import split_named
from unmask.memory import refuse_more_than_memory
from unmask.modalities.images.formats.picture import DEFLATE
from unmask.modalities.images.reading.arrays import PLAIN, ArrayPart, ImageSet, ReadOptions, from_array, joined


def part_of(name: str) -> bool | None:
    """Whether a folder or file of this name is of a test part; None where the name does not say."""
    split = split_named(name)
    return None if split is None else split != "train"


def read_numpy(path: Path, how: ReadOptions = PLAIN) -> ImageSet:
    """An .npy, or an .npz with one array of pictures or one for each part (x_train, x_test, y_train, y_test, ...)."""
    loaded = np.load(path, mmap_mode="r", allow_pickle=False)  # mapped: an array that is not all there is refused
    if isinstance(loaded, np.ndarray):
        refuse_more_than_memory(f"{path}: an array of shape {loaded.shape}", loaded.nbytes)
        return from_array(np.array(loaded), None, str(path), how)
    _check_members(path)
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

    def made(key: str) -> ArrayPart:
        columns = [k for k in arrays if arrays[k].ndim < 3 and arrays[k].size == len(arrays[key])]
        labels = next((k for k in columns if len(pictures) == 1 or part[k] == part[key]), None)
        test = part_of(part[key][0]) if part[key] else None
        return ArrayPart(f"{path}: {key}", test, arrays[key], None if labels is None else arrays[labels])

    return joined([made(key) for key in pictures], how)


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
    labels = _beside(path)
    return ArrayPart(str(path), part_of(path.name), read_idx(path), None if labels is None else read_idx(labels))


def _beside(path: Path) -> Path | None:
    """The labels file that belongs to an idx file of pictures."""
    for theirs, ours in (("images-idx3", "labels-idx1"), ("images", "labels")):
        other = path.with_name(path.name.replace(theirs, ours))
        if other != path and other.exists():
            return other
    return None
