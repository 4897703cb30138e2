"""The sheets of `images_recipes.py`: its results -> docs/results.

    python benchmarks/images_recipes_sheet.py LONG SHORT SINCE [DIGITS]

LONG, SHORT and DIGITS are the files of results (fashion.json, digits.json) of three runs: the best recipe for longer,
all recipes for the same shorter time, and recipes on digits.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from datetime import date
from pathlib import Path
from typing import Any

from unmask.verify.sheet import parsed, written

ROOT = Path(__file__).parents[1]
SOURCES = ["src/unmask/core", "src/unmask/encoder", "src/unmask/training", "src/unmask/modalities/images"]
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""97.5 % point of Student's distribution for so many values."""
BASE = "python benchmarks/images_recipes.py --work DIR "


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def between(values: list[float]) -> str:
    """Mean and 95 % interval over the seeds."""
    half = STUDENT[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    middle = statistics.mean(values)
    return f"{percent(middle)} ({100 * (middle - half):.1f} to {100 * (middle + half):.1f})"


def sheet(name: str, title: str, says: str, command: str, seeds: str, since: str, tables: list[dict[str, Any]]) -> None:
    content = {"kind": "sheet", "name": name, "title": title, "says": says, "command": command, "commit": since}
    content |= {
        "date": f"{date.today():%-d %B %Y}",
        "processor": "one of two cores with AMX and AVX512-bf16, shared with other work",
        "seeds": seeds,
        "since": since,
        "sources": SOURCES,
        "tables": tables,
    }
    (ROOT / f"docs/results/{name}.json").write_text(written(parsed(name, content)), encoding="utf-8")


def told(name: str, row: dict[str, Any]) -> list[str]:
    """A row of a rule, or the two rows' figures of a recipe's poolings."""
    return [name, percent(row["probe"]), percent(row["knn"])]


def features(found: dict[str, Any]) -> list[list[str]]:
    rows = [told(f"{name}, by {p}", row[p]) for name, row in found["probe"].items() for p in ("mean", "grid")]
    return rows + [told(name, row) for name, row in found.get("rules", {}).items()]


def few(found: dict[str, Any]) -> list[list[str]]:
    rows = []
    for name, seeds in found.get("labels", {}).items():
        for kind in ("fine-tuned", "probe", "from scratch"):
            if kind in seeds[0]:
                rows.append([f"{name}, {kind}", between([s[kind] for s in seeds])])
    return rows + [[f"{name}, probe", between(row["few"])] for name, row in found.get("rules", {}).items()]


def labelled(found: dict[str, Any]) -> str:
    return f"{next(iter(found['probe'].values()))['labelled']:,}"


def longest(found: dict[str, Any], since: str) -> None:
    run = found["pretrain"]["simclr"]
    says = (
        f"{run['steps']:,} steps of simclr in {run['cpu_minutes']:.1f} processor minutes of one thread. Probes learn "
        f"from {labelled(found)} labels, and 600 labels are 60 per class, drawn anew for each seed; mean and "
        "95 % interval over the seeds. On the 10,000 test pictures."
    )
    tables = [
        {"columns": ["features", "linear probe", "20 nearest neighbours"], "rows": features(found)},
        {"columns": ["600 labels", "accuracy"], "rows": few(found)},
    ]
    command = BASE + "--recipes simclr --cpu-minutes 3 --most 20000 --only pretrain,probe,labels, then --only rules"
    seeds = f"one of pretraining, {len(found['labels']['simclr'])} of labels"
    sheet("images-recipes", "Fashion-MNIST by simclr and by rules", says, command, seeds, since, tables)


def same_time(found: dict[str, Any], since: str, name: str, title: str, command: str, more: str = "") -> None:
    columns = [
        "recipe",
        "steps",
        "probe, mean",
        "probe, grid",
        "20 nearest neighbours",
        "effective rank",
        "relative spread",
    ]
    rows = []
    for recipe, row in found["probe"].items():
        figures = [percent(row["mean"]["probe"]), percent(row["grid"]["probe"]), percent(row["mean"]["knn"])]
        spread = [f"{row['spread']['effective_rank']:.1f}", f"{row['spread']['relative_spread']:.2f}"]
        rows.append([recipe, f"{found['pretrain'][recipe]['steps']:,}", *figures, *spread])
    tables: list[dict[str, Any]] = [{"columns": columns, "rows": rows}]
    if found.get("rules"):
        tables.append({"columns": ["rule", "linear probe", "20 nearest neighbours"], "rows": features(found)[-2:]})
    if "speed" in found:
        mae = found["speed"]["mae"]["ms_per_picture"]
        speed = [
            [recipe, f"{row['ms_per_picture']:.2f} ms", f"{row['ms_per_picture'] / mae:.2f}", memory(found, recipe)]
            for recipe, row in found["speed"].items()
        ]
        header = ["recipe's step", "per picture", "times mae's", "memory of the run, said before"]
        tables.append({"columns": header, "rows": speed})
    asked = next(iter(found["probe"].values()))["asked"]
    minutes = statistics.mean(row["cpu_minutes"] for row in found["pretrain"].values())
    says = (
        f"The same processor time for all, {minutes:.1f} minutes on average with reports; probes learn from "
        f"{labelled(found)} labels and are asked about {asked:,} test pictures; neighbours by the mean. {more}".strip()
    )
    sheet(name, title, says, command, "one", since, tables)


def memory(found: dict[str, Any], recipe: str) -> str:
    row = found["pretrain"].get(recipe)
    return "" if row is None else f"{row['expected_memory_mb']:.0f} MB"


def main() -> None:
    long, short, since = sys.argv[1:4]
    longest(json.loads(Path(long).read_text()), since)
    found = json.loads(Path(short).read_text())
    names = ",".join(found["probe"])
    command = BASE + f"--recipes '{names}' --cpu-minutes 0.35 --most 3000 --test 4000 --only rules,speed,pretrain,probe"
    title = "Recipes with the same third of a minute on Fashion-MNIST"
    more = (
        "Steps were timed in turn beside other work; recipes that were timed alone were not trained for want of time."
    )
    same_time(found, since, "images-recipes-short", title, command, more)
    if len(sys.argv) > 4:
        command = BASE + "--data digits --cpu-minutes 0.3 --recipes mae,lejepa,simclr --only rules,pretrain,probe"
        found = json.loads(Path(sys.argv[4]).read_text())
        same_time(found, since, "images-recipes-digits", "Recipes with the same twenty seconds on digits", command)


if __name__ == "__main__":
    main()
