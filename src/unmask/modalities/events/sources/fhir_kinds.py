"""Which FHIR resources make events (R4, R5 and STU3): when each was known, its code, and the statuses that happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
            "arrived",
            "triaged",
            "in-progress",
            "onleave",
            "on-hold",
            "finished",
            "discharged",
            "completed",
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
        happened={
            **_DONE,
            "intent": ("order", "original-order", "reflex-order", "filler-order", "instance-order"),
        },
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
