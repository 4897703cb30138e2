"""A table model as it is served: impute, synthesize, score, embed, and the survival of new rows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.modalities.table.distribution.network import RowModel
from unmask.modalities.table.fitting.point_values import Imputed
from unmask.modalities.table.imputation.complete import CompletedTable, complete, read_incomplete, with_points
from unmask.modalities.table.model import TableModel, load
from unmask.modalities.table.reading.frame import Frame
from unmask.modalities.table.reading.parse import text_of
from unmask.modalities.table.schema.values import cell_texts
from unmask.modalities.table.synthesis.survival_outcome import stored_outcome, survival
from unmask.modalities.table.synthesis.synthesize import synthesize
from unmask.modalities.table.writing.writers import as_polars
from unmask.serving.limits import Limits
from unmask.serving.shapes import Anything, Either, Field, Flag, ListOf, MapOf, Nothing, Number, Open, Record, Text
from unmask.serving.verbs import Served, Verb, Work, adapted, alone, records


def serve(path: str | Path, *, limits: Limits) -> Served:
    """A table model as it is served."""
    model = load(path)
    verbs = {
        "impute": _impute(model, limits),
        "score": _of_rows(
            model,
            limits,
            "Pseudo-log-likelihood of rows, and the least likely cell of each.",
            model.table.log_prob,
            lambda found, frame: {"results": model.scored(found, frame)},
            how="score",
            times=len(model.schema.modelled),
        ),
        "embed": _of_rows(
            model,
            limits,
            "One vector per row.",
            model.table.embed,
            lambda found, _: {"embeddings": np.ascontiguousarray(found)},
            how="embed",
        ),
    }
    if isinstance(model.table.network, RowModel):
        verbs["synthesize"] = _synthesize(model, limits)
    if stored_outcome(model) is not None:
        verbs["survival"] = _survival(model, limits)
    schema = model.schema
    columns = [
        {
            "name": c.name,
            "kind": "date" if c.kind == "datetime" else "quantity" if c.is_quantity else "category",
            "categories": list(c.categories),
            **{name: getattr(c, name) for name in ("low", "high", "unit", "decimals", "format")},
        }
        for c in (schema.columns[i] for i in schema.modelled)
    ]
    about = {
        "columns": columns,
        "duration": schema.duration,
        "event": schema.event,
        "causes": list(schema.causes),
        "constraints": list(schema.constraints),
        "rows": model.facts["rows"],
        "slots": len(columns),
        "precision": "fp32",
    }
    dialects = {
        "huggingface/tabular-classification": _tabular(verbs["impute"], model, limits, quantities=False),
        "huggingface/tabular-regression": _tabular(verbs["impute"], model, limits, quantities=True),
    }
    return Served(kind="table", about=about, verbs=verbs, dialects=dialects)


def _slots(model: TableModel, rows: int, times: int = 1) -> int:
    return rows * len(model.schema.modelled) * times


def _together(
    columns: list[np.ndarray],
    run: Callable[[list[np.ndarray]], Any],
    part: Callable[[Any, int, int], Any],
    finish: Callable[[Any], Any],
    *,
    how: Hashable,
    times: int = 1,
) -> Work:
    """Work on coded rows that may be done with the rows of others.

    Args:
        columns: the modelled ones, coded.
        run: what is asked of the rows of all.
        part: (what is answered, first row, end) -> the answer to one request.
        finish: that answer -> JSON.
        how: requests with the same are asked together.
    """

    def each(some: Sequence[list[np.ndarray]]) -> list[Any]:
        ends = np.cumsum([len(one[0]) for one in some])
        found = run(some[0] if len(some) == 1 else [np.concatenate(parts) for parts in zip(*some, strict=True)])
        return [part(found, end - len(one[0]), end) for one, end in zip(some, ends.tolist(), strict=True)]

    slots = len(columns[0]) * len(columns) * times
    return Work(items=[columns], slots=[slots], run=each, finish=lambda answers: finish(answers[0]), together=how)


def _impute(model: TableModel, limits: Limits) -> Verb:
    dates = {c.name: c for c in model.schema.columns if c.kind == "datetime" and c.format}

    def prepare(body: Any) -> Work:
        rows, draws, frame = body["rows"], body["draws"], frame_of(body["rows"])
        how = {name: body[name] for name in ("unseen", "absent", "constraints")} | {"add_absent": True}
        coverage = body["coverage"]

        def summary(done: CompletedTable) -> dict[str, Any]:
            return {"cells": done.cells, "notes": done.notes, "warnings": done.warnings}

        if draws:

            def drawn() -> dict[str, Any]:
                done = complete(model, frame, draws=draws, seed=body["seed"], **how)
                return {"draws": [rows_of(table) for table in done.tables], **summary(done)}

            return alone(drawn, _slots(model, len(frame), draws))
        read = read_incomplete(model, frame, interval=coverage, **how)

        def finish(found: Imputed) -> dict[str, Any]:
            done = with_points(model, read, found)
            cells = [{k: v for k, v in r.items() if k != "position"} | {"row": r["position"]} for r in done.records]
            for cell in cells:
                if column := dates.get(cell["column"]):
                    cell |= {k: cell_texts([cell[k]], column)[0] for k in ("value", "low", "high")}
            return {"rows": filled(rows, cells), "intervals": cells, **summary(done)}

        return _together(
            read.columns,
            lambda columns: model.table.impute(columns, interval=coverage),
            Imputed.part,
            finish,
            how=("impute", coverage),
        )

    return Verb(
        about="Fill the missing cells of rows: best values with intervals, or complete draws.",
        request=Record(
            rows=rows_field(limits),
            coverage=Field(Number(0.01, 0.999), "Of the intervals.", 0.9),
            draws=Field(
                Number(0, limits.draws, whole=True), "Above 0: so many completed tables instead of best values.", 0
            ),
            seed=Field(Number(0, 2**31, whole=True), "Of the draws.", 0),
            unseen=Field(Text(known=("error", "missing")), "What a category that the model does not know is.", "error"),
            absent=ABSENT,
            constraints=Field(ListOf(Text(), most=100), "Further rules that filled cells meet: 'a <= b'.", ()),
        ),
        answer=Open(
            rows=Field(ListOf(MapOf(CELL)), "The rows, completed.", None),
            intervals=records(
                "One per filled cell.",
                None,
                row=Field(Number(whole=True), "Its place."),
                column=Field(Text()),
                value=Field(CELL),
                low=Field(Anything(), "End of the interval, of a quantity.", None),
                high=Field(Anything(), "", None),
                probability=Field(Anything(), "Of the value, of a category.", None),
                probabilities=Field(Anything(), "Of every level, of a category.", None),
            ),
            draws=Field(ListOf(ListOf(MapOf(CELL))), "With `draws`: that many completed tables.", None),
            cells=Field(Number(whole=True), "How many were filled."),
            notes=Field(ListOf(Text()), "What was done that the caller should know."),
            warnings=Field(ListOf(Text()), "Cells beyond what the model was fitted on."),
        ),
        prepare=prepare,
        example={"rows": [_example(model)]},
    )


def _example(model: TableModel) -> dict[str, Any]:
    """A row with the first column missing and values in all others."""
    columns = [model.schema.columns[i] for i in model.schema.modelled]
    found = {column.name: column.categories[0] if column.categories else column.low for column in columns}
    return found | {columns[0].name: None}


def _of_rows(
    model: TableModel,
    limits: Limits,
    about: str,
    run: Callable[[list[np.ndarray]], np.ndarray],
    answer: Callable[[np.ndarray, Frame], dict[str, Any]],
    *,
    how: str,
    times: int = 1,
) -> Verb:
    """A verb about each row alone; see `_together`."""

    def prepare(body: Any) -> Work:
        frame, columns, notes = model.coded(frame_of(body["rows"]), body["absent"])
        return _together(
            columns,
            run,
            lambda found, start, end: found[start:end],
            lambda found: {"warnings": notes, **answer(found, frame)},
            how=how,
            times=times,
        )

    return Verb(
        about=about,
        request=Record(rows=rows_field(limits), absent=ABSENT),
        prepare=prepare,
        example={"rows": [_example(model)]},
    )


def _synthesize(model: TableModel, limits: Limits) -> Verb:
    def prepare(body: Any) -> Work:
        options = {name: value for name, value in body.items() if name != "rows"}

        def run() -> dict[str, Any]:
            made = synthesize(model, body["rows"], warn=False, **options)
            return {"warnings": made.warnings, "rows": rows_of(made.table), "notes": list(made.notes)}

        return alone(run, _slots(model, body["rows"]))

    return Verb(
        about="Draw new rows: every cell given those drawn before it, none copied from a real row.",
        request=Record(
            rows=Field(Number(1, 1000 * limits.draws, whole=True), "How many."),
            where=Field(ListOf(Text(), most=100), 'Conditions every row meets: "sex == 0 and age >= 70".', ()),
            constraints=Field(ListOf(Text(), most=100), 'Rules every row meets: "dbp < sbp".', ()),
            temperature=Field(Number(0.01, 10), "Below 1 keeps to the common.", 1.0),
            missing=Field(Flag(), "Leave cells empty as often as the training table.", False),
            rare=Field(Text(known=("drop", "keep")), "Levels that only a few training rows have.", "drop"),
            extremes=Field(Text(known=("pool", "keep")), "Values beyond those of a few training rows.", "pool"),
            ids=Field(Text(known=("none", "new")), "new: identifier columns with fresh values.", "none"),
            seed=Field(Number(0, 2**31, whole=True), "Of the draws.", 0),
        ),
        prepare=prepare,
        example={"rows": 3},
    )


def _survival(model: TableModel, limits: Limits) -> Verb:
    def prepare(body: Any) -> Work:
        frame = frame_of(body["rows"])
        how = {name: body[name] for name in ("absent", "draws", "seed")} | {"times": body["times"] or None}
        return alone(lambda: survival(model, frame, **how), _slots(model, len(frame), body["draws"]))

    return Verb(
        about="The survival of new rows from their entry on, and the share who had each event by a time, missing "
        "covariates drawn.",
        request=Record(
            rows=rows_field(limits),
            times=Field(ListOf(Number(0), most=1000), "When to look; default 60 times up to the last follow-up.", ()),
            draws=Field(Number(1, limits.draws, whole=True), "Of missing covariates.", 20),
            seed=Field(Number(0, 2**31, whole=True), "Of the draws.", 0),
            absent=ABSENT,
        ),
        prepare=prepare,
        example={"rows": [_example(model)]},
    )


def _tabular(verb: Verb, model: TableModel, limits: Limits, *, quantities: bool) -> Verb:
    """The hub's tabular tasks: a table without one column, which is predicted."""

    def target(body: Any) -> str:
        schema = model.schema
        lacking = [schema.columns[i] for i in schema.modelled if schema.columns[i].name not in body["table"]]
        if len(lacking) != 1:
            names = ", ".join(repr(c.name) for c in lacking[:8]) or "none"
            raise UserError(f"columns that the table lacks: {names}", hint="Leave out the one that is predicted.")
        if lacking[0].is_quantity != quantities:
            raise UserError(
                f"{lacking[0].name!r} is {'a quantity' if lacking[0].is_quantity else 'a category'}",
                hint=f"Ask for {'tabular-regression' if lacking[0].is_quantity else 'tabular-classification'}.",
            )
        return lacking[0].name

    def answer(found: Any, body: Any) -> Any:
        values = [row[target(body)] for row in found["rows"]]
        return values if quantities else [str(value) for value in values]

    return adapted(
        verb,
        about=f"The column that a table lacks, a {'quantity' if quantities else 'category'}: one value per row.",
        request=Record(
            table=Field(MapOf(ListOf(CELL, limits.items)), "Column -> cells; without the column that is predicted."),
            parameters=Field(Record(), "None.", {}),
        ),
        ask=lambda body: {"rows": from_columns(body["table"]), "absent": [target(body)]},
        answer=answer,
    )


CELL = Either((Nothing(), Flag(), Number(), Text()), "a text, a number, true, false or null")
Rows = Sequence[Mapping[str, Any]]
CELLS, SPARSE = 1_000_000, 20
"""A table of more cells than this is made of rows only where one in so many of its cells is given."""


def rows_field(limits: Limits) -> Field:
    """The rows of a request."""
    return Field(
        ListOf(MapOf(CELL, limits.slots), most=limits.items, least=1),
        "Rows: column -> value; null, or left out, is missing.",
    )


ABSENT = Field(
    ListOf(Text()),
    "Columns that all rows may lack; follow-up time and event always may.",
    (),
)


def frame_of(rows: Rows) -> Frame:
    """The rows as a table; errors name rows by their place, from 0."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not names:
        raise UserError("rows without a column", hint="Each row is an object: column -> value.")
    given = sum(map(len, rows))
    if len(rows) * len(names) > max(CELLS, SPARSE * given):
        raise UserError(
            f"{len(rows):,} rows with {len(names):,} different columns, of which they hold {given:,} cells",
            hint="Rows of one request are rows of one table: name its columns alike.",
        )
    columns = [_column([row.get(name) for row in rows]) for name in names]
    return Frame(names=names, columns=columns, source="rows", first_row=0, decimal=".")


def _column(cells: list[Any]) -> np.ndarray:
    """As of a file of texts, so that codes such as 0 and 1 are read as in a CSV."""
    texts = [cell if cell is None or isinstance(cell, str) else text_of(cell) for cell in cells]
    return np.array([*texts, None], object)[:-1]


def rows_of(table: Any) -> list[dict[str, Any]]:
    """A table as rows."""
    found: list[dict[str, Any]] = as_polars(table).to_dicts()
    return found


def filled(rows: Rows, records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows with filled cells written in.

    Args:
        records: of `IntervalRecords`, `row` being a place.
    """
    out = [dict(row) for row in rows]
    for record in records:
        out[record["row"]][record["column"]] = record["value"]
    return out


def from_columns(table: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Rows of a table given by its columns."""
    if len({len(column) for column in table.values()}) != 1:
        lengths = ", ".join(f"{name}: {len(column)}" for name, column in list(table.items())[:5])
        raise UserError(f"columns of several lengths ({lengths})", hint="Give every column as many cells.")
    return [dict(zip(table, cells, strict=True)) for cells in zip(*table.values(), strict=True)]
