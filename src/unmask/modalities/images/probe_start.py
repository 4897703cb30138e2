"""A head that starts as the linear probe of the encoder's frozen features (Kumar et al. 2022, 'Fine-tuning can distort
pretrained features': a probe first, then all), and which features it reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from unmask.modalities.images.arrays import ImageSet
from unmask.modalities.images.batches import image_batches
from unmask.modalities.images.classifier import ClassifierNet, ClassPooling
from unmask.modalities.images.features import inference_rows
from unmask.modalities.images.probe import PENALTIES, fit_linear, linear_predict

FOLDS, FOLDED_STEPS = 4, 30
"""Folds of the training pictures, and steps of the optimiser within them: enough to compare."""
COMPARED, PER_CLASS = 1000, 5
"""Training pictures that features are compared on, at most; of fewer per class nothing is compared."""
PROBED, PROBED_BYTES = 20_000, 256e6
"""Training pictures that the head is fitted to before all of it is trained, and bytes of their features, at most."""

Reading = tuple[ClassPooling, bool]
"""What a head reads: how states are pooled, and whether oriented gradients of the picture stand beside."""


def readings(pooling: str, gradients: bool | None, *, class_token: bool) -> list[Reading]:
    """What may be read where these were asked for; 'auto' and None leave it open. The smallest come first."""
    pools: Sequence[ClassPooling] = ("mean", "grid") if pooling == "auto" else (pooling,)  # type: ignore[assignment]
    if pooling == "auto" and class_token:
        pools = ("mean", "first", "grid")
    beside = (False, True) if gradients is None else (gradients,)
    return [(pool, edges) for edges in beside for pool in pools]


def choose_reading(
    net: ClassifierNet, train: ImageSet, labels: np.ndarray, asked: Sequence[Reading], seed: int
) -> dict[Reading, float]:
    """Shares of training pictures told right by a linear probe of each kind of features, in four folds of `COMPARED`
    pictures at most; {} for fewer than `PER_CLASS` per class."""
    some = _some(len(labels), COMPARED, seed)
    if len(some) < PER_CLASS * len(np.unique(labels)):
        return {}
    parts = _parts(net, train.take(some), {pool for pool, _ in asked}, any(edges for _, edges in asked))
    out = {}
    for pool, edges in asked:
        found = np.concatenate([parts[pool], parts["gradients"]], 1) if edges else parts[pool]
        out[pool, edges] = max(folded_by_penalty(found, labels[some], seed).values()) / len(some)
    return out


def start_as_probe(net: ClassifierNet, train: ImageSet, labels: np.ndarray, seed: int) -> float:
    """Fit the head of a network to its own features of training pictures, as they are.

    Args:
        labels: class number of each picture; every class is among them.

    Returns:
        the penalty on the weights, chosen by cross-validation on these pictures.
    """
    some = _some(len(labels), min(PROBED, int(PROBED_BYTES / (4 * net.head.in_features))), seed)
    train, labels = (train, labels) if len(some) == len(labels) else (train.take(some), labels[some])
    parts = _parts(net, train, {net.pooling}, net.gradients)
    found = np.concatenate([parts[net.pooling], parts["gradients"]], 1) if net.gradients else parts[net.pooling]
    penalty = chosen_penalty(found, labels, seed)
    mean, deviation, weight, bias = fit_linear(found, labels, penalty=penalty)
    with torch.no_grad():
        weight = weight / deviation
        bias = bias - weight @ mean
        net.head.bias.copy_(bias.min().expand(len(net.head.bias)))  # of classes without a picture, past the last known
        net.head.weight[: len(weight)].copy_(weight)
        net.head.bias[: len(bias)].copy_(bias)
    return penalty


def _some(count: int, most: int, seed: int) -> np.ndarray:
    """Numbers of so many pictures at most, drawn by the seed, ascending."""
    return np.sort(np.random.default_rng(seed).permutation(count)[: max(most, 1)])


def _parts(net: ClassifierNet, images: ImageSet, pools: set[ClassPooling], edges: bool) -> dict[str, np.ndarray]:
    """(pictures, numbers) of each pooling of the network's states, and of 'gradients'; one pass."""
    was = net.training
    net.eval()
    found: dict[str, list[np.ndarray]] = {}
    with torch.inference_mode():
        for batch, _ in image_batches(net.masked.codec, images, inference_rows(net.masked)):
            there = batch.to(net.device)
            states = net.masked.states(there)
            for pool in pools:
                found.setdefault(pool, []).append(net.pooled(states, there, pool).float().cpu().numpy())
            if edges:
                found.setdefault("gradients", []).append(net.edges(there).cpu().numpy())
    net.train(was)
    return {name: np.concatenate(parts) for name, parts in found.items()}


def chosen_penalty(features: np.ndarray, labels: np.ndarray, seed: int, most: int = 2000) -> float:
    """The penalty of `fit_linear` that is right most often in four folds of the rows (of `most` of them at most); the
    largest of equals."""
    right = folded_by_penalty(features, labels, seed, most)
    return max(right, key=lambda p: (right[p], p))


def folded_by_penalty(features: np.ndarray, labels: np.ndarray, seed: int, most: int = 2000) -> dict[float, int]:
    """For each penalty, how many rows (of `most` at most, drawn by the seed) a linear probe tells right that learnt
    from the other three of four folds."""
    order = np.random.default_rng(seed).permutation(len(labels))[:most]
    fold = np.arange(len(order)) % FOLDS
    right = {}
    for penalty in (*PENALTIES, 1e-1):
        hits = 0
        for number in range(FOLDS):
            inner, outer = order[fold != number], order[fold == number]
            fitted = fit_linear(features[inner], labels[inner], penalty=penalty, steps=FOLDED_STEPS)
            hits += int((linear_predict(fitted, features[outer]) == labels[outer]).sum())
        right[penalty] = hits
    return right


__all__ = ["Reading", "choose_reading", "chosen_penalty", "folded_by_penalty", "readings", "start_as_probe"]
