"""Tables in: CSV and parquet files, pandas, polars, Arrow and NumPy.

A CSV cell is kept as the text it was, so that a table that is read, imputed and written differs in the filled cells only.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.table.frame import Frame, frame_of

LONGEST_CELL = 1 << 28
"""Characters of a cell of a CSV file; a longer one is a quote that nobody closed."""


def read_frame(data: Any) -> Frame:
    """A frame from a path (.csv, .tsv, .parquet), a pandas, polars or Arrow table, or a NumPy array.

    Raises:
        UserError: no such file, an unknown kind, or a file that cannot be read, naming the line at fault.
    """
    if isinstance(data, Frame):
        return data
    if isinstance(data, str | Path):
        return _read_file(Path(data))
    return frame_of(data)


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
