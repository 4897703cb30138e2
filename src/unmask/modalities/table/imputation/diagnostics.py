"""Looking at a multiple imputation: whether its chains have converged, and imputed values beside observed ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from unmask.modalities.table.imputation.multiple import MultipleImputation

CHAINS = 8
"""Chains drawn in a trace plot."""


def diagnostics(done: MultipleImputation) -> list[dict[str, Any]]:
    """One record per imputed column.

    Keys: column, method, why (where the data chose the method), missing (share), r_hat (of the mean of imputed values;
    near 1 when the chains have mixed; None for a single round, whose draws are independent), and observed_ and imputed_
    mean, deviation, low and high of a quantity. For a category: observed and imputed, the share of each level. Imputed
    values may differ from observed ones: under missing at random they should, where who is missing differs.
    """
    out = []
    schema = done.schema_
    for number, name in enumerate(done.incomplete_):
        place = schema.place(name)
        column = schema.columns[schema.modelled[place]]
        filled = done._gaps[place]
        record: dict[str, Any] = {
            "column": name, "method": done.methods_[name], "why": done.reasons_.get(name),
            "missing": float(filled.mean()), "r_hat": r_hat(done.trace_[:, :, number, 0]),
        }  # fmt: skip
        seen = done._values[0][place][~done._gone[place]]
        drawn = np.concatenate([columns[place][filled] for columns in done._values])
        for kind, x in (("observed", seen), ("imputed", drawn)):
            if column.is_quantity:
                figures = (x.mean(), x.std(), x.min(), x.max()) if len(x) else (np.nan,) * 4
                names = ("mean", "deviation", "low", "high")
                record |= {f"{kind}_{k}": float(v) for k, v in zip(names, figures, strict=True)}
            else:
                share = np.bincount(x.astype(int), minlength=len(column.categories)) / max(len(x), 1)
                record[kind] = dict(zip(column.categories, share.tolist(), strict=True))
        out.append(record)
    return out


def r_hat(traces: np.ndarray) -> float | None:
    """Potential scale reduction over the second half of (chains, rounds), each chain cut in two (Gelman et al. 2013, 11.4)."""
    half = traces[:, traces.shape[1] // 2 :]
    length = half.shape[1] // 2
    if length < 2 or not np.isfinite(half).all():
        return None
    parts = half[:, : 2 * length].reshape(-1, length)
    within = parts.var(1, ddof=1).mean()
    if within <= 0:
        return 1.0
    return float(np.sqrt((length - 1) / length + parts.mean(1).var(ddof=1) / within))


def write_report(done: MultipleImputation, path: str | Path) -> Path:
    """An HTML page: what was done, convergence, imputed beside observed, and trace plots of every column."""
    from unmask.evaluation.charts import line_chart, table
    from unmask.evaluation.report import Report

    records = diagnostics(done)
    page = Report("Multiple imputation", f"{done.draws} completed tables")
    page.facts({"tables": done.draws, "rounds": done.trace_.shape[1], "columns imputed": len(records)})
    page.section("What was done", "\n\n".join(done.notes_) or "Nothing to note.")
    about = [
        [r["column"], r["method"], r["why"] or "asked for, or by its kind", r["missing"], r["r_hat"]] for r in records
    ]
    page.section(
        "Columns", table(["column", "method", "why", "share missing", "R-hat"], about),
        note="R-hat compares chains: below about 1.1 they have mixed. With few rounds it is rough.",
    )  # fmt: skip
    rows = []
    for r in records:
        if "observed_mean" in r:
            rows.append([r["column"], *(r[f"{k}_{v}"] for k in ("observed", "imputed") for v in ("mean", "deviation"))])
        else:
            rows += [[f"{r['column']} = {v}", r["observed"][v], None, r["imputed"][v], None] for v in r["observed"]]
    heads = ["column or level", "observed mean or share", "deviation", "imputed mean or share", "deviation"]
    page.section(
        "Observed and imputed", table(heads, rows),
        note="They may differ: under missing at random, who is missing differs from who is not.",
    )  # fmt: skip
    page.section("Traces", "Mean of the imputed values by round; chains should cross and show no trend.")
    for number, r in enumerate(records):
        traces = done.trace_[:CHAINS, :, number, 0]
        if traces.shape[1] > 1 and np.isfinite(traces).all():
            at = np.arange(1, traces.shape[1] + 1)
            lines = {f"table {k + 1}": (at, t) for k, t in enumerate(traces)}
            page.chart(line_chart(lines, f"{r['column']}: mean", "round", "mean of imputed values"))
    return page.write(path)


__all__ = ["diagnostics", "r_hat", "write_report"]
