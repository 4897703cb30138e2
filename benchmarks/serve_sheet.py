"""A race of servers (`serve.py --out`) as a sheet of docs/results, from which the pages draw their tables.

    python benchmarks/serve_sheet.py RACE.json serving-race --title "..." --says "..."
    make tables

Ratios are of medians over the rounds, to the best peer whose answers are ours (`SAME` or better), and the least and
most of any round. Files of before the race noted its
commit, date and command are told them: --commit, --date, --command.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sheets import FOLDER, Sheet, Table, processor_line, written

SAME = 0.999
"""Smallest cosine to (or share of answers equal to) those of ours in fp32 with which a peer counts."""
SOURCES = ("src/unmask/serving", "src/unmask/encoder", "benchmarks/serve.py", "benchmarks/serve_peers.py")
OURS = "unmask"


def median(server: dict[str, Any], load: str, key: str) -> float:
    """Over the rounds."""
    return statistics.median(run[key] for run in server["runs"][load])


def shown(ratio: float, rounds: Sequence[float]) -> str:
    """The ratio of medians, and the least and most of the rounds'."""
    return f"**{ratio:.2f}x** ({min(rounds):.2f} to {max(rounds):.2f})"


def thousands(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ")


def agreement(server: dict[str, Any]) -> str:
    return "another model" if server["cosine"] is None else f"{server['cosine']:.5f}"


def named(load: str, server: dict[str, Any]) -> str:
    """A load as people say it."""
    kind, _, count = load.partition(" ")
    if kind == "open":
        return f"open load, {server['runs'][load][0]['rate']:g} per s"
    return f"{count} client{'s' * (count != '1')}"


def beside(servers: Sequence[dict[str, Any]], ours: dict[str, Any], loads: Sequence[str], before: str) -> Table:
    """Tokens per second over, and p99 under, the best peer's.

    Args:
        before: what rows are named by in front of the load.
    """
    peers = [s for s in servers if not s["name"].startswith(OURS) and (s["cosine"] is None or s["cosine"] >= SAME)]
    rows = []
    for load in loads:
        every = list(zip(ours["runs"][load], *(p["runs"][load] for p in peers), strict=True))
        faster = [mine["tokens_per_second"] / max(p["tokens_per_second"] for p in others) for mine, *others in every]
        sooner = [min(p["p99_ms"] for p in others) / mine["p99_ms"] for mine, *others in every]
        speed = median(ours, load, "tokens_per_second") / max(median(p, load, "tokens_per_second") for p in peers)
        wait = min(median(p, load, "p99_ms") for p in peers) / median(ours, load, "p99_ms")
        rows.append((before + named(load, ours), shown(speed, faster), shown(wait, sooner)))
    return Table(columns=(f"{ours['name']} over the best equal peer", "tokens/s", "p99 sooner"), rows=tuple(rows))


def tables(found: dict[str, Any]) -> tuple[Table, ...]:
    """What the pages show of a race."""
    servers = found["servers"]
    loads = list(servers[0]["runs"])
    columns = [named(load, servers[0]) for load in loads]
    speed = [
        (s["name"], *(thousands(median(s, load, "tokens_per_second")) for load in loads), agreement(s)) for s in servers
    ]
    waits = [
        (s["name"], *(" / ".join(thousands(median(s, load, key)) for key in ("p50_ms", "p99_ms")) for load in loads))
        for s in servers
    ]
    costs = [
        (s["name"], ", ".join(f"{one:.1f}" for one in s["first_answer_s"]), f"{thousands(s['megabytes'])} MB")
        for s in servers
    ]
    own = [s for s in servers if s["name"].startswith(OURS)]
    return (
        Table(columns=("tokens/s", *columns, "agreement"), rows=tuple(speed)),
        Table(columns=("p50 / p99, ms", *columns), rows=tuple(waits)),
        *(beside(servers, s, loads, "" if s is own[0] else f"{s['name']}, ") for s in own),
        Table(columns=("from cold", "first answer, s", "memory"), rows=tuple(costs)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("race", type=Path)
    parser.add_argument("name")
    parser.add_argument("--title", required=True)
    parser.add_argument("--says", required=True, help="what was asked, and how it was measured")
    parser.add_argument("--commit")
    parser.add_argument("--date")
    parser.add_argument("--command")
    arguments = parser.parse_args()
    found = json.loads(arguments.race.read_text())
    about = found["about"]
    said = {key: getattr(arguments, key) or about.get(key) for key in ("commit", "date", "command")}
    root = Path(__file__).resolve().parents[1]
    head = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    rounds = len(next(iter(found["servers"][0]["runs"].values())))
    sheet = Sheet(
        name=arguments.name,
        title=arguments.title,
        says=arguments.says,
        processor=processor_line(about),
        seeds=f"{rounds} rounds in turns; medians; of ratios the least and most of a round too",
        since=said["commit"] or head.stdout.strip(),
        sources=SOURCES,
        tables=tables(found),
        **said,
    )
    (root / FOLDER / f"{sheet.name}.json").write_text(written(sheet), encoding="utf-8")


if __name__ == "__main__":
    main()
