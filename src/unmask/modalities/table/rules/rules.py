"""Rules between columns, at work on values: the limits they leave a cell, the cells they decide, the rows that break
them, and draws that keep them.

Values are arrays of the modelled columns, NaN where a cell is not known yet. Limits are worked out over all rules at
once (bounds propagation): with `a <= b` and `b <= c`, a known `c` bounds `a` even while `b` is unknown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.errors import UserError
from unmask.modalities.table.distribution.codec import Coding
from unmask.modalities.table.distribution.prediction import Categories, CellPrediction, Quantities
from unmask.modalities.table.reading.frame import Frame
from unmask.modalities.table.rules.conditions import Constraint, Limit, formulas_in_order, parse_constraints
from unmask.modalities.table.schema.censored import Censored
from unmask.modalities.table.schema.clusters import clusters_of, with_cluster
from unmask.modalities.table.schema.infer import infer
from unmask.modalities.table.schema.schema import Schema
from unmask.training.settings import load_toml

Values = Sequence[np.ndarray]


@dataclasses.dataclass
class Range:
    """What cells of one column may still be: ends of a quantity, or (rows, categories) booleans. `known`: cells that
    have a value; they bound others and are never moved."""

    low: np.ndarray
    high: np.ndarray
    allowed: np.ndarray | None
    known: np.ndarray

    def surely(self, limit: Limit) -> np.ndarray:
        """Rows in which whatever the cell becomes meets the limit."""
        if self.allowed is not None and limit.allowed is not None:
            return ~(self.allowed & ~limit.allowed).any(1)
        return (self.low >= limit.low) & (self.high <= limit.high)

    def never(self, limit: Limit) -> np.ndarray:
        """Rows in which nothing that the cell can become meets the limit."""
        if self.allowed is not None and limit.allowed is not None:
            return ~(self.allowed & limit.allowed).any(1)
        return (self.high < limit.low) | (self.low > limit.high)

    def narrow(self, rows: np.ndarray, limit: Limit) -> bool:
        """Apply a limit in some rows; whether anything changed."""
        rows = rows & ~self.known
        if self.allowed is not None and limit.allowed is not None:
            new = np.where(rows[:, None], self.allowed & limit.allowed, self.allowed)
            changed = bool((new != self.allowed).any())
            self.allowed = new
            return changed
        return self.bound(np.where(rows, limit.low, -np.inf), np.where(rows, limit.high, np.inf))

    def bound(self, low: np.ndarray, high: np.ndarray) -> bool:
        new_low = np.where(self.known, self.low, np.maximum(self.low, low))
        new_high = np.where(self.known, self.high, np.minimum(self.high, high))
        changed = bool((new_low > self.low).any() or (new_high < self.high).any())
        self.low, self.high = new_low, new_high
        return changed

    @property
    def dead(self) -> np.ndarray:
        """Rows in which nothing is left."""
        return np.asarray(~self.allowed.any(1) if self.allowed is not None else self.low > self.high)


class Rules:
    """The rules of a table, by places among its modelled columns."""

    def __init__(self, schema: Schema, rules: Sequence[Constraint] = ()) -> None:
        self.columns = [schema.columns[i] for i in schema.modelled]
        self.all = list(rules)
        self.formulas = formulas_in_order(self.all)
        self.touched = frozenset(c for rule in self.all for c in rule.columns)
        self.given = frozenset(c for rule in self.all if not rule.implied for c in rule.columns)
        """Columns of the rules that a person gave."""
        times = [n for n in (schema.duration, schema.entry) if n is not None]
        self.floors = {schema.place(n): Limit(low=0.0) for n in times if schema.columns[schema.number(n)].modelled}
        """Limits that hold beyond the range of the training rows too: follow-up is never below 0."""
        self.computed = {rule.columns[0] for rule in self.formulas}
        self.within: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        """Of columns with cells that are only bounded: which these are, and their ends, row by row."""

    def inside(self, cells: Mapping[int, Censored], rows: int) -> Rules:
        """These rules, and the intervals of cells that are only bounded, in a table of so many rows."""
        for place, own in cells.items():
            ends = np.full((2, rows), np.nan)
            ends[:, own.rows] = own.ends
            self.within[place] = own.mask(rows), *ends
        self.touched |= self.within.keys()
        return self

    def bounded(self, place: int, rows: np.ndarray | slice = slice(None)) -> np.ndarray | bool:
        """Which cells of a column are only bounded, in some rows."""
        return self.within[place][0][rows] if place in self.within else False

    @classmethod
    def of(cls, schema: Schema, texts: Sequence[str] | str = (), *, implied: bool = True) -> Rules:
        """The schema's own rules, and further ones. `implied`: whether to add the built-in rule that late entry comes
        before the end of follow-up."""
        texts = [texts] if isinstance(texts, str) else list(texts)
        found = parse_constraints(list(dict.fromkeys([*schema.constraints, *texts])), schema)
        return cls(schema, [*found, *(_implied(schema, found) if implied else [])])

    def __bool__(self) -> bool:
        return bool(self.all or self.within)

    def step(self, place: int) -> float:
        """The least difference between two values of a quantity: its rounding, a second of dates with times."""
        column = self.columns[place]
        if column.decimals is not None:
            return float(10.0**-column.decimals)
        return 1 / 86400 if column.kind == "datetime" else 1e-9

    def rounded(
        self, place: int, x: np.ndarray, low: np.ndarray | float = -np.inf, high: np.ndarray | float = np.inf
    ) -> np.ndarray:
        """Values as the column writes them, within limits whose ends it may not be able to write."""
        column = self.columns[place]
        if column.decimals is None or not column.is_quantity:
            return np.clip(x, low, high) if column.is_quantity else x
        step = 10.0**-column.decimals
        with np.errstate(invalid="ignore"):
            inside = np.ceil(low / step - 1e-6) * step, np.floor(high / step + 1e-6) * step
            x = np.clip(np.round(x, column.decimals), inside[0], np.maximum(*inside))
        return np.round(x, column.decimals)

    # What is left for a cell.

    def limits(
        self,
        place: int,
        values: Mapping[int, np.ndarray],
        bounds: Mapping[int, Limit] | None = None,
        rows: np.ndarray | slice = slice(None),
    ) -> Range:
        """What the cells of a column may be, given the known values of the columns under rules. `values`: place ->
        values, NaN where not known; the column's own are not read; `bounds`: place -> what is allowed there at all;
        default the column's own bounds; `rows`: which rows of the table the values are of."""
        own = {p: x for p, x in values.items() if p in self.touched or p == place}
        own[place] = np.full(len(next(iter(values.values()))), np.nan)
        ranges = {p: self._range(p, x, (bounds or {}).get(p)) for p, x in own.items()}
        for p in self.within.keys() & ranges.keys():
            here, low, high = (part[rows] for part in self.within[p])
            here = here & ~ranges[p].known
            ranges[p].low = np.where(here, low, ranges[p].low)
            ranges[p].high = np.where(here, high, ranges[p].high)
        for _ in range(2 * len(self.all) + 1):
            changed = [self._apply(rule, ranges) for rule in self.all if rule.kind != "formula"]
            if not any(changed):
                break
        return ranges[place]

    def _range(self, place: int, x: np.ndarray, bound: Limit | None) -> Range:
        column, known = self.columns[place], ~np.isnan(x)
        if column.is_quantity:
            bound = Limit.of(column) if bound is None else bound
            return Range(np.where(known, x, bound.low), np.where(known, x, bound.high), None, known)
        own = np.ones(len(column.categories), bool) if bound is None or bound.allowed is None else bound.allowed
        allowed = np.tile(own, (len(x), 1))
        allowed[known] = x[known, None] == np.arange(len(own))
        return Range(np.full(len(x), -np.inf), np.full(len(x), np.inf), allowed, known)

    def _apply(self, rule: Constraint, ranges: dict[int, Range]) -> bool:
        """Narrow the ranges of one rule's columns; whether anything changed."""
        a, b = (ranges[c] for c in rule.columns)
        if rule.kind == "order":
            gap = min(self.step(c) for c in rule.columns) if rule.strict else 0.0
            everything = np.full(len(a.low), np.inf)
            return a.bound(-everything, b.high - gap) | b.bound(a.low + gap, everything)
        changed = b.narrow(a.surely(rule.premise), rule.conclusion)
        never = b.never(rule.conclusion) & ~a.known
        if not never.any():
            return changed
        inverse = rule.premise.inverse()
        if inverse is None:
            raise UserError(f"constraint {rule.text!r}: the premise has no inverse", hint="Use <, >, or categories.")
        return a.narrow(never, inverse) | changed

    # What is computed, and what is solved for.

    def determined(self, place: int, values: Mapping[int, np.ndarray]) -> np.ndarray:
        """Values that a formula gives a column where all others in it are known, rounded as the column is; else NaN.

        A column that is computed gets its result; one that a computed column was computed from is solved for, where the
        formula can be turned round.
        """
        out = np.full(len(next(iter(values.values()))), np.nan)
        for rule in self.formulas:
            found = rule.formula if rule.columns[0] == place else rule.solve.get(place)
            if found is None:
                continue
            with np.errstate(all="ignore"):
                x = np.broadcast_to(found({c: values[c] for c in rule.columns}), out.shape)
            out = np.where(np.isnan(out) & np.isfinite(x), x, out)
        return self.rounded(place, out)

    def order(self, order: Sequence[int]) -> list[int]:
        """An order of filling columns with computed ones last, and before them the first column that each can be solved
        for: where several are missing, that one follows from the others."""
        last = [rule.columns[0] for rule in self.formulas]
        before = [
            next((c for c in rule.columns[1:] if c in rule.solve and c not in last), None) for rule in self.formulas
        ]
        solved = [c for c in dict.fromkeys(before) if c is not None]
        return [*(c for c in order if c not in last and c not in solved), *solved, *last]

    # Which rows break a rule.

    def broken(self, values: Values) -> dict[str, np.ndarray]:
        """Text of each rule -> rows that break it; a row in which a cell of the rule is not known does not."""
        return {rule.text: self._breaks(rule, values) for rule in self.all}

    def _breaks(self, rule: Constraint, values: Values) -> np.ndarray:
        x = [values[c] for c in rule.columns]
        known = ~np.any([np.isnan(v) for v in x], axis=0)
        if rule.kind == "order":
            gap = 0.5 * min(self.step(c) for c in rule.columns)
            with np.errstate(invalid="ignore"):
                return known & (x[0] > x[1] - gap if rule.strict else x[0] > x[1] + 1e-9)
        if rule.kind == "implies":
            return known & rule.premise.holds(x[0]) & ~rule.conclusion.holds(x[1])
        assert rule.formula is not None
        with np.errstate(all="ignore"):
            now = rule.formula({c: values[c] for c in rule.columns})
            slack = 0.5 * self._width(rule.columns[0]) + 1e-9 * (1 + np.abs(now))
            for c in set(rule.columns[1:]):
                ends = [
                    rule.formula({**{k: values[k] for k in rule.columns}, c: values[c] + side * 0.5 * self._width(c)})
                    for side in (-1, 1)
                ]
                slack = slack + 0.5 * np.abs(ends[1] - ends[0])
            return known & ~(np.abs(x[0] - now) <= slack * (1 + 1e-9))

    def _width(self, place: int) -> float:
        """What rounding leaves open of a value."""
        return self.step(place) if self.columns[place].decimals is not None else 0.0


def _implied(schema: Schema, rules: Sequence[Constraint]) -> list[Constraint]:
    """Late entry before the end of follow-up, unless a rule says so already or computes one of the two."""
    if schema.entry is None or schema.duration is None:
        return []
    if not all(schema.columns[schema.number(n)].modelled for n in (schema.entry, schema.duration)):
        return []
    columns = schema.place(schema.entry), schema.place(schema.duration)
    stated = any(r.kind == "order" and r.strict and r.columns == columns for r in rules)
    if stated or {r.columns[0] for r in rules if r.kind == "formula"} & set(columns):
        return []
    text = f"{schema.entry} < {schema.duration}"
    return [Constraint(text=text, kind="order", columns=columns, strict=True, implied=True)]


def read_schema(schema: Schema | Mapping[str, Any] | str | Path | None) -> Schema | dict[str, Any]:
    """A schema, or the overrides of one: from a dict, a TOML file, or nothing."""
    if isinstance(schema, Schema):
        return schema
    if isinstance(schema, str | Path):
        return load_toml(schema)
    return dict(schema or {})


def schema_for(
    frame: Frame,
    schema: Schema | Mapping[str, Any] | str | Path | None,
    *,
    cluster: str | None = None,
    constraints: Sequence[str] | str = (),
    **pair: Any,
) -> Schema:
    """The schema given, or one inferred from the table under what is given of it; see `infer`."""
    found = read_schema(schema)
    if not isinstance(found, Schema):
        found = infer(frame, override=found, cluster=cluster, **pair)[0]
    elif cluster is not None:
        clusters_of(frame, found, cluster)
        found = with_cluster(found, cluster)
    more = (constraints,) if isinstance(constraints, str) else tuple(constraints)
    found = dataclasses.replace(found, constraints=tuple(dict.fromkeys([*found.constraints, *more])))
    Rules.of(found)  # whatever is wrong with a rule is said now
    return found


STEPS = 16
"""Quantiles whose mean stands for the mean of a distribution within limits."""


class Ruled:
    """Rules at work in a draw. `shift`: columns whose values are moved (delta adjustment): their own bounds do not hold
    them, rules do; `best`: means and likeliest categories instead of draws, of the columns under rules alone."""

    def __init__(self, rules: Rules, codings: Sequence[Coding], shift: Mapping[int, float], best: bool) -> None:
        self.rules, self.codings, self.best = rules, codings, best
        self.bounds = {place: Limit() for place in shift}

    def order(self, order: Sequence[int]) -> list[int]:
        found = self.rules.order(order)
        return [c for c in found if c in self.rules.touched] if self.best else found

    def value(
        self,
        place: int,
        value: np.ndarray,
        prediction: CellPrediction,
        member: Tensor,
        uniform: np.ndarray,
        known: Mapping[int, np.ndarray],
        rows: np.ndarray,
    ) -> np.ndarray:
        """The values of cells of one column, from those drawn without rules. `member`, `uniform`: which member each
        cell is drawn from, and (cells, 3) uniform numbers; `known`: place -> values of the columns under rules in the
        same rows of the table (`rows`), NaN where not known yet."""
        left, bounded = self.rules.limits(place, known, self.bounds, rows), self.rules.bounded(place, rows)
        if left.dead.any() and left.allowed is None:
            # Recorded cells beyond the range of the training rows: rules go before that range.
            wide = self.rules.limits(place, known, {p: self.rules.floors.get(p, Limit()) for p in known}, rows)
            left.low, left.high = (np.where(left.dead, w, x) for w, x in ((wide.low, left.low), (wide.high, left.high)))
        ((order, distribution),) = prediction.pieces
        if self.best:
            value = np.asarray(prediction.point(), np.float64)
        if isinstance(distribution, Quantities):
            value = np.where(bounded, value, self.rules.rounded(place, value))
            outside = (value < left.low - 1e-9) | (value > left.high + 1e-9)
        else:
            assert left.allowed is not None
            outside = ~left.allowed[np.arange(len(value)), value.astype(int)]
        outside &= ~left.dead
        if outside.any():
            at = order.numpy()
            again = np.empty(len(value))
            cells = _taken(left, at), member[order], uniform[at], self.best
            if isinstance(distribution, Quantities):
                again[at] = _within(distribution, *cells)
                again = np.where(bounded, again, self.rules.rounded(place, again, left.low, left.high))
            else:
                again[at] = _allowed(distribution, *cells)
            value = np.where(outside, again, value)
        fixed = self.rules.determined(place, known)
        return np.where(np.isnan(fixed), value, fixed)


def _taken(left: Range, rows: np.ndarray) -> Range:
    return Range(
        left.low[rows], left.high[rows], None if left.allowed is None else left.allowed[rows], left.known[rows]
    )


def _within(distribution: Quantities, left: Range, member: Tensor, uniform: np.ndarray, best: bool) -> np.ndarray:
    """Draws from the part of each cell's distribution that lies within its limits, of one member each; or the means of
    these parts."""
    low, high = (torch.tensor(x, dtype=torch.float32) for x in (left.low, left.high))

    def quantile(of: Quantities, u: Tensor | float) -> np.ndarray:
        a, b = of.shares_at(low)[0], of.shares_at(high)[1]
        return of.quantile(a + (b - a) * u).double().numpy()

    if best:
        out = np.mean([quantile(distribution, (k + 0.5) / STEPS) for k in range(STEPS)], axis=0)
    else:
        out, u = np.zeros(len(left.low)), torch.tensor(uniform[:, 2], dtype=torch.float32)
        for m in torch.unique(member).tolist():
            here = (member == m).numpy()
            out[here] = quantile(distribution.of_member(m), u)[here]
    return np.clip(out, left.low, left.high)


def _allowed(distribution: Categories, left: Range, member: Tensor, uniform: np.ndarray, best: bool) -> np.ndarray:
    """Draws among the allowed categories, or the likeliest of these."""
    assert left.allowed is not None
    allowed = torch.from_numpy(left.allowed)
    if best:
        probs = distribution.probabilities()[:, : left.allowed.shape[1]]
        return probs.masked_fill(~allowed, -1.0).argmax(-1).double().numpy()
    u = torch.tensor(uniform[:, 2:], dtype=torch.float32)
    return distribution.restricted(allowed).draw(u, member, 1.0)[:, 0].double().numpy()
