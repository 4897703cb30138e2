"""What a person says of a table on the command line: how its file is read, and which model it is for."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from unmask.cli import options
from unmask.errors import UserError

Result = tuple[dict[str, Any], list[str]]
"""What a command found, and the lines that say it to people."""


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
            "--proper 20.",
        )
    if kind_of(model) != "table":
        raise UserError(f"{model}: a model of {kind_of(model)}", hint="Fit one with `unmask pretrain table`.")
    return load(model)


def schema_lines(schema: str | None, missing: Sequence[str]) -> dict[str, Any]:
    """What a person says of a table: a schema file, and further spellings of a missing value."""
    from unmask.modalities.table.schema.raw_column import spellings
    from unmask.training.settings import load_toml

    found: dict[str, Any] = dict(load_toml(Path(schema))) if schema else {}
    if missing:
        found["missing"] = [*spellings(found.get("missing", ())), *missing]
    return found


def read_for(
    model: Any,
    table: str,
    missing: Sequence[str] = (),
    decimal: str | None = None,
    encoding: str | None = None,
    sheet: str | None = None,
) -> Any:
    """A table for a model, read as a person says that it is written.

    Further spellings of a missing value are those of the model from here on.
    """
    from unmask.modalities.table.reading.readers import read_frame

    if missing:
        model.schema = dataclasses.replace(model.schema, missing=(*model.schema.missing, *missing))
    return read_frame(table, decimal=decimal, encoding=encoding, sheet=sheet)


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
    from unmask.cli.common import on_stderr

    for text in messages:
        on_stderr(f"warning: {text}")


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
    from unmask.files import check_results
    from unmask.modalities.table.schema.describe import describe as look

    check_results([out, schema_out], [table, schema])
    output = Output(json_)
    found = look(
        table,
        schema=schema_lines(schema, missing),
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
