"""What recipes of pretraining are worth on small pictures, with the same processor time each.

    python benchmarks/images_recipes.py --work DIR [--data fashion|digits] [--cpu-minutes 10] [--recipes small,simclr]
        [--seeds 5] [--only pretrain,probe,labels,rules]

- pretrain: every recipe gets the steps that fit into the same processor minutes of one thread, measured first; the peak
  of memory is that of the process. 'lejepa without SIGReg' shows collapse.
- probe: linear probe and 20 nearest neighbours on the test pictures, with all training labels, of features pooled by
  mean and over a grid; 'held' is the same on a tenth of the training pictures, by which settings may be chosen.
- labels: 600 labels (60 per class; of digits 10), fine-tuned, from scratch, and rules on raw pixels, per seed.
- rules: raw pixels, and histograms of oriented gradients (Dalal and Triggs 2005: 8 orientations, cells of a seventh of
  the picture, blocks of two by two) under the same probe and neighbours.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from pathlib import Path
from typing import Any

import numpy as np

import images_probe
from images_probe import cpu, few_labels, steps_that_fit

SMALL = {"batch": 256, "flip": True, "holdout": 0.02, "checkpoint_seconds": 600}
RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "mae": ("small", {"crop": (0.6, 1.0)}),
    "simmim": (
        "small",
        {"architecture": "in_place", "norm_targets": False, "statistics": 0.0, "loss": "l1", "hide": "unit", "unit": 8,
         "ratio": 0.6, "positions": "learned"},
    ),
    "lejepa": ("lejepa", {}),
    "lejepa without SIGReg": ("lejepa", {"regulariser": 0.0}),
    "simclr": ("simclr", {}),
    "simclr with pixels": ("simclr", {"pixel_weight": 1.0}),
    "ijepa": ("ijepa", {}),
}  # fmt: skip
"""Name -> (recipe, what is set beside it)."""


def data_of(name: str) -> Any:
    from unmask.modalities.images.sources import read_images

    if name == "fashion":
        return read_images(images_probe.DATA)
    from unmask.modalities.images.arrays import ImageSet
    from unmask.modalities.images.demo import digits

    pixels, labels, test = digits()
    return ImageSet(pixels=pixels[..., None], labels=labels, classes=[str(i) for i in range(10)], test=test)


def settings_of(name: str, seed: int, data: str) -> Any:
    from unmask.modalities.images.recipes import RECIPES as PUBLISHED
    from unmask.modalities.images.recipes import ImageSettings, with_overrides

    recipe, more = RECIPES[name]
    settings = with_overrides(with_overrides(ImageSettings(), PUBLISHED[recipe]), SMALL | more | {"seed": seed})
    return settings if data == "fashion" else with_overrides(settings, {"flip": False, "crop": (0.7, 1.0)})


def pretrained(name: str, folder: Path, train: Any, args: argparse.Namespace, seed: int) -> dict[str, Any]:
    from unmask.modalities.images.pretrain import pretrain
    from unmask.modalities.images.recipes import with_overrides

    settings = settings_of(name, seed, args.data)
    some = train.take(np.arange(min(len(train), 8192)))
    steps = args.steps or steps_that_fit(settings, args.cpu_minutes, some)
    shutil.rmtree(folder, ignore_errors=True)
    began = cpu()
    run = pretrain(train, folder, settings=with_overrides(settings, {"steps": steps}))
    return {
        "steps": steps,
        "cpu_minutes": round((cpu() - began) / 60, 2),
        "precision": run.result.precision,
        "peak_memory_mb": run.result.peak_memory_mb,
        **{k: round(run.data[k], 3) for k in ("effective_rank", "relative_spread") if k in run.data},
    }


def told_apart(a: np.ndarray, known: np.ndarray, b: np.ndarray, asked: np.ndarray) -> dict[str, float]:
    from unmask.modalities.images.probe import knn_predict, probe_predict

    return {
        "probe": float((probe_predict(a, known, b) == asked).mean()),
        "knn": float((knn_predict(a, known, b) == asked).mean()),
    }


def probed(folder: Path, images: Any, poolings: list[str]) -> dict[str, Any]:
    import unmask
    from unmask.modalities.images.collapse import spread_of

    model = unmask.load(folder, precision="fp32")
    train, test = (images.take(np.flatnonzero(images.test == part)) for part in (False, True))
    held = np.random.default_rng(5).permutation(len(train))[: len(train) // 10]
    inside = np.setdiff1d(np.arange(len(train)), held)
    out: dict[str, Any] = {}
    for pooling in poolings:
        a, b = (model.embed(part, pooling=pooling) for part in (train, test))
        chosen = inside[:10_000]
        out[pooling] = told_apart(a, train.labels, b, test.labels) | {
            "held": told_apart(a[chosen], train.labels[chosen], a[held], train.labels[held])
        }
        if pooling == "mean":
            out["spread"] = spread_of(b[:2000])
    return out


def oriented_gradients(pixels: np.ndarray, cells: int = 7, orientations: int = 8) -> np.ndarray:
    """(pictures, numbers) histograms of oriented gradients of grey pictures (pictures, height, width)."""
    x = pixels.astype(np.float32) / 255
    down, across = np.gradient(x, axis=(1, 2))
    size, angle = np.hypot(down, across), np.mod(np.arctan2(down, across), np.pi) * orientations / np.pi
    low = np.floor(angle).astype(int) % orientations
    share = angle - np.floor(angle)
    n, height, width = x.shape
    found = np.zeros((n, cells, cells, orientations), np.float32)
    rows = np.minimum(np.arange(height) * cells // height, cells - 1)
    columns = np.minimum(np.arange(width) * cells // width, cells - 1)
    for bin_, weight in ((low, 1 - share), ((low + 1) % orientations, share)):
        for k in range(orientations):
            part = np.where(bin_ == k, size * weight, 0)
            part = np.add.reduceat(part, np.searchsorted(rows, np.arange(cells)), 1)
            found[..., k] += np.add.reduceat(part, np.searchsorted(columns, np.arange(cells)), 2)
    blocks = np.concatenate([found[:, i : cells - 1 + i, j : cells - 1 + j] for i in (0, 1) for j in (0, 1)], -1)
    return (blocks / np.sqrt((blocks**2).sum(-1, keepdims=True) + 1e-3)).reshape(n, -1)


def rules(images: Any) -> dict[str, Any]:
    from unmask.modalities.images.floats import as_floats

    train, test = (images.take(np.flatnonzero(images.test == part)) for part in (False, True))
    cells = 7 if images.size[0] >= 28 else 4
    raw = [as_floats(p.pixels).reshape(len(p), -1) for p in (train, test)]
    hog = [oriented_gradients(p.pixels[..., 0] * (255 / max(p.pixels.max(), 1)), cells) for p in (train, test)]
    return {name: told_apart(a, train.labels, b, test.labels) for name, (a, b) in (("raw pixels", raw), ("HOG", hog))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--data", choices=("fashion", "digits"), default="fashion")
    parser.add_argument("--recipes", default="mae,simmim,lejepa,simclr,ijepa")
    parser.add_argument("--cpu-minutes", type=float, default=10.0)
    parser.add_argument("--steps", type=int, help="instead of processor minutes")
    parser.add_argument("--seeds", type=int, default=5, help="of the 600 labels")
    parser.add_argument("--pooling", default="mean,grid")
    parser.add_argument("--only", help="pretrain, probe, labels and rules, with commas between; default all")
    args = parser.parse_args()
    parts = (args.only or "pretrain,probe,labels,rules").split(",")
    args.work.mkdir(parents=True, exist_ok=True)
    path = args.work / f"{args.data}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    images = data_of(args.data)

    def keep(part: str, name: str, value: Any) -> None:
        found.setdefault(part, {})[name] = value
        path.write_text(json.dumps(found, indent=1))
        print(part, name, json.dumps(value), flush=True)

    if "rules" in parts:
        for name, value in rules(images).items():
            keep("rules", name, value)
    for name in args.recipes.split(","):
        folder = args.work / f"{args.data}-{name.replace(' ', '-')}"
        train = images.take(np.flatnonzero(~images.test))
        if "pretrain" in parts:
            keep("pretrain", name, pretrained(name, folder / "model", train, args, 0))
        if "probe" in parts:
            keep("probe", name, probed(folder / "model", images, args.pooling.split(",")))
        if "labels" in parts:
            rows = [
                few_labels(folder, images, seed, 60 if args.data == "fashion" else 10) for seed in range(args.seeds)
            ]
            keep("labels", name, rows)
            for kind in ("fine-tuned", "from scratch", "logistic regression", "nearest neighbours"):
                values = [row[kind] for row in rows]
                spread = statistics.stdev(values) if len(values) > 1 else float("nan")
                print(f"  {kind:22}{statistics.mean(values):.2%} +- {spread:.2%}", flush=True)


if __name__ == "__main__":
    main()
