"""Rows of .csv and .tsv with texts in them: what a quote means is read off the file, and one that is left open is
refused.

In a .csv, quotes enclose a cell. In a .tsv they do where the file shows that a csv writer made it; elsewhere they are
characters of the text, as in the published files of GLUE, of which many hold unpaired ones.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from typing import Any

from unmask.errors import UserError
from unmask.remote import Place

_QUOTED = re.compile(r'"(?:[^"]|"")*"', re.DOTALL)


def encloses(lines: Iterable[str]) -> bool:
    """Whether quotes enclose cells in the lines of a .tsv, as csv writers (pandas, R) have it.

    They do where all cells of the first line stand in quotes, or where a cell that begins and ends with a quote has
    doubled quotes inside, and single ones nowhere: that is how writers spell a quote inside a cell.

    >>> encloses(["text\\tlabel", '"he said ""stop"" twice"\\tgood'])
    True
    >>> encloses(["text\\tlabel", '"Stop," he said.\\tgood', '"Stop it."\\tbad'])
    False
    """
    for number, line in enumerate(lines):
        if '"' not in line:
            continue
        cells = line.rstrip("\r\n").split("\t")
        quoted = [cell for cell in cells if _QUOTED.fullmatch(cell)]
        if (number == 0 and len(quoted) == len(cells)) or any('""' in cell[1:-1] for cell in quoted):
            return True
    return False


def separated(
    lines: Iterable[str], path: Place, separator: str, *, quoted: bool
) -> Iterator[tuple[int, int, list[str]]]:
    """The rows of a .csv or .tsv: numbers of the first and the last line of each, and its cells; empty lines have none.

    Args:
        quoted: quotes enclose cells.
    """
    csv.field_size_limit(1 << 28)
    quoting: Any = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    reader = csv.reader(lines, delimiter=separator, quoting=quoting, strict=True)
    first = 1
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            spans = f" to {reader.line_num}" if reader.line_num > first else ""
            raise UserError(
                f"{path}:{first}{spans}: {_said(str(error))}",
                hint='Is a quote left open there? A quote inside a quoted cell is written twice ("").',
            ) from None
        if cells is None:
            return
        yield first, reader.line_num, cells
        first = reader.line_num + 1


def _said(error: str) -> str:
    if "unexpected end" in error:
        return "a quote opens a cell and nothing closes it"
    if "expected after" in error:
        return "text follows a closing quote"
    return error
