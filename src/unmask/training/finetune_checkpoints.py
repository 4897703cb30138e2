"""Going on with an interrupted fine-tuning run: what its checkpoints keep, and when they are written."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unmask.errors import UserError, option
from unmask.training.checkpoint import Checkpoint, SignalGuard, check_same_run, load_latest, save_checkpoint

VERSION = {"the layout of checkpoints": 2}
"""Part of every fingerprint: checkpoints of another layout are not gone on from."""


@dataclass
class Progress:
    """What a fine-tuning run has come to, besides weights and optimiser.

    Attributes:
        step: how many are done.
        scores: of the best state so far, one per member.
        waited: looks at the held-out data since then, per member.
        metrics: of the look that the best state comes from; `kept_step` is its step, 0 for the state before the steps.
        history: metrics of all looks.
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


class Keeper:
    """Keeps the newest checkpoint of a run.

    Args:
        folder: where; empty unless a run was interrupted.
        seconds: between checkpoints.
        fingerprint: data and settings, as JSON (`check_same_run`): a run goes on with the same ones only.
        resume: go on with the run whose checkpoint is there, if any.

    Attributes:
        found: the checkpoint to go on from.
        about: kept in every checkpoint, such as the precision of the run; 'auto' might choose another one the next
            time.
        signals: to be held open around the steps.
        more: something follows the steps (training on all rows), so that their end is kept too once there is a
            checkpoint.

    Raises:
        UserError: there is a checkpoint and `resume` was not asked for, or it is of a run on other data or settings.
    """

    def __init__(self, folder: Path, *, seconds: float, fingerprint: Mapping[str, Any], resume: bool) -> None:
        self.folder, self.seconds, self.fingerprint = folder, seconds, VERSION | dict(fingerprint)
        self.about: dict[str, Any] = {}
        self.signals, self.more = SignalGuard(), False
        self._saved_at = time.monotonic()
        self.found: Checkpoint | None = load_latest(folder)
        if self.found is not None and not resume:
            raise UserError(
                f"{folder}: the checkpoint of an interrupted run",
                hint=f"Add {option('resume', True)} to go on with it, or remove that folder.",
            )
        check_same_run(self.found, self.fingerprint, folder, hint="Resume with the same ones, or remove that folder.")

    def restore(self, model: nn.Module, optimiser: torch.optim.Optimizer) -> tuple[Progress, dict[str, Tensor] | None]:
        """Put model, optimiser and random generators where the run was; how far that is, and its best state so far."""
        if self.found is None:
            return Progress(), None
        state: dict[str, dict[str, Tensor]] = {"now": {}, "best": {}}
        for key, tensor in self.found.model_state.items():
            part, _, name = key.partition(".")
            state[part][name] = tensor
        model.load_state_dict(state["now"])
        optimiser.load_state_dict(self.found.optimiser_state)
        self.found.restore_random_state()
        return Progress(**self.found.extra["progress"]), state["best"] or None

    def kept(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return (self.folder / "checkpoints").exists()

    def due(self) -> bool:
        """Whether it is time for a checkpoint: some time after the last one, or at a signal."""
        return self.signals.requested or time.monotonic() - self._saved_at > self.seconds

    def save(
        self, progress: Progress, model: nn.Module, best: Mapping[str, Tensor] | None, optimiser: torch.optim.Optimizer
    ) -> None:
        """Write a checkpoint; the one before it goes."""
        parts = {"now": model.state_dict(), "best": best or {}}
        save_checkpoint(
            self.folder,
            step=progress.step,
            keep=1,
            optimiser_state=optimiser.state_dict(),
            model_state={f"{part}.{name}": t for part, state in parts.items() for name, t in state.items()},
            extra={"progress": dataclasses.asdict(progress), "fingerprint": self.fingerprint, **self.about},
        )
        self._saved_at = time.monotonic()
