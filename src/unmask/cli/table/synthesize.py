"""unmask synthesize MODEL --rows N --out F, and unmask augment MODEL TABLE --where EXPR --rows N --out F"""

from __future__ import annotations

import warnings

import typer

from unmask.cli import options
from unmask.cli.table.reading import read_for, table_model
from unmask.files import check_results


def synthesize(
    model: options.Model,
    rows: int = typer.Option(..., help="How many."),
    out: str = typer.Option(..., help="Where to write them, .csv, .tsv or .parquet."),
    where: list[str] = typer.Option([], help='Condition every row meets, e.g. "sex == 0 and age >= 70".'),
    constraint: list[str] = typer.Option([], help='Rule every row meets, e.g. "dbp < sbp", "a == 1 -> b == 0".'),
    temperature: float = typer.Option(1.0, help="Below 1 keeps to the common."),
    missing: bool = typer.Option(False, "--missing", help="Leave cells empty as often as the training table."),
    rare: str = typer.Option("drop", help="Levels that only a few training rows have: drop or keep."),
    extremes: str = typer.Option("pool", help="Values beyond those of a few training rows: pool or keep."),
    ids: str = typer.Option("none", help="new: identifier columns with fresh values S1, S2, ..."),
    escape_formulas: options.EscapeFormulas = False,
    seed: options.Seed = 0,
    json_: options.Json = False,
) -> None:
    """Draw new rows: every cell given those drawn before it, none copied from a real row."""
    from unmask.cli.common import Output
    from unmask.modalities.table.synthesis.synthesize import synthesize as run
    from unmask.modalities.table.writing.writers import write_table

    output = Output(json_, seed)
    check_results([out], [])
    loaded = table_model(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are in the result
        made = run(
            loaded,
            rows,
            where=where,
            constraints=constraint,
            seed=seed,
            temperature=temperature,
            missing=missing,
            rare=rare,
            extremes=extremes,
            ids=ids,
        )
    write_table(made.table, out, escape_formulas=escape_formulas)
    found = {"out": out, "rows": rows, "where": where, "warnings": made.warnings, "notes": list(made.notes)}
    lines = [f"{rows} rows: {out}", *(f"warning: {w}" for w in made.warnings), *(f"note: {n}" for n in made.notes)]
    output.write(found, lines)


def generate(
    model: options.Model,
    number: int = typer.Option(1, min=1, help="How many."),
    out: str = typer.Option(..., help="Where to write them, .csv, .tsv or .parquet."),
    temperature: float = typer.Option(1.0, help="Below 1 keeps to the common."),
    escape_formulas: options.EscapeFormulas = False,
    seed: options.Seed = 0,
    json_: options.Json = False,
) -> None:
    """Draw new rows of a table: `unmask synthesize`, which has more options, by the name that texts are drawn by."""
    synthesize(
        model, number, out, [], [], temperature, missing=False, rare="drop", extremes="pool", ids="none",
        escape_formulas=escape_formulas, seed=seed,
        json_=json_,
    )  # fmt: skip


def augment(
    model: options.Model,
    table: str = typer.Argument(..., help="The training part, which the model was fitted on."),
    where: list[str] = typer.Option(..., help='The stratum, e.g. "sex == 0".'),
    rows: int = typer.Option(..., help="Synthetic patients to add."),
    out: str = typer.Option(..., help="Where to write the table with them below, marked in `synthetic`."),
    constraint: list[str] = typer.Option([], help="Rule every new row meets."),
    escape_formulas: options.EscapeFormulas = False,
    missing: options.Missing = [],
    decimal: options.Decimal = None,
    encoding: options.Encoding = None,
    sheet: options.Sheet = None,
    seed: options.Seed = 0,
    json_: options.Json = False,
) -> None:
    """Add synthetic patients to a stratum of the training data."""
    from unmask.cli.common import Output
    from unmask.modalities.table.synthesis.synthesize import augmented
    from unmask.modalities.table.writing.writers import write_table

    output = Output(json_, seed)
    check_results([out], [table])
    loaded = table_model(model)
    frame = read_for(loaded, table, missing, decimal, encoding, sheet)
    whole, new = augmented(loaded, frame, where, rows, seed, constraint)
    write_table(whole, out, escape_formulas=escape_formulas)
    found = {"out": out, "rows": len(whole), "added": len(new), "where": where}
    output.write(found, [f"{len(new)} synthetic rows added to {len(whole) - len(new)}: {out}"])
