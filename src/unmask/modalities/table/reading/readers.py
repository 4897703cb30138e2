"""Tables in: CSV and parquet files, pandas, polars, Arrow and NumPy.

A CSV cell is kept as the text it was, so that a table that is read, imputed and written differs in the filled cells
only.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from unmask.errors import UserError, option
from unmask.files import separated
from unmask.memory import refuse_more_than_memory
from unmask.modalities.table.reading.frame import Frame, frame_of
from unmask.modalities.table.reading.sheets import FAR, SHEETS, STATISTICS, check_columns, read_sheet, read_statistics


def read_frame(
    data: Any, *, decimal: str | None = None, encoding: str | None = None, sheet: str | None = None
) -> Frame:
    """A frame from a path, a pandas, polars or Arrow table, or a NumPy array.

    Args:
        data: a path may end in .csv, .tsv, .txt or .parquet, or in what `sheets.py` reads (.xlsx, .dta, .sav, ...).
        decimal: the mark before decimals in texts, "," or "."; by default found out, or asked for.
        encoding: of a text file, where it is not UTF-8 or marked UTF-16.
        sheet: of a spreadsheet, where it has several.
    """
    if decimal not in (None, ".", ","):
        raise UserError(option("decimal", decimal), hint='Expected "," or ".".')
    if isinstance(data, Frame):
        return data
    frame = _read_file(Path(data), encoding, sheet) if isinstance(data, str | Path) else frame_of(data)
    frame.decimal = decimal
    return frame


def _read_file(path: Path, encoding: str | None, sheet: str | None) -> Frame:
    if not path.is_file():
        raise UserError(f"{path}: no such file", hint="Expected a .csv, .tsv or .parquet file.")
    kind = path.suffix.lower()
    texts = kind in (".csv", ".tsv", ".txt")
    if encoding is not None and not texts and kind not in (".dta", ".sav", ".zsav", ".sas7bdat"):
        raise UserError(f"{option('encoding', encoding)}: not read for {kind} files", hint="It is for files of text.")
    if sheet is not None and kind not in SHEETS:
        raise UserError(f"{option('sheet', sheet)}: not read for {kind} files", hint="It is for spreadsheets.")
    if kind == ".parquet":
        import polars as pl
        import pyarrow.parquet as pq

        try:
            about = pq.read_metadata(path)
            check_columns(path, about.num_columns)
            cells = about.num_rows * about.num_columns
            what = f"{path}: {about.num_rows:,} rows and {about.num_columns:,} columns by its own account"
            refuse_more_than_memory(what, 8.0 * cells, hint=FAR)
            table = pl.read_parquet(path)
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{path}: not a parquet file ({error})", hint="Write it again.") from None
        frame = read_frame(table)
        frame.source = str(path)
        return frame
    if kind in SHEETS:
        return read_sheet(path, sheet)
    if kind in STATISTICS:
        return read_statistics(path, encoding)
    if not texts:
        raise UserError(
            f"{path}: unknown kind of file {path.suffix!r}",
            hint=f"Expected .csv, .tsv, .parquet, {', '.join((*SHEETS, *STATISTICS))}.",
        )
    return read_csv(path, encoding=encoding)


def read_csv(path: Path, *, encoding: str | None = None) -> Frame:
    """A CSV or TSV file as texts, with the line number of every row."""
    opened, name = letters_of(path, encoding)
    try:
        with path.open(encoding=opened, newline="") as file:
            frame = _read_texts(path, file)
    except UnicodeError:
        refuse_letters(path, encoding, opened)
        raise
    frame.encoding = name
    return frame


def _read_texts(path: Path, file: TextIO) -> Frame:
    header_text, above = file.readline(), 0
    if named := re.fullmatch(r'"?sep=(.)"?\s*', header_text, re.IGNORECASE):  # Excel's line: it names the separator
        delimiter, above = named[1], 1
    else:
        file.seek(0)
        delimiter = max(",;\t|", key=header_text.count) if any(d in header_text for d in ",;\t|") else ","
    reader = separated(file, path, delimiter, strict=False, above=above)
    rows: list[list[str]] = []
    lines: list[np.ndarray] = []
    at: list[int] = []
    _, _, header = next(reader, (0, 0, []))
    if not header:
        raise UserError(f"{path}: empty", hint="Expected a header line and rows.")
    check_columns(path, len(header))
    if len(header) == 1 and re.search(r'" +"', header_text):
        raise UserError(
            f"{path}: blanks part its columns, it seems: {header_text[:40].rstrip()} ...",
            hint="Write it with commas or tabs between: in R write.csv(), or write.table(sep = '\\t', col.names = NA).",
        )
    columns = [_Texts() for _ in header]
    for _, last, row in reader:
        if not row and len(header) > 1:
            continue
        if len(row) != len(header):
            hint = "A ragged row: look for a stray delimiter, a missing quote, or an empty cell left out."
            if len(row) == len(header) + 1 and not at and not lines:
                hint = (
                    "The header is one name short, as R's write.table leaves it where rows have names: write with "
                    "row.names = FALSE or col.names = NA. Or each row has a delimiter too many."
                )
            raise UserError(f"{path}:{last}: {len(row)} cells, the header has {len(header)}", hint=hint)
        rows.append(row)
        at.append(last)
        if len(rows) == AT_ONCE:
            _move(rows, at, columns, lines)
    _move(rows, at, columns, lines)
    if not len(lines[0]):
        raise UserError(f"{path}: a header and no rows", hint="Expected at least one row.")
    return Frame(
        names=header,
        columns=[c.whole() for c in columns],
        source=str(path),
        first_row=2 + above,
        delimiter=delimiter,
        lines=np.concatenate(lines),
    )


def _move(rows: list[list[str]], at: list[int], columns: list[_Texts], lines: list[np.ndarray]) -> None:
    """Rows to the columns, and their line numbers; both lists are empty afterwards."""
    for column, cells in zip(columns, zip(*rows, strict=True), strict=False):
        column.add(cells)
    lines.append(np.array(at, np.int64))
    rows.clear()
    at.clear()


AT_ONCE = 8192
"""Rows of a file that are held as lists before they become columns."""


class _Texts:
    """A column of texts that grows: equal texts are one object, as long as texts repeat."""

    def __init__(self) -> None:
        self.parts: list[np.ndarray] = []
        self.known: dict[str, str] | None = {}

    def add(self, cells: Sequence[str]) -> None:
        part = np.empty(len(cells), object)
        if self.known is not None:
            before = len(self.known)
            find = self.known.setdefault
            part[:] = [find(cell, cell) for cell in cells]
            if len(self.known) - before > len(cells) // 2:  # nearly all are new: looking them up saves nothing
                self.known = None
        else:
            part[:] = cells
        self.parts.append(part)

    def whole(self) -> np.ndarray:
        """The column; it can be asked for once."""
        self.known, parts = None, self.parts
        self.parts = []
        return np.concatenate(parts) if parts else np.empty(0, object)


_OTHERS = ("cp1252", "cp1250", "cp437", "mac_roman")


def letters_of(path: Path, encoding: str | None = None) -> tuple[str, str]:
    """The encoding to open a file with, and the one to write it again with. `encoding`: as Python names it; by default
    UTF-8, or UTF-16 where the file begins with that's mark."""
    with path.open("rb") as file:
        start = file.read(200)
    if encoding is not None:
        try:
            name = codecs.lookup(encoding).name
        except LookupError:
            raise UserError(option("encoding", encoding), hint="Expected utf-8, utf-16, cp1252, latin-1, ...") from None
    else:
        name = "utf-16" if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8"
        if name == "utf-8" and b"\x00" in start:
            raise UserError(
                f"{path}: zero bytes in the text",
                hint=f"UTF-16 without its mark, it seems: {option('encoding', 'utf-16-le')}.",
            )
    if name == "utf-8":
        return "utf-8-sig", "utf-8-sig" if start.startswith(codecs.BOM_UTF8) else name
    return name, name


def refuse_letters(path: Path, encoding: str | None, opened: str) -> None:
    """Say where a file is not in its encoding, and how the word there reads in those it may have. `encoding`: what a
    person said it is; `opened`: what it was opened with."""
    raw = path.read_bytes()
    try:
        raw.decode(opened)
    except UnicodeError as error:
        marked = 3 if raw.startswith(codecs.BOM_UTF8) else 0  # not in the decoder's count
        at = getattr(error, "start", 0) + marked
        line = raw[:at].count(b"\n") + 1
        if encoding is not None:
            raise UserError(f"{path}:{line}: not {encoding}", hint=f"Give another {option('encoding')}.") from None
        raise UserError(f"{path}:{line}: not UTF-8", hint=_readings(raw, at)) from None


def _readings(raw: bytes, at: int) -> str:
    """How the word at a byte reads in the encodings that spreadsheets write."""
    begin = max(raw.rfind(b, 0, at) for b in (b"\n", b";", b",", b"\t", b" ")) + 1
    ends = [end for b in (b"\n", b"\r", b";", b",", b"\t", b" ") if (end := raw.find(b, at)) >= 0]
    word = raw[begin : min([*ends, len(raw)])][:40]
    read: dict[str, str] = {}
    for name in _OTHERS:
        try:
            read.setdefault(word.decode(name), name)
        except UnicodeDecodeError:
            continue
    shown = ", ".join(f"{name} reads {text!r}" for text, name in read.items())
    return f"Say how it is written: {option('encoding', 'cp1252')}, or save it as UTF-8. Of the word there {shown}."
