"""`unmask events convert`: a plain event table or FHIR R4 bundles -> a MEDS folder.

Every row (table) or resource (FHIR) is kept, left out with a reason that is counted, or is not of a kind that makes
events; `kept + rejected = rows in`. A sample of what was rejected stands in OUT/rejected.jsonl.
"""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from unmask.errors import UserError
from unmask.events.meds import BIRTH, write_meds

SAMPLES = 20
"""Rejected rows kept of each reason."""
COLUMNS = {"subject": "subject_id", "time": "time", "code": "code", "value": "numeric_value"}


@dataclass
class Rejected:
    """Counts by reason, and a few of each."""

    counts: Counter[str] = field(default_factory=Counter)
    samples: list[dict[str, Any]] = field(default_factory=list)

    def add(self, reason: str, row: Any, count: int = 1) -> None:
        self.counts[reason] += count
        if sum(s["reason"] == reason for s in self.samples) < SAMPLES:
            self.samples.append({"reason": reason, "row": row})


def convert(source: str | Path, out: str | Path, *, columns: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Make a MEDS folder of a table (.csv, .csv.gz, .parquet) or of FHIR R4 (.json, .ndjson, .zip, a folder of them).

    Returns:
        rows, events, subjects, rejected_rows, rejected (by reason).

    Raises:
        UserError: nothing readable there, a column is absent, or `out` exists.
    """
    path, target = Path(source), Path(out)
    if not path.exists():
        raise UserError(f"{path}: no such file", hint="Give a table (csv, parquet) or FHIR bundles.")
    if target.exists():
        raise UserError(f"{target} exists", hint="Choose another --out.")
    rejected = Rejected()
    if path.is_dir() or path.suffix in (".json", ".ndjson", ".zip"):
        frame, rows, codes = _fhir(path, rejected)
    else:
        frame, rows = _table(path, {**COLUMNS, **(columns or {})}, rejected)
        codes = {}
    if not len(frame):
        raise UserError(f"{path}: no events in {rows} rows ({dict(rejected.counts)})", hint="Check the columns.")
    write_meds(frame, target, name=path.stem, codes=codes)
    lines = "".join(json.dumps(s, ensure_ascii=False, default=str) + "\n" for s in rejected.samples)
    (target / "rejected.jsonl").write_text(lines, encoding="utf-8")
    return {
        "out": str(target), "rows": rows, "events": len(frame), "subjects": frame["subject_id"].n_unique(),
        "rejected_rows": sum(rejected.counts.values()), "rejected": dict(rejected.counts),
    }  # fmt: skip


def _table(path: Path, columns: Mapping[str, str], rejected: Rejected) -> tuple[pl.DataFrame, int]:
    try:
        if path.suffix == ".parquet":
            raw = pl.read_parquet(path)
        else:
            raw = pl.read_csv(path, infer_schema=False)
    except Exception as error:  # polars raises many kinds for a damaged file
        raise UserError(f"{path}: not a table ({str(error).splitlines()[0]})", hint="Give csv or parquet.") from None
    for role in ("subject", "time", "code"):
        if columns[role] not in raw.columns:
            raise UserError(
                f"{path}: no column {columns[role]!r}", hint=f"Found {', '.join(raw.columns)}; name it with --{role}."
            )
    has_value = columns["value"] in raw.columns
    text = raw.select(
        pl.col(columns["subject"]).cast(pl.String).alias("subject"), pl.col(columns["time"]).alias("when"),
        pl.col(columns["code"]).cast(pl.String).alias("code"),
        (pl.col(columns["value"]) if has_value else pl.lit(None)).alias("raw"),
    )  # fmt: skip
    when = pl.col("when")
    if text["when"].dtype == pl.String:
        blank = when.str.strip_chars() == ""
        when = pl.when(blank).then(None).otherwise(when.str.strip_chars())
        text = text.with_columns(when.alias("when"))
        parsed = pl.coalesce(
            *(pl.col("when").str.to_datetime(f, strict=False, time_unit="us") for f in (
                "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M", "%Y-%m-%d",
            )),
        )  # fmt: skip
    else:
        parsed = when.cast(pl.Datetime("us"), strict=False)
    text = text.with_columns(
        pl.col("subject").str.strip_chars().cast(pl.Int64, strict=False).alias("subject_id"),
        parsed.alias("time"),
        pl.col("raw").cast(pl.String).str.strip_chars().cast(pl.Float32, strict=False).alias("numeric_value"),
    )
    raw_text = pl.col("raw").cast(pl.String).str.strip_chars()
    reason = (
        pl.when(pl.col("subject_id").is_null()).then(pl.lit("subject is not a whole number"))
        .when(pl.col("code").is_null() | (pl.col("code").str.strip_chars() == "")).then(pl.lit("no code"))
        .when(pl.col("time").is_null() & pl.col("when").is_not_null()).then(pl.lit("time cannot be read"))
        .when(pl.col("numeric_value").is_null() & raw_text.is_not_null() & (raw_text != "")).then(
            pl.lit("value is not a number")
        )
    )  # fmt: skip
    text = text.with_columns(reason.alias("reason"))
    bad = text.filter(pl.col("reason").is_not_null())
    for (name,), part in bad.group_by("reason", maintain_order=True):
        rejected.counts[str(name)] += len(part)
        shown = part.head(SAMPLES).select("subject", "when", "code", "raw").to_dicts()
        rejected.samples += [{"reason": name, "row": row} for row in shown]
    good = text.filter(pl.col("reason").is_null())
    return good.select("subject_id", "time", "code", "numeric_value"), len(raw)


_SYSTEMS = {
    "http://snomed.info/sct": "SNOMED", "http://loinc.org": "LOINC",
    "http://www.nlm.nih.gov/research/umls/rxnorm": "RxNorm", "http://hl7.org/fhir/sid/cvx": "CVX",
}  # fmt: skip
_PREFIX = {
    "Condition": ("CONDITION", ("onsetDateTime", "recordedDate")),
    "Procedure": ("PROCEDURE", ("performedDateTime", "performedPeriod")),
    "MedicationRequest": ("MEDICATION", ("authoredOn",)),
    "Immunization": ("IMMUNIZATION", ("occurrenceDateTime",)),
    "Observation": ("LAB", ("effectiveDateTime", "effectivePeriod", "issued")),
    "Encounter": ("ENCOUNTER", ("period",)),
}


def _resources(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where, resource) of every resource in a bundle, ndjson, zip or folder."""

    def of(name: str, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
        try:
            if name.endswith(".ndjson"):
                yield from ((name, json.loads(line)) for line in text.splitlines() if line.strip())
                return
            found = json.loads(text)
        except ValueError as error:
            raise UserError(f"{name}: not JSON ({error})", hint="Give FHIR R4 bundles or ndjson.") from None
        if found.get("resourceType") == "Bundle":
            yield from ((name, e["resource"]) for e in found.get("entry", []) if "resource" in e)
        else:
            yield name, found

    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for name in sorted(archive.namelist()):
                if name.endswith((".json", ".ndjson")):
                    yield from of(f"{path}/{name}", archive.read(name).decode("utf-8"))
        return
    files = sorted(p for p in path.rglob("*") if p.suffix in (".json", ".ndjson")) if path.is_dir() else [path]
    for file in files:
        yield from of(str(file), file.read_text(encoding="utf-8"))


def _fhir(path: Path, rejected: Rejected) -> tuple[pl.DataFrame, int, dict[str, str]]:
    numbers: dict[str, int] = {}
    descriptions: dict[str, str] = {}
    out: list[tuple[int, datetime | None, str, float | None]] = []
    rows = 0
    for where, r in _resources(path):
        rows += 1
        kind = r.get("resourceType")
        about = {"where": where, "resourceType": kind, "id": r.get("id")}
        if kind == "Patient":
            subject = numbers.setdefault(str(r.get("id")), len(numbers))
            out.append((subject, None, f"GENDER//{str(r.get('gender', 'unknown')).upper()}", None))
            if (born := _time(r.get("birthDate"))) is not None:
                out.append((subject, born, BIRTH, None))
            continue
        if kind not in _PREFIX:
            rejected.add(f"resource {kind} makes no event", about)
            continue
        prefix, fields = _PREFIX[kind]
        reference = (r.get("subject") or r.get("patient") or {}).get("reference", "")
        if not reference:
            rejected.add(f"{kind} without a patient", about)
            continue
        subject = numbers.setdefault(reference.removeprefix("urn:uuid:").rsplit("/", 1)[-1], len(numbers))
        moment = next((t for f in fields if (t := _time(r.get(f))) is not None), None)
        if moment is None:
            rejected.add(f"{kind} without a time", about)
            continue
        made = list(_events(kind, prefix, r, descriptions))
        if not made:
            rejected.add(f"{kind} without a code", about)
            continue
        out += [(subject, moment, code, value) for code, value in made]
        end = _time((r.get("period") or {}).get("end")) if kind == "Encounter" else None
        if end is not None:
            out.append((subject, end, f"ENCOUNTER_END//{(r.get('class') or {}).get('code', 'UNKNOWN')}", None))
    schema: dict[str, Any] = {
        "subject_id": pl.Int64,
        "time": pl.Datetime("us"),
        "code": pl.String,
        "numeric_value": pl.Float32,
    }
    return pl.DataFrame(out, schema=schema, orient="row"), rows, descriptions


def _events(kind: str, prefix: str, r: Mapping[str, Any], names: dict[str, str]) -> Iterator[tuple[str, float | None]]:
    """(code, value) of a resource; an observation with components gives one each."""
    if kind == "Observation" and r.get("component"):
        for part in r["component"]:
            if (code := _code(part.get("code"), prefix, names)) is not None:
                yield code, (part.get("valueQuantity") or {}).get("value")
        return
    concept = r.get({"MedicationRequest": "medicationCodeableConcept", "Immunization": "vaccineCode"}.get(kind, "code"))
    if kind == "Encounter":
        concept = (r.get("type") or [None])[0]
        prefix = f"{prefix}//{(r.get('class') or {}).get('code', 'UNKNOWN')}"
    if (code := _code(concept, prefix, names)) is not None:
        yield code, (r.get("valueQuantity") or {}).get("value")


def _code(concept: Mapping[str, Any] | None, prefix: str, names: dict[str, str]) -> str | None:
    coding = next((c for c in (concept or {}).get("coding", []) if c.get("code")), None)
    if coding is None:
        return None
    system = _SYSTEMS.get(coding.get("system", ""), coding.get("system", "UNKNOWN"))
    code = f"{prefix}//{system}//{coding['code']}"
    if coding.get("display"):
        names.setdefault(code, coding["display"])
    return code


def _time(value: Any) -> datetime | None:
    """A FHIR date, dateTime or Period's start as UTC without zone."""
    if isinstance(value, Mapping):
        value = value.get("start")
    if not isinstance(value, str):
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    return found if found.tzinfo is None else found.astimezone(UTC).replace(tzinfo=None)
