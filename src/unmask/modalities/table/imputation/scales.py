"""Scales on which a skewed column is about normal: powers of the distance from one of its ends (Box & Cox 1964)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from unmask.modalities.table.schema.schema import Column

POWERS = (0.0, 0.125, 0.25, 0.375, 0.5)
REACH = 2.0
"""Deviations beyond the observed ends, on the scale, that drawn values may reach: exponentials grow without bound."""
SPIKE, DISTINCT = 0.05, 20
"""A single value that a larger share of the cells has is no part of a continuous distribution, which has so many
distinct values at least."""


@dataclass(frozen=True, kw_only=True)
class MonotoneScale:
    """A monotone scale of a column.

    Attributes:
        end: where distances are counted from: 0, or a little beyond the least (or greatest) value.
        sign: 1 for distances above `end`, -1 below.
        power: 0 for the logarithm.
        unit: that distances are divided by.
        low, high: how far drawn values may go, on the scale, counted from `end`.
    """

    end: float
    sign: float
    power: float
    unit: float
    low: float = -np.inf
    high: float = np.inf

    def to(self, x: np.ndarray) -> np.ndarray:
        """Values on the scale; rising with x."""
        log = np.log(np.maximum(self.sign * (x - self.end), 1e-300) / self.unit)
        return self.sign * (np.expm1(self.power * log) / self.power if self.power else log)

    def back(self, z: np.ndarray) -> np.ndarray:
        """The values that `to` made z of; z is cut off at the ends of the scale."""
        z = self.sign * np.clip(z, self.low, self.high)
        ratio = np.maximum(1 + self.power * z, 0) ** (1 / self.power) if self.power else np.exp(z)
        return self.end + self.sign * self.unit * ratio

    def log_slope(self, x: np.ndarray) -> np.ndarray:
        """Logarithm of the derivative of `to`."""
        log = np.log(np.maximum(self.sign * (x - self.end), 1e-300) / self.unit)
        return (self.power - 1) * log - np.log(self.unit)

    @property
    def words(self) -> str:
        what = "logarithm" if not self.power else f"power {self.power:.2g}"
        if self.sign > 0 and not self.end:
            return f"its {what}"
        return f"the {what} of its distance {'above' if self.sign > 0 else 'below'} {self.end:.4g}"


def spike(x: np.ndarray) -> float | None:
    """The single value that many cells of an otherwise continuous column have, out of proportion to any other."""
    values, counts = np.unique(x, return_counts=True)
    if len(values) <= DISTINCT or counts.max() <= max(SPIKE * len(x), 2 * np.partition(counts, -2)[-2]):
        return None
    return float(values[counts.argmax()])


def best_scale(x: np.ndarray, predictors: np.ndarray) -> MonotoneScale | None:
    """The scale on which a complete column is likeliest under a normal linear regression; None where it is its own.
    `predictors`: (rows, predictors) of that regression, the first the constant 1."""
    return best_regression(x, [predictors])[1]


def best_regression(x: np.ndarray, designs: Sequence[np.ndarray]) -> tuple[int, MonotoneScale | None]:
    """Which of several designs a complete column has the likeliest normal linear regression on, and on which scale of
    its own."""
    low, high = float(x.min()), float(x.max())
    margin = (high - low) / len(x)
    below = 0.0 if low > 0 else low - margin
    scales = [scale_from(x, end, sign, p) for end, sign in ((below, 1.0), (high + margin, -1.0)) for p in POWERS]
    columns = [x, *(scale.to(x) for scale in scales)]
    heights = np.array([_heights(columns, predictors) for predictors in designs])
    heights[:, 1:] += [scale.log_slope(x).sum() for scale in scales]
    design, best = np.unravel_index(heights.argmax(), heights.shape)
    return int(design), scales[best - 1] if best else None


def draw_scale(
    scale: MonotoneScale, x: np.ndarray, seen: np.ndarray, predictors: np.ndarray, rng: np.random.Generator
) -> MonotoneScale:
    """The scale with its power drawn from the posterior (a grid, given estimates of the regression) that a completed
    column leaves, and the reach that its observed values allow."""
    scales = [replace(scale, power=power) for power in POWERS]
    heights = _heights([s.to(x) for s in scales], predictors) + [s.log_slope(x).sum() for s in scales]
    share = np.exp(heights - heights.max())
    drawn = scales[int(rng.choice(len(scales), p=share / share.sum()))]
    z = drawn.sign * drawn.to(x[seen])
    reach = REACH * float(z.std())
    return replace(drawn, low=float(z.min()) - reach, high=float(z.max()) + reach)


def written(x: np.ndarray, column: Column) -> tuple[np.ndarray, int]:
    """Values at the column's precision and within the bounds a person gave; and how many were outside."""
    if column.decimals is not None:
        x = np.round(x, column.decimals)
    low, high = column.bounds
    return np.clip(x, low, high), int(((x < low) | (x > high)).sum())


def scale_from(x: np.ndarray, end: float, sign: float, power: float) -> MonotoneScale:
    """The scale of distances from an end, divided by their geometric mean."""
    return MonotoneScale(end=end, sign=sign, power=power, unit=float(np.exp(np.log(sign * (x - end)).mean())))


def _heights(columns: Sequence[np.ndarray], predictors: np.ndarray) -> np.ndarray:
    """The largest log-likelihood of each column's normal linear regression, but for a constant."""
    z = np.column_stack(columns)
    spread = np.maximum(z.std(0), 1e-300)
    z = (z - z.mean(0)) / spread
    gram = predictors.T @ predictors
    rest = z - predictors @ np.linalg.solve(gram + np.diag(1e-9 * np.diag(gram) + 1e-12), predictors.T @ z)
    return -0.5 * len(z) * np.log(np.maximum((rest**2).mean(0), 1e-300)) - len(z) * np.log(spread)
