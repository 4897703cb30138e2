"""Estimates of m completed tables pooled by Rubin's rules, from any analysis, and predictions after pooling."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from scipy import stats
from scipy.special import expit, logit

from unmask.errors import UserError, outside, suggest
from unmask.evaluation.charts import interval_chart
from unmask.evaluation.shown import Chart, Printed, Shown, charted
from unmask.guessed import Guessed
from unmask.modalities.table.imputation.families import FAMILIES
from unmask.modalities.table.imputation.fitted_models import aligned, estimates_of
from unmask.modalities.table.imputation.formula_fit import FormulaFit, new_columns
from unmask.modalities.table.imputation.pooled_tests import PooledTest, coefficients, wald_test

SCALES: dict[str, tuple[Callable[[np.ndarray], np.ndarray], ...]] = {
    "fisher": (np.arctanh, lambda q: 1 / (1 - q**2), np.tanh),
    "logit": (logit, lambda q: 1 / (q * (1 - q)), expit),
    "log": (np.log, lambda q: 1 / q, np.exp),
    "r_squared": (
        lambda q: np.arctanh(np.sqrt(q)),
        lambda q: 1 / (2 * np.sqrt(q) * (1 - q)),
        lambda z: np.tanh(np.maximum(z, 0)) ** 2,
    ),
    "cloglog": (lambda q: -np.log(-np.log(q)), lambda q: -1 / (q * np.log(q)), lambda z: np.exp(-np.exp(-z))),
}
"""Scales to pool on (van Buuren 2018, table 5.2): of correlations, probabilities, ratios, shares of explained variance
(Fisher's of their root: Harel 2009), and survival probabilities (with the sign that makes it rise). Of each the
transformation, the size of its derivative, and its inverse."""


def _column(name: str) -> Callable[[Any], Any]:
    """A column of the printed table under another name."""
    return lambda pooled: pooled.to_frame()[name]


@dataclass(frozen=True, kw_only=True, repr=False)
class Pooled(Guessed, Printed):
    """Estimates pooled over m completed tables (Rubin 1987; degrees of freedom: Barnard & Rubin 1999).

    `print` shows them as lifelines and R do, `to_frame()` and `summary` have them as a data frame, `plot` draws them.

    Attributes:
        estimate, error, low, high, p: one each per name; `coverage` of the interval.
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
    fits: tuple[FormulaFit, ...] = ()
    coverage: float = 0.95

    guesses: ClassVar[Any] = {
        **dict.fromkeys(("params", "params_", "coef", "coef_", "estimates", "qbar"), _column("coef")),
        **dict.fromkeys(("bse", "standard_errors_", "se"), _column("se(coef)")),
        **dict.fromkeys(("pvalues", "p_values", "pvalue"), _column("p")),
        **dict.fromkeys(("hazard_ratios_", "hazard_ratios", "odds_ratios"), _column("exp(coef)")),
        "tvalues": _column("t"),
        "rsquared*": "r_squared() of a least squares regression, with its interval; adjusted=True",
        "pooled": lambda pooled: pooled.to_frame(),
        "m": lambda pooled: pooled.draws,
        "confidence_intervals_": lambda pooled: pooled.intervals(),
        "conf_int": lambda pooled: pooled.intervals,
        "confint": lambda pooled: pooled.intervals,
        **dict.fromkeys(("ubar", "u_bar"), lambda pooled: pooled.within),
        **dict.fromkeys(
            (
                "concordance_index_",
                "AIC_partial_",
                "log_likelihood_",
                "log_likelihood_ratio_test",
                "aic",
                "score_",
            ),
            "Rubin's rules do not pool it; done.pool(lambda table: (estimates, errors)) pools what has standard errors",
        ),
        **dict.fromkeys(
            ("predict_partial_hazard", "predict_survival_function", "predict_proba", "predict_log_partial_hazard"),
            "predict(new).response has hazard ratios, probabilities or means with intervals",
        ),
        **dict.fromkeys(
            ("check_assumptions", "baseline_survival_", "baseline_hazard_"),
            "fit it to each table: done.predict(fit, new), or a loop over `done`",
        ),
    }

    @property
    def family(self) -> str | None:
        """One of `families.FAMILIES`; None where a function made the estimates."""
        return self.fits[0].formula.family if self.fits else None

    @property
    def _ratio(self) -> str:
        """What exp(estimate) is; "" where that is nothing."""
        return FAMILIES[self.family].ratio if self.family else ""

    @property
    def variances(self) -> dict[str, float]:
        """Of a mixed model: means of the variances of its random effects and residuals, and of its intraclass
        correlation; else empty."""
        names = self.fits[0].variances if self.fits else ()
        return {name: float(np.mean([fit.variances[name] for fit in self.fits])) for name in names}

    def shown(self) -> Shown:
        """The estimates as `print` shows them; the frame has all columns, named as in lifelines."""
        ratios = bool(self._ratio)
        level = f"{self.coverage:.0%}"
        ends = (f"lower {level}", f"upper {level}")
        names = ["", "coef", "exp(coef)", "se(coef)", *(f"coef {end}" for end in ends)]
        names += [*(f"exp(coef) {end}" for end in ends), "t", "p", "df", "FMI", "RIV"]
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            parts = [self.estimate, np.exp(self.estimate), self.error, self.low, self.high, np.exp(self.low)]
            parts += [np.exp(self.high), self.estimate / self.error, self.p, self.df, self.fmi, self.riv]
        rows = [(name, *map(float, row)) for name, row in zip(self.names, np.transpose(parts), strict=True)]
        wanted = ["", "coef", *(["exp(coef)"] if ratios else []), "se(coef)"]
        wanted += [f"{'exp(coef)' if ratios else 'coef'} {end}" for end in ends]
        notes = []
        if self.fits:
            first = self.fits[0]
            events = f", {first.events:,} events" if first.events is not None else ""
            notes = [
                first.formula.text,
                *([first.grouping.words] if first.grouping else []),
                f"{first.rows:,} rows{events}; intervals: {level}, t distribution",
            ]
        notes += [f"not estimable (separation): {', '.join(self.separated)}"] if self.separated else []
        notes += self._below()
        if self.variances:
            notes.append(f"variances: {', '.join(f'{k} {v:.4g}' for k, v in self.variances.items())} (means)")
        notes.append("FMI: share of the information that the holes took away")
        what = FAMILIES[self.family].title if self.family else "Estimates"
        what = "Linear mixed model" if self.variances else what
        return Shown(
            title=f"{what}, pooled over {self.draws} completed tables by Rubin's rules",
            columns=names,
            rows=rows,
            notes=notes,
            next_step="pooled.to_frame(), pooled.plot('figure.svg'), pooled.table() for a paper",
            formats={
                "p": lambda p: "<0.001" if p < 0.001 else f"{p:.3f}",
                "FMI": lambda share: f"{share:.0%}",
                "df": lambda df: f"{df:,.0f}" if df < 1e6 else "∞",
            },
            printed=[*wanted, "p", "df", "FMI"],
        )

    def intervals(self) -> Any:
        """The ends of the intervals as a data frame, on the scale of the coefficients."""
        frame = self.to_frame()
        return frame[[name for name in frame.columns if name.startswith(("coef lower", "coef upper"))]]

    def plot(self, path: str | Path | None = None) -> Chart:
        """A forest plot of hazard, odds or rate ratios, else of estimates; written to `path` (.svg or .html), if given.

        Names whose estimates run to infinity have no interval.
        """
        ratios, what = bool(self._ratio), self._ratio or "estimate"
        rows = [(r["name"], r["estimate"], r["low"], r["high"]) for r in self.rows(exponentiate=ratios)]
        label = f"{what}, {self.coverage:.0%} interval ({self.draws} imputations, Rubin's rules)"
        return charted(interval_chart(rows, f"Pooled {what}s", label, ratios=ratios), path)

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
        for text in self._below():
            lines += ["", f"{text[0].upper()}{text[1:]}."]
        return "\n".join(lines)

    def _below(self) -> list[str]:
        """What is modelled, theta of a negative binomial regression, and reference levels."""
        rows = {k: f" ({n:,} rows)" for k, n in self.reference_rows.items()}
        levels = ", ".join(f"{k} = {v}{rows.get(k, '')}" for k, v in self.references.items())
        modelled = [f"modelled: {self.modelled}"] if self.modelled else []
        if self.family == "negative-binomial":
            modelled.append(f"theta {np.mean([f.nuisance for f in self.fits]):.4g}, the mean over the tables")
        return [*modelled, *([f"reference levels: {levels}"] if levels else [])]

    def r_squared(self, *, adjusted: bool = False) -> Pooled:
        """The share of the variance of the outcome that a least squares regression explains, with its interval (Harel
        2009); the standard error is that of Fisher's scale, 1 / sqrt(rows - 3).

        Args:
            adjusted: for the number of regressors.

        Raises:
            UserError: it is not a least squares regression.
        """
        if self.family != "ols" or self.variances:
            raise UserError("r_squared: not of a least squares regression", hint="Pool with pool('y ~ x').")
        rows, found = self.fits[0].rows, np.array([[f.r_squared] for f in self.fits])
        if adjusted:
            found = 1 - (1 - found) * (rows - self.fits[0].formula.intercept) / self.fits[0].df
        found = np.clip(found, 1e-12, 1 - 1e-12)
        errors = (rows - 3) ** -0.5 / SCALES["r_squared"][1](found)
        return pool(
            found, errors, names=["adjusted R²" if adjusted else "R²"], coverage=self.coverage, scale="r_squared"
        )

    def wald_test(self, *terms: str) -> PooledTest:
        """D1: whether all coefficients of some terms are 0, such as those of the levels of a category.

        Args:
            terms: names of coefficients, or of categories, all of whose levels are meant; by default all coefficients
                but the constant and thresholds.

        Raises:
            UserError: the estimates did not come from a formula; there is no such term, or it is separated.
        """
        if not self.fits:
            raise UserError(
                "wald_test: these estimates did not come from a formula",
                hint="Pool with pool('y ~ x'), or use compare(full, null) of the completed tables.",
            )
        places = [i for i, name in enumerate(self.names) if name in self.fits[0].formula.names]
        if terms:
            found = {t: [i for i in places if self.names[i] == t or self.names[i].startswith(f"{t}=")] for t in terms}
            for term in terms:
                if not found[term]:
                    raise UserError(f"wald_test: no term {term!r}", hint=suggest(term, [self.names[i] for i in places]))
            places = sorted({i for several in found.values() for i in several})
        names = [self.names[i] for i in places]
        return wald_test(*coefficients(self.fits, names), names, complete_df=self.fits[0].df)

    def predict(self, data: Any, *, coverage: float = 0.95) -> Predicted:
        """Pooled predictions for new rows, without missing values in the columns of the formula.

        The linear predictor is predicted by each table's analysis with its standard error, and pooled by Rubin's rules.
        For "ols" that is the mean, for "logit" its inverse logit is given as well, for counts its exponential; for
        "cox", "fine-gray" and "polr" it is the log hazard, or the log-odds of a higher category, relative to the
        covariates' means.

        Raises:
            UserError: the estimates did not come from a formula, or a row lacks a value.
        """
        if not self.fits:
            raise UserError(
                "predict: these estimates did not come from a formula",
                hint="Pool with pool('y ~ x'), or use MultipleImputation.predict(fit, new).",
            )
        columns = new_columns(self.fits[0].formula, data)
        parts = [f.predict(columns) for f in self.fits]
        found = pool([p[0] for p in parts], [p[1] for p in parts], complete_df=self.fits[0].df, coverage=coverage)
        return predicted(found, self.fits[0].formula.model.back)


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """Predictions for new rows, with pooled standard errors on the scale of the linear predictor.

    Attributes:
        response: on the outcome's scale: the mean, the probability of the second category, or a ratio to the
            covariates' means (hazard, odds); with `response_low` and `response_high`.
    """

    estimate: np.ndarray
    error: np.ndarray
    low: np.ndarray
    high: np.ndarray
    response: np.ndarray
    response_low: np.ndarray
    response_high: np.ndarray


def predicted(found: Pooled, turn: Callable[[np.ndarray], np.ndarray] = np.asarray) -> Predicted:
    """`turn`: from the linear predictor to the scale of the outcome."""
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
    complete_df: float | np.ndarray = math.inf,
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
        complete_df: degrees of freedom the analysis would have without missing values (n - k of a regression), of all
            estimates or of each.
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
        own = np.broadcast_to(np.asarray(complete_df, float), old.shape)
        seen = (own + 1) / (own + 3) * own * (1 - lam)
        df = np.maximum(np.where(np.isinf(own), old, old * seen / (old + seen)), 1e-3)
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
        coverage=coverage,
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


def joined(*parts: Pooled) -> Pooled:
    """Estimates of one analysis that were pooled apart, on scales of their own, as one."""
    fields = ("estimate", "error", "low", "high", "p", "df", "within", "between", "riv", "fmi", "monte_carlo")
    arrays: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in fields}
    return dataclasses.replace(parts[0], names=tuple(name for part in parts for name in part.names), **arrays)


def without_separated(found: Pooled, fits: Sequence[FormulaFit], columns: Sequence[np.ndarray]) -> Pooled:
    """Estimates without those that run to infinity in one of the fits, which a warning names with their counts.

    Args:
        columns: of one completed table, to count in.
    """
    separated = np.any([f.separated for f in fits], 0)
    if not separated.any():
        return found
    formula = fits[0].formula
    design, event = formula.design(columns), formula.response(columns).happened
    first = found.names.index(formula.names[0]) if formula.names else len(found.names)
    named = []
    for i in np.flatnonzero(separated):
        x = design[:, i - first] if 0 <= i - first < design.shape[1] else np.ones(len(event))
        rows = x == 1
        counted = f" ({int(event[rows].sum()):,} of {int(rows.sum()):,} rows)" if set(np.unique(x)) <= {0, 1} else ""
        named.append(f"{found.names[i]}{counted}")
    way = "firth=True, a penalised likelihood" if formula.family == "logit" else "pool_cox(..., penalizer=0.1)"
    warnings.warn(
        f"not estimable, since all or none of the rows had the outcome (separation): {', '.join(named)}. Join the "
        f"level to another, leave the term out, or use {way}",
        stacklevel=outside(),
    )
    blanked: dict[str, Any] = {
        name: np.where(separated, np.nan, getattr(found, name))
        for name in ("estimate", "error", "low", "high", "p", "within", "between", "riv", "fmi", "monte_carlo")
    }
    return dataclasses.replace(
        found, **blanked, separated=tuple(n for n, a in zip(found.names, separated, strict=True) if a)
    )
