"""Tables in and out: CSV and parquet files, pandas, polars, Arrow and NumPy; what was observed comes back untouched.

A CSV cell is kept as the text it was, so that a table that is read, imputed and written differs in the filled cells only.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from unmask.errors import UserError
from unmask.files import written
from unmask.table.parse import date_of, days, is_missing, no_value, numbers, text_of
from unmask.table.schema import Column, Schema

LONGEST_CELL = 1 << 28
"""Characters of a cell of a CSV file; a longer one is a quote that nobody closed."""


@dataclass(kw_only=True)
class Frame:
    """A table as raw columns, and what it was, so that a result has the same kind.

    Attributes:
        columns: float64 where the source is numeric (NaN: no value), else object (None or a spelling: no value).
        native: the container it came from; None for a CSV file.
        source: named in errors.
        first_row: number of the first row in errors (2 in a CSV file).
    """

    names: list[str]
    columns: list[np.ndarray]
    native: Any = None
    source: str = "table"
    first_row: int = 1
    delimiter: str = ","
    lines: np.ndarray | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.columns[0]) if self.columns else 0

    def row_name(self, row: int) -> int:
        """The number a person knows this row by: the line in a CSV file."""
        return int(self.lines[row]) if self.lines is not None else row + self.first_row


def read_frame(data: Any) -> Frame:
    """A frame from a path (.csv, .tsv, .parquet), a pandas, polars or Arrow table, or a NumPy array.

    Raises:
        UserError: no such file, an unknown kind, or a file that cannot be read, naming the line at fault.
    """
    if isinstance(data, Frame):
        return data
    if isinstance(data, str | Path):
        return _read_file(Path(data))
    if isinstance(data, np.ndarray):
        if data.ndim != 2:
            raise UserError(f"an array of {data.ndim} dimensions", hint="Expected rows x columns.")
        columns = [_plain_column(data[:, i]) for i in range(data.shape[1])]
        return Frame(names=[f"x{i}" for i in range(data.shape[1])], columns=columns, native=data)
    import narwhals as nw

    if type(data).__module__.startswith("pandas") and hasattr(data, "iloc"):
        # Column by column: a pandas frame may hold the same name twice.
        parts = [nw.from_native(data.iloc[:, i], series_only=True) for i in range(data.shape[1])]
        return Frame(names=[str(c) for c in data.columns], columns=[_from_series(p) for p in parts], native=data)
    try:
        frame = nw.from_native(data, eager_only=True)
    except TypeError:
        raise UserError(
            f"a {type(data).__name__} is not a table", hint="Expected a path, pandas, polars, Arrow or NumPy."
        ) from None
    return Frame(names=list(frame.columns), columns=[_from_series(frame[c]) for c in frame.columns], native=data)


def _from_series(series: Any) -> np.ndarray:
    import narwhals as nw

    kind = series.dtype
    if kind.is_numeric() and not kind.is_decimal():
        return np.asarray(series.cast(nw.Float64).to_numpy(), np.float64).copy()
    return _plain_column(np.array([*series.to_list(), None], object)[:-1])


def _plain_column(column: np.ndarray) -> np.ndarray:
    if column.dtype.kind in "fiu":
        return column.astype(np.float64)
    return column.astype(object)


def _read_file(path: Path) -> Frame:
    if not path.is_file():
        raise UserError(f"{path}: no such file", hint="Expected a .csv, .tsv or .parquet file.")
    if path.suffix == ".parquet":
        import polars as pl

        try:
            table = pl.read_parquet(path)
        except Exception as error:
            raise UserError(f"{path}: not a parquet file ({error})", hint="Write it again.") from None
        frame = read_frame(table)
        frame.source = str(path)
        return frame
    if path.suffix not in (".csv", ".tsv", ".txt"):
        raise UserError(f"{path}: unknown kind of file {path.suffix!r}", hint="Expected .csv, .tsv or .parquet.")
    return read_csv(path)


def read_csv(path: Path) -> Frame:
    """A CSV or TSV file as texts, with the line number of every row.

    Raises:
        UserError: not UTF-8, empty, not CSV, or a line with too many or too few cells.
    """
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise UserError(f"{path}:{line}: not UTF-8", hint="Save the file as UTF-8.") from None
    header_text = io.StringIO(text, newline="").readline()
    delimiter = max(",;\t|", key=header_text.count) if any(d in header_text for d in ",;\t|") else ","
    csv.field_size_limit(LONGEST_CELL)
    # Line ends alone part rows; str.splitlines would also part them at form feeds and Unicode separators inside cells.
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    rows, lines = [], []
    try:
        header = next(reader, None)
        if not header:
            raise UserError(f"{path}: empty", hint="Expected a header line and rows.")
        for row in reader:
            if not row and len(header) > 1:
                continue
            if len(row) != len(header):
                raise UserError(
                    f"{path}:{reader.line_num}: {len(row)} cells, the header has {len(header)}",
                    hint="A ragged row: look for a stray delimiter, a missing quote, or an empty cell left out.",
                )
            rows.append(row)
            lines.append(reader.line_num)
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: {error}", hint="Check the quotes around that line.") from None
    if not rows:
        raise UserError(f"{path}: a header and no rows", hint="Expected at least one row.")
    grid = np.array(rows, object).reshape(len(rows), len(header))
    return Frame(
        names=header, columns=[grid[:, i] for i in range(len(header))], source=str(path), first_row=2,
        delimiter=delimiter, lines=np.array(lines),
    )  # fmt: skip


def encode(frame: Frame, schema: Schema, *, unseen: str = "error") -> list[np.ndarray]:
    """The modelled columns as floats: a quantity's value, or the number of a category; NaN where there is none.

    Args:
        unseen: a category the schema does not have is an "error", or taken as "missing".

    Raises:
        UserError: a column is missing, or a cell does not fit its column, naming column, row and value.
    """
    order = match_columns(frame, schema)
    return [_encode(frame, frame.columns[order[i]], schema.columns[i], schema, unseen) for i in schema.modelled]


def match_columns(frame: Frame, schema: Schema) -> list[int]:
    """Where each of the schema's columns stands in the frame: by place where all names agree, else by name.

    Raises:
        UserError: a column is missing.
    """
    if frame.names == schema.names or isinstance(frame.native, np.ndarray):
        if len(frame.names) != len(schema.names):
            raise UserError(
                f"{frame.source}: {len(frame.names)} columns, the model has {len(schema.names)}",
                hint="Give the same columns.",
            )
        return list(range(len(frame.names)))
    for name in schema.names:
        if name not in frame.names:
            from unmask.errors import suggest

            raise UserError(f"{frame.source}: no column {name!r}", hint=suggest(name, frame.names))
    return [frame.names.index(name) for name in schema.names]


def _encode(frame: Frame, raw: np.ndarray, column: Column, schema: Schema, unseen: str) -> np.ndarray:
    gone = is_missing(raw, schema.missing)
    out = np.full(len(raw), np.nan)
    if column.is_quantity:
        values = raw[~gone]
        found, bad = days(values, column.format or "") if column.kind == "datetime" else numbers(values)
        bad = bad | np.isinf(found)
        if bad.any():
            at = int(np.flatnonzero(~gone)[bad.argmax()])
            what = "a date" if column.kind == "datetime" else "a finite number"
            raise UserError(
                f"{frame.source}, column {column.name!r}, row {frame.row_name(at)}: {raw[at]!r} is not {what}",
                hint=f"The column is {column.kind}: correct the cell or leave it empty.",
            )
        out[~gone] = found
        return out
    number = {c: float(i) for i, c in enumerate(column.categories)}
    cache: dict[Any, float] = {}
    for i in np.flatnonzero(~gone):
        value = raw[i]
        code = cache.get(value)
        if code is None:
            code = cache[value] = number.get(text_of(value), -1.0)
        if code < 0:
            if unseen == "error":
                known = ", ".join(column.categories[:8]) + (", ..." if len(column.categories) > 8 else "")
                raise UserError(
                    f"{frame.source}, column {column.name!r}, row {frame.row_name(int(i))}: category {value!r} was not "
                    "seen in training",
                    hint=f"Known: {known}. Correct it, or pass unseen='missing' to treat it as unknown.",
                )
            code = np.nan
        out[i] = code
    return out


def decode(values: np.ndarray, column: Column) -> list[Any]:
    """Model values as plain Python values in the column's own terms: rounded numbers, categories, dates; None for NaN."""
    if not column.is_quantity:
        return [None if v != v else column.categories[int(v)] for v in values]
    if column.kind == "datetime":
        return [None if v != v else date_of(v) for v in values]
    if column.decimals is not None:
        values = np.round(values, column.decimals)
    if column.decimals == 0:
        return [None if v != v else int(v) for v in values]
    return [None if v != v else float(v) for v in values]


def writes_point(raw: np.ndarray, column: Column) -> bool:
    """Whether a column of whole numbers is written 83.0 in its file, not 83; so is one of 0 and 1 once it has holes."""
    whole = column.decimals == 0 if column.is_quantity else all(c.lstrip("-").isdecimal() for c in column.categories)
    if not whole or raw.dtype != object:
        return False
    seen = raw[:200][~is_missing(raw[:200])]
    return len(seen) > 0 and all(isinstance(v, str) and v.strip().endswith(".0") for v in seen)


def cell_texts(values: Sequence[Any], column: Column, point: bool = False) -> list[str]:
    """Plain values as the texts of a CSV file."""
    out = []
    for v in values:
        if v is None:
            out.append("")
        elif isinstance(v, dt.datetime):
            out.append(v.strftime(column.format or "%Y-%m-%d %H:%M:%S"))
        else:
            out.append(f"{v}.0" if point else str(v))
    return out


def filled_copy(
    frame: Frame, changes: dict[int, tuple[np.ndarray, list[Any]]], schema: Schema, order: list[int]
) -> Any:
    """The frame's own kind of table with some cells replaced; every other cell is the object it was.

    Args:
        changes: column of the schema -> (rows, plain values).
        order: where the schema's columns stand in the frame.

    Returns:
        A pandas, polars or Arrow table or an array; a `Frame` for a CSV file.
    """
    if frame.native is None:
        columns = [c.copy() for c in frame.columns]
        for i, (rows, values) in changes.items():
            columns[order[i]][rows] = cell_texts(
                values, schema.columns[i], writes_point(frame.columns[order[i]], schema.columns[i])
            )
        return Frame(names=frame.names, columns=columns, source=frame.source, delimiter=frame.delimiter)
    if isinstance(frame.native, np.ndarray):
        array = frame.native.copy()
        for i, (rows, values) in changes.items():
            array[rows, order[i]] = _typed(values, schema.columns[i], frame.native[:, order[i]])
        return array
    if hasattr(frame.native, "iloc"):
        return _filled_pandas(frame, changes, schema, order)
    import narwhals as nw

    table = nw.from_native(frame.native, eager_only=True)
    new = []
    for i, (rows, values) in changes.items():
        series = table[frame.names[order[i]]]
        cells = series.to_list()
        typed = _typed(values, schema.columns[i], frame.columns[order[i]], series.dtype)
        for row, value in zip(rows, typed, strict=True):
            cells[row] = value
        new.append(nw.new_series(series.name, cells, series.dtype, backend=table.implementation))
    return nw.to_native(table.with_columns(*new)) if new else frame.native


def _filled_pandas(frame: Frame, changes: dict[int, Any], schema: Schema, order: list[int]) -> Any:
    import narwhals as nw

    out = frame.native.copy()
    for i, (rows, values) in changes.items():
        series = out.iloc[:, order[i]].copy()
        kind = series.dtype
        values = _typed(
            values, schema.columns[i], frame.columns[order[i]], nw.from_native(series, series_only=True).dtype
        )
        if str(kind) == "category":
            known = {str(c): c for c in kind.categories}
            values = [known.get(text_of(v), v) for v in values]
        series.iloc[rows] = values
        out.isetitem(order[i], series)
    return out


def _typed(values: list[Any], column: Column, like: np.ndarray, kind: Any = None) -> list[Any]:
    """Plain values as the table holds them: categories as numbers or booleans, dates as dates or texts.

    Args:
        like: the column they are for, whose observed values are the example.
        kind: its narwhals type, where it has one: the example where nothing is observed.
    """
    if like.dtype.kind in "fiu":
        whole = kind is not None and kind.is_integer()
        return [None if v is None else (int(float(v)) if whole else float(v)) for v in values]
    seen = {text_of(v): v for v in like if not no_value(v)}
    example = next(iter(seen.values()), _example(kind))
    if isinstance(example, bool | np.bool_):
        seen = {"False": False, "True": True}
    text = any(isinstance(v, str) for v in (example, *seen.values()))

    def typed(value: Any) -> Any:
        if isinstance(value, dt.datetime):
            if isinstance(example, dt.datetime):
                return value.replace(tzinfo=example.tzinfo)
            if isinstance(example, dt.date):
                return value.date()
            return cell_texts([value], column)[0] if text else value
        return seen.get(str(value), str(value) if text else value)

    return [None if v is None else typed(v) for v in values]


def _example(kind: Any) -> Any:
    """A value of a narwhals type; None where there is no telling."""
    import narwhals as nw

    if isinstance(kind, nw.Datetime):
        return dt.datetime(1970, 1, 1, tzinfo=ZoneInfo(kind.time_zone) if kind.time_zone else None)
    return {nw.Boolean: True, nw.Date: dt.date(1970, 1, 1), nw.String: ""}.get(type(kind))


def new_table(schema: Schema, columns: dict[int, list[Any]], like: Frame) -> Any:
    """A table of new rows with the columns of the schema, of the same kind as `like`; ids are left out.

    Args:
        columns: column of the schema -> plain values.
    """
    names = [schema.columns[i].name for i in columns]
    if isinstance(like.native, np.ndarray):
        parts = [np.array(_typed(v, schema.columns[i], like.columns[i]), object) for i, v in columns.items()]
        grid = np.stack(parts, 1)
        return grid.astype(like.native.dtype) if like.native.dtype != object else grid
    import narwhals as nw

    if hasattr(like.native, "iloc"):
        import pandas as pd

        typed = {
            k: pd.Series(_typed(v, schema.columns[i], like.columns[i])) for k, (i, v) in enumerate(columns.items())
        }
        out = pd.DataFrame(typed)
        out.columns = names
        for k, i in enumerate(columns):
            kind = like.native.dtypes.iloc[i]
            if out.dtypes.iloc[k] != kind:
                out.isetitem(k, out.iloc[:, k].astype(kind))
        return out
    table = nw.from_native(like.native, eager_only=True)
    made = {}
    for i, v in columns.items():
        kind = table[schema.columns[i].name].dtype
        cells = _typed(v, schema.columns[i], like.columns[i], kind)
        made[schema.columns[i].name] = nw.new_series("", cells, kind, backend=table.implementation)
    return nw.to_native(nw.from_dict(made, backend=table.implementation))


def stored_types(frame: Frame) -> str | None:
    """The types of a table's columns as text, for `like_stored`; None for a file of texts, or where Arrow has no type."""
    import base64

    import narwhals as nw

    if frame.native is None or isinstance(frame.native, np.ndarray):
        return None
    try:
        arrow = nw.from_native(frame.native, eager_only=True).to_arrow()
    except (ValueError, TypeError):
        return None
    return base64.b64encode(arrow.schema.remove_metadata().serialize()).decode()


def like_stored(types: str) -> Frame:
    """A table without rows, of stored types."""
    import base64

    import polars as pl
    import pyarrow as pa

    return read_frame(
        pl.DataFrame(pl.from_arrow(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(types))).empty_table()))
    )


def new_frame(schema: Schema, columns: dict[int, list[Any]], point: Sequence[bool]) -> Frame:
    """New rows as the texts of a CSV file; `point` as `writes_point` says of each column."""
    raw = [np.array([*cell_texts(v, schema.columns[i], point[i]), None], object)[:-1] for i, v in columns.items()]
    return Frame(names=[schema.columns[i].name for i in columns], columns=raw, source="new rows")


def write_table(table: Any, path: str | Path) -> Path:
    """Write a table as .csv, .tsv or .parquet, whole or not at all.

    Raises:
        UserError: an unknown kind of file, or the folder is not there.
    """
    path = Path(path)
    if path.suffix not in (".csv", ".tsv", ".parquet"):
        raise UserError(f"{path}: unknown kind of file {path.suffix!r}", hint="Name it .csv, .tsv or .parquet.")
    with written(path) as temporary:
        if path.suffix == ".parquet":
            as_polars(table).write_parquet(temporary)
        else:
            frame = read_frame(table)
            with temporary.open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(
                    file, delimiter="\t" if path.suffix == ".tsv" else frame.delimiter, lineterminator="\n"
                )
                writer.writerow(frame.names)
                writer.writerows(zip(*[_texts(c) for c in frame.columns], strict=True))
    return path


def _texts(column: np.ndarray) -> list[Any]:
    if column.dtype.kind == "f":
        whole = bool((np.isnan(column) | (column == np.round(column))).all())
        return ["" if v != v else (int(v) if whole else float(v)) for v in column]
    return ["" if no_value(v) else v for v in column]


def handed_out(table: Any) -> Any:
    """A table as people get it: of its own kind, polars where it comes from a file."""
    return as_polars(table) if isinstance(table, Frame) else table


def as_polars(table: Any) -> Any:
    """Any of our kinds of table as a polars one; CSV texts become numbers where all of a column are."""
    import polars as pl

    frame = read_frame(table)
    if isinstance(frame.native, pl.DataFrame):
        return frame.native
    columns = {}
    for name, raw in zip(frame.names, frame.columns, strict=True):
        gone = is_missing(raw)
        if raw.dtype != object:
            columns[name] = pl.Series(name, raw).fill_nan(None)
            continue
        found, bad = numbers(raw[~gone])
        if len(found) and not bad.any() and frame.native is None:
            whole = np.array_equal(found, np.round(found)) and not any("." in str(v) for v in raw[~gone])
            cells: list[Any] = [None] * len(raw)
            for i, v in zip(np.flatnonzero(~gone), found, strict=True):
                cells[i] = int(v) if whole else float(v)
            columns[name] = pl.Series(name, cells)
        else:
            columns[name] = pl.Series(name, [None if g else v for v, g in zip(raw, gone, strict=True)])
    return pl.DataFrame(columns)
