"""Checkpoints of the fine-tuning of an event model: where they are, and what a run must be resumed with."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from unmask.modalities.events.recipes import OutcomeSettings
from unmask.modalities.events.records.meds import Events, Labels
from unmask.modalities.events.uses.model import EventModel
from unmask.training.finetune_checkpoints import Stages
from unmask.writing import training_folder


def stages_of(
    out: Path,
    loaded: EventModel,
    events: Events,
    points: Labels,
    y: np.ndarray,
    held: np.ndarray,
    settings: OutcomeSettings,
    *,
    resume: bool,
) -> Stages:
    """Checkpoints beside `out`, of a run on these events and labels with these settings.

    Args:
        y: targets of all points; held: (points,) which of them nothing is fitted on.
    """
    kept = {
        k: v for k, v in dataclasses.asdict(settings).items() if k not in ("checkpoint_seconds", "examples", "device")
    }
    found: dict[str, Any] = {"settings": kept | {"precision": loaded.precision}}
    weights = loaded.folder.model.state_dict()
    found["the model"] = digest(loaded.folder.vocabulary.codes, *(t.cpu().numpy() for t in weights.values()))
    found["the events"] = digest([events.digest(), events.codes], events.subjects, events.offsets)
    found["the labels"] = digest([], points.subject, points.time, y, held)
    return Stages(training_folder(out), seconds=settings.checkpoint_seconds, fingerprint=found, resume=resume)


def digest(about: Any, *arrays: np.ndarray) -> str:
    """Of JSON and arrays: of others it is another one."""
    content = hashlib.sha256(json.dumps(about).encode())
    for array in arrays:
        content.update(str((array.dtype, array.shape)).encode())
        content.update(np.ascontiguousarray(array).data)
    return content.hexdigest()
