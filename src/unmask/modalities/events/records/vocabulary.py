"""Codes the model knows, and the scale of each code's values: fitted on the training patients alone.

The scale is of quantiles, of many codes' values from one pass over the events in bounded memory (`QuantileSketch`):
exact for few values, sketched for many. A value is a 64-bit key: the code's number above, the float32's bits below,
turned so that keys sort as values do. Keys lie in levels; one of level h stands for 2^h values. Where a code has more
keys in a level than `capacity`, they are sorted and every second one moves a level up (Karnin, Lang, Liberty 2016, with
one capacity for all levels; which half is drawn by a hash). All codes go through the same few sorts of whole arrays.

Up to `capacity` values of a code are all kept, and its quantiles are exactly numpy's. Beyond, the rank of a quantile is
off by L / capacity of the values at the very most (L = log2(values / capacity) halvings), as a rule by about 1.4 /
capacity (one standard deviation): .14 % for 1,024. Lowest and highest value are always exact.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np

from unmask.core.hashing import Salt, hash_keys
from unmask.errors import UserError, setting
from unmask.modalities.events.records.meds import BIRTH, DEATH, OBSERVATION_END, STATIC, Events

KEYS = 1 << 24
"""Keys kept in a level, about: 128 MB."""
CAPACITY = (1024, 1 << 20)
"""Least and most values per code and level."""
_SIGN, _ALL = np.uint32(1 << 31), np.uint32((1 << 32) - 1)


class QuantileSketch:
    """Values of codes 0..codes-1, given in parts; `capacity` of a code's are kept exactly, by default from the number
    of codes."""

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


CLS, RARE, SEP, VISIT_START, VISIT_END = range(5)
"""Code numbers: the first slot of every patient, codes below the floor, and marks between visits."""
WEEKS, MONTHS, LONG = 5, 9, 21
"""CEHR-BERT's artificial time tokens: W0-W3 (below 28 days), M0-M11 (below 360 days) and LT."""
FIRST = 22
"""Where the codes of the data begin."""
TAIL = (0.001, 0.0025, 0.005, 0.01, 0.02)
LEVELS = np.r_[TAIL, np.arange(1, 32) / 32, 1 - np.array(TAIL[::-1])]
"""Shares of a code's values below its knots. The ends are robust (.1 and 99.9 %): two heart rates of 10 000 000 among
8 000 move nothing. Knots stand closer in the tails, where what is rare is asked about."""
SCALED = 4096
"""Values scaled in one go: their knots stay in the caches."""
USUALLY = 0.5
"""Share of a code's events with a value from which on `fill` takes a value for missing."""
NO_SLOTS = (BIRTH, OBSERVATION_END)
"""Codes that are facts about the record, not events of it."""
STEPS = 10
"""Parents followed upward from a rare code."""
SIZES = 8
"""Events of a time stamp that are counted; one with more counts as one of so many."""


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Numbers of codes, and quantile knots of their values.

    Attributes:
        codes: code number FIRST + i is `codes[i]`, most frequent first.
        knots: (codes + FIRST, knots) quantiles of the raw values at `LEVELS`; NaN where a code has none.
        rollup: rule that shortens codes before they are counted, see `shortened`; or 'parents'.
        share: (codes + FIRST,) share of a code's events that have a value.
        parents: with 'parents': code -> a more general one; a code that is not known stands for its nearest known one.
        visits: (2, sizes) share of the time stamps behind each patient's first that are the last one (0) or not (1) and
            have 1, 2, ... events.
        carried: (codes + FIRST,) share of the training patients who have a dated event of a code.
    """

    codes: list[str]
    knots: np.ndarray
    share: np.ndarray
    rollup: str = ""
    parents: dict[str, str] = field(default_factory=dict)
    visits: np.ndarray = field(default_factory=lambda: np.array([[0.0], [1.0]]))
    carried: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def fit(
        cls, events: Events, *, subjects: np.ndarray | None = None, floor: int = 5, most: int = 20_000, rollup: str = ""
    ) -> Vocabulary:
        """From the events of `subjects` (numbers of the training patients); default all. Codes seen fewer than `floor`
        times share one number.
        """
        parents = dict(events.parents) if rollup == "parents" else {}
        if rollup == "parents" and not parents:
            raise UserError("rollup=parents, and no parents", hint="metadata/codes.parquet needs parent_codes.")
        names = shortened(events.codes, rollup)
        chosen = np.full(len(events), subjects is None)
        chosen[slice(0) if subjects is None else subjects] = True
        seen = np.zeros(len(names), np.int64)
        for here in _parts(events, chosen):
            seen += np.bincount(events.code[here], minlength=len(names))
        counts: dict[str, int] = {}
        for name, count in zip(names, seen.tolist(), strict=True):
            if not name.startswith(NO_SLOTS):
                counts[name] = counts.get(name, 0) + count
        for _ in range(STEPS if parents else 0):  # what is rare counts for its parent
            for name in [n for n, c in counts.items() if 0 < c < floor and n in parents]:
                counts[parents[name]] = counts.get(parents[name], 0) + counts.pop(name)
        kept = sorted((n for n, c in counts.items() if c >= floor), key=lambda n: (-counts[n], n))[:most]
        if not kept:
            raise UserError(
                f"no code occurs {floor} times or more", hint=f"Lower {setting('floor')}, or give more patients."
            )
        size = len(kept) + FIRST
        knots, share = np.full((size, len(LEVELS)), np.nan), np.zeros(size)
        made = cls(codes=kept, knots=knots, share=share, rollup=rollup, parents=parents)
        number = made.numbers(events.codes)
        sketch = QuantileSketch(len(made))
        counted, with_value = np.zeros(len(made), np.int64), np.zeros(len(made), np.int64)
        for here in _parts(events, chosen):
            code, value = number[events.code[here]], events.value[here]
            sketch.add(code, value)
            counted += np.bincount(code[code >= 0], minlength=len(made))
            with_value += np.bincount(code[(code >= 0) & np.isfinite(value)], minlength=len(made))
        made.knots[FIRST:] = sketch.quantiles(LEVELS)[FIRST:]
        visits, carried = _visits(events, number, chosen, len(made))
        return dataclasses.replace(made, share=with_value / np.maximum(counted, 1), visits=visits, carried=carried)

    def __len__(self) -> int:
        return len(self.codes) + FIRST

    @cached_property
    def valued(self) -> np.ndarray:
        """(codes,) whether a code carries values."""
        return np.isfinite(self.knots[:, 0])

    def at(self, code: int, level: float) -> float:
        """The value of a code that this share of its values lies below."""
        return float(np.interp(level, LEVELS, self.knots[code]))

    def beyond(self, code: int, cut: float, side: int) -> float:
        """The share of a code's values above (`side` 1) or below (-1) a value; half the share beyond the last knot
        where it lies there."""
        knots = self.knots[code]
        same = LEVELS[knots == cut]  # a value that many have: none of them is beyond itself
        ends = same[[0, -1]] if len(same) else np.interp([cut, cut], knots, LEVELS)
        return float(max(1 - ends[1] if side > 0 else ends[0], LEVELS[0] / 2))

    @property
    def usual(self) -> np.ndarray:
        """(codes,) whether a code usually has a value: half of its training events or more."""
        return self.valued & (self.share >= USUALLY)

    @cached_property
    def _lines(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(codes, knots) distinct knots, then infinity; the scores in the middle of them; (codes,) how many
        they are."""
        starts = np.ones(self.knots.shape, bool)
        starts[:, 1:] = self.knots[:, 1:] != self.knots[:, :-1]
        row, first = np.nonzero(starts)
        place = np.cumsum(starts, 1)[row, first] - 1
        last = np.r_[first[1:], 0]
        last = np.where(np.r_[row[1:] == row[:-1], False], last, len(LEVELS)) - 1
        low, middle = np.full(self.knots.shape, np.inf), np.zeros(self.knots.shape)
        low[row, place] = self.knots[row, first]
        middle[row, place] = _normal((LEVELS[first] + LEVELS[last]) / 2)
        return low, middle, starts.sum(1)

    def numbers(self, codes: list[str]) -> np.ndarray:
        """Number of each code; RARE where unknown, -1 for birth, the origin of age, and for the end of
        observation, which are no slots."""
        table = {c: i + FIRST for i, c in enumerate(self.codes)}
        out = np.full(len(codes), RARE, np.int64)
        for i, name in enumerate(shortened(codes, self.rollup)):
            if name.startswith(NO_SLOTS):
                out[i] = -1
                continue
            for _ in range(STEPS + 1):
                if name in table:
                    out[i] = table[name]
                if name in table or name not in self.parents:
                    break
                name = self.parents[name]
        return out

    def scale(self, code: np.ndarray, value: np.ndarray) -> np.ndarray:
        """Raw values -> normal scores (piecewise linear between quantiles); NaN stays, and where a code has no scale or
        is -1.

        All codes at once, each with the arithmetic of `numpy.interp`: the cost does not grow with the number of codes.
        """
        out = np.full(len(code), np.nan, np.float32)
        low, middle, count = self._lines
        for start in range(0, len(code), SCALED):
            here = slice(start, start + SCALED)
            good = np.isfinite(value[here]) & (code[here] >= 0) & self.valued[code[here]]
            c, x = np.asarray(code[here])[good], np.asarray(value[here], np.float64)[good]
            of_code = low[c]
            below = (of_code <= x[:, None]).sum(1) - 1  # the last knot not above x
            last = count[c] - 1
            row, i = np.arange(len(c)), np.clip(below, 0, np.maximum(last - 1, 0))
            j = np.minimum(i + 1, last)
            left, height = of_code[row, i], middle[c, i]
            with np.errstate(invalid="ignore"):
                line = (middle[c, j] - height) / (of_code[row, j] - left) * (x - left) + height
            on = (below < 0) | (below >= last) | (x == of_code[row, np.maximum(below, 0)])
            out[here][good] = np.where(on, middle[c, np.maximum(below, 0)], line)
        return out

    def unscale(self, code: int, score: np.ndarray) -> np.ndarray:
        """Normal scores -> raw values of one code."""
        return np.interp(score, SCORES, self.knots[code])

    def to_dict(self) -> dict[str, Any]:
        """As plain data, what a model's folder keeps."""
        knots = [None if not ok else row.tolist() for ok, row in zip(self.valued, self.knots, strict=True)]
        about = {"codes": self.codes, "knots": knots, "rollup": self.rollup, "parents": self.parents}
        return about | {k: getattr(self, k).tolist() for k in ("share", "visits", "carried")}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Vocabulary:
        """From what `to_dict` gave."""
        knots = np.array([[np.nan] * len(LEVELS) if row is None else row for row in data["knots"]])
        rest = {k: np.array(data[k]) for k in ("share", "visits", "carried")}
        return cls(codes=list(data["codes"]), knots=knots, rollup=data["rollup"], parents=data["parents"], **rest)


def _normal(levels: np.ndarray) -> np.ndarray:
    """Standard normal quantiles."""
    return np.array([NormalDist().inv_cdf(level) for level in levels.tolist()])


SCORES = _normal(LEVELS)
"""(knots,) normal scores of the knots."""


def _parts(events: Events, chosen: np.ndarray) -> Iterator[np.ndarray | slice]:
    """The events of the `chosen` subjects, some at a time."""
    for owners, here in events.blocks():
        wanted = chosen[events.owner(owners)]
        yield here if wanted.all() else here.start + np.flatnonzero(wanted)


def _visits(events: Events, number: np.ndarray, chosen: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """(2, sizes) and (size,): see `Vocabulary.visits` and `carried`; `number` is that of each code."""
    out, carried = np.zeros((2, SIZES)), np.zeros(size)
    for owners, here in events.blocks():
        owner, time = events.owner(owners), events.time[here]
        kept = chosen[owner] & (time != STATIC) & (number[events.code[here]] >= 0)
        owner, time = owner[kept], time[kept]
        pairs = np.unique(owner.astype(np.int64) * size + number[events.code[here]][kept])
        carried += np.bincount(pairs % size, minlength=size)
        begin = np.flatnonzero((np.diff(owner, prepend=-1) != 0) | (np.diff(time, prepend=STATIC) != 0))
        length, owner = np.minimum(np.diff(begin, append=len(time)), SIZES), owner[begin]
        follows = np.diff(owner, prepend=-1) == 0
        followed = (np.diff(owner, append=-1) == 0).astype(np.int64)
        np.add.at(out, (followed[follows], length[follows] - 1), 1)
    return out / out.sum() if out.any() else np.eye(2, SIZES, -1), carried / max(1, chosen.sum())


def shortened(codes: list[str], rule: str) -> list[str]:
    """Codes by a rule: 'parts:2' keeps the first two parts between //, 'characters:3' three characters of the last.
    Birth and death have names of their own, and keep them.

    >>> shortened(["DIAGNOSIS//ICD10//E119"], "characters:3")
    ['DIAGNOSIS//ICD10//E11']
    """
    if rule in ("", "parents"):
        return list(codes)
    kind, _, number = rule.partition(":")
    if kind not in ("parts", "characters") or not number.isdigit() or not int(number):
        raise UserError(f"rollup={rule}", hint="Expected parts:N, characters:N or parents.")
    keep = int(number)

    def short(code: str) -> str:
        if code.startswith((*NO_SLOTS, DEATH)):
            return code
        if kind == "parts":
            return "//".join(code.split("//")[:keep])
        head, between, last = code.rpartition("//")
        return head + between + last[:keep]

    return [short(code) for code in codes]
