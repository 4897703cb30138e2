"""Masks of a picture larger than memory, and whether its tiles leave seams.

    python benchmarks/images_segment_large.py --work DIR [--side 20000] [--train 150] [--sheet SINCE]

A segmenter of one channel of 8 bits is pretrained and fine-tuned for a minute or two on the `cells` of
`images_segment.py` (kept in DIR). A mosaic of further cells is written as .npy, and its mask is predicted by a process
of its own, whose peak resident memory is what the kernel says (VmHWM, with the pages of the mapped files). Then, on a
picture of 640 x 640 that fits, two other ways to the same mask are compared with the one that `predict` takes (tiles of
128 pixels from the corner on): tiles that begin elsewhere, and tiles that overlap by seven eighths, in the limit of
which nothing depends on where tiles begin. What differs is given as a share of the pixels within two of a border of the
predicted mask, and, per pixel, near the places where tiles begin as against elsewhere: seams would show there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import ndimage

import images_segment

FITS = 640
NEAR = 2
"""Pixels from a border, or from where a tile begins."""

PREDICT = """
import json, re, sys, time
import unmask

model = unmask.load(sys.argv[1], precision=sys.argv[4])
began = time.monotonic()
rows = model.predict(sys.argv[2], sys.argv[3])
found = {"seconds": time.monotonic() - began, "shares": list(rows)[0]["shares"], "precision": model.precision}
peak = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
print(json.dumps(found | {"peak_gib": peak / 2**30}))
"""


def cells(number: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    """(height, width) uint8, and its classes."""
    images_segment.SIDE = side
    pixels, mask = images_segment.cells(number)
    grey = pixels.astype(np.float32).mean(-1)
    return (grey * (255 / grey.max())).astype(np.uint8), mask


def segmenter(work: Path, steps: int) -> Path:
    """The folder of a segmenter, trained where it is not there."""
    import unmask

    folder = work / "segmenter"
    if not (folder / "model.safetensors").exists():
        pictures, masks = zip(*(cells(n, 256) for n in range(16)), strict=True)
        base = unmask.images.pretrain(np.stack(pictures), recipe="segment", steps=steps, probe=False, console=False)
        unmask.images.finetune_segment(base.model, list(pictures), folder, masks=list(masks), steps=steps)
    return folder


def large(work: Path, side: int) -> Path:
    """A mosaic of twenty pictures of cells, mirrored and turned."""
    path = work / f"mosaic-{side}" / "mosaic.npy"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        parts = [cells(100 + n, 256)[0] for n in range(20)]
        rng = np.random.default_rng(0)
        array = np.lib.format.open_memmap(path, "w+", np.uint8, (side, side))
        for top in range(0, side, 256):
            for left in range(0, side, 256):
                part = np.rot90(parts[rng.integers(20)], rng.integers(4))
                array[top : top + 256, left : left + 256] = part[: side - top, : side - left]
        array.flush()
    return path


def predicted(folder: Path, picture: Path, out: Path, precision: str) -> dict:
    """Seconds, peak memory and shares of the classes, of a process that predicts the mask of a file."""
    command = [sys.executable, "-c", PREDICT, str(folder), str(picture), str(out), precision]
    found: dict = json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
    )
    return found


def border(mask: np.ndarray) -> np.ndarray:
    """Pixels within `NEAR` of one of another class."""
    return ndimage.maximum_filter(mask, 2 * NEAR + 1) != ndimage.minimum_filter(mask, 2 * NEAR + 1)


def in_one_go(model: Any, picture: np.ndarray) -> np.ndarray:
    """Probabilities by the same weights, the picture being a single tile."""
    from unmask.modalities.images.network.build import at_size
    from unmask.modalities.images.segment.network import SegmentNet
    from unmask.modalities.images.segment.scenes import whole_pictures

    net = SegmentNet(at_size(model.net.masked, FITS), len(model.names))
    state = {k: v for k, v in model.net.state_dict().items() if not k.startswith("masked.")}
    net.load_state_dict(state, strict=False)
    seen = model.seen(next(whole_pictures(model.read([picture]))))
    with torch.inference_mode():
        found: np.ndarray = net.eval()(torch.from_numpy(seen.transpose(2, 0, 1)[None].copy())).softmax(1)[0].numpy()
    return found


def seams(folder: Path) -> list[dict]:
    """Other ways to the mask of a picture that fits, beside the one that `predict` takes."""
    import unmask
    from unmask.modalities.images.segment import tiles

    model = unmask.load(folder)
    picture, _ = cells(300, FITS)
    side = model.net.config.image[0]
    plain = model.probabilities([picture])[0]
    usual = plain.argmax(0)
    begins = np.zeros(FITS, bool)
    for start in tiles.starts(FITS, side):
        for edge in (start, start + side):
            begins[max(edge - NEAR, 0) : edge + NEAR] = True
    near = begins[:, None] | begins
    ways = {}
    moved = np.pad(picture, ((24, 0), (40, 0)), mode="reflect")
    ways["tiles that begin elsewhere"] = model.probabilities([moved])[0][:, 24:, 40:]
    tiles.OVERLAP = 7 / 8
    ways["tiles that overlap by seven eighths"] = model.probabilities([picture])[0]
    tiles.OVERLAP = 0.5
    ways["in one go, positions resampled"] = in_one_go(model, picture)
    inner = np.zeros((FITS, FITS), bool)
    inner[side:-side, side:-side] = True  # what the picture's own border mirrors differs
    found = []
    for name, other in ways.items():
        differs = other.argmax(0) != usual
        found.append(
            {
                "way": name,
                "of_border": float(differs.sum() / border(usual).sum()),
                "near": float(differs[near & inner].mean()),
                "elsewhere": float(differs[~near & inner].mean()),
                "probability": float(np.abs(other - plain).mean()),
            }
        )
    return found


def write_sheet(since: str, result: dict) -> None:
    from sheets import FOLDER, Sheet, Table, processor, processor_line, written

    commit = subprocess.run(["git", "rev-parse", since], capture_output=True, text=True, check=True).stdout.strip()
    one = result["large"]
    speed = result["side"] ** 2 / one["seconds"] / 1e6
    wide = (
        (
            f"{result['side']:,} x {result['side']:,}",
            f"{one['peak_gib']:.2f} GiB",
            f"{one['seconds'] / 60:.0f} min",
            f"{speed:.2f}",
        ),
    )
    rows = tuple(
        (s["way"], f"{s['of_border']:.2%}", f"{s['near']:.3%}", f"{s['elsewhere']:.3%}") for s in result["seams"]
    )
    sheet = Sheet(
        name="images-segment-large",
        title="The mask of a picture larger than memory, and seams between tiles",
        says=f"One channel of 8 bits, {one['precision']}, on one thread; the picture is a mosaic of made cells. Peak "
        f"resident memory counts the mapped files too. Seams: a picture of {FITS} x {FITS}, predicted in another way "
        "than `predict` does.",
        command="python benchmarks/images_segment_large.py --work DIR",
        commit=commit,
        date=str(date.today()),
        processor=processor_line(processor()),
        seeds="1 run",
        since=commit,
        sources=("src/unmask/modalities/images/segment",),
        tables=(
            Table(columns=("one picture", "peak memory", "time", "million pixels per second"), rows=wide),
            Table(
                columns=(
                    "predicted in another way",
                    "other class, of border pixels",
                    "of all near where tiles begin",
                    "of all elsewhere",
                ),
                rows=rows,
            ),
        ),
    )
    (Path(FOLDER) / "images-segment-large.json").write_text(written(sheet))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--side", type=int, default=20_000)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--train", type=int, default=150, help="steps of pretraining, and of fine-tuning")
    parser.add_argument(
        "--sheet", metavar="SINCE", help="Write docs/results/images-segment-large.json of what DIR has."
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.work.mkdir(parents=True, exist_ok=True)
    out = args.work / f"result-{args.side}.json"
    if args.sheet is not None:
        write_sheet(args.sheet, json.loads(out.read_text()))
        return
    began = time.monotonic()
    folder = segmenter(args.work, args.train)
    print(f"trained: {time.monotonic() - began:.0f} s", flush=True)
    result: dict = {"side": args.side, "seams": seams(folder)}
    print(json.dumps(result), flush=True)
    result["large"] = predicted(folder, large(args.work, args.side), args.work / f"masks-{args.side}", args.precision)
    out.write_text(json.dumps(result))
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
