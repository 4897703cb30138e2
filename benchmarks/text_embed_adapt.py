"""`unmask adapt --for embedding`, as it comes: retrieval and similarity before and after, on two domains held out.

    python benchmarks/text_embed_adapt.py WORK --texts DIR --model MODEL [--domains papers,encyclopedia] [--seeds 0,1,2]

- papers: 13 300 abstracts of 1979 to learn from; 1 500 others, of which each must be found by its title among 4 000.
- encyclopedia: Wikipedia articles to learn from; the 1 190 questions of XQuAD must find their paragraph among its 240
  and 2 000 of other articles.
- similarity: STS-B (development part), Spearman's correlation with what people said; none of it is learnt from.

Beside them TF-IDF fitted on the texts learnt from, the rule that needs no model. Intervals are of the difference of
nDCG@10, per query paired, the mean of the seeds; queries are resampled. DIR holds `corpora`, `qa` and `glue`.
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
from scipy.stats import spearmanr
from sklearn.feature_extraction.text import TfidfVectorizer

from unmask.evaluation.metrics import bootstrap_mean
from unmask.modalities.text.adapt_embedding import adapt_embedding, embedding_settings
from unmask.modalities.text.model import load


@dataclass
class Domain:
    learnt: list[str]
    queries: list[str]
    documents: list[str]
    right: np.ndarray


def lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def papers(texts: Path) -> Domain:
    rows = lines(texts / "corpora" / "pubmed_1979.jsonl.gz")
    order = np.random.default_rng(0).permutation(len(rows))
    asked, rest = [rows[i] for i in order[:1500]], [rows[i] for i in order[1500:]]
    documents = [row["text"] for row in asked + rest[:2500]]
    return Domain([row["text"] for row in rest], [row["title"] for row in asked], documents, np.arange(1500))


def encyclopedia(texts: Path) -> Domain:
    rows = lines(texts / "corpora" / "wikipedia_en_slice.jsonl.gz")
    file = json.loads((texts / "qa" / "xquad" / "xquad.en.json").read_text(encoding="utf-8"))
    found = [(p["context"], q["question"]) for d in file["data"] for p in d["paragraphs"] for q in p["qas"]]
    documents = list(dict.fromkeys(context for context, _ in found))
    titles = {d["title"].replace("_", " ").lower() for d in file["data"]}
    rows = [row for row in rows if str(row.get("title", "")).lower() not in titles]
    others = [row["text"][:800] for row in rows[::7][:2000]]
    learnt = [row["text"] for n, row in enumerate(rows) if n % 7][:13000]
    right = np.array([documents.index(context) for context, _ in found])
    return Domain(learnt, [question for _, question in found], documents + others, right)


DOMAINS = {"papers": papers, "encyclopedia": encyclopedia}


def gains(queries: Any, documents: Any, right: np.ndarray) -> np.ndarray:
    """nDCG@10 of each query, of which one document is right; ties go against it."""
    near = queries @ documents.T
    near = near.toarray() if hasattr(near, "toarray") else near
    own = near[np.arange(len(right)), right][:, None]
    rank = (near >= own).sum(1) - 1
    return np.where(rank < 10, 1 / np.log2(rank + 2), 0.0)


def judged(model: Any, domain: Domain, texts: Path) -> tuple[np.ndarray, float]:
    vectors = [model.embed(t, normalise=True) for t in (domain.queries, domain.documents)]
    with (texts / "glue" / "STS-B" / "stsb-en-dev.csv").open(encoding="utf-8") as file:
        rows = list(csv.reader(file))
    a, b = (model.embed([row[i] for row in rows], normalise=True) for i in (0, 1))
    similar = spearmanr((a * b).sum(1), [float(row[2]) for row in rows]).statistic
    return gains(*vectors, domain.right), float(similar)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--domains", default="papers,encyclopedia")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--set", action="append", default=[], help="key=value of the settings; none for the defaults")
    parser.add_argument("--out", type=Path, help="a .jsonl file; one line per domain is added to it")
    args = parser.parse_args()
    torch.set_num_threads(1)
    given = {k: json.loads(v) if v[:1] in "[0123456789" else v for k, v in (s.split("=", 1) for s in args.set)}
    for name in args.domains.split(","):
        domain = DOMAINS[name](args.texts)
        vectoriser = TfidfVectorizer(sublinear_tf=True).fit(domain.learnt)
        rule = gains(vectoriser.transform(domain.queries), vectoriser.transform(domain.documents), domain.right)
        source = args.work / f"{name}.jsonl"
        args.work.mkdir(parents=True, exist_ok=True)
        source.write_text("".join(json.dumps({"text": t}) + "\n" for t in domain.learnt), encoding="utf-8")
        before, similar = judged(load(args.model), domain, args.texts)
        found: dict[str, Any] = {
            "domain": name, "model": args.model, "settings": given, "queries": len(before),
            "documents": len(domain.documents), "learnt": len(domain.learnt), "tfidf": float(rule.mean()),
            "before": float(before.mean()), "similarity_before": similar, "after": [], "similarity_after": [],
            "processor_seconds": [], "runs": [],
        }  # fmt: skip
        after = []
        for seed in map(int, args.seeds.split(",")):
            out = args.work / f"{name}-{Path(args.model).name}-{'-'.join(args.set) or 'default'}-{seed}"
            began = time.process_time()
            run = adapt_embedding(
                args.model, str(source), out, settings=embedding_settings({**given, "seed": seed}), console=False
            )
            found["processor_seconds"].append(time.process_time() - began)
            found["runs"].append({"steps": run.to_dict().get("steps"), "before": run.before, "after": run.after})
            gain, close = judged(load(out), domain, args.texts)
            after.append(gain)
            found["after"].append(float(gain.mean()))
            found["similarity_after"].append(close)
            print(name, seed, found["before"], found["after"], similar, found["similarity_after"], flush=True)
        found["gain"] = bootstrap_mean(np.mean(after, 0) - before, np.arange(len(before))).to_dict()
        print(json.dumps(found), flush=True)
        if args.out:
            with args.out.open("a") as file:
                file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
