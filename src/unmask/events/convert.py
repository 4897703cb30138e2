"""`unmask events convert`: a plain event table, FHIR R4, or an OMOP or MIMIC-IV folder -> a MEDS folder.

Every row (table) or resource (FHIR) gives events, or is left out with a reason that is counted. A sample of what was
rejected stands in OUT/rejected.jsonl. Nothing is held whole in memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from unmask.errors import UserError
from unmask.events.shards import ShardWriter
from unmask.events.sources import fhir, folders, plain
from unmask.events.sources.rows import ENDINGS, Ledger, is_table
from unmask.files import files_below


def convert(
    source: str | Path | pl.DataFrame, out: str | Path, *, columns: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Make a MEDS folder of a table, of FHIR R4 (json, ndjson, zip, a folder of them), of OMOP or MIMIC-IV.

    Args:
        source: a DataFrame, a table's file (.csv, .csv.gz, .tsv, .parquet), a FHIR file, or a folder: with person it is
            OMOP, with patients and admissions MIMIC-IV, else FHIR.
        columns: of a plain table: role (subject, time, code, value) -> its name.

    Returns:
        rows, kept_rows (which gave an event), rejected_rows (the others), rejected (events left out, by reason), events,
        subjects, codes.

    Raises:
        UserError: nothing readable there, a column is absent, or `out` exists.
    """
    ledger, names, numbers = Ledger(), dict[str, str](), dict[str, int]()
    with ShardWriter(out) as shards:
        for frame in _events(source, columns or {}, ledger, names, numbers):
            shards.add(frame)
        if not shards.rows:
            raise UserError(
                f"{_name(source)}: no events in {ledger.rows} rows ({dict(ledger.counts)})", hint="Check the columns."
            )
        lines = "".join(json.dumps(s, ensure_ascii=False, default=str) + "\n" for s in ledger.samples)
        (shards.folder / "rejected.jsonl").write_text(lines, encoding="utf-8")
        if numbers:
            (shards.folder / "metadata").mkdir(exist_ok=True)
            mapped = pl.DataFrame({"source_id": list(numbers), "subject_id": list(numbers.values())})
            mapped.write_parquet(shards.folder / "metadata" / "source_ids.parquet")
        target = shards.finish(name=_name(source), descriptions=names)
        return {
            "out": str(target), "rows": ledger.rows, "kept_rows": ledger.kept,
            "rejected_rows": ledger.rows - ledger.kept, "rejected": dict(ledger.counts), "events": shards.rows,
            "subjects": shards.subjects, "codes": len(shards.counts),
        }  # fmt: skip


def _name(source: str | Path | pl.DataFrame) -> str:
    return "table" if isinstance(source, pl.DataFrame) else Path(source).name


def _events(
    source: str | Path | pl.DataFrame, columns: Mapping[str, str], ledger: Ledger, names: dict[str, str],
    numbers: dict[str, int],
) -> Iterator[pl.DataFrame]:  # fmt: skip
    if isinstance(source, pl.DataFrame):
        yield from plain.from_frame(source, columns, ledger)
        return
    path = Path(source)
    if not path.exists():
        raise UserError(
            f"{path}: no such file", hint="Give a table (csv, parquet), FHIR, or a folder of OMOP or MIMIC-IV."
        )
    if path.is_dir():
        files = folders.files_of(path)
        kind = folders.kind_of(files)
        if kind is not None:
            yield from folders.read(kind, files, ledger, names)
            return
        if not any(p.suffix in fhir.ENDINGS for p in files_below(path)):
            raise UserError(
                f"{path}: neither OMOP (person), MIMIC-IV (patients, admissions) nor FHIR (json)",
                hint=f"Found {', '.join(sorted(files)) or 'no table'}.",
            )
        yield from fhir.read(path, ledger, names, numbers)
    elif is_table(path):
        yield from plain.read(path, columns, ledger)
    elif path.suffix in fhir.ENDINGS:
        yield from fhir.read(path, ledger, names, numbers)
    else:
        raise UserError(f"{path}: not a kind of file known here", hint=f"Give {', '.join((*ENDINGS, *fhir.ENDINGS))}.")
