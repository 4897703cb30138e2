"""Schedules as pure functions of the fraction of the run done, and the clock that says how much is done.

A run may be bounded by steps, epochs or minutes; a schedule only sees how much of it is over, so all three
share it, and a resumed run continues where it was.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unmask.training.settings import TrainSettings

if TYPE_CHECKING:
    from unmask.training.processes import Processes


def rate(progress: float, settings: TrainSettings) -> float:
    """The multiplier of the peak learning rate when `progress` (0 to 1) of the run is done.

    Warm-up rises linearly from 0 to 1 over the first `warmup`: the first step of a run has rate 0, as in BERT's own
    code and transformers' schedules. Then 'linear' and 'cosine' fall to `minimum_rate` at the end, 'wsd' (warm-up,
    stable, decay; Hu et al. 2024, MiniCPM, section 4) holds 1 and falls linearly over the last `decay`, and 'constant'
    holds 1. Values outside 0..1 are clamped: a run bounded by minutes may overshoot.

    >>> settings = TrainSettings(schedule="linear", warmup=0.1)
    >>> [round(rate(p, settings), 3) for p in (0, 0.05, 0.1, 0.55, 1)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    >>> settings = TrainSettings(schedule="wsd", warmup=0.1, decay=0.2, minimum_rate=0.1)
    >>> [round(rate(p, settings), 3) for p in (0.1, 0.8, 0.9, 1)]
    [1.0, 1.0, 0.55, 0.1]
    >>> round(rate(0.5, TrainSettings(schedule="cosine", warmup=0.0)), 3)
    0.5
    """
    progress = min(max(progress, 0.0), 1.0)
    if progress < settings.warmup:
        return progress / settings.warmup
    if settings.schedule == "constant":
        return 1.0
    fall = settings.decay if settings.schedule == "wsd" else 1.0 - settings.warmup
    if progress <= 1.0 - fall:
        return 1.0
    left = (1.0 - progress) / fall
    if settings.schedule == "cosine":
        left = 0.5 * (1.0 - math.cos(math.pi * left))
    return settings.minimum_rate + (1.0 - settings.minimum_rate) * left


class RunClock:
    """The share of a run that is done; by the clock, all processes go by the first one's.

    Args:
        minutes: that the run takes; None where steps end it.
        steps: that it takes else.
        before: seconds that were spent before the run was resumed.
    """

    def __init__(self, minutes: float | None, steps: int | None, before: float, processes: Processes) -> None:
        self.minutes, self.steps, self.processes = minutes, steps, processes
        self.before, self.started = before, time.monotonic()

    def elapsed(self) -> float:
        """Seconds of the run so far, those before a resume included."""
        return self.before + time.monotonic() - self.started

    def progress(self, step: int) -> float:
        """The share of the run that is done after `step` steps; over 1 where its minutes are over."""
        if self.minutes is not None:
            return self.processes.from_first(self.elapsed() / (60 * self.minutes))
        assert self.steps is not None  # a run without minutes has an end in steps
        return step / self.steps


@dataclass(frozen=True)
class Ramp:
    """A value that moves linearly from `start` to `end` over the run, such as the share of hidden slots.

    Hiding much early and less later (0.30 to 0.15) reaches the same loss in fewer steps (Yang et al. 2023,
    'Learning Better Masking for Better Language Model Pre-training').

    >>> ramp = Ramp(0.30, 0.15)
    >>> ramp(0.0), round(ramp(0.5), 3), ramp(1.0), ramp(7.0)
    (0.3, 0.225, 0.15, 0.15)
    """

    start: float
    end: float

    def __call__(self, progress: float) -> float:
        progress = min(max(progress, 0.0), 1.0)
        return (1.0 - progress) * self.start + progress * self.end
