"""unmask impute MODEL TABLE --out F [--draws M]"""

from __future__ import annotations

from typing import Any

import typer

from unmask.cli import options


def register(app: Any) -> None:
    @app.command("impute")
    def impute(
        model: str = typer.Argument(..., help="A model folder; with --proper the table itself, if there is no model."),
        table: str = typer.Argument(None, help="A .csv, .tsv or .parquet file; unknown columns pass through."),
        out: str = typer.Option(..., help="Where to write the filled table; with several, F-1.csv, F-2.csv, ..."),
        draws: int = typer.Option(
            0,
            help="0: one table of best values; M: as many drawn from the one fitted model. For Rubin's rules use "
            "--proper.",
        ),
        proper: int = typer.Option(
            0, help="M completed tables for Rubin's rules: multiple imputation, fitted to this table."
        ),
        formula: str = typer.Option(None, help="With --proper, the analysis to agree with: 'y ~ x + I(x**2) + x:z'."),
        method: list[str] = typer.Option([], help="With --proper: COLUMN=norm, pmm, logreg, polyreg, polr or sample."),
        duration: str = typer.Option(None, help="With --proper and no model: column of follow-up time."),
        event: str = typer.Option(
            None,
            help="With --proper and no model: column of the event: 0/1, yes/no, 1/2, alive/dead; 0/1/2: causes.",
        ),
        event_level: list[str] = typer.Option(
            [], help="With --proper and no model: level at which the event happened; once per cause."
        ),
        entry: str = typer.Option(
            None, help="With --proper and no model: column of the times from which rows are at risk (late entry)."
        ),
        schema: str = typer.Option(None, help="With --proper and no model: TOML file with kinds of columns."),
        report: str = typer.Option(
            None, help="With --proper: an HTML page with convergence and imputed beside observed."
        ),
        intervals: str = typer.Option(
            None,
            help="Also write a CSV with a line per filled cell here: its interval, or the probability of every level.",
        ),
        coverage: float = typer.Option(0.9, help="Of the intervals."),
        shift: list[str] = typer.Option(
            [],
            help="COLUMN=DELTA added to drawn values (not missing at random), or 'COLUMN[arm == 1]=DELTA' for a group; "
            "a category's log-odds with --proper.",
        ),
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
        given: dict[str, Any] = {
            "formula": formula,
            "method": method,
            "duration": duration,
            "event": event,
            "event_level": event_level,
            "entry": entry,
            "schema": schema,
            "report": report,
        }
        if proper or table is None:
            from unmask.cli.proper import impute_properly

            beside: dict[str, Any] = {
                "draws": draws,
                "intervals": intervals,
                "absent": absent,
                "add_absent": add_absent,
                "unseen": unseen != "error",
            }
            beside["constraint"] = constraint  # rules come with the schema there
            read: dict[str, Any] = {"missing": missing, "decimal": decimal, "encoding": encoding, "sheet": sheet}
            output.write(
                *impute_properly(model, table, out, proper, shift=shift, seed=seed, unused=beside, **given, **read)
            )
            return
        for name in [k for k, v in given.items() if v]:
            from unmask.errors import UserError

            raise UserError(
                f"--{name.replace('_', '-')} without --proper",
                hint="It belongs to multiple imputation: add --proper 20.",
            )
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
