"""A table of pictures and their labels (csv, tsv, parquet): its columns, its files, and everything wrong with its rows
at once."""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.errors import UserError, first_of, setting, suggest
from unmask.files import read_text, separated
from unmask.given import SPLIT_COLUMNS, split_named
from unmask.modalities.images.reading.arrays import ReadOptions
from unmask.modalities.images.reading.decode import is_picture
from unmask.modalities.images.reading.listing import File
from unmask.modalities.images.reading.targets import Parsed, cell_text, parse_cells, parse_columns, zero_or_one

FILES = ("file", "filename", "file_name", "filepath", "file_path", "path", "image", "image_path", "img", "picture")
LABELS = ("label", "labels", "class", "classes", "target")
SHOWN = 50
"""Bad rows that are named one by one."""


@dataclass(frozen=True, kw_only=True)
class LabelTable:
    """Rows of a table of pictures: files, each labelled by the number of its row, the labels of the rows, and, where
    labels are read, their columns and those that nothing reads."""

    files: list[File]
    parsed: Parsed
    notes: list[str]
    labels: list[str]
    unread: dict[str, list[Any]]


@dataclass(frozen=True, kw_only=True)
class _Rows:
    columns: dict[str, list[Any]]
    where: list[str]
    """Of each row: 'line 3' or 'row 2'."""
    bad: list[str]


def is_label_table(path: Path, column: str | None = None) -> bool:
    """Whether a file is a table of paths: csv and tsv always, parquet where its column of pictures holds texts."""
    if path.suffix.lower() in (".csv", ".tsv"):
        return True
    if path.suffix.lower() != ".parquet":
        return False
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pq.read_schema(path)
    names = [column] if column is not None else [n for n in schema.names if n.lower() in FILES]
    return bool(names) and all(
        n in schema.names
        and (pa.types.is_string(schema.field(n).type) or pa.types.is_large_string(schema.field(n).type))
        for n in names
    )


def read_label_table(
    path: Path,
    how: ReadOptions,
    group_of: Callable[[Path, Path], str | None],
    columns: dict[str, list[Any]] | None = None,
) -> LabelTable:
    """Read a table of files and labels.

    Args:
        how: `pictures` is the folder that paths are relative to (default the table's own), `column` the one of files,
            `label_column` the one of labels or several parted by commas, `problem` what labels are.
        group_of: what a file belongs to by its folders, from (file, folder that paths are relative to).
        columns: of a table in memory, which `path` is the name of.
    """
    if columns is None and path.suffix.lower() == ".parquet":
        columns = parquet_columns(path)
    if columns is None:
        rows = _separated(path)
    else:
        rows = _Rows(columns=columns, where=[f"row {n}" for n in range(len(next(iter(columns.values()), [])))], bad=[])
    names = list(rows.columns)
    if not rows.where and not rows.bad:
        raise UserError(f"{path}: no rows", hint="Expected a row for each picture below the names of the columns.")
    if how.pictures is not None and not Path(how.pictures).expanduser().is_dir():
        raise UserError(f"pictures={how.pictures}: no such folder", hint="It is what the paths are relative to.")
    file_column = _file_column(path, names, how.column)
    root = path.parent if how.pictures is None else Path(how.pictures).expanduser()
    part_column, parts, part_notes = parts_among(rows.columns)
    group = group_among(names, how)
    others = [n for n in names if n not in (file_column, part_column, group)]
    wanted = [] if how.problem == "none" else _label_columns(path, rows, others, how)
    parsed = _labels(rows, wanted, how) if wanted else Parsed()
    unread = {n: rows.columns[n] for n in others if n not in wanted} if wanted else {}
    cells = [cell_text(c) for c in rows.columns[file_column]]
    places = [root / Path(cell).expanduser() for cell in cells]
    bad = list(rows.bad)
    first: dict[str, int] = {}
    for row, (cell, place) in enumerate(zip(cells, places, strict=True)):
        wrong = [parsed.bad[row]] if row in parsed.bad else []
        if not cell:
            wrong.insert(0, f"{file_column}: no path")
        elif not place.is_file():
            wrong.insert(0, f"{cell}: no such file")
        elif not is_picture(place):
            wrong.insert(0, f"{cell}: not a picture")
        elif (before := first.setdefault(os.path.realpath(place), row)) != row:
            wrong.insert(0, f"{cell}: also in {rows.where[before]}")
        if group in rows.columns and not cell_text(rows.columns[group][row]):
            wrong.append(f"{group}: no group")
        bad += [f"{rows.where[row]}: {'; '.join(wrong)}"] if wrong else []
    if bad:
        raise _refusal(path, bad, len(rows.where) + len(rows.bad), how.pictures)
    if group in rows.columns:
        groups: list[str | None] = [cell_text(c) for c in rows.columns[group]]
    else:
        groups = [group_of(place, root) for place in places]
    files = [
        File(source=str(place), name=cell, label=row, split=None if parts is None else parts[row], group=groups[row])
        for row, (cell, place) in enumerate(zip(cells, places, strict=True))
    ]
    notes = [*parsed.notes, *part_notes, *_without_row(places, path)]
    return LabelTable(files=files, parsed=parsed, notes=notes, labels=wanted, unread=unread)


def parts_among(columns: Mapping[str, Sequence[Any]]) -> tuple[str | None, list[str] | None, list[str]]:
    """(the column that says which part of a data set each row is of, these parts, a note of it); (None, None, []) where
    none does, or all rows are of one."""
    name = next((n for n in columns if n.lower() in SPLIT_COLUMNS), None)
    cells = [] if name is None else [cell_text(cell) for cell in columns[name]]
    parts = [part for cell in cells if (part := split_named(cell)) is not None]
    if len(parts) < len(cells) or not {*parts} > {"train"}:
        return None, None, []
    held_out = Counter(cell for cell, part in zip(cells, parts, strict=True) if part != "train")
    counts = ", ".join(f"{cell} ({count:,})" for cell, count in sorted(held_out.items()))
    return name, parts, [f"column {name!r} says which rows are of the training part; held apart from it: {counts}"]


def group_among(columns: Collection[str], how: ReadOptions) -> str | None:
    """The column of groups that was named, or else that of the training data if it is there."""
    return how.group or (learnt if (learnt := how.usual.get("group")) in columns else None)


def groups_among(columns: Mapping[str, Sequence[Any]], where: str, how: ReadOptions) -> list[str] | None:
    """The group of each row, of pictures that a table holds; None where there is no such column."""
    if (group := group_among(columns, how)) is None:
        return None
    if group not in columns:
        raise UserError(
            f"{where}: no column {group!r}", hint=f"{setting('group')} names a column; there are {', '.join(columns)}."
        )
    found = [cell_text(cell) for cell in columns[group]]
    if empty := [f"row {n}" for n, name in enumerate(found) if not name]:
        raise UserError(f"{where}: {first_of(empty)}: {group}: no group", hint="Every row needs a group.")
    return found


def _without_row(places: Sequence[Path], path: Path) -> list[str]:
    """Pictures that lie beside those of the table and have no row, counted."""
    known = {os.path.realpath(place) for place in places}
    folders = {place.parent for place in places}
    left = sum(
        os.path.realpath(f) not in known
        for folder in folders
        for f in folder.iterdir()
        if not f.name.startswith(".") and f.is_file() and is_picture(f)
    )
    return [f"{left} pictures beside them have no row in {path.name}: left out"] if left else []


def _refusal(path: Path, bad: Sequence[str], rows: int, pictures: str | None) -> UserError:
    shown = first_of(bad, SHOWN, between="\n    ")
    base = "the table's folder" if pictures is None else pictures
    return UserError(
        f"{path}: {len(bad)} of {rows} rows cannot be used:\n    {shown}",
        hint=f"Every row is a picture once, with its label; paths are relative to {base} ({setting('pictures')} "
        "names another). Several labels stand in one cell, parted by |. Mend these rows or leave them out.",
    )


def _file_column(path: Path, names: Sequence[str], requested: str | None) -> str:
    found = [n for n in names if n.lower() in FILES] if requested is None else [n for n in names if n == requested]
    if len(found) == 1:
        return found[0]
    if requested is not None:
        raise UserError(f"{path}: no column {requested!r}", hint=suggest(requested, names))
    candidates = (
        f"several columns may be the files: {', '.join(found)}" if found else f"no column of files: {', '.join(names)}"
    )
    semicolons = " (fields parted by commas are expected)" if len(names) == 1 and ";" in names[0] else ""
    raise UserError(f"{path}: {candidates}{semicolons}", hint=f"Call it 'file', or name it: {setting('column')}.")


def _label_columns(path: Path, rows: _Rows, others: list[str], how: ReadOptions) -> list[str]:
    """The columns of labels: those that were named, the one that is called so, the only one, or several of 0 and 1."""
    problem = how.problem or "auto"
    if (named := labels_among(rows.columns, how)) is not None:
        wanted = [n.strip() for n in named.split(",")]
        for name in wanted:
            if name not in rows.columns:
                raise UserError(f"{path}: no column {name!r}", hint=suggest(name, list(rows.columns)))
    else:
        called = [n for n in others if n.lower() in LABELS]
        wanted = called if len(called) == 1 else others
        flags = [n for n in wanted if all(zero_or_one(cell_text(c)) for c in rows.columns[n])]
        if not wanted:
            raise UserError(f"{path}: no column of labels", hint="Expected columns file and label.")
        if len(wanted) > 1 and problem != "multi" and (problem != "auto" or len(flags) < len(wanted)):
            raise UserError(
                f"{path}: several columns may be the labels: {', '.join(wanted)}",
                hint=f"Name it with {setting('label_column')}; several columns of 0 and 1 parted by commas.",
            )
    return wanted


def labels_among(columns: Iterable[str], how: ReadOptions) -> str | None:
    """The column of labels (or several with commas between) that was named, or else the model's if it is there."""
    learnt = how.usual.get("label_column")
    return how.label_column or (learnt if learnt and {*columns}.issuperset(learnt.split(",")) else None)


def _labels(rows: _Rows, wanted: list[str], how: ReadOptions) -> Parsed:
    problem = how.problem or "auto"
    if len(wanted) > 1:
        if problem not in ("auto", "multi"):
            raise UserError(f"{len(wanted)} columns of labels with problem={problem}", hint="Name one column.")
        return parse_columns({name: rows.columns[name] for name in wanted})
    return parse_cells(rows.columns[wanted[0]], wanted[0], problem)


def _separated(path: Path) -> _Rows:
    text = io.StringIO(read_text(path, hint="Give a table of texts parted by commas."), newline="")
    rows = separated(text, path, "\t" if path.suffix.lower() == ".tsv" else ",")
    lines = [(last, cells) for _, last, cells in rows if any(cell.strip() for cell in cells)]
    if not lines:
        raise UserError(f"{path}: empty", hint="Expected columns file and label, their names in the first line.")
    names = [name.strip() for name in lines[0][1]]
    if len(set(names)) < len(names):
        raise UserError(f"{path}: two columns of one name ({', '.join(names)})", hint="Give each its own name.")
    good = [(number, cells) for number, cells in lines[1:] if len(cells) == len(names)]
    bad = [
        f"line {number}: {len(cells)} cells, expected {len(names)}"
        for number, cells in lines[1:]
        if len(cells) != len(names)
    ]
    columns: dict[str, list[Any]] = {name: [cells[n] for _, cells in good] for n, name in enumerate(names)}
    return _Rows(columns=columns, where=[f"line {number}" for number, _ in good], bad=bad)


def parquet_columns(path: Path) -> dict[str, list[Any]]:
    """The columns of a parquet file."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    return {name: table[name].to_pylist() for name in table.column_names}
