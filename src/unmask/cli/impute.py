"""unmask impute MODEL TABLE --out F [--draws M]"""

from __future__ import annotations

from typing import Any

import typer

from unmask.cli import options


def register(app: Any) -> None:
    @app.command("impute")
    def impute(
        model: options.Model,
        table: str = typer.Argument(..., help="A .csv, .tsv or .parquet file; unknown columns pass through."),
        out: str = typer.Option(..., help="Where to write the filled table; with --draws, F-1.csv, F-2.csv, ..."),
        draws: int = typer.Option(0, help="0: one table of best values; M: as many completed tables, drawn."),
        intervals: str = typer.Option(
            None,
            help="Also write a CSV with a line per filled cell here: its interval, or the probability of every level.",
        ),
        coverage: float = typer.Option(0.9, help="Of the intervals."),
        shift: list[str] = typer.Option([], help="COLUMN=DELTA added to drawn values (not missing at random)."),
        unseen: str = typer.Option("error", help="A category the model does not know: error or missing."),
        constraint: list[str] = typer.Option(
            [],
            help='Rule that filled cells meet, e.g. "admission <= surgery <= discharge", "bmi := weight / height**2".',
        ),
        absent: options.Absent = "",
        add_absent: bool = typer.Option(False, "--add-absent", help="Write the lacking columns too, imputed."),
        missing: options.Missing = [],
        decimal: options.Decimal = None,
        encoding: options.Encoding = None,
        sheet: options.Sheet = None,
        seed: options.Seed = 0,
        json_: options.Json = False,
    ) -> None:
        """Fill the missing cells of a table; everything else is written as it was read."""
        from unmask.cli.common import Output
        from unmask.cli.table import impute_table

        output = Output(json_, seed)
        output.write(
            *impute_table(
                model,
                table,
                out,
                draws,
                intervals,
                coverage,
                shift,
                unseen,
                seed,
                absent,
                add_absent,
                constraint,
                missing,
                decimal,
                encoding,
                sheet,
            )
        )
