"""The model card of a table folder. Counts, kinds of columns and held-out errors; no level, no end of a range, no note
on cells: these are values of the rows."""

from __future__ import annotations

import math
from pathlib import Path

from unmask.evaluation.card import Card, Use, figures_of
from unmask.files import read_object
from unmask.modalities.table.fitting.imputation_quality import figure_texts

MOST_COLUMNS = 200
"""Columns listed on a card."""
LIMITS = (
    "The folder is not anonymous: it holds every level of its categories, the ends of its quantities and the names of "
    "all columns (`unmask inspect` lists what it holds). Keep it as you keep the rows.",
    "An imputed value is a prediction, not a measurement. Standard errors and tests need completed tables and Rubin's "
    "rules (`unmask impute --proper 20`), not one filled table.",
    "Missing cells are taken to be missing at random given the cells that are there. Where they are not, intervals are "
    "too narrow and off: try shifts (`--shift`).",
    "Synthetic rows add no information on patients, are not anonymous by themselves, and keep what is wrong with the "
    "rows they were learnt from. Effects that are not proportional hazards are not reproduced.",
    "Not a medical device.",
)


def card(files: Path, run: Path) -> Card:
    """The card of a table folder, by unmask.json and config.json."""
    about, config = read_object(files / "unmask.json") or {}, read_object(files / "config.json") or {}
    schema, facts = about.get("schema") or {}, about.get("facts") or {}
    columns = [c for c in schema.get("columns") or () if isinstance(c, dict)]
    history = [v for _, v in facts.get("history") or () if isinstance(v, int | float) and math.isfinite(v)]
    survival = [schema.get("duration"), schema.get("event")]
    data = [f"From {facts['source']}."] if facts.get("source") else []
    if isinstance(facts.get("rows"), int):
        missing = facts.get("missing")
        share = f", {missing:.1%} of the cells missing" if isinstance(missing, float) else ""
        data.append(f"{facts['rows']:,} rows of {len(columns)} columns{share}.")
    if all(survival):
        data.append(f"Follow-up time in {survival[0]!r}, the event in {survival[1]!r}.")
    judged = {f["column"]: f for f in facts.get("columns_imputed") or () if isinstance(f, dict) and "column" in f}
    rows = [["column", "kind", "levels", "held-out error", "of the mean or mode", "90 % intervals hold"]]
    for c in columns[:MOST_COLUMNS]:
        levels = str(len(c["categories"])) if c.get("categories") else ""
        shown = figure_texts(judged[c["name"]]) if c["name"] in judged else ("", "", "")
        rows.append([c["name"], str(c.get("kind", "")), levels, *shown])
    if len(columns) > MOST_COLUMNS:
        data.append(f"The first {MOST_COLUMNS} columns are listed.")
    points_only = config.get("network") == "filter"
    commands = [
        ("fill the gaps, and say how sure each cell is", "unmask impute MODEL new.csv --out f.csv --intervals c.csv"),
        ("rows that look like mistakes", "unmask score MODEL new.csv"),
    ]
    if not points_only:
        commands += [
            ("completed tables for Rubin's rules", "unmask impute MODEL new.csv --out completed.csv --proper 20"),
            ("new rows of the same kind", "unmask synthesize MODEL --rows 500 --out synthetic.csv"),
            ("how good such rows are, and what they give away", "unmask evaluate MODEL held-out.csv training.csv"),
        ]
    return Card(
        what="A masked model of a table: it fills missing cells with calibrated intervals"
        + (" (this recipe: point values alone)." if points_only else " and draws new rows."),
        tags=("tabular", "imputation", *(() if points_only else ("synthetic-data",)), *(["survival"] * all(survival))),
        data=data,
        figures=figures_of({"loss": min(history)}, ["loss"]) if history else [],
        judged_on="Mean over held-out cells, in nats per cell.",
        tables=[
            (
                "Columns",
                rows,
                "Lower errors are better; 90 % intervals should hold 90 %. Judged on cells hidden in rows that the "
                "member who imputes them never trained on. Levels and ranges are values of the rows and stand in the "
                "folder alone.",
            )
        ]
        if columns
        else [],
        settings={k: v for k, v in config.items() if k != "model_type"},
        limits=LIMITS,
        use=Use(
            commands=commands,
            python="import unmask\n\nmodel = unmask.load(MODEL)\nmodel.impute(table)\nmodel.intervals(table)",
            without_unmask="The folder is unmask's own; transformers does not load it.",
        ),
        shown=False,
    )
