"""Batches of questions: the histories they are asked of, cut at the times of asking, and the questions as tensors.

In training they lie beside a masked batch, in the same rows, so that whatever cuts that batch into parts cuts them too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from unmask.core.batch import Example, PackedBatch, pack
from unmask.modalities.events.questions.queries import FEATURES, ITEMS, Came, Queries, QueryDraws, features
from unmask.modalities.events.records.histories import Histories

ASKED, HISTORY = "asked.", "history."
CONTEXT = ("segment", "position")


def with_questions(
    make: Callable[[list[list[int]], int], PackedBatch],
    draws: QueryDraws,
    *,
    slots: int,
    count: int,
    seed: int,
) -> Callable[..., PackedBatch]:
    """A maker of batches that lays `count` questions per patient beside what `make` makes, drawn anew each epoch."""

    def made(rows: list[list[int]], number: int, epoch: int = 0) -> PackedBatch:
        batch = make(rows, number)
        came = [[draws.draw(i, count, seed=seed, epoch=epoch) for i in row] for row in rows]
        beside = query_batch(draws.histories, rows, came, slots=slots, number=number)
        return dataclasses.replace(batch, extra=batch.extra | beside)

    return made


def query_batch(
    histories: Histories,
    rows: Sequence[Sequence[int]],
    came: Sequence[Sequence[Came | None]],
    *,
    slots: int,
    number: int,
) -> dict[str, Tensor]:
    """The histories of a batch's patients as they were known when asked, and the questions, row by row."""
    examples: list[Example] = []
    placement: list[list[int]] = []
    asked: list[list[tuple[int, Came, np.ndarray]]] = []
    for row, answers in zip(rows, came, strict=True):
        placement.append(list(range(len(examples), len(examples) + len(row))))
        parts = []
        for place, (subject, answer) in enumerate(zip(row, answers, strict=True)):
            moment = None if answer is None else answer.moment
            examples.append(histories.example(subject, moment, slots=slots, asked=moment))
            if answer is not None:
                parts.append((place + 1, answer, features(histories, answer.asked, subject, answer.moment)))
        asked.append(parts)
    batch = pack(examples, slots=slots, rows=number, placement=placement)
    out = {f"{HISTORY}{name}": value for name, value in batch.values.items()}
    out |= {f"{HISTORY}.{name}": getattr(batch, name) for name in CONTEXT}
    return out | {f"{ASKED}{name}": value for name, value in _tensors(asked, number).items()}


def _tensors(rows: Sequence[Sequence[tuple[int, Came, np.ndarray]]], number: int) -> dict[str, Tensor]:
    most = max([1, *(sum(len(came.asked) for _, came, _ in row) for row in rows)])
    out = empty(number, most)
    for r, row in enumerate(rows):
        start = 0
        for segment, came, told in row:
            here = (r, slice(start, start + len(came.asked)))
            put(out, here, came.asked, told, segment)
            out["first"][here], out["end"][here], out["weight"][here] = came.first, came.end, came.weight
            start += len(came.asked)
    return {name: torch.from_numpy(value) for name, value in out.items()}


def empty(rows: int, most: int) -> dict[str, np.ndarray]:
    """Room for `most` questions per row; segment 0 where none stands."""
    out: dict[str, np.ndarray] = {name: np.zeros((rows, most), np.float64) for name in ("first", "end", "weight")}
    out |= {"segment": np.zeros((rows, most), np.int64), "code": np.full((rows, most, ITEMS), -1, np.int64)}
    out |= {"side": np.zeros((rows, most, ITEMS), np.int64), "score": np.zeros((rows, most, ITEMS), np.float32)}
    out |= {"share": np.ones((rows, most, ITEMS), np.float32)}
    return out | {"features": np.zeros((rows, most, ITEMS, FEATURES), np.float32)}


def put(out: dict[str, np.ndarray], here: tuple[int, slice], asked: Queries, told: np.ndarray, segment: int) -> None:
    """Lay questions about one history into their room."""
    out["segment"][here], out["features"][here] = segment, told
    for name in ("code", "side", "score", "share"):
        out[name][here] = getattr(asked, name)


def history_of(batch: PackedBatch) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """(values, segment, position) of the histories that the questions beside a batch are asked of."""
    values = {
        name[len(HISTORY) :]: value
        for name, value in batch.extra.items()
        if name.startswith(HISTORY) and not name.startswith(f"{HISTORY}.")
    }
    segment, position = (batch.extra[f"{HISTORY}.{name}"] for name in CONTEXT)
    return values, segment, position
