"""OMOP CDM 5.3 and 5.4 (and Athena's vocabulary tables beside it)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from unmask.modalities.events.records.meds import BIRTH, DEATH, OBSERVATION_END
from unmask.modalities.events.sources.rows import small_table, text
from unmask.modalities.events.sources.tables import CellReading, Derive, Event, Files, Folder, SourceTable

NAMED = 200_000
"""Concepts up to which their names are kept: a whole OMOP vocabulary has millions."""
PREFIXES = (
    *("GENDER", "RACE", "ETHNICITY", "INSURANCE", "VISIT", "VISIT_END", "VISIT_DETAIL"),
    *("CONDITION", "DRUG", "DRUG_DAYS_SUPPLY"),
    *("PROCEDURE", "MEASUREMENT", "MEASUREMENT_FLAG", "OBSERVATION", "OBSERVATION_FLAG", "DEVICE", "SPECIMEN"),
)
OPERATORS = {"4171756": "<", "4171754": "<=", "4172704": ">", "4171755": ">="}
"""operator_concept_id of a measured value that is a bound."""


def _table(
    prefix: str, name: str, stem: str, *times: str, value: bool | str = False, more: Sequence[Event] = ()
) -> SourceTable:
    """A clinical table: its concept, when it was known, and its value: with unit and answer, or a column by name. An
    answer beside a number says whether that is high or low: a flag, an event of its own."""
    source = f"{stem}_source_value"
    derived: dict[str, tuple[str, ...]] = {"concept": (f"{stem}_concept_id", source)}
    event = Event(codes=(f"{prefix}//{{concept}}", f"{prefix}//SOURCE//{{{source}}}"), times=times)
    if isinstance(value, str):
        event = dataclasses.replace(event, value=value)
    elif value:
        derived |= {
            "unit": ("unit_concept_id", "unit_source_value"),
            "answer": ("value_as_concept_id",),
            "bound": ("operator_concept_id", "value_as_number"),
        }
        event = Event(
            codes=event.codes,
            suffixes=("{unit}", "{answer}"),
            times=times,
            value="value_as_number",
            words=("bound", "value_as_string", "value_source_value"),
        )
        flags = tuple(code.replace(prefix, f"{prefix}_FLAG", 1) + "//{flag}" for code in event.codes)
        derived, more = derived | {"flag": derived["answer"]}, [*more, Event(codes=flags, times=times, optional=True)]
    return SourceTable(
        name=name,
        subject="person_id",
        visit="visit_occurrence_id",
        derived=derived,
        events=[event, *more],
        midnight=True,
    )


def _start(stem: str) -> tuple[str, str]:
    return f"{stem}_start_datetime", f"{stem}_start_date"


def _end(prefix: str, stem: str) -> Event:
    source = f"{stem}_source_value"
    return Event(
        codes=(f"{prefix}_END//{{concept}}", f"{prefix}_END//SOURCE//{{{source}}}"),
        times=(f"{stem}_end_datetime", f"{stem}_end_date"),
        taken=_start(stem),
        optional=True,
    )


def _context(files: Files, names: dict[str, str], _: CellReading) -> Derive:
    concepts = Concepts(files, names)

    def derive(table: SourceTable, frame: pl.DataFrame) -> pl.DataFrame:
        made: dict[str, pl.Series] = {}
        for name, columns in table.derived.items():
            first = columns[0]
            if name == "birth":
                made[name] = _birth(frame)
            elif name == "bound":
                if first in frame.columns and columns[1] in frame.columns:
                    sign = text(first).str.replace(r"\.0$", "").replace_strict(OPERATORS, default=None)
                    made[name] = frame.select(pl.concat_str(sign, text(columns[1])).alias(name))[name]
            elif first in frame.columns:
                made[name] = concepts.codes(frame[first], bare=name == "unit")
            else:
                made[name] = pl.Series([None] * len(frame), dtype=pl.String)
        frame = frame.with_columns(series.alias(name) for name, series in made.items())
        if table.name == "drug_exposure" and "days_supply" in frame.columns:
            source = text("drug_source_value") if "drug_source_value" in frame.columns else pl.lit(None, pl.String)
            drug = pl.coalesce("concept", pl.format("SOURCE//{}", source))
            frame = frame.with_columns(pl.when(text("days_supply").is_not_null()).then(drug).alias("supplied"))
        words = [text(n) for n in ("value_as_string", "value_source_value") if n in frame.columns]
        if "answer" in table.derived and "value_as_number" in frame.columns and words:
            # A number that stands in words alone, where no coded answer says what it means.
            number, is_plain = pl.col("value_as_number"), r"^[+-]?\d+(\.\d+)?$"
            source = pl.coalesce(pl.when(word.str.contains(is_plain)).then(word) for word in words)
            plain = pl.when(pl.col("answer").is_null()).then(source)
            numeric = frame["value_as_number"].dtype.is_numeric()
            frame = frame.with_columns(
                pl.coalesce(
                    number if numeric else text("value_as_number"), plain.cast(pl.Float64) if numeric else plain
                ).alias("value_as_number")
            )
        if "answer" in made:
            number = text("value_as_number") if "value_as_number" in frame.columns else pl.lit(None, pl.String)
            is_number = number.cast(pl.Float64, strict=False).is_not_null()
            frame = frame.with_columns(
                pl.when(is_number).then("flag").alias("flag"), pl.when(~is_number).then("answer").alias("answer")
            )
        if "unit" in made and "unit_source_value" in frame.columns:
            frame = frame.with_columns(pl.coalesce("unit", text("unit_source_value")).alias("unit"))
        return frame

    return derive


def _birth(frame: pl.DataFrame) -> pl.Series:
    """The day of birth as text from its parts; a month or day that is not given is the first."""
    if "year_of_birth" not in frame.columns:
        return pl.Series([None] * len(frame), dtype=pl.String)

    def part(name: str) -> pl.Expr:
        found = text(name).str.replace(r"\.0$", "") if name in frame.columns else pl.lit(None, dtype=pl.String)
        return found.fill_null("1").str.zfill(2)

    year = text("year_of_birth").str.replace(r"\.0$", "")
    return frame.select(pl.format("{}-{}-{}", year, part("month_of_birth"), part("day_of_birth")).alias("b"))["b"]


class Concepts:
    """concept_id -> VOCABULARY//CODE, where the folder has the concept table; else OMOP//concept_id. 0 is none."""

    def __init__(self, files: Files, names: dict[str, str]) -> None:
        whole = small_table(files, "concept", "concept_id", "vocabulary_id", "concept_code", "concept_name")
        whole = whole.with_columns(pl.col("concept_id").cast(pl.Int64, strict=False)).drop_nulls("concept_id")
        whole = whole.unique("concept_id", keep="first").sort("concept_id")
        if len(whole) <= NAMED:
            for _, vocabulary, code, name in whole.iter_rows():
                names |= {f"{prefix}//{vocabulary}//{code}": name for prefix in PREFIXES}
        self.ids = whole["concept_id"].to_numpy()
        self.full = whole.select(pl.concat_str("vocabulary_id", "concept_code", separator="//").alias("c"))["c"]
        self.code = whole["concept_code"]

    def codes(self, column: pl.Series, *, bare: bool = False) -> pl.Series:
        """Of each id; with `bare` the code without its vocabulary (units)."""
        named = column.rename("id").to_frame().select(text("id").str.replace(r"\.0$", "").alias("id"))
        number = named["id"].cast(pl.Int64, strict=False)
        plain = named.select(pl.when(pl.col("id") != "0").then(pl.format("OMOP//{}", "id")).alias("c"))["c"]
        if not len(self.ids):
            return plain
        concepts = number.fill_null(-1).to_numpy()
        place = np.minimum(np.searchsorted(self.ids, concepts), len(self.ids) - 1)
        there = pl.Series((self.ids[place] == concepts) & (concepts != 0))
        found = (self.code if bare else self.full).gather(place)
        return found.zip_with(there, plain)


PERSON = SourceTable(
    name="person",
    subject="person_id",
    derived={
        "concept": ("gender_concept_id", "gender_source_value"),
        "race": ("race_concept_id",),
        "ethnicity": ("ethnicity_concept_id",),
        "birth": ("year_of_birth", "month_of_birth", "day_of_birth"),
    },
    events=[
        Event(codes=("GENDER//{concept}", "GENDER//SOURCE//{gender_source_value}")),
        Event(codes=("RACE//{race}", "RACE//SOURCE//{race_source_value}"), optional=True),
        Event(codes=("ETHNICITY//{ethnicity}", "ETHNICITY//SOURCE//{ethnicity_source_value}"), optional=True),
        Event(codes=(BIRTH,), times=("birth_datetime", "birth"), optional=True, start=True),
    ],
)
_UNREAD: Mapping[str, str] = {
    **dict.fromkeys(
        ("drug_era", "dose_era", "condition_era", "episode", "episode_event", "cohort", "cohort_definition"),
        "derived from other tables by rules that look ahead",
    ),
    "note": "free text",
    "note_nlp": "free text",
    "cost": "no clinical event",
    **dict.fromkeys(
        ("care_site", "location", "provider", "fact_relationship", "metadata", "cdm_source"), "no event of a patient"
    ),
    **dict.fromkeys(
        (
            *("vocabulary", "domain", "concept_class", "concept_relationship", "relationship", "concept_synonym"),
            *("concept_ancestor", "source_to_concept_map", "drug_strength", "concept_cpt4"),
        ),
        "vocabulary beside CONCEPT",
    ),
}
OMOP = Folder(
    name="OMOP",
    known_by=("person",),
    context=_context,
    unread=_UNREAD,
    helpers=("concept",),
    tables=[
        PERSON,
        _table("VISIT", "visit_occurrence", "visit", *_start("visit"), more=[_end("VISIT", "visit")]),
        _table("VISIT_DETAIL", "visit_detail", "visit_detail", *_start("visit_detail")),
        _table("CONDITION", "condition_occurrence", "condition", *_start("condition")),
        _table(
            "DRUG",
            "drug_exposure",
            "drug",
            *_start("drug_exposure"),
            value="quantity",
            more=[
                Event(
                    codes=("DRUG_DAYS_SUPPLY//{supplied}",),
                    times=_start("drug_exposure"),
                    value="days_supply",
                    optional=True,
                )
            ],
        ),
        _table("PROCEDURE", "procedure_occurrence", "procedure", "procedure_datetime", "procedure_date"),
        _table("MEASUREMENT", "measurement", "measurement", "measurement_datetime", "measurement_date", value=True),
        _table("OBSERVATION", "observation", "observation", "observation_datetime", "observation_date", value=True),
        _table("DEVICE", "device_exposure", "device", *_start("device_exposure")),
        _table("SPECIMEN", "specimen", "specimen", "specimen_datetime", "specimen_date"),
        _table("INSURANCE", "payer_plan_period", "payer", "payer_plan_period_start_date"),
        SourceTable(
            name="observation_period",
            subject="person_id",
            midnight=True,
            events=[Event(codes=(OBSERVATION_END,), times=("observation_period_end_date",))],
        ),
        SourceTable(
            name="death",
            subject="person_id",
            midnight=True,
            events=[Event(codes=(DEATH,), times=("death_datetime", "death_date"))],
        ),
    ],
)
