"""Which task labelled data are for, where nobody says it: by their columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.errors import UserError
from unmask.evaluation.classes import is_number
from unmask.modalities.text.reading.sources import suffix_of, table_rows
from unmask.modalities.text.tasks.conll import COLUMNS
from unmask.modalities.text.tasks.data import as_dict, zipped
from unmask.modalities.text.tasks.registry import TASKS
from unmask.modalities.text.tasks.row_files import Columns, choose_columns, read_rows

EXAMINED = 100
"""Rows whose labels are looked at."""


def task_for(data: Any) -> str:
    """The task of labelled data: 'answer' by question and context, 'tag' by tokens or entities, 'classify' by a text
    and a label (two texts and names of classes), 'similarity' by two texts without one.

    Raises:
        UserError: where the columns leave it open, as two texts with numbers do.
    """
    if isinstance(data, str | Path) and suffix_of(Path(data)) in {*COLUMNS} - {".txt", ".tsv"}:
        return "tag"
    try:
        rows = _rows(data)
        names = {str(name).strip().lower() for row in rows for name in row}
        if {"question", "context"} <= names:
            return "answer"
        if names & {"tokens", "words", "entities"}:
            return "tag"
        found = choose_columns([*dict.fromkeys(str(name) for row in rows for name in row)], Columns(), where="data")
    except UserError as error:
        raise _unknown(error.what) from None
    labels = [row.get(found.label) for row in rows] if isinstance(found.label, str) else []
    if any(isinstance(label, Mapping) or _spans(label) for label in labels):  # as spaCy has them
        return "tag"
    if found.text2 is None and labels:
        return "classify"
    if found.text2 is not None and not labels:
        return "similarity"
    if labels and not all(is_number(str(label)) for label in labels):
        return "classify"
    raise _unknown(f"columns {found.line()}")


def _spans(label: Any) -> bool:
    """Whether a label is a list of entities."""
    listed = label if isinstance(label, list) else []
    return any(isinstance(one, Sequence | Mapping) and not isinstance(one, str) and len(one) == 3 for one in listed)


def _rows(data: Any) -> list[Mapping[str, Any]]:
    """The first rows, as column -> value."""
    if isinstance(data, str | Path):
        return [row for _, row in read_rows(data)[:EXAMINED]]
    rows = (table_rows(data) or zipped(data) or data) if hasattr(data, "__len__") else []
    if any(isinstance(row, str) or not isinstance(row, Mapping | Sequence) for row in rows[:EXAMINED]):
        raise UserError("rows without columns")
    return [row if isinstance(row, Mapping) else as_dict(row, pairs=False) for row in rows[:EXAMINED]]


def _unknown(what: str) -> UserError:
    return UserError(f"{what}: for which task?", hint=f"Say task='classify', or {', '.join(TASKS.names()[1:])}.")
