"""`unmask impute --proper M`: multiple imputation, the path to Rubin's rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.cli.table.reading import Result, note_lines, numbered, table_model, told_schema, warned_of
from unmask.errors import UserError
from unmask.files import check_results


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
        known: Any = told_schema(schema, missing)
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
