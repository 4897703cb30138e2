"""What a trained model says of hidden events: a missing value with its interval, the likeliest next events, and what
it expected at each visit of a record.

Each question hides its slots in a copy of the patient, so no answer has seen what it answers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import polars as pl
import torch

from unmask.core.batch import Example
from unmask.core.corruption import hide
from unmask.core.inference import first_slots, inference_mode, packed_batches
from unmask.modalities.events.clock import squash, stretch
from unmask.modalities.events.codec import EventPrediction
from unmask.modalities.events.folder import EventFolder
from unmask.modalities.events.histories import Histories
from unmask.modalities.events.meds import DEATH, HOUR, STATIC, Events
from unmask.modalities.events.vocabulary import FIRST

SCHEMA: dict[str, Any] = {
    "subject_id": pl.Int64,
    "kind": pl.String,
    "time": pl.Datetime("us"),
    "code": pl.String,
    "probability": pl.Float64,
    "value": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
}
BLOCK = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """Slots of an example to hide and ask for."""

    example: Example
    hidden: np.ndarray


def answers(folder: EventFolder, questions: Sequence[Question]) -> Iterator[tuple[int, EventPrediction, np.ndarray]]:
    """(question number, prediction of a batch, its rows that answer the question, in the order of `hidden`)."""
    model = folder.model
    device = next(model.parameters()).device
    with inference_mode(model):
        for start in range(0, len(questions), BLOCK):
            asked = questions[start : start + BLOCK]
            for batch, numbers in packed_batches([q.example for q in asked], folder.settings.slots):
                first = first_slots(batch, len(numbers))
                flat = [first[i] + asked[n].hidden for i, n in enumerate(numbers.tolist())]
                whole = torch.from_numpy(np.concatenate(flat))
                prediction = model(batch.to(device), hide(whole.to(device)))
                ordered = np.sort(whole.numpy())
                for i, n in enumerate(numbers.tolist()):
                    yield start + n, prediction, np.searchsorted(ordered, flat[i])


def quantiles(folder: EventFolder, code: int, location: float, log_variance: float, level: float) -> list[float]:
    """Median and interval of a value on its own scale: the scale is monotone, so quantiles go through it."""
    z = NormalDist().inv_cdf(0.5 + level / 2)
    spread = math.exp(0.5 * log_variance)
    found = folder.vocabulary.unscale(code, location + spread * np.array([0.0, -z, z]))
    return [float(v) for v in found]


def missing_values(
    folder: EventFolder, histories: Histories, *, worded: np.ndarray | None = None, level: float = 0.9
) -> pl.DataFrame:
    """Every event without a value whose code usually has one: the value expected there, with its interval.

    The code is known: the answer is p(value | code, everything visible). Events cut off by the model's length are
    left out.

    Args:
        worded: (events,) whether an answer in words stands in place of the value: then none is missing.
    """
    vocabulary, events = histories.vocabulary, histories.events
    usual = _usual(histories)
    questions, about = [], []
    for subject in range(len(events)):
        rows, codes, static = histories.cut(subject, slots=folder.settings.slots)
        gone = np.isnan(histories.score[rows]) & (codes >= FIRST) & usual[codes]
        if worded is not None:
            gone &= ~worded[rows]
        gone[:static] = False
        if gone.any():
            where = np.flatnonzero(gone)
            example = histories.example(subject, slots=folder.settings.slots)
            questions.append(Question(example=example, hidden=where + 1))
            about.append((subject, rows[where], codes[where]))
    out: list[tuple[Any, ...]] = []
    for number, prediction, places in answers(folder, questions):
        subject, rows, codes = about[number]
        asked = torch.zeros(len(prediction), dtype=torch.int64)
        asked[torch.from_numpy(places)] = torch.from_numpy(codes)
        location, log_variance = (t.cpu().numpy() for t in prediction.of_code(asked.to(prediction.logits.device)))
        for place, row, code in zip(places.tolist(), rows.tolist(), codes.tolist(), strict=True):
            found = quantiles(folder, code, float(location[place]), float(log_variance[place]), level)
            name = vocabulary.codes[code - FIRST]
            out.append((int(events.subjects[subject]), "value", int(events.time[row]), name, None, *found))
    return _frame(out)


def _usual(histories: Histories) -> np.ndarray:
    """(codes,) whether a code usually has a value."""
    every = slice(0, len(histories.events.time) if histories.vocabulary.share is None else 0)
    return histories.vocabulary.usual(histories.code[every], histories.events.value[every])


def died(events: Events) -> np.ndarray:
    """(subjects,) whether the record has a death, with a time or without."""
    dead = events.begins(DEATH)
    out = np.zeros(len(events), bool)
    for owners, here in events.blocks():
        out[events.owner(owners)[dead[events.code[here]]]] = True
    return out


def next_events(folder: EventFolder, histories: Histories, *, top: int = 5, level: float = 0.9) -> pl.DataFrame:
    """The likeliest codes of one more event behind each record, with the value expected of each and the time of the
    event: the median of what is predicted, given that it lies after the last event.

    Of time and value only what the model was trained to predict; without codes among that there are no next events, nor
    are there any of patients who died.
    """
    vocabulary, events = histories.vocabulary, histories.events
    usual = _usual(histories)
    if not folder.settings.code_weight:
        return _frame([])
    top = min(top, len(vocabulary.codes))
    living = np.flatnonzero(~died(events))
    questions = [Question(example=e, hidden=np.array([len(e) - 1])) for e in _longer(folder, histories, living)]
    out: list[tuple[Any, ...]] = []
    for number, prediction, places in answers(folder, questions):
        place = int(places[0])
        codes, log_probs = prediction.code.top(top)
        subject = int(living[number])
        last = int(events.time[events.offsets[subject + 1] - 1])
        hours = float(questions[number].example.values["hours"][-1])
        when = None
        if prediction.time is not None and folder.settings.time_weight and last != STATIC:
            guess = prediction.time[place].double().cpu()
            when = last + max(1, int((later_than(hours, float(guess[0]), float(guess[1])) - hours) * HOUR))
        for code, log_prob in zip(codes[place].tolist(), log_probs[place].tolist(), strict=True):
            found: list[float | None] = [None, None, None]
            if usual[code] and folder.settings.value_weight:
                asked = torch.full((len(prediction),), code, device=prediction.logits.device)
                location, log_variance = prediction.of_code(asked)
                found = [*quantiles(folder, code, float(location[place]), float(log_variance[place]), level)]
            name = vocabulary.codes[code - FIRST]
            out.append((int(events.subjects[subject]), "next", when, name, math.exp(log_prob), *found))
    return _frame(out)


def later_than(hours: float, location: float, log_variance: float) -> float:
    """Median, in hours, of a normal of the squashed hours, given that it lies above `hours`."""
    start = float(squash(torch.tensor(hours, dtype=torch.float64)))
    spread = math.exp(0.5 * min(max(log_variance, -8.0), 4.0))
    z = (start - location) / spread
    if z < 6:
        above = 0.5 * math.erfc(z / math.sqrt(2))
        middle = -NormalDist().inv_cdf(above / 2)
    else:  # the tail is exponential there
        middle = z + math.log(2) / z
    return float(stretch(torch.tensor(location + spread * middle, dtype=torch.float64)))


def _longer(folder: EventFolder, histories: Histories, subjects: np.ndarray) -> list[Example]:
    """Every one of these patients with one empty slot at the end, a visit of its own, at the time of the last event."""
    out = []
    for subject in subjects.tolist():
        e = histories.example(subject, slots=folder.settings.slots - 1)
        values = {name: np.r_[v, v[-1:]] for name, v in e.values.items()}
        values["visit"][-1] += 1
        values["timed"][-1] = 1
        unit, special = np.asarray(e.unit), np.asarray(e.special)
        out.append(
            Example(
                values=values,
                identity=e.identity,
                special=np.r_[special, False],
                unit=np.r_[unit, values["visit"][-1]],
                position=None if e.position is None else np.r_[e.position, np.max(e.position) + 1],
            )
        )
    return out


def timeline(
    folder: EventFolder, histories: Histories, subject: int, prediction_time: int | None
) -> list[dict[str, Any]]:
    """What was expected at every event of a patient, each visit hidden alone: one row per event.

    Returns:
        time (microseconds), code, value, probability (of the code that stood there), likeliest (code), expected, low
        and high (the value of the code that stood there, 80 %).
    """
    slots, vocabulary = folder.settings.slots, histories.vocabulary
    example = histories.example(subject, slots=slots, prediction_time=prediction_time)
    rows, codes, _ = histories.cut(subject, prediction_time, slots=slots)
    unit = np.asarray(example.unit)
    visits = [np.flatnonzero(unit == u) for u in np.unique(unit[unit >= 0])]
    out: list[dict[str, Any]] = []
    for number, prediction, places in answers(folder, [Question(example=example, hidden=v) for v in visits]):
        asked = torch.zeros(len(prediction), dtype=torch.int64)
        asked[torch.from_numpy(places)] = torch.from_numpy(codes[visits[number] - 1])
        asked = asked.to(prediction.logits.device)
        location, log_variance = prediction.of_code(asked)
        likely, log_probs = prediction.code.mode(), prediction.code.log_prob(asked)
        for place, slot in zip(places.tolist(), visits[number].tolist(), strict=True):
            code, row = int(codes[slot - 1]), int(rows[slot - 1])
            shown: list[float | None] = [None, None, None]
            if code >= FIRST and vocabulary.valued[code] and folder.settings.value_weight:
                shown = [*quantiles(folder, code, float(location[place]), float(log_variance[place]), 0.8)]
            value = float(histories.events.value[row])
            out.append(
                {
                    "time": int(histories.events.time[row]),
                    "code": name_of(vocabulary.codes, code),
                    "value": value if math.isfinite(value) else None,
                    "probability": float(log_probs[place].exp()),
                    "likeliest": name_of(vocabulary.codes, int(likely[place])),
                    "expected": shown[0],
                    "low": shown[1],
                    "high": shown[2],
                    "slot": slot,
                }
            )
    return sorted(out, key=lambda r: r["slot"])


def name_of(codes: list[str], number: int) -> str:
    return codes[number - FIRST] if number >= FIRST else "(rare)"


def _frame(rows: list[tuple[Any, ...]]) -> pl.DataFrame:
    known = [(s, k, None if t in (None, STATIC) else t, *rest) for s, k, t, *rest in rows]
    schema = {**SCHEMA, "time": pl.Int64}
    frame = pl.DataFrame(known, schema=schema, orient="row")
    return frame.with_columns(pl.col("time").cast(pl.Datetime("us"))).sort("subject_id", "time", maintain_order=True)
