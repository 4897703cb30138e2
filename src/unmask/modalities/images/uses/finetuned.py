"""What the fine-tunings of an image model share: how they are trained and gone on with, and what comes of them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.evaluation.results import figures_shown, place
from unmask.evaluation.shown import Printed, Shown
from unmask.memory import peak_memory
from unmask.modalities.images.classify.classifier import Classifier
from unmask.modalities.images.classify.classifier_training import PictureFinetuning
from unmask.modalities.images.network.card import scored
from unmask.modalities.images.segment.segmenter import Segmenter
from unmask.modalities.images.segment.training import SegmentFinetuning
from unmask.modalities.images.uses.model import ImageModel, load
from unmask.training.finetune import Evaluation, FinetuneResult, finetune
from unmask.training.finetune_checkpoints import Checkpointer
from unmask.training.tracking import Tracker, console_logger
from unmask.writing import training_folder

WATCHING = ("memory", "log_every", "checkpoint_seconds")
"""Settings that may change between a run and its resumption: they say how it is watched."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Finetuned(Printed):
    """A finished fine-tuning: the model, its folder, and what came of it."""

    model: Classifier | Segmenter
    folder: Path
    figures: dict[str, Any]

    def shown(self) -> Shown:
        """Figures on held-out pictures beside those of rules."""
        figures, judged = self.figures, self.figures.get("validation")
        pictures = figures.get("whole_pictures", figures["pictures"])
        labels = "masks" if isinstance(self.model, Segmenter) else "labels"
        return figures_shown(
            f"A {type(self.model).__name__.lower()} of {self.model.meant()}, learnt from {pictures:,} pictures: "
            f"{figures['steps']:,} steps, {figures['seconds']:.0f} s",
            [] if judged is None else scored(judged),
            notes=[
                "no picture was held out: nothing is judged"
                if judged is None
                else f"{judged['pictures']:,} pictures held out; the best state was chosen on them",
                place(self.folder),
            ],
            next_step=f"run.model.predict(pictures) or run.model.evaluate(pictures, {labels})",
            head="held out",
        )


def opened(model: Any, device: str) -> tuple[Any, ImageModel]:
    """(what is fine-tuned, the image model in it), of a folder or a loaded model."""
    loaded = load(model, device=device) if isinstance(model, str | Path) else model
    return loaded, loaded.model if isinstance(loaded, Classifier | Segmenter) else loaded


def checkpointer_of(out: Path, settings: Any, data: Mapping[str, Any], *, resume: bool) -> Checkpointer:
    """Checkpoints beside `out`, of a run on these data (digests by name) with these settings."""
    kept = dataclasses.asdict(settings)
    kept["train"] = {k: v for k, v in kept["train"].items() if k not in WATCHING}
    kept = {k: v for k, v in kept.items() if k not in ("store", "store_folder")}
    fingerprint = {"settings": kept, **data}
    seconds = settings.train.checkpoint_seconds
    return Checkpointer(training_folder(out), seconds=seconds, fingerprint=fingerprint, resume=resume)


def trained(
    work: PictureFinetuning | SegmentFinetuning,
    out: Path,
    checkpointer: Checkpointer | None,
    *,
    console: bool,
    first: Callable[[], Evaluation] | None = None,
) -> tuple[FinetuneResult, dict[str, Any]]:
    """Train, with what it takes said before; (how it ended, figures).

    Args:
        first: judges the state that training starts from, which may then be kept.
    """
    started, schedule, fitted = time.monotonic(), work.schedule(), work.forecast()
    for line in fitted.lines():
        console_logger(console)(line)
    found = None if checkpointer is None else checkpointer.found
    start = None if first is None or found is not None else first()
    resumed = None if found is None else found.step
    with Tracker(out, total=schedule.ending, console=console, resumed_step=resumed) as tracker:
        result = finetune(work, work.optimiser(), schedule, tracker=tracker, checkpointer=checkpointer, first=start)
    return result, {
        "steps": result.steps,
        "seconds": round(time.monotonic() - started, 2),
        "stopped": result.stopped,
        "expected_memory_mb": round(fitted.expected / 1e6, 1),
        "peak_memory_mb": round(peak_memory(), 1),
    }
