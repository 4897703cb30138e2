"""Patients as JSON to events as the model reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.modalities.events.records.meds import STATIC, Events
from unmask.modalities.events.records.parquet import LARGEST
from unmask.serving.limits import Limits
from unmask.serving.shapes import Either, Field, ListOf, Nothing, Number, Record, Text

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
    known = sorted(set(code))
    place_of = {name: n for n, name in enumerate(known)}
    return Events(
        subjects=np.array(ids, np.int64),
        offsets=np.r_[0, np.cumsum(counts)],
        time=np.array(time, np.int64),
        code=np.array([place_of[name] for name in code], np.int32),
        value=np.array(value, np.float32),
        codes=known,
    )


def each_patient(events: Events) -> list[Events]:
    """The patients one by one."""
    return [
        replace(
            events,
            subjects=events.subjects[n : n + 1],
            offsets=np.array([0, end - start]),
            time=events.time[start:end],
            code=events.code[start:end],
            value=events.value[start:end],
        )
        for n, (start, end) in enumerate(pairwise(events.offsets.tolist()))
    ]


def joined(some: Sequence[Events]) -> Events:
    """Patients of several requests, who are numbered anew: ids of one request mean nothing in another."""
    codes = sorted({code for one in some for code in one.codes})
    place_of = {code: n for n, code in enumerate(codes)}
    numbers = [np.array([place_of[code] for code in one.codes], np.int32) for one in some]
    return Events(
        subjects=np.arange(sum(map(len, some))),
        offsets=np.r_[0, np.cumsum(np.concatenate([np.diff(one.offsets) for one in some]))],
        time=np.concatenate([one.time for one in some]),
        code=np.concatenate([own[one.code] for own, one in zip(numbers, some, strict=True)]),
        value=np.concatenate([one.value for one in some]),
        codes=codes,
    )


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
