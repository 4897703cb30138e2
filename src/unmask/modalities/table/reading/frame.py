"""A table as raw columns, and what it was: the form in which every kind of table is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unmask.errors import UserError, first_of
from unmask.given import no_value, values_of
from unmask.modalities.table.reading.decimal_marks import Marks, Spelling, spellings_of
from unmask.modalities.table.reading.parse import text_of


@dataclass(kw_only=True)
class Frame:
    """A table as raw columns, and what it was, so that a result has the same kind.

    Attributes:
        columns: float64 where the source is numeric (NaN: no value), else object (None or a spelling: no value).
        native: the container it came from; None for a CSV file.
        source: named in errors.
        first_row: number of the first row (2 in a CSV file or a sheet, 0 in a table in memory).
        levels: per column, what its type declares of categories: None nothing, () that it has categories, else their
            order, from low to high (pandas' ordered categories, polars' Enum, ordered dictionaries of Arrow).
        encoding: of the text file it came from.
        notes: what reading it brought to light.
        decimal: the mark that parts decimals in its texts, where a person said so.
        spellings: how each column writes its numbers, once that has been found out.
        changed: of a filled copy of a file of texts: column -> rows whose cells are not those of the file.
    """

    names: list[str]
    columns: list[np.ndarray]
    native: Any = None
    source: str = "table"
    first_row: int = 1
    delimiter: str = ","
    lines: np.ndarray | None = field(default=None, repr=False)
    levels: list[tuple[str, ...] | None] = field(default_factory=list)
    encoding: str = "utf-8"
    notes: tuple[str, ...] = ()
    decimal: str | None = None
    spellings: list[Spelling] = field(default_factory=list, repr=False)
    changed: dict[int, np.ndarray] | None = field(default=None, repr=False)

    def find_spellings(self, mark: str | None = None, priors: Sequence[Marks | None] | None = None) -> list[Spelling]:
        """How each column writes its numbers, found out anew and kept.

        Args:
            mark: the decimal mark, where `self.decimal` does not give it.
            priors: of each column the marks to take where its cells leave it open.
        """
        mark = self.decimal or mark
        self.spellings = spellings_of(self.columns, delimiter=self.delimiter, decimal=mark, priors=priors)
        return self.spellings

    def __len__(self) -> int:
        return len(self.columns[0]) if self.columns else 0

    def row_name(self, row: int) -> Any:
        """What errors, warnings and results call this row: the label of a pandas index, the line of a CSV file or
        sheet, else its number from 0."""
        if hasattr(self.native, "iloc"):
            label = self.native.index[row]
            return label.item() if isinstance(label, np.generic) else label
        if self.lines is None:
            return row + self.first_row
        line = self.lines[row]  # a text where the rows are of several files
        return line if isinstance(line, str) else int(line)

    def index_levels(self) -> list[tuple[str, np.ndarray]]:
        """Names and cells of what a pandas table has as its index, where that has a name."""
        if not hasattr(self.native, "iloc"):
            return []
        index = self.native.index
        return [(str(n), index.get_level_values(i).to_numpy()) for i, n in enumerate(index.names) if n is not None]


def frame_of(data: Any) -> Frame:
    """A frame from a pandas, polars or Arrow table, a NumPy array, a dict of columns or a list of dicts (both as polars
    has them)."""
    if isinstance(data, list) and data and all(isinstance(row, Mapping) for row in data):
        data = {name: [row.get(name) for row in data] for name in dict.fromkeys(name for row in data for name in row)}
    if isinstance(data, Mapping):
        return frame_of(_of_columns(data))
    if isinstance(data, np.ndarray):
        if data.ndim != 2:
            raise UserError(f"an array of {data.ndim} dimensions", hint="Expected rows x columns.")
        columns = [_plain_column(data[:, i]) for i in range(data.shape[1])]
        return Frame(names=[f"x{i}" for i in range(data.shape[1])], columns=columns, native=data, first_row=0)
    import narwhals as nw

    if type(data).__module__.startswith("pandas") and hasattr(data, "columns"):
        # Column by column: a pandas frame may hold the same name twice.
        parts = [nw.from_native(dense(data.iloc[:, i]), series_only=True) for i in range(data.shape[1])]
        return _frame([str(c) for c in data.columns], parts, data)
    try:
        frame = nw.from_native(data, eager_only=True)
    except TypeError:
        raise UserError(
            f"a {type(data).__name__} is not a table",
            hint="Expected a path, pandas, polars, Arrow, NumPy or a dict of columns.",
        ) from None
    return _frame(list(frame.columns), [frame[c] for c in frame.columns], data)


def dense(series: Any) -> Any:
    """A series of pandas, whose sparse ones can neither be counted nor written to."""
    return series.sparse.to_dense() if hasattr(series, "sparse") else series


def _of_columns(columns: Mapping[Any, Any]) -> Any:
    """A polars table of a dict of columns."""
    import polars as pl

    if single := [name for name, x in columns.items() if isinstance(x, str) or not hasattr(x, "__len__")]:
        raise UserError(
            f"a dict is not a table where {first_of(map(repr, single))} is no column",
            hint="Expected name -> column, of as many rows each.",
        )
    cells = {str(name): [None if no_value(v) else v for v in values_of(x)] for name, x in columns.items()}
    lengths = {len(x) for x in cells.values()}
    if len(lengths) > 1:
        raise UserError("a dict whose columns differ in length", hint="Expected name -> column, of as many rows each.")
    return pl.DataFrame({name: pl.Series(name, x, strict=False) for name, x in cells.items()})


def _frame(names: list[str], parts: list[Any], native: Any) -> Frame:
    found = [_read_series(p) for p in parts]
    columns, levels = [cells for cells, _ in found], [own for _, own in found]
    return Frame(names=names, columns=columns, levels=levels, native=native, first_row=0)


def _read_series(series: Any) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Cells, and what the type declares: see `Frame.levels`."""
    typed: Any = getattr(series.to_native(), "cat", None)
    if not hasattr(typed, "codes"):
        return _cells(series), _levels(series)
    # pandas: of categories themselves, for a list of the cells has other numbers where some are missing.
    categories = typed.categories.tolist()
    levels = tuple(map(text_of, categories)) if typed.ordered else ()
    return np.array([*categories, None], object)[typed.codes.to_numpy()], levels


def _levels(series: Any) -> tuple[str, ...] | None:
    """Of polars and Arrow."""
    import narwhals as nw

    if isinstance(series.dtype, nw.Enum):
        return tuple(text_of(c) for c in series.dtype.categories)
    if not isinstance(series.dtype, nw.Categorical):
        return None
    arrow = getattr(series.to_native(), "type", None)
    if getattr(arrow, "ordered", False):
        return tuple(text_of(c) for c in series.to_native().unify_dictionaries().chunk(0).dictionary.to_pylist())
    return ()


def _cells(series: Any) -> np.ndarray:
    import narwhals as nw

    kind = series.dtype
    if kind.is_numeric() and not kind.is_decimal():
        numbers = np.asarray(series.cast(nw.Float64).to_numpy(), np.float64).copy()
        return _shortest(numbers.astype(np.float32)) if kind == nw.Float32 else numbers
    return _plain_column(np.array([*series.to_list(), None], object)[:-1])


def _plain_column(column: np.ndarray) -> np.ndarray:
    if column.dtype.kind in "fiu":
        return _shortest(column) if column.dtype in (np.float16, np.float32) else column.astype(np.float64)
    return column.astype(object)


def _shortest(column: np.ndarray) -> np.ndarray:
    """Numbers of half or single precision as the shortest decimals that mean them, as a file would hold them: 1.1, not
    1.10000002."""
    values, where = np.unique(column, return_inverse=True)
    return values.astype(str).astype(np.float64)[where]
