"""Tiny events for the laws: four channels that are hidden, two that are not, a third of the events without a value."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unmask.core.batch import Example
from unmask.modalities.events.network.codec import EventCodec
from unmask.modalities.events.recipes import Structure
from unmask.modalities.events.records.vocabulary import FIRST

CODES = FIRST + 10


class Events:
    """Events behind a first slot that is never hidden; visits of two.

    Args:
        known: the time of hidden events is known, and read in every published way (not in ours).
    """

    raw = "value"

    def __init__(self, name: str, *, known: bool) -> None:
        self.name, self.known = name, known

    def example(self, identity: int, length: int, seed: int = 0) -> Example:
        rng = np.random.default_rng([seed, identity])
        special = np.arange(length) == 0
        has = (rng.random(length) > 0.33) & ~special
        values = {
            "code": np.where(special, 0, rng.integers(FIRST, CODES, length)),
            "value": (rng.normal(size=length) * has).astype(np.float32),
            "has_value": has.astype(np.int64),
            "hours": np.sort(rng.exponential(20, length)).astype(np.float32),
            "timed": (~special).astype(np.int64),
            "age_at_start": np.full(length, 40, np.float32),
            "start_year": np.full(length, 45, np.float32),
            "visit": (np.arange(length) + 1) // 2,
            "prediction_hours": np.full(length, 200, np.float32),
        }
        unit = np.where(special, -1, (np.arange(length) - 1) // 2)
        return Example(values=values, identity=identity, special=special, unit=unit)

    def codec(self) -> nn.Module:
        structure, weights = Structure(evidence=True), (1.0, 1.0, 0.1)
        if self.known:
            clock = ("age_months", "segment", "time2vec_age", "time2vec_time", "time_sines", "age_sines")
            structure, weights = Structure(clock=clock, joined=True, hides="code"), (1.0, 1.0, 0.0)
        codec = EventCodec(codes=CODES, width=32, weights=weights, structure=structure, deviation=0.3)
        if codec.evidence is not None:  # it starts at zero: no law could be broken by it
            nn.init.normal_(codec.evidence.weight)
        return codec

    def changed(self, values: dict[str, Tensor], flat: Tensor) -> dict[str, Tensor]:
        """All that hiding takes away of an event; that it has a time, and the age at the origin, are known
        by design."""
        out = {k: v.clone() for k, v in values.items()}
        out["code"].view(-1)[flat] = (out["code"].view(-1)[flat] - FIRST + 3) % (CODES - FIRST) + FIRST
        out["value"].view(-1)[flat] += 2.0
        if not self.known:
            out["hours"].view(-1)[flat] += 50.0
        out["has_value"].view(-1)[flat] = 1 - out["has_value"].view(-1)[flat]
        return out

    def repeated(self, length: int) -> Example:
        ones = np.ones(length, np.float32)
        values = {
            "code": np.full(length, FIRST + 3),
            "value": ones,
            "has_value": np.ones(length, np.int64),
            "hours": ones,
            "timed": np.ones(length, np.int64),
            "age_at_start": ones,
            "start_year": ones,
            "visit": np.ones(length, np.int64),
            "prediction_hours": -ones,
        }
        return Example(values=values, identity=1)

    def true_values(self, example: Example) -> np.ndarray:
        names = ("code", "value", "has_value", "hours")[: 3 if self.known else 4]
        return np.stack([np.asarray(example.values[n], np.float32) for n in names], -1)


def numbers(prediction: Any) -> Tensor:
    """Everything a prediction says: scores, each code's value, the time."""
    codes = [torch.full((len(prediction),), c) for c in range(CODES)]
    values = [part for c in codes for part in prediction.of_code(c)]
    time = [] if prediction.time is None else [prediction.time]
    return torch.cat([prediction.logits, torch.stack(values, -1), *time], -1)
