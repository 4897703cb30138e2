"""Analyses that know of clusters: the linear mixed model by REML, and standard errors that are robust to clusters.

Equal to lme4's lmer, to sandwich's vcovCL and to survival's coxph(cluster=) (`tests/.../in_r/clustered.R`).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from unmask.errors import UserError, option, outside
from unmask.modalities.table.imputation.families import Family, Fit, Response
from unmask.modalities.table.imputation.formula import Formula
from unmask.modalities.table.imputation.formula_text import parse_formula
from unmask.modalities.table.imputation.mixed_models import GroupedRows
from unmask.modalities.table.schema.clusters import Clusters

_RANDOM = re.compile(r"\+?\s*\(([^()|]+)\|\s*(`[^`]+`|[^()|]+?)\s*\)")


def split_random(text: str) -> tuple[str, str | None, str | None]:
    """A formula without its random effects, these as terms, and the column of their clusters.

    >>> split_random("y ~ x + (1 + x | centre)")
    ('y ~ x', '1 + x', 'centre')
    """
    found = _RANDOM.findall(text)
    if not found and "|" not in text:
        return text, None, None
    if len(found) != 1 or "|" in (rest := _RANDOM.sub("", text)):
        raise UserError(
            f"formula {text!r}: {len(found)} groups of random effects",
            hint="One is fitted, such as (1 | centre) or (1 + time | patient); others by lme4 or statsmodels in a "
            "function that pool is given.",
        )
    rest = rest.strip()
    return (f"{rest} 1" if rest.endswith("~") else rest), found[0][0].strip(), found[0][1].strip("`")


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """The clusters that an analysis knows of.

    Attributes:
        name: of their column.
        random: the random effects, as the right-hand side of a formula; None for standard errors that are robust.
    """

    name: str
    clusters: Clusters
    random: Formula | None = None

    @property
    def words(self) -> str:
        if self.random is None:
            return f"standard errors robust to {len(self.clusters)} clusters of {self.name!r}"
        return f"random effects of {len(self.clusters)} clusters of {self.name!r}, by REML"


def grouping_of(
    formula: Formula,
    name: str | None,
    random: str | None,
    clusters: Callable[[str], Clusters],
    *,
    plain: bool = True,
) -> Grouping | None:
    """The clusters that an analysis knows of; a warning where rows have some and it, or imputation, does not.

    Args:
        name: of their column; None for none.
        random: the random effects, as terms.
        clusters: those that a column names.
        plain: the likelihood has no penalty.
    """
    schema, own = formula.schema, formula.schema.cluster
    if name is None:
        if own is not None:
            warnings.warn(
                f"{formula.text!r} takes rows for independent, and these are of clusters: add (1 | {own}) to a linear "
                f"model, or give {option('cluster', own)}",
                stacklevel=outside(),
            )
        return None
    if not plain:
        raise UserError(f"clusters of {name!r} with a penalised likelihood", hint="Leave the penalty out.")
    found = None
    if random is not None:
        found = parse_formula(f"`{schema.column(formula.outcome[0]).name}` ~ {random}", schema)
        if formula.family != "ols" or not found.intercept:
            what = "no intercept" if formula.family == "ols" else "an outcome that is no quantity"
            raise UserError(
                f"formula {formula.text!r}: random effects with {what}",
                hint="Linear mixed models with an intercept are fitted here. Of other outcomes: "
                f"{option('cluster', name)} for robust errors, or a function that fits statsmodels' GEE.",
            )
    if name != own:
        warnings.warn(
            f"imputation knew nothing of the clusters of {name!r}, so what these have in common is pulled towards "
            f"zero. Impute with {option('cluster', name)}",
            stacklevel=outside(),
        )
    return Grouping(name=name, clusters=clusters(name), random=found)


def robust(clusters: Clusters, model: Family, found: Fit, x: np.ndarray, r: Response) -> Fit:
    """The fit with a covariance that is right where rows are alike within clusters (Liang & Zeger 1986), and degrees of
    freedom between clusters. With the factors of sandwich's vcovCL; of a Cox regression none, as in survival."""
    summed, count = clusters.sums(model.scores(x, r, found)) @ found.covariance, len(clusters)
    factor = 1.0 if model.takes == "survival" else count / (count - 1)
    if model.name == "ols":
        factor *= (len(x) - 1) / found.df
    return found._replace(covariance=summed.T @ summed * factor, df=count - 1)


def mixed_model(
    grouping: Grouping, x: np.ndarray, y: np.ndarray, z: np.ndarray
) -> tuple[Fit, np.ndarray, dict[str, float]]:
    """The linear mixed model by restricted maximum likelihood, profiled to the relative factor of the random effects'
    covariance (Bates, Maechler, Bolker & Walker 2015, section 3).

    Args:
        z: (rows, effects), the first the constant.

    Returns:
        The fit; degrees of freedom of each estimate (between clusters of a regressor that is constant within them, else
        within: Schluchter & Elashoff 1990); the variances by name, with the intraclass correlation of a random
        intercept alone.
    """
    rows = GroupedRows(x, z, grouping.clusters.number)
    y = y[rows.order]
    xy, zy, yy = rows.x.T @ y, rows.sums(rows.z * y[:, None]), float(y @ y)
    effects, freedom = z.shape[1], len(y) - x.shape[1]
    lower = np.tril_indices(effects)
    diagonal = lower[0] == lower[1]

    def solved(theta: np.ndarray) -> tuple[float, np.ndarray, np.ndarray, float, np.ndarray]:
        factor = np.zeros((effects, effects))
        factor[lower] = np.where(diagonal, np.exp(theta), theta)
        inner = np.eye(effects) + factor.T @ rows.zz @ factor
        zx, own = factor.T @ rows.zx, zy @ factor
        gram = rows.xx - np.einsum("jqp,jqr->pr", zx, np.linalg.solve(inner, zx))
        weighed = np.linalg.solve(inner, own[:, :, None])[:, :, 0]
        right = xy - np.einsum("jqp,jq->p", zx, weighed)
        beta = np.linalg.solve(gram, right)
        rest = yy - float((own * weighed).sum()) - float(beta @ right)
        deviance = np.linalg.slogdet(inner)[1].sum() + np.linalg.slogdet(gram)[1] + freedom * np.log(rest)
        return float(deviance), beta, gram, rest / freedom, factor

    # The diagonal by its logarithm: the deviance is flat in it at 0, where a long first step would stay.
    ends, exact = [(-9.0, 9.0) if d else (None, None) for d in diagonal], {"ftol": 1e-15, "gtol": 1e-9, "maxiter": 1000}
    tried = [
        minimize(lambda t: solved(t)[0], diagonal * at, method="L-BFGS-B", bounds=ends, jac="3-point", options=exact)
        for at in (-0.5, -2.5)
    ]
    _, beta, gram, variance, factor = solved(min(tried, key=lambda t: t.fun).x)
    psi = variance * factor @ factor.T
    assert grouping.random is not None
    names = ["(Intercept)", *grouping.random.names]
    variances = {f"{grouping.name} {n}": float(v) for n, v in zip(names, np.diag(psi), strict=True)}
    variances["residual"] = variance
    if effects == 1:
        variances["ICC"] = float(psi[0, 0] / (psi[0, 0] + variance))
    clusters = grouping.clusters
    upper = np.abs(x - clusters.means(x)[clusters.number]).max(0) < 1e-9
    within, between = len(y) - len(clusters) - int((~upper).sum()), len(clusters) - int(upper.sum())
    degrees = np.where(upper, max(between, 1), max(within, 1)).astype(float)
    return Fit(beta, np.linalg.inv(gram) * variance, freedom, variance), degrees, variances
