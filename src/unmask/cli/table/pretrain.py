"""unmask pretrain table CSV --out DIR"""

from __future__ import annotations

import warnings

import typer

from unmask.cli import options
from unmask.cli.common import Result, overrides
from unmask.cli.table.reading import TableReading
from unmask.errors import UserError


def pretrain(
    reading: TableReading,
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
) -> Result:
    """Fit a masked model to a table, complete or not: for impute, synthesize, augment."""
    from unmask.modalities.table.fitting.imputation_quality import text_table
    from unmask.modalities.table.pretrain import pretrain as run
    from unmask.modalities.table.recipes import settings_of

    if minutes is not None:
        raise UserError("--minutes", hint="A table's fit takes seconds; bound it by --steps or --epochs.")
    given = overrides(config, set_, steps=steps, epochs=epochs, seed=seed, precision=precision, device=device)
    settings = settings_of(given.pop("recipe", recipe), **given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # they are among the notes
        finished = run(
            reading.read(data),
            out,
            schema=reading.known(schema),
            duration=duration,
            event=event,
            entry=entry,
            event_level=event_level or None,
            constraints=constraint,
            settings=settings,
            resume=resume,
        )
    found = {"seed": settings.train.seed} | finished.to_dict()
    lines = [
        f"{found['rows']} rows x {found['columns']} columns, {found['steps']} steps, {found['fit_seconds']:.1f} s",
        *(note if note.startswith("warning: ") else f"note:   {note}" for note in found["notes"]),
        *text_table(found["columns_imputed"]),
        f"model:  {out}",
        f"report: {finished.folder / 'report.html'}",
    ]
    return Result(found, lines)
