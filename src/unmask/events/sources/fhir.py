"""FHIR R4: bundles (json), ndjson, zips and folders of them; one resource at a time from ndjson, one bundle otherwise.

Patient, Encounter, Condition, Procedure, MedicationRequest, Immunization and Observation (with components) make
events; every other resource is counted under its name.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from unmask.errors import UserError
from unmask.events.meds import BIRTH, DEATH
from unmask.events.shards import SCHEMA
from unmask.events.sources.rows import Ledger
from unmask.files import files_below

CHUNK = 50_000
"""Events."""
ENDINGS = (".json", ".ndjson", ".zip")
Row = tuple[int, datetime | None, str, float | None]
_SYSTEMS = {
    "http://snomed.info/sct": "SNOMED", "http://loinc.org": "LOINC",
    "http://www.nlm.nih.gov/research/umls/rxnorm": "RXNORM", "http://hl7.org/fhir/sid/cvx": "CVX",
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
    if path.suffix == ".zip":
        try:
            with zipfile.ZipFile(path) as archive:
                for name in sorted(archive.namelist()):
                    if name.endswith((".json", ".ndjson")):
                        with archive.open(name) as file:
                            yield from _of(f"{path}/{name}", file)
        except zipfile.BadZipFile as error:
            raise UserError(f"{path}: {error}", hint="The file is damaged; write it again.") from None
        return
    files = [p for p in files_below(path) if p.suffix in (".json", ".ndjson")] if path.is_dir() else [path]
    for each in files:
        with each.open("rb") as file:
            yield from _of(str(each), file)


def _of(name: str, file: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    number = 0
    try:
        if name.endswith(".ndjson"):
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield f"{name}:{number}", _resource(json.loads(line))
            return
        found = _resource(json.loads(file.read()))
    except (ValueError, TypeError) as error:
        where = f"{name}:{number}" if number else name
        raise UserError(f"{where}: not a FHIR resource ({error})", hint="Give FHIR R4 bundles or ndjson.") from None
    if found.get("resourceType") != "Bundle":
        yield name, found
        return
    for number, entry in enumerate(found.get("entry") or []):
        resource = entry.get("resource") if isinstance(entry, dict) else entry
        if resource is not None:  # an entry may hold a request or a response alone
            yield f"{name} entry {number}", resource


def _resource(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise TypeError(f"a {type(found).__name__}, not an object")
    return found


def read(path: Path, ledger: Ledger, names: dict[str, str], subjects: dict[str, int]) -> Iterator[pl.DataFrame]:
    """Events of all resources.

    Args:
        names: filled with descriptions of codes.
        subjects: filled with FHIR id -> subject_id, numbered as they come.
    """
    rows: list[Row] = []
    for where, resource in _resources(path):
        ledger.rows += 1
        try:
            made = _rows(where, resource, ledger, names, subjects)
            rows += made
            ledger.kept += bool(made)
        except (AttributeError, TypeError, ValueError, LookupError) as error:
            kind = resource.get("resourceType") if isinstance(resource, dict) else type(resource).__name__
            ledger.add(f"{kind} is not as FHIR R4 has it", {"where": where, "error": str(error)})
        if len(rows) >= CHUNK:
            yield pl.DataFrame(rows, schema=SCHEMA, orient="row")
            rows = []
    if rows:
        yield pl.DataFrame(rows, schema=SCHEMA, orient="row")


def _rows(
    where: str, r: dict[str, Any], ledger: Ledger, names: dict[str, str], subjects: dict[str, int]
) -> list[Row]:  # fmt: skip
    kind = r.get("resourceType")
    about = {"where": where, "resourceType": kind, "id": r.get("id")}
    if kind == "Patient":
        if not r.get("id"):
            ledger.add("Patient without an id", about)
            return []
        subject = subjects.setdefault(str(r["id"]), len(subjects))
        out: list[Row] = [(subject, None, f"GENDER//{str(r.get('gender', 'unknown')).upper()}", None)]
        for code, when in ((BIRTH, _time(r.get("birthDate"))), (DEATH, _time(r.get("deceasedDateTime")))):
            if when is not None:
                out.append((subject, when, code, None))
        return out
    if kind not in _PREFIX:
        ledger.add(f"resource {kind} makes no event", about)
        return []
    prefix, fields = _PREFIX[kind]
    reference = (r.get("subject") or r.get("patient") or {}).get("reference", "")
    if not reference:
        ledger.add(f"{kind} without a patient", about)
        return []
    moment = next((t for f in fields if (t := _time(r.get(f))) is not None), None)
    if moment is None:
        ledger.add(f"{kind} without a time", about)
        return []
    made = list(_events(kind, prefix, r, names))
    if not made:
        ledger.add(f"{kind} without a code", about)
        return []
    subject = subjects.setdefault(reference.removeprefix("urn:uuid:").rsplit("/", 1)[-1], len(subjects))
    out = [(subject, moment, code, value) for code, value in made]
    end = _time((r.get("period") or {}).get("end")) if kind == "Encounter" else None
    if end is not None:
        out.append((subject, end, f"ENCOUNTER_END//{(r.get('class') or {}).get('code', 'UNKNOWN')}", None))
    return out


def _events(kind: str, prefix: str, r: Mapping[str, Any], names: dict[str, str]) -> Iterator[tuple[str, float | None]]:
    """(code, value) of a resource; an observation with components gives one each."""
    if kind == "Observation" and r.get("component"):
        for part in r["component"]:
            if (code := _code(part.get("code"), prefix, names)) is not None:
                yield _answered(code, part, names), _value(part)
        return
    concept = r.get({"MedicationRequest": "medicationCodeableConcept", "Immunization": "vaccineCode"}.get(kind, "code"))
    if kind == "Encounter":
        concept = (r.get("type") or [None])[0]
        prefix = f"{prefix}//{(r.get('class') or {}).get('code', 'UNKNOWN')}"
    code = _code(concept, prefix, names)
    if code is None and kind == "Encounter" and r.get("class"):  # R4 demands a class, not a type
        code = prefix
    if code is not None:
        yield _answered(code, r, names), _value(r)


def _value(r: Mapping[str, Any]) -> float | None:
    value = (r.get("valueQuantity") or {}).get("value")
    return None if value is None else float(value)


def _answered(code: str, r: Mapping[str, Any], names: dict[str, str]) -> str:
    """The code of an observation, with its answer behind it where that is a code too (a smoker, a blood group)."""
    return _code(r.get("valueCodeableConcept"), code, names) or code


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
    """A FHIR date, dateTime or Period's start as UTC without zone; of a year or a month alone its first day."""
    if isinstance(value, Mapping):
        value = value.get("start")
    if not isinstance(value, str):
        return None
    value += {4: "-01-01", 7: "-01"}.get(len(value), "")
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    return found if found.tzinfo is None else found.astimezone(UTC).replace(tzinfo=None)
