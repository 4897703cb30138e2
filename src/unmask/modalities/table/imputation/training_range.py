"""New cells beyond what the model was fitted on: said, for the model takes them for the ends of its training range."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from unmask.errors import either
from unmask.modalities.table.distribution.codec import Coding
from unmask.modalities.table.fitting.cell_table import FittedTable
from unmask.modalities.table.reading.frame import Frame
from unmask.modalities.table.schema.schema import Column, Schema
from unmask.modalities.table.schema.values import cell_texts, decode, encode_censored
from unmask.odd_numbers import SENTINELS

FAR = 0.5
"""Of the training range's width: a cell further beyond its ends than this is said, be it the only one."""
MANY = 0.05
"""A larger share of a column's cells beyond the range is said, however near, where chance does not explain it."""
CHANCE = 1e-3
"""How likely chance may put as many cells beyond the ends of the training rows, were new rows like them."""
LOUD = 0.2
"""From this share of a column's cells on, the column is likely not what the model was fitted on."""
SHOWN = 8
"""Rows named in a warning; of more, their number alone."""


def beyond_range(
    schema: Schema, codings: Sequence[Coding], columns: Sequence[np.ndarray], row_name: Callable[[int], Any]
) -> list[str]:
    """A sentence per column whose new cells lie beyond its training range, or beyond the bounds that a person gave.

    Said are cells further beyond than `FAR` times the range's width; codes of no value such as -9 and 999, apart from
    the range; and more than `MANY` of the cells, where rows like the training ones would have as many beyond in fewer
    than one of a thousand tables. A few cells just beyond the range are what new patients bring, and are not.

    Args:
        columns: the modelled ones, coded, NaN where missing.
    """
    sentences = []
    for coding, x, i in zip(codings, columns, schema.modelled, strict=True):
        column, known = schema.columns[i], ~np.isnan(x)
        if coding.scale is None or not known.any():
            continue
        ends = float(coding.scale.knot_x[0]), float(coding.scale.knot_x[-1])
        training_rows = 0.5 / coding.scale.floor
        sentences += _beyond_training(column, x, known, ends, training_rows, row_name)
        sentences += _beyond_bounds(column, x, known, row_name)
    return sentences


def encode_warned(model: FittedTable, frame: Frame) -> list[np.ndarray]:
    """The modelled columns of a table; what `beyond_range` says of them, and which cells are only bounded, is warned
    of."""
    columns, bounded = encode_censored(frame, model.schema)
    texts = [
        f"{model.schema.column(p).name!r}: {cells.words()}: taken as missing here, for they are no numbers"
        for p, cells in bounded.items()
    ]
    for text in texts + beyond_range(model.schema, model.table.codings, columns, frame.row_name):
        warnings.warn(text, stacklevel=4)
    return columns


def _beyond_training(
    column: Column,
    x: np.ndarray,
    known: np.ndarray,
    ends: tuple[float, float],
    training_rows: float,
    row_name: Callable[[int], Any],
) -> list[str]:
    low, high = ends
    out = known & ((x < low) | (x > high))
    if not out.any():
        return []
    cells, width = int(known.sum()), high - low
    far = out & ((x < low - FAR * width) | (x > high + FAR * width))
    codes = [] if column.kind == "datetime" else _codes(np.unique(x[out]), low, high)
    share = float(out.sum()) / cells
    if not (far.any() or codes or (share > MANY and _chance(int(out.sum()), cells, training_rows) < CHANCE)):
        return []
    shown = _shown(x[out], column)
    text = (
        f"{column.name!r}: {int(out.sum())} of {cells} cells lie beyond the training range {_text(low, column)} to "
        f"{_text(high, column)} ({shown}{_rows(out, row_name)}): the model takes them for its ends"
    )
    if codes:
        listed = ", ".join(f"{v:g}" for v in codes)
        mean, pronoun = ("means", "it") if len(codes) == 1 else ("mean", "them")
        flags = either(" ".join(f"--missing {v:g}" for v in codes) + ", or ", "")
        return [f"{text}. If {listed} {mean} no value: {flags}empty {pronoun} in the table"]
    if share >= LOUD and column.kind != "datetime":  # new patients come after those of training
        text += ", and what is imputed beside them is NOT to be trusted. Is it written in another unit or coding?"
    return [text]


def _chance(out: int, cells: int, training_rows: float) -> float:
    """How likely so many of some new values, or more, lie beyond the least and greatest of others of one distribution.

    The share of the distribution beyond the ends of n values has the distribution Beta(2, n - 1).
    """
    from scipy.stats import betabinom

    return float(betabinom.sf(out - 1, cells, 2, max(training_rows - 1, 1)))


def _codes(values: np.ndarray, low: float, high: float) -> list[float]:
    """Those of some numbers beyond a range that are codes of no value, by their look; see
    `suspicious_values.sentinels`."""
    gap = np.where(values < low, low - values, values - high)
    far = gap > max(0.5 * (high - low), 3)
    return [float(v) for v, a in zip(values, far, strict=True) if v in SENTINELS and (a or v < 0 <= low)]


def _beyond_bounds(column: Column, x: np.ndarray, known: np.ndarray, row_name: Callable[[int], Any]) -> list[str]:
    low, high = column.bounds
    out = known & ((x < low) | (x > high))
    if not out.any():
        return []
    ends = [f"{name} {_text(end, column)}" for name, end in (("low", low), ("high", high)) if np.isfinite(end)]
    return [
        f"{column.name!r}: {int(out.sum())} of {int(known.sum())} cells lie beyond the bounds that the schema gives, "
        f"{' and '.join(ends)} ({_shown(x[out], column)}{_rows(out, row_name)})"
    ]


def _text(value: float, column: Column) -> str:
    if column.kind != "datetime":
        return f"{value:g}"
    return cell_texts(decode(np.array([value]), column), column)[0].removesuffix(" 00:00:00")


def _shown(x: np.ndarray, column: Column) -> str:
    """The one or two values there are, or the least and the greatest."""
    low, high = _text(float(x.min()), column), _text(float(x.max()), column)
    if low == high:
        return low
    return f"{low}, {high}" if len(np.unique(x)) == 2 else f"{low} ... {high}"


def _rows(out: np.ndarray, row_name: Callable[[int], Any]) -> str:
    rows = np.flatnonzero(out)
    if len(rows) > SHOWN:
        return ""
    return f", row{'s' if len(rows) > 1 else ''} " + ", ".join(str(row_name(int(r))) for r in rows)
