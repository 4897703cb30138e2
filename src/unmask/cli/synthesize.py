"""unmask synthesize MODEL --rows N --out F [--where EXPR]..."""

from __future__ import annotations

from typing import Any

import typer

from unmask.cli import options


def register(app: Any) -> None:
    @app.command("synthesize")
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
        seed: options.Seed = 0,
        json_: options.Json = False,
    ) -> None:
        """Draw new rows: every cell given those drawn before it, none copied from a real row."""
        from unmask.cli.common import Output
        from unmask.cli.table import synthesize_table

        output = Output(json_, seed)
        output.write(
            *synthesize_table(model, rows, out, where, constraint, temperature, missing, seed, rare, extremes, ids)
        )
