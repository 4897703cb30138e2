"""New rows: any-order sampling from nothing, under conditions and constraints, with the outcome last.

Every column is drawn given those drawn before it (the chain rule along a random order, one order a block of rows), so
the joint structure is kept; filling all columns at once would lose it. Follow-up time and event come from proportional
hazards given the covariates (`survival.Outcome`), so that hazard ratios and Kaplan-Meier curves carry over.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from unmask.core.corruption import mix, uniform
from unmask.core.inference import at_rest
from unmask.errors import UserError
from unmask.table.conditions import Constraint, Limit, parse_constraints, parse_where
from unmask.table.data import decode, encode, read_frame
from unmask.table.network import RowModel
from unmask.table.prediction import BACKGROUND, pick
from unmask.table.survival import Baseline, Outcome, fit_outcome

if TYPE_CHECKING:
    from unmask.table.model import TableModel

BLOCK = 512
"""Rows that share an order of columns: one pattern of visible cells, so the linear part is solved once for all."""
LEVELS = 20
"""A category with more levels than this is left out of the outcome's regression."""


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """New rows as a table, as plain arrays per modelled column, and what should be said of them."""

    table: Any
    columns: list[np.ndarray]
    warnings: list[str]


def outcome_design(model: TableModel, columns: Sequence[np.ndarray]) -> np.ndarray:
    """Complete covariates as regressors: quantities as they are, an indicator for every category but the first."""
    parts = [np.zeros((len(columns[0]), 0))]
    for place in covariates(model):
        x, column = columns[place], model.schema.columns[model.schema.modelled[place]]
        if column.is_quantity:
            parts.append(x[:, None])
        elif len(column.categories) <= LEVELS:
            parts.append((x[:, None] == np.arange(1, len(column.categories))).astype(float))
    return np.hstack(parts)


def covariates(model: TableModel) -> list[int]:
    """Places among the modelled columns of what explains the outcome: all but the pair and structural columns."""
    schema = model.schema
    return [
        place for place, i in enumerate(schema.modelled)
        if schema.columns[i].name not in (schema.duration, schema.event) and schema.columns[i].structural is None
    ]  # fmt: skip


def learn_outcome(model: TableModel, columns: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Fit the outcome of new rows on the training rows, missing covariates drawn; as arrays to be saved."""
    time, event = pair_places(model)
    known = ~np.isnan(columns[time]) & ~np.isnan(columns[event])
    if known.sum() < 10 or not covariates(model) or not (columns[event][known] > 0).any():
        return {}
    complete = model.table.draw(columns, seed=model.table.settings.train.seed)
    found = fit_outcome(
        outcome_design(model, complete)[known], columns[time][known], columns[event][known], ridge=1.0
    )  # fmt: skip
    out = {"outcome.center": found.center, "outcome.scale": found.scale, "outcome.end": np.array([found.end])}
    for name, base in (("event", found.event), ("censoring", found.censoring)):
        out |= {f"outcome.{name}.{k}": getattr(base, k) for k in ("beta", "at", "hazard")}
    return out


def pair_places(model: TableModel) -> tuple[int, int]:
    schema = model.schema
    assert schema.duration is not None
    assert schema.event is not None
    return (
        schema.modelled.index(schema.number(schema.duration)), schema.modelled.index(schema.number(schema.event))
    )  # fmt: skip


def _outcome(model: TableModel) -> Outcome | None:
    if "outcome.end" not in model.extra:
        return None
    bases = {
        name: Baseline(**{k: model.extra[f"outcome.{name}.{k}"] for k in ("beta", "at", "hazard")})
        for name in ("event", "censoring")
    }
    return Outcome(
        **bases, center=model.extra["outcome.center"], scale=model.extra["outcome.scale"],
        end=float(model.extra["outcome.end"][0]),
    )  # fmt: skip


def synthesize(
    model: TableModel,
    rows: int,
    *,
    where: Sequence[str] | str | Mapping[str, object] | None = None,
    constraints: Sequence[str] = (),
    seed: int = 0,
    temperature: float = 1.0,
    missing: bool = False,
) -> Synthetic:
    """Draw new rows.

    Args:
        where: conditions every row meets exactly, e.g. "sex == 0 and age >= 70".
        constraints: rules every row meets: "dbp < sbp", "pregnant == 1 -> sex == 'F'", "bmi := weight / height**2".
        temperature: below 1 keeps to the common, above 1 spreads.
        missing: leave cells empty as often, and in the patterns in which, the training table does.

    Raises:
        UserError: a condition on what is not there, or that no row can meet.
    """
    if rows < 1:
        raise UserError(f"rows={rows}", hint="Expected at least 1.")
    if not isinstance(model.table.network, RowModel):
        raise UserError(
            f"recipe {model.table.settings.recipe!r} does not synthesise", hint="Fit with the recipe 'masked'."
        )
    limits = {model.schema.modelled.index(i): v for i, v in parse_where(where, model.schema).items()}
    rules = [_placed(r, model) for r in parse_constraints(constraints, model.schema)]
    said = support_warnings(model, limits)
    sampler = RowSampler(model, limits, rules, temperature)
    values = sampler.sample(rows, seed)
    drawn = {}
    for place, i in enumerate(model.schema.modelled):
        column = model.schema.columns[i]
        drawn[i] = decode(values[place], column)
    if missing:
        _punch(model, drawn, seed)
    for text in said:
        warnings.warn(text, stacklevel=3)
    return Synthetic(table=model.wrap(drawn), columns=values, warnings=said)


def _placed(rule: Constraint, model: TableModel) -> Constraint:
    """A rule with places among the modelled columns instead of numbers in the schema."""
    from dataclasses import replace

    places = tuple(model.schema.modelled.index(c) for c in rule.columns)
    if rule.formula is None:
        return replace(rule, columns=places)
    formula, numbers = rule.formula, rule.columns
    return replace(
        rule, columns=places, formula=lambda v: formula(dict(zip(numbers, [v[p] for p in places], strict=True)))
    )


def support_warnings(model: TableModel, limits: dict[int, Limit]) -> list[str]:
    """What the training data cannot back: a condition met by few or none of the rows, by the columns' own shares."""
    said = []
    for place, limit in limits.items():
        column, coding = model.schema.columns[model.schema.modelled[place]], model.table.codings[place]
        if coding.scale is not None:
            ends = np.interp([limit.low, limit.high], coding.scale.knot_x, coding.scale.knot_u, left=0.0, right=1.0)
            share = float(ends[1] - ends[0])
            atoms = coding.scale.value[coding.scale.atom]
            share = max(share, float(np.diff(coding.scale.edge)[coding.scale.atom][limit.holds(atoms)].sum()))
        else:
            assert limit.allowed is not None
            share = float(np.array(coding.share)[limit.allowed].sum())
        met = share * model.facts["rows"]
        if met < 20:
            said.append(
                f"about {met:.0f} of {model.facts['rows']} training rows meet the condition on {column.name!r}: what is "
                "drawn there is extrapolation"
            )
    if len(limits) > 1 and not said and "support" in model.extra:
        pass
    return said


class RowSampler:
    """Draws rows block by block; every cell of a column in one product."""

    def __init__(
        self, model: TableModel, limits: dict[int, Limit], rules: list[Constraint], temperature: float
    ) -> None:
        self.model, self.rules, self.temperature = model, rules, temperature
        self.network: Any = model.table.network
        self.codings = model.table.codings
        self.columns = [model.schema.columns[i] for i in model.schema.modelled]
        self.limits = {place: self._bounds(place) for place in range(len(self.codings))}
        for place, limit in limits.items():
            self.limits[place] = self.limits[place] & limit
            if self.limits[place].empty:
                column = self.columns[place]
                raise UserError(
                    f"no row can meet the condition on {column.name!r}",
                    hint=f"Its values go from {column.low} to {column.high}.",
                )
        self.outcome = _outcome(model)
        pair = set(pair_places(model)) if self.outcome is not None else set()
        touched = {c for r in rules for c in r.columns} | set(limits)
        if pair & touched:
            self.outcome = None  # conditioned outcomes are drawn cell by cell, like everything else
            pair = set()
        structural = {p for p, c in enumerate(self.columns) if c.structural is not None}
        computed = {r.columns[0] for r in rules if r.kind == "formula"}
        self.free = [p for p in range(len(self.codings)) if p not in pair | structural | computed]
        self.pair, self.structural = sorted(pair), sorted(structural - computed)

    def _bounds(self, place: int) -> Limit:
        column, coding = self.columns[place], self.codings[place]
        if coding.scale is None:
            return Limit(allowed=np.ones(coding.size, bool))
        return Limit(
            low=-math.inf if column.low is None else column.low, high=math.inf if column.high is None else column.high
        )

    def sample(self, rows: int, seed: int) -> list[np.ndarray]:
        out = [np.full(rows, np.nan) for _ in self.codings]
        with at_rest(self.network):
            for block, start in enumerate(range(0, rows, BLOCK)):
                take = np.arange(start, min(start + BLOCK, rows))
                for place, values in enumerate(self._block(take, block, seed)):
                    out[place][take] = values
        return out

    def _block(self, rows: np.ndarray, block: int, seed: int) -> list[np.ndarray]:
        n, columns = len(rows), len(self.codings)
        member = int(mix(seed, block, 61) % np.uint64(self.network.codec.members))
        state = _BlockState(self.network, n, columns, member)
        values = [np.full(n, np.nan) for _ in range(columns)]
        # Columns under a condition come first: what follows is then drawn given that it holds.
        key = mix(seed, block, np.array(self.free), 62)
        bound = [p in self._conditioned() for p in self.free]
        order = [self.free[k] for k in np.lexsort((key, ~np.array(bound)))]
        for place in order:
            self._draw(state, values, place, rows, seed)
        if self.outcome is not None:
            self._draw_outcome(state, values, rows, seed)
        for place in self.structural:
            name, level = self.columns[place].structural or ("", "")
            other = self.model.schema.modelled.index(self.model.schema.number(name))
            empty = values[other] == self.columns[other].categories.index(level)
            self._draw(state, values, place, rows, seed)
            values[place] = np.where(empty, np.nan, values[place])
        for rule in self.rules:
            if rule.kind == "formula" and rule.formula is not None:
                with np.errstate(all="ignore"):
                    values[rule.columns[0]] = rule.formula({c: values[c] for c in rule.columns})
        return values

    def _conditioned(self) -> set[int]:
        return {
            p for p, limit in self.limits.items()
            if (limit.allowed is not None and not limit.allowed.all())
            or (limit.allowed is None and limit != self._bounds(p))
        }  # fmt: skip

    def _limits(self, place: int, values: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Per row: lowest and highest value, or (rows, categories) booleans; from conditions and what is drawn so far."""
        n, own = len(values[0]), self.limits[place]
        low, high = np.full(n, own.low), np.full(n, own.high)
        allowed = None if own.allowed is None else np.tile(own.allowed, (n, 1))
        step = self._step(place)
        for rule in self.rules:
            if place not in rule.columns:
                continue
            if rule.kind == "order":
                a, b = rule.columns
                gap = step if rule.strict else 0.0
                if place == a:
                    other = values[b] if not np.isnan(values[b]).all() else np.full(n, self.limits[b].high)
                    high = np.minimum(high, other - gap)
                else:
                    other = values[a] if not np.isnan(values[a]).all() else np.full(n, self.limits[a].low)
                    low = np.maximum(low, other + gap)
            elif rule.kind == "implies":
                low, high, allowed = self._implied(rule, place, values, low, high, allowed)
        return low, high, allowed

    def _implied(
        self, rule: Constraint, place: int, values: list[np.ndarray], low: Any, high: Any, allowed: Any
    ) -> Any:
        """If the premise holds, the conclusion; if the conclusion is already false, not the premise."""
        a, b = rule.columns
        assert rule.premise is not None
        assert rule.conclusion is not None
        if place == b and not np.isnan(values[a]).all():
            active, limit = rule.premise.holds(values[a]), rule.conclusion
        elif place == a and not np.isnan(values[b]).all():
            active, limit = ~rule.conclusion.holds(values[b]), rule.premise.inverse()
        else:
            return low, high, allowed
        if limit is None:
            if active.any():
                raise UserError(
                    f"constraint {rule.text!r}: the premise has no inverse", hint="Use <, >, or categories."
                )
            return low, high, allowed
        if allowed is not None and limit.allowed is not None:
            allowed = np.where(active[:, None], allowed & limit.allowed, allowed)
        return (
            np.where(active, np.maximum(low, limit.low), low),
            np.where(active, np.minimum(high, limit.high), high),
            allowed,
        )

    def _step(self, place: int) -> float:
        decimals = self.columns[place].decimals
        return 10.0**-decimals if decimals is not None else 1e-9

    def _draw(self, state: _BlockState, values: list[np.ndarray], place: int, rows: np.ndarray, seed: int) -> None:
        low, high, allowed = self._limits(place, values)
        dead = (low > high) if allowed is None else ~allowed.any(1)
        if dead.any():
            names = ", ".join(r.text for r in self.rules if place in r.columns) or "the condition"
            raise UserError(
                f"{names}: nothing is left for {self.columns[place].name!r} in {int(dead.sum())} rows",
                hint="The conditions and constraints contradict each other.",
            )
        u = np.stack([uniform(seed, rows, place, 63 + k) for k in range(2)], -1)
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

    def _quantity(self, state: _BlockState, place: int, u: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        scale, column = self.codings[place].scale, self.columns[place]
        assert scale is not None
        bounds = self._bounds(place)
        ends = [None, None]
        if (low > bounds.low).any() or (high < bounds.high).any():
            ends = [torch.tensor(_score(scale, v), dtype=torch.float32) for v in (low, high)]  # type: ignore[list-item]
        atoms = torch.from_numpy((scale.value[None] >= low[:, None]) & (scale.value[None] <= high[:, None]))
        number, score = state.quantity(
            place, torch.tensor(u, dtype=torch.float32), ends[0], ends[1], atoms, self.temperature
        )
        x = scale.decode(number.numpy(), score.double().numpy())
        if column.decimals is not None:
            x = np.round(x, column.decimals)
            step = 10.0**-column.decimals
            with np.errstate(invalid="ignore"):
                inside_low, inside_high = np.ceil(low / step - 1e-9) * step, np.floor(high / step + 1e-9) * step
            x = np.round(np.clip(x, inside_low, np.maximum(inside_low, inside_high)), column.decimals)
        return np.clip(x, low, high)

    def _draw_outcome(self, state: _BlockState, values: list[np.ndarray], rows: np.ndarray, seed: int) -> None:
        assert self.outcome is not None
        time, event = pair_places(self.model)
        u = np.stack([uniform(seed, rows, 66 + k) for k in range(2)], -1)
        values[time], values[event] = self.outcome.draw(outcome_design(self.model, values), u)
        for place in (time, event):
            number, score = self.codings[place].encode(values[place])
            state.show(place, torch.from_numpy(number), torch.tensor(score, dtype=torch.float32))


def _score(scale: Any, x: np.ndarray) -> np.ndarray:
    """The normal score below which the values below x lie, for bounds; far out beyond the data."""
    from scipy.special import ndtri

    u = np.interp(x, scale.knot_x, scale.knot_u, left=0.0, right=1.0)
    return np.clip(ndtri(u), -30, 30)


class _BlockState:
    """What one member of the network knows of a block of rows while columns are drawn one by one.

    All rows see the same columns, so the linear part is one small solve; the first layer's sum is updated by the one
    column that was drawn, not computed anew (30 columns: a sixth of the work).
    """

    def __init__(self, network: Any, rows: int, columns: int, member: int) -> None:
        self.network, self.member, self.rows = network, member, rows
        codec = network.codec
        self.width = slice(member * codec.width, (member + 1) * codec.width)
        self.shown = torch.zeros(columns, dtype=torch.bool)
        self.number = torch.zeros((rows, columns), dtype=torch.long)
        self.score = torch.zeros((rows, columns))
        self.sum = network.encoder.enter_bias[member].expand(rows, -1).clone()
        masked = codec.masked[:, self.width]
        for c in range(columns):
            self.sum += network.encoder.enter_part(masked[c], c, member)
        self.guess = torch.zeros((rows, columns))
        self.linear = self._solve()

    def _solve(self) -> tuple[Tensor, Tensor] | None:
        """Mean (rows, dims) and variance (1, dims) of the linear part; updates the guesses the network is shown."""
        network = self.network
        if network.base is None:
            return None
        x, v = network.dims(self.number, self.score, self.shown.expand(self.rows, -1))
        base = network.base
        scaled = base.loading / base.noise[:, None]
        seen = v[0] > 0
        precision = scaled[seen].t() @ base.loading[seen] + torch.eye(base.factors)
        spread = torch.cholesky_inverse(torch.linalg.cholesky(precision))
        mean = ((x @ scaled) @ spread) @ base.loading.t()
        variance = ((base.loading @ spread) * base.loading).sum(-1) + base.noise
        dim = network.dims.of_quantity
        guess = torch.where(
            network.codec.is_quantity & ~self.shown,
            network.dims.center[dim] + network.dims.scale[dim] * mean[:, dim],
            0.0,
        )
        self._move(guess - self.guess)
        self.guess = guess
        return mean, variance[None].expand(self.rows, -1)

    def _move(self, change: Tensor) -> None:
        """The guesses' part of the first layer: one product over all columns."""
        codec, trunk = self.network.codec, self.network.encoder
        cell = trunk.config.cell
        enter = trunk.enter[self.member].view(len(self.shown), cell, -1)
        weight = torch.einsum("cw,cwh->ch", codec.slope[:, self.width], enter)
        self.sum += change @ weight

    def show(self, column: int, number: Tensor, score: Tensor) -> None:
        """A drawn column becomes visible."""
        codec, trunk = self.network.codec, self.network.encoder
        self.number[:, column], self.score[:, column] = number, score
        slope = codec.slope[column, self.width]
        new = codec.embedding[codec.offset[column] + number][:, self.width] + score[:, None] * slope
        old = codec.masked[column, self.width] + self.guess[:, column, None] * slope
        self.sum += trunk.enter_part(new - old, column, self.member)
        self.guess[:, column] = 0.0
        self.shown[column] = True
        self.linear = self._solve()

    def _raw(self, column: int) -> tuple[Tensor, int, int]:
        codec, trunk = self.network.codec, self.network.encoder
        h = trunk.finish(self.sum[None], slice(self.member, self.member + 1))[0]
        block, place = int(codec.block_of[column]), int(codec.place_of[column])
        each = codec.blocks[block].size + 2 * codec.blocks[block].quantity
        at = slice(place * each, (place + 1) * each)
        return h @ codec.head[block][self.member][:, at] + codec.head_bias[block][self.member, :, at], block, place

    def categories(self, column: int, u: Tensor, allowed: Tensor, temperature: float) -> Tensor:
        raw, block, place = self._raw(column)
        codec = self.network.codec
        size = codec.codings[column].size
        here = torch.full((self.rows,), place)
        if self.linear is None:
            share = getattr(codec, f"share{block}")[here]
        else:
            share = self.network.shares(block, self.linear[0], torch.arange(self.rows), here)
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
        edge = grid.edge[place, : size + 1].expand(self.rows, -1)
        if low is not None and high is not None:
            edge = torch.minimum(torch.maximum(edge, low[:, None]), high[:, None])
        atom = grid.atom[place, :size]
        whole = grid.edge[place, : size + 1]
        use = torch.where(torch.cat([atom, atom[-1:]]), whole, edge) if False else edge
        cdf = torch.special.ndtr((use - location[:, None]) / deviation[:, None])
        broad = torch.special.ndtr(use)
        full = torch.special.ndtr((whole - location[:, None]) / deviation[:, None]).diff(dim=-1)
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


def _punch(model: TableModel, drawn: dict[int, list[Any]], seed: int) -> None:
    """Empty cells at the training table's rates, column by column."""
    rows = len(next(iter(drawn.values())))
    for i, share in zip(model.schema.modelled, model.facts.get("missing_share", []), strict=False):
        hit = uniform(seed, np.arange(rows), i, 68) < share
        drawn[i] = [None if h else v for v, h in zip(drawn[i], hit, strict=True)]


def augment(
    model: TableModel, data: Any, *, where: Any, rows: int, seed: int = 0, constraints: Sequence[str] = ()
) -> tuple[Any, Any]:
    """The table with `rows` synthetic patients of a stratum added below, and those alone.

    The model must have been fitted on the training part only: rows that are to judge the result must not be in it.
    """
    import polars as pl

    from unmask.table.data import as_polars

    new = as_polars(synthesize(model, rows, where=where, seed=seed, constraints=constraints).table)
    old = as_polars(read_frame(data))
    encode(read_frame(data), model.schema)
    marked = [old.with_columns(pl.lit(False).alias("synthetic")), new.with_columns(pl.lit(True).alias("synthetic"))]
    return pl.concat(marked, how="diagonal_relaxed"), new


def perturb(model: TableModel, data: Any, *, share: float = 0.5, seed: int = 0) -> Any:
    """Real rows with a share of their cells hidden and drawn anew (the published MCM procedure).

    This is a perturbation, not synthesis: every row is a real person's with some cells changed.
    """
    if not 0 < share <= 1:
        raise UserError(f"share={share}", hint="Expected a share of cells to redraw, above 0 and at most 1.")
    frame = read_frame(data)
    columns = encode(frame, model.schema)
    rows = np.arange(len(columns[0]))
    holed = [np.where(uniform(seed, rows, c, 69) < share, np.nan, x) for c, x in enumerate(columns)]
    filled = model.table.draw(holed, seed=seed)
    filled = [np.where(np.isnan(x), np.nan, f) for x, f in zip(columns, filled, strict=True)]
    return model.wrap(
        {i: decode(x, model.schema.columns[i]) for i, x in zip(model.schema.modelled, filled, strict=True)}
    )
