"""A quantity for every pixel, such as a height or a density, where `legend` has classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from unmask.errors import UserError, option
from unmask.modalities.images.segment.figures import quantity_figures, quantity_sums
from unmask.modalities.images.segment.legend import Legend

FAR = 10
"""A least or greatest value this many times the others' range away from them marks pixels that were not measured."""


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """What the numbers of masks mean that are no classes, in their own unit.

    Attributes:
        mean, deviation: of the pixels that are learnt from. The network says how many deviations from the mean a pixel
            is, and learns by squared error: the sum of its answers over a picture is then that of the truth (a count,
            where masks are densities), which the median, of absolute errors, would miss where most pixels are 0.
        ignore: the value of pixels that are neither learnt from nor judged; None where there is none. NaN always is.
    """

    mean: float = 0.0
    deviation: float = 1.0
    ignore: float | None = None
    kind: str = "quantity"

    problem: ClassVar = "regression"
    names: ClassVar = ("value",)
    palette: ClassVar = None

    @property
    def scale(self) -> tuple[float, float]:
        """(mean, deviation)."""
        return self.mean, self.deviation

    def numbers(self, values: np.ndarray, name: str) -> np.ndarray:
        """(height, width) float32, NaN where nothing is known."""
        found = values.astype(np.float32)
        if self.ignore is not None:
            found[values == self.ignore] = np.nan
        return found

    def fitted(self, masks: Sequence[np.ndarray]) -> Quantity:
        """With the mean and deviation of these masks."""
        known = np.concatenate([mask[~np.isnan(mask)] for mask in masks]).astype(np.float64)
        if not len(known) or known.min() == known.max():
            what = f"have the value {known[0]:g}" if len(known) else "are without a value"
            raise UserError(f"all pixels of the training masks {what}", hint="There is nothing to tell apart.")
        return dataclasses.replace(self, mean=float(known.mean()), deviation=float(known.std()))

    def answer(self, answers: np.ndarray) -> np.ndarray:
        """(height, width) of (1, height, width)."""
        return answers[0]

    def written(self, answer: np.ndarray) -> np.ndarray:
        """What is written."""
        return answer.astype(np.float32)

    def summary(self, answer: np.ndarray) -> dict[str, Any]:
        """Of a picture: the mean and sum of its pixels."""
        return {"mean": float(answer.mean(dtype=np.float64)), "sum": float(answer.sum(dtype=np.float64))}

    def counted(self, truth: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        """What `figures` needs of a picture."""
        return quantity_sums(truth, predicted, self.mean)

    def figures(self, parts: Sequence[np.ndarray], groups: np.ndarray | None, seed: int) -> dict[str, Any]:
        """Figures of several pictures."""
        return quantity_figures(parts, groups, seed)

    def lines(self, masks: Sequence[np.ndarray]) -> list[str]:
        """What masks hold, in words."""
        all_ = np.concatenate([mask.ravel() for mask in masks])
        known = all_[~np.isnan(all_)]
        if not len(known):
            return []
        line = (
            f"{len(masks):,} pictures with a quantity per pixel: {known.min():.4g} to {known.max():.4g}, mean "
            f"{known.mean(dtype=np.float64):.4g}, deviation {known.std(dtype=np.float64):.4g}"
        )
        unknown = 1 - len(known) / len(all_)
        return [line + (f"; {unknown:.1%} without a value" if unknown else "")]

    def about(self) -> dict[str, Any]:
        """As JSON."""
        return dataclasses.asdict(self)


def target_of(about: Mapping[str, Any]) -> Legend | Quantity:
    """What masks mean, from `about` of either."""
    return Quantity(**about) if about["kind"] == "quantity" else Legend.of(about)


def number_of(text: str | int) -> float:
    """The value of pixels without one, as a person writes it."""
    try:
        return float(text)
    except ValueError:
        raise UserError(f"ignore {text}", hint="Expected the value of pixels without one: a number, or none.") from None


def quantity_of(values: Sequence[np.ndarray], ignore: str | int | None, where: str) -> Quantity:
    """The quantity that masks hold; `ignore`: 'auto', 'none', or the value of pixels that have none.

    Raises:
        UserError: a value so far from all others that it says that nothing was measured; infinite ones.
    """
    if ignore not in ("auto", "none", None):
        return Quantity(ignore=number_of(ignore))
    known = np.concatenate([v[~np.isnan(v)].astype(np.float64) for v in values])
    if np.isinf(known).any():
        raise UserError(f"{where}: {np.isinf(known).sum():,} infinite pixels", hint="Save NaN where nothing is known.")
    for sign in (1, -1):
        signed = sign * known
        rest = signed[signed > signed.min()] if len(signed) else signed
        if ignore == "auto" and len(rest) and rest.min() - signed.min() > FAR * (rest.max() - rest.min()):
            odd = f"{sign * signed.min():g}"
            low, high = sorted((sign * rest.min(), sign * rest.max()))
            raise UserError(
                f"{where}: {1 - len(rest) / len(known):.2%} of the pixels are {odd}, all others {low:g} to {high:g}",
                hint=f"If nothing was measured there, say {option('ignore', odd)}; if it is a value like others, "
                f"{option('ignore', 'none')}.",
            )
    return Quantity()
