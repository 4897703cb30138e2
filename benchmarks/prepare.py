"""Preparing a corpus by local processes and by Ray: speed, and whether the bytes are the same, also after a kill.

    python benchmarks/prepare.py FILE.jsonl.gz ... --folder /tmp/prepare [--gigabytes 2] [--workers 2] [--rounds 1]
    [--kill] [--out sheet.json]

The corpus is the texts of the files, repeated with a number of the round in front of each, so that no two are copies,
until there are as many bytes, in .jsonl files of 256 MB. Each round prepares it once by local processes and once by Ray
on a cluster of its own, in turns; tokens/s are those that the command tells of its tokenising, and seconds those of the
whole command, Ray's start and the tokenizer's training included. With --kill, in the first round a worker of Ray is
killed (SIGKILL) when a third of the shards are there. The load is the mean number of processes that wanted a core in
the last minute, ours included. Everything in --folder but the corpus is removed.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

PART = 256_000_000
SOURCES = ("src/unmask/engines", "src/unmask/modalities/text", "benchmarks/prepare.py")


def texts(paths: list[str]) -> Iterator[str]:
    """The texts of all files, without end."""
    number = 0
    while True:
        for path in paths:
            with gzip.open(path, "rt", encoding="utf-8") as file:
                for line in file:
                    yield f"{number}: {json.loads(line)['text']}"
        number += 1


def make(folder: Path, paths: list[str], size: int) -> None:
    """The corpus, unless it is there."""
    if folder.exists():
        return
    new = folder.with_name("corpus.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    stream, left, part = texts(paths), size, 0
    while left > 0:
        most = min(left, PART)
        with (new / f"{part:03}.jsonl").open("wb") as file:
            while file.tell() < most:
                file.write(json.dumps({"text": next(stream)}, ensure_ascii=False).encode() + b"\n")
            left -= file.tell()
        part += 1
    new.rename(folder)


def digest(folder: Path) -> str:
    """Of the names and bytes of all files."""
    found = hashlib.blake2b(digest_size=16)
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        found.update(str(path.relative_to(folder)).encode())
        with path.open("rb") as file:
            while chunk := file.read(1 << 24):
                found.update(chunk)
    return found.hexdigest()


def kill(process: subprocess.Popen[str], out: Path, killed: list[int]) -> None:
    """Kill a worker of Ray when a third of the shards are there."""
    while process.poll() is None:
        try:
            wanted = json.loads((out / "plan.json").read_text())["portions"] // 3
        except (OSError, ValueError, KeyError):
            wanted = 1 << 60
        if len(list((out / "index").glob("*.json"))) >= wanted:
            for child in psutil.Process(process.pid).children(recursive=True):
                if "ray::_work" in " ".join(child.cmdline()):
                    child.kill()
                    killed.append(child.pid)
                    return
        time.sleep(0.2)


def prepared(corpus: Path, out: Path, engine: str, workers: int, *, killing: bool = False) -> dict[str, Any]:
    """One preparation: what the command says of it, with its digest, and who was killed."""
    shutil.rmtree(out, ignore_errors=True)
    words = [sys.executable, "-m", "unmask", "prepare", "text", str(corpus), "--out", str(out)]
    words += ["--workers", str(workers), "--engine", engine, "--json"]
    began = time.time()
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    killed: list[int] = []
    watch = threading.Thread(target=kill, args=(process, out, killed), daemon=True)
    if killing:
        watch.start()
    said, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{engine}: ended with {process.returncode}")
    found = json.loads(said) | {"wall": time.time() - began, "load": os.getloadavg()[0], "killed": len(killed)}
    found["digest"] = digest(out)
    shutil.rmtree(out)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--out")
    a = parser.parse_args()
    folder = Path(a.folder)
    corpus = folder / f"corpus-{a.gigabytes:g}"
    make(corpus, a.files, round(a.gigabytes * 1e9))
    runs: dict[str, list[dict[str, Any]]] = {"local": [], "ray": []}
    for number in range(a.rounds):
        for engine, done in runs.items():
            killing = a.kill and engine == "ray" and number == 0
            done.append(prepared(corpus, folder / engine, engine, a.workers, killing=killing))
            print(json.dumps({"engine": engine} | done[-1]), flush=True)
    result = {
        "gigabytes": sum(p.stat().st_size for p in corpus.iterdir()) / 1e9,
        "workers": a.workers,
        "same": len({run["digest"] for done in runs.values() for run in done}) == 1,
        "killed": sum(run["killed"] for run in runs["ray"]),
        "ratio": statistics.median(r["tokens_per_second"] for r in runs["ray"])
        / statistics.median(r["tokens_per_second"] for r in runs["local"]),
        "runs": runs,
    }
    print(json.dumps({k: v for k, v in result.items() if k != "runs"}))
    if a.out:
        Path(a.out).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
