"""What recipes of pretraining are worth on small pictures, with the same processor time each.

    python benchmarks/images_recipes.py --work DIR [--data fashion|digits|F.npz] [--cpu-minutes 10]
        [--recipes mae,simclr] [--most 60000] [--seeds 5] [--only rules,speed,pretrain,probe,fill,labels,scratch]

- rules: raw pixels, and histograms of oriented gradients (Dalal and Triggs 2005: 8 orientations, cells of a seventh of
  the picture, blocks of two by two) under the same probes and neighbours.
- speed: processor time per picture of the recipes' steps, taken in turn.
- pretrain: every recipe gets the steps that fit into the same processor minutes of one thread (by `speed`); memory
  is what the run says beforehand that it will need. 'lejepa without SIGReg' shows collapse. Training pictures alone
  are used, without labels.
- probe: linear probe and 20 nearest neighbours on the test pictures, with the labels of `--most` training pictures, of
  features pooled by mean and over a grid.
- labels: 60 labels per class (10 of digits), drawn anew for each seed: a probe of the grid, and fine-tuned. The last
  step counts: there are no held-out pictures.
- fill: root mean squared error of hidden pixels (0 to 1) of 1000 test pictures, with a half and three quarters hidden,
  beside the rule that puts the mean of the training pictures there; of recipes that predict pixels.
- scratch: the network of the first recipe from scratch on the same labels, twice as long.

F.npz holds x_train, y_train, x_test, y_test and classes; what its pictures want set is in `SETTINGS`, by the name of
the file (cifar10, landsat). Settings were chosen on held-out training pictures; the test pictures are seen here alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import images_probe
from images_probe import cpu, steps_that_fit

SMALL: dict[str, Any] = {"flip": True, "holdout": 0.02, "checkpoint_seconds": 600}
RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "mae": ("pixels", {"crop": (0.6, 1.0)}),
    "simmim": (
        "pixels",
        {"architecture": "in_place", "norm_targets": False, "statistics": 0.0, "loss": "l1", "hide": "unit", "unit": 8,
         "ratio": 0.6, "positions": "learned"},
    ),
    "lejepa": ("lejepa", {}),
    "lejepa without SIGReg": ("lejepa", {"regulariser": 0.0}),
    "simclr": ("simclr", {}),
    "simclr without gradients": ("simclr", {"gradients": False}),
    "mae with gradients": ("pixels", {"crop": (0.6, 1.0), "gradients": True}),
    "simclr with pixels": ("small", {}),
    "ijepa": ("ijepa", {}),
}  # fmt: skip
"""Name -> (recipe, what is set beside it)."""


TUNE: dict[str, Any] = {"epochs": 40, "crop": (0.8, 1.0), "holdout": 0.0}
FULL_RATE = {"learning_rate": 1e-3, "layer_decay": 1.0, "epochs": 80, "cutmix": 1.0, "pooling": "grid"}
SCRATCH: dict[str, Any] = TUNE | FULL_RATE | {"from_scratch": True}
"""Every layer learns at the full rate, twice as long, and pictures are mixed."""


SETTINGS: dict[str, dict[str, Any]] = {
    "fashion": {},
    "digits": {"flip": False, "crop": (0.7, 1.0)},
    "cifar10": {},
    # Windows of 3 x 3 pixels in four bands: what a pixel reflects is what it is, and no side is up.
    "landsat": {"patch": 1, "crop": (1.0, 1.0), "turn": True, "jitter": 0.0, "gradients": False},
}
"""What pictures of a kind want set in every recipe."""
UNIT = {"fashion": 8, "digits": 4, "cifar10": 8, "landsat": 1}
"""Side of the mask units of `simmim`."""


def kind(data: str) -> str:
    """The name of the pictures: of a file its own, without the ending."""
    return Path(data).stem


def data_of(name: str) -> Any:
    from unmask.modalities.images.reading.arrays import ImageSet
    from unmask.modalities.images.reading.sources import read_images

    if name == "fashion":
        return read_images(images_probe.DATA)
    if name != "digits":
        with np.load(name) as file:
            pixels, labels = (np.concatenate([file[f"{k}_train"], file[f"{k}_test"]]) for k in "xy")
            test = np.arange(len(pixels)) >= len(file["x_train"])
            classes = [str(c) for c in file["classes"]]
        return ImageSet(
            pixels=pixels, labels=labels.astype(np.int64), classes=classes, split=np.where(test, "test", "train")
        )
    from unmask.modalities.images.uses.demo import digits

    pixels, labels, test = digits()
    return ImageSet(
        pixels=pixels[..., None],
        labels=labels,
        classes=[str(i) for i in range(10)],
        split=np.where(test, "test", "train"),
    )


def settings_of(name: str, seed: int, data: str, precision: str = "auto") -> Any:
    from unmask.modalities.images.recipes import RECIPES as PUBLISHED
    from unmask.modalities.images.recipes import ImageSettings, with_overrides

    recipe, more = RECIPES[name]
    changes = SMALL | dict(PUBLISHED[recipe]) | more | {"seed": seed, "precision": precision} | SETTINGS[kind(data)]
    if "unit" in changes:
        changes["unit"] = UNIT[kind(data)]
    return with_overrides(ImageSettings(), changes)


def pretrained(
    name: str, folder: Path, train: Any, args: argparse.Namespace, seed: int, spent: float | None
) -> dict[str, Any]:
    """Pretrain for the processor minutes asked for; `spent` is what a picture of a step takes, in ms, where it was
    measured."""
    from unmask.modalities.images.recipes import with_overrides
    from unmask.modalities.images.uses.pretrain import pretrain

    settings = settings_of(name, seed, args.data, args.precision)
    some = train.take(np.arange(min(len(train), 8192)))
    steps = args.steps
    if steps is None and spent is not None:  # a twentieth is left for validation and the live probe
        steps = int(0.95 * args.cpu_minutes * 60_000 / (spent * settings.batch))
    steps = steps or steps_that_fit(settings, args.cpu_minutes, some)
    shutil.rmtree(folder, ignore_errors=True)
    began = cpu()
    run = pretrain(train, folder, settings=with_overrides(settings, {"steps": steps}))
    return {
        "steps": steps,
        "cpu_minutes": round((cpu() - began) / 60, 2),
        "precision": run.result.precision,
        "expected_memory_mb": run.result.expected_memory_mb,
        **{k: round(run.data[k], 3) for k in ("effective_rank", "relative_spread") if k in run.data},
    }


def told_apart(a: np.ndarray, known: np.ndarray, b: np.ndarray, asked: np.ndarray) -> dict[str, float]:
    from unmask.modalities.images.network.features import knn_predict, probe_predict

    return {
        "probe": float((probe_predict(a, known, b) == asked).mean()),
        "knn": float((knn_predict(a, known, b) == asked).mean()),
    }


def probed(folder: Path, images: Any, most: int, asked: int) -> dict[str, Any]:
    """Linear probe and neighbours of frozen features, by both poolings, from `most` labelled pictures."""
    import unmask
    from unmask.modalities.images.uses.pretrain import spread_of

    model = unmask.load(folder)
    train, test = parted(images)
    train, test = (part.take(np.arange(min(n, len(part)))) for part, n in ((train, most), (test, asked)))
    out: dict[str, Any] = {"labelled": len(train), "asked": len(test)}
    for pooling in ("mean", "grid"):
        a, b = (model.embed(part, pooling=pooling) for part in (train, test))
        out[pooling] = told_apart(a, train.labels, b, test.labels)
        if pooling == "mean":
            out["spread"] = spread_of(b[:2000])
    return out


def filled(folder: Path, images: Any) -> dict[str, dict[str, float]]:
    """Errors of hidden pixels by share hidden: the model's, and of the mean training picture."""
    import unmask
    from unmask.modalities.images.network.batches import as_floats

    model = unmask.load(folder)
    train, test = parted(images)
    some = test.take(np.arange(min(1000, len(test))))
    truth, mean = as_floats(some.pixels), as_floats(train.pixels[:20_000]).mean(0)
    out = {}
    for ratio in (0.5, 0.75):
        r = model.reconstruct(some, ratio=ratio, seed=1)
        hidden = np.broadcast_to(r.hidden.reshape(len(some), 1, *r.hidden.shape[1:3]), truth.shape)
        guesses = {"model": as_floats(r.filled), "mean picture": np.broadcast_to(mean, truth.shape)}
        out[f"{ratio:.0%}"] = {
            name: float(np.sqrt(((guess - truth)[hidden] ** 2).mean())) for name, guess in guesses.items()
        }
    return out


def parted(images: Any) -> tuple[Any, Any]:
    """(training pictures, test pictures)."""
    train, test = images.part("train"), images.part("test")
    return train, test


def chosen(images: Any, seed: int, per_class: int) -> Any:
    """So many labelled training pictures of each class, drawn by the seed."""
    train, _ = parted(images)
    rng = np.random.default_rng(1000 + seed)
    classes = range(len(train.classes))
    picked = [rng.permutation(np.flatnonzero(train.labels == c))[:per_class] for c in classes]
    return train.take(np.concatenate(picked))


def tuned(folder: Path, images: Any, seed: int, per_class: int, changes: dict[str, Any]) -> dict[str, Any]:
    """Accuracy on the test pictures after fine-tuning with few labels, and what the head read; the last step counts."""
    from unmask.modalities.images.classify.classifier_settings import ClassifierSettings, with_overrides
    from unmask.modalities.images.uses.finetune import finetune_classify
    from unmask.modalities.images.uses.model import load

    _, test = parted(images)
    settings = with_overrides(ClassifierSettings(), changes | {"seed": seed})
    with tempfile.TemporaryDirectory() as out:
        model, few = load(folder), chosen(images, seed, per_class)
        done = finetune_classify(model, few, Path(out) / "c", settings=settings, console=False)
        right = float((done.model.probabilities(test).argmax(-1) == test.labels).mean())
        return {"accuracy": right, "pooling": done.figures["pooling"], "gradients": done.figures["gradients"]}


def few_labels(
    folder: Path, images: Any, seed: int, per_class: int, scratch: bool, data: str
) -> dict[str, float | dict[str, Any]]:
    """With the same few labels: frozen features under a probe (of the grid; and of what a head would read, by
    `pooling=auto`, which is fine-tuning that stays where it starts), fine-tuned, and from scratch."""
    mine = {name: SETTINGS[data][name] for name in ("flip", "crop") if name in SETTINGS[data]}
    import unmask

    few, test = chosen(images, seed, per_class), parted(images)[1]
    model = unmask.load(folder)
    a, b = (model.embed(part, pooling="grid") for part in (few, test))
    out: dict[str, float | dict[str, Any]] = {"probe": fewest(a, few.labels, b, test.labels, seed)}
    still = {"epochs": 1, "learning_rate": 1e-12}
    for name, changes in (("head's probe", TUNE | still), ("fine-tuned", TUNE), ("from scratch", SCRATCH)):
        if scratch or name != "from scratch":
            out[name] = tuned(folder, images, seed, per_class, changes | mine)
    return out


def fewest(a: np.ndarray, known: np.ndarray, b: np.ndarray, asked: np.ndarray, seed: int) -> float:
    """A linear probe whose penalty is chosen by cross-validation within the few."""
    from unmask.modalities.images.classify.probe_start import chosen_penalty
    from unmask.modalities.images.network.features import probe_predict

    penalty = chosen_penalty(a, known, seed)
    return float((probe_predict(a, known, b, penalty=penalty) == asked).mean())


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


def nearest(a: np.ndarray, known: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Classes by 20 nearest neighbours for numbers that nothing was learnt of: by cosine as they are, centred or
    standardised, or by Euclidean distance; which, is chosen on a tenth of the training pictures."""
    from sklearn.neighbors import KNeighborsClassifier

    from unmask.modalities.images.network.features import knn_predict

    mean, deviation = a.mean(0), a.std(0) + 1e-6

    def by(way: str, a: np.ndarray, known: np.ndarray, b: np.ndarray) -> np.ndarray:
        if way == "euclidean":
            return KNeighborsClassifier(20, weights="distance").fit(a, known).predict(b)
        shift, scale = (mean if way != "cosine" else 0), (deviation if way == "standardised" else 1)
        return knn_predict((a - shift) / scale, known, (b - shift) / scale)

    order = np.random.default_rng(0).permutation(len(a))[:20_000]
    held, kept = order[: len(order) // 10], order[len(order) // 10 :]
    ways = ("cosine", "centred", "standardised", "euclidean")
    best = max(ways, key=lambda way: (by(way, a[kept], known[kept], a[held]) == known[held]).mean())
    return by(best, a, known, b)


def rules(images: Any, most: int, asked: int, seeds: int, per_class: int) -> dict[str, Any]:
    """Rules that learn no features: raw pixels and HOG, under the same probes and neighbours."""
    from unmask.modalities.images.network.batches import as_floats
    from unmask.modalities.images.network.features import probe_predict

    cells = 7 if images.size[0] >= 28 else 4
    rule = {"raw pixels": lambda p: as_floats(p.pixels).reshape(len(p), -1)}
    if images.size[0] >= 8:
        rule["HOG"] = lambda p: hog_of(p.pixels, cells)
    train, test = parted(images)
    train, test = (part.take(np.arange(min(n, len(part)))) for part, n in ((train, most), (test, asked)))
    out: dict[str, Any] = {}
    for name, of in rule.items():
        a, b = of(train), of(test)
        out[name] = {"probe": float((probe_predict(a, train.labels, b) == test.labels).mean())}
        out[name] |= {"knn": float((nearest(a, train.labels, b) == test.labels).mean()), "labelled": len(train)}
        out[name]["few"] = [
            fewest(of(few), few.labels, b, test.labels, s)
            for s, few in ((s, chosen(images, s, per_class)) for s in range(seeds))
        ]
    return out


def hog_of(pixels: np.ndarray, cells: int) -> np.ndarray:
    """`oriented_gradients` of each channel, side by side."""
    scale = 255 / max(float(pixels.max()), 1e-9)
    channels = [pixels[..., k].astype(np.float32) * scale for k in range(pixels.shape[-1])]
    return np.concatenate([oriented_gradients(c, cells) for c in channels], 1)


def speeds(names: list[str], images: Any, args: argparse.Namespace, rounds: int = 5) -> dict[str, Any]:
    """Processor milliseconds per picture of each recipe's step: steps of all recipes in turn, `rounds` of each, the
    first left out."""
    from unmask.core.pretrain import StepContext, pretrain
    from unmask.modalities.images.network.build import codec_config, new_model
    from unmask.modalities.images.uses.pretrain import make_job
    from unmask.training.optimiser import build_optimiser, step

    train, _ = parted(images)
    train = train.take(np.arange(min(len(train), 2048)))
    steps, pictures, spent, k = {}, {}, {name: [] for name in names}, train.channels
    for name in names:
        settings = settings_of(name, 0, args.data)
        model = new_model(settings, codec_config(settings, train.size, k, (0.3,) * k, (0.35,) * k))
        job, _ = make_job(model, train, np.arange(len(train)), np.arange(0), settings)
        steps[name], pictures[name] = (
            _steps(job, settings, build_optimiser, step, StepContext, pretrain),
            settings.batch,
        )
    for number in range(rounds + 1):
        for name in names:
            began = cpu()
            next(steps[name])
            if number:
                spent[name].append((cpu() - began) * 1000 / min(pictures[name], len(train)))
    return {name: {"ms_per_picture": round(statistics.median(values), 3)} for name, values in spent.items()}


def _steps(job: Any, settings: Any, build: Any, step: Any, context: Any, loop: Any) -> Any:
    """The reports of a job's steps, without end, in bf16 where the processor multiplies it."""
    from unmask.training.precision import resolve_precision

    optimiser = build(job.model, settings.train)
    half = resolve_precision("auto", "cpu").name == "bf16"

    def update(_: float) -> tuple[float, bool]:
        norm = step(optimiser, job.model.parameters(), clip=None)
        optimiser.zero_grad(set_to_none=True)
        return float(norm), True

    def batches() -> Any:
        for number in itertools.count():
            rows = [[int(n)] for n in range(min(settings.batch, len(job.sampler.examples)))]
            yield number, [job.make_batch(rows, len(rows), number)]

    machine = context(update=update, autocast=lambda: torch.autocast("cpu", torch.bfloat16, enabled=half))
    return loop(job.model.train(), batches(), job.corruption, machine, progress=lambda _: 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--data", default="fashion", help="fashion, digits or an .npz file")
    parser.add_argument("--recipes", default="mae,simmim,lejepa,ijepa,simclr without gradients,simclr")
    parser.add_argument("--cpu-minutes", type=float, default=10.0)
    parser.add_argument("--steps", type=int, help="instead of processor minutes")
    parser.add_argument("--seeds", type=int, default=5, help="of the few labels")
    parser.add_argument("--most", type=int, default=60_000, help="training pictures whose labels the probe learns from")
    parser.add_argument("--test", type=int, default=10_000, help="test pictures of the probe")
    parser.add_argument("--precision", default="auto")
    parser.add_argument(
        "--only", help="rules, speed, pretrain, probe, fill, labels, scratch, with commas between; default all but fill"
    )
    args = parser.parse_args()
    parts = (args.only or "rules,speed,pretrain,probe,labels,scratch").split(",")
    torch.set_num_threads(1)
    args.work.mkdir(parents=True, exist_ok=True)
    path = args.work / f"{kind(args.data)}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    images, per_class = data_of(args.data), 10 if args.data == "digits" else 60
    train, _ = parted(images)

    def keep(part: str, name: str, value: Any) -> None:
        found.setdefault(part, {})[name] = value
        path.write_text(json.dumps(found, indent=1))
        print(part, name, json.dumps(value), flush=True)

    if "rules" in parts:
        for name, value in rules(images, args.most, args.test, args.seeds, per_class).items():
            keep("rules", name, value)
    if "speed" in parts:
        for name, value in speeds(args.recipes.split(","), images, args).items():
            keep("speed", name, value)
    for number, name in enumerate(args.recipes.split(",")):
        folder = args.work / f"{kind(args.data)}-{name.replace(' ', '-')}"
        if "pretrain" in parts:
            timed = found.get("speed", {}).get(name, {}).get("ms_per_picture")
            keep("pretrain", name, pretrained(name, folder, train, args, 0, timed))
        if "probe" in parts:
            keep("probe", name, probed(folder, images, args.most, args.test))
        if "fill" in parts:
            keep("fill", name, filled(folder, images))
        if "labels" in parts:
            scratch = "scratch" in parts and number == 0
            rows = [few_labels(folder, images, seed, per_class, scratch, kind(args.data)) for seed in range(args.seeds)]
            keep("labels", name, rows)


if __name__ == "__main__":
    main()
