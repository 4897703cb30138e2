"""Watching representations for collapse: pictures that are told apart less and less, until all are alike."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from unmask.evaluation.report import records
from unmask.modalities.images.network.features import features
from unmask.modalities.images.network.latent_losses import effective_rank, relative_spread
from unmask.modalities.images.reading.arrays import ImageSet
from unmask.modalities.images.reading.floats import evenly
from unmask.modalities.images.reading.sources import read_images

LOOKED_AT = 500
"""Held-out pictures whose representations are looked at."""
TIME_SHARE = 0.05
"""No look while looking has taken more than this share of the run."""
LEAST_RANK, LEAST_SPREAD = 1.5, 0.02
"""Below these, representations have collapsed; see `warned`."""

Measure = Callable[[Any], dict[str, float]]


def measures(*wanted: Measure | None) -> Measure | None:
    """All of the functions of the model that there are, as one; None where there is none."""
    there = [measure for measure in wanted if measure is not None]
    if not there:
        return None

    def measure(model: Any) -> dict[str, float]:
        return {name: value for each in there for name, value in each(model).items()}

    return measure


def spread_of(vectors: np.ndarray) -> dict[str, float]:
    """Effective rank and relative spread of embeddings, under the names of metrics.jsonl."""
    return {"effective_rank": effective_rank(vectors), "relative_spread": relative_spread(vectors)}


def live_spread(images: ImageSet, held_out: np.ndarray, size: tuple[int, int], native: bool = False) -> Measure | None:
    """A function of the model: how far the embeddings of held-out pictures are spread; None where fewer than ten are
    held out."""
    if len(held_out) < 10:
        return None
    part = images.take(evenly(held_out, LOOKED_AT))
    looked_at = part.centred(size) if native else read_images(part, size=size)
    started, spent = time.monotonic(), 0.0

    def measure(model: Any) -> dict[str, float]:
        nonlocal spent
        begun = time.monotonic()
        if spent > TIME_SHARE * (begun - started):
            return {}
        found = spread_of(features(model, looked_at, contextlib.nullcontext()))
        spent += time.monotonic() - begun
        return found

    return measure


def warned(found: Mapping[str, Any]) -> str:
    """What is to be said of these figures: '' where pictures are told apart."""
    rank, spread = found.get("effective_rank"), found.get("relative_spread")
    if rank is None or spread is None or (rank >= LEAST_RANK and spread >= LEAST_SPREAD):
        return ""
    return (
        f"warning: the representations have collapsed: those of different pictures are nearly alike (they differ by "
        f"{spread:.1%} of their length, in {rank:.1f} directions), so they say little about a picture. Raise "
        "regulariser, add pixel_weight, or take more pictures per step (batch)."
    )


def last_spread(metrics: Path) -> dict[str, float]:
    """The latest figures of a run's metrics.jsonl; {} where there are none."""
    found = [row for row in records(metrics) if "effective_rank" in row]
    return {} if not found else {name: found[-1][name] for name in ("effective_rank", "relative_spread")}
