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

import polars as pl

from unmask.modalities.events.records.meds import BIRTH, DEATH
from unmask.modalities.events.sources.rows import Ledger, chunks, columns_of, named_as, text
from unmask.modalities.events.sources.tables import Derive, Event, Files, Folder, Reading, Refused, Table


def _column(files: Files, table: str, key: str, *values: str, reading: Reading | None = None) -> pl.DataFrame:
    """Rows of a small table as text, those with a key and any of the values.

    Args:
        reading: which cells are empty, where words stand for that.
    """
    parts = []
    for path in files.get(table, ()):
        lower = named_as(path, columns_of(path), (key, *values))
        have = [v for v in values if v in lower]
        if key not in lower or not have:
            continue
        for frame in chunks(path, list(lower.values()), Ledger()):
            frame = frame.rename({name: n for n, name in lower.items()})
            if reading is not None and reading.missing is not None:
                frame = reading.filled(frame)
            part = frame.select(text(n).alias(n) for n in (key, *have))
            parts.append(
                part.filter(pl.any_horizontal(pl.col(v).is_not_null() for v in have) & pl.col(key).is_not_null())
            )
    return pl.concat(parts, how="diagonal") if parts else pl.DataFrame(schema=dict.fromkeys((key, *values), pl.String))


def _context(files: Files, names: dict[str, str], reading: Reading) -> Derive:
    discharge = _column(files, "admissions", "hadm_id", "dischtime", reading=reading).unique("hadm_id", keep="first")
    died = _column(files, "admissions", "subject_id", "deathtime", reading=reading).sort("deathtime")
    died = died.unique("subject_id", keep="first")
    expired = _column(files, "admissions", "subject_id", "dischtime", "hospital_expire_flag", reading=reading)
    if "hospital_expire_flag" in expired.columns and "dischtime" in expired.columns:
        flagged = pl.col("hospital_expire_flag").cast(pl.Float64, strict=False) == 1
        expired = expired.filter(flagged).sort("dischtime").unique("subject_id", keep="last")
        expired = expired.select("subject_id", pl.col("dischtime").alias(EXPIRED))
    else:
        expired = pl.DataFrame(schema={"subject_id": pl.String, EXPIRED: pl.String})
    for table, key, prefixes in (
        ("d_labitems", "itemid", ("LAB",)),
        ("d_items", "itemid", ("CHART", "INFUSION_START", "INFUSION_END", "OUTPUT", "ICU_PROCEDURE", "DATETIME")),
    ):
        for number, label in _column(files, table, key, "label").iter_rows():
            names |= {f"{prefix}//{number}": label for prefix in prefixes}
    for table, prefix in (("d_icd_diagnoses", "DIAGNOSIS"), ("d_icd_procedures", "PROCEDURE")):
        for code, version, title in _column(files, table, "icd_code", "icd_version", "long_title").iter_rows():
            names[f"{prefix}//ICD{version}//{code}"] = title

    def derive(table: Table, frame: pl.DataFrame) -> pl.DataFrame:
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
_STORED = ("storetime", "charttime")


def _measured(
    name: str,
    prefix: str,
    *,
    value: str = "valuenum",
    words: tuple[str, ...] = ("value",),
    more: tuple[Event, ...] = (),
) -> Table:
    """A table of values with their units: known when they were stored, and not before they were taken."""
    event = Event(
        codes=(f"{prefix}//{{itemid}}",),
        suffixes=("{valueuom}",),
        times=_STORED,
        taken="charttime",
        value=value,
        words=words,
    )
    return Table(name=name, visit="hadm_id", events=[event, *more])


_CODED = {"dischtime": ("hadm_id",)}
_CANCELLED = Refused(column="statusdescription", pattern="^(rewritten|cancel)")
_UNREAD: Mapping[str, str] = {
    "emar_detail": "doses of emar, by product",
    "pharmacy": "repeats prescriptions",
    "poe": "orders, without what came of them",
    "poe_detail": "orders, without what came of them",
    "provider": "no event of a patient",
    "caregiver": "no event of a patient",
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
        Table(
            name="patients",
            dates=("dod",),
            derived={
                "deathtime": ("subject_id",),
                EXPIRED: ("subject_id",),
                "birth": ("anchor_year", "anchor_age"),
            },
            events=[
                Event(codes=("GENDER//{gender}",)),
                Event(codes=(BIRTH,), times=("birth",), optional=True, start=True),
                Event(codes=(DEATH,), times=("deathtime", "dod", EXPIRED), optional=True),
            ],
        ),
        Table(
            name="admissions",
            visit="hadm_id",
            elsewhere=("deathtime", "hospital_expire_flag"),
            events=[
                Event(codes=("HOSPITAL_ADMISSION//{admission_type}",), times=("admittime",)),
                *(
                    Event(codes=codes, times=("admittime",), optional=True)
                    for codes in (
                        ("RACE//{race}", "RACE//{ethnicity}"),
                        ("INSURANCE//{insurance}",),
                        ("LANGUAGE//{language}",),
                        ("MARITAL_STATUS//{marital_status}",),
                    )
                ),
                Event(
                    codes=("HOSPITAL_DISCHARGE//{discharge_location}", "HOSPITAL_DISCHARGE"),
                    times=("dischtime",),
                    optional=True,
                ),
            ],
        ),
        Table(
            name="transfers",
            visit="hadm_id",
            events=[
                Event(codes=("TRANSFER//{eventtype}//{careunit}", "TRANSFER//{eventtype}"), times=("intime",)),
            ],
        ),
        Table(
            name="services",
            visit="hadm_id",
            events=[
                Event(codes=("SERVICE//{curr_service}",), times=("transfertime",)),
            ],
        ),
        Table(
            name="diagnoses_icd",
            visit="hadm_id",
            derived=_CODED,
            events=[
                Event(codes=("DIAGNOSIS//ICD{icd_version}//{icd_code}",), times=("dischtime",)),
            ],
        ),
        Table(
            name="drgcodes",
            visit="hadm_id",
            derived=_CODED,
            events=[
                Event(codes=("DRG//{drg_type}//{drg_code}",), times=("dischtime",)),
            ],
        ),
        Table(
            name="procedures_icd",
            visit="hadm_id",
            dates=("chartdate",),
            derived=_CODED,
            events=[
                Event(codes=("PROCEDURE//ICD{icd_version}//{icd_code}",), times=("dischtime", "chartdate")),
            ],
        ),
        Table(
            name="hcpcsevents",
            visit="hadm_id",
            dates=("chartdate",),
            derived=_CODED,
            events=[
                Event(codes=("PROCEDURE//HCPCS//{hcpcs_cd}",), times=("dischtime", "chartdate")),
            ],
        ),
        Table(
            name="prescriptions",
            visit="hadm_id",
            events=[
                Event(codes=("MEDICATION//{drug}",), times=("starttime",)),
            ],
        ),
        Table(
            name="emar",
            visit="hadm_id",
            refused=[Refused(column="event_txt", pattern=r"(^|\s)not\s|^hold dose")],
            events=[
                Event(
                    codes=("MEDICATION_GIVEN//{medication}//{event_txt}", "MEDICATION_GIVEN//{medication}"),
                    times=_STORED,
                    taken="charttime",
                ),
            ],
        ),
        _measured(
            "labevents",
            "LAB",
            words=("value", "comments"),
            more=(Event(codes=("LAB_FLAG//{itemid}//{flag}",), times=_STORED, taken="charttime", optional=True),),
        ),
        Table(
            name="microbiologyevents",
            visit="hadm_id",
            dates=("storedate", "chartdate"),
            events=[
                Event(
                    codes=(
                        "MICROBIOLOGY//{test_name}//{org_name}//{ab_name}//{interpretation}",
                        "MICROBIOLOGY//{test_name}//{org_name}",
                        "MICROBIOLOGY//{test_name}",
                    ),
                    times=("storetime", "storedate", "charttime", "chartdate"),
                    taken="charttime",
                ),
            ],
        ),
        Table(
            name="omr",
            dates=("chartdate",),
            derived=dict.fromkeys(("single", "pair", "value", "second"), ("result_name", "result_value")),
            events=[
                Event(codes=("OMR//{single}", "OMR//{pair}//SYSTOLIC"), times=("chartdate",), value="value"),
                Event(codes=("OMR//{pair}//DIASTOLIC",), times=("chartdate",), value="second", optional=True),
            ],
        ),
        Table(
            name="icustays",
            visit="hadm_id",
            events=[
                Event(codes=("ICU_ADMISSION//{first_careunit}",), times=("intime",)),
                Event(codes=("ICU_DISCHARGE//{last_careunit}",), times=("outtime",), optional=True),
            ],
        ),
        _measured("chartevents", "CHART"),
        Table(
            name="datetimeevents",
            visit="hadm_id",
            events=[
                Event(codes=("DATETIME//{itemid}",), times=_STORED, taken="charttime", words=("value",)),
            ],
        ),
        Table(
            name="inputevents",
            visit="hadm_id",
            refused=[_CANCELLED],
            events=[
                Event(
                    codes=("INFUSION_START//{itemid}",),
                    suffixes=("{rateuom}",),
                    times=("storetime", "starttime"),
                    taken="starttime",
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
            ],
        ),
        _measured("outputevents", "OUTPUT", value="value", words=()),
        Table(
            name="procedureevents",
            visit="hadm_id",
            refused=[_CANCELLED],
            events=[
                Event(
                    codes=("ICU_PROCEDURE//{itemid}",), times=("storetime", "endtime", "starttime"), taken="starttime"
                ),
            ],
        ),
    ],
)
