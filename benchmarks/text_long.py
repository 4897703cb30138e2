"""Question answering on long documents: time and peak memory of finetune, predict and evaluate, beside the Trainer on
the same windows.

    python benchmarks/text_long.py --model MINILM      # 1 000 questions on 110 documents of 6 000 words: hours
    python benchmarks/text_long.py --model MINILM --questions 30 --documents 6                            # an hour
    python benchmarks/text_long.py --model MINILM --questions 20 --documents 4 --steps 2 --skip trainer   # minutes

Documents are paragraphs of XQuAD and PolicyQA (about 110 000 words in all), drawn by the seed and joined until they
have as many words as asked; a paragraph is in a document once, and in several documents. Questions are those of the
paragraphs, their offsets moved along. Every command runs in a process of its own; the peak is of its resident memory,
as the kernel counts it. --steps limits the steps of both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from text_defaults import SHARED, trainer

PARTS = ("finetune", "predict", "evaluate", "trainer")


def paragraphs() -> list[dict]:
    """All paragraphs of the two sets that have questions."""
    files = (
        SHARED / "qa" / "xquad" / "xquad.en.json",
        *(SHARED / "qa" / "policyqa" / f"{p}.json" for p in ("dev", "test")),
    )
    return [
        p
        for file in files
        for article in json.loads(file.read_text())["data"]
        for p in article["paragraphs"]
        if p["qas"]
    ]


def joined(rng: np.random.Generator, pool: list[dict], words: int) -> dict:
    """Paragraphs joined by blank lines until there are `words` words, as one paragraph of SQuAD's format."""
    text, asked, count = "", [], 0
    for number in rng.permutation(len(pool)):
        here = pool[number]
        for q in here["qas"]:
            answers = [{**a, "answer_start": a["answer_start"] + len(text)} for a in q.get("answers", ())]
            asked.append({"question": q["question"], "answers": answers})
        text += here["context"] + "\n\n"
        count += len(here["context"].split())
        if count >= words:
            break
    return {"context": text.rstrip(), "qas": asked}


def write(path: Path, documents: int, questions: int, words: int, seed: int) -> None:
    rng, pool = np.random.default_rng(seed), paragraphs()
    made, number = [], 0
    for i in range(documents):
        document = joined(rng, pool, words)
        share = questions * (i + 1) // documents - questions * i // documents
        chosen = [document["qas"][k] for k in rng.permutation(len(document["qas"]))[:share]]
        document["qas"] = [{**q, "id": str(number := number + 1)} for q in chosen]
        made.append({"paragraphs": [document]})
    path.write_text(json.dumps({"version": "1.1", "data": made}))


def measured(name: str, command: list[str]) -> dict:
    """Run a command: seconds, processor seconds and peak memory of it and what it starts."""
    began = time.monotonic()
    child = subprocess.Popen(command)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return {
        "part": name,
        "seconds": round(time.monotonic() - began, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_gib": round(used.ru_maxrss / 2**20, 3),
        "exit": child.returncode,
    }


def train_theirs(arguments: argparse.Namespace) -> None:
    """The Trainer as it comes, on the windows that ours are trained on; in a process of its own."""
    from unmask.modalities.text.network.folder import load_folder
    from unmask.modalities.text.tasks.answer import as_questions
    from unmask.modalities.text.tasks.encoding import ExampleMaker
    from unmask.modalities.text.tasks.registry import task_class
    from unmask.modalities.text.tasks.settings import TaskSettings

    items = as_questions(arguments.data, labelled=True)
    text = load_folder(arguments.model)
    encoder = ExampleMaker(text.tokenizer, slots=min(512, text.model.encoder.config.longest or 512), types=True)
    trainer(arguments, task_class("answer").from_items(encoder, items, TaskSettings()), items, items[:1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of an encoder, such as all-MiniLM-L6-v2")
    parser.add_argument("--documents", type=int, default=110)
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--words", type=int, default=6000)
    parser.add_argument("--steps", type=int, help="of ours (32 windows each) and of the Trainer (8 windows each)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip", nargs="+", default=[], choices=PARTS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.data:
        train_theirs(arguments)
        return
    unmask = [sys.executable, "-m", "unmask"]
    with tempfile.TemporaryDirectory() as scratch:
        data, out = Path(scratch) / "long.json", Path(scratch) / "model"
        write(data, arguments.documents, arguments.questions, arguments.words, arguments.seed)
        steps = ["--steps", str(arguments.steps)] if arguments.steps else []
        seed = ["--seed", str(arguments.seed)]
        commands = {
            "finetune": [*unmask, "finetune", "answer", arguments.model, str(data), "--out", str(out), *steps, *seed],
            "predict": [*unmask, "predict", str(out), str(data), "--out", f"{scratch}/p.jsonl"],
            "evaluate": [*unmask, "evaluate", str(out), str(data)],
            "trainer": [sys.executable, __file__, "--model", arguments.model, "--data", str(data), *steps, *seed],
        }
        for name in PARTS:
            if name not in arguments.skip:
                print(json.dumps(measured(name, commands[name])), flush=True)


if __name__ == "__main__":
    main()
