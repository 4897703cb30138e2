"""Preparing a corpus by local processes and by Ray: speed, and whether the bytes are the same, also after a kill.

    python benchmarks/prepare.py FILE.jsonl.gz ... --folder /tmp/prepare [--gigabytes 2] [--workers 2] [--rounds 1]
    [--kill] [--out RUN.json]
    python benchmarks/prepare.py --sheets RUN.json --processor "..." --date 2026-11-23 --commit abc1234

The corpus is the texts of the files, repeated with a number of the round in front of each, so that no two are copies,
until there are as many bytes, in .jsonl files of 256 MB. Each round prepares it once by local processes and once by Ray
on a cluster of its own, in turns; tokens/s are those that the command tells of its tokenising, and seconds those of the
whole command, Ray's start and the tokenizer's training included. Processor time is that of the command and all that it
began (raylet and the rest of Ray among it), looked at every half second: on a busy machine it is what can be compared.
With --kill, in the first round a worker of Ray is killed (SIGKILL) when a third of the shards are there. The load is
the mean number of processes that wanted a core in the last minute, ours included. Everything in --folder but the corpus
is removed.

--sheets writes what was found as sheets of docs/results, and what follows from it for a corpus of a terabyte.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import json
import math
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

from sheets import FOLDER, Sheet, Table, written

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


class Processor(threading.Thread):
    """Adds up the processor time of a process and all that it begins."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.seen = pid, dict[tuple[int, float], float]()

    def run(self) -> None:
        while True:
            try:
                top = psutil.Process(self.pid)
                for process in (top, *top.children(recursive=True)):
                    with contextlib.suppress(psutil.Error):
                        times = process.cpu_times()
                        self.seen[process.pid, process.create_time()] = times.user + times.system
            except psutil.Error:
                return
            time.sleep(0.5)

    @property
    def seconds(self) -> float:
        return sum(self.seen.values())


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
    processor = Processor(process.pid)
    processor.start()
    said, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{engine}: ended with {process.returncode}")
    found = json.loads(said) | {"wall": time.time() - began, "load": os.getloadavg()[0], "killed": len(killed)}
    found["processor"] = processor.seconds
    found["digest"] = digest(out)
    shutil.rmtree(out)
    return found


NODES, CORES, PRICE = 100, 16, 0.05
"""Of the cluster on paper: nodes, cores per node, dollars per core-hour (an assumption: clouds ask .03 to .06)."""
PORTIONS, BYTES_PER_DOCUMENT = 1 << 14, 40
"""Portions of a terabyte; bytes that the first process holds per document while it decides which are copies."""


def thousands(value: float, digits: int = 0) -> str:
    return f"{value:,.{digits}f}".replace(",", " ")


def found(result: dict[str, Any]) -> Table:
    """The stages of the first round, and how fast tokenising was."""
    runs = [result["runs"][engine][0] for engine in ("local", "ray") if result["runs"][engine]]
    rates = [run["corpus"]["tokens"] / run["processor"] for run in runs]
    rows: list[tuple[str, ...]] = [
        (f"{stage}, s", *(thousands(run["stages"][key], 1) if key in run["stages"] else "" for run in runs))
        for key, stage in (
            ("scan", "looking at all documents"),
            ("decide", "which are copies"),
            ("tokenizer", "training the tokenizer"),
            ("tokenise", "tokenising"),
            ("index", "the index"),
        )
    ]
    rows += [
        ("the whole command, s", *(thousands(run["wall"], 0) for run in runs)),
        ("tokens/s", *(thousands(round(run["tokens_per_second"], -3)) for run in runs)),
        ("tokens per second of processor time", *(thousands(round(rate, -3)) for rate in rates)),
        ("load at the end", *(f"{run['load']:.1f}" for run in runs)),
    ]
    if len(runs) > 1:
        rows += [
            ("workers killed on the way", *(str(run["killed"]) for run in runs)),
            *([("tokens/s over the local ones", "1", f"{result['ratio']:.2f}")] if result["ratio"] else []),
            ("the same, per processor time", "1", f"{rates[1] / rates[0]:.2f}"),
            ("the same bytes", "", "yes" if result["same"] else "NO"),
        ]
    return Table(columns=("", "local", "Ray")[: len(runs) + 1], rows=tuple(rows))


def terabyte(result: dict[str, Any]) -> Table:
    """What a terabyte would take on a cluster, from the local run of the first round."""
    run, size = result["runs"]["local"][0], result["gigabytes"] * 1e9
    corpus, stages, workers, times = run["corpus"], run["stages"], run["workers"], 1e12 / size
    per_token, rate = size / corpus["tokens"], corpus["tokens"] / run["processor"]
    tokens = 1e12 / per_token
    tokenise, scan = tokens / rate / 3600, stages["scan"] * workers * times / 3600
    rounds = math.ceil(PORTIONS / (NODES * CORES))
    side_by_side = (tokenise + scan) / PORTIONS * rounds
    alone = (stages["tokenizer"] + (stages["decide"] + stages["index"]) * times) / 3600
    paid = (side_by_side + alone) * NODES * CORES
    documents = corpus["documents"] * times
    rows = (
        ("bytes of text per token", "the corpus over its tokens", f"{per_token:.2f}"),
        ("tokens", "a terabyte over that", f"{thousands(tokens / 1e9)} billion"),
        ("tokens/s per core", "the local run's per second of processor time", thousands(round(rate, -3))),
        ("core-hours of tokenising", "tokens over tokens/s per core", thousands(tokenise)),
        ("core-hours of looking at all documents", "as measured, per byte", thousands(scan)),
        ("rounds", f"{thousands(PORTIONS)} portions on {thousands(NODES * CORES)} cores, rounded up", str(rounds)),
        ("hours side by side", "core-hours over portions, times rounds", f"{side_by_side:.2f}"),
        ("hours of one process", "copies and index as measured, per byte; one tokenizer", f"{alone:.2f}"),
        ("hours", "both", f"{side_by_side + alone:.1f}"),
        ("core-hours paid for", "hours on all cores, busy or not", thousands(paid)),
        ("price", f"at ${PRICE:.2f} per core-hour", f"${thousands(paid * PRICE)}"),
        ("bytes read", "each document is read twice", "2.0 TB"),
        ("bytes written", "as measured, per byte", f"{corpus['bytes'] / size:.2f} TB"),
        (
            "memory of the first process",
            f"{BYTES_PER_DOCUMENT} bytes for each of {thousands(documents / 1e6)} million documents",
            f"{documents * BYTES_PER_DOCUMENT / 1e9:.0f} GB",
        ),
        (
            "memory of each training process",
            f"some 40 bytes for each of {thousands(corpus['examples'] * times / 1e6)} million examples",
            f"{corpus['examples'] * times * 40 / 1e9:.0f} GB",
        ),
    )
    return Table(columns=("", "how", "found"), rows=rows)


def write_sheets(a: argparse.Namespace) -> None:
    """docs/results/text-prepare.json and text-prepare-terabyte.json."""
    result = json.loads(Path(a.sheets).read_text())
    command = f"python benchmarks/prepare.py FILES --gigabytes {result['gigabytes']:.0f} --kill"
    about = {
        "command": command,
        "commit": a.commit,
        "date": a.date,
        "processor": a.processor,
        "seeds": "one run of each",
        "since": subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip(),
        "sources": SOURCES,
    }
    corpus = result["runs"]["local"][0]["corpus"]
    says = (
        f"{result['gigabytes']:.1f} GB of articles of Wikipedia (English and Chinese) and abstracts of PubMed, "
        f"repeated with a number in front so that none is a copy: {thousands(corpus['documents'] / 1e3)} thousand "
        f"documents, {thousands(corpus['tokens'] / 1e6)} million tokens, {corpus['shards']} shards; "
        f"{result['workers']} workers on two cores that other work shared, one run after the other. The whole command "
        f"of Ray has the start of its cluster in it.{result.get('note', '')}"
    )
    on_paper = (
        f"Arithmetic, not a measurement: {NODES} nodes of {CORES} cores each, as fast as the core that was measured, "
        "on a shared disk that keeps up."
    )
    for name, title, said, table in (
        ("text-prepare", "Preparing a corpus", says, found(result)),
        ("text-prepare-terabyte", "A terabyte on paper", on_paper, terabyte(result)),
    ):
        sheet = Sheet(name=name, title=title, says=said, tables=(table,), **about)
        (Path(FOLDER) / f"{name}.json").write_text(written(sheet), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*")
    parser.add_argument("--folder")
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--out")
    for name in ("sheets", "processor", "date", "commit"):
        parser.add_argument(f"--{name}")
    a = parser.parse_args()
    if a.sheets:
        write_sheets(a)
        return
    if not a.files or not a.folder:
        parser.error("files and --folder are needed")
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
