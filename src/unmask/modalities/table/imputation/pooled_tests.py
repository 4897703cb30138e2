"""Tests of several coefficients at once over m completed tables: D1, D2 and D3, as papers and R's mice call them.

| method | compares | choose it |
|---|---|---|
| D1 | pooled estimates with 0, by their covariance (Wald) | by default; it allows for small samples |
| D2 | a chi-squared statistic of each table | where nothing else is there: it has the least power |
| D3 | likelihoods at the estimates of each table, and at the pooled ones | where Wald fails: large odds ratios |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from unmask.errors import UserError
from unmask.evaluation.shown import Printed, Shown
from unmask.modalities.table.imputation.formula_fit import FormulaFit

METHODS = {
    "D1": "Wald test (D1: Li, Raghunathan & Rubin 1991; Reiter 2007)",
    "D2": "pooled chi-squared statistics (D2: Li, Meng, Raghunathan & Rubin 1991)",
    "D3": "likelihood-ratio test (D3: Meng & Rubin 1992)",
}


@dataclass(frozen=True, kw_only=True, repr=False)
class PooledTest(Printed):
    """A test that several coefficients are 0, pooled over m completed tables.

    Attributes:
        method: "D1", "D2" or "D3".
        names: the coefficients.
        statistic, df1, df2, p: F statistic, its degrees of freedom, and the probability beyond it.
        riv: relative increase in variance due to missing values, on average over the coefficients.
        draws: m.
    """

    method: str
    names: tuple[str, ...]
    statistic: float
    df1: int
    df2: float
    p: float
    riv: float
    draws: int

    def shown(self) -> Shown:
        return Shown(
            title=f"{METHODS[self.method]}, pooled over {self.draws} completed tables",
            columns=("coefficients that are 0", "F", "df1", "df2", "p", "RIV"),
            rows=[(", ".join(self.names), self.statistic, self.df1, self.df2, self.p, self.riv)],
            formats={"p": lambda p: "<0.001" if p < 0.001 else f"{p:.3f}", "df2": lambda df: f"{df:,.1f}"},
        )


def coefficients(fits: Sequence[FormulaFit], names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """(m, k) estimates and (m, k, k) covariances of some coefficients of m fits."""
    places = [fits[0].names.index(name) for name in names]
    for fit in fits:
        if lost := [name for name, place in zip(names, places, strict=True) if fit.separated[place]]:
            raise UserError(f"{lost[0]!r} is not estimable (separation)", hint="Leave the term out.")
    return np.array([f.beta[places] for f in fits]), np.array([f.covariance[np.ix_(places, places)] for f in fits])


def wald_test(
    estimates: np.ndarray, covariances: np.ndarray, names: Sequence[str], *, complete_df: float = np.inf
) -> PooledTest:
    """D1: whether all of k coefficients are 0.

    The fraction of missing information is taken to be the same for all of them.

    Args:
        estimates, covariances: (m, k) and (m, k, k).
        complete_df: degrees of freedom without missing values; finite ones give Reiter's df2 for small samples.
    """
    m, k = estimates.shape
    mean, within = estimates.mean(0), covariances.mean(0)
    between = np.atleast_2d(np.cov(estimates.T))
    riv = (1 + 1 / m) * np.trace(np.linalg.solve(within, between)) / k
    statistic = float(mean @ np.linalg.solve(within, mean)) / (k * (1 + riv))
    t = k * (m - 1)
    df2 = _df(t, k, riv) if np.isinf(complete_df) or t <= 4 else _small_sample_df(t, riv, complete_df)
    return _test("D1", names, statistic, k, df2, riv, m)


def chi_squared_test(statistics: np.ndarray, names: Sequence[str]) -> PooledTest:
    """D2 of the chi-squared statistics of m tables, each with as many degrees of freedom as there are names."""
    m, k = len(statistics), len(names)
    riv = (1 + 1 / m) * np.sqrt(np.maximum(statistics, 0)).var(ddof=1)
    statistic = (statistics.mean() / k - (m + 1) / (m - 1) * riv) / (1 + riv)
    df2 = np.inf if riv == 0 else k ** (-3 / m) * (m - 1) * (1 + 1 / riv) ** 2
    return _test("D2", names, float(statistic), k, df2, riv, m)


def likelihood_ratio_test(own: np.ndarray, pooled: np.ndarray, names: Sequence[str]) -> PooledTest:
    """D3 of likelihood-ratio statistics.

    Args:
        own, pooled: (m,) twice the difference of log-likelihoods of each table, of both models at the estimates of that
            table, and at the pooled ones.
    """
    m, k = len(own), len(names)
    riv = max((m + 1) / (k * (m - 1)) * (own.mean() - pooled.mean()), 0.0)
    return _test("D3", names, float(pooled.mean()) / (k * (1 + riv)), k, _df(k * (m - 1), k, riv), riv, m)


def _df(t: float, k: int, riv: float) -> float:
    """Degrees of freedom of the denominator of D1 and D3; t: k (m - 1)."""
    if riv == 0:
        return np.inf
    if t > 4:
        return 4 + (t - 4) * (1 + (1 - 2 / t) / riv) ** 2
    return t * (1 + 1 / k) * (1 + 1 / riv) ** 2 / 2


def _small_sample_df(t: float, riv: float, complete_df: float) -> float:
    """Reiter 2007, equation 2 (Biometrika 94)."""
    a = riv * t / (t - 2)
    v = (complete_df + 1) / (complete_df + 3) * complete_df
    c0, c1, c2 = 1 / (t - 4), v - 2 * (1 + a), v - 4 * (1 + a)
    z = 1 / c2 + c0 * (a**2 * c1 / ((1 + a) ** 2 * c2))
    z += c0 * (8 * a**2 * c1 / ((1 + a) * c2**2) + 4 * a**2 / ((1 + a) * c2))
    z += c0 * (4 * a**2 / (c2 * c1) + 16 * a**2 * c1 / c2**3) + c0 * (8 * a**2 / c2**2)
    return 4 + 1 / z


def _test(
    method: str, names: Sequence[str], statistic: float, df1: int, df2: float, riv: float, draws: int
) -> PooledTest:
    p = float(stats.f.sf(statistic, df1, df2) if np.isfinite(df2) else stats.chi2.sf(statistic * df1, df1))
    return PooledTest(
        method=method,
        names=tuple(names),
        statistic=statistic,
        df1=df1,
        df2=float(df2),
        p=p,
        riv=float(riv),
        draws=draws,
    )
