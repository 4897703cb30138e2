"""Where fine-tuning starts, by task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from unmask.core.inference import one_core
from unmask.modalities.text.network.folder import TextFolder
from unmask.modalities.text.tasks import probe
from unmask.modalities.text.tasks.prepared import Prepared
from unmask.modalities.text.tasks.settings import TaskSettings
from unmask.modalities.text.tasks.task import TaskModel, TextTask


def keeps_its_head(text: TextFolder, task: TextTask, random: list[str]) -> bool:
    """Whether the folder's own head was made for these very outputs."""
    if random or task.head is None:
        return not random
    names = text.hf_config.get("id2label") or {}
    labels = task.about.get("labels")
    return not labels or [names.get(str(i)) for i in range(len(labels))] == [str(n) for n in labels]


def start_head(
    text: TextFolder,
    built: TaskModel,
    task: TextTask,
    training: Prepared,
    settings: TaskSettings,
    *,
    slots: int,
    context: Callable[[], Any],
    chosen: probe.Probed | None = None,
) -> probe.Probed | None:
    """Make the task's head a linear probe of the frozen encoder; None for a task without a head, or that does not start
    so."""
    if built.head is None:
        return None
    common: dict[str, Any] = {"slots": slots, "context": context, "seed": settings.seed, "chosen": chosen}
    with one_core():
        found = task.start_head(text, built.head, training, **common)
    torch.manual_seed(settings.seed)
    return found
