"""Leaks of every known kind, planted one by one into clean stays, with what the audit says of each.

Kinds in capitals are those of the package icu-leakage-check 0.1.0 (`icu-leakage-check taxonomy`); "demo" marks the ones
that its demo plants.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import polars as pl

Row = tuple[int, datetime | None, str, float | None, int | None]
Point = tuple[int, datetime, bool]
SUBJECTS = 240
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
SCHEMA = {
    "subject_id": pl.Int64,
    "time": pl.Datetime("us"),
    "code": pl.String,
    "numeric_value": pl.Float32,
    "visit_id": pl.Int64,
}


@dataclass
class Stays:
    """Rows of events, and points with a label that no code tells; `begin` and `end` of each subject's stay."""

    rows: list[Row]
    points: list[Point]
    begin: dict[int, datetime]
    end: dict[int, datetime]

    def frame(self) -> pl.DataFrame:
        return pl.DataFrame(self.rows, schema=SCHEMA, orient="row").sort(
            "subject_id", "time", nulls_last=False, maintain_order=True
        )


def clean(seed: int = 0) -> Stays:
    """A stay of two to six days per subject, asked about a day after its begin: will the patient die?"""
    rng = np.random.default_rng(seed)
    out = Stays([], [], {}, {})
    for subject in range(SUBJECTS):
        begin = datetime(2020, 1, 1) + timedelta(minutes=int(rng.integers(0, 500_000)))
        end = begin + timedelta(minutes=int(rng.integers(2 * 1440, 6 * 1440)))
        dies = bool(rng.random() < 0.3)
        born = datetime(1930, 1, 1) + timedelta(minutes=int(rng.integers(0, 60 * 525_600)))
        out.rows += [
            (subject, None, f"GENDER//{'MF'[subject % 2]}", None, None),
            (subject, born, "MEDS_BIRTH", None, None),
            (subject, begin, "ADMISSION", None, subject),
            (subject, end, "DISCHARGE", None, subject),
            (subject, end, "DIAGNOSIS//X", None, subject),
        ]
        if dies:
            out.rows.append((subject, end, "MEDS_DEATH", None, subject))
        minutes = int((end - begin) / timedelta(minutes=1))
        for _ in range(16):
            moment = begin + timedelta(minutes=int(rng.integers(1, minutes)))
            for code in rng.permutation(["A", "B", "C", "D"])[: rng.integers(3, 5)]:
                out.rows.append((subject, moment, str(code), float(rng.normal()), subject))
        out.points.append((subject, begin + DAY, dies))
        out.begin[subject], out.end[subject] = begin, end
    return out


def before(code: str, when: Callable[[bool], bool], value: Callable[[Point], float | None] = lambda _: None):
    """A code an hour before the points of some labels."""

    def plant(stays: Stays) -> None:
        stays.rows += [(s, t - HOUR, code, value((s, t, y)), s) for s, t, y in stays.points if when(y)]

    return plant


def moved(code: str, to: Callable[[datetime, datetime], datetime | None]):
    """A code of every stay at another time, made of its begin and end; None for without one."""

    def plant(stays: Stays) -> None:
        stays.rows = [
            (s, to(stays.begin[s], stays.end[s]), c, v, visit) if c == code else (s, t, c, v, visit)
            for s, t, c, v, visit in stays.rows
        ]

    return plant


def length_of_stay(stays: Stays) -> None:
    for s, begin in stays.begin.items():
        minutes = (stays.end[s] - begin) / timedelta(minutes=1)
        stays.rows.append((s, begin, "unitdischargeoffset", float(round(minutes)), s))


def dates_for_times(stays: Stays) -> None:
    stays.rows = [
        (s, datetime(t.year, t.month, t.day), c, v, visit) if c == "DIAGNOSIS//X" and t else (s, t, c, v, visit)
        for s, t, c, v, visit in stays.rows
    ]


def copied(share: float):
    """Twelve subjects once more under another id, with a share of their events."""

    def plant(stays: Stays) -> None:
        rng = np.random.default_rng(10)
        stays.rows += [
            (s + 10_000, t, c, v, visit)
            for s, t, c, v, visit in stays.rows
            if s < 12 and (t is None or rng.random() < share)
        ]

    return plant


def visits_for_people(stays: Stays) -> None:
    """A second stay of every fourth subject, years later, whose id is the stay's: as split by visit."""
    more = clean(1)
    born = {s: t for s, t, c, _, _ in stays.rows if c == "MEDS_BIRTH"}
    for s, t, c, v, visit in more.rows:
        if s % 4 == 0:
            time = born[s] if c == "MEDS_BIRTH" else t
            stays.rows.append((s + 10_000, time, c, v, None if visit is None else visit + 10_000))
    stays.points += [(s + 10_000, t, y) for s, t, y in more.points if s % 4 == 0]


def asked_late(stays: Stays) -> None:
    stays.points = [(s, stays.end[s] + HOUR, y) for s, _, y in stays.points]


def born_late(stays: Stays) -> None:
    stays.rows = [
        (s, stays.begin[s] + HOUR, c, v, visit) if c == "MEDS_BIRTH" and s < 9 else (s, t, c, v, visit)
        for s, t, c, v, visit in stays.rows
    ]


def a_year_early(stays: Stays) -> None:
    for s in range(9):
        stays.rows.append((s, stays.begin[s] - 365 * DAY, "A", 1.0, s))


def died_at_midnight(stays: Stays) -> None:
    stays.rows = [
        (s, datetime(t.year, t.month, t.day), c, v, visit) if c == "MEDS_DEATH" and t else (s, t, c, v, visit)
        for s, t, c, v, visit in stays.rows
    ]


TELLS = "tells the outcome"
PLANTED: dict[str, tuple[str, Callable[[Stays], None], str]] = {
    "the label's own code": ("OUTCOME_ENCODING", before("DIED", lambda y: y), TELLS),
    "a consequence of the outcome (comfort care)": (
        "OUTCOME_PROXY",
        before("COMFORT", lambda y: y),
        TELLS,
    ),
    "a value that parts the outcomes": (
        "SINGLE_FEATURE_DOMINANCE",
        before("RISK", lambda _: True, lambda p: float(p[2]) + p[0] / 1000),
        TELLS,
    ),
    "a code that the outcome lacks": ("MISSINGNESS_PROXY", before("SENT HOME", lambda y: not y), TELLS),
    "the length of stay at admission": ("HINDSIGHT_VARIABLE, demo", length_of_stay, "values that know the end"),
    "the discharge at admission": ("ours", moved("DISCHARGE", lambda begin, _: begin), "the end is known"),
    "diagnoses of the discharge at admission": (
        "ours",
        moved("DIAGNOSIS//X", lambda begin, _: begin),
        "coded early",
    ),
    "deaths without a time": ("UNDATED_SOURCE", moved("MEDS_DEATH", lambda *_: None), "facts without a time"),
    "dates taken for times": ("UNDATED_SOURCE", dates_for_times, "midnight"),
    "deaths on dates": ("ours", died_at_midnight, "death before its time"),
    "a patient twice, all events": ("DUPLICATE_RECORD", copied(1.0), "patients twice"),
    "a patient twice, nine in ten events": ("ENTITY_OVERLAP", copied(0.9), "patients nearly twice"),
    "ids of visits, so splits by visit": ("ENTITY_OVERLAP, demo", visits_for_people, "births in common"),
    "points after the outcome": ("POST_OUTCOME_INSTANCE", asked_late, "points after death"),
    "a year mistyped": ("ours", a_year_early, "events outside their encounter"),
    "births during the stay": ("ours", born_late, "before birth"),
}
"""What is planted -> (its kind, how, the check that finds it)."""
OF_TASKS = {
    "the label's measurement in the input window": ("POST_OUTCOME_INSTANCE", "the label is known"),
    "eligibility decided by what comes": ("COHORT_FUTURE_INFORMATION", "chosen by the future"),
    "labels that are all false": ("ours (MEDS-DEV #237)", "one outcome"),
    "windows beyond the record": ("ours (MEDS-DEV #9)", "not observed to the end"),
}
"""Found where labels are given as a task file; planted in test_aces.py."""
NOT_LOOKED_FOR = {
    "events after the prediction time": (
        "FUTURE_EVENT, demo",
        "they may be there: nothing after a prediction time reaches a model here (law 10)",
    ),
    "summaries of a whole stay, stamped early": (
        "FUTURE_EVENT, demo",
        "unless one of them tells the outcome; do not make them before the prediction time is known",
    ),
    "results at the time of collection": (
        "AVAILABILITY_LAG, demo",
        "MEDS has one time per event: `events convert` takes the time of the result, and says where there is none",
    ),
    "amounts of an infusion that still runs": (
        "INTERVAL_CROSSING, demo",
        "an event has no end: write rates, or amounts at the end",
    ),
    "worst values of a day at its begin": ("FIRST_DAY_SUMMARY", "as summaries of a stay"),
    "the same hospital in training and test": ("SITE_OVERLAP", "splits name patients, not sites"),
    "training on later years than the test": ("SPLIT_ORDER", "no split here claims to be in time"),
    "ids of visits, without births": ("ENTITY_OVERLAP", "nothing says who is who"),
    "imputation or scaling fitted on the test": (
        "PREPROCESSING_FIT, demo",
        "of a run, not of data: here everything is fitted on training patients (law 11)",
    ),
    "synthetic patients in the test": ("SYNTHETIC_IN_EVALUATION", "copies of training patients are found"),
    "thresholds chosen on the test": ("EVALUATION_REUSE", "of a run, not of data"),
}
"""What -> (its kind, why not, and what is done instead)."""
