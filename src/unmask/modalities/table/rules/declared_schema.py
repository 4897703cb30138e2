"""The schema of a table: given whole, or inferred under what is given of it, with its rules checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.modalities.table.reading.frame import Frame
from unmask.modalities.table.rules.rules import Rules
from unmask.modalities.table.schema.infer import look
from unmask.modalities.table.schema.schema import Schema
from unmask.training.settings import load_toml


def read_schema(schema: Schema | Mapping[str, Any] | str | Path | None) -> Schema | dict[str, Any]:
    """A schema, or the overrides of one: from a dict, a TOML file, or nothing."""
    if isinstance(schema, Schema):
        return schema
    if isinstance(schema, str | Path):
        return load_toml(schema)
    return dict(schema or {})


def schema_for(
    frame: Frame,
    schema: Schema | Mapping[str, Any] | str | Path | None,
    *,
    duration: str | None = None,
    event: str | None = None,
    entry: str | None = None,
    event_level: str | Sequence[str] | None = None,
    constraints: Sequence[str] | str = (),
) -> Schema:
    """The schema given, or one inferred from the table under what is given of it; see `look`."""
    found = read_schema(schema)
    if not isinstance(found, Schema):
        found = look(frame, override=found, duration=duration, event=event, entry=entry, event_level=event_level)[0]
    more = (constraints,) if isinstance(constraints, str) else tuple(constraints)
    found = dataclasses.replace(found, constraints=tuple(dict.fromkeys([*found.constraints, *more])))
    Rules.of(found)  # whatever is wrong with a rule is said now
    return found
