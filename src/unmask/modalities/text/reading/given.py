"""Texts as callers of Python give them: one, several of any sequence, a column, or a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from unmask.errors import UserError, first_of
from unmask.given import no_value, values_of


def table_rows(data: Any) -> list[dict[str, Any]] | None:
    """The rows of a pandas, polars or Arrow table, or of columns by name (a dict of lists), as column -> value, a
    missing one None; None of anything else.

    >>> table_rows({"text": ["a", "b"], "label": [1, 0]})
    [{'text': 'a', 'label': 1}, {'text': 'b', 'label': 0}]
    """
    if isinstance(data, Mapping):
        columns = {str(name): values_of(values) for name, values in data.items() if not isinstance(values, str)}
        if len(columns) < len(data) or len(set(map(len, columns.values()))) != 1:
            raise UserError(
                f"columns {', '.join(map(str, data))}: not lists of one length", hint='Give {"text": [...], ...}.'
            )
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if not hasattr(data, "columns"):
        return None
    import narwhals as nw

    table = nw.from_native(data, eager_only=True, pass_through=True)
    if not isinstance(table, nw.DataFrame):
        return None
    return [{k: None if no_value(v) else v for k, v in row.items()} for row in table.iter_rows(named=True)]


def listed(texts: Any, name: str = "texts") -> list[str]:
    """A text, or several, as a list: of a table those in its one column, or in its column `text`.

    Args:
        name: of the argument, for the message.

    >>> listed("one"), listed(("one", "two"))
    (['one'], ['one', 'two'])
    """
    if isinstance(texts, str):
        return [texts]
    rows = None if isinstance(texts, Mapping) else table_rows(texts)
    if rows is not None:
        names = list(rows[0]) if rows else [*texts.columns]
        column = names[0] if len(names) == 1 else "text"
        if column not in names:
            raise UserError(
                f"{name}: a table with columns {first_of(list(map(str, names)))}", hint="Give one column of it."
            )
        texts = [row[column] for row in rows]
    if isinstance(texts, bytes | Mapping) or not isinstance(texts, Iterable):
        raise UserError(f"{name}={texts!r:.60}: no text", hint="Give a text, or a list of texts.")
    found = values_of(texts)
    if wrong := [f"{name}[{place}] is {one!r:.60}" for place, one in enumerate(found) if not isinstance(one, str)]:
        raise UserError(f"{first_of(wrong)}: no text", hint="Give texts alone; leave out what is missing.")
    return found
