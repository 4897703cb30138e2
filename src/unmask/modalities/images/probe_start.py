"""A head that starts as the linear probe of the encoder's frozen features (Kumar et al. 2022, 'Fine-tuning can distort
pretrained features': a probe first, then all)."""

from __future__ import annotations

import numpy as np
import torch

from unmask.modalities.images.arrays import ImageSet
from unmask.modalities.images.batches import image_batches
from unmask.modalities.images.classifier import ClassifierNet
from unmask.modalities.images.features import inference_rows
from unmask.modalities.images.probe import PENALTIES, fit_linear, linear_predict

FOLDS = 4


def start_as_probe(net: ClassifierNet, train: ImageSet, labels: np.ndarray, seed: int) -> float:
    """Fit the head of a network to its own features of training pictures, as they are.

    Args:
        labels: class number of each picture; every class is among them.

    Returns:
        the penalty on the weights, chosen by cross-validation on these pictures.
    """
    was = net.training
    net.eval()
    with torch.inference_mode():
        batches = image_batches(net.masked.codec, train, inference_rows(net.masked))
        device = net.head.weight.device
        found = np.concatenate([net.pooled(batch.to(device)).float().cpu().numpy() for batch, _ in batches])
    net.train(was)
    penalty = chosen_penalty(found, labels, seed)
    mean, deviation, weight, bias = fit_linear(found, labels, penalty=penalty)
    with torch.no_grad():
        weight = weight / deviation
        bias = bias - weight @ mean
        net.head.bias.copy_(bias.min().expand(len(net.head.bias)))  # of classes without a picture, past the last known
        net.head.weight[: len(weight)].copy_(weight)
        net.head.bias[: len(bias)].copy_(bias)
    return penalty


def chosen_penalty(features: np.ndarray, labels: np.ndarray, seed: int, most: int = 4000) -> float:
    """The penalty of `fit_linear` that is right most often in four folds of the rows (of `most` of them at most); the
    largest of equals."""
    order = np.random.default_rng(seed).permutation(len(labels))[:most]
    fold = np.arange(len(order)) % FOLDS
    right = {}
    for penalty in (*PENALTIES, 1e-1):
        hits = 0
        for number in range(FOLDS):
            inner, outer = order[fold != number], order[fold == number]
            fitted = fit_linear(features[inner], labels[inner], penalty=penalty)
            hits += int((linear_predict(fitted, features[outer]) == labels[outer]).sum())
        right[penalty] = hits
    return max(right, key=lambda p: (right[p], p))


__all__ = ["chosen_penalty", "start_as_probe"]
