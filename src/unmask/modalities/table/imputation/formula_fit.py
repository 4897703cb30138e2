"""A formula fitted to one completed table: least squares, logistic and Cox regression."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats
from scipy.special import expit, log_expit

from unmask.errors import UserError
from unmask.modalities.table.imputation.formula import Formula, entry_of, finite_design
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.schema.schema import Schema
from unmask.modalities.table.schema.values import encode
from unmask.modalities.table.survival.estimators import PartialLikelihood, fit_cox


@dataclass(frozen=True, kw_only=True)
class FormulaFit:
    """A formula fitted to one completed table.

    Attributes:
        rows, events: of the table; events of a Cox regression, else None.
        df: degrees of freedom left: rows (events of a Cox regression) less parameters.
        center: (regressors,) subtracted before predicting; zeros but for a Cox regression.
        reach: (regressors,) largest less smallest value.
        variance: of the residuals of least squares, by maximum likelihood; else 0.
        r_squared: the share of the variance of the outcome that least squares explains; else NaN.
    """

    formula: Formula
    names: tuple[str, ...]
    beta: np.ndarray
    covariance: np.ndarray
    rows: int
    events: int | None
    df: float
    center: np.ndarray
    reach: np.ndarray
    variance: float = 0.0
    r_squared: float = math.nan

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
        x = design(self.formula, columns) - self.center
        return x @ self.beta, np.sqrt(np.maximum(((x @ self.covariance) * x).sum(1), 0))


def design(formula: Formula, columns: Sequence[np.ndarray]) -> np.ndarray:
    """(rows, regressors) of complete columns, with the constant in front where the regression has one."""
    x = finite_design(formula, columns)
    return x if formula.family == "cox" or not formula.intercept else np.hstack([np.ones((len(x), 1)), x])


def log_likelihood(formula: Formula, columns: Sequence[np.ndarray], beta: np.ndarray, variance: float) -> float:
    """Of coefficients on complete columns; the partial likelihood of a Cox regression. `variance`: of the residuals of
    least squares."""
    x, outcome = design(formula, columns), [columns[p] for p in formula.outcome]
    if formula.family == "ols":
        return float(stats.norm.logpdf(outcome[0], x @ beta, math.sqrt(variance)).sum())
    if formula.family == "logit":
        return float(log_expit(np.where(outcome[0] > 0, 1, -1) * (x @ beta)).sum())
    return PartialLikelihood(x - x.mean(0), *outcome, entry=entry_of(formula, columns)).value(beta)


def fit_formula(
    formula: Formula, columns: Sequence[np.ndarray], *, penalizer: float = 0.0, firth: bool = False
) -> FormulaFit:
    """Least squares, logistic regression or Cox regression on complete columns.

    Args:
        penalizer: of lifelines' Cox regression, which is then used (the `survival` extra).
        firth: of a logistic regression, see `_logit`.
    """
    x, outcome, variance = design(formula, columns), [columns[p] for p in formula.outcome], 0.0
    r_squared = math.nan
    names = (*["(Intercept)"] * (x.shape[1] - len(formula.names)), *formula.names)
    center = np.zeros(x.shape[1])
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
    as_given, x = x, x / scale  # units may be far apart: cells per litre, moles per litre
    if formula.family == "ols":
        df = len(x) - x.shape[1]
        if df < 1:
            raise UserError(f"formula {formula.text!r}: {len(x)} rows for {x.shape[1]} regressors", hint="Use fewer.")
        inverse = np.linalg.inv(x.T @ x)
        beta = np.linalg.lstsq(x, outcome[0], rcond=None)[0]
        variance = float(((outcome[0] - x @ beta) ** 2).mean())
        covariance = inverse * variance * len(x) / df
        r_squared = 1 - variance / float(outcome[0].var() if formula.intercept else (outcome[0] ** 2).mean())
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
        df, center = int((event > 0).sum()) - x.shape[1], as_given.mean(0)
    beta, covariance = beta / scale, covariance / np.outer(scale, scale)
    reach = np.where((as_given == 1).all(0), 1.0, np.ptp(as_given, axis=0))
    return FormulaFit(
        formula=formula,
        names=names,
        beta=beta,
        covariance=covariance,
        rows=len(x),
        events=int((outcome[1] > 0).sum()) if formula.family == "cox" else None,
        df=max(df, 1),
        center=center,
        reach=reach,
        variance=variance,
        r_squared=r_squared,
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


def new_columns(formula: Formula, data: Any) -> list[np.ndarray]:
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
