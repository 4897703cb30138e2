"""unmask impute [MODEL] TABLE --out F [--draws M]"""

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
from unmask.files import check_results


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
class Proper(KnownColumns):
    """How multiple imputation is fitted to a table; what is known of its columns where there is no model."""

    formula: str | None = options.flag(None, "With --proper, the analysis to agree with: 'y ~ x + I(x**2) + x:z'.")
    method: list[str] = options.flag([], "With --proper: COLUMN=norm, pmm, logreg, polyreg, polr or sample.")
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
    reading: TableReading,
    model: str = options.source(
        "A model folder; or the table itself, if there is no model: one is fitted to it.", stdin=".csv"
    ),
    table: str = options.source(
        "A .csv, .tsv or .parquet file; unknown columns pass through.", default=None, stdin=".csv"
    ),
    out: str = options.rows(".csv", "Where to write the filled table; with several, F-1.csv, F-2.csv, ..."),
    proper: int = typer.Option(
        0,
        help="M completed tables for Rubin's rules: multiple imputation, fitted to this table, of which without a "
        "model --schema, --duration, --event, --event-level and --entry say what is known.",
    ),
    shift: list[str] = typer.Option(
        [],
        help="COLUMN=DELTA added to drawn values (not missing at random), or 'COLUMN[arm == 1]=DELTA' for a group; "
        "a category's log-odds with --proper.",
    ),
    escape_formulas: options.EscapeFormulas = False,
    seed: options.Seed = 0,
) -> Result:
    """Fill the missing cells of a table; everything else is written as it was read."""
    how: dict[str, Any] = {"shift": shift, "escape_formulas": escape_formulas, "seed": seed}
    if table is None and Path(model).is_dir():
        more = " --proper 20" if proper else ""
        raise UserError(f"{model} is a folder, and there is no TABLE", hint=f"unmask impute MODEL TABLE{more} --out F")
    if proper:
        _refuse(filling, "with --proper", "Multiple imputation is fitted to the table itself.")
        return impute_properly(fitting, reading, model, table, out, proper, **how)
    proper_alone = ("formula", "method", "slopes", "rounds", "report")
    _refuse(fitting, "without --proper", "It belongs to multiple imputation: add --proper 20.", proper_alone)
    if table is None:
        _refuse(filling, "without a model", "The table has all columns that are fitted.", ("absent", "add_absent"))
        return impute_table(filling, reading, None, model, out, known=fitting, **how)
    _refuse(fitting, "with a model", "The model has it: leave it out.")
    return impute_table(filling, reading, model, table, out, **how)


def _refuse(options: Any, where: str, hint: str, names: Sequence[str] = ()) -> None:
    """Refuse options that are not read; `names`: of those, all by default."""
    for name, value in vars(options).items():
        if (not names or name in names) and value != getattr(type(options)(), name):
            raise UserError(f"{option(name)} {where}", hint=hint)


def impute_table(
    filling: Filling,
    reading: TableReading,
    model: str | None,
    table: str,
    out: str,
    *,
    known: KnownColumns | None = None,
    shift: Sequence[str] = (),
    seed: int = 0,
    escape_formulas: bool = False,
) -> Result:
    """Fill the missing cells of a table by a model, and write it (with draws, as many tables, numbered).

    Args:
        model: its folder; None: one is fitted to the table itself, under what is `known` of its columns.
    """
    from unmask.modalities.table.imputation.complete import complete
    from unmask.modalities.table.imputation.shift import read_shifts
    from unmask.modalities.table.imputation.uncertainty import write_intervals
    from unmask.modalities.table.writing.writers import write_table

    draws, intervals, unseen = filling.draws, filling.intervals, filling.unseen
    if filling.coverage is not None and not intervals:
        raise UserError("--coverage without --intervals", hint="It is theirs: add --intervals CELLS.csv.")
    coverage = 0.9 if filling.coverage is None else filling.coverage
    if draws < 0 or not 0 < coverage < 1 or unseen not in ("error", "missing"):
        raise UserError(
            f"--draws {draws} --coverage {coverage} --unseen {unseen}",
            hint="Expected draws of 0 or more, a coverage between 0 and 1, unseen error or missing.",
        )
    if draws and intervals:
        raise UserError("--draws with --intervals", hint="Intervals belong to best values: leave --draws out.")
    written = numbered(out, draws) if draws else [out]
    check_results([*written, intervals], [table, known.schema if known else None])
    fitted: list[str] = []
    if model is None:
        from unmask.modalities.table.verbs import fit_to, warn_of_poor

        assert known is not None
        frame, schema = reading.read(table), reading.known(known.schema)
        with warned_of() as fitted:
            loaded = fit_to(frame, schema=schema, **known.pair, constraints=filling.constraint, seed=seed)
            warn_of_poor(loaded, frame)
    else:
        loaded = table_model(model)
        frame = reading.read_for(loaded, table)
    done = complete(
        loaded,
        frame,
        draws=draws,
        seed=seed,
        interval=coverage if intervals else None,
        unseen=unseen,
        shift=read_shifts(shift),
        absent=filling.absent,
        add_absent=filling.add_absent,
        constraints=filling.constraint if model else (),
    )
    for path, one in zip(written, done.tables, strict=True):
        write_table(one, path, escape_formulas=escape_formulas)
    if intervals:
        write_intervals(done.records, loaded.schema, intervals, frame)
    found = {
        "out": written if draws else out,
        "rows": len(frame),
        "filled_slots": done.cells,
        "cells": done.cells,
        "draws": draws,
        "intervals": intervals,
        "absent": done.absent,
        "notes": done.notes,
        "warnings": [*fitted, *done.warnings],
    }
    for text in done.warnings:
        on_stderr(f"warning: {text}")
    lines = [f"{done.cells} cells filled", *note_lines([n for n in done.notes if n not in fitted]), *written]
    return Result(found, [*lines, *([intervals] if intervals else [])])


def impute_properly(
    fitting: Proper,
    reading: TableReading,
    model: str,
    table: str | None,
    out: str,
    proper: int,
    *,
    shift: Sequence[str],
    seed: int,
    escape_formulas: bool,
) -> Result:
    """Complete a table `proper` times, fitted to the table itself under the schema of a model, of a file, or inferred.

    Args:
        model: a model folder, whose schema is taken; or the table, where `table` is None.
    """
    from unmask.modalities.table.imputation.multiple import MultipleImputation
    from unmask.modalities.table.imputation.shift import read_shifts
    from unmask.modalities.table.writing.writers import write_table

    written = numbered(out, proper)
    check_results([*written, fitting.report], [model if table is None else table, fitting.schema])
    if table is None:
        table, known = model, reading.known(fitting.schema)
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
        method=_methods(fitting.method),
        rounds=10 if fitting.rounds is None else fitting.rounds,
        shift=read_shifts(shift),
        slopes=[name.strip() for name in (fitting.slopes or "").split(",") if name.strip()],
        seed=seed,
        **fitting.pair,
    )
    with warned_of() as warned:
        done.fit(frame)
    for path, one in zip(written, done.tables(), strict=True):
        write_table(one, path, escape_formulas=escape_formulas)
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
