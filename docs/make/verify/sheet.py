"""A sheet: tables of a benchmark that doc_verify.py does not remake, in the file that the pages draw them from.

Most were copied from pages that had them before the files were: such a file has the commit that brought the figures,
and null for what nobody wrote down. A figure is in one file alone; pages name its row and column.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.errors import UserError, suggest
from unmask.files import read_object
from verify.draw import OLDER
from verify.result import FOLDER

KIND = "sheet"
UNKNOWN = "not recorded"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Cells as they are shown; the first column names the rows."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise UserError(
                    f"{len(row)} cells under {len(self.columns)} columns: {' | '.join(row)}",
                    hint="Give every row one cell per column, empty where there is none.",
                )


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """What a file holds.

    Attributes:
        says: how it was measured.
        command: what measures it again; None where nobody wrote it down, as of the next four.
        commit: that was measured.
        date: of the measurement.
        processor: and what else ran there.
        seeds: or runs, and how many.
        since: the commit that brought the figures into the pages, which is no older than `commit`.
        sources: files and folders of the code that it measures, from the root.
    """

    name: str
    title: str
    says: str
    command: str | None
    commit: str | None
    date: str | None
    processor: str | None
    seeds: str | None
    since: str
    sources: tuple[str, ...]
    tables: tuple[Table, ...]

    def cell(self, row: str, column: str) -> str:
        """The cell of a row and column by their names, without emphasis."""
        among = [t for t in self.tables if column in t.columns]
        found = [(cells[0], cells[t.columns.index(column)]) for t in among for cells in t.rows]
        hits = [cell for name, cell in found if name == row]
        if len(hits) > 1:
            raise UserError(f"{self.name}: {len(hits)} rows {row!r} with {column!r}", hint="Tell them apart by name.")
        if not hits:
            raise UserError(
                f"{self.name}: no row {row!r} with a column {column!r}", hint=suggest(row, [name for name, _ in found])
            )
        return hits[0].replace("**", "")


def sheets(root: Path) -> dict[str, Sheet]:
    """Name -> sheet of a checkout, by name."""
    found = {}
    for path in sorted((root / FOLDER).glob("*.json")):
        content = read_object(path) or {}
        if content.get("kind") == KIND:
            found[path.stem] = parsed(path.stem, content)
    return found


def parsed(name: str, content: Mapping[str, Any]) -> Sheet:
    """The sheet that a file of this name holds."""
    given = {key: value for key, value in content.items() if key != "kind"}
    wanted = set(Sheet.__dataclass_fields__)
    if set(given) != wanted or given["name"] != name:
        wrong = sorted(set(given) ^ wanted) or [f"name {given['name']!r}"]
        raise UserError(f"{FOLDER}/{name}.json: {', '.join(wrong)}", hint=f"A sheet has {', '.join(sorted(wanted))}.")
    tables = tuple(
        Table(columns=tuple(t["columns"]), rows=tuple(tuple(row) for row in t["rows"])) for t in given.pop("tables")
    )
    return Sheet(tables=tables, sources=tuple(given.pop("sources")), **given)


def table(sheet: Sheet, *, older: str = "") -> str:
    """A sheet as Markdown: its tables, how they were measured, and what is known of when, where and by what.

    Args:
        older: what has changed in the code it measured; "" where nothing has.
    """
    lines = []
    for one in sheet.tables:
        lines += [_line(one.columns), "|---" * len(one.columns) + "|", *map(_line, one.rows), ""]
    return "\n".join(lines) + "\n" + origin(sheet, older=older)


def origin(sheet: Sheet, *, older: str = "") -> str:
    """How the figures of a sheet were measured, and what is known of when, where and by what."""
    told = {"processor": sheet.processor, "seeds": sheet.seeds, "date": sheet.date, "commit": sheet.commit}
    known = [f"`{sheet.command}`"] if sheet.command else []
    known += [f"{key}: {value}" for key, value in told.items() if value]
    missing = [key for key, value in {"command": sheet.command, **told}.items() if not value]
    known += [f"{UNKNOWN}: {', '.join(missing)} (in the pages since commit {sheet.since[:9]})"] if missing else []
    known[0] = known[0][:1].upper() + known[0][1:]
    lines = [f"*{sheet.title}.* {sheet.says}", "", "; ".join(known) + "."]
    if older:
        lines += ["", f"{OLDER} {older[:1].upper()}{older[1:]}."]
    return "\n".join(lines) + "\n"


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def written(sheet: Sheet) -> str:
    """The text of its file: a row of a table per line."""
    head = {k: v for k, v in vars(sheet).items() if k != "tables"}
    text = json.dumps({"kind": KIND, **head}, indent=1, ensure_ascii=False)
    inside = []
    for one in sheet.tables:
        rows = ",\n".join(f"    {json.dumps(row, ensure_ascii=False)}" for row in one.rows)
        inside.append(f'  {{"columns": {json.dumps(one.columns, ensure_ascii=False)},\n   "rows": [\n{rows}\n   ]}}')
    return text.removesuffix("\n}") + ',\n "tables": [\n' + ",\n".join(inside) + "\n ]\n}\n"


__all__ = ["Sheet", "Table", "origin", "parsed", "sheets", "table", "written"]
