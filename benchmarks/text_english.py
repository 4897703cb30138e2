"""The English model of `make model`, judged: held-out Wikipedia, BLiMP, size and speed, each beside rules.

    python benchmarks/text_english.py unmask-en --prepared build/english/prepared --blimp blimp.zip --pairs 100

`--prepared` is the folder of the corpus that the model was trained on: its held-out documents are what is filled, and
its training documents give the counts for the rules. Three rules need no model: the shorter sentence of a pair, the one
whose tokens are more frequent in the training text (the sum of their log shares), and the one that a table of
three tokens in a row finds likelier (an n-gram model with absolute discounting). Tasks are judged by
benchmarks/text_defaults.py with `--model` the model's folder.

`--beside` names other models: one whole word is hidden in each of 1 000 held-out sentences, a word that is a single
token in every one of the vocabularies, and each model says which. Right is the same word, whatever its case. The rules
beside are the most frequent word and the word that most often follows the one before in the training text; the loss
of models of different vocabularies does not compare, this does.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unmask.core.hashing import Salt, hash_keys
from unmask.modalities.text.tokens.cache import TokenCache
from unmask.modalities.text.tokens.tokenizer import Tokenizer
from unmask.modalities.text.uses.evaluate import evaluate
from unmask.modalities.text.uses.minimal_pairs import evaluate_minimal_pairs, read_minimal_pairs, some_of_each
from unmask.registry import load

FILLED = 300
"""Held-out pieces of text that are filled."""
SHOWN = ("accuracy", "low", "high", "pairs", "ties", "shorter", "by_field")


class Unigram:
    """Scores a text by how frequent its tokens are; see `minimal_pairs.Scorer`."""

    def __init__(self, tokenizer: Tokenizer, frequencies: np.ndarray) -> None:
        counts = frequencies.astype(np.float64) + 1
        self.tokenizer, self.log = tokenizer, np.log(counts / counts.sum())

    def score(self, texts: Sequence[str], *, mode: str) -> list[dict[str, Any]]:
        found = self.tokenizer.encode(list(texts), specials=False)
        return [{"score": float(self.log[e.ids].sum()), "slots": len(e.ids)} for e in found]


class Trigram:
    """Scores a text by the tokens that stand before each: interpolated absolute discounting (Ney et al. 1994)."""

    DISCOUNT = 0.75

    def __init__(self, tokenizer: Tokenizer, cache: TokenCache) -> None:
        self.tokenizer, self.size = tokenizer, tokenizer.vocab_size
        ones = np.zeros(self.size, np.int64)
        rows: dict[int, list[np.ndarray]] = {2: [], 3: []}
        for tokens, example in cache.pieces():
            tokens = tokens.astype(np.int64)
            ones += np.bincount(tokens, minlength=self.size)
            for order, found in rows.items():
                inside = example[order - 1 :] == example[: len(example) - order + 1]
                found.append(self._key([tokens[i : len(tokens) - order + 1 + i] for i in range(order)])[inside])
        self.unigram = (ones + 1) / (ones + 1).sum()
        self.counts = {order: np.unique(np.concatenate(found), return_counts=True) for order, found in rows.items()}
        self.before = {}
        for order, (keys, counts) in self.counts.items():
            context, first = np.unique(keys // self.size, return_index=True)
            ends = np.append(first[1:], len(keys))
            self.before[order] = context, np.add.reduceat(counts, first), ends - first

    def _key(self, tokens: Sequence[Any]) -> Any:
        key = tokens[0]
        for token in tokens[1:]:
            key = key * self.size + token
        return key

    @staticmethod
    def _found(keys: np.ndarray, values: Sequence[np.ndarray], key: int) -> list[int]:
        at = int(np.searchsorted(keys, key))
        return [int(v[at]) for v in values] if at < len(keys) and keys[at] == key else [0] * len(values)

    def probability(self, tokens: Sequence[int]) -> float:
        """Of the last token after those before it, two at most."""
        if len(tokens) < 2:
            return float(self.unigram[tokens[-1]])
        rest = self.probability(tokens[1:])
        order = len(tokens)
        contexts, totals, kinds = self.before[order]
        total, different = self._found(contexts, (totals, kinds), self._key(tokens[:-1]))
        if not total:
            return rest
        (count,) = self._found(self.counts[order][0], (self.counts[order][1],), self._key(tokens))
        return max(count - self.DISCOUNT, 0) / total + self.DISCOUNT * different / total * rest

    def score(self, texts: Sequence[str], *, mode: str) -> list[dict[str, Any]]:
        found = self.tokenizer.encode(list(texts), specials=False)
        return [
            {
                "score": float(sum(np.log(self.probability(ids[max(0, i - 2) : i + 1])) for i in range(len(ids)))),
                "slots": len(ids),
            }
            for ids in ([int(token) for token in e.ids] for e in found)
        ]


def held_out(cache: TokenCache, tokenizer: Tokenizer, number: int = FILLED) -> list[str]:
    """Held-out pieces of text, the same ones every time."""
    numbers = np.asarray(cache.validation)
    order = np.argsort(hash_keys(0, numbers, Salt.JUDGED_PAIRS), kind="stable")[:number]
    special = set(tokenizer.special_ids)
    return [tokenizer.decode([int(t) for t in cache.example(i)[0] if t not in special]) for i in numbers[order]]


def speed(model: Any, texts: Sequence[str]) -> dict[str, float]:
    """Texts per processor second with one blank each: one at a time, and all at once."""
    blanked = [" ".join([*words[:8], "[MASK]", *words[9:24]]) for t in texts if len(words := t.split()) > 12]
    model.fill(blanked[:4])
    found = {}
    for name, calls in (("one at a time", [[t] for t in blanked[:100]]), ("at once", [blanked])):
        began = time.process_time()
        for call in calls:
            model.fill(call)
        found[name] = sum(map(len, calls)) / (time.process_time() - began)
    return found


def hidden_words(texts: Sequence[str], models: Sequence[Any], *, number: int = 1000) -> list[tuple[str, str, str]]:
    """(the word before, the text with a blank, the word): one word per sentence, the same ones every time."""
    random, found = np.random.default_rng(0), []
    for text in texts:
        for sentence in re.findall(r"[^.!?]{30,200}[.!?]", text):
            words = list(re.finditer(r"[A-Za-z]+", sentence))
            if len(words) < 6 or not sentence.isascii():
                continue
            at = int(random.integers(1, len(words)))
            word = words[at].group().lower()
            if all(len(m.tokenizer.encode([f"a {word}"], specials=False)[0].ids) == 2 for m in models):
                blank = f"{sentence[: words[at].start()].strip()} [MASK]{sentence[words[at].end() :]}"
                found.append((words[at - 1].group().lower(), blank.strip(), word))
    return [found[i] for i in random.permutation(len(found))[:number]]


def words_right(model: Any, hidden: Sequence[tuple[str, str, str]]) -> dict[str, float]:
    """Share of the words that are the likeliest, or among the five likeliest."""
    found = model.fill([blank for _, blank, _ in hidden], top=5)
    said = [[c["value"].strip().lower() for c in one["slots"][0]["candidates"]] for one in found]
    first = [word == values[0] for values, (_, _, word) in zip(said, hidden, strict=True)]
    five = [word in values for values, (_, _, word) in zip(said, hidden, strict=True)]
    return {"first": float(np.mean(first)), "among five": float(np.mean(five)), "of": len(hidden)}


def word_rules(cache: TokenCache, tokenizer: Tokenizer, hidden: Sequence[tuple[str, str, str]]) -> dict[str, float]:
    """The same by the most frequent word, and by the one that most often follows the word before."""
    size, counts = tokenizer.vocab_size, Counter[int]()
    for tokens, example in cache.pieces():
        inside = example[1:] == example[:-1]
        pair, count = np.unique(tokens[:-1][inside].astype(np.int64) * size + tokens[1:][inside], return_counts=True)
        counts.update(dict(zip(pair.tolist(), count.tolist(), strict=True)))
    likeliest: dict[int, tuple[int, int]] = {}
    words = [tokenizer.token(i).isalpha() for i in range(size)]
    for key, times in counts.items():
        before, after = divmod(key, size)
        if words[after] and times > likeliest.get(before, (0, 0))[0]:
            likeliest[before] = times, after
    frequent = max((int(f), i) for i, f in enumerate(cache.frequencies()) if words[i])[1]
    bigram = [
        tokenizer.token(likeliest.get(int(tokenizer.encode([before], specials=False)[0].ids[-1]), (0, frequent))[1])
        for before, _, _ in hidden
    ]
    right = [word == said for said, (_, _, word) in zip(bigram, hidden, strict=True)]
    most = [word == tokenizer.token(frequent) for _, _, word in hidden]
    return {"most frequent word": float(np.mean(most)), "bigram": float(np.mean(right))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder, or the name of an installed model")
    parser.add_argument("--prepared", type=Path, required=True)
    parser.add_argument("--blimp")
    parser.add_argument("--pairs", type=int, default=100, help="per paradigm")
    parser.add_argument("--beside", nargs="*", default=[], help="other models, for the words")
    args = parser.parse_args()
    model = load(args.model)
    cache, tokenizer = TokenCache.open(args.prepared), Tokenizer.load(args.prepared / "tokenizer.json")
    texts, frequencies = held_out(cache, tokenizer), cache.frequencies()
    filled = evaluate(model, texts, ratio=0.15, frequencies=frequencies)
    found: dict[str, Any] = {k: filled[k] for k in ("loss", "accuracy_at_1", "accuracy_at_5", "most_frequent_accuracy")}
    share = (frequencies + 1) / (frequencies + 1).sum()
    seen = np.bincount(np.concatenate([e.ids for e in tokenizer.encode(texts, specials=False)]), minlength=len(share))
    found["loss of the shares"] = float(-(seen * np.log(share)).sum() / seen.sum())
    found["texts per processor second"] = speed(model, texts)
    print(json.dumps(found), flush=True)
    others = {name: load(name) for name in args.beside}
    hidden = hidden_words(held_out(cache, tokenizer, 4 * FILLED), [model, *others.values()])
    print(json.dumps({"words by rules": word_rules(cache, tokenizer, hidden)}), flush=True)
    for name, one in {args.model: model, **others}.items():
        size = sum(p.numel() for p in one.model.parameters())
        print(json.dumps({"words": Path(name).name, "parameters": size, **words_right(one, hidden)}), flush=True)
    if args.blimp:
        pairs = some_of_each(read_minimal_pairs(args.blimp), args.pairs)
        rules = {"unigram": Unigram(tokenizer, frequencies), "trigram": Trigram(tokenizer, cache)}
        for name, scorer in (*rules.items(), ("model", model)):
            judged = evaluate_minimal_pairs(scorer, pairs, say=print)
            print(json.dumps({"blimp": name} | {k: judged[k] for k in SHOWN}), flush=True)


if __name__ == "__main__":
    main()
