"""Segmentation with 2 to 16 labelled pictures, the same processor time each.

    python benchmarks/images_segment.py --work DIR --out results.jsonl [--data membrane,cells,fields] [--minutes 10]
        [--splits 5] [--labelled 2,4,8,16] [--rows pretrained,scratch,unet,forest,otsu]
    python benchmarks/images_segment.py --out results.jsonl --table
    python benchmarks/images_segment.py --out results.jsonl --sheet COMMIT [--name images-segment-made]

Of 20 pictures 4 are held out and at most 16 are labelled, drawn anew for each split. `--minutes` is processor time: of
pretraining, once per data set on all 20 pictures without masks, and of each fine-tuning. What OUT has already is not
run again, so that an ended run goes on. Rows:

- pretrained: `finetune segment` of the pretrained model with its defaults; no picture is held out of the labelled ones.
- scratch: the same network from random weights.
- unet: a plain U-Net as one writes it by hand (Ronneberger et al. 2015; 16 to 128 channels, Adam at 1e-3,
  cross-entropy, mirrored and turned by quarters, crops of the same size), in the same processor time.
- forest: a random forest on pixel features, as ilastik has it, of the labelled pictures.
- otsu: Otsu's threshold (of two classes), else the most frequent class; of a quantity its mean.

Data: `membrane` is $UNMASK_SHARED/data/images/membrane, a stack of neurons (ISBI 2012; research use, not handed on).
`cells` and `fields` are made here, from a seed: touching cells with membranes in two channels of 16 bits, whose inside,
border and outside are told apart; parcels in four bands, whose classes differ in how far apart their rows
are, and in having none. `nuclei` is a quantity per pixel: how densely they lie, whose sum over a picture is
their number; it has no row of a U-Net.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from scipy import ndimage
from torch import nn

from images_probe import cpu, steps_that_fit

SHARED = Path(os.environ.get("UNMASK_SHARED", Path(__file__).parents[1] / ".." / "shared"))
PICTURES, HELD, SIDE = 20, 4, 256
ROWS = {
    "pretrained": "pretrained, fine-tuned",
    "scratch": "the same from scratch",
    "unet": "plain U-Net",
    "forest": "random forest on pixel features",
    "otsu": "Otsu, or most frequent class",
}
PRETRAIN: dict[str, Any] = {"image_size": 128, "probe": False}
"""Beside the recipe `segment`; also the side of the U-Net's crops."""
FIGURES = {"dice": "mean Dice", "iou": "mean IoU", "border_f": "mean F of borders"}
QUANTITY = {"r2": "R2 per pixel", "sum_mae": "error of a picture's count"}
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""97.5 % point of Student's distribution for so many values."""
SOURCES = ["src/unmask/modalities/images/segment", "src/unmask/modalities/images/uses/segment.py"]


def cells(number: int) -> tuple[np.ndarray, np.ndarray]:
    """(height, width, 2) uint16: nuclei, membranes; classes outside, inside and border of cells."""
    rng = np.random.default_rng([1, number])
    count = int(rng.integers(25, 60))
    centres = rng.uniform(0, SIDE, (count, 2))
    down, across = np.mgrid[:SIDE, :SIDE]
    wave = [ndimage.gaussian_filter(rng.normal(size=(SIDE, SIDE)), 12) * 60 for _ in range(2)]
    far = np.stack([np.hypot(down + wave[0] - y, across + wave[1] - x) for y, x in centres])
    cell, near = far.argmin(0), np.sort(far, 0)[:2]
    inside = (near[0] < rng.uniform(14, 24)) & (near[1] - near[0] > 3)
    ground = ndimage.binary_opening(inside, iterations=2)
    rim = ndimage.binary_dilation(ground, iterations=2) & ~ndimage.binary_erosion(ground, iterations=1)
    mask = np.where(rim, 2, ground).astype(np.uint8)
    bright = rng.uniform(0.5, 1.0, count)[cell]
    nucleus = (near[0] < 7) * bright
    light = 1 + 0.4 * ndimage.gaussian_filter(rng.normal(size=(SIDE, SIDE)), 50) * 50
    texture = ndimage.gaussian_filter(rng.normal(size=(SIDE, SIDE)), 2) * 4
    first = ndimage.gaussian_filter(nucleus + 0.15 * ground * bright, 1.5) * light
    second = ndimage.gaussian_filter(0.5 * (mask == 2) * bright + 0.2 * ground * (1 + texture), 1.0) * light
    photons = np.stack([first, second], -1).clip(0) * 30 + 3
    return (rng.poisson(photons) * 300).clip(0, 65535).astype(np.uint16), mask


def fields(number: int) -> tuple[np.ndarray, np.ndarray]:
    """(height, width, 4) uint16: bands of parcels; classes are four kinds of land."""
    rng = np.random.default_rng([2, number])
    count = 22
    centres = rng.uniform(0, SIDE, (count, 2))
    down, across = np.mgrid[:SIDE, :SIDE]
    parcel = np.stack([np.abs(down - y) + np.abs(across - x) for y, x in centres]).argmin(0)
    kind = rng.integers(0, 4, count)
    kind[:4] = range(4)
    mask = kind[parcel].astype(np.uint8)
    angle = rng.uniform(0, math.pi, count)
    period = np.array([4.0, 7.0, 12.0, 1.0])[kind]
    rows = np.sin(2 * math.pi * (down * np.cos(angle)[parcel] + across * np.sin(angle)[parcel]) / period[parcel])
    rows = np.where(mask == 3, ndimage.gaussian_filter(rng.normal(size=rows.shape), 1.5) * 5, rows)
    level = rng.uniform(0.3, 0.7, (count, 4))[parcel]
    shade = 1 + 0.3 * ndimage.gaussian_filter(rng.normal(size=rows.shape), 40) * 40
    seen = (level + 0.12 * rows[..., None] * np.array([1.0, 0.8, -0.5, 0.3])) * shade[..., None]
    seen += rng.normal(0, 0.12, seen.shape)
    return (seen.clip(0, 1) * 10_000).astype(np.uint16), mask


def membrane(number: int) -> tuple[np.ndarray, np.ndarray]:
    """(height, width, 1) uint8 sections of neurons; classes membrane and inside."""
    folder = SHARED / "data" / "images" / "membrane"
    picture, mask = (np.asarray(Image.open(folder / k / f"{number}.png").convert("L")) for k in ("image", "label"))
    return picture[..., None], (mask > 127).astype(np.uint8)


def nuclei(number: int) -> tuple[np.ndarray, np.ndarray]:
    """(height, width, 1) uint16 nuclei of many sizes that overlap, in uneven light; their density, float32: around each
    centre a Gaussian of deviation 4 whose sum is 1."""
    rng = np.random.default_rng([3, number])
    count = int(rng.integers(20, 150))
    down, across = np.mgrid[:SIDE, :SIDE]
    light, density = np.zeros((SIDE, SIDE)), np.zeros((SIDE, SIDE))
    for y, x in rng.uniform(0, SIDE, (count, 2)):
        far = np.hypot((down - y) * rng.uniform(0.7, 1.4), (across - x) * rng.uniform(0.7, 1.4))
        light += rng.uniform(0.4, 1.0) / (1 + np.exp((far - rng.uniform(5, 11)) / 1.2))
        bump = np.exp(-((down - y) ** 2 + (across - x) ** 2) / 32)
        density += bump / bump.sum()
    dirt = np.maximum(ndimage.gaussian_filter(rng.normal(size=light.shape), 6) * 6, 0)  # bright, and no nucleus
    shade = 1 + 0.4 * ndimage.gaussian_filter(rng.normal(size=light.shape), 50) * 50
    photons = ((light + 0.5 * dirt) * shade).clip(0) * 20 + 4
    return (rng.poisson(photons) * 300).clip(0, 65535).astype(np.uint16)[..., None], density.astype(np.float32)


DATA = {"membrane": membrane, "cells": cells, "fields": fields, "nuclei": nuclei}


def split_of(number: int) -> tuple[list[int], list[int]]:
    """(held-out pictures, the others in the order in which they are labelled) of a split."""
    order = np.random.default_rng(number).permutation(PICTURES).tolist()
    return order[:HELD], order[HELD:]


class PlainUNet(nn.Module):
    """Four levels of two convolutions each, with batch norms, transposed convolutions on the way up."""

    def __init__(self, channels: int, classes: int, width: int = 16) -> None:
        super().__init__()
        wide = [width * 2**k for k in range(4)]

        def block(a: int, b: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(),
                nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(),
            )  # fmt: skip

        self.down = nn.ModuleList(block(a, b) for a, b in itertools.pairwise([channels, *wide]))
        self.widen = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in itertools.pairwise(wide))
        self.up = nn.ModuleList(block(2 * a, a) for a in wide[:-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        levels = []
        for number, part in enumerate(self.down):
            x = part(F.max_pool2d(x, 2) if number else x)
            levels.append(x)
        x = levels.pop()
        for widen, up in zip(reversed(self.widen), reversed(self.up), strict=True):
            x = up(torch.cat([levels.pop(), widen(x)], 1))
        return self.head(x)


def unet_masks(train: list[Any], held: list[Any], classes: int, minutes: float, seed: int) -> tuple[list[Any], int]:
    """(masks of the held-out pictures, steps) of a plain U-Net trained for so much processor time."""
    from unmask.training.precision import computing, resolve_precision

    torch.manual_seed(seed)
    rng, device = np.random.default_rng(seed), torch.device("cpu")
    net = PlainUNet(train[0].pixels.shape[-1], classes).to(memory_format=torch.channels_last)
    optimiser = torch.optim.Adam(net.parameters(), 1e-3)
    precision, side = resolve_precision("auto", device).name, PRETRAIN["image_size"]
    began, steps = cpu(), 0
    while cpu() - began < 60 * minutes:
        pixels, masks = [], []
        for number in rng.integers(0, len(train), 8):
            scene = train[number]
            top, left = (int(rng.integers(0, n - side + 1)) for n in scene.mask.shape)
            turn, flip = int(rng.integers(4)), bool(rng.integers(2))
            for array, kept in ((scene.pixels, pixels), (scene.mask, masks)):
                part = np.rot90(array[top : top + side, left : left + side], turn)
                kept.append(np.ascontiguousarray(part[:, ::-1] if flip else part))
        x = torch.from_numpy(np.stack(pixels).transpose(0, 3, 1, 2).copy()).contiguous(
            memory_format=torch.channels_last
        )
        with computing(precision, device):
            logits = net(x)
        F.cross_entropy(logits.float(), torch.from_numpy(np.stack(masks)).long()).backward()
        optimiser.step()
        optimiser.zero_grad()
        steps += 1
    net.eval()
    with torch.inference_mode(), computing(precision, device):
        found = [net(torch.from_numpy(s.pixels.transpose(2, 0, 1)[None].copy())).argmax(1)[0].numpy() for s in held]
    return found, steps


def pretrained_model(name: str, pictures: list[np.ndarray], work: Path, minutes: float) -> Path:
    """The folder of a model pretrained on all pictures, made where it is not there."""
    from unmask.modalities.images.recipes import RECIPES, ImageSettings, with_overrides
    from unmask.modalities.images.uses.pretrain import pretrain

    folder = work / f"{name}-{minutes:g}"
    if not (folder / "model.safetensors").exists():
        shutil.rmtree(folder, ignore_errors=True)
        settings = with_overrides(ImageSettings(), dict(RECIPES["segment"]) | PRETRAIN)
        data = np.stack(pictures)
        steps = steps_that_fit(settings, 0.95 * minutes, data)
        began = cpu()
        run = pretrain(data, folder, settings=with_overrides(settings, {"steps": steps}))
        loss, rules = run.result.validation, run.data["rules"]
        print(f"{name}: {steps} steps, {(cpu() - began) / 60:.1f} processor minutes, {loss}, {rules}", flush=True)
    return folder


def tuned_masks(
    folder: Path, train: list[Any], held: list[Any], minutes: float, seed: int, *, scratch: bool
) -> tuple[list[Any], int]:
    """(masks of the held-out pictures, steps) of `finetune segment`."""
    from unmask.modalities.images.uses.segment import finetune_segment

    pictures, masks = [p for p, _ in train], [m for _, m in train]
    how: dict[str, Any] = {"masks": masks, "holdout": 0.0, "seed": seed, "console": False, "from_scratch": scratch}

    def run(steps: int) -> Any:
        with tempfile.TemporaryDirectory() as out:
            return finetune_segment(str(folder), pictures, Path(out, "m"), steps=steps, **how).model

    started = [cpu()]
    for steps in (5, 25):
        run(steps)
        started.append(cpu())
    each = ((started[2] - started[1]) - (started[1] - started[0])) / 20
    steps = max(20, int(60 * minutes / each))
    model = run(steps)
    return [model.predict([p])[0]["mask"] for p, _ in held], steps


def measured(args: argparse.Namespace, name: str, split: int, labelled: int, row: str) -> dict[str, Any]:
    """A row of results."""
    import unmask
    from unmask.modalities.images.segment.baselines import PixelForest, learnt_rules, rule_masks
    from unmask.modalities.images.segment.figures import counted, quantity_figures, quantity_sums, scores
    from unmask.modalities.images.segment.scenes import WholePicture

    every = [DATA[name](n) for n in range(PICTURES)]
    held, others = split_of(split)
    folder = pretrained_model(name, [p for p, _ in every], Path(args.work), args.minutes)
    model = unmask.load(folder)
    codec, classes = model.model.codec, len(np.unique([m for _, m in every]))
    scenes = [
        WholePicture(name=str(n), pixels=p).scene(codec, m if name == "nuclei" else m.astype(np.int16))
        for n, (p, m) in enumerate(every)
    ]
    train, judged = [scenes[n] for n in others[:labelled]], [scenes[n] for n in held]
    began, steps = cpu(), None
    if row in ("pretrained", "scratch"):
        arrays = [every[n] for n in others[:labelled]], [every[n] for n in held]
        found, steps = tuned_masks(folder, *arrays, args.minutes, split, scratch=row == "scratch")
    elif row == "unet":
        found, steps = unet_masks(train, judged, classes, args.minutes, split)
    elif row == "forest":
        forest = PixelForest(train, split)
        found = [forest.mask(scene) for scene in judged]
    else:
        rules = learnt_rules(train, classes)
        found = [list(rule_masks(rules, scene).values())[-1] for scene in judged]
    key = {"data": name, "split": split, "labelled": labelled, "row": row, "minutes": args.minutes}
    key |= {"steps": steps, "cpu_seconds": round(cpu() - began, 1)}
    if name == "nuclei":
        of = quantity_figures([quantity_sums(s.mask, np.asarray(m), 0.0) for s, m in zip(judged, found, strict=True)])
        return key | {figure: [round(of[figure]["value"], 5)] for figure in QUANTITY}
    parts = [counted(s.mask, np.asarray(m), classes) for s, m in zip(judged, found, strict=True)]
    of = scores(sum(p.confusion for p in parts), sum(p.border for p in parts))
    figures = {figure: np.nan_to_num(values).round(5).tolist() for figure, values in of.items()}
    return key | figures


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def between(values: list[float], digits: int = 3) -> str:
    """Mean and 95 % interval over the splits."""
    middle = statistics.mean(values)
    if len(values) < 2:
        return f"{middle:.{digits}f}"
    half = STUDENT.get(len(values), 1.96) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{middle:.{digits}f} ({middle - half:.{digits}f} to {middle + half:.{digits}f})"


def tables(rows: list[dict[str, Any]]) -> dict[str, tuple[tuple[str, ...], list[tuple[str, ...]]]]:
    """Name -> (columns, rows): per data set the means over classes by number of labelled pictures, and differences."""
    found = {}
    for name in dict.fromkeys(r["data"] for r in rows):
        here = [r for r in rows if r["data"] == name]
        counts = sorted({r["labelled"] for r in here})
        for figure, title in (FIGURES | QUANTITY).items():
            if figure not in here[0]:
                continue
            mean = {(r["row"], r["labelled"], r["split"]): statistics.mean(r[figure]) for r in here}
            lines = []
            for row, label in ROWS.items():
                some = [[v for (a, b, _), v in mean.items() if (a, b) == (row, n)] for n in counts]
                if any(some):
                    lines.append((label, *(between(values) if values else "" for values in some)))
            for other in ("scratch", "unet", "forest"):
                some = [
                    [
                        v - mean[other, n, s]
                        for (a, b, s), v in mean.items()
                        if (a, b) == ("pretrained", n) and (other, n, s) in mean
                    ]
                    for n in counts
                ]
                if any(some):
                    label = f"pretrained less {ROWS[other]}"
                    lines.append((label, *(between(values) if values else "" for values in some)))
            columns = (f"{name}: {title}", *(f"{n} labelled" for n in counts))
            found[f"{name} {figure}"] = (columns, lines)
    return found


def write_sheet(args: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    from sheets import FOLDER, Sheet, Table, processor, processor_line, written

    commit = subprocess.run(["git", "rev-parse", args.sheet], capture_output=True, text=True, check=True).stdout.strip()
    minutes, shown = rows[0]["minutes"], list(dict.fromkeys(r["row"] for r in rows))
    sheet = Sheet(
        name=args.name,
        title="Segmentation with few labelled pictures, the same processor time each",
        says=f"20 pictures, 4 held out; {minutes:g} processor minutes of pretraining on all pictures without masks, "
        f"{minutes:g} of each fine-tuning, on one thread; means over classes, with 95 % intervals over the splits.",
        command="python benchmarks/images_segment.py --work DIR --out results.jsonl --data "
        f"{','.join(dict.fromkeys(r['data'] for r in rows))} --minutes {minutes:g} "
        f"--splits {len({r['split'] for r in rows})} "
        f"--labelled {','.join(map(str, sorted({r['labelled'] for r in rows})))}"
        + (f" --rows {','.join(shown)}" if len(shown) < len(ROWS) else ""),
        commit=commit,
        date=str(date.today()),
        processor=processor_line(processor()),
        seeds=f"{len({r['split'] for r in rows})} splits",
        since=commit,
        sources=tuple(SOURCES),
        tables=tuple(Table(columns=c, rows=tuple(r)) for c, r in tables(rows).values()),
    )
    (Path(FOLDER) / f"{args.name}.json").write_text(written(sheet))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", default="segment-work", help="Where pretrained models go.")
    parser.add_argument(
        "--out", required=True, help="Results, one JSON object per line; what is there is not run again."
    )
    parser.add_argument("--data", default=",".join(DATA))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--labelled", default="2,4,8,16")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--sheet", metavar="COMMIT", help="Write docs/results/NAME.json, of what this commit gave.")
    parser.add_argument("--name", default="images-segment")
    args = parser.parse_args()
    out, rows = Path(args.out), read_rows(Path(args.out))
    if args.sheet:
        return write_sheet(args, rows)
    if args.table:
        for columns, lines in tables(rows).values():
            print("\n" + " | ".join(columns))
            for line in lines:
                print(" | ".join(line))
        return None
    torch.set_num_threads(1)
    Path(args.work).mkdir(parents=True, exist_ok=True)
    done = {(r["data"], r["split"], r["labelled"], r["row"], r["minutes"]) for r in rows}
    counts = [int(n) for n in args.labelled.split(",")]
    plan = itertools.product(args.data.split(","), range(args.splits), counts, args.rows.split(","))
    for name, split, labelled, row in plan:
        if (name, split, labelled, row, args.minutes) not in done:
            found = measured(args, name, split, labelled, row)
            print(json.dumps(found), file=sys.stderr, flush=True)
            with out.open("a") as file:
                file.write(json.dumps(found) + "\n")
    return None


if __name__ == "__main__":
    main()
