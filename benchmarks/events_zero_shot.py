"""Published tasks without a label: `unmask ask` at the points of ACES and MEDS-DEV tasks, beside gradient boosting that
was trained on labels of the task.

    python benchmarks/events_zero_shot.py NAME=MEDS=PREDICATES.yaml[=UNTIL] ... --tasks TASK.yaml ... [--steps 300]
        [--set key=value] [--keep DIR] [--cases] [--sheet]

A third of the patients are held out of the pretraining and of boosting, and judged on. A task that is a question is
asked as it is. Of another the reason that `ask` gives is printed, and the nearest question is asked at its points: the
codes of its label, within the time from the point to the end of its window (30 days where an event ends it).
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from events_questions import boosted, splittable
from sheets import Table, write_sheet
from unmask.errors import UserError
from unmask.modalities.events.outcome.features import summarise, usual
from unmask.modalities.events.outcome.scoring import figures
from unmask.modalities.events.questions.query_task import _canonical, _items, question_of
from unmask.modalities.events.recipes import RECIPES, EventSettings, with_overrides
from unmask.modalities.events.records.aces import SECOND, Task, read_task
from unmask.modalities.events.records.meds import Labels, read_meds
from unmask.modalities.events.records.windows import evaluate_task
from unmask.modalities.events.uses.model import load
from unmask.modalities.events.uses.pretrain import pretrain
from unmask.modalities.events.uses.query_answers import ask, check_questions
from unmask.training.settings import parse_set

LABELS, DRAWS = 100, 5
FEWEST, PATIENTS = 10, 5
"""Held-out points with the outcome, and without; held-out patients with it."""
MOST = 4000
"""Points without the outcome that are judged, and that are trained on, at most, drawn at random; those with it all."""


def nearest(task: Task, folder: Any, histories: Any) -> str:
    """The question that is near to a task that is none, without values that training did not have."""
    window = task.labelled
    assert window is not None
    assert window.label is not None
    parts = task.plain_parts(window.label)
    items = list(dict.fromkeys(i for p in parts for i in _items(p, histories.vocabulary, [])))
    begin = _canonical(task, f"{task.indexed.name}.{task.indexed.index}")
    end = _canonical(task, f"{window.name}.end")
    hours = (end[1] - begin[1]) / SECOND / 3600 if end[0] == begin[0] else 24 * 30
    asked = []
    for item in items:
        with contextlib.suppress(UserError):
            check_questions(folder, histories, [f"{item} within {hours:g} hours"])
            asked.append(item)
    items = asked or items
    return f"{'any of ' if len(items) > 1 else ''}{', '.join(items)} within {hours:g} hours"


def judged(model: Any, events: Any, histories: Any, held: np.ndarray, task: Task) -> dict[str, Any]:
    """What `ask` and boosting reach at the points of one task; without figures where too few are held out."""
    found = evaluate_task(task, events)
    test, y, rng = np.isin(found.subject, held), found.value.astype(np.int64), np.random.default_rng(0)
    row: dict[str, Any] = {"points": len(y), "prevalence": float(y.mean()), "held out": int(y[test].sum())}
    row["patients"] = len(np.unique(found.subject[test & (y == 1)]))
    try:
        question = question_of(task, found, histories.vocabulary)
        row["why"] = ""
    except UserError as error:
        row["why"] = str(error).split("no question: ")[1].split("\n")[0]
        question = nearest(task, model.folder, histories)
    row["question"] = question
    if min(y[test].sum(), (1 - y[test]).sum()) < FEWEST or row["patients"] < PATIENTS:
        return row | {"few": "too few to judge"}
    points = Labels(subject=found.subject, time=found.time)
    some = thinned(np.flatnonzero(test), y, rng)
    try:
        told = ask(model.folder, histories, [question], points.take(some))["probability"].to_numpy()
    except UserError as error:
        row["why"] += f"; {str(error).splitlines()[0].split(': ')[-1]}"
        return row | {"few": "not asked"}
    some, told = some[np.isfinite(told)], told[np.isfinite(told)]
    row["ask"] = figures(y[some], told, found.subject[some])
    row["mean"] = float(told.mean()), float(y[some].mean())
    training = np.flatnonzero(~test)
    drawn = [np.random.default_rng([d, 1]).permutation(training)[:LABELS] for d in range(DRAWS)]
    drawn.append(thinned(training, y, rng))
    needed = np.unique(np.concatenate([some, *drawn]))
    x, names = summarise(histories, points.take(needed))
    x, row["boosting"] = x[:, usual(names)], []
    for number, labelled in enumerate(drawn):
        seen, varies = x[np.searchsorted(needed, labelled)], np.zeros(x.shape[1], bool)
        if len(np.unique(y[labelled])) == 2:
            varies = splittable(seen)
        if not varies.any():
            row["boosting"].append(0.5)
            continue
        p = boosted(seen[:, varies], y[labelled], x[np.searchsorted(needed, some)][:, varies], number)
        row["boosting"].append(float(roc_auc_score(y[some], p)))
    return row


def thinned(points: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Points with the outcome, and `MOST` of the others."""
    no = rng.permutation(points[y[points] == 0])[:MOST]
    return np.sort(np.r_[points[y[points] == 1], no])


def sheet_row(name: str, task: str, row: dict[str, Any]) -> tuple[str, ...]:
    """A row of the sheet."""
    shown = (
        name,
        task,
        f"{row['points']:,}",
        f"{row['prevalence']:.1%}",
        f"{row['held out']:,} of {row['patients']:,}",
    )
    if "few" in row:
        return (*shown, row["few"], "", "")
    low, high = row["ask"]["intervals"]["auroc"]
    few, every = row["boosting"][:DRAWS], row["boosting"][DRAWS]
    near = " (near)" if row["why"] else ""
    return (
        *shown,
        f"{row['ask']['auroc']:.3f} ({low:.3f} to {high:.3f}){near}",
        f"{np.mean(few):.3f} ({min(few):.3f} to {max(few):.3f})",
        f"{every:.3f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", help="NAME=MEDS=PREDICATES.yaml or NAME=MEDS=PREDICATES.yaml=UNTIL")
    parser.add_argument("--tasks", nargs="+", required=True)
    parser.add_argument("--steps", type=int, default=300, help="of pretraining, per data set")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--keep", help="folder for the models")
    parser.add_argument("--sheet", action="store_true", help="write docs/results/events-zero-shot.json")
    parser.add_argument("--processor", default="one of two shared cores")
    a = parser.parse_args()
    rows, why = [], []
    for words in a.data:
        name, meds, predicates, *until = words.split("=")
        events, order = read_meds(meds), None
        order = np.random.default_rng(7).permutation(len(events))
        held, learnt = np.sort(order[: len(order) // 3]), np.sort(order[len(order) // 3 :])
        with tempfile.TemporaryDirectory() as folder:
            out = f"{a.keep or folder}/{name}"
            if not (Path(out) / "model.safetensors").exists():
                given = {**RECIPES["ask"], "steps": a.steps, "precision": "fp32", **parse_set(a.set)}
                given |= {"until": until[0]} if until else {}
                spent = time.process_time()
                pretrain(events, out, settings=with_overrides(EventSettings(), given), subjects=learnt, console=False)
                print(f"{name}: pretraining took {time.process_time() - spent:.0f} s of a processor", flush=True)
            model = load(out, precision="fp32")
            histories = model.histories(events)
            for path in a.tasks:
                task = Path(path).stem.replace("_", " ")
                try:
                    row = judged(model, events, histories, held, read_task(path, predicates))
                except UserError as error:
                    print(f"{name}, {task}: {str(error).splitlines()[0]}", file=sys.stderr)
                    continue
                rows.append(sheet_row(name, task, row))
                print(*rows[-1], row.get("mean"), row["question"], row["why"], sep=" | ", flush=True)
                if row["why"]:
                    question = row["question"].replace('"', "")
                    if question.count(",") > 3:
                        question = f"any of {question.count(',') + 1} codes within {question.rsplit(' within ')[-1]}"
                    why.append((name, task, row["why"], question if row["patients"] >= PATIENTS else ""))
    if a.sheet:
        columns = ("data", "task", "points", "true", "held out, true, of patients", "ask, no label: AUROC")
        write_sheet(
            "events-zero-shot",
            Table(columns=(*columns, f"boosting on {LABELS} labels", "boosting on all"), rows=tuple(rows)),
            Table(columns=("data", "task", "why it is no question", "asked instead"), rows=tuple(why)),
            sources="src/unmask/modalities/events/questions",
            title="Published tasks without a label",
            says="A third of the patients held out of everything. AUROC with 95 % intervals over patients; of boosting "
            f"(on the summaries of the outcome head) the mean over {DRAWS} draws of {LABELS} labelled points, and the "
            "least and the highest. Prevalence has .5. (near): the task is no question, and the nearest one was asked "
            f"at its points, see below. Too few to judge: fewer than {FEWEST} held-out points of either outcome, or "
            f"{PATIENTS} patients with it. "
            f"Of more than {MOST:,} points without the outcome so many were drawn.",
            command="python benchmarks/events_zero_shot.py NAME=MEDS=PREDICATES.yaml=UNTIL --tasks TASK.yaml --sheet",
            processor=a.processor,
            seeds=f"one of the model and of the split; {DRAWS} draws of the {LABELS} labels",
        )


if __name__ == "__main__":
    main()
