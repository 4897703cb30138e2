"""Vectors of pictures: pooled states of an image model's encoder, and of a picture cut into tiles the mean over them."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import torch
from torch import nn

from unmask.core.embed import Pooling, pool
from unmask.core.inference import inference_mode
from unmask.core.model import MaskedModel
from unmask.modalities.images.arrays import ImageSet
from unmask.modalities.images.batches import image_batch
from unmask.modalities.images.floats import chunks, model_floats
from unmask.modalities.images.shards import Store
from unmask.modalities.images.streaming import StreamedArray

PASSING = Store(folder=None, most=256e6)
"""For one pass over files: sets larger than this are decoded as they come."""
RESTING = 512e6
"""Bytes that one layer's states may take while a model is used: a dozen numbers per slot and channel."""


def rows_at_rest(model: MaskedModel) -> int:
    """Pictures in a batch of a model that is used, not trained: 256, fewer where a layer's states would take over 0.5
    GB."""
    config = model.codec.config
    return min(256, max(1, int(RESTING / (config.slots * max(config.width, config.head_width) * 12 * 4))))


@torch.inference_mode()
def features(
    model: MaskedModel,
    images: ImageSet,
    context: contextlib.AbstractContextManager[Any],
    device: torch.device,
    *,
    pooling: Pooling = "mean",
    normalise: bool = False,
    rows: int | None = None,
) -> np.ndarray:
    """Pooled encoder states of pictures of the model's size, (pictures, width) float32."""
    rows = rows or rows_at_rest(model)
    config, codec = model.codec.config, model.codec
    mean, deviation = codec.mean.cpu(), codec.deviation.cpu()
    out = np.zeros((len(images), model.encoder.config.width), np.float32)
    with inference_mode(model), context:
        for part in chunks(len(images), rows):
            missing = None if images.missing is None else images.missing[part]
            seen = (torch.from_numpy(model_floats(images.pixels[part], missing)) - mean) / deviation
            batch = image_batch(config, seen, np.arange(part.start, part.stop)).to(device)
            vectors = pool(model, batch, part.stop - part.start, pooling, False)
            out[part] = (nn.functional.normalize(vectors, dim=-1) if normalise else vectors).cpu().numpy()
    return out


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
