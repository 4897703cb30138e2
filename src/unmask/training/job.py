"""What a training run is given, and what comes of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from unmask.core.batch import PackedBatch
from unmask.core.corruption import Corruption
from unmask.core.sampler import PackedSampler
from unmask.registry import load


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is trained on what.

    Args:
        model: a `MaskedModel` (or any module with the same call and a `codec`).
        sampler: of the data.
        make_batch: rows of example numbers -> packed batch with as many rows as asked.
        by_epoch: `make_batch` is given the epoch as a third argument (augmentation).
        measure: called with the model at every validation on the way and at the end, on the first process; what it
            returns, if anything, is recorded as a line of kind 'probe'.
        corruption: what is hidden in training.
        validation: held-out batches, and how they are masked (the same way at every validation).
        extra_validation: named further held-out sets, e.g. general text while adapting.
        stop_when: called with the validation metrics; True ends the run (the forgetting guard).
        watched: the figure that says which weights are the best and, with patience, when to stop; lower is better. One
            of the validation metrics, or of what `measure` returns.
        at_start: that figure of the initial weights, which are kept unless an evaluation is better; None where they are
            not to be kept.
        fingerprint: what must be the same when the run is resumed, as JSON (`check_same_run`).
        unit: what a row is called, in the plural.
        whole_batch: what the loss is called where it compares the examples of a batch with each other, so that a step
            cannot be taken in micro-batches or shared out to processes; '' where it can.
        prefetch: micro-batches that a thread makes ahead of the loop; 0 makes them when they are needed. Ahead of a
            GPU two are made in any case.
    """

    model: nn.Module
    sampler: PackedSampler
    make_batch: Callable[..., PackedBatch]
    corruption: Corruption
    validation: Sequence[PackedBatch]
    validation_corruption: Corruption
    extra_validation: dict[str, Sequence[PackedBatch]] | None = None
    stop_when: Callable[[dict[str, float]], bool] | None = None
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    by_epoch: bool = False
    measure: Callable[[nn.Module], dict[str, float]] | None = None
    watched: str = "validation_loss"
    at_start: float | None = None
    unit: str = "rows"
    whole_batch: str = ""
    prefetch: int = 0


class ModelOfRun:
    """Of what a verb returns that has made a model in a `folder`: the model itself."""

    folder: Path

    @cached_property
    def model(self) -> Any:
        """The model, loaded when it is first asked for."""
        found = load(self.folder)
        vars(found)["run"] = self  # whose temporary folder lives as long as this
        return found


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended.

    Attributes:
        stopped: 'finished', 'early' (patience, or a guard such as that against forgetting), or 'signal' (saved,
            resumable).
        kept_step: the step whose weights were kept; an earlier one than the last only where a run can stop early.
        refused: it stopped early because of the job's `stop_when`, and not of patience.
        expected_memory_mb: what was said before the start; `peak_memory_mb` is what the process held at most.
    """

    steps: int
    kept_step: int
    seconds: float
    stopped: str
    validation: dict[str, float]
    slots_per_second: float
    padding_waste: float
    skipped_steps: int
    precision: str
    device: str
    peak_memory_mb: float
    expected_memory_mb: float = math.nan
    micro_batches: int = 1
    refused: bool = False

    def held_out(self, name: str, form: str) -> str:
        """A figure of the held-out data for a report: `form` filled with it; "none held out" where there is none.

        Args:
            name: "loss" or "accuracy".
            form: such as "{:.3f} nats".
        """
        value = self.validation.get(f"validation_{name}")
        return "none held out" if value is None or not math.isfinite(value) else form.format(value)

    def summary(self, folder: Path, seed: int, **more: Any) -> dict[str, Any]:
        """All of it as plain data, for --json."""
        return {
            "folder": str(folder),
            **dataclasses.asdict(self),
            "seed": seed,
            "validation": {k: v for k, v in self.validation.items() if math.isfinite(v)},
            "slots_per_second": round(self.slots_per_second, 1),
            "padding_waste": round(self.padding_waste, 4),
            **more,
        }
