"""What it costs that a text has the same bits alone and in any batch (law 12): each verb with it and without.

    OMP_NUM_THREADS=1 python benchmarks/text_batch_invariance.py [--texts 24] [--rounds 5] [--sheet]

The first round warms up and does not count.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import unmask
from sheets import Table, processor, processor_line, write_sheet
from unmask.core import prediction, token_codec
from unmask.encoder.config import Disentangled, Entrance
from unmask.families import by_name, heads
from unmask.kernels import fused_linear
from unmask.modalities.text.network.folder import assemble, new_text_model, save_folder
from unmask.modalities.text.reading.documents import docstrings
from unmask.modalities.text.tasks.model import load as load_task
from unmask.modalities.text.tokens.tokenizer import Tokenizer

SAYS = """A BERT of 6 x 384 (MiniLM's shape) and a DeBERTa-v3 of that size with a mask decoder, both with random
weights, read docstrings, together and one at a time. Time
with the law over time without: there products take all rows at once, and score, fill and predict read packed rows, as
before it. In turns in one process, processor time of one thread; median, least and most of the rounds."""
LENGTHS = {"8 to 30 tokens": (8, 30), "100 to 120 tokens": (100, 120)}


def made(folder: Path, decoder: Path) -> None:
    """A BERT, and a DeBERTa-v3 that predicts through its mask decoder."""
    tokenizer = Tokenizer.train((text for _, text in docstrings(1_000_000)), kind="wordpiece", vocab_size=8192)
    shape = {"width": 384, "layers": 6, "heads": 12, "inner": 1536, "slots": 128, "dropout": 0.0, "decoder": None}
    model, family = new_text_model("bert", vocabulary=tokenizer.vocab_size, tokenizer=tokenizer, **shape)
    save_folder(folder, model=model, tokenizer=tokenizer, family=family, settings={})
    relative = Disentangled(slots=128, buckets=64, furthest=128, decoder_steps=2)
    config = dataclasses.replace(model.encoder.config, positions=relative, entrance=Entrance(project_first=True))
    codec = {"width": 384, "encoder_width": 384, "head_norm": config.norm, "types": 0}
    model, family = assemble(tokenizer.vocab_size, tokenizer, config, codec, None), by_name("deberta")
    save_folder(decoder, model=model, tokenizer=tokenizer, family=family, settings={})


@contextlib.contextmanager
def without(encoder: torch.nn.Module) -> Iterator[None]:
    """As before the law."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(fused_linear, "row_blocks", lambda rows, *_: [rows]))
        for module in (prediction, token_codec, heads):
            stack.enter_context(patch.object(module, "batch_invariant", lambda product, x, **_: product(x)))
        stack.enter_context(patch.object(encoder, "batch_invariant", False))
        yield


def ratio(work: Callable[[], object], encoder: torch.nn.Module, rounds: int) -> str:
    def seconds() -> float:
        start = time.process_time()
        work()
        return time.process_time() - start

    pairs = []
    for number in range(rounds + 1):
        law = seconds()
        with without(encoder):
            plain = seconds()
        if number:
            pairs.append(law / plain)
    return f"{statistics.median(pairs):.2f} ({min(pairs):.2f} to {max(pairs):.2f})"


def of_verbs(model: Any, judge: Any, texts: list[str], rounds: int) -> Iterator[tuple[str, str, str]]:
    """(verb, ratio of the texts together, ratio of them one at a time); `judge`: a classifier, or None."""
    encoder = model.model.encoder
    verbs: dict[str, tuple[Callable[[list[str]], object], torch.nn.Module]] = {"embed": (model.embed, encoder)}
    if model.precision != "int8":
        mask = model.tokenizer.mask_token
        verbs["fill"] = (lambda some: model.fill([f"{text} {mask}" for text in some]), encoder)
        verbs["score"] = (lambda some: model.score(some[:8]), encoder)
    if judge is not None:
        verbs["predict"] = (judge.predict, judge.text.model.encoder)
    for verb, (work, own) in verbs.items():
        together = ratio(partial(work, texts), own, rounds)
        yield verb, together, ratio(partial(one_at_a_time, work, texts[:16]), own, rounds)


def one_at_a_time(work: Callable[[list[str]], object], texts: list[str]) -> None:
    for text in texts:
        work([text])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sheet", action="store_true", help="Write docs/results/text-batch-invariance.json.")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as root:
        base, tuned, decoder = Path(root, "base"), Path(root, "tuned"), Path(root, "decoder")
        made(base, decoder)
        every = [text for _, text in docstrings(2_000_000)]
        labelled = [(text[:200], "ab"[number % 2]) for number, text in enumerate(every[:64])]
        unmask.finetune(str(base), labelled, str(tuned), task="classify", epochs=1, start="plain", precision="fp32")
        models = [(base, p, "") for p in ("fp32", "bf16", "int8")]
        models += [(decoder, p, " with a mask decoder") for p in ("fp32", "bf16")]
        for folder, precision, which in models:
            model = unmask.load(str(folder), precision=precision)
            judge = None if which or precision == "int8" else load_task(str(tuned), precision=precision)
            lengths = [len(ids) for ids in model.tokenizer.ids(every)]
            for name, (least, most) in LENGTHS.items():
                texts = [text for text, n in zip(every, lengths, strict=True) if least <= n <= most]
                for verb, *ratios in of_verbs(model, judge, texts[: arguments.texts], arguments.rounds):
                    rows.append((f"{verb}, {precision}{which}", name, *ratios))
                    print(" | ".join(rows[-1]), flush=True)
    if arguments.sheet:
        columns = ("verb", "texts", "together: time with the law over without", "one at a time")
        write_sheet(
            "text-batch-invariance",
            Table(columns=columns, rows=tuple(rows)),
            sources="src/unmask/encoder src/unmask/kernels",
            title="What the same bits in any batch cost",
            says=" ".join(SAYS.split()),
            command="OMP_NUM_THREADS=1 python benchmarks/text_batch_invariance.py --sheet",
            processor=processor_line(processor()),
            seeds="one model",
        )


if __name__ == "__main__":
    main()
