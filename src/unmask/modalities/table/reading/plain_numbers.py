"""Texts that are plain numbers, all of a column at once: tables of millions of cells consist of them.

Whatever else a cell may be (blanks around it, other marks, words, limits) is left to the readers of single cells.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

PLAIN_NUMBER = r"^-?[0-9]{1,18}(?:\.[0-9]{1,18})?$"
FEWEST = 500
"""Cells from which on reading them at once is worth it."""


def plain_numbers(values: np.ndarray | Sequence[object]) -> np.ndarray:
    """The number of every cell that is a text such as -12 or 3.50; NaN for all other cells, and for all of a few cells.

    The numbers are those of `float`, bit for bit.
    """
    if len(values) < FEWEST:
        return np.full(len(values), np.nan)
    import polars as pl

    listed = values.tolist() if isinstance(values, np.ndarray) else values
    try:
        texts = pl.DataFrame({"text": pl.Series([v if type(v) is str else None for v in listed], dtype=pl.String)})
    except UnicodeError:  # halves of characters, which only Python's texts may hold
        return np.full(len(values), np.nan)
    plain = pl.when(pl.col("text").str.contains(PLAIN_NUMBER)).then(pl.col("text"))
    return texts.select(plain.cast(pl.Float64).fill_null(float("nan")))["text"].to_numpy().copy()
