"""What a FHIR resource says: its code, and the value, coded answer or words that come with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from unmask.modalities.events.sources.fhir_kinds import CONFIRMED, SYSTEMS, Kind, Scope, name_of
from unmask.modalities.events.sources.rows import Ledger

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

    def race(self, patient: Mapping[str, Any]) -> Iterator[str]:
        """Codes of race and ethnicity, as the extensions of US Core say them: RACE//2054-5 (OMB's omb), or their
        words."""
        for extension in patient.get("extension") or []:
            prefix = US_CORE.get(str(at(extension, "url")).rsplit("/", 1)[-1])
            if prefix is None:
                continue
            parts = {str(at(part, "url")): part for part in extension.get("extension") or []}
            omb = [part for part in extension.get("extension") or [] if at(part, "url") == "ombCategory"]
            codings = [at(part, "valueCoding") for part in omb] or at(extension, "valueCodeableConcept.coding") or []
            for coding in codings:
                code = f"{prefix}//{coding['code']}"
                if coding.get("display"):
                    self.names[code] = str(coding["display"])
                yield code
            words = at(parts.get("text") or {}, "valueString")
            if words and not codings:
                yield f"{prefix}//{words}"

    def _concept(self, r: Mapping[str, Any], path: str, scope: Scope) -> Any:
        """A CodeableConcept, the first of several, or that of the Medication that a reference leads to."""
        found = at(r, path)
        if path == "type" and isinstance(found, list):
            found = found[0] if found else None
        if isinstance(found, Mapping) and "reference" in found:
            url = str(found["reference"])
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
        """The first coding, else the text."""
        if not concept:
            return None
        coding = next((c for c in concept.get("coding") or [] if c.get("code")), None)
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
