"""Looks at the held-out batches of a run, in no more memory than a step takes."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from unmask.core.batch import PackedBatch
from unmask.core.pretrain import validate
from unmask.training.ahead import MadeWhenNeeded
from unmask.training.compute import Compute, Whole
from unmask.training.job import Job
from unmask.training.tracking import Tracker
from unmask.writing import written


def sample(batches: Sequence[PackedBatch], slots: int) -> Sequence[PackedBatch]:
    """At most about `slots` slots of the batches, evenly spread over them, always the same; at least one batch."""
    size = (
        len(batches) * batches.slots  # known without making them
        if isinstance(batches, MadeWhenNeeded)
        else sum(b.segment.numel() for b in batches)
    )
    count = max(1, min(len(batches), round(len(batches) * slots / max(size, 1))))
    numbers = [int(i * len(batches) / count) for i in range(count)]
    return MadeWhenNeeded([functools.partial(batches.__getitem__, i) for i in numbers], size // max(len(batches), 1))


class Validation:
    """Looks at the held-out sets of a run.

    Args:
        slots: about how many slots of each set a look on the way takes; the last one takes all.
        rows: rows that the model looks at in one go: as many as a micro-batch has, so that looking never takes more
            memory than a step does.
    """

    def __init__(self, job: Job, engine: Whole, *, slots: int, rows: int, compute: Compute) -> None:
        self.job, self.engine, self.slots, self.rows, self.compute = job, engine, slots, rows, compute
        self.sets = {"validation": job.validation, **(job.extra_validation or {})}

    def evaluate(self, tracker: Tracker, step: int, progress: float, *, whole: bool = False) -> dict[str, float]:
        """Metrics of the sets, such as 'validation_loss', and the figure that the job watches; logged, and what the job
        measures itself beside them.

        Args:
            whole: look at all held-out batches, not at a sample.
        """
        found = dict[str, float]()
        for name, batches in self.sets.items():
            some = batches if whole else sample(batches, self.slots)
            found |= {f"{name}_{metric}": value for metric, value in self.metrics(some).items()}
        tracker.log(step, progress, kind="validation", **found)
        if measured := self._measured():
            tracker.log(step, progress, kind="probe", **measured)
        if (watched := self.job.watched) not in found:
            found[watched] = self.compute.from_first(measured.get(watched, math.inf))
        return found

    def metrics(self, batches: Sequence[PackedBatch]) -> dict[str, float]:
        """Loss per hidden slot, and accuracy where the prediction has one, over all processes."""
        engine, compute = self.engine, self.compute
        own = batches[compute.rank :: compute.processes]
        # Neither the chain nor the map holds on to a batch while the next one is made, as a loop would.
        parts = itertools.chain.from_iterable(map(operator.methodcaller("cut", self.rows), own))
        part = validate(
            engine.evaluated(),
            engine.together(parts, self._nothing),
            self.job.validation_corruption,
            autocast=compute.autocast,
            device=compute.device,
            without_gradients=engine.without_gradients,
        )
        engine.validation_over()
        n = part["hidden_slots"]
        right = part.get("accuracy", math.nan) * n
        sums = compute.total(torch.tensor([part["loss"] * n, right, n], dtype=torch.float64, device=compute.device))
        loss, right, hidden = (float(x) for x in sums)
        accuracy = {} if math.isnan(right) else {"accuracy": right / max(hidden, 1)}
        return {"loss": loss / max(hidden, 1), **accuracy}

    def _measured(self) -> dict[str, float]:
        """What the job measures itself, on the first process."""
        if self.job.measure is None:
            return {}
        model = self.engine.whole()
        if model is None or not self.compute.first_process:
            return {}
        return self.job.measure(model.to(self.compute.device))

    def _nothing(self) -> PackedBatch:
        """A batch that is all padding."""
        return self.job.make_batch([], 1, *((0,) if self.job.by_epoch else ()))


StopWhen = Callable[[dict[str, float]], bool]


class BestWeights:
    """The weights of the best look at the held-out data so far, in memory and beside the checkpoints, for a resumed
    run.

    Attributes:
        state: of the model, on the CPU; None before the first look.
        step: after which step they were taken.
    """

    def __init__(self, out: Path) -> None:
        self.path = out / "checkpoints" / "best.safetensors"
        self.state: dict[str, Tensor] | None = None
        self.step = 0

    def keep(self, state: dict[str, Tensor], step: int, *, write: bool) -> None:
        """Take weights, a copy of the model's as they are; `write` them too, on the first process."""
        from safetensors.torch import save_file

        self.state, self.step = state, step
        if write:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with written(self.path) as temporary:
                save_file(state, temporary, metadata={"step": str(step)})

    def restore(self, step: int | None) -> None:
        """What was kept after this step, if it is still there. A run that was broken off later may have kept newer
        ones: the resumed run comes by the same step again."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path, framework="pt") as file:
                if step is not None and (file.metadata() or {}).get("step") == str(step):
                    self.state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
                    self.step = step
        except (OSError, SafetensorError):
            return


class EarlyStopping:
    """Which look at the held-out data was the best, and whether the run is to stop.

    Args:
        patience: looks without improvement before the run stops; None never stops.
        stop_when: ends the run at once, whatever the loss; what it saw then is never the best.
        watched: the metric that is called loss here; lower is better.
        at_start: the loss before the first step, where it counts as a look.

    Attributes:
        loss: the lowest so far; None before the first look.
        waited: looks since then.
        refused: whether `stop_when` is why the run is to stop.
    """

    def __init__(
        self,
        patience: int | None,
        stop_when: StopWhen | None,
        *,
        watched: str = "validation_loss",
        at_start: float | None = None,
    ) -> None:
        self.patience, self.stop_when, self.watched, self.at_start = patience, stop_when, watched, at_start
        self.loss = at_start
        self.waited = 0
        self.refused = False

    @property
    def possible(self) -> bool:
        """Whether the run can stop early at all."""
        return self.patience is not None or self.stop_when is not None or self.at_start is not None

    def improves(self, metrics: dict[str, float]) -> bool:
        """Whether these metrics are better than those of the best look."""
        better = self.loss is None or metrics[self.watched] < self.loss
        return better and not self._refused(metrics)

    def update(self, metrics: dict[str, float]) -> tuple[bool, bool]:
        """Count a look; (whether it is the best so far, whether the run is to stop)."""
        self.refused = refused = self._refused(metrics)
        loss = metrics[self.watched]
        improved = not refused and (self.loss is None or loss < self.loss)
        self.loss = loss if improved else self.loss
        self.waited = 0 if improved else self.waited + 1
        return improved, refused or (self.patience is not None and self.waited >= self.patience)

    def _refused(self, metrics: dict[str, float]) -> bool:
        return self.stop_when is not None and self.stop_when(metrics)
