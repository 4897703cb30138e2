"""Embed examples: encoder states with nothing hidden, pooled to one vector per example."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from unmask.core.batch import Example, PackedBatch
from unmask.core.inference import BATCH_SLOTS, first_slots, inference_mode, packed_batches, similar_length_batches
from unmask.core.model import MaskedModel
from unmask.errors import UserError, option
from unmask.kernels.on_host import on_host, to_device

Pooling = Literal["mean", "first", "max"]
POOLINGS = ("mean", "first", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
"""What `embed` pools by: also the sum over the root of the number of slots, the mean weighted by place (1 for the
first) and the last slot, as sentence-transformers names them; "first+mean" puts two side by side."""
Pool = Callable[[Any, PackedBatch, int], Tensor]
"""(model, batch on its device, examples in the batch) -> one vector per example, (examples, width)."""


def embed(
    model: MaskedModel,
    examples: Sequence[Example],
    *,
    slots: int,
    batch_slots: int = BATCH_SLOTS,
    pooling: str = "mean",
    normalise: bool = False,
    shared_rows: bool = True,
    unpooled: int = 0,
) -> np.ndarray:
    """One vector per example, (examples, width) float32, in the order given; zeros for an example without slots.

    Args:
        slots: longest example the model takes.
        pooling: over an example's observed slots, special ones too, as sentence-transformers does: their mean or
            maximum, or the first slot alone ([CLS]); or another of `POOLINGS`, or several.
        normalise: to length 1, so that a dot product is the cosine.
        shared_rows: several short examples share a row; else one per row, beside others of its length.
        unpooled: slots at the start of each example that are read and not pooled.
    """
    some = np.flatnonzero([len(e) for e in examples])
    batches = (packed_batches if shared_rows else similar_length_batches)(
        [examples[int(i)] for i in some], slots, batch_slots
    )
    return embed_batches(
        model,
        ((batch, some[numbers]) for batch, numbers in batches),
        pooled_by(pooling, unpooled=unpooled),
        count=len(examples),
        width=model.encoder.config.width * len(pooling.split("+")),
        normalise=normalise,
    )


def embed_batches(
    model: nn.Module,
    batches: Iterable[tuple[PackedBatch, np.ndarray]],
    pool: Pool,
    *,
    count: int,
    width: int | None = None,
    normalise: bool = False,
) -> np.ndarray:
    """One vector per example of batches that the caller makes, (count, width) float32; zeros for examples of no batch.

    Args:
        batches: each with the numbers of its examples, (count,): row `numbers[i]` of the result is the vector of the
            example whose `batch.index` is i.
        pool: makes the vectors of a batch; see `Pool`.
        width: of a vector; default as `pool` makes them (0 without a batch).
        normalise: to length 1, so that a dot product is the cosine.
    """
    device = next(model.parameters()).device
    out = None if width is None else np.zeros((count, width), np.float32)
    with inference_mode(model):
        for batch, numbers in batches:
            vectors = pool(model, batch.to(device), len(numbers))
            if normalise:
                vectors = torch.nn.functional.normalize(vectors, dim=-1)
            if out is None:
                out = np.zeros((count, vectors.shape[1]), np.float32)
            out[numbers] = vectors.cpu().numpy()
    return np.zeros((count, 0), np.float32) if out is None else out


def pooled_by(pooling: str, include_special: bool = True, unpooled: int = 0) -> Pool:
    """`pool` with its settings given, for `embed_batches`."""
    check_pooling(pooling)
    return lambda model, batch, count: pool(model, batch, count, pooling, include_special, unpooled)


def pool(
    model: MaskedModel, batch: PackedBatch, count: int, pooling: str, include_special: bool, unpooled: int = 0
) -> Tensor:
    """Pooled states of a batch's `count` examples, (count, width) fp32, by `batch.index`; see `embed`.

    Args:
        include_special: mean and maximum count special slots too.
        unpooled: slots at the start of each example that are not counted.
    """
    check_pooling(pooling)
    if pooling == "first" and not unpooled:
        device, first = batch.index.device, first_slots(batch, count)
        order = np.argsort(first)
        # Only the pooled slots are computed in the last layer.
        states = model.states(batch, wanted=to_device(torch.from_numpy(first[order]), device)).float()
        return states[to_device(torch.from_numpy(np.argsort(order)), device)]
    return pool_states(model.states(batch), batch, count, pooling, include_special, unpooled)


def check_pooling(pooling: str, known: Sequence[str] = POOLINGS) -> None:
    """Refuse a pooling that is none of `known`, nor several of them joined by "+"."""
    if not set(pooling.split("+")) <= set(known):
        raise UserError(option("pooling", pooling), hint=f"Expected {', '.join(known[:-1])} or {known[-1]}.")


def pool_states(
    states: Float[Tensor, "rows slots width"],
    batch: PackedBatch,
    count: int,
    pooling: str,
    include_special: bool,
    unpooled: int = 0,
) -> Float[Tensor, "count vector"]:
    """States already computed, pooled, so that several poolings cost one pass of the encoder; fp32."""
    index, place = on_host(batch.index).flatten(), on_host(batch.position).flatten()
    states = states.flatten(0, 1).float()
    real = index >= 0
    counted = real & on_host(batch.observed).flatten() & (place >= unpooled)
    if not include_special:
        counted &= ~on_host(batch.special).flatten()
    # An example with nothing to count is pooled over all it has.
    empty = torch.bincount(index[counted], minlength=count) == 0
    counted |= real & empty[index.clamp_min(0)]
    slots = counted.nonzero().flatten()
    states = states[to_device(slots, states.device)]
    owner, weight = (to_device(t[slots], states.device) for t in (index, place + 1))
    return torch.cat([_pooled(states, owner, weight, count, way) for way in pooling.split("+")], 1)


def _pooled(states: Tensor, owner: Tensor, weight: Tensor, count: int, way: str) -> Tensor:
    """(slots, width), the example of each slot and its place from 1 on -> (count, width)."""
    if way == "max":
        vectors = states.new_full((count, states.shape[1]), -torch.inf)
        return vectors.scatter_reduce(0, owner[:, None].expand_as(states), states, "amax")
    if way in ("first", "lasttoken"):
        slots = torch.arange(len(owner), device=owner.device)
        edge = torch.zeros_like(slots[:1]).expand(count).clone()
        return states[edge.scatter_reduce(0, owner, slots, "amin" if way == "first" else "amax", include_self=False)]
    weight = weight.to(states.dtype) if way == "weightedmean" else torch.ones_like(weight, dtype=states.dtype)
    total = states.new_zeros(count, states.shape[1]).index_add_(0, owner, states * weight[:, None])
    divisor = states.new_zeros(count).index_add_(0, owner, weight).clamp_min(1)
    return total / (divisor.sqrt() if way == "mean_sqrt_len_tokens" else divisor)[:, None]


def pool_padded(states: Tensor, mask: Tensor | None, pooling: str, unpooled: int = 0) -> Tensor:
    """(texts, slots, width) -> (texts, vector): the same poolings of texts side by side, padding behind each.

    Args:
        mask: (texts, slots), 0 at padding; None where all texts are as long as the others.
        unpooled: slots at the start of each text that are not counted, where it has more. Only without a mask.
    """
    return torch.cat([_pooled_side_by_side(states, mask, way, unpooled) for way in pooling.split("+")], -1)


def _pooled_side_by_side(states: Tensor, mask: Tensor | None, way: str, unpooled: int) -> Tensor:
    start = unpooled if unpooled < states.shape[1] else 0
    if way == "first":
        return states[:, start]
    if mask is None:
        states = states[:, start:]
        if way in ("max", "lasttoken"):
            return states.amax(1) if way == "max" else states[:, -1]
        if way == "mean":
            return states.mean(1, dtype=torch.float32)
        mask = torch.ones_like(states[..., 0], dtype=torch.float32)
    if way == "max":
        return states.masked_fill(mask[..., None] == 0, -1e9).amax(1)
    if way == "lasttoken":
        last = mask.sum(1).long().clamp_min(1) - 1
        return states.gather(1, last[:, None, None].expand(-1, 1, states.shape[2])).squeeze(1)
    weight = mask.to(torch.promote_types(states.dtype, torch.float32))
    weight = weight * (weight.cumsum(1) + start) if way == "weightedmean" else weight
    divisor = weight.sum(1).clamp_min(1)[:, None]
    total = (states * weight[..., None]).sum(1)
    return total / (divisor.sqrt() if way == "mean_sqrt_len_tokens" else divisor)
