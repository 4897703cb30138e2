"""What a file will cost, told before anything is made of it: its extent and unpacked size beside the free memory."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

from unmask.errors import UserError
from unmask.memory import refuse_more_than_memory

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
                column = 0
                for letter in letters:
                    column = 26 * column + letter - 64
                columns = max(columns, column)
            rest = part[-LONGEST_PLACE:]
    return rows, columns
