"""Quantiles of many codes' values from one pass over the events, in bounded memory: exact for few values, sketched for
many.

A value is a 64-bit key: the code's number above, the float32's bits below, turned so that keys sort as values do. Keys
lie in levels; one of level h stands for 2^h values. Where a code has more keys in a level than `capacity`, they are
sorted and every second one moves a level up (Karnin, Lang, Liberty 2016, with one capacity for all levels; which half
is drawn by a hash). All
codes go through the same few sorts of whole arrays: 20,000 codes cost what 300 do.

Up to `capacity` values of a code are all kept, and its quantiles are exactly numpy's. Beyond, the rank of a quantile is
off by L / capacity of the values at the very most (L = log2(values / capacity) halvings), as a rule by about 1.4 /
capacity (one standard deviation): .14 % for 1,024, where knots lie 3.1 % apart in the middle. Lowest and highest value
are always exact.
"""

from __future__ import annotations

import numpy as np

from unmask.core.hashing import Salt, hash_keys

KEYS = 1 << 24
"""Keys kept in a level, about: 128 MB."""
CAPACITY = (1024, 1 << 20)
"""Least and most values per code and level."""
_SIGN, _ALL = np.uint32(1 << 31), np.uint32((1 << 32) - 1)


class QuantileSketch:
    """Values of codes 0..codes-1, given in parts.

    Args:
        codes: how many there are.
        capacity: values of a code that are kept exactly; default from the number of codes.
    """

    def __init__(self, codes: int, capacity: int | None = None) -> None:
        least, most = CAPACITY
        self.capacity = min(most, max(least, KEYS // max(codes, 1))) if capacity is None else capacity
        self.codes = codes
        self.low, self.high = np.full(codes, np.inf), np.full(codes, -np.inf)
        self.levels: list[np.ndarray] = [np.zeros(0, np.uint64)]
        self._halvings = 0

    def add(self, code: np.ndarray, value: np.ndarray) -> None:
        """Values (float32) of these codes; those that are not finite, or of a code below 0, are left out."""
        good = np.isfinite(value) & (code >= 0)
        keys = np.sort(keys_of(code[good], value[good]))
        if not len(keys):
            return
        owner, first, last = _groups(keys)
        self.low[owner] = np.minimum(self.low[owner], values_of(keys[first]))
        self.high[owner] = np.maximum(self.high[owner], values_of(keys[last]))
        level = 0
        while len(keys):
            if level == len(self.levels):
                self.levels.append(np.zeros(0, np.uint64))
            here = self.levels[level]
            keys = np.sort(np.concatenate([here, keys])) if len(here) else keys
            self.levels[level], keys = self._halved(keys)
            level += 1

    def _halved(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What of a level's sorted keys stays, and what moves up."""
        owner, first, last = _groups(keys)
        size = last - first + 1
        full = size > self.capacity
        if not full.any():
            return keys, np.zeros(0, np.uint64)
        self._halvings += 1
        half = (hash_keys(self._halvings, owner, Salt.SKETCH_HALF) & np.uint64(1)).astype(np.int64)
        place = np.arange(len(keys)) - np.repeat(first, size)
        # Of an odd number the last one stays.
        moved = np.repeat(full, size) & (place < np.repeat(size // 2 * 2, size))
        up = moved & (place % 2 == np.repeat(half, size))
        return keys[~moved], keys[up]

    def quantiles(self, shares: np.ndarray) -> np.ndarray:
        """(codes, shares) quantiles, as `numpy.quantile` interpolates them; NaN where a code has no value."""
        keys = np.concatenate(self.levels)
        weight = np.repeat(2 ** np.arange(len(self.levels), dtype=np.int64), [len(part) for part in self.levels])
        out = np.full((self.codes, len(shares)), np.nan)
        if not len(keys):
            return out
        if len(self.levels) > 1:
            order = np.argsort(keys, kind="stable")
            keys, weight = keys[order], weight[order]
        owner, first, last = _groups(keys)
        value = values_of(keys)
        exact = np.maximum.reduceat(weight, first) == 1
        out[owner[exact]] = _exact(value, first[exact], (last - first + 1)[exact], shares)
        for i in np.flatnonzero(~exact):
            here = slice(first[i], last[i] + 1)
            before = np.cumsum(weight[here]) - weight[here]
            total = int(weight[here].sum())
            place = np.r_[0, before + (weight[here] - 1) / 2, total - 1]
            known = np.r_[self.low[owner[i]], value[here], self.high[owner[i]]]
            out[owner[i]] = np.interp(np.asarray(shares) * (total - 1), place, known)
        return out


def keys_of(code: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Keys that sort by code, then value."""
    bits = np.ascontiguousarray(value, np.float32).view(np.uint32)
    bits = bits ^ np.where(bits & _SIGN, _ALL, _SIGN)
    return (code.astype(np.uint64) << np.uint64(32)) | bits


def values_of(keys: np.ndarray) -> np.ndarray:
    """The values of keys, in double precision."""
    bits = (keys & np.uint64(_ALL)).astype(np.uint32)
    return (bits ^ np.where(bits & _SIGN, _SIGN, _ALL)).view(np.float32).astype(np.float64)


def _groups(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of sorted keys: the codes, and where each begins and ends (inclusive)."""
    code = (keys >> np.uint64(32)).astype(np.int64)
    first = np.flatnonzero(np.r_[True, code[1:] != code[:-1]]) if len(code) else np.zeros(0, np.int64)
    return code[first], first, np.r_[first[1:], len(code)] - 1 if len(code) else first


def _exact(value: np.ndarray, first: np.ndarray, size: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """(groups, shares): numpy's linear quantiles, to the bit, of groups of sorted values."""
    place = (size[:, None] - 1) * np.asarray(shares)[None]
    below = np.floor(place).astype(np.int64)
    above = np.minimum(below + 1, size[:, None] - 1)
    a, b, t = value[first[:, None] + below], value[first[:, None] + above], place - below
    return np.where(t >= 0.5, b - (b - a) * (1 - t), a + (b - a) * t)
