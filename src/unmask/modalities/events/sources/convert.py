"""`unmask events convert`: a plain event table, FHIR, or an OMOP or MIMIC-IV folder -> a MEDS folder.

Every row (table) or resource (FHIR) gives events, or is left out with a reason that is counted; every file is read, or
named with the reason. A sample of what was rejected stands in OUT/rejected.jsonl. Nothing is held whole in memory.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import polars as pl

from unmask.errors import UserError
from unmask.files import files_below
from unmask.guessed import also_called
from unmask.modalities.events.records.meds import BIRTH, DEATH
from unmask.modalities.events.records.parquet import as_frame
from unmask.modalities.events.records.shards import MedsWriter
from unmask.modalities.events.sources import fhir, folders
from unmask.modalities.events.sources.rows import (
    ENDINGS,
    Ledger,
    chunks,
    columns_of,
    is_table,
    parsed,
    refuse_nested,
    text,
)
from unmask.modalities.events.sources.tables import CellReading
from unmask.modalities.events.sources.times import Order, read_times
from unmask.names import alike, listed_alike
from unmask.progress import counted

OF_TABLES = ("dates", "decimal", "missing")
"""Options that every table reads."""
COLUMNS = {
    "subject": "subject_id",
    "time": "time",
    "code": "code",
    "value": "numeric_value",
    "visit": "visit_id",
    "text": "text_value",
    "unit": "unit",
}
"""Of a plain event table: role -> its column, where nothing else is said."""
OF_PLAIN = ("static", *COLUMNS)


@also_called(
    dict.fromkeys(
        ("subject", "subject_id", "patient_id", "time", "code", "value"),
        "columns={'subject': 'COLUMN', 'time': 'COLUMN'}",
    )
)
def convert(
    source: Any,
    out: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    dates: str | None = None,
    onset: bool = False,
    static: bool = False,
    decimal: str | None = None,
    missing: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Make a MEDS folder of a table, of FHIR (json, ndjson, zip, a folder of them), of OMOP or MIMIC-IV.

    Args:
        source: a table in memory (pandas, polars, Arrow, columns by name, or rows as dicts), a table's file (.csv,
            .csv.gz, .tsv, .parquet), a FHIR file, or a folder: with person it is OMOP, with patients and admissions
            MIMIC-IV, else FHIR.
        columns: of a plain table: role (subject, time, code, value, visit, text, unit) -> its name.
        dates: "month-first" or "day-first", how dates such as 01/02/2020 are meant; they are refused without.
        onset: FHIR conditions without a time of recording stand at their onset, which may lie before they were known;
            they are rejected without.
        static: of a plain table: rows without a time are facts known from the start even where they are deaths, or
            where their code has a time in other rows; they are rejected without.
        decimal: "," or ".", the mark of decimals in values of tables; commas are refused without. Beside it the other
            mark parts thousands.
        missing: of tables: texts that mean an empty cell, in any case, in place of the usual ones (NA in capitals; n/a,
            nan, null, #n/a, <na>, nat, ? and . in any case; of OMOP and MIMIC-IV none). In columns of numbers, numbers.

    Returns:
        rows, kept_rows (which gave an event), rejected_rows (the others), rejected (events left out, by reason),
        first_rejected (the first row of each reason),
        events, subjects, codes; static (rows that are facts without a time, by code); tables (files, rows and events of
        each), notes (what was done to kept events, with counts), unused (files not read, and why).

    Raises:
        UserError: nothing readable there, a column is absent, an option that is not read for such a source, or `out`
            exists.
    """
    source = Path(source) if isinstance(source, str | Path) else as_frame(source)
    name = source.name if isinstance(source, Path) else "table"
    reading = CellReading(order=cast(Order | None, dates), decimal=decimal, missing=missing, static=static)
    options = {"dates": dates, "decimal": decimal, "missing": missing, "static": static, "onset": onset}
    options |= {role: name != COLUMNS.get(role) for role, name in (columns or {}).items()}
    given = frozenset(name for name, value in options.items() if value not in (None, False))
    ledger = Ledger(reading=reading)
    with MedsWriter(out) as shards:
        for frame in counted(_events(source, columns or {}, ledger, given, onset), size=len):
            shards.add(frame)
        if not shards.rows:
            first = f"; the first: {ledger.samples[0]['row']}" if ledger.samples else ""
            raise UserError(
                f"{name}: no events in {ledger.rows} rows ({dict(ledger.counts)}{first})", hint="Check the columns."
            )
        if ledger.zones[True]:
            ledger.note("times without a zone beside times with one, taken as UTC", ledger.zones[False])
        lines = "".join(json.dumps(s, ensure_ascii=False, default=str) + "\n" for s in ledger.samples)
        (shards.folder / "rejected.jsonl").write_text(lines, encoding="utf-8")
        if ledger.subjects.texts and ledger.subjects.numbers:
            (shards.folder / "metadata").mkdir(exist_ok=True)
            numbers = ledger.subjects.numbers
            listed = listed_alike(numbers)
            ledger.note(
                f"subjects whose ids differ in case or spelling alone, kept apart: {listed}", len(alike(numbers))
            )
            mapped = pl.DataFrame({"source_id": list(numbers), "subject_id": list(numbers.values())})
            mapped.write_parquet(shards.folder / "metadata" / "source_ids.parquet")
        target = shards.finish(name=name, descriptions=ledger.names)
        return {
            "out": str(target),
            "rows": ledger.rows,
            "kept_rows": ledger.kept,
            "rejected_rows": ledger.rows - ledger.kept,
            "rejected": dict(ledger.counts),
            "first_rejected": {s["reason"]: s["row"] for s in reversed(ledger.samples)},
            "events": shards.rows,
            "subjects": shards.subjects,
            "codes": len(shards.counts),
            "notes": dict(ledger.notes),
            "static": dict(ledger.static.most_common()),
            "tables": {name: dict(count) for name, count in ledger.tables.items()},
            "unused": ledger.unused,
        }


def _events(
    source: Path | pl.DataFrame, columns: Mapping[str, str], ledger: Ledger, given: frozenset[str], onset: bool
) -> Iterator[pl.DataFrame]:
    """Events of a source; options that are given and not read for it are refused."""

    def read_alone(kind: str, *read: str) -> None:
        others = sorted(given.difference(read))
        if others:
            raise UserError(
                f"{', '.join(f'--{name}' for name in others)}: not read for {kind}",
                hint=f"Read are {', '.join(f'--{name}' for name in read)}.",
            )

    if isinstance(source, pl.DataFrame) or (source.is_file() and is_table(source)):
        read_alone("a table", *OF_TABLES, *OF_PLAIN)
        return plain_events(source, columns, ledger)
    if not source.exists():
        raise UserError(
            f"{source}: no such file", hint="Give a table (csv, parquet), FHIR, or a folder of OMOP or MIMIC-IV."
        )
    if source.is_dir():
        kind = folders.kind_of(source)
        if kind is not None:
            read_alone(kind.name, *OF_TABLES)
            return folders.read(kind, source, ledger)
        files = files_below(source)
        if not any(fhir.is_fhir(p) for p in files):
            raise UserError(
                f"{source}: neither OMOP (person), MIMIC-IV (patients, admissions) nor FHIR (json)",
                hint=f"Found {', '.join(str(p.relative_to(source)) for p in files[:20]) or 'no file'}.",
            )
    elif not fhir.is_fhir(source):
        known = ", ".join((*ENDINGS, *fhir.ENDINGS))
        raise UserError(f"{source}: not a kind of file known here", hint=f"Give {known}.")
    read_alone("FHIR", "onset")
    return fhir.read(source, ledger, onset=onset)


ELSEWHERE = "no time, of a code that has one elsewhere (with static it is a fact)"
NO_DEATH = "no time of death (with static it is a fact)"


def plain_events(source: Path | pl.DataFrame, columns: Mapping[str, str], ledger: Ledger) -> Iterator[pl.DataFrame]:
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
    first, before = 0, ledger.rows
    for frame in parts(wanted, ledger):
        yield _of_rows(frame, columns, ledger, where, timed, first)
        first += len(frame)
    ledger.table(where)["rows"] += ledger.rows - before  # those with too many cells too


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


def _of_rows(
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
    table["events"] += len(made)
    return made


def _check(columns: Mapping[str, str], have: Sequence[str], where: str) -> None:
    """The columns that are needed are there, and so is every other that was named."""
    for role, usual in COLUMNS.items():
        named = columns.get(role, usual)
        needed = role in ("subject", "time", "code") or named != usual
        if needed and named not in have:
            raise UserError(f"{where}no column {named!r}", hint=f"Found {', '.join(have)}; name it with --{role}.")
