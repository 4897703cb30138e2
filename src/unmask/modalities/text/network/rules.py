"""What rules without a model score on hidden tokens: what every figure of a text model is judged beside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from unmask.modalities.text.tokens.cache import TokenCache

MOST_TOKENS = 2_000_000
"""Held-out tokens that a rule is judged on: a share of that many is known to a tenth of a percent."""


COUNTED = 16_000_000
"""Training tokens, about, of which the most frequent is sought."""


def most_frequent_token(frequencies: np.ndarray, special_ids: Sequence[int] | np.ndarray) -> int:
    """The token that occurs most often, special ones apart."""
    counts = np.array(frequencies, np.int64)
    counts[np.asarray(special_ids, np.int64)] = -1
    return int(counts.argmax())


def most_frequent_share(cache: TokenCache, special_ids: Sequence[int] | np.ndarray) -> float:
    """Accuracy on the held-out tokens of always guessing the most frequent training token; NaN without any."""
    if not len(cache.validation):
        return float("nan")
    special = np.asarray(special_ids, np.int64)
    best = most_frequent_token(cache.frequencies(most=COUNTED), special)
    right = total = 0
    for ids in _taken(cache, np.asarray(cache.validation), MOST_TOKENS):
        ids = ids[~np.isin(ids, special)]
        right, total = right + int((ids == best).sum()), total + len(ids)
    return right / total if total else float("nan")


def most_likely_after(cache: TokenCache, special_ids: Sequence[int] | np.ndarray, most: int = MOST_TOKENS) -> float:
    """Accuracy on the held-out tokens of guessing, for each, what followed the token before it most often in training,
    and the most frequent token where nothing did; NaN without any.

    Args:
        most: training tokens that are counted, the first ones.
    """
    special = np.asarray(special_ids, np.int64)
    size = int(cache.meta["vocabulary"])
    pairs = list(_taken(cache, np.asarray(cache.train), most))
    before, after = (np.concatenate([ids[part] for ids in pairs]) for part in (slice(None, -1), slice(1, None)))
    known = ~np.isin(after, special)
    key, count = np.unique(before[known].astype(np.int64) * size + after[known], return_counts=True)
    order = np.argsort(count, kind="stable")  # of each first token the most frequent second one is written last
    best = np.full(size, most_frequent_token(cache.frequencies(), special))
    best[key[order] // size] = key[order] % size
    right = total = 0
    for ids in _taken(cache, np.asarray(cache.validation), MOST_TOKENS):
        judged = ~np.isin(ids[1:], special)
        right, total = right + int((best[ids[:-1]] == ids[1:])[judged].sum()), total + int(judged.sum())
    return right / total if total else float("nan")


def _taken(cache: TokenCache, numbers: np.ndarray, most: int) -> Iterator[np.ndarray]:
    """The tokens of examples, until there are so many."""
    total = 0
    for number in numbers:
        ids = cache.example(int(number))[0].astype(np.int64)
        total += len(ids)
        yield ids
        if total >= most:
            return
