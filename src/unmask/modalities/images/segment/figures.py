"""How good masks are: Dice and IoU of each class, how far their borders agree, what is taken for what; with intervals
over pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import ndimage

from unmask.evaluation.resampling import bootstrap_counts, group_numbers, percentile_interval, with_interval
from unmask.modalities.images.network.card import MASKS

TOLERANCE = 2
"""Pixels by which a border may be off and still count as found."""
DRAWS = 1000
"""Bootstrap resamples of pictures."""


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What was counted in one picture.

    Attributes:
        confusion: (classes, classes) pixels by true class (row) and predicted class (column).
        border: (classes, 4) pixels of the predicted border that lie near the true one and all of them; pixels of the
            true border that lie near the predicted one and all of them.
    """

    confusion: np.ndarray
    border: np.ndarray


def counted(truth: np.ndarray, predicted: np.ndarray, classes: int) -> Counted:
    """Count a picture; pixels whose true class is not known (below 0) do not count."""
    known = truth >= 0
    pairs = truth[known].astype(np.int64) * classes + predicted[known]
    confusion = np.bincount(pairs, minlength=classes**2).reshape(classes, classes)
    border = np.zeros((classes, 4), np.int64)
    for number in range(classes):
        true, found = _border((truth == number) & known, known), _border((predicted == number) & known, known)
        border[number] = [*_near(found, true), *_near(true, found)]
    return Counted(confusion=confusion, border=border)


def _border(region: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Pixels of a region beside one that is not of it; neither the picture's edge nor what is not known is a border."""
    inside = ndimage.binary_erosion(region | ~known, border_value=1)
    return region & ~inside


def _near(these: np.ndarray, those: np.ndarray) -> tuple[int, int]:
    """(how many of these pixels lie within `TOLERANCE` of those, how many there are)."""
    count = int(these.sum())
    if not count or not those.any():
        return 0, count
    return int((ndimage.distance_transform_edt(~those)[these] <= TOLERANCE).sum()), count


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    return np.where(below > 0, above / np.maximum(below, 1), np.nan)


def scores(confusion: np.ndarray, border: np.ndarray) -> dict[str, np.ndarray]:
    """Name -> (..., classes), NaN where a class is neither there nor predicted, of counts (..., classes, classes) and
    (..., classes, 4)."""
    right = np.diagonal(confusion, axis1=-2, axis2=-1)
    true, found = confusion.sum(-1), confusion.sum(-2)
    precision, recall = (np.nan_to_num(_ratio(border[..., k], border[..., k + 1])) for k in (0, 2))
    there = (border[..., 1] + border[..., 3]) > 0
    f = np.where(there, 2 * precision * recall / np.maximum(precision + recall, 1e-12), np.nan)
    return {"dice": _ratio(2 * right, true + found), "iou": _ratio(right, true + found - right), "border_f": f}


def mean_of(values: np.ndarray) -> np.ndarray:
    """The mean over classes that are there, (..., classes) -> (...)."""
    known = ~np.isnan(values)
    return np.where(known.any(-1), np.nansum(values, -1) / np.maximum(known.sum(-1), 1), np.nan)


def segment_figures(
    parts: Sequence[Counted], names: Sequence[str], groups: np.ndarray | None = None, seed: int = 0
) -> dict[str, Any]:
    """Figures of several pictures. A class's Dice, IoU and F of its borders are those of all pixels together; the means
    are over classes. 95 % intervals: bootstrap of pictures, of groups where these are given."""
    confusion, border = np.stack([p.confusion for p in parts]), np.stack([p.border for p in parts])
    each = group_numbers(groups, len(parts))
    count = int(each.max()) + 1
    by_group = [np.zeros((count, *a.shape[1:]), np.int64) for a in (confusion, border)]
    for total, array in zip(by_group, (confusion, border), strict=True):
        np.add.at(total, each, array)
    whole = scores(confusion.sum(0), border.sum(0))
    drawn: dict[str, list[np.ndarray]] = {name: [] for name in whole}
    for times in bootstrap_counts(count, DRAWS, seed):
        again = scores(*(np.tensordot(times, array, 1) for array in by_group))
        for name, values in again.items():
            drawn[name].append(values)

    def figure(name: str, number: int | None) -> dict[str, Any]:
        value = mean_of(whole[name]) if number is None else whole[name][number]
        found = [mean_of(d) if number is None else d[number] for d in drawn[name]]
        return {"value": None if np.isnan(value) else float(value), "interval": percentile_interval(found)}

    by_picture = scores(confusion, border)["dice"]
    return {
        "n": len(parts),
        "groups": count,
        **{f"macro_{name}": figure(name, None) for name in whole},
        "pixel_accuracy": float(np.trace(confusion.sum(0)) / max(confusion.sum(), 1)),
        "by_class": {c: {name: figure(name, k) for name in whole} for k, c in enumerate(names)},
        "confusion": confusion.sum(0).tolist(),
        "dice_of_pictures": [None if np.isnan(d) else float(d) for d in mean_of(by_picture)],
    }


def segment_lines(found: Mapping[str, Any]) -> list[str]:
    """The figures in words, for a terminal: a line per class, and the rules."""
    each = "{}: Dice {}, IoU {}, borders {}"
    names = ("dice", "iou", "border_f")
    lines = [each.format(name, *(with_interval(one[n]) for n in names)) for name, one in found["by_class"].items()]
    absent = [name for name, one in found["by_class"].items() if one["dice"]["value"] is None]
    if absent:
        lines.append(
            f"in no mask that was judged, nor predicted: {', '.join(absent)}; means are over the other classes"
        )
    means = "mean Dice {}, IoU {}, borders (F within " + str(TOLERANCE) + " pixels) {}"
    lines.append(means.format(*(with_interval(found[n]) for n in MASKS)))
    for rule, one in found["rules"].items():
        lines.append(f"{rule}: " + means.format(*(with_interval(one[n]) for n in MASKS)))
    return lines
