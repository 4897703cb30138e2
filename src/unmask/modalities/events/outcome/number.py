"""The last value of one code in its own unit: the rule of thumb that predicted numbers are compared with, and mixed
with.

Which code, which rule and how much of it is what predicts held-out training patients best. So a model is no worse than
its rule of thumb, but for chance. All of it is fitted on training labels alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unmask.modalities.events.outcome.features import MOST_CODES
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.meds import Labels
from unmask.modalities.events.records.vocabulary import FIRST

MOST_POINTS = 20_000
"""Training points that the code is chosen by."""
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of the rule in a prediction."""
FEWEST = 3
"""Points with a value of a code below which it gives no rule."""


@dataclass(frozen=True, kw_only=True)
class LastValue:
    """intercept + slope * the last value of a code, in the unit of the labels (1 and 0 carry the value itself forward);
    `otherwise` without any value of the code. `weight` is the share of the rule in a prediction; the rest is that of
    the networks and trees."""

    code: str
    slope: float
    intercept: float
    otherwise: float
    weight: float = 0.0

    @property
    def carried(self) -> bool:
        """Whether it is the value itself."""
        return self.slope == 1 and self.intercept == 0

    @property
    def name(self) -> str:
        """As reports call it."""
        return f"{'' if self.carried else 'line through the '}last value of {self.code}"

    def predict(self, value: np.ndarray) -> np.ndarray:
        """(points,) from the code's last values, NaN where there is none."""
        return np.where(np.isfinite(value), self.intercept + self.slope * np.nan_to_num(value), self.otherwise)

    def of(self, histories: Histories, points: Labels) -> np.ndarray:
        """(points,) from what is known at each of them."""
        return self.predict(last_values_in_units(histories, points, [self.code])[:, 0])


def codes_of(histories: Histories) -> list[str]:
    """Codes with summaries that have values."""
    valued = histories.vocabulary.valued[FIRST : FIRST + MOST_CODES]
    return [c for c, v in zip(histories.vocabulary.codes[:MOST_CODES], valued.tolist(), strict=False) if v]


def last_values_in_units(histories: Histories, points: Labels, codes: Sequence[str]) -> np.ndarray:
    """(points, codes) last value of each code known at each point, as recorded; NaN where there is none."""
    vocabulary, events = histories.vocabulary, histories.events
    known = {code: number for number, code in enumerate(vocabulary.codes, start=FIRST)}
    place = np.full(FIRST + len(vocabulary.codes), -1)
    for column, code in enumerate(codes):
        if code in known:
            place[known[code]] = column
    out = np.full((len(points), len(codes)), np.nan)
    for i, (subject, moment) in enumerate(zip(points.subject.tolist(), points.time.tolist(), strict=True)):
        rows = histories.rows(subject, moment)
        column = place[histories.code[rows]]
        value = np.asarray(events.value[rows], np.float64)
        present = (column >= 0) & np.isfinite(value)
        out[i, column[present]] = value[present]  # in order of time: the last one stays
    return out


def rules(value: np.ndarray, number: np.ndarray, codes: Sequence[str]) -> list[LastValue]:
    """The code whose last value is nearest to the numbers as it is, if it is nearer than their mean, and the code with
    the best line through it; of (points, codes) last values and (points,) labels."""
    otherwise = float(number.mean())
    found: dict[str, tuple[float, LastValue]] = {}
    for column, code in enumerate(codes):
        seen = np.isfinite(value[:, column])
        if seen.sum() < FEWEST:
            continue
        x, y = value[seen, column], number[seen]
        plain = float(((y - otherwise) ** 2).sum())
        spread = x - x.mean()
        square = float((spread**2).sum())
        slope = float((spread * (y - y.mean())).sum()) / square if square > 1e-12 * max(1.0, float(x @ x)) else 0.0
        for kind, a, b in (("carried", 1.0, 0.0), ("line", slope, float(y.mean()) - slope * float(x.mean()))):
            gain = plain - float(((y - b - a * x) ** 2).sum())
            if gain > max(0.0, found[kind][0] if kind in found else 0.0) and a:
                found[kind] = gain, LastValue(code=code, slope=a, intercept=b, otherwise=otherwise)
    return [found[kind][1] for kind in ("carried", "line") if kind in found]


def nearest(ours: np.ndarray, predicted: Sequence[np.ndarray], number: np.ndarray) -> tuple[int, float]:
    """Which rule, and how much of it, comes nearest to the numbers of points that nothing was fitted on, by squared
    error; `ours` is predicted of them without a rule."""
    best = (float(((ours - number) ** 2).mean()), 0, 0.0)
    for which, rule in enumerate(predicted):
        for weight in WEIGHTS[1:]:
            error = float((((1 - weight) * ours + weight * rule - number) ** 2).mean())
            if error < best[0]:
                best = error, which, weight
    return best[1], best[2]
