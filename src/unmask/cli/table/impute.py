"""unmask impute [MODEL] TABLE... --out F [--draws M]"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from unmask.cli import options
from unmask.cli.common import Result, on_stderr
from unmask.cli.table.reading import KnownColumns, TableReading, note_lines, numbered, table_model, warned_of
from unmask.errors import UserError, option
from unmask.files import are_files, check_results
from unmask.registry import is_model
from unmask.writing import check_absent


@dataclass(frozen=True, kw_only=True)
class Filling:
    """How a model fills the cells of a table."""

    draws: int = options.flag(
        0,
        "0: one table of best values; M: as many drawn from the one fitted model. For Rubin's rules use --proper.",
    )
    intervals: str | None = options.flag(
        None, "Also write a CSV with a line per filled cell here: its interval, or the probability of every level."
    )
    coverage: float | None = options.flag(None, "With --intervals: their coverage, 0.9 by default.")
    unseen: str = options.flag("error", "A category the model does not know: error or missing.")
    constraint: list[str] = options.flag(
        [], 'Rule that filled cells meet, e.g. "admission <= surgery <= discharge", "bmi := weight / height**2".'
    )
    absent: options.Absent = ""
    add_absent: bool = options.flag(False, "Write the lacking columns too, imputed.", "--add-absent")


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """How values are drawn and written, by a model or by multiple imputation."""

    shift: list[str] = options.flag(
        [],
        "COLUMN=DELTA added to drawn values (not missing at random), or 'COLUMN[arm == 1]=DELTA' for a group; "
        "a category's log-odds with --proper.",
    )
    censored: str | None = options.flag(
        None,
        "Cells that are only bounded (<0.5, 2-4): drawn (inside their intervals; as it is with --proper and "
        "--draws) or kept as they stand (as it is in a table of best values).",
    )
    escape_formulas: options.EscapeFormulas = False
    seed: options.Seed = 0


@dataclass(frozen=True, kw_only=True)
class Proper(KnownColumns):
    """How multiple imputation is fitted to a table; what is known of its columns where there is no model."""

    formula: str | None = options.flag(None, "With --proper, the analysis to agree with: 'y ~ x + I(x**2) + x:z'.")
    family: str | None = options.flag(
        None,
        "With --proper, of that analysis: poisson, negative-binomial, fine-gray (with --cause); else by its outcome.",
    )
    cause: str | None = options.flag(None, "With --family fine-gray: the level of the event that it is of.")
    method: list[str] = options.flag([], "With --proper: COLUMN=norm, pmm, logreg, polyreg, polr, cart or sample.")
    slopes: str | None = options.flag(
        None, "With --proper and --cluster: columns whose effects differ between clusters, e.g. visit,dose."
    )
    rounds: int | None = options.flag(
        None, "With --proper: of the chains, 10 by default; those that have not mixed by then go on up to 40."
    )
    report: str | None = options.flag(None, "With --proper: an HTML page with convergence and imputed beside observed.")


def impute(
    filling: Filling,
    fitting: Proper,
    drawing: Drawing,
    reading: TableReading,
    tables: list[str] = options.source(
        "A table (.csv, .parquet, .xlsx, .dta, ...), behind the folder of a model if there is one; several files or a "
        "folder of them are filled file by file. Unknown columns pass through.",
        stdin=".csv",
        metavar="[MODEL] TABLE",
    ),
    out: str = options.rows(
        ".csv",
        "Where to write the filled table; with several draws, F-1.csv, F-2.csv, ...; of several files a new folder",
        folder=True,
    ),
    model: str = typer.Option(None, help="Without a MODEL: keep the one that is fitted in this new folder."),
    proper: int = typer.Option(
        0,
        help="M completed tables for Rubin's rules: multiple imputation, fitted to this table, of which without a "
        "model --schema, --duration, --event, --event-level and --entry say what is known.",
    ),
    workers: options.Workers = None,
    engine: options.Engine = "local",
) -> Result:
    """Fill the missing cells of a table; everything else is written as it was read."""
    if drawing.censored is not None:
        from unmask.modalities.table.imputation.censored import check_censored

        check_censored(drawing.censored)
    to_file = not out.endswith("/") and Path(out).suffix in (".csv", ".tsv", ".parquet")
    fitted = None
    if is_model(tables[0]) or (len(tables) > 1 and to_file):
        fitted, *tables = tables
    if not tables:
        more = " --proper 20" if proper else ""
        raise UserError(f"{fitted} is a model, and there is no TABLE", hint=f"unmask impute MODEL TABLE{more} --out F")
    if fitted and model:
        raise UserError(f"--model {model} with a model", hint="It is where one is kept that is fitted to the table.")
    several = len(tables) > 1 or are_files(tables[0]) or out.endswith("/")
    if several and (proper or filling.intervals):
        raise UserError(
            f"--{'proper' if proper else 'intervals'} of several files", hint="Put them into one: they need all rows."
        )
    if several and to_file:
        raise UserError(f"--out {Path(out).name} for several files", hint="Give a new folder: --out filled/.")
    if not several and (workers is not None or engine != "local"):
        raise UserError("--workers or --engine for one table", hint="They fill several files side by side.")
    if proper:
        _refuse(filling, "with --proper", "Multiple imputation is fitted to the table itself.")
        if model:
            raise UserError("--model with --proper", hint="Multiple imputation keeps no model: leave it out.")
        return impute_properly(fitting, drawing, reading, fitted, tables[0], out, proper)
    proper_alone = ("formula", "family", "cause", "method", "slopes", "rounds", "report")
    _refuse(fitting, "without --proper", "It belongs to multiple imputation: add --proper 20.", proper_alone)
    if fitted:
        _refuse(fitting, "with a model", "The model has it: leave it out.")
    else:
        _refuse(filling, "without a model", "The table has all columns that are fitted.", ("absent", "add_absent"))
    how: dict[str, Any] = {"known": fitting, "keep": model}
    if several:
        return impute_folder(filling, drawing, reading, fitted, tables, out, workers=workers, engine=engine, **how)
    return impute_table(filling, drawing, reading, fitted, tables[0], out, **how)


def _refuse(options: Any, where: str, hint: str, names: Sequence[str] = ()) -> None:
    """Refuse options that are not read; `names`: of those, all by default."""
    for name, value in vars(options).items():
        if (not names or name in names) and value != getattr(type(options)(), name):
            raise UserError(f"{option(name)} {where}", hint=hint)


def _model_for(
    filling: Filling, reading: TableReading, model: str | None, frame: Any, known: KnownColumns | None, seed: int
) -> tuple[Any, list[str]]:
    """The model in a folder; without one (None) it is fitted to the table, of which there are warnings."""
    if model is not None:
        loaded = table_model(model)
        loaded.schema = reading.with_missing(loaded.schema)
        return loaded, []
    from unmask.modalities.table.verbs import fit_to, warn_of_poor

    assert known is not None
    with warned_of() as warned:
        schema = reading.known(known.schema)
        loaded = fit_to(frame, schema=schema, **known.pair, constraints=filling.constraint, seed=seed)
        warn_of_poor(loaded, frame)
    return loaded, warned


def impute_folder(
    filling: Filling,
    drawing: Drawing,
    reading: TableReading,
    model: str | None,
    tables: Sequence[str],
    out: str,
    *,
    known: KnownColumns,
    keep: str | None,
    workers: int | None,
    engine: str,
) -> Result:
    """Fill a table in several files, file by file, into a new folder.

    Args:
        model, known, keep: as in `impute_table`; without a model one is fitted to rows drawn from all files.
    """
    from unmask.modalities.table.imputation.impute_files import impute_files
    from unmask.modalities.table.pretrain import keep as keep_model
    from unmask.modalities.table.reading.several_files import frame_to_fit

    _check_filling(filling)
    check_absent(out)
    if keep:
        check_absent(keep)
    frame = None if model else frame_to_fit(list(tables), seed=drawing.seed, **reading.file)
    loaded, fitted = _model_for(filling, reading, model, frame, known, drawing.seed)
    how = _filling_options(filling, drawing, model) | reading.file
    done = impute_files(
        loaded,
        list(tables),
        out,
        escape_formulas=drawing.escape_formulas,
        workers=workers,
        engine=engine,
        say=on_stderr,
        **how,
    )
    if keep:
        keep_model(loaded, keep, list(tables))
    notes = [*(frame.notes if frame else ()), *done.notes]
    found = {
        "out": out,
        "files": done.files,
        "kept": done.kept,
        "rows": done.rows,
        "filled_slots": done.cells,
        "cells": done.cells,
        "draws": filling.draws,
        "workers": done.workers,
        "engine": engine,
        "notes": notes,
        "warnings": [*fitted, *done.warnings],
    } | ({"model": keep} if keep else {})
    for text in _first(done.warnings):
        on_stderr(f"warning: {text}")
    there = f", {done.kept:,} of them by an earlier run" if done.kept else ""
    each = f" in each of {filling.draws} draws" if filling.draws else ""
    lines = [f"{done.cells:,} cells of {done.rows:,} rows in {done.files:,} files filled{each}{there}"]
    return Result(found, [*lines, *note_lines(_first(notes)), out, *([f"model: {keep}"] if keep else [])])


def _filling_options(filling: Filling, drawing: Drawing, model: str | None) -> dict[str, Any]:
    """Options of `complete` and of `impute_files`. `model`: its folder; None: the fit has kept to the rules already."""
    from unmask.modalities.table.imputation.shift import read_shifts

    return {
        "draws": filling.draws,
        "seed": drawing.seed,
        "unseen": filling.unseen,
        "shift": read_shifts(drawing.shift),
        "censored": drawing.censored,
        "absent": filling.absent,
        "add_absent": filling.add_absent,
        "constraints": filling.constraint if model else (),
    }


def _first(texts: Sequence[str]) -> list[str]:
    """What is said of many files on a screen."""
    more = [f"and {len(texts) - SHOWN} more, which --json lists"] if len(texts) > SHOWN else []
    return [*texts[:SHOWN], *more]


SHOWN = 10


def _check_filling(filling: Filling) -> float:
    """Refuse options that do not go together; the coverage of intervals."""
    if filling.coverage is not None and not filling.intervals:
        raise UserError("--coverage without --intervals", hint="It is theirs: add --intervals CELLS.csv.")
    coverage = 0.9 if filling.coverage is None else filling.coverage
    if filling.draws < 0 or not 0 < coverage < 1 or filling.unseen not in ("error", "missing"):
        raise UserError(
            f"--draws {filling.draws} --coverage {coverage} --unseen {filling.unseen}",
            hint="Expected draws of 0 or more, a coverage between 0 and 1, unseen error or missing.",
        )
    if filling.draws and filling.intervals:
        raise UserError("--draws with --intervals", hint="Intervals belong to best values: leave --draws out.")
    return coverage


def impute_table(
    filling: Filling,
    drawing: Drawing,
    reading: TableReading,
    model: str | None,
    table: str,
    out: str,
    *,
    known: KnownColumns | None = None,
    keep: str | None = None,
) -> Result:
    """Fill the missing cells of a table by a model, and write it (with draws, as many tables, numbered).

    Args:
        model: its folder; None: one is fitted to the table itself, under what is `known` of its columns.
        keep: folder to keep that one in.
    """
    from unmask.modalities.table.imputation.complete import complete
    from unmask.modalities.table.imputation.uncertainty import write_intervals
    from unmask.modalities.table.pretrain import keep as keep_model
    from unmask.modalities.table.writing.writers import check_format, write_table

    coverage, draws, intervals = _check_filling(filling), filling.draws, filling.intervals
    check_format(out)
    written = numbered(out, draws) if draws else [out]
    check_results([*written, intervals], [table, known.schema if known else None])
    if keep:
        check_absent(keep)
    frame = reading.read(table)
    loaded, fitted = _model_for(filling, reading, model, frame, known, drawing.seed)
    how = _filling_options(filling, drawing, model)
    done = complete(loaded, frame, interval=coverage if intervals else None, **how)
    for path, one in zip(written, done.tables, strict=True):
        write_table(one, path, escape_formulas=drawing.escape_formulas)
    if intervals:
        write_intervals(done.records, loaded.schema, intervals, frame)
    if keep:
        keep_model(loaded, keep, table)
    notes = [*(frame.notes if model is None else ()), *done.notes]
    found = {
        "out": written if draws else out,
        "rows": len(frame),
        "filled_slots": done.cells,
        "cells": done.cells,
        "draws": draws,
        "intervals": intervals,
        "absent": done.absent,
        "notes": notes,
        "warnings": [*fitted, *done.warnings],
    } | ({"model": keep} if keep else {})
    for text in done.warnings:
        on_stderr(f"warning: {text}")
    lines = [f"{done.cells} cells filled", *note_lines([n for n in notes if n not in fitted]), *written]
    return Result(found, [*lines, *([intervals] if intervals else []), *([f"model: {keep}"] if keep else [])])


def impute_properly(
    fitting: Proper, drawing: Drawing, reading: TableReading, model: str | None, table: str, out: str, proper: int
) -> Result:
    """Complete a table `proper` times, fitted to the table itself under the schema of a model, of a file, or inferred.

    Args:
        model: a model folder, whose schema is taken; None: what is known of the columns is given, or found out.
    """
    from unmask.modalities.table.imputation.multiple import MultipleImputation
    from unmask.modalities.table.imputation.shift import read_shifts
    from unmask.modalities.table.writing.writers import check_format, write_table

    check_format(out)
    written = numbered(out, proper)
    check_results([*written, fitting.report], [table, fitting.schema])
    if model is None:
        known = reading.known(fitting.schema)
    elif fitting.schema or any(fitting.pair.values()):
        raise UserError(
            "--schema, --duration, --event, --event-level, --entry or --cluster with a model",
            hint="The model has them: leave them out.",
        )
    else:
        known = reading.with_missing(table_model(model).schema)
    frame = reading.read(table)
    done = MultipleImputation(
        proper,
        schema=known,
        formula=fitting.formula,
        family=fitting.family,
        cause=fitting.cause,
        method=_methods(fitting.method),
        rounds=10 if fitting.rounds is None else fitting.rounds,
        shift=read_shifts(drawing.shift),
        slopes=[name.strip() for name in (fitting.slopes or "").split(",") if name.strip()],
        censored=drawing.censored or "drawn",
        seed=drawing.seed,
        **fitting.pair,
    )
    with warned_of() as warned:
        done.fit(frame)
    for path, one in zip(written, done.tables(), strict=True):
        write_table(one, path, escape_formulas=drawing.escape_formulas)
    if fitting.report:
        done.report(fitting.report)
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
        "report": fitting.report,
    }
    how = ", ".join(f"{name}: {m}" for name, m in done.methods_.items()) or "nothing was missing"
    agrees = [f"agrees with {done.formula_.text}"] if done.formula_ else []
    lines = [f"{cells} cells filled in each of {proper} tables, for Rubin's rules", how, *agrees, *note_lines(notes)]
    return Result(found, [*lines, *written, *([fitting.report] if fitting.report else [])])


def _methods(texts: Sequence[str]) -> dict[str, str] | str | None:
    """COLUMN=METHOD pairs, or one method for all columns it suits."""
    if len(texts) == 1 and "=" not in texts[0]:
        return texts[0]
    pairs = [text.rpartition("=") for text in texts]
    for (name, _, _), text in zip(pairs, texts, strict=True):
        if not name:
            raise UserError(f"--method {text!r}", hint="Expected COLUMN=METHOD, e.g. creatinine=pmm.")
    return {name: method for name, _, method in pairs} or None
