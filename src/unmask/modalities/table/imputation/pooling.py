"""Estimates of m completed tables pooled by Rubin's rules, from any analysis, and predictions after pooling."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import stats
from scipy.special import expit, logit

from unmask.errors import UserError, suggest
from unmask.modalities.table.imputation.fitted_models import aligned, estimates_of
from unmask.modalities.table.imputation.formula import Formula, entry_of, finite_design
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.schema.schema import Schema
from unmask.modalities.table.schema.values import encode
from unmask.modalities.table.survival.estimators import fit_cox

SCALES: dict[str, tuple[Callable[[np.ndarray], np.ndarray], ...]] = {
    "fisher": (np.arctanh, lambda q: 1 / (1 - q**2), np.tanh),
    "logit": (logit, lambda q: 1 / (q * (1 - q)), expit),
    "log": (np.log, lambda q: 1 / q, np.exp),
    "cloglog": (lambda q: -np.log(-np.log(q)), lambda q: -1 / (q * np.log(q)), lambda z: np.exp(-np.exp(-z))),
}
"""Scales to pool on (van Buuren 2018, table 5.2): of correlations, probabilities, ratios, and survival probabilities
(with the sign that makes it rise). Of each the transformation, the size of its derivative, and its inverse."""


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """Estimates pooled over m completed tables (Rubin 1987; degrees of freedom: Barnard & Rubin 1999).

    Attributes:
        within, between: mean of the squared standard errors; variance of the estimates.
        df: degrees of freedom of the t distribution of the interval.
        riv: relative increase in variance due to missing values.
        fmi: fraction of missing information.
        monte_carlo: standard error of the pooled estimate due to m being finite.
        references: category -> the level its indicators are compared with; `reference_rows` -> how many rows have it
            (of the first completed table).
        modelled: of a logistic regression which level's odds it is about, such as "died = yes against no"; else empty.
        separated: names whose estimates run to infinity, because all or none of their rows had the outcome; the figures
            of these are NaN.
        fits: the analysis of each completed table, where it came from a formula; `predict` needs them.
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
    references: Mapping[str, str] = field(default_factory=dict)
    reference_rows: Mapping[str, int] = field(default_factory=dict)
    modelled: str = ""
    separated: tuple[str, ...] = ()
    fits: tuple[FormulaFit, ...] = field(default=(), repr=False)

    def rows(self, *, exponentiate: bool = False) -> list[dict[str, Any]]:
        """One record per name; exponentiated for hazard ratios (estimate and interval only)."""
        turn: Callable[[float], float] = (lambda x: float(np.exp(x))) if exponentiate else float
        plain = ("error", "p", "df", "fmi", "riv", "monte_carlo")
        return [
            {"name": name}
            | {k: turn(getattr(self, k)[i]) for k in ("estimate", "low", "high")}
            | {k: float(getattr(self, k)[i]) for k in plain}
            for i, name in enumerate(self.names)
        ]

    def table(self, *, exponentiate: bool = False, label: str = "estimate") -> str:
        """A table for publication, as Markdown: estimate (95 % interval), p, missing information; then what is
        modelled, and reference levels."""
        lines = [f"| | {label} (95% CI) | p | FMI |", "|---|---|---|---|"]
        for r in self.rows(exponentiate=exponentiate):
            if r["name"] in self.separated:
                lines.append(f"| {r['name']} | not estimable: separation | | |")
                continue
            p = "<0.001" if r["p"] < 0.001 else f"{r['p']:.3f}"
            lines.append(
                f"| {r['name']} | {r['estimate']:.2f} ({r['low']:.2f}–{r['high']:.2f}) | {p} | {r['fmi']:.0%} |"
            )
        if self.modelled:
            lines += ["", f"Modelled: {self.modelled}."]
        if self.references:
            rows = {k: f" ({n:,} rows)" for k, n in self.reference_rows.items()}
            levels = ", ".join(f"{k} = {v}{rows.get(k, '')}" for k, v in self.references.items())
            lines += ["", f"Reference levels: {levels}."]
        return "\n".join(lines)

    def predict(self, data: Any, *, coverage: float = 0.95) -> Predicted:
        """Pooled predictions for new rows, without missing values in the columns of the formula.

        The linear predictor is predicted by each table's analysis with its standard error, and pooled by Rubin's rules.
        For "ols" that is the mean, for "logit" its inverse logit is given as well, for "cox" it is the log hazard
        relative to the covariates' means.

        Raises:
            UserError: the estimates did not come from a formula, or a row lacks a value.
        """
        if not self.fits:
            raise UserError(
                "predict: these estimates did not come from a formula",
                hint="Pool with pool('y ~ x'), or use MultipleImputation.predict(fit, new).",
            )
        columns = _new_columns(self.fits[0].formula, data)
        parts = [f.predict(columns) for f in self.fits]
        found = pool([p[0] for p in parts], [p[1] for p in parts], complete_df=self.fits[0].df, coverage=coverage)
        return predicted(found, self.fits[0].formula.family)


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """Predictions for new rows, with pooled standard errors on the scale of the linear predictor.

    Attributes:
        response: on the outcome's scale: the mean, the probability of the second category, or the hazard ratio; with
            `response_low` and `response_high`.
    """

    estimate: np.ndarray
    error: np.ndarray
    low: np.ndarray
    high: np.ndarray
    response: np.ndarray
    response_low: np.ndarray
    response_high: np.ndarray


def predicted(found: Pooled, family: str) -> Predicted:
    turn = {"logit": expit, "cox": np.exp}.get(family, lambda v: v)
    return Predicted(
        estimate=found.estimate,
        error=found.error,
        low=found.low,
        high=found.high,
        response=turn(found.estimate),
        response_low=turn(found.low),
        response_high=turn(found.high),
    )


def pool(
    estimates: Sequence[Sequence[float] | np.ndarray] | np.ndarray,
    errors: Sequence[Sequence[float] | np.ndarray] | np.ndarray,
    *,
    names: Sequence[str] | None = None,
    complete_df: float = math.inf,
    coverage: float = 0.95,
    references: Mapping[str, str] | None = None,
    modelled: str = "",
    fits: Sequence[FormulaFit] = (),
    scale: str | None = None,
) -> Pooled:
    """Pool m estimates of k quantities.

    Args:
        estimates, errors: (m, k) estimates and standard errors, one row per completed table; those that have names
            (pandas) are aligned by them.
        complete_df: degrees of freedom the analysis would have without missing values (n - k of a regression).
        scale: one of `SCALES`, on which they are pooled, by the delta method; estimates, errors and intervals are those
            transformed back, p, within and between are of the scale.
    """
    estimates, errors = ([r for _, r in x.iterrows()] if hasattr(x, "iterrows") else x for x in (estimates, errors))
    if any(hasattr(row, "reindex") for row in estimates):
        found = aligned([estimates_of(pair) for pair in zip(estimates, errors, strict=True)])
        estimates, errors = [f.estimate for f in found], [f.error for f in found]
        names = names or found[0].names
    if scale is not None:
        return _pooled_on(scale, estimates, errors, names=names, complete_df=complete_df, coverage=coverage)
    q, u = np.atleast_2d(np.asarray(estimates, float)), np.atleast_2d(np.asarray(errors, float)) ** 2
    if q.shape != u.shape or len(q) < 2:
        raise UserError(f"estimates {q.shape} and errors {u.shape}", hint="Expected two or more rows and equal shapes.")
    if names is not None and len(names) != q.shape[1]:
        raise UserError(f"{len(names)} names of {q.shape[1]} estimates", hint="Give a name to every estimate.")
    bad = ~(np.isfinite(q) & np.isfinite(u))
    if bad.any():
        table, place = np.argwhere(bad)[0]
        named = repr(names[place]) if names is not None else f"number {place}"
        raise UserError(
            f"completed table {table + 1}: estimate {named} or its error is not finite",
            hint="Look at the analysis of that table: too few rows in a group, or perfect separation.",
        )
    m = len(q)
    estimate, within, between = q.mean(0), u.mean(0), q.var(0, ddof=1)
    total = within + (1 + 1 / m) * between
    with np.errstate(divide="ignore", invalid="ignore"):
        riv = np.where(within > 0, (1 + 1 / m) * between / within, np.where(between > 0, np.inf, 0.0))
        lam = np.where(total > 0, np.clip((1 + 1 / m) * between / total, 1e-4, 1), 1e-4)  # as mice bounds it
        old = (m - 1) / lam**2
        seen = np.inf if math.isinf(complete_df) else (complete_df + 1) / (complete_df + 3) * complete_df * (1 - lam)
        df = np.broadcast_to(np.maximum(old if math.isinf(complete_df) else old * seen / (old + seen), 1e-3), old.shape)
        fmi = (riv + 2 / (df + 3)) / (riv + 1)
    error = np.sqrt(total)
    half = stats.t.ppf(0.5 + coverage / 2, df) * error
    p = 2 * stats.t.sf(np.abs(estimate) / np.maximum(error, 1e-300), df)
    return Pooled(
        names=tuple(names or (f"b{i}" for i in range(q.shape[1]))),
        estimate=estimate,
        error=error,
        low=estimate - half,
        high=estimate + half,
        p=p,
        df=np.asarray(df),
        within=within,
        between=between,
        riv=riv,
        fmi=np.where(np.isfinite(fmi), fmi, 1.0),
        monte_carlo=np.sqrt(between / m),
        draws=m,
        references=dict(references or {}),
        modelled=modelled,
        fits=tuple(fits),
    )


def _pooled_on(scale: str, estimates: Any, errors: Any, **options: Any) -> Pooled:
    """Estimates pooled on a scale, and transformed back."""
    if scale not in SCALES:
        raise UserError(f"scale={scale!r}", hint=suggest(scale, SCALES))
    (to, slope_at, back), q = SCALES[scale], np.atleast_2d(np.asarray(estimates, float))
    with np.errstate(all="ignore"):
        z, slope = to(q), slope_at(q)
    if (np.isfinite(q) & ~np.isfinite(z)).any():
        table, place = np.argwhere(~np.isfinite(z))[0]
        raise UserError(
            f"completed table {table + 1}: an estimate of {q[table, place]:g} is not on the scale {scale!r}",
            hint="Expected correlations (fisher), shares between 0 and 1 (logit, cloglog) or ratios (log).",
        )
    found = pool(z, np.asarray(errors, float) * slope, **options)
    estimate, low, high = (back(x) for x in (found.estimate, found.low, found.high))
    return dataclasses.replace(found, estimate=estimate, low=low, high=high, error=found.error / slope_at(estimate))


@dataclass(frozen=True, kw_only=True)
class FormulaFit:
    """A formula fitted to one completed table.

    Attributes:
        df: degrees of freedom left: rows (events of a Cox regression) less parameters.
        center: (regressors,) subtracted before predicting; zeros but for a Cox regression.
        reach: (regressors,) largest less smallest value.
    """

    formula: Formula
    names: tuple[str, ...]
    beta: np.ndarray
    covariance: np.ndarray
    df: float
    center: np.ndarray
    reach: np.ndarray

    @property
    def separated(self) -> np.ndarray:
        """Booleans: estimates that run to infinity (separation: Albert & Anderson 1984; of a Cox regression Heinze &
        Schemper 2001). The fit stops somewhere on the way, with odds or hazards that differ by e^8 (3 000 times) at
        least over the regressor, and an error of more than twice the estimate."""
        with np.errstate(invalid="ignore"):
            return (np.abs(self.beta) * self.reach > 8) & (self.error > 2 * np.abs(self.beta))

    @property
    def error(self) -> np.ndarray:
        """Standard errors of the estimates."""
        return np.sqrt(np.maximum(np.diag(self.covariance), 0))

    def predict(self, columns: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Linear predictor and its standard error."""
        x = finite_design(self.formula, columns) - self.center
        if self.formula.family != "cox" and self.formula.intercept:
            x = np.hstack([np.ones((len(x), 1)), x])
        return x @ self.beta, np.sqrt(np.maximum(((x @ self.covariance) * x).sum(1), 0))


def fit_formula(
    formula: Formula, columns: Sequence[np.ndarray], *, penalizer: float = 0.0, firth: bool = False
) -> FormulaFit:
    """Least squares, logistic regression or Cox regression on complete columns.

    Args:
        penalizer: of lifelines' Cox regression, which is then used (the `survival` extra).
        firth: of a logistic regression, see `_logit`.
    """
    x = finite_design(formula, columns)
    outcome = [columns[p] for p in formula.outcome]
    names = tuple(formula.names)
    center = np.zeros(x.shape[1])
    if formula.family != "cox" and formula.intercept:
        x, names = np.hstack([np.ones((len(x), 1)), x]), ("(Intercept)", *names)
    if any(np.isnan(y).any() for y in outcome):
        raise UserError(f"formula {formula.text!r}: the outcome is empty in some rows", hint="Leave those rows out.")
    centred = x - x.mean(0) if formula.family == "cox" else x
    scale = np.sqrt((centred**2).sum(0))
    if not len(names):
        raise UserError(f"formula {formula.text!r}: no terms", hint="A Cox regression needs a covariate.")
    if (scale == 0).any() or np.linalg.cond(centred / scale) > 1e9:
        flat = [n for n, s in zip(names, scale, strict=True) if s == 0]
        what = f"{flat[0]!r} does not vary" if flat else "the regressors are collinear"
        raise UserError(f"formula {formula.text!r}: {what}", hint="Leave a term out.")
    if formula.family == "ols":
        df = len(x) - x.shape[1]
        if df < 1:
            raise UserError(f"formula {formula.text!r}: {len(x)} rows for {x.shape[1]} regressors", hint="Use fewer.")
        inverse = np.linalg.inv(x.T @ x)
        beta = np.linalg.lstsq(x, outcome[0], rcond=None)[0]
        covariance = inverse * ((outcome[0] - x @ beta) ** 2).sum() / df
    elif formula.family == "logit":
        beta, covariance = _logit(formula, x, outcome[0], firth=firth)
        df = len(x) - x.shape[1]
    else:
        (time, event), entry = outcome, entry_of(formula, columns)
        if entry is not None and penalizer:
            raise UserError("a penalised Cox regression with late entry", hint="Leave the penalizer out.")
        if not (event > 0).any():
            raise UserError(f"formula {formula.text!r}: no event", hint="A Cox regression needs events.")
        if penalizer:
            beta, covariance = _penalised_cox(x, time, event, penalizer)
        else:
            found = fit_cox(x, time, event, entry=entry)
            beta, covariance = found.beta, found.covariance
        df, center = int((event > 0).sum()) - x.shape[1], x.mean(0)
    reach = np.where((x == 1).all(0), 1.0, np.ptp(x, axis=0))
    return FormulaFit(
        formula=formula, names=names, beta=beta, covariance=covariance, df=max(df, 1), center=center, reach=reach
    )


def _logit(formula: Formula, x: np.ndarray, y: np.ndarray, *, firth: bool) -> tuple[np.ndarray, np.ndarray]:
    """
    Args:
        firth: the likelihood times the root of the determinant of the information (Firth 1993; Heinze & Schemper 2002),
            whose estimates are finite under separation too.
    """
    beta = np.zeros(x.shape[1])
    for _ in range(200 if firth else 50):
        share = expit(x @ beta)
        weighted = x * np.sqrt(share * (1 - share))[:, None]
        information = weighted.T @ weighted
        score = y - share
        if firth:
            leverage = (weighted * np.linalg.solve(information, weighted.T).T).sum(1)
            score = score + leverage * (0.5 - share)
        move = np.linalg.lstsq(information, x.T @ score, rcond=None)[0]
        beta = beta + move * min(1.0, 5 / max(np.abs(x @ move).max(), 1e-12))
        if np.abs(x @ move).max() < 1e-9:
            return beta, np.linalg.inv(information)
    raise UserError(
        f"formula {formula.text!r}: the outcome is perfectly predicted, or does not vary",
        hint="Leave out the term that separates the two outcomes, or pool with firth=True.",
    )


def _penalised_cox(
    x: np.ndarray, time: np.ndarray, event: np.ndarray, penalizer: float
) -> tuple[np.ndarray, np.ndarray]:
    try:
        from lifelines import CoxPHFitter
    except ImportError:
        raise UserError("a penalised Cox regression needs lifelines", hint="pip install 'unmask[survival]'") from None
    import pandas as pd

    keys = [f"x{i}" for i in range(x.shape[1])]
    data = pd.DataFrame(x, columns=keys).assign(time=time, event=event)
    fitted = CoxPHFitter(penalizer=penalizer).fit(data, "time", "event")
    return fitted.params_[keys].to_numpy(), fitted.variance_matrix_.loc[keys, keys].to_numpy()


def without_separated(found: Pooled, fits: Sequence[FormulaFit], columns: Sequence[np.ndarray]) -> Pooled:
    """Estimates without those that run to infinity in one of the fits, which a warning names with their counts.

    Args:
        columns: of one completed table, to count in.
    """
    separated = np.any([f.separated for f in fits], 0)
    if not separated.any():
        return found
    formula = fits[0].formula
    design, event = formula.design(columns), columns[formula.outcome[-1]] > 0
    first = len(found.names) - design.shape[1]
    named = []
    for i in np.flatnonzero(separated):
        x = design[:, i - first] if i >= first else np.ones(len(event))
        rows = x == 1
        counted = f" ({int(event[rows].sum()):,} of {int(rows.sum()):,} rows)" if set(np.unique(x)) <= {0, 1} else ""
        named.append(f"{found.names[i]}{counted}")
    way = "firth=True, a penalised likelihood" if formula.family == "logit" else "pool_cox(..., penalizer=0.1)"
    warnings.warn(
        f"not estimable, since all or none of the rows had the outcome (separation): {', '.join(named)}. Join the "
        f"level to another, leave the term out, or use {way}",
        stacklevel=4,
    )
    blanked: dict[str, Any] = {
        name: np.where(separated, np.nan, getattr(found, name))
        for name in ("estimate", "error", "low", "high", "p", "within", "between", "riv", "fmi", "monte_carlo")
    }
    return dataclasses.replace(
        found, **blanked, separated=tuple(n for n, a in zip(found.names, separated, strict=True) if a)
    )


def _new_columns(formula: Formula, data: Any) -> list[np.ndarray]:
    """Coded columns of new rows; only those of the formula are asked for."""
    frame = read_frame(data)
    if not len(frame):
        raise UserError(f"{frame.source}: no rows to predict", hint="Give the new rows, with the formula's columns.")
    named = [dataclasses.replace(formula.schema.column(p), structural=None) for p in formula.covariates]
    found = encode(frame, Schema(columns=tuple(named), missing=formula.schema.missing))
    out: list[np.ndarray] = [np.zeros(len(frame))] * len(formula.schema.modelled)
    for place, column, x in zip(formula.covariates, named, found, strict=True):
        if np.isnan(x).any():
            raise UserError(
                f"{frame.source}, column {column.name!r}, row {frame.row_name(int(np.isnan(x).argmax()))}: no value to "
                "predict from",
                hint="Impute the new rows first.",
            )
        out[place] = x
    return out
