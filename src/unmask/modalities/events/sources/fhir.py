"""FHIR R4, R5 and STU3: bundles (json), ndjson of resources or bundles, either of them gzipped, zips, folders of them.

All is read twice: for the versions of each resource (`fhir_versions`), what is deleted (of a bulk export: by the
bundles below `deleted/`) and merged, then for its events; one resource or bundle at a time. What cannot be read as FHIR
is rejected and counted by file and line; kinds of resources that make no event are counted by name.
"""

from __future__ import annotations

import gzip
import json
import zipfile
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

import polars as pl

from unmask.errors import UserError
from unmask.files import files_below
from unmask.modalities.events.records.meds import BIRTH, DEATH
from unmask.modalities.events.records.parquet import LARGEST
from unmask.modalities.events.records.shards import EXTRA, SCHEMA
from unmask.modalities.events.sources.fhir_kinds import (
    KINDS,
    META,
    REFUTED,
    Answers,
    Kind,
    Name,
    Scope,
    at,
    deleted,
    encounter_class,
    is_absent,
    is_deletion,
    name_of,
    scope_of,
    verification,
)
from unmask.modalities.events.sources.fhir_versions import Versions
from unmask.modalities.events.sources.rows import Ledger, hashed_id
from unmask.modalities.events.sources.times import LAST_ZONE, NONE_DAYS, fhir_time, is_none_day, unzoned

Row = tuple[int, datetime | None, str, float | None, str | None, int | None]
"""subject_id, time, code, numeric_value, text_value, visit_id."""


class ResourceReader:
    """Rows of resources, one at a time. With `onset` conditions without any time of recording stand at their onset."""

    def __init__(self, ledger: Ledger, versions: Versions, *, onset: bool) -> None:
        self.ledger, self.subjects, self.versions, self.onset = ledger, ledger.subjects, versions, onset
        self.answers, self.servers = Answers(ledger), versions.servers
        self.facts: dict[tuple[int, str], tuple[str, datetime | None]] = {}
        self.met: dict[int, str] = {}
        self.unread: dict[str, set[str]] = {}

    def note_unread(self) -> None:
        """Note elements that were not read, and patients of whom no Patient resource was: with one, a sex is known, if
        only as unknown."""
        for kind, names in self.unread.items():
            if names:
                self.ledger.unused[kind] = f"elements not read: {', '.join(sorted(names))}"
        others = {subject: where for subject, where in self.met.items() if (subject, "sex") not in self.facts}
        self.ledger.note_undescribed(others, "a Patient resource")

    def rows(self, where: str, r: Any, scope: Scope) -> list[Row]:
        """Events of a resource; none where it is rejected, which is counted. What is not as FHIR has it raises
        AttributeError, TypeError, ValueError or LookupError."""
        kind = r.get("resourceType")
        about = {"where": where, "resourceType": kind, "id": r.get("id")}
        if r.get("modifierExtension"):
            self.ledger.add(f"{kind} with a modifierExtension, which may change its meaning", about)
            return []
        if kind == "Patient":
            return self._patient(r, scope, about)
        if kind not in KINDS:
            self.ledger.add(f"resource {kind} makes no event", about)
            return []
        declared = KINDS[kind]
        wrong = _refused(kind, declared, r)
        subject = None if wrong else self._subject(r, scope)
        if wrong is None and subject is None:
            wrong = f"{kind} without a patient"
        moment = None
        if wrong is None:
            moment = self._when(kind, declared, r, scope)
            wrong = None if moment is not None else _untimed(kind, declared, r)
        if moment is not None and is_none_day(moment):
            wrong = f"time stands for none: {moment:%Y-%m-%d}"
        if wrong is None:
            made = list(self.answers.of(kind, declared, r, scope))
            if not made:
                wrong = f"{kind} without a code"
            elif any(value is not None and abs(value) > LARGEST for _, value, _ in made):
                wrong = f"{kind}: a value that is infinite, or beyond 3.4e38"
        if wrong is not None:
            self.ledger.add(wrong, about)
            return []
        assert subject is not None
        self.met.setdefault(subject, where)
        self.unread.setdefault(kind, set()).update(declared.unread(r))
        encounter = self._encounter(kind, r, scope)
        visit = None if encounter is None else hashed_id(self.servers.key(encounter))
        out: list[Row] = [(subject, moment, code, value, words, visit) for code, value, words in made]
        if kind == "Encounter":
            end, dated = fhir_time(at(r, "period.end") or at(r, "actualPeriod.end"))
            if end is not None and is_none_day(end):
                self.ledger.note("Encounter: an end that stands for none, left out", 1)
            elif end is not None:
                raw = at(r, "period.start") or at(r, "actualPeriod.start")
                begin, whole_day = fhir_time(raw)
                start = fhir_time(raw, start=True)[0] if whole_day else begin
                if begin and start and end < (start - LAST_ZONE if whole_day else start):
                    self.ledger.note("Encounter: an end before its begin, taken to be there", 1)
                    end = begin
                self._dated(dated)
                out.append((subject, end, f"ENCOUNTER_END//{encounter_class(r) or 'UNKNOWN'}", None, None, visit))
        return out

    def _patient(self, r: Mapping[str, Any], scope: Scope, about: dict[str, Any]) -> list[Row]:
        """Sex, other demographics, birth and death; a patient given again in the same version, or without one, adds
        what was not known yet, and what contradicts is rejected."""
        if not r.get("id"):
            self.ledger.add("Patient without an id", about)
            return []
        name = self.versions.person(Name("Patient", str(r["id"]), scope.base))
        subject = self.subjects.number(self.servers.key(name))
        born, _ = fhir_time(r.get("birthDate"), start=True)
        unread = bool(r.get("birthDate")) and born is None
        self.ledger.note("Patient: a birthDate that cannot be read, left out", int(unread))
        died, dated = self._time(r.get("deceasedDateTime"))
        if r.get("deceasedBoolean") is True and died is None:
            self.ledger.note("Patient: deceased, without a time of death", 1)
        if died is not None and is_none_day(died):
            self.ledger.note("Patient: a death that stands for none, left out", 1)
            died = None
        facts: list[tuple[str, str, datetime | None]] = [
            ("sex", f"GENDER//{str(r.get('gender', 'unknown')).upper()}", None)
        ]
        facts += [(code, code, None) for code in self.answers.demographics(r)]
        facts += [
            (what, code, t) for what, code, t in (("birth", BIRTH, born), ("death", DEATH, died)) if t is not None
        ]
        out: list[Row] = []
        for what, code, moment in facts:
            known = self.facts.get((subject, what))
            if known is None:
                self.facts[subject, what] = code, moment
                self._dated(dated and what == "death")
                if what == "birth" and moment is not None and moment.date() in NONE_DAYS:
                    self.ledger.note(f"births on {moment:%Y-%m-%d}, which may stand for none", 1)
                out.append((subject, moment, code, None, None, None))
            elif known != (code, moment):
                self.ledger.add(f"Patient given again, with another {what}", about)
        if not out:
            self.ledger.add("Patient given again", about)
        return out

    def _subject(self, r: Mapping[str, Any], scope: Scope) -> int | None:
        reference = (r.get("subject") or r.get("patient") or r.get("beneficiary") or {}).get("reference")
        name = name_of(reference, scope) if isinstance(reference, str) else None
        if name is None or name.kind not in ("Patient", ""):
            return None
        person = self.versions.person(name)
        if person.id != name.id:
            self.ledger.note("resources of a patient who was replaced, under the one who replaces them", 1)
        return self.subjects.number(self.servers.key(person))

    def _encounter(self, kind: str, r: Mapping[str, Any], scope: Scope) -> Name | None:
        """The encounter that a resource belongs to, or is."""
        if kind == "Encounter":
            url = f"Encounter/{r['id']}" if r.get("id") else None
        else:
            found = r.get("encounter") or r.get("context")  # STU3, and MedicationAdministration in R4
            url = found.get("reference") if isinstance(found, Mapping) else None
        name = name_of(url, scope) if isinstance(url, str) else None
        return None if name is None or name.kind not in ("Encounter", "") else name

    def _when(self, kind: str, declared: Kind, r: Mapping[str, Any], scope: Scope) -> datetime | None:
        for path in (*declared.times, *(declared.onset if self.onset else ())):
            moment, dated = self._time(_given(r, path))
            if moment is None:
                if declared.encounter and path == declared.times[-1]:
                    moment = self._end_of_encounter(kind, declared, r, scope)
                    if moment is not None:
                        return moment
                continue
            taken, whole_day, name = next(
                ((*found, p) for p in declared.taken if (found := fhir_time(_given(r, p)))[0] is not None),
                (None, False, ""),
            )
            # A date alone ends its day: it does not say that the time beside it is wrong.
            if taken is not None and not whole_day and taken > moment and path != name:
                self.ledger.note(f"{kind} at {name}, which is after {path}", 1)
                return taken
            self._dated(dated)
            if path != declared.times[0] and (kind != "Encounter" or path == META):
                self.ledger.note(f"{kind} at {path}, for want of {declared.times[0]}", 1)
            return moment
        return None

    def _end_of_encounter(self, kind: str, declared: Kind, r: Mapping[str, Any], scope: Scope) -> datetime | None:
        """The end of the encounter in which it was said; not before a time at which it began."""
        name = self._encounter(kind, r, scope)
        end = None if name is None else self.versions.end_of(Name("Encounter", name.id, name.base))
        if end is None:
            return None
        self.ledger.note(f"{kind} at the end of its encounter, for want of {declared.times[0]}", 1)
        for path in declared.onset:
            onset, dated = fhir_time(at(r, path))
            if onset is not None and not dated:
                end = max(end, onset)
        return end

    def _time(self, value: Any) -> tuple[datetime | None, bool]:
        found, dated = fhir_time(value)
        self.ledger.note("times without a zone, taken as UTC", int(found is not None and unzoned(value)))
        return found, dated

    def _dated(self, dated: bool) -> None:
        self.ledger.note("dates without a time of day, at the end of their day, month or year", int(dated))


def _untimed(kind: str, declared: Kind, r: Mapping[str, Any]) -> str:
    """Why a resource has no time: what began some day was not known then."""
    if any(at(r, path) for path in declared.onset):
        return f"{kind} with an onset alone, and no encounter that ended"
    return f"{kind} without a time that says when it was known"


def _given(r: Mapping[str, Any], path: str) -> Any:
    """What stands under a path; of a period its end, when it is known, or its start."""
    found = at(r, path)
    return found.get("end") or found.get("start") if isinstance(found, Mapping) else found


def _refused(kind: str, declared: Kind, r: Mapping[str, Any]) -> str | None:
    """Why a resource is no event: its status, its intent, or that it was not done."""
    status = r.get("status")
    if declared.statuses and status is not None and status not in declared.statuses:
        return f"{kind}: status {status}"
    for name, expected in (declared.happened or {}).items():
        if name in r and r[name] not in expected:
            return f"{kind}: {name} {str(r[name]).lower()}"
    if kind in ("Condition", "AllergyIntolerance"):
        verified = verification(r)
        if verified in REFUTED:
            return f"{kind}: verificationStatus {verified}"
    if kind == "Observation" and not r.get("component") and is_absent(r):
        return "Observation: no value (dataAbsentReason)"
    return None


CHUNK = 50_000
"""Events."""
INNER = (".json", ".ndjson", ".json.gz", ".ndjson.gz")
ENDINGS = (*INNER, ".zip")
NOT_FHIR = "not a FHIR resource"
Opener = Callable[[], IO[bytes]]


def is_fhir(path: Path) -> bool:
    return path.name.lower().endswith(ENDINGS)


def _files(path: Path, ledger: Ledger) -> Iterator[tuple[str, Opener]]:
    """(name, how to open it) of every json or ndjson; other files are named in the ledger."""
    for each in files_below(path) if path.is_dir() else [path]:
        if each.suffix.lower() == ".zip":
            try:
                with zipfile.ZipFile(each) as archive:
                    for name in sorted(archive.namelist()):
                        if name.lower().endswith(INNER):
                            yield f"{each}/{name}", partial(_open, name, archive)
                        elif not name.endswith("/"):
                            ledger.unused[f"{each.name}/{name}"] = f"not one of {', '.join(INNER)}"
            except zipfile.BadZipFile as error:
                raise UserError(f"{each}: {error}", hint="The file is damaged; write it again.") from None
        elif is_fhir(each):
            yield str(each), partial(_open, str(each))
        elif not each.name.startswith((".", "_")):
            ledger.unused[str(each.relative_to(path))] = f"not one of {', '.join(ENDINGS)}"


def _open(name: str, archive: zipfile.ZipFile | None = None) -> IO[bytes]:
    """A file, or one in an archive; unpacked where its name says that it is gzipped."""
    if not name.lower().endswith(".gz"):
        return open(name, "rb") if archive is None else archive.open(name)
    return cast(IO[bytes], gzip.open(name if archive is None else archive.open(name)))


def _resources(path: Path, ledger: Ledger, versions: Versions) -> Iterator[tuple[str, Any, Scope]]:
    """(where, resource, what it may refer to) of every resource; lines and files that are no JSON are rejected.
    `versions` gives the Medication resources of all files, and records what histories delete."""
    plain = Scope(medications=versions.medications)
    for name, opened in _files(path, ledger):
        try:
            with opened() as file:
                lines = ((f"{name}:{number}", line) for number, line in enumerate(file, start=1) if line.strip())
                for where, text in lines if ".ndjson" in name.lower() else [(name, file.read())]:
                    try:
                        found = json.loads(text)
                    except (ValueError, RecursionError) as error:
                        _reject(where, str(error), ledger)
                        continue
                    if isinstance(found, dict) and found.get("resourceType") == "Bundle":
                        yield from _bundled(where, found, ledger, versions)
                    elif isinstance(found, dict) and isinstance(found.get("resourceType"), str):
                        yield where, found, plain
                    else:
                        what = type(found).__name__
                        why = "an object without a resourceType" if what == "dict" else f"a {what}, not an object"
                        _reject(where, why, ledger)
        except (OSError, EOFError) as error:
            _reject(name, str(error), ledger)


def _bundled(
    name: str, bundle: Mapping[str, Any], ledger: Ledger, versions: Versions
) -> Iterator[tuple[str, Any, Scope]]:
    """The resources of a bundle, a file or a line; `versions` is told of what it deletes."""
    entries = bundle.get("entry") or []
    scope, bases = scope_of(entries)
    scope.medications = ChainMap(dict(scope.medications), versions.medications)
    for number, entry in enumerate(entries):
        where = f"{name} entry {number}"
        resource = entry.get("resource") if isinstance(entry, dict) else entry
        if resource is None:  # an entry may hold a request or a response alone
            if is_deletion(entry):
                removed = deleted(entry, bases[number])
                if removed is None:
                    ledger.rows += 1
                    ledger.add("a deletion that does not name a resource", {"where": where, "entry": entry})
                else:
                    versions.see_deletion(removed, entry)
        elif not isinstance(resource, dict) or not isinstance(resource.get("resourceType"), str):
            _reject(where, "an object without a resourceType", ledger)
        else:
            scope.base = bases[number]
            if not resource.get("id") and isinstance(entry.get("fullUrl"), str):
                resource = {**resource, "id": scope.names[entry["fullUrl"]].id}
            yield where, resource, scope


def _reject(where: str, why: str, ledger: Ledger) -> None:
    ledger.rows += 1
    ledger.add(NOT_FHIR, {"where": where, "error": why})


def read(path: Path, ledger: Ledger, *, onset: bool = False) -> Iterator[pl.DataFrame]:
    """Events of all resources, whose subjects are numbered as they come. With `onset` conditions without any time of
    recording stand at their onset."""
    ledger.subjects.texts = True
    versions = Versions()
    for place, (_, resource, scope) in enumerate(_resources(path, Ledger(), versions)):
        versions.see(place, resource, scope)
    versions.settle()
    reader = ResourceReader(ledger, versions, onset=onset)
    rows: list[Row] = []
    for place, (where, resource, scope) in enumerate(_resources(path, ledger, versions)):
        ledger.rows += 1
        kind = resource["resourceType"]
        count = ledger.table(kind)
        count["rows"] += 1
        why_not = versions.why_not(place, resource, scope)
        if why_not is not None:
            ledger.add(f"{kind}: {why_not}", {"where": where, "resourceType": kind, "id": resource.get("id")})
            continue
        try:
            made = reader.rows(where, resource, scope)
        except (AttributeError, TypeError, ValueError, LookupError) as error:
            ledger.add(f"{kind} is not as FHIR has it", {"where": where, "error": str(error)})
            continue
        rows += made
        ledger.kept += bool(made)
        count["events"] += len(made)
        if len(rows) >= CHUNK:
            yield pl.DataFrame(rows, schema=SCHEMA | EXTRA, orient="row")
            rows = []
    reader.note_unread()
    if rows:
        yield pl.DataFrame(rows, schema=SCHEMA | EXTRA, orient="row")
