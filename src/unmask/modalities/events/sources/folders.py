"""Read a folder of tables by its declaration: every file belongs to a table, or is named as not read."""

from __future__ import annotations

import dataclasses
import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from unmask.errors import UserError, first_of
from unmask.files import files_below
from unmask.given import natural
from unmask.modalities.events.records.meds import OBSERVATION_END
from unmask.modalities.events.sources.mimic import MIMIC
from unmask.modalities.events.sources.omop import OMOP
from unmask.modalities.events.sources.rows import (
    ENDINGS,
    Ledger,
    chunks,
    columns_of,
    first_given,
    named_as,
    parsed,
    text,
)
from unmask.modalities.events.sources.tables import CellReading, Derive, Event, Folder, SourceTable
from unmask.modalities.events.sources.times import read_times

FOLDERS = (OMOP, MIMIC)
_SHARD = re.compile(r"[-_.]?(?:part)?[-_.]?\d+(?:[-_.]?of[-_.]?\d+)?$")
"""What stands behind a table's name in the names of its shards: _000000000000, _1, -00000-of-00010, .part-3."""
_NUMBERED = re.compile(r"(?:column|field|v|f|_c)?_?\d+", re.IGNORECASE)
"""Names that programs give to columns that have none."""
AFTER = ", which is after "
"""Between the column of `Event.taken` and the one whose time it has put right."""
_QUIET = re.compile(r"^(\..*|_.*|.*\.crc|readme.*|license.*|changelog.*|.*sums(\.txt)?|index\.html)$", re.IGNORECASE)
"""Files that writers of tables leave beside them: never data."""


def stem_of(file: Path) -> str | None:
    """Lower-case name of a table's file without its ending; None where it is no table."""
    name = file.name.lower()
    ending = next((e for e in sorted(ENDINGS, key=len, reverse=True) if name.endswith(e)), None)
    return None if ending is None else name.removesuffix(ending)


def table_of(file: Path, root: Path, known: Sequence[str]) -> str | None:
    """Which of the known tables a file belongs to: by its name, its name without the shard's number, or its
    folder's."""
    stem = stem_of(file)
    if stem is None:
        return None
    folders = [re.sub(r"\.(csv|tsv|parquet)$", "", p.lower()) for p in file.relative_to(root).parts[:-1]]
    for name in (stem, _SHARD.sub("", stem), *reversed(folders)):
        if name in known:
            return name
    return None


def kind_of(path: Path) -> Folder | None:
    """Which kind of folder this is."""
    files = files_below(path)
    return next((f for f in FOLDERS if all(any(table_of(p, path, [n]) for p in files) for n in f.known_by)), None)


def files_of(kind: Folder, path: Path, ledger: Ledger) -> dict[str, list[Path]]:
    """The files of every table that is read; the others are named in the ledger, with the reason."""
    read = [t.name for t in kind.tables]
    known = [*read, *kind.helpers, *kind.unread]
    found: dict[str, list[Path]] = {}
    for file in files_below(path):
        name = table_of(file, path, known)
        shown = str(file.relative_to(path))
        if name is None:
            if stem_of(file) is None and _QUIET.match(file.name):
                continue
            ledger.unused[shown] = f"no table of {kind.name}" if stem_of(file) else f"not one of {', '.join(ENDINGS)}"
        elif name in kind.unread:
            ledger.unused[shown] = kind.unread[name]
        else:
            found.setdefault(name, []).append(file)
    for name, files in found.items():
        # Shards of one table are of one format; whole tables of one name are two copies.
        endings = {file.name.lower().removeprefix(stem_of(file) or ""): file for file in files}
        whole = [file for file in files if stem_of(file) == name]
        twice = list(endings.values()) if len(endings) > 1 else whole
        if len(twice) > 1:
            raise UserError(
                f"{name} stands there twice: {twice[0]} and {twice[1]}",
                hint="Both would be read: take one of them away.",
            )
        files.sort(key=lambda f: natural(str(f)))
    return found


def read(kind: Folder, path: Path, ledger: Ledger) -> Iterator[pl.DataFrame]:
    """Events of all tables that are there."""
    files = files_of(kind, path, ledger)
    for (known, column), other in kind.refused.items():
        for file in files.get(known, ()):
            if column in {name.strip().lower() for name in columns_of(file)}:
                raise UserError(
                    f"{path}: {other}, by the column {column!r} of {file.name}",
                    hint=f"Read is {kind.name}: give that, or make a MEDS folder or a plain event table of it.",
                )
    derive, people = kind.context(files, ledger.names, ledger.reading), People(table=kind.known_by[0])
    for table in kind.tables:
        count = ledger.table(table.name)
        for file in files.get(table.name, ()):
            count["files"] += 1
            yield from _table(table, file, ledger, derive, people)
    lacking = f"a row in {first_of(file.name for file in files[people.table])}"
    ledger.note_undescribed(people.others, lacking)
    if people.ended:
        periods = pl.concat(people.ended).drop_nulls().value_counts(name="periods")
        gaps = "the time between them is taken for observed, without events: answers across it are too low"
        ledger.note(f"subjects with several observation periods; {gaps}", periods.filter(pl.col("periods") > 1).height)


@dataclass
class People:
    """The subjects of the table of people (`described`: ascending, eight bytes each), which is read before all others,
    and where other subjects are met first; `ended`: whose observation ends, once per period."""

    table: str
    described: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    others: dict[int, str] = field(default_factory=dict)
    ended: list[pl.Series] = field(default_factory=list)

    def add(self, numbers: pl.Series) -> None:
        """Subjects of rows of the table of people."""
        self.described = np.union1d(self.described, numbers.drop_nulls().to_numpy())

    def check(self, numbers: pl.Series, where: str) -> None:
        """Subjects of events in the file `where`."""
        found = numbers.drop_nulls().unique(maintain_order=True).to_numpy()
        for number in found[~np.isin(found, self.described, assume_unique=True)].tolist():
            self.others.setdefault(number, where)


def _table(table: SourceTable, path: Path, ledger: Ledger, derive: Derive, people: People) -> Iterator[pl.DataFrame]:
    reading, subjects = ledger.reading, ledger.subjects
    have = columns_of(path)
    lower = named_as(path, have, _wanted(table))
    if table.subject not in lower and (below := _heading_below(path, have)) and table.subject in below:
        _only_heading(path, have, ledger)
        return
    if table.subject not in lower:
        raise UserError(f"{path}: no column {table.subject!r}", hint=f"Found {', '.join(have)}.")
    for event in table.events:
        if event.times and not event.optional and not set(event.times) & {*lower, *table.derived}:
            raise UserError(f"{path}: none of the columns {', '.join(event.times)}", hint=f"Found {', '.join(have)}.")
    unread = [name for name in have if name not in lower.values() and name.strip().lower() not in table.elsewhere]
    if unread:
        ledger.unused[table.name] = f"columns not read: {', '.join(unread)}"
    count, first, before = ledger.table(table.name), 0, ledger.rows
    for raw in chunks(path, list(lower.values()), ledger):
        frame = raw.rename({name: w for w, name in lower.items()})
        if reading.missing is None:
            for (column, word), number in reading.empty_words(frame).items():
                remark = f"{word!r} in {column}, taken as written (--missing says what is empty)"
                ledger.note(f"{table.name}: {remark}", number)
        else:
            frame = reading.filled(frame)
        frame = derive(table, frame)
        if table.name == people.table:
            people.add(subjects.of(frame[table.subject]))
        kept = pl.repeat(False, len(frame), eager=True)
        for event in table.events:
            rows = _event(event, table, frame, path.name, first, reading)
            static, optional = not event.times, event.optional
            made, good = parsed(rows, ledger, path.name, first=first, static=static, optional=optional)
            kept |= good
            if event.times and "from" in rows.columns:
                _note_times(event, table, rows.filter(good)["from"], ledger)
            if table.name != people.table:
                people.check(made["subject_id"], path.name)
            if OBSERVATION_END in event.codes:
                people.ended.append(made["subject_id"])
            count["events"] += len(made)
            yield made
        ledger.kept += int(kept.sum())
        first += len(raw)
    count["rows"] += ledger.rows - before  # those with too many cells too


def _heading_below(path: Path, have: Sequence[str]) -> set[str]:
    """Names in the first row of a table whose columns have numbers for names, as programs write them that took a table
    without rows for one without a heading."""
    if not all(_NUMBERED.fullmatch(name) for name in have):
        return set()
    first = next(chunks(path, list(have), Ledger()), pl.DataFrame()).head(1)
    return {str(cell).strip().lower() for cell in (first.row(0) if len(first) else ())}


def _only_heading(path: Path, have: Sequence[str], ledger: Ledger) -> None:
    """Name a table that is a heading alone; refuse one with rows below it."""
    if sum(len(part) for part in chunks(path, [have[0]], Ledger())) > 1:
        raise UserError(
            f"{path}: the heading stands in the first row, below {have[0]}, ..., {have[-1]}",
            hint="Take the line above it out.",
        )
    ledger.unused[path.name] = f"no rows: its one row is the heading, below {have[0]}, ..., {have[-1]}"


def _wanted(table: SourceTable) -> set[str | None]:
    """Columns that a table's events read."""
    used: set[str | None] = {table.subject, table.visit, *(r.column for r in table.refused)}
    for columns in table.derived.values():
        used |= set(columns)
    for event in table.events:
        used |= {*event.times, *event.taken, event.value, *event.words}
        for code in (*event.codes, *event.suffixes):
            used |= {field for _, field, _, _ in string.Formatter().parse(code) if field}
    return used


def _event(
    event: Event, table: SourceTable, frame: pl.DataFrame, where: str, first: int, reading: CellReading
) -> pl.DataFrame:
    """Raw columns of one event per row, as `rows.parsed` takes them."""
    have, empty = frame.columns, pl.lit(None, dtype=pl.String)
    code = pl.coalesce(*(_code(c, have) for c in event.codes))
    for suffix in event.suffixes:
        code = code + pl.coalesce(pl.lit("//") + _code(suffix, have), pl.lit(""))
    refused = empty
    for rule in table.refused:
        if rule.column in have:
            hit = text(rule.column).str.contains(f"(?i){rule.pattern}")
            refused = pl.coalesce(
                refused, pl.when(hit).then(pl.format(f"{table.name}: {rule.column} {{}}", text(rule.column)))
            )
    words = [w for w in event.words if w in have]
    out = frame.select(
        pl.col(table.subject).alias("subject"),
        code.alias("code"),
        refused.alias("refused"),
        (pl.col(event.value) if event.value in have else empty).alias("raw"),
        first_given(words).alias("words"),
        (pl.col(table.visit) if table.visit in have else empty).alias("visit"),
    )
    if event.value in have:  # words stand for a value that is not there, or say that it is a bound
        bound = pl.col("words").str.contains("^[<>]").fill_null(False)
        out = out.with_columns(pl.when(text("raw").is_null() | bound).then("words").alias("words"))
    times = [t for t in event.times if t in have]
    if not times:
        return out.with_columns(
            empty.alias("when"),
            pl.lit(None, dtype=pl.Datetime("us")).alias("time"),
            pl.lit(False).alias("given"),
            pl.lit(False).alias("dated"),
        )
    return pl.concat([out, _when(event, table, frame, times, where, first, reading)], how="horizontal")


def _when(
    event: Event,
    table: SourceTable,
    frame: pl.DataFrame,
    times: Sequence[str],
    where: str,
    first: int,
    reading: CellReading,
) -> pl.DataFrame:
    """time, given, dated, when (as written) and from (the column it is from)."""
    read = []
    for name in times:
        found = read_times(
            frame[name],
            f"{where}, column {name!r}",
            first=first,
            order=reading.order,
            midnight=table.midnight or name in table.dates,
            start=event.start,
        )
        read.append(found.with_columns(frame[name].cast(pl.String).alias("when"), pl.lit(name).alias("from")))
    best = read[0]
    for other in read[1:]:
        pair = pl.concat([best, other.rename({c: f"{c}_" for c in other.columns})], how="horizontal")
        take = ~pl.col("given") & pl.col("given_")
        if event.latest:
            take |= (pl.col("time_") > pl.col("time")).fill_null(False)
        best = pair.select(pl.when(take).then(pl.col(f"{c}_")).otherwise(pl.col(c)).alias(c) for c in best.columns)
    begins = [name for name in event.taken if name in frame.columns]
    if begins:
        # A date alone may be any time of its day: what is earlier than its start is early.
        plain = dataclasses.replace(event, taken=(), latest=False, start=True)
        early = (best["time"] < _when(plain, table, frame, begins, where, first, reading)["time"]).fill_null(False)
        if early.any():
            taken = _when(dataclasses.replace(plain, start=False), table, frame, begins, where, first, reading)
            moved = {n: pl.when(early).then(taken[n]).otherwise(n).alias(n) for n in ("time", "dated")}
            named = pl.concat_str(taken["from"], pl.lit(AFTER), "from")
            best = best.with_columns(*moved.values(), pl.when(early).then(named).otherwise("from").alias("from"))
    return best


def _note_times(event: Event, table: SourceTable, used: pl.Series, ledger: Ledger) -> None:
    """Say where a later choice of the times was taken for want of the first."""
    plain = len(event.times) > 1 and not (event.latest or table.midnight or event.start)
    for (name,), part in used.to_frame("from").group_by("from"):
        if AFTER in str(name):
            ledger.note(f"{table.name} at {name}", len(part))
        elif plain and name != event.times[0]:
            ledger.note(f"{table.name} at {name}, for want of {event.times[0]}", len(part))


def _code(template: str, have: Sequence[str]) -> pl.Expr:
    """The template filled in; null where a column is empty or absent."""
    parts = []
    for literal, name, _, _ in string.Formatter().parse(template):
        if literal:
            parts.append(pl.lit(literal))
        if name:
            parts.append(text(name) if name in have else pl.lit(None, dtype=pl.String))
    return pl.concat_str(parts) if parts else pl.lit(None, dtype=pl.String)
