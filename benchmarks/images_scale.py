"""Pictures larger than memory: decoding into shards (killed once and resumed), training from them, streamed embedding.

    python benchmarks/images_scale.py --folder /tmp/scale [--pictures 50000] [--side 512] [--size 128]
    [--memory 2] [--json F]

Simulated JPEGs of side x side x 3 are written first: 300 distinct ones under many names, each with a number of its own
in a comment. Every part runs in a process of its own, whose peak resident memory is reported (workers are counted
apart: the largest of them). The folder is removed at the end unless --keep is given.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image

DISTINCT, CLASSES = 300, 10


def simulate(folder: Path, count: int, side: int) -> float:
    """Write the pictures in class folders; returns megabytes."""
    rng = np.random.default_rng(0)
    kinds = []
    row, column = np.mgrid[:side, :side] / side
    for _ in range(DISTINCT):
        planes = [
            np.sin(2 * np.pi * (a * row + b * column) + c) for a, b, c in rng.uniform((1, 1, 0), (12, 12, 6), (3, 3))
        ]
        noise = rng.normal(0, 12, (side // 8, side // 8, 3)).repeat(8, 0).repeat(8, 1)
        pixels = np.clip(128 + 60 * np.stack(planes, -1) + noise, 0, 255).astype(np.uint8)
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, format="JPEG", quality=85)
        kinds.append(out.getvalue())
    size = 0
    for n in range(count):
        path = folder / f"class{n % CLASSES}" / f"{n:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        told = f"picture {n}".encode()
        content = kinds[n % DISTINCT]
        path.write_bytes(content[:2] + b"\xff\xfe" + struct.pack(">H", len(told) + 2) + told + content[2:])
        size += len(content)
    return size / 1e6


TRAIN = """
import json, sys
from unmask.modalities.images.uses.pretrain import pretrain
from unmask.modalities.images.recipes import PIXELS, ImageSettings, with_overrides
given = json.loads(sys.argv[3])
run = pretrain(sys.argv[1], sys.argv[2], settings=with_overrides(ImageSettings(), PIXELS | given))
print(json.dumps(run.to_dict(), default=str))
"""
EMBED = """
import sys, time
import numpy as np
from unmask.modalities.images.uses.model import load
model = load(sys.argv[2])
start = time.perf_counter()
array = model.embed(sys.argv[1])
np.save(sys.argv[3], array)
from unmask.memory import peak_memory
import json
print(json.dumps({"pictures": len(array), "seconds": time.perf_counter() - start, "peak_memory_mb": peak_memory()}))
"""


def python(code: str, *given: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, *given], stdout=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str]) -> dict:
    out, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"a part ended with {process.returncode}")
    return json.loads(out.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--pictures", type=int, default=50_000)
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--memory", type=float, default=2.0, help="gigabytes the training process may hold")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--kill-after", type=int, default=5, help="whole shards after which decoding is killed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--embed", type=int, default=5000, help="pictures to embed by streaming")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    photos, out = args.folder / "photos", args.folder / "run"
    found: dict = {}
    try:
        if not photos.exists():
            found["jpeg_mb"] = simulate(photos, args.pictures, args.side)
        settings = {
            "image_size": args.size,
            "store": "disk",
            "steps": args.steps,
            "memory": args.memory,
            "workers": args.workers,
            "probe": False,
        }
        given = (str(photos), str(out), json.dumps(settings))
        builder = python(TRAIN, *given)
        start = time.monotonic()
        while len(list(out.glob("pictures/*/0*.json"))) < args.kill_after and builder.poll() is None:
            time.sleep(0.1)
        if builder.poll() is None:
            os.kill(builder.pid, signal.SIGKILL)
            builder.communicate()
        shards = {s: s.stat().st_mtime_ns for s in sorted(out.glob("pictures/*/0*.json"))}
        kept = sum(len(json.loads(s.read_text())["crc"]) for s in shards)
        found["killed"] = {"seconds": time.monotonic() - start, "shards_kept": len(shards), "pictures_kept": kept}
        print(
            f"killed after {found['killed']['seconds']:.0f} s: {kept:,} pictures in {len(shards)} whole shards",
            flush=True,
        )
        start = time.monotonic()
        run = result(python(TRAIN, *given))
        end = sorted(out.glob("pictures/*/0*.json"))
        untouched = sum(s.stat().st_mtime_ns == then for s, then in shards.items())
        found["run"] = {
            "seconds": time.monotonic() - start,
            "peak_memory_mb": run["peak_memory_mb"],
            "micro_batches": run["micro_batches"],
            "expected_memory_mb": run["expected_memory_mb"],
            "images_per_second": run["images_per_second"],
            "training": run["data"]["training"],
            "shards": len(end),
            "shards_from_before_the_kill": untouched,
            "disk_mb": sum(f.stat().st_size for f in out.glob("pictures/*/*")) / 1e6,
        }
        print(json.dumps(found["run"], indent=1), flush=True)
        some = args.folder / "some"
        some.mkdir(exist_ok=True)
        for path in sorted(photos.rglob("*.jpg"))[: args.embed]:
            (some / path.name).unlink(missing_ok=True)
            os.link(path, some / path.name)
        found["embed"] = result(python(EMBED, str(some), str(out), str(args.folder / "vectors.npy")))
        workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6
        found["largest_process_mb"] = workers
        print(json.dumps(found, indent=1), flush=True)
        if args.json:
            args.json.write_text(json.dumps(found, indent=1))
    finally:
        if not args.keep:
            shutil.rmtree(args.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
