"""A formula fitted to one completed table."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unmask.errors import UserError, option
from unmask.modalities.table.imputation.formula import Formula, finite_design, refuse_impossible_outcome
from unmask.modalities.table.imputation.grouped_fit import Grouping, mixed_model, robust
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.schema.schema import Schema
from unmask.modalities.table.schema.values import encode


@dataclass(frozen=True, kw_only=True)
class FormulaFit:
    """A formula fitted to one completed table.

    Attributes:
        rows, events: of the table; events that are analysed of a survival pair, else None.
        df: degrees of freedom left: rows (events of a survival pair) less parameters.
        degrees: those of each estimate, where they differ, as in a mixed model; else `df`.
        center: (regressors,) subtracted before predicting; zeros where the regression has a constant.
        reach: (regressors,) largest less smallest value.
        nuisance: see `families.Fit`.
        r_squared: the share of the variance of the outcome that least squares explains; else NaN.
        grouping: the clusters that the analysis knows of.
        variances: of a mixed model, by name.
    """

    formula: Formula
    names: tuple[str, ...]
    beta: np.ndarray
    covariance: np.ndarray
    rows: int
    events: int | None
    df: float
    degrees: float | np.ndarray
    center: np.ndarray
    reach: np.ndarray
    nuisance: float = 0.0
    r_squared: float = math.nan
    grouping: Grouping | None = None
    variances: Mapping[str, float] = field(default_factory=dict)

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
        own = slice(0, x.shape[1])  # no thresholds
        offset = self.formula.response(columns).offset if self.formula.offsets else 0.0
        return x @ self.beta[own] + offset, np.sqrt(np.maximum(((x @ self.covariance[own, own]) * x).sum(1), 0))


def design(formula: Formula, columns: Sequence[np.ndarray]) -> np.ndarray:
    """(rows, regressors) of complete columns, with the constant in front where the regression has one."""
    x = finite_design(formula, columns)
    return np.hstack([np.ones((len(x), 1)), x]) if formula.model.constant and formula.intercept else x


def log_likelihood(formula: Formula, columns: Sequence[np.ndarray], beta: np.ndarray, nuisance: float) -> float:
    """Of coefficients on complete columns; see `families.Family.log_likelihood`."""
    return formula.model.log_likelihood(design(formula, columns), formula.response(columns), beta, nuisance)


def fit_formula(
    formula: Formula,
    columns: Sequence[np.ndarray],
    *,
    penalizer: float = 0.0,
    firth: bool = False,
    grouping: Grouping | None = None,
) -> FormulaFit:
    """The regression of a formula on complete columns.

    Args:
        penalizer: of lifelines' Cox regression, which is then used (the `survival` extra).
        firth: of a logistic regression, see `families.Logistic`.
        grouping: clusters, for random effects of least squares, or for robust standard errors.
    """
    x = design(formula, columns)
    if any(np.isnan(columns[p]).any() for p in formula.outcome):
        raise UserError(f"formula {formula.text!r}: the outcome is empty in some rows", hint="Leave those rows out.")
    refuse_impossible_outcome(formula, columns)
    response = formula.response(columns)
    if response.causes > 1 and not formula.cause:
        event = formula.schema.column(formula.outcome[1])
        raise UserError(
            f"formula {formula.text!r}: {event.name!r} has competing causes",
            hint=f"Give {option('cause')}, one of {', '.join(event.categories[1:])}.",
        )
    names = (*["(Intercept)"] * (x.shape[1] - len(formula.names)), *formula.names, *formula.thresholds)
    constant = formula.model.constant
    centred = x if constant else x - x.mean(0)
    scale = np.sqrt((centred**2).sum(0))
    if not x.shape[1]:
        raise UserError(f"formula {formula.text!r}: no terms", hint=f"A {formula.model.title} needs a covariate.")
    if (scale == 0).any() or np.linalg.cond(centred / scale) > 1e9:
        flat = [n for n, s in zip(names, scale, strict=False) if s == 0]
        what = f"{flat[0]!r} does not vary" if flat else "the regressors are collinear"
        raise UserError(f"formula {formula.text!r}: {what}", hint="Leave a term out.")
    degrees: float | np.ndarray | None = None
    variances: dict[str, float] = {}
    try:  # units may be far apart: cells per litre, moles per litre
        if grouping is not None and grouping.random is not None:
            found, degrees, variances = mixed_model(grouping, x / scale, response.y, design(grouping.random, columns))
        else:
            found = formula.model.fit(x / scale, response, firth=firth, penalizer=penalizer)
        if grouping is not None and grouping.random is None:
            found = robust(grouping.clusters, formula.model, found, x / scale, response)
    except UserError as error:
        raise UserError(f"formula {formula.text!r}: {error.what}", hint=error.hint) from None
    r_squared = math.nan
    if formula.family == "ols":
        y = response.y
        r_squared = 1 - found.nuisance / float(y.var() if formula.intercept else (y**2).mean())
    scale = np.r_[scale, np.ones(len(formula.thresholds))]
    reach = np.where((x == 1).all(0), 1.0, np.ptp(x, axis=0))
    return FormulaFit(
        formula=formula,
        names=names,
        beta=found.beta / scale,
        covariance=found.covariance / np.outer(scale, scale),
        rows=len(x),
        events=int(response.happened.sum()) if formula.survival else None,
        df=max(found.df, 1),
        degrees=max(found.df, 1) if degrees is None else degrees,
        center=np.zeros(x.shape[1]) if constant else x.mean(0),
        reach=np.r_[reach, np.ones(len(formula.thresholds))],
        nuisance=found.nuisance,
        r_squared=r_squared,
        grouping=grouping,
        variances=variances,
    )


def new_columns(formula: Formula, data: Any) -> list[np.ndarray]:
    """Coded columns of new rows; only those of the formula are asked for."""
    frame = read_frame(data)
    if not len(frame):
        raise UserError(f"{frame.source}: no rows to predict", hint="Give the new rows, with the formula's columns.")
    places = sorted({*formula.covariates, *(p for f in formula.offsets for p in f.places)})
    named = [dataclasses.replace(formula.schema.column(p), structural=None) for p in places]
    found = encode(frame, Schema(columns=tuple(named), missing=formula.schema.missing))
    out: list[np.ndarray] = [np.zeros(len(frame))] * len(formula.schema.modelled)
    for place, column, x in zip(places, named, found, strict=True):
        if np.isnan(x).any():
            raise UserError(
                f"{frame.source}, column {column.name!r}, row {frame.row_name(int(np.isnan(x).argmax()))}: no value to "
                "predict from",
                hint="Impute the new rows first.",
            )
        out[place] = x
    return out
