"""Which FHIR resources make events (R4, R5 and STU3): when each was known, its code, and the statuses that happened.

References between resources: `Patient/A/_history/1` and a bundle's urn:uuid both lead to the patient's id.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of resource.

    Attributes:
        prefix: of its codes.
        times: fields that say when it was known, the first that is given; of a period its end, or its start where it
            has none. meta.lastUpdated, when the server last wrote the resource, stands last.
        taken: fields that say when it was taken, the first that is given: nothing is known before.
        onset: fields taken only where `convert` is told to, for want of all of `times`: when it began.
        encounter: for want of all of `times` its encounter's end: what was said in it was known by then.
        codes: fields with its code.
        statuses: of those that are events; no status at all is one, and any other is rejected. Empty: it has none.
        happened: fields that must hold one of these values, if they are given.
    """

    prefix: str
    times: tuple[str, ...]
    taken: tuple[str, ...] = ()
    onset: tuple[str, ...] = ()
    encounter: bool = False
    codes: tuple[str, ...] = ("code",)
    statuses: tuple[str, ...] = ()
    happened: Mapping[str, tuple[object, ...]] | None = None


META = "meta.lastUpdated"
_OCCURRED = ("performedDateTime", "performedPeriod", "occurrenceDateTime", "occurrencePeriod")
_MEDICATION = ("medicationCodeableConcept", "medication.concept", "medicationReference", "medication.reference")
_DONE: dict[str, tuple[object, ...]] = {
    "notDone": (False,),
    "notGiven": (False,),
    "wasNotGiven": (False,),
    "doNotPerform": (False,),
    "taken": ("y",),
}
KINDS: Mapping[str, Kind] = {
    "Encounter": Kind(
        prefix="ENCOUNTER",
        times=("period.start", "actualPeriod.start", META),
        codes=("type",),
        statuses=(
            *("arrived", "triaged", "in-progress", "onleave", "on-hold", "finished", "discharged", "completed"),
            "discontinued",
        ),
    ),
    "Condition": Kind(
        prefix="CONDITION",
        times=("recordedDate", "assertedDate", META),
        onset=("onsetDateTime", "onsetPeriod.start"),
        encounter=True,
    ),
    "AllergyIntolerance": Kind(
        prefix="ALLERGY",
        times=("recordedDate", "assertedDate", META),
        onset=("onsetDateTime", "onsetPeriod.start"),
        encounter=True,
    ),
    "Procedure": Kind(
        prefix="PROCEDURE", times=("recorded", *_OCCURRED, META), statuses=("in-progress", "completed"), happened=_DONE
    ),
    "MedicationRequest": Kind(
        prefix="MEDICATION",
        times=("authoredOn", META),
        codes=_MEDICATION,
        statuses=("active", "on-hold", "ended", "stopped", "completed"),
        happened={**_DONE, "intent": ("order", "original-order", "reflex-order", "filler-order", "instance-order")},
    ),
    "MedicationStatement": Kind(
        prefix="MEDICATION_STATEMENT",
        times=("dateAsserted", "effectiveDateTime", "effectivePeriod", META),
        codes=_MEDICATION,
        statuses=("active", "completed", "on-hold", "stopped", "recorded"),
        happened=_DONE,
    ),
    "MedicationAdministration": Kind(
        prefix="MEDICATION_GIVEN",
        codes=_MEDICATION,
        statuses=("in-progress", "on-hold", "completed", "stopped"),
        times=("recorded", "effectiveDateTime", "effectivePeriod", "occurenceDateTime", "occurencePeriod", META),
        happened=_DONE,
    ),
    "MedicationDispense": Kind(
        prefix="MEDICATION_DISPENSED",
        times=("recorded", "whenHandedOver", "whenPrepared", META),
        codes=_MEDICATION,
        statuses=("completed",),
        happened=_DONE,
    ),
    "Immunization": Kind(
        prefix="IMMUNIZATION",
        times=("recorded", "occurrenceDateTime", "date", META),
        codes=("vaccineCode",),
        statuses=("completed",),
        happened=_DONE,
    ),
    "Observation": Kind(
        prefix="LAB",
        times=("issued", "effectiveDateTime", "effectiveInstant", "effectivePeriod", META),
        taken=("effectiveDateTime", "effectiveInstant", "effectivePeriod"),
        statuses=("preliminary", "final", "amended", "corrected", "appended"),
    ),
}
REFUTED = ("refuted", "entered-in-error", "unknown")
"""verificationStatus of what is no fact; unconfirmed, provisional and differential ones say so in their code."""
CONFIRMED = ("confirmed",)
SYSTEMS = {
    "http://snomed.info/sct": "SNOMED",
    "urn:oid:2.16.840.1.113883.6.96": "SNOMED",
    "http://loinc.org": "LOINC",
    "urn:oid:2.16.840.1.113883.6.1": "LOINC",
    "http://www.nlm.nih.gov/research/umls/rxnorm": "RXNORM",
    "urn:oid:2.16.840.1.113883.6.88": "RXNORM",
    "http://hl7.org/fhir/sid/cvx": "CVX",
    "urn:oid:2.16.840.1.113883.12.292": "CVX",
    "http://hl7.org/fhir/sid/icd-10-cm": "ICD10CM",
    "urn:oid:2.16.840.1.113883.6.90": "ICD10CM",
    "http://hl7.org/fhir/sid/icd-10": "ICD10",
    "http://hl7.org/fhir/sid/icd-9-cm": "ICD9CM",
    "http://hl7.org/fhir/sid/ndc": "NDC",
    "http://www.ama-assn.org/go/cpt": "CPT",
    "http://www.whocc.no/atc": "ATC",
}


_REFERENCE = re.compile(r"^(?:(https?://.+?)/)?([A-Z][A-Za-z]+)/([A-Za-z0-9.\-_]+)(?:/_history/[^/]+)?/?$")


@dataclass(frozen=True)
class Name:
    """A resource that a reference leads to; `base` is the server's address, where it is said."""

    kind: str
    id: str
    base: str | None = None


@dataclass
class Scope:
    """What references in one bundle may lead to: fullUrl -> the resource that stands under it, the server (`base`) of
    the entry at hand, against which relative references count, and id -> code of the Medication resources."""

    names: Mapping[str, Name] = field(default_factory=dict)
    base: str | None = None
    medications: Mapping[str, Any] = field(default_factory=dict)


def name_of(url: str, scope: Scope) -> Name | None:
    """Where a reference (or a fullUrl) leads; None where it does not say."""
    if url in scope.names:
        return scope.names[url]
    if url.startswith(("urn:uuid:", "urn:oid:")):
        return Name("", url.split(":", 2)[2])
    found = _REFERENCE.match(url)
    return None if found is None else Name(found[2], found[3], found[1] or scope.base)


def scope_of(entries: Sequence[Any]) -> tuple[Scope, list[str | None]]:
    """What the references within a bundle may lead to, and the server of each of its entries."""
    names: dict[str, Name] = {}
    medications: dict[str, Any] = {}
    bases: list[str | None] = []
    for entry in entries:
        url = entry.get("fullUrl") if isinstance(entry, dict) else None
        resource = entry.get("resource") if isinstance(entry, dict) else None
        resource = resource if isinstance(resource, dict) else {}
        kind, own = str(resource.get("resourceType", "")), resource.get("id")
        found = _REFERENCE.match(url) if isinstance(url, str) else None
        bases.append(found[1] if found is not None else None)
        if isinstance(url, str):
            # An entry without an id of its own is known by its address alone.
            known = str(own) if own else found[3] if found is not None else url.split(":", 2)[-1]
            names[url] = Name(kind, known, found[1] if found is not None else None)
            if kind == "Medication":
                medications[known] = resource.get("code")
        elif kind == "Medication" and own:
            medications[str(own)] = resource.get("code")
    return Scope(names=names, medications=medications), bases


def is_deletion(entry: Any) -> bool:
    request = entry.get("request") if isinstance(entry, Mapping) else None
    return isinstance(request, Mapping) and str(request.get("method", "")).upper() == "DELETE"


def deleted(entry: Any, base: str | None) -> Name | None:
    """The resource that a deletion (of a history or a bulk export) names by its address; None where it names none."""
    urls = (entry.get("fullUrl"), entry["request"].get("url"))
    names = [name_of(url, Scope(base=base)) for url in urls if isinstance(url, str)]
    return next((name for name in names if name is not None and name.kind), None)


@dataclass
class Servers:
    """Resources over several servers: what no server is said of is of the first one."""

    home: str | None = None

    def placed(self, name: Name) -> Name:
        """The name without its server where that is the first."""
        if self.home is None:
            self.home = name.base
        return Name(name.kind, name.id) if name.base == self.home else name

    def key(self, name: Name) -> str:
        """The id; with the address in front where it is of another server than the first."""
        name = self.placed(name)
        return name.id if name.base is None else f"{name.base}/{name.kind}/{name.id}"
