"""How sure an imputed cell is: its interval or the probability of every level, as records, as a frame and as a file."""

from __future__ import annotations

import csv
import datetime as dt
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unmask.modalities.table.fitting.point_values import Imputed
from unmask.modalities.table.reading.frame import Frame
from unmask.modalities.table.reading.parse import text_of
from unmask.modalities.table.schema.schema import Schema
from unmask.modalities.table.schema.values import cell_texts, decode, typed_levels
from unmask.modalities.table.writing.whole_columns import is_pandas
from unmask.writing import written

FIELDS = ("row", "column", "value", "low", "high", "probability", "probabilities")


PART = 4096
"""Rows whose records are made at once."""


@dataclass(frozen=True)
class IntervalRecords:
    """One record per filled cell, by row, made part by part as they are gone through: its position and label, column
    and value; of quantities the ends of the interval (`low`, `high`), of categories `probability` (of the value) and
    `probabilities` (level -> probability), else None.

    Attributes:
        holes, point: per modelled column, which cells were filled, and the columns filled.
        found: intervals and shares of the levels.
        ruled: places of columns under rules, whose values are not cut off at the column's bounds.
    """

    schema: Schema
    frame: Frame
    holes: Sequence[np.ndarray]
    point: Sequence[np.ndarray]
    found: Imputed
    ruled: Collection[int] = ()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for first in range(0, len(self.frame), PART):
            made = [
                record
                for place in range(len(self.holes))
                for record in self._of_column(place, first + np.flatnonzero(self.holes[place][first : first + PART]))
            ]
            yield from sorted(made, key=lambda r: r["position"])

    def _of_column(self, place: int, rows: np.ndarray) -> Iterator[dict[str, Any]]:
        column, found = self.schema.column(place), self.found
        if column.is_quantity:
            assert found.low is not None
            assert found.high is not None
            low, high = (None, None) if place in self.ruled else (column.low, column.high)
            ends = [decode(np.clip(v[place][rows], low, high), column) for v in (self.point, found.low, found.high)]
            more: list[dict[str, Any]] = [{"low": a, "high": b} for a, b in zip(*ends[1:], strict=True)]
            values = ends[0]
        else:
            code = self.point[place][rows].astype(int)
            levels = typed_levels(column)
            values = [levels[c] for c in code]
            more = [
                {"probability": float(p[c]), "probabilities": dict(zip(column.categories, p.tolist(), strict=True))}
                for c, p in zip(code, found.shares_of(place, rows), strict=True)
            ]
        nothing = dict.fromkeys(("low", "high", "probability", "probabilities"))
        for row, value, rest in zip(rows.tolist(), values, more, strict=True):
            yield {
                "position": row,
                "row": self.frame.row_name(row),
                "column": column.name,
                "value": value,
                **nothing,
                **rest,
            }


def interval_frame(records: list[dict[str, Any]], given: Frame) -> Any:
    """The records as a frame of the kind of the table they are of; polars for a file or an array.

    `row` is what `Frame.row_name` says. In pandas `value` holds numbers, texts and dates alike; in polars and Arrow,
    whose columns have one type each, it holds the numbers, `category` the level as text, and `date`, `date_low` and
    `date_high` stand for dates where there are any.
    """
    if is_pandas(given.native):
        import pandas as pd

        columns = {k: [r[k] for r in records] for k in FIELDS}
        kinds = {"column": object, "probability": float, "probabilities": object}
        return pd.DataFrame(columns, columns=list(FIELDS)).astype(kinds)
    out = _polars(records)
    return out.to_arrow() if type(given.native).__module__.startswith("pyarrow") else out


def _polars(records: list[dict[str, Any]]) -> Any:
    import polars as pl

    def kept(name: str, kind: type | tuple[type, ...]) -> list[Any]:
        return [r[name] if isinstance(r[name], kind) else None for r in records]

    columns = {
        "row": pl.Series([r["row"] for r in records], dtype=pl.Int64),
        "column": pl.Series([r["column"] for r in records], dtype=pl.String),
        **{k: pl.Series(kept(k, (int, float)), dtype=pl.Float64, strict=False) for k in ("value", "low", "high")},
        "category": pl.Series(
            [None if r["probability"] is None else text_of(r["value"]) for r in records], dtype=pl.String
        ),
        "probability": pl.Series([r["probability"] for r in records], dtype=pl.Float64),
        "probabilities": pl.Series(
            [
                None
                if r["probabilities"] is None
                else [{"level": k, "probability": p} for k, p in r["probabilities"].items()]
                for r in records
            ],
            dtype=pl.List(pl.Struct({"level": pl.String, "probability": pl.Float64})),
        ),
    }
    if any(isinstance(r["value"], dt.datetime) for r in records):
        for name, of in (("date", "value"), ("date_low", "low"), ("date_high", "high")):
            columns[name] = pl.Series(kept(of, dt.datetime), dtype=pl.Datetime("us"))
    return pl.DataFrame(columns)


def write_intervals(records: Iterable[dict[str, Any]], schema: Schema, path: str | Path, given: Frame) -> None:
    """The records as a CSV file; `probabilities` is a JSON object. Rows of a file are known by their `line`, the
    names of columns being on the first; others by `row`, see `Frame.row_name`."""
    with written(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n", extrasaction="ignore")
        writer.writerow(dict(zip(FIELDS, FIELDS, strict=True)) | ({"row": "line"} if given.native is None else {}))
        for r in records:
            column = schema.columns[schema.number(r["column"])]
            texts = dict(
                zip(("value", "low", "high"), cell_texts([r["value"], r["low"], r["high"]], column), strict=True)
            )
            shares = r["probabilities"]
            if shares is not None:
                texts["probability"] = f"{r['probability']:.4f}"
                texts["probabilities"] = json.dumps({k: round(p, 4) for k, p in shares.items()}, ensure_ascii=False)
            writer.writerow({**r, **texts})
