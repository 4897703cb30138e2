"""Values missing not at random: what is drawn is moved by a stated amount (delta adjustment, Carpenter & Kenward 2013).

A quantity is moved in its own unit; a category's log-odds of the later level are. Groups of rows may move differently.
Shifts come after the last round of imputation, with its random numbers: other columns do not follow them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import logit

from unmask.errors import UserError, either, option
from unmask.modalities.table.imputation.regressions import draw_level
from unmask.modalities.table.rules.conditions import Limit, parse_where
from unmask.modalities.table.schema.schema import Schema
from unmask.modalities.table.schema.survival_pair import YES_NO

Odds = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Levels that occur, (rows, levels) log-probabilities of the missing cells, and the uniform numbers they were drawn
with."""


@dataclass(frozen=True, kw_only=True)
class Shift:
    """One column's shift.

    Attributes:
        place: among the modelled columns.
        where: limits by place; empty for all rows.
    """

    place: int
    delta: float
    where: dict[int, Limit]
    text: str


def parse_shifts(shift: Mapping[str, float | Mapping[str, float]] | None, schema: Schema) -> list[Shift]:
    """Shifts as asked for: {"creatinine": 30, "potassium": {"arm == 1": 0.5}}."""
    out = []
    for name, amount in (shift or {}).items():
        number = schema.number(name, where="shift: ")
        column = schema.columns[number]
        if not column.modelled:
            raise UserError(f"shift: {name!r} is an identifier or empty", hint="It is not imputed.")
        if not column.is_quantity and column.kind != "ordinal" and len(column.categories) != 2:
            raise UserError(
                f"shift: {name!r} has {len(column.categories)} categories without order",
                hint="Quantities, ordinal columns and columns of two categories can be shifted.",
            )
        if name in (schema.duration, schema.event):
            raise UserError(
                f"shift: {name!r} belongs to the survival pair",
                hint="Shift covariates; the outcome is drawn as a pair.",
            )
        groups = amount if isinstance(amount, Mapping) else {"": amount}
        for text, delta in groups.items():
            if isinstance(delta, bool) or not isinstance(delta, int | float | np.number) or not np.isfinite(delta):
                raise UserError(f"shift: {name!r}: {delta!r}", hint="Expected a number, in the column's unit.")
            where = parse_where(text, schema) if text else {}
            out.append(Shift(place=schema.place(name), delta=float(delta), where=where, text=text))
    return out


def read_shifts(texts: Iterable[str]) -> dict[str, float | dict[str, float]]:
    """Shifts of a command line: `creatinine=30`, or `creatinine[arm == 1]=30` for a group of rows."""
    out: dict[str, float | dict[str, float]] = {}
    for text in texts:
        left, _, delta = text.rpartition("=")
        match = re.fullmatch(r"\s*(.+?)\s*(?:\[(.*)\])?\s*", left)
        try:
            number = float(delta)
        except ValueError:
            match = None
        if match is None:
            raise UserError(option("shift", text), hint="Expected COLUMN=NUMBER or 'COLUMN[CONDITION]=NUMBER'.")
        name, condition = match.groups()
        before = out.get(name)
        if before is not None and (condition is None or not isinstance(before, dict)):
            raise UserError(f"{option('shift', text)}: {name!r} is shifted twice", hint="Give each group a condition.")
        out[name] = number if condition is None else {**(before if isinstance(before, dict) else {}), condition: number}
    return out


def shifted(
    shifts: Sequence[Shift],
    schema: Schema,
    columns: Sequence[np.ndarray],
    missing: Sequence[np.ndarray],
    odds: Mapping[int, Odds],
) -> list[np.ndarray]:
    """Completed columns with imputed values moved; the deltas of all groups that a row belongs to are added up.

    Args:
        columns: completed; groups are told by them as they stand.
        missing: which values were missing.
        odds: of each category that was drawn.
    """
    out = [x.copy() for x in columns]
    for place in dict.fromkeys(s.place for s in shifts):
        delta = np.zeros(len(columns[0]))
        for s in shifts:
            if s.place == place:
                delta += np.where(_group(s, columns), s.delta, 0.0)
        rows = np.flatnonzero(missing[place])
        column = schema.column(place)
        if column.is_quantity:
            out[place][rows] += delta[rows]
        elif len(rows):
            if place not in odds:
                raise UserError(
                    f"shift: {column.name!r} was drawn without a model of its odds",
                    hint="Shifts of categories need multiple imputation "
                    f"({either('--proper 20', 'unmask.MultipleImputation')}) with the method logreg or polr.",
                )
            out[place][rows] = _moved_level(*odds[place], delta[rows])
    return out


def _group(shift: Shift, columns: Sequence[np.ndarray]) -> np.ndarray:
    """Which rows of completed columns a shift is for."""
    inside = np.ones(len(columns[0]), bool)
    for place, limit in shift.where.items():
        inside &= limit.holds(columns[place])
    return inside


def without_cells(
    shifts: Sequence[Shift], schema: Schema, drawn: Sequence[Sequence[np.ndarray]], missing: Sequence[np.ndarray]
) -> list[str]:
    """What is to be said of shifts that move nothing, for no cell of their column and group was imputed."""
    out = []
    for s in shifts:
        if not any((_group(s, columns) & missing[s.place]).any() for columns in drawn):
            group = f" where {s.text}" if s.text else ""
            name = schema.column(s.place).name
            out.append(f"the shift of {name!r}{group} moves nothing: no cell of it was imputed")
    return out


def raised_levels(shifts: Sequence[Shift], schema: Schema) -> dict[str, bool]:
    """What is to be said of which level of a category a shift raises, and whether it is one that says no."""
    out = {}
    for column in (schema.column(s.place) for s in shifts):
        if not column.is_quantity:
            first, last = column.categories[0], column.categories[-1]
            text = f"a shift of {column.name!r} above 0 makes {last!r} likelier, and {first!r} less likely"
            out[text] = (last.lower(), first.lower()) in YES_NO
    return out


def held_back(
    shifts: Sequence[Shift], schema: Schema, drawn: Sequence[Sequence[np.ndarray]], gaps: Sequence[np.ndarray]
) -> list[str]:
    """What is to be said of shifted values outside the bounds that a person gave: they are set to them."""
    notes = []
    for place in dict.fromkeys(s.place for s in shifts):
        column = schema.column(place)
        if column.is_quantity:
            values = np.concatenate([columns[place][gaps[place]] for columns in drawn])
            low, high = column.bounds
            count = int(((values < low) | (values > high)).sum())
            if count:
                notes.append(
                    f"{count} of {len(values)} shifted values of {column.name!r} lay outside the bounds given "
                    f"({low:g} to {high:g}) and were set to them"
                )
    return notes


def _moved_level(levels: np.ndarray, log_probability: np.ndarray, u: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """Levels drawn with the same uniform numbers when the odds of every level or above are multiplied by exp(delta)."""
    share = np.exp(log_probability - log_probability.max(1, keepdims=True))
    below = np.clip(np.cumsum(share, 1) / share.sum(1, keepdims=True), 1e-12, 1 - 1e-12)[:, :-1]
    moved = 1 / (1 + np.exp(-(logit(below) - delta[:, None])))
    parts = np.diff(np.column_stack([np.zeros(len(u)), moved, np.ones(len(u))]), axis=1)
    return levels[draw_level(np.log(np.maximum(parts, 1e-300)), u)].astype(float)
