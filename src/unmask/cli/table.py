"""What the commands do with a table model: (result, lines) for each."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from unmask.errors import UserError
from unmask.files import check_results

Result = tuple[dict[str, Any], list[str]]


def table_model(model: str) -> Any:
    """The table model in a folder.

    Raises:
        UserError: there is no such folder, or it holds another kind of model.
    """
    from unmask.kinds import kind_of, load

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


def told_schema(schema: str | None, missing: Sequence[str]) -> dict[str, Any]:
    """What a person says of a table: a schema file, and further spellings of a missing value."""
    from unmask.modalities.table.schema.infer import spellings
    from unmask.training.settings import load_toml

    found: dict[str, Any] = dict(load_toml(Path(schema))) if schema else {}
    if missing:
        found["missing"] = [*spellings(found.get("missing", ())), *missing]
    return found


def impute_table(
    model: str, table: str, out: str, draws: int, intervals: str | None, coverage: float, shift: list[str],
    unseen: str, seed: int, absent: str = "", add_absent: bool = False, constraint: Sequence[str] = (),
    missing: Sequence[str] = (), decimal: str | None = None, encoding: str | None = None, sheet: str | None = None,
) -> Result:  # fmt: skip
    from unmask.modalities.table.imputation.complete import complete
    from unmask.modalities.table.imputation.uncertainty import write_intervals
    from unmask.modalities.table.writing.writers import write_table

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
        loaded, frame, draws=draws, seed=seed, interval=coverage if intervals else None, unseen=unseen, shift=moved,
        absent=absent, add_absent=add_absent, constraints=constraint,
    )  # fmt: skip
    for path_, one in zip(written, done.tables, strict=True):
        write_table(one, path_)
    if intervals:
        write_intervals(done.records, loaded.schema, intervals)
    found = {
        "out": written if draws else out, "cells": done.cells, "draws": draws, "intervals": intervals,
        "absent": done.absent, "notes": done.notes, "warnings": done.warnings,
    }  # fmt: skip
    for text in done.warnings:
        print(f"warning: {text}", file=sys.stderr)
    lines = [f"{done.cells} cells filled", *(f"note: {note}" for note in done.notes), *written]
    return found, [*lines, *([intervals] if intervals else [])]


def read_for(
    model: Any, table: str, missing: Sequence[str] = (), decimal: str | None = None, encoding: str | None = None,
    sheet: str | None = None,
) -> Any:  # fmt: skip
    """A table for a model as a person says that it is written; further spellings of none are those of the model from here on."""
    from unmask.modalities.table.reading.readers import read_frame

    if missing:
        model.schema = dataclasses.replace(model.schema, missing=(*model.schema.missing, *missing))
    return read_frame(table, decimal=decimal, encoding=encoding, sheet=sheet)


def numbered(out: str, count: int) -> list[str]:
    """The files of several tables: F-1.csv, F-2.csv, ..."""
    path = Path(out)
    return [str(path.with_name(f"{path.stem}-{m + 1}{path.suffix}")) for m in range(count)]


def synthesize_table(
    model: str,
    rows: int,
    out: str,
    where: list[str],
    constraint: list[str],
    temperature: float,
    missing: bool,
    seed: int,
    rare: str = "drop",
    extremes: str = "pool",
    ids: str = "none",
) -> Result:
    from unmask.modalities.table.synthesis.synthesize import synthesize
    from unmask.modalities.table.writing.writers import write_table

    check_results([out], [])
    if temperature <= 0:
        raise UserError(f"--temperature {temperature}", hint="Expected a number above 0.")
    loaded = table_model(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = synthesize(
            loaded, rows, where=where, constraints=constraint, seed=seed, temperature=temperature, missing=missing,
            rare=rare, extremes=extremes, ids=ids,
        )  # fmt: skip
    write_table(made.table, out)
    found = {"out": out, "rows": rows, "where": where, "warnings": made.warnings, "notes": list(made.notes)}
    return found, [
        f"{rows} rows: {out}",
        *(f"warning: {w}" for w in made.warnings),
        *(f"note: {n}" for n in made.notes),
    ]


def augment_table(
    model: str, table: str, where: list[str], rows: int, out: str, constraint: list[str], seed: int, **written: Any
) -> Result:
    from unmask.modalities.table.synthesis.synthesize import augmented
    from unmask.modalities.table.writing.writers import write_table

    check_results([out], [table])
    loaded = table_model(model)
    whole, new = augmented(loaded, read_for(loaded, table, **written), where, rows, seed, constraint)
    write_table(whole, out)
    found = {"out": out, "rows": len(whole), "added": len(new), "where": where}
    return found, [f"{len(new)} synthetic rows added to {len(whole) - len(new)}: {out}"]


def evaluate_table(
    model: str, data: list[str], rows: int | None, report: str | None, seed: int, **written: Any
) -> Result:
    """Synthetic rows of the model beside real ones it may or may not have seen."""
    from unmask.modalities.table.evaluate import evaluate_model
    from unmask.modalities.table.evaluation.figures import readings, text_lines

    if len(data) not in (1, 2):
        raise UserError(
            f"{len(data)} tables", hint="Give real rows to compare with, then the training rows if you have them."
        )
    check_results([report], data)
    loaded = table_model(model)
    missing = written.pop("missing", ())
    real, *train = (read_for(loaded, table, () if i else missing, **written) for i, table in enumerate(data))
    found = evaluate_model(loaded, real, train=train[0] if train else None, rows=rows, seed=seed, report=report)
    shown = text_lines(readings(found))
    shown += [
        f"{k.replace('_', ' ')}: {found[k]}" for k in ("overlap", "compared_rows", "note", "report") if k in found
    ]
    return found, shown


def score_table(model: str, table: str, absent: str = "", **written: Any) -> Result:
    loaded = table_model(model)
    frame = read_for(loaded, table, **written)
    with _said_on_stderr() as said:
        results = loaded.score(frame, absent=absent)
    shown = [
        f"{r['score']:10.3f}  {r['slots']:4d} cells  row {r['row']}  {json.dumps(r['least_likely'])}" for r in results
    ]
    return {"results": results, "warnings": said}, shown


def embed_table(model: str, table: str, out: str, absent: str = "") -> Result:
    from unmask.cli.common import write_array

    check_results([out], [table])
    loaded = table_model(model)
    with _said_on_stderr() as said:
        array = loaded.embed(table, absent=absent)
    write_array(array, out)
    found = {"out": out, "shape": list(array.shape), "warnings": said}
    return found, [f"{out}: {array.shape[0]} x {array.shape[1]}"]


@contextlib.contextmanager
def _said_on_stderr() -> Iterator[list[str]]:
    """What is warned of meanwhile: listed, and printed on stderr at the end."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield said
    said += [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    for text in said:
        print(f"warning: {text}", file=sys.stderr)
