"""An event model as it is served: missing values and next events, what was expected, scores, vectors, outcomes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import polars as pl

from unmask.errors import UserError
from unmask.modalities.events.questions.query_text import example_question
from unmask.modalities.events.records.cuts import after_death, without_events
from unmask.modalities.events.records.histories import unknown_of
from unmask.modalities.events.records.meds import STATIC, Events, Labels
from unmask.modalities.events.records.parquet import LARGEST
from unmask.modalities.events.uses.fill import timeline
from unmask.modalities.events.uses.model import EventModel, load
from unmask.modalities.events.uses.query_answers import check_questions, last_points
from unmask.serving.limits import Limits
from unmask.serving.shapes import Either, Field, ListOf, Nothing, Number, Record, Text
from unmask.serving.verbs import Served, Verb, Work

SHOWN = 2000
"""Codes that the page may offer, the first of the vocabulary."""
MOST_QUESTIONS = 100
"""Questions of one request."""
EXAMPLE_QUESTION = "GLUCOSE > 9 within 90 days"
"""Where no question that the model answers can be made up."""


def serve(path: str | Path, *, limits: Limits, device: str = "auto", precision: str = "auto") -> Served:
    """An event model as it is served."""
    model = load(path, device=device, precision=precision)
    outcome, verbs = None, dict[str, Verb]()
    if model.folder.head is not None and model.folder.outcome is not None:
        verbs["outcome"] = _outcome(model, limits)
        outcome = model.folder.outcome["target"]["kind"]
    verbs |= {
        "fill": _fill(model, limits),
        "expect": _expect(model, limits),
        "score": _score(model, limits),
        "embed": _embed(model, limits),
    }
    found, vocabulary, question = model.inspect(), model.folder.vocabulary, None
    head = getattr(model.folder.model, "queries", None)
    if head is not None:
        question = example_question(vocabulary, head)
        verbs["ask"] = _ask(model, limits, question or EXAMPLE_QUESTION)
    about = {
        **{name: found[name] for name in ("parameters", "slots", "codes", "layers", "width")},
        "known_codes": list(vocabulary.codes[:SHOWN]),
        "valued": [bool(v) for v in vocabulary.valued[-len(vocabulary.codes) :][:SHOWN]],
        "outcome": outcome,
        "question": question,
        "precision": model.precision,
        "device": str(model.device),
    }
    return Served(kind="events", about=about, verbs=verbs)


def _work(
    model: EventModel,
    events: Events,
    run: Callable[[Events, Sequence[Any]], Sequence[Any]],
    *,
    how: Hashable,
    finish: Callable[[list[Any]], dict[str, Any]] = lambda rows: {"results": rows},
    extras: Sequence[Any] | None = None,
    times: int = 1,
) -> Work:
    """Work on patients that may be done with those of others.

    Args:
        run: (patients, what `extras` has for each) -> an answer to each.
        how: patients with the same are worked on together.
        finish: the answers to a request's -> JSON; codes that the model does not know are said with them.
        extras: what else belongs to each patient.
        times: how often the model reads them, about.
    """
    unknown = unknown_of(model.histories(events))
    own = [None] * len(events) if extras is None else extras
    lengths: list[int] = np.minimum(np.diff(events.offsets) + 1, model.folder.settings.slots).tolist()

    def each(some: Sequence[tuple[tuple[Events, int], Any]]) -> Sequence[Any]:
        return run(joined([one for one, _ in some]), [b for _, b in some])

    return Work(
        items=[((events, n), one) for n, one in enumerate(own)],
        slots=[length * times for length in lengths],
        run=each,
        finish=lambda answers: {**finish(list(answers)), "unknown": unknown},
        together=how,
    )


def _rows(frame: pl.DataFrame, events: Events) -> list[list[dict[str, Any]]]:
    """The rows of a frame by patient, in the order of the request."""
    place = {int(subject): n for n, subject in enumerate(events.subjects)}
    out: list[list[dict[str, Any]]] = [[] for _ in place]
    for row in frame.to_dicts():
        out[place[row.pop("subject_id")]].append(row)
    return out


def _verb(
    model: EventModel,
    limits: Limits,
    about: str,
    work: Callable[[Events, Any], Work],
    fields: Mapping[str, Field] = MappingProxyType({}),
    *,
    time: str | None = None,
    example: Mapping[str, Any] = MappingProxyType({}),
) -> Verb:
    """A verb about patients.

    Args:
        work: (the patients, the body) -> the work.
        fields: of the request, behind the patients.
        time: what is done at the `prediction_time` of each patient; None: they have none.
        example: the rest of one, behind its patient.
    """
    when = f"{time}: later events are not looked at; default the last event."
    more = {} if time is None else {"prediction_time": Field(TIME, when, None)}
    codes = model.folder.vocabulary.codes
    event = {"time": "2020-03-01", "code": codes[0] if codes else "GLUCOSE", "numeric_value": None}
    return Verb(
        about=about,
        request=Record(patients=patients_field(limits, **more), **fields),
        prepare=lambda body: work(events_of(body["patients"]), body),
        example={"patients": [{"events": [event]}], **example},
    )


def _fill(model: EventModel, limits: Limits) -> Verb:
    def work(events: Events, body: Any) -> Work:
        top, level = body["top"], body["level"]

        def run(found: Events, _: Sequence[Any]) -> list[Any]:
            return _rows(model.fill(found, top=top, level=level), found)

        return _work(model, events, run, how=("fill", top, level))

    fields = {
        "top": Field(Number(0, 1000, whole=True), "Next events per patient; 0 leaves them out.", 5),
        "level": Field(Number(0.01, 0.99), "Of the intervals.", 0.9),
    }
    about = "Missing values with an interval, and the likeliest next events, of each patient."
    return _verb(model, limits, about, work, fields)


def _expect(model: EventModel, limits: Limits) -> Verb:
    def run(found: Events, _: Sequence[Any]) -> list[Any]:
        histories = model.histories(found)
        model.folder.model.to(model.device)
        rows = [timeline(model.folder, histories, n, None) for n in range(len(found))]
        for one in rows:
            for row in one:
                row["time"] = None if row["time"] == STATIC else np.datetime64(row["time"], "us").astype(object)
        return rows

    about = "What was expected at each event of a patient, every visit hidden alone; intervals hold 80 %."
    return _verb(model, limits, about, lambda events, _: _work(model, events, run, how="expect", times=8))


def _score(model: EventModel, limits: Limits) -> Verb:
    def work(events: Events, body: Any) -> Work:
        by = body["by"]
        return _work(
            model, events, lambda found, _: _rows(model.score(found, by=by), found), how=("score", by), times=8
        )

    about = "How natural each patient, visit or event is to the model, in nats; the lower, the more surprising."
    by = Field(Text(known=("patient", "visit", "event")), "One row per.", "patient")
    return _verb(model, limits, about, work, {"by": by})


def _embed(model: EventModel, limits: Limits) -> Verb:
    def work(events: Events, _: Any) -> Work:
        return _work(
            model,
            events,
            lambda found, _: list(model.embed(found)),
            how="embed",
            finish=lambda vectors: {"embeddings": np.stack(vectors)},
        )

    return _verb(model, limits, "One vector per patient.", work)


def _times(body: Any, events: Events) -> list[int]:
    """The prediction time of each patient, by default that of the last event."""
    times = []
    for number, (patient, last) in enumerate(zip(body["patients"], last_points(events).time.tolist(), strict=True)):
        time = microseconds(patient["prediction_time"], f"patients[{number}].prediction_time")
        times.append(last if time == STATIC else time)
    return times


def _points(events: Events, times: Sequence[int]) -> Labels:
    return Labels(subject=np.arange(len(events)), time=np.array(times, np.int64))


def _outcome(model: EventModel, limits: Limits) -> Verb:
    def run(found: Events, times: Sequence[int]) -> list[Any]:
        points = _points(found, times)
        target, p = model.probabilities(model.histories(found), points)
        return pl.DataFrame(target.columns(p, points)).to_dicts()

    def work(events: Events, body: Any) -> Work:
        times = _times(body, events)
        points = _points(events, times)
        odd = {
            "before the first event": without_events(events, points),
            "after the death": after_death(events, points),
        }
        warned = [
            f"patients[{number}]: asked {where} of the patient"
            for where, lie in odd.items()
            for number in np.flatnonzero(lie).tolist()
        ]

        def finish(rows: list[dict[str, Any]]) -> dict[str, Any]:
            known = [name for name in rows[0] if any(row[name] is not None for row in rows)]
            return {"results": [{name: row[name] for name in known} for row in rows], "warnings": warned}

        return _work(model, events, run, how="outcome", finish=finish, extras=times, times=2)

    about = "The outcome that the head was fine-tuned for, at a prediction time of each patient."
    return _verb(model, limits, about, work, time="When the outcome is asked for")


def _ask(model: EventModel, limits: Limits, example: str) -> Verb:
    def work(events: Events, body: Any) -> Work:
        questions = tuple(body["questions"])
        check_questions(model.folder, model.histories(events), questions)

        def run(found: Events, times: Sequence[int]) -> list[Any]:
            frame = model.ask(found, questions, _points(found, times))
            rows = frame.select("question", "probability", "unanswered").to_dicts()
            return [rows[n : n + len(questions)] for n in range(0, len(rows), len(questions))]

        return _work(model, events, run, how=("ask", questions), extras=_times(body, events), times=2)

    questions = Field(ListOf(Text(longest=1000), most=MOST_QUESTIONS, least=1), f"Such as {example!r}.")
    about = "How probable is what is to come of each patient, without a label."
    return _verb(
        model,
        limits,
        about,
        work,
        {"questions": questions},
        time="When it is asked",
        example={"questions": [example]},
    )


TIME = Either((Text(), Nothing()), "a time such as 2020-03-01T08:30:00, or null")
EVENT = Record(
    time=Field(TIME, "When, as ISO 8601; null, or left out: a fact without a time, such as sex.", None),
    code=Field(Text(longest=1000), "What, as the training data call it: LAB//GLUCOSE//mg/dL."),
    numeric_value=Field(Either((Number(), Nothing()), "a number or null"), "Its value, where it has one.", None),
)


def patients_field(limits: Limits, **more: Field) -> Field:
    """The patients of a request."""
    patient = Record(
        subject_id=Field(Number(-(2**63), 2**63 - 1, whole=True), "Default: its place, from 0.", None),
        events=Field(ListOf(EVENT, least=1), "In any order."),
        **more,
    )
    return Field(ListOf(patient, most=limits.items, least=1), "Patients, each with their events.")


def events_of(patients: Sequence[Mapping[str, Any]]) -> Events:
    """The events of some patients, each in order of time; those of one time in the order given."""
    ids = [n if p["subject_id"] is None else int(p["subject_id"]) for n, p in enumerate(patients)]
    twice = next((i for i in ids if ids.count(i) > 1), None) if len(set(ids)) < len(ids) else None
    if twice is not None:
        raise UserError(f"subject_id {twice} is given twice", hint="Send each patient once, with all events.")
    time, code, value, counts = [], [], [], []
    for number, patient in enumerate(patients):
        rows = []
        for place, event in enumerate(patient["events"]):
            at = f"patients[{number}].events[{place}]"
            if not event["code"]:
                raise UserError(f"{at}.code: empty", hint="Give a code.")
            amount = event["numeric_value"]
            if amount is not None and not abs(amount) <= LARGEST:
                hint = "Values are 32-bit floats: give a smaller number, or null."
                raise UserError(f"{at}.numeric_value: {amount}: infinite, or beyond 3.4e38", hint=hint)
            rows.append((microseconds(event["time"], f"{at}.time"), event["code"], amount))
        rows.sort(key=lambda row: row[0])
        counts.append(len(rows))
        time += [row[0] for row in rows]
        code += [row[1] for row in rows]
        value += [np.nan if row[2] is None else row[2] for row in rows]
    return _coded(ids, counts, time, code, value)


def _coded(subjects: Any, counts: Sequence[int], time: Any, names: Sequence[str], value: Any) -> Events:
    """Events with the names of their codes, the patients one after the other."""
    known = sorted(set(names))
    place_of = {name: n for n, name in enumerate(known)}
    return Events(
        subjects=np.asarray(subjects, np.int64),
        offsets=np.r_[0, np.cumsum(counts)],
        time=np.asarray(time, np.int64),
        code=np.array([place_of[name] for name in names], np.int32),
        value=np.asarray(value, np.float32),
        codes=known,
    )


def joined(some: Sequence[tuple[Events, int]]) -> Events:
    """Patients of several requests by their places there, numbered anew: ids of one mean nothing in another."""
    parts = [(events, slice(*events.offsets[n : n + 2])) for events, n in some]
    time, value = (np.concatenate([getattr(one, name)[own] for one, own in parts]) for name in ("time", "value"))
    names = [events.codes[code] for events, own in parts for code in events.code[own].tolist()]
    return _coded(np.arange(len(some)), [own.stop - own.start for _, own in parts], time, names, value)


def microseconds(text: str | None, at: str) -> int:
    """Microseconds since 1970, `STATIC` for none."""
    if text is None:
        return int(STATIC)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        hint = "Expected ISO 8601, such as 2020-03-01 or 2020-03-01T08:30:00."
        raise UserError(f"{at}: {text[:40]!r}", hint=hint) from None
    if found.tzinfo is not None:
        raise UserError(f"{at}: {text[:40]!r} has a time zone", hint="Times of events have none: leave it out.")
    return (found - datetime(1970, 1, 1)) // timedelta(microseconds=1)
