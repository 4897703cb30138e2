"""Multiple imputation: completed tables that differ as our knowledge does, and estimates pooled by Rubin's rules.

To be proper, imputations must vary with the uncertainty of the model too (Rubin 1987, ch. 4): every completed table
comes from a model of its own, fitted to a bootstrap sample of the rows (as in MIDAS, Lall & Robinson 2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from unmask.errors import UserError
from unmask.table.compatible import draw_compatible
from unmask.table.data import as_polars, encode, filled_copy, handed_out, match_columns, read_frame
from unmask.table.engine import CellTable
from unmask.table.model import TableModel, schema_for, shifted_places
from unmask.table.outcome import outcome_design
from unmask.table.recipes import settings_of
from unmask.table.schema import Schema
from unmask.table.survival import nelson_aalen, step_values


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """Estimates pooled over m completed tables (Rubin 1987; degrees of freedom: Barnard & Rubin 1999).

    Attributes:
        within, between: mean of the squared standard errors; variance of the estimates.
        df: degrees of freedom of the t distribution of the interval.
        riv: relative increase in variance due to missing values.
        fmi: fraction of missing information.
        monte_carlo: standard error of the pooled estimate due to m being finite.
    """

    names: tuple[str, ...]
    estimate: np.ndarray
    error: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p: np.ndarray
    df: np.ndarray
    within: np.ndarray
    between: np.ndarray
    riv: np.ndarray
    fmi: np.ndarray
    monte_carlo: np.ndarray
    draws: int

    def rows(self, *, exponentiate: bool = False) -> list[dict[str, Any]]:
        """One record a name; exponentiated for hazard ratios (estimate and interval only)."""
        turn: Callable[[float], float] = math.exp if exponentiate else float  # type: ignore[assignment]
        return [
            {
                "name": n, "estimate": turn(self.estimate[i]), "low": turn(self.low[i]), "high": turn(self.high[i]),
                "error": float(self.error[i]), "p": float(self.p[i]), "df": float(self.df[i]), "fmi": float(self.fmi[i]),
                "riv": float(self.riv[i]), "monte_carlo": float(self.monte_carlo[i]),
            }
            for i, n in enumerate(self.names)
        ]  # fmt: skip

    def table(self, *, exponentiate: bool = False, label: str = "estimate") -> str:
        """A table for publication, as Markdown: estimate (95 % interval), p, missing information."""
        lines = [f"| | {label} (95% CI) | p | FMI |", "|---|---|---|---|"]
        for r in self.rows(exponentiate=exponentiate):
            p = "<0.001" if r["p"] < 0.001 else f"{r['p']:.3f}"
            lines.append(
                f"| {r['name']} | {r['estimate']:.2f} ({r['low']:.2f}–{r['high']:.2f}) | {p} | {r['fmi']:.0%} |"
            )
        return "\n".join(lines)


def pool(
    estimates: Sequence[Sequence[float]] | np.ndarray,
    errors: Sequence[Sequence[float]] | np.ndarray,
    *,
    names: Sequence[str] | None = None,
    complete_df: float = math.inf,
    coverage: float = 0.95,
) -> Pooled:
    """Pool m estimates of k quantities.

    Args:
        estimates, errors: (m, k) estimates and standard errors, one row a completed table.
        complete_df: degrees of freedom the analysis would have without missing values (n - k of a regression).

    Raises:
        UserError: fewer than two completed tables, or shapes that differ.
    """
    q, u = np.atleast_2d(np.asarray(estimates, float)), np.atleast_2d(np.asarray(errors, float)) ** 2
    if q.shape != u.shape or len(q) < 2:
        raise UserError(f"estimates {q.shape} and errors {u.shape}", hint="Expected two or more rows and equal shapes.")
    m = len(q)
    estimate, within, between = q.mean(0), u.mean(0), q.var(0, ddof=1)
    total = within + (1 + 1 / m) * between
    with np.errstate(divide="ignore", invalid="ignore"):
        riv = np.where(within > 0, (1 + 1 / m) * between / within, np.inf)
        lam = np.clip((1 + 1 / m) * between / total, 1e-12, 1)
        old = (m - 1) / lam**2
        seen = np.inf if math.isinf(complete_df) else (complete_df + 1) / (complete_df + 3) * complete_df * (1 - lam)
        df = np.broadcast_to(np.maximum(old if math.isinf(complete_df) else old * seen / (old + seen), 1e-3), old.shape)
        fmi = (riv + 2 / (df + 3)) / (riv + 1)
    error = np.sqrt(total)
    half = stats.t.ppf(0.5 + coverage / 2, df) * error
    p = 2 * stats.t.sf(np.abs(estimate) / np.maximum(error, 1e-300), df)
    return Pooled(
        names=tuple(names or (f"b{i}" for i in range(q.shape[1]))), estimate=estimate, error=error,
        low=estimate - half, high=estimate + half, p=p, df=np.asarray(df), within=within, between=between, riv=riv,
        fmi=np.where(np.isfinite(fmi), fmi, 1.0), monte_carlo=np.sqrt(between / m), draws=m,
    )  # fmt: skip


class MultipleImputation:
    """Fit m models to bootstrap samples, complete the table m times, analyse, pool.

    Args:
        draws: completed tables, m; at least the percentage of incomplete rows is the usual advice.
        schema, duration, event: as in `TableModel.fit`.
        shift: column -> added to drawn values (delta adjustment).
        seed: decides bootstrap samples, models and draws.
        overrides: settings of the models; by default one member each and few steps.

    >>> MultipleImputation(draws=5).draws
    5
    """

    def __init__(
        self, draws: int = 20, *, schema: Any = None, duration: str | None = None, event: str | None = None,
        shift: Mapping[str, float] | None = None, seed: int = 0, **overrides: Any,
    ) -> None:  # fmt: skip
        if draws < 2:
            raise UserError(f"draws={draws}", hint="Multiple imputation needs two completed tables or more.")
        self.draws, self.schema, self.shift, self.seed = draws, schema, dict(shift or {}), seed
        self.duration, self.event = duration, event
        self.overrides = {"members": 1, "steps": 0} | overrides
        self.completed: list[Any] = []

    def fit(self, data: Any) -> MultipleImputation:
        """Complete the table `draws` times; `completed` holds the results, of the input's kind (polars for a file)."""
        frame = read_frame(data)
        schema = schema_for(frame, self.schema, duration=self.duration, event=self.event)
        order = match_columns(frame, schema)
        columns = encode(frame, schema)
        shape = TableModel(schema, None, {})  # type: ignore[arg-type]
        holes = shape.holes(columns)
        self.schema_ = schema
        moved = shifted_places(schema, self.shift)
        self.completed = []
        for m in range(self.draws):
            drawn = self._draw(shape, columns, m, moved)
            done = filled_copy(frame, shape.changes(holes, drawn), schema, order)
            self.completed.append(handed_out(done))
        return self

    def _draw(self, shape: TableModel, columns: list[np.ndarray], m: int, moved: dict[int, float]) -> list[np.ndarray]:
        """The m-th completed columns, from models fitted to the m-th bootstrap sample."""
        rows = len(columns[0])
        weight = np.random.default_rng([self.seed, m]).multinomial(rows, np.full(rows, 1 / rows)).astype(float)
        settings = settings_of(seed=self.seed + m, **self.overrides)
        seed = self.seed + 7919 * (m + 1)
        given, pair = _with_hazard(shape.schema, columns)
        sizes = shape.schema.sizes
        linear = () if pair is None else (pair[0],)
        table = CellTable.fit(given, sizes, settings=settings, weight=weight, linear=linear, calibrate=False)
        if pair is None:
            return table.draw(given, seed=seed, shift=moved)
        drawn = draw_compatible(
            columns, sizes, [*table.draw(given, seed=seed)], pair=pair, settings=settings, weight=weight, seed=seed,
            design=lambda full: outcome_design(shape, full),
        )  # fmt: skip
        for place, delta in moved.items():
            drawn[place] = drawn[place] + np.where(np.isnan(columns[place]), delta, 0.0)
        return drawn

    def pool(
        self, analyse: Callable[[Any], tuple[Sequence[float], Sequence[float]]], *, names: Sequence[str] | None = None,
        complete_df: float = math.inf,
    ) -> Pooled:  # fmt: skip
        """Pool an analysis: a function from a completed table to (estimates, standard errors)."""
        found = [analyse(table) for table in self.completed]
        return pool([f[0] for f in found], [f[1] for f in found], names=names, complete_df=complete_df)

    def pool_cox(
        self,
        covariates: Sequence[str],
        *,
        duration: str | None = None,
        event: str | None = None,
        penalizer: float = 0.0,
    ) -> Pooled:
        """Pooled log hazard ratios of a Cox regression (lifelines); `.table(exponentiate=True, label="HR")` prints them.

        Raises:
            UserError: lifelines is not installed, or the survival pair is not known.
        """
        duration, event = duration or self.schema_.duration, event or self.schema_.event
        if duration is None or event is None:
            raise UserError("no survival pair", hint="Give duration= and event=.")
        for name in covariates:
            self.schema_.number(name, where="covariates: ")
        found = [cox(t, covariates, duration, event, penalizer) for t in self.completed]
        n = len(read_frame(self.completed[0]))
        return pool(
            [f[1] for f in found], [f[2] for f in found], names=found[0][0], complete_df=n - len(found[0][0])
        )  # fmt: skip


def _with_hazard(schema: Schema, columns: list[np.ndarray]) -> tuple[list[np.ndarray], tuple[int, int] | None]:
    """The columns with follow-up time replaced by the cumulative hazard up to it, and the places of time and event.

    Covariates depend on the outcome about linearly through the event and the Nelson-Aalen hazard (White & Royston
    2009). Without a pair, or where follow-up itself is missing, the columns stay as they are.
    """
    if schema.duration is None or schema.event is None:
        return columns, None
    time, event = schema.place(schema.duration), schema.place(schema.event)
    if np.isnan(columns[time]).any() or np.isnan(columns[event]).any():
        return columns, None
    at, hazard = nelson_aalen(columns[time], columns[event])
    given = list(columns)
    given[time] = step_values(at, hazard, columns[time], start=0.0)
    return given, (time, event)


def cox(
    table: Any, covariates: Sequence[str], duration: str, event: str, penalizer: float = 0.0
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Names, log hazard ratios and standard errors; categories get an indicator for every level but the first.

    Raises:
        UserError: lifelines is not installed.
    """
    try:
        from lifelines import CoxPHFitter
    except ImportError:
        raise UserError("Cox regression needs lifelines", hint="pip install 'unmask[survival]'") from None
    import pandas as pd

    data = as_polars(table).select([*covariates, duration, event]).to_pandas()
    named = [c for c in covariates if not pd.api.types.is_numeric_dtype(data[c])]
    data[event] = pd.to_numeric(data[event])
    data = pd.get_dummies(data, columns=named, drop_first=True, dtype=float)
    fitted = CoxPHFitter(penalizer=penalizer).fit(data, duration, event)
    return list(fitted.params_.index), fitted.params_.to_numpy(), fitted.standard_errors_.to_numpy()


def tipping_point(
    data: Any, column: str, analyse: Callable[[Any], tuple[float, float]], deltas: Sequence[float], **options: Any
) -> list[dict[str, float]]:
    """How far drawn values of a column must be moved before a conclusion changes (values missing not at random).

    Args:
        analyse: completed table -> (estimate, standard error) of the effect in question.
        deltas: shifts to try, in the column's unit.
        options: of `MultipleImputation`.

    Returns:
        One record a shift: delta, estimate, low, high, and whether the interval still excludes 0.
    """
    out = []
    for delta in deltas:
        done = MultipleImputation(shift={column: float(delta)}, **options).fit(data)
        found = done.pool(lambda t: tuple([v] for v in analyse(t)))  # type: ignore[arg-type, return-value]
        low, high = float(found.low[0]), float(found.high[0])
        out.append({"delta": float(delta), "estimate": float(found.estimate[0]), "low": low, "high": high,
                    "significant": not low <= 0 <= high})  # fmt: skip
    return out
