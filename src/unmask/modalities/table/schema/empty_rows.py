"""Rows without any value: nobody is described there, so they are not counted in a fit, and nothing is invented for
them."""

from __future__ import annotations

import numpy as np

from unmask.errors import first_of
from unmask.modalities.table.reading.frame import Frame
from unmask.modalities.table.reading.parse import is_missing
from unmask.modalities.table.schema.schema import Schema
from unmask.modalities.table.schema.values import missing_cells

SHOWN_ROWS = 10


def empty_rows(frame: Frame, schema: Schema) -> np.ndarray:
    """Which rows of a table hold no value in any column, identifiers included; none in a table of one column.

    Returns:
        Booleans, one per row.
    """
    left = np.arange(len(frame) if len(frame.names) > 1 else 0)
    columns = {c.name: c for c in schema.columns}
    by_place = isinstance(frame.native, np.ndarray)
    for i, (name, raw) in enumerate(zip(frame.names, frame.columns, strict=True)):
        if not len(left):
            break
        known = schema.columns[i] if by_place and i < len(schema.columns) else columns.get(name)
        part = raw[left]
        left = left[is_missing(part) if known is None else missing_cells(part, known, schema)]
    out = np.zeros(len(frame), bool)
    out[left] = True
    return out


def said_of_empty(frame: Frame, empty: np.ndarray, what: str) -> list[str]:
    """A sentence on the rows without any value, with their numbers.

    Args:
        what: is done with them.
    """
    if not empty.any():
        return []
    rows = [frame.row_name(i) for i in np.flatnonzero(empty).tolist()]
    listed = first_of(rows, SHOWN_ROWS)
    which = f"row {listed} holds" if len(rows) == 1 else f"rows {listed} hold"
    return [f"{which} no value in any column: {what}"]


__all__ = ["empty_rows", "said_of_empty"]
