"""unmask describe TABLE"""

from __future__ import annotations

import typer

from unmask.cli import options


def describe(
    table: str = typer.Argument(..., help="A table: .csv, .tsv, .parquet, .xlsx, .dta, .sav, .sas7bdat."),
    out: str = typer.Option(None, help="Also write the dictionary as an HTML page here."),
    schema_out: str = typer.Option(None, help="Also write a schema to edit here (TOML), for pretrain table --schema."),
    schema: str = typer.Option(None, help="TOML file of what is known already."),
    duration: str = typer.Option(None, help="Column of follow-up times; with --event."),
    event: str = typer.Option(None, help="Column of events."),
    event_level: list[str] = typer.Option([], help="Level at which the event happened; once per cause."),
    entry: str = typer.Option(None, help="Column of the times from which rows are at risk (late entry)."),
    missing: options.Missing = [],
    decimal: options.Decimal = None,
    encoding: options.Encoding = None,
    sheet: options.Sheet = None,
    json_: options.Json = False,
) -> None:
    """Look at a table before a fit: what each column is and why, and what wants a decision."""
    from unmask.cli.common import Output
    from unmask.cli.table.reading import told_schema
    from unmask.files import check_results
    from unmask.modalities.table.schema.describe import describe as look

    check_results([out, schema_out], [table, schema])
    output = Output(json_)
    found = look(
        table,
        schema=told_schema(schema, missing),
        duration=duration,
        event=event,
        entry=entry,
        event_level=event_level or None,
        decimal=decimal,
        encoding=encoding,
        sheet=sheet,
    )
    places = {}
    if out:
        places["out"] = str(found.write_report(out))
    if schema_out:
        places["schema_out"] = str(found.write_toml(schema_out))
    shown = [*found.lines(), *(f"written: {place}" for place in places.values())]
    output.write(found.to_dict() | places, shown)
