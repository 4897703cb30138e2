"""What a table's columns are, found out from the raw columns and from what a person says of them (a dict or TOML file).

Read or refuse: whatever does not fit is an error that names all cells; whatever was decided is a note; whatever looks
doubtful is a warning with the lines of a schema that settle it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from unmask.errors import UserError, suggest
from unmask.table.column import column_of, spellings
from unmask.table.findings import Finding, refuse
from unmask.table.marks import Spelling, spellings_of
from unmask.table.parse import is_missing, numbers, text_of
from unmask.table.schema import Column, Schema
from unmask.table.structural import structural
from unmask.table.suspects import spelt_missing

_DURATION_NAMES = ("time", "duration", "futime", "survival_time", "followup")
_EVENT_NAMES = ("event", "status", "death", "died")


def infer_schema(
    names: Sequence[str],
    columns: Sequence[np.ndarray],
    *,
    override: Mapping[str, Any] | None = None,
    duration: str | None = None,
    event: str | None = None,
    source: str = "table",
    row_name: Callable[[int], int] = lambda row: row + 1,
    levels: Sequence[tuple[str, ...] | None] = (),
    spelled: Sequence[Spelling] = (),
) -> Schema:
    """The schema of raw columns (floats, or objects as read from a file), with a person's overrides laid over it.

    Args:
        override: {"columns": {name: {kind=..., low=..., ...}}, "duration": ..., "event": ..., "missing": [...]}.
        source: named in errors.
        row_name: how errors number a row, e.g. by its line in a file.
        levels: what the types of the columns declare of categories; see `Frame.levels`.
        spelled: how the columns write their numbers, where the file has been looked at; else found here.

    Raises:
        UserError: naming all cells that do not fit, by column, row and value; or an override of what is not there.
    """
    return look(
        names, columns, override=override, duration=duration, event=event, source=source, row_name=row_name, levels=levels,
        spelled=spelled,
    )[0]  # fmt: skip


def look(
    names: Sequence[str],
    columns: Sequence[np.ndarray],
    *,
    override: Mapping[str, Any] | None = None,
    duration: str | None = None,
    event: str | None = None,
    source: str = "table",
    row_name: Callable[[int], int] = lambda row: row + 1,
    levels: Sequence[tuple[str, ...] | None] = (),
    spelled: Sequence[Spelling] = (),
    strict: bool = True,
) -> tuple[Schema, list[Finding]]:
    """`infer_schema`, with everything that was noticed.

    Args:
        strict: cells that do not fit raise; else they are findings, and the schema is what would be without them.
    """
    override = dict(override or {})
    known = {"columns", "duration", "event", "missing", "constraints", "decimal"}
    for key in set(override) - known:
        raise UserError(f"schema: unknown key {key!r}", hint=suggest(key, known))
    given = override.get("columns", {})
    if not isinstance(given, Mapping) or not all(isinstance(v, Mapping) for v in given.values()):
        raise UserError(f"schema: columns={given}", hint="Expected settings of each column: [columns.NAME] kind = ...")
    for name in given:
        if name not in names:
            raise UserError(f"schema: no column {name!r} in {source}", hint=suggest(name, names))
    missing = spellings(override.get("missing", ()))
    if "decimal" in override or not spelled:
        spelled = spellings_of(columns, told=override.get("decimal"))
    found, findings, spelt = [], [], {}
    for i, (name, raw) in enumerate(zip(names, columns, strict=True)):
        column, noticed, empty = column_of(
            name, raw, given.get(name, {}), missing=missing, spelling=spelled[i], levels=levels[i] if levels else None,
            row_name=row_name,
        )  # fmt: skip
        found.append(column)
        findings += noticed
        spelt[name] = empty
    findings += spelt_missing(spelt)
    if strict:
        refuse(findings, source)
    rules = override.get("constraints", ())
    rules = (rules,) if isinstance(rules, str) else tuple(rules)
    schema = Schema(columns=tuple(found), missing=missing, constraints=rules)
    duration, event = duration or override.get("duration"), event or override.get("event")
    if (duration is None) != (event is None):
        raise UserError(f"duration={duration}, event={event}", hint="A survival pair needs both columns.")
    if duration is None:
        pair = [next((n for n in names if n.lower() in known), None) for known in (_DURATION_NAMES, _EVENT_NAMES)]
        if pair[0] and pair[1] and _is_pair(schema, pair[0], pair[1]):
            duration, event = pair
            findings.append(
                _noted("survival_pair", f"{duration!r} and {event!r} are taken for follow-up time and event")
            )
    if duration is not None and event is not None:
        try:
            schema = _with_pair(schema, columns, duration, event, source, row_name)
        except UserError as error:
            if strict:
                raise
            findings.append(
                Finding(severity="error", column=None, code="survival_pair", text=error.what, add=error.hint)
            )
    schema, rules = structural(schema, columns, {name for name, v in given.items() if "structural" in v})
    findings += [_noted("structural", text) for text in rules]
    findings = [f for f in findings if f.code != "codes" or f.column not in (schema.duration, schema.event)]
    order = ("error", "warning", "note")
    findings.sort(key=lambda f: order.index(f.severity))
    notes = tuple(str(f) for f in findings if f.severity != "error")
    return dataclasses.replace(schema, notes=notes), findings


def _noted(code: str, text: str) -> Finding:
    return Finding(severity="note", column=None, code=code, text=text)


def _is_pair(schema: Schema, duration: str, event: str) -> bool:
    time, happened = (schema.columns[schema.number(n)] for n in (duration, event))
    good_time = time.kind in ("numeric", "integer") and time.modelled and time.low is not None and time.low >= 0
    constant = happened.kind == "integer" and happened.low == happened.high and happened.low in (0, 1)
    return good_time and (
        constant or (happened.kind == "binary" and set(happened.categories) <= {"0", "1", "True", "False"})
    )


def _with_pair(
    schema: Schema,
    columns: Sequence[np.ndarray],
    duration: str,
    event: str,
    source: str,
    row_name: Callable[[int], int],
) -> Schema:
    d, e = schema.number(duration, where="duration: "), schema.number(event, where="event: ")
    time, bad = numbers(np.where(is_missing(columns[d], schema.missing), np.nan, columns[d].astype(object)))
    wrong = np.flatnonzero(bad | (time < 0))
    if len(wrong):
        row = int(wrong[0])
        raise UserError(
            f"{source}, column {duration!r}, row {row_name(row)}: {columns[d][row]!r} as a duration",
            hint="Follow-up times are numbers, 0 or more.",
        )
    seen = np.flatnonzero(~is_missing(columns[e], schema.missing))
    texts = {text_of(columns[e][i]): int(i) for i in seen[::-1]}
    for name, empty in ((duration, np.isnan(time).all()), (event, not texts)):
        if empty:
            raise UserError(
                f"{source}, column {name!r}: no value at all", hint="Name the columns of follow-up time and event."
            )
    # Both levels, in this order, whatever was seen: the number of the category is the indicator.
    levels = ("False", "True") if texts.keys() & {"False", "True"} else ("0", "1")
    for text, row in texts.items():
        if text not in levels:
            raise UserError(
                f"{source}, column {event!r}, row {row_name(row)}: {text!r} as an event indicator",
                hint="Expected 0 (censored) or 1 (event happened).",
            )
    changed = list(schema.columns)
    if changed[d].kind not in ("numeric", "integer"):
        values = time[~np.isnan(time)]
        changed[d] = Column(
            name=duration, kind="integer" if np.array_equal(values, np.round(values)) else "numeric",
            low=float(values.min()), high=float(values.max()),
        )  # fmt: skip
    changed[e] = Column(name=event, kind="binary", categories=levels)
    return dataclasses.replace(schema, columns=tuple(changed), duration=duration, event=event)


__all__ = ["infer_schema", "look", "spellings"]
