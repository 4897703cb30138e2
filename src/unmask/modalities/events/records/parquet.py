"""Parquet files with columns of known types, checked: whole (labels, metadata) or in batches of bounded
size (events)."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from unmask.errors import UserError
from unmask.files import files_below
from unmask.remote import Place, Remote, files_at

_TABLES = "Give a table (pandas, polars, Arrow), columns by name, rows as dicts, or the path of a file or folder."

KINDS: dict[str, Any] = {
    "int": pl.Int64,
    "time": pl.Datetime("us"),
    "text": pl.String,
    "float": pl.Float32,
    "double": pl.Float64,
    "bool": pl.Boolean,
    "id": None,
}
"""Kind -> type; an id is an integer or text, and stays what it is; a double is a float that keeps the digits of a wider
column."""
MEDS = {"double": pl.Float32}
"""Kinds that MEDS has in another type."""
BATCH = 1 << 18
"""Rows of a file that are in memory at once."""
BUFFER = 1 << 20
"""Bytes read at once: a row group is never held whole."""


def shards_of(folder: Place, what: str) -> Sequence[Place]:
    """The .parquet files in a folder and those below it, sorted."""
    if not isinstance(folder, Remote) and not folder.is_dir():
        raise UserError(f"{folder}: no such folder", hint=f"Expected {what}.")
    files: Sequence[Place] = files_at(str(folder)) if isinstance(folder, Remote) else files_below(folder)
    found = [p for p in files if p.suffix == ".parquet"]
    if not found:
        raise UserError(f"{folder}: no .parquet file in it", hint=f"Expected {what}.")
    return found


def source_of(path: Place) -> contextlib.AbstractContextManager[Any]:
    """What pyarrow and polars read a file from."""
    return path.open() if isinstance(path, Remote) else contextlib.nullcontext(path)


def read(path: Place, wanted: Mapping[str, str], optional: Iterable[str] = ()) -> pl.DataFrame:
    """The wanted columns (name -> kind, see `KINDS`) of a file, cast where that loses nothing."""
    return pl.concat(frame for _, frame in batches(path, wanted, optional))


def batches(path: Place, wanted: Mapping[str, str], optional: Iterable[str] = ()) -> Iterator[tuple[int, pl.DataFrame]]:
    """As `read`, some rows at a time: (number of the first row, its rows); an empty file gives one empty batch."""
    first = 0
    with contextlib.ExitStack() as stack:
        try:
            source = stack.enter_context(source_of(path))
            file = stack.enter_context(pq.ParquetFile(source, buffer_size=BUFFER, pre_buffer=False))
        except UserError:
            raise
        except Exception as error:  # pyarrow raises many kinds for a damaged file
            raise damaged(path, error) from None
        names = file.schema_arrow.names
        parts = file.iter_batches(BATCH, columns=[n for n in names if n in wanted], use_threads=False)
        while True:
            try:
                part = next(parts, None)
                frame = None if part is None else pl.from_arrow(part)
            except Exception as error:
                raise damaged(path, error) from None
            if part is None:
                break
            assert isinstance(frame, pl.DataFrame)
            yield first, typed(frame, path, wanted, optional, names, first)
            first += len(frame)
        if not first:
            empty = pl.from_arrow(file.schema_arrow.empty_table())
            assert isinstance(empty, pl.DataFrame)
            yield 0, typed(empty, path, wanted, optional, names)


def typed(
    frame: pl.DataFrame,
    path: Place | str,
    wanted: Mapping[str, str],
    optional: Iterable[str],
    names: list[str],
    first: int = 0,
) -> pl.DataFrame:
    """The wanted columns of a frame, cast; `names` are all columns in the file, `first` the number of the frame's first
    row."""
    out = []
    for name, kind in wanted.items():
        if name not in frame.columns:
            if name in optional:
                continue
            raise UserError(f"{path}: no column {name!r}", hint=f"Found {', '.join(names)}.")
        column, have = frame[name], frame[name].dtype
        right = {
            "int": have.is_integer(),
            "time": isinstance(have, pl.Datetime),
            "text": have == pl.String or isinstance(have, pl.Categorical),
            "float": have.is_numeric(),
            "double": have.is_numeric(),
            "bool": have == pl.Boolean,
            "id": have.is_integer() or have.is_float() or have == pl.String or isinstance(have, pl.Categorical),
        }[kind]
        if have == pl.Null and name in optional:
            right = True
        if not right:
            hint = "Expected integers or text." if kind == "id" else f"MEDS has {MEDS.get(kind, KINDS[kind])} there."
            raise UserError(f"{path}: column {name!r} is of type {have}", hint=hint)
        if kind == "id":
            out.append(whole_ids(column, path, first) if have.is_float() else column)
            continue
        if kind == "float":
            refuse_infinite(column, f"{path}: {name}", first)
        if isinstance(have, pl.Datetime) and have.time_zone:
            if have.time_zone not in ("UTC", "Etc/UTC"):
                warnings.warn(
                    f"{path}: {name} is in the zone {have.time_zone} and is brought to UTC; times without a zone, as "
                    "MEDS has them, stay as they are: give all times of a data set in one zone",
                    stacklevel=4,
                )
            column = column.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        try:
            out.append(column.cast(KINDS[kind]))
        except pl.exceptions.InvalidOperationError:
            row = column.cast(KINDS[kind], strict=False).is_null().arg_max() or 0
            raise UserError(
                f"{path}: row {first + row}: {name} is {column[row]}", hint=f"MEDS has {KINDS[kind]} there."
            ) from None
    return pl.DataFrame(out)


LARGEST = float(np.finfo(np.float32).max)
EXACT = 2**53
"""Whole numbers from which on floats skip some."""


def whole_ids(column: pl.Series, path: Place | str, first: int) -> pl.Series:
    """Ids that were written as floats (pandas does so where one is absent), as the whole numbers they are."""
    column = column.fill_nan(None)
    wrong = (~(column.is_finite() & (column.abs() < EXACT) & (column == column.round()))).fill_null(False)
    if wrong.any():
        row = int(wrong.arg_max() or 0)
        raise UserError(
            f"{path}: row {first + row}: {column.name} is {column[row]!r}, a float that is no exact id",
            hint="Write ids as integers or text.",
        )
    return column.cast(pl.Int64)


def refuse_infinite(column: pl.Series, where: str, first: int) -> None:
    """Refuse values that no 32-bit float holds; `first`: rows before these."""
    value = column.cast(pl.Float64).fill_nan(None)  # no number is greater than any
    wrong = (value.abs() > LARGEST).fill_null(False)
    if wrong.any():
        rows = wrong.arg_true()
        shown = ", ".join(f"{column[row]} in row {first + row}" for row in rows.head(5).to_list())
        more = f" and {len(rows) - 5:,} more" if len(rows) > 5 else ""
        raise UserError(
            f"{where}: {shown}{more}: infinite, or beyond 3.4e38",
            hint="Values are 32-bit floats: mend these cells, or leave them empty.",
        )


def damaged(path: Place, error: Exception) -> UserError:
    """What is said of a file that pyarrow or polars cannot read."""
    return UserError(f"{path}: not a whole parquet file ({str(error).splitlines()[0]})", hint="Write it again.")


def as_frame(table: Any) -> pl.DataFrame:
    """A table in memory as a polars one."""
    import narwhals as nw

    if isinstance(table, pl.DataFrame):
        return table
    if hasattr(table, "iloc"):  # NaN is pandas' empty cell
        return pl.DataFrame(pl.from_pandas(table, nan_to_null=True))
    if hasattr(table, "columns"):
        found = nw.from_native(table, eager_only=True, pass_through=True)
        if isinstance(found, nw.DataFrame):
            return found.to_polars()
    rows = table if isinstance(table, Mapping) else list(table) if isinstance(table, Iterable) else None
    if isinstance(rows, Mapping) or (rows and all(isinstance(row, Mapping) for row in rows)):
        try:
            return pl.DataFrame(rows, infer_schema_length=None)
        except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
            raise UserError(f"the rows make no table ({str(error).splitlines()[0]})", hint=_TABLES) from None
    raise UserError(f"{type(table).__name__}: no table of events", hint=_TABLES)
