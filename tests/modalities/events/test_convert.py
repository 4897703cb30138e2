"""Raw extracts to MEDS: every row is an event or counted under its reason."""

from __future__ import annotations

import gzip
import json
import zipfile
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from event_data import DAY

from unmask.errors import UserError
from unmask.modalities.events.records import shards
from unmask.modalities.events.records.meds import STATIC, read_meds
from unmask.modalities.events.sources.convert import convert


def reconciled(found: dict) -> None:
    """Where a row has one event, the reasons account for every row that gave none."""
    assert found["kept_rows"] > 0
    assert sum(found["rejected"].values()) == found["rejected_rows"] == found["rows"] - found["kept_rows"]


def end_of(*day: int) -> datetime:
    """Where a date without a time of day stands."""
    return datetime(*day, 23, 59, 59)


def fhir_end_of(*day: int) -> datetime:
    """Where a FHIR date stands: where its day has ended in every zone."""
    return end_of(*day) + timedelta(hours=12)


def listed(folder: Path) -> list[tuple]:
    """(subject, time, code, value) of every event, in order."""
    e = read_meds(folder)
    ids = np.repeat(e.subjects, np.diff(e.offsets)).tolist()
    times = [None if t == STATIC else datetime(1970, 1, 1) + np.timedelta64(t, "us").item() for t in e.time.tolist()]
    values = [None if np.isnan(v) else v for v in e.value.tolist()]
    return list(zip(ids, times, [e.codes[c] for c in e.code], values, strict=True))


def test_tables_convert_with_every_row_accounted_for(tmp_path: Path):
    (tmp_path / "t.csv").write_text(
        "pid,when,code,numeric_value\n1,2020-01-02,b,2\n1,2020-01-01 10:00:00,a,\nx,2020-01-01,a,1\n"
        "2,never,a,1\n2,2020-01-01,,1\n2,2020-01-01,a,much\n2,,SEX//M,\n"
    )
    found = convert(tmp_path / "t.csv", tmp_path / "m", columns={"subject": "pid", "time": "when"})
    assert (found["rows"], found["events"], found["rejected_rows"]) == (7, 4, 3)
    assert set(found["rejected"].values()) == {1}
    assert found["notes"]["values that are no numbers, kept as text_value"] == 1
    assert len((tmp_path / "m" / "rejected.jsonl").read_text().splitlines()) == 3
    assert [read_meds(tmp_path / "m").codes[c] for c in read_meds(tmp_path / "m").code] == ["a", "b", "SEX//M", "a"]


def test_fhir_converts(tmp_path: Path):
    code = {"coding": [{"system": "http://loinc.org", "code": "1", "display": "One"}]}
    patient = {"resourceType": "Patient", "id": "p", "gender": "female", "birthDate": "1970-01-01"}
    about = {"subject": {"reference": "urn:uuid:p"}, "effectiveDateTime": "2020-01-01T02:00:00+02:00"}
    part = {"code": code, "valueQuantity": {"value": 7}}
    lab = {"resourceType": "Observation", "code": code, "component": [part, part], **about}
    other = [{"resourceType": "Claim"}, {"resourceType": "Condition", "code": code, "subject": about["subject"]}]
    bundle = {"resourceType": "Bundle", "entry": [{"resource": r} for r in (patient, lab, *other)]}
    (tmp_path / "b.json").write_text(json.dumps(bundle))
    found = convert(tmp_path / "b.json", tmp_path / "m")
    assert (found["rows"], found["events"], found["rejected_rows"]) == (4, 4, 2)
    events = read_meds(tmp_path / "m")
    assert [events.codes[c] for c in events.code] == ["GENDER//FEMALE", "MEDS_BIRTH", *["LAB//LOINC//1"] * 2]
    assert events.time[-1] == int(pl.Series([DAY]).dt.epoch("us")[0])


def write_tables(folder: Path, tables: dict[str, str], *, packed: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in tables.items():
        data = "\n".join(line.strip() for line in text.strip().splitlines()).encode()
        path = folder / f"{name}.csv{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(data) if packed else data)
    return folder


OMOP = {
    "person": """person_id,gender_concept_id,year_of_birth,month_of_birth,day_of_birth,gender_source_value
        1,8507,1970,5,,M
        2,0,1980,,,F""",
    "visit_occurrence": """visit_occurrence_id,person_id,visit_concept_id,visit_start_date,visit_start_datetime
        10,1,9202,2020-01-01,2020-01-01 08:30:00""",
    "condition_occurrence": """person_id,condition_concept_id,condition_start_date,condition_source_value
        1,201826,2020-01-01,
        1,0,2020-01-02,local-7
        1,0,2020-01-02,
        2,201826,,""",
    "measurement": """person_id,measurement_concept_id,measurement_datetime,measurement_date,value_as_number
        1,3004410,,2020-01-03,7.5
        x,3004410,,2020-01-03,7.5""",
    "death": "person_id,death_date\n2,2021-01-01",
    "concept": """concept_id,concept_name,vocabulary_id,concept_code
        201826,Type 2 diabetes mellitus,SNOMED,44054006
        8507,MALE,Gender,M""",
    "location": "location_id\n1",
}


def test_omop_converts(tmp_path: Path):
    found = convert(write_tables(tmp_path / "cdm", OMOP), tmp_path / "m")
    reconciled(found)
    assert found["rejected"] == {"no code": 1, "no time": 1, "subject is not a whole number": 1}
    day = [end_of(2020, 1, d) for d in (1, 2, 3)]
    assert listed(tmp_path / "m") == [
        (1, None, "GENDER//Gender//M", None),
        (1, datetime(1970, 5, 1), "MEDS_BIRTH", None),
        (1, datetime(2020, 1, 1, 8, 30), "VISIT//OMOP//9202", None),
        (1, day[0], "CONDITION//SNOMED//44054006", None),
        (1, day[1], "CONDITION//SOURCE//local-7", None),
        (1, day[2], "MEASUREMENT//OMOP//3004410", 7.5),
        (2, None, "GENDER//SOURCE//F", None),
        (2, datetime(1980, 1, 1), "MEDS_BIRTH", None),
        (2, end_of(2021, 1, 1), "MEDS_DEATH", None),
    ]
    codes = dict(pl.read_parquet(tmp_path / "m" / "metadata" / "codes.parquet").iter_rows())
    assert codes["CONDITION//SNOMED//44054006"] == "Type 2 diabetes mellitus"


def test_omop_in_parquet_without_concepts(tmp_path: Path):
    (tmp_path / "cdm").mkdir()
    person = pl.DataFrame({"person_id": [5], "gender_concept_id": [8532], "birth_datetime": [DAY]})
    person.write_parquet(tmp_path / "cdm" / "PERSON.parquet")
    found = convert(tmp_path / "cdm", tmp_path / "m")
    reconciled(found)
    assert listed(tmp_path / "m") == [(5, None, "GENDER//OMOP//8532", None), (5, DAY, "MEDS_BIRTH", None)]


def test_a_row_of_several_events_is_left_out_once(tmp_path: Path):
    """A person gives a sex, a birth and a death: nobody is left out twice, and who gives one of them is kept."""
    patients = "subject_id,gender,anchor_age,anchor_year,dod\nx,F,50,2150,2151-02-03\n8,,60,2150,\n9,M,70,2150,"
    stay = "subject_id,hadm_id,admittime,dischtime,admission_type\n9,90,2150-01-01 10:00:00,,URGENT"
    tables = {"patients": patients, "admissions": stay}
    found = convert(write_tables(tmp_path / "hosp", tables), tmp_path / "m")
    assert (found["rows"], found["kept_rows"], found["rejected_rows"]) == (4, 3, 1)
    assert found["rejected"] == {"subject is not a whole number": 3, "no code": 1}
    assert {(row[0], row[2]) for row in listed(tmp_path / "m")} == {
        (8, "MEDS_BIRTH"),
        (9, "GENDER//M"),
        (9, "MEDS_BIRTH"),
        (9, "HOSPITAL_ADMISSION//URGENT"),
    }


@pytest.mark.parametrize("time", [[1577836800], [1577836800.5]])
def test_numbers_are_no_times(tmp_path: Path, time: list):
    frame = pl.DataFrame({"subject_id": [1], "time": time, "code": ["A"]})
    with pytest.raises(UserError, match=r"times are numbers, such as \[15778368"):
        convert(frame, tmp_path / "m")
    assert not (tmp_path / "m").exists()


MIMIC = {
    "patients": "subject_id,gender,anchor_age,anchor_year,dod\n7,F,50,2150,\n8,M,60,2150,2151-02-03",
    "admissions": """subject_id,hadm_id,admittime,dischtime,admission_type,discharge_location
        7,70,2150-01-01 10:00:00,2150-01-05 12:00:00,URGENT,HOME
        8,80,2150-02-01 10:00:00,,ELECTIVE,""",
    "diagnoses_icd": """subject_id,hadm_id,seq_num,icd_code,icd_version
        7,70,1,E119,10
        7,70,2,,10
        8,80,1,4019,9""",
    "procedures_icd": "subject_id,hadm_id,seq_num,chartdate,icd_code,icd_version\n7,70,1,2150-01-02,0DJ,10",
    "prescriptions": "subject_id,hadm_id,starttime,stoptime,drug\n7,70,2150-01-01 12:00:00,,Insulin regular",
    "labevents": """labevent_id,subject_id,itemid,charttime,value,valuenum,valueuom
        1,7,50912,2150-01-01 11:00:00,1.5,1.5,mg/dL
        2,7,50912,2150-01-02 11:00:00,___,,mg/dL""",
    "d_labitems": "itemid,label\n50912,Creatinine",
}


def test_mimic_converts(tmp_path: Path):
    found = convert(write_tables(tmp_path / "mimiciv" / "hosp", MIMIC, packed=True), tmp_path / "m")
    reconciled(found)
    assert found["rejected"] == {"no code": 1, "no time": 1}
    events = [row for row in listed(tmp_path / "m") if row[0] == 7]
    assert [code for _, _, code, _ in events] == [
        "GENDER//F",
        "MEDS_BIRTH",
        "HOSPITAL_ADMISSION//URGENT",
        "LAB//50912//mg/dL",
        "MEDICATION//Insulin regular",
        "LAB//50912//mg/dL",
        "HOSPITAL_DISCHARGE//HOME",
        "DIAGNOSIS//ICD10//E119",
        "PROCEDURE//ICD10//0DJ",
    ]
    assert events[1][1] == datetime(2100, 1, 1)
    assert events[-1][1] == datetime(2150, 1, 5, 12)  # coded after discharge, never before
    assert (events[3][3], events[5][3]) == (1.5, None)


def test_a_subject_is_never_split_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shards, "SHARD_ROWS", 40)
    rng = np.random.default_rng(0)
    n = 500
    frame = pl.DataFrame(
        {
            "subject_id": rng.integers(0, 60, n),
            "time": [datetime(2020, 1, 1 + int(d)) for d in rng.integers(0, 28, n)],
            "code": [f"C{c}" for c in rng.integers(0, 9, n)],
            "numeric_value": rng.normal(size=n).astype(np.float32),
        }
    )
    found = convert(frame, tmp_path / "m")
    reconciled(found)
    files = sorted((tmp_path / "m" / "data").glob("*.parquet"))
    assert len(files) > 5
    assert not (tmp_path / "m" / "spill").exists()
    key = ["subject_id", "time", "code", "numeric_value"]
    assert sorted(listed(tmp_path / "m")) == sorted(frame.select(key).rows())  # read_meds checks order and shards
    assert found["events"] == n
    assert found["subjects"] == frame["subject_id"].n_unique()


def test_ndjson_and_zip_give_what_the_bundle_gives(tmp_path: Path):
    code = {"coding": [{"system": "http://snomed.info/sct", "code": "44054006"}]}
    resources = [
        {"resourceType": "Patient", "id": "p", "gender": "male", "deceasedDateTime": "2021-02-03"},
        {
            "resourceType": "Condition",
            "code": code,
            "subject": {"reference": "Patient/p"},
            "recordedDate": "2020-01-01",
        },
    ]
    lines = "\n".join(json.dumps(r) for r in resources)
    (tmp_path / "all.ndjson").write_text(lines)
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("a/b.ndjson", lines)
    (tmp_path / "all.json").write_text(
        json.dumps({"resourceType": "Bundle", "entry": [{"resource": r} for r in resources]})
    )
    found = []
    for name in ("all.ndjson", "all.zip", "all.json"):
        reconciled(convert(tmp_path / name, tmp_path / f"{name}.m"))
        found.append(listed(tmp_path / f"{name}.m"))
    assert found[0] == found[1] == found[2]
    assert found[0] == [
        (0, None, "GENDER//MALE", None),
        (0, fhir_end_of(2020, 1, 1), "CONDITION//SNOMED//44054006", None),
        (0, fhir_end_of(2021, 2, 3), "MEDS_DEATH", None),
    ]
    ids = pl.read_parquet(tmp_path / "all.zip.m" / "metadata" / "source_ids.parquet").rows()
    assert ids == [("p", 0)]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", "subject_id,time\n1,2020-01-01\n", "no column 'code'"),
        ("a.csv", "subject_id,time,code\n", "no events in 0 rows"),
        ("a.ndjson", "\n{broken\n", "a.ndjson:2"),
        ("a.json", "[1]", "a list, not an object"),
        ("a.parquet", "not parquet", "not a table"),
        ("a.csv", "subject_id,time,code", "one line and nothing below it"),
        ("a.txt", "x", "not a kind of file known"),
        ("a.zip", "x", "damaged"),
    ],
)
def test_bad_sources_are_named_and_nothing_is_left(tmp_path: Path, name: str, content: str, says: str):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError) as caught:
        convert(tmp_path / name, tmp_path / "m")
    assert says in f"{caught.value} {caught.value.hint}"
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_rows_with_too_many_cells_are_counted(tmp_path: Path):
    (tmp_path / "a.csv").write_text("subject_id,time,code\n1,2020-01-01,a\n1,2020-01-01,a,b,c\n1,2020-01-02,c d\n")
    found = convert(tmp_path / "a.csv", tmp_path / "m")
    reconciled(found)
    assert (found["rows"], found["rejected"]) == (3, {"a.csv: 5 cells under 3 columns": 1})
    assert found["first_rejected"]["a.csv: 5 cells under 3 columns"]["where"].startswith("a.csv")
    assert [t["rows"] for t in found["tables"].values()] == [3]
    assert listed(tmp_path / "m")[1][2] == "c d"


def resources(folder: Path, *found: object) -> Path:
    """A bundle of these resources, beside entries that have none."""
    bundle = {"resourceType": "Bundle", "entry": [{"resource": r} for r in found] + [{"request": {}}]}
    (folder / "b.json").write_text(json.dumps(bundle))
    return folder / "b.json"


def test_fhir_dates_may_be_a_year_or_a_month(tmp_path: Path):
    patient = {"resourceType": "Patient", "id": "p", "gender": "male", "birthDate": "1970"}
    code = {"coding": [{"system": "http://snomed.info/sct", "code": "1"}]}
    ill = {"resourceType": "Condition", "code": code, "subject": {"reference": "Patient/p"}, "recordedDate": "2020-05"}
    reconciled(convert(resources(tmp_path, patient, ill), tmp_path / "m"))
    assert listed(tmp_path / "m")[1:] == [
        (0, datetime(1970, 1, 1), "MEDS_BIRTH", None),
        (0, fhir_end_of(2020, 5, 31), "CONDITION//SNOMED//1", None),
    ]


def test_fhir_encounters_need_a_class_not_a_type(tmp_path: Path):
    about = {"subject": {"reference": "Patient/p"}, "period": {"start": "2020-01-01", "end": "2020-01-02"}}
    visit = {"resourceType": "Encounter", "class": {"code": "IMP"}, **about}
    found = convert(resources(tmp_path, visit, {"resourceType": "Encounter", **about}), tmp_path / "m")
    assert [row[2] for row in listed(tmp_path / "m")] == ["ENCOUNTER//IMP", "ENCOUNTER_END//IMP"]
    assert found["rejected"] == {"Encounter without a code": 1}


def test_what_is_not_fhir_is_counted(tmp_path: Path):
    code = {"coding": [{"system": "http://loinc.org", "code": "1"}]}
    about = {"code": code, "subject": {"reference": "Patient/p"}, "effectiveDateTime": "2020-01-01"}
    broken = [
        {"resourceType": "Observation", **about, "valueQuantity": {"value": "seven"}},
        {"resourceType": "Observation", **about, "subject": "Patient/p"},
        {"resourceType": "Observation", **about, "code": [code]},
        ["no object"],
        {"resourceType": "Patient", "gender": "male"},
    ]
    good = {"resourceType": "Observation", **about, "valueQuantity": {"value": 7}}
    found = convert(resources(tmp_path, good, *broken), tmp_path / "m")
    reconciled(found)
    assert (found["events"], found["rows"], found["rejected_rows"]) == (1, 6, 5)
    assert found["rejected"]["Observation is not as FHIR has it"] == 3
    assert found["rejected"]["Patient without an id"] == 1
    assert "entry 1" in (tmp_path / "m" / "rejected.jsonl").read_text().splitlines()[0]
