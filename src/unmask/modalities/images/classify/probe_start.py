"""A head that starts as the linear probe of the encoder's frozen features (Kumar et al. 2022, 'Fine-tuning can distort
pretrained features': a probe first, then all), and which features it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from unmask.modalities.images.classify.classifier import ClassifierNet, ClassPooling
from unmask.modalities.images.network.batches import image_batches
from unmask.modalities.images.network.features import fit_linear, inference_rows, linear_logits
from unmask.modalities.images.reading.arrays import ImageSet
from unmask.modalities.images.reading.split import kept_together

FOLDS, FOLDED_STEPS = 4, 30
"""Folds of the training pictures, and steps of the optimiser within them: enough to compare."""
FOLDED_PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 3e-1)
UNTOLD = -100.0
"""Log-probability of a class that a fold has no picture of."""
COMPARED, PER_CLASS = 1000, 5
"""Training pictures that features are compared on, at most; of fewer per class nothing is compared."""
PROBED, PROBED_BYTES = 20_000, 256e6
"""Training pictures that the head is fitted to before all of it is trained, and bytes of their features, at most."""

HeadInput = tuple[ClassPooling, bool]
"""What a head reads: how states are pooled, and whether oriented gradients of the picture stand beside."""


def readings(pooling: str, gradients: bool | None, *, class_token: bool) -> list[HeadInput]:
    """What may be read where these were asked for; 'auto' and None leave it open. The smallest come first."""
    pools: Sequence[ClassPooling] = ("mean", "grid") if pooling == "auto" else (pooling,)  # type: ignore[assignment]
    if pooling == "auto" and class_token:
        pools = ("mean", "first", "grid")
    with_gradients = (False, True) if gradients is None else (gradients,)
    return [(pool, edges) for edges in with_gradients for pool in pools]


@dataclass(frozen=True)
class Compared:
    """How a linear probe does on training pictures that it did not learn from: `right`, its accuracy, and `likelihood`,
    the mean log-probability of the true class, by which features are chosen, because it varies less by chance."""

    likelihood: float
    right: float


def choose_reading(
    net: ClassifierNet, train: ImageSet, labels: np.ndarray, requested: Sequence[HeadInput], seed: int
) -> dict[HeadInput, Compared]:
    """How linear probes of each kind of features do in four folds of the training pictures (`COMPARED` of them at
    most); {} for fewer than `PER_CLASS` per class."""
    some = _some(len(labels), COMPARED, seed)
    if len(some) < PER_CLASS * len(np.unique(labels)):
        return {}
    labels = labels[some]
    train = train.take(some)
    groups = kept_together(train)
    parts = _parts(net, train, {pool for pool, _ in requested}, any(edges for _, edges in requested))
    by_reading = {}
    for name, found in parts.items():
        by_penalty = folded(found, labels, seed, groups)
        by_reading[name] = by_penalty[best_penalty(by_penalty, labels)]
    out = {}
    for pool, edges in requested:
        both = (by_reading[pool] + by_reading["gradients"]) / 2 if edges else by_reading[pool]
        sure = both - np.logaddexp.reduce(both, 1, keepdims=True)
        likelihood = float(sure[np.arange(len(labels)), labels].mean())
        out[pool, edges] = Compared(likelihood, float((both.argmax(1) == labels).mean()))
    return out


def start_as_probe(net: ClassifierNet, train: ImageSet, labels: np.ndarray, seed: int) -> None:
    """Fit the head of a network to its own features of training pictures, as they are; `labels` are class numbers,
    every class among them. Pooled states and oriented gradients each get a probe of their own, and the head's logits
    are the mean of theirs: with few labels that is right more often than one probe of both."""
    some = _some(len(labels), min(PROBED, int(PROBED_BYTES / (4 * net.head.in_features))), seed)
    train, labels = (train, labels) if len(some) == len(labels) else (train.take(some), labels[some])
    parts, groups = _parts(net, train, {net.pooling}, net.gradients), kept_together(train)
    weights, biases = [], []
    for found in (parts[name] for name in ((net.pooling, "gradients") if net.gradients else (net.pooling,))):
        mean, deviation, weight, bias = fit_linear(found, labels, penalty=chosen_penalty(found, labels, seed, groups))
        weight = weight / deviation
        weights.append(weight)
        biases.append(bias - weight @ mean)
    with torch.no_grad():
        weight, bias = torch.cat(weights, 1) / len(weights), torch.stack(biases).mean(0)
        net.head.bias.copy_(bias.min().expand(len(net.head.bias)))  # of classes without a picture, past the last known
        net.head.weight[: len(weight)].copy_(weight)
        net.head.bias[: len(bias)].copy_(bias)


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


def chosen_penalty(
    features: np.ndarray, labels: np.ndarray, seed: int, groups: np.ndarray | None = None, most: int = 2000
) -> float:
    """The penalty of `fit_linear` with the smallest cross-entropy in four folds of the rows (of `most` of them at
    most); the largest of equals."""
    some = _some(len(labels), most, seed)
    by_fold = folded(features[some], labels[some], seed, None if groups is None else groups[some])
    return best_penalty(by_fold, labels[some])


def best_penalty(by_penalty: dict[float, np.ndarray], labels: np.ndarray) -> float:
    """The penalty whose log-probabilities of the labels are highest; the largest of equals."""
    likelihoods = {p: float(found[np.arange(len(labels)), labels].mean()) for p, found in by_penalty.items()}
    return max(likelihoods, key=lambda p: (likelihoods[p], p))


def folded(
    features: np.ndarray, labels: np.ndarray, seed: int, groups: np.ndarray | None = None
) -> dict[float, np.ndarray]:
    """For each penalty, (rows, classes) log-probabilities of each row by a linear probe that learnt from the other
    three of four folds, drawn by the seed; `groups`: (rows,) numbers of what stays in one fold."""
    _, place = np.unique(np.arange(len(labels)) if groups is None else groups, return_inverse=True)
    fold = (np.random.default_rng([seed, 1]).permutation(int(place.max()) + 1) % FOLDS)[place]
    classes = int(labels.max()) + 1
    out = {}
    for penalty in FOLDED_PENALTIES:
        log_probability = np.full((len(labels), classes), UNTOLD)
        for number in range(FOLDS):
            inner, outer = fold != number, fold == number
            if inner.any() and outer.any():
                fitted = fit_linear(features[inner], labels[inner], penalty=penalty, steps=FOLDED_STEPS)
                logits = linear_logits(fitted, features[outer])
                log_probability[outer, : logits.shape[1]] = logits.log_softmax(-1).numpy()
        out[penalty] = log_probability
    return out
