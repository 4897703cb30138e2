"""Found before any FHIR resource is read: which of its versions counts (the latest, also where it takes the others
back), what a history or a bulk export deletes, which patients were merged, and when encounters ended.

24 to 32 bytes per resource are kept, 16 more of an encounter, and the Medication resources.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.modalities.events.sources.fhir_kinds import KINDS, Name, Scope, Servers, at, name_of
from unmask.modalities.events.sources.rows import hashed_id
from unmask.modalities.events.sources.times import fhir_time, is_none_day

UNKNOWN = -1


class Versions:
    """Looks at all resources once (`see`, then `settle`); then `why_not` says which of them do not count.

    A resource is known by its server, kind, id and patient: bundles made by hand number anew in every file. Of a
    patient older versions do not count; copies of one version, and those without any, are put together by `Reader`.
    What a history deletes does not count, unless it was written again later; nor does what is said of a patient who is
    deleted. A patient whom another replaces (Patient.link) is that other one (`person`).
    """

    def __init__(self) -> None:
        self.medications: dict[str, Any] = {}
        self.servers = Servers()
        self._links: dict[Name, tuple[tuple[int, int], set[tuple[Name, Name]]]] = {}
        self._persons: dict[Name, Name] = {}
        self._encounter, self._end = array("q"), array("q")
        self._ends: dict[int, int] = {}
        self._deleted: dict[Name, tuple[int, int]] = {}
        self._key, self._place, self._version, self._updated = (array("q") for _ in range(4))
        self._patient = array("b")
        self._out: dict[int, str] = {}
        self._removed: set[Name] = set()

    def see(self, place: int, r: Any, scope: Scope) -> None:
        """Take in the resource at a place in the order of reading."""
        if not isinstance(r, Mapping) or not r.get("id"):
            return
        kind = r.get("resourceType")
        if kind == "Medication":
            self.medications[str(r["id"])] = r.get("code")
        if kind not in KINDS and kind != "Patient":
            return
        version, updated = _written(r)
        name = self._name(r, scope)
        if kind == "Patient":
            self._see_links(name, r, scope)
        elif kind == "Encounter":
            end, _ = fhir_time(at(r, "period.end") or at(r, "actualPeriod.end"))
            if end is not None and not is_none_day(end):
                self._encounter.append(_key(name))
                self._end.append(_micros(end))
        self._key.append(_key(name, _patient_reference(r)))
        self._place.append(place)
        self._version.append(version)
        self._patient.append(kind == "Patient")
        self._updated.append(updated)

    def see_deletion(self, name: Name, entry: Mapping[str, Any]) -> None:
        """Take in an entry of a history, or of a bulk export, that deletes a resource."""
        answer = entry.get("response")
        response: Mapping[str, Any] = answer if isinstance(answer, Mapping) else {}
        name = self.servers.placed(name)
        version = str(response.get("etag", "")).removeprefix("W/").strip('"')
        here, before = _stamp(version, response.get("lastModified")), self._deleted.get(name, (UNKNOWN, UNKNOWN))
        self._deleted[name] = max(here[0], before[0]), max(here[1], before[1])

    def why_not(self, place: int, r: Any, scope: Scope) -> str | None:
        """Why the resource at this place does not count; None where it does."""
        if r["resourceType"] not in KINDS and r["resourceType"] != "Patient":
            return None
        reason = (self._why_deleted(r, scope) if self._deleted else None) or self._out.get(place)
        if reason is None and self._persons and r["resourceType"] == "Patient":
            name = self._name(r, scope)
            if self.person(name) != name and self.person(name) in self._links:
                return "replaced by another (Patient.link)"
        return reason

    def settle(self) -> None:
        """Look at what was seen."""
        self._out, self._removed = self._settled(), self._deleted_patients()
        for encounter, end in zip(self._encounter, self._end, strict=True):
            self._ends[encounter] = max(end, self._ends.get(encounter, end))
        links: dict[Name, set[Name]] = {}
        for _, pairs in self._links.values():
            for old, new in pairs:
                links.setdefault(old, set()).add(new)
        for name in links:
            way = [name]
            while way[-1] in links:
                following = links[way[-1]]
                if len(following) > 1 or following & {*way}:
                    shown = " and by ".join(sorted(f"Patient/{other.id}" for other in following))
                    back = ", which leads back" if following & {*way} else ""
                    raise UserError(
                        f"Patient/{way[-1].id} is replaced by {shown}{back} (Patient.link)",
                        hint="Links of type replaced-by and replaces must lead to one patient: mend them.",
                    )
                way += following
            self._persons[name] = way[-1]

    def person(self, name: Name) -> Name:
        """The patient whom a patient is: themselves, or the one who replaces them."""
        name = self.servers.placed(name)
        return self._persons.get(name if name.kind else Name("Patient", name.id), name)

    def end_of(self, encounter: Name) -> datetime | None:
        """When an encounter ended; of versions and copies the latest end."""
        end = self._ends.get(_key(self.servers.placed(encounter)))
        return None if end is None else np.datetime64(end, "us").item()

    def _name(self, r: Mapping[str, Any], scope: Scope) -> Name:
        return self.servers.placed(Name(str(r["resourceType"]), str(r.get("id")), scope.base))

    def _see_links(self, name: Name, r: Mapping[str, Any], scope: Scope) -> None:
        """Who replaces whom, as the latest version of a patient says it: pairs of the old and the new one."""
        pairs: set[tuple[Name, Name]] = set()
        for link in r.get("link") or []:
            reference = at(link, "other.reference")
            other = name_of(reference, scope) if isinstance(reference, str) else None
            if other is not None:
                other = self.servers.placed(Name("Patient", other.id, other.base))
                pairs |= {"replaced-by": {(name, other)}, "replaces": {(other, name)}}.get(at(link, "type"), set())
        stamp = _written(r)
        before, known = self._links.get(name, (stamp, set()))
        self._links[name] = max(stamp, before), pairs if stamp > before else known if stamp < before else known | pairs

    def _why_deleted(self, r: Mapping[str, Any], scope: Scope) -> str | None:
        if self._is_deleted(self._name(r, scope), _written(r)):
            return "deleted"
        reference = _patient_reference(r)
        patient = name_of(reference, scope) if isinstance(reference, str) else None
        if patient is None:
            return None
        patient = self.servers.placed(patient)
        return "its Patient is deleted" if self._removed & {patient, self.person(patient)} else None

    def _is_deleted(self, name: Name, written: tuple[int, int]) -> bool:
        """Whether it was deleted, and not written again: by its version, else by the time, where both are known."""
        deletion = self._deleted.get(name)
        if deletion is None:
            return False
        for ours, theirs in zip(written, deletion, strict=True):
            if UNKNOWN not in (ours, theirs):
                return ours <= theirs
        return True

    def _deleted_patients(self) -> set[Name]:
        """Patients who were deleted, and not written again."""
        names = {_key(name): name for name in self._deleted if name.kind == "Patient"}
        again = {
            key
            for key, version, updated in zip(self._key, self._version, self._updated, strict=True)
            if key in names and not self._is_deleted(names[key], (version, updated))
        }
        return {name for key, name in names.items() if key not in again}

    def _settled(self) -> dict[int, str]:
        """Place -> why, of those that do not count."""
        key, place, version, updated = (
            np.array(part, np.int64) for part in (self._key, self._place, self._version, self._updated)
        )
        turn = np.argsort(key, kind="stable")
        _, first, count = np.unique(key[turn], return_index=True, return_counts=True)
        out: dict[int, str] = {}
        for k in np.flatnonzero(count > 1).tolist():
            chosen = turn[first[k] : first[k] + count[k]]
            person = bool(self._patient[chosen[0]])
            if person:
                chosen = chosen[(version[chosen] != UNKNOWN) | (updated[chosen] != UNKNOWN)]
                if not len(chosen):
                    continue
            numbered = bool((version[chosen] != UNKNOWN).all())
            leading, other = (version, updated) if numbered else (updated, version)
            order = chosen[np.lexsort((place[chosen], other[chosen], leading[chosen]))]
            best = order[-1]
            for i in order[:-1].tolist():
                same = version[i] == version[best] and updated[i] == updated[best]
                if person and (same or leading[i] == UNKNOWN):
                    continue
                out[int(place[i])] = "given again" if same else "another version of it counts"
        return out


def _key(name: Name, patient: Any = None) -> int:
    return hashed_id(f"{name.base}\n{name.kind}\n{name.id}\n{patient}")


def _patient_reference(r: Mapping[str, Any]) -> Any:
    patient = r.get("subject") or r.get("patient")
    return patient.get("reference") if isinstance(patient, Mapping) else None


def _written(r: Mapping[str, Any]) -> tuple[int, int]:
    """Version and time of a resource, `UNKNOWN` where it does not say."""
    about = r.get("meta")
    meta: Mapping[str, Any] = about if isinstance(about, Mapping) else {}
    return _stamp(str(meta.get("versionId", "")), meta.get("lastUpdated"))


def _stamp(version: str, time: Any) -> tuple[int, int]:
    moment, _ = fhir_time(time)
    number = int(version) if version.isdecimal() and len(version) < 18 else UNKNOWN
    return number, UNKNOWN if moment is None else _micros(moment)


def _micros(time: datetime) -> int:
    return int(np.datetime64(time, "us").astype(np.int64))
