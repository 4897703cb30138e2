"""A data dictionary of a table before anything is fitted: what each column is and why, and what wants a decision."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unmask.evaluation.shown import Printed, Shown
from unmask.given import no_value
from unmask.modalities.table.reading.findings import SHOWN, Finding, setting, toml_key, toml_text
from unmask.modalities.table.reading.frame import Frame
from unmask.modalities.table.reading.parse import days, measured, text_of
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.schema.infer import infer
from unmask.modalities.table.schema.raw_column import with_blanks
from unmask.modalities.table.schema.schema import LEFT_OUT, Column, Schema
from unmask.modalities.table.schema.values import cell_texts, decode, empty_row_notes, empty_rows, missing_cells
from unmask.writing import written

_WHY = {
    "numeric": "numbers",
    "integer": "whole numbers",
    "ordinal": "categories in an order",
    "nominal": "few distinct values",
    "binary": "two values",
    "datetime": "dates",
    "id": "names individuals",
    "text": "sentences",
}
ROLES = ("duration", "event", "entry", "cluster")
"""Fields of a schema that name one column each."""
SETTLED = (
    "categories",
    "format",
    "unit",
    "structural",
    "blank",
    "missing",
    "limits",
    "lod",
    "uloq",
    "suffixes",
    "event",
)
"""Of a column's fields, those that a schema to edit has beside its kind."""


@dataclass(frozen=True, kw_only=True)
class Described:
    """One column of the dictionary.

    Attributes:
        why: what the kind is taken from.
        missing, spelt: empty cells, and how they are written where not simply left empty.
        examples: a few values as they stand; none of identifiers and free text.
        levels: category -> cells.
        counts, edges: a histogram of a quantity.
    """

    column: Column
    why: str
    rows: int
    missing: int
    distinct: int
    spelt: dict[str, int]
    examples: list[str]
    levels: dict[str, int]
    low: str | None
    high: str | None
    counts: list[int]
    edges: list[float]

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for --json."""
        c = self.column
        about = {"name": c.name, "kind": c.kind, "unit": c.unit, "format": c.format}
        rest = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "column"}
        return about | rest | {"missing_share": round(self.missing / self.rows, 4) if self.rows else None}

    @property
    def values(self) -> str:
        """Its range, or its most frequent categories."""
        if self.column.kind in LEFT_OUT:
            return "left out"
        if self.low is not None:
            return f"{self.low} to {self.high}" + (f" {self.column.unit}" if self.column.unit else "")
        shown = sorted(self.levels.items(), key=lambda item: -item[1])[:5]
        return ", ".join(f"{t} ({n})" for t, n in shown) + (", ..." if len(self.levels) > 5 else "")


@dataclass(frozen=True, kw_only=True, repr=False)
class Description(Printed):
    """What `describe` found; printed, as JSON, as a report, and as a schema to edit."""

    source: str
    rows: int
    columns: list[Described]
    findings: list[Finding]
    schema: Schema
    decimal: str | None

    def count(self, severity: str) -> int:
        """How many findings are of a severity."""
        return sum(f.severity == severity for f in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for --json."""
        return {
            "source": self.source,
            "rows": self.rows,
            "duration": self.schema.duration,
            "event": self.schema.event,
            "cluster": self.schema.cluster,
            "errors": self.count("error"),
            "warnings": self.count("warning"),
            "columns": [c.to_dict() for c in self.columns],
            "findings": [f.to_dict() for f in self.findings],
        }

    def shown(self) -> Shown:
        """The dictionary, for a notebook and as a frame."""
        rows = [(c.column.name, c.column.kind, c.missing, c.values, self._why(c)) for c in self.columns]
        return Shown(
            title=f"{self.source}: {self.rows} rows x {len(rows)} columns",
            columns=("column", "kind", "missing", "values", "why"),
            rows=rows,
            notes=[f"{f.severity}: {f.text}" + (f" {f.add}" if f.add else "") for f in self.findings],
            next_step="write_toml('schema.toml') to change what is wrong; unmask.impute(data, schema='schema.toml')",
        )

    def _why(self, one: Described) -> str:
        """What the kind of a column is taken from, and its role."""
        return ", ".join(filter(None, (one.why, self.schema.role(one.column.name))))

    def lines(self) -> list[str]:
        """The dictionary for a terminal."""
        names = [c.column.name for c in self.columns]
        width = min(max(map(len, names), default=0), 32)
        out = [f"{self.source}: {self.rows} rows x {len(names)} columns"]
        for c in self.columns:
            missing = f"{c.missing} missing" if c.missing else ""
            out.append(f"  {c.column.name:{width}}  {c.column.kind:8}  {missing:14}  {c.values}  [{self._why(c)}]")
        for severity in ("error", "warning", "note"):
            for f in self.findings:
                if f.severity == severity:
                    out += [f"{severity + ':':8} {f.text}", *([f"           {f.add}"] if f.add else [])]
                    for row, value in f.cells[:SHOWN]:
                        out.append(f"           row {row}: {f.prefix}{value!r}{f.wrong}")
                    if len(f.cells) > SHOWN:
                        out.append(f"           and {len(f.cells) - SHOWN} more cells")
        if not self.count("error"):
            out.append("every cell can be read")
        return out

    def toml(self) -> str:
        """A schema to edit: `pretrain table --schema` takes it as it is, unless cells cannot be read."""
        top: dict[str, Any] = {name: getattr(self.schema, name) for name in ROLES}
        top |= {"missing": list(self.schema.missing), "decimal": self.decimal}
        top |= {"constraints": list(self.schema.constraints)}
        out = [
            f"# Columns of {Path(self.source).name}, as found. Edit what is not so, and give this file to `unmask "
            "pretrain table` as its schema.",
            "# kind: numeric, integer, binary, nominal, ordinal (with categories, from low to high), datetime, id, "
            "text.",
            *(f"{name} = {toml_text(value)}" for name, value in top.items() if value),
        ]
        names = Counter(c.column.name for c in self.columns)
        for described in self.columns:
            c = described.column
            out.append("")
            for f in self.findings:
                if f.column == c.name and f.severity != "note":
                    out += [f"# {f.severity}: {line}" for line in (f.text, f.add) if line]
            if names[c.name] > 1:
                out.append(f"# {c.name!r} stands twice in the table: a schema cannot tell the two apart")
                continue
            out.append(f"[columns.{toml_key(c.name)}]")
            out.append(f"kind = {toml_text(c.kind)}")
            for name in SETTLED:
                value = getattr(c, name)
                wanted = name != "categories" or c.kind == "ordinal"
                if value and wanted:
                    out.append(f"{name} = {toml_text(list(value) if isinstance(value, tuple) else value)}")
        return "\n".join(out) + "\n"

    def write_toml(self, path: str | Path) -> Path:
        """Write `toml()`, whole or not at all."""
        with written(path) as temporary:
            temporary.write_text(self.toml(), encoding="utf-8")
        return Path(path)

    def write_report(self, path: str | Path) -> Path:
        """The dictionary as one HTML page with a small picture per column."""
        from unmask.evaluation.card import Use
        from unmask.evaluation.charts import histogram, table
        from unmask.evaluation.report import Report

        report = Report("A table before it is modelled", self.source)
        report.facts(
            {
                "Rows": self.rows,
                "Columns": len(self.columns),
                "Errors": self.count("error"),
                "Warnings": self.count("warning"),
                "Missing": f"{np.mean([c.missing / max(c.rows, 1) for c in self.columns]):.1%}",
            }
        )
        for severity, heading in (
            ("error", "Cells that cannot be read"),
            ("warning", "What wants a decision"),
            ("note", "What was done"),
        ):
            found = [f for f in self.findings if f.severity == severity]
            if found:
                cells = [("; ".join(f"row {r}: {v}" for r, v in f.cells[:SHOWN])) for f in found]
                rows = [(f.column or "", f.text, f.add, c) for f, c in zip(found, cells, strict=True)]
                report.section(heading, table(("column", "what", "line to add to the schema", "cells"), rows))
        rows_ = [
            (
                c.column.name,
                c.column.kind,
                self._why(c),
                f"{c.missing} ({c.missing / max(c.rows, 1):.1%})",
                c.values,
                histogram(c.counts or sorted(c.levels.values(), reverse=True)[:20], c.column.name),
            )
            for c in self.columns
        ]
        report.section("Columns", table(("column", "kind", "why", "missing", "values", "picture"), rows_))
        roles = {name: getattr(self.schema, name) for name in ROLES}
        given = "".join(f" --{name} {shlex.quote(column)}" for name, column in roles.items() if column)
        commands = (
            (
                "write what was found as a schema, and change there what is wrong",
                f"unmask describe MODEL --schema-out s.toml{given}",
            ),
            ("fit a model by it", "unmask pretrain table MODEL --schema s.toml --out model"),
            ("fill the gaps", "unmask impute model MODEL --out filled.csv --intervals cells.csv"),
        )
        return report.use(Use(commands=commands, python="").of(self.source).html(), "What to do next").write(path)


def describe(
    data: Any,
    *,
    schema: Mapping[str, Any] | None = None,
    duration: str | None = None,
    event: str | None = None,
    entry: str | None = None,
    event_level: str | Sequence[str] | None = None,
    cluster: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    sheet: str | None = None,
) -> Description:
    """Look at a table: the kind of every column and why, what is missing and how it is spelt, and what may be wrong.

    Args:
        data: a path, or a pandas, polars or Arrow table, or an array.
        schema: what is known of it already, as for a fit.
        duration, event, entry, event_level: the survival pair, late entry and the event's levels, as for a fit.
        cluster: the column that names the patient or centre several rows belong to: clusters, their rows, and the
            columns that are constant within them (level two) are told.
        decimal, encoding, sheet: see `read_frame`.

    Raises:
        UserError: the file cannot be read at all. Cells that do not fit are findings here.
    """
    frame = read_frame(data, decimal=decimal, encoding=encoding, sheet=sheet)
    override = dict(schema or {})
    found, findings = infer(
        frame,
        override=override,
        duration=duration,
        event=event,
        entry=entry,
        event_level=event_level,
        cluster=cluster,
        strict=False,
    )
    columns = [_described(frame, i, c, found, findings, override) for i, c in enumerate(found.columns)]
    findings += _of_the_table(frame, found, columns, findings)
    findings += [Finding("note", None, "file", text) for text in frame.notes]
    if not frame.encoding.startswith("utf-8"):
        text = f"the file is read as {frame.encoding}, and tables filled from it are written so"
        findings.append(Finding("note", None, "encoding", text))
    findings.sort(key=lambda f: ("error", "warning", "note").index(f.severity))
    return Description(
        source=frame.source,
        rows=len(frame),
        columns=columns,
        findings=findings,
        schema=found,
        decimal=override.get("decimal"),
    )


def _described(
    frame: Frame, i: int, c: Column, schema: Schema, findings: list[Finding], override: Mapping[str, Any]
) -> Described:
    raw = with_blanks(frame.columns[i], c.blank, (*schema.missing, *c.missing))
    missing = missing_cells(raw, c, schema)
    seen = raw[~missing].tolist()
    try:
        counts = Counter(map(text_of, seen))
    except TypeError:
        counts = Counter()
    declared = "kind" in override.get("columns", {}).get(c.name, {})
    reasons = [f.text.rpartition("(")[2].rstrip(")") for f in findings if f.column == c.name and f.code in LEFT_OUT]
    why = "as declared" if declared else reasons[0] if reasons else "no value" if not seen else _WHY[c.kind]
    numbers = np.zeros(0)
    if c.kind == "datetime":
        numbers, _ = days(raw[~missing], c.format or "")
    elif c.kind in ("numeric", "integer"):
        numbers, _ = measured(raw[~missing], frame.spellings[i].marks, c.limits, c.suffixes)
    beyond = (numbers <= (-np.inf if c.lod is None else c.lod)) | (numbers >= (np.inf if c.uloq is None else c.uloq))
    numbers = numbers[np.isfinite(numbers) & ~beyond]
    bins, edges = np.histogram(numbers, bins=min(20, max(1, len(np.unique(numbers)))))
    ends = cell_texts(decode(np.array([numbers.min(), numbers.max()]), c), c) if len(numbers) else [None, None]
    hidden = c.kind in LEFT_OUT
    return Described(
        column=c,
        why=why,
        rows=len(raw),
        missing=int(missing.sum()),
        distinct=len(counts),
        spelt=dict(Counter(v for v in raw[missing].tolist() if isinstance(v, str) and v.strip())),
        examples=[] if hidden else [str(v) for v in list(dict.fromkeys(map(str, seen)))[:3]],
        levels={} if hidden or c.is_quantity else dict(counts.most_common(50)),
        low=ends[0],
        high=ends[1],
        counts=bins.tolist() if len(numbers) else [],
        edges=edges.tolist(),
    )


def _of_the_table(frame: Frame, schema: Schema, columns: list[Described], findings: Sequence[Finding]) -> list[Finding]:
    """Columns that stand there twice, and columns of one value."""
    out: list[Finding] = []

    def warn(column: str | None, code: str, text: str, add: str = "") -> None:
        out.append(Finding("warning", column, code, text, add))

    texts = [
        tuple("" if g or no_value(v) else text_of(v) for v, g in zip(raw, missing_cells(raw, c, schema), strict=True))
        for raw, c in zip(frame.columns, schema.columns, strict=True)
    ]
    first: dict[tuple[str, ...], str] = {}
    for name, cells, described in zip(frame.names, texts, columns, strict=True):
        if described.missing == described.rows:
            continue
        if cells in first:
            warn(
                name,
                "duplicate_column",
                f"{name!r} holds what {first[cells]!r} holds, cell by cell",
                setting(name, 'kind = "id"'),
            )
        elif (
            described.distinct == 1
            and described.rows > 1
            and not any(f.code == "tick_box" and f.column == name for f in findings)
        ):
            value = "".join(f": {v!r}" for v in described.examples[:1])
            warn(name, "constant", f"{name!r} holds one value alone{value}")
        first.setdefault(cells, name)
    for text in empty_row_notes(frame, empty_rows(frame, schema), "not counted in a fit, and left empty by impute"):
        warn(None, "empty_rows", text, "Take them out of the file.")
    if len(frame.names) == 1 and len(re.split(r"[\s|:]+", frame.names[0].strip())) > 2:
        one = f"one column alone, {frame.names[0]!r}"
        text = f"{one}: cells seem to be parted by something other than a comma, semicolon or tab"
        warn(None, "one_column", text, "Save it as CSV (in R, write.csv).")
    return out
