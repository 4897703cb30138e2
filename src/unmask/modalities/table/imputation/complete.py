"""Filling the missing cells of a table with a fitted model: which cells are filled, with what, and in which form."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unmask.errors import UserError, option
from unmask.modalities.table.fitting.cell_table import FittedTable
from unmask.modalities.table.fitting.point_values import Imputed
from unmask.modalities.table.imputation.censored import (
    censored_notes,
    check_censored,
    drawn_cells,
    without_censored,
)
from unmask.modalities.table.imputation.shift import Shift, held_back, parse_shifts, shifted, without_cells
from unmask.modalities.table.imputation.training_range import beyond_range
from unmask.modalities.table.imputation.uncertainty import IntervalRecords
from unmask.modalities.table.imputation.under_rules import drawn_under, not_kept, points_under, recorded_breaches, unmet
from unmask.modalities.table.reading.frame import Frame
from unmask.modalities.table.reading.parse import is_missing
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.rules.rules import Rules
from unmask.modalities.table.schema.censored import Censored
from unmask.modalities.table.schema.raw_column import blank_notes, spelt_in
from unmask.modalities.table.schema.schema import Column, Schema
from unmask.modalities.table.schema.suspicious_values import spelt_missing
from unmask.modalities.table.schema.values import (
    decode,
    empty_row_notes,
    empty_rows,
    encode_censored,
    match_columns,
    missing_cells,
    widened,
    with_added,
)
from unmask.modalities.table.writing.writers import filled_copy


def holes(schema: Schema, columns: list[np.ndarray]) -> list[np.ndarray]:
    """Per modelled column, which cells to fill: missing ones, unless empty by their meaning."""
    found = [np.isnan(x) for x in columns]
    for place, (other, level) in schema.emptied_by.items():
        found[place] &= columns[other] != level
    return found


def changes(
    schema: Schema,
    holes: list[np.ndarray],
    filled: list[np.ndarray],
    ruled: Collection[int] = (),
    shifted: Collection[int] = (),
) -> dict[int, tuple[np.ndarray, list[Any]]]:
    """Column of the schema -> (rows, plain values) of what is to be filled.

    Args:
        ruled: places whose values are kept as they are; the others are cut off at the column's bounds.
        shifted: places that only the bounds a person gave bind: what was shifted may leave the range of the data.
    """
    found = {}
    for place, (hole, x, i) in enumerate(zip(holes, filled, schema.modelled, strict=True)):
        rows = np.flatnonzero(hole)
        if len(rows):
            column, own = schema.columns[i], x[rows]
            if place in shifted and place not in ruled:
                own = np.clip(own, *column.bounds)
            kept = place in ruled or place in shifted
            found[i] = (rows, decode(own, column) if kept else plain_values(own, column))
    return found


def plain_values(x: np.ndarray, column: Column) -> list[Any]:
    """Coded values of a column as plain ones, within its bounds."""
    return decode(np.clip(x, column.low, column.high) if column.is_quantity else x, column)


@dataclass(frozen=True, kw_only=True)
class CompletedTable:
    """A filled table, and what should be said of it.

    Attributes:
        tables: one of point values, or the draws, each of the input's kind (a `Frame` for a CSV file).
        records: one per filled cell, where an interval is asked, made anew each time they are gone through.
        cells: how many were filled.
        absent: columns of the model that the table lacks: hidden in every row.
        notes: what was done that the caller should know, for people.
        warnings: cells beyond what the model was fitted on; see `training_range`.
    """

    tables: list[Any]
    records: Iterable[dict[str, Any]]
    cells: int
    absent: list[str]
    notes: list[str]
    warnings: list[str]


def complete(
    model: FittedTable,
    data: Any,
    *,
    draws: int = 0,
    seed: int = 0,
    shift: Mapping[str, float | Mapping[str, float]] | None = None,
    censored: str | None = None,
    **reading: Any,
) -> CompletedTable:
    """Fill the missing cells of a table; see `TableModel.impute`. `reading` is for `read_incomplete`."""
    schema, shifts = model.schema, check_draws(model, draws, shift)
    moved = {s.place: s.delta for s in shifts if not s.where and schema.sizes[s.place] == 0}
    grouped = [s for s in shifts if s.place not in moved]
    read = read_incomplete(model, data, censored=censored or ("drawn" if draws else "kept"), **reading)
    if not draws:
        return with_points(model, read, model.table.impute(read.columns, interval=read.interval))
    members = model.table.network.codec.members
    filled = [
        drawn_under(read.rules, model.table, read.columns, seed=seed + 1000 * m, member=m % members, shift=moved)
        for m in range(draws)
    ]
    notes = []
    if shifts:
        missing = without_censored([np.isnan(x) for x in read.columns], read.censored)
        gaps = without_censored(read.gaps, read.censored)
        filled = [shifted(grouped, schema, one, missing, {}) for one in filled]
        notes = without_cells(shifts, schema, filled, gaps) + held_back(shifts, schema, filled, gaps)
    return _completed(model, read, filled, notes=notes, shifted={s.place for s in shifts})


def check_draws(model: FittedTable, draws: int, shift: Mapping[str, float | Mapping[str, float]] | None) -> list[Shift]:
    """The shifts of draws; refused where there are no draws, as are draws of a model that has none."""
    shifts = parse_shifts(shift, model.schema)
    if shifts and not draws:
        raise UserError(
            f"{option('shift')} without {option('draws')}",
            hint=f"A shift moves drawn values: add {option('draws', 20)}.",
        )
    if draws and model.table.network.points_only:
        raise _points_alone(model)
    return shifts


@dataclass(frozen=True, kw_only=True)
class Incomplete:
    """A table made ready to be filled.

    Attributes:
        given: as it was given.
        frame: with the model's columns that it lacks, and where the schema's columns stand in it (`order`).
        columns: the modelled ones, coded, NaN where missing.
        gaps: per modelled column, which cells are filled.
        rules: that filled cells meet.
        lacking: columns of the model that the table lacks; those of the schema that are to be added (`added`).
        notes, warnings: what was made of it, for people; what has to be warned of.
        interval: coverage of the intervals asked for; None: none.
        censored: per place, the cells that are only bounded; `kept`: whether they are written as they stand.
    """

    given: Frame
    frame: Frame
    order: list[int]
    columns: list[np.ndarray]
    gaps: list[np.ndarray]
    rules: Rules
    lacking: list[str]
    added: list[int]
    notes: list[str]
    warnings: list[str]
    interval: float | None = None
    censored: dict[int, Censored] = field(default_factory=dict)
    kept: bool = True


def read_incomplete(
    model: FittedTable,
    data: Any,
    *,
    unseen: str = "error",
    absent: Sequence[str] | str = (),
    add_absent: bool = False,
    constraints: Sequence[str] | str = (),
    interval: float | None = None,
    censored: str = "kept",
) -> Incomplete:
    """The first half of `complete`: what comes before the network is asked. Several tables may then be asked of it at
    once, and each be finished by `with_points`.

    Args:
        unseen, absent, add_absent, constraints, censored: see `TableModel.impute`.
        interval: coverage of the intervals in `records`, e.g. 0.9.
    """
    schema = model.schema
    without = model.table.network.points_only
    if interval is not None and without:
        raise _points_alone(model)
    given = read_frame(data)
    frame, lacking = widened(given, schema, absent)
    order = match_columns(frame, schema)
    columns, cells = encode_censored(frame, schema, unseen=unseen)
    gaps = holes(schema, columns)
    check_censored(censored)
    kept = censored == "kept"
    if kept:
        gaps = without_censored(gaps, cells)
    rules = Rules.of(schema, constraints, implied=not without)
    if rules and without:
        raise UserError(
            f"recipe {model.table.settings.recipe!r} cannot fill under rules", hint="Fit with the recipe 'masked'."
        )
    notes, undecided = _absent_notes(schema, lacking, add_absent)
    added = [schema.number(name) for name in lacking] if add_absent else []
    for i in [*undecided, *(schema.number(name) for name in lacking if not add_absent)]:
        gaps[schema.modelled.index(i)][:] = False
    empty = empty_rows(given, schema)
    for gap in gaps:
        gap &= ~empty
    if not without:
        rules = rules.inside(cells, len(frame))
    return Incomplete(
        given=given,
        frame=frame,
        order=order,
        columns=columns,
        gaps=gaps,
        rules=rules,
        lacking=lacking,
        added=added,
        notes=taken_for_missing(schema, frame) + censored_notes(schema, cells, censored) + notes,
        warnings=empty_row_notes(given, empty, "left empty, for nothing is known of whoever it would be"),
        interval=interval,
        censored=cells,
        kept=kept,
    )


def with_points(model: FittedTable, read: Incomplete, found: Imputed) -> CompletedTable:
    """The second half of `complete`: the table with the point values of `CellTable.impute`, which may be changed."""
    found = points_under(read.rules, model.table, read.columns, found)
    return _completed(model, read, [found.point], found=found)


def _points_alone(model: FittedTable) -> UserError:
    return UserError(
        f"recipe {model.table.settings.recipe!r} has point values alone: no draws, no intervals",
        hint="Fit with the recipe 'masked'.",
    )


def _completed(
    model: FittedTable,
    read: Incomplete,
    filled: list[list[np.ndarray]],
    *,
    found: Imputed | None = None,
    notes: Sequence[str] = (),
    shifted: Collection[int] = (),
) -> CompletedTable:
    """What is said and handed out of filled columns.

    Args:
        found: the points with their intervals; None: draws.
        notes: on shifts; `shifted` are their places.
    """
    schema, frame, columns = model.schema, read.frame, read.columns
    lines = [*read.notes, *notes]
    lines += recorded_breaches(read.rules, columns, frame.row_name) + unmet(read.rules, columns, filled, frame.row_name)
    if model.table.network.points_only:
        why = f"by the recipe {model.table.settings.recipe!r}"
        lines += not_kept(Rules.of(schema), columns, filled[0], frame.row_name, why)
    bounded = {p: cells.mask(len(frame)) for p, cells in read.censored.items()}
    lines += left_empty(schema, frame, columns, read.gaps, read.given.names, bounded)
    tables, cells, beyond = [], 0, beyond_range(schema, model.table.codings, columns, frame.row_name)
    for number, one in enumerate(filled):
        wanted = decided(schema, columns, one, read.gaps)
        filling = [hole & ~np.isnan(x) for hole, x in zip(wanted, one, strict=True)]
        for i, hole, done in zip(schema.modelled, wanted, filling, strict=True):
            if left := int(hole.sum() - done.sum()):
                where = f" in draw {number + 1}" if found is None else ""
                beyond.append(f"{left} cells of {schema.columns[i].name!r} stay empty{where}: the model has no number")
        changed = changes(schema, without_censored(filling, read.censored), one, read.rules.touched, shifted)
        whole = [np.where(np.isnan(x) & ~f, np.nan, y) for x, f, y in zip(columns, filling, one, strict=True)]
        drawn = {} if read.kept else drawn_cells(schema, read.censored, whole)
        new: dict[int, list[Any]] = {i: [None] * len(frame) for i in read.added}
        for i, added in new.items():
            for row, value in zip(*changed.pop(i, ([], [])), strict=True):
                added[row] = value
        tables.append(with_added(filled_copy(read.given, changed, schema, read.order, drawn), schema, new))
        cells = int(sum(h.sum() for h in filling))
    records: Iterable[dict[str, Any]] = ()
    if read.interval is not None and found is not None:
        records = IntervalRecords(schema, frame, filling, filled[0], found, read.rules.touched)
    return CompletedTable(
        tables=tables, records=records, cells=cells, absent=read.lacking, notes=lines, warnings=read.warnings + beyond
    )


def taken_for_missing(schema: Schema, frame: Frame) -> list[str]:
    """Which texts (and numbers) of a table under a schema were taken for missing, and which empty cells for a value, in
    how many cells: one sentence per column."""
    found, sentences = {}, []
    for column, place in zip(schema.columns, match_columns(frame, schema), strict=True):
        raw = frame.columns[place]
        sentences += blank_notes(column.name, raw, column.blank, (*schema.missing, *column.missing))
        if column.modelled and (raw.dtype == object or schema.missing or column.missing):
            found[column.name] = spelt_in(raw, missing_cells(raw, column, schema))
    return [*(finding.text for finding in spelt_missing(found)), *sentences]


def left_empty(
    schema: Schema,
    frame: Frame,
    columns: list[np.ndarray],
    gaps: list[np.ndarray],
    given: Sequence[str],
    kept: Mapping[int, np.ndarray],
) -> list[str]:
    """Which columns keep empty cells, how many, and why: one sentence per column.

    Args:
        frame: with the columns that the given table lacks.
        columns: the modelled ones, coded.
        gaps: per modelled column, which cells are filled.
        given: names of the columns of the table as it was given.
        kept: per place, cells that are only bounded, and so not empty.
    """
    why = {"id": "an identifier is not imputed", "text": "free text is not imputed"}
    rows: list[tuple[int, str, str]] = []
    order = match_columns(frame, schema)
    for i, c in enumerate(schema.columns):
        if not c.modelled:
            if c.name not in given and not isinstance(frame.native, np.ndarray):
                continue
            empty = int(missing_cells(frame.columns[order[i]], c, schema).sum())
            rows.append((empty, c.name, why.get(c.kind, "it held no value when the model was fitted")))
        elif c.structural is not None:
            place = schema.modelled.index(i)
            empty = int((np.isnan(columns[place]) & ~gaps[place] & ~kept.get(place, False)).sum())
            rows.append((empty, c.name, f"empty by its meaning where {c.structural[0]!r} is {c.structural[1]!r}"))
    if not isinstance(frame.native, np.ndarray):
        for name, raw in zip(frame.names, frame.columns, strict=True):
            if name not in schema.names:
                rows.append((int(is_missing(raw).sum()), name, "the model does not know it"))
    return [f"{empty} empty cells of {name!r} stay empty: {reason}" for empty, name, reason in rows if empty]


def _absent_notes(schema: Schema, lacking: Sequence[str], add_absent: bool) -> tuple[list[str], list[int]]:
    """Notes on the columns that are lacking, and the columns of the schema that cannot be filled without them."""
    notes = []
    if lacking:
        added = ", and added, imputed" if add_absent else ""
        notes.append(f"not in the table, so hidden in every row{added}: {', '.join(map(repr, lacking))}")
    undecided = [
        i
        for i, c in enumerate(schema.columns)
        if not add_absent and c.structural is not None and c.structural[0] in lacking and c.name not in lacking
    ]
    for i in undecided:
        c = schema.columns[i]
        assert c.structural is not None
        notes.append(
            f"{c.name!r} is left as it is: it is empty by its meaning where {c.structural[0]!r} is "
            f"{c.structural[1]!r}, which is not known"
        )
    return notes, undecided


def decided(
    schema: Schema, columns: list[np.ndarray], filled: list[np.ndarray], holes: list[np.ndarray]
) -> list[np.ndarray]:
    """The holes to fill once all cells are known: where the filled cell of another column says that a cell is empty by
    its meaning, it is."""
    out = [np.array(h) for h in holes]
    for place, (other, level) in schema.emptied_by.items():
        out[place] &= ~(np.isnan(columns[other]) & (filled[other] == level))
    return out
