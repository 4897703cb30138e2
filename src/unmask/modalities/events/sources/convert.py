"""`unmask events convert`: a plain event table, FHIR, or an OMOP or MIMIC-IV folder -> a MEDS folder.

Every row (table) or resource (FHIR) gives events, or is left out with a reason that is counted; every file is read, or
named with the reason. A sample of what was rejected stands in OUT/rejected.jsonl. Nothing is held whole in memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import polars as pl

from unmask.errors import UserError
from unmask.files import files_below
from unmask.modalities.events.records.parquet import as_frame
from unmask.modalities.events.records.shards import MedsWriter
from unmask.modalities.events.sources import fhir, folders, plain
from unmask.modalities.events.sources.rows import ENDINGS, Ledger, is_table
from unmask.modalities.events.sources.tables import CellReading
from unmask.modalities.events.sources.times import Order
from unmask.progress import counted

OF_TABLES = ("dates", "decimal", "missing")
"""Options that every table reads."""
OF_PLAIN = ("static", *plain.COLUMNS)


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
    options |= {role: name != plain.COLUMNS.get(role) for role, name in (columns or {}).items()}
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
        return plain.read(source, columns, ledger)
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
