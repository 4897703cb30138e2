"""New rows: any-order sampling from nothing, under conditions and constraints, with the outcome last.

Every column is drawn given those drawn before it (the chain rule, columns with few holes first), so the joint structure
is kept; filling all columns at once would lose it. Follow-up time and event come from proportional
hazards given the covariates (`hazards.Outcome`), so that hazard ratios and Kaplan-Meier curves carry over.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unmask.core.hashing import Salt, hash_keys, uniform
from unmask.errors import UserError, option
from unmask.modalities.table.fitting.cell_table import FittedTable
from unmask.modalities.table.imputation.training_range import encode_warned
from unmask.modalities.table.imputation.under_rules import drawn_under
from unmask.modalities.table.reading.decimal_marks import Spelling
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.rules.conditions import Limit, parse_where
from unmask.modalities.table.rules.rules import Rules
from unmask.modalities.table.schema.schema import Schema
from unmask.modalities.table.schema.values import decode, in_order, with_added
from unmask.modalities.table.synthesis.disclosure_control import guard_of, new_ids
from unmask.modalities.table.synthesis.sampling import RowSampler
from unmask.modalities.table.writing.whole_columns import is_frame
from unmask.modalities.table.writing.writers import as_polars, handed_out, new_table, rows_below

SUPPORT = 20
"""Conditions met by fewer training rows than this are said to be extrapolation."""
_EXTRAPOLATION = "what is drawn there is extrapolation"


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """New rows as a table, as plain arrays per modelled column, and what should be said of them.

    Attributes:
        left_out: places of modelled columns that `columns` has and the table does not.
        notes: what is kept back and why.
    """

    table: Any
    columns: list[np.ndarray]
    warnings: list[str]
    left_out: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def released(self) -> list[np.ndarray]:
        """The columns with nothing but NaN in those that the table does not have."""
        return [np.full(len(x), np.nan) if p in self.left_out else x for p, x in enumerate(self.columns)]


def synthesize(
    model: FittedTable,
    rows: int,
    *,
    where: Sequence[str] | str | Mapping[str, object] | None = None,
    constraints: Sequence[str] = (),
    seed: int = 0,
    temperature: float = 1.0,
    missing: bool = False,
    rare: str = "drop",
    extremes: str = "pool",
    ids: str = "none",
    warn: bool = True,
) -> Synthetic:
    """Draw new rows.

    Args:
        where: conditions every row meets exactly, e.g. "sex == 0 and age >= 70".
        constraints: rules every row meets besides the schema's own: "dbp < sbp", "admission <= surgery <= discharge",
            "pregnant == 1 -> sex == 'F'", "bmi := weight / height**2".
        temperature: below 1 keeps to the common, above 1 spreads.
        missing: leave cells empty as the training table does, row patterns and all; conditioned columns stay full.
        rare, extremes: what only a few training rows have is kept back ("drop", "pool"), or not ("keep"); see
            `disclosure_control.guard_of`. Identifiers and free text are never drawn.
        ids: "new" gives identifier columns fresh values (S1, S2, ...).
        warn: Python warns of what the result has under `warnings`, too.

    Raises:
        UserError: a condition on what is not there, or that no row can meet; rows or temperature out of range.
    """
    if rows < 1:
        raise UserError(f"rows={rows}", hint="Expected at least 1.")
    if not 0 < temperature < math.inf:
        raise UserError(option("temperature", temperature), hint="Expected a number above 0.")
    if not model.table.network.draws_columns:
        raise UserError(
            f"recipe {model.table.settings.recipe!r} does not synthesise", hint="Fit with the recipe 'masked'."
        )
    limits = parse_where(where, model.schema)
    rules = Rules.of(model.schema, constraints)
    guard = guard_of(model, rare=rare, extremes=extremes)
    for place in guard.left_out:
        name = model.schema.column(place).name
        if place in limits or place in rules.touched:
            raise UserError(
                f"{name!r} is left out: its values belong to a few training rows each",
                hint=f"{option('rare', 'keep')} and {option('extremes', 'keep')} draw it.",
            )
    if ids not in ("none", "new"):
        raise UserError(f"ids={ids!r}", hint="Expected 'none' or 'new'.")
    notes = support_warnings(model, limits)
    sampler = RowSampler(model, limits, rules, temperature, guard.bounds)
    values = sampler.sample(rows, seed)
    notes += sampler.warnings
    if missing:
        _punch(model, values, set(limits), seed)
    drawn = {
        i: decode(x, model.schema.columns[i])
        for place, (x, i) in enumerate(zip(values, model.schema.modelled, strict=True))
        if place not in guard.left_out
    }
    if not drawn:
        hint = f"{option('rare', 'keep')} and {option('extremes', 'keep')} draw what only a few training rows have."
        raise UserError("no column is left to draw", hint=hint)
    table = model.wrap(drawn)
    if ids == "new":
        table = _with_ids(model, table, list(drawn), rows)
    for text in notes if warn else ():
        warnings.warn(text, stacklevel=3)
    return Synthetic(table=table, columns=values, warnings=notes, left_out=guard.left_out, notes=guard.notes)


def _with_ids(model: FittedTable, table: Any, drawn: list[int], rows: int) -> Any:
    """The table with fresh identifiers, every column at its place in the schema."""
    if isinstance(table, np.ndarray):
        raise UserError("ids='new' with an array", hint="Fit to a table with names of columns.")
    made = new_ids(model, rows)
    names = [model.schema.columns[i].name for i in sorted([*made, *drawn])]
    return in_order(with_added(table, model.schema, made), names)


def support_warnings(model: FittedTable, limits: dict[int, Limit]) -> list[str]:
    """What the training data cannot back: conditions that few or none of its rows meet, each alone or together.

    Each alone by the column's own shares; together by rows drawn from the model, which stand for the training rows.
    """
    warnings, rows, seen = [], model.facts["rows"], model.extra["safety.seen"]
    for place, limit in limits.items():
        met = _share(model, place, limit) * seen[place] * rows
        if met < SUPPORT:
            name = model.schema.column(place).name
            warnings.append(f"about {met:.0f} of {rows} training rows meet the condition on {name!r}: {_EXTRAPOLATION}")
    if len(limits) > 1 and not warnings:
        drawn = RowSampler(model, {}, Rules(model.schema), 1.0).sample(2048, 0)
        held = model.extra["holes"][:, list(limits)].max(1) == 0  # rows that have a value in each
        met = float(np.all([limit.holds(drawn[place]) for place, limit in limits.items()], axis=0).mean()) * rows
        met *= float(held.mean())
        if met < SUPPORT:
            warnings.append(
                f"by the model, about {met:.0f} of {rows} training rows meet all the conditions: {_EXTRAPOLATION}"
            )
    return warnings


def _share(model: FittedTable, place: int, limit: Limit) -> float:
    """Share of the training values of a column that meet a limit."""
    column, coding = model.schema.column(place), model.table.codings[place]
    if coding.scale is None:
        assert limit.allowed is not None
        return float(np.array(coding.share)[limit.allowed].sum())
    half = 0.5 * 10.0**-column.decimals if column.decimals is not None else 0.0
    ends = [limit.low - half, limit.high + half]
    low, high = np.interp(ends, coding.scale.knot_x, coding.scale.knot_u, left=0.0, right=1.0)
    atoms = limit.holds(coding.scale.value[coding.scale.atom])
    return max(float(high - low), float(np.diff(coding.scale.edge)[coding.scale.atom][atoms].sum()))


def _punch(model: FittedTable, values: list[np.ndarray], kept: set[int], seed: int) -> None:
    """Empty the cells that a training row, drawn for every new row, lacked."""
    patterns = model.extra["holes"]
    donor = (hash_keys(seed, np.arange(len(values[0])), Salt.SYNTHETIC_HOLES) % np.uint64(len(patterns))).astype(
        np.int64
    )
    for place in set(range(len(values))) - kept:
        values[place][patterns[donor, place] != 0] = np.nan


def augment(
    model: FittedTable, data: Any, *, where: Any, rows: int, seed: int = 0, constraints: Sequence[str] = ()
) -> tuple[Any, Any]:
    """The table with `rows` synthetic patients of a stratum added below, and those alone.

    The model must have been fitted on the training part only: rows that are to judge the result must not be in it.

    Returns:
        Two polars tables; the first has a further column `synthetic` (booleans).
    """
    whole, new = (handed_out(t) for t in augmented(model, data, where, rows, seed, constraints))
    return whole, new


def augmented(
    model: FittedTable, data: Any, where: Any, rows: int, seed: int = 0, constraints: Sequence[str] = ()
) -> tuple[Any, Any]:
    """As `augment`; of a file as texts (`Frame`), in which every cell that was there is as it was, to the letter."""
    import polars as pl

    frame, schema = read_frame(data), model.schema
    if "synthetic" in frame.names:
        raise UserError(
            f"{frame.source}: there is a column 'synthetic' already",
            hint="It is to mark the rows that are added: rename it.",
        )
    if not model.fitted_to(encode_warned(model, frame)):
        warnings.warn(f"{frame.source}: not the table that the model was fitted to", stacklevel=3)
    drawn = synthesize(model, rows, where=where, seed=seed, constraints=constraints, rare="keep", extremes="keep")
    if frame.native is not None:
        old, new = as_polars(frame), drawn.table
        if is_frame(frame.native):
            like = read_frame(in_order(frame.native, schema.names))
            new = new_table(schema, _plain(schema, drawn.columns), like)
        new = as_polars(new)
        marked = [t.with_columns(pl.lit(mark).alias("synthetic")) for t, mark in ((old, False), (new, True))]
        return pl.concat(marked, how="diagonal_relaxed"), new
    whole = rows_below(frame, schema, _plain(schema, drawn.columns))
    mark = np.array(["False"] * len(frame) + ["True"] * rows, object)
    spellings = [*whole.spellings, Spelling()] if whole.spellings else []
    whole = dataclasses.replace(
        whole, names=[*whole.names, "synthetic"], columns=[*whole.columns, mark], spellings=spellings
    )
    return whole, drawn.table


def perturb(
    model: FittedTable, data: Any, *, share: float = 0.5, seed: int = 0, constraints: Sequence[str] = ()
) -> Any:
    """Real rows with a share of their cells hidden and drawn anew (the published MCM procedure).

    This is a perturbation, not synthesis: every row is a real person's with some cells changed.

    Args:
        share: of the cells, hidden each by itself; above 0 and at most 1.
        constraints: rules besides the schema's own; drawn cells meet them all.
    """
    if not 0 < share <= 1:
        raise UserError(f"share={share}", hint="Expected a share of cells to redraw, above 0 and at most 1.")
    frame = read_frame(data)
    columns = encode_warned(model, frame)
    rows = np.arange(len(columns[0]))
    holed = [np.where(uniform(seed, rows, c, Salt.REDRAWN_CELL) < share, np.nan, x) for c, x in enumerate(columns)]
    filled = drawn_under(Rules.of(model.schema, constraints), model.table, holed, seed=seed)
    filled = [np.where(np.isnan(x), np.nan, f) for x, f in zip(columns, filled, strict=True)]
    return handed_out(model.wrap(_plain(model.schema, filled)))


def _plain(schema: Schema, columns: Sequence[np.ndarray]) -> dict[int, list[Any]]:
    """Column of the schema -> its plain values."""
    return {i: decode(x, schema.columns[i]) for i, x in zip(schema.modelled, columns, strict=True)}
