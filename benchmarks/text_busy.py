"""Training, evaluation and embedding of text beside other work, by how threads wait for each other.

    python benchmarks/text_busy.py [--parts train evaluate embed] [--waits briefly asleep spinning] [--per-core 2]
    [--repeats 3] [--out text_busy.json]

Each measurement is a process of its own with a thread per core, once with nothing else running and once beside busy
processes that this script starts and ends. briefly is how commands run (`unmask.cli.wait_briefly`), asleep is without
any spinning (GOMP_SPINCOUNT=0), spinning is OpenMP's own default. train: --steps steps of a 4 x 256 encoder, 4096 slots
each; evaluate: 200 docstrings; embed: the same, one at a time.

Bar: beside two busy processes per core at most 5 times the quiet time (fair sharing alone costs 3). over_spinning is
the quiet time over that spinning: meaningful on a machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from beside import processor, quiet_and_busy, timed
from unmask.cli import BRIEFLY

SLOTS = 128
SHAPE = {"width": 256, "heads": 4}
"""The model that is timed, 4 x 256, whatever the default is."""


def prepare(folder: Path) -> None:
    """A tokenizer, a cache and a model, once for all measurements."""
    from unmask.modalities.text.network.folder import save_folder
    from unmask.modalities.text.network.pretrain import build_model
    from unmask.modalities.text.reading.documents import docstrings
    from unmask.modalities.text.recipes import TextSettings
    from unmask.modalities.text.tokens.cache import TokenCache
    from unmask.modalities.text.tokens.tokenizer import Tokenizer

    texts = [text for _, text in docstrings(2_000_000)]
    (folder / "corpus.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    (folder / "held.json").write_text(json.dumps(texts[:200]))
    made = Tokenizer.train(texts, vocab_size=8192)
    made.save(folder)
    TokenCache.build(str(folder / "corpus.jsonl"), made, folder / "cache", settings=TextSettings(slots=SLOTS))
    model, family = build_model(TextSettings(**SHAPE), made)
    save_folder(folder / "model", model=model, tokenizer=made, family=family, settings={})


def train(folder: Path, steps: int, repeats: int) -> dict:
    import torch

    from unmask.core.pretrain import StepContext, pretrain
    from unmask.core.sampler import PackedSampler
    from unmask.memory import keep_freed_memory
    from unmask.modalities.text.network.pretrain import build_model
    from unmask.modalities.text.recipes import TextSettings
    from unmask.modalities.text.tokens.batches import batch_maker, corruption_of
    from unmask.modalities.text.tokens.cache import TokenCache
    from unmask.modalities.text.tokens.tokenizer import Tokenizer
    from unmask.training.optimiser import build_optimiser, step
    from unmask.training.settings import TrainSettings

    keep_freed_memory()
    made, cache = Tokenizer.load(folder), TokenCache.open(folder / "cache")
    model, _ = build_model(TextSettings(**SHAPE), made)
    optimiser = build_optimiser(model, TrainSettings(steps=1))
    sampler = PackedSampler(lengths=cache.lengths, examples=np.asarray(cache.train), slots=SLOTS, rows=4096 // SLOTS)
    make = batch_maker(cache, SLOTS, made.special_ids)

    def update(progress: float) -> tuple[float, bool]:
        norm = step(optimiser, model.parameters(), clip=1.0)
        optimiser.zero_grad(set_to_none=True)
        return float(norm), True

    batches = ((p.epoch, [make(p.rows, sampler.rows)]) for p in sampler.steps())
    loop = pretrain(
        model, batches, corruption_of(TextSettings(**SHAPE)), StepContext(update=update), progress=lambda n: 0.0
    )

    def some() -> None:
        for _ in range(steps):
            next(loop)

    next(loop)
    return {"threads": torch.get_num_threads(), "runs": [timed(some) for _ in range(repeats)]}


def evaluate(folder: Path, steps: int, repeats: int) -> dict:
    import torch

    from unmask.modalities.text.uses.model import load

    texts = json.loads((folder / "held.json").read_text())
    model = load(folder / "model", precision="fp32")
    model.evaluate(texts[:20])
    runs = [timed(lambda: model.evaluate(texts)) for _ in range(repeats)]
    return {"threads": torch.get_num_threads(), "runs": runs}


def embed(folder: Path, steps: int, repeats: int) -> dict:
    import torch

    from unmask.modalities.text.uses.model import load

    texts = json.loads((folder / "held.json").read_text())
    model = load(folder / "model", precision="fp32")

    def one_by_one() -> None:
        for text in texts:
            model.embed(text)

    one_by_one()
    return {"threads": torch.get_num_threads(), "runs": [timed(one_by_one) for _ in range(repeats)]}


PARTS = {"train": train, "evaluate": evaluate, "embed": embed}
SPINS = {"briefly": BRIEFLY, "asleep": "0", "spinning": None}


def in_process(part: str, folder: Path, a: argparse.Namespace, waits: str) -> dict:
    alone = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {k: v for k, v in os.environ.items() if k not in alone}
    if (spins := SPINS[waits]) is not None:
        environment["GOMP_SPINCOUNT"] = spins
    command = [
        sys.executable,
        __file__,
        "--inside",
        part,
        str(folder),
        "--steps",
        str(a.steps),
        "--repeats",
        str(a.repeats),
    ]
    return json.loads(subprocess.run(command, check=True, env=environment, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--waits", nargs="+", default=list(SPINS), choices=list(SPINS))
    parser.add_argument("--per-core", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--out", default="text_busy.json")
    a = parser.parse_args()
    if a.inside:
        part, folder = a.inside
        print(json.dumps(PARTS[part](Path(folder), a.steps, a.repeats)))
        return
    found: dict = {"processor": processor()}
    print(json.dumps(found), flush=True)
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        for part in a.parts:
            middle = {}
            for waits in a.waits:
                measured = quiet_and_busy(lambda p=part, w=waits: in_process(p, Path(name), a, w), a.per_core)
                found[f"{part} {waits}"] = measured
                middle[waits] = float(np.median([r["seconds"] for r in measured["quiet"]["runs"]]))
                print(part, waits, json.dumps(measured), flush=True)
            if "spinning" in middle:
                found[f"{part} over_spinning"] = {w: round(took / middle["spinning"], 3) for w, took in middle.items()}
                print(part, "over spinning", found[f"{part} over_spinning"], flush=True)
            Path(a.out).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
