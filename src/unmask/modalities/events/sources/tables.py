"""Folders of tables, as data: what of each table makes an event, when it was known, and which rows are none.

`omop.py` and `mimic.py` declare the folders; this file says what a declaration may hold. The page
docs/reference/when-a-fact-was-known.md prints the same declarations (`known.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from unmask.modalities.events.sources.reading import Reading


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event per row.

    Attributes:
        codes: texts with {column}s in them; the first whose columns are all given is the code.
        suffixes: likewise, put behind the code where their columns are given: units, answers.
        times: columns that say when it was known, the first that is given; none for a static fact.
        latest: the latest of `times` instead of the first.
        taken: column that says when it was taken or begun: nothing is known before, so it counts where it is later.
        value: column of the value.
        words: columns of an answer in words, the first that is given.
        optional: rows without this time, or without this code, are simply without this event.
        start: a date alone stands at the start of its day (births); else at its end.
    """

    codes: Sequence[str]
    suffixes: Sequence[str] = ()
    times: Sequence[str] = ()
    latest: bool = False
    taken: str | None = None
    value: str | None = None
    words: Sequence[str] = ()
    optional: bool = False
    start: bool = False


@dataclass(frozen=True, kw_only=True)
class Refused:
    """Rows whose `column` matches `pattern` (a regular expression, capitals or not) did not happen."""

    column: str
    pattern: str


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table by its name, without ending or number of the shard.

    Attributes:
        subject, visit: columns of the ids.
        derived: columns that are made before codes are (see `Folder.context`) -> the file's columns they are made of.
        elsewhere: columns that events of other tables read (`Folder.context`).
        midnight: a time of 00:00:00 is a date alone, in every column.
        dates: columns that hold dates by their published schema: there a time of 00:00:00 is a date alone too (pandas
            writes dates as timestamps).
    """

    name: str
    events: Sequence[Event]
    subject: str = "subject_id"
    visit: str | None = None
    derived: Mapping[str, Sequence[str]] = field(default_factory=dict)
    elsewhere: Sequence[str] = ()
    refused: Sequence[Refused] = ()
    midnight: bool = False
    dates: Sequence[str] = ()


Files = Mapping[str, Sequence[Path]]
"""Name of a table -> its files."""
Derive = Callable[[Table, pl.DataFrame], pl.DataFrame]


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A kind of folder.

    Attributes:
        known_by: tables that it always has.
        context: files, the descriptions of codes, which it fills, and how cells are meant -> what derives a table's
            columns.
        unread: other tables of this kind -> why they make no event.
        refused: (table, column) -> what a folder is that has it, and is not read.
        helpers: other tables of this kind that are read for codes and times.
    """

    name: str
    known_by: Sequence[str]
    tables: Sequence[Table]
    context: Callable[[Files, dict[str, str], Reading], Derive]
    unread: Mapping[str, str]
    helpers: Sequence[str] = ()
    refused: Mapping[tuple[str, str], str] = field(default_factory=dict)
