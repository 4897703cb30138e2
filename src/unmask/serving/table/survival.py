"""Survival curves of new rows, from the hazards that a model keeps for synthesis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from unmask.modalities.table.model import TableModel
from unmask.modalities.table.reading.frame import Frame
from unmask.modalities.table.schema.absent_columns import widened
from unmask.modalities.table.schema.values import encode
from unmask.modalities.table.survival.hazards import Outcome
from unmask.modalities.table.synthesis.survival_outcome import outcome_design, stored_outcome

TIMES = 60
"""Times at which a curve is given where none are asked for."""


def survival(
    model: TableModel, frame: Frame, *, absent: Sequence[str], times: Sequence[float] | None, draws: int, seed: int
) -> dict[str, Any]:
    """The survival of rows given their covariates; a follow-up that they have is not looked at.

    Args:
        times: when to look; default evenly up to the last follow-up.
        draws: of missing covariates, over which the curves are averaged.

    Returns:
        times, and per row survival (the share who had no event by then) and incidence (cause -> the share who had it).
    """
    outcome = stored_outcome(model)
    assert outcome is not None
    schema = model.schema
    columns = encode(widened(frame, schema, absent)[0], schema)
    unseen = {schema.place(name) for name in (schema.duration, schema.event, schema.entry) if name is not None}
    for place in unseen:
        columns[place] = np.full(len(frame), np.nan)
    at = np.linspace(0, outcome.end, TIMES) if times is None else np.sort(np.asarray(times, np.float64))
    alive = np.zeros((len(frame), len(at)))
    struck = np.zeros((len(outcome.causes), len(frame), len(at)))
    if not any(np.isnan(x).any() for place, x in enumerate(columns) if place not in unseen):
        draws = 1  # nothing that the curves depend on is drawn
    for number in range(draws):
        known = model.table.draw(columns, seed=seed + number)
        one, each = curves(outcome, outcome_design(model, known), at)
        alive += one / draws
        struck += each / draws
    names = list(schema.causes) or ["event"]
    rows = [
        {
            "survival": alive[row].tolist(),
            "incidence": {name: struck[k, row].tolist() for k, name in enumerate(names)},
        }
        for row in range(len(frame))
    ]
    return {"times": at.tolist(), "results": rows, "last": outcome.end}


def curves(outcome: Outcome, x: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rows, times) share without an event, and (causes, rows, times) share with each, of rows of the design.

    Events of all causes are taken in order of time: each strikes those whom none has struck before, so that the shares
    add up to one at every time.
    """
    z = (x - outcome.center) / outcome.scale
    steps = np.unique(np.concatenate([c.at for c in outcome.causes]))
    risk = np.stack([np.exp(np.clip(z @ c.beta, -30, 30)) for c in outcome.causes])
    jump = np.zeros((len(outcome.causes), len(steps)))
    for k, c in enumerate(outcome.causes):
        jump[k, np.searchsorted(steps, c.at)] = np.diff(np.r_[0.0, c.hazard])
    hazard = risk[:, :, None] * jump[:, None, :]
    total = hazard.sum(0)
    left = np.exp(-np.cumsum(total, 1))
    before = np.concatenate([np.ones((len(x), 1)), left], 1)[:, :-1]
    share = np.divide(hazard, total, out=np.zeros_like(hazard), where=total > 0)
    incidence = np.cumsum(share * (before - left), 2)
    place = np.searchsorted(steps, at, side="right")
    alive = np.concatenate([np.ones((len(x), 1)), left], 1)[:, place]
    struck = np.concatenate([np.zeros((*incidence.shape[:2], 1)), incidence], 2)[:, :, place]
    return alive, struck
