"""Some of many texts, whatever order they stand in."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable

import numpy as np

from unmask.core.hashing import Salt, hash_keys

PART = 1024
"""Texts whose keys are drawn at a time."""
LOOKED_AT = 100_000
"""Texts that some are drawn of; the rest of a larger corpus, which may be a terabyte on a hub, is not read."""


def drawn(texts: Iterable[str], most: int, *, seed: int = 0, of: int = LOOKED_AT) -> tuple[list[str], str]:
    """At most `most` texts of the first `of`, drawn by `seed` in one pass and given in their order; and which were left
    out, in words, '' where none was.

    >>> drawn(["a", "b", "c"], 5)
    (['a', 'b', 'c'], '')
    >>> drawn("abcdef", 2, of=4)
    (['a', 'b'], '2 of the first 4 texts, drawn by the seed')
    """
    of = max(of, most)
    kept: list[tuple[int, int, str]] = []  # a heap of the smallest keys, the largest of them on top
    there, unread = 0, iter(texts)
    rest = itertools.islice(unread, of)
    while part := list(itertools.islice(rest, PART)):
        keys = hash_keys(seed, np.arange(there, there + len(part)), Salt.JUDGED_DOCUMENT).tolist()
        for place, (key, text) in enumerate(zip(keys, part, strict=True), start=there):
            if len(kept) < most:
                heapq.heappush(kept, (-key, place, text))
            elif -key > kept[0][0]:
                heapq.heapreplace(kept, (-key, place, text))
        there += len(part)
    cut = next(unread, None) is not None
    left_out = f"{len(kept):,} of {'the first ' if cut else ''}{there:,} texts, drawn by the seed"
    return [text for _, _, text in sorted(kept, key=lambda one: one[1])], left_out if cut or there > most else ""
