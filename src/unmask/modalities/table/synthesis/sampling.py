"""Any-order sampling of new rows, block by block, under limits per cell that are met by masking logits.

Shape letters: rows (of a block), columns, dims.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.core.hashing import Salt, hash_keys, uniform
from unmask.core.inference import inference_mode, on_cores
from unmask.errors import UserError
from unmask.modalities.table.distribution.prediction import BACKGROUND, pick
from unmask.modalities.table.fitting.fitted_table import FittedTable
from unmask.modalities.table.rules.conditions import Limit
from unmask.modalities.table.rules.rules import Rules
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
        self.network: Any = model.table.network
        self.codings = model.table.codings
        self.columns = [model.schema.columns[i] for i in model.schema.modelled]
        self.limits = {place: self._bounds(place) for place in range(len(self.codings))}
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
                hint="Values that only a few training rows have are not drawn: rare='keep', extremes='keep' (--rare keep, "
                "--extremes keep) draw them.",
            )
        raise UserError(
            f"no row can meet the condition on {column.name!r}",
            hint=f"Its values go from {column.low} to {column.high}.",
        )

    def _bounds(self, place: int) -> Limit:
        column, coding = self.columns[place], self.codings[place]
        if coding.scale is None:
            own = Limit(allowed=np.ones(coding.size, bool))
        else:
            low, high = (
                -math.inf if column.low is None else column.low,
                math.inf if column.high is None else column.high,
            )
            own = Limit(low=low, high=high)
        return own & self.guard[place] if place in self.guard else own

    def sample(self, rows: int, seed: int) -> list[np.ndarray]:
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
        state = BlockState(self.network, n, columns, member)
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

    def _limits(self, place: int, values: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Per row: lowest and highest value, or (rows, categories) booleans; from conditions and what is drawn so far."""
        n, own = len(values[0]), self.limits[place]
        if place not in self.rules.touched:
            allowed = None if own.allowed is None else np.tile(own.allowed, (n, 1))
            return np.full(n, own.low), np.full(n, own.high), allowed
        left = self.rules.limits(place, {p: values[p] for p in self.rules.touched}, self.limits)
        return left.low, left.high, left.allowed

    def _draw(self, state: BlockState, values: list[np.ndarray], place: int, rows: np.ndarray, seed: int) -> None:
        low, high, allowed = self._limits(place, values)
        dead = (low > high) if allowed is None else ~allowed.any(1)
        if dead.any():
            names = ", ".join(r.text for r in self.rules.all if place in r.columns) or "the condition"
            raise UserError(
                f"{names}: nothing is left for {self.columns[place].name!r} in {int(dead.sum())} rows",
                hint="The conditions and constraints contradict each other.",
            )
        u = np.stack(
            [uniform(seed, rows, place, salt) for salt in (Salt.SYNTHETIC_CELL, Salt.SYNTHETIC_CELL_WITHIN)], -1
        )
        if self.codings[place].scale is None:
            assert allowed is not None
            number = state.categories(
                place, torch.tensor(u[:, 0], dtype=torch.float32), torch.from_numpy(allowed), self.temperature
            )
            values[place] = number.numpy().astype(np.float64)
            state.show(place, number, torch.zeros(len(rows)))
            return
        x = self._quantity(state, place, u, low, high)
        values[place] = x
        scale = self.codings[place].scale
        assert scale is not None
        number_, score = scale.encode(x)
        state.show(place, torch.from_numpy(number_), torch.tensor(score, dtype=torch.float32))

    def _quantity(self, state: BlockState, place: int, u: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        scale = self.codings[place].scale
        assert scale is not None
        bounds = self._bounds(place)
        ends: list[torch.Tensor | None] = [None, None]
        if (low > bounds.low).any() or (high < bounds.high).any():
            ends = [torch.tensor(_score(scale, v), dtype=torch.float32) for v in (low, high)]
        atoms = torch.from_numpy((scale.value[None] >= low[:, None]) & (scale.value[None] <= high[:, None]))
        number, score = state.quantity(
            place, torch.tensor(u, dtype=torch.float32), ends[0], ends[1], atoms, self.temperature
        )
        x = scale.decode(number.numpy(), score.double().numpy())
        return self.rules.rounded(place, x, low, high)

    def _draw_outcome(self, state: BlockState, values: list[np.ndarray], rows: np.ndarray, seed: int) -> None:
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
            number, score = self.codings[place].encode(values[place])
            state.show(place, torch.from_numpy(number), torch.tensor(score, dtype=torch.float32))


def _score(scale: Any, x: np.ndarray) -> np.ndarray:
    """The normal score below which the values below x lie, for bounds; far out beyond the data."""
    from scipy.special import ndtri

    u = np.interp(x, scale.knot_x, scale.knot_u, left=0.0, right=1.0)
    return np.clip(ndtri(u), -30, 30)


class BlockState:
    """What one member of the network knows of a block of rows while columns are drawn one by one.

    All rows see the same columns, so the linear part is one small solve; the first layer's sum is updated by the one
    column that was drawn, not computed anew (30 columns: a sixth of the work).
    """

    def __init__(self, network: Any, rows: int, columns: int, member: int) -> None:
        self.network, self.member, self.rows = network, member, rows
        codec, trunk = network.codec, network.encoder
        self.width = slice(member * codec.width, (member + 1) * codec.width)
        self.shown = torch.zeros(columns, dtype=torch.bool)
        cell = trunk.config.cell
        enter = trunk.enter[member].view(columns, cell, -1)
        first = torch.einsum("cw,cwh->h", codec.masked[:, self.width], enter) + trunk.enter_bias[member]
        self.sum = first.expand(rows, -1).clone()
        self.guess = torch.zeros((rows, columns))
        self.guess_weight = torch.einsum("cw,cwh->ch", codec.slope[:, self.width], enter)
        """What one unit of a column's guess adds to the first layer."""
        base = network.base
        if base is not None:
            self.scaled = base.loading / base.noise[:, None]
            self.precision = torch.eye(base.factors)
            self.evidence = torch.zeros((rows, base.factors))
            dim = network.dims.of_quantity
            self.guess_loading = base.loading[dim].t() * network.dims.scale[dim] * codec.is_quantity
            self.guess_center = network.dims.center[dim] * codec.is_quantity
        self.linear = self._solve()
        if network.additive is not None:
            self.lift = network.additive.hidden().expand(rows, -1).clone()

    def _solve(self) -> tuple[Tensor, Tensor] | None:
        """Mean (rows, dims) and variance (1, dims) of the linear part; updates the guesses the network is shown."""
        base = self.network.base
        if base is None:
            return None
        spread = torch.cholesky_inverse(torch.linalg.cholesky(self.precision))
        factor = self.evidence @ spread
        variance = ((base.loading @ spread) * base.loading).sum(-1) + base.noise
        guess = (factor @ self.guess_loading + self.guess_center) * ~self.shown
        self.sum += (guess - self.guess) @ self.guess_weight
        self.guess = guess
        return factor @ base.loading.t(), variance[None].expand(self.rows, -1)

    def show(self, column: int, number: Tensor, score: Tensor) -> None:
        """A drawn column becomes visible."""
        codec, trunk, base = self.network.codec, self.network.encoder, self.network.base
        slope = codec.slope[column, self.width]
        new = codec.embedding[codec.offset[column] + number][:, self.width] + score[:, None] * slope
        old = codec.masked[column, self.width] + self.guess[:, column, None] * slope
        self.sum += trunk.enter_part(new - old, column, self.member)
        self.guess[:, column] = 0.0
        self.shown[column] = True
        if base is not None:
            dims = (self.network.dims.column == column).nonzero().flatten()
            x = self.network.dims.standardised(dims, number, score)
            self.evidence += x @ self.scaled[dims]
            self.precision = self.precision + self.scaled[dims].t() @ base.loading[dims]
        self.linear = self._solve()
        if self.network.additive is not None:
            self.lift += self.network.additive.shown(column, number)

    def _raw(self, column: int) -> tuple[Tensor, int, int]:
        codec, trunk = self.network.codec, self.network.encoder
        h = trunk.finish(self.sum[None], slice(self.member, self.member + 1))[0]
        block, place = int(codec.block_of[column]), int(codec.place_of[column])
        each = codec.blocks[block].size + 2 * codec.blocks[block].quantity
        at = slice(place * each, (place + 1) * each)
        raw = h @ codec.head[block][self.member][:, at] + codec.head_bias[block][self.member, :, at]
        if self.network.additive is not None:
            rows = torch.arange(self.rows)
            raw = self.network.lifted(raw, block, rows, torch.full_like(rows, place), self.lift)
        return raw, block, place

    def categories(self, column: int, u: Tensor, allowed: Tensor, temperature: float) -> Tensor:
        raw, block, place = self._raw(column)
        codec = self.network.codec
        size = codec.codings[column].size
        here = torch.full((self.rows,), place)
        if self.linear is None:
            share = getattr(codec, f"share{block}")[here]
        else:
            share = self.network.shares(block, self.linear, torch.arange(self.rows), here)
        logits = (raw + share.clamp_min(1e-9).log())[:, :size] / temperature
        return pick(logits.masked_fill(~allowed, -torch.inf).log_softmax(-1), u)

    def quantity(
        self, column: int, u: Tensor, low: Tensor | None, high: Tensor | None, atoms: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """(bin, score) within [low, high] on the score scale; masked in the logits, so nothing is ever rejected."""
        raw, _, place = self._raw(column)
        grid, size = self.network.codec.grid, self.network.codec.codings[column].size
        row, where = torch.arange(self.rows), torch.full((self.rows,), column)
        if self.linear is None:
            location, deviation = torch.zeros(self.rows), torch.ones(self.rows)
        else:
            location, deviation = self.network.dims.normal(*self.linear, row, where)
        location = location + deviation * raw[:, -2]
        deviation = deviation * raw[:, -1].clamp(-3, 3).exp() * math.sqrt(temperature)
        whole = grid.edge[place, : size + 1].expand(self.rows, -1)
        atom = grid.atom[place, :size]
        edge, broad = whole, torch.special.ndtr(whole[:1]).expand(self.rows, -1)
        cdf = torch.special.ndtr((whole - location[:, None]) / deviation[:, None])
        full = cdf.diff(dim=-1)
        if low is not None and high is not None:
            edge = torch.minimum(torch.maximum(whole, low[:, None]), high[:, None])
            cdf = torch.special.ndtr((edge - location[:, None]) / deviation[:, None])
            broad = torch.special.ndtr(edge)
        mass = (1 - BACKGROUND) * torch.where(atom, full, cdf.diff(dim=-1)) + BACKGROUND * torch.where(
            atom, grid.mass[place, :size], broad.diff(dim=-1)
        )
        mass = torch.where(atom & ~atoms[:, :size], 0.0, mass)
        logits = mass.clamp_min(1e-30).log() + raw[:, :size] / temperature
        logits = logits.masked_fill(mass <= 0, -torch.inf)
        stuck = torch.isinf(logits).all(-1)
        logits[stuck] = 0.0
        number = pick(logits.log_softmax(-1), u[:, 0])
        a, b = (cdf.gather(1, (number + i)[:, None])[:, 0] for i in (0, 1))
        normal = b - a > 1e-5
        a0, b0 = (broad.gather(1, (number + i)[:, None])[:, 0] for i in (0, 1))
        p = torch.where(normal, a + (b - a) * u[:, 1], a0 + (b0 - a0) * u[:, 1]).clamp(1e-6, 1 - 1e-6)
        z = torch.where(normal, location + deviation * torch.special.ndtri(p), torch.special.ndtri(p))
        left, right = (edge.gather(1, (number + i)[:, None])[:, 0] for i in (0, 1))
        z = torch.minimum(torch.maximum(z, left), right)
        return number, torch.where(atom[number], grid.score[place, number], z)
