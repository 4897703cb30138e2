"""Raw columns to the model's floats under a schema, and back to plain values and texts."""

from __future__ import annotations

import dataclasses
import datetime as dt
import difflib
from collections.abc import Sequence
from typing import Any

import numpy as np

from unmask.core.hashing import hash_keys
from unmask.errors import UserError, first_of, option, suggest
from unmask.modalities.table.reading.decimal_marks import PLAIN, Marks
from unmask.modalities.table.reading.findings import Finding, named, refuse
from unmask.modalities.table.reading.frame import Frame
from unmask.modalities.table.reading.parse import (
    LARGEST,
    beyond_arithmetic,
    date_of,
    days,
    is_missing,
    measured,
    numbers,
    text_of,
)
from unmask.modalities.table.schema.censored import LOW_TO_HIGH, Censored, censored, ends_of, refused
from unmask.modalities.table.schema.raw_column import unexplained, with_blanks
from unmask.modalities.table.schema.schema import Column, Schema
from unmask.modalities.table.schema.survival_pair import refuse_impossible


def encode(frame: Frame, schema: Schema, *, unseen: str = "error") -> list[np.ndarray]:
    """The modelled columns as floats: a quantity's value, or the number of a category; NaN where there is none.
    `unseen`: a category the schema does not have is an "error", or taken as "missing"."""
    return encode_censored(frame, schema, unseen=unseen)[0]


def encode_censored(
    frame: Frame, schema: Schema, *, unseen: str = "error"
) -> tuple[list[np.ndarray], dict[int, Censored]]:
    """`encode`, and by place among the modelled columns the cells that are only bounded, where it has NaN."""
    order = match_columns(frame, schema)
    marks = spelling_in(frame, schema, order)
    out, findings = [], []
    cells: dict[int, Censored] = {}
    for place, i in enumerate(schema.modelled):
        x, wrong, bounded = _coded(frame, frame.columns[order[i]], schema.columns[i], schema, unseen, marks[i])
        out.append(x)
        findings += wrong
        cells |= {} if bounded is None else {place: bounded}
    refuse(findings, frame.source)
    refuse_impossible(schema, out, source=frame.source, row_name=frame.row_name)
    return out, cells


def rows_digest(columns: Sequence[np.ndarray]) -> str:
    """A fingerprint of coded rows, in any order and to 7 digits, those without a value left out."""
    with np.errstate(over="ignore"):
        cells = [np.where(np.isnan(x), np.nan, x + 0.0).astype(np.float32).view(np.int32) for x in columns]
    empty = np.logical_and.reduce([np.isnan(x) for x in columns])
    return f"{hash_keys(*cells)[~empty].sum(dtype=np.uint64):016x}"


def match_columns(frame: Frame, schema: Schema) -> list[int]:
    """Where each of the schema's columns stands in the frame: by place where all names agree, else by name."""
    if frame.names == schema.names or isinstance(frame.native, np.ndarray):
        if len(frame.names) != len(schema.names):
            raise UserError(
                f"{frame.source}: {len(frame.names)} columns, the model has {len(schema.names)}",
                hint="Give the same columns.",
            )
        return list(range(len(frame.names)))
    for name in schema.names:
        if name not in frame.names:
            raise UserError(f"{frame.source}: no column {name!r}", hint=suggest(name, frame.names))
    for c in schema.columns:
        places = [str(i + 1) for i, name in enumerate(frame.names) if name == c.name]
        if c.modelled and len(places) > 1:
            raise UserError(
                f"{frame.source}: columns {', '.join(places[:-1])} and {places[-1]} are called {c.name!r}",
                hint="Nothing says which of them the model's is: rename the other, or take it out.",
            )
    return [frame.names.index(name) for name in schema.names]


def missing_cells(raw: np.ndarray, column: Column, schema: Schema) -> np.ndarray:
    """Which raw cells of a column of the schema hold no value; what is among its categories does, and an empty cell
    that means something."""
    raw = with_blanks(raw, column.blank, (*schema.missing, *column.missing))
    return is_missing(raw, (*schema.missing, *column.missing), () if column.is_quantity else column.categories)


def spelling_in(frame: Frame, schema: Schema, order: Sequence[int]) -> list[Marks | None]:
    """How this table writes the numbers of each column of the schema; None where it could be two ways. `order`: where
    the schema's columns stand in the frame; behind its last one where it lacks them."""
    if frame.native is not None and not any(c.dtype == object for c in frame.columns):
        return [PLAIN] * len(schema.columns)
    if len(frame.spellings) != len(frame.columns):
        priors: list[Marks | None] = [None] * len(frame.columns)
        for c, place in zip(schema.columns, order, strict=True):
            if place < len(priors):
                priors[place] = Marks(c.decimal, c.thousands)
        frame.find_spellings(priors=priors)
    found = [None if s.unclear else s.marks for s in frame.spellings]
    return [found[place] if place < len(found) else PLAIN for place in order]


def _coded(
    frame: Frame, raw: np.ndarray, column: Column, schema: Schema, unseen: str, marks: Marks | None
) -> tuple[np.ndarray, list[Finding], Censored | None]:
    own = (*schema.missing, *column.missing)
    raw = with_blanks(raw, column.blank, own)
    missing = missing_cells(raw, column, schema)
    out = np.full(len(raw), np.nan)
    wrong: list[int] = []
    intervals: list[Finding] = []
    bounded = None
    if column.is_quantity:
        values = raw[~missing]
        if column.kind == "datetime":
            found, bad = days(values, column.format or "")
        else:
            suffixes = (*column.suffixes, *([column.unit] if column.unit else []))
            found, bad = measured(values, marks or PLAIN, column.limits, suffixes)
            low, high = ends_of(values, found, bad, marks or PLAIN, suffixes, column.lod, column.uloq)
            if marks is None:
                bad = np.array([isinstance(v, str) and not v.strip().isdecimal() for v in values], bool)
            elif (inside := ~np.isnan(low)).any():
                rows = np.flatnonzero(~missing)
                for says, here in refused(low, high, column.bounds).items():
                    if here.any():
                        own_rows = rows[here].tolist()
                        intervals.append(_wrong_cells(frame, raw, column, own_rows, "interval", says, LOW_TO_HIGH))
                found, bad = np.where(inside, np.nan, found), bad & ~inside
                bounded = censored(rows[inside], low[inside], high[inside], column)
        bad = bad | beyond_arithmetic(found)
        out[~missing] = found
        wrong = np.flatnonzero(~missing)[bad].tolist()
        what = (
            "a date"
            if column.kind == "datetime"
            else f"a finite number of at most {LARGEST:.1e}"
            if marks is not None
            else "one number for certain"
        )
        says, hint = f" is not {what}", f"The column is {column.kind}: correct the cells or leave them empty."
        if marks is None:
            hint = f"Say which mark parts decimals: {option('decimal', ',')} or {option('decimal', '.')}."
    else:
        number = {c: float(i) for i, c in enumerate(column.categories)}
        cache: dict[Any, float] = {}
        for i in np.flatnonzero(~missing):
            value = raw[i]
            if value not in cache:
                cache[value] = number.get(text_of(value), np.nan)
            out[i] = cache[value]
        wrong = np.flatnonzero(~missing & np.isnan(out)).tolist() if unseen == "error" else []
        known = ", ".join(column.categories[:8]) + (", ..." if len(column.categories) > 8 else "")
        says = " was not seen in training"
        hint = f"Known: {known}. Correct it, or have `impute` treat it as unknown: {option('unseen', 'missing')}."
    if not wrong:
        seen = out[~np.isnan(out)]
        constant = len(column.categories) == 1 and column.structural is None and bool(len(seen))
        blanks = unexplained(column.name, raw, missing, column.categories, own) if constant else intervals
        return out, blanks, bounded
    code, prefix = ("value", "") if column.is_quantity else ("unseen", "category ")
    return out, [*intervals, _wrong_cells(frame, raw, column, wrong, code, says, hint, prefix)], None


def _wrong_cells(
    frame: Frame, raw: np.ndarray, column: Column, rows: list[int], code: str, says: str, hint: str, prefix: str = ""
) -> Finding:
    cells = tuple(zip(map(frame.row_name, rows), raw[rows].tolist(), strict=True))
    text = f"column {column.name!r}{says}"
    return Finding("error", column.name, code, text, hint, cells=cells, prefix=prefix, wrong=says)


def decode(values: np.ndarray, column: Column) -> list[Any]:
    """Model values as plain Python values in the column's own terms: rounded numbers, categories, dates;
    None for NaN."""
    if not column.is_quantity:
        return [None if v != v else column.categories[int(v)] for v in values]
    if column.kind == "datetime":
        values = values if column.decimals is None else np.round(values, column.decimals)
        return [None if v != v else date_of(v) for v in values]
    if column.decimals is not None:
        values = np.round(values, column.decimals)
    values = values + 0.0  # -0.0 is written 0.0
    if column.decimals == 0:
        return [None if v != v else int(v) for v in values]
    return [None if v != v else float(v) for v in values]


def writes_point(raw: np.ndarray, column: Column) -> bool:
    """Whether a column of whole numbers is written 83.0 in its file, not 83; so is one of 0 and 1 once it has holes."""
    whole = column.decimals == 0 if column.is_quantity else all(c.lstrip("-").isdecimal() for c in column.categories)
    if not whole or raw.dtype != object:
        return False
    seen = raw[:200][~is_missing(raw[:200])]
    return len(seen) > 0 and all(isinstance(v, str) and v.strip().endswith(".0") for v in seen)


def cell_texts(values: Sequence[Any], column: Column, point: bool = False, marks: Marks | None = None) -> list[str]:
    """Plain values as the texts of a CSV file. `point`: whole numbers are written 83.0; `marks`: how the file writes
    decimals and thousands, by default as the one the schema is of."""
    marks = marks or Marks(column.decimal, column.thousands)
    out = []
    for v in values:
        if v is None:
            out.append("")
        elif isinstance(v, dt.datetime):
            out.append(v.strftime((column.format or "%Y-%m-%d %H:%M:%S").replace("%z", "+00:00")))
        else:
            text = f"{v}.0" if point else str(v)
            out.append(marks.write(text) if marks != PLAIN and column.is_quantity else text)
    return out


ANY = "any"
_CLOSE = 0.8
"""Names as alike as this (difflib's ratio, case and spaces aside) are taken for a typing mistake."""


def widened(frame: Frame, schema: Schema, absent: Sequence[str] | str = ()) -> tuple[Frame, list[str]]:
    """The table with the model's columns that it lacks, empty in every row, and their names. `absent`: names that may
    be lacking, or "any". Follow-up time and event always may. A column whose name is close to one that the model does
    not know must be named: it is likely the same column misspelt."""
    allowed = _allowed(frame, schema, absent)
    if frame.names == schema.names or isinstance(frame.native, np.ndarray):
        return frame, []
    modelled = [schema.columns[i].name for i in schema.modelled]
    lacking = [name for name in modelled if name not in frame.names]
    if len(lacking) == len(modelled):
        raise UserError(
            f"{frame.source}: none of the model's columns",
            hint=f"It has {named(frame.names, 8)}; the model knows {named(modelled, 8)}.",
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
    absent_names = [name for name in schema.names if name not in frame.names]
    empty = [np.full(len(frame), None, object) for _ in absent_names]
    wide = dataclasses.replace(frame, names=[*frame.names, *absent_names], columns=[*frame.columns, *empty])
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


def with_added(table: Any, schema: Schema, added: dict[int, list[Any]]) -> Any:
    """A table (or `Frame` of texts) with further columns of the schema at its end. `added`: column of the schema ->
    plain values."""
    if not added:
        return table
    if isinstance(table, Frame):
        texts = [np.array([*cell_texts(v, schema.columns[i]), None], object)[:-1] for i, v in added.items()]
        names = [schema.columns[i].name for i in added]
        return dataclasses.replace(table, names=[*table.names, *names], columns=[*table.columns, *texts], changed=None)
    typed = {}
    for i, values in added.items():
        column = schema.columns[i]
        level = dict(zip(column.categories, typed_levels(column), strict=True))
        typed[column.name] = [None if v is None else level[v] for v in values] if level else values
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
            table, names=list(names), columns=[table.columns[table.names.index(n)] for n in names], changed=None
        )
    if hasattr(table, "iloc"):
        return table[list(names)]
    import narwhals as nw

    return nw.to_native(nw.from_native(table, eager_only=True).select(list(names)))


def typed_levels(column: Column) -> list[Any]:
    """The categories as what they are: numbers where all are written as numbers, booleans, or texts.

    >>> typed_levels(Column(name="x", kind="binary", categories=("0", "1")))
    [0, 1]
    >>> typed_levels(Column(name="x", kind="nominal", categories=("01", "02")))
    ['01', '02']
    """
    levels = list(column.categories)
    if set(levels) <= {"False", "True"}:
        return [v == "True" for v in levels]
    found, bad = numbers(np.array([*levels, None], object)[:-1])
    if bad.any() or any(text_of(float(v)) != level for v, level in zip(found, levels, strict=True)):
        return levels
    return [int(v) if float(v).is_integer() else float(v) for v in found]


SHOWN_ROWS = 10


def empty_rows(frame: Frame, schema: Schema) -> np.ndarray:
    """Which rows of a table hold no value in any column, identifiers included; none in a table of one column. Returns
    booleans, one per row."""
    left = np.arange(len(frame) if len(frame.names) > 1 else 0)
    columns = {c.name: c for c in schema.columns}
    by_place = isinstance(frame.native, np.ndarray)
    for i, (name, raw) in enumerate(zip(frame.names, frame.columns, strict=True)):
        if not len(left):
            break
        known = schema.columns[i] if by_place and i < len(schema.columns) else columns.get(name)
        part = raw[left]
        left = left[is_missing(part) if known is None else missing_cells(part, known, schema)]
    out = np.zeros(len(frame), bool)
    out[left] = True
    return out


def empty_row_notes(frame: Frame, empty: np.ndarray, what: str) -> list[str]:
    """A sentence on the rows without any value, with their numbers. `what`: is done with them."""
    if not empty.any():
        return []
    rows = [frame.row_name(i) for i in np.flatnonzero(empty).tolist()]
    listed = first_of(rows, SHOWN_ROWS)
    which = f"row {listed} holds" if len(rows) == 1 else f"rows {listed} hold"
    return [f"{which} no value in any column: {what}"]
