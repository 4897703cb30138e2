"""Which of the versions of a FHIR resource counts, found before any is read: the latest, also where it takes the others
back; and what a history deletes.

24 to 32 bytes per resource are kept, none of their content but that of Medication resources.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np

from unmask.modalities.events.sources.fhir_ids import Name, Scope, name_of
from unmask.modalities.events.sources.fhir_kinds import KINDS
from unmask.modalities.events.sources.ids import hashed_id
from unmask.modalities.events.sources.times import fhir_time

UNKNOWN = -1


class Versions:
    """Looks at all resources once (`see`); then `why_not` says which of them do not count.

    A resource is known by its server, kind, id and patient: bundles made by hand number anew in every file. Of a
    patient older versions do not count; copies of one version, and those without any, are put together by `Reader`.
    What a history deletes does not count, unless it was written again later; nor does what is said of a patient who is
    deleted.
    """

    def __init__(self) -> None:
        self.medications: dict[str, Any] = {}
        self._deleted: dict[Name, tuple[int, int]] = {}
        self._key, self._place, self._version, self._updated = (array("q") for _ in range(4))
        self._patient = array("b")
        self._out: dict[int, str] | None = None
        self._gone: set[Name] = set()

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
        self._key.append(_key(Name(str(kind), str(r["id"]), scope.base), _patient_reference(r)))
        self._place.append(place)
        self._version.append(version)
        self._patient.append(kind == "Patient")
        self._updated.append(updated)

    def see_deletion(self, name: Name, entry: Mapping[str, Any]) -> None:
        """Take in an entry of a history that deletes a resource."""
        said = entry.get("response")
        response: Mapping[str, Any] = said if isinstance(said, Mapping) else {}
        version = str(response.get("etag", "")).removeprefix("W/").strip('"')
        here, before = _stamp(version, response.get("lastModified")), self._deleted.get(name, (UNKNOWN, UNKNOWN))
        self._deleted[name] = max(here[0], before[0]), max(here[1], before[1])

    def why_not(self, place: int, r: Any, scope: Scope) -> str | None:
        """Why the resource at this place does not count; None where it does."""
        if self._out is None:
            self._out, self._gone = self._settled(), self._deleted_patients()
        if not isinstance(r, Mapping):
            return None
        kind = str(r.get("resourceType"))
        reason = self._why_deleted(kind, r, scope) if self._deleted else None
        reason = reason or self._out.get(place)
        return None if reason is None else f"{kind}: {reason}"

    def _why_deleted(self, kind: str, r: Mapping[str, Any], scope: Scope) -> str | None:
        if kind not in KINDS and kind != "Patient":
            return None
        if self._is_deleted(Name(kind, str(r.get("id")), scope.base), _written(r)):
            return "deleted"
        reference = _patient_reference(r)
        patient = name_of(reference, scope) if isinstance(reference, str) else None
        return "its Patient is deleted" if patient in self._gone else None

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
        edges = (
            np.flatnonzero(np.r_[True, key[turn][1:] != key[turn][:-1], True]) if len(key) else np.zeros(1, np.int64)
        )
        out: dict[int, str] = {}
        for k in np.flatnonzero(np.diff(edges) > 1).tolist():
            mine = turn[edges[k] : edges[k + 1]]
            person = bool(self._patient[mine[0]])
            if person:
                mine = mine[(version[mine] != UNKNOWN) | (updated[mine] != UNKNOWN)]
                if not len(mine):
                    continue
            numbered = bool((version[mine] != UNKNOWN).all())
            first, second = (version, updated) if numbered else (updated, version)
            order = mine[np.lexsort((place[mine], second[mine], first[mine]))]
            best = order[-1]
            for i in order[:-1].tolist():
                same = version[i] == version[best] and updated[i] == updated[best]
                if person and (same or first[i] == UNKNOWN):
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
    return number, UNKNOWN if moment is None else int(np.datetime64(moment, "us").astype(np.int64))
