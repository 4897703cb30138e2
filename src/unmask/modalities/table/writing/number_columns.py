"""Tables in which whole columns become numbers, once what was only bounded has a value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Drawn = Mapping[int, tuple[np.ndarray, list[float], np.ndarray]]
"""Column of the schema -> rows of cells that were only bounded, their values, and the whole column as numbers."""


def with_numbers(table: Any, columns: Mapping[int, np.ndarray]) -> Any:
    """A table of pandas, polars, Arrow or an array with some columns, by place, replaced by numbers, NaN for none."""
    if isinstance(table, np.ndarray):
        for place, x in columns.items():
            table[:, place] = x
        return table
    if hasattr(table, "iloc"):
        for place, x in columns.items():
            table.isetitem(place, x)
        return table
    import narwhals as nw

    frame = nw.from_native(table, eager_only=True)
    new = [
        nw.new_series(
            frame.columns[place],
            [None if v != v else v for v in x.tolist()],
            nw.Float64(),
            backend=frame.implementation,
        )
        for place, x in columns.items()
    ]
    return nw.to_native(frame.with_columns(*new))
