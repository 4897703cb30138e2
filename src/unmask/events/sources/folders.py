"""Folders of tables: OMOP CDM 5.3/5.4 and MIMIC-IV hosp. What of each table makes an event is data."""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from unmask.errors import UserError
from unmask.events.meds import BIRTH, DEATH
from unmask.events.sources.rows import ENDINGS, Ledger, chunks, columns_of, parsed, refuse_numbers, text
from unmask.files import files_below


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event a row.

    Attributes:
        code: text with {column}s in it; the row is rejected where one of them is empty, unless `fallback` is whole.
        fallback: the code where `code` has an empty column.
        times: columns of the time, the first that is not empty; none for a static fact.
        value: column of the value.
        optional: rows without this time are simply without this event.
    """

    code: str
    fallback: str | None = None
    times: Sequence[str] = ()
    value: str | None = None
    optional: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table by the stem of its file."""

    name: str
    events: Sequence[Event]
    subject: str = "subject_id"
    joined: str | None = None
    """Key of a smaller table whose columns are wanted too; made by `_joined`."""
    concept: str | None = None
    """OMOP: column of the concept, which becomes {vocabulary} and {concept_code}; 0 is none."""


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A kind of folder: its tables, and by which files it is known."""

    name: str
    known_by: Sequence[str]
    tables: Sequence[Table]


def _omop(prefix: str, name: str, stem: str, *times: str, value: str | None = None) -> Table:
    columns = times or (f"{stem}_start_datetime", f"{stem}_start_date")
    return Table(
        name=name, subject="person_id", concept=f"{stem.removesuffix('_exposure')}_concept_id",
        events=[Event(
            code=f"{prefix}//{{vocabulary}}//{{concept_code}}", fallback=f"{prefix}//SOURCE//{{source}}", times=columns,
            value=value,
        )],
    )  # fmt: skip


OMOP = Folder(
    name="OMOP", known_by=("person",),
    tables=[
        Table(name="person", subject="person_id", concept="gender_concept_id", events=[
            Event(code="GENDER//{vocabulary}//{concept_code}", fallback="GENDER//SOURCE//{source}"),
            Event(code=BIRTH, times=("birth_datetime", "birth_date"), optional=True),
        ]),
        _omop("VISIT", "visit_occurrence", "visit"),
        _omop("CONDITION", "condition_occurrence", "condition"),
        _omop("DRUG", "drug_exposure", "drug_exposure"),
        _omop("PROCEDURE", "procedure_occurrence", "procedure", "procedure_datetime", "procedure_date"),
        _omop("MEASUREMENT", "measurement", "measurement", "measurement_datetime", "measurement_date", value="value_as_number"),
        _omop("OBSERVATION", "observation", "observation", "observation_datetime", "observation_date", value="value_as_number"),
        _omop("DEVICE", "device_exposure", "device_exposure"),
        Table(name="death", subject="person_id", events=[Event(code=DEATH, times=("death_datetime", "death_date"))]),
    ],
)  # fmt: skip
MIMIC = Folder(
    name="MIMIC-IV", known_by=("patients", "admissions"),
    tables=[
        Table(name="patients", events=[
            Event(code="GENDER//{gender}"), Event(code=BIRTH, times=("birth_date",), optional=True),
            Event(code=DEATH, times=("dod",), optional=True),
        ]),
        Table(name="admissions", events=[
            Event(code="HOSPITAL_ADMISSION//{admission_type}", times=("admittime",)),
            Event(code="HOSPITAL_DISCHARGE//{discharge_location}", fallback="HOSPITAL_DISCHARGE", times=("dischtime",), optional=True),
        ]),
        Table(name="diagnoses_icd", joined="hadm_id", events=[
            Event(code="DIAGNOSIS//ICD{icd_version}//{icd_code}", times=("dischtime",)),
        ]),
        Table(name="procedures_icd", events=[
            Event(code="PROCEDURE//ICD{icd_version}//{icd_code}", times=("chartdate",)),
        ]),
        Table(name="prescriptions", events=[Event(code="MEDICATION//{drug}", times=("starttime", "stoptime"))]),
        Table(name="labevents", events=[
            Event(code="LAB//{itemid}//{valueuom}", fallback="LAB//{itemid}", times=("charttime",), value="valuenum"),
        ]),
    ],
)  # fmt: skip
"""MIMIC-IV's diagnoses have no time of their own: they are coded after discharge, and stand at its time."""
FOLDERS = (OMOP, MIMIC)
PREFIXES = ("GENDER", "VISIT", "CONDITION", "DRUG", "PROCEDURE", "MEASUREMENT", "OBSERVATION", "DEVICE")
"""Of OMOP's codes."""
NAMED = 200_000
"""Concepts up to which their names are kept: a whole OMOP vocabulary has millions."""


def files_of(path: Path) -> dict[str, Path]:
    """Lower-case stem -> table file, anywhere below a folder."""
    found: dict[str, Path] = {}
    for file in files_below(path):
        ending = next((e for e in sorted(ENDINGS, key=len, reverse=True) if file.name.lower().endswith(e)), None)
        if ending and file.is_file():
            found.setdefault(file.name.lower().removesuffix(ending), file)
    return found


def kind_of(files: dict[str, Path]) -> Folder | None:
    """Which kind of folder holds these files."""
    return next((f for f in FOLDERS if all(n in files for n in f.known_by)), None)


def read(kind: Folder, files: dict[str, Path], ledger: Ledger, names: dict[str, str]) -> Iterator[pl.DataFrame]:
    """Events of all tables that are there.

    Args:
        names: filled with descriptions of codes.

    Raises:
        UserError: a table lacks a column that its events need.
    """
    concepts = _concepts(files, names) if kind is OMOP else None
    joined = _joined(files) if kind is MIMIC else None
    if kind is MIMIC:
        _lab_names(files, names)
    for table in kind.tables:
        if table.name in files:
            yield from _table(table, files[table.name], ledger, concepts, joined if table.joined else None)


def _table(
    table: Table, path: Path, ledger: Ledger, concepts: pl.DataFrame | None, joined: pl.DataFrame | None
) -> Iterator[pl.DataFrame]:
    have = columns_of(path)
    lower = {c.lower(): c for c in have}
    wanted = _wanted(table, list(lower))
    for name in (table.subject, *((table.concept,) if table.concept else ())):
        if name not in lower:
            raise UserError(f"{path}: no column {name!r}", hint=f"Found {', '.join(have)}.")
    for event in table.events:
        extra = set() if joined is None else set(joined.columns)
        if event.times and not event.optional and not (set(event.times) & (set(lower) | extra)):
            raise UserError(f"{path}: none of the columns {', '.join(event.times)}", hint=f"Found {', '.join(have)}.")
    for raw in chunks(path, [lower[w] for w in wanted], ledger):
        frame = _prepared(table, raw.rename({lower[w]: w for w in wanted}), concepts, joined)
        kept = pl.repeat(False, len(frame), eager=True)
        for event in table.events:
            raw_event = _event(event, frame, table.subject, path.name)
            made, good = parsed(raw_event, ledger, path.name, static=not event.times, optional=event.optional)
            kept |= good
            yield made
        ledger.kept += int(kept.sum())


def _wanted(table: Table, have: list[str]) -> list[str]:
    """Columns of the file that its events read."""
    used = {table.subject, table.joined, table.concept}
    if table.concept:
        used.add(table.concept.replace("_concept_id", "_source_value"))
    for event in table.events:
        used |= {*event.times, event.value}
        for code in (event.code, event.fallback or ""):
            used |= {field for _, field, _, _ in string.Formatter().parse(code) if field}
    if table.name in ("person", "patients"):
        used |= {"year_of_birth", "month_of_birth", "day_of_birth", "anchor_age", "anchor_year"}
    return [c for c in have if c in used]


def _prepared(
    table: Table, frame: pl.DataFrame, concepts: pl.DataFrame | None, joined: pl.DataFrame | None
) -> pl.DataFrame:
    """The columns that codes and times are made of, beside the file's own."""
    if joined is not None and table.joined:
        key = text(table.joined).alias(table.joined)
        frame = frame.with_columns(key).join(joined, on=table.joined, how="left", maintain_order="left")
    if table.concept:
        source = table.concept.replace("_concept_id", "_source_value")
        number = text(table.concept).str.replace(r"\.0$", "")
        number = pl.when(number == "0").then(None).otherwise(number)
        frame = frame.with_columns(
            number.alias("concept_id"),
            (text(source) if source in frame.columns else pl.lit(None, pl.String)).alias("source"),
        )
        if concepts is None:
            frame = frame.with_columns(pl.lit("OMOP").alias("vocabulary"), pl.col("concept_id").alias("concept_code"))
        else:
            frame = frame.join(concepts, on="concept_id", how="left", maintain_order="left").with_columns(
                pl.col("vocabulary").fill_null("OMOP"), pl.coalesce("concept_code", "concept_id").alias("concept_code")
            )
    if "year_of_birth" in frame.columns:
        parts = [
            text(c).fill_null("1") if c in frame.columns else pl.lit("1") for c in ("month_of_birth", "day_of_birth")
        ]
        date = pl.format("{}-{}-{}", text("year_of_birth"), *(p.str.zfill(2) for p in parts))
        frame = frame.with_columns(date.alias("birth_date"))
    if "anchor_year" in frame.columns and "anchor_age" in frame.columns:
        year = text("anchor_year").cast(pl.Int64, strict=False) - text("anchor_age").cast(pl.Int64, strict=False)
        frame = frame.with_columns(pl.format("{}-01-01", year).alias("birth_date"))
    return frame


def _event(event: Event, frame: pl.DataFrame, subject: str, where: str) -> pl.DataFrame:
    """Raw columns subject, when, code, raw of one event a row."""
    times = [t for t in event.times if t in frame.columns]
    for name in times:
        refuse_numbers(frame[name], f"{where}, column {name!r}")
    if times and all(frame[t].dtype == pl.String for t in times):
        when = pl.coalesce(*(text(t) for t in times))
    elif times:
        when = pl.coalesce(*(pl.col(t).cast(pl.Datetime("us"), strict=False) for t in times))
    else:
        when = pl.lit(None, dtype=pl.String)
    code = _code(event.code, frame.columns)
    if event.fallback is not None:
        code = pl.coalesce(code, _code(event.fallback, frame.columns))
    value = pl.col(event.value) if event.value in frame.columns else pl.lit(None, dtype=pl.String)
    return frame.select(
        pl.col(subject).alias("subject"), when.alias("when"), code.alias("code"), value.alias("raw")
    )  # fmt: skip


def _code(template: str, have: Sequence[str]) -> pl.Expr:
    """The template filled in; null where a column is empty or absent."""
    parts = []
    for literal, name, _, _ in string.Formatter().parse(template):
        if literal:
            parts.append(pl.lit(literal))
        if name:
            parts.append(text(name) if name in have else pl.lit(None, dtype=pl.String))
    return pl.concat_str(parts) if parts else pl.lit(None, dtype=pl.String)


def _concepts(files: dict[str, Path], names: dict[str, str]) -> pl.DataFrame | None:
    """concept_id -> vocabulary and code, where the folder has OMOP's concept table."""
    if "concept" not in files:
        return None
    parts = []
    for frame in chunks(files["concept"], ["concept_id", "concept_name", "vocabulary_id", "concept_code"], Ledger()):
        parts.append(frame.select(
            text("concept_id").alias("concept_id"), text("vocabulary_id").alias("vocabulary"),
            text("concept_code").alias("concept_code"), text("concept_name").alias("name"),
        ))  # fmt: skip
    whole = pl.concat(parts)
    if len(whole) <= NAMED:
        for vocabulary, code, name in whole.select("vocabulary", "concept_code", "name").iter_rows():
            names |= {f"{prefix}//{vocabulary}//{code}": name for prefix in PREFIXES}
    return whole.drop("name")


def _joined(files: dict[str, Path]) -> pl.DataFrame:
    """hadm_id -> dischtime of MIMIC-IV's admissions."""
    parts = [
        f.select(text("hadm_id").alias("hadm_id"), text("dischtime").alias("dischtime"))
        for f in chunks(files["admissions"], ["hadm_id", "dischtime"], Ledger())
    ]
    return pl.concat(parts).unique("hadm_id", keep="first")


def _lab_names(files: dict[str, Path], names: dict[str, str]) -> None:
    if "d_labitems" in files:
        for frame in chunks(files["d_labitems"], ["itemid", "label"], Ledger()):
            names |= {
                f"LAB//{i}": str(n)
                for i, n in frame.select(text("itemid").alias("i"), text("label").alias("n")).iter_rows()
            }
