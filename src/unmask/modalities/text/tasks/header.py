"""Is the first line of a csv or tsv of texts a header, or already a row? Known for certain, told, or refused: never
guessed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from unmask.errors import UserError, either

Line = tuple[int, Sequence[str]]


def naming(**parts: object) -> str:
    """Columns, by part, as a caller names them: `--text COLUMN`, or an argument `columns=` in Python."""
    flags = " ".join(f"--{part} {value}" for part, value in parts.items())
    return either(flags, f"columns=unmask.text.Columns({', '.join(f'{p}={str(v)!r}' for p, v in parts.items())})")


def has_header(lines: Sequence[Line], *, known: Collection[str], asked: Collection[str], path: Path) -> bool:
    """Whether the first of the lines names the columns.

    It does where it holds a name a person asked for, or a usual one (whatever the case). It is a row where one of its
    cells comes back further down in the same column, as labels do, or is a number above numbers: names do neither.

    Args:
        lines: (number in the file, cells), the first of the file first.
        known: usual names of columns, in lower case.
        asked: names of columns a person gave.
    """
    first = [cell.strip() for cell in lines[0][1]]
    if any(name in first for name in asked):
        return True
    below = [{cells[k].strip() for _, cells in lines[1:] if k < len(cells)} for k in range(len(first))]
    columns = list(zip(first, below, strict=True))
    named = any(cell.lower() in known for cell in first)
    again = any(cell and cell in others for cell, others in columns)
    numbers = any(_is_number(cell) and others and all(map(_is_number, others)) for cell, others in columns)
    numbered = first == [str(k) for k in range(len(first))]  # how pandas writes columns without names
    if not numbered and (numbers or (again and not named)):  # a text may well be a usual name; a name is no number
        return False
    if named and not again:
        return True
    shown = ", ".join(repr(cell[:40]) for cell in first[:6])
    raise UserError(
        f"{path}:1: {shown}: names of columns, or a row already?",
        hint=f"Names: say which with {naming(text='COLUMN', label='COLUMN')}, or call them text and label. A row: "
        f"{either('--no-header', 'columns=unmask.text.Columns(header=False)')}.",
    )


SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


def refuse_other_separator(
    first: Sequence[str], separator: str, *, known: Collection[str], asked: Collection[str], path: Path
) -> None:
    """A first line that names columns with another separator between them is not taken for one name.

    Args:
        first: its cells.
        separator: what was read as one.
        known, asked: as in `has_header`.
    """

    def named(cells: Sequence[str]) -> bool:
        return any(cell.strip() in asked or cell.strip().lower() in known for cell in cells)

    for mark, plural in SEPARATORS.items():
        cells = separator.join(first).split(mark)
        if mark != separator and len(cells) > 1 and named(cells) and not named(first):
            raise UserError(
                f"{path}:1: {plural} between the cells: {separator.join(first)[:60]!r}",
                hint=f"A {path.suffix} has {SEPARATORS[separator]}: write it so, or as .jsonl.",
            )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
