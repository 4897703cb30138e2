"""Which of the versions of a FHIR resource counts, found before any is read: the latest, also where it takes the others
back.

24 to 32 bytes per resource are kept, none of their content but that of Medication resources.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np

from unmask.modalities.events.sources.fhir_ids import Name, Scope
from unmask.modalities.events.sources.fhir_kinds import KINDS
from unmask.modalities.events.sources.ids import hashed_id
from unmask.modalities.events.sources.times import fhir_time

UNKNOWN = -1


class Versions:
    """Looks at all resources once (`see`); then `why_not` says which of them do not count.

    A resource is known by its server, kind, id and patient: bundles made by hand number anew in every file. Of a
    patient older versions do not count; copies of one version, and those without any, are put together by `Reader`.
    """

    def __init__(self) -> None:
        self.medications: dict[str, Any] = {}
        self.deleted: set[Name] = set()
        self._key, self._place, self._version, self._updated = (array("q") for _ in range(4))
        self._patient = array("b")
        self._out: dict[int, str] | None = None

    def see(self, place: int, r: Any, scope: Scope) -> None:
        """Take in the resource at a place in the order of reading."""
        if not isinstance(r, Mapping) or not r.get("id"):
            return
        kind = r.get("resourceType")
        if kind == "Medication":
            self.medications[str(r["id"])] = r.get("code")
        if kind not in KINDS and kind != "Patient":
            return
        about = r.get("meta")
        meta: Mapping[str, Any] = about if isinstance(about, Mapping) else {}
        patient = r.get("subject") or r.get("patient")
        patient = patient.get("reference") if isinstance(patient, Mapping) else None
        version = str(meta.get("versionId", ""))
        moment, _ = fhir_time(meta.get("lastUpdated"))
        self._key.append(hashed_id(f"{scope.base}\n{kind}\n{r['id']}\n{patient}"))
        self._place.append(place)
        self._version.append(int(version) if version.isdecimal() and len(version) < 18 else UNKNOWN)
        self._patient.append(kind == "Patient")
        self._updated.append(UNKNOWN if moment is None else int(np.datetime64(moment, "us").astype(np.int64)))

    def why_not(self, place: int, r: Any, scope: Scope) -> str | None:
        """Why the resource at this place does not count; None where it does."""
        if self._out is None:
            self._out = self._settled()
        if not isinstance(r, Mapping):
            return None
        kind = str(r.get("resourceType"))
        if self.deleted and Name(kind, str(r.get("id")), scope.base) in self.deleted and kind in KINDS:
            return f"{kind}: deleted"
        reason = self._out.get(place)
        return None if reason is None else f"{kind}: {reason}"

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
