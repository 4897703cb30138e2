"""Values and columns as callers of Python give them, whatever the library."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def no_value(value: Any) -> bool:
    """Whether a value is None or one of the many NaN: what does not equal itself, or cannot tell (pandas.NA).

    >>> [no_value(value) for value in (None, float("nan"), "", [1, 0])]
    [True, True, False, False]
    """
    if value is None:
        return True
    try:
        return bool(value != value)
    except TypeError:
        return True
    except (ValueError, RuntimeError):  # an array or a tensor of several
        return False


MISSING_WORDS = frozenset({"n/a", "nan", "null", "#null!", "#n/a", "#na", "#nv", "#n/d", "<na>"})
"""How pandas, data bases and spreadsheets write a missing value, in small letters; R's NA is one in capitals alone."""


def natural(name: str) -> tuple[int, float, str]:
    """Sort key of classes and categories: numbers by value, before texts ("nan" is a text: it has no place among
    numbers)."""
    try:
        number = float(name)
    except ValueError:
        number = math.nan
    return (1, 0.0, name) if math.isnan(number) else (0, number, name)


SPLIT_COLUMNS = ("split", "part", "set", "subset")
"""Names of columns that say which part of a data set a row is of."""
_SPLITS = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation", "dev"),
    "test": ("test", "t10k"),
}


def split_named(name: Any) -> str | None:
    """Which part of a data set a folder, a file or a cell of this name says: 'train', 'validation' or 'test'.

    >>> [split_named(name) for name in ("Train", "val_2019", "test-a.npy", "train2017", "left")]
    ['train', 'validation', 'test', 'train', None]
    """
    start = str(name).strip().lower().replace("_", "-").split("-")[0].split(".")[0].rstrip("0123456789")
    return next((split for split, names in _SPLITS.items() if start in names), None)


def values_of(column: Any) -> list[Any]:
    """What a column holds, as Python has it: values of an Arrow array, rows of a sparse matrix as arrays."""
    if hasattr(column, "to_pylist"):
        return list(column.to_pylist())
    return list(column.toarray() if hasattr(column, "toarray") else column)


def array_of(data: Any) -> np.ndarray:
    """An array, column or tensor as an array; of bfloat16, which NumPy does not have, in 32 bits. What a masked array
    hides is None."""
    if np.ma.is_masked(data):
        found = np.array(data, object)
        found[np.ma.getmaskarray(data)] = None
        return found
    if hasattr(data, "detach"):
        data = data.detach().cpu()
        data = data.float() if str(data.dtype) == "torch.bfloat16" else data
    return np.asarray(data)
