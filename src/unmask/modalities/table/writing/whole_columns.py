"""Whole columns of any kind of table: chosen, replaced, appended, handed out as scikit-learn's transformers do.

A column whose cells were only bounded becomes one of numbers once they have values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    if is_pandas(table):
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


def is_frame(table: Any) -> bool:
    """Whether a table has named columns: pandas, polars, Arrow and what else narwhals reads."""
    import narwhals as nw

    return bool(nw.dependencies.is_into_dataframe(table))


def is_pandas(table: Any) -> bool:
    """Whether something is a table of pandas, without importing it."""
    return hasattr(table, "iloc")


def series_of(table: Any) -> list[Any]:
    """The columns of a frame as narwhals series, by place: pandas may hold a name twice."""
    import narwhals as nw

    if is_pandas(table):
        return [nw.from_native(table.iloc[:, i], series_only=True) for i in range(table.shape[1])]
    frame = nw.from_native(table, eager_only=True)
    return [frame[name] for name in frame.columns]


def chosen(table: Any, places: Sequence[int]) -> Any:
    """The columns at some places."""
    import narwhals as nw

    if isinstance(table, np.ndarray):
        return table[:, list(places)]
    if is_pandas(table):
        return table.iloc[:, list(places)]
    frame = nw.from_native(table, eager_only=True)
    return frame.select([frame.columns[i] for i in places]).to_native()


def replaced(table: Any, place: int, value: Any) -> Any:
    """A copy in which every cell of a column is one value, of the column's own type where that can hold it."""
    import narwhals as nw

    if isinstance(table, np.ndarray):
        out = table.copy()
        out[:, place] = value
        return out
    if is_pandas(table):
        out, kind = table.copy(), table.dtypes.iloc[place]
        if str(kind) == "category":
            out.isetitem(place, out.iloc[:, place].cat.add_categories([value]).fillna(value))
        else:
            out.isetitem(place, type(out.iloc[:, place])([value] * len(out), index=out.index, dtype=kind))
        return out
    frame = nw.from_native(table, eager_only=True)
    name = frame.columns[place]
    kind = frame[name].dtype
    kind = nw.String() if isinstance(kind, nw.Categorical | nw.Enum | nw.Unknown) else kind
    made = nw.new_series(name, [value] * len(frame), kind, backend=frame.implementation)
    return frame.with_columns(made).to_native()


def appended(table: Any, names: Sequence[str], marks: np.ndarray) -> Any:
    """The table and further columns of 0 and 1 behind it; booleans in a frame."""
    import narwhals as nw

    if isinstance(table, np.ndarray):
        return np.hstack([table, marks.astype(table.dtype)])
    if is_pandas(table):
        import pandas as pd

        return pd.concat([table, pd.DataFrame(marks, index=table.index, columns=list(names))], axis=1)
    frame = nw.from_native(table, eager_only=True)
    new = [
        nw.new_series(n, m.tolist(), nw.Boolean(), backend=frame.implementation)
        for n, m in zip(names, marks.T, strict=True)
    ]
    return frame.with_columns(*new).to_native()


def as_output(table: Any, names: Sequence[str], wanted: str) -> Any:
    """The table as the kind that `set_output` asks for. `names`: of all columns, for arrays; `wanted`: "default" (an
    array: of floats where all columns are numbers or booleans, else of objects), "pandas" or "polars"."""
    import narwhals as nw

    if wanted == "default":
        return as_array(table)
    if isinstance(table, np.ndarray):
        if table.dtype != object:
            return table  # scikit-learn wraps it, with the index of the input
        columns = {i: list(c) for i, c in enumerate(table.T)}
        if wanted == "pandas":
            import pandas as pd

            return pd.DataFrame(columns).set_axis(list(names), axis=1)
        import polars as pl

        return pl.DataFrame({names[i]: c for i, c in columns.items()}, strict=False)
    if wanted == "pandas":
        return table if is_pandas(table) else nw.from_native(table, eager_only=True).to_pandas()
    return nw.from_native(table, eager_only=True).to_polars()


def as_array(table: Any) -> np.ndarray:
    """(rows, columns) of floats where all columns are numbers or booleans (float32 where all are), else of objects."""
    import narwhals as nw

    if isinstance(table, np.ndarray):
        return table
    columns = series_of(table)
    kinds = [c.dtype for c in columns]
    if all((k.is_numeric() and not k.is_decimal()) or isinstance(k, nw.Boolean) for k in kinds):
        single = bool(kinds) and all(isinstance(k, nw.Float32) for k in kinds)
        parts = [np.asarray(c.cast(nw.Float64()).to_numpy(), np.float32 if single else np.float64) for c in columns]
        return np.column_stack(parts) if parts else np.zeros((len(table), 0))
    out = np.empty((len(columns[0]), len(columns)), object)
    for i, column in enumerate(columns):
        out[:, i] = np.array([*column.to_list(), None], object)[:-1]
    return out
