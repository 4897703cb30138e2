"""Labels that are amounts (days in hospital, a laboratory value): the expected number, and an interval that holds it as
often as it should.

The head gives an expected number and how far off it may be (`Number`); the interval's width comes from how far off it
was at points of patients that it was not fitted on (split conformal prediction, Lei et al. 2018, on residuals over the
predicted deviation, for each side by itself). All of it is fitted on training labels alone.

The last value of one code in its own unit (`LastValue`) is the rule of thumb that predicted numbers are compared with,
and mixed with: which code, which rule and how much of it is what predicts held-out training patients best. So a model
is no worse than its rule of thumb, but for chance.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from unmask.errors import UserError, setting
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
    """intercept + slope * the last value of a code; in the unit of the labels.

    Attributes:
        code: of the vocabulary.
        slope, intercept: 1 and 0 carry the value itself forward.
        otherwise: what is said without any value of the code.
        weight: share of the rule in a prediction; the rest is that of the networks and trees.
    """

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
    the best line through it.

    Args:
        value: (points, codes) last values; number: (points,) labels.
    """
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
    error.

    Args:
        ours: (points,) without a rule; said: (points,) by each rule.
    """
    best = (float(((ours - number) ** 2).mean()), 0, 0.0)
    for which, rule in enumerate(predicted):
        for weight in WEIGHTS[1:]:
            error = float((((1 - weight) * ours + weight * rule - number) ** 2).mean())
            if error < best[0]:
                best = error, which, weight
    return best[1], best[2]


LEVEL = 0.9
"""Share of the points whose interval should hold the number."""
STRATA = (-0.7, 0.0, 0.7)
"""Standardised numbers between which folds are balanced."""
MOST_LOG = 5.0
"""Of the predicted deviation, on either side: of standardised numbers."""


@dataclass(frozen=True, kw_only=True)
class Number:
    """float_value, or integer_value as an amount: the expected number and its interval.

    The head works on (label - centre) / spread, and so do predictions, (points, 2): expected number, and deviation.

    Attributes:
        centre, spread: mean and deviation of the training labels.
        least: 0 where no training label is below it: then nothing below is predicted, and no interval begins there.
        level: share of new points whose interval should hold the number.
        low, high: where the interval begins and ends, in predicted deviations from the expected number; None before
            `calibrated`.
        points: that these two come from.
        rule: last value of a code that predictions are mixed with, or judged by; None where none goes with the labels.
    """

    centre: float
    spread: float
    least: float | None = None
    level: float = LEVEL
    low: float | None = None
    high: float | None = None
    points: int = 0
    rule: LastValue | None = None
    kind = "number"
    outputs = 2

    @classmethod
    def fit(cls, labels: Labels) -> Number:
        """Centre and spread of training labels.

        Raises:
            UserError: they are all alike.
        """
        assert labels.number is not None
        number = labels.number.astype(np.float64)
        spread = float(number.std())
        if not spread > 1e-12 * max(1.0, float(np.abs(number).max())):
            raise UserError(
                f"every label to train on is {number[0]:g}",
                hint=f"Give numbers that differ, or a smaller {setting('holdout')}.",
            )
        return cls(centre=float(number.mean()), spread=spread, least=0.0 if number.min() >= 0 else None)

    def encode(self, labels: Labels) -> np.ndarray:
        """(points, 1) standardised numbers."""
        assert labels.number is not None
        return ((labels.number - self.centre) / self.spread).astype(np.float32)[:, None]

    def strata(self, y: np.ndarray) -> np.ndarray:
        """What folds are balanced by: four ranges."""
        return np.digitize(y[:, 0], STRATA)

    def start(self, y: np.ndarray) -> np.ndarray:
        """(2,): mean and log deviation of standardised labels."""
        return np.array([y.mean(), np.log(max(float(y.std()), 1e-2))])

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """(members, points): half the squared error, and the normal log density's loss of the deviation alone, the
        expected
        number taken as given: so numbers that are hard to tell are not learnt less."""
        location, log_deviation = logits[..., 0], logits[..., 1].clamp(-MOST_LOG, MOST_LOG)
        error = (location - y[:, 0]) ** 2
        return error / 2 + error.detach() / 2 * torch.exp(-2 * log_deviation) + log_deviation

    def probabilities(self, logits: Tensor) -> Tensor:
        """(points, 2): the members' mean, and the deviation of their mixture."""
        location, log_deviation = logits[..., 0], logits[..., 1].clamp(-MOST_LOG, MOST_LOG)
        variance = torch.exp(2 * log_deviation).mean(0) + location.var(0, correction=0)
        return torch.stack([location.mean(0), variance.sqrt()], -1)

    def blend(self, voices: Sequence[np.ndarray]) -> np.ndarray:
        """The voices' mean; trees, (points, 1), say nothing of the deviation."""
        location = np.mean([v[:, 0] for v in voices], 0)
        return np.stack([location, np.mean([v[:, 1] for v in voices if v.shape[1] > 1], 0)], 1)

    def mixed(self, p: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        """Predictions (points, 2) with the rule's share in them; `predicted` (points,) is what the rule says, in
        its unit."""
        assert self.rule is not None
        w = self.rule.weight
        location = (1 - w) * p[:, 0] + w * (predicted - self.centre) / self.spread
        return np.concatenate([location[:, None], p[:, 1:]], 1)

    def with_rule(self, p: np.ndarray, histories: Histories, points: Labels) -> np.ndarray:
        """Predictions (points, 2) of networks and trees as the model gives them: with the share of the last value, if
        any."""
        if self.rule is None or not self.rule.weight:
            return p
        return self.mixed(p, self.rule.of(histories, points))

    def calibrated(self, p: np.ndarray, y: np.ndarray) -> Number:
        """With intervals as wide as predictions (points, 2) of numbers (points, 1) that were not fitted on ask for.

        With so few points that the share cannot be reached on a side, the interval ends where the farthest of them
        does.
        """
        score, n = np.sort((y[:, 0] - p[:, 0]) / p[:, 1]), len(p)
        tail = (1 - self.level) / 2
        first = max(int(np.floor((n + 1) * tail)), 1)
        return dataclasses.replace(self, low=float(score[first - 1]), high=float(score[n - first]), points=n)

    def expected(self, p: np.ndarray) -> np.ndarray:
        """(points,) the expected number, in its own unit."""
        return self._above(self.centre + self.spread * p[:, 0])

    def interval(self, p: np.ndarray) -> np.ndarray | None:
        """(points, 2) where the interval begins and ends; None for predictions without a deviation, or before
        `calibrated`."""
        if self.low is None or self.high is None or p.shape[1] < 2:
            return None
        ends = p[:, :1] + p[:, 1:] * np.array([[self.low, self.high]])
        return self._above(self.centre + self.spread * ends)

    def _above(self, number: np.ndarray) -> np.ndarray:
        return number if self.least is None else np.maximum(number, self.least)

    def columns(self, p: np.ndarray, labels: Labels) -> dict[str, Any]:
        """What `predict` writes: the label, the expected number, and the ends of its interval."""
        number = labels.number
        value = [None] * len(labels) if number is None else labels.nulled("number", number.astype(np.float64).tolist())
        ends = self.interval(p)
        return {
            "float_value": pl.Series(value, dtype=pl.Float64),
            "predicted_float_value": self.expected(p),
            "predicted_low": np.full(len(p), np.nan) if ends is None else ends[:, 0],
            "predicted_high": np.full(len(p), np.nan) if ends is None else ends[:, 1],
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the folder."""
        return {"kind": self.kind, **dataclasses.asdict(self)}


def judged(target: Number, p: np.ndarray) -> np.ndarray:
    """(points, 1) expected numbers, or (points, 3) with their intervals behind: what `RULES` and `COVERED` read."""
    ends = target.interval(p)
    expected = target.expected(p)[:, None]
    return expected if ends is None else np.concatenate([expected, ends], 1)


def rmse(y: np.ndarray, p: np.ndarray) -> float:
    """Root of the mean squared error."""
    return float(np.sqrt(np.mean((y - p[:, 0]) ** 2)))


def mae(y: np.ndarray, p: np.ndarray) -> float:
    """Mean of the absolute errors."""
    return float(np.abs(y - p[:, 0]).mean())


def r2(y: np.ndarray, p: np.ndarray) -> float:
    """1 - squared error over that of these points' own mean."""
    spread = float(((y - y.mean()) ** 2).sum())
    return 1 - float(((y - p[:, 0]) ** 2).sum()) / spread if spread > 0 else float("nan")


def spearman(y: np.ndarray, p: np.ndarray) -> float:
    """Rank correlation; NaN where all predictions are alike."""
    from scipy.stats import rankdata

    if np.ptp(y) == 0 or np.ptp(p[:, 0]) == 0:
        return float("nan")
    return float(np.corrcoef(rankdata(y), rankdata(p[:, 0]))[0, 1])


def coverage(y: np.ndarray, p: np.ndarray) -> float:
    """Share of the numbers within their intervals."""
    return float(((y >= p[:, 1]) & (y <= p[:, 2])).mean())


RULES = {"rmse": rmse, "mae": mae, "r2": r2, "spearman": spearman}
COVERED = {"coverage": coverage}
