"""Which texts were met already, in 8 bytes each: exact copies are left out of corpora of any size."""

from __future__ import annotations

import hashlib

import numpy as np


class Seen:
    """64-bit hashes of texts: the latest in a set, all before them in one sorted array.

    A set alone takes some 70 bytes per text: 700 MB for ten million.

    Args:
        latest: how many the set holds before they are sorted into the array.

    >>> seen = Seen()
    >>> seen.add(b"once"), seen.add(b"once")
    (True, False)
    """

    def __init__(self, latest: int = 1 << 18) -> None:
        self._limit = latest
        self._latest: set[int] = set()
        self._before = np.zeros(0, np.uint64)

    def add(self, text: bytes) -> bool:
        """Remember a text; whether it is new."""
        mark = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
        if mark in self._latest:
            return False
        if len(self._before):
            place = int(np.searchsorted(self._before, np.uint64(mark)))
            if place < len(self._before) and int(self._before[place]) == mark:
                return False
        self._latest.add(mark)
        if len(self._latest) >= self._limit:
            new = np.sort(np.fromiter(self._latest, np.uint64, len(self._latest)))
            # Two sorted stretches: the stable sort merges them.
            self._before = np.sort(np.concatenate([self._before, new]), kind="stable")
            self._latest.clear()
        return True
