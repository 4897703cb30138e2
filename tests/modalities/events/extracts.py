"""Made extracts in the shape that hospitals have them: OMOP as sharded, typed parquet; MIMIC-IV as gzipped csv, its
large tables as sharded, typed parquet.

Every patient has a stay of two days, and half a year before it one of six hours. One patient in three is frail:
creatinine is higher, and the outcome follows with probability .95 instead of .05. The outcome itself is in no table.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

Stay = tuple[int, int, datetime, int, bool]
"""Patient, stay, admission, hours, frail."""
HOURS = 50
"""Of the stay that is asked about."""


def stays(patients: int, seed: int) -> Iterator[tuple[Stay, np.random.Generator]]:
    """Two stays per patient, the one asked about last, and what draws their contents."""
    rng = np.random.default_rng(seed)
    for patient in range(1, patients + 1):
        begin = datetime(2150, 1, 1) + timedelta(minutes=int(rng.integers(0, 2_000_000)))
        frail = bool(rng.random() < 1 / 3)
        yield (patient, 2000 + patient, begin - timedelta(days=180), 6, frail), rng
        yield (patient, 1000 + patient, begin, HOURS, frail), rng


def _labels(out: Path, rows: list[tuple]) -> Path:
    out.mkdir(parents=True)
    schema = {"subject_id": pl.Int64, "prediction_time": pl.Datetime("us"), "boolean_value": pl.Boolean}
    pl.DataFrame(rows, schema=schema, orient="row").write_parquet(out / "0.parquet")
    return out


def _drawn(
    rng: np.random.Generator, begin: datetime, hours: int, frail: bool
) -> Iterator[tuple[datetime, datetime, str, float]]:
    """Taken, stored, name, value of the results of a stay."""
    for hour in range(0, hours - 2, 6):
        for name, middle in (("creatinine", 2.0 if frail else 1.0), ("sodium", 140.0)):
            taken = begin + timedelta(hours=hour, minutes=int(rng.integers(0, 60)))
            yield (
                taken,
                taken + timedelta(minutes=int(rng.integers(20, 90))),
                name,
                round(rng.normal(middle, middle / 8), 2),
            )


def mimic(folder: Path, patients: int = 120, seed: int = 0) -> tuple[Path, Path]:
    """(extract, labels), asked 40 hours after each admission."""
    tables: dict[str, list[str]] = {
        "hosp/patients": ["subject_id,gender,anchor_age,anchor_year,dod"],
        "hosp/admissions": ["subject_id,hadm_id,admittime,dischtime,deathtime,admission_type,discharge_location"],
        "hosp/transfers": ["subject_id,hadm_id,eventtype,careunit,intime"],
        "hosp/labevents": ["subject_id,hadm_id,itemid,charttime,storetime,value,valuenum,valueuom"],
        "hosp/diagnoses_icd": ["subject_id,hadm_id,seq_num,icd_code,icd_version"],
        "hosp/emar": ["subject_id,hadm_id,charttime,storetime,medication,event_txt"],
        "hosp/d_labitems": ["itemid,label", "1,Creatinine"],
        "icu/d_items": ["itemid,label", "2,Sodium"],
        "icu/chartevents": ["subject_id,hadm_id,itemid,charttime,storetime,value,valuenum,valueuom"],
        "icu/icustays": ["subject_id,hadm_id,first_careunit,last_careunit,intime,outtime"],
    }
    asked = []
    for (patient, stay, begin, hours, frail), rng in stays(patients, seed):
        end = begin + timedelta(hours=hours)
        both = f"{patient},{stay}"
        died = hours == HOURS and rng.random() < 0.1
        if hours == HOURS:
            tables["hosp/patients"].append(f"{patient},{'MF'[patient % 2]},60,2150,{end.date() if died else ''}")
        tables["hosp/admissions"].append(
            f"{both},{begin},{end},{end if died else ''},URGENT,{'DIED' if died else 'HOME'}"
        )
        tables["hosp/transfers"].append(f"{both},admit,Medicine,{begin}")
        code = "N179" if frail ^ (rng.random() < 0.2) else "J189"
        tables["hosp/diagnoses_icd"].append(f"{both},1,{code},10")
        tables["icu/icustays"].append(f"{both},MICU,MICU,{begin},{end}")
        for taken, stored, name, value in _drawn(rng, begin, hours, frail):
            if name == "creatinine":
                tables["hosp/labevents"].append(f"{both},1,{taken},{stored},{value},{value},mg/dL")
            else:
                tables["icu/chartevents"].append(f"{both},2,{taken},{stored},{value},{value},mEq/L")
            done = "Administered" if rng.random() < 0.8 else "Not Given"
            tables["hosp/emar"].append(f"{both},{taken},{taken},Heparin,{done}")
        if hours == HOURS:
            asked.append((patient, begin + timedelta(hours=40), bool(rng.random() < (0.95 if frail else 0.05))))
    for name, lines in tables.items():
        path = folder / f"{name}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        content = "\n".join(lines).encode()
        if len(lines) <= 4 * patients:
            path.write_bytes(gzip.compress(content))
            continue
        frame = pl.read_csv(content, try_parse_dates=True)
        for shard, part in enumerate((frame[::2], frame[1::2])):
            part.write_parquet(folder / f"{name}-{shard:05d}-of-00002.parquet")
    return folder, _labels(folder.with_name(f"{folder.name}-task"), asked)


def omop(folder: Path, patients: int = 120, seed: int = 0) -> tuple[Path, Path]:
    """(extract, labels), asked 40 hours after each admission."""
    tables: dict[str, list[dict[str, Any]]] = {
        n: [] for n in ("person", "visit_occurrence", "condition_occurrence", "measurement", "death")
    }
    asked = []
    for (patient, stay, begin, hours, frail), rng in stays(patients, seed):
        end = begin + timedelta(hours=hours)
        born = datetime(2090, 5, 1)
        if hours == HOURS:
            tables["person"].append(
                {
                    "person_id": patient,
                    "gender_concept_id": (8507, 8532)[patient % 2],
                    "year_of_birth": born.year,
                    "birth_datetime": born,
                }
            )
        tables["condition_occurrence"].append(
            {
                "person_id": patient,
                "visit_occurrence_id": stay,
                "condition_start_datetime": end,
                "condition_concept_id": 197320 if frail ^ (rng.random() < 0.2) else 255848,
            }
        )
        tables["visit_occurrence"].append(
            {
                "visit_occurrence_id": stay,
                "person_id": patient,
                "visit_concept_id": 9201,
                "visit_start_datetime": begin,
                "visit_end_datetime": end,
            }
        )
        for _, stored, name, value in _drawn(rng, begin, hours, frail):
            tables["measurement"].append(
                {
                    "person_id": patient,
                    "visit_occurrence_id": stay,
                    "measurement_datetime": stored,
                    "value_as_number": value,
                    "measurement_concept_id": {"creatinine": 3016723, "sodium": 3019550}[name],
                    "unit_concept_id": {"creatinine": 8840, "sodium": 9557}[name],
                }
            )
        if hours == HOURS:
            if rng.random() < 0.1:
                tables["death"].append({"person_id": patient, "death_date": end.date()})
            asked.append((patient, begin + timedelta(hours=40), bool(rng.random() < (0.95 if frail else 0.05))))
    folder.mkdir(parents=True)
    for name, rows in tables.items():
        for shard, part in enumerate((rows[::2], rows[1::2])):
            if part:
                pl.DataFrame(part).write_parquet(folder / f"{name}_{shard:012d}.parquet")
    return folder, _labels(folder.with_name(f"{folder.name}-task"), asked)
