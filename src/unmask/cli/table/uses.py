"""fill, score, embed and evaluate for a model of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from unmask.cli import options
from unmask.cli.common import Result, embedded, scores
from unmask.cli.table.impute import Drawing, Filling, impute_table
from unmask.cli.table.reading import TableReading, note_lines, table_model, warned_of
from unmask.errors import UserError
from unmask.files import check_results

SHOWN_ROWS = 20
"""Of the least natural rows, on the screen."""


def fill(
    model: options.Model,
    table: str = options.source("A table with empty cells.", stdin=".csv"),
    out: str = options.rows(".csv", "The filled table", None),
    draws: int = typer.Option(0, help="Completed tables to draw; 0: one of best values."),
    seed: options.Seed = 0,
) -> Result:
    """Fill the missing cells of a table; `unmask impute` has all the options for it."""
    if out is None:
        raise UserError("fill of a table without --out", hint="Say where to write it.")
    return impute_table(Filling(draws=draws), Drawing(seed=seed), TableReading(), model, table, out)


def score(
    reading: TableReading,
    model: options.Model,
    table: str = options.source("A table.", stdin=".csv"),
    absent: options.Absent = "",
) -> Result:
    """Pseudo-log-likelihood of rows: the higher, the more natural."""
    loaded = table_model(model)
    frame = reading.read_for(loaded, table)
    with warned_of() as messages:
        results = loaded.score(frame, absent=absent)
    return scores(loaded, results, score_lines(results), warnings=messages)


def score_lines(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """The least natural rows, by cell, and of each the cell that speaks most against it; --json has all, in order."""
    least = sorted((r for r in results if r["slots"]), key=lambda r: r["score"] / r["slots"])[:SHOWN_ROWS]
    lines = [f"{len(results):,} rows; the least natural, in nats per cell (higher is more natural; --json has all):"]
    for r in least:
        worst = r["least_likely"]
        lines.append(
            f"{r['score'] / r['slots']:10.3f}  {r['slots']:4d} cells  row {r['row']}  "
            f"least likely: {worst['column']} ({worst['log_probability']:.1f})"
        )
    return lines


def embed(
    model: options.Model,
    table: str = options.source("A table.", stdin=".csv"),
    out: str = typer.Option(..., help="Where to write the (rows, width) array, .npy."),
    absent: options.Absent = "",
) -> Result:
    """Embed the rows of a table, order kept."""
    check_results([out], [table])
    loaded = table_model(model)
    with warned_of() as messages:
        array = loaded.embed(table, absent=absent)
    return embedded(loaded, [array], len(array), out, warnings=messages)


def evaluate(
    reading: TableReading,
    model: options.Model,
    data: list[str] = options.source("Real rows to compare with, then the training rows if you have them."),
    rows: int = typer.Option(None, help="Synthetic rows to compare, default as many as real ones."),
    report: str = typer.Option(None, help="Where to write the HTML report."),
    seed: options.Seed = 0,
) -> Result:
    """Synthetic rows of the model beside real ones that it may or may not have seen."""
    from unmask.modalities.table.evaluate import evaluate_model

    if len(data) not in (1, 2):
        raise UserError(
            f"{len(data)} tables", hint="Give real rows to compare with, then the training rows if you have them."
        )
    check_results([report], data)
    loaded = table_model(model)
    real, train = reading.read_for(loaded, data[0]), reading.read(data[1]) if len(data) == 2 else None
    found = evaluate_model(loaded, real, train=train, rows=rows, seed=seed, report=report, folder=model)
    return Result(found, str(found).splitlines())


def synthesize(
    model: options.Model,
    rows: int = typer.Option(..., help="How many."),
    out: str = options.rows(".csv", "Where to write them, .csv, .tsv or .parquet"),
    where: list[str] = typer.Option([], help='Condition every row meets, e.g. "sex == 0 and age >= 70".'),
    constraint: list[str] = typer.Option([], help='Rule every row meets, e.g. "dbp < sbp", "a == 1 -> b == 0".'),
    temperature: float = typer.Option(1.0, help="Below 1 keeps to the common."),
    missing: bool = typer.Option(False, "--missing", help="Leave cells empty as often as the training table."),
    rare: str = typer.Option("drop", help="Levels that only a few training rows have: drop or keep."),
    extremes: str = typer.Option("pool", help="Values beyond those of a few training rows: pool or keep."),
    ids: str = typer.Option("none", help="new: identifier columns with fresh values S1, S2, ..."),
    escape_formulas: options.EscapeFormulas = False,
    seed: options.Seed = 0,
) -> Result:
    """Draw new rows: every cell given those drawn before it, none copied from a real row."""
    chosen = {"constraints": constraint, "missing": missing, "rare": rare, "extremes": extremes, "ids": ids}
    return _drawn(model, rows, out, escape_formulas, where=where, temperature=temperature, seed=seed, **chosen)


def generate(
    model: options.Model,
    number: int = typer.Option(1, min=1, help="How many."),
    out: str = options.rows(".csv", "Where to write them, .csv, .tsv or .parquet"),
    temperature: float = typer.Option(1.0, help="Below 1 keeps to the common."),
    escape_formulas: options.EscapeFormulas = False,
    seed: options.Seed = 0,
) -> Result:
    """Draw new rows of a table: `unmask synthesize`, which has more options, by the name that texts are drawn by."""
    return _drawn(model, number, out, escape_formulas, temperature=temperature, seed=seed)


def _drawn(model: str, rows: int, out: str, escape_formulas: bool, **chosen: Any) -> Result:
    from unmask.modalities.table.synthesis.synthesize import synthesize as run
    from unmask.modalities.table.writing.writers import check_format, write_table

    check_format(out)
    check_results([out], [])
    loaded = table_model(model)
    made = run(loaded, rows, warn=False, **chosen)
    write_table(made.table, out, escape_formulas=escape_formulas)
    notes, where = list(made.notes), chosen.get("where", [])
    found = {"out": out, "rows": rows, "where": where, "warnings": made.warnings, "notes": notes}
    lines = [f"{rows} rows: {out}", *(f"warning: {w}" for w in made.warnings), *note_lines(notes)]
    return Result(found, lines)


def augment(
    reading: TableReading,
    model: options.Model,
    table: str = options.source("The training part, which the model was fitted on.", stdin=".csv"),
    where: list[str] = typer.Option(..., help='The stratum, e.g. "sex == 0".'),
    rows: int = typer.Option(..., help="Synthetic patients to add."),
    out: str = options.rows(".csv", "Where to write the table with them below, marked in `synthetic`"),
    constraint: list[str] = typer.Option([], help="Rule every new row meets."),
    escape_formulas: options.EscapeFormulas = False,
    seed: options.Seed = 0,
) -> Result:
    """Add synthetic patients to a stratum of the training data."""
    from unmask.modalities.table.synthesis.synthesize import augmented
    from unmask.modalities.table.writing.writers import check_format, write_table

    check_format(out)
    check_results([out], [table])
    loaded = table_model(model)
    frame = reading.read_for(loaded, table)
    whole, new = augmented(loaded, frame, where, rows, seed, constraint)
    write_table(whole, out, escape_formulas=escape_formulas)
    found = {"out": out, "rows": len(whole), "added": len(new), "where": where}
    return Result(found, [f"{len(new)} synthetic rows added to {len(whole) - len(new)}: {out}"])
