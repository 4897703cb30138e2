"""Rows as JSON objects to a table as the model reads it, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.modalities.table.reading.frame import Frame
from unmask.modalities.table.reading.parse import text_of
from unmask.modalities.table.writing.writers import as_polars
from unmask.serving.limits import Limits
from unmask.serving.shapes import Either, Field, Flag, ListOf, MapOf, Nothing, Number, Text

CELL = Either((Nothing(), Flag(), Number(), Text()), "a text, a number, true, false or null")
Rows = Sequence[Mapping[str, Any]]
CELLS, SPARSE = 1_000_000, 20
"""A table of more cells than this is made of rows only where one in so many of its cells is given."""


def rows_field(limits: Limits) -> Field:
    """The rows of a request."""
    return Field(
        ListOf(MapOf(CELL, limits.slots), most=limits.items, least=1),
        "Rows: column -> value; null, or left out, is missing.",
    )


ABSENT = Field(
    ListOf(Text()),
    "Columns that all rows may lack; follow-up time and event always may.",
    (),
)


def frame_of(rows: Rows) -> Frame:
    """The rows as a table; errors name rows by their place, from 0."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not names:
        raise UserError("rows without a column", hint="Each row is an object: column -> value.")
    given = sum(map(len, rows))
    if len(rows) * len(names) > max(CELLS, SPARSE * given):
        raise UserError(
            f"{len(rows):,} rows with {len(names):,} different columns, of which they hold {given:,} cells",
            hint="Rows of one request are rows of one table: name its columns alike.",
        )
    columns = [_column([row.get(name) for row in rows]) for name in names]
    return Frame(names=names, columns=columns, source="rows", first_row=0, decimal=".")


def _column(cells: list[Any]) -> np.ndarray:
    """As of a file of texts, so that codes such as 0 and 1 are read as in a CSV."""
    texts = [cell if cell is None or isinstance(cell, str) else text_of(cell) for cell in cells]
    return np.array([*texts, None], object)[:-1]


def rows_of(table: Any) -> list[dict[str, Any]]:
    """A table as rows."""
    found: list[dict[str, Any]] = as_polars(table).to_dicts()
    return found


def filled(rows: Rows, records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows with filled cells written in.

    Args:
        records: of `IntervalRecords`.
    """
    out = [dict(row) for row in rows]
    for record in records:
        out[record["position"]][record["column"]] = record["value"]
    return out


def from_columns(table: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Rows of a table given by its columns."""
    if len({len(column) for column in table.values()}) != 1:
        lengths = ", ".join(f"{name}: {len(column)}" for name, column in list(table.items())[:5])
        raise UserError(f"columns of several lengths ({lengths})", hint="Give every column as many cells.")
    return [dict(zip(table, cells, strict=True)) for cells in zip(*table.values(), strict=True)]
