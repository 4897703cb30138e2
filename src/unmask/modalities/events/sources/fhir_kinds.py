"""Which FHIR resources make events (R4, R5 and STU3): when each was known, its code, the statuses that happened, and
the value, coded answer or words that come with it.

References between resources: `Patient/A/_history/1` and a bundle's urn:uuid both lead to the patient's id.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from unmask.modalities.events.sources.rows import Ledger


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

    @cached_property
    def read(self) -> frozenset[str]:
        """Elements that are read, and those that say nothing of the patient."""
        paths = (*self.times, *self.taken, *self.onset, *self.codes, *(self.happened or ()))
        return ANYWHERE.union(path.split(".")[0] for path in paths)

    def unread(self, r: Mapping[str, Any]) -> set[str]:
        """Elements of a resource that are not read; of values `Answers` says which."""
        return {name for name in r.keys() - self.read if not name.startswith(("_", "value"))}


ANYWHERE = frozenset(
    (
        *("resourceType", "id", "meta", "text", "language", "implicitRules", "contained", "modifierExtension"),
        *("status", "verificationStatus", "subject", "patient", "beneficiary", "encounter", "context"),
        *("class", "period", "actualPeriod", "component", "dataAbsentReason"),
    )
)
META = "meta.lastUpdated"
_OCCURRED = ("performedDateTime", "performedPeriod", "occurrenceDateTime", "occurrencePeriod")
_MEDICATION = ("medicationCodeableConcept", "medication.concept", "medicationReference", "medication.reference")
_RECORDED: dict[str, Any] = {
    "times": ("recordedDate", "assertedDate", META),
    "onset": ("onsetDateTime", "onsetPeriod.start"),
}
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
    "Condition": Kind(prefix="CONDITION", encounter=True, **_RECORDED),
    "AllergyIntolerance": Kind(prefix="ALLERGY", encounter=True, **_RECORDED),
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
    "Coverage": Kind(
        prefix="INSURANCE", times=("period.start", META), codes=("type", "payor"), statuses=("active", "cancelled")
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


_REFERENCE = re.compile(r"^(?:(https?://.+?)?/)?([A-Z][A-Za-z]+)/([A-Za-z0-9.\-_]+)(?:/_history/[^/]+)?/?$")


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


CodedAnswer = tuple[str, float | None, str | None]
"""Code, value, words."""
US_CORE = {"us-core-race": "RACE", "us-core-ethnicity": "ETHNICITY"}
"""Last part of the address of an extension of US Core -> prefix of its codes."""
UNREAD_VALUES = ("valueSampledData", "valueAttachment", "valueReference")


class Answers:
    """Codes and answers of resources; the ledger's names are filled with descriptions of codes."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.names = ledger, ledger.names

    def of(self, kind: str, declared: Kind, r: Mapping[str, Any], scope: Scope) -> Iterator[CodedAnswer]:
        """Code and answer of a resource; of an observation with components one each."""
        prefix = declared.prefix
        if kind == "Encounter":
            prefix = f"{prefix}//{encounter_class(r) or 'UNKNOWN'}"
        code = next(
            (c for f in declared.codes if (c := self._code(self._concept(r, f, scope), prefix)) is not None), None
        )
        if kind == "Encounter" and code is None and encounter_class(r):  # R4 demands a class, not a type
            code = prefix
        if kind != "Observation":
            if code is not None:
                verified = verification(r)  # it stands behind the code of a diagnosis that is not confirmed
                yield code + (f"//{verified}" if verified and verified not in CONFIRMED else ""), None, None
            return
        parts = r.get("component") or []
        for part in parts:
            inner = self._code(part.get("code"), prefix)
            if inner is None:
                self.ledger.note("Observation: components without a code, left out", 1)
            elif not is_absent(part):
                yield self._answered(inner, part)
        if code is not None and (not parts or has_value(r)) and not is_absent(r):
            yield self._answered(code, r)

    def demographics(self, patient: Mapping[str, Any]) -> Iterator[str]:
        """Codes of race and ethnicity, as the extensions of US Core say them: RACE//2054-5 (OMB's omb), or their
        words; of the preferred language, or the only one; and of marital status."""
        spoken = [c for c in patient.get("communication") or [] if isinstance(c, Mapping)]
        concepts = [("LANGUAGE", at(c, "language")) for c in spoken if c.get("preferred") or len(spoken) == 1]
        concepts.append(("MARITAL_STATUS", patient.get("maritalStatus")))
        for extension in patient.get("extension") or []:
            parts = extension.get("extension") or []
            omb = [at(part, "valueCoding") for part in parts if at(part, "url") == "ombCategory"]
            words = next((at(part, "valueString") for part in parts if at(part, "url") == "text"), None)
            concept = {"coding": omb, "text": words} if parts else extension.get("valueCodeableConcept")
            if prefix := US_CORE.get(str(at(extension, "url")).rsplit("/", 1)[-1]):
                concepts.append((prefix, concept))
        for prefix, concept in concepts:
            codings = [c for c in at(concept or {}, "coding") or [] if at(c, "code")]
            for coding in codings:
                self.names.setdefault(f"{prefix}//{coding['code']}", str(coding.get("display") or coding["code"]))
                yield f"{prefix}//{coding['code']}"
            if not codings and at(concept or {}, "text"):
                yield f"{prefix}//{concept['text']}"

    def _concept(self, r: Mapping[str, Any], path: str, scope: Scope) -> Any:
        """A CodeableConcept, the first of several, or that of the Medication that a reference leads to."""
        found = at(r, path)
        if path in ("type", "payor") and isinstance(found, list):
            found = found[0] if found else None
        if isinstance(found, Mapping) and ("reference" in found or path == "payor"):
            url = str(found.get("reference", ""))
            if url.startswith("#"):
                inside = (c for c in r.get("contained") or [] if isinstance(c, Mapping) and c.get("id") == url[1:])
                return next((c.get("code") for c in inside), None)
            name = name_of(url, scope)
            concept = None if name is None else scope.medications.get(name.id)
            if concept is None and found.get("display"):
                return {"text": found["display"]}
            return concept
        return found

    def _answered(self, code: str, r: Mapping[str, Any]) -> CodedAnswer:
        """The code with its unit or coded answer behind it, the number, and what is said in words."""
        quantity = r.get("valueQuantity")
        if isinstance(quantity, Mapping) and quantity.get("value") is not None:
            unit, value = quantity.get("code") or quantity.get("unit"), float(quantity["value"])
            bound = quantity.get("comparator")
            return (
                self._named(code, f"{code}//{unit}" if unit else code),
                value,
                f"{bound}{quantity['value']}" if bound else None,
            )
        for name in ("valueInteger", "valueDecimal"):
            if r.get(name) is not None:
                return code, float(r[name]), None
        if r.get("valueBoolean") is not None:
            return self._named(code, f"{code}//{'true' if r['valueBoolean'] else 'false'}"), None, None
        concept = r.get("valueCodeableConcept")
        if concept:
            answer = self._code(concept, code)
            worded = answer is not None and answer.startswith(f"{code}//TEXT//")
            return (code, None, str(concept["text"])) if worded or answer is None else (answer, None, None)
        for name in UNREAD_VALUES:
            if name in r:
                self.ledger.note(f"Observation: {name} is not read, its code is", 1)
        for name in ("valueString", "valueDateTime", "valueTime"):
            if r.get(name) is not None:
                return code, None, str(r[name])
        for name, first, between, second in (
            ("valueRange", "low", "-", "high"),
            ("valueRatio", "numerator", ":", "denominator"),
            ("valuePeriod", "start", "/", "end"),
        ):
            if isinstance(r.get(name), Mapping):
                return code, None, between.join(_shown(r[name].get(p)) for p in (first, second))
        return code, None, None

    def _named(self, code: str, longer: str) -> str:
        if code in self.names:
            self.names.setdefault(longer, self.names[code])
        return longer

    def _code(self, concept: Any, prefix: str) -> str | None:
        """The first coding of a system that is shared (`SYSTEMS`), else the first, else the text."""
        if not concept:
            return None
        codings = [c for c in concept.get("coding") or [] if c.get("code")]
        coding = next((c for c in codings if c.get("system") in SYSTEMS), next(iter(codings), None))
        if coding is None:
            words = str(concept.get("text") or "").strip()
            return f"{prefix}//TEXT//{words}" if words else None
        system = SYSTEMS.get(coding.get("system", ""), coding.get("system", "UNKNOWN"))
        code = f"{prefix}//{system}//{coding['code']}"
        if coding.get("display"):
            self.names.setdefault(code, coding["display"])
        return code


def is_absent(r: Mapping[str, Any]) -> bool:
    """Whether it says that there is no value."""
    return bool(r.get("dataAbsentReason")) and not has_value(r)


def has_value(r: Mapping[str, Any]) -> bool:
    """Whether it has a value of any type."""
    return any(name.startswith("value") for name in r)


def verification(r: Mapping[str, Any]) -> str | None:
    """How sure a diagnosis is, as a code."""
    found = r.get("verificationStatus")
    if isinstance(found, Mapping):  # a plain code in STU3
        found = next((c.get("code") for c in found.get("coding") or []), None)
    return found


def encounter_class(r: Mapping[str, Any]) -> str | None:
    """Code of an encounter's class: a Coding in R4, a list of concepts in R5."""
    found = r.get("class")
    if isinstance(found, list):
        found = found[0] if found else None
    if isinstance(found, Mapping) and "coding" in found:
        found = next(iter(found["coding"]), None)
    return found.get("code") if isinstance(found, Mapping) else None


def at(r: Mapping[str, Any], path: str) -> Any:
    """What stands under a dotted path; None where a step is absent."""
    found: Any = r
    for step in path.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def _shown(value: Any) -> str:
    return str(value.get("value", "")) if isinstance(value, Mapping) else str(value or "")
