"""`unmask demo table`: punch holes in a survival study, impute them with intervals, synthesise it, compare hazard
ratios."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.modalities.table.evaluate import add_sections, compare, complete
from unmask.modalities.table.model import TableModel
from unmask.modalities.table.pretrain import pretrain, write_report
from unmask.modalities.table.recipes import settings_of
from unmask.modalities.table.writing.writers import write_table
from unmask.writing import demo_folder, replace_json

HOLES = 0.2


def load_study() -> Any:
    """The German breast cancer study (686 patients; ships with lifelines), as a polars table."""
    try:
        from lifelines.datasets import load_gbsg2
    except ImportError:
        raise UserError("the table demo needs lifelines", hint="pip install 'unmask[survival]'") from None
    import polars as pl

    return pl.DataFrame({k: v.to_list() for k, v in load_gbsg2().items()})


def run_demo(
    out: str | Path = "demo-table", *, minutes: float | None = None, seed: int = 0, console: bool = True
) -> dict[str, Any]:
    """Fit, impute, synthesise, compare, and write report.html; under two minutes on two cores. `minutes`: not used: the
    fit's length follows from the table."""
    study = load_study()
    out = demo_folder(out)
    start = time.perf_counter()
    holed, removed = punch(study, seed)
    write_table(holed, out / "with-holes.csv")
    run = pretrain(
        holed, out / "model", duration="time", event="cens", settings=settings_of(seed=seed), console=console
    )
    model = run.model
    filled = model.impute(holed)
    write_table(filled, out / "imputed.csv")
    records = model.intervals(holed, coverage=0.9).to_dicts()
    table, inside = judged(study, holed, filled, records, removed)
    real = complete(model, study, seed)
    synthetic = model.synthesize(study.height, seed=seed)
    write_table(synthetic, out / "synthetic.csv")
    drawn = [np.nan_to_num(c) for c in complete(model, synthetic, seed)]
    found = compare(model, real, drawn, seed=seed)
    report = show(model, out, study, table, inside, found, real, drawn, records)
    figures = {
        "imputed": table,
        "interval_coverage": inside,
        "cells": len(records),
        "rows": study.height,
        **{k: v for k, v in found.items() if isinstance(v, float | int)},
        "work_seconds": round(time.perf_counter() - start, 1),
    }
    replace_json(out / "demo.json", figures | {"hazard_ratios": found["hazard_ratios"]})
    lines = [
        f"{len(records)} hidden cells imputed; {inside:.0%} of the true numbers lie in their 90 % intervals",
        better_than_plain(table),
        f"hazard ratios, real against synthetic: mean difference of logs {found['mean_log_hr_difference']:.3f} "
        f"(another sample of patients: {found['ceiling']['mean_log_hr_difference']:.3f}, "
        f"columns shuffled: {found['floor']['mean_log_hr_difference']:.3f}); lower is better",
    ]
    return figures | {"lines": lines, "report": str(report), "device": "cpu", "precision": "fp32"}


def punch(study: Any, seed: int) -> tuple[Any, dict[str, np.ndarray]]:
    """Hide a fifth of the covariates' cells at random; (table, column -> which cells)."""
    import polars as pl

    rng = np.random.default_rng(seed)
    removed = {name: rng.random(study.height) < HOLES for name in study.columns if name not in ("time", "cens")}
    holed = study.with_columns(
        pl.when(pl.Series(hit)).then(None).otherwise(pl.col(name)).alias(name) for name, hit in removed.items()
    )
    return holed, removed


def judged(
    study: Any, holed: Any, filled: Any, records: list[dict[str, Any]], removed: dict[str, np.ndarray]
) -> tuple[list[dict[str, Any]], float]:
    """Per column how far the imputed values are from the truth, beside mean or mode; and coverage of the intervals."""
    rows, hits = [], []
    truth = {name: study[name].to_list() for name in study.columns}
    for name, hit in removed.items():
        if study[name].dtype.is_numeric():
            t, f = (x[name].to_numpy()[hit].astype(float) for x in (study, filled))
            mean = float(np.mean(holed[name].drop_nulls().to_numpy()))
            measure, (ours, plain) = "RMSE", (float(np.sqrt(((t - x) ** 2).mean())) for x in (f, mean))
        else:
            t, f = (np.array(x[name].to_list())[hit] for x in (study, filled))
            mode = holed[name].drop_nulls().mode()[0]
            measure, (ours, plain) = "wrong", (float((t != x).mean()) for x in (f, mode))
        rows.append({"column": name, "measure": measure, "ours": ours, "plain": plain})
    for r in records:
        if r["low"] is not None:
            hits.append(r["low"] <= truth[r["column"]][r["row"]] <= r["high"])
    return rows, float(np.mean(hits))


def show(
    model: TableModel,
    out: Path,
    study: Any,
    imputed: list[dict[str, Any]],
    inside: float,
    found: dict[str, Any],
    real: Any,
    drawn: Any,
    records: list[dict[str, Any]],
) -> Path:
    """report.html of the demo."""
    from unmask.evaluation.charts import table
    from unmask.evaluation.report import Report

    write_report(model, out / "model")
    report = Report("A survival study with holes, filled and synthesised", "unmask demo table")
    report.facts(
        {
            "Patients": study.height,
            "Cells hidden": len(records),
            "Truth in 90 % interval": f"{inside:.1%}",
            "|Δ log HR|": f"{found['mean_log_hr_difference']:.3f}",
            "Kaplan-Meier area": f"{found['km_area']:.3f}",
            "Fit": f"{model.facts['seconds']:.1f} s",
        }
    )
    foretold = {f["column"]: f["sentence"] for f in model.facts["columns_imputed"]}
    rows = [(r["column"], r["measure"], r["ours"], r["plain"], foretold.get(r["column"])) for r in imputed]
    report.section(
        "Imputed",
        table(("column", "measure", "unmask", "mean or mode", "what the fit said beforehand"), rows),
        note=f"Lower is better. {behind(imputed)}The last column is the verdict of the fit, from cells that it hid "
        "itself and without the truth that is used here: it stands in every fit's report.",
    )
    cells = [(r["row"] + 1, r["column"], study[r["column"]][r["row"]], *shown_value(r)) for r in records[:24]]
    report.section("Cells", table(("row", "column", "truth", "imputed", "90 % interval, or probability"), cells))
    add_sections(report, model, found, real, drawn)
    return report.of_model(out / "model").write(out / "report.html")


def better_than_plain(imputed: list[dict[str, Any]]) -> str:
    """In how many columns imputed values are nearer to the truth than the mean or mode, and why not in the others."""
    better = sum(r["ours"] < r["plain"] for r in imputed)
    return f"nearer to the truth than the mean or mode in {better} of {len(imputed)} columns. {behind(imputed)}".strip()


def behind(imputed: list[dict[str, Any]]) -> str:
    """A sentence on the columns whose imputed values are further from the truth than the mean or mode; ""
    without any."""
    names = [r["column"] for r in imputed if r["ours"] > r["plain"]]
    if not names:
        return ""
    return (
        f"The mean or mode was nearer to the truth for {', '.join(names)}: the other columns say next to nothing "
        "there, and what little they seem to say is as often chance. "
    )


def shown_value(record: dict[str, Any]) -> tuple[Any, str]:
    """(imputed value, how sure it is) of a cell, for people."""
    if record["category"] is not None:
        return record["category"], f"{record['probability']:.0%}"
    return record["value"], f"{record['low']:g} to {record['high']:g}"
