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
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, cast

import polars as pl

from unmask.errors import UserError
from unmask.files import files_below
from unmask.modalities.events.records.shards import EXTRA, SCHEMA
from unmask.modalities.events.sources.fhir_events import Reader, Row
from unmask.modalities.events.sources.fhir_kinds import Scope, deleted, is_deletion, scope_of
from unmask.modalities.events.sources.fhir_versions import Versions
from unmask.modalities.events.sources.ids import Subjects
from unmask.modalities.events.sources.rows import Ledger

CHUNK = 50_000
"""Events."""
INNER = (".json", ".ndjson", ".json.gz", ".ndjson.gz")
ENDINGS = (*INNER, ".zip")
NOT_FHIR = "not a FHIR resource"
Opener = Callable[[], AbstractContextManager[IO[bytes]]]


def is_fhir(path: Path) -> bool:
    return path.name.lower().endswith(ENDINGS)


def _files(path: Path, ledger: Ledger) -> Iterator[tuple[str, Opener]]:
    """(name, how to open it) of every json or ndjson; other files are named in the ledger."""
    for each in files_below(path) if path.is_dir() else [path]:
        if each.suffix.lower() == ".zip":
            yield from _zipped(each, ledger)
        elif is_fhir(each):
            yield str(each), _opener(each)
        elif not each.name.startswith((".", "_")):
            ledger.unused[str(each.relative_to(path))] = f"not one of {', '.join(ENDINGS)}"


def _opener(path: Path) -> Opener:
    def run() -> AbstractContextManager[IO[bytes]]:
        return cast(IO[bytes], gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")

    return run


def _zipped(path: Path, ledger: Ledger) -> Iterator[tuple[str, Opener]]:
    try:
        with zipfile.ZipFile(path) as archive:
            for name in sorted(archive.namelist()):
                if not name.lower().endswith(INNER):
                    if not name.endswith("/"):
                        ledger.unused[f"{path.name}/{name}"] = f"not one of {', '.join(INNER)}"
                    continue

                def run(inner: str = name) -> AbstractContextManager[IO[bytes]]:
                    file = archive.open(inner)
                    return cast(IO[bytes], gzip.open(file)) if inner.lower().endswith(".gz") else file

                yield f"{path}/{name}", run
    except zipfile.BadZipFile as error:
        raise UserError(f"{path}: {error}", hint="The file is damaged; write it again.") from None


def _lined(name: str) -> bool:
    return ".ndjson" in name.lower()


def _resources(path: Path, ledger: Ledger, versions: Versions) -> Iterator[tuple[str, Any, Scope]]:
    """(where, resource, what it may refer to) of every resource; lines and files that are no JSON are rejected.

    Args:
        versions: gives the Medication resources of all files; is told of what histories delete.
    """
    plain = Scope(medications=versions.medications)
    for name, opened in _files(path, ledger):
        try:
            with opened() as file:
                for where, text in _lines(name, file) if _lined(name) else [(name, file.read())]:
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
                gone = deleted(entry, bases[number])
                if gone is None:
                    ledger.rows += 1
                    ledger.add("a deletion that does not name a resource", {"where": where, "entry": entry})
                else:
                    versions.see_deletion(gone, entry)
        elif not isinstance(resource, dict) or not isinstance(resource.get("resourceType"), str):
            _reject(where, "an object without a resourceType", ledger)
        else:
            scope.base = bases[number]
            if not resource.get("id") and isinstance(entry.get("fullUrl"), str):
                resource = {**resource, "id": scope.names[entry["fullUrl"]].id}
            yield where, resource, scope


def _lines(name: str, file: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    for number, line in enumerate(file, start=1):
        if line.strip():
            yield f"{name}:{number}", line


def _reject(where: str, why: str, ledger: Ledger) -> None:
    ledger.rows += 1
    ledger.add(NOT_FHIR, {"where": where, "error": why})


def read(
    path: Path, ledger: Ledger, names: dict[str, str], subjects: Subjects, *, onset: bool = False
) -> Iterator[pl.DataFrame]:
    """Events of all resources.

    Args:
        names: filled with descriptions of codes.
        subjects: filled with FHIR id -> subject_id, numbered as they come.
        onset: conditions without any time of recording stand at their onset.
    """
    subjects.texts = True
    versions = Versions()
    for place, (_, resource, scope) in enumerate(_resources(path, Ledger(), versions)):
        versions.see(place, resource, scope)
    versions.settle()
    reader = Reader(ledger, names, subjects, versions, onset=onset)
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
    reader.note_undescribed()
    if rows:
        yield pl.DataFrame(rows, schema=SCHEMA | EXTRA, orient="row")
