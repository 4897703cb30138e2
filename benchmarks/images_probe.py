"""Fashion-MNIST: what ten minutes of masked pretraining on two cores are worth.

    python benchmarks/images_probe.py --work DIR [--minutes 10 | --cpu-minutes 20] [--seeds 5] [--quick]
    python benchmarks/images_probe.py --work DIR --only pretrain|probe|labels [--most 3000]

ViT 128 wide x 6, patch 4. Test pictures are seen by nothing but the last evaluation; penalties are chosen on a tenth of
the training pictures.
- probe: linear probe (all 60 000 labels) on frozen features, on the untrained network's, and on raw pixels.
- labels: 600 labels per seed (60 per class): fine-tuning from the pretrained weights, the same network from
  scratch, logistic regression and nearest neighbours on raw pixels with the same labels; mean and spread
  over the seeds. No validation
  set: the last step counts.

`--cpu-minutes` bounds pretraining by processor time (20 is ten minutes of two cores) where the machine is shared: the
time of a step is measured first, the run is given as many steps as fit. Wall and processor time are both reported.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

SHARED = Path(os.environ.get("UNMASK_SHARED", Path(__file__).parents[1] / ".." / "shared"))
DATA = SHARED / "data" / "images" / "fashion_mnist"
PRETRAIN: dict[str, Any] = {
    "size": "micro",
    "patch": 4,
    "decoder": "light",
    "ratio": 0.75,
    "crop": (0.6, 1.0),
    "flip": True,
    "batch": 256,
    "learning_rate": 2e-3,
    "holdout": 0.02,
    "checkpoint_seconds": 300,
}
TUNE: dict[str, Any] = {
    "epochs": 60,
    "batch": 64,
    "learning_rate": 1e-3,
    "layer_decay": 0.75,
    "drop_path": 0.1,
    "smoothing": 0.1,
    "crop": (0.7, 1.0),
    "flip": True,
    "holdout": 0.0,
    "mixup": 0.0,
    "cutmix": 1.0,
}
SCRATCH: dict[str, Any] = {**TUNE, "from_scratch": True, "layer_decay": 1.0, "epochs": 120}
"""From scratch every layer learns at the full rate, twice as long."""


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def steps_that_fit(settings, cpu_minutes: float, images) -> int:
    """Optimiser steps in a budget of processor time, from a short run of the same steps."""
    import tempfile

    from unmask.modalities.images.recipes import with_overrides
    from unmask.modalities.images.uses.pretrain import pretrain

    with tempfile.TemporaryDirectory() as folder:

        def spent(steps: int) -> float:
            start = cpu()
            short = with_overrides(settings, {"steps": steps, "holdout": 0.0})
            pretrain(images, Path(folder) / str(steps), settings=short, console=False)
            return cpu() - start

        spent(2)
        few, many = spent(4), spent(24)
    if many <= few:
        raise SystemExit(f"24 steps took {many:.2f} s of processor time and 4 took {few:.2f}: too short to time a step")
    # A twentieth is left for validation and the live probe.
    return int(0.95 * cpu_minutes * 60 / ((many - few) / 20))


def pretrained(work: Path, args: argparse.Namespace, images) -> dict[str, Any]:
    from unmask.modalities.images.recipes import PIXELS, ImageSettings, with_overrides
    from unmask.modalities.images.uses.pretrain import pretrain

    settings = with_overrides(ImageSettings(), PIXELS | PRETRAIN | {"precision": args.precision})
    train = images.take(np.flatnonzero(~images.test))
    if args.cpu_minutes:
        steps = steps_that_fit(settings, args.cpu_minutes, train.take(np.arange(8192)))
        settings = with_overrides(settings, {"steps": steps})
    else:
        settings = with_overrides(settings, {"minutes": args.minutes})
    wall, used = time.perf_counter(), cpu()
    run = pretrain(train, work / "model", settings=settings)
    return {
        "steps": run.result.steps,
        "wall_seconds": time.perf_counter() - wall,
        "cpu_seconds": cpu() - used,
        "epochs": run.result.steps * PRETRAIN["batch"] / run.data["training"],
        "images_per_second": run.images_per_second,
        "precision": run.result.precision,
        "validation_loss": run.result.validation.get("validation_loss"),
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[0],
    }


def probed(work: Path, images, most: int | None) -> dict[str, Any]:
    from unmask.modalities.images.network.batches import as_floats
    from unmask.modalities.images.network.build import untrained
    from unmask.modalities.images.network.features import features, knn_predict, probe_predict
    from unmask.modalities.images.uses.model import load

    model = load(work / "model", precision="fp32")
    train, test = (images.take(np.flatnonzero(images.test == part)[:most]) for part in (False, True))

    def score(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
        return {
            "probe": float((probe_predict(a, train.labels, b) == test.labels).mean()),
            "knn": float((knn_predict(a, train.labels, b) == test.labels).mean()),
        }

    def embedded() -> tuple[np.ndarray, np.ndarray]:
        return tuple(features(model.model, part, model._context()) for part in (train, test))

    out = {"pretrained": score(*embedded())}
    model.model = untrained(model.model, 0).to(model.device).eval()
    out["untrained"] = score(*embedded())
    out["raw pixels"] = score(*(as_floats(part.pixels).reshape(len(part), -1) for part in (train, test)))
    return out


def few_labels(work: Path, images, seed: int, per_class: int) -> dict[str, Any]:
    from unmask.modalities.images.classify.classifier_settings import ClassifierSettings, with_overrides
    from unmask.modalities.images.network.batches import as_floats
    from unmask.modalities.images.network.features import knn_predict, probe_predict
    from unmask.modalities.images.uses.finetune import finetune_classify
    from unmask.modalities.images.uses.model import load

    train, test = (images.take(np.flatnonzero(images.test == part)) for part in (False, True))
    rng = np.random.default_rng(1000 + seed)
    chosen = np.concatenate([rng.permutation(np.flatnonzero(train.labels == c))[:per_class] for c in range(10)])
    few = train.take(chosen)
    out: dict[str, Any] = {"seed": seed, "labels": len(few)}
    for name, changes in (("fine-tuned", TUNE), ("from scratch", SCRATCH)):
        model = load(work / "model")
        settings = with_overrides(ClassifierSettings(), changes | {"seed": seed})
        folder = work / f"{name}-{seed}"
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was broken off
        start, used = time.perf_counter(), cpu()
        done = finetune_classify(model, few, folder, settings=settings, console=False)
        seconds, spent = time.perf_counter() - start, cpu() - used
        right = done.model.probabilities(test).argmax(-1) == test.labels
        out[name] = float(right.mean())
        out[f"{name} seconds"], out[f"{name} cpu"] = round(seconds, 1), round(spent, 1)
        print(f"  seed {seed} {name}: {out[name]:.2%} ({spent:.0f} s of processor time)", flush=True)
    raw_train, raw_test = (as_floats(part.pixels).reshape(len(part), -1) for part in (few, test))
    out["logistic regression"] = float(
        (probe_predict(raw_train, few.labels, raw_test, seed=seed) == test.labels).mean()
    )
    best = max((1, 5, 20), key=lambda k: _leave_one_out(raw_train, few.labels, k))
    out["nearest neighbours"] = float((knn_predict(raw_train, few.labels, raw_test, k=best) == test.labels).mean())
    return out


def _leave_one_out(x: np.ndarray, y: np.ndarray, k: int) -> float:
    """Accuracy of k nearest neighbours among the labelled pictures themselves, in ten folds."""
    from unmask.modalities.images.network.features import knn_predict

    fold = np.random.default_rng(0).permutation(len(x)) % 10
    right = [(knn_predict(x[fold != f], y[fold != f], x[fold == f], k=k) == y[fold == f]).mean() for f in range(10)]
    return float(np.mean(right))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", required=True, type=Path, help="folder for the model and results.json")
    parser.add_argument("--minutes", type=float, default=10.0, help="wall clock of pretraining")
    parser.add_argument("--cpu-minutes", type=float, help="processor time of pretraining instead")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--most", type=int, help="probe with this many training and test pictures; default all")
    parser.add_argument("--per-class", type=int, default=60)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--only", choices=("pretrain", "probe", "labels"))
    parser.add_argument("--quick", action="store_true", help="half a minute, one seed, few epochs: does it run?")
    args = parser.parse_args()
    if not DATA.exists():
        raise SystemExit(f"{DATA} is not there: set UNMASK_SHARED")
    if args.quick:
        args.minutes, args.seeds = 0.5, 1
        TUNE["epochs"] = SCRATCH["epochs"] = 5
    from unmask.modalities.images.reading.sources import read_images

    args.work.mkdir(parents=True, exist_ok=True)
    path = args.work / "results.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    images = read_images(DATA)
    if args.only in (None, "pretrain"):
        found["pretraining"] = pretrained(args.work, args, images)
        found["settings"] = {"pretraining": PRETRAIN, "fine-tuning": TUNE, "scratch": SCRATCH}
        path.write_text(json.dumps(found, indent=1))
        print(json.dumps(found["pretraining"]), flush=True)
    if args.only in (None, "probe"):
        found["probe"] = probed(args.work, images, args.most)
        path.write_text(json.dumps(found, indent=1))
        for name, row in found["probe"].items():
            print(f"{name:14} probe {row['probe']:.2%}   20 nearest neighbours {row['knn']:.2%}", flush=True)
    if args.only in (None, "labels"):
        rows = found.setdefault("labels", [])
        done = {row["seed"] for row in rows}
        for seed in (s for s in range(args.seeds) if s not in done):
            rows.append(few_labels(args.work, images, seed, args.per_class))
            path.write_text(json.dumps(found, indent=1))
        print(f"\n{10 * args.per_class} labels, {len(rows)} seeds")
        for name in ("fine-tuned", "from scratch", "logistic regression", "nearest neighbours"):
            values = [row[name] for row in rows]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            print(f"{name:22}{statistics.mean(values):.2%} +- {spread:.2%}   {' '.join(f'{v:.2%}' for v in values)}")


if __name__ == "__main__":
    main()
