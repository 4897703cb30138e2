"""What an environment holds and what a start costs: size by extra, versions tried, seconds of the first commands.

    python benchmarks/install.py WHERE --all ALL/bin/python --tried lowest=LOW/bin/python --tried newest=NEW/bin/python

ALL is an environment with every extra. The tests in the others are run by hand; their outcome is --outcome NAME=TEXT.
With --only SHEET one of the three is measured.
Writes docs/results/install-sizes.json, install-tried.json and install-seconds.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import time
import tomllib
from datetime import UTC, datetime
from pathlib import Path

from sheets import FOLDER, Sheet, Table, processor, written

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HOLDS = r"""
import importlib.metadata as m, json, sys
from packaging.requirements import Requirement
name = lambda text: text.lower().replace("_", "-").replace(".", "-")
def needs(package, extras):
    for line in m.requires(package) or []:
        r = Requirement(line)
        if r.marker is None or any(r.marker.evaluate({"extra": e}) for e in ("", *extras)):
            yield r
def closure(extra):
    seen, todo = set(), [("unmask", (extra,))]
    while todo:
        package, extras = todo.pop()
        if (name(package), extras) in seen:
            continue
        seen.add((name(package), extras))
        todo += [(r.name, tuple(sorted(r.extras))) for r in needs(package, extras)]
    return {p for p, _ in seen}
def size(package):
    return sum(p.stat().st_size for f in m.files(package) or [] if (p := f.locate()).is_file())
found = {e: closure(e) for e in ("", *sys.argv[1:])}
sizes = {p: size(p) for c in found.values() for p in c}
print(json.dumps({"closures": {e: sorted(c) for e, c in found.items()}, "sizes": sizes}))
"""
"""Prints the packages that each extra leads to, and the bytes of their files (as pip recorded them)."""
VERSIONS = """
import importlib.metadata as m, json, platform, sys
print(json.dumps({"Python": platform.python_version()} | {p: m.version(p) for p in sys.argv[1:]}))
"""
USERS = [name for name in PROJECT["optional-dependencies"] if name not in ("dev", "docs", "bench")]
STARTS = {
    "import unmask": ("python", "-c", "import unmask"),
    "unmask --help": ("unmask", "--help"),
    "unmask fill, a folder that is not there": ("unmask", "fill", "nowhere", "a [MASK]"),
    "unmask pretrain text, a file that is not there": ("unmask", "pretrain", "text", "nowhere.txt", "--out", "m"),
    "unmask pretrain table, a file that is not there": ("unmask", "pretrain", "table", "nowhere.csv", "--out", "m"),
    "unmask pretrain images, a folder that is not there": ("unmask", "pretrain", "images", "nowhere/", "--out", "m"),
    "unmask pretrain events, a folder that is not there": ("unmask", "pretrain", "events", "nowhere/", "--out", "m"),
}


def asked(python: Path, code: str, *arguments: str) -> dict:
    """What a piece of code prints in another environment."""
    done = subprocess.run([python, "-c", code, *arguments], capture_output=True, text=True, check=True, cwd="/")
    return json.loads(done.stdout)


def sizes(python: Path) -> Table:
    """Of the package alone, and what each extra adds to it."""
    found = asked(python, HOLDS, *USERS)
    closures = {extra: set(names) for extra, names in found["closures"].items()}
    base = closures.pop("")

    def row(name: str, packages: set[str]) -> tuple[str, str, str, str]:
        order = sorted(packages, key=found["sizes"].get, reverse=True)
        largest = ", ".join(f"{p} {found['sizes'][p] / 1e6:.0f}" for p in order[:3])
        return name, f"{len(packages)}", f"{sum(found['sizes'][p] for p in packages) / 1e6:,.0f}", largest

    rows = [row("unmask itself, no extra", base)]
    rows += [row(f"`{extra}` adds", packages - base) for extra, packages in closures.items()]
    return Table(columns=("", "packages", "MB", "the largest, MB"), rows=tuple(rows))


def tried(environments: dict[str, Path], outcomes: dict[str, str]) -> Table:
    """The versions of what pyproject.toml asks for, by environment, and what became of the tests there."""
    names = [re.match(r"[\w-]+", r).group() for r in PROJECT["dependencies"]]
    found = {name: asked(python, VERSIONS, *names) for name, python in environments.items()}
    rows = [(p, *(versions[p] for versions in found.values())) for p in ("Python", *names)]
    rows.append(("tests", *(outcomes.get(name, "not run") for name in environments)))
    return Table(columns=("", *environments), rows=tuple(rows))


def seconds(python: Path, where: Path, runs: int) -> Table:
    """Wall and processor time of first commands, the median of some runs after one that is not counted."""
    rows = []
    for name, words in STARTS.items():
        taken = []
        for _ in range(runs + 1):
            before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            subprocess.run(
                [python.absolute().parent / words[0], *words[1:]], capture_output=True, cwd=where, check=False
            )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            taken.append((time.perf_counter() - began, used))
        wall, used = (statistics.median(one) for one in zip(*taken[1:], strict=True))
        rows.append((name, f"{wall:.2f}", f"{used:.2f}"))
    return Table(columns=("", "seconds", "of processor time"), rows=tuple(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("where", type=Path, help="an empty folder")
    parser.add_argument("--all", type=Path, required=True)
    parser.add_argument("--tried", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--outcome", action="append", default=[], metavar="NAME=TEXT")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", action="append", metavar="SHEET")
    given = parser.parse_args()
    given.where.mkdir(parents=True, exist_ok=True)
    head = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    commit = head.stdout.strip()
    outcomes = dict(one.split("=", 1) for one in given.outcome)
    environments = {name: Path(p) for name, p in (one.split("=", 1) for one in given.tried)}
    says = {
        "install-sizes": (
            "Size of the environment by extra",
            "Linux x86_64, with PyTorch's build for CPUs; the files that pip recorded, compiled modules among them.",
            lambda: sizes(given.all),
            ("pyproject.toml", "constraints.txt"),
        ),
        "install-seconds": (
            "Seconds of the first commands",
            "Each a process of its own, warm disk.",
            lambda: seconds(given.all, given.where, given.runs),
            ("src/unmask/cli", "src/unmask/__init__.py"),
        ),
        "install-tried": (
            "Lowest and newest dependencies",
            "Lowest is what pyproject.toml allowed (`uv pip compile --resolution lowest-direct`, no transformers), "
            "newest what was published on the day, without constraints; the middle is what `make test` installs.",
            lambda: tried(environments, outcomes),
            ("pyproject.toml",),
        ),
    }
    for name in given.only or says:
        title, about, measured, sources = says[name]
        timed = name == "install-seconds"
        sheet = Sheet(
            name=name,
            title=title,
            says=about,
            command=f"python benchmarks/install.py WHERE --all PYTHON --only {name}",
            commit=commit,
            date=f"{datetime.now(UTC):%d %B %Y}",
            processor=f"{processor()['cores']} cores, load before {os.getloadavg()[0]:.1f}" if timed else None,
            seeds=f"median of {given.runs}" if timed else None,
            since=commit,
            sources=sources,
            tables=(measured(),),
        )
        (ROOT / FOLDER / f"{name}.json").write_text(written(sheet), encoding="utf-8")


if __name__ == "__main__":
    main()
