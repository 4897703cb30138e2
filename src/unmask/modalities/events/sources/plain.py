"""A plain event table: one row per event."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import polars as pl

from unmask.errors import UserError
from unmask.modalities.events.records.meds import BIRTH, DEATH
from unmask.modalities.events.sources.rows import Ledger, chunks, columns_of, parsed, refuse_nested, text
from unmask.modalities.events.sources.times import read_times

COLUMNS = {
    "subject": "subject_id",
    "time": "time",
    "code": "code",
    "value": "numeric_value",
    "visit": "visit_id",
    "text": "text_value",
    "unit": "unit",
}

ELSEWHERE = "no time, of a code that has one elsewhere (with static it is a fact)"
NO_DEATH = "no time of death (with static it is a fact)"


def read(source: Path | pl.DataFrame, columns: Mapping[str, str], ledger: Ledger) -> Iterator[pl.DataFrame]:
    """Events of a csv, tsv or parquet, or of a table in memory; `columns`: role (see `COLUMNS`) -> the table's name for
    it."""
    where, have = ("table", source.columns) if isinstance(source, pl.DataFrame) else (source.name, columns_of(source))

    def parts(names: list[str], ledger: Ledger) -> Iterable[pl.DataFrame]:
        if not isinstance(source, pl.DataFrame):
            return chunks(source, names, ledger)
        ledger.rows += len(source)
        return [source]

    _check(columns, have, "" if isinstance(source, pl.DataFrame) else f"{source}: ")
    columns = {**COLUMNS, **columns}
    wanted = _wanted(columns, have, where, ledger)
    twice = next((name for name in wanted if have.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{source}: column {twice!r} stands there twice", hint="Give each column a name of its own.")
    if isinstance(source, pl.DataFrame):
        refuse_nested(source.select(wanted), where)
    when, code = columns["time"], columns["code"]
    known = () if ledger.reading.static else parts([when, code], Ledger())
    timed: set[str] = set().union(*(_timed(ledger.reading.filled(part), when, code) for part in known))
    first = 0
    for frame in parts(wanted, ledger):
        yield _events(frame, columns, ledger, where, timed, first)
        first += len(frame)


def _wanted(columns: Mapping[str, str], have: Sequence[str], where: str, ledger: Ledger) -> list[str]:
    """The columns that are read; the others are named in the ledger."""
    wanted = [name for name in dict.fromkeys(columns.values()) if name in have]
    unread = [name or "a column without a name" for name in have if name not in wanted]
    if unread:
        ledger.unused[where] = f"columns not read: {', '.join(unread)}"
    return wanted


def _timed(frame: pl.DataFrame, when: str, code: str) -> set[str]:
    """Codes of rows with a time."""
    named = pl.DataFrame({"when": frame[when], "code": frame[code]}).select(
        text(name).alias(name) for name in ("when", "code")
    )
    return set(named.drop_nulls()["code"].unique().to_list())


def _events(
    frame: pl.DataFrame, columns: Mapping[str, str], ledger: Ledger, where: str, timed: Collection[str], first: int
) -> pl.DataFrame:
    """Events of some rows, `first` rows of the file before them. Codes `timed` have a time in some row: without one
    they are no facts, unless `reading.static` says so."""
    given, reading, frame = frame, ledger.reading, ledger.reading.filled(frame)
    when = frame[columns["time"]]
    times = read_times(when, f"{where}, column {columns['time']!r}", first=first, order=reading.order)
    born = frame[columns["code"]].cast(pl.String).str.starts_with(BIRTH).fill_null(False)
    if (born & times["dated"]).any():  # a birth alone stands at the start of its day: nothing precedes it
        times = times.with_columns(
            pl.when(born).then(pl.col("time").dt.truncate("1d")).otherwise("time").alias("time"),
            (pl.col("dated") & ~born).alias("dated"),
        )
    empty = pl.lit(None, dtype=pl.String)

    def role(name: str) -> pl.Expr:
        return pl.col(columns[name]) if columns[name] in frame.columns else empty

    raw = frame.select(
        role("subject").alias("subject"),
        role("code").alias("code"),
        role("value").alias("raw"),
        role("text").alias("words"),
        role("visit").alias("visit"),
        role("unit").alias("unit"),
        when.alias("when"),
        empty.alias("refused"),
    ).with_columns(times)
    called = given.select(text(columns["code"]).alias("c"))["c"]
    no_code = raw["code"].is_null() & called.is_not_null()
    if no_code.any():
        why = pl.format("code is '{}', read as empty (missing says what is)", called)
        raw = raw.with_columns(pl.when(no_code).then(why).alias("refused"))
    if not reading.static:
        death = text("code").str.starts_with(DEATH)
        why = pl.when(death).then(pl.lit(NO_DEATH)).when(text("code").is_in(list(timed))).then(pl.lit(ELSEWHERE))
        raw = raw.with_columns(pl.coalesce("refused", pl.when(~pl.col("given")).then(why)).alias("refused"))
    # Nothing is converted: a code in another unit is another code, as it is of FHIR, OMOP and MIMIC-IV.
    behind = pl.when(pl.col("raw").is_not_null()).then(pl.lit("//") + text("unit"))
    raw = raw.with_columns(pl.concat_str(text("code"), behind.fill_null("")).alias("code"))
    made, good = parsed(raw, ledger, where, first=first)
    ledger.kept += int(good.sum())
    table = ledger.table(where)
    table["files"] = 1
    table["rows"] += len(frame)
    table["events"] += len(made)
    return made


def _check(columns: Mapping[str, str], have: Sequence[str], where: str) -> None:
    """The columns that are needed are there, and so is every other that was named."""
    for role, usual in COLUMNS.items():
        named = columns.get(role, usual)
        needed = role in ("subject", "time", "code") or named != usual
        if needed and named not in have:
            raise UserError(f"{where}no column {named!r}", hint=f"Found {', '.join(have)}; name it with --{role}.")
