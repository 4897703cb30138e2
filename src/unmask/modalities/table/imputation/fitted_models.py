"""Estimates and predictions of one completed table, from models that other libraries fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from unmask.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Estimates:
    """What an analysis of one completed table gave."""

    names: tuple[str, ...] | None
    estimate: np.ndarray
    error: np.ndarray
    df: float | None = None


def estimates_of(found: Any) -> Estimates:
    """Estimates and standard errors from what an analysis returns.

    Known are: (estimates, errors), (estimates, errors, names), a mapping of name -> (estimate, error), a statsmodels
    result (`params`, `bse`; of MixedLM the fixed effects), and a fitted lifelines regression (`params_`,
    `standard_errors_`). Where both have names (pandas), the errors are put in the order of the estimates.
    """
    parts = found.values() if isinstance(found, Mapping) else found if isinstance(found, tuple | list) else ()
    for one in (found, *parts):
        if hasattr(one, "pvalue") or (isinstance(one, tuple) and type(one).__module__.startswith("scipy.")):
            raise UserError(
                f"an analysis returned a {type(one).__name__}: its fields are no estimate and its standard error",
                hint="Return these two: of a correlation r of n rows (r, (1 - r**2) / (n - 3) ** 0.5), to be pooled "
                "with scale='fisher'; of two groups the difference of their means; or give a formula, 'y ~ group'.",
            )
    if hasattr(found, "fe_params") and hasattr(found, "bse_fe"):  # statsmodels' MixedLM: variances have no such error
        fixed = found.fe_params
        return _estimates(fixed, found.bse_fe, names=None if hasattr(fixed, "index") else found.model.exog_names)
    if hasattr(found, "params") and hasattr(found, "bse"):
        df = float(found.df_resid) if getattr(found, "df_resid", None) is not None else None
        if np.ndim(found.params) > 1:
            return _of_equations(found, df)
        return _estimates(found.params, found.bse, df=df)
    if hasattr(found, "params_") and hasattr(found, "standard_errors_"):
        return _estimates(found.params_, found.standard_errors_)
    if hasattr(found, "coef_") or hasattr(found, "predict"):
        raise UserError(
            f"a {type(found).__name__} has no standard errors: Rubin's rules need them",
            hint="Return (estimates, errors), e.g. of a bootstrap; pool its predictions with "
            "MultipleImputation.predict(fit, new); or give a formula.",
        )
    if isinstance(found, Mapping):
        pairs = [tuple(np.ravel(v)) for v in found.values()]
        if not pairs or any(len(v) != 2 for v in pairs):
            raise UserError("an analysis returned a mapping", hint="Expected name -> (estimate, standard error).")
        estimate, error = np.array(pairs, float).T
        return Estimates(names=tuple(map(str, found)), estimate=estimate, error=error)
    if isinstance(found, Sequence | np.ndarray) and not isinstance(found, str) and len(found) in (2, 3):
        names: Any = found[2] if len(found) == 3 else None
        if np.ndim(names) == 0 and names is not None and not isinstance(names, str):
            raise UserError(f"an analysis returned {names!r} as names", hint="Expected a name for every estimate.")
        return _estimates(found[0], found[1], names=(names,) if isinstance(names, str) else names)
    raise UserError(
        f"an analysis returned a {type(found).__name__}",
        hint="Expected (estimates, standard errors), a statsmodels result or a fitted lifelines regression.",
    )


def aligned(found: Sequence[Estimates]) -> list[Estimates]:
    """Estimates of several tables in the order of the first one's names."""
    first, out = found[0], []
    for number, one in enumerate(found):
        place = _places(one.names, first.names)
        if place is None or len(one.estimate) != len(first.estimate):
            lacking = sorted(set(first.names or ()) ^ set(one.names or ()))
            raise UserError(
                f"completed table {number + 1} gave other estimates than table 1"
                + (f": {', '.join(map(repr, lacking))} only in one of them" if lacking else ""),
                hint="A level that some tables lack? Fix the categories, or merge rare levels.",
            )
        out.append(replace(one, names=first.names, estimate=one.estimate[place], error=one.error[place]))
    return out


def _places(names: Sequence[str] | None, order: Sequence[str] | None) -> Any:
    """Where each name of an order stands among others; None where they are not the same names, each once."""
    if names == order:
        return slice(None)
    if names is None or order is None or len(set(order)) < len(order) or sorted(names) != sorted(order):
        return None
    return [names.index(name) for name in order]


def _estimates(values: Any, errors: Any, *, names: Any = None, df: float | None = None) -> Estimates:
    """Estimates with their errors, one each, and a name of each where there are names."""
    own, of_errors = (tuple(map(_name, x.index)) if hasattr(x, "reindex") else None for x in (values, errors))
    place = _places(of_errors, own) if own and of_errors else slice(None)
    estimate, error = _flat(values), _flat(errors)
    named = tuple(map(_name, names)) if names is not None else own or of_errors
    covariance = np.ndim(values) < 2 and np.shape(errors) == (len(estimate), len(estimate))
    if place is None or covariance or not len(estimate) == len(error) == len(named or estimate):
        raise UserError(
            f"an analysis returned estimates {own or np.shape(values)}, standard errors "
            f"{of_errors or np.shape(errors)}" + ("" if names is None else f" and names {named}"),
            hint="Expected one standard error and one name per estimate; of a covariance matrix the roots of its "
            "diagonal, of a table with a column per equation x.stack().",
        )
    return Estimates(names=named, estimate=estimate, error=error[place], df=df)


def _of_equations(found: Any, df: float | None) -> Estimates:
    """A regression with a column of coefficients per equation (statsmodels' MNLogit and VAR): the names of both are in
    the index of its covariance, by equation or by term."""
    params, index = found.params, getattr(found.cov_params(), "index", ())
    values, errors = (np.asarray(x, float) for x in (params, found.bse))
    terms = np.broadcast_to(np.asarray(getattr(params, "index", None))[..., None], values.shape)
    for by_term, place in ((False, 1), (True, 0)):
        if [name[place] for name in index] == list((terms if by_term else terms.T).flat):
            return _estimates(*(x.ravel() if by_term else x.T.ravel() for x in (values, errors)), names=index, df=df)
    raise UserError(
        f"a {type(found).__name__} has {np.shape(params)} coefficients without names",
        hint="Fit it to a table with named columns (pandas), or return (estimates, errors, names).",
    )


def _name(name: Any) -> str:
    """Lifelines names the coefficients of parametric models by (parameter, covariate)."""
    return ":".join(map(str, name)) if isinstance(name, tuple) else str(name)


def _flat(values: Any) -> np.ndarray:
    return np.asarray(values, float).reshape(-1)


def are_shares(model: Any, values: Sequence[np.ndarray]) -> bool:
    """Whether a model's predictions are probabilities of an outcome that is 0 or 1."""
    outcome = getattr(getattr(model, "model", None), "endog", None)
    binary = outcome is not None and set(np.unique(np.asarray(outcome, float))) <= {0.0, 1.0}
    return binary and all(((v > 0) & (v < 1)).all() for v in values)


def predictions_of(model: Any, new: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """A fitted model's predictions of new rows and, where it gives them (statsmodels), their standard errors."""
    if hasattr(model, "get_prediction"):
        found = model.get_prediction(new)
        mean = found.predicted if hasattr(found, "predicted") else found.predicted_mean
        return _one_per_row(model, mean), _flat(found.se if hasattr(found, "se") else found.se_mean)
    for name in ("predict_proba", "predict"):
        if hasattr(model, name):
            values = np.asarray(getattr(model, name)(new), float)
            binary = name == "predict_proba" and values.ndim == 2 and values.shape[1] == 2
            return _one_per_row(model, values[:, -1] if binary else values), None
    raise UserError(f"a {type(model).__name__} cannot predict", hint="Expected a fitted model with a method predict.")


def _one_per_row(model: Any, values: Any) -> np.ndarray:
    if np.ndim(values) > 1 and np.shape(values)[1] > 1:
        raise UserError(
            f"a {type(model).__name__} predicts {np.shape(values)[1]} numbers per row",
            hint="Expected one: let the method `predict` of what `fit` returns give that of one category.",
        )
    return _flat(values)
