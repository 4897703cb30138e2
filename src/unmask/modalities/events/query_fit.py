"""What the answers of a model begin with (the training patients), and how they are calibrated (on held-out ones)."""

from __future__ import annotations

from typing import Any

import numpy as np

from unmask.core.hashing import Salt, uniform
from unmask.core.inference import inference_mode
from unmask.modalities.events.histories import Histories
from unmask.modalities.events.queries import QueryDraws, ends, horizons
from unmask.modalities.events.query_batches import histories_asked
from unmask.modalities.events.recipes import EventSettings

EPOCHS = 20
"""Times that each held-out patient is asked at."""
CALIBRATED = 1024
"""Held-out patients at most."""


def start_asking(model: Any, histories: Histories, train: np.ndarray, settings: EventSettings) -> QueryDraws | None:
    """What draws a run's questions; None where it asks none. The model's answers begin at the training patients'
    base rates."""
    if not settings.questions:
        return None
    last = ends(histories.events, train)
    edges = horizons(histories.events, train, settings.horizon_from, settings.horizon)
    model.queries.start(histories, train, last, edges)
    return QueryDraws(histories, train, last, model.queries.share.numpy())


def calibrate(model: Any, draws: QueryDraws, held_out: np.ndarray, settings: EventSettings) -> None:
    """Fit the line that the answers go through on questions drawn of held-out patients; with too few, there is none."""
    device = next(model.parameters()).device
    found: dict[str, list[np.ndarray]] = {name: [] for name in ("rates", "first", "end", "weight", "u")}
    with inference_mode(model):
        for subject in held_out[:CALIBRATED].tolist():
            # Epochs below 0: none of these questions is one of the training's.
            came = [
                draws.draw(subject, settings.questions, seed=settings.train.seed, epoch=-1 - e) for e in range(EPOCHS)
            ]
            rows = [[subject]] * EPOCHS
            beside = histories_asked(draws.histories, rows, [[c] for c in came], slots=settings.slots, number=EPOCHS)
            beside = {name: value.to(device) for name, value in beside.items()}
            asked = {name[6:]: value for name, value in beside.items() if name.startswith("asked.")}
            values = {n[8:]: v for n, v in beside.items() if n.startswith("history.") and not n.startswith("history..")}
            rates = model.rates(values, beside["history..segment"], beside["history..position"], asked)
            real = (asked["segment"] != 0).cpu()
            if not real.any():
                continue
            found["rates"].append(rates.float().cpu()[real].numpy())
            for name in ("first", "end", "weight"):
                found[name].append(asked[name].cpu()[real].numpy())
            found["u"].append(uniform(settings.train.seed, subject, np.arange(int(real.sum())), Salt.QUESTION_UNIFORM))
    if found["rates"]:
        joined = {name: np.concatenate(parts) for name, parts in found.items()}
        model.queries.to("cpu").calibrate(**joined)
        model.to(device)
