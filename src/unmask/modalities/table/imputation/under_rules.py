"""Whole tables filled under rules: points and draws that meet them, and what to say of rows that cannot.

Observed cells are never changed. If a row breaks a rule as recorded, or its rules leave no possible value for a missing
cell, a note names the row, and its missing cells are filled as if that rule were not there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from unmask.errors import first_of
from unmask.modalities.table.fitting.cell_table import CellTable
from unmask.modalities.table.fitting.point_values import Imputed
from unmask.modalities.table.rules.conditions import Limit
from unmask.modalities.table.rules.rules import Rules

ATTEMPTS = 8
"""Further draws for rows in which what a formula gives a cell breaks another rule."""
SHOWN = 8
"""Rows named in a note."""


def drawn_under(
    rules: Rules,
    table: CellTable,
    columns: Sequence[np.ndarray],
    *,
    seed: int,
    member: int | None = None,
    shift: Mapping[int, float] | None = None,
) -> list[np.ndarray]:
    """One completed copy of the columns whose drawn cells meet the rules; see `CellTable.draw`."""
    moved = dict(shift or {})
    out = table.draw(columns, seed=seed, member=member, shift=moved, rules=rules)
    for attempt in range(ATTEMPTS if rules.formulas else 0):
        rows = np.flatnonzero(_newly_broken(rules, columns, out))
        if not len(rows):
            break
        again = table.draw(
            columns, seed=seed + 104729 * (attempt + 1), member=member, shift=moved, rules=rules, rows=rows
        )
        for x, new in zip(out, again, strict=True):
            x[rows] = new[rows]
    return out


def settled(rules: Rules, columns: Sequence[np.ndarray], drawn: Sequence[np.ndarray]) -> tuple[list[np.ndarray], int]:
    """Columns completed by any method, moved so that they meet the rules, and how many drawn cells were moved.

    Computed columns are computed, or solved for; a drawn value outside what the rules leave is mirrored at the end it
    overstepped (which keeps spread, where cutting off would heap values there), a category replaced by the nearest
    allowed one. Where a model is at hand, `drawn_under` draws from its distribution instead.

    Args:
        columns: as recorded, NaN where missing.
        drawn: the same, completed.
    """
    out = [np.array(x, np.float64) for x in drawn]
    known = {p: np.array(columns[p], np.float64) for p in rules.touched}
    moved = 0
    for p in rules.order(sorted(rules.touched)):
        filled = np.isnan(columns[p]) & ~np.isnan(drawn[p])
        left, fixed = rules.limits(p, known, {p: rules.floors.get(p, Limit())}), rules.determined(p, known)
        x = out[p][filled]
        if left.allowed is not None:
            allowed = left.allowed[filled]
            far = np.abs(np.arange(allowed.shape[1])[None] - x[:, None]) + 1e6 * ~allowed
            new = np.where(allowed.any(1), far.argmin(1), x)
        else:
            low, high = left.low[filled], left.high[filled]
            mirrored = np.where(x < low, 2 * low - x, np.where(x > high, 2 * high - x, x))
            new = np.clip(mirrored, low, np.maximum(low, high))
            new = np.where(rules.bounded(p, filled), new, rules.rounded(p, new, low, high))
            new = np.where(low > high, x, new)
        moved += int((np.abs(new - x) > rules.step(p) if left.allowed is None else new != x).sum())
        out[p][filled] = np.where(np.isnan(fixed[filled]), new, fixed[filled])
        known[p] = out[p]
    return out, moved


def points_under(rules: Rules, table: CellTable, columns: Sequence[np.ndarray], found: Imputed) -> Imputed:
    """Point values that meet the rules, and intervals that hold nothing the rules exclude.

    Points that break a rule are replaced one by one by the mean (the likeliest category) within what the rules leave,
    each given those before it; computed columns are computed from the points they depend on.
    """
    if not rules:
        return found
    missing = {p: np.isnan(columns[p]) for p in rules.touched}
    for p in rules.touched:
        column = rules.columns[p]
        if column.is_quantity:
            x = rules.rounded(p, np.clip(found.point[p], column.low, column.high))
            found.point[p][missing[p]] = np.where(rules.bounded(p), found.point[p], x)[missing[p]]
    passive = np.any(
        [missing[c] for r in rules.formulas for c in r.columns] or [np.zeros(len(columns[0]), bool)], axis=0
    )
    rows = np.flatnonzero(passive | _newly_broken(rules, columns, found.point))
    if len(rows):
        best = table.draw(columns, rules=rules, rows=rows, best=True)
        for p in rules.touched:
            here = rows[missing[p][rows]]
            found.point[p][here] = best[p][here]
    if found.low is not None and found.high is not None:
        _narrow(rules, columns, found, missing)
    return found


def _narrow(rules: Rules, columns: Sequence[np.ndarray], found: Imputed, missing: Mapping[int, np.ndarray]) -> None:
    """Cut intervals and shares of levels to what the observed cells leave; what these determine is certain."""
    assert found.low is not None
    assert found.high is not None
    known = {p: columns[p] for p in rules.touched}
    for p in rules.touched:
        left = rules.limits(p, known)
        if left.allowed is not None:
            rows, shares = found.shares.get(p, (np.zeros(0, np.int64), np.zeros((0, left.allowed.shape[1]))))
            cut = shares * left.allowed[rows]
            total = cut.sum(1, keepdims=True)
            found.shares[p] = rows, np.where(total > 0, cut / np.maximum(total, 1e-12), shares)
            continue
        fixed, point = rules.determined(p, known), found.point[p]
        for ends, nearest in ((found.low, np.minimum), (found.high, np.maximum)):
            inside = np.where(left.dead, ends[p], np.clip(ends[p], left.low, np.maximum(left.low, left.high)))
            ends[p][:] = np.where(missing[p], np.where(np.isnan(fixed), nearest(inside, point), fixed), np.nan)


def _newly_broken(rules: Rules, columns: Sequence[np.ndarray], filled: Sequence[np.ndarray]) -> np.ndarray:
    """Rows that break a rule which they did not break as recorded, or in which a cell has left its interval."""
    broken = _broken_anew(rules, columns, [filled]).values()
    with np.errstate(invalid="ignore"):
        left = [(filled[p] < low) | (filled[p] > high) for p, (_, low, high) in rules.within.items()]
    return np.any([*broken, *left, np.zeros(len(filled[0]), bool)], axis=0)


def recorded_breaches(rules: Rules, columns: Sequence[np.ndarray], row_name: Callable[[int], Any]) -> list[str]:
    """A sentence per rule that observed cells break, with the rows."""
    return _sentences(rules.broken(columns), row_name, "is broken as recorded in {}; left as they are")


def not_kept(
    rules: Rules, columns: Sequence[np.ndarray], filled: Sequence[np.ndarray], row_name: Callable[[int], Any], why: str
) -> list[str]:
    """A sentence per rule that filled cells break, of a model that does not fill under rules."""
    return _sentences(_broken_anew(rules, columns, [filled]), row_name, f"is not kept {why} in {{}}")


def unmet(
    rules: Rules, columns: Sequence[np.ndarray], filled: Sequence[Sequence[np.ndarray]], row_name: Callable[[int], Any]
) -> list[str]:
    """A sentence per rule that filled cells break, since what is observed in the row leaves them nothing."""
    what = "cannot be met, given what is recorded, in {}; filled without it"
    return _sentences(_broken_anew(rules, columns, filled), row_name, what)


def _broken_anew(
    rules: Rules, columns: Sequence[np.ndarray], filled: Sequence[Sequence[np.ndarray]]
) -> dict[str, np.ndarray]:
    """Text of each rule -> rows that break it in any of some completed copies, and did not as recorded."""
    after = [rules.broken(one) for one in filled]
    return {
        text: np.any([one[text] for one in after], axis=0) & ~recorded
        for text, recorded in rules.broken(columns).items()
    }


def _sentences(broken: Mapping[str, np.ndarray], row_name: Callable[[int], Any], what: str) -> list[str]:
    """A sentence per rule that is broken, `{}` standing for the rows."""
    found = {text: np.flatnonzero(rows) for text, rows in broken.items()}
    return [f"{text!r} {what.format(_rows(rows, row_name))}" for text, rows in found.items() if len(rows)]


def _rows(rows: np.ndarray, row_name: Callable[[int], Any]) -> str:
    return f"{'row' if len(rows) == 1 else 'rows'} {first_of((row_name(int(r)) for r in rows), SHOWN)}"
