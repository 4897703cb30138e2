"""How natural pictures are to a model: the log-density of every patch given all others, summed by picture."""

from __future__ import annotations

import contextlib
from typing import Any, Literal

import numpy as np
from torch import Tensor

from unmask.core.model import MaskedModel
from unmask.core.score import score_rows
from unmask.modalities.images.network.batches import image_batches
from unmask.modalities.images.network.codec import PatchCodec, PatchPrediction
from unmask.modalities.images.network.features import inference_rows, settled
from unmask.modalities.images.reading.arrays import ImageSet

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
    device, read = next(model.parameters()).device, None if scored_of(model) == "pixels" else _of_pattern
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


def _of_pattern(prediction: PatchPrediction, target: Tensor) -> Tensor:
    return prediction.pattern_log_prob(target)
