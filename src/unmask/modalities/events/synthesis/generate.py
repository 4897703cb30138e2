"""`unmask generate MEDS`: new patients, learnt from records, as a MEDS folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from unmask.errors import UserError, option
from unmask.modalities.events.outcome.clinical import descriptions
from unmask.modalities.events.records.histories import YEAR
from unmask.modalities.events.records.meds import BIRTH, HOUR, as_events
from unmask.modalities.events.records.shards import SCHEMA, write_meds
from unmask.modalities.events.synthesis.conditions import conditions_of, meeting
from unmask.modalities.events.synthesis.generator import Generator
from unmask.modalities.events.synthesis.sequences import LEAST, sequences_of
from unmask.writing import check_absent

ATTEMPTS = 50
"""Patients drawn at most for each that is asked for, where conditions are given."""
TOGETHER = 500
"""Patients drawn side by side."""


def generate(
    data: Any, patients: int, out: str | Path, *, where: Sequence[str] | str = (), seed: int = 0
) -> dict[str, Any]:
    """Learn from records, and write new patients.

    Codes of fewer than `LEAST` patients are never drawn, values stay between the `LEAST`-th smallest and largest of the
    patients' extremes, and patients whom the data's splits hold out are not learnt from. That lowers the risk that a
    record points at a person; it does not make records anonymous.

    Args:
        data: a MEDS folder, a table with the columns of one, or events read before.
        patients: how many.
        out: MEDS folder to make.
        where: conditions that every patient meets, joined by "and", in the words of questions (`query_text`): "age >
            70" (years at the last event), "CODE > 10" (any of its values), "any of A, B", "not A"; for a code also
            words of its description ("diabetes").
        seed: the same seed gives the same folder.

    Returns:
        out, rows (patients), events, codes, learnt_from (patients), drawn (patients, of whom `rows` met them),
        left_out (codes that too few patients have), without (patients who have no event at a time that may be drawn:
        nothing is learnt from them), repeats (events that stand again at a time stamp, drawn once), conditions (each
        with the codes that it was taken for).

    Raises:
        UserError: too few patients; a condition that names no code, or that too few of those drawn meet.
    """
    if patients < 1:
        raise UserError(option("patients", patients), hint="Expected at least 1.")
    check_absent(out)
    events = as_events(data)
    learnt = np.arange(len(events)) if events.held_out is None else np.flatnonzero(~events.held_out)
    sequences, words = sequences_of(events, learnt), descriptions(data)
    names = sequences.vocabulary.codes
    drawable = {names[i]: int(i) for i in np.r_[sequences.static, sequences.timed]}
    conditions = conditions_of(where, drawable, words, ages=bool(np.isfinite(sequences.age).any()))
    meant = {term: condition.codes for term, condition in conditions.items()}
    generator = Generator(sequences, seed=seed)

    frames: list[pl.DataFrame] = []
    kept = drawn = 0
    while kept < patients:
        if conditions and drawn >= ATTEMPTS * patients:
            raise UserError(
                f"{kept:,} of {drawn:,} patients drawn meet {' and '.join(conditions)}",
                hint="Ask for fewer patients, or for less of them: so few records are no basis to learn from.",
            )
        rng = np.random.default_rng([seed, 13, drawn])
        size = TOGETHER if conditions else min(TOGETHER, patients - kept)
        frame = _drawn(generator, size, rng)
        chosen = meeting(frame, conditions.values())[: patients - kept]
        numbers = pl.DataFrame({"patient": chosen, "subject_id": np.arange(kept + 1, kept + len(chosen) + 1)})
        frames.append(frame.join(numbers, on="patient", how="inner", maintain_order="left"))
        kept, drawn = kept + len(chosen), drawn + size
    whole = pl.concat(frames)
    table = whole.with_columns(pl.col("code").replace_strict(dict(enumerate([*names, BIRTH])), return_dtype=pl.String))
    about = {"conditions": meant} if meant else {}  # for `compare`
    write_meds(table.select(list(SCHEMA)), out, name="synthetic", codes=words, about=about)
    return {
        "out": str(out),
        "rows": patients,
        "events": len(table),
        "codes": table["code"].n_unique(),
        "learnt_from": generator.learnt_from,
        "drawn": drawn,
        "left_out": len(sequences.left_out),
        "least": LEAST,
        "without": sequences.without,
        "repeats": sequences.repeats,
        "conditions": meant,
    }


def _drawn(generator: Generator, count: int, rng: np.random.Generator) -> pl.DataFrame:
    """Events of new patients: patient, time, code (a number, births one behind the last), numeric_value, age (years at
    the event, NaN where unknown); facts first, then births."""
    data = generator.data
    plan, events = generator.draw(count, rng)
    row, column = np.nonzero(plan.facts)
    code = data.static[column]
    value = generator.unscaled(code, plan.fact_score[row, column])
    birth = np.round((plan.start - np.nan_to_num(plan.age) * YEAR) / (24 * HOUR)).astype(np.int64) * 24 * HOUR
    birth = np.where(birth > plan.start, plan.start // (24 * HOUR) * 24 * HOUR, birth)
    known = np.flatnonzero(np.isfinite(plan.age))
    age = np.where(np.isfinite(plan.age), (0.0 - birth) / YEAR, np.nan)
    parts = [
        (row, None, code, value, np.full(len(row), np.nan)),
        (
            known,
            birth[known],
            np.full(len(known), len(data.vocabulary.codes)),
            np.full(len(known), np.nan),
            0.0 * known,
        ),
        (*(events[k] for k in ("patient", "time", "code", "value")), events["time"] / YEAR + age[events["patient"]]),
    ]
    frames = [
        pl.DataFrame(
            {
                "patient": patient.astype(np.int64),
                "time": pl.Series([None] * len(patient) if time is None else time, dtype=pl.Int64).cast(
                    pl.Datetime("us")
                ),
                "code": code.astype(np.int64),
                "numeric_value": pl.Series(value.astype(np.float32), nan_to_null=True),
                "age": pl.Series(years, nan_to_null=True),
            }
        )
        for patient, time, code, value, years in parts
    ]
    return pl.concat(frames).sort("patient", "time", nulls_last=False, maintain_order=True)
