"""How the processes of a run hold its model: `Whole`, all of it in each (DDP averages their gradients), or a share in
each (`unmask.training.shards.ShardedModel`, FSDP2). The run asks its engine for whatever depends on which it is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unmask.core.batch import PackedBatch
from unmask.core.pretrain import MaskedLoss
from unmask.training.checkpoint import Checkpoint, save_checkpoint
from unmask.training.compute import Compute
from unmask.training.job import Job
from unmask.training.optimiser import build_optimiser
from unmask.training.processes import random_states
from unmask.training.settings import TrainSettings


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
