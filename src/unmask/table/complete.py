"""Filling the missing cells of a table with a fitted model: which cells are filled, with what, and in which form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.errors import UserError
from unmask.table.data import Frame, decode, encode, filled_copy, match_columns, read_frame
from unmask.table.mcm import FilterModel
from unmask.table.schema import Column, Schema

if TYPE_CHECKING:
    from unmask.table.model import TableModel


def shifted_places(schema: Schema, shift: Mapping[str, float] | None) -> dict[int, float]:
    """Place among the modelled columns -> what to add to its drawn values.

    Raises:
        UserError: an unknown column, or one that is not a quantity.
    """
    moved = {}
    for name, delta in (shift or {}).items():
        number = schema.number(name, where="shift: ")
        if not schema.columns[number].modelled or not schema.columns[number].is_quantity:
            raise UserError(f"shift: {name!r} is not a quantity", hint="Categories and identifiers cannot be shifted.")
        moved[schema.modelled.index(number)] = float(delta)
    return moved


def holes(schema: Schema, columns: list[np.ndarray]) -> list[np.ndarray]:
    """Per modelled column, which cells to fill: missing ones, unless empty by their meaning."""
    found = [np.isnan(x) for x in columns]
    for place, i in enumerate(schema.modelled):
        rule = schema.columns[i].structural
        if rule is not None:
            level = schema.columns[schema.number(rule[0])].categories.index(rule[1])
            found[place] &= columns[schema.place(rule[0])] != level
    return found


def changes(
    schema: Schema, holes: list[np.ndarray], filled: list[np.ndarray]
) -> dict[int, tuple[np.ndarray, list[Any]]]:
    """Column of the schema -> (rows, plain values) of what is to be filled."""
    found = {}
    for hole, x, i in zip(holes, filled, schema.modelled, strict=True):
        rows = np.flatnonzero(hole)
        if len(rows):
            found[i] = (rows, plain_values(x[rows], schema.columns[i]))
    return found


def plain_values(x: np.ndarray, column: Column) -> list[Any]:
    """Coded values of a column as plain ones, within its bounds."""
    return decode(np.clip(x, column.low, column.high) if column.is_quantity else x, column)


def impute_frame(
    model: TableModel, data: Any, *, draws: int = 0, seed: int = 0, interval: float | None = None,
    unseen: str = "error", shift: Mapping[str, float] | None = None,
) -> tuple[list[Any], list[dict[str, Any]], int]:  # fmt: skip
    """(tables, one record per filled cell where an interval is asked, number of cells filled); see `TableModel.impute`."""
    moved = shifted_places(model.schema, shift)
    if (draws or interval is not None) and isinstance(model.table.network, FilterModel):
        raise UserError(
            f"recipe {model.table.settings.recipe!r} has point values alone: no draws, no intervals",
            hint="Fit with the recipe 'masked'.",
        )
    frame = read_frame(data)
    order = match_columns(frame, model.schema)
    columns = encode(frame, model.schema, unseen=unseen)
    gaps = holes(model.schema, columns)
    records: list[dict[str, Any]] = []
    if draws:
        members = model.table.network.codec.members
        filled = [
            model.table.draw(columns, seed=seed + 1000 * m, member=m % members, shift=moved) for m in range(draws)
        ]
    else:
        found = model.table.impute(columns, interval=interval)
        filled = [found.point]
        if found.low is not None and found.high is not None:
            records = interval_records(model.schema, frame, gaps, found.point, found.low, found.high)
    tables = [filled_copy(frame, changes(model.schema, gaps, one), model.schema, order) for one in filled]
    return tables, records, int(sum(h.sum() for h in gaps))


def interval_records(
    schema: Schema,
    frame: Frame,
    holes: list[np.ndarray],
    point: list[np.ndarray],
    low: list[np.ndarray],
    high: list[np.ndarray],
) -> list[dict[str, Any]]:
    """One record per filled cell: row, column, value, and for quantities the ends of its interval."""
    out = []
    for place, i in enumerate(schema.modelled):
        column = schema.columns[i]
        rows = np.flatnonzero(holes[place])
        values = [plain_values(v[place][rows], column) for v in (point, low, high)]
        for row, value, a, b in zip(rows, *values, strict=True):
            ends = {"low": a, "high": b} if column.is_quantity else {}
            out.append({"row": frame.row_name(int(row)), "column": column.name, "value": value, **ends})
    return sorted(out, key=lambda r: r["row"])


__all__ = ["changes", "holes", "impute_frame", "interval_records", "plain_values", "shifted_places"]
