"""Recipes for pretraining on little text, each given the same processor time: held-out loss and BLiMP.

    python benchmarks/text_recipes.py WORK --corpus text.jsonl[.gz] ... --prepare        # 10 million words, once
    python benchmarks/text_recipes.py WORK --recipes plain,default --cpu-minutes 5 --out found.jsonl
    python benchmarks/text_recipes.py WORK --recipes best --cpu-minutes 180 --pairs 1000 --blimp blimp.zip --seeds 0,1,2

Every twentieth document is held out, the others are the training text up to `--words`. A recipe is `RECIPES` below over
the settings of `--shape`. A run ends when it has spent its minutes of processor time, and its schedule follows them,
so that a recipe with quicker steps takes more of them. Use one thread (OMP_NUM_THREADS=1): processor time is then
nearly the same beside other work. The loss is measured alike for all: 15 % of the tokens of the held-out documents
hidden behind [MASK]; recipes of another vocabulary are compared by BLiMP alone. `transformers` and
`transformers-tuned` are its BertForMaskedLM under its own loop: the defaults of its example script (batches of 8 x 128,
rate 5e-5), and our rate and batch. `bert-RATE-ROWS` and `modernbert-RATE-ROWS` are compiled, without dropout: the first
BertForMaskedLM, the second its ModernBertForMaskedLM with logits of hidden tokens alone and weights as many as ours.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import time
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from unmask.core.hashing import Salt, hash_keys
from unmask.modalities.text.network.pretrain import pretrain
from unmask.modalities.text.recipes import BERT, TextSettings, with_overrides
from unmask.modalities.text.tokens.cache import TokenCache
from unmask.modalities.text.tokens.prepare import prepare
from unmask.modalities.text.tokens.tokenizer import Tokenizer
from unmask.modalities.text.uses.evaluate import evaluate
from unmask.modalities.text.uses.minimal_pairs import evaluate_minimal_pairs, read_minimal_pairs, some_of_each
from unmask.modalities.text.uses.model import load
from unmask.training import schedule
from unmask.training.precision import resolve_precision

MASK_ALONE = {"mask": 1.0, "random": 0.0, "keep": 0.0}
MUON = {"optimiser": "muon", "learning_rate": 2e-3, "matrix_rate": 4}
RECIPES: dict[str, dict[str, Any]] = {
    "plain": {**BERT, "batch_slots": 8192, "initial_embeddings": "random"},
    "plain-1024": {**BERT, "batch_slots": 1024, "initial_embeddings": "random"},
    "bert-counted": {**BERT, "batch_slots": 1024},
    "default": {},
    "masked": {"causal": 0.0},
    "causal-.136": {"causal": 0.136},
    "causal-.25": {"causal": 0.25},
    "causal-.5": {"causal": 0.5},
    "default-random": {"initial_attention": "random", "initial_embeddings": "random"},
    "attention-alone": {"initial_embeddings": "random"},
    "embeddings-alone": {"initial_attention": "random"},
    "batch-8192": {"batch_slots": 8192},
    "batch-1024": {"batch_slots": 1024},
    "rate-1": {"learning_rate": 1e-3},
    "rate-4": {"learning_rate": 4e-3},
    "before": {"learning_rate": 1e-3, "batch_slots": 4096},
    "muon": MUON,
    "muon-1": {**MUON, "learning_rate": 1e-3},
    "muon-4": {**MUON, "learning_rate": 4e-3},
    "muon-mask-alone": {**MUON, **MASK_ALONE},
    "muon-ratio-.4-.15": {**MUON, "ratio": 0.4},
    "muon-words": {**MUON, "hide": "word"},
    "mask-alone": MASK_ALONE,
    "ratio-.15": {"ratio": 0.15, "ratio_end": None},
    "ratio-.4-.15": {"ratio": 0.4},
    "ratio-.4": {"ratio": 0.4, "ratio_end": None},
    "bell": {"density": "bell", "ratio_end": None},
    "diffusion": {**MASK_ALONE, "density": "uniform", "loss_weight": "ratio", "ratio_end": None},
    "rarity": {"rarity": 0.25},
    "words": {"hide": "word"},
    "visible-only": {**MASK_ALONE, "architecture": "visible_only", "ratio": 0.4},
    "bert-shape": {"recipe": "bert"},
    "wsd": {"schedule": "wsd", "decay": 0.3},
    "narrow": {"width": 192, "heads": 3},
    "narrower": {"width": 128, "heads": 2},
    "wide-256": {"width": 256, "heads": 4},
    "wide": {"width": 384, "heads": 6},
    "narrow-deep": {"width": 192, "heads": 3, "layers": 6},
    "deep": {"layers": 8},
    "slots-64": {"slots": 64},
    "slots-32": {"slots": 32},
    "vocabulary-4096": {"vocabulary": 4096},
    "vocabulary-8192": {"vocabulary": 8192},
    "vocabulary-32768": {"vocabulary": 32768},
    "sentences": {"sentences": 1.0},
    "half-sentences": {"sentences": 0.5},
    "sentences-6-layers": {"sentences": 1.0, "layers": 6},
    "sentences-8-heads": {"sentences": 1.0, "heads": 8},
    "half-sentences-vocabulary-32768": {"sentences": 0.5, "vocabulary": 32768},
    "slots-64-vocabulary-8192": {"slots": 64, "vocabulary": 8192},
    "slots-64-vocabulary-4096": {"slots": 64, "vocabulary": 4096},
}
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "transformers": {"rows": 8, "learning_rate": 5e-5, "warmup": 0.0},
    "transformers-tuned": {"rows": 16, "learning_rate": 1e-3, "warmup": 0.06},
    **{
        f"{model}-{rate:g}-{rows}": {"model": model, "rows": rows, "learning_rate": rate, "warmup": 0.06}
        for model in ("bert", "modernbert")
        for rate in (5e-4, 1e-3, 2e-3, 4e-3)
        for rows in (8, 16)
    },
}
JUDGED_DOCUMENTS = 300


def documents(files: list[str]) -> Iterator[str]:
    for file in files:
        with gzip.open(file, "rt") if file.endswith(".gz") else open(file, encoding="utf-8") as lines:
            yield from (json.loads(line)["text"] for line in lines)


def split(work: Path, files: list[str], words: int) -> None:
    """train.jsonl and held.jsonl in `work`."""
    counted = 0
    work.mkdir(parents=True, exist_ok=True)
    with (work / "train.jsonl").open("w") as train, (work / "held.jsonl").open("w") as held:
        for number, text in enumerate(documents(files)):
            if number % 20 == 0:
                held.write(json.dumps({"text": text}) + "\n")
            elif counted < words:
                counted += len(text.split())
                train.write(json.dumps({"text": text}) + "\n")
    print(f"{counted:,} words", flush=True)


def settings_of(recipe: dict[str, Any], shape: dict[str, Any], seed: int) -> TextSettings:
    return with_overrides(TextSettings(), {**shape, **recipe, "seed": seed, "checkpoint_seconds": 600})


def prepared(work: Path, settings: TextSettings) -> Path:
    folder = work / f"prepared-{settings.vocabulary}-{settings.slots}-{settings.sentences}"
    if not folder.exists():
        prepare([str(work / "train.jsonl")], folder, settings=settings, workers=1)
    return folder


def ours(
    work: Path, name: str, shape: dict[str, Any], seed: int, minutes: float, steps: int | None, *, raw: bool = False
) -> dict[str, Any]:
    """Train for `minutes` of processor time, or for `steps`; `raw`: the start, the tokenizer and the counting are in
    the seconds, which are those of this whole process."""
    plain = settings_of(RECIPES[name], shape, seed)
    ending = {"steps": steps} if steps else {"minutes": minutes, "validate_every": 1_000_000}
    settings = with_overrides(plain, ending)
    out = f"{name}-{seed}-{steps or minutes}"
    shutil.rmtree(work / out, ignore_errors=True)
    data, began = (work / "train.jsonl", 0.0) if raw else (prepared(work, plain), sum(os.times()[:4]))
    run = pretrain(str(data), work / out, settings=settings, console=False).result
    slots = run.steps * settings.train.batch_slots
    seconds = sum(os.times()[:4]) - began  # of its helpers too
    return {"folder": out, "steps": run.steps, "slots": slots, "processor_seconds": seconds}


def theirs(
    work: Path, name: str, shape: dict[str, Any], seed: int, minutes: float, steps: int | None
) -> dict[str, Any]:
    """A model of transformers over concatenated blocks, with its collator, for `minutes` or for `steps`."""
    import torch
    from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

    settings, choice = settings_of({}, shape, seed), TRANSFORMERS[name]
    half = name != "transformers" and resolve_precision("auto", "cpu").name == "bf16"  # as ours decides
    data = prepared(work, settings)
    cache, tokenizer = TokenCache.open(data), Tokenizer.load(data / "tokenizer.json")
    torch.manual_seed(seed)
    model = network(choice.get("model"), settings, tokenizer).train()
    text = np.concatenate([cache.example(i)[0].astype(np.int64) for i in np.asarray(cache.train)])
    blocks = torch.from_numpy(text[: len(text) // settings.slots * settings.slots].reshape(-1, settings.slots))
    wrapped = PreTrainedTokenizerFast(
        tokenizer_file=str(data / "tokenizer.json"), unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]",
        sep_token="[SEP]", mask_token="[MASK]",
    )  # fmt: skip
    collate = DataCollatorForLanguageModeling(wrapped, mlm_probability=0.15)
    optimiser = torch.optim.AdamW(model.parameters(), lr=choice["learning_rate"], weight_decay=0.01, fused=True)
    forward = torch.compile(model) if "model" in choice else model
    began, step, order = time.process_time(), 0, torch.randperm(len(blocks))
    while (done := step / steps if steps else (time.process_time() - began) / (60 * minutes)) < 1:
        warm = choice["warmup"]
        share = done / warm if done < warm else (1 - done) / (1 - warm)
        for group in optimiser.param_groups:
            group["lr"] = choice["learning_rate"] * share
        at = step * choice["rows"] % (len(blocks) - choice["rows"])
        batch = collate([{"input_ids": blocks[i]} for i in order[at : at + choice["rows"]]])
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = forward(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        step += 1
    out = f"{name}-{seed}-{step}"
    model.save_pretrained(work / out)
    wrapped.save_pretrained(work / out)
    slots = step * choice["rows"] * settings.slots
    return {"folder": out, "steps": step, "slots": slots, "processor_seconds": time.process_time() - began}


def network(kind: str | None, settings: TextSettings, tokenizer: Tokenizer) -> Any:
    """BertForMaskedLM as it is, 'bert' (without dropout), or 'modernbert', which has logits of hidden tokens alone."""
    from transformers import BertConfig, BertForMaskedLM, ModernBertConfig, ModernBertForMaskedLM

    shape = {
        "vocab_size": tokenizer.vocab_size, "hidden_size": settings.width, "num_hidden_layers": settings.layers,
        "num_attention_heads": settings.attention_heads, "max_position_embeddings": settings.slots,
    }  # fmt: skip
    if kind == "modernbert":
        gated = max(64, round(1.5 * settings.width / 64) * 64)  # as many weights as ours
        ids = {"pad": tokenizer.pad_id, "cls": tokenizer.cls_id, "sep": tokenizer.sep_id}
        special = {f"{role}_token_id": number for role, number in {**ids, "bos": ids["cls"], "eos": ids["sep"]}.items()}
        return ModernBertForMaskedLM(
            ModernBertConfig(**shape, **special, intermediate_size=gated, sparse_prediction=True)
        )
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0} if kind == "bert" else {}
    return BertForMaskedLM(BertConfig(**shape, intermediate_size=4 * settings.width, **dropout))


def judged(work: Path, folder: str, slots: int, blimp: str | None, pairs: int) -> dict[str, Any]:
    """Held-out loss at 15 % in windows of the rows' length, accuracy beside the most frequent token's, and BLiMP."""
    model = load(work / folder)
    type(model).slots = property(lambda _: slots)  # ours take more, and the windows are to be the same for all
    texts = list(documents([str(work / "held.jsonl")]))
    kept = np.argsort(hash_keys(0, np.arange(len(texts)), Salt.JUDGED_PAIRS))[:JUDGED_DOCUMENTS]
    found = evaluate(model, [texts[i] for i in kept], ratio=0.15)
    out = {key: found[key] for key in ("loss", "accuracy_at_1", "most_frequent_accuracy")}
    if blimp:
        chosen = some_of_each(read_minimal_pairs(blimp), pairs)
        found = evaluate_minimal_pairs(model, chosen, say=print)
        out["blimp"] = {k: found[k] for k in ("accuracy", "low", "high", "pairs", "shorter", "by_field", "by_paradigm")}
        out["blimp"] |= halves(found["by_paradigm"])
    return out


def halves(by_paradigm: Mapping[str, float]) -> dict[str, float]:
    """Mean accuracy of every second paradigm by name, for choosing a recipe, and of the others, for reporting it:
    paradigms that are alike have names that are neighbours."""
    found = [by_paradigm[name] for name in sorted(by_paradigm)]
    return {"choosing": float(np.mean(found[::2])), "reporting": float(np.mean(found[1::2]))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--corpus", nargs="+", default=[])
    parser.add_argument("--words", type=int, default=10_000_000)
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--recipes", default="")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--cpu-minutes", type=float, default=5)
    parser.add_argument("--steps", type=int, help="instead of --cpu-minutes")
    parser.add_argument("--raw", action="store_true", help="ours from raw text; one recipe and seed per call")
    parser.add_argument("--shape", default="{}", help="settings of all recipes, JSON")
    parser.add_argument("--blimp")
    parser.add_argument("--pairs", type=int, default=100, help="per paradigm")
    parser.add_argument("--out", type=Path, help="a .jsonl file; one line per recipe and seed is added to it")
    args = parser.parse_args()
    clock: Any = schedule
    clock.time = types.SimpleNamespace(monotonic=time.process_time)  # minutes of a run are then of processor time
    if args.prepare:
        split(args.work, args.corpus, args.words)
    shape = json.loads(args.shape)
    for seed in map(int, args.seeds.split(",")):
        for name in filter(None, args.recipes.split(",")):
            if name in TRANSFORMERS:
                made = theirs(args.work, name, shape, seed, args.cpu_minutes, args.steps)
            else:
                made = ours(args.work, name, shape, seed, args.cpu_minutes, args.steps, raw=args.raw)
            found = {"recipe": name, "seed": seed, "shape": shape, **made}
            slots = settings_of({}, shape, seed).slots
            found |= judged(args.work, made["folder"], slots, args.blimp, args.pairs)
            print(json.dumps(found), flush=True)
            if args.out:
                with args.out.open("a") as file:
                    file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
