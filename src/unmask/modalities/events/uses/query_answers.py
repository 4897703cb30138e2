"""Answers: the probability of each question at each prediction point, and of which points nothing can be said."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Float

from unmask.core.inference import first_slots, inference_mode
from unmask.errors import UserError, option
from unmask.evaluation.charts import histogram, line_chart, number, table
from unmask.evaluation.report import Report
from unmask.modalities.events.outcome.scoring import figures
from unmask.modalities.events.questions.queries import (
    ABOVE,
    BELOW,
    ITEMS,
    Queries,
    empty,
    features,
    first_after,
    joined,
    made,
    put,
)
from unmask.modalities.events.questions.query_head import QueryHead
from unmask.modalities.events.questions.query_text import EXAMPLE, Query, checked, parsed, spoken
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.meds import DEATH, HOUR, STATIC, Events, Labels
from unmask.modalities.events.uses.folder import EventFolder

TOGETHER = 256
"""Questions of one row that are answered in one go."""
NO_EVENTS = "no event with a time is known by then"
DEAD = "died before"
UNCALIBRATED = "warning: too few patients were held out of the pretraining to calibrate its answers"


def queries_of(folder: EventFolder) -> QueryHead:
    """The part of a model that answers questions."""
    head = getattr(folder.model, "queries", None)
    if head is None:
        raise UserError(
            "the model was pretrained without questions", hint=f"Pretrain one that answers: {option('recipe', 'ask')}."
        )
    return head


def last_points(events: Events, until: int | None = None) -> Labels:
    """Of every patient the time of the last event, or `until` (microseconds) where that is given; 1970 where no event
    has a time (`unanswerable` names those)."""
    stop = events.offsets[1:] - 1
    time = np.where(stop >= events.offsets[:-1], events.time[stop.clip(min=0)], STATIC)
    end = time if until is None else until
    return Labels(subject=np.arange(len(events)), time=np.where(time == STATIC, 0, end))


def unanswerable(histories: Histories, points: Labels) -> list[str | None]:
    """Why a point cannot be asked about: nothing is known by then, or the patient is dead; None where it can."""
    events, deadly, out = histories.events, histories.events.begins(DEATH), list[str | None]()
    for subject, moment in zip(points.subject.tolist(), points.time.tolist(), strict=True):
        known = events.before(subject, moment)
        timed = known.start + int(np.searchsorted(events.time[known], STATIC, side="right"))
        if timed == known.stop or not (histories.code[timed : known.stop] >= 0).any():
            out.append(NO_EVENTS)
        else:
            out.append(DEAD if deadly[events.code[known]].any() else None)
    return out


def rates_of(
    folder: EventFolder, histories: Histories, points: Labels, queries: Queries, numbers: np.ndarray
) -> Float[np.ndarray, "points questions bins"]:
    """Rates of the questions at those of the points, uncalibrated; what is known at a point are the events up to its
    time, inclusive."""
    head = queries_of(folder)
    model: Any = folder.model
    out = np.zeros((len(numbers), len(queries), len(head.edges)), np.float32)
    with inference_mode(model):
        for packed, held in histories.batches(points, numbers, slots=folder.settings.slots):
            batch = packed.to(next(model.parameters()).device)
            states = model.states(batch)
            first = first_slots(batch, len(held))
            row = first // batch.shape[1]
            segment = batch.segment.flatten().cpu().numpy()[first]
            facts = [features(histories, queries, int(points.subject[n]), int(points.time[n])) for n in numbers[held]]
            place = np.zeros(len(held), np.int64)  # of each example among those of its row
            for r in np.unique(row):
                place[row == r] = np.arange((row == r).sum())
            size = max(1, TOGETHER // int(place.max() + 1))
            for start in range(0, len(queries), size):
                here = slice(start, min(start + size, len(queries)))
                some, count = queries.some(here), here.stop - here.start
                places = [(int(r), slice(p * count, (p + 1) * count)) for r, p in zip(row, place, strict=True)]
                room = empty(batch.shape[0], count * int(place.max() + 1), some.code.shape[1])
                for n, where in enumerate(places):
                    put(room, where, some, facts[n][here], segment[n])
                tensors = {name: torch.from_numpy(value).to(states.device) for name, value in room.items()}
                rates = head(states, batch.segment, tensors).float().cpu().numpy()
                for n, where in enumerate(places):
                    out[held[n], here] = rates[where]
    return out


def probabilities(
    folder: EventFolder, histories: Histories, points: Labels, queries: Queries, hours: Sequence[float] | np.ndarray
) -> tuple[np.ndarray, list[str | None]]:
    """(points, questions) that each comes true within its hours, NaN at points that cannot be asked about; and why
    they cannot. What asks for values beyond some is never likelier than the same codes with any value."""
    head, why = queries_of(folder), unanswerable(histories, points)
    out = np.full((len(points), len(queries)), np.nan)
    numbers = np.flatnonzero([reason is None for reason in why])
    within = torch.as_tensor(np.asarray(hours, np.float64))
    sided = np.flatnonzero((queries.side != 0).any(1))
    both = joined([queries, queries.some(sided).without_values()])
    within = torch.cat([within, within[sided]])
    with torch.no_grad():
        device = head.edges.device
        within = within.to(device)
        share = head.share_of(*(torch.from_numpy(part).to(device) for part in (both.code, both.side, both.share)))
    for start in range(0, len(numbers), 512):
        some = numbers[start : start + 512]
        rates = torch.from_numpy(rates_of(folder, histories, points, both, some)).to(device)
        with torch.no_grad():
            each, shares = (part.expand(len(some), -1).flatten() for part in (within, share))
            found = head.probability(rates.flatten(0, 1), each, shares).view(len(some), -1).cpu().numpy()
        out[some] = found[:, : len(queries)]
        out[np.ix_(some, sided)] = np.minimum(found[:, sided], found[:, len(queries) :])
    return out, why


def check_questions(folder: EventFolder, histories: Histories, questions: Sequence[str]) -> tuple[list[Query], Queries]:
    """Questions, and the same as numbers; what cannot be asked is refused."""
    if not questions:
        raise UserError("no question", hint=EXAMPLE)
    head, queries = queries_of(folder), [parsed(text) for text in questions]
    twice = [text for text, count in Counter(q.text for q in queries).items() if count > 1]
    if twice:
        raise UserError(f"question {twice[0]!r} is asked twice", hint="Ask it once.")
    return queries, checked(queries, histories, head)


def ask(
    folder: EventFolder,
    histories: Histories,
    questions: Sequence[str],
    points: Labels | None = None,
    until: int | None = None,
) -> pl.DataFrame:
    """See `EventModel.ask`; without points at the last events, or at `until` (microseconds)."""
    queries, rows = check_questions(folder, histories, questions)
    at_last = points is None
    points = last_points(histories.events, until) if points is None else points
    found, why = probabilities(folder, histories, points, rows, [q.hours for q in queries])
    found = np.where(np.array([q.none for q in queries]), 1 - found, found)
    timeless = np.repeat(np.array([reason == NO_EVENTS for reason in why]) & at_last, len(queries))
    frame = pl.DataFrame(
        {
            "subject_id": np.repeat(histories.events.subjects[points.subject], len(queries)),
            "prediction_time": pl.Series(np.repeat(points.time, len(queries))).cast(pl.Datetime("us")),
            "question": [q.text for q in queries] * len(points),
            "probability": pl.Series(found.ravel()).fill_nan(None),
            "unanswered": pl.Series([reason for reason in why for _ in queries], dtype=pl.String),
        }
    )
    return frame.with_columns(
        prediction_time=pl.when(pl.Series(timeless)).then(None).otherwise(pl.col("prediction_time"))
    )


def judged(frame: pl.DataFrame) -> dict[str, dict[str, Any]]:
    """Figures of the answers to a task, and of its prevalence, at the points that were answered."""
    answered = frame.drop_nulls("probability")
    y, p, who = (answered[n].to_numpy() for n in ("boolean_value", "probability", "subject_id"))
    if not len(answered):
        return {}
    same = np.full(len(p), y.mean())
    return {"model": figures(y.astype(np.int64), p, who), "prevalence": figures(y.astype(np.int64), same, who)}


CODES = 64
"""Asked for, the most frequently asked ones first; of those with values also whether one lies in the outer quarters."""


def panel(histories: Histories, head: QueryHead) -> Queries:
    """The questions: each code, a value of it above its upper quartile, and one below its lower."""
    share, vocabulary = head.share.cpu().numpy(), histories.vocabulary
    order = np.argsort(-share, kind="stable")
    rows = [
        (column, way, 0.0 if not way else vocabulary.at(column, 0.75 if way == ABOVE else 0.25))
        for column in order[:CODES][share[order[:CODES]] > 0].tolist()
        for way in ((0, ABOVE, BELOW) if vocabulary.valued[column] else (0,))
    ]
    shape = (len(rows), ITEMS)
    codes, sides, cuts = np.full(shape, -1, np.int64), np.zeros(shape, np.int64), np.zeros(shape)
    for part, into in enumerate((codes, sides, cuts)):
        into[:, 0] = [row[part] for row in rows]
    return made(histories, codes, sides, cuts)


def panel_answers(folder: EventFolder, histories: Histories, points: Labels) -> np.ndarray:
    """(points, questions) logarithm of each question's rates summed up to the middle of the horizons, what its
    probability is made of; of points at which nothing is known too, as states are."""
    head = queries_of(folder)
    questions, edges = panel(histories, head), head.edges
    within = torch.sqrt(edges[0] * edges[-1])[None]
    rates = torch.from_numpy(rates_of(folder, histories, points, questions, np.arange(len(points))))
    overlap = head.overlap(within.to(head.edges.device)).cpu()
    return (rates * overlap).sum(-1).clamp_min(1e-7).log().numpy()


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
        answers = f"mean {p.mean():.3f}, from {p.min():.3f} to {p.max():.3f}" if len(p) else "no answer"
        out.append(f"  {question}: {answers}")
    return out


def write(
    folder: EventFolder,
    histories: Histories,
    frame: pl.DataFrame,
    out: str | Path,
    *,
    patients: list[int],
    examples: bool,
    source: str,
) -> Path:
    """Write the page, with the answers along the records of `patients` (subject_ids) or, with `examples`, of those with
    the highest answers to the first question."""
    questions = frame["question"].unique(maintain_order=True).to_list()
    known = {int(s): i for i, s in enumerate(histories.events.subjects)}
    for patient in patients:
        if patient not in known:
            raise UserError(f"patient {patient} is not in {source}", hint="Give the subject_id of one that is.")
    if examples and not patients:
        first = frame.filter(pl.col("question") == questions[0]).drop_nulls("probability")
        first = first.sort("probability", descending=True)
        patients = first["subject_id"].unique(maintain_order=True).head(DRAWN).to_list()
    page = Report("Answers to questions about what is to come", str(source))
    head = queries_of(folder)
    page.facts(
        {
            "Questions": len(questions),
            "Points": len(frame) // len(questions),
            "Horizons trained": f"{spoken(float(head.edges[0]))} to {spoken(float(head.edges[-1]))}",
            "Calibrated on": f"{int(head.calibrated):,} questions at moments drawn at random: where points are all of "
            "one kind (each discharge), answers may be off"
            if int(head.calibrated)
            else "nobody",
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
        _along(page, folder, histories, known[patient], questions)
    return page.write(out)


def _along(page: Report, folder: EventFolder, histories: Histories, subject: int, questions: list[str]) -> None:
    """The answers at time stamps along a record, and when each came true."""
    events = histories.events
    rows = histories.rows(subject)  # births are no part of them
    rows = rows[events.time[rows] != STATIC]
    if not len(rows):
        return
    stamps = np.unique(events.time[rows])
    since = stamps[0]
    stamps = stamps[np.unique(np.linspace(0, len(stamps) - 1, TIMES).astype(int))]
    points = Labels(subject=np.full(len(stamps), subject), time=stamps)
    frame = ask(folder, histories, questions, points)
    days = (stamps - since) / HOUR / 24
    unit, scale = ("days", 1.0) if days[-1] < 730 else ("years", 365.25)
    series = {
        question: (days / scale, frame.filter(pl.col("question") == question)["probability"].fill_null(np.nan))
        for question in questions
    }
    axis, title = f"{unit} since the first event", "Answers along the record"
    svg = line_chart(series, title, axis, "probability", percent=True, from_zero=True)
    parsed_questions, queries = check_questions(folder, histories, questions)
    hours, texts = (events.time[rows] - since) / HOUR, dict[str, None]()
    for q, query in enumerate(parsed_questions):
        first = first_after(queries.some(slice(q, q + 1)), hours, histories.code[rows], events.value[rows])[0]
        came = f"first {first / 24 / scale:.2f} {unit} after the first event" if np.isfinite(first) else "never"
        what = query.text.rsplit(" within ", 1)[0]
        what = re.sub(r"^none\b", "any", what, flags=re.IGNORECASE) if query.none else what
        texts[f"{what}: seen in this record {came}."] = None
    page.section(
        f"Patient {int(events.subjects[subject])}",
        svg,
        note="Each answer was given with what was known by then. " + " ".join(texts),
    )
