"""unmask augment MODEL TABLE --where EXPR --rows N --out F"""

from __future__ import annotations

from typing import Any

import typer

from unmask.cli import options


def register(app: Any) -> None:
    @app.command("augment")
    def augment(
        model: options.Model,
        table: str = typer.Argument(..., help="The training part, which the model was fitted on."),
        where: list[str] = typer.Option(..., help='The stratum, e.g. "sex == 0".'),
        rows: int = typer.Option(..., help="Synthetic patients to add."),
        out: str = typer.Option(..., help="Where to write the table with them below, marked in `synthetic`."),
        constraint: list[str] = typer.Option([], help="Rule every new row meets."),
        missing: options.Missing = [],
        decimal: options.Decimal = None,
        encoding: options.Encoding = None,
        sheet: options.Sheet = None,
        seed: options.Seed = 0,
        json_: options.Json = False,
    ) -> None:
        """Add synthetic patients to a stratum of the training data."""
        from unmask.cli.common import Output
        from unmask.cli.table import augment_table

        output = Output(json_, seed)
        written: dict[str, Any] = {"missing": missing, "decimal": decimal, "encoding": encoding, "sheet": sheet}
        output.write(*augment_table(model, table, where, rows, out, constraint, seed, **written))
