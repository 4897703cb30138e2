"""Tables out: filled copies, new rows and files, of the kind of table that came in; what was observed is untouched."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import datetime as dt
import itertools
import re
import warnings
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from unmask.errors import UserError, either
from unmask.given import no_value
from unmask.modalities.table.reading.decimal_marks import Marks, Spelling
from unmask.modalities.table.reading.frame import Frame, dense
from unmask.modalities.table.reading.parse import is_missing, numbers, text_of
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.schema.raw_column import blank_cells
from unmask.modalities.table.schema.schema import Column, Schema
from unmask.modalities.table.schema.values import cell_texts, match_columns, spelling_in, writes_point
from unmask.modalities.table.writing.whole_columns import Drawn, is_frame, is_pandas, with_numbers
from unmask.writing import written

WRITTEN = (".csv", ".tsv", ".parquet")
"""Formats of files that tables are written in."""
CODED = re.compile(r"\s*[+-]?0[0-9]")
"""A text that reads as a number and is one of a code's: 00501, 007."""
EXACT = 2**53
"""From here on a float does not hold every whole number."""


def filled_copy(
    frame: Frame,
    changes: dict[int, tuple[np.ndarray, list[Any]]],
    schema: Schema,
    order: list[int],
    drawn: Drawn | None = None,
) -> Any:
    """The frame's own kind of table with some cells replaced; every other cell is the object it was. Returns a pandas,
    polars or Arrow table or an array; a `Frame` for a CSV file. Empty cells that mean something (`Column.blank`) hold
    it. `changes`: column of the schema -> (rows, plain values); `order`: where the schema's columns stand in the
    frame; `drawn`: of cells that were only bounded rows and values, and the whole column, which becomes one of
    numbers."""
    if drawn and frame.native is not None:
        table = filled_copy(frame, {i: c for i, c in changes.items() if i not in drawn}, schema, order)
        return with_numbers(table, {order[i]: x for i, (_, _, x) in drawn.items()})
    changes = changes | _blanks(frame, changes, schema, order)
    if frame.native is None:
        columns, marks = [c.copy() for c in frame.columns], spelling_in(frame, schema, order)
        for i, (rows, values) in changes.items():
            columns[order[i]][rows] = cell_texts(
                values, schema.columns[i], writes_point(frame.columns[order[i]], schema.columns[i]), marks[i]
            )
        written_rows = {i: rows for i, (rows, _) in changes.items()}
        for i, (rows, found, _) in (drawn or {}).items():
            whole = schema.columns[i].decimals == 0 and all(v == round(v) for v in found)
            texts = cell_texts([int(v) for v in found] if whole else found, schema.columns[i], marks=marks[i])
            columns[order[i]][rows] = texts
            written_rows[i] = np.union1d(rows, written_rows.get(i, rows))
        changed = None if frame.lines is None else {order[i]: rows for i, rows in written_rows.items()}
        return dataclasses.replace(frame, columns=columns, levels=[], notes=(), decimal=None, changed=changed)
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
        kind = series.dtype
        if isinstance(kind, nw.Enum):  # a level of the training rows that this table's type does not have
            kind = nw.Enum(list(dict.fromkeys([*kind.categories, *typed])))
        new.append(nw.new_series(series.name, cells, kind, backend=table.implementation))
    filled = nw.to_native(table.with_columns(*new)) if new else frame.native
    # narwhals makes string of large_string, and other numbers of a dictionary
    return filled.cast(frame.native.schema) if table.implementation.is_pyarrow() else filled


def _blanks(
    frame: Frame, changes: dict[int, tuple[np.ndarray, list[Any]]], schema: Schema, order: list[int]
) -> dict[int, tuple[np.ndarray, list[Any]]]:
    """The changes of columns whose empty cells mean something, with these cells among them."""
    out = {}
    for i, c in enumerate(schema.columns):
        if c.blank is None or order[i] >= len(frame.columns):
            continue
        empty = blank_cells(frame.columns[order[i]], c.blank, (*schema.missing, *c.missing))
        if empty.any():
            rows, values = changes.get(i, (np.zeros(0, np.int64), []))
            blank: list[Any] = [float(c.blank) if c.is_quantity else c.blank] * int(empty.sum())
            out[i] = np.concatenate([rows, np.flatnonzero(empty)]), [*values, *blank]
    return out


def _filled_pandas(frame: Frame, changes: dict[int, Any], schema: Schema, order: list[int]) -> Any:
    import narwhals as nw

    out = frame.native.copy()
    for i, (rows, values) in changes.items():
        kind, series = out.iloc[:, order[i]].dtype, dense(out.iloc[:, order[i]].copy())
        values = _typed(
            values, schema.columns[i], frame.columns[order[i]], nw.from_native(series, series_only=True).dtype
        )
        if str(kind) == "category":
            known = {text_of(c): c for c in kind.categories}
            values = [known.get(text_of(v), v) for v in values]
            series = series.cat.add_categories([v for v in dict.fromkeys(values) if text_of(v) not in known])
        series.iloc[rows] = values
        out.isetitem(order[i], series.astype(kind) if hasattr(out.iloc[:, order[i]], "sparse") else series)
    return out


def _typed(values: list[Any], column: Column, like: np.ndarray, kind: Any = None) -> list[Any]:
    """Plain values as the table holds them: categories as numbers or booleans, dates as dates or texts. `like`: the
    column they are for, whose observed values are the example; `kind`: its narwhals type, where it has one: the example
    where nothing is observed."""
    if like.dtype.kind in "fiu":
        whole = kind is not None and kind.is_integer()
        return [None if v is None else (int(float(v)) if whole else float(v)) for v in values]
    seen = {text_of(v): v for v in like if not no_value(v)}
    example = next(iter(seen.values()), _example(kind))
    if isinstance(example, bool | np.bool_):
        seen = {"False": False, "True": True}
    text = any(isinstance(v, str) for v in (example, *seen.values()))

    def typed(value: Any) -> Any:
        if isinstance(example, Decimal):
            return Decimal(str(value))
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
    """A table of new rows with the columns of the schema, of the same kind as `like`; ids are left out. `columns`:
    column of the schema -> plain values."""
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
    """The types of a table's columns as text, for `like_stored`; None for a file of texts, or where Arrow
    has no type."""
    import base64

    import narwhals as nw

    if frame.native is None or isinstance(frame.native, np.ndarray):
        return None
    try:
        arrow = nw.from_native(frame.native, eager_only=True).to_arrow()
    except (ValueError, TypeError):
        return None
    return base64.b64encode(arrow.schema.remove_metadata().serialize()).decode()


def like_stored(types: str, *, pandas: bool = False) -> Frame:
    """A table without rows, of stored types; of pandas where that is meant and installed, else of polars."""
    import base64

    import polars as pl
    import pyarrow as pa

    table = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(types))).empty_table()
    if pandas:
        with contextlib.suppress(ImportError):
            return read_frame(table.to_pandas())
    return read_frame(pl.DataFrame(pl.from_arrow(table)))


def new_frame(schema: Schema, columns: dict[int, list[Any]], point: Sequence[bool]) -> Frame:
    """New rows as the texts of a CSV file; `point` as `writes_point` says of each column."""
    raw = [_texts_of(v, schema.columns[i], point[i]) for i, v in columns.items()]
    spellings = [Spelling(marks=Marks(schema.columns[i].decimal, schema.columns[i].thousands)) for i in columns]
    return Frame(names=[schema.columns[i].name for i in columns], columns=raw, source="new rows", spellings=spellings)


def rows_below(frame: Frame, schema: Schema, columns: dict[int, list[Any]]) -> Frame:
    """The texts of a CSV file with new rows at its end, spelled as the file spells; what was there is not touched.
    `columns`: column of the schema -> plain values; other columns of the file are empty in the new rows."""
    order, count = match_columns(frame, schema), len(next(iter(columns.values())))
    marks = spelling_in(frame, schema, order)
    new = {
        order[i]: _texts_of(v, schema.columns[i], writes_point(frame.columns[order[i]], schema.columns[i]), marks[i])
        for i, v in columns.items()
    }
    empty = np.array([""] * count, object)
    raw = [np.concatenate([c.astype(object), new.get(k, empty)]) for k, c in enumerate(frame.columns)]
    return dataclasses.replace(frame, columns=raw, lines=None, levels=[])


def _texts_of(values: list[Any], column: Column, point: bool, marks: Marks | None = None) -> np.ndarray:
    return np.array([*cell_texts(values, column, point, marks), None], object)[:-1]


FORMULA = re.compile(r"[=@\t\r]|[+-](?![0-9., ]*([eE][+-]?[0-9]+)?\s*$)")
"""What a cell begins with that a spreadsheet takes for a formula, and no number."""


def check_format(path: str | Path) -> Path:
    """A path, if tables are written in the format that it ends in: asked before long work whose result goes there."""
    path = Path(path)
    if path.suffix not in WRITTEN:
        raise UserError(f"{path}: unknown kind of file {path.suffix!r}", hint="Name it .csv, .tsv or .parquet.")
    return path


def write_table(table: Any, path: str | Path, *, escape_formulas: bool = False) -> Path:
    """Write a table as .csv, .tsv or .parquet, whole or not at all. `escape_formulas`: put ' before the texts and names
    of a .csv or .tsv that a spreadsheet would take for formulas (OWASP, "CSV Injection"); without, they are written as
    they are and warned of."""
    path = check_format(path)
    with written(path) as temporary:
        if path.suffix == ".parquet":
            as_polars(table).write_parquet(temporary)
        else:
            frame = read_frame(table)
            delimiter = "\t" if path.suffix == ".tsv" else frame.delimiter
            cells = [[name, *_texts(c)] for name, c in zip(frame.names, frame.columns, strict=True)]
            cells = _formulas(cells, path, escape=escape_formulas)
            with temporary.open("w", encoding=frame.encoding, newline="") as file:
                if frame.changed is not None and not escape_formulas and delimiter == frame.delimiter:
                    file.writelines(_with_changes(frame))
                else:
                    csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows(zip(*cells, strict=True))
    return path


def _with_changes(frame: Frame) -> Iterator[str]:
    """The text of the file that a filled copy is of, with the cells that are not those of the file in their places: its
    quotes, line ends, empty lines and all other cells are as they are."""
    assert frame.changed is not None
    assert frame.lines is not None
    mark = re.escape(frame.delimiter)
    cell = re.compile(f'"(?:[^"]|"")*"[^{mark}\r\n]*|[^{mark}\r\n]*')
    new: dict[int, list[int]] = {}
    for column, rows in frame.changed.items():
        for row in rows.tolist():
            new.setdefault(row, []).append(column)
    encoding = "utf-8-sig" if frame.encoding == "utf-8" else frame.encoding
    with open(frame.source, encoding=encoding, newline="") as source:
        above = sum(name.count("\n") for name in frame.names)
        yield from itertools.islice(source, frame.first_row - 1 + above)
        before = frame.first_row - 1 + above
        for row, last in enumerate(frame.lines.tolist()):
            text = "".join(itertools.islice(source, last - before))
            before = last
            if row not in new:
                yield text
                continue
            at = len(text) - len(text.lstrip("\r\n")) if len(frame.names) > 1 else 0
            yield text[:at]
            for column in range(len(frame.names)):
                found = cell.match(text, at)
                assert found is not None
                own = found[0]
                if column in new[row]:
                    own = _quoted(str(frame.columns[column][row]), own.startswith('"'), frame.delimiter)
                at = found.end() + 1
                yield own + (frame.delimiter if column + 1 < len(frame.names) else "")
            yield text[at - 1 :]
        yield from source


def _quoted(text: str, always: bool, delimiter: str) -> str:
    """A cell as a CSV file has it."""
    if always or any(mark in text for mark in (delimiter, '"', "\r", "\n")):
        return '"' + text.replace('"', '""') + '"'
    return text


def _formulas(columns: list[list[Any]], path: Path, *, escape: bool) -> list[list[Any]]:
    """The columns with cells that begin like a formula escaped, or as they are and warned of."""
    found = [[i for i, v in enumerate(c) if isinstance(v, str) and FORMULA.match(v)] for c in columns]
    count = sum(map(len, found))
    if escape:
        for column, rows in zip(columns, found, strict=True):
            for i in rows:
                column[i] = f"'{column[i]}"
    elif count:
        column, row = next((c, rows[0]) for c, rows in zip(columns, found, strict=True) if rows)
        place = f"row {row:,} of {column[0]}" if row else "a name"
        way = either("--escape-formulas", "`escape_formulas` of `write_table`")
        warnings.warn(
            f"{path}: {count:,} cell{'s' * (count != 1)} that a spreadsheet would take for a formula, the first "
            f"{place}: {column[row][:40]!r}; {way} puts ' before them",
            stacklevel=3,
        )
    return columns


def _texts(column: np.ndarray) -> list[Any]:
    if column.dtype.kind == "f":
        whole = bool((np.isnan(column) | (column == np.round(column))).all())
        return ["" if v != v else (int(v) if whole else float(v)) for v in column]
    return ["" if no_value(v) else v for v in column]


def handed_out(table: Any) -> Any:
    """A table as people get it: of its own kind, polars where it comes from a file."""
    return as_polars(table) if isinstance(table, Frame) else table


def as_polars(table: Any) -> Any:
    """Any of our kinds of table as a polars one, of its own types; CSV texts become numbers where all of a column are,
    and lose nothing by it: codes with leading zeros, and numbers of more digits than a float holds, stay texts."""
    import narwhals as nw
    import polars as pl

    frame = read_frame(table)
    if is_frame(frame.native):
        with contextlib.suppress(ValueError, TypeError):  # columns of several types, which polars does not have
            return nw.from_native(frame.native, eager_only=True).to_polars()
    columns = {}
    if len(frame.spellings) != len(frame.columns):
        frame.find_spellings()
    for name, raw, spelling in zip(frame.names, frame.columns, frame.spellings, strict=True):
        missing = is_missing(raw)
        if raw.dtype != object:
            columns[name] = pl.Series(name, raw).fill_nan(None)
            continue
        found, bad = numbers(raw[~missing], spelling.marks)
        plain = len(found) > 0 and not bad.any() and frame.native is None and not spelling.unclear
        if plain and not (np.abs(found) >= EXACT).any() and not any(CODED.match(str(v)) for v in raw[~missing]):
            point = spelling.marks.decimal
            whole = np.array_equal(found, np.round(found)) and not any(point in str(v) for v in raw[~missing])
            cells: list[Any] = [None] * len(raw)
            for i, v in zip(np.flatnonzero(~missing), found, strict=True):
                cells[i] = int(v) if whole else float(v)
            columns[name] = pl.Series(name, cells)
        else:
            columns[name] = pl.Series(name, [None if g else v for v, g in zip(raw, missing, strict=True)])
    return pl.DataFrame(columns)


def below_each_other(tables: Sequence[Any], numbers: Sequence[int]) -> Any:
    """Tables as one of their kind, with the columns `.imp` and `.id` in front."""
    first = tables[0]
    if isinstance(first, np.ndarray):
        raise UserError(
            "complete('long') of arrays", hint="np.stack(done.completed) is (m, rows, columns); or fit to a frame."
        )
    if is_pandas(first):
        import pandas as pd

        levels = [".id"] if first.index.nlevels == 1 else list(first.index.names)
        return pd.concat(tables, keys=numbers, names=[".imp", *levels]).reset_index()
    import polars as pl

    parts = [
        as_polars(table).select(pl.lit(number).alias(".imp"), pl.row_index(".id").cast(pl.Int64), pl.all())
        for number, table in zip(numbers, tables, strict=True)
    ]
    long = pl.concat(parts, how="vertical_relaxed")
    return long.to_arrow() if type(first).__module__.startswith("pyarrow") else long
