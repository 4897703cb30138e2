"""What a trained model says of hidden events: a missing value with its interval, the likeliest next events, and what
it expected at each visit of a record."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import Any, Literal, get_args

import numpy as np
import polars as pl
import torch
from torch import Tensor

from unmask.core.batch import Example
from unmask.core.fill import BLOCK, Question, answers
from unmask.core.score import Mode, score
from unmask.errors import UserError
from unmask.modalities.events.network.codec import EventPrediction
from unmask.modalities.events.records.cuts import NEVER, death_times
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.meds import STATIC
from unmask.modalities.events.records.vocabulary import FIRST
from unmask.modalities.events.uses.folder import EventFolder

SCHEMA: dict[str, Any] = {"subject_id": pl.Int64, "kind": pl.String, "time": pl.Datetime("us"), "code": pl.String}
SCHEMA |= dict.fromkeys(("probability", "value", "low", "high"), pl.Float64)


def quantiles(folder: EventFolder, code: int, location: float, log_variance: float, level: float) -> list[float]:
    """Median and interval of a value on its own scale: the scale is monotone, so quantiles go through it."""
    z = NormalDist().inv_cdf(0.5 + level / 2)
    spread = math.exp(0.5 * log_variance)
    found = folder.vocabulary.unscale(code, location + spread * np.array([0.0, -z, z]))
    return [float(v) for v in found]


def missing_values(
    folder: EventFolder, histories: Histories, *, worded: np.ndarray | None = None, level: float = 0.9
) -> pl.DataFrame:
    """Every event without a value (nor an answer in words, as `worded` says) whose code usually has one: the value
    expected there, with its interval. The code is known: the answer is p(value | code, everything visible). Events cut
    off by the model's length are left out."""
    vocabulary, events = histories.vocabulary, histories.events
    usual = histories.vocabulary.usual
    questions, about = [], []
    for subject in range(len(events)):
        rows, codes, static = histories.cut(subject, slots=folder.settings.slots)
        missing = np.isnan(histories.score[rows]) & (codes >= FIRST) & usual[codes]
        if worded is not None:
            missing &= ~worded[rows]
        missing[:static] = False
        if missing.any():
            where = np.flatnonzero(missing)
            example = histories.example(subject, slots=folder.settings.slots)
            questions.append(Question(example=example, hidden=where + 1))
            about.append((subject, rows[where], codes[where]))
    out: list[tuple[Any, ...]] = []
    for numbers, prediction, places in answers(folder.model, questions, slots=folder.settings.slots):
        patients = [about[number] for number in numbers]
        location, log_variance = _values(prediction, places, [codes for _, _, codes in patients])
        for (subject, rows, codes), at in zip(patients, places, strict=True):
            for place, row, code in zip(at.tolist(), rows.tolist(), codes.tolist(), strict=True):
                found = quantiles(folder, code, float(location[place]), float(log_variance[place]), level)
                name = vocabulary.codes[code - FIRST]
                out.append((int(events.subjects[subject]), "value", int(events.time[row]), name, None, *found))
    return _frame(out)


def _codes(prediction: EventPrediction, places: Sequence[np.ndarray], codes: Sequence[np.ndarray]) -> torch.Tensor:
    """(wanted,) the code given for each place, 0 elsewhere."""
    out = torch.zeros(len(prediction), dtype=torch.int64)
    out[torch.from_numpy(np.concatenate(places))] = torch.from_numpy(np.concatenate(codes))
    return out.to(prediction.logits.device)


def _values(
    prediction: EventPrediction, places: Sequence[np.ndarray], codes: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """(wanted,) location and log-variance of the value expected beside the code of each place; 0 elsewhere."""
    location, log_variance = prediction.of_code(_codes(prediction, places, codes))
    return location.cpu().numpy(), log_variance.cpu().numpy()


LEAST_SHARE = 0.01
"""Kinds of visits that fewer are of are not thought of."""


def next_events(folder: EventFolder, histories: Histories, *, top: int = 5, level: float = 0.9) -> pl.DataFrame:
    """The likeliest codes of the first event behind each record, with the value expected of each.

    How many events the next time stamp has, and whether it is the record's last, is not known, and the number of slots
    would say it: one empty slot at the end asks for the last event of a record, which is often a death. Probabilities
    are the mean over time stamps of 1, 2, ... events, with none behind them and with `BEHIND`, weighted by how many of
    the training patients' are so. Times have none: what is predicted is hours since the first event, too coarse for a
    gap (`ask` answers when). There are none of patients who died, nor where codes are not predicted.
    """
    vocabulary, events = histories.vocabulary, histories.events
    usual = vocabulary.usual
    if not folder.settings.code_weight:
        return _frame([])
    top = min(top, len(vocabulary.codes))
    living = np.flatnonzero(death_times(events) == NEVER)
    room = max(1, folder.settings.slots // 2 - BEHIND)
    weight = np.where(vocabulary.visits >= min(LEAST_SHARE, vocabulary.visits.max()), vocabulary.visits, 0)[:, :room]
    out: list[tuple[Any, ...]] = []
    for start in range(0, len(living), BLOCK):
        subjects = living[start : start + BLOCK]
        codes, p, value = _likeliest(folder, histories, subjects, weight / weight.sum(), top)
        for n, subject in enumerate(subjects.tolist()):
            for k, code in enumerate(codes[n].tolist()):
                expected: list[float | None] = [None, None, None]
                if usual[code] and folder.settings.value_weight:
                    location, log_variance = value[n, k].tolist()
                    expected = [*quantiles(folder, code, location, log_variance, level)]
                name = vocabulary.codes[code - FIRST]
                out.append((int(events.subjects[subject]), "next", None, name, float(p[n, k]), *expected))
    return _frame(out)


def _likeliest(
    folder: EventFolder, histories: Histories, subjects: np.ndarray, weight: np.ndarray, top: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of the next time stamp of each of these patients: (patients, top) the likeliest codes; (patients, top) their
    probabilities; (patients, top, 2) location and log-variance of the value that goes with each, where the time stamp
    is of the most frequent kind. `weight`: (2, sizes) of time stamps with none behind them and with some, of 1, 2, ...
    events."""
    slots, kept = folder.settings.slots, []
    p = np.zeros((len(subjects), len(histories.vocabulary.codes)))
    for followed, size in np.argwhere(weight).tolist():
        questions = _longer(folder, histories, subjects, size + 1, BEHIND * followed)
        for numbers, prediction, places in answers(folder.model, questions, slots=slots):
            place, share = [at for (at,) in places], weight[followed, size]
            p[numbers] += share * prediction.code.probabilities()[place][:, FIRST:].double().cpu().numpy()
            if share == weight.max():
                kept.append((numbers, place, prediction))
    best = np.argsort(-p, axis=1, kind="stable")[:, :top]
    value = np.zeros((*best.shape, 2))
    with torch.inference_mode():
        for numbers, place, prediction in kept:
            for k in range(best.shape[1]):
                code = torch.zeros(len(prediction), dtype=torch.int64)
                code[place] = torch.from_numpy(best[numbers, k] + FIRST)
                both = torch.stack(prediction.of_code(code.to(prediction.logits.device)), -1)
                value[numbers, k] = both[place].double().cpu().numpy()
    return best + FIRST, np.take_along_axis(p, best, 1), value


BEHIND = 4
"""Time stamps behind the next one, where it is not the last: with 1 to 10 the probabilities are nearly the same."""


def _longer(folder: EventFolder, histories: Histories, subjects: np.ndarray, size: int, behind: int) -> list[Question]:
    """Every one of these patients with a time stamp of so many empty slots at the end, and so many of one slot behind
    it, all at the time of the last event; the first is asked for."""
    out, steps = [], np.r_[np.ones(size, np.int64), 2 + np.arange(behind)]
    for subject in subjects.tolist():
        e = histories.example(subject, slots=folder.settings.slots - len(steps))
        values = {name: np.r_[v, np.repeat(v[-1:], len(steps), 0)] for name, v in e.values.items()}
        values["visit"][len(e) :] += steps
        values["timed"][len(e) :] = 1
        example = Example(
            values=values,
            identity=e.identity,
            special=np.r_[np.asarray(e.special), np.zeros(len(steps), bool)],
            unit=np.r_[np.asarray(e.unit), values["visit"][len(e) :]],
            position=None if e.position is None else np.r_[e.position, np.max(e.position) + steps],
        )
        hidden = np.arange(len(e), len(example))
        out.append(Question(example=example, hidden=hidden, wanted=hidden[:1]))
    return out


def timeline(
    folder: EventFolder, histories: Histories, subject: int, prediction_time: int | None
) -> list[dict[str, Any]]:
    """What was expected at every event of a patient, each visit hidden alone: time (microseconds), code, value,
    probability (of the code that stood there), likeliest (code), expected, low and high (the value of the code that
    stood there, 80 %)."""
    slots, vocabulary = folder.settings.slots, histories.vocabulary
    example = histories.example(subject, slots=slots, prediction_time=prediction_time)
    rows, codes, _ = histories.cut(subject, prediction_time, slots=slots)
    unit = np.asarray(example.unit)
    visits = [np.flatnonzero(unit == u) for u in np.unique(unit[unit >= 0])]
    out: list[dict[str, Any]] = []
    questions = [Question(example=example, hidden=v) for v in visits]
    for numbers, prediction, places in answers(folder.model, questions, slots=slots):
        stood = [codes[visits[number] - 1] for number in numbers]
        location, log_variance = _values(prediction, places, stood)
        likely, log_probs = prediction.code.mode(), prediction.code.log_prob(_codes(prediction, places, stood))
        for number, at in zip(numbers, places, strict=True):
            for place, slot in zip(at.tolist(), visits[number].tolist(), strict=True):
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


By = Literal["patient", "visit", "event"]
PARTS = ("code_score", "value_score", "time_score")
EVENT_SCORES: dict[str, Any] = {
    "subject_id": pl.Int64,
    "time": pl.Int64,
    "visit": pl.Int64,
    "code": pl.String,
    "value": pl.Float64,
    **dict.fromkeys(PARTS, pl.Float64),
}
KEYS: dict[str, list[str]] = {"patient": ["subject_id"], "visit": ["subject_id", "visit", "time"]}


def surprise(folder: EventFolder, histories: Histories, *, by: By = "patient", mode: Mode = "unit") -> pl.DataFrame:
    """Log-probabilities in nats of each event, visit (events of one time stamp) or patient; the lower, the more
    surprising.

    The rows have subject_id; of visits and events visit (its number) and time; of events code and value; score, and its
    parts code_score, value_score and time_score (null where an event has none, or the model predicts none; those of
    values and times are densities, of normal scores and of squashed hours); slots, how many events were scored. Facts
    without a time are never hidden, so they have no score; nor have events that the model's length cuts off.
    """
    if by not in get_args(By):
        raise UserError(f"by={by}", hint=f"Expected one of {', '.join(get_args(By))}.")
    frame = pl.DataFrame(list(_rows(folder, histories, mode)), schema=EVENT_SCORES, orient="row")
    frame = frame.with_columns(pl.col("time").cast(pl.Datetime("us")), pl.sum_horizontal(PARTS).alias("score"))
    numbers = [pl.col("score"), *(pl.col(p) for p in PARTS)]
    if by == "event":
        shown = [pl.col(n) for n in ("subject_id", "visit", "time", "code", "value")]
        return frame.select(*shown, *numbers, pl.lit(1, pl.Int64).alias("slots"))
    sums = [pl.when(n.is_not_null().any()).then(n.sum()) for n in numbers]
    grouped = frame.group_by(KEYS[by], maintain_order=True)
    return grouped.agg(*sums, pl.len().cast(pl.Int64).alias("slots"))


def _rows(folder: EventFolder, histories: Histories, mode: Mode) -> Iterator[tuple[Any, ...]]:
    slots, events = folder.settings.slots, histories.events
    for start in range(0, len(events), BLOCK):
        subjects = range(start, min(start + BLOCK, len(events)))
        examples = [histories.example(i, slots=slots) for i in subjects]
        for subject, example, found in zip(
            subjects, examples, score(folder.model, examples, slots=slots, mode=mode, read=_parts), strict=True
        ):
            if not found.slots:
                continue
            rows, codes, _ = histories.cut(subject, slots=slots)
            scored_slots = np.flatnonzero(np.isfinite(found.per_slot[:, 0]))
            for slot in scored_slots[np.argsort(rows[scored_slots - 1])].tolist():  # in the order of the file
                row, has = rows[slot - 1], bool(example.values["has_value"][slot])
                code, value, time = found.per_slot[slot].tolist()
                yield (
                    int(events.subjects[subject]),
                    int(events.time[row]),
                    int(example.values["visit"][slot]),
                    name_of(histories.vocabulary.codes, int(codes[slot - 1])),
                    float(events.value[row]) if has else None,
                    code if folder.settings.code_weight else None,
                    value if has and folder.settings.value_weight else None,
                    time if folder.settings.time_weight and example.values["hours"][slot] > 0 else None,
                )


def _parts(prediction: EventPrediction, target: Tensor) -> Tensor:
    """(wanted, 3): log-probability of code, value and time, 0 for what is not trained."""
    weights = prediction.weights
    parts = iter([part for _, part in prediction.parts(target)])
    nothing = torch.zeros(len(prediction), device=target.device)
    return torch.stack([next(parts) if w else nothing for w in weights], -1)
