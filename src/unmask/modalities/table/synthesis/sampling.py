"""Any-order sampling of new rows, block by block, under limits per cell that truncated distributions meet."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from unmask.core.hashing import Salt, hash_keys, uniform
from unmask.core.inference import inference_mode, on_cores
from unmask.errors import UserError, option
from unmask.modalities.table.distribution.network import ColumnByColumn, RowModel
from unmask.modalities.table.distribution.prediction import Quantities
from unmask.modalities.table.fitting.fitted_table import FittedTable
from unmask.modalities.table.rules.conditions import Limit
from unmask.modalities.table.rules.rules import Range, Rules
from unmask.modalities.table.synthesis.survival_outcome import entries, outcome_design, pair_places, stored_outcome

BLOCK = 1024
"""Rows that share an order of columns: one pattern of visible cells, so the linear part is solved once for all."""


class RowSampler:
    """Draws rows block by block; every cell of a column in one product."""

    def __init__(
        self,
        model: FittedTable,
        limits: dict[int, Limit],
        rules: Rules,
        temperature: float,
        guard: Mapping[int, Limit] | None = None,
    ) -> None:
        self.model, self.rules, self.temperature, self.guard = model, rules, temperature, guard or {}
        assert isinstance(model.table.network, RowModel)
        self.network = model.table.network
        self.codings = model.table.codings
        self.columns = [model.schema.columns[i] for i in model.schema.modelled]
        self.limits = {place: self._own_limit(place) for place in range(len(self.codings))}
        self.formulas = rules.formulas
        self.fillers = {p: self._filler(*c.structural) for p, c in enumerate(self.columns) if c.structural is not None}
        computed = rules.computed
        if computed & set(limits):
            name = self.columns[min(computed & set(limits))].name
            raise UserError(f"condition on {name!r}, which is computed", hint="Condition what it is computed from.")
        # A condition on a column that is empty for some asks for the others.
        limits = dict(limits)
        for place in set(limits) & set(self.fillers):
            other, level = self.fillers[place]
            there = Limit(allowed=np.arange(self.codings[other].size) != level)
            limits[other] = limits[other] & there if other in limits else there
        for place, limit in limits.items():
            self.limits[place] = self.limits[place] & limit
            if self.limits[place].empty:
                self._refuse(place)
        self.conditioned = set(limits)
        self.outcome = stored_outcome(model)
        pair = set(pair_places(model)) if self.outcome is not None else set()
        touched = rules.given | set(limits)
        if pair & touched:
            self.outcome = None  # conditioned outcomes are drawn cell by cell, like everything else
            pair = set()
        self.free = [p for p in range(len(self.codings)) if p not in pair | set(self.fillers) | computed]
        self.structural = sorted(set(self.fillers) - computed)

    def _filler(self, name: str, level: str) -> tuple[int, int]:
        """(place of the column, its category) that leave a structural column empty."""
        other = self.model.schema.place(name)
        return other, self.columns[other].categories.index(level)

    def _refuse(self, place: int) -> None:
        column = self.columns[place]
        if place in self.guard:
            raise UserError(
                f"no row can meet the condition on {column.name!r}",
                hint="Values that only a few training rows have are not drawn: "
                f"{option('rare', 'keep')} and {option('extremes', 'keep')} draw them.",
            )
        raise UserError(
            f"no row can meet the condition on {column.name!r}",
            hint=f"Its values go from {column.low} to {column.high}.",
        )

    def _own_limit(self, place: int) -> Limit:
        """What may be drawn of a column without any condition: its range or categories, less what is kept back."""
        own = Limit.of(self.columns[place])
        return own & self.guard[place] if place in self.guard else own

    def sample(self, rows: int, seed: int) -> list[np.ndarray]:
        """Draw rows: the modelled columns, in the form of the codings."""
        out = [np.full(rows, np.nan) for _ in self.codings]

        def fill(block: int) -> None:
            take = np.arange(block * BLOCK, min((block + 1) * BLOCK, rows))
            for place, values in enumerate(self._block(take, block, seed)):
                out[place][take] = values

        with inference_mode(self.network):
            on_cores(fill, range(-(-rows // BLOCK)))
        return out

    def _block(self, rows: np.ndarray, block: int, seed: int) -> list[np.ndarray]:
        n, columns = len(rows), len(self.codings)
        member = int(hash_keys(seed, block, Salt.SYNTHETIC_MEMBER) % np.uint64(self.network.codec.members))
        state = self.network.column_by_column(n, member)
        values = [np.full(n, np.nan) for _ in range(columns)]
        # Columns under a condition come first: what follows is then drawn given that it holds.
        key = hash_keys(seed, block, np.array(self.free), Salt.SYNTHETIC_COLUMN_ORDER)
        bound = [p in self.conditioned for p in self.free]
        order = [self.free[k] for k in np.lexsort((key, ~np.array(bound)))]
        for place in order:
            self._draw(state, values, place, rows, seed)
        self._compute(values)  # computed columns are covariates of the outcome too
        if self.outcome is not None:
            self._draw_outcome(state, values, rows, seed)
        for place in self.structural:
            other, level = self.fillers[place]
            self._draw(state, values, place, rows, seed)
            values[place] = np.where(values[other] == level, np.nan, values[place])
        self._compute(values)
        return values

    def _compute(self, values: list[np.ndarray]) -> None:
        """Columns with a formula, from what is drawn so far; in place."""
        for rule in self.formulas:
            assert rule.formula is not None
            with np.errstate(all="ignore"):
                found = rule.formula({c: values[c] for c in rule.columns})
                values[rule.columns[0]] = self.rules.rounded(rule.columns[0], found)

    def _left(self, place: int, values: list[np.ndarray]) -> Range:
        """What conditions, and rules with what is drawn so far, leave the cells of a column.

        Raises:
            UserError: nothing, in some rows.
        """
        rows, own = len(values[0]), self.limits[place]
        if place in self.rules.touched:
            left = self.rules.limits(place, {p: values[p] for p in self.rules.touched}, self.limits)
        else:
            left = Range(
                low=np.full(rows, own.low),
                high=np.full(rows, own.high),
                allowed=None if own.allowed is None else np.tile(own.allowed, (rows, 1)),
                known=np.zeros(rows, bool),
            )
        if left.dead.any():
            names = ", ".join(r.text for r in self.rules.all if place in r.columns) or "the condition"
            raise UserError(
                f"{names}: nothing is left for {self.columns[place].name!r} in {int(left.dead.sum())} rows",
                hint="The conditions and constraints contradict each other.",
            )
        return left

    def _draw(self, state: ColumnByColumn, values: list[np.ndarray], place: int, rows: np.ndarray, seed: int) -> None:
        """Draw a column given those drawn before it, within what is left for it; in place."""
        left = self._left(place, values)
        salts = (Salt.SYNTHETIC_CELL, Salt.SYNTHETIC_CELL_WITHIN)
        u = torch.tensor(np.stack([uniform(seed, rows, place, salt) for salt in salts], -1), dtype=torch.float32)
        distribution = state.predict(place)
        if isinstance(distribution, Quantities):
            values[place] = self._quantity(distribution, place, u, left)
        else:
            assert left.allowed is not None
            allowed = distribution.restricted(torch.from_numpy(left.allowed))
            only = torch.zeros(len(rows), dtype=torch.long)
            values[place] = allowed.draw(u, only, self.temperature)[:, 0].double().numpy()
        self._show(state, values, place)

    def _show(self, state: ColumnByColumn, values: list[np.ndarray], place: int) -> None:
        number, score = self.codings[place].encode(values[place])
        state.show(place, torch.from_numpy(number), torch.tensor(score, dtype=torch.float32))

    def _quantity(self, distribution: Quantities, place: int, u: Tensor, left: Range) -> np.ndarray:
        scale, own = self.codings[place].scale, self._own_limit(place)
        assert scale is not None
        # The column's own limits are met by rounding: only tighter ones truncate the distribution.
        tighter = (left.low > own.low).any() or (left.high < own.high).any()
        low, high = (
            torch.tensor(scale.score_at(end) if tighter else np.full(len(end), far), dtype=torch.float32)
            for end, far in ((left.low, -np.inf), (left.high, np.inf))
        )
        atoms = (scale.value >= left.low[:, None]) & (scale.value <= left.high[:, None])
        drawn = distribution.truncated(low, high, torch.from_numpy(atoms), temperature=self.temperature).draw(u)
        x = scale.decode(drawn[:, 0].long().numpy(), drawn[:, 1].double().numpy())
        return self.rules.rounded(place, x, left.low, left.high)

    def _draw_outcome(self, state: ColumnByColumn, values: list[np.ndarray], rows: np.ndarray, seed: int) -> None:
        assert self.outcome is not None
        time, event = pair_places(self.model)
        later = (Salt.SYNTHETIC_LATER_CAUSES + k for k in range(len(self.outcome.causes) - 1))
        # The first two numbers have the salts they had when there was one cause.
        salts = (Salt.SYNTHETIC_TIME, Salt.SYNTHETIC_CAUSE, *later)
        u = np.stack([uniform(seed, rows, salt) for salt in salts], -1)
        design, entry = outcome_design(self.model, values), entries(self.model, values)
        # A formula without a result (a division by 0, a column that is empty in this row) tells nothing of the outcome.
        design = np.where(np.isfinite(design), design, self.outcome.center)
        values[time], values[event] = self.outcome.draw(design, u, entry)
        if time in self.guard:  # follow-up beyond the last time that several have ends there, without an event
            late = (values[time] > self.guard[time].high) & bool(len(self.outcome.censoring.at))  # someone was censored
            values[event] = np.where(late, 0.0, values[event])
            values[time] = np.clip(values[time], self.guard[time].low, self.guard[time].high)
        for place in (time, event):
            self._show(state, values, place)
