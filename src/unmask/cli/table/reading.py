"""How the file of a table is read, and which model it is for, by the command line; describe and pretrain."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from unmask.cli import options
from unmask.cli.common import Result, on_stderr, overrides
from unmask.cli.options import flag
from unmask.errors import UserError
from unmask.files import check_folder, check_results


@dataclass(frozen=True, kw_only=True)
class TableReading:
    """How the file of a table is read."""

    missing: list[str] = flag([], "A further spelling of a missing value, e.g. -9; may be repeated.")
    decimal: str | None = flag(None, "The mark before decimals in the file's numbers: , or .")
    encoding: str | None = flag(None, "Of a text file that is not UTF-8, e.g. cp1252.")
    sheet: str | None = flag(None, "Of a spreadsheet that has several.")

    @property
    def file(self) -> dict[str, str | None]:
        """What `read_frame` is given."""
        return {"decimal": self.decimal, "encoding": self.encoding, "sheet": self.sheet}

    def read(self, table: str) -> Any:
        """The table as it is written."""
        from unmask.modalities.table.reading.readers import read_frame

        return read_frame(table, **self.file)

    def read_for(self, model: Any, table: str) -> Any:
        """The table for a model, whose spellings of a missing value these are too from here on."""
        model.schema = self.with_missing(model.schema)
        return self.read(table)

    def with_missing(self, schema: Any) -> Any:
        """A schema with these spellings of a missing value too."""
        return dataclasses.replace(schema, missing=(*schema.missing, *self.missing)) if self.missing else schema

    def known(self, schema: str | None) -> dict[str, Any]:
        """What is known of the table: a schema file, and further spellings of a missing value."""
        from unmask.modalities.table.schema.raw_column import spellings
        from unmask.training.settings import load_toml

        found: dict[str, Any] = dict(load_toml(Path(schema))) if schema else {}
        if self.missing:
            found["missing"] = [*spellings(found.get("missing", ())), *self.missing]
        return found


_SCHEMA = "TOML file of what is known: [columns.NAME] kind = ..., low = ..., missing = [...]"


@dataclass(frozen=True, kw_only=True)
class KnownColumns:
    """What a person knows of the columns of a table that there is no model of."""

    duration: str | None = flag(None, "Column of follow-up times; with --event.")
    event: str | None = flag(None, "Column of the event: 0/1, yes/no, 1/2, alive/dead; 0/1/2: causes.")
    event_level: list[str] = flag([], "Level at which the event happened; once per cause.")
    entry: str | None = flag(None, "Column of the times from which rows are at risk (late entry).")
    cluster: str | None = flag(None, "Column of the patient or centre that several rows belong to.")
    schema: str | None = flag(None, _SCHEMA, callback=options.there(_SCHEMA))

    @property
    def pair(self) -> dict[str, Any]:
        """The columns of the outcome, and of clusters."""
        levels, own = self.event_level or None, {"duration": self.duration, "event": self.event, "entry": self.entry}
        return own | {"event_level": levels, "cluster": self.cluster}


def table_model(model: str) -> Any:
    """The table model in a folder."""
    from unmask.registry import kind_of, load

    place = Path(model).expanduser()
    if not place.exists():
        raise UserError(f"{model}: no such file or folder", hint="Expected the folder of a model of a table.")
    if place.is_file():
        raise UserError(
            f"{model}: a file, not the folder of a model",
            hint="Fit one with `unmask pretrain table`. To impute a table without a model: unmask impute TABLE "
            "--out F; several files: --out FOLDER/",
        )
    if kind_of(model) != "table":
        raise UserError(f"{model}: a model of {kind_of(model)}", hint="Fit one with `unmask pretrain table`.")
    return load(model)


def numbered(out: str, count: int) -> list[str]:
    """The files of several tables: F-1.csv, F-2.csv, ..."""
    path = Path(out)
    return [str(path.with_name(f"{path.stem}-{m + 1}{path.suffix}")) for m in range(count)]


def note_lines(notes: Iterable[str]) -> list[str]:
    """Notes for the terminal; those that are warnings say so themselves.

    >>> note_lines(["'id' is left out", "warning: 'x' holds 999"])
    ["note: 'id' is left out", "warning: 'x' holds 999"]
    """
    return [note if note.startswith("warning: ") else f"note: {note}" for note in notes]


@contextlib.contextmanager
def warned_of() -> Iterator[list[str]]:
    """What is warned of meanwhile: listed, and printed on stderr at the end."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield messages
    messages += [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    for text in messages:
        on_stderr(f"warning: {text}")


def describe(
    reading: TableReading,
    known: KnownColumns,
    table: str = options.source("A table: .csv, .tsv, .parquet, .xlsx, .dta, .sav, .sas7bdat.", stdin=".csv"),
    out: str = typer.Option(None, help="Also write the dictionary as an HTML page here."),
    schema_out: str = typer.Option(None, help="Also write a schema to edit here (TOML), for pretrain table --schema."),
) -> Result:
    """Look at a table before a fit: what each column is and why, and what wants a decision."""
    from unmask.modalities.table.schema.describe import describe

    check_results([out, schema_out], [table, known.schema])
    found = describe(table, schema=reading.known(known.schema), **known.pair, **reading.file)
    places = {}
    if out:
        places["out"] = str(found.write_report(out))
    if schema_out:
        places["schema_out"] = str(found.write_toml(schema_out))
    return Result(found.to_dict() | places, [*found.lines(), *(f"written: {place}" for place in places.values())])


def pretrain(
    reading: TableReading,
    known: KnownColumns,
    data: list[str] = options.source(
        "A table (.csv, .parquet, .xlsx, ...), missing cells empty; of several files, a folder or a pattern, which are "
        "one table, rows are drawn.",
        stdin=".csv",
    ),
    out: str = typer.Option(..., help="Run folder."),
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
        False, "--resume", help="Keep a finished fit of the same data in --out; one that did not finish begins anew."
    ),
    precision: str = typer.Option(None, hidden=True),
    device: str = typer.Option(None, hidden=True),
) -> Result:
    """Fit a masked model to a table, complete or not: for impute, synthesize, augment."""
    from unmask.modalities.table.recipes import settings_of

    if minutes is not None:
        raise UserError("--minutes", hint="A table's fit takes seconds; bound it by --steps or --epochs.")
    given = overrides(config, set_, steps=steps, epochs=epochs, seed=seed, precision=precision, device=device)
    settings = settings_of(given.pop("recipe", recipe), **given)
    check_folder(out)
    from unmask.modalities.table.fitting.imputation_quality import text_table
    from unmask.modalities.table.pretrain import pretrain as run
    from unmask.modalities.table.reading.several_files import frame_to_fit

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # they are among the notes
        finished = run(
            frame_to_fit(data[0] if len(data) == 1 else data, seed=settings.train.seed, **reading.file),
            out,
            schema=reading.known(known.schema),
            **known.pair,
            constraints=constraint,
            settings=settings,
            resume=resume,
        )
    found = {"seed": settings.train.seed} | finished.to_dict()
    lines = [
        f"{found['rows']} rows x {found['columns']} columns, {found['steps']} steps, {found['fit_seconds']:.1f} s",
        *note_lines(found["notes"]),
        *text_table(found["columns_imputed"]),
        f"model:  {out}" + ", kept as it was" * finished.kept,
        f"report: {finished.folder / 'report.html'}",
    ]
    return Result(found, lines)
