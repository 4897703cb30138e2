"""Columns of the model that a table lacks: which it may do without, and the table with them hidden in every row.

The outcome of a new patient is not known yet, so follow-up time and event may be left out without a word; any other
column must be named, for a missing column is more often a typing mistake than a decision.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence
from typing import Any

import numpy as np

from unmask.errors import UserError, option, suggest
from unmask.modalities.table.reading.frame import Frame
from unmask.modalities.table.schema.schema import Column, Schema
from unmask.modalities.table.schema.values import cell_texts

ANY = "any"
_CLOSE = 0.8
"""Names as alike as this (difflib's ratio, case and spaces aside) are taken for a typing mistake."""


def widened(frame: Frame, schema: Schema, absent: Sequence[str] | str = ()) -> tuple[Frame, list[str]]:
    """The table with the model's columns that it lacks, empty in every row, and their names.

    Args:
        absent: names that may be lacking, or "any". Follow-up time and event always may. A column whose name is
            close to one that the model does not know must be named: it is likely the same column misspelt.
    """
    allowed = _allowed(frame, schema, absent)
    if frame.names == schema.names or isinstance(frame.native, np.ndarray):
        return frame, []
    modelled = [schema.columns[i].name for i in schema.modelled]
    lacking = [name for name in modelled if name not in frame.names]
    if len(lacking) == len(modelled):
        raise UserError(
            f"{frame.source}: none of the model's columns",
            hint=f"It has {_listed(frame.names)}; the model knows {_listed(modelled)}.",
        )
    unknown = [name for name in frame.names if name not in schema.names]
    refused, hints = [], []
    for name in lacking:
        if name in allowed:
            continue
        meant = _close(name, unknown)
        if meant is not None:
            refused.append(name)
            blanks = ": only blanks differ, and without them the names match" if meant.strip() == name.strip() else ""
            hints.append(f"Is {meant!r} meant for {name!r}? Rename it{blanks}.")
        elif absent != ANY and name not in (schema.duration, schema.event, schema.entry):
            refused.append(name)
    if refused:
        names = ",".join(refused)
        raise UserError(
            f"{frame.source}: no column {', '.join(map(repr, refused))}",
            hint=" ".join([*hints, f"To do without: {option('absent', names)}."]),
        )
    gone = [name for name in schema.names if name not in frame.names]
    empty = [np.full(len(frame), None, object) for _ in gone]
    wide = dataclasses.replace(frame, names=[*frame.names, *gone], columns=[*frame.columns, *empty])
    return wide, lacking


def _allowed(frame: Frame, schema: Schema, absent: Sequence[str] | str) -> set[str]:
    names = (
        []
        if absent == ANY
        else [n.strip() for n in absent.split(",") if n.strip()]
        if isinstance(absent, str)
        else list(absent)
    )
    for name in names:
        if name not in schema.names:
            raise UserError(f"absent: the model has no column {name!r}", hint=suggest(name, schema.names))
        if name in frame.names and not isinstance(frame.native, np.ndarray):
            raise UserError(
                f"absent: {frame.source} has a column {name!r}", hint="Leave it out of `absent`, or out of the table."
            )
    return set(names)


def _close(name: str, others: Sequence[str]) -> str | None:
    plain = {o.strip().lower(): o for o in others}
    found = difflib.get_close_matches(name.strip().lower(), plain, n=1, cutoff=_CLOSE)
    return plain[found[0]] if found else None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")


def with_added(table: Any, schema: Schema, added: dict[int, list[Any]]) -> Any:
    """A table (or `Frame` of texts) with further columns of the schema at its end.

    Args:
        added: column of the schema -> plain values.
    """
    if not added:
        return table
    if isinstance(table, Frame):
        texts = [np.array([*cell_texts(v, schema.columns[i]), None], object)[:-1] for i, v in added.items()]
        names = [schema.columns[i].name for i in added]
        return dataclasses.replace(table, names=[*table.names, *names], columns=[*table.columns, *texts])
    typed = {schema.columns[i].name: _typed(v, schema.columns[i]) for i, v in added.items()}
    if hasattr(table, "iloc"):
        return table.assign(**typed)
    import narwhals as nw

    wide = nw.from_native(table, eager_only=True)
    return nw.to_native(
        wide.with_columns(*[nw.new_series(name, v, backend=wide.implementation) for name, v in typed.items()])
    )


def in_order(table: Any, names: Sequence[str]) -> Any:
    """The columns of a table in another order."""
    if isinstance(table, Frame):
        return dataclasses.replace(
            table, names=list(names), columns=[table.columns[table.names.index(n)] for n in names]
        )
    if hasattr(table, "iloc"):
        return table[list(names)]
    import narwhals as nw

    return nw.to_native(nw.from_native(table, eager_only=True).select(list(names)))


def _typed(values: list[Any], column: Column) -> list[Any]:
    """Categories as numbers or truth values where all of the column's are."""
    if column.is_quantity or not column.categories:
        return values
    if set(column.categories) <= {"True", "False"}:
        return [None if v is None else v == "True" for v in values]
    try:
        as_number: dict[str, float] = {c: float(c) for c in column.categories}
    except ValueError:
        return values
    whole = all(v.is_integer() for v in as_number.values())
    return [None if v is None else (int(as_number[v]) if whole else as_number[v]) for v in values]


__all__ = ["ANY", "in_order", "widened", "with_added"]
