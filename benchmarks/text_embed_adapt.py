"""`unmask adapt --for embedding`: retrieval and similarity before and after, on two domains held out, and what the
guard says of it without labels.

    python benchmarks/text_embed_adapt.py WORK --texts DIR --model MODEL [--domains papers,encyclopedia] [--seeds 0,1,2]
        [--queries 400] [--documents 600] [--set steps=100] [--out FILE.jsonl]

- papers: 13 300 abstracts of 1979 to learn from; others, each of which must be found by its title.
- encyclopedia: Wikipedia articles to learn from; the questions of XQuAD must find their paragraph among its 240 and
  paragraphs of other articles.
- similarity: STS-B (development part), Spearman's correlation with what people said; none of it is learnt from.

Each run gives three models: the start, the weights of the last step (what training without a guard gives), and the
folder that the guarded command wrote. Beside them TF-IDF, fitted on the texts learnt from and those searched, the rule
that needs no model. Intervals are of the difference of nDCG@10, per query paired, the mean of the seeds; queries are
resampled. DIR holds `corpora`, `qa` and `glue`.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from scipy.stats import spearmanr
from sklearn.feature_extraction.text import TfidfVectorizer

from unmask.evaluation.metrics import bootstrap_mean
from unmask.modalities.text.tasks.adapt_embedding import adapt_embedding, embedding_settings
from unmask.modalities.text.uses.model import load


@dataclass
class Domain:
    learnt: list[str]
    queries: list[str]
    documents: list[str]
    right: np.ndarray


def lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def papers(texts: Path, queries: int, documents: int) -> Domain:
    rows = lines(texts / "corpora" / "pubmed_1979.jsonl.gz")
    order = np.random.default_rng(0).permutation(len(rows))
    asked, rest = [rows[i] for i in order[:1500]], [rows[i] for i in order[1500:]]
    searched = [row["text"] for row in asked[:documents]]
    titles = [row["title"] for row in asked[:queries]]
    return Domain([row["text"] for row in rest], titles, searched, np.arange(len(titles)))


def encyclopedia(texts: Path, queries: int, documents: int) -> Domain:
    rows = lines(texts / "corpora" / "wikipedia_en_slice.jsonl.gz")
    file = json.loads((texts / "qa" / "xquad" / "xquad.en.json").read_text(encoding="utf-8"))
    found = [(p["context"], q["question"]) for d in file["data"] for p in d["paragraphs"] for q in p["qas"]]
    order = np.random.default_rng(0).permutation(len(found))
    searched = list(dict.fromkeys(context for context, _ in found))
    found = [found[i] for i in order[:queries]]
    titles = {d["title"].replace("_", " ").lower() for d in file["data"]}
    rows = [row for row in rows if str(row.get("title", "")).lower() not in titles]
    others = [row["text"][:800] for row in rows[::7][: documents - len(searched)]]
    learnt = [row["text"] for n, row in enumerate(rows) if n % 7][:13000]
    right = np.array([searched.index(context) for context, _ in found])
    return Domain(learnt, [question for _, question in found], searched + others, right)


DOMAINS = {"papers": papers, "encyclopedia": encyclopedia}


def gains(queries: Any, documents: Any, right: np.ndarray) -> np.ndarray:
    """nDCG@10 of each query, of which one document is right; ties go against it."""
    near = queries @ documents.T
    near = near.toarray() if hasattr(near, "toarray") else near
    own = near[np.arange(len(right)), right][:, None]
    rank = (near >= own).sum(1) - 1
    return np.where(rank < 10, 1 / np.log2(rank + 2), 0.0)


def judged(model: Any, domain: Domain, texts: Path) -> tuple[np.ndarray, float]:
    queries, documents = (model.embed(t, normalise=True) for t in (domain.queries, domain.documents))
    with (texts / "glue" / "STS-B" / "stsb-en-dev.csv").open(encoding="utf-8") as file:
        rows = list(csv.reader(file))
    a, b = (model.embed([row[i] for row in rows], normalise=True) for i in (0, 1))
    similar = spearmanr((a * b).sum(1), [float(row[2]) for row in rows]).statistic
    return gains(queries, documents, domain.right), float(similar)


def last_weights(model: Any, run: Path) -> Any:
    """The loaded start with the weights of the run's last step: what is kept without a guard."""
    newest = max((run / "checkpoints").glob("step-*"))
    state = load_file(newest / "model.safetensors")
    model.model.load_state_dict({k.removeprefix("masked."): v for k, v in state.items() if k.startswith("masked.")})
    model.__dict__.pop("padding_free", None)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--domains", default="papers,encyclopedia")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--queries", type=int, default=400)
    parser.add_argument("--documents", type=int, default=600)
    parser.add_argument("--set", action="append", default=[], help="key=value of the settings; none for the defaults")
    parser.add_argument("--out", type=Path, help="a .jsonl file; one line per run is added to it")
    args = parser.parse_args()
    torch.set_num_threads(1)
    given = dict(s.split("=", 1) for s in args.set)
    args.work.mkdir(parents=True, exist_ok=True)
    for name in args.domains.split(","):
        domain = DOMAINS[name](args.texts, args.queries, args.documents)
        vectoriser = TfidfVectorizer(sublinear_tf=True).fit(domain.learnt + domain.documents)
        rule = gains(vectoriser.transform(domain.queries), vectoriser.transform(domain.documents), domain.right)
        source = args.work / f"{name}.jsonl"
        source.write_text("".join(json.dumps({"text": t}) + "\n" for t in domain.learnt), encoding="utf-8")
        before, similar = known(args, name, domain)
        sides: dict[str, list[np.ndarray]] = {"last": [], "kept": []}
        for seed in map(int, args.seeds.split(",")):
            out = args.work / f"{name}-{Path(args.model).name}-{'-'.join(args.set) or 'default'}-{seed}"
            began = time.process_time()
            run = adapt_embedding(
                args.model, str(source), out, settings=embedding_settings({**given, "seed": seed}), console=False
            )
            took = time.process_time() - began
            gain, close = judged(last_weights(load(args.model), out), domain, args.texts)
            verdict = run.verdict
            kept = (before, similar) if verdict and not verdict.helped else judged(load(out), domain, args.texts)
            np.savez(out / "gains.npz", last=gain, kept=kept[0], before=before)  # to be paired with other seeds
            sides["last"].append(gain)
            sides["kept"].append(kept[0])
            found = {
                "domain": name, "model": Path(args.model).name, "settings": given, "seed": seed,
                "queries": len(before), "documents": len(domain.documents), "learnt": len(domain.learnt),
                "tfidf": float(rule.mean()), "before": float(before.mean()), "similar_before": similar,
                "last": float(gain.mean()), "similar_last": close, "kept": float(kept[0].mean()),
                "similar_kept": kept[1], "guard": verdict and verdict.to_dict(), "steps": run.run.result.steps,
                "kept_step": run.run.result.kept_step, "stopped": run.run.result.stopped,
                "precision": run.run.result.precision, "processor_seconds": took,
            } | {
                f"gain_{side}": paired(values, before) for side, values in sides.items()
            }  # fmt: skip
            print(json.dumps(found), flush=True)
            if args.out:
                with args.out.open("a") as file:
                    file.write(json.dumps(found) + "\n")


def known(args: Any, name: str, domain: Domain) -> tuple[np.ndarray, float]:
    """`judged` of the start, worked out once per folder of work."""
    path = args.work / f"{name}-{Path(args.model).name}-{args.queries}-{args.documents}.npz"
    if not path.exists():
        gain, similar = judged(load(args.model), domain, args.texts)
        np.savez(path, gain=gain, similar=similar)
    there = np.load(path)
    return there["gain"], float(there["similar"])


def paired(after: list[np.ndarray], before: np.ndarray) -> dict[str, Any]:
    """The mean gain of the seeds so far, with its interval."""
    return bootstrap_mean(np.mean(after, 0) - before, np.arange(len(before))).to_dict()


if __name__ == "__main__":
    main()
