"""Some of many texts, whatever order they stand in."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable

import numpy as np

from unmask.core.hashing import Salt, hash_keys

PART = 1024
"""Texts whose keys are drawn at a time."""


def drawn(texts: Iterable[str], most: int, *, seed: int = 0) -> tuple[list[str], int]:
    """At most `most` texts, drawn by `seed` in one pass and given in their order; and how many there are.

    >>> drawn(["a", "b", "c"], 5)
    (['a', 'b', 'c'], 3)
    """
    kept: list[tuple[int, int, str]] = []  # a heap of the smallest keys, the largest of them on top
    there, rest = 0, iter(texts)
    while part := list(itertools.islice(rest, PART)):
        keys = hash_keys(seed, np.arange(there, there + len(part)), Salt.JUDGED_DOCUMENT).tolist()
        for place, (key, text) in enumerate(zip(keys, part, strict=True), start=there):
            if len(kept) < most:
                heapq.heappush(kept, (-key, place, text))
            elif -key > kept[0][0]:
                heapq.heapreplace(kept, (-key, place, text))
        there += len(part)
    return [text for _, _, text in sorted(kept, key=lambda one: one[1])], there
