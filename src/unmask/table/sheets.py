"""Spreadsheets and the files of Stata, SPSS and SAS, by the extra `unmask[tables]` (python-calamine, pyreadstat)."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UserError, suggest
from unmask.table.frame import Frame, frame_of
from unmask.table.parse import no_value, text_of

SHEETS = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")
STATISTICS = (".dta", ".sav", ".zsav", ".sas7bdat")


def read_sheet(path: Path, sheet: str | None = None) -> Frame:
    """One sheet of a spreadsheet, its first row the names of the columns.

    Raises:
        UserError: the reader is not installed; not a spreadsheet; several sheets and none named; a column without a name.
    """
    try:
        import python_calamine
    except ImportError:
        raise _lacking(path) from None
    try:
        book = python_calamine.CalamineWorkbook.from_path(str(path))
        found = {name: book.get_sheet_by_name(name).to_python(skip_empty_area=False) for name in book.sheet_names}
    except (python_calamine.CalamineError, OSError, ValueError) as error:
        raise UserError(f"{path}: not a spreadsheet ({error})", hint="Save it again, or export it as CSV.") from None
    filled = {name: rows for name, rows in found.items() if any(v != "" for row in rows for v in row)}
    if sheet is not None and sheet not in found:
        raise UserError(f"--sheet {sheet}: {path} has none of this name", hint=suggest(sheet, found))
    if sheet is None and len(filled) != 1:
        names = ", ".join(map(repr, filled))
        raise UserError(f"{path}: {len(filled)} sheets with cells: {names}", hint="Say which: --sheet NAME.")
    rows = found[sheet] if sheet is not None else next(iter(filled.values()))
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
    return _frame(path, columns, first_row=2)


def read_statistics(path: Path, encoding: str | None = None) -> Frame:
    """A file of Stata, SPSS or SAS: labels of values are categories where every value has one; user-missing is missing.

    Raises:
        UserError: the reader is not installed, or the file cannot be read.
    """
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
        columns[name] = values
    frame = _frame(path, columns, first_row=1)
    frame.notes = tuple(notes)
    return frame


def _lacking(path: Path) -> UserError:
    return UserError(
        f"{path}: reading {path.suffix} files takes a package that is not installed",
        hint="pip install 'unmask[tables]', or export the file as CSV.",
    )


def _frame(path: Path, columns: dict[str, list[Any]], first_row: int) -> Frame:
    import polars as pl

    frame = frame_of(pl.DataFrame([pl.Series(name, _uniform(cells)) for name, cells in columns.items()]))
    frame.source, frame.first_row = str(path), first_row
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
