"""unmask impute MODEL TABLE --out F [--draws M]"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from unmask.cli import options
from unmask.cli.table.reading import Result, note_lines, numbered, read_for, schema_lines, table_model, warned_of
from unmask.errors import UserError
from unmask.files import check_results


def impute(
    model: str = typer.Argument(..., help="A model folder; with --proper the table itself, if there is no model."),
    table: str = typer.Argument(None, help="A .csv, .tsv or .parquet file; unknown columns pass through."),
    out: str = typer.Option(..., help="Where to write the filled table; with several, F-1.csv, F-2.csv, ..."),
    draws: int = typer.Option(
        0,
        help="0: one table of best values; M: as many drawn from the one fitted model. For Rubin's rules use --proper.",
    ),
    proper: int = typer.Option(
        0, help="M completed tables for Rubin's rules: multiple imputation, fitted to this table."
    ),
    formula: str = typer.Option(None, help="With --proper, the analysis to agree with: 'y ~ x + I(x**2) + x:z'."),
    method: list[str] = typer.Option([], help="With --proper: COLUMN=norm, pmm, logreg, polyreg, polr or sample."),
    rounds: int = typer.Option(
        None, help="With --proper: of the chains, 10 by default; those that have not mixed by then go on up to 40."
    ),
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
    report: str = typer.Option(None, help="With --proper: an HTML page with convergence and imputed beside observed."),
    intervals: str = typer.Option(
        None,
        help="Also write a CSV with a line per filled cell here: its interval, or the probability of every level.",
    ),
    coverage: float = typer.Option(None, help="With --intervals: their coverage, 0.9 by default."),
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
    escape_formulas: options.EscapeFormulas = False,
    missing: options.Missing = [],
    decimal: options.Decimal = None,
    encoding: options.Encoding = None,
    sheet: options.Sheet = None,
    seed: options.Seed = 0,
    json_: options.Json = False,
) -> None:
    """Fill the missing cells of a table; everything else is written as it was read."""
    from unmask.cli.common import Output

    output = Output(json_, seed)
    given: dict[str, Any] = {
        "formula": formula,
        "method": method,
        "rounds": rounds,
        "duration": duration,
        "event": event,
        "event_level": event_level,
        "entry": entry,
        "schema": schema,
        "report": report,
    }
    if proper or table is None:
        beside: dict[str, Any] = {
            "draws": draws,
            "intervals": intervals,
            "coverage": coverage,
            "absent": absent,
            "add_absent": add_absent,
            "unseen": unseen != "error",
        }
        beside["constraint"] = constraint  # rules come with the schema there
        read: dict[str, Any] = {"missing": missing, "decimal": decimal, "encoding": encoding, "sheet": sheet}
        read["escape_formulas"] = escape_formulas
        output.write(
            *impute_properly(model, table, out, proper, shift=shift, seed=seed, unused=beside, **given, **read)
        )
        return
    for name in [k for k, v in given.items() if v]:
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
            intervals=intervals,
            coverage=coverage,
            shift=shift,
            unseen=unseen,
            seed=seed,
            absent=absent,
            add_absent=add_absent,
            constraint=constraint,
            missing=missing,
            decimal=decimal,
            encoding=encoding,
            sheet=sheet,
            escape_formulas=escape_formulas,
        )
    )


def impute_table(
    model: str,
    table: str,
    out: str,
    draws: int = 0,
    *,
    intervals: str | None = None,
    coverage: float | None = None,
    shift: Sequence[str] = (),
    unseen: str = "error",
    seed: int = 0,
    absent: str = "",
    add_absent: bool = False,
    constraint: Sequence[str] = (),
    missing: Sequence[str] = (),
    decimal: str | None = None,
    encoding: str | None = None,
    sheet: str | None = None,
    escape_formulas: bool = False,
) -> Result:
    """Fill the missing cells of a table and write it (with `draws`, as many tables, numbered).

    The options are those of `unmask impute`.
    """
    from unmask.cli.common import on_stderr
    from unmask.modalities.table.imputation.complete import complete
    from unmask.modalities.table.imputation.uncertainty import write_intervals
    from unmask.modalities.table.writing.writers import write_table

    if coverage is not None and not intervals:
        raise UserError("--coverage without --intervals", hint="It is theirs: add --intervals CELLS.csv.")
    coverage = 0.9 if coverage is None else coverage
    if draws < 0 or not 0 < coverage < 1 or unseen not in ("error", "missing"):
        raise UserError(
            f"--draws {draws} --coverage {coverage} --unseen {unseen}",
            hint="Expected draws of 0 or more, a coverage between 0 and 1, unseen error or missing.",
        )
    if draws and intervals:
        raise UserError("--draws with --intervals", hint="Intervals belong to best values: leave --draws out.")
    written = numbered(out, draws) if draws else [out]
    check_results([*written, intervals], [table])
    loaded = table_model(model)
    from unmask.modalities.table.imputation.shift import read_shifts

    moved = read_shifts(shift)
    if moved and not draws:
        raise UserError("--shift without --draws", hint="A shift moves drawn values: add --draws 20.")
    frame = read_for(loaded, table, missing, decimal, encoding, sheet)
    done = complete(
        loaded,
        frame,
        draws=draws,
        seed=seed,
        interval=coverage if intervals else None,
        unseen=unseen,
        shift=moved,
        absent=absent,
        add_absent=add_absent,
        constraints=constraint,
    )
    for path_, one in zip(written, done.tables, strict=True):
        write_table(one, path_, escape_formulas=escape_formulas)
    if intervals:
        write_intervals(done.records, loaded.schema, intervals)
    found = {
        "out": written if draws else out,
        "rows": len(frame),
        "filled_slots": done.cells,
        "cells": done.cells,
        "draws": draws,
        "intervals": intervals,
        "absent": done.absent,
        "notes": done.notes,
        "warnings": done.warnings,
    }
    for text in done.warnings:
        on_stderr(f"warning: {text}")
    lines = [f"{done.cells} cells filled", *note_lines(done.notes), *written]
    return found, [*lines, *([intervals] if intervals else [])]


def impute_properly(
    model: str,
    table: str | None,
    out: str,
    proper: int,
    *,
    shift: Sequence[str],
    seed: int,
    unused: Mapping[str, Any],
    formula: str | None,
    method: Sequence[str],
    rounds: int | None,
    duration: str | None,
    event: str | None,
    schema: str | None,
    report: str | None,
    event_level: Sequence[str] = (),
    entry: str | None = None,
    missing: Sequence[str] = (),
    decimal: str | None = None,
    encoding: str | None = None,
    sheet: str | None = None,
    escape_formulas: bool = False,
) -> Result:
    """Complete a table `proper` times, fitted to the table itself under the schema of a model, of a file, or inferred.

    Args:
        model: a model folder, whose schema is taken; or the table, where `table` is None.
        unused: other options of `unmask impute`, which have no meaning here.
        missing: further spellings of a missing value.
        decimal, encoding, sheet: how the table's file is read; see `read_frame`.
        escape_formulas: of `write_table`.
    """
    from unmask.modalities.table.imputation.multiple import MultipleImputation
    from unmask.modalities.table.imputation.shift import read_shifts
    from unmask.modalities.table.reading.readers import read_frame
    from unmask.modalities.table.writing.writers import write_table

    if not proper:
        raise UserError(
            "no TABLE", hint="unmask impute MODEL TABLE --out F, or unmask impute TABLE --proper 20 --out F."
        )
    for name in [k for k, v in unused.items() if v]:
        raise UserError(
            f"--{name.replace('_', '-')} with --proper", hint="Multiple imputation is fitted to the table itself."
        )
    written = numbered(out, proper)
    check_results([*written, report], [model if table is None else table, schema])
    if table is None:
        if Path(model).is_dir():
            raise UserError(
                f"{model} is a folder, and there is no TABLE", hint="unmask impute MODEL TABLE --proper 20 --out F"
            )
        table = model
        known: Any = schema_lines(schema, missing)
    elif schema or duration or event or entry or event_level:
        raise UserError(
            "--schema, --duration, --event, --event-level or --entry with a model",
            hint="The model has them: leave them out.",
        )
    else:
        known = table_model(model).schema
        known = dataclasses.replace(known, missing=(*known.missing, *missing))
    frame = read_frame(table, decimal=decimal, encoding=encoding, sheet=sheet)
    done = MultipleImputation(
        proper,
        schema=known,
        duration=duration,
        event=event,
        entry=entry,
        event_level=event_level,
        formula=formula,
        method=_methods(method),
        rounds=10 if rounds is None else rounds,
        shift=read_shifts(shift),
        seed=seed,
    )
    with warned_of() as warned:
        done.fit(frame)
    for path, one in zip(written, done.tables(), strict=True):
        write_table(one, path, escape_formulas=escape_formulas)
    if report:
        done.report(report)
    cells, notes = done.cells_, [note for note in done.notes_ if note.removeprefix("warning: ") not in warned]
    found = {
        "out": written,
        "rows": len(frame),
        "filled_slots": cells,
        "cells": cells,
        "proper": proper,
        "methods": done.methods_,
        "why": done.reasons_,
        "formula": done.formula_.text if done.formula_ else None,
        "notes": notes,
        "warnings": warned,
        "report": report,
    }
    how = ", ".join(f"{name}: {m}" for name, m in done.methods_.items()) or "nothing was missing"
    agrees = [f"agrees with {done.formula_.text}"] if done.formula_ else []
    lines = [f"{cells} cells filled in each of {proper} tables, for Rubin's rules", how, *agrees]
    return found, [*lines, *note_lines(notes), *written, *([report] if report else [])]


def _methods(texts: Sequence[str]) -> dict[str, str] | str | None:
    """COLUMN=METHOD pairs, or one method for all columns it suits."""
    if len(texts) == 1 and "=" not in texts[0]:
        return texts[0]
    pairs = [text.rpartition("=") for text in texts]
    for (name, _, _), text in zip(pairs, texts, strict=True):
        if not name:
            raise UserError(f"--method {text!r}", hint="Expected COLUMN=METHOD, e.g. creatinine=pmm.")
    return {name: method for name, _, method in pairs} or None
