"""The sheets and the picture of `events_questions.py`: its results -> docs/results and docs/pictures.

python benchmarks/events_questions_sheet.py FOLDER SINCE     FOLDER: physionet.json, synthea.json, death.json, cost.json
"""

from __future__ import annotations

import json
import sys
from datetime import date
from pathlib import Path
from typing import Any

from unmask.verify.sheet import parsed, written

ROOT = Path(__file__).parents[1]
SOURCES = ["src/unmask/core", "src/unmask/encoder", "src/unmask/training", "src/unmask/modalities/events"]
NAMES = {"physionet": "PhysioNet-2012", "synthea": "Synthea"}
MODELS = ("ours, no label", "boosting, 100", "boosting, all", "last value", "prevalence")
SAID = {
    "boosting, 100": "boosting, 100 labels of the question",
    "boosting, all": "boosting, all labels of the question",
}


def sheet(name: str, title: str, says: str, command: str, seeds: str, since: str, tables: list[dict[str, Any]]) -> None:
    content = {"kind": "sheet", "name": name, "title": title, "says": says, "command": command, "commit": since}
    content |= {"date": date.today().isoformat(), "processor": "one busy core with AMX", "seeds": seeds, "since": since}
    content |= {"sources": SOURCES, "tables": tables}
    (ROOT / f"docs/results/{name}.json").write_text(written(parsed(name, content)), encoding="utf-8")


def between(three: list[float]) -> str:
    return f"{three[0]:.3f} ({three[1]:.3f} to {three[2]:.3f})"


def questions(found: dict[str, Any], since: str) -> None:
    """Zero-shot answers beside boosting, and whether they are calibrated."""
    columns, rows = ["model"], []
    for data in found:
        columns += [f"AUROC, {NAMES[data]}", f"ours less it, {NAMES[data]}", f"log loss, {NAMES[data]}"]
    for model in MODELS:
        row = [SAID.get(model, model)]
        for r in found.values():
            loss = r["results"][model].get("log_loss")
            gap = "" if model == MODELS[0] else between(r["paired"][model])
            row += [f"{r['results'][model]['auroc']:.3f}", gap, "" if loss is None else f"{loss:.3f}"]
        rows.append(row)
    drawn = ", ".join(f"{r['drawn']} of {NAMES[d]}" for d, r in found.items())
    says = (
        "Means over 100 questions per data set, with 95 % intervals over questions. Drawn until 100 could be judged "
        f"({drawn}): yes for 5 to 95 % of the training points, and ten of yes and of no at least among the held-out "
        "ones. A fifth of the patients are held out of everything; 400 steps of pretraining on the others. Boosting on "
        "100 labels is the mean of three subsets; the last value (or how long ago the code came) is a rule."
    )
    command = "python benchmarks/events_questions.py physionet, and synthea"
    tables = [{"columns": columns, "rows": rows}]
    title = "Questions that nobody trained for"
    sheet("events-questions", title, says, command, "one of the model, 100 questions", since, tables)
    tables = []
    for data, r in found.items():
        header = [f"{NAMES[data]}: tenth of the answers", "mean answer", "came true"]
        cells = [[str(i + 1), f"{p:.3f}", f"{y:.3f}"] for i, (p, y, _) in enumerate(r["calibration"])]
        tables.append({"columns": header, "rows": cells})
    says = "All answers of the table above to all held-out points, in tenths by their size."
    sheet("events-questions-calibration", "Calibration", says, command, "one of the model", since, tables)
    draw(found)


def draw(found: dict[str, Any]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 3.6))
    for data, r in found.items():
        axes[0].plot([b[0] for b in r["calibration"]], [b[1] for b in r["calibration"]], "o-", label=NAMES[data])
    axes[0].plot([0, 1], [0, 1], "--", color="grey")
    axes[0].set(xlabel="mean answer", ylabel="came true", title="Calibration, by tenths")
    axes[0].legend()
    for data, r in found.items():
        pairs = zip(r["each"]["boosting, 100"], r["each"]["ours, no label"], strict=True)
        axes[1].scatter(*zip(*((a["auroc"], b["auroc"]) for a, b in pairs), strict=True), s=12, label=NAMES[data])
    axes[1].plot([0.3, 1], [0.3, 1], "--", color="grey")
    axes[1].set(xlabel="AUROC, boosting on 100 labels", ylabel="AUROC, ours without a label", title="Each question")
    figure.tight_layout()
    figure.savefig(ROOT / "docs/pictures/questions.png", dpi=110)


def death(found: dict[str, Any], since: str) -> None:
    rows = []
    for name, r in found["models"].items():
        gain = "" if name == "summaries" else between(r["gain"])
        rows.append([name, f"{r['auroc']:.3f}", f"{r['auprc']:.3f}", gain])
    folds = next(iter(found["models"].values()))["folds"]
    a = found["arguments"]
    says = (
        f"PhysioNet-2012, {a['share']:.0%} of the labels, {a['subsets']} subsets per fold, {folds} of five folds "
        f"(numbers {a['folds']}); "
        f"{a['steps']} steps of pretraining with questions on the training patients of each fold; ten networks and 500 "
        "trees. Intervals (95 %) over test patients."
    )
    columns = ["read by the head", "AUROC", "AUPRC", "AUROC less that of summaries"]
    command = f"python benchmarks/events_questions.py death --folds {a['folds']}"
    title, seeds = "In-hospital death with few labels: what states and answers add", f"{a['subsets']} subsets per fold"
    sheet("events-answers-death", title, says, command, seeds, since, [{"columns": columns, "rows": rows}])


def cost(found: dict[str, Any], since: str) -> None:
    rows = [["answers per second", *(f"{r['answers_per_second']:,.0f}" for r in found["answers"].values())]]
    pairs = found["pretraining"]
    rows.append(
        ["pretraining with questions, over the masked events alone", *(f"{p['ratio']:.2f}" for p in pairs.values())]
    )
    says = "Processor seconds of one core; answers to 100 questions at each held-out point, histories read anew; "
    says += f"pretraining of {found['steps']} steps."
    columns = ["", *(NAMES[d] for d in pairs)]
    command = "python benchmarks/events_questions.py cost"
    sheet(
        "events-questions-cost",
        "What questions cost",
        says,
        command,
        "one run",
        since,
        [{"columns": columns, "rows": rows}],
    )


def main() -> None:
    folder, since = Path(sys.argv[1]), sys.argv[2]
    read = {p.stem: json.loads(p.read_text()) for p in folder.glob("*.json")}
    both = {name: read[name] for name in NAMES if name in read}
    if both:
        questions(both, since)
    if "death" in read:
        death(read["death"], since)
    if "cost" in read:
        cost(read["cost"] | {"answers": both}, since)


if __name__ == "__main__":
    main()
