"""Arrays in files (npy, npz, idx) as pictures, and which part of a data set a name says."""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path

import numpy as np

from unmask.errors import UserError
from unmask.modalities.images.arrays import PLAIN, ImageSet, Part, Reading, from_array, joined

SPLITS = {
    "train": ("train", "training"),
    "test": ("test", "t10k", "val", "valid", "validation", "dev"),
}
"""Names of folders, files and arrays that say which part of a data set they hold."""


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
    raw = gzip.decompress(path.read_bytes()) if path.suffix.lower() == ".gz" else path.read_bytes()
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
