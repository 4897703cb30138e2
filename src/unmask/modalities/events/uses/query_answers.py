"""Answers: the probability of each question at each prediction point, and of which points nothing can be said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import polars as pl
import torch
from jaxtyping import Float

from unmask.core.batch import PackedBatch
from unmask.core.inference import first_slots, inference_mode
from unmask.errors import UserError, option
from unmask.modalities.events.questions.queries import ABOVE, BELOW, ITEMS, Queries, features, joined, made
from unmask.modalities.events.questions.query_batches import empty, put
from unmask.modalities.events.questions.query_head import QueryHead
from unmask.modalities.events.questions.query_text import EXAMPLE, Query, checked, parsed
from unmask.modalities.events.recipes import moment_of
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.meds import DEATH, STATIC, Events, Labels, as_events, read_labels
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
            "the model was pretrained without questions",
            hint=f"Pretrain one that answers: {option('recipe', 'ask')}.",
        )
    return head


def last_points(events: Events, until: int | None = None) -> Labels:
    """Of every patient the time of the last event, or `until` (microseconds) where that is given; 1970 where no event
    has a time (`unanswerable` names those)."""
    stop = events.offsets[1:] - 1
    time = np.where(stop >= events.offsets[:-1], events.time[stop.clip(min=0)], STATIC)
    asked = time if until is None else until
    return Labels(subject=np.arange(len(events)), time=np.where(time == STATIC, 0, asked))


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
    folder: EventFolder, histories: Histories, points: Labels, asked: Queries, numbers: np.ndarray
) -> Float[np.ndarray, "points questions bins"]:
    """Rates of the questions at those of the points, uncalibrated; what is known at a point are the events up to its
    time, inclusive."""
    head = queries_of(folder)
    model: Any = folder.model
    out = np.zeros((len(numbers), len(asked), len(head.edges)), np.float32)
    with inference_mode(model):
        for batch, held in histories.batches(points, numbers, slots=folder.settings.slots):
            some = batch.to(next(model.parameters()).device)
            states = model.states(some)
            _answer_batch(head, histories, points, asked, numbers, some, states, held, out)
    return out


def _answer_batch(
    head: QueryHead,
    histories: Histories,
    points: Labels,
    asked: Queries,
    numbers: np.ndarray,
    batch: PackedBatch,
    states: torch.Tensor,
    held: np.ndarray,
    out: np.ndarray,
) -> None:
    """Answer all questions about the examples of one batch."""
    first = first_slots(batch, len(held))
    row = first // batch.shape[1]
    segment = batch.segment.flatten().cpu().numpy()[first]
    told = [features(histories, asked, int(points.subject[n]), int(points.time[n])) for n in numbers[held]]
    place = np.zeros(len(held), np.int64)  # of each example among those of its row
    for r in np.unique(row):
        place[row == r] = np.arange((row == r).sum())
    size = max(1, TOGETHER // int(place.max() + 1))
    for start in range(0, len(asked), size):
        here = slice(start, min(start + size, len(asked)))
        some, count = asked.some(here), here.stop - here.start
        room = empty(batch.shape[0], count * int(place.max() + 1))
        for n in range(len(held)):
            put(room, (int(row[n]), slice(place[n] * count, (place[n] + 1) * count)), some, told[n][here], segment[n])
        tensors = {name: torch.from_numpy(value).to(states.device) for name, value in room.items()}
        rates = head(states, batch.segment, tensors).float().cpu().numpy()
        for n in range(len(held)):
            out[held[n], here] = rates[row[n], place[n] * count : (place[n] + 1) * count]


def probabilities(
    folder: EventFolder, histories: Histories, points: Labels, asked: Queries, hours: Sequence[float] | np.ndarray
) -> tuple[np.ndarray, list[str | None]]:
    """(points, questions) that each comes true within its hours, NaN at points that cannot be asked about; and why
    they cannot. What asks for values beyond some is never likelier than the same codes with any value."""
    head, why = queries_of(folder), unanswerable(histories, points)
    out = np.full((len(points), len(asked)), np.nan)
    numbers = np.flatnonzero([reason is None for reason in why])
    within = torch.as_tensor(np.asarray(hours, np.float64))
    sided = np.flatnonzero((asked.side != 0).any(1))
    both = joined([asked, asked.some(sided).without_values()])
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
        out[some] = found[:, : len(asked)]
        out[np.ix_(some, sided)] = np.minimum(found[:, sided], found[:, len(asked) :])
    return out, why


@runtime_checkable
class Answering(Protocol):
    """What `ask` needs of an `EventModel`."""

    folder: EventFolder
    device: torch.device

    def histories(self, events: Events) -> Histories:
        """The patients as the model reads them."""
        ...


def check_questions(model: Answering, events: Events, questions: Sequence[str]) -> None:
    """Raise what `ask` would of these questions, without an answer to them."""
    _checked(model, events, questions)


def _checked(model: Answering, events: Events, questions: Sequence[str]) -> tuple[Histories, list[Query], Queries]:
    if not questions:
        raise UserError("no question", hint=EXAMPLE)
    head, queries = queries_of(model.folder), [parsed(text) for text in questions]
    twice = [text for text, count in Counter(q.text for q in queries).items() if count > 1]
    if twice:
        raise UserError(f"question {twice[0]!r} is asked twice", hint="Ask it once.")
    histories = model.histories(events)
    return histories, queries, checked(queries, histories, head)


def ask(
    model: Answering,
    data: Any,
    questions: Sequence[str],
    at: Any = None,
    until: str | None = None,
) -> pl.DataFrame:
    """See `EventModel.ask`."""
    if at is not None and until is not None:
        raise UserError(
            f"{option('at')} and {option('until')}", hint="Ask at the times of a task, or of everybody at one."
        )
    events = as_events(data)
    histories, queries, asked = _checked(model, events, questions)
    if at is None:
        points = last_points(events, None if until is None else moment_of(until, option("until")))
    else:
        points = read_labels(at, events, need_value=False)
    model.folder.model.to(model.device)
    found, why = probabilities(model.folder, histories, points, asked, [q.hours for q in queries])
    none = np.array([q.none for q in queries])
    found = np.where(none, 1 - found, found)
    timeless = np.repeat(np.array([reason == NO_EVENTS for reason in why]) & (at is None), len(queries))
    count = len(points)
    frame = pl.DataFrame(
        {
            "subject_id": np.repeat(events.subjects[points.subject], len(queries)),
            "prediction_time": pl.Series(np.repeat(points.time, len(queries))).cast(pl.Datetime("us")),
            "question": [q.text for q in queries] * count,
            "probability": pl.Series(found.ravel()).fill_nan(None),
            "unanswered": pl.Series([reason for reason in why for _ in queries], dtype=pl.String),
        }
    )
    return frame.with_columns(
        prediction_time=pl.when(pl.Series(timeless)).then(None).otherwise(pl.col("prediction_time"))
    )


CODES = 64
"""Asked for, the most frequently asked ones first; of those with values also whether one lies in the outer quarters."""


def panel(histories: Histories, head: QueryHead) -> Queries:
    """The questions: each code, a value of it above its upper quartile, and one below its lower."""
    share, vocabulary = head.share.cpu().numpy(), histories.vocabulary
    order = np.argsort(-share, kind="stable")
    code: list[int] = []
    side: list[int] = []
    cut: list[float] = []
    for number in order[:CODES][share[order[:CODES]] > 0].tolist():
        for way in (0, ABOVE, BELOW) if vocabulary.valued[number] else (0,):
            code.append(number)
            side.append(way)
            cut.append(0.0 if not way else vocabulary.at(number, 0.75 if way == ABOVE else 0.25))
    shape = (len(code), ITEMS)
    codes, sides, cuts = np.full(shape, -1, np.int64), np.zeros(shape, np.int64), np.zeros(shape)
    codes[:, 0], sides[:, 0], cuts[:, 0] = code, side, cut
    return made(histories, codes, sides, cuts)


def panel_answers(folder: EventFolder, histories: Histories, points: Labels) -> np.ndarray:
    """(points, questions) logarithm of each question's rates summed up to the middle of the horizons, what its
    probability is made of; of points at which nothing is known too, as states are."""
    head = queries_of(folder)
    asked, edges = panel(histories, head), head.edges
    within = torch.sqrt(edges[0] * edges[-1])[None]
    rates = torch.from_numpy(rates_of(folder, histories, points, asked, np.arange(len(points))))
    overlap = head.overlap(within.to(head.edges.device)).cpu()
    return (rates * overlap).sum(-1).clamp_min(1e-7).log().numpy()
