"""The sheets of `images_recipes.py`: its results -> docs/results.

    python benchmarks/images_recipes_sheet.py SINCE fashion.json [digits.json cifar10.json landsat.json]

Each file is what `images_recipes.py --work DIR` wrote for pictures of that name: `pretrain`, `probe`, and where they
were asked for `rules`, `speed` and `labels`; `all labels` (probes by name that know every label) is put together by
hand from runs with `--most 60000`. SINCE is the whole hash of the commit that was measured.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from datetime import date
from pathlib import Path
from typing import Any

from sheets import parsed, written

ROOT = Path(__file__).parents[1]
SOURCES = ["src/unmask/core", "src/unmask/encoder", "src/unmask/training", "src/unmask/modalities/images"]
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""97.5 % point of Student's distribution for so many values."""
TITLES = {
    "fashion": "Fashion-MNIST by recipe, the same ten minutes each",
    "digits": "Digits by recipe, the same minute each",
    "cifar10": "CIFAR-10 by recipe, the same minutes each",
    "landsat": "Windows of a Landsat scene by recipe, the same minute each",
}
ABOUT = {
    "fashion": "Grey clothes, 28 x 28; 600 labels are 60 per class.",
    "digits": "scikit-learn's digits, 8 x 8; 100 labels are 10 per class.",
    "cifar10": "Colour pictures, 32 x 32 (Krizhevsky 2009, cited, not handed on); 600 labels are 60 per class.",
    "landsat": "Windows of 3 x 3 pixels in four bands (Statlog), told apart by their middle pixel; windows of the test "
    "part overlap those of training, as published, which helps neighbours. 360 labels are 60 per class.",
}


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def between(values: list[float]) -> str:
    """Mean and 95 % interval over the seeds."""
    middle = statistics.mean(values)
    if len(values) < 2:
        return percent(middle)
    half = STUDENT[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    return f"{percent(middle)} ({100 * (middle - half):.1f} to {100 * (middle + half):.1f})"


def recipes(found: dict[str, Any]) -> dict[str, Any]:
    columns = ["recipe", "steps", "probe, mean", "probe, grid", "20 nearest, mean", "20 nearest, grid"]
    columns += ["effective rank", "relative spread"]
    rows = []
    for name, row in found["probe"].items():
        figures = [percent(row[p][kind]) for kind in ("probe", "knn") for p in ("mean", "grid")]
        spread = [f"{row['spread']['effective_rank']:.1f}", f"{row['spread']['relative_spread']:.2f}"]
        rows.append([name, f"{found['pretrain'][name]['steps']:,}", *figures, *spread])
    return {"columns": columns, "rows": rows}


def rules(found: dict[str, Any]) -> dict[str, Any]:
    rows = [[name, percent(row["probe"]), percent(row["knn"])] for name, row in found["rules"].items()]
    return {"columns": ["rule", "linear probe", "20 nearest neighbours"], "rows": rows}


def few(found: dict[str, Any]) -> dict[str, Any]:
    rows = []
    for name, seeds in found["labels"].items():
        for kind in ("fine-tuned", "head's probe", "from scratch"):
            if kind in seeds[0]:
                rows.append([f"{name}, {kind}", between([s[kind]["accuracy"] for s in seeds])])
        if "probe" in seeds[0]:
            rows.append([f"{name}, probe of the grid", between([s["probe"] for s in seeds])])
    rows += [[f"{name}, probe", between(row["few"])] for name, row in found["rules"].items()]
    return {"columns": ["few labels", "accuracy"], "rows": rows}


def speed(found: dict[str, Any]) -> dict[str, Any]:
    mae = found["speed"]["mae"]["ms_per_picture"]

    def memory(name: str) -> str:
        run = found["pretrain"].get(name)
        return "" if run is None else f"{run['expected_memory_mb']:.0f} MB"

    rows = [
        [name, f"{row['ms_per_picture']:.2f} ms", f"{row['ms_per_picture'] / mae:.2f}", memory(name)]
        for name, row in found["speed"].items()
    ]
    return {"columns": ["recipe's step", "per picture", "times mae's", "memory of the run, said before"], "rows": rows}


def sheet(path: Path, since: str) -> None:
    found, data = json.loads(path.read_text()), path.stem
    some = next(iter(found["probe"].values()))
    minutes = [row["cpu_minutes"] for row in found["pretrain"].values()]
    asked = max(1, round(min(minutes)))
    says = (
        f"{ABOUT[data]} Each recipe had the same processor time of one thread ({min(minutes):.1f} to "
        f"{max(minutes):.1f} minutes with reports, fp32). Probes and neighbours know "
        f"{some['labelled']:,} labels and are asked about {some['asked']:,} test pictures. "
        "Neighbours of rules are those of the best of four distances."
    )
    tables, labels = [recipes(found)], found.get("labels", {})
    if "rules" in found:
        tables.append(rules(found))
    if "fill" in found:
        columns = ["error of hidden pixels", *(f"{share} hidden" for share in next(iter(found["fill"].values())))]
        rows = [[name, *(f"{e['model']:.3f}" for e in row.values())] for name, row in found["fill"].items()]
        rule = [f"{e['mean picture']:.3f}" for e in next(iter(found["fill"].values())).values()]
        tables.append({"columns": columns, "rows": [*rows, ["mean training picture (rule)", *rule]]})
    if "all labels" in found:
        rows = [[name, percent(share)] for name, share in found["all labels"].items()]
        tables.append({"columns": ["all 60,000 labels", "linear probe"], "rows": rows})
    if labels:
        says += f" Few labels are drawn anew for {len(next(iter(labels.values())))} seeds; mean and 95 % interval."
        tables.append(few(found))
    if "speed" in found:
        says += " Steps were timed in turn."
        tables.append(speed(found))
    content = {
        "kind": "sheet",
        "name": f"images-recipes-{data}",
        "title": TITLES[data],
        "says": says,
        "command": f"python benchmarks/images_recipes.py --work DIR --data {data} --cpu-minutes {asked} "
        f"--most {some['labelled']}",
        "commit": since,
        "date": f"{date.today():%-d %B %Y}",
        "processor": "one thread of two Intel cores with AVX512-bf16 and no AMX, shared with other work",
        "seeds": "one of pretraining" + (f", {len(next(iter(labels.values())))} of labels" if labels else ""),
        "since": since,
        "sources": SOURCES,
        "tables": tables,
    }
    name = content["name"]
    (ROOT / f"docs/results/{name}.json").write_text(written(parsed(str(name), content)), encoding="utf-8")


def main() -> None:
    since, *files = sys.argv[1:]
    for file in files:
        sheet(Path(file), since)


if __name__ == "__main__":
    main()
