"""Impute and synthesise in one call: a model is fitted to the table itself."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.errors import UserError, outside
from unmask.files import are_files, check_results
from unmask.guessed import also_called
from unmask.modalities.table.evaluate import evaluate_model
from unmask.modalities.table.evaluation.figures import SyntheticFigures
from unmask.modalities.table.fitting.cell_table import FittedTable
from unmask.modalities.table.fitting.imputation_quality import with_care
from unmask.modalities.table.imputation.complete import complete, holes, taken_for_missing
from unmask.modalities.table.imputation.uncertainty import write_intervals
from unmask.modalities.table.model import TableModel, load
from unmask.modalities.table.reading.frame import Frame
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.schema.values import encode
from unmask.modalities.table.synthesis.synthesize import synthesize as draw_rows
from unmask.modalities.table.writing.writers import check_format, handed_out, write_table
from unmask.registry import is_model
from unmask.training.tracking import console_logger


def fit_to(data: Any, *, console: bool = True, **fitting: Any) -> TableModel:
    """A model fitted to the table itself, which a line on stderr says, with the time.

    Args:
        fitting: arguments of `TableModel.fit`.
    """
    model = TableModel.fit(data, **fitting)
    facts, log = model.facts, console_logger(console)
    log(
        f"fitted to the table itself: {facts['rows']:,} rows x {facts['columns']} columns, {facts['steps']} steps, "
        f"{facts['seconds']:.1f} s"
    )
    return model


def warn_of_poor(model: TableModel, frame: Frame) -> None:
    """Warn of columns with missing cells whose imputed values are no better than a mean."""
    schema = model.schema
    gaps = dict(zip(schema.modelled, holes(schema, encode(frame, schema)), strict=True))
    names = {schema.columns[i].name for i, gap in gaps.items() if gap.any()}
    if care := with_care([f for f in model.facts["columns_imputed"] if f["column"] in names]):
        warnings.warn(care, stacklevel=outside())


@also_called(
    {
        **dict.fromkeys(
            ("strategy", "n_neighbors", "estimator", "initial_strategy"),
            "There is none to choose: a model of all columns predicts each cell",
        ),
        "model": "A model has the verb: unmask.load('model').impute(data)",
    },
    m="draws",
    n_imputations="draws",
    random_state="seed",
)
def impute(
    data: Any,
    out: str | Path | None = None,
    *,
    intervals: str | Path | None = None,
    coverage: float = 0.9,
    draws: int = 0,
    shift: Mapping[str, float | Mapping[str, float]] | None = None,
    censored: str | None = None,
    seed: int = 0,
    console: bool = True,
    **fitting: Any,
) -> Any:
    """The table with its missing cells filled, by a model that is fitted to the table itself: seconds, as a rule.

    For new rows fit once, `unmask.table.pretrain(data, "model")`, then `unmask.load("model").impute(new)`. For standard
    errors that know of the holes there is `MultipleImputation`.

    Args:
        data: a path, pandas, polars or Arrow table, array or dict of columns. What is returned is of its kind (polars
            of a file or a dict), with the index of pandas, and observed cells as they were.
        out: also write the table here: .csv, .tsv or .parquet.
        intervals: also write a CSV with a line per filled cell here: how sure its value is.
        coverage: of the intervals.
        draws: 0 for best values; m for a list of m tables, drawn from the model.
        shift, censored: see `TableModel.impute`.
        seed: of the fit and of draws.
        console: say on stderr how long the fit took.
        fitting: of `TableModel.fit`: `schema`, `duration`, `event`, `entry`, `event_level`, `cluster`, `constraints`,
            `settings`, or settings as keywords, such as `steps=200`.

    Raises:
        UserError: naming the row, column and value at fault; a model instead of a table.
    """
    if are_files(data) and not (isinstance(data, str | Path) and is_model(data)):
        hint = "unmask.TableModel.fit(files).impute_files(files, 'filled') fills them one by one."
        raise UserError("impute: several files, not one table in memory", hint=hint)
    if _is_model(data):
        raise UserError("impute: a model, not a table", hint="A model has the verb: unmask.load('model').impute(data).")
    if draws and (out is not None or intervals is not None):
        raise UserError("draws= with out= or intervals=", hint="Several tables are returned as a list: write each.")
    if out is not None:
        check_format(out)
    check_results([out, intervals], [data] if isinstance(data, str | Path) else [])
    frame = read_frame(data)
    model = fit_to(frame, console=console, **({} if "settings" in fitting else {"seed": seed}), **fitting)
    warn_of_poor(model, frame)
    level = coverage if intervals else None
    done = complete(model, frame, draws=draws, seed=seed, shift=shift, censored=censored, interval=level)
    taken = taken_for_missing(model.schema, frame)  # the fit has warned of these
    for text in [*done.warnings, *(note for note in done.notes if note not in taken)]:
        warnings.warn(text, stacklevel=outside())
    if intervals is not None:
        write_intervals(done.records, model.schema, intervals, frame)
    if out is not None:
        write_table(done.tables[0], out)
    tables = [handed_out(table) for table in done.tables]
    return tables if draws else tables[0]


@also_called(
    {
        "metadata": "Columns are found out; overrule with schema={'columns': {'x': {'kind': 'nominal'}}}",
        "discrete_columns": "Columns are found out; overrule with schema={'columns': {'x': {'kind': 'nominal'}}}",
        "conditions": "Conditions are where='age >= 70 and sex == 0'",
    },
    **dict.fromkeys(("num_rows", "n", "size", "n_samples", "n_rows", "count"), "rows"),
    random_state="seed",
)
def synthesize(
    data: Any,
    rows: int | None = None,
    out: str | Path | None = None,
    *,
    where: Sequence[str] | str | Mapping[str, object] | None = None,
    temperature: float = 1.0,
    missing: bool = False,
    rare: str = "drop",
    extremes: str = "pool",
    ids: str = "none",
    seed: int = 0,
    console: bool = True,
    **fitting: Any,
) -> Any:
    """New rows, of a model that is fitted to the table itself, or of one that is there.

    Args:
        data: a table as in `impute`; or a model, which is a `TableModel` or its folder.
        rows: how many, as many as the model was fitted to by default.
        out: also write them here: .csv, .tsv or .parquet.
        where: conditions that every row meets, such as "sex == 0 and age >= 70".
        temperature, missing, rare, extremes, ids: see `TableModel.synthesize`.
        seed: of the fit and of the rows.
        console: say on stderr how long the fit took.
        fitting: of `TableModel.fit`, as in `impute`; of a model that is there `constraints` alone.

    Returns:
        A table of the kind that the model was fitted to; polars of a file.

    Raises:
        UserError: what is wrong with the table, or a condition that no row can meet.
    """
    if out is not None:
        check_format(out)
    check_results([out], [data] if isinstance(data, str | Path) else [])
    constraints: Sequence[str] = ()
    if _is_model(data):
        constraints = fitting.pop("constraints", ())
        if fitting:
            raise UserError(f"{next(iter(fitting))}= with a model", hint="It is fitted already: leave it out.")
        model = data if isinstance(data, FittedTable) else load(data)
    else:
        model = fit_to(data, console=console, **({} if "settings" in fitting else {"seed": seed}), **fitting)
    new = draw_rows(
        model,
        model.facts["rows"] if rows is None else rows,
        where=where,
        constraints=constraints,
        seed=seed,
        temperature=temperature,
        missing=missing,
        rare=rare,
        extremes=extremes,
        ids=ids,
    ).table
    if out is not None:
        write_table(new, out)
    return handed_out(new)


def evaluate(model: TableModel | str | Path, data: Any, **options: Any) -> SyntheticFigures:
    """Compare synthetic rows of a model, or of its folder, with real ones; see
    `unmask.modalities.table.evaluate.evaluate_model`."""
    if isinstance(model, FittedTable):
        return evaluate_model(model, data, **options)
    return evaluate_model(load(model), data, **{"folder": model, **options})


def _is_model(data: Any) -> bool:
    """Whether this is a model of a table, or the folder of one."""
    return isinstance(data, FittedTable) or (isinstance(data, str | Path) and Path(data).is_dir())
