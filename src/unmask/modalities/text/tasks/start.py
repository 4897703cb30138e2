"""Where fine-tuning starts, by task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from unmask.core.inference import one_core
from unmask.modalities.text.folder import TextFolder
from unmask.modalities.text.tasks import linear, probe
from unmask.modalities.text.tasks.model import TaskModel
from unmask.modalities.text.tasks.settings import FinetuneSettings
from unmask.modalities.text.tasks.task import Prepared

KINDS: dict[str, linear.Kind] = {"single": "softmax", "multi": "sigmoid", "regression": "squared"}


def keeps_its_head(text: TextFolder, work: Any, random: list[str]) -> bool:
    """Whether the folder's own head was made for these very outputs."""
    if random or work.head is None:
        return not random
    names = text.hf_config.get("id2label") or {}
    labels = work.about.get("labels")
    return not labels or [names.get(str(i)) for i in range(len(labels))] == [str(n) for n in labels]


def row_weights(work: Any, prepared: Prepared) -> np.ndarray | None:
    """What `class_weights` make each row weigh, mean 1."""
    weights = getattr(work, "weights", None)
    if weights is None or work.problem != "single":
        return None
    found = weights[prepared.extra["target"]].numpy().astype(np.float64)
    return found / found.mean()


def start_head(
    text: TextFolder, built: TaskModel, work: Any, training: Prepared, settings: FinetuneSettings, *, slots: int,
    context: Callable[[], Any], chosen: probe.Probed | None = None,
) -> probe.Probed | None:  # fmt: skip
    """Make the task's head a linear probe of the frozen encoder; None for a task without a head."""
    if built.head is None:
        return None
    common: dict[str, Any] = {"slots": slots, "context": context, "seed": settings.seed, "chosen": chosen}
    with one_core():
        if work.name == "classify":
            found = probe.start_classifier(
                text, built.head, training, training.extra["target"], KINDS[work.problem],
                weights=row_weights(work, training), **common,
            )  # fmt: skip
        elif work.name == "tag":
            found = probe.start_tagger(text, built.head, training, work.outputs, **common)
        else:
            found = probe.start_answerer(text, built.head, training, **common)
    torch.manual_seed(settings.seed)
    return found
