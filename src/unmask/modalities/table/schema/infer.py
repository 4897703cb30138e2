"""What a table's columns are, found out from the raw columns and from what a person says of them (a dict or TOML file).

Read or refuse: whatever does not fit is an error that names all cells; whatever was decided is a note; whatever looks
doubtful is a warning with the lines of a schema that settle it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unmask.errors import UserError, suggest
from unmask.modalities.table.reading.findings import Finding, refuse, setting
from unmask.modalities.table.reading.frame import Frame
from unmask.modalities.table.reading.parse import text_of
from unmask.modalities.table.schema.clusters import clusters_of, described, with_cluster
from unmask.modalities.table.schema.column import column_of
from unmask.modalities.table.schema.raw_column import blank_notes, spellings, with_blanks
from unmask.modalities.table.schema.roles import spelt_alike
from unmask.modalities.table.schema.schema import Schema
from unmask.modalities.table.schema.survival_pair import SurvivalColumns, with_survival_pair
from unmask.modalities.table.schema.suspicious_values import (
    below_table,
    copied_rows,
    no_header,
    numbered,
    repeated_ids,
    repeated_rows,
    same_names,
    spelt_missing,
    summary_row,
)
from unmask.modalities.table.schema.values import missing_cells


def infer_schema(
    names: Sequence[str], columns: Sequence[np.ndarray], *, source: str = "table", first_row: int = 1, **known: Any
) -> Schema:
    """The schema of raw columns (floats, or objects as read from a file), with a person's overrides laid over it.
    `first_row`: what errors call the first row; `known`: what is known of the table already; see `infer`."""
    frame = Frame(names=list(names), columns=list(columns), source=source, first_row=first_row)
    return infer(frame, **known)[0]


def infer(
    frame: Frame,
    *,
    override: Mapping[str, Any] | None = None,
    cluster: str | None = None,
    strict: bool = True,
    **pair: Any,
) -> tuple[Schema, list[Finding]]:
    """The schema of a table, with everything that was noticed.

    Args:
        override: {"columns": {name: {kind=..., low=..., ...}}, "duration": ..., "event": ..., "missing": [...]}.
        cluster: the column that names what several rows belong to.
        strict: cells that do not fit raise; else they are findings, and the schema is what would be without them.
        pair: what is given of the survival pair (duration, event, entry, event_level): it comes before the override.
    """
    names, columns, source, row_name = frame.names, frame.columns, frame.source, frame.row_name
    override = dict(override or {})
    known = {"columns", "duration", "event", "event_level", "entry", "cluster", "missing", "constraints", "decimal"}
    for key in set(override) - known:
        raise UserError(f"schema: unknown key {key!r}", hint=suggest(key, known))
    given = override.get("columns", {})
    if not isinstance(given, Mapping) or not all(isinstance(v, Mapping) for v in given.values()):
        raise UserError(f"schema: columns={given}", hint="Expected settings of each column: [columns.NAME] kind = ...")
    for name in given:
        if name not in names:
            raise UserError(f"schema: no column {name!r} in {source}", hint=suggest(name, names))
    named = SurvivalColumns.given(override, given, **pair)
    missing = spellings(override.get("missing", ()))
    spelled = frame.find_spellings(override.get("decimal"))
    found, findings, spelt = [], [], {}
    for i, (name, raw) in enumerate(zip(names, columns, strict=True)):
        column, noticed, empty = column_of(
            name,
            raw,
            given.get(name, {}),
            missing=missing,
            spelling=spelled[i],
            levels=frame.levels[i] if frame.levels else None,
            row_name=row_name,
        )
        found.append(column)
        findings += noticed
        spelt[name] = empty
    for raw, c in zip(columns, found, strict=True):
        blanks = blank_notes(c.name, raw, c.blank, (*missing, *c.missing))
        findings += [Finding("note", None, "blank", note) for note in blanks]
    columns = [with_blanks(raw, c.blank, (*missing, *c.missing)) for raw, c in zip(columns, found, strict=True)]
    numbers = [numbered(x) for x in columns]
    findings += (
        spelt_missing(spelt)
        + same_names(found)
        + no_header(found)
        + (below_table(found, columns, missing, frame) or summary_row(found, findings, frame))
        + copied_rows(numbers, "note" if strict else "warning")
    )
    for name, labels in frame.index_levels():
        findings += repeated_ids(name, len(set(labels.tolist())), len(labels))
    findings = [f for f in findings if f.code != "summary_cell"]
    if not any(f.code == "repeated_ids" for f in findings):
        free = [i for i, c in enumerate(found) if "kind" not in given.get(c.name, {})]
        findings += repeated_rows([found[i] for i in free], [columns[i] for i in free], [numbers[i] for i in free])
    whole = Schema(columns=tuple(found), missing=missing)
    if (cluster := cluster or override.get("cluster")) is not None:
        try:
            clusters = clusters_of(frame, whole, cluster)
            seen = [
                np.where(missing_cells(raw, c, whole), np.nan, x)
                for raw, c, x in zip(columns, found, numbers, strict=True)
            ]
            others = with_cluster(whole, cluster).columns
            findings.append(Finding("note", cluster, "cluster", described(clusters, others, seen)))
            if not any(f.column == cluster and f.code == "spelt_alike" for f in findings):
                findings += spelt_alike(cluster, dict(zip(clusters.names, clusters.sizes.tolist(), strict=True)))
        except UserError as error:
            if strict or cluster not in names:
                raise
            findings.append(Finding("error", cluster, "cluster", error.what, error.hint))
        findings = [
            f
            for f in findings
            if f.code != "repeated_rows" and (f.column != cluster or f.code in ("cluster", "spelt_alike"))
        ]
        whole = with_cluster(whole, cluster)
    if strict:
        refuse(findings, source)
    rules = override.get("constraints", ())
    rules = (rules,) if isinstance(rules, str) else tuple(rules)
    schema = dataclasses.replace(whole, constraints=rules)
    try:
        schema, pair_findings = with_survival_pair(
            schema, columns, named, marks=[s.marks for s in spelled], source=source, row_name=row_name
        )
        findings += pair_findings
    except UserError as error:
        if strict:
            raise
        findings.append(Finding("error", None, "survival_pair", error.what, error.hint))
    schema, empty_by_meaning = structural(schema, columns, {name for name, v in given.items() if "structural" in v})
    findings += empty_by_meaning
    findings = [
        f for f in findings if f.code != "codes" or f.column not in (schema.duration, schema.event, schema.entry)
    ]
    order = ("error", "warning", "note")
    findings.sort(key=lambda f: order.index(f.severity))
    notes = tuple(str(f) for f in findings if f.severity != "error")
    return dataclasses.replace(schema, notes=notes), findings


FEWEST = 10
"""Rows in which the level stands, and in which it does not, for a rule to be taken from data."""
CHANCE = 1e-4
"""How likely chance may make a rule of one of all levels of the table, cells being missing at random."""


def structural(schema: Schema, columns: Sequence[np.ndarray], fixed: set[str]) -> tuple[Schema, list[Finding]]:
    """Mark columns that are empty exactly where another one holds a certain category (FLChain: cause of death, alive).

    Exactly: in all but .5 % of those rows, in at most 5 % of the others, and at least nine tenths of the empty cells
    are there. Beyond that the rows must be evidence: were cells missing at random, so many together would happen in
    fewer than one of ten thousand tables (hypergeometric, times all levels and columns tried). Columns of which a
    person has said whether they are stay so (`fixed`). A finding per column marked is a note where the event of the
    survival pair is the reason, else a warning, for a value that was not measured there looks the same."""
    from scipy.stats import hypergeom

    missing = [missing_cells(raw, c, schema) for raw, c in zip(columns, schema.columns, strict=True)]
    rows = len(missing[0]) if missing else 0
    if rows < 30:
        return schema, []
    levels: list[tuple[str, str, np.ndarray]] = []
    for i, c in enumerate(schema.columns):
        if c.kind in ("binary", "nominal", "ordinal") and 1 < len(c.categories) <= 12 and missing[i].mean() < 0.01:
            codes = np.array([text_of(cell) for cell in columns[i].tolist()])
            levels += [
                (c.name, v, here) for v in c.categories if FEWEST <= int((here := codes == v).sum()) <= rows - FEWEST
            ]
    tried = max(1, len(levels) * len(schema.columns))
    there_of = [int(here.sum()) for *_, here in levels]
    changed = list(schema.columns)
    findings: list[Finding] = []
    for i, c in enumerate(schema.columns):
        empty = int(missing[i].sum())
        if c.name in fixed or not 0.02 <= empty / rows <= 0.98:
            continue
        found = [
            (name, v, both, there)
            for (name, v, here), there in zip(levels, there_of, strict=True)
            if name != c.name and _rules(both := int(np.count_nonzero(here & missing[i])), there, empty, rows)
        ]
        if not found:
            continue
        name, v, both, there = max(found, key=lambda f: f[2])
        if np.log(tried) + hypergeom.logsf(both - 1, rows, empty, there) > np.log(CHANCE):
            continue
        changed[i] = dataclasses.replace(c, structural=(name, v))
        text = (
            f"{c.name!r} is empty where {name!r} is {v!r} ({both} of {there} rows, and {empty - both} of the other "
            f"{rows - there}): structural, those cells are left empty"
            + (", and it explains no outcome" if c.modelled else "")
        )
        add = f"If it was only not measured there: {setting(c.name, 'structural = false')}"
        findings.append(
            Finding("note", None, "structural", text)
            if name == schema.event
            else Finding("warning", c.name, "structural", f"{text}.", add)
        )
    return dataclasses.replace(schema, columns=tuple(changed)), findings


def _rules(both: int, there: int, empty: int, rows: int) -> bool:
    """Whether a level of `there` rows, `both` of which are empty, says which of the rows are."""
    return both >= 0.995 * there and empty - both <= 0.05 * (rows - there) and both >= 0.9 * empty
