"""The sheets and the picture of `events_questions.py`: its results -> docs/results and docs/pictures.

python benchmarks/events_questions_sheet.py FOLDER SINCE

FOLDER: physionet.json, synthea.json, death.json (the shares of its labels may stand in several files, death*.json),
worth.json, cost.json, and objectives.json of `events_objectives.py`.
"""

from __future__ import annotations

import json
import sys
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from sheets import parsed, written

ROOT = Path(__file__).parents[1]
SOURCES = ["src/unmask/core", "src/unmask/encoder", "src/unmask/training", "src/unmask/modalities/events"]
NAMES = {"physionet": "PhysioNet-2012", "synthea": "Synthea"}
MODELS = ("ours, no label", "boosting, 100", "boosting, all", "last value", "prevalence")
SETTINGS = {
    "plain": "the recipe `ask`",
    "next": "half of the histories lose all that comes from some time on",
    "tokens": "values as ten codes of each code",
}
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


def death(found: list[dict[str, Any]], since: str) -> None:
    """What answers add, over folds, and fold by fold."""
    rows, by_fold, a = [], [], found[0]["arguments"]
    for share, models in [item for f in found for item in f["models"].items()]:
        for name, r in models.items():
            gain = between(r["gain"]) if "gain" in r else ""
            rows.append([f"{float(share):.0%}", name, f"{r['auroc']:.3f}", f"{r['auprc']:.3f}", gain, str(r["folds"])])
            if "gain" in r:
                by_fold.append([f"{float(share):.0%}", name, *(f"{g:+.3f}" for g in r["by_fold"])])
    says = (
        f"PhysioNet-2012; {a['subsets']} subsets of the labels per fold (of all labels one); {a['steps']} steps of "
        "pretraining with questions on the training patients of each fold; ten networks and 500 trees. Differences "
        "with 95 % intervals over test patients, paired. The settings were chosen on fold 0."
    )
    columns = ["labels", "read by the head", "AUROC", "AUPRC", "AUROC less that of summaries", "folds"]
    tables = [{"columns": columns, "rows": rows}]
    folds = [f"fold {n}" for n in found[0]["each"]]
    tables.append({"columns": ["labels", "less summaries, by fold", *folds], "rows": by_fold})
    title, seeds = "In-hospital death: what answers add", f"{a['subsets']} subsets per fold, one of the model"
    shares = ",".join(f["arguments"]["shares"] for f in found)
    command = f'python benchmarks/events_questions.py death --shares {shares} --variants "{a["variants"]}"'
    sheet("events-answers-death", title, says, command, seeds, since, tables)


def worth(found: dict[str, Any], since: str) -> None:
    """What each part of the head is worth."""
    rows = []
    for part, r in found["parts"].items():
        each = [[r[k], *r["intervals"][k]] for k in ("log_likelihood", "auroc")]
        kept = "left out" if part in found["left_out"] else "kept"
        rows.append([part, f"{each[0][0]:+.4f} ({each[0][1]:+.4f} to {each[0][2]:+.4f})", between(each[1]), kept])
    says = (
        f"PhysioNet-2012, in-hospital death, {found['points']} labels of fold 0: what the head loses without the part, "
        "in five folds of these patients, with 95 % intervals over them; the default head; 400 steps of pretraining."
    )
    columns = ["part", "log-likelihood, nats per point", "AUROC", ""]
    command = "python benchmarks/events_questions.py worth"
    tables = [{"columns": columns, "rows": rows}]
    sheet("events-worth", "What each part of the head is worth", says, command, "one", since, tables)


def objectives(found: dict[str, Any], since: str) -> None:
    """Objectives and settings of the pretraining beside each other."""
    rows, base = [], 0.0
    parts = [p for p in ("states", "answers") if all(f"summaries, {p}" in r["auroc"] for r in found.values())]
    for r in found.values():
        auroc = {name: float(np.mean(v)) for name, v in r["auroc"].items()}
        row = [SETTINGS.get(" ".join(r["changes"]), " ".join(r["changes"])), f"{r['seconds']:g}", str(r["steps"])]
        row += [f"{r['question_nats']:.3f}", f"{r['question_auroc']:.3f}", f"{auroc['states']:.3f}"]
        base = auroc["summaries"]
        rows.append(row + [f"{auroc[f'summaries, {part}'] - base:+.3f}" for part in parts])
    says = (
        "PhysioNet-2012, fold 0, one seed of the model: what each change of the pretraining gives for so many seconds "
        "of one processor. Questions: loss and AUROC of 32 drawn for each test patient. In-hospital death with 10 % of "
        f"the labels, mean of three subsets, judged on 1,700 other patients; summaries alone {base:.3f}. Differences "
        "of up to .003 are within what subsets differ by. Measured by a draft of the script, of the same settings."
    )
    columns = ["pretraining", "seconds", "steps", "questions, nats", "questions, AUROC", "states alone, AUROC"]
    columns += [f"{part} beside summaries" for part in parts]
    command = "python benchmarks/events_objectives.py CHANGE --seconds 60"
    tables = [{"columns": columns, "rows": rows}]
    sheet("events-objectives", "Other objectives and settings", says, command, "one", since, tables)


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
    shares = [read[name] for name in sorted(read, reverse=True) if name.startswith("death")]
    if shares:
        death(shares, since)
    if "worth" in read:
        worth(read["worth"], since)
    if "objectives" in read:
        objectives(read["objectives"], since)
    if "cost" in read:
        cost(read["cost"] | {"answers": both}, since)


if __name__ == "__main__":
    main()
