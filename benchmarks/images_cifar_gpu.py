"""CIFAR-10 on one GPU: ViT-T/2 from scratch and after masked pretraining; accuracy, images/s, utilisation.

    python benchmarks/images_cifar_gpu.py --data FOLDER --work DIR [--stage pretrain|finetune|scratch|all] [--minutes 9]

FOLDER holds CIFAR-10 as pictures in train/CLASS and test/CLASS (or is an .npz of x_train, y_train, x_test, y_test).
Each stage fits one call of ten minutes; a pretraining call that is repeated with --resume goes on. The published pair
for this encoder (192 wide x 12, patch 2, decoder of 4 layers) is 74.1 % from scratch and 89.8 % after 2000 epochs of
MAE. Utilisation is useful FLOPs (matrix products of the shapes, forward and backward) over the peak given by --peak
(TFLOP/s).
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

PRETRAIN: dict[str, Any] = {
    "size": "tiny",
    "patch": 2,
    "decoder_width": 192,
    "decoder_layers": 4,
    "decoder_heads": 3,
    "ratio": 0.75,
    "batch": 2048,
    "crop": (0.2, 1.0),
    "flip": True,
    "learning_rate": 1.2e-3,
    "holdout": 0.02,
    "statistics": 0.0,
    "precision": "bf16",
    "validate_every": 500,
    "compile": True,
}
TUNE: dict[str, Any] = {
    "epochs": 100,
    "batch": 512,
    "learning_rate": 1e-3,
    "layer_decay": 0.75,
    "drop_path": 0.1,
    "mixup": 0.8,
    "cutmix": 1.0,
    "smoothing": 0.1,
    "crop": (0.6, 1.0),
    "flip": True,
    "holdout": 0.0,
    "precision": "bf16",
}
SCRATCH: dict[str, Any] = {**TUNE, "from_scratch": True, "layer_decay": 1.0}


def training_flops(model: Any) -> float:
    """Useful FLOPs of one picture's training step: three times the forward pass, the encoder on visible
    patches only."""
    config, encoder, decoder = model.codec.config, model.encoder.config, model.decoder.config
    visible = config.slots - round(0.75 * config.patches)
    return 3 * (visible * encoder.flops_per_slot(visible) + config.slots * decoder.flops_per_slot(config.slots))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--stage", choices=("pretrain", "finetune", "scratch", "all"), default="all")
    parser.add_argument("--minutes", type=float, default=9.0, help="wall clock of pretraining")
    parser.add_argument("--peak", type=float, default=989.0, help="bf16 TFLOP/s of the device (H100 and H200: 989)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    from unmask.modalities.images.classify.classifier_settings import ClassifierSettings
    from unmask.modalities.images.classify.classifier_settings import with_overrides as tune_with
    from unmask.modalities.images.reading.sources import read_images
    from unmask.modalities.images.recipes import PIXELS, ImageSettings, with_overrides
    from unmask.modalities.images.uses.finetune import finetune_classify
    from unmask.modalities.images.uses.model import load
    from unmask.modalities.images.uses.pretrain import pretrain

    args.work.mkdir(parents=True, exist_ok=True)
    path = args.work / "results.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    images = read_images(args.data)
    if images.test is None or images.labels is None:
        raise SystemExit("the data need a train and a test part with classes")
    train, test = (images.take(np.flatnonzero(images.test == part)) for part in (False, True))
    common = {"device": args.device, "seed": args.seed}
    if args.stage in ("pretrain", "all"):
        settings = with_overrides(ImageSettings(), PIXELS | PRETRAIN | common | {"minutes": args.minutes})
        run = pretrain(train, args.work / "model", settings=settings, resume=args.resume)
        rate = run.images_per_second
        found["pretraining"] = {
            "steps": run.result.steps,
            "epochs": run.result.steps * 2048 / run.data["training"],
            "images_per_second": rate,
            "utilisation": rate * training_flops(run.model.model) / (args.peak * 1e12),
            "seconds": run.result.seconds,
            "device": torch.cuda.get_device_name() if args.device == "cuda" else args.device,
        }
    for stage, changes in (("finetune", TUNE), ("scratch", SCRATCH)):
        if args.stage in (stage, "all"):
            settings = tune_with(ClassifierSettings(), changes | common)
            start = time.perf_counter()
            model = load(args.work / "model", device=args.device)
            shutil.rmtree(args.work / stage, ignore_errors=True)  # of an earlier call
            done = finetune_classify(model, train, args.work / stage, settings=settings)
            right = done.model.probabilities(test).argmax(-1) == test.labels
            found[stage] = {"accuracy": float(right.mean()), "seconds": time.perf_counter() - start, **done.figures}
    path.write_text(json.dumps(found, indent=1))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
