"""How natural pictures are to a model: the log-density of every patch given all others, summed by picture."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from torch import Tensor

from unmask.core.batch import PackedBatch
from unmask.core.inference import inference_mode
from unmask.core.model import MaskedModel
from unmask.core.score import score_rows
from unmask.errors import UserError
from unmask.modalities.images.network.batches import as_floats, evenly, image_batches
from unmask.modalities.images.network.codec import PatchCodec, PatchPrediction
from unmask.modalities.images.network.features import inference_rows, knn_predict, probe_predict, settled
from unmask.modalities.images.reading.arrays import ImageSet
from unmask.modalities.images.reading.split import held_out_by_class

Scored = Literal["pixels", "patterns"]


def scored_of(model: MaskedModel[PatchCodec]) -> Scored:
    """What a model can tell the density of: a patch's pixels; or its pattern, standardised to mean 0 and deviation 1,
    where it was trained to predict that alone (the published MAE)."""
    config = model.codec.config
    return "patterns" if config.normalised and not hasattr(model.codec, "statistics") else "pixels"


def score_pictures(
    model: MaskedModel[PatchCodec], images: ImageSet, context: contextlib.AbstractContextManager[Any]
) -> list[dict[str, Any]]:
    """Pseudo-log-likelihood of pictures of the model's size, as `ImageModel.score` gives it: a pass of the model per
    patch of the grid."""
    total: np.ndarray = np.zeros(len(images))
    count: np.ndarray = np.zeros(len(images), np.int64)
    device = next(model.parameters()).device
    read = None if scored_of(model) == "pixels" else PatchPrediction.pattern_log_prob
    with context:
        for batch, numbers in image_batches(model.codec, images, inference_rows(model)):
            found = score_rows(model, batch.to(device), read=read).double().cpu().numpy()
            total[numbers], count[numbers] = np.nansum(found, 1), (~np.isnan(found)).sum(1)
    whole = settled(images)
    names = images.names or [str(i) for i in range(len(images))]
    if images.tiles is not None:
        scene, names = images.tiles.scene, images.tiles.names
        total = np.bincount(scene, total, len(names))
        count = np.bincount(scene, count, len(names)).astype(np.int64)
        whole = np.ones(len(names), bool)
    return [
        {"name": names[i], "score": float(total[i]), "slots": int(count[i])} for i in np.flatnonzero(whole).tolist()
    ]


def attention_maps(model: MaskedModel[PatchCodec], batch: PackedBatch, layer: int) -> Tensor:
    """(n, heads, rows, columns) attention of one layer over the patch grid, nothing hidden."""
    config, module = model.codec.config, model.encoder.layers[layer].attention
    caught: list[Tensor] = []
    handle = module.register_forward_hook(lambda _, given, __: caught.append(given[0]))
    try:
        with inference_mode(model):
            model.states(batch)
    finally:
        handle.remove()
    q, k, _ = module.project(caught[0], None)
    weights = (q.float() @ k.float().transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)
    first = int(config.class_token)
    if model.drops_missing and not bool(batch.observed.all()):
        there = batch.observed[0].nonzero().flatten()
        whole = weights.new_zeros(1, weights.shape[1], batch.shape[1])
        whole[:, :, there] = (weights[:, :, 0] if first else weights[:, :, : len(there)].mean(2))[:, :, : len(there)]
        seen = whole[:, :, first:]
    else:
        seen = weights[:, :, 0, first:] if first else weights.mean(2)
    return seen.reshape(*seen.shape[:2], *config.grid)


MOST_PROBED = 50_000
"""Training pictures of sets too large for memory."""
RAW_PROBED = 5_000
RAW_LIMIT = 12_288
"""Pictures of more numbers than this are not probed as raw pixels."""


def probe_accuracies(
    images: ImageSet,
    vectors: Callable[[ImageSet], np.ndarray],
    *,
    k: int = 20,
    seed: int = 0,
    most: int | None = None,
    baselines: bool = True,
) -> dict[str, Any]:
    """Accuracies with intervals over groups; arguments as `ImageModel.evaluate` has them. `images`: with labels;
    `vectors`: (pictures, width) features of a part of them."""
    from unmask.evaluation.metrics import bootstrap_mean, plain

    if most is None and not isinstance(images.pixels, np.ndarray):
        most = MOST_PROBED
    train, test = training_and_test(images, seed, most)
    (a, known), (b, truth) = (_readable(part, vectors(part)) for part in (train, test))
    right = {
        "knn_accuracy": knn_predict(a, known, b, k=k) == truth,
        "probe_accuracy": probe_predict(a, known, b, seed=seed) == truth,
    }
    if baselines and images.pixels[0].size <= RAW_LIMIT and isinstance(images.pixels, np.ndarray):
        a, b = _raw(train), _raw(test)
        right["raw_knn_accuracy"] = knn_predict(a, known, b, k=k) == truth
        right["raw_probe_accuracy"] = probe_predict(a, known, b, seed=seed) == truth
    right["most_frequent_accuracy"] = truth == np.bincount(known).argmax()
    each = np.arange(len(truth)) if test.groups is None else test.groups[settled(test)]
    out = plain({name: bootstrap_mean(r.astype(float), each, seed=seed) for name, r in right.items()})
    return out | {"classes": images.classes, "training_pictures": len(known), "test_pictures": len(truth)}


def raw_probe_accuracy(train: ImageSet, held: ImageSet, seed: int = 0) -> float | None:
    """How many of the held-out pictures, one class each, a linear probe of the raw pixels of at most `RAW_PROBED`
    training ones gets right; None where pictures are large, or not in memory."""
    if not all(isinstance(part.pixels, np.ndarray) and part.pixels[0].size <= RAW_LIMIT for part in (train, held)):
        return None
    if train.labels is None or held.labels is None or train.classes != held.classes:
        return None
    some = evenly(np.arange(len(train)), min(len(train), RAW_PROBED))
    answers = probe_predict(_raw(train.take(some)), train.labels[some], _raw(held), seed=seed)
    return float((answers == held.labels).mean())


def _raw(part: ImageSet) -> np.ndarray:
    """(pictures, pixels x channels), as floats."""
    return as_floats(part.pixels).reshape(len(part), -1)


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
    split = images.split
    if split is None:
        split = np.where(held_out_by_class(images, 0.2, seed), "test", "train")
    judged = "test" if (split == "test").any() else "validation"
    order = np.random.default_rng(seed).permutation(len(images))
    parts = [order[split[order] == part] for part in ("train", judged)]
    if not len(parts[0]) or not len(parts[1]):
        raise UserError(
            f"{len(parts[0])} training and {len(parts[1])} test pictures", hint="Give at least two per class."
        )
    if most is not None:
        parts = [parts[0][:most], parts[1][: max(most // 4, 1)]]
    return images.take(parts[0]), images.take(parts[1])
