"""A page with answers: their distribution over patients, and of some patients how they changed along the record."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from unmask.errors import UserError
from unmask.evaluation.charts import histogram, line_chart, number, table
from unmask.evaluation.report import Report
from unmask.modalities.events.questions.queries import first_after
from unmask.modalities.events.questions.query_text import checked, parsed, spoken
from unmask.modalities.events.records.meds import HOUR, STATIC, Events, Labels
from unmask.modalities.events.uses.query_answers import queries_of

if TYPE_CHECKING:
    from unmask.modalities.events.uses.model import EventModel

DRAWN = 4
"""Patients that are drawn as examples, where none are named: those with the highest answer to the first question."""
TIMES = 40
"""Times along a record that a patient is asked at."""


def summary_lines(frame: pl.DataFrame) -> list[str]:
    """A line per question: the mean of its answers, and their range."""
    out = []
    names: list[str] = frame["question"].unique(maintain_order=True).to_list()
    for question in names:
        some = frame.filter(pl.col("question") == question)
        p = some["probability"].drop_nulls().to_numpy()
        said = f"mean {p.mean():.3f}, from {p.min():.3f} to {p.max():.3f}" if len(p) else "no answer"
        out.append(f"  {question}: {said}")
    return out


def write(
    model: EventModel,
    events: Events,
    frame: pl.DataFrame,
    out: str | Path,
    *,
    patients: list[int],
    examples: bool,
    source: str,
) -> Path:
    """Write the page.

    Args:
        patients: subject_ids to draw.
        examples: where none are named, draw those with the highest answers to the first question.
    """
    questions = frame["question"].unique(maintain_order=True).to_list()
    known = {int(s): i for i, s in enumerate(events.subjects)}
    for patient in patients:
        if patient not in known:
            raise UserError(f"patient {patient} is not in {source}", hint="Give the subject_id of one that is.")
    if examples and not patients:
        first = frame.filter(pl.col("question") == questions[0]).drop_nulls("probability")
        first = first.sort("probability", descending=True)
        patients = first["subject_id"].unique(maintain_order=True).head(DRAWN).to_list()
    page = Report("Answers to questions about what is to come", str(source))
    head = queries_of(model.folder)
    page.facts(
        {
            "Questions": len(questions),
            "Points": len(frame) // len(questions),
            "Horizons trained": f"{spoken(float(head.edges[0]))} to {spoken(float(head.edges[-1]))}",
            "Calibrated on": f"{int(head.calibrated):,} questions" if int(head.calibrated) else "nobody",
        }
    )
    rows = []
    for question in questions:
        p = frame.filter(pl.col("question") == question)["probability"].drop_nulls().to_numpy()
        counts = np.histogram(p, np.linspace(0, 1, 11))[0].tolist()
        mean = number(float(p.mean()), percent=True) if len(p) else "–"
        rows.append([question, len(p), mean, histogram(counts, "how many points have which probability")])
    page.section("All points", table(["question", "answered", "mean", "from 0 to 1"], rows))
    for patient in patients:
        _along(page, model, events, known[patient], questions)
    return page.write(out)


def _along(page: Report, model: EventModel, events: Events, subject: int, questions: list[str]) -> None:
    """The answers at time stamps along a record, and when each came true."""
    histories = model.histories(events)
    rows = histories.rows(subject)  # births are no part of them
    rows = rows[events.time[rows] != STATIC]
    if not len(rows):
        return
    stamps = np.unique(events.time[rows])
    since = stamps[0]
    stamps = stamps[np.unique(np.linspace(0, len(stamps) - 1, TIMES).astype(int))]
    points = Labels(subject=np.full(len(stamps), subject), time=stamps)
    frame = model.ask(events, questions, points)
    days = (stamps - since) / HOUR / 24
    unit, scale = ("days", 1.0) if days[-1] < 730 else ("years", 365.25)
    series = {
        question: (days / scale, frame.filter(pl.col("question") == question)["probability"].fill_null(np.nan))
        for question in questions
    }
    axis, title = f"{unit} since the first event", "Answers along the record"
    svg = line_chart(series, title, axis, "probability", percent=True, from_zero=True)
    queries = [parsed(question) for question in questions]
    asked = checked(queries, histories, queries_of(model.folder))
    hours, told = (events.time[rows] - since) / HOUR, dict[str, None]()
    for q, query in enumerate(queries):
        first = first_after(asked.some(slice(q, q + 1)), hours, histories.code[rows], events.value[rows])[0]
        came = f"first {first / 24 / scale:.2f} {unit} after the first event" if np.isfinite(first) else "never"
        what = query.text.rsplit(" within ", 1)[0]
        what = re.sub(r"^none\b", "any", what, flags=re.IGNORECASE) if query.none else what
        told[f"{what}: seen in this record {came}."] = None
    page.section(
        f"Patient {int(events.subjects[subject])}",
        svg,
        note="Each answer was given with what was known by then. " + " ".join(told),
    )
