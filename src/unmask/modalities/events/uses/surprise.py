"""How natural a record is to the model: the log-probability of every event given all others, by event, visit or
patient.

Each event is scored by `core.score` with itself hidden. In the mode 'unit' the later events of its visit (in their
canonical order, see `ties`) are hidden with it, so that a visit's events add up to the log-probability of the visit as
a whole; in the mode 'slot' the rest of its visit is shown, and tells much of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args

import numpy as np
import polars as pl
import torch
from torch import Tensor

from unmask.core.fill import BLOCK
from unmask.core.score import Mode, score
from unmask.errors import UserError
from unmask.modalities.events.network.codec import EventPrediction
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.uses.fill import name_of
from unmask.modalities.events.uses.folder import EventFolder

By = Literal["patient", "visit", "event"]
PARTS = ("code_score", "value_score", "time_score")
SCHEMA: dict[str, Any] = {
    "subject_id": pl.Int64,
    "time": pl.Int64,
    "visit": pl.Int64,
    "code": pl.String,
    "value": pl.Float64,
    **dict.fromkeys(PARTS, pl.Float64),
}
KEYS: dict[str, list[str]] = {"patient": ["subject_id"], "visit": ["subject_id", "visit", "time"]}


def surprise(folder: EventFolder, histories: Histories, *, by: By = "patient", mode: Mode = "unit") -> pl.DataFrame:
    """Log-probabilities in nats; the lower, the more surprising.

    Args:
        by: one row per event, visit (events of one time stamp) or patient.
        mode: see above.

    Returns:
        subject_id; of visits and events visit (its number) and time; of events code and value; score, and its parts
        code_score, value_score and time_score (null where an event has none, or the model predicts none; those of
        values and times are densities, of normal scores and of squashed hours); slots, how many events were scored.
        Facts without a time are never hidden, so they have no score; nor have events that the model's length cuts off.
    """
    if by not in get_args(By):
        raise UserError(f"by={by}", hint=f"Expected one of {', '.join(get_args(By))}.")
    frame = pl.DataFrame(list(_rows(folder, histories, mode)), schema=SCHEMA, orient="row")
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
            told = np.flatnonzero(np.isfinite(found.per_slot[:, 0]))
            for slot in told[np.argsort(rows[told - 1])].tolist():  # in the order of the file
                row, has = rows[slot - 1], bool(example.values["has"][slot])
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
