"""The learning rate that `unmask adapt` takes, and replay: loss on the domain and on general text, after some steps.

    python benchmarks/text_adapt_rate.py WORK --texts DIR --model MODEL [--steps 60] [--runs 1e-4:0,5e-4:0,5e-4:0.2]

A run is RATE:REPLAY. Learnt from are abstracts of 1979 and, for replay, paragraphs of WikiText-2's training part;
measured are 300 other abstracts and 300 paragraphs of its validation part, 15 % of their tokens hidden behind [MASK].
No guard is set: what each rate forgets is to be seen. DIR holds `corpora`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import shutil
import time
from pathlib import Path

import numpy as np
import torch

from unmask.modalities.text.network.adapt import adapt, adapt_settings
from unmask.modalities.text.uses.evaluate import evaluate
from unmask.modalities.text.uses.model import load

JUDGED = 300
REPLAYED = 8000


def paragraphs(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [line.strip() for line in file if len(line) > 200]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--runs", default="1e-4:0,5e-4:0,5e-4:0.2")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.work.mkdir(parents=True, exist_ok=True)
    corpora = args.texts / "corpora"
    with gzip.open(corpora / "pubmed_1979.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line)["text"] for line in file]
    rows = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
    domain, general = args.work / "papers.jsonl", args.work / "general.txt"
    domain.write_text("".join(json.dumps({"text": t}) + "\n" for t in rows[JUDGED:]), encoding="utf-8")
    general.write_text("\n\n".join(paragraphs(corpora / "wikitext2" / "wiki.train.raw.gz")[:REPLAYED]), "utf-8")
    judged = rows[:JUDGED], paragraphs(corpora / "wikitext2" / "wiki.valid.raw.gz")[:JUDGED]

    def losses(model: str | Path) -> dict[str, float]:
        loaded = load(model)
        found = (evaluate(loaded, texts, ratio=0.15)["loss"] for texts in judged)
        return dict(zip(("domain", "general"), found, strict=True))

    print(json.dumps({"run": "start", **losses(args.model)}), flush=True)
    for run in args.runs.split(","):
        rate, replay = map(float, run.split(":"))
        out = args.work / f"{run}-{args.steps}-{args.seed}"
        shutil.rmtree(out, ignore_errors=True)
        given = {"learning_rate": rate, "steps": args.steps, "batch_slots": 4096, "seed": args.seed, "patience": None}
        began = time.process_time()
        adapt(
            args.model, str(domain), out, settings=adapt_settings({**given, "holdout": 0.02}), replay=replay,
            general=str(general) if replay else None, most_forgetting=math.inf, console=False,
        )  # fmt: skip
        took = time.process_time() - began
        print(json.dumps({"run": run, **losses(out), "processor_seconds": took}), flush=True)


if __name__ == "__main__":
    main()
