"""Looking at a multiple imputation: whether its chains have converged, and imputed values beside observed ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unmask.modalities.table.schema.schema import Column

CHAINS = 8
"""Chains drawn in a trace plot."""


@dataclass(frozen=True, kw_only=True)
class ImputedColumn:
    """A column that was imputed in every table.

    Attributes:
        method, why: of its imputation; `why` where the data chose it.
        missing: share of the rows whose cell was imputed.
        observed: (rows,) observed values (category numbers).
        imputed: (tables x rows,) imputed values of all tables.
        trace: (tables, rounds) mean of the imputed values in every round of each chain.
    """

    column: Column
    method: str
    why: str | None
    missing: float
    observed: np.ndarray
    imputed: np.ndarray
    trace: np.ndarray


def diagnostics(columns: Sequence[ImputedColumn]) -> list[dict[str, Any]]:
    """One record per imputed column.

    Keys: column, method, why (where the data chose the method), missing (share), r_hat (of the mean of imputed values;
    near 1 when the chains have mixed; None for a single round, whose draws are independent), and observed_ and imputed_
    mean, deviation, low and high of a quantity. For a category: observed and imputed, the share of each level. Imputed
    values may differ from observed ones: under missing at random they should, where who is missing differs.
    """
    out = []
    for one in columns:
        record: dict[str, Any] = {
            "column": one.column.name,
            "method": one.method,
            "why": one.why,
            "missing": one.missing,
            "r_hat": r_hat(one.trace),
        }
        for kind, x in (("observed", one.observed), ("imputed", one.imputed)):
            if one.column.is_quantity:
                figures = (x.mean(), x.std(), x.min(), x.max()) if len(x) else (np.nan,) * 4
                names = ("mean", "deviation", "low", "high")
                record |= {f"{kind}_{k}": float(v) for k, v in zip(names, figures, strict=True)}
            else:
                share = np.bincount(x.astype(int), minlength=len(one.column.categories)) / max(len(x), 1)
                record[kind] = dict(zip(one.column.categories, share.tolist(), strict=True))
        out.append(record)
    return out


def r_hat(traces: np.ndarray) -> float | None:
    """Potential scale reduction over the second half of (chains, rounds), each chain cut in two (Gelman et al. 2013,
    11.4)."""
    half = traces[:, traces.shape[1] // 2 :]
    length = half.shape[1] // 2
    if length < 2 or not np.isfinite(half).all():
        return None
    parts = half[:, : 2 * length].reshape(-1, length)
    within = parts.var(1, ddof=1).mean()
    if within <= 0:
        return 1.0
    return float(np.sqrt((length - 1) / length + parts.mean(1).var(ddof=1) / within))


def write_report(
    path: str | Path, columns: Sequence[ImputedColumn], *, tables: int, rounds: int, notes: Sequence[str]
) -> Path:
    """An HTML page: what was done, convergence, imputed beside observed, and trace plots of every column.

    Args:
        tables, rounds: how many were completed, after how many rounds each.
        notes: what was done that is not obvious.
    """
    from unmask.evaluation.charts import line_chart, table
    from unmask.evaluation.report import Report

    records = diagnostics(columns)
    page = Report("Multiple imputation", f"{tables} completed tables")
    page.facts({"tables": tables, "rounds": rounds, "columns imputed": len(records)})
    page.section("What was done", "\n\n".join(notes) or "Nothing to note.")
    about = [
        [r["column"], r["method"], r["why"] or "asked for, or by its kind", r["missing"], r["r_hat"]] for r in records
    ]
    page.section(
        "Columns",
        table(["column", "method", "why", "share missing", "R-hat"], about),
        note="R-hat compares chains: below about 1.1 they have mixed. With few rounds it is rough.",
    )
    rows = []
    for r in records:
        if "observed_mean" in r:
            rows.append([r["column"], *(r[f"{k}_{v}"] for k in ("observed", "imputed") for v in ("mean", "deviation"))])
        else:
            rows += [[f"{r['column']} = {v}", r["observed"][v], None, r["imputed"][v], None] for v in r["observed"]]
    heads = ["column or level", "observed mean or share", "deviation", "imputed mean or share", "deviation"]
    page.section(
        "Observed and imputed",
        table(heads, rows),
        note="They may differ: under missing at random, who is missing differs from who is not.",
    )
    page.section("Traces", "Mean of the imputed values by round; chains should cross and show no trend.")
    for one in columns:
        traces = one.trace[:CHAINS]
        if traces.shape[1] > 1 and np.isfinite(traces).all():
            at = np.arange(1, traces.shape[1] + 1)
            lines = {f"table {k + 1}": (at, t) for k, t in enumerate(traces)}
            page.chart(line_chart(lines, f"{one.column.name}: mean", "round", "mean of imputed values"))
    return page.use(_use(tables), heading="Use these tables").write(path)


def _use(tables: int) -> Any:
    """How the completed tables are analysed together."""
    from unmask.evaluation.card import Use

    code = (
        "from unmask.table import MultipleImputation\n\n"
        f'done = MultipleImputation({tables}).fit("table.csv")\n'
        'done.pool("y ~ x + z")           # one estimate per term by Rubin\'s rules; .low, .high: 95 % intervals\n'
        "done.pool(lambda table: ...)     # any analysis of one table that gives estimates and standard errors"
    )
    said = (
        f"Analyse each of the {tables} tables by itself and pool the results. One of them alone, or their mean, has "
        "standard errors that are too small."
    )
    return Use(commands=(), python=code, without_unmask=said).html()


__all__ = ["ImputedColumn", "diagnostics", "r_hat", "write_report"]
