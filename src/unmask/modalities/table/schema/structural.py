"""Columns that are empty by their meaning: the cause of death of the living."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from unmask.modalities.table.reading.findings import Finding, setting
from unmask.modalities.table.reading.parse import text_of
from unmask.modalities.table.schema.schema import Column, Schema
from unmask.modalities.table.schema.values import missing_cells

FEWEST = 10
"""Rows in which the level stands, and in which it does not, for a rule to be taken from data."""
CHANCE = 1e-4
"""How likely chance may make a rule of one of all levels of the table, cells being missing at random."""


def structural(schema: Schema, columns: Sequence[np.ndarray], fixed: set[str]) -> tuple[Schema, list[Finding]]:
    """Mark columns that are empty exactly where another one holds a certain category (FLChain: cause of death, alive).

    Exactly: in all but .5 % of those rows, in at most 5 % of the others, and at least nine tenths of the empty cells
        are
    there. Beyond that the rows must be evidence: were cells missing at random, so many together would happen in
    fewer than one of ten thousand tables (hypergeometric, times all levels and columns tried).

    Args:
        fixed: columns of which a person has said whether they are.

    Returns:
        The schema, and a finding per column marked: a note where the event of the survival pair is the reason, else a
        warning, for a value that was not measured there looks the same.
    """
    from scipy.stats import hypergeom

    gone = [missing_cells(raw, c, schema) for raw, c in zip(columns, schema.columns, strict=True)]
    rows = len(gone[0]) if gone else 0
    if rows < 30:
        return schema, []
    levels: list[tuple[str, str, np.ndarray]] = []
    for i, c in enumerate(schema.columns):
        if c.kind in ("binary", "nominal", "ordinal") and 1 < len(c.categories) <= 12 and gone[i].mean() < 0.01:
            codes = _texts(columns[i])
            levels += [
                (c.name, v, here) for v in c.categories if FEWEST <= int((here := codes == v).sum()) <= rows - FEWEST
            ]
    tried = max(1, len(levels) * len(schema.columns))
    changed = list(schema.columns)
    said: list[Finding] = []
    for i, c in enumerate(schema.columns):
        empty = int(gone[i].sum())
        if c.name in fixed or not 0.02 <= empty / rows <= 0.98:
            continue
        found = [
            (name, v, int((here & gone[i]).sum()), int(here.sum()))
            for name, v, here in levels
            if name != c.name and _rules(here, gone[i])
        ]
        if not found:
            continue
        name, v, both, there = max(found, key=lambda f: f[2])
        if np.log(tried) + hypergeom.logsf(both - 1, rows, empty, there) > np.log(CHANCE):
            continue
        changed[i] = dataclasses.replace(c, structural=(name, v))
        certain = name == schema.event
        text = (
            f"{c.name!r} is empty where {name!r} is {v!r} ({both} of {there} rows, and {empty - both} of the other "
            f"{rows - there}): "
            f"structural, those cells are left empty{_designs(c)}"
        )
        add = f"If it was only not measured there: {setting(c.name, 'structural = false')}"
        said.append(
            Finding(severity="note", column=None, code="structural", text=text)
            if certain
            else Finding(severity="warning", column=c.name, code="structural", text=f"{text}.", add=add)
        )
    return dataclasses.replace(schema, columns=tuple(changed)), said


def _designs(column: Column) -> str:
    return ", and it explains no outcome" if column.modelled else ""


def _rules(here: np.ndarray, gone: np.ndarray) -> bool:
    inside, outside = float(gone[here].mean()), float(gone[~here].mean())
    return inside >= 0.995 and outside <= 0.05 and float(here[gone].mean()) >= 0.9


def _texts(raw: np.ndarray) -> np.ndarray:
    known: dict[object, str] = {}
    return np.array([known.setdefault(v, text_of(v)) for v in raw.tolist()])
