"""Tiny events for the laws: five channels and an age, a third of the events without a value."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from unmask.core.batch import Example
from unmask.events.codec import EventCodec, EventCodecConfig

CODES = 12


class Events:
    """Events behind a first slot that is never hidden; visits of two."""

    name = "events"
    raw = "value"

    def example(self, identity: int, length: int, seed: int = 0) -> Example:
        rng = np.random.default_rng([seed, identity])
        special = np.arange(length) == 0
        has = (rng.random(length) > 0.33) & ~special
        values = {
            "code": np.where(special, 0, rng.integers(2, CODES, length)),
            "value": (rng.normal(size=length) * has).astype(np.float32), "has": has.astype(np.int64),
            "hours": np.sort(rng.exponential(20, length)).astype(np.float32), "timed": (~special).astype(np.int64),
            "age": np.full(length, 40, np.float32),
        }  # fmt: skip
        unit = np.where(special, -1, (np.arange(length) - 1) // 2)
        return Example(values=values, identity=identity, special=special, unit=unit)

    def codec(self) -> nn.Module:
        return EventCodec(EventCodecConfig(codes=CODES, width=32, deviation=0.3))

    def changed(self, values: dict[str, Tensor], flat: Tensor) -> dict[str, Tensor]:
        """All that is known of the hidden events."""
        out = {k: v.clone() for k, v in values.items()}
        out["code"].view(-1)[flat] = (out["code"].view(-1)[flat] - 2 + 3) % (CODES - 2) + 2
        for name, step in (("value", 2.0), ("hours", 50.0), ("age", 9.0)):
            out[name].view(-1)[flat] += step
        out["has"].view(-1)[flat] = 1 - out["has"].view(-1)[flat]
        return out

    def repeated(self, length: int) -> Example:
        ones = np.ones(length, np.float32)
        values = {
            "code": np.full(length, 5), "value": ones, "has": np.ones(length, np.int64), "hours": ones,
            "timed": np.ones(length, np.int64), "age": ones,
        }  # fmt: skip
        return Example(values=values, identity=1)

    def true_values(self, example: Example) -> np.ndarray:
        names = ("code", "value", "has", "hours", "timed")
        return np.stack([np.asarray(example.values[n], np.float32) for n in names], -1)


def numbers(prediction: object) -> Tensor:
    return torch.cat([prediction.logits, prediction.value, prediction.time], -1)
