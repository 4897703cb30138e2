"""Whether a run that is broken off may be gone on with: begun with the same data and settings, and not past its end."""

from __future__ import annotations

import contextlib
import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.errors import UserError, setting
from unmask.training.checkpoint import Checkpoint, checkpoints, read_state
from unmask.training.settings import TrainSettings


def started_with(folder: Path, name: str) -> Any:
    """What a run's fingerprint has under a name, by its newest readable checkpoint; None where that does not say."""
    for path in checkpoints(folder):
        with contextlib.suppress(UserError):
            return (read_state(path)["extra"].get("fingerprint") or {}).get(name)
    return None


def digest(about: Any, *parts: np.ndarray | Tensor) -> str:
    """A fingerprint of JSON, arrays and tensors: of others it is another one."""
    content = hashlib.sha256(json.dumps(about, default=str).encode())
    for part in parts:
        if isinstance(part, Tensor):  # as bytes: numpy knows no bf16
            part = part.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
        array = np.ascontiguousarray(part)
        content.update(str((array.dtype, array.shape)).encode())
        content.update(array.data)
    return content.hexdigest()


def check_same_run(checkpoint: Checkpoint | None, fingerprint: Mapping[str, Any], folder: Path, *, hint: str) -> None:
    """Refuse to go on with a run that was started otherwise.

    Args:
        checkpoint: its newest, with the fingerprint it was started with in `extra`; None: nothing to check.
        fingerprint: what must not change while a run is broken off, as JSON: mappings of settings, and digests of data
            and the like by name.
    """
    if checkpoint is not None:
        refuse_differences(checkpoint.extra.get("fingerprint"), fingerprint, folder, hint=hint)


def refuse_differences(was: Any, now: Mapping[str, Any], folder: Path, *, hint: str) -> None:
    """Refuse what is not as it `was`: fingerprints as in `check_same_run`."""
    now = json.loads(json.dumps(now, default=str))
    if was != now:
        reason = "; ".join(_differences(was, now)) if isinstance(was, Mapping) else "another version wrote it"
        raise UserError(f"{folder}: the run there was started with other data or settings: {reason}", hint=hint)


def check_not_done(checkpoint: Checkpoint | None, settings: TrainSettings, steps: int | None, folder: Path) -> None:
    """Refuse to end a run earlier than it has come.

    Args:
        steps: that it takes in all; None where the clock ends it.
    """
    if checkpoint is not None and steps is not None and checkpoint.step > steps:
        epochs = f"{setting('epochs', settings.epochs)} ({steps:,} in all)"
        length = epochs if settings.epochs is not None else setting("steps", steps)
        raise UserError(
            f"{folder}: the run has taken {checkpoint.step:,} steps, and {length} asks for fewer",
            hint="Ask for as many or more, or begin in another folder.",
        )


def warn_of_threads(checkpoint: Checkpoint | None) -> None:
    """Warn where a run goes on with another number of threads: sums are split, and so rounded, otherwise."""
    was, now = checkpoint.extra.get("threads") if checkpoint is not None else None, torch.get_num_threads()
    if was not in (None, now):
        warnings.warn(
            f"the run computed on {was} threads and goes on with {now}: its weights will not be, bit for bit, those of "
            f"a run that was not interrupted (OMP_NUM_THREADS={was} makes them so)",
            stacklevel=3,
        )


def _differences(was: Mapping[str, Any], now: Mapping[str, Any], *, values: bool = False) -> Iterator[str]:
    """What is not the same: digests by name, what stands in mappings with both `values`."""
    for key in {**now, **was}:
        old, new = (side.get(key) for side in (was, now))
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(old, new, values=True)
        elif old != new:
            yield f"{key}={new}, was {old}" if values else f"{key}: not the same"
