"""Spreadsheets and the files of Stata, SPSS and SAS, by the extra `unmask[tables]` (python-calamine, pyreadstat)."""

from __future__ import annotations

import datetime as dt
import posixpath
import re
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import escape, unescape

import numpy as np

from unmask.errors import UserError, first_of, option, suggest
from unmask.given import no_value
from unmask.memory import refuse_more_than_memory
from unmask.modalities.table.reading.findings import SHOWN
from unmask.modalities.table.reading.frame import Frame, frame_of
from unmask.modalities.table.reading.parse import text_of

SHEETS = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")
STATISTICS = (".dta", ".sav", ".zsav", ".sas7bdat")


def read_sheet(path: Path, sheet: str | None = None) -> Frame:
    """One sheet of a spreadsheet, its first row the names of the columns."""
    try:
        import python_calamine
    except ImportError:
        raise _lacking(path) from None
    check_sheets(path)  # the reader makes all cells to the last one at once
    try:
        book = python_calamine.CalamineWorkbook.from_path(str(path))
        found = {name: book.get_sheet_by_name(name).to_python(skip_empty_area=False) for name in book.sheet_names}
    except (python_calamine.CalamineError, OSError, ValueError) as error:
        raise UserError(f"{path}: not a spreadsheet ({error})", hint="Save it again, or export it as CSV.") from None
    filled = {name: rows for name, rows in found.items() if any(v != "" for row in rows for v in row)}
    if sheet is not None and sheet not in found:
        raise UserError(f"{option('sheet', sheet)}: {path} has none of this name", hint=suggest(sheet, found))
    if sheet is None and len(filled) != 1:
        names = ", ".join(map(repr, filled))
        raise UserError(
            f"{path}: {len(filled)} sheets with cells: {names}", hint=f"Say which: {option('sheet', 'NAME')}."
        )
    chosen = sheet if sheet is not None else next(iter(filled))
    rows = found[chosen]
    notes = _merged(path, chosen, rows, book.get_sheet_by_name(chosen))
    for (row, column), text in _errors(path, chosen).items():
        rows[row][column] = text
    while rows and all(v == "" for v in rows[-1]):
        rows = rows[:-1]
    if len(rows) < 2:
        raise UserError(f"{path}: no rows below the names of the columns", hint="Expected names in the first row.")
    columns: dict[str, list[Any]] = {}
    for i, name in enumerate(rows[0]):
        cells = [None if row[i] == "" else row[i] for row in rows[1:]]
        if name == "":
            if any(v is not None for v in cells):
                raise UserError(
                    f"{path}: column {i + 1} has no name", hint="Names stand in the first row of the sheet."
                )
            continue
        if text_of(name) in columns:
            raise UserError(f"{path}: two columns {text_of(name)!r}", hint="Rename one.")
        columns[text_of(name)] = cells
    return _frame(path, columns, first_row=2, notes=notes)


def _merged(path: Path, name: str, rows: Sequence[Sequence[Any]], sheet: Any) -> tuple[str, ...]:
    """Refuse merged cells that hold a value: it is meant for all of them, and stands in the first alone. Returns what
    is to be said of a kind of file whose merged cells cannot be seen."""
    hint = (
        "Part them (in Excel: Unmerge Cells) and write the value into every cell that it is meant for, then save again."
    )
    if path.suffix.lower() == ".ods":
        with zipfile.ZipFile(path) as file:
            tables = file.read("content.xml").decode().split("<table:table ")[1:]
        own = next((t for t in tables if f'table:name="{escape(name)}"' in t.partition(">")[0]), "")
        errors = set(re.findall(r'calcext:value-type="error"[^>]*>\s*<text:p>([^<]*)', own)) - {"#N/A"}
        if errors:
            raise UserError(
                f"{path}, sheet {name!r}: formulas without a result: {', '.join(sorted(errors))}",
                hint="Correct them, or empty the cells: they would be read as missing.",
            )
        if unstored := re.findall(r'<table:table-cell\b(?=[^>]*table:formula="(.*?)")(?![^>]*value-type=)', own):
            raise _not_computed(path, name, map(unescape, unstored))
        if re.search(r'<table:table-cell\b[^>]*-spanned="(?!1")[^>]*[^/]>', own):
            raise UserError(f"{path}, sheet {name!r}: cells are merged: only the first would hold a value", hint=hint)
        return ()
    ranges = getattr(sheet, "merged_cell_ranges", None)
    if ranges is None:
        kind = path.suffix.lower()
        return (
            f"merged cells and errors (#DIV/0!) of {kind} files cannot be seen: errors, and all but the first of "
            "merged cells, would be read as empty",
        )
    held = [r for r in sorted(ranges) if r[0] != r[1] and _value_at(rows, *r[0]) != ""]
    if not held:
        return ()
    listed = first_of((f"{_place(*a)}:{_place(*b)} ({text_of(_value_at(rows, *a))!r})" for a, b in held), SHOWN)
    raise UserError(
        f"{path}, sheet {name!r}: merged cells {listed}: only the first of each holds the value, the others "
        "would be read as missing",
        hint=hint,
    )


def _errors(path: Path, name: str) -> dict[tuple[int, int], str]:
    """(row, column), from 0, of the cells of a sheet whose formula has no result, which the reader leaves empty, and
    what they show: #DIV/0!, #N/A. Formulas of which the file holds no result are refused: openpyxl writes none, and
    XlsxWriter 0 for all of them (both ask the program that opens the file to compute them)."""
    if path.suffix.lower() not in (".xlsx", ".xlsm"):
        return {}
    with zipfile.ZipFile(path) as file:
        book, links = (ElementTree.fromstring(file.read(f"xl/{part}")) for part in ("workbook.xml", _LINKS))
        nothing = ("",) if all(e.get("fullCalcOnLoad") in (None, "0") for e in book.iter()) else ("", "0")
        own = next(e for e in book.iter() if e.tag.endswith("}sheet") and e.get("name") == name)
        link = next(value for key, value in own.items() if key.endswith("}id"))
        target = next(e.get("Target", "") for e in links if e.get("Id") == link)
        text = file.read(posixpath.join("/xl", target)[1:]).decode()
    formula = r'<c\b([^>]*")>\s*<f\b(?:[^>]*/>|[^>]*>[^<]*</f>)\s*(?:<v[^>/]*>([^<]*)</v>)?'
    unstored = [cell for cell, value in re.findall(formula, text) if value in nothing and 't="str"' not in cell]
    if unstored:
        raise _not_computed(path, name, re.findall(r'\br="(\w+)"', " ".join(unstored)))
    return {
        (int(row) - 1, _column(letters)): unescape(shown)
        for cell, shown in re.findall(r'<c\b([^>]*\bt="e"[^>]*)>(?:<f\b.*?</f>|<f\b[^>]*/>)?<v>(.*?)</v>', text, re.S)
        for letters, row in re.findall(r'\br="([A-Z]+)(\d+)"', cell)
    }


def _not_computed(path: Path, name: str, which: Iterable[str]) -> UserError:
    return UserError(
        f"{path}, sheet {name!r}: formulas without a stored result: {first_of(which, SHOWN)}: they would be read as "
        "empty",
        hint="Open the file in a spreadsheet program, let it compute them, and save it; or write values.",
    )


_LINKS = "_rels/workbook.xml.rels"


def _column(letters: str) -> int:
    """The number of a column, from 0.

    >>> _column("A"), _column("AB")
    (0, 27)
    """
    number = 0
    for letter in letters:
        number = 26 * number + ord(letter) - 64
    return number - 1


def _value_at(rows: Sequence[Sequence[Any]], row: int, column: int) -> Any:
    return rows[row][column] if row < len(rows) and column < len(rows[row]) else ""


def _place(row: int, column: int) -> str:
    """The name that spreadsheets give a cell.

    >>> _place(0, 0), _place(10, 27)
    ('A1', 'AB11')
    """
    letters = ""
    column += 1
    while column:
        column, rest = divmod(column - 1, 26)
        letters = chr(65 + rest) + letters
    return f"{letters}{row + 1}"


_STATA_DATES = {"%tw": "weeks", "%tm": "months", "%tq": "quarters", "%th": "half-years"}


def read_statistics(path: Path, encoding: str | None = None) -> Frame:
    """A file of Stata, SPSS or SAS: value labels make categories where every value has one; user-missing is missing."""
    try:
        import pyreadstat
    except ImportError:
        raise _lacking(path) from None
    kind = path.suffix.lower()
    read: Any = {".dta": pyreadstat.read_dta, ".sas7bdat": pyreadstat.read_sas7bdat}.get(kind, pyreadstat.read_sav)
    try:
        data, about = read(str(path), encoding=encoding, output_format="dict")
    except (pyreadstat.ReadstatError, pyreadstat.PyreadstatError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error})", hint="Save it again, or export it as CSV.") from None
    columns: dict[str, list[Any]] = {}
    notes = []
    for name, cells in data.items():
        values = [
            None if no_value(v) or v == "" else v for v in (c.item() if isinstance(c, np.generic) else c for c in cells)
        ]
        labels = about.variable_value_labels.get(name, {})
        seen = {v for v in values if v is not None}
        if labels and seen and seen <= set(labels):
            values = [None if v is None else str(labels[v]) for v in values]
            notes.append(f"{name!r}: the file's labels of its values are its categories")
        elif labels:
            listed = ", ".join(f"{text_of(k)} {v!r}" for k, v in list(labels.items())[:6])
            notes.append(f"{name!r}: only some values have labels ({listed}): read as the numbers they are")
        if (unit := _STATA_DATES.get(about.original_variable_types.get(name, "")[:3])) and kind == ".dta":
            notes.append(
                f"{name!r}: Stata's dates in {unit} since 1960, read as the numbers they are; dof{unit[0]}() makes days"
            )
        columns[name] = values
    return _frame(path, columns, first_row=0, notes=tuple(notes))


def _lacking(path: Path) -> UserError:
    return UserError(
        f"{path}: reading {path.suffix} files takes a package that is not installed",
        hint="pip install 'unmask[tables]', or export the file as CSV.",
    )


def _frame(path: Path, columns: dict[str, list[Any]], *, first_row: int, notes: tuple[str, ...]) -> Frame:
    import polars as pl

    frame = frame_of(pl.DataFrame([pl.Series(name, _uniform(cells)) for name, cells in columns.items()]))
    frame.source, frame.first_row, frame.notes = str(path), first_row, notes
    return frame


def _uniform(cells: list[Any]) -> list[Any]:
    """Cells of one type: numbers, dates and truth values as such where all are; else texts."""
    kinds = {type(v) for v in cells if v is not None}
    if kinds <= {int, float}:
        whole = all(v is None or float(v).is_integer() for v in cells)
        return [None if v is None else (int(v) if whole else float(v)) for v in cells]
    if kinds == {dt.date, dt.datetime}:
        return [v if v is None or isinstance(v, dt.datetime) else dt.datetime(v.year, v.month, v.day) for v in cells]
    if len(kinds) == 1:
        return cells if kinds <= {str, bool, dt.date, dt.datetime} else [None if v is None else str(v) for v in cells]
    return [None if v is None else text_of(v) for v in cells]


CELL = 32
"""Bytes of a cell at least: a value and what points at it."""
PART = 1 << 20
"""Bytes of a sheet that are read at once."""
_PLACE = re.compile(rb'\br="([A-Z]{0,3})(\d{1,7})"')
"""Of a row (r="7") or a cell (r="AB7") of a sheet."""
LONGEST_PLACE = 16
MOST_COLUMNS = 1 << 15
"""Of a file, twice those of a spreadsheet; to look at so many takes half a minute."""
FAR = "Look whether a cell stands far away by mistake, or save the part that is meant as a CSV file."


def check_columns(path: Path, count: int) -> None:
    """Refuse a file with more than `MOST_COLUMNS` columns, by its head."""
    if count > MOST_COLUMNS:
        raise UserError(
            f"{path}: {count:,} columns; at most {MOST_COLUMNS:,} are read",
            hint="Choose the columns that matter; where rows and columns are swapped, swap them back.",
        )


def check_sheets(path: Path) -> None:
    """Compare the cells between the first and the last of all sheets of a spreadsheet with the memory that is free."""
    try:
        with zipfile.ZipFile(path) as archive:
            inside = archive.infolist()
            unpacked = sum(each.file_size for each in inside)
            refuse_more_than_memory(f"{path}: unpacked it has {unpacked:,} bytes", unpacked, hint=FAR)
            sheets = [each for each in inside if re.search(r"worksheets/[^/]+\.xml$", each.filename)]
            cells = 0
            for each in sheets:
                rows, columns = _extent(archive, each)
                cells += rows * columns
                what = f"{path}: a sheet of {rows:,} rows and {columns:,} columns ({each.filename})"
                refuse_more_than_memory(what, cells * CELL, hint=FAR)
    except (zipfile.BadZipFile, OSError, EOFError, RuntimeError, NotImplementedError):
        return  # no zip, or a damaged or locked one: its reader says so


def _extent(archive: zipfile.ZipFile, sheet: zipfile.ZipInfo) -> tuple[int, int]:
    """Rows and columns of a sheet, to its last cell."""
    rows = columns = 0
    rest = b""
    with archive.open(sheet) as file:
        while part := file.read(PART):
            for letters, number in _PLACE.findall(rest + part):
                rows = max(rows, int(number))
                columns = max(columns, _column(letters.decode()) + 1)
            rest = part[-LONGEST_PLACE:]
    return rows, columns
