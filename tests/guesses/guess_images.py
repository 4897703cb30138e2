"""What the guesses of images.toml read: a masked model, a classifier, class folders, pictures in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

from tiny_images import TINY, bars, class_folder
from unmask.images import finetune, pretrain

QUICK: dict[str, Any] = {"steps": 1, "precision": "fp32", "device": "cpu", "console": False}


def names(home: Path) -> dict[str, Any]:
    pixels, labels = bars(30)
    y = np.array(["across", "down", "square"])[labels]
    tiny = {name: value for name, value in TINY.items() if name not in ("ratio", "batch", "width", "layers", "heads")}
    tiny |= QUICK | {"size": "nano"}
    pretrain((pixels, y), home / "model", **TINY | QUICK)
    finetune(home / "model", pixels, y, out=home / "classifier", **QUICK)
    class_folder(home / "photos", 30)
    tensors = TensorDataset(torch.from_numpy(pixels), torch.from_numpy(labels))
    return {
        "X": pixels,
        "y": y,
        "tiny": {name: value for name, value in tiny.items() if name != "steps"},
        "quick": QUICK,
        "pictures": [Image.fromarray(one) for one in pixels[:4]],
        "dataset": tensors,
        "loader": DataLoader(tensors, batch_size=8),
        "torch": torch,
    }
