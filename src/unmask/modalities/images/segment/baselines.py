"""Rules that a segmenter is compared with: the most frequent class (the mean of a quantity), Otsu's threshold, and a
random forest on features of each pixel's surroundings, as ilastik has it (Berg et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import ndimage

from unmask.modalities.images.segment.crops import Scene, known_of

MOST_FREQUENT, OTSU, FOREST = "most frequent class", "Otsu's threshold", "random forest on pixel features"
MEAN = "the training pixels' mean"
SIGMAS = (0.7, 1.0, 1.6, 3.5, 5.0, 10.0)
"""Scales of the features in pixels: ilastik's."""
LEARNT = 20_000
"""Pixels that the forest learns from, at most, as many of each picture."""
TREES = 60


def otsu_threshold(values: np.ndarray, bins: int = 256) -> float:
    """The threshold with the largest variance between what lies below and above (Otsu 1979).

    >>> round(otsu_threshold(np.array([0.0, 0.1, 0.2, 0.9, 1.0])), 2)
    0.55
    """
    low, high = float(values.min()), float(values.max())
    if low == high:
        return low
    counts, edges = np.histogram(values, bins, (low, high))
    middle = (edges[:-1] + edges[1:]) / 2
    below, total = np.cumsum(counts), counts.sum()
    sums = np.cumsum(counts * middle)
    above = total - below
    with np.errstate(divide="ignore", invalid="ignore"):
        between = below * above * (sums / below - (sums[-1] - sums) / above) ** 2
    best = np.flatnonzero(between >= np.nanmax(between) * (1 - 1e-9))  # a gap between two values: its middle
    return float(edges[1:][best].mean())


def brighter(pixels: np.ndarray) -> np.ndarray:
    """(height, width) booleans: the pixels of a picture, (height, width, channels), above Otsu's threshold of the mean
    over its channels."""
    grey = pixels.mean(-1)
    return grey > otsu_threshold(grey)


def learnt_rules(scenes: Sequence[Scene], classes: int) -> dict[str, Any]:
    """What the rules know of the training pictures: the most frequent class, and of two classes which is brighter; of a
    quantity its mean."""
    if scenes[0].mask.dtype.kind == "f":
        return {"mean": float(np.nanmean(np.concatenate([s.mask.ravel() for s in scenes]), dtype=np.float64))}
    counts = np.zeros(classes)
    bright = 0.0
    for scene in scenes:
        counts += np.bincount(scene.mask[scene.mask >= 0], minlength=classes)
        if classes == 2:
            known = scene.mask >= 0
            bright += float(((brighter(scene.pixels) == (scene.mask == 1))[known]).mean()) if known.any() else 0.5
    found: dict[str, Any] = {"most_frequent": int(counts.argmax())}
    return found | ({"brighter": int(bright / len(scenes) >= 0.5)} if classes == 2 else {})


def rule_masks(rules: dict[str, Any], scene: Scene) -> dict[str, np.ndarray]:
    """Name of a rule -> its mask of a picture."""
    shape = scene.pixels.shape[:2]
    if "mean" in rules:
        return {MEAN: np.full(shape, rules["mean"])}
    found = {MOST_FREQUENT: np.full(shape, rules["most_frequent"])}
    if "brighter" in rules:
        found[OTSU] = np.where(brighter(scene.pixels), rules["brighter"], 1 - rules["brighter"])
    return found


def pixel_features(pixels: np.ndarray) -> np.ndarray:
    """(height, width, channels) -> (height, width, features) float32: at each scale, smoothed brightness, strength of
    its gradient, its Laplacian and difference of Gaussians, eigenvalues of its Hessian and structure tensor."""
    found = []
    for channel in np.moveaxis(pixels, -1, 0).astype(np.float32):
        for sigma in SIGMAS:
            smooth = ndimage.gaussian_filter(channel, sigma)
            found += [smooth, ndimage.gaussian_gradient_magnitude(channel, sigma)]
            found.append(smooth - ndimage.gaussian_filter(channel, 0.66 * sigma))
            yy, xx, xy = (ndimage.gaussian_filter(channel, sigma, order) for order in ((2, 0), (0, 2), (1, 1)))
            down, across = (ndimage.correlate1d(smooth, (-0.5, 0, 0.5), axis) for axis in (0, 1))
            parts = [ndimage.gaussian_filter(p, sigma / 2) for p in (down * down, across * across, down * across)]
            found.append(yy + xx)
            found += [*_eigenvalues(yy, xx, xy), *_eigenvalues(*parts)]
    return np.stack(found, -1)


def _eigenvalues(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of the matrices [[a, c], [c, b]]: the larger, the smaller."""
    middle, off = (a + b) / 2, np.sqrt(((a - b) / 2) ** 2 + c**2)
    return middle + off, middle - off


class PixelForest:
    """A random forest on `pixel_features`, fitted on pictures with masks; of a quantity a third of the features is
    tried at each split (Breiman 2001)."""

    def __init__(self, scenes: Sequence[Scene], seed: int = 0) -> None:
        from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

        features, classes = [], []
        rng = np.random.default_rng(seed)
        for scene in scenes:
            known = np.flatnonzero(known_of(scene.mask.ravel()))
            some = rng.permutation(known)[: -(-LEARNT // len(scenes))]
            features.append(pixel_features(scene.pixels).reshape(-1, len(SIGMAS) * 8 * scene.pixels.shape[-1])[some])
            classes.append(scene.mask.ravel()[some])
        how: dict[str, Any] = {"n_estimators": TREES, "min_samples_leaf": 2, "random_state": seed, "n_jobs": 1}
        quantity = classes[0].dtype.kind == "f"
        self.forest = RandomForestRegressor(max_features=1 / 3, **how) if quantity else RandomForestClassifier(**how)
        self.forest.fit(np.concatenate(features), np.concatenate(classes))

    def mask(self, scene: Scene) -> np.ndarray:
        """(height, width) numbers of classes, or the quantity."""
        found = pixel_features(scene.pixels)
        flat = self.forest.predict(found.reshape(-1, found.shape[-1]))
        return flat.reshape(found.shape[:2])
