"""How well frozen features tell classes apart: nearest neighbours and a linear probe, beside raw pixels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.modalities.images.network.features import settled
from unmask.modalities.images.network.probe import knn_predict, probe_predict
from unmask.modalities.images.reading.arrays import ImageSet
from unmask.modalities.images.reading.floats import as_floats
from unmask.modalities.images.reading.split import held_out_by_class

MOST_PROBED = 50_000
"""Training pictures of sets too large for memory."""
RAW_LIMIT = 12_288
"""Pictures of more numbers than this are not probed as raw pixels."""


def classes_told_apart(
    images: ImageSet,
    vectors: Callable[[ImageSet], np.ndarray],
    *,
    k: int = 20,
    seed: int = 0,
    most: int | None = None,
    baselines: bool = True,
) -> dict[str, Any]:
    """Accuracies with intervals over groups; arguments as `ImageModel.evaluate` has them.

    Args:
        images: with labels.
        vectors: (pictures, width) features of a part of them.
    """
    from unmask.evaluation.metrics import bootstrap_mean, plain

    if most is None and not isinstance(images.pixels, np.ndarray):
        most = MOST_PROBED
    train, test = training_and_test(images, seed, most)
    (a, known), (b, asked) = (_readable(part, vectors(part)) for part in (train, test))
    right = {
        "knn_accuracy": knn_predict(a, known, b, k=k) == asked,
        "probe_accuracy": probe_predict(a, known, b, seed=seed) == asked,
    }
    if baselines and images.pixels[0].size <= RAW_LIMIT and isinstance(images.pixels, np.ndarray):
        a, b = (as_floats(part.pixels).reshape(len(part), -1) for part in (train, test))
        right["raw_knn_accuracy"] = knn_predict(a, known, b, k=k) == asked
        right["raw_probe_accuracy"] = probe_predict(a, known, b, seed=seed) == asked
    each = np.arange(len(asked)) if test.groups is None else test.groups[settled(test)]
    out = plain({name: bootstrap_mean(r.astype(float), each, seed=seed) for name, r in right.items()})
    return out | {"classes": images.classes, "training_pictures": len(known), "test_pictures": len(asked)}


def _readable(part: ImageSet, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels of the pictures that could be read."""
    whole = settled(part)
    assert part.labels is not None
    return vectors[whole], part.labels[whole]


def training_and_test(images: ImageSet, seed: int, most: int | None = None) -> tuple[ImageSet, ImageSet]:
    """(training, test) pictures."""
    assert images.labels is not None
    if len(np.unique(images.labels)) < 2:
        name = images.classes[0] if images.classes else "0"
        raise UserError(
            f"all {len(images)} pictures are of one class ({name})",
            hint="Give a folder with one folder a class, two or more.",
        )
    test = images.test if images.test is not None else held_out_by_class(images, 0.2, seed)
    order = np.random.default_rng(seed).permutation(len(images))
    parts = [order[~test[order]], order[test[order]]]
    if not len(parts[0]) or not len(parts[1]):
        raise UserError(
            f"{len(parts[0])} training and {len(parts[1])} test pictures", hint="Give at least two per class."
        )
    if most is not None:
        parts = [parts[0][:most], parts[1][: max(most // 4, 1)]]
    return images.take(parts[0]), images.take(parts[1])
