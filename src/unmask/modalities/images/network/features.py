"""Vectors of pictures (pooled states of an image model's encoder, of a picture cut into tiles the mean over them), and
what nearest neighbours and linear probes read from them."""

from __future__ import annotations

import contextlib
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from unmask.core.batch import PackedBatch
from unmask.core.embed import Pool, Pooling, embed_batches, pooled_by
from unmask.core.model import MaskedModel
from unmask.modalities.images.network.batches import image_batches
from unmask.modalities.images.network.codec import PatchCodec, PatchCodecConfig
from unmask.modalities.images.reading.arrays import ImageSet
from unmask.modalities.images.reading.lazy import PictureStore, StreamedArray

ImagePooling = Literal[Pooling, "grid"]
CELLS = 4
"""Rows and columns of pooling 'grid', at most."""
PASSING = PictureStore(folder=None, most=256e6)
"""For one pass over files: sets larger than this are decoded as they come."""
RESTING = 512e6
"""Bytes that one layer's states may take while a model is used: a dozen numbers per slot and channel."""


def inference_rows(model: MaskedModel[PatchCodec]) -> int:
    """Pictures in a batch of a model that is used, not trained: 256, fewer where a layer's states would take over 0.5
    GB."""
    config = model.codec.config
    return min(256, max(1, int(RESTING / (config.slots * max(config.width, config.head_width) * 12 * 4))))


def features(
    model: MaskedModel[PatchCodec],
    images: ImageSet,
    context: contextlib.AbstractContextManager[Any],
    *,
    pooling: ImagePooling = "mean",
    normalise: bool = False,
) -> np.ndarray:
    """Pooled encoder states of pictures of the model's size, (pictures, width) float32; of pooling 'grid' (pictures,
    cells x width)."""
    batches = image_batches(model.codec, images, inference_rows(model))
    width = model.encoder.config.width
    if pooling == "grid":
        pool: Pool = grid_pool
        width *= int(np.prod(cells(model.codec.config.grid)))
    else:
        pool = pooled_by(pooling, include_special=False)
    with context:
        return embed_batches(model, batches, pool, count=len(images), width=width, normalise=normalise)


def cells(grid: tuple[int, int]) -> tuple[int, int]:
    """(rows, columns) of the cells that 'grid' takes means over: 4 x 4, fewer where there are fewer patches."""
    return (min(CELLS, grid[0]), min(CELLS, grid[1]))


def grid_pool(model: MaskedModel[PatchCodec], batch: PackedBatch, count: int) -> Tensor:
    """Means of the states over the cells of a grid, side by side: what is where is kept. (count, cells x width) fp32; a
    cell without an observed patch is 0."""
    return cell_means(model.states(batch).float(), batch, model.codec.config)


def cell_means(states: Tensor, batch: PackedBatch, config: PatchCodecConfig) -> Tensor:
    """`grid_pool` of given states, (count, slots, width)."""
    first, (rows, columns) = int(config.class_token), config.grid
    states, seen = states[:, first:], batch.observed[:, first:, None].to(states.dtype)

    def summed(x: Tensor) -> Tensor:
        return adaptive_avg_pool2d(x.transpose(1, 2).unflatten(2, (rows, columns)), cells(config.grid))

    found = summed(states * seen) / summed(seen).clamp_min(1e-6)
    return found.flatten(2).transpose(1, 2).flatten(1)


def settled(images: ImageSet) -> np.ndarray:
    """Booleans: the pictures that could be read, once all were looked at; of a stream, the others join `skipped`."""
    if not isinstance(images.pixels, StreamedArray):
        return np.ones(len(images), bool)
    whole, stream = images.pixels.whole(), images.pixels.stream
    known = {name for name, _ in images.skipped}
    for i in np.flatnonzero(~whole):
        name = images.names[i].partition("#")[0]
        if name not in known:
            known.add(name)
            images.skipped.append((name, stream.broken[int(stream.first[stream.file[images.pixels.which[i]]])]))
    return whole


def pooled(vectors: np.ndarray, images: ImageSet) -> np.ndarray:
    """One vector for each picture: the mean over its tiles, those with more measured pixels counting more."""
    assert images.tiles is not None
    weight = np.ones(len(images)) if images.missing is None else 1e-6 + (~images.missing).mean((1, 2))
    count = len(images.tiles.sizes)
    total = np.zeros((count, vectors.shape[1]))
    np.add.at(total, images.tiles.scene, vectors * weight[:, None])
    share = np.bincount(images.tiles.scene, weight, count)
    return (total / np.maximum(share, 1e-12)[:, None]).astype(vectors.dtype)


_TEMPERATURE, _CHUNK = 0.07, 1024
"""Of the votes of neighbours; vectors whose neighbours are looked for at a time."""


def knn_predict(train: np.ndarray, labels: np.ndarray, test: np.ndarray, *, k: int = 20) -> np.ndarray:
    """Classes by the k nearest training vectors (cosine), each voting exp(cosine / temperature) (Wu et al. 2018)."""
    known = F.normalize(torch.from_numpy(np.ascontiguousarray(train)).float(), dim=-1)
    queries = F.normalize(torch.from_numpy(np.ascontiguousarray(test)).float(), dim=-1)
    classes = torch.from_numpy(labels)
    count = int(labels.max()) + 1
    out = []
    for part in queries.split(_CHUNK):
        near, which = (part @ known.t()).topk(min(k, len(known)), -1)
        votes = torch.zeros(len(part), count).scatter_add_(1, classes[which], ((near - 1) / _TEMPERATURE).exp())
        out.append(votes.argmax(-1))
    return torch.cat(out).numpy() if out else np.zeros(0, np.int64)


def fit_linear(
    features: np.ndarray, labels: np.ndarray, *, penalty: float, steps: int = 100
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Multinomial logistic regression on standardised features, to its optimum by L-BFGS.

    Standardising by the training features is what a batch norm without weights does at rest; the optimum needs no rate,
    no schedule and no seed. Returns (mean, deviation, weight, bias). `penalty`: L2 on the weights, on the mean loss."""
    x = torch.from_numpy(np.ascontiguousarray(features)).float()
    y = torch.from_numpy(labels)
    mean, deviation = x.mean(0), (x.std(0) if len(x) > 1 else torch.ones(x.shape[1])).clamp_min(1e-6)
    x = (x - mean) / deviation
    classes = int(labels.max()) + 1
    weight = torch.zeros(classes, x.shape[1], requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [weight, bias], max_iter=steps, history_size=10, line_search_fn="strong_wolfe", tolerance_change=1e-7
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = F.cross_entropy(F.linear(x, weight, bias), y) + penalty * weight.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimiser.step(closure)
    return mean, deviation, weight.detach(), bias.detach()


def linear_logits(fitted: tuple[Tensor, Tensor, Tensor, Tensor], features: np.ndarray) -> Tensor:
    """(rows, classes) logits of a fitted linear layer."""
    mean, deviation, weight, bias = fitted
    x = (torch.from_numpy(np.ascontiguousarray(features)).float() - mean) / deviation
    return F.linear(x, weight, bias)


def linear_predict(fitted: tuple[Tensor, Tensor, Tensor, Tensor], features: np.ndarray) -> np.ndarray:
    """Classes by a fitted linear layer."""
    return linear_logits(fitted, features).argmax(-1).numpy()


PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2)


def probe_predict(
    train: np.ndarray, labels: np.ndarray, test: np.ndarray, *, seed: int = 0, penalty: float | None = None
) -> np.ndarray:
    """Classes by a linear probe; where no penalty is given, it is chosen on a tenth of the training vectors."""
    if penalty is None:
        order = np.random.default_rng(seed).permutation(len(train))[:20_000]
        held = max(len(order) // 10, 1)
        inner, outer = order[held:], order[:held]
        right = [
            (linear_predict(fit_linear(train[inner], labels[inner], penalty=p), train[outer]) == labels[outer]).mean()
            for p in PENALTIES
        ]
        penalty = PENALTIES[int(np.argmax(right))]
    return linear_predict(fit_linear(train, labels, penalty=penalty, steps=200), test)
