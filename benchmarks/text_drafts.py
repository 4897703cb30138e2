"""Ways to pretrain on little text that were tried and are not in the code, in the manner of text_recipes.py.

    python benchmarks/text_drafts.py WORK short-first --steps 4585 --seed 0 --pairs 200 --blimp blimp.zip --shape SHAPE
    python benchmarks/text_drafts.py WORK hard --like WORK/masked-0-4585 --steps 4585 --seed 0 ...

`short-first`: the first three tenths of the steps are made of pieces of at most 40 tokens, the others of all pieces.
`hard`: tokens are hidden in proportion to how often the model of `--like` is wrong about them when they are hidden in
training text. After Edman & Fraser 2025 (arXiv 2510.20475), who follow the model while it learns;
here the weights do not change, so that a mask stays a function of seed, epoch and example.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import text_recipes
from unmask.core.corruption import Corruption, Weighted
from unmask.core.sampler import PackedSampler, SampledStep
from unmask.modalities.text.network import pretrain
from unmask.modalities.text.recipes import TextSettings
from unmask.modalities.text.tokens.batches import measuring_corruption, validation_batches
from unmask.modalities.text.tokens.cache import TokenCache
from unmask.modalities.text.uses.model import load

SHORT, SHARE = 40, 0.3
PIECES = 12_000


def short_first(steps: int) -> type[PackedSampler]:
    """A sampler whose first steps take short pieces alone."""

    class ShortFirst(PackedSampler):
        def steps(self, *, skip: int = 0) -> Iterator[SampledStep]:
            short = self.examples[self.lengths[self.examples] <= SHORT]
            first = PackedSampler(
                lengths=self.lengths, examples=short, slots=self.slots, rows=self.rows, seed=self.seed
            )
            both = itertools.chain(itertools.islice(first.steps(), int(SHARE * steps)), super().steps())
            return itertools.islice(both, skip, None)

    return ShortFirst


def share_right(folder: Path, data: Path) -> np.ndarray:
    """(vocabulary,) how often a model is right about each token where it is hidden in training text; of tokens that are
    hardly seen nearly the share over all."""
    model, cache = load(folder), TokenCache.open(data)
    special, size = model.tokenizer.special_ids, model.tokenizer.vocab_size
    pieces = np.sort(np.random.default_rng(0).choice(np.asarray(cache.train), PIECES, replace=False))
    seen, right = np.zeros(size), np.zeros(size)
    batches = validation_batches(cache, pieces, slots=128, special_ids=special, most=PIECES)
    for number, batch in enumerate(batches):
        hidden = measuring_corruption().draw(batch, seed=1000 + number)
        with torch.inference_mode(), model.context():
            true = model.model.codec.targets(batch.values, hidden.flat)
            first = (model.model(batch, hidden).rank(true) == 0).numpy()
        np.add.at(seen, true.numpy(), 1)
        np.add.at(right, true.numpy(), first)
    return (right + 2 * right.sum() / seen.sum()) / (seen + 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("draft", choices=["short-first", "hard"])
    parser.add_argument("--like", type=Path, help="a model that was trained without, for hard")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shape", default="{}", help="settings, JSON")
    parser.add_argument("--blimp")
    parser.add_argument("--pairs", type=int, default=100, help="per paradigm")
    args = parser.parse_args()
    shape = {"causal": 0.0, **json.loads(args.shape)}
    settings = text_recipes.settings_of({}, shape, args.seed)
    patched: Any = pretrain
    if args.draft == "short-first":
        patched.PackedSampler = short_first(args.steps)
    else:
        share = share_right(args.like, text_recipes.prepared(args.work, settings))
        weight, plain = np.maximum(1 - share, 0.05), pretrain.corruption_of

        def weighted(settings: TextSettings, cache: Any = None) -> Corruption:
            found = plain(settings, cache)
            return dataclasses.replace(found, select=Weighted(ratio=found.select.ratio, weight=weight))

        patched.corruption_of = weighted
    text_recipes.RECIPES[args.draft] = {}
    made = text_recipes.ours(args.work, args.draft, shape, args.seed, 0, args.steps)
    judged = text_recipes.judged(args.work, made["folder"], settings.slots, args.blimp, args.pairs)
    print(json.dumps({"draft": args.draft, "seed": args.seed, "shape": shape, **made, **judged}))


if __name__ == "__main__":
    main()
