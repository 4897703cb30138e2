"""Codes the model knows, and the scale of each code's values: fitted on the training patients alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.events.meds import BIRTH, Events

CLS, RARE, SEP, VISIT_START, VISIT_END = range(5)
"""Code numbers: the first slot of every patient, codes below the floor, and marks between visits."""
WEEKS, MONTHS, LONG = 5, 9, 21
"""CEHR-BERT's artificial time tokens: W0-W3 (below 28 days), M0-M11 (below 360 days) and LT."""
FIRST = 22
"""Where the codes of the data begin."""
KNOTS = 33


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Numbers of codes, and quantile knots of their values.

    Attributes:
        codes: code number FIRST + i is `codes[i]`, most frequent first.
        knots: (codes + FIRST, KNOTS) quantiles of the raw values; NaN where a code has none.
    """

    codes: list[str]
    knots: np.ndarray

    @classmethod
    def fit(cls, events: Events, rows: np.ndarray, *, floor: int = 5, most: int = 20_000) -> Vocabulary:
        """From the events in `rows` (training patients'). Codes seen fewer than `floor` times share one number."""
        counts = np.bincount(events.code[rows], minlength=len(events.codes))
        order = np.argsort(-counts, kind="stable")
        kept = [int(c) for c in order if counts[c] >= floor and not events.codes[c].startswith(BIRTH)][:most]
        if not kept:
            raise UserError(f"no code occurs {floor} times or more", hint="Lower floor=, or give more patients.")
        knots = np.full((len(kept) + FIRST, KNOTS), np.nan)
        code, value = events.code[rows], events.value[rows]
        order = np.argsort(code, kind="stable")
        edges = np.searchsorted(code[order], np.arange(len(events.codes) + 1))
        for number, c in enumerate(kept):
            found = value[order[edges[c] : edges[c + 1]]]
            found = found[np.isfinite(found)]
            if len(found):
                knots[number + FIRST] = np.quantile(found.astype(np.float64), np.linspace(0, 1, KNOTS))
        return cls(codes=[events.codes[c] for c in kept], knots=knots)

    def __len__(self) -> int:
        return len(self.codes) + FIRST

    @cached_property
    def valued(self) -> np.ndarray:
        """(codes,) whether a code carries values."""
        return np.isfinite(self.knots[:, 0])

    @cached_property
    def _scores(self) -> np.ndarray:
        normal = NormalDist()
        return np.array([normal.inv_cdf((i + 0.5) / KNOTS) for i in range(KNOTS)])

    def numbers(self, codes: list[str]) -> np.ndarray:
        """Number of each code; RARE where unknown, -1 for birth, which is the origin of age and no slot."""
        table = {c: i + FIRST for i, c in enumerate(self.codes)}
        return np.array([-1 if c.startswith(BIRTH) else table.get(c, RARE) for c in codes], np.int64)

    def scale(self, code: np.ndarray, value: np.ndarray) -> np.ndarray:
        """Raw values -> normal scores (piecewise linear between quantiles); NaN stays, and where a code has no scale."""
        out = np.full(len(code), np.nan, np.float32)
        good = np.isfinite(value) & self.valued[code]
        for c in np.unique(code[good]):
            here = good & (code == c)
            knots = self.knots[c]
            low, first = np.unique(knots, return_index=True)
            last = np.r_[first[1:], KNOTS] - 1
            middle = (self._scores[first] + self._scores[last]) / 2
            out[here] = np.interp(value[here], low, middle)
        return out

    def unscale(self, code: int, score: np.ndarray) -> np.ndarray:
        """Normal scores -> raw values of one code."""
        return np.interp(score, self._scores, self.knots[code])

    def to_dict(self) -> dict[str, Any]:
        knots = [None if not ok else row.tolist() for ok, row in zip(self.valued, self.knots, strict=True)]
        return {"codes": self.codes, "knots": knots}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Vocabulary:
        knots = np.array([[np.nan] * KNOTS if row is None else row for row in data["knots"]])
        return cls(codes=list(data["codes"]), knots=knots)
