"""The nine GLUE tasks in their published file layout: train, score on dev with the task's own metrics, write test
files.

Wang et al. 2019. Folders and files are those of the official download; the header names the columns, CoLA has none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.modalities.text.tasks import scorers
from unmask.modalities.text.tasks.classify import names_of
from unmask.modalities.text.tasks.data import Item
from unmask.modalities.text.tasks.finetune import finetune, predict_items
from unmask.modalities.text.tasks.model import load
from unmask.modalities.text.tasks.row_files import read_rows
from unmask.writing import temporary_folder, written


@dataclass(frozen=True, kw_only=True)
class Glue:
    """A task's files, columns (their spellings, the published one first) and metrics (names as in `scorers`; the score
    is the mean of all). `names`: what the leaderboard calls labels that some copies of the files number: 0, 1, ..."""

    text: tuple[str, ...]
    text2: tuple[str, ...] = ()
    label: tuple[str, ...] = ("label",)
    metrics: tuple[str, ...] = ("accuracy",)
    dev: tuple[str, ...] = ("dev.tsv", "val.tsv")
    test: str = "test.tsv"
    out: str = ""
    problem: str = "single"
    names: tuple[str, ...] = ()


_PAIR: dict[str, Any] = {"text": ("sentence1",), "text2": ("sentence2",)}
TASKS = {
    "CoLA": Glue(text=("sentence", "text"), metrics=("matthews",), out="CoLA.tsv"),
    "SST-2": Glue(text=("sentence",), out="SST-2.tsv"),
    "MRPC": Glue(
        text=("#1 String", "sentence1"),
        text2=("#2 String", "sentence2"),
        label=("Quality", "label"),
        metrics=("accuracy", "f1"),
        out="MRPC.tsv",
    ),
    "STS-B": Glue(
        **_PAIR, label=("score", "label"), metrics=("pearson", "spearman"), out="STS-B.tsv", problem="regression"
    ),
    "QQP": Glue(
        text=("question1",), text2=("question2",), label=("is_duplicate",), metrics=("accuracy", "f1"), out="QQP.tsv"
    ),
    "MNLI": Glue(
        **_PAIR,
        label=("gold_label", "label"),
        dev=("dev_matched.tsv",),
        test="test_matched.tsv",
        out="MNLI-m.tsv",
        names=("entailment", "neutral", "contradiction"),
    ),
    "QNLI": Glue(text=("question",), text2=("sentence",), out="QNLI.tsv", names=("entailment", "not_entailment")),
    "RTE": Glue(**_PAIR, out="RTE.tsv", names=("entailment", "not_entailment")),
    "WNLI": Glue(**_PAIR, out="WNLI.tsv"),
}


def read_glue(path: Path, task: Glue, *, labelled: bool, say: Callable[[str], None] = lambda line: None) -> list[Item]:
    """Items of one file. Broken lines of labelled files are left out and said, for the published files hold some (QQP);
    test files must be whole, since the leaderboard counts their lines."""
    broken: list[str] = []
    rows = read_rows(path, broken=broken if labelled else None)
    if broken:
        say(f"{len(broken)} broken lines left out, the first {broken[0]}")
    names = [str(name) for name in rows[0][1]]
    found: dict[str, str] = {}
    for part, known in (("text", task.text), ("text2", task.text2), ("label", task.label if labelled else ())):
        there = [name for name in (*known, part) if name in names]
        if known and not there:
            raise UserError(
                f"{path}: columns {', '.join(names)[:80]}",
                hint=f"Expected {', '.join((*task.text, *task.text2, *task.label))}.",
            )
        if known:
            found[part] = there[0]
    return [Item(where=where, **{part: row[name] for part, name in found.items()}) for where, row in rows]


def find(folder: Path, task: Glue, name: str) -> tuple[Path, Path] | None:
    """(train, dev) of a task, None where its folder is absent."""
    home = folder / name
    if not home.is_dir():
        return None
    train = next((home / n for n in ("train.tsv", "train.csv") if (home / n).exists()), None)
    dev = next((home / n for n in (*task.dev, "dev.csv") if (home / n).exists()), None)
    for kind in ("train", "dev"):  # STS-B as its authors publish it
        found = sorted(home.glob(f"*{kind}*.csv"))
        if kind == "train" and train is None and found:
            train = found[0]
        if kind == "dev" and dev is None and found:
            dev = found[0]
    if train is None or dev is None:
        raise UserError(
            f"{home}: no {'train' if train is None else task.dev[0]} file", hint="Keep the published names."
        )
    return train, dev


def score(task: Glue, predictions: list[dict[str, Any]], items: list[Item]) -> dict[str, float]:
    """The task's published metrics."""
    if task.problem == "regression":
        guess, truth = [p["value"] for p in predictions], [float(str(i.label)) for i in items]
        return {"pearson": scorers.pearson(guess, truth), "spearman": scorers.spearman(guess, truth)}
    guesses, truths = [p["label"] for p in predictions], [names_of(i)[0] for i in items]
    known: dict[str, Callable[[], float]] = {
        "accuracy": lambda: scorers.accuracy(truths, guesses),
        "matthews": lambda: scorers.matthews(truths, guesses),
        "f1": lambda: scorers.f1(truths, guesses, average="binary", positive="1"),
    }
    return {name: known[name]() for name in task.metrics}


def evaluate_glue(
    model: str | Path,
    folder: str | Path,
    *,
    out: str | Path | None = None,
    say: Callable[[str], None] = lambda line: None,
    **settings: Any,
) -> dict[str, Any]:
    """Fine-tune on every task whose folder is there; scores on dev, test predictions in the leaderboard's format.

    The dev data takes no part in training: the last state is scored, not the best one on the data it is scored on.
    """
    root = Path(folder)
    places = {n: find(root, t, n) for n, t in TASKS.items()}
    present = {n: p for n, p in places.items() if p is not None}
    if not present:
        raise UserError(f"{root}: none of {', '.join(TASKS)}", hint="Give the folder that holds the tasks' folders.")
    results: dict[str, Any] = {}
    device, precision = "cpu", "fp32"
    for name, (train, dev) in present.items():
        glue = TASKS[name]
        held = read_glue(dev, glue, labelled=True, say=say)
        with temporary_folder() as scratch:
            place = Path(scratch) / "model"
            run = finetune(
                model,
                read_glue(train, glue, labelled=True, say=say),
                task="classify",
                out=place,
                **({"problem": glue.problem} | settings),
            )
            device, precision = run["device"], run["precision"]
            tuned = load(place, device=device, precision=precision)
            metrics = score(glue, predict_items(tuned, held), held)
            results[name] = {"metric": "+".join(metrics), "value": float(np.mean(list(metrics.values()))), **metrics}
            results[name]["seconds"] = run["train_seconds"]
            say(f"{name}: " + ", ".join(f"{k} {v:.4f}" for k, v in metrics.items()))
            files = {glue.out: glue.test} | ({"MNLI-mm.tsv": "test_mismatched.tsv"} if name == "MNLI" else {})
            for written, read in files.items():
                test = root / name / read
                if out is not None and test.exists():
                    items = read_glue(test, glue, labelled=False)
                    write_test(Path(out) / written, predict_items(tuned, items), glue)
    mean = float(np.mean([row["value"] for row in results.values()]))
    return {"tasks": results, "mean": mean, "device": device, "precision": precision}


def write_test(path: Path, predictions: list[dict[str, Any]], task: Glue) -> None:
    """index <tab> prediction, as the leaderboard takes it; STS-B within 0..5."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["index\tprediction"]
    for i, p in enumerate(predictions):
        label = str(p["label"])
        if task.names and label.isdigit() and int(label) < len(task.names):
            label = task.names[int(label)]
        value = f"{min(max(p['value'], 0.0), 5.0):.3f}" if task.problem == "regression" else label
        lines.append(f"{i}\t{value}")
    with written(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
