"""What a table's columns are, found out from the raw columns and from what a person says of them (a dict or TOML file)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from unmask.errors import UserError, suggest
from unmask.natural import natural
from unmask.table.parse import datetime_format, days, is_missing, numbers, text_of
from unmask.table.roles import is_free_text, numbers_are_ids, texts_are_ids
from unmask.table.schema import LEFT_OUT, QUANTITIES, Column, Kind, Schema

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
) -> Schema:
    """The schema of raw columns (floats, or objects as read from a file), with a person's overrides laid over it.

    Args:
        override: {"columns": {name: {kind=..., low=..., ...}}, "duration": ..., "event": ..., "missing": [...]}.
        source: named in errors.
        row_name: how errors number a row, e.g. by its line in a file.
        levels: what the types of the columns declare of categories; see `Frame.levels`.

    Raises:
        UserError: naming the column, row and value that do not fit, or an override of what is not there.
    """
    override = dict(override or {})
    known = {"columns", "duration", "event", "missing", "constraints"}
    for key in set(override) - known:
        raise UserError(f"schema: unknown key {key!r}", hint=suggest(key, known))
    given = override.get("columns", {})
    if not isinstance(given, Mapping) or not all(isinstance(v, Mapping) for v in given.values()):
        raise UserError(f"schema: columns={given}", hint="Expected settings of each column: [columns.NAME] kind = ...")
    for name in given:
        if name not in names:
            raise UserError(f"schema: no column {name!r} in {source}", hint=suggest(name, names))
    missing = spellings(override.get("missing", ()))
    found, notes = [], []
    for name, raw, known_levels in zip(names, columns, levels or [None] * len(names), strict=True):
        told = given.get(name) or _declared(raw, known_levels, missing)
        column, note = infer_column(name, raw, told, missing=missing, source=source, row_name=row_name)
        found.append(column)
        notes += note
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
            notes.append(f"{duration!r} and {event!r} are taken for follow-up time and event")
    if duration is not None and event is not None:
        schema = _with_pair(schema, columns, duration, event, source, row_name)
    schema, more = _structural(schema, columns, {name for name, v in given.items() if "structural" in v})
    return dataclasses.replace(schema, notes=tuple(notes + more))


def _declared(raw: np.ndarray, levels: tuple[str, ...] | None, missing: tuple[str, ...]) -> dict[str, Any]:
    """What a column's own type says: ordered categories are ordinal, those that are numbers are no quantity."""
    if levels is None:
        return {}
    values = raw[~is_missing(raw, missing)]
    seen = {text_of(v) for v in values}
    if levels and len(seen) > 1:
        return {"kind": "ordinal", "categories": [v for v in levels if v in seen]}
    if len(values) and not numbers(values)[1].any():
        return {"kind": "nominal" if len(seen) > 2 else "binary"}
    return {}


def spellings(given: Any) -> tuple[str, ...]:
    """One spelling of a missing value, or several, as texts."""
    return tuple(text_of(m) for m in (given if isinstance(given, list | tuple) else [given]))


def infer_column(
    name: str,
    raw: np.ndarray,
    given: Mapping[str, Any],
    *,
    missing: tuple[str, ...],
    source: str,
    row_name: Callable[[int], int],
) -> tuple[Column, list[str]]:
    """One column from its raw values; what is `given` is not inferred."""
    allowed = {f.name for f in dataclasses.fields(Column)} - {"name"}
    for key in set(given) - allowed:
        raise UserError(f"schema: column {name!r}: unknown key {key!r}", hint=suggest(key, allowed))
    kind = given.get("kind")
    odd = {t for t in set(map(type, raw)) if t.__hash__ is None} if raw.dtype == object else set()
    if odd and kind in LEFT_OUT:
        return Column(name=name, kind=kind), []
    if odd:
        first = next(i for i, v in enumerate(raw) if type(v) in odd)
        raise UserError(
            f"{source}, column {name!r}, row {row_name(first)}: a {type(raw[first]).__name__}, not one value",
            hint="Spread it over columns of its own, or declare the column an id in the schema: it is left out then.",
        )
    gone = is_missing(raw, missing)
    values = raw[~gone]
    numeric, bad = numbers(values)
    form = given.get("format")
    if kind is None:
        kind, form = _infer_kind(name, values, numeric, bad, np.flatnonzero(~gone), source, row_name)
    elif kind in ("numeric", "integer") and bad.any():
        at = int(np.flatnonzero(~gone)[bad.argmax()])
        raise UserError(
            f"{source}, column {name!r}, row {row_name(at)}: {values[bad.argmax()]!r} is not a number",
            hint=f"The schema says {kind}. Correct the cell, or list the spelling under `missing`.",
        )
    if kind == "datetime":
        form = form or datetime_format(values) or "%Y-%m-%d"
    fields: dict[str, Any] = {"name": name, "kind": kind, "format": form}
    what = {"id": "looks like an identifier", "text": "is free text"}.get(kind)
    notes = [f"{name!r} {what} and is left out"] if what and "kind" not in given else []
    if kind in ("numeric", "integer"):
        fields |= _quantity(name, numeric, source, np.flatnonzero(~gone), row_name, kind)
    elif kind == "datetime":
        numeric, bad = days(values, form or "")
        if not bad.all():
            whole = bool((numeric[~bad] == np.round(numeric[~bad])).all())
            fields |= {"low": float(numeric[~bad].min()), "high": float(numeric[~bad].max())}
            fields |= {"decimals": 0} if whole else {}  # dates without times stay so
    elif kind in ("nominal", "binary", "ordinal"):
        fields["categories"] = tuple(sorted({text_of(v) for v in set(values.tolist())}, key=natural))
    if kind in QUANTITIES and not len(values):
        fields["low"] = float("inf")
        notes.append(f"{name!r} holds no value at all and is left out")
    fields |= {
        k: tuple(text_of(t) for t in v) if isinstance(v, list | tuple) else v for k, v in given.items() if k != "kind"
    }
    if fields.get("structural") is False:
        fields["structural"] = None
    if kind == "binary" and len(fields["categories"]) > 2:
        raise UserError(
            f"column {name!r}: {len(fields['categories'])} categories in a binary column", hint="Use nominal."
        )
    return Column(**fields), notes


def _infer_kind(
    name: str,
    values: np.ndarray,
    numeric: np.ndarray,
    bad: np.ndarray,
    at: np.ndarray,
    source: str,
    row_name: Callable[[int], int],
) -> tuple[Kind, str | None]:
    n = len(values)
    if n == 0:
        return "numeric", None
    if not bad.any():
        if not np.isfinite(numeric).all():
            return "numeric", None
        unique = np.unique(numeric)
        if len(unique) <= 2 and bool(np.isin(unique, (0.0, 1.0)).all() or values.dtype == object):
            return "binary", None
        whole = bool((numeric == np.round(numeric)).all())
        if numbers_are_ids(name, unique, n, whole, bool((np.diff(numeric) == 1).all())):
            return "id", None
        return ("integer" if whole else "numeric"), None
    if all(isinstance(v, bool | np.bool_) for v in values[:1000]):
        return "binary", None
    if bad.mean() < 0.1:
        first = int(bad.argmax())
        raise UserError(
            f"{source}, column {name!r}, row {row_name(int(at[first]))}: {values[first]!r} among numbers",
            hint="Correct the cell, list the spelling under `missing` in the schema, or declare the column nominal.",
        )
    form = datetime_format(values)
    if form is not None:
        return "datetime", form
    texts = list({text_of(v) for v in set(values.tolist())})
    if is_free_text(texts, n):
        return "text", None
    if texts_are_ids(name, texts, n):
        return "id", None
    return ("binary" if len(texts) <= 2 else "nominal"), None


def _quantity(
    name: str, values: np.ndarray, source: str, at: np.ndarray, row_name: Callable[[int], int], kind: str
) -> dict[str, Any]:
    infinite = ~np.isfinite(values)
    if infinite.any():
        row = row_name(int(at[infinite.argmax()]))
        raise UserError(
            f"{source}, column {name!r}, row {row}: {values[infinite.argmax()]}",
            hint="Expected a finite number or an empty cell.",
        )
    if not len(values):
        return {}
    # A few cells with more digits than the rest (computed, not measured) do not make a column more precise.
    decimals = next((d for d in range(8) if (np.round(values, d) == values).mean() >= 0.99), None)
    return {"decimals": 0 if kind == "integer" else decimals, "low": float(values.min()), "high": float(values.max())}


def _is_pair(schema: Schema, duration: str, event: str) -> bool:
    time, happened = (schema.columns[schema.number(n)] for n in (duration, event))
    good_time = time.kind in ("numeric", "integer") and time.modelled and time.low is not None and time.low >= 0
    return good_time and happened.kind == "binary" and set(happened.categories) <= {"0", "1", "True", "False"}


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


def _structural(schema: Schema, columns: Sequence[np.ndarray], fixed: set[str]) -> tuple[Schema, list[str]]:
    """Mark columns that are empty exactly where another one holds a certain category (FLChain: cause of death, alive).

    Args:
        fixed: columns of which a person has said whether they are.
    """
    gone = [is_missing(raw, schema.missing) for raw in columns]
    candidates = []
    for i, c in enumerate(schema.columns):
        if c.kind in ("binary", "nominal", "ordinal") and 1 < len(c.categories) <= 12 and gone[i].mean() < 0.01:
            texts = np.array([text_of(v) for v in columns[i]])
            candidates += [(c.name, v, texts == v) for v in c.categories]
    changed, notes = list(schema.columns), []
    for i, c in enumerate(schema.columns):
        share = float(gone[i].mean()) if len(gone[i]) else 0.0
        if c.name in fixed:
            continue
        if not 0.02 <= share <= 0.98 or len(gone[i]) < 30:
            continue
        best = max(candidates, key=lambda k: float((k[2] == gone[i]).mean()) if k[0] != c.name else 0.0, default=None)
        if best is None or best[0] == c.name:
            continue
        inside = float(gone[i][best[2]].mean()) if best[2].any() else 0.0
        outside = float(gone[i][~best[2]].mean()) if (~best[2]).any() else 1.0
        if inside >= 0.995 and outside <= 0.05:
            changed[i] = dataclasses.replace(c, structural=(best[0], best[1]))
            notes.append(
                f"{c.name!r} is empty where {best[0]!r} is {best[1]!r}: structural, those cells are left empty"
            )
    return dataclasses.replace(schema, columns=tuple(changed)), notes
