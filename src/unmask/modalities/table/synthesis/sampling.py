"""Any-order sampling of new rows, block by block, under limits per cell that truncated distributions meet.

Rows drawn cell by cell within limits are not distributed as they should be: an early cell is drawn without regard to
how improbable it makes the limits of later cells. So every row has a weight, the product over its cells of the
probability of lying within the limits, and is accepted in proportion to it. The accepted rows are distributed like the
model's own rows after those that break a limit are discarded.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from unmask.core.hashing import Salt, hash_keys, uniform
from unmask.core.inference import inference_mode
from unmask.errors import UserError, option
from unmask.kernels.threads import on_cores
from unmask.modalities.table.distribution.network import ColumnByColumn, RowModel
from unmask.modalities.table.distribution.prediction import Quantities, TruncatedQuantities
from unmask.modalities.table.fitting.cell_table import FittedTable
from unmask.modalities.table.rules.conditions import Limit
from unmask.modalities.table.rules.rules import Range, Rules
from unmask.modalities.table.synthesis.survival_outcome import entries, outcome_design, pair_places, stored_outcome

ATTEMPTS = 64
"""Rows drawn at most for each that is wanted, and for 1024 more."""
FEWEST_EFFECTIVE = 20
"""Rows that the weights of all drawn rows must be worth for any to be handed out."""
BLOCK = 256
"""Rows that share an order of columns (one pattern of visible cells, so the linear part is solved once for all) and a
member: members take turns, so that 1 000 rows are of all four."""


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
        self.fillers = model.schema.emptied_by
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
        self.outcome = stored_outcome(model)
        pair = set(pair_places(model)) if self.outcome is not None else set()
        touched = rules.given | set(limits)
        if pair & touched:
            self.outcome = None  # conditioned outcomes are drawn cell by cell, like everything else
            pair = set()
        self.free = [p for p in range(len(self.codings)) if p not in pair | set(self.fillers) | computed]
        self.structural = sorted(set(self.fillers) - computed)
        between = (r for r in rules.all if r.kind != "formula" and not (r.implied and self.outcome is not None))
        self.bound = set(limits) | {place for rule in between for place in rule.columns}
        """Columns under a condition or under a rule with another: one alone needs no weights."""
        self.warnings: list[str] = []

    def _refuse(self, place: int) -> None:
        column, draws = self.columns[place], f"{option('rare', 'keep')} and {option('extremes', 'keep')} draw them."
        hint = f"Its values go from {column.low} to {column.high}."
        if place in self.guard:
            hint = f"Values that only a few training rows have are not drawn: {draws}"
        raise UserError(f"no row can meet the condition on {column.name!r}", hint=hint)

    def _own_limit(self, place: int) -> Limit:
        """What may be drawn of a column without any condition: its range or categories, less what is kept back."""
        own = Limit.of(self.columns[place])
        return own & self.guard[place] if place in self.guard else own

    def sample(self, rows: int, seed: int) -> list[np.ndarray]:
        """Draw rows: the modelled columns, in the form of the codings. Warnings are added to `warnings`."""
        if len(self.bound) < 2:
            return self._drawn(0, rows, seed)[0]
        blocks, most = -(-rows // BLOCK), ATTEMPTS * (1024 + rows) // BLOCK
        values, log_weight = self._drawn(0, blocks * BLOCK, seed)
        while True:
            drawn = len(log_weight)
            if not np.isfinite(log_weight.max()):
                raise UserError(
                    f"{', '.join(r.text for r in self.rules.all) or 'the conditions'}: nothing is left in {drawn} rows",
                    hint="The conditions and constraints contradict each other.",
                )
            weight = np.exp(log_weight - log_weight.max())
            accepted = np.flatnonzero(uniform(seed, np.arange(drawn), Salt.SYNTHETIC_ACCEPTED) < weight)
            if len(accepted) >= rows or blocks >= most:
                break
            wanted = int(1.2 * blocks * rows / max(weight.sum(), 1.0)) + 1
            more = min(max(wanted, blocks + 1), most)
            new, log_new = self._drawn(blocks, more * BLOCK, seed)
            values = [np.concatenate(both) for both in zip(values, new, strict=True)]
            log_weight, blocks = np.concatenate([log_weight, log_new]), more
        if len(accepted) < rows:
            accepted = self._resampled(weight, rows, seed)
        return [x[accepted[:rows]] for x in values]

    def _resampled(self, weight: np.ndarray, rows: int, seed: int) -> np.ndarray:
        """Which of the drawn rows stand for as many as are wanted, some of them several times."""
        effective = float(weight.sum() ** 2 / (weight**2).sum())
        what = f"of {len(weight)} rows drawn under the conditions and rules, weighed by how probable they are together"
        if effective < FEWEST_EFFECTIVE:
            raise UserError(
                f"{what}, {effective:.0f} count: the model cannot draw such rows", hint="Loosen a condition or a rule."
            )
        self.warnings.append(f"{what}, {effective:.0f} count: of the {rows} rows some are drawn from the same one")
        start = float(uniform(seed, np.array([0]), Salt.SYNTHETIC_ACCEPTED)[0])
        at = (start + np.arange(rows)) / rows * weight.sum()
        return np.minimum(np.searchsorted(weight.cumsum(), at), len(weight) - 1)

    def _drawn(self, first: int, rows: int, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
        """The rows from a block on, and the logarithms of their weights.

        Args:
            first: block to begin with.
            rows: to which row, not counting it.
        """
        start = first * BLOCK
        out, log_weight = [np.full(rows - start, np.nan) for _ in self.codings], np.zeros(rows - start)

        def fill(block: int) -> None:
            take = np.arange(block * BLOCK, min((block + 1) * BLOCK, rows))
            values, log_weight[take - start] = self._block(take, block, seed)
            for place, x in enumerate(values):
                out[place][take - start] = x

        with inference_mode(self.network):
            on_cores(fill, range(first, -(-rows // BLOCK)))
        return out, log_weight

    def _block(self, rows: np.ndarray, block: int, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
        n, columns = len(rows), len(self.codings)
        turn = hash_keys(seed, Salt.SYNTHETIC_MEMBER) % np.uint64(self.network.codec.members)
        member = (block + int(turn)) % self.network.codec.members
        state = self.network.column_by_column(n, member)
        values = [np.full(n, np.nan) for _ in range(columns)]
        log_weight = np.zeros(n)
        # Columns under conditions and rules come first: what follows is then drawn given that they hold. The others by
        # how many holes they have: of a column given another, rows that lack the other tell nothing.
        key = hash_keys(seed, block, np.array(self.free), Salt.SYNTHETIC_COLUMN_ORDER)
        bound = [p in self.bound for p in self.free]
        holes = self.model.extra["holes"].mean(0)[self.free]
        order = [self.free[k] for k in np.lexsort((key, holes, ~np.array(bound)))]
        for place in order:
            log_weight += self._draw(state, values, place, rows, seed)
        self._compute(values)  # computed columns are covariates of the outcome too
        if self.outcome is not None:
            self._draw_outcome(state, values, rows, seed)
        for place in self.structural:
            other, level = self.fillers[place]
            share = self._draw(state, values, place, rows, seed)
            there = values[other] != level
            log_weight += np.where(there, share, 0.0)
            values[place] = np.where(there, values[place], np.nan)
        self._compute(values)
        return values, log_weight

    def _compute(self, values: list[np.ndarray]) -> None:
        """Columns with a formula, from what is drawn so far; in place."""
        for rule in self.formulas:
            assert rule.formula is not None
            with np.errstate(all="ignore"):
                found = rule.formula({c: values[c] for c in rule.columns})
                values[rule.columns[0]] = self.rules.rounded(rule.columns[0], found)

    def _draw(
        self, state: ColumnByColumn, values: list[np.ndarray], place: int, rows: np.ndarray, seed: int
    ) -> np.ndarray:
        """Draw a column given those drawn before it, within what is left for it; in place.

        Returns:
            The logarithm of the share of each cell's distribution that is left; 0 where no weights are needed.
        """
        # What conditions, and rules with what is drawn so far, leave.
        left = self.rules.limits(place, dict(enumerate(values)), self.limits)
        dead = left.dead
        if dead.any():  # what is drawn there has no weight
            own = self._own_limit(place)
            left.low, left.high = np.where(dead, own.low, left.low), np.where(dead, own.high, left.high)
            left.allowed = None if left.allowed is None else left.allowed | dead[:, None]
        salts = (Salt.SYNTHETIC_CELL, Salt.SYNTHETIC_CELL_WITHIN)
        u = torch.tensor(np.stack([uniform(seed, rows, place, salt) for salt in salts], -1), dtype=torch.float32)
        distribution = state.predict(place, nothing_known=all(np.isnan(x).all() for x in values))
        if isinstance(distribution, Quantities):
            values[place], share = self._quantity(distribution, place, u, left)
        else:
            assert left.allowed is not None
            allowed = distribution.restricted(torch.from_numpy(left.allowed))
            only = torch.zeros(len(rows), dtype=torch.long)
            values[place] = allowed.draw(u, only, self.temperature)[:, 0].double().numpy()
            every = self._own_limit(place).allowed
            assert every is not None
            both = left.allowed, every[None]
            shares = [distribution.log_share(torch.from_numpy(a), self.temperature) for a in both]
            share = (shares[0] - shares[1]).double().numpy()
        self._show(state, values, place)
        return np.where(dead, -np.inf, share) if place in self.bound and len(self.bound) > 1 else np.zeros(len(rows))

    def _show(self, state: ColumnByColumn, values: list[np.ndarray], place: int) -> None:
        number, score = self.codings[place].encode(values[place])
        state.show(place, torch.from_numpy(number), torch.tensor(score, dtype=torch.float32))

    def _quantity(self, distribution: Quantities, place: int, u: Tensor, left: Range) -> tuple[np.ndarray, np.ndarray]:
        """Values of a quantity, and the logarithm of the share that its limits leave of it."""
        scale, own, column = self.codings[place].scale, self._own_limit(place), self.columns[place]
        assert scale is not None
        half = 0.5 * 10.0**-column.decimals if column.decimals is not None else 0.0  # rounded to a value within

        def within(low: np.ndarray, high: np.ndarray) -> TruncatedQuantities:
            # The column's own limits are met by rounding: only tighter ones truncate the distribution.
            ends = np.where(low > own.low, low - half, -np.inf), np.where(high < own.high, high + half, np.inf)
            scores = (np.where(np.isinf(end), end, scale.score_at(end)) for end in ends)
            atoms = (scale.value >= low[:, None]) & (scale.value <= high[:, None])
            at = [torch.tensor(s, dtype=torch.float32) for s in scores]
            return distribution.truncated(at[0], at[1], torch.from_numpy(atoms), temperature=self.temperature)

        part, share = within(left.low, left.high), np.zeros(len(left.low))
        if place in self.bound and len(self.bound) > 1:
            whole = within(np.full_like(left.low, own.low), np.full_like(left.high, own.high))
            share = (part.logits.logsumexp(-1) - whole.logits.logsumexp(-1)).double().numpy()
        drawn = part.draw(u)
        x = scale.decode(drawn[:, 0].long().numpy(), drawn[:, 1].double().numpy())
        return self.rules.rounded(place, x, left.low, left.high), share

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
