"""FHIR: when a fact was known, what did not happen, whose it is, and that nothing goes missing without a word."""

from __future__ import annotations

import gzip
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from unmask.errors import UserError
from unmask.modalities.events.records.meds import read_meds
from unmask.modalities.events.sources.convert import convert

CODE = {"coding": [{"system": "http://snomed.info/sct", "code": "1", "display": "One"}]}
LOINC = {"coding": [{"system": "http://loinc.org", "code": "2", "display": "Two"}]}
A = {"subject": {"reference": "Patient/A"}}
DRUG = {"medicationCodeableConcept": CODE, "authoredOn": "2020-01-01T08:00:00Z", **A}


def events(folder: Path, *resources: dict[str, Any], **options: Any) -> tuple[list[tuple], dict[str, Any]]:
    """(subject, time, code, value) of ndjson with these resources, and what was found."""
    path = folder / "all.ndjson"
    path.write_text("\n".join(json.dumps(r) for r in resources))
    found = convert(path, folder / "m", **options)
    whole = pl.read_parquet(folder / "m" / "data" / "*.parquet")
    return whole.select("subject_id", "time", "code", "numeric_value").rows(), found


PATIENT = {"resourceType": "Patient", "id": "A", "gender": "female"}


@pytest.mark.parametrize(
    ("resource", "time"),
    [
        (
            {"resourceType": "Condition", "code": CODE, "onsetDateTime": "2010-01-01", "recordedDate": "2020-05-06"},
            datetime(2020, 5, 7, 11, 59, 59),
        ),
        (
            {"resourceType": "Condition", "code": CODE, "onsetDateTime": "2010-01-01", "assertedDate": "2020"},
            datetime(2021, 1, 1, 11, 59, 59),
        ),
        (
            {
                "resourceType": "Observation",
                "code": LOINC,
                "effectiveDateTime": "2020-01-01T08:00:00Z",
                "issued": "2020-01-01T14:00:00+02:00",
            },
            datetime(2020, 1, 1, 12),
        ),
        (
            {
                "resourceType": "Procedure",
                "code": CODE,
                "performedPeriod": {"start": "2020-01-01T08:00:00Z", "end": "2020-01-01T09:00:00Z"},
            },
            datetime(2020, 1, 1, 9),
        ),
        (
            {
                "resourceType": "Procedure",
                "code": CODE,
                "occurrenceDateTime": "2020-01-01T08:00:00Z",
                "recorded": "2020-01-02T08:00:00Z",
            },
            datetime(2020, 1, 2, 8),
        ),
        (
            {
                "resourceType": "Immunization",
                "vaccineCode": CODE,
                "occurrenceDateTime": "2020-01-01",
                "recorded": "2020-02-01",
            },
            datetime(2020, 2, 2, 11, 59, 59),
        ),
        (
            {"resourceType": "Condition", "code": CODE, "meta": {"lastUpdated": "2021-01-01T00:00:00Z"}},
            datetime(2021, 1, 1),
        ),
    ],
)
def test_facts_stand_where_they_were_known(tmp_path: Path, resource: dict[str, Any], time: datetime):
    rows, found = events(tmp_path, PATIENT, {**resource, **A})
    assert [r[1] for r in rows] == [None, time]
    if "meta" in resource:
        assert found["notes"] == {"Condition at meta.lastUpdated, for want of recordedDate": 1}


def test_an_onset_is_taken_only_where_one_asks_for_it(tmp_path: Path):
    ill = {"resourceType": "Condition", "code": CODE, "onsetDateTime": "2010-01-01", **A}
    _, found = events(tmp_path, PATIENT, ill)
    assert found["rejected"] == {"Condition with an onset alone, and no encounter that ended": 1}
    (tmp_path / "b").mkdir()
    rows, found = events(tmp_path / "b", PATIENT, ill, onset=True)
    assert rows[1][1] == datetime(2010, 1, 2, 11, 59, 59)
    assert found["notes"]["Condition at onsetDateTime, for want of recordedDate"] == 1


def _verified(status: str) -> dict[str, Any]:
    return {"verificationStatus": {"coding": [{"code": status}]}, "recordedDate": "2020-01-01", "code": CODE}


@pytest.mark.parametrize(
    ("resource", "reason"),
    [
        ({"resourceType": "Condition", **_verified("refuted")}, "Condition: verificationStatus refuted"),
        (
            {"resourceType": "Condition", **_verified("entered-in-error")},
            "Condition: verificationStatus entered-in-error",
        ),
        (
            {"resourceType": "Observation", "status": "entered-in-error", "code": LOINC, "issued": "2020-01-01"},
            "Observation: status entered-in-error",
        ),
        (
            {"resourceType": "Observation", "code": LOINC, "issued": "2020-01-01", "dataAbsentReason": CODE},
            "Observation: no value (dataAbsentReason)",
        ),
        (
            {"resourceType": "Immunization", "status": "not-done", "vaccineCode": CODE, "recorded": "2020-01-01"},
            "Immunization: status not-done",
        ),
        (
            {"resourceType": "Immunization", "notGiven": True, "vaccineCode": CODE, "date": "2020-01-01"},
            "Immunization: notGiven true",
        ),
        (
            {"resourceType": "Procedure", "status": "not-done", "code": CODE, "performedDateTime": "2020-01-01"},
            "Procedure: status not-done",
        ),
        (
            {"resourceType": "Procedure", "notDone": True, "code": CODE, "performedDateTime": "2020-01-01"},
            "Procedure: notDone true",
        ),
        ({"resourceType": "MedicationRequest", "status": "cancelled", **DRUG}, "MedicationRequest: status cancelled"),
        ({"resourceType": "MedicationRequest", "status": "unknown", **DRUG}, "MedicationRequest: status unknown"),
        ({"resourceType": "MedicationRequest", "doNotPerform": True, **DRUG}, "MedicationRequest: doNotPerform true"),
        ({"resourceType": "MedicationRequest", "intent": "proposal", **DRUG}, "MedicationRequest: intent proposal"),
        (
            {"resourceType": "MedicationStatement", "taken": "n", **DRUG, "dateAsserted": "2020-01-01"},
            "MedicationStatement: taken n",
        ),
        (
            {"resourceType": "Encounter", "status": "planned", "class": {"code": "AMB"}, "period": {"start": "2020"}},
            "Encounter: status planned",
        ),
        (
            {
                "resourceType": "Observation",
                "code": LOINC,
                "issued": "2020-01-01",
                "modifierExtension": [{"url": "no"}],
            },
            "Observation with a modifierExtension, which may change its meaning",
        ),
    ],
)
def test_what_did_not_happen_is_no_event(tmp_path: Path, resource: dict[str, Any], reason: str):
    rows, found = events(tmp_path, PATIENT, {**resource, **A})
    assert found["rejected"] == {reason: 1}
    assert len(rows) == 1


def test_a_prescription_stopped_later_was_made(tmp_path: Path):
    rows, found = events(tmp_path, PATIENT, {"resourceType": "MedicationRequest", "status": "stopped", **DRUG})
    assert rows[1][2] == "MEDICATION//SNOMED//1"
    assert not found["rejected"]


def test_a_diagnosis_in_doubt_says_so(tmp_path: Path):
    rows, _ = events(tmp_path, PATIENT, {"resourceType": "Condition", **_verified("differential"), **A})
    assert rows[1][2] == "CONDITION//SNOMED//1//differential"


def test_values_of_every_kind_and_units_are_kept(tmp_path: Path):
    values: list[dict[str, Any]] = [
        {"valueQuantity": {"value": 90, "unit": "mg/dL"}},
        {"valueQuantity": {"value": 5, "code": "mmol/L"}},
        {"valueQuantity": {"value": 3, "comparator": "<"}},
        {"valueInteger": 4},
        {"valueString": "cloudy"},
        {"valueBoolean": True},
        {"valueCodeableConcept": CODE},
        {"valueCodeableConcept": {"text": "blue"}},
        {"valueRatio": {"numerator": {"value": 1}, "denominator": {"value": 128}}},
        {"component": [{"code": LOINC, "valueInteger": 7}], "valueString": "both"},
    ]
    about = {"resourceType": "Observation", "code": LOINC, **A}
    made = [about | v | {"issued": f"2020-01-01T08:00:{i:02}Z"} for i, v in enumerate(values)]
    _, found = events(tmp_path, PATIENT, *made)
    whole = pl.read_parquet(tmp_path / "m" / "data" / "*.parquet").filter(pl.col("time").is_not_null())
    assert whole.select("code", "numeric_value", "text_value").rows() == [
        ("LAB//LOINC//2//mg/dL", 90, None),
        ("LAB//LOINC//2//mmol/L", 5, None),
        ("LAB//LOINC//2", 3, "<3"),
        ("LAB//LOINC//2", 4, None),
        ("LAB//LOINC//2", None, "cloudy"),
        ("LAB//LOINC//2//true", None, None),
        ("LAB//LOINC//2//SNOMED//1", None, None),
        ("LAB//LOINC//2", None, "blue"),
        ("LAB//LOINC//2", None, "1:128"),
        ("LAB//LOINC//2", 7, None),
        ("LAB//LOINC//2", None, "both"),
    ]
    assert found["rejected_rows"] == 0
    named = dict(pl.read_parquet(tmp_path / "m" / "metadata" / "codes.parquet").rows())
    assert named["LAB//LOINC//2//mg/dL"] == "Two"


def bundle(folder: Path, *entries: tuple[str, dict[str, Any]]) -> Path:
    content = {"resourceType": "Bundle", "entry": [{"fullUrl": url, "resource": r} for url, r in entries]}
    (folder / "b.json").write_text(json.dumps(content))
    return folder / "b.json"


def test_versions_of_a_patient_are_of_that_patient(tmp_path: Path):
    ill = {"resourceType": "Observation", "code": LOINC, "issued": "2020-01-01"}
    events(tmp_path, *({**ill, "subject": {"reference": f"Patient/{p}/_history/1"}} for p in "AB"), PATIENT)
    assert len(read_meds(tmp_path / "m")) == 2
    ids = pl.read_parquet(tmp_path / "m" / "metadata" / "source_ids.parquet")
    assert ids["source_id"].to_list() == ["A", "B"]


def test_a_patient_whose_address_differs_from_its_id_is_one(tmp_path: Path):
    about = {"code": LOINC, "issued": "2020-01-01", "subject": {"reference": "urn:uuid:f00"}}
    seen = {"resourceType": "Observation", **about, "encounter": {"reference": "urn:uuid:e00"}}
    visit = {"resourceType": "Encounter", "id": "E", "class": {"code": "AMB"}, "period": {"start": "2020-01-01"}, **A}
    path = bundle(tmp_path, ("urn:uuid:f00", PATIENT), ("urn:uuid:o", seen), ("urn:uuid:e00", visit))
    convert(path, tmp_path / "m")
    found = read_meds(tmp_path / "m")
    assert len(found) == 1
    assert found.visit is not None
    assert found.visit[0] == -1
    assert found.visit[1] == found.visit[2] > 0


def test_one_id_on_two_servers_is_two_patients(tmp_path: Path):
    entries = []
    for server in ("http://one/fhir", "http://two/fhir"):
        seen = {"resourceType": "Observation", "code": LOINC, "issued": "2020-01-01", **A}
        entries += [(f"{server}/Patient/A", PATIENT), (f"{server}/Observation/1", seen)]
    convert(bundle(tmp_path, *entries), tmp_path / "m")
    found = read_meds(tmp_path / "m")
    assert [s.stop - s.start for s in (found.before(i, None) for i in range(len(found)))] == [2, 2]


def test_a_patient_given_again_counts_once(tmp_path: Path):
    later = {**PATIENT, "deceasedDateTime": "2021-01-01T10:00:00Z"}
    rows, found = events(tmp_path, PATIENT, later, PATIENT, {**PATIENT, "gender": "male"})
    assert [r[2] for r in rows] == ["GENDER//FEMALE", "MEDS_DEATH"]
    assert found["rejected"] == {"Patient given again": 2, "Patient given again, with another sex": 1}


def person(meta: dict[str, str], **more: Any) -> dict[str, Any]:
    return {**PATIENT, "meta": meta, **more}


@pytest.mark.parametrize("turn", [1, -1])
@pytest.mark.parametrize(
    "metas",
    [
        ({"versionId": "2"}, {"versionId": "10"}),
        ({"lastUpdated": "2020-01-05T10:00:00+02:00"}, {"lastUpdated": "2020-01-05T09:00:00Z"}),
    ],
)
def test_the_latest_version_of_a_patient_counts(tmp_path: Path, metas: tuple[dict[str, str], ...], turn: int):
    old = person(metas[0], birthDate="1950-01-01", gender="male", deceasedDateTime="2021-01-01T10:00:00Z")
    new = person(metas[1], birthDate="1960-01-01")
    rows, found = events(tmp_path, *(old, new, PATIENT)[::turn])
    assert [(r[1], r[2]) for r in rows] == [(None, "GENDER//FEMALE"), (datetime(1960, 1, 1), "MEDS_BIRTH")]
    again = {"Patient given again": 1} if turn == 1 else {}
    assert found["rejected"] == {"Patient: another version of it counts": 1} | again


def test_a_patient_with_two_births_and_no_version_keeps_the_first_and_is_counted(tmp_path: Path):
    two = [{**PATIENT, "birthDate": day} for day in ("1950-01-01", "1960-01-01")]
    rows, found = events(tmp_path, *two)
    assert [r[1] for r in rows if r[2] == "MEDS_BIRTH"] == [datetime(1950, 1, 1)]
    assert found["rejected"] == {"Patient given again, with another birth": 1, "Patient given again": 1}


def test_births_and_deaths_that_stand_for_none_are_said(tmp_path: Path):
    rows, found = events(tmp_path, {**PATIENT, "birthDate": "1900-01-01", "deceasedDateTime": "9999-12-31"})
    assert [r[2] for r in rows] == ["GENDER//FEMALE", "MEDS_BIRTH"]
    assert found["notes"]["births on 1900-01-01, which may stand for none"] == 1
    assert found["notes"]["Patient: a death that stands for none, left out"] == 1


def test_shapes_of_r5_are_read(tmp_path: Path):
    visit = {
        "resourceType": "Encounter",
        "class": [{"coding": [{"code": "IMP"}]}],
        "status": "completed",
        "actualPeriod": {"start": "2020-01-01T08:00:00Z", "end": "2020-01-02T08:00:00Z"},
    }
    drug = {"resourceType": "MedicationRequest", "medication": {"concept": CODE}, "authoredOn": "2020-01-01"}
    other = {**drug, "medication": {"reference": {"reference": "Medication/m"}}}
    named = {"resourceType": "Medication", "id": "m", "code": LOINC}
    rows, found = events(tmp_path, PATIENT, *({**r, **A} for r in (visit, drug, other)), named)
    assert {r[2] for r in rows[1:]} == {
        "ENCOUNTER//IMP",
        "ENCOUNTER_END//IMP",
        "MEDICATION//SNOMED//1",
        "MEDICATION//LOINC//2",
    }
    assert found["rejected"] == {"resource Medication makes no event": 1}


def test_elements_that_are_not_read_are_named(tmp_path: Path):
    dose = {"text": "2 tablets", "dose": {"value": 2}}
    given = {"resourceType": "MedicationAdministration", "medicationCodeableConcept": CODE, "dosage": dose, **A}
    seen = {"resourceType": "Observation", "code": LOINC, "valueInteger": 1, "interpretation": [CODE], **A}
    plain = {"resourceType": "Procedure", "code": CODE, "status": "completed", "id": "p", "_status": {}, **A}
    _, found = events(tmp_path, PATIENT, *({**r, "meta": {"lastUpdated": "2020-01-01"}} for r in (given, seen, plain)))
    assert found["unused"] == {
        "MedicationAdministration": "elements not read: dosage",
        "Observation": "elements not read: interpretation",
    }


def test_a_bad_line_is_rejected_and_the_run_goes_on(tmp_path: Path):
    folder = tmp_path / "bulk"
    folder.mkdir()
    seen = {"resourceType": "Observation", "code": LOINC, "issued": "2020-01-01", **A}
    (folder / "Observation.ndjson.gz").write_bytes(gzip.compress(f"{json.dumps(seen)}\n{{broken\n".encode()))
    (folder / "Patient.ndjson").write_text(json.dumps(PATIENT))
    (folder / "half.json").write_text("{")
    (folder / "notes.xml").write_text("<a/>")
    found = convert(folder, tmp_path / "m")
    assert (found["events"], found["rejected"]) == (2, {"not a FHIR resource": 2})
    said = (tmp_path / "m" / "rejected.jsonl").read_text()
    assert "Observation.ndjson.gz:2" in said
    assert "half.json" in said
    assert list(found["unused"]) == ["notes.xml"]


def test_a_date_without_a_zone_is_never_early(tmp_path: Path):
    """The day ends last at UTC-12: a result of the evening there does not come after the death of that day."""
    dead = {**PATIENT, "deceasedDateTime": "2020-01-10", "birthDate": "1950-01-01"}
    late = {"resourceType": "Observation", "code": LOINC, "effectiveDateTime": "2020-01-10T22:00:00-05:00", **A}
    rows, _ = events(tmp_path, dead, late)
    known = {code: time for _, time, code, _ in rows}
    assert known["MEDS_DEATH"] == datetime(2020, 1, 11, 11, 59, 59)
    assert known["LAB//LOINC//2"] == datetime(2020, 1, 11, 3)
    assert known["MEDS_BIRTH"] == datetime(1950, 1, 1)


def lab(number: int, version: str | None, value: float, **more: Any) -> dict[str, Any]:
    meta = {} if version is None else {"meta": {"versionId": version}}
    about = {"effectiveDateTime": "2020-01-05T08:00:00Z", "code": LOINC, "valueQuantity": {"value": value}}
    return {"resourceType": "Observation", "id": f"o{number}", **meta, **about, **A, **more}


def test_the_latest_version_of_a_resource_counts(tmp_path: Path):
    rows, found = events(
        tmp_path,
        PATIENT,
        lab(1, "2", 180),
        lab(1, "1", 100),
        lab(2, "1", 5),
        lab(2, "1", 5),
        lab(3, "9", 1),
        lab(3, "10", 2, status="entered-in-error"),
        lab(4, None, 7, meta={"lastUpdated": "2020-01-05T09:00:00Z"}),
        lab(4, None, 8, meta={"lastUpdated": "2020-01-05T10:00:00+02:00"}),
    )
    assert sorted(r[3] for r in rows if r[3] is not None) == [5, 7, 180]
    assert found["rejected"] == {
        "Observation: another version of it counts": 3,
        "Observation: given again": 1,
        "Observation: status entered-in-error": 1,
    }
    assert found["rows"] == 9
    assert found["kept_rows"] == 4


def test_what_a_history_deletes_is_no_event(tmp_path: Path):
    made = (PATIENT, lab(1, "1", 5), lab(2, "1", 6))
    entries = [{"fullUrl": f"http://s/fhir/{r['resourceType']}/{r['id']}", "resource": r} for r in made]
    deleted = {"fullUrl": "http://s/fhir/Observation/o1", "request": {"method": "DELETE", "url": "Observation/o1"}}
    (tmp_path / "h.json").write_text(
        json.dumps({"resourceType": "Bundle", "type": "history", "entry": [*entries, deleted]})
    )
    found = convert(tmp_path / "h.json", tmp_path / "m")
    values = pl.read_parquet(tmp_path / "m" / "data" / "*.parquet")["numeric_value"].drop_nulls().to_list()
    assert values == [6]
    assert found["rejected"] == {"Observation: deleted": 1}


def history(folder: Path, *entries: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """(codes, what was found) of a history bundle of these resources and deletions."""
    whole = [
        {"fullUrl": f"http://s/fhir/{one['resourceType']}/{one['id']}", "resource": one} if "id" in one else one
        for one in entries
    ]
    (folder / "h.json").write_text(json.dumps({"resourceType": "Bundle", "type": "history", "entry": whole}))
    found = convert(folder / "h.json", folder / "m")
    return pl.read_parquet(folder / "m" / "data" / "*.parquet")["code"].to_list(), found


def deletion(url: str, version: int | None = None, time: str | None = None) -> dict[str, Any]:
    response = {"etag": f'W/"{version}"'} if version is not None else {}
    return {
        "fullUrl": f"http://s/fhir/{url}",
        "request": {"method": "DELETE", "url": url},
        "response": response | ({"lastModified": time} if time is not None else {}),
    }


def test_a_patient_that_a_history_deletes_is_not_read_and_nothing_said_of_them_either(tmp_path: Path):
    other = {**PATIENT, "id": "B", "gender": "male"}
    theirs = {**lab(2, "1", 6), "subject": {"reference": "Patient/B"}}
    codes, found = history(tmp_path, deletion("Patient/A"), PATIENT, lab(1, "1", 5), other, theirs)
    assert sorted(codes) == ["GENDER//MALE", "LAB//LOINC//2"]
    assert found["rejected"] == {"Patient: deleted": 1, "Observation: its Patient is deleted": 1}


@pytest.mark.parametrize(
    ("gone", "later"),
    [
        (deletion("Patient/A", version=2), {"versionId": "3"}),
        (deletion("Patient/A", time="2020-01-02T08:00:00Z"), {"lastUpdated": "2020-01-02T12:00:00+02:00"}),
    ],
)
def test_what_is_written_again_after_its_deletion_is_read(tmp_path: Path, gone: dict[str, Any], later: dict[str, str]):
    early = {**PATIENT, "meta": {"versionId": "1", "lastUpdated": "2020-01-01T08:00:00Z"}}
    codes, found = history(tmp_path, {**PATIENT, "gender": "male", "meta": later}, gone, early, lab(1, "1", 5))
    assert sorted(codes) == ["GENDER//MALE", "LAB//LOINC//2"]
    assert found["rejected"] == {"Patient: deleted": 1}


def test_a_result_is_not_known_before_its_sample(tmp_path: Path):
    rows, found = events(tmp_path, PATIENT, lab(1, "1", 5, issued="2019-01-01T00:00:00Z"))
    assert rows[-1][1] == datetime(2020, 1, 5, 8)
    assert found["notes"]["Observation at effectiveDateTime, which is after issued"] == 1


def test_a_medication_may_stand_in_another_file(tmp_path: Path):
    drug = {"resourceType": "Medication", "id": "m", "code": CODE}
    order = {"resourceType": "MedicationRequest", "authoredOn": "2020-01-01T08:00:00Z", **A}
    order["medicationReference"] = {"reference": "Medication/m"}
    (tmp_path / "in").mkdir()
    for name, resource in (("a", order), ("b", drug)):
        bundle = {"resourceType": "Bundle", "entry": [{"resource": PATIENT}, {"resource": resource}]}
        (tmp_path / "in" / f"{name}.json").write_text(json.dumps(bundle))
    convert(tmp_path / "in", tmp_path / "m")
    assert "MEDICATION//SNOMED//1" in pl.read_parquet(tmp_path / "m" / "data" / "*.parquet")["code"].to_list()


def test_dates_that_stand_for_none_are_rejected(tmp_path: Path):
    open_end = {"resourceType": "Condition", "code": CODE, "recordedDate": "9999-12-31", **A}
    last = {**open_end, "recordedDate": "9999-12-31T23:59:59-05:00"}
    _, found = events(tmp_path, PATIENT, open_end, last, lab(1, "1", 5))
    assert found["rejected"] == {
        "time stands for none: 9999-12-31": 1,
        "Condition without a time that says when it was known": 1,
    }


def export(folder: Path, **files: str | list[dict[str, Any]]) -> Path:
    """A bulk export: ndjson by kind, `deleted` below a folder of that name."""
    for name, lines in files.items():
        path = folder / ("deleted/Bundle.ndjson" if name == "deleted" else f"{name}.ndjson")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(json.dumps(line) for line in lines))
    return folder


def transaction(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"resourceType": "Bundle", "type": "transaction", "entry": list(entries)}


def test_what_a_bulk_export_deletes_is_no_event(tmp_path: Path):
    other = {**PATIENT, "id": "B"}
    theirs = {**lab(3, None, 7), "subject": {"reference": "Patient/B"}}
    gone = [{"request": {"method": "DELETE", "url": url}} for url in ("Observation/o2", "Patient/B", "Patient?name=x")]
    folder = export(
        tmp_path / "e",
        Patient=[PATIENT, other],
        Observation=[lab(1, None, 5), lab(2, None, 6), theirs],
        deleted=[transaction(gone[0]), transaction(*gone[1:])],
    )
    found = convert(folder, tmp_path / "m")
    assert pl.read_parquet(tmp_path / "m" / "data" / "*.parquet")["numeric_value"].to_list() == [None, 5]
    assert found["rejected"] == {
        "Patient: deleted": 1,
        "Observation: deleted": 1,
        "Observation: its Patient is deleted": 1,
        "a deletion that does not name a resource": 1,
    }


def test_a_deletion_with_an_address_is_of_what_has_none(tmp_path: Path):
    gone = {"fullUrl": "https://s/fhir/Observation/o2", "request": {"method": "DELETE", "url": "Observation/o2"}}
    folder = export(
        tmp_path / "e", Patient=[PATIENT], Observation=[lab(1, None, 5), lab(2, None, 6)], deleted=[transaction(gone)]
    )
    found = convert(folder, tmp_path / "m")
    assert found["rejected"] == {"Observation: deleted": 1}


def test_an_address_may_begin_with_a_slash(tmp_path: Path):
    deletion = {"request": {"method": "DELETE", "url": "/Observation/o2"}}
    rooted = {**lab(1, None, 5), "subject": {"reference": f"/Patient/{PATIENT['id']}"}}
    folder = export(
        tmp_path / "e", Patient=[PATIENT], Observation=[rooted, lab(2, None, 6)], deleted=[transaction(deletion)]
    )
    assert convert(folder, tmp_path / "m")["rejected"] == {"Observation: deleted": 1}
    assert pl.read_parquet(tmp_path / "m" / "data" / "*.parquet")["subject_id"].n_unique() == 1


def test_a_line_may_be_a_bundle(tmp_path: Path):
    people = [{**PATIENT, "id": name} for name in "ABC"]
    results = [{**lab(i, None, i), "subject": {"reference": f"urn:uuid:{p['id']}"}} for i, p in enumerate(people)]
    lines = [
        transaction({"fullUrl": f"urn:uuid:{p['id']}", "resource": p}, {"resource": r})
        for p, r in zip(people, results, strict=True)
    ]
    rows, found = events(tmp_path, *lines)
    assert sorted((r[0], r[3]) for r in rows if r[3] is not None) == [(0, 0), (1, 1), (2, 2)]
    assert found["rejected"] == {}
    assert found["tables"]["Patient"]["rows"] == 3


def test_lines_that_are_no_resource_are_named(tmp_path: Path):
    _, found = events(tmp_path, PATIENT, {"id": "x"}, {"resourceType": None}, transaction({"resource": {"id": "y"}}))
    assert found["rejected"] == {"not a FHIR resource": 3}
    assert set(found["tables"]) == {"Patient"}
    said = [json.loads(line)["row"] for line in (tmp_path / "m" / "rejected.jsonl").read_text().splitlines()]
    assert [Path(row["where"]).name for row in said] == ["all.ndjson:2", "all.ndjson:3", "all.ndjson:4 entry 0"]


def linked(name: str, kind: str, other: str, **more: Any) -> dict[str, Any]:
    return {**PATIENT, "id": name, "link": [{"other": {"reference": f"Patient/{other}"}, "type": kind}], **more}


@pytest.mark.parametrize(
    "people",
    [
        [linked("A", "replaced-by", "B"), linked("B", "replaces", "A", birthDate="1950-01-01")],
        [linked("A", "replaced-by", "B"), {**PATIENT, "id": "B", "birthDate": "1950-01-01"}],
        [PATIENT, linked("B", "replaces", "A", birthDate="1950-01-01")],
        [linked("A", "replaced-by", "M"), linked("M", "replaced-by", "B"), {**PATIENT, "id": "B"}],
        [  # an older version that said nothing of it
            linked("A", "replaced-by", "B", meta={"versionId": "2"}),
            {**PATIENT, "meta": {"versionId": "1"}},
            {**PATIENT, "id": "B"},
        ],
    ],
)
def test_a_merged_patient_is_one(tmp_path: Path, people: list[dict[str, Any]]):
    theirs = {**lab(2, None, 6), "subject": {"reference": "Patient/B"}}
    rows, found = events(tmp_path, lab(1, None, 5), *people, theirs)
    assert len({r[0] for r in rows}) == 1
    assert sorted(r[3] for r in rows if r[3] is not None) == [5, 6]
    assert sum(code.startswith("GENDER") for _, _, code, _ in rows) == 1
    assert found["notes"]["resources of a patient who was replaced, under the one who replaces them"] == 1


def test_a_merge_that_was_taken_back_is_none(tmp_path: Path):
    again = {**PATIENT, "meta": {"versionId": "3"}}
    once = linked("A", "replaced-by", "B", meta={"versionId": "2"})
    rows, _ = events(tmp_path, again, once, {**PATIENT, "id": "B"}, lab(1, None, 5))
    assert len({r[0] for r in rows}) == 2


@pytest.mark.parametrize(
    ("people", "message"),
    [
        ([linked("A", "replaced-by", "B"), linked("B", "replaced-by", "A")], "leads back"),
        ([linked("A", "replaced-by", "B"), linked("C", "replaces", "A")], "Patient/B and by Patient/C"),
    ],
)
def test_merges_that_lead_to_no_one_patient_are_refused(tmp_path: Path, people: list[dict[str, Any]], message: str):
    with pytest.raises(UserError, match=message):
        events(tmp_path, *people)


def test_a_patient_merged_into_one_that_is_deleted_is_not_read(tmp_path: Path):
    gone = transaction({"request": {"method": "DELETE", "url": "Patient/B"}})
    people = [linked("A", "replaced-by", "B"), {**PATIENT, "id": "B"}, {**PATIENT, "id": "C"}]
    rows, found = events(tmp_path, *people, lab(1, None, 5), gone)
    assert [code for _, _, code, _ in rows] == ["GENDER//FEMALE"]
    assert found["rejected"]["Observation: its Patient is deleted"] == 1


@pytest.mark.parametrize("born", ["2019-11-04T23:00:00.000Z", "2019-11-04T00:30:00+09:00", "2019-11-04"])
def test_a_birth_stands_at_the_start_of_its_day(tmp_path: Path, born: str):
    rows, _ = events(tmp_path, {**PATIENT, "birthDate": born})
    assert {code: time for _, time, code, _ in rows}["MEDS_BIRTH"] == datetime(2019, 11, 4)


@pytest.mark.parametrize(
    ("more", "time"),
    [
        ({"onsetDateTime": "2020-01-05T10:00:00Z"}, datetime(2020, 1, 6, 9)),
        ({"onsetDateTime": "2020-01-08T10:00:00Z"}, datetime(2020, 1, 8, 10)),  # not before it began
        ({"onsetDateTime": "2020-01-05", "recordedDate": "2020-01-05T12:00:00Z"}, datetime(2020, 1, 5, 12)),
        ({}, datetime(2020, 1, 6, 9)),
    ],
)
def test_a_condition_without_a_time_was_known_when_its_encounter_ended(
    tmp_path: Path, more: dict[str, Any], time: datetime
):
    period = {"start": "2020-01-05T08:00:00Z", "end": "2020-01-06T09:00:00Z"}
    stay = {"resourceType": "Encounter", "id": "e", "class": {"code": "IMP"}, "period": period, **A}
    ill = {"resourceType": "Condition", "code": CODE, "encounter": {"reference": "Encounter/e"}, **A, **more}
    rows, found = events(tmp_path, PATIENT, ill, stay)
    assert {code: when for _, when, code, _ in rows}["CONDITION//SNOMED//1"] == time
    told = found["notes"].get("Condition at the end of its encounter, for want of recordedDate")
    assert told == (None if "recordedDate" in more else 1)


def test_times_without_a_zone_are_counted(tmp_path: Path):
    times = ("2020-05-28T10:00:00", "2020-05-28T10:00:00+09:00", "2020-05-28")
    _, found = events(tmp_path, PATIENT, *({**lab(i, None, i), "effectiveDateTime": t} for i, t in enumerate(times)))
    assert found["notes"]["times without a zone, taken as UTC"] == 1


def test_race_and_ethnicity_of_us_core_are_facts(tmp_path: Path):
    def said(name: str, *codes: str) -> dict[str, Any]:
        parts = [{"url": "ombCategory", "valueCoding": {"code": c, "display": f"is {c}"}} for c in codes]
        return {"url": f"http://hl7.org/fhir/us/core/StructureDefinition/us-core-{name}", "extension": parts}

    extensions = [said("race", "2054-5", "2106-3"), said("ethnicity", "2186-5"), {"url": "else"}]
    extensions.append({"url": "x/us-core-race", "extension": [{"url": "text", "valueString": "Other"}]})
    rows, _ = events(tmp_path, {**PATIENT, "extension": extensions}, {**PATIENT, "extension": extensions[:1]})
    assert sorted(r[2] for r in rows) == [
        "ETHNICITY//2186-5",
        "GENDER//FEMALE",
        "RACE//2054-5",
        "RACE//2106-3",
        "RACE//Other",
    ]
    assert all(r[1] is None for r in rows)


def test_language_marital_status_and_insurance_are_facts(tmp_path: Path):
    spoken = [{"language": {"coding": [{"code": c}]}, "preferred": c == "es"} for c in ("en-US", "es")]
    patient = {**PATIENT, "communication": spoken, "maritalStatus": {"coding": [{"code": "M", "display": "Married"}]}}
    cover = {"resourceType": "Coverage", "id": "c", "status": "active", "beneficiary": {"reference": "Patient/A"}}
    cover |= {"period": {"start": "2020-01-01T00:00:00Z"}, "payor": [{"display": "Cigna"}]}
    typed = {**cover, "id": "d", "type": {"coding": [{"system": "https://nahdo.org/sopt", "code": "1"}]}}
    rows, found = events(tmp_path, patient, cover, typed, {**cover, "id": "e", "status": "entered-in-error"})
    facts = {r[2]: r[1] for r in rows}
    assert {"LANGUAGE//es", "MARITAL_STATUS//M"} < facts.keys()
    assert "LANGUAGE//en-US" not in facts
    assert facts["INSURANCE//TEXT//Cigna"] == facts["INSURANCE//https://nahdo.org/sopt//1"] == datetime(2020, 1, 1)
    assert found["rejected"] == {"Coverage: status entered-in-error": 1}


def test_a_standard_coding_comes_before_a_local_one(tmp_path: Path):
    local = {"system": "urn:oid:1.2.840.114350", "code": "MY-GLU", "display": "Glu"}
    both = lab(1, None, 5)
    both["code"] = {"coding": [local, *LOINC["coding"]]}
    alone = lab(2, None, 6)
    alone["code"] = {"coding": [local]}
    rows, _ = events(tmp_path, PATIENT, both, alone)
    codes = {r[2] for r in rows if r[2].startswith("LAB")}
    assert codes == {"LAB//LOINC//2", "LAB//urn:oid:1.2.840.114350//MY-GLU"}


def test_patients_without_a_resource_of_their_own_are_counted_and_named(tmp_path: Path):
    """A Patient may come behind what is said of it."""
    there = {"resourceType": "MedicationRequest", **DRUG}
    others = [there | {"subject": {"reference": f"Patient/{name}"}} for name in ("B", "C", "B", "D", "E")]
    _, found = events(tmp_path, there, *others, PATIENT)
    said = {what: count for what, count in found["notes"].items() if what.startswith("subjects")}
    place = tmp_path / "all.ndjson"
    assert said == {
        "subjects without a Patient resource, so of unknown birth and sex; the first: "
        f"B in {place}:2; C in {place}:3; D in {place}:5": 4
    }


def test_an_encounter_that_ends_before_it_begins_and_a_birth_that_cannot_be_read_are_counted(tmp_path: Path):
    def stay(name: str, start: str, end: str) -> dict[str, Any]:
        kind = {"resourceType": "Encounter", "id": name, "status": "finished", "class": {"code": name}}
        return {**kind, "subject": A["subject"], "period": {"start": start, "end": end}}

    early = stay("IMP", "2020-01-05T10:00:00Z", "2020-01-03T10:00:00Z")
    dated = stay("AMB", "2020-02-05", "2020-02-05T10:00:00Z")
    rows, found = events(tmp_path, {**PATIENT, "birthDate": "03.02.1950"}, early, dated)
    known = {r[2]: r[1] for r in rows}
    assert known["ENCOUNTER_END//IMP"] == known["ENCOUNTER//IMP"] == datetime(2020, 1, 5, 10)
    assert known["ENCOUNTER_END//AMB"] == datetime(2020, 2, 5, 10)
    assert found["notes"]["Encounter: an end before its begin, taken to be there"] == 1
    assert found["notes"]["Patient: a birthDate that cannot be read, left out"] == 1
