"""MIMIC-IV, modules hosp and icu (versions 1.0 to 3.1).

What is coded for billing (diagnoses, procedures, DRGs) is known after the discharge; results when they were stored, and
not before they were taken; a death at its time in the admissions table before its date in the patients table, and where
neither is given at the discharge of a stay that ended with one (hospital_expire_flag). Race, insurance, language and
marital status are known at the admission that says them. dod,
chartdate and storedate are dates by the published schema (mimic-code, buildmimic/postgres/create.sql), whatever the
type of a file's column.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from unmask.modalities.events.records.meds import BIRTH, DEATH
from unmask.modalities.events.sources.rows import small_table, text
from unmask.modalities.events.sources.tables import CellReading, Derive, Event, Files, Folder, NotDone, SourceTable


def _context(files: Files, names: dict[str, str], reading: CellReading) -> Derive:
    discharge = small_table(files, "admissions", "hadm_id", "dischtime", reading=reading)
    discharge = discharge.drop_nulls("dischtime").unique("hadm_id", keep="first")
    died = small_table(files, "admissions", "subject_id", "deathtime", reading=reading)
    died = died.drop_nulls("deathtime").sort("deathtime").unique("subject_id", keep="first")
    expired = small_table(files, "admissions", "subject_id", "dischtime", "hospital_expire_flag", reading=reading)
    flagged = pl.col("hospital_expire_flag").cast(pl.Float64, strict=False) == 1
    expired = expired.filter(flagged).sort("dischtime").unique("subject_id", keep="last")
    expired = expired.select("subject_id", pl.col("dischtime").alias(EXPIRED))
    charted = ("CHART", "INFUSION_START", "INFUSION_END", "OUTPUT", "ICU_PROCEDURE", "DATETIME")
    for table, prefixes in (("d_labitems", ("LAB",)), ("d_items", charted)):
        for number, label in small_table(files, table, "itemid", "label").drop_nulls("label").iter_rows():
            names |= {f"{prefix}//{number}": label for prefix in prefixes}
    for table, prefix in (("d_icd_diagnoses", "DIAGNOSIS"), ("d_icd_procedures", "PROCEDURE")):
        found = small_table(files, table, "icd_code", "icd_version", "long_title").drop_nulls("long_title")
        names |= {f"{prefix}//ICD{version}//{code}": title for code, version, title in found.iter_rows()}

    def derive(table: SourceTable, frame: pl.DataFrame) -> pl.DataFrame:
        joined = (
            ("dischtime", "hadm_id", discharge),
            ("deathtime", "subject_id", died),
            (EXPIRED, "subject_id", expired),
        )
        for name, key, small in joined:
            if name in table.derived and key in frame.columns and name not in frame.columns:
                keys = pl.DataFrame({key: frame.select(text(key).str.replace(r"\.0$", "").alias(key))[key]})
                frame = frame.with_columns(keys.join(small, on=key, how="left", maintain_order="left")[name])
        if "birth" in table.derived and {"anchor_year", "anchor_age"} <= set(frame.columns):
            year, age = (
                text(c).cast(pl.Float64, strict=False).cast(pl.Int64, strict=False) for c in table.derived["birth"]
            )
            frame = frame.with_columns(pl.format("{}-01-01", year - age).alias("birth"))
        if table.name == "labevents" and {"value", "comments"} <= set(frame.columns):
            removed = text("value").str.contains("^_+$") & text("comments").is_not_null()
            frame = frame.with_columns(pl.when(~removed.fill_null(False)).then("value").alias("value"))
        if table.name == "omr" and {"result_name", "result_value"} <= set(frame.columns):
            pair = r"^(\d+(?:\.\d+)?) ?/ ?(\d+(?:\.\d+)?)$"
            both = (
                text("result_value").str.contains(pair) & text("result_name").str.contains("(?i)blood pressure")
            ).fill_null(False)
            frame = frame.with_columns(
                pl.when(~both).then(text("result_name")).alias("single"),
                pl.when(both).then(text("result_name")).alias("pair"),
                pl.when(both)
                .then(text("result_value").str.extract(pair, 1))
                .otherwise(text("result_value"))
                .alias("value"),
                text("result_value").str.extract(pair, 2).alias("second"),
            )
        return frame

    return derive


EXPIRED = "dischtime (hospital_expire_flag)"
"""When a stay ended that ended with a death, whose time is not given."""
_STORED: dict[str, Any] = {"times": ("storetime", "charttime"), "taken": ("charttime",)}
"""Known when it was stored, and not before it was taken."""
_CODED: dict[str, Any] = {"derived": {"dischtime": ("hadm_id",)}}
"""What is coded for the whole stay, at its end."""


def _stay(name: str, *events: Event, **more: Any) -> SourceTable:
    """A table whose rows belong to a hospital stay."""
    return SourceTable(name=name, visit="hadm_id", events=events, **more)


def _measured(prefix: str, value: str = "valuenum", words: tuple[str, ...] = ("value",)) -> Event:
    """A value with its unit."""
    return Event(codes=(f"{prefix}//{{itemid}}",), suffixes=("{valueuom}",), value=value, words=words, **_STORED)


_CANCELLED = (NotDone(column="statusdescription", pattern="^(rewritten|cancel)"),)
_UNREAD: Mapping[str, str] = {
    "emar_detail": "doses of emar, by product",
    "pharmacy": "repeats prescriptions",
    **dict.fromkeys(("poe", "poe_detail"), "orders, without what came of them"),
    **dict.fromkeys(("provider", "caregiver"), "no event of a patient"),
    "ingredientevents": "derived from inputevents",
    "d_hcpcs": "descriptions",
}
MIMIC = Folder(
    name="MIMIC-IV",
    known_by=("patients", "admissions"),
    refused={("patients", "dob"): "MIMIC-III"},
    context=_context,
    unread=_UNREAD,
    helpers=("d_labitems", "d_items", "d_icd_diagnoses", "d_icd_procedures"),
    tables=[
        SourceTable(
            name="patients",
            dates=("dod",),
            derived={"deathtime": ("subject_id",), EXPIRED: ("subject_id",), "birth": ("anchor_year", "anchor_age")},
            events=[
                Event(codes=("GENDER//{gender}",)),
                Event(codes=(BIRTH,), times=("birth",), optional=True, start=True),
                Event(codes=(DEATH,), times=("deathtime", "dod", EXPIRED), optional=True),
            ],
        ),
        _stay(
            "admissions",
            Event(codes=("HOSPITAL_ADMISSION//{admission_type}",), times=("admittime",)),
            Event(codes=("RACE//{race}", "RACE//{ethnicity}"), times=("admittime",), optional=True),
            Event(codes=("INSURANCE//{insurance}",), times=("admittime",), optional=True),
            Event(codes=("LANGUAGE//{language}",), times=("admittime",), optional=True),
            Event(codes=("MARITAL_STATUS//{marital_status}",), times=("admittime",), optional=True),
            Event(
                codes=("HOSPITAL_DISCHARGE//{discharge_location}", "HOSPITAL_DISCHARGE"),
                times=("dischtime",),
                taken=("admittime",),
                optional=True,
            ),
            elsewhere=("deathtime", "hospital_expire_flag"),
        ),
        _stay(
            "transfers", Event(codes=("TRANSFER//{eventtype}//{careunit}", "TRANSFER//{eventtype}"), times=("intime",))
        ),
        _stay("services", Event(codes=("SERVICE//{curr_service}",), times=("transfertime",))),
        _stay(
            "diagnoses_icd", Event(codes=("DIAGNOSIS//ICD{icd_version}//{icd_code}",), times=("dischtime",)), **_CODED
        ),
        _stay("drgcodes", Event(codes=("DRG//{drg_type}//{drg_code}",), times=("dischtime",)), **_CODED),
        _stay(
            "procedures_icd",
            Event(codes=("PROCEDURE//ICD{icd_version}//{icd_code}",), times=("dischtime", "chartdate")),
            dates=("chartdate",),
            **_CODED,
        ),
        _stay(
            "hcpcsevents",
            Event(codes=("PROCEDURE//HCPCS//{hcpcs_cd}",), times=("dischtime", "chartdate")),
            dates=("chartdate",),
            **_CODED,
        ),
        _stay("prescriptions", Event(codes=("MEDICATION//{drug}",), times=("starttime",))),
        _stay(
            "emar",
            Event(codes=("MEDICATION_GIVEN//{medication}//{event_txt}", "MEDICATION_GIVEN//{medication}"), **_STORED),
            refused=[NotDone(column="event_txt", pattern=r"(^|\s)not\s|^hold dose")],
        ),
        _stay(
            "labevents",
            _measured("LAB", words=("value", "comments")),
            Event(codes=("LAB_FLAG//{itemid}//{flag}",), optional=True, **_STORED),
        ),
        _stay(
            "microbiologyevents",
            Event(
                codes=(
                    "MICROBIOLOGY//{test_name}//{org_name}//{ab_name}//{interpretation}",
                    "MICROBIOLOGY//{test_name}//{org_name}",
                    "MICROBIOLOGY//{test_name}",
                ),
                times=("storetime", "storedate", "charttime", "chartdate"),
                taken=("charttime",),
            ),
            dates=("storedate", "chartdate"),
        ),
        SourceTable(
            name="omr",
            dates=("chartdate",),
            derived=dict.fromkeys(("single", "pair", "value", "second"), ("result_name", "result_value")),
            events=[
                Event(codes=("OMR//{single}", "OMR//{pair}//SYSTOLIC"), times=("chartdate",), value="value"),
                Event(codes=("OMR//{pair}//DIASTOLIC",), times=("chartdate",), value="second", optional=True),
            ],
        ),
        _stay(
            "icustays",
            Event(codes=("ICU_ADMISSION//{first_careunit}",), times=("intime",)),
            Event(codes=("ICU_DISCHARGE//{last_careunit}",), times=("outtime",), taken=("intime",), optional=True),
        ),
        _stay("chartevents", _measured("CHART")),
        _stay("datetimeevents", Event(codes=("DATETIME//{itemid}",), words=("value",), **_STORED)),
        _stay(
            "inputevents",
            Event(
                codes=("INFUSION_START//{itemid}",),
                suffixes=("{rateuom}",),
                times=("storetime", "starttime"),
                taken=("starttime",),
                value="rate",
            ),
            Event(
                codes=("INFUSION_END//{itemid}",),
                suffixes=("{amountuom}",),
                times=("storetime", "endtime"),
                latest=True,
                value="amount",
                optional=True,
            ),
            refused=_CANCELLED,
        ),
        _stay("outputevents", _measured("OUTPUT", "value", ())),
        _stay(
            "procedureevents",
            Event(
                codes=("ICU_PROCEDURE//{itemid}",), times=("storetime", "endtime", "starttime"), taken=("starttime",)
            ),
            refused=_CANCELLED,
        ),
    ],
)
