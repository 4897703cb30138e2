"""A table in many files: filled by one process, by two, and by Ray with a worker killed; time, memory, equal bytes.

    python benchmarks/tables_shards.py --folder /tmp/shards [--rows 1000000] [--shards 200] [--columns 20]
    [--out RUN.json]
    python benchmarks/tables_shards.py --sheet RUN.json --processor "..." --date 2026-11-28 --commit abc1234

The table is simulated (a tenth of the cells missing; quantities and categories), its shards CSV and parquet by turns. A
model is fitted to rows drawn from all shards. Then each way of filling is a command of its own: one process on a tenth
of the shards, on all, two processes, two workers of Ray of which one is killed (SIGKILL) when a third of the shards are
there, and one process that is killed at a third and begun again. Processor time and memory are those of the command and
all that it began, looked at ten times a second; memory is the most that one process held, as the system counts it
(resident). Ray is left out where it is not installed. Everything in --folder but the table is removed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import psutil

from prepare import digest
from sheets import FOLDER, Sheet, Table, written
from tables_speed import simulate

SOURCES = ("src/unmask/engines", "src/unmask/modalities/table", "benchmarks/tables_shards.py")


def make(folder: Path, rows: int, shards: int, columns: int) -> None:
    """The table in shards, unless it is there; a tenth of them stand in a folder of their own too, as links."""
    if folder.exists():
        return
    new = folder.with_name("table.new")
    shutil.rmtree(new, ignore_errors=True)
    (new / "tenth").mkdir(parents=True)
    (new / "all").mkdir()
    cells, sizes = simulate(rows, columns)
    made: dict[str, Any] = {"patient": [f"P{i:07}" for i in range(rows)]}
    for j, (x, size) in enumerate(zip(cells, sizes, strict=True)):
        series = pl.Series(x).fill_nan(None)
        made[f"c{j}"] = ("level " + series.cast(pl.Int64).cast(pl.String)) if size else series.round(3)
    whole = pl.DataFrame(made)
    for i in range(shards):
        part, path = whole[i * rows // shards : (i + 1) * rows // shards], new / "all" / f"part-{i:04}"
        path = path.with_suffix(".parquet" if i % 2 else ".csv")
        part.write_parquet(path) if i % 2 else part.write_csv(path)
        if i < shards // 10:
            os.link(path, new / "tenth" / path.name)
    new.rename(folder)


class Watch(threading.Thread):
    """Adds up the processor time of a process and all that it begins, and notes the most memory that one of them held;
    may kill one of them."""

    def __init__(self, pid: int, victim: Callable[[], str | None]) -> None:
        super().__init__(daemon=True)
        self.pid, self.victim = pid, victim
        self.times, self.memory, self.killed = dict[tuple[int, float], float](), 0.0, 0

    def run(self) -> None:
        while True:
            try:
                top = psutil.Process(self.pid)
                for process in (top, *top.children(recursive=True)):
                    with contextlib.suppress(psutil.Error):
                        self._note(process)
            except psutil.Error:
                return
            time.sleep(0.1)

    def _note(self, process: psutil.Process) -> None:
        times, words = process.cpu_times(), " ".join(process.cmdline())
        self.times[process.pid, process.create_time()] = times.user + times.system
        if "unmask" in words or "ray::_work" in words:  # not Ray's own processes
            self.memory = max(self.memory, process.memory_info().rss / 1e9)
        name = None if self.killed else self.victim()
        if name is not None and name in words:
            process.kill()
            self.killed += 1


def command(words: list[Any], out: Path, victim: str | None = None, after: int = 0) -> dict[str, Any]:
    """A command: what it says, its seconds and memory. `victim`: kill a process with this in its words as soon as
    `after` shards are there."""
    staged = out.with_name(f".{out.name}.filling")

    def due() -> str | None:
        return victim if victim and len(list(staged.glob("part-*"))) >= after else None

    began = time.time()
    full = [sys.executable, "-m", "unmask", *map(str, words), "--out", str(out), "--json"]
    process = subprocess.Popen(full, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    watch = Watch(process.pid, due)
    watch.start()
    text, _ = process.communicate()
    found = {"wall": time.time() - began, "killed": watch.killed, "code": process.returncode}
    return found | {"processor": sum(watch.times.values()), "memory": watch.memory} | (json.loads(text) if text else {})


def filled(model: Path, data: Path, workers: int, engine: str = "local", **killing: Any) -> dict[str, Any]:
    """One way of filling, with the digest of what came of it."""
    out = model.with_name("filled")
    shutil.rmtree(out, ignore_errors=True)
    words = ["impute", model, data, "--workers", workers, "--engine", engine]
    if killing.get("again"):
        first = command(words, out, "unmask", killing["after"])
        found = command(words, out) | {"first": first["wall"], "killed": first["killed"]}
    else:
        found = command(words, out, killing.get("victim"), killing.get("after", 0))
    if found["code"]:
        raise SystemExit(f"{words}: ended with {found['code']}")
    found["digest"] = digest(out)
    shutil.rmtree(out)
    return {k: v for k, v in found.items() if k not in ("notes", "warnings")}


def ways(a: argparse.Namespace, model: Path, table: Path) -> dict[str, Callable[[], dict[str, Any]]]:
    third = a.shards // 3
    found: dict[str, Callable[[], dict[str, Any]]] = {
        "one process, a tenth of the shards": lambda: filled(model, table / "tenth", 1),
        "one process": lambda: filled(model, table / "all", 1),
        "two processes": lambda: filled(model, table / "all", 2),
        "one process, killed at a third and begun again": lambda: filled(
            model, table / "all", 1, again=True, after=third
        ),
    }
    if importlib.util.find_spec("ray") is not None:
        found["two workers of Ray, one killed at a third"] = lambda: filled(
            model, table / "all", 2, "ray", victim="ray::_work", after=third
        )
    return found


def write_sheet(a: argparse.Namespace) -> None:
    """docs/results/tables-shards.json."""
    result = json.loads(Path(a.sheet).read_text())
    runs, fit = result["runs"], result["fit"]
    same = runs["one process"]["digest"]
    rows = [
        (
            "fit to rows drawn from all shards",
            f"{fit['wall']:.0f}",
            f"{fit['processor']:.0f}",
            f"{fit['memory']:.2f}",
            "",
            "",
        )
    ]
    for name, run in runs.items():
        equal = "" if name.endswith("tenth of the shards") else "yes" if run["digest"] == same else "**no**"
        kept = f"{run['kept']} kept" if run["kept"] else f"{run['killed']} killed" if run["killed"] else ""
        wall, memory = run["wall"] + run.get("first", 0), run["memory"]
        rows.append((name, f"{wall:.0f}", f"{run['processor']:.0f}", f"{memory:.2f}", equal, kept))
    sheet = Sheet(
        name="tables-shards",
        title="A table in many files",
        says=f"{result['rows']:,} rows x {result['columns']} columns in {result['shards']} shards, CSV and parquet by "
        f"turns, {runs['one process']['cells']:,} cells filled; the model is fitted to {fit['rows']:,} rows. Two cores "
        "that other work shared, so processor seconds can be compared and wall seconds cannot; checking and the start "
        "of the processes, and of Ray, are in them. Memory is the most that one process held. Of the run that was "
        "killed and begun again, processor seconds and memory are of the second part.",
        command="python benchmarks/tables_shards.py --folder FOLDER",
        commit=a.commit,
        date=a.date,
        processor=a.processor,
        seeds="one run of each",
        since=subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip(),
        sources=SOURCES,
        tables=(
            Table(
                columns=(
                    "",
                    "wall s",
                    "processor s",
                    "most memory, GB",
                    "the same bytes",
                    "shards kept, workers killed",
                ),
                rows=tuple(rows),
            ),
        ),
    )
    (Path(FOLDER) / "tables-shards.json").write_text(written(sheet), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=200)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--out", default="tables_shards.json")
    for name in ("sheet", "processor", "date", "commit"):
        parser.add_argument(f"--{name}")
    a = parser.parse_args()
    if a.sheet:
        write_sheet(a)
        return
    if not a.folder:
        parser.error("--folder is needed")
    folder = Path(a.folder)
    table, model = folder / f"table-{a.rows}-{a.shards}-{a.columns}", folder / "model"
    make(table, a.rows, a.shards, a.columns)
    shutil.rmtree(model, ignore_errors=True)
    result: dict[str, Any] = {"rows": a.rows, "shards": a.shards, "columns": a.columns, "runs": {}}
    result["fit"] = {k: v for k, v in command(["pretrain", "table", table / "all"], model).items() if k != "notes"}
    for name, run in ways(a, model, table).items():
        result["runs"][name] = run()
        print(name, json.dumps(result["runs"][name]), flush=True)
        Path(a.out).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
