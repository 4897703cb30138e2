"""Where a layer of an image model looks, over the grid of patches."""

from __future__ import annotations

from torch import Tensor

from unmask.core.batch import PackedBatch
from unmask.core.inference import inference_mode
from unmask.core.model import MaskedModel
from unmask.modalities.images.network.codec import PatchCodec


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
    q, k, _ = module.split(module.qkv(caught[0])).unbind(0)
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
