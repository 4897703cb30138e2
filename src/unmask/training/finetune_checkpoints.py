"""Going on with an interrupted fine-tuning run: what its checkpoints keep, and when they are written.

A run that trains one module keeps them by a `Checkpointer`, one that trains several, one after another, by `Stages`.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unmask.errors import UserError, option
from unmask.training.checkpoint import Checkpoint, save_checkpoint
from unmask.training.processes import Processes, load_latest, random_states
from unmask.training.same_run import check_same_run
from unmask.training.signals import SignalGuard
from unmask.writing import first_of_all

VERSION = {"the layout of checkpoints": 2}
"""Part of every fingerprint: checkpoints of another layout are not gone on from."""


@dataclass
class Progress:
    """What a fine-tuning run has come to, besides weights and optimiser.

    Attributes:
        scores: of the best state so far, one per member.
        waited: looks at the held-out data since then, per member.
        metrics: of the look that the best state comes from; `kept_step` is its step, 0 for the state before the steps.
        ended: how the steps ended, where all are done and something follows them; else empty.
        extra: what the kind keeps (`Finetunable.saved`), now; `best_extra` as it was at the best state.
    """

    step: int = 0
    scores: list[float] = field(default_factory=list)
    waited: list[int] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    kept_step: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    ended: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    best_extra: dict[str, Any] = field(default_factory=dict)


class Checkpointer:
    """Keeps the newest checkpoint of a run.

    Args:
        folder: where; empty unless a run was interrupted.
        seconds: between checkpoints.
        fingerprint: data and settings, as JSON (`check_same_run`): a run goes on with the same ones only.
        stages: of which this is one: they share a clock, and messages name their folder.

    Attributes:
        about: kept in every checkpoint, such as the precision of the run; 'auto' might choose another one the next
            time.
        signals: to be held open around the steps.
        more: something follows the steps (training on all rows), so that their end is kept too once there is a
            checkpoint.
    """

    def __init__(
        self,
        folder: Path,
        *,
        seconds: float,
        fingerprint: Mapping[str, Any],
        resume: bool,
        stages: Stages | None = None,
    ) -> None:
        self.folder, self.seconds, self.fingerprint = folder, seconds, VERSION | dict(fingerprint)
        self.about: dict[str, Any] = {}
        self.signals, self.more = SignalGuard(), False
        self.stages, self.saved_at = stages, time.monotonic()
        self.found: Checkpoint | None = load_latest(folder)
        run = folder if stages is None else stages.folder
        if self.found is not None and not resume:
            raise UserError(
                f"{run}: the checkpoint of an interrupted run",
                hint=f"Add {option('resume', True)} to go on with it, or remove that folder.",
            )
        check_same_run(self.found, self.fingerprint, run, hint="Resume with the same ones, or remove that folder.")

    def restore(self, model: nn.Module, optimiser: torch.optim.Optimizer) -> tuple[Progress, dict[str, Tensor] | None]:
        """Put model and optimiser where the run was; how far that is, and its best state so far."""
        assert self.found is not None
        state: dict[str, dict[str, Tensor]] = {"now": {}, "best": {}}
        for key, tensor in self.found.model_state.items():
            part, _, name = key.partition(".")
            state[part][name] = tensor
        model.load_state_dict(state["now"])
        optimiser.load_state_dict(self.found.optimiser_state)
        return Progress(**self.found.extra["progress"]), state["best"] or None

    def kept(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return (self.folder / "checkpoints").exists()

    def due(self) -> bool:
        """Whether it is time for a checkpoint: some time after the last one."""
        return time.monotonic() - (self.stages or self).saved_at > self.seconds

    def keeps_end(self) -> bool:
        """Whether the end of the steps is worth a checkpoint: of a stage once there is any."""
        if self.stages is None:
            return self.more and self.kept()
        return self.signals.requested or self.due() or any(self.stages.folder.glob("*/checkpoints"))

    def save(
        self,
        progress: Progress,
        model: nn.Module,
        best: Mapping[str, Tensor] | None,
        optimiser: torch.optim.Optimizer,
        processes: Processes,
    ) -> None:
        """Write a checkpoint; the one before it goes. The first process does, the others wait."""
        parts = {"now": model.state_dict(), "best": best or {}}
        about = {"fingerprint": self.fingerprint, "random_states": random_states(processes.accelerator), **self.about}
        if processes.first_process:
            save_checkpoint(
                self.folder,
                step=progress.step,
                keep=1,
                optimiser_state=optimiser.state_dict(),
                model_state={f"{part}.{name}": t for part, state in parts.items() for name, t in state.items()},
                extra={"progress": dataclasses.asdict(progress), **about},
            )
        processes.accelerator.wait_for_everyone()
        (self.stages or self).saved_at = time.monotonic()

    def remove(self) -> None:
        """Remove it: the run is over."""
        if first_of_all():
            shutil.rmtree(self.folder, ignore_errors=True)


class StoppedBySignal(Exception):
    """A signal ended one of the trainings of a run, after `steps` of its steps; its checkpoint is kept."""

    def __init__(self, steps: int) -> None:
        super().__init__(steps)
        self.steps = steps


class Stages:
    """The checkpoints of a run that trains one module after another, of each in a folder of its own.

    Which modules there are, and in which order, must follow from data and settings alone. A resumed run reads back
    those that were done, and goes on with the one that was under way. What was over before the first checkpoint was
    due is trained again: with the same result, if it draws from generators of its own seed alone.

    Args:
        seconds: between checkpoints of the whole run.
    """

    def __init__(self, folder: Path, *, seconds: float, fingerprint: Mapping[str, Any], resume: bool) -> None:
        self.folder, self.seconds, self.fingerprint, self.resume = folder, seconds, fingerprint, resume
        self.saved_at = time.monotonic()
        self._stages = 0
        found = next(iter(sorted(folder.glob("*/checkpoints"))), None)
        if found is not None:
            self._stage(found.parent)

    def next(self, name: str) -> Checkpointer:
        """The checkpoints of the next training; its name is for people who look into the folder."""
        self._stages += 1
        return self._stage(self.folder / f"{self._stages:02d}-{name}")

    def _stage(self, folder: Path) -> Checkpointer:
        how: dict[str, Any] = {"fingerprint": self.fingerprint, "resume": self.resume}
        return Checkpointer(folder, seconds=self.seconds, stages=self, **how)

    def remove(self) -> None:
        """Remove all checkpoints: the run is over."""
        if first_of_all():
            shutil.rmtree(self.folder, ignore_errors=True)
