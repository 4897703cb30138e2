"""What a run computes on and in: the processes of its launcher, device, precision, steps split to fit the memory, and
the model as its processes hold it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from unmask.core.batch import PackedBatch, place_best_fit
from unmask.core.pretrain import MaskedLoss
from unmask.errors import UserError, setting
from unmask.training.budget import MemoryPlan, fit_here, measure
from unmask.training.checkpoint import Checkpoint, save_checkpoint
from unmask.training.job import Job
from unmask.training.launcher import check_launcher
from unmask.training.optimiser import build_optimiser
from unmask.training.precision import Precision, computing, resolve_device, resolve_precision
from unmask.training.processes import Processes, random_states
from unmask.training.settings import TrainSettings

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass(frozen=True, kw_only=True)
class Compute(Processes):
    """Where a run computes.

    Attributes:
        precision: the number format, with the reason for it; the same in all processes.
    """

    device: torch.device
    precision: Precision

    @classmethod
    def choose(cls, settings: TrainSettings, accelerator: Accelerator, found: Checkpoint | None) -> Compute:
        """Device and precision of a run; a resumed one computes as it did before, and all processes as the first.

        Args:
            found: the checkpoint that is resumed.
        """
        requested, device = settings.precision, accelerator.device
        if found is not None and requested == "auto":
            requested = found.extra["precision"]
        first = resolve_precision(requested, device) if accelerator.is_main_process else None
        half = Processes(accelerator=accelerator).from_first(float(first is not None and first.name == "bf16"))
        precision = first or resolve_precision("bf16" if half else "fp32", device)
        return cls(accelerator=accelerator, device=device, precision=precision)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The context in which the model computes in the run's precision."""
        return computing(self.precision.name, self.device)


def launch(settings: TrainSettings) -> Accelerator:
    """Accelerate's view of the processes and their devices.

    The precision is ours to choose: a launcher's own would be on top of it. Parameters that a step does not use (the
    value heads of published event structures) wait for nobody: they have no gradient, as in one process.
    """
    from accelerate import Accelerator, DistributedDataParallelKwargs

    check_launcher()
    return Accelerator(
        cpu=resolve_device(settings.device).type == "cpu",
        mixed_precision="no",
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
    )


def fit_memory(job: Job, compute: Compute, settings: TrainSettings, found: Checkpoint | None) -> MemoryPlan:
    """What the run will need, and micro-batches that fit; all processes split a step as the first does.

    Args:
        found: the checkpoint that is resumed, whose split is kept.
    """
    sampler, processes = job.sampler, compute.processes
    some = sampler.examples[: 64 * max(1, sampler.slots // max(int(sampler.lengths[0]), 1))]
    placed = place_best_fit(sampler.lengths[some], sampler.slots)
    rows = [[int(some[i]) for i in row] for row in placed]

    def make(count: int) -> PackedBatch:
        return job.make_batch((rows * count)[:count], count, *((0,) if job.by_epoch else ()))

    waiting = job.prefetch + bool(job.prefetch)
    shared_out = settings.shard == "full" and processes > 1
    # A model that is shared out is still whole, on the CPU: it may not fit the device.
    where = torch.device("cpu") if shared_out else compute.device
    autocast = functools.partial(computing, compute.precision.name, where)
    need = measure(job.model, make, job.corruption, device=where, autocast=autocast, waiting=waiting)
    if shared_out:
        need = need.shared_out(processes)
    fitted = fit_here(
        need,
        rows=-(-sampler.rows // processes),
        device=compute.device,
        memory=settings.memory,
        requested=settings.accumulate,
        unit=job.unit,
        fixed=None if found is None else found.extra.get("parts", settings.accumulate),
    )
    if job.whole_batch and fitted.parts * processes > 1:
        split = (
            f"{processes} processes" if processes > 1 else f"{fitted.parts} micro-batches of {fitted.rows} {job.unit}"
        )
        raise UserError(
            f"a step of {sampler.rows} {job.unit} in {split}, but {job.whole_batch} compares all of a step with each "
            "other",
            hint=f"Run one process, leave {setting('accumulate', 1)}, and take a smaller {setting('batch')} where "
            "memory asks for it: the loss is then one over fewer.",
        )
    if processes == 1:
        return fitted
    parts = int(compute.from_first(float(fitted.parts)))
    return dataclasses.replace(fitted, parts=parts, rows=-(-sampler.rows // (parts * processes)))


class Whole:
    """Every process holds the whole model and the whole optimiser.

    Attributes:
        losses: the model with its loss, as the steps call it.
        without_gradients: the context that validation takes place in.
    """

    losses: nn.Module
    optimiser: Any
    without_gradients: Callable[[], contextlib.AbstractContextManager[Any]] = torch.inference_mode

    def __init__(self, job: Job, settings: TrainSettings, compute: Compute, folder: Path) -> None:
        self.model, self.settings, self.compute, self.folder = job.model, settings, compute, folder
        self._settle()

    def _settle(self) -> None:
        """Bring the model to where its memory is measured."""
        self.model.to(self.compute.device)

    def begin(self, found: Checkpoint | None) -> None:
        """Make the optimiser, put both where the checkpoint is, and make ready for steps."""
        self.optimiser = build_optimiser(self.model, self.settings)
        if found is not None:
            if found.shards is not None:
                from unmask.training.shards_checkpoint import read_whole

                found = read_whole(found)
            self.model.load_state_dict(found.model_state)
            self.optimiser.load_state_dict(found.optimiser_state)
        trained: Any = torch.compile(self.model) if self.settings.compile else self.model
        losses = MaskedLoss(trained)
        if self.compute.processes > 1:
            # DDP, which is to find the parameters that a step does not use, warns where it finds none.
            losses.register_parameter("never_used", nn.Parameter(torch.zeros((), device=self.compute.device)))
        self.losses, self.optimiser = self.compute.accelerator.prepare(losses, self.optimiser)

    def no_sync(self) -> contextlib.AbstractContextManager[Any]:
        """The context of a micro-batch that is not the last of its step."""
        return self.compute.accelerator.no_sync(self.losses)

    def evaluated(self) -> nn.Module:
        """The model, or the model with its loss, as validation calls it."""
        return self.model

    def together(self, parts: Iterator[PackedBatch], nothing: Callable[[], PackedBatch]) -> Iterator[PackedBatch]:
        """What a process looks at in a validation, of which it has `parts`.

        Args:
            nothing: makes a batch that is all padding.
        """
        return parts

    def validation_over(self) -> None:
        """A look at held-out data is over."""

    def whole(self) -> nn.Module | None:
        """The model with all its weights, on the first process at least; called by all."""
        return self.model

    def state(self) -> dict[str, Tensor]:
        """A copy of all weights on the CPU, on the first process at least; called by all."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Take weights that `state` gave; called by all."""
        self.model.load_state_dict(state)

    def save(self, step: int, extra: Callable[[], dict[str, Any]]) -> None:
        """Write a checkpoint: the first process does, the others wait."""
        others = random_states(self.compute.accelerator)
        if self.compute.first_process:
            save_checkpoint(
                self.folder,
                step=step,
                model_state=self.model.state_dict(),
                optimiser_state=self.optimiser.state_dict(),
                keep=self.settings.keep,
                extra=extra() | {"random_states": others},
            )
        self.compute.accelerator.wait_for_everyone()

    def close(self) -> None:
        """Wait until what is being written is on the disk."""
