"""How much of a training run is done: by steps, by epochs, or by the clock."""

from __future__ import annotations

import time

from unmask.core.plan import Plan
from unmask.training.compute import Compute
from unmask.training.settings import TrainSettings


class RunClock:
    """The share of a run that is done; by the clock, all processes go by the first one's.

    Args:
        minutes: that the run takes; None where steps end it.
        steps: that it takes else.
        before: seconds that were spent before the run was resumed.
    """

    def __init__(self, minutes: float | None, steps: int | None, before: float, compute: Compute) -> None:
        self.minutes, self.steps, self.compute = minutes, steps, compute
        self.before, self.started = before, time.monotonic()

    def elapsed(self) -> float:
        """Seconds of the run so far, those before a resume included."""
        return self.before + time.monotonic() - self.started

    def progress(self, step: int) -> float:
        """The share of the run that is done after `step` steps; over 1 where its minutes are over."""
        if self.minutes is not None:
            return self.compute.from_first(self.elapsed() / (60 * self.minutes))
        assert self.steps is not None  # a run without minutes has an end in steps
        return step / self.steps


def total_steps(settings: TrainSettings, plan: Plan) -> int | None:
    """Optimiser steps of a run that steps or epochs end; None of one that the clock ends."""
    if settings.epochs is not None:
        return max(1, round(plan.steps_per_epoch() * settings.epochs))
    return settings.steps


def ending(settings: TrainSettings) -> str:
    """What ends a run, in words: '30 minutes', '20000 steps', '3 epochs'."""
    if settings.minutes is not None:
        return f"{settings.minutes:g} minutes"
    return f"{settings.steps} steps" if settings.steps is not None else f"{settings.epochs:g} epochs"
