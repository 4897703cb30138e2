"""What synthetic rows keep back by default: levels and extremes that only a few training rows have, and identifiers.

Statistical disclosure control knows these as suppression of rare levels and top and bottom coding (Hundepool et al.
2012, ch. 3). They lower the risk that a cell points at one person; they do not make rows anonymous.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unmask.errors import UserError, option
from unmask.modalities.table.fitting.cell_table import FittedTable
from unmask.modalities.table.rules.conditions import Limit
from unmask.modalities.table.schema.schema import Column, Schema

LEAST = 5
"""Training rows that a level, or the values up to an end, must have; a quarter of the rows where there are fewer than
20. The rows are those of the table: a value that three patients have points at them, however few others have any."""
COMMON = 0.5
"""A nominal column is left out where common levels have less than this share of its values: an identifier, most likely.
"""


def least(rows: int) -> int:
    """How many rows of a table of `rows` count as more than a few.

    >>> least(500), least(12), least(2)
    (5, 3, 1)
    """
    return min(LEAST, max(1, rows // 4))


def learn_safety(columns: Sequence[np.ndarray], sizes: Sequence[int]) -> dict[str, np.ndarray]:
    """Of the training columns, as arrays to be saved: `safety.ends` (columns, 2), the k-th smallest and largest value
    of quantities (NaN for categories, and where so few rows have a value that the two would have changed places),
    `safety.rare` (columns, most levels), 1 for levels of fewer than k rows, `safety.share` (columns,), the share of
    values in other levels, and `safety.seen` (columns,), the share of rows that have a value."""
    ends = np.full((len(columns), 2), np.nan)
    rare = np.zeros((len(columns), max([1, *sizes])), np.uint8)
    share, seen = np.ones(len(columns)), np.array([1 - np.isnan(x).mean() for x in columns])
    for place, (x, size) in enumerate(zip(columns, sizes, strict=True)):
        k = least(len(x))
        x = np.sort(x[~np.isnan(x)])
        if size:
            count = np.bincount(x.astype(int), minlength=size)
            rare[place, :size] = count < k
            share[place] = count[count >= k].sum() / max(len(x), 1)
        elif len(x) >= 2 * k - 1:
            ends[place] = x[k - 1], x[-k]
    return {"safety.ends": ends, "safety.rare": rare, "safety.share": share, "safety.seen": seen}


@dataclass(frozen=True, kw_only=True)
class DisclosureGuard:
    """What may be drawn.

    Attributes:
        bounds: place -> limits that no drawn value leaves.
        left_out: places of columns that are not released.
        notes: what is kept back, for people.
    """

    bounds: dict[int, Limit] = field(default_factory=dict)
    left_out: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


def guard_of(model: FittedTable, *, rare: str = "drop", extremes: str = "pool") -> DisclosureGuard:
    """What synthetic rows of a model keep back.

    Args:
        rare: "drop": levels of fewer than `LEAST` training rows are never drawn, and nominal columns of which most
            values have such levels are left out; "keep". The event of a survival pair keeps both levels.
        extremes: "pool": quantities stay within their `LEAST`-th smallest and largest training value, where what lies
            beyond is put, and are left out where fewer rows have a value than that takes; "keep".
    """
    for name, value, known in (("rare", rare, ("drop", "keep")), ("extremes", extremes, ("pool", "keep"))):
        if value not in known:
            raise UserError(f"{name}={value!r}", hint=f"Expected {known[0]!r} or {known[1]!r}.")
    bounds: dict[int, Limit] = {}
    left_out, few_values, dropped, pooled = [], [], [], []
    for place, i in enumerate(model.schema.modelled):
        column = model.schema.columns[i]
        if column.is_quantity:
            low, high = model.extra["safety.ends"][place]
            if extremes == "keep":
                continue
            if np.isnan(low):
                few_values.append(place)
            else:
                bounds[place] = Limit(low=float(low), high=float(high))
                pooled.append(column.name)
            continue
        few = model.extra["safety.rare"][place, : len(column.categories)] != 0
        if rare == "keep" or not few.any() or column.name == model.schema.event:
            continue
        if few.all() or (column.kind == "nominal" and model.extra["safety.share"][place] < COMMON):
            left_out.append(place)
        else:
            bounds[place] = Limit(allowed=~few)
            dropped.append(f"{int(few.sum())} of {len(few)} levels of {column.name!r}")
    notes = []
    named, sparse = ([model.schema.column(p).name for p in places] for places in (left_out, few_values))
    not_modelled = [c.name for c in model.schema.columns if not c.modelled]
    if not_modelled:
        notes.append(
            f"left out, as they are not modelled (identifiers, free text, empty columns): {_listed(not_modelled)}"
        )
    if named:
        notes.append(
            f"left out, since most of their values belong to fewer than {LEAST} training rows each: {_listed(named)} "
            f"({option('rare', 'keep')} draws them)"
        )
    if sparse:
        notes.append(
            f"left out, since so few training rows have a value there that its {LEAST}th smallest lies above its "
            f"{LEAST}th largest: {_listed(sparse)} ({option('extremes', 'keep')} draws them)"
        )
    if dropped:
        notes.append(
            f"never drawn, since fewer than {LEAST} training rows have them: {'; '.join(dropped)} "
            f"({option('rare', 'keep')} draws them)"
        )
    if pooled:
        notes.append(
            f"values beyond the {LEAST}th smallest and largest of the training rows are put there, in {len(pooled)} "
            f"columns "
            f"({option('extremes', 'keep')} draws up to the ends)"
        )
    return DisclosureGuard(bounds=bounds, left_out=(*left_out, *few_values), notes=tuple(notes))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def learn_ids(columns: Sequence[np.ndarray], schema: Schema) -> dict[str, np.ndarray]:
    """Of the raw columns, to be saved: `safety.ids`, with how many S fresh identifiers begin, so that no training row
    has one of them (S1, where there is none of these)."""
    letters = np.ones(len(schema.columns), np.int64)
    for i, (raw, column) in enumerate(zip(columns, schema.columns, strict=True)):
        if column.kind == "id" and raw.dtype == object:
            found = (re.fullmatch(r"\s*(s+)\d+\s*", v, re.IGNORECASE) for v in raw.tolist() if isinstance(v, str))
            letters[i] += max((len(m[1]) for m in found if m), default=0)
    return {"safety.ids": letters}


def new_ids(model: FittedTable, rows: int) -> dict[int, list[Any]]:
    """Column of the schema -> fresh identifiers, S1, S2, ..., of rows that are nobody's: see `learn_ids`."""
    columns = model.schema.columns
    letters = model.extra.get("safety.ids", np.ones(len(columns), np.int64))
    return {i: [f"{'S' * letters[i]}{k + 1}" for k in range(rows)] for i, c in enumerate(columns) if c.kind == "id"}


def shown_levels(model: FittedTable, column: Column) -> str:
    """The first six levels of a column for a report; those of fewer than `LEAST` rows are counted alone."""
    if not column.modelled or column.is_quantity:
        return ""
    few = model.extra["safety.rare"][model.schema.place(column.name), : len(column.categories)] != 0
    common = [level for level, rare in zip(column.categories, few, strict=True) if not rare]
    text = ", ".join(common[:6]) + (", ..." if len(common) > 6 else "")
    if not few.any():
        return text
    return f"{text}{' and ' if text else ''}{int(few.sum())} of fewer than {LEAST} rows"


def contents(model: FittedTable) -> list[str]:
    """What a model folder holds of the training rows, in plain sentences, the warning first."""
    schema, rows = model.schema, model.facts["rows"]
    named = [(place, schema.columns[i]) for place, i in enumerate(schema.modelled)]
    levels = [(c, model.extra["safety.rare"][p, : len(c.categories)] != 0) for p, c in named if not c.is_quantity]
    quantities = [c for _, c in named if c.is_quantity]
    out = [
        f"This folder is not anonymous: it was made from {rows} rows and is to be kept as they are. It holds no row, "
        f"but:",
        f"the names of all {len(schema.columns)} columns; of those left out of the model nothing else but which of S1, "
        "SS1, ... is no identifier in them.",
    ]
    if levels:
        total, few = sum(len(f) for _, f in levels), sum(int(f.sum()) for _, f in levels)
        out.append(
            f"every level of {len(levels)} categorical columns and its share: {total} levels, {few} of them of fewer "
            f"than {LEAST} rows."
        )
        for c, f in levels:
            if len(f) > 20 and f.mean() > COMMON:
                out.append(
                    f"{c.name!r} is among these, with {int(f.sum())} levels of fewer than {LEAST} rows: an identifier? "
                    f"Declare its kind 'id'."
                )
    if quantities:
        out.append(
            f"the smallest and largest value of {len(quantities)} quantities, their quantiles and the values that many "
            f"rows share."
        )
    out.append(f"which cells were missing together, of {len(model.extra['holes'])} rows, without their values.")
    out.append("one number of all rows together, which tells whoever has all of them that they are these.")
    scores = sum(len(v) for v in model.table.scores.values())
    if scores:
        out.append(f"{scores} conformity scores of held-out cells, numbers between 0 and 1.")
    times = [v for k, v in model.extra.items() if k.endswith(".at")]
    if times:
        out.append(
            f"{sum(len(t) for t in times)} follow-up times at which someone had the event or was censored, exactly as "
            f"recorded."
        )
    out.append(
        "the weights of the fit: means, correlations, steps and a network, from which rows can be told in part (see "
        "`model_membership_auc`)."
    )
    return out
