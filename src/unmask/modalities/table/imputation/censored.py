"""Cells that are only bounded, in chains and completed tables: what they start from, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from unmask.errors import UserError, option
from unmask.modalities.table.imputation.censored_regression import censored_fits, censored_scale, draw_between
from unmask.modalities.table.imputation.chained import Chain, DrawPlan
from unmask.modalities.table.imputation.formula import Formula
from unmask.modalities.table.imputation.methods import choose_methods
from unmask.modalities.table.imputation.scales import MonotoneScale
from unmask.modalities.table.reading.findings import setting
from unmask.modalities.table.schema.censored import Censored
from unmask.modalities.table.schema.schema import Schema

ROUNDS = 5
"""Of the chain that draws censored cells for a fit."""


def started(
    columns: Sequence[np.ndarray], cells: Mapping[int, Censored], rng: np.random.Generator
) -> tuple[list[np.ndarray], dict[int, MonotoneScale]]:
    """Columns whose censored cells have values drawn from the column's own censored normal distribution, and the scales
    of these distributions."""
    out, scales = [x.copy() for x in columns], {}
    for place, own in cells.items():
        seen = ~np.isnan(columns[place])
        out[place][own.rows] = np.clip(np.median(columns[place][seen]) if seen.any() else 0.0, *own.ends)
        use = ~np.isnan(out[place])
        found = censored_scale(np.ones((int(use.sum()), 1)), out[place], own, use)
        if found.scale is not None:
            scales[place] = found.scale
        mean = np.full(len(own.rows), found.beta[0])
        out[place][own.rows] = draw_between(mean, found.sigma, found.scale, own, rng)
    return out, scales


def settle_scales(plan: DrawPlan, chain: Chain) -> None:
    """Find how likely each scale of a censored column is given what predicts it, by a short chain. Every chain draws
    one: how a column goes on beyond its limit is not known for certain."""
    chain.run(2)
    for place, cells in plan.censored.items():
        use = ~plan.missing[place]
        found = censored_fits(chain.regressors.matrix[use][:, plan.chosen[place]], chain.now[place], cells, use)
        share = np.exp([one.height - max(other.height for other in found) for one in found])
        plan.likely[place] = [one.scale for one in found], share / share.sum()
        best = plan.likely[place][0][int(share.argmax())]
        plan.scales.pop(place, None)
        if best is not None:
            plan.scales[place] = best
        of = "" if best is None else f" of {best.words}"
        reason = f"{len(cells.rows)} cells are only bounded: a censored normal linear regression{of}"
        if plan.missing[place].any():
            reason += f"; of the missing ones, {plan.methods[place]}: {plan.reasons.get(place, 'asked for')}"
        else:
            plan.methods[place] = "censored"
        plan.reasons[place] = reason


def with_drawn(
    schema: Schema, columns: Sequence[np.ndarray], cells: Mapping[int, Censored], rows: np.ndarray, seed: int
) -> tuple[Schema, list[np.ndarray]]:
    """Columns whose censored cells have one value each, drawn by a short chain: what a model is fitted to; and the
    schema, whose ranges learnt from the data hold these values too.

    Args:
        cells: in a table of which the columns are some `rows`.
    """
    number, rng = np.cumsum(rows) - 1, np.random.default_rng([seed, 0, 4])
    own = {p: replace(c, rows=number[c.rows]) for p, c in cells.items()}
    now, scales = started(columns, own, rng)
    plan = DrawPlan(columns=now, sizes=schema.sizes, schema=schema, scales=scales, censored=own)
    choose_methods(plan, None, rng)
    settle_scales(plan, Chain(plan, rng))
    drawn = Chain(plan, rng).run(ROUNDS).columns
    out = [np.where(np.isnan(x) & ~empty, new, x) for x, empty, new in zip(columns, plan.missing, drawn, strict=True)]
    wide = list(schema.columns)
    for p, cell in own.items():
        c, values = schema.column(p), out[p][cell.rows]
        ends = [(values.min(), np.minimum, c.low), (values.max(), np.maximum, c.high)]
        low, high = (float(value if end is None else of(value, end)) for value, of, end in ends)
        given = c.given or ()
        new = replace(c, low=c.low if "low" in given else low, high=c.high if "high" in given else high)
        wide[schema.modelled[p]] = new
    return replace(schema, columns=tuple(wide)), out


# What is said of such cells, and what becomes of them.


def check_censored(choice: str) -> None:
    """Refuse what is no choice of what is written in censored cells."""
    if choice not in ("drawn", "kept"):
        raise UserError(f"{option('censored', choice)}", hint="Expected drawn or kept.")


def check_possible(schema: Schema, cells: Mapping[int, Censored], formula: Formula | None) -> None:
    """Refuse censored cells where nothing draws them: in an outcome that is neither normal nor a follow-up time."""
    if formula is None or formula.family == "ols" or formula.survival:
        return
    for place in cells.keys() & set(formula.outcome):
        name, where = schema.column(place).name, f"an outcome of family {formula.family}"
        value = setting(name, 'limits = "value"')
        hint = f"Say what they are read as: {value}, or impute without {where}."
        raise UserError(f"column {name!r}: {cells[place].words()}, and {where}", hint=hint)


def without_event(
    schema: Schema, columns: Sequence[np.ndarray], cells: Mapping[int, Censored], row_name: Callable[[int], Any]
) -> list[str]:
    """What is to be said of follow-up times that end in an interval without an event."""
    own = cells.get(schema.place(schema.duration)) if schema.duration and schema.event else None
    if own is None:
        return []
    rows = own.rows[np.isfinite(own.high) & (columns[schema.place(str(schema.event))][own.rows] == 0)]
    if not len(rows):
        return []
    return [
        f"{len(rows)} rows without an event have a follow-up time in an interval, as row {row_name(int(rows[0]))}: its "
        "end is drawn there. Whoever was last seen without the event has the time of that visit: write this one"
    ]


def without_censored(masks: Sequence[np.ndarray], cells: Mapping[int, Censored]) -> list[np.ndarray]:
    """Cells of each column, but for the censored ones."""
    return [m & ~cells[p].mask(len(m)) if p in cells else m for p, m in enumerate(masks)]


def censored_notes(schema: Schema, cells: Mapping[int, Censored], choice: str) -> list[str]:
    """What is done with the censored cells of each column."""
    kept = choice == "kept"
    done = (
        "drawn inside their intervals, and kept as they stand" if kept else "filled with values inside their intervals"
    )
    return [f"{schema.column(p).name!r}: {own.words()}: {done}" for p, own in cells.items()]


def drawn_cells(
    schema: Schema, cells: Mapping[int, Censored], columns: Sequence[np.ndarray]
) -> dict[int, tuple[np.ndarray, list[float], np.ndarray]]:
    """Column of the schema -> rows of its censored cells, their values, and the whole column as numbers."""
    return {
        schema.modelled[p]: (own.rows, own.written(columns[p][own.rows]).tolist(), columns[p])
        for p, own in cells.items()
    }
