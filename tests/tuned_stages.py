"""Tiny fine-tunings, as each of several processes runs them; see tests/training/test_finetune_several.py."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from tiny_folders import sentiment
from tiny_images import bars
from unmask.modalities.images.classify.classifier_settings import ClassifierSettings
from unmask.modalities.images.classify.classifier_training import PictureFinetuning
from unmask.modalities.images.uses.finetune import finetune_classify
from unmask.modalities.text.tasks.finetune import finetune
from unmask.modalities.text.tasks.loop import TextFinetuning
from unmask.training.settings import TrainSettings

ROWS = sentiment(27)
TEXT: dict[str, Any] = {
    "validation": ROWS[:9],
    "evaluate_every": 2,
    "epochs": 3,
    "batch": 9,
    "learning_rate": 3e-3,
    "dropout": 0.0,
    "precision": "fp32",
    "device": "cpu",
}
PICTURES = ClassifierSettings(
    drop_path=0.5,
    mixup=0.8,
    batch=9,
    start="zero",
    train=TrainSettings(steps=9, precision="fp32", device="cpu", warmup=0.0, learning_rate=3e-3),
)


def tuned(kind: str, model: Path, out: Path, *, stop_at: int | None = None, **more: Any) -> dict[str, Any]:
    """Fine-tune with checkpoints; SIGTERM comes to the last process in the middle of step `stop_at`."""
    work: Any = PictureFinetuning if kind == "images" else TextFinetuning
    really = work.backward

    def backward(self: Any, *items: Any, **about: Any) -> Any:
        if about["step"] == stop_at and os.environ.get("RANK", "0") == str(int(os.environ.get("WORLD_SIZE", "1")) - 1):
            os.kill(os.getpid(), signal.SIGTERM)
        return really(self, *items, **about)

    work.backward = backward
    try:
        if kind == "images":
            given = {"settings": PICTURES, "console": False, "checkpoints": True}
            return finetune_classify(model, bars(30), out, **given, **more).figures
        start = kind.removeprefix("text-")
        return finetune(model, ROWS, task="classify", out=out, checkpoints=True, start=start, **TEXT, **more)
    finally:
        work.backward = really


def tuned_parts(*parts: tuple[str, Path, Path, dict[str, Any]]) -> list[dict[str, Any]]:
    """Several of them one after the other, in one group of processes."""
    return [tuned(kind, model, out, **more) for kind, model, out, more in parts]


def weights(out: Path) -> dict[str, Any]:
    return load_file(out / "model.safetensors")
