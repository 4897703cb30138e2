"""Codes the model knows, and the scale of each code's values: fitted on the training patients alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np

from unmask.errors import UserError, setting
from unmask.modalities.events.records.meds import BIRTH, DEATH, OBSERVATION_END, Events
from unmask.modalities.events.records.sketch import QuantileSketch

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
BLOCK = 1 << 20
"""Events looked at in one go."""
SCALED = 4096
"""Values scaled in one go: their knots stay in the caches."""
USUALLY = 0.5
"""Share of a code's events with a value from which on `fill` takes a value for missing."""
NO_SLOTS = (BIRTH, OBSERVATION_END)
"""Codes that are facts about the record, not events of it."""
STEPS = 10
"""Parents followed upward from a rare code."""


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Numbers of codes, and quantile knots of their values.

    Attributes:
        codes: code number FIRST + i is `codes[i]`, most frequent first.
        knots: (codes + FIRST, knots) quantiles of the raw values at `LEVELS`; NaN where a code has none.
        rollup: rule that shortens codes before they are counted, see `shortened`; or 'parents'.
        share: (codes + FIRST,) share of a code's events that have a value.
        parents: with 'parents': code -> a more general one; a code that is not known stands for its nearest known one.
    """

    codes: list[str]
    knots: np.ndarray
    share: np.ndarray
    rollup: str = ""
    parents: dict[str, str] = field(default_factory=dict)

    @classmethod
    def fit(
        cls,
        events: Events,
        rows: np.ndarray | None = None,
        *,
        subjects: np.ndarray | None = None,
        floor: int = 5,
        most: int = 20_000,
        rollup: str = "",
    ) -> Vocabulary:
        """From the events of `subjects` (numbers of the training patients), or those in `rows`; default all. Codes seen
        fewer than `floor` times share one number.
        """
        parents = dict(events.parents) if rollup == "parents" else {}
        if rollup == "parents" and not parents:
            raise UserError("rollup=parents, and no parents", hint="metadata/codes.parquet needs parent_codes.")
        names = shortened(events.codes, rollup)
        seen = np.zeros(len(names), np.int64)
        for here in _parts(events, rows, subjects):
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
        counted, told = np.zeros(len(made), np.int64), np.zeros(len(made), np.int64)
        for here in _parts(events, rows, subjects):
            code, value = number[events.code[here]], events.value[here]
            sketch.add(code, value)
            counted += np.bincount(code[code >= 0], minlength=len(made))
            told += np.bincount(code[(code >= 0) & np.isfinite(value)], minlength=len(made))
        made.knots[FIRST:] = sketch.quantiles(LEVELS)[FIRST:]
        return dataclasses.replace(made, share=told / np.maximum(counted, 1))

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
            mine = low[c]
            below = (mine <= x[:, None]).sum(1) - 1  # the last knot not above x
            last = count[c] - 1
            row, i = np.arange(len(c)), np.clip(below, 0, np.maximum(last - 1, 0))
            j = np.minimum(i + 1, last)
            left, height = mine[row, i], middle[c, i]
            with np.errstate(invalid="ignore"):
                line = (middle[c, j] - height) / (mine[row, j] - left) * (x - left) + height
            on = (below < 0) | (below >= last) | (x == mine[row, np.maximum(below, 0)])
            out[here][good] = np.where(on, middle[c, np.maximum(below, 0)], line)
        return out

    def unscale(self, code: int, score: np.ndarray) -> np.ndarray:
        """Normal scores -> raw values of one code."""
        return np.interp(score, SCORES, self.knots[code])

    def to_dict(self) -> dict[str, Any]:
        """As plain data, what a model's folder keeps."""
        knots = [None if not ok else row.tolist() for ok, row in zip(self.valued, self.knots, strict=True)]
        about = {"codes": self.codes, "knots": knots, "rollup": self.rollup, "parents": self.parents}
        return about | {"share": self.share.tolist()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Vocabulary:
        """From what `to_dict` gave."""
        knots = np.array([[np.nan] * len(LEVELS) if row is None else row for row in data["knots"]])
        rest = {"rollup": data["rollup"], "parents": data["parents"]}
        return cls(codes=list(data["codes"]), knots=knots, share=np.array(data["share"]), **rest)


def _normal(levels: np.ndarray) -> np.ndarray:
    """Standard normal quantiles."""
    return np.array([NormalDist().inv_cdf(level) for level in levels.tolist()])


SCORES = _normal(LEVELS)
"""(knots,) normal scores of the knots."""


def _parts(events: Events, rows: np.ndarray | None, subjects: np.ndarray | None) -> Iterator[np.ndarray | slice]:
    """The events that a vocabulary is fitted on, some at a time."""
    if rows is not None:
        yield from (rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK))
        return
    asked = np.ones(len(events), bool)
    if subjects is not None:
        asked[:] = False
        asked[subjects] = True
    for owners, here in events.blocks(BLOCK):
        chosen = np.repeat(asked[owners], np.diff(events.offsets[owners.start : owners.stop + 1]))
        yield here if chosen.all() else here.start + np.flatnonzero(chosen)


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
