"""When does `unmask adapt` pay? Tasks before and after, and what was foreseen, for starts, corpora and tasks.

    python benchmarks/text_adapt_pays.py WORK --texts DIR --model MODEL [--corpora papers,encyclopedia,papers-300]
        [--seeds 0,1] [--steps 100] --out FILE.jsonl

- corpora: abstracts of 1979; Wikipedia articles; 300 of the abstracts.
- tasks, of frozen features (a logistic regression, its strength chosen on training rows): roles of sections of recent
  abstracts (500 labels), words of disease names (NCBI-disease, 300 sentences), SST-2 (500 labels), which is no domain
  here. Judged on 1 000 sections, 300 sentences and the 872 of the development part; accuracy, of words that of whether
  each is part of a name (balanced over both kinds).
- rules beside: TF-IDF with the same regression; of words, whether the word was a name in training.

Gains are paired per held-out row; intervals resample rows (of words, sentences). DIR holds `corpora`, `classification`,
`ner` and `glue`.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from unmask.evaluation.metrics import bootstrap_mean
from unmask.modalities.text.network.adapt import adapt, adapt_settings
from unmask.modalities.text.tasks.retrieval import token_features
from unmask.modalities.text.uses.model import load

Rows = tuple[list[str], list[Any]]


def lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def roles(texts: Path) -> tuple[Rows, Rows]:
    folder = texts / "classification" / "pubmed_section_roles"
    parts = [lines(folder / f"{name}.jsonl.gz") for name in ("train", "test")]
    made = [([row["text"] for row in rows], [row["label"] for row in rows]) for rows in parts]
    return made[0], (made[1][0][:1000], made[1][1][:1000])


def sentiment(texts: Path) -> tuple[Rows, Rows]:
    made = []
    for name in ("train", "dev"):
        with (texts / "glue" / "SST-2" / f"{name}.tsv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        made.append(([row["sentence"] for row in rows], [row["label"] for row in rows]))
    return made[0], made[1]


def diseases(texts: Path) -> tuple[Rows, Rows]:
    made = []
    for name in ("train", "test"):
        blocks = (texts / "ner" / "NCBI-disease" / f"{name}.tsv").read_text(encoding="utf-8").strip().split("\n\n")
        rows = [[line.split("\t") for line in block.split("\n")] for block in blocks]
        made.append(([" ".join(w for w, _ in row) for row in rows], [[t != "O" for _, t in row] for row in rows]))
    return made[0], (made[1][0][:300], made[1][1][:300])


TASKS: dict[str, tuple[Callable[[Path], tuple[Rows, Rows]], int]] = {
    "roles": (roles, 500),
    "diseases": (diseases, 300),
    "SST-2": (sentiment, 500),
}


def chosen(rows: Rows, count: int, seed: int) -> Rows:
    picked = np.random.default_rng(seed).permutation(len(rows[0]))[:count]
    return [rows[0][i] for i in picked], [rows[1][i] for i in picked]


def words_of(model: Any, texts: list[str]) -> list[np.ndarray]:
    """For each text the mean state of each of its words, which blanks part."""
    found = []
    for text, features in zip(texts, token_features(model, texts), strict=True):
        word = np.cumsum([c == " " for c in text])
        place = np.array([word[start] for start in features["offsets"][:, 0]], int)
        states = np.zeros((text.count(" ") + 1, features["states"].shape[-1]))
        np.add.at(states, place, features["states"])
        found.append(states / np.maximum(np.bincount(place, minlength=len(states)), 1)[:, None])
    return found


def right(task: str, model: Any, train: Rows, test: Rows) -> tuple[np.ndarray, np.ndarray]:
    """(what each held-out row earns, what it counts) by a logistic regression on frozen features."""
    if task == "diseases":
        x, y = np.concatenate(words_of(model, train[0])), np.concatenate(train[1])
        probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=300, class_weight="balanced"))
        return balanced([probe.fit(x, y).predict(w) if i == 0 else probe.predict(w)
                         for i, w in enumerate(words_of(model, test[0]))], test[1])  # fmt: skip
    strengths = GridSearchCV(LogisticRegression(max_iter=300), {"C": [1e-4, 1e-3, 1e-2, 1e-1]}, cv=5)
    probe = make_pipeline(StandardScaler(), strengths)
    said = probe.fit(model.embed(train[0]), train[1]).predict(model.embed(test[0]))
    return (said == np.array(test[1])).astype(float), np.ones(len(said))


def balanced(said: list[Any], truth: list[list[bool]]) -> tuple[np.ndarray, np.ndarray]:
    """Of each sentence the right words, weighted so that both kinds count alike."""
    share = np.mean(np.concatenate(truth))
    weights = [np.where(t, 0.5 / share, 0.5 / (1 - share)) for t in truth]
    earned = [((np.asarray(s) == t) * w).sum() for s, t, w in zip(said, truth, weights, strict=True)]
    counts = np.array([w.sum() for w in weights])
    return np.array(earned) / counts, counts


def rule(task: str, train: Rows, test: Rows) -> float:
    if task == "diseases":
        seen: dict[str, list[bool]] = {}
        for text, tags in zip(*train, strict=True):
            for word, tag in zip(text.split(" "), tags, strict=True):
                seen.setdefault(word.lower(), []).append(tag)
        said = [[np.mean(seen.get(w.lower(), [False])) > 0.5 for w in text.split(" ")] for text in test[0]]
        return float(np.average(*balanced(said, test[1])[:1], weights=balanced(said, test[1])[1]))
    probe = make_pipeline(TfidfVectorizer(sublinear_tf=True), LogisticRegression(C=10, max_iter=300))
    return float(probe.fit(*train).score(*test))


def corpus(name: str, texts: Path, work: Path) -> str:
    path = work / f"{name}.jsonl"
    if not path.exists():
        if name.startswith("papers"):
            found = [row["text"] for row in lines(texts / "corpora" / "pubmed_1979.jsonl.gz")]
            found = [found[i] for i in np.random.default_rng(0).permutation(len(found))]
            found = found[:300] if name == "papers-300" else found
        else:
            found = [row["text"] for row in lines(texts / "corpora" / "wikipedia_en_slice.jsonl.gz")[::3]]
        path.write_text("".join(json.dumps({"text": t}) + "\n" for t in found), encoding="utf-8")
    return str(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--corpora", default="papers,encyclopedia,papers-300")
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--set", action="append", default=[], help="key=value of the settings of adapt")
    parser.add_argument("--out", type=Path, required=True, help="a .jsonl file; one line per run is added to it")
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.work.mkdir(parents=True, exist_ok=True)
    general = args.work / "general.txt"
    with gzip.open(args.texts / "corpora" / "wikitext2" / "wiki.valid.raw.gz", "rt", encoding="utf-8") as file:
        general.write_text("\n\n".join(line.strip() for line in file if len(line) > 200)[:150_000], encoding="utf-8")
    tasks = {name: make(args.texts) for name, (make, _) in TASKS.items()}
    seeds = [int(seed) for seed in args.seeds.split(",")]
    parts = {(name, s): chosen(rows[0], TASKS[name][1], s) for name, rows in tasks.items() for s in seeds}
    start = load(args.model)
    before = {key: right(key[0], start, part, tasks[key[0]][1]) for key, part in parts.items()}
    rules = {name: np.mean([rule(name, parts[name, s], tasks[name][1]) for s in seeds]) for name in tasks}
    for name in args.corpora.split(","):
        source = corpus(name, args.texts, args.work)
        gains: dict[str, list[np.ndarray]] = {task: [] for task in tasks}
        for seed in seeds:
            out = args.work / f"{Path(args.model).name}-{name}-{seed}"
            given = dict(s.split("=", 1) for s in args.set) | {"seed": seed, "steps": args.steps, "holdout": 0.05}
            began = time.process_time()
            run = adapt(
                args.model, source, out, settings=adapt_settings(given, args.model), general=str(general), console=False
            )
            took = time.process_time() - began
            model = load(out)
            found: dict[str, Any] = {
                "model": Path(args.model).name, "corpus": name, "seed": seed, "settings": given,
                "before": run.before, "after": run.after,
                "steps": run.run.result.steps, "kept_step": run.run.result.kept_step,
                "stopped": run.run.result.stopped, "precision": run.run.result.precision,
                "processor_seconds": took, "tasks": {},
            }  # fmt: skip
            for task, rows in tasks.items():
                was, counts = before[task, seed]
                now, _ = right(task, model, parts[task, seed], rows[1])
                gains[task].append(now - was)
                mean = np.mean(gains[task], 0)
                found["tasks"][task] = {
                    "before": float(np.average(was, weights=counts)), "after": float(np.average(now, weights=counts)),
                    "rule": float(rules[task]),
                    "gain": bootstrap_mean(mean, np.arange(len(mean)), counts).to_dict(),
                }  # fmt: skip
            print(json.dumps(found), flush=True)
            with args.out.open("a") as file:
                file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
