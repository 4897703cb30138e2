"""Masked diffusion beside a causal model: the bound on the likelihood of held-out text, samples and infilling.

    python benchmarks/text_diffusion.py WORK --corpus wikipedia.jsonl.gz --train   # an hour on one core
    python benchmarks/text_diffusion.py WORK --judge --out figures.json

Both models have 4 layers of width 256 and one vocabulary (a WordPiece tokenizer trained on the training documents), and
take as many steps of the same windows of documents in the same order: `unmask pretrain text --recipe diffusion` and the
GPT-2 of transformers, each at the `--rate` given, with linear warm-up and decay, in bf16 where that pays here and else
in fp32. Held-out documents are others.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.core.sampler import PackedSampler
from unmask.core.score import scorable
from unmask.evaluation.metrics import bootstrap_mean
from unmask.modalities.text.network.pretrain import pretrain
from unmask.modalities.text.recipes import RECIPES, TextSettings, with_overrides
from unmask.modalities.text.tokens.cache import TokenCache
from unmask.modalities.text.tokens.prepare import prepare
from unmask.modalities.text.tokens.tokenizer import Tokenizer
from unmask.modalities.text.uses.evaluate import likelihood, windows
from unmask.modalities.text.uses.model import TextModel, load
from unmask.training.precision import resolve_precision

SLOTS, BATCH_SLOTS, LAYERS, WIDTH, HEADS = 128, 2048, 4, 256, 4


def documents(corpus: Path, words: int, held_out: int) -> tuple[list[str], list[str]]:
    """(training documents of so many words, the documents behind them)."""
    train, held, count = [], [], 0
    with gzip.open(corpus, "rt", encoding="utf-8") as lines:
        for line in lines:
            text = json.loads(line)["text"]
            if count < words:
                train.append(text)
                count += len(text.split())
            elif len(held) < held_out:
                held.append(text)
            else:
                break
    return train, held


def write(texts: list[str], path: Path) -> None:
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts), encoding="utf-8")


def settings_of(steps: int, vocabulary: int, rate: float) -> TextSettings:
    more = {"width": WIDTH, "layers": LAYERS, "heads": HEADS, "slots": SLOTS, "vocabulary": vocabulary}
    run = {"steps": steps, "batch_slots": BATCH_SLOTS, "learning_rate": rate, "seed": 0}
    return with_overrides(TextSettings(), {**RECIPES["diffusion"], **more, **run})


def causal(cache: TokenCache, tokenizer: Tokenizer, steps: int, rate: float, out: Path) -> dict[str, Any]:
    """Train GPT-2 on the windows of the plan that the masked model's steps are made of, each a padded row."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=tokenizer.vocab_size, n_positions=SLOTS, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).train()
    half = resolve_precision("auto", "cpu").name == "bf16"
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    sampler = PackedSampler(
        lengths=cache.lengths, examples=np.asarray(cache.train), slots=SLOTS, rows=BATCH_SLOTS // SLOTS
    )
    special = torch.from_numpy(np.asarray(tokenizer.special_ids))
    began, real = time.process_time(), 0
    for number, step in zip(range(steps), sampler.steps(), strict=False):
        rows = [torch.from_numpy(cache.example(i)[0].astype(np.int64)) for row in step.rows for i in row]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_id)
        labels = ids.masked_fill(torch.isin(ids, special), -100)
        real += sum(map(len, rows))
        done = number / steps
        for group in optimiser.param_groups:
            group["lr"] = rate * (done / 0.06 if done < 0.06 else (1 - done) / 0.94)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = model(input_ids=ids, attention_mask=(ids != tokenizer.pad_id).long(), labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if number % 50 == 0:
            print(f"causal step {number}: loss {float(loss):.3f}, {time.process_time() - began:.0f} s", flush=True)
    model.save_pretrained(out)
    size = sum(p.numel() for p in model.parameters())
    return {"parameters": size, "processor_seconds": time.process_time() - began, "tokens": real}


def train(
    work: Path, corpus: Path, words: int, held_out: int, steps: int, vocabulary: int, rate: float, which: str
) -> None:
    settings, data = settings_of(steps, vocabulary, rate), work / "prepared"
    if not data.exists():
        seen, held = documents(corpus, words, held_out)
        write(seen, work / "train.jsonl")
        write(held, work / "held.jsonl")
        prepare([str(work / "train.jsonl")], data, settings=settings, workers=1)
    about: dict[str, Any] = {"steps": steps, "words": words, "vocabulary": vocabulary, "rate": rate}
    if which in ("both", "masked"):
        began = time.process_time()
        pretrain(str(data), work / "masked", settings=settings, console=False)
        about["masked"] = {"processor_seconds": time.process_time() - began}
        (work / "masked.json").write_text(json.dumps(about))
    if which in ("both", "causal"):
        cache, tokenizer = TokenCache.open(data), Tokenizer.load(data / "tokenizer.json")
        about["causal"] = causal(cache, tokenizer, steps, rate, work / "causal")
        (work / "causal.json").write_text(json.dumps(about))


class Short:
    """A model that takes windows of the length both were trained on, where its positions would take longer ones."""

    def __init__(self, model: TextModel) -> None:
        self._model, self.slots = model, SLOTS

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def causal_nats(model: Any, ids: np.ndarray, judged: np.ndarray) -> np.ndarray:
    """Minus the log-probability of every judged slot given the slots before it."""
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(ids)[None]).logits[0].log_softmax(-1)
    return -logits[torch.from_numpy(judged - 1), torch.from_numpy(ids[judged])].numpy()


def bounds(ours: TextModel, theirs: Any, texts: list[str], counts: np.ndarray, draws: int) -> dict[str, Any]:
    """Nats per token of the same tokens of the same windows: the bound, the causal model, token shares."""
    short: Any = Short(ours)
    found = likelihood(short, texts, draws=draws, most_tokens=None, frequencies=counts)
    examples, owner = windows(short, texts)
    nats = [causal_nats(theirs, e.values["token"], scorable(e)) for e in examples]
    names = np.repeat(owner, [len(n) for n in nats])
    return {**found, "causal": bootstrap_mean(np.concatenate(nats), names).to_dict()}


def infilled(ours: TextModel, theirs: Any, texts: list[str], cache: TokenCache, count: int) -> list[dict[str, Any]]:
    """One word of a sentence each, drawn by the sentence's number: what each side puts there, and the truth's nats."""
    tokenizer, size = ours.tokenizer, ours.tokenizer.vocab_size
    shares = np.log((cache.frequencies() + 1) / (cache.frequencies().sum() + size))
    after, words = Counter[tuple[str, str]](), Counter[str]()
    for line in (cache.folder.parent / "train.jsonl").open(encoding="utf-8"):
        told = re.findall(r"[a-z]+", json.loads(line)["text"].lower())
        words.update(told)
        after.update(pairwise(told))
    best: dict[str, tuple[int, str]] = {}
    for (first, second), n in after.items():
        best[first] = max(best.get(first, (0, "")), (n, second))
    out: list[dict[str, Any]] = []
    for text in texts:
        sentence = re.split(r"(?<=[.!?])\s", text.replace("\n", " ").strip())[0]
        places = list(re.finditer(r"(?<= )[A-Za-z]+(?= )", sentence))
        if not 10 <= len(sentence.split()) <= 40 or len(places) < 6:
            continue
        hole = places[int(np.random.default_rng(len(out)).integers(len(places)))]
        prefix, truth, suffix = sentence[: hole.start()], hole.group().lower(), sentence[hole.end() :]
        ids = tokenizer.encode([truth], specials=False)[0].ids.astype(np.int64)
        if (ids == tokenizer.unk_id).any() or len(tokenizer.ids([sentence])[0]) > SLOTS - 8:
            continue
        [made] = ours.generate(prefix=prefix, suffix=suffix, length=len(ids), temperature=0.0, order="confidence")
        [free] = ours.generate(prefix=prefix, suffix=suffix, temperature=0.0, order="confidence")
        nats = -ours.fill(f"{prefix}[MASK]{suffix}", candidates=[truth])[0]["log_probability"]
        before = np.concatenate([tokenizer.before, tokenizer.encode([prefix.strip()], specials=False)[0].ids])
        said = before.astype(np.int64)
        with torch.no_grad():
            for _ in ids:
                logits = theirs(input_ids=torch.from_numpy(said)[None]).logits[0, -1]
                logits[torch.from_numpy(np.asarray(tokenizer.special_ids))] = -torch.inf
                said = np.append(said, int(logits.argmax()))
        whole = np.concatenate([before, ids]).astype(np.int64)
        causal_loss = causal_nats(theirs, whole, np.arange(len(before), len(whole))).sum()
        last = re.findall(r"[a-z]+", prefix.lower())[-1:] or [""]
        common = words.most_common(1)[0][0]
        out.append(
            {
                "sentence": f"{prefix}[{truth}]{suffix}",
                "tokens": len(ids),
                "masked": made["generated"],
                "length_chosen": free["generated"],
                "causal": tokenizer.decode(said[len(before) :].tolist()).strip(),
                "bigram": best.get(last[0], (0, common))[1],
                "most_frequent": common,
                "truth": truth,
                "nats": {"masked": nats, "causal": float(causal_loss), "unigram": float(-shares[ids].sum())},
            }
        )
        if len(out) == count:
            break
    return out


DRAWN, DRAWN_TOKENS = 100, 30
SAMPLERS: dict[str, dict[str, Any]] = {
    "one token per pass": {},
    "the surest first": {"order": "confidence"},
    "temperature .7": {"temperature": 0.7},
    "a fifth taken back": {"steps": DRAWN_TOKENS, "remask": 0.2},
    "twice the passes, a tenth taken back": {"steps": 2 * DRAWN_TOKENS, "remask": 0.1},
    "twice the passes, a fifth taken back, the least likely": {
        "steps": 2 * DRAWN_TOKENS, "remask": 0.2, "remask_by": "confidence"
    },
    "four times the passes, a tenth taken back": {"steps": 4 * DRAWN_TOKENS, "remask": 0.1},
    "five passes": {"steps": 5},
    "ten passes, a fifth taken back": {"steps": 10, "remask": 0.2},
}  # fmt: skip


def sampled(ours: TextModel, theirs: Any, held: list[str]) -> list[dict[str, Any]]:
    """Texts of so many tokens, drawn in each way, judged by the causal model, and how many of a text's tokens differ;
    beside them held-out text. Low nats with few different tokens are repetition."""
    tokenizer = ours.tokenizer
    before = np.asarray(tokenizer.before, np.int64)

    def judged(name: str, rows: list[np.ndarray]) -> dict[str, Any]:
        nats = [causal_nats(theirs, r, np.arange(len(before), len(r))) for r in (np.append(before, r) for r in rows)]
        found = bootstrap_mean(np.array([n.mean() for n in nats]), np.arange(len(nats)))
        different = np.mean([len(set(r.tolist())) / len(r) for r in rows])
        return {"drawn": name, "nats": found.to_dict(), "different": float(different)}

    read = [e.ids.astype(np.int64) for e in tokenizer.encode(held, specials=False) if len(e) > 2 * DRAWN_TOKENS]
    whole = [ids[len(ids) // 2 :][:DRAWN_TOKENS] for ids in read[:DRAWN]]
    out = [judged("held-out text", whole)]
    shuffled = np.random.default_rng(0).permutation(np.concatenate(whole)).reshape(-1, DRAWN_TOKENS)
    out.append(judged("held-out tokens, shuffled", list(shuffled)))
    for name, options in SAMPLERS.items():
        began = time.process_time()
        made = ours.generate(number=DRAWN, length=DRAWN_TOKENS, seed=1, **options)
        took = time.process_time() - began
        rows = [e.ids.astype(np.int64) for e in tokenizer.encode([one["text"] for one in made], specials=False)]
        out.append(judged(name, rows) | {"seconds": took})
    return out


def judge(work: Path, out: Path | None, draws: int) -> None:
    from transformers import GPT2LMHeadModel

    ours = load(work / "masked", precision="fp32", device="cpu")
    theirs = GPT2LMHeadModel.from_pretrained(work / "causal").eval()
    cache = TokenCache.open(work / "prepared")
    held = [json.loads(line)["text"] for line in (work / "held.jsonl").open(encoding="utf-8")]
    found: dict[str, Any] = {"bounds": bounds(ours, theirs, held[:100], cache.frequencies(), draws)}
    found["samples"] = ours.generate(number=20, length=30, seed=0)
    found["sampled"] = sampled(ours, theirs, held)
    found["infilled"] = infilled(ours, theirs, held, cache, 50)
    sides = ("masked", "length_chosen", "causal", "bigram", "most_frequent")
    found["exact"] = {s: sum(r[s] == r["truth"] for r in found["infilled"]) for s in sides}
    tokens = sum(r["tokens"] for r in found["infilled"])
    names = ("masked", "causal", "unigram")
    found["nats_per_token"] = {s: sum(r["nats"][s] for r in found["infilled"]) / tokens for s in names}
    found |= {s: json.loads((work / f"{s}.json").read_text()) for s in ("masked", "causal")}
    print(json.dumps(found, indent=1, ensure_ascii=False))
    if out is not None:
        out.write_text(json.dumps(found, indent=1, ensure_ascii=False), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--words", type=int, default=3_000_000)
    parser.add_argument("--held-out", type=int, default=400)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--rate", type=float, default=2e-3, help="learning rate")
    parser.add_argument("--train", choices=("both", "masked", "causal"))
    parser.add_argument("--judge", action="store_true")
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--out", type=Path, help="Also write the figures, samples and answers there, as JSON.")
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.work.mkdir(parents=True, exist_ok=True)
    if given.judge:
        judge(given.work, given.out, given.draws)
    elif given.train:
        train(
            given.work,
            given.corpus,
            given.words,
            given.held_out,
            given.steps,
            given.vocabulary,
            given.rate,
            given.train,
        )


if __name__ == "__main__":
    main()
