"""A bound on the likelihood of texts under a masked model (NELBO), beside what a rule without a model gives them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.core.score import bound, scorable
from unmask.errors import UserError
from unmask.evaluation.metrics import bootstrap_mean, plain

if TYPE_CHECKING:
    from unmask.modalities.text.uses.evaluate import Predictor

DRAWS = 4
TOKENS = 16_384
"""Tokens of the texts that the bound is estimated on by default: with four draws it costs about as much as hiding 15 %
of 100 000 tokens."""


def likelihood(
    model: Predictor,
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
    are seen and never predicted. Texts longer than the model takes are cut into windows, as in training; each window is
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
    from unmask.modalities.text.uses.evaluate import windows

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
    from unmask.modalities.text.tokens.cache import TokenCache

    try:
        counts = TokenCache.open(cache).frequencies()
    except (UserError, OSError):
        return None
    return np.asarray(counts) if len(counts) == size else None


def _given_back(model: Predictor, texts: Sequence[str]) -> bool:
    """Whether the tokens of the texts, none of them unknown or special, are all that is in them."""
    special = model.tokenizer.special_ids
    for text, e in zip(texts, model.tokenizer.encode(list(texts), specials=False), strict=True):
        written = model.tokenizer.decode(e.ids.tolist())
        if np.isin(e.ids, special).any() or text not in (written, written.removeprefix(" ")):
            return False
    return True


def _spread(model: Predictor, texts: Sequence[str], most: int | None) -> list[str]:
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
