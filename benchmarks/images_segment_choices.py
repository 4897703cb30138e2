"""Two choices of `finetune segment`: crops that are not resampled, and a threshold of two classes.

    python benchmarks/images_segment_choices.py --work DIR --out results.jsonl [--data membrane,cells,fields]
        [--steps 220] [--shares 0,0.5]
    python benchmarks/images_segment_choices.py --out results.jsonl --sheet COMMIT

Data, the first split of it and pretrained models (DIR) are those of `images_segment.py`. Two pictures are learnt from
in so many steps, once with all crops turned by any angle, scaled and bent, and once with half of them cut as they are.
Of the latter's probabilities a threshold is chosen by the Dice of 4 of the pictures that were not learnt from (of
`cells` for their border against all else), and judged on the others beside 0.5, over 200 draws of the 4. What OUT has
already is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

import images_segment
from images_probe import cpu

STEPS, LABELLED, CHOSEN_ON, DRAWS = 220, 2, 4, 200
SHARES = (0.0, 0.5)
GRID = np.round(np.arange(0.1, 0.91, 0.05), 2)


def tuned(name: str, work: Path, share: float, steps: int) -> tuple[Any, list[Any], list[int]]:
    """(model, all pictures with masks, numbers of those that were learnt from)."""
    from unmask.modalities.images.segment import crops
    from unmask.modalities.images.uses.segment import finetune_segment

    crops.AS_THEY_ARE = share
    every = [images_segment.DATA[name](n) for n in range(images_segment.PICTURES)]
    minutes = 3.0 if name == "membrane" else 2.0
    folder = images_segment.pretrained_model(name, [p for p, _ in every], work, minutes)
    learnt = images_segment.split_of(0)[1][:LABELLED]
    pictures, masks = ([every[n][part] for n in learnt] for part in (0, 1))
    with tempfile.TemporaryDirectory() as out:
        how: dict[str, Any] = {"holdout": 0.0, "seed": 0, "console": False, "steps": steps}
        run = finetune_segment(str(folder), pictures, Path(out, "m"), masks=masks, **how)
    return run.model, every, learnt


def of_thresholds(chances: list[np.ndarray], truths: list[np.ndarray]) -> dict[str, float]:
    """Mean Dice of two classes at 0.5, and what a threshold chosen on some pictures adds on the others."""

    def counts(chance: np.ndarray, truth: np.ndarray, threshold: float) -> np.ndarray:
        return np.bincount((2 * truth + (chance >= threshold)).ravel(), minlength=4).reshape(2, 2)

    def dice(found: np.ndarray) -> float:
        return float(np.mean([2 * found[k, k] / (found[k].sum() + found[:, k].sum()) for k in (0, 1)]))

    each = np.array([[counts(c, t, g) for g in GRID] for c, t in zip(chances, truths, strict=True)])
    half, gains, chosen = int(np.abs(GRID - 0.5).argmin()), [], []
    for draw in range(DRAWS):
        order = np.random.default_rng(draw).permutation(len(each))
        on, off = order[:CHOSEN_ON], order[CHOSEN_ON:]
        best = int(np.argmax([dice(each[on, k].sum(0)) for k in range(len(GRID))]))
        chosen.append(GRID[best])
        gains.append(dice(each[off, best].sum(0)) - dice(each[off, half].sum(0)))
    low, high = np.percentile(gains, (2.5, 97.5))
    found = {"dice": dice(each[:, half].sum(0)), "gain": float(np.mean(gains)), "low": low, "high": high}
    return found | {"chosen_low": float(min(chosen)), "chosen_high": float(max(chosen))}


def measured(name: str, work: Path, share: float, steps: int) -> dict[str, Any]:
    from unmask.modalities.images.segment.figures import counted, mean_of, scores

    began = cpu()
    model, every, learnt = tuned(name, work, share, steps)
    chances = {n: model.probabilities([every[n][0]])[0] for n in range(len(every)) if n not in learnt}
    classes = len(model.names)
    held = images_segment.split_of(0)[0]
    parts = [counted(every[n][1].astype(np.int16), chances[n].argmax(0), classes) for n in held]
    of = scores(sum(p.confusion for p in parts), sum(p.border for p in parts))
    row: dict[str, Any] = {"data": name, "share": share, "steps": steps} | {k: float(mean_of(v)) for k, v in of.items()}
    if share and name != "fields":
        last = [chances[n][-1] for n in chances]
        row["thresholds"] = of_thresholds(last, [(every[n][1] == classes - 1).astype(np.int64) for n in chances])
    return row | {"cpu_seconds": round(cpu() - began, 1)}


def write_sheet(since: str, rows: list[dict[str, Any]]) -> None:
    from sheets import FOLDER, Sheet, Table, processor, processor_line, written

    commit = subprocess.run(["git", "rev-parse", since], capture_output=True, text=True, check=True).stdout.strip()
    by = {(r["data"], r.get("steps", STEPS), r["share"]): r for r in rows}
    runs = list(dict.fromkeys((name, steps) for name, steps, _ in by))

    def shown(name: str, steps: int, share: float, figure: str) -> str:
        found = by.get((name, steps, share))
        return "" if found is None else f"{found[figure]:.3f}"

    crops = tuple(
        (f"{name}, {steps} steps", *(shown(name, steps, share, f) for f in ("dice", "border_f") for share in SHARES))
        for name, steps in runs
    )
    thresholds = tuple(
        (
            r["data"],
            f"{t['dice']:.3f}",
            f"{t['chosen_low']:.2f} to {t['chosen_high']:.2f}",
            f"{t['gain']:.4f} ({t['low']:.4f} to {t['high']:.4f})",
        )
        for r in rows
        if (t := r.get("thresholds"))
    )
    sheet = Sheet(
        name="images-segment-choices",
        title="Crops as they are, and a threshold of two classes",
        says=f"The first split, {LABELLED} labelled pictures, pretrained; means over classes. A "
        f"threshold chosen on {CHOSEN_ON} pictures with masks, judged on the others; of cells for their border.",
        command="python benchmarks/images_segment_choices.py --work DIR --out results.jsonl; with --data cells "
        "--steps 385 --shares 0.5",
        commit=commit,
        date=str(date.today()),
        processor=processor_line(processor()),
        seeds="1 split",
        since=commit,
        sources=("src/unmask/modalities/images/segment",),
        tables=(
            Table(
                columns=(
                    "data",
                    "Dice, all crops resampled",
                    "Dice, half as they are",
                    "borders, all resampled",
                    "borders, half as they are",
                ),
                rows=crops,
            ),
            Table(columns=("data", "Dice at 0.5", "chosen", "what choosing adds"), rows=thresholds),
        ),
    )
    (Path(FOLDER) / "images-segment-choices.json").write_text(written(sheet))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("segment-work"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", default=",".join(images_segment.DATA))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--shares", default=",".join(map(str, SHARES)))
    parser.add_argument("--sheet", metavar="COMMIT", help="Write docs/results/images-segment-choices.json.")
    args = parser.parse_args()
    rows = images_segment.read_rows(args.out)
    if args.sheet:
        write_sheet(args.sheet, rows)
        return
    torch.set_num_threads(1)
    os.makedirs(args.work, exist_ok=True)
    done = {(r["data"], r["share"], r.get("steps", STEPS)) for r in rows}
    for name in args.data.split(","):
        for share in map(float, args.shares.split(",")):
            if (name, share, args.steps) not in done:
                found = measured(name, args.work, share, args.steps)
                print(json.dumps(found), flush=True)
                with args.out.open("a") as file:
                    file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
