"""How well a text model predicts hidden tokens of texts it has not seen, and a bound on the likelihood of the texts
(NELBO), beside what a rule without a model gives them: `TextModel.evaluate`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.core.batch import Example
from unmask.core.inference import packed_batches
from unmask.core.score import bound, scorable
from unmask.errors import UserError
from unmask.evaluation.card import Figure, figures_of
from unmask.evaluation.metrics import bootstrap_mean, by_frequency, by_position, masked_metrics, plain
from unmask.evaluation.results import figures_shown
from unmask.evaluation.shown import Shown
from unmask.modalities.text.network.card import most_frequent_token
from unmask.modalities.text.network.folder import LoadedText
from unmask.modalities.text.tokens.batches import measuring_corruption, text_example
from unmask.modalities.text.tokens.cache import TokenCache
from unmask.modalities.text.tokens.corpus import check_unknown
from unmask.modalities.text.tokens.tokenising import cut

DRAWS = 4
TOKENS = 16_384
"""Tokens of the texts that the bound is estimated on by default: with four draws it costs about as much as hiding 15 %
of 100 000 tokens."""


def evaluate(
    model: LoadedText,
    texts: Sequence[str],
    *,
    ratio: float = 0.15,
    seed: int = 0,
    frequencies: np.ndarray | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Loss, perplexity, accuracy@1 and @5 on hidden tokens, with 95 % intervals over texts, by position and frequency.

    Beside them `most_frequent_accuracy`: that of always guessing the most frequent token (`most_frequent`) of
    `frequencies`. Long texts are cut into windows as long as the pieces that the model was trained on.
    `unknown_share`: of the tokens, those that are unknown ([UNK]), which are never hidden, so that the figures are of
    the others alone.

    Args:
        frequencies: how often each token occurred in training, by id; default in the evaluated texts themselves.
        say: called with the share of unknown tokens, where it is more than one in a thousand.
    """
    model.require_head()
    if not 0 < ratio <= 1:
        raise UserError(f"ratio={ratio}", hint="Expected a share above 0 and up to 1.")
    examples, document = windows(model, texts)
    around = len(model.tokenizer.before) + len(model.tokenizer.after)
    unread = sum(int(np.count_nonzero(e.values["token"] == model.tokenizer.unk_id)) for e in examples)
    unknown = unread / max(sum(len(e) - around for e in examples), 1)
    check_unknown(unknown, say, name="the texts", given=True)
    if not any(len(scorable(e)) for e in examples):
        raise UserError("the texts hold no token to hide", hint="Give text the tokenizer knows.")
    size = model.tokenizer.vocab_size
    counts = frequencies
    if counts is None:
        counts = np.bincount(np.concatenate([e.values["token"] for e in examples]), minlength=size)
    elif len(counts) < size:
        raise UserError(f"frequencies has {len(counts)} entries, the vocabulary {size}", hint="Give one count a token.")
    corruption = measuring_corruption(ratio)
    log_prob, rank, owner, place, target = [], [], [], [], []
    for batch, members in packed_batches(examples, model.slots):
        hidden = corruption.draw(batch, seed=seed).to(model.device)
        moved = batch.to(model.device)
        with torch.inference_mode(), model.context():
            prediction = model.model(moved, hidden)
            truth = model.model.codec.targets(moved.values, hidden.flat)
            log_prob.append(prediction.log_prob(truth).float().cpu().numpy())
            rank.append(prediction.rank(truth).cpu().numpy())
        row = batch.index.flatten()[hidden.flat.cpu()].numpy()
        owner.append(np.array([document[m] for m in members])[row])
        length = np.array([len(examples[m]) for m in members])[row]
        place.append(batch.position.flatten()[hidden.flat.cpu()].numpy() / np.maximum(length - 1, 1))
        target.append(truth.cpu().numpy())
    p, r, d = (np.concatenate(x) for x in (log_prob, rank, owner))
    right = (r == 0).astype(float)
    bands = {
        "by_frequency": by_frequency(right, counts[np.concatenate(target)], d, seed=seed),
        "by_position": by_position(right, np.concatenate(place), d, seed=seed),
    }
    named = {k: [{"band": b.label, **b.estimate.to_dict()} for b in v] for k, v in bands.items()}
    best = most_frequent_token(counts, model.tokenizer.special_ids)
    rule = {"most_frequent_accuracy": bootstrap_mean(np.concatenate(target) == best, d, seed=seed)}
    figures = plain(masked_metrics(p, r, d, seed=seed) | rule)
    about = {"rows": len(texts), "unknown_share": unknown}
    return about | figures | {"most_frequent": model.tokenizer.token(best)} | named


def judged_shown(found: Mapping[str, Any]) -> Shown:
    """What of the figures on hidden tokens a person looks at."""
    bits = ("nelbo_bits_per_character", "nelbo_bits_per_byte")
    names = ("loss", "perplexity", "accuracy_at_1", "accuracy_at_5", "nelbo", "nelbo_perplexity", *bits)
    always = f"always {found['most_frequent']!r}"
    rules = [Figure(name="accuracy_at_1", value=found["most_frequent_accuracy"], of=always)]
    if "nelbo" in found:
        shares = f"tokens by their shares in {found['unigram_of']}"
        rules += [Figure(name="nelbo", value=found["unigram_nats"], of=shares)]
        rules += [Figure(name="nelbo_perplexity", value=found["unigram_perplexity"], of=shares)]
    title = f"{found['rows']:,} texts, {found['hidden_slots']:,} of their tokens hidden and predicted, in nats"
    return figures_shown(title, [*figures_of(found, names), *rules])


def windows(model: LoadedText, texts: Sequence[str]) -> tuple[list[Example], list[int]]:
    """Texts cut into examples as long as those the model was trained on, and the number of the text each comes from."""
    examples: list[Example] = []
    document: list[int] = []
    before, after = model.tokenizer.before, model.tokenizer.after
    room = model.folder.trained_slots - len(before) - len(after)
    for number, e in enumerate(model.tokenizer.encode(list(texts), specials=False)):
        starts = np.ones(len(e), np.uint8)
        starts[1:] = e.units[1:] != e.units[:-1]
        for begin, end in cut(e.ids, starts, room, np.zeros(0, np.int64)):
            ids = np.concatenate([before, e.ids[begin:end], after]).astype(np.int64)
            units = np.concatenate([[-1] * len(before), e.units[begin:end], [-1] * len(after)]).astype(np.int64)
            examples.append(text_example(ids, units, np.isin(ids, model.tokenizer.special_ids), len(examples)))
            document.append(number)
    return examples, document


def likelihood(
    model: LoadedText,
    texts: Sequence[str],
    *,
    draws: int = DRAWS,
    most_tokens: int | None = TOKENS,
    seed: int = 0,
    frequencies: np.ndarray | None = None,
) -> dict[str, Any]:
    """NELBO of texts, in nats per token: an upper bound on minus the log-likelihood, so that a causal model's loss on
    the same tokens can be set beside it.

    Counted are the tokens of the texts: not [CLS], [SEP] or an end of the text, and not unknown words ([UNK]), which
    are seen and never predicted. Texts longer than the model takes are cut into windows; each window is
    judged alone, and its number of tokens is given.

    Args:
        draws: passes, each with other tokens hidden.
        most_tokens: take texts, evenly spread over those given, until they have so many tokens; None takes all.
        frequencies: how often each token occurred in training, by id, for the rule; default in these texts themselves.

    Returns:
        nelbo (nats per token), nelbo_standard_error (of the draws; None of one), nelbo_perplexity (its exponential, a
        bound too), nelbo_bits_per_byte and nelbo_bits_per_character (None where the counted tokens do not give the
        texts back, so that they say less than the bytes do: case or white space is lost, as by a WordPiece tokenizer,
        or a token is unknown or special), nelbo_tokens, nelbo_unknown (tokens), nelbo_texts, nelbo_draws, unigram_nats
        and unigram_perplexity (of always giving each token its share), unigram_of ('training': its share of the
        training tokens, 1 added to each count; 'these texts': its share of the judged tokens themselves, which no rule
        that does not know them can do better than), intervals (95 %, over texts).
    """
    model.require_head()
    chosen = _spread(model, texts, most_tokens)
    examples, document = windows(model, chosen)
    with model.context():
        found = bound(model.model, examples, slots=model.slots, draws=draws, seed=seed)
    tokens = int(found.slots.sum())
    if not tokens:
        raise UserError("the texts hold no token to predict", hint="Give text the tokenizer knows.")
    ids = np.concatenate([e.values["token"][scorable(e)] for e in examples])
    unknown = sum(int((e.values["token"] == model.tokenizer.unk_id).sum()) for e in examples)
    owner = np.array(document)
    spread = bootstrap_mean(found.nats.mean(0) / np.maximum(found.slots, 1), owner, found.slots, seed=seed)
    if frequencies is None:
        counts = np.bincount(ids, minlength=model.tokenizer.vocab_size)
    else:
        counts = np.array(frequencies) + 1
    shares = np.log(np.maximum(counts, 1) / counts.sum())
    nats = found.per_slot
    bits, whole = nats * tokens / math.log(2), _given_back(model, chosen)
    error = found.standard_error
    return {
        "nelbo": nats,
        "nelbo_standard_error": None if math.isnan(error) else error,
        "nelbo_perplexity": math.exp(min(nats, 700.0)),
        "nelbo_bits_per_byte": bits / sum(len(t.encode("utf-8", "surrogatepass")) for t in chosen) if whole else None,
        "nelbo_bits_per_character": bits / sum(map(len, chosen)) if whole else None,
        "nelbo_tokens": tokens,
        "nelbo_unknown": unknown,
        "nelbo_texts": len(chosen),
        "nelbo_draws": draws,
        "unigram_nats": float(-shares[ids].mean()),
        "unigram_perplexity": math.exp(float(-shares[ids].mean())),
        "unigram_of": "these texts" if frequencies is None else "training",
        "intervals": plain({"nelbo": spread})["intervals"],
    }


def training_frequencies(folder: str | Path, size: int) -> np.ndarray | None:
    """How often each token occurred in the training examples of the run in a folder; None where its cache is gone."""
    cache = Path(folder) / "cache"
    if not (cache / "meta.json").exists():
        return None
    try:
        counts = TokenCache.open(cache).frequencies()
    except (UserError, OSError):
        return None
    return np.asarray(counts) if len(counts) == size else None


def _given_back(model: LoadedText, texts: Sequence[str]) -> bool:
    """Whether the tokens of the texts, none of them unknown or special, are all that is in them."""
    special = model.tokenizer.special_ids
    for text, e in zip(texts, model.tokenizer.encode(list(texts), specials=False), strict=True):
        written = model.tokenizer.decode(e.ids.tolist())
        if np.isin(e.ids, special).any() or text not in (written, written.removeprefix(" ")):
            return False
    return True


def _spread(model: LoadedText, texts: Sequence[str], most: int | None) -> list[str]:
    """Texts, evenly spread, of about `most` tokens; at least one."""
    if most is None:
        return list(texts)
    if most < 1:
        raise UserError(f"nelbo_tokens={most}", hint="Expected 1 or more.")
    # A first look at some says how many are needed; texts that take part are tokenised again with the others.
    some = texts[:: max(1, len(texts) // 64)]
    lengths = [len(ids) for ids in model.tokenizer.ids(list(some))]
    wanted = max(1, round(most / max(float(np.mean(lengths)), 1.0))) if lengths else 0
    if wanted >= len(texts):
        return list(texts)
    return [texts[int(i)] for i in np.linspace(0, len(texts) - 1, wanted)]
