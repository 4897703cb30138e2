"""unmask pretrain table CSV --out DIR"""

from __future__ import annotations

import warnings

import typer

from unmask.cli import options


def pretrain(
    context: typer.Context,
    data: str = typer.Argument(..., help="A .csv, .tsv or .parquet file, missing cells empty."),
    out: str = typer.Option(..., help="Run folder."),
    duration: str = typer.Option(None, help="Column of follow-up times; with --event."),
    event: str = typer.Option(None, help="Column of the event: 0/1, yes/no, 1/2, alive/dead; 0/1/2: causes."),
    event_level: list[str] = typer.Option([], help="Level at which the event happened; once per cause."),
    entry: str = typer.Option(None, help="Column of the times from which rows are at risk (late entry)."),
    schema: str = typer.Option(None, help="TOML file: [columns.NAME] kind = ..., low = ..., missing = [...]"),
    constraint: list[str] = typer.Option(
        [], help='Rule that imputed and synthetic rows will meet, e.g. "dbp < sbp", "bmi := weight / height**2".'
    ),
    missing: options.Missing = [],
    decimal: options.Decimal = None,
    encoding: options.Encoding = None,
    sheet: options.Sheet = None,
    config: options.Config = None,
    set_: options.Set = [],
    recipe: str = typer.Option("masked", help="masked (ours), mcm or remasker (published settings)."),
    steps: options.Steps = None,
    epochs: options.Epochs = None,
    minutes: float = typer.Option(None, hidden=True),
    seed: options.RunSeed = None,
    resume: bool = typer.Option(
        False, "--resume", help="Keep a finished fit in --out as it is; one that did not finish begins anew."
    ),
    precision: str = typer.Option(None, hidden=True),
    device: str = typer.Option(None, hidden=True),
    json_: options.Json = False,
) -> None:
    """Fit a masked model to a table, complete or not: for impute, synthesize, augment."""
    from unmask.cli.common import Output, run_overrides
    from unmask.cli.table.reading import schema_lines
    from unmask.errors import UserError
    from unmask.modalities.table.fitting.imputation_quality import text_table
    from unmask.modalities.table.pretrain import pretrain as run
    from unmask.modalities.table.reading.readers import read_frame
    from unmask.modalities.table.recipes import settings_of

    if minutes is not None:
        raise UserError("--minutes", hint="A table's fit takes seconds; bound it by --steps or --epochs.")
    given = run_overrides(context)
    settings = settings_of(given.pop("recipe", recipe), **given)
    output = Output(json_, settings.train.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # they are among the notes
        finished = run(
            read_frame(data, decimal=decimal, encoding=encoding, sheet=sheet),
            out,
            schema=schema_lines(schema, missing),
            duration=duration,
            event=event,
            entry=entry,
            event_level=event_level or None,
            constraints=constraint,
            settings=settings,
            resume=resume,
        )
    found = finished.to_dict()
    lines = [
        f"{found['rows']} rows x {found['columns']} columns, {found['steps']} steps, {found['fit_seconds']:.1f} s",
        *(note if note.startswith("warning: ") else f"note:   {note}" for note in found["notes"]),
        *text_table(found["columns_imputed"]),
        f"model:  {out}",
        f"report: {finished.folder / 'report.html'}",
    ]
    output.write(found, lines)
