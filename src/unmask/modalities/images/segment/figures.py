"""How good masks are: Dice and IoU of each class, how far their borders agree, what is taken for what; of a quantity
its errors; with intervals over pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import ndimage

from unmask.evaluation.resampling import bootstrap_counts, group_numbers, percentile_interval, with_interval
from unmask.evaluation.values import of_sums
from unmask.modalities.images.network.card import MASKS, QUANTITIES

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
    count, whole, drawn = _resampled((confusion, border), groups, seed, scores)

    def figure(name: str, number: int | None) -> dict[str, Any]:
        value = mean_of(whole[name]) if number is None else whole[name][number]
        found = [mean_of(d[name]) if number is None else d[name][number] for d in drawn]
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


def _resampled(
    arrays: Sequence[np.ndarray], groups: np.ndarray | None, seed: int, of: Callable[..., dict[str, Any]]
) -> tuple[int, dict[str, Any], list[dict[str, Any]]]:
    """(groups, figures `of` all pictures, those of resamples of groups) of arrays (pictures, ...) that add up."""
    each = group_numbers(groups, len(arrays[0]))
    by_group = [np.zeros((int(each.max()) + 1, *a.shape[1:]), a.dtype) for a in arrays]
    for total, array in zip(by_group, arrays, strict=True):
        np.add.at(total, each, array)
    draws = bootstrap_counts(len(by_group[0]), DRAWS, seed)
    drawn = [of(*(np.tensordot(times, array, 1) for array in by_group)) for times in draws]
    return len(by_group[0]), of(*(a.sum(0) for a in arrays)), drawn


def quantity_sums(truth: np.ndarray, predicted: np.ndarray, centre: float) -> np.ndarray:
    """(8,) of a picture: what `evaluation.values.of_sums` takes, 1, the error of its sum, its sum. Pixels whose truth
    is NaN do not count; `centre` is near the truth, so that squares keep their digits."""
    known = ~np.isnan(truth)
    y = truth[known].astype(np.float64)
    error = predicted[known] - y
    sums = [len(y), (y - centre).sum(), ((y - centre) ** 2).sum(), np.abs(error).sum(), (error**2).sum()]
    return np.array([*sums, 1.0, abs(error.sum()), y.sum()])


def quantity_figures(parts: Sequence[np.ndarray], groups: np.ndarray | None = None, seed: int = 0) -> dict[str, Any]:
    """R2, RMSE and MAE of all pixels together, and `sum_mae`, by how much the sum over a picture is off on average,
    beside `sum`, what it is; 95 % intervals as those of `segment_figures`."""

    def of(sums: np.ndarray) -> dict[str, Any]:
        found = of_sums(sums[:5]) if sums[0] else dict.fromkeys(("r2", "rmse", "mae"))
        return {**found, "sum_mae": float(sums[6] / sums[5]), "sum": float(sums[7] / sums[5])}

    count, whole, drawn = _resampled((np.stack(parts),), groups, seed, of)
    each = {
        name: {"value": value, "interval": percentile_interval([np.nan if d[name] is None else d[name] for d in drawn])}
        for name, value in whole.items()
    }
    return {"n": len(parts), "groups": count, **each, "rmse_of_pictures": [of(part)["rmse"] for part in parts]}


def titles(found: Mapping[str, Any]) -> dict[str, str]:
    """Name -> title of the figures that stand beside those of rules."""
    if "sum_mae" in found:
        return dict(zip(QUANTITIES, ("R2", "RMSE", "MAE", "error of a picture's sum"), strict=True))
    return dict(zip(MASKS, ("mean Dice", "IoU", f"borders (F within {TOLERANCE} pixels)"), strict=True))


def shown_figures(found: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
    """These figures with their intervals."""
    return [with_interval(found[name], ".4g" if name in QUANTITIES else ".3f") for name in names]


def segment_lines(found: Mapping[str, Any]) -> list[str]:
    """The figures in words, for a terminal: a line per class, and the rules."""
    lines, known = [], titles(found)
    for name, one in found.get("by_class", {}).items():
        dice, iou, border = (with_interval(one[n]) for n in ("dice", "iou", "border_f"))
        lines.append(f"{name}: Dice {dice}, IoU {iou}, borders {border}")
    absent = [name for name, one in found.get("by_class", {}).items() if one["dice"]["value"] is None]
    if absent:
        lines.append(
            f"in no mask that was judged, nor predicted: {', '.join(absent)}; means are over the other classes"
        )
    for rule, one in {"": found, **found["rules"]}.items():
        pairs = zip(known.values(), shown_figures(one, known), strict=True)
        lines.append((f"{rule}: " if rule else "") + ", ".join(f"{title} {value}" for title, value in pairs))
    return [*lines, f"the sum over a picture is {found['sum']['value']:.4g} on average"] if "sum" in found else lines


def no_better(found: Mapping[str, Any]) -> list[str]:
    """A warning where a rule is as good."""
    main = next(iter(titles(found)))
    rules = {rule: one[main]["value"] or 0.0 for rule, one in found["rules"].items()}
    best = max(rules, key=lambda rule: rules[rule])
    return [f"warning: no better than {best}"] if (found[main]["value"] or 0.0) <= rules[best] else []
