"""Embed examples: encoder states with nothing hidden, pooled to one vector per example."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from unmask.core.batch import Example, PackedBatch
from unmask.core.inference import BATCH_SLOTS, first_slots, inference_mode, packed_batches, similar_length_batches
from unmask.core.model import MaskedModel
from unmask.encoder.on_host import on_host, to_device
from unmask.errors import UserError

Pooling = Literal["mean", "first", "max"]
Pool = Callable[[Any, PackedBatch, int], Tensor]
"""(model, batch on its device, examples in the batch) -> one vector per example, (examples, width)."""


def embed(
    model: MaskedModel,
    examples: Sequence[Example],
    *,
    slots: int,
    batch_slots: int = BATCH_SLOTS,
    pooling: Pooling = "mean",
    normalise: bool = False,
    shared_rows: bool = True,
) -> np.ndarray:
    """One vector per example, (examples, width) float32, in the order given; zeros for an example without slots.

    Args:
        slots: longest example the model takes.
        pooling: over an example's observed slots, special ones too, as sentence-transformers does: their mean or
            maximum, or the first slot alone ([CLS]).
        normalise: to length 1, so that a dot product is the cosine.
        shared_rows: several short examples share a row; else one per row, beside others of its length.

    Raises:
        UserError: an example is longer than `slots`, or the pooling is unknown.
    """
    some = np.flatnonzero([len(e) for e in examples])
    batches = (packed_batches if shared_rows else similar_length_batches)(
        [examples[int(i)] for i in some], slots, batch_slots
    )
    return embed_batches(
        model,
        ((batch, some[numbers]) for batch, numbers in batches),
        pooled_by(pooling),
        count=len(examples),
        width=model.encoder.config.width,
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


def pooled_by(pooling: str, include_special: bool = True) -> Pool:
    """`pool` with its settings given, for `embed_batches`.

    Raises:
        UserError: the pooling is unknown.
    """
    _check_pooling(pooling)
    return lambda model, batch, count: pool(model, batch, count, pooling, include_special)


def pool(model: MaskedModel, batch: PackedBatch, count: int, pooling: str, include_special: bool) -> Tensor:
    """Pooled states of a batch's `count` examples, (count, width) fp32, by `batch.index`; see `embed`.

    Args:
        include_special: mean and maximum count special slots too.

    Raises:
        UserError: the pooling is unknown.
    """
    _check_pooling(pooling)
    if pooling == "first":
        device, first = batch.index.device, first_slots(batch, count)
        order = np.argsort(first)
        # Only the pooled slots are computed in the last layer.
        states = model.states(batch, wanted=to_device(torch.from_numpy(first[order]), device)).float()
        return states[to_device(torch.from_numpy(np.argsort(order)), device)]
    return pool_states(model.states(batch), batch, count, pooling, include_special)


def _check_pooling(pooling: str) -> None:
    if pooling not in get_args(Pooling):
        raise UserError(f"pooling={pooling}", hint="Expected mean, first or max.")


def pool_states(
    states: Float[Tensor, "rows slots width"],
    batch: PackedBatch,
    count: int,
    pooling: str,
    include_special: bool,
) -> Float[Tensor, "count width"]:
    """Mean ('mean') or maximum ('max') of states already computed, so that several poolings cost one pass of the
    encoder; fp32."""
    index, states = on_host(batch.index).flatten(), states.flatten(0, 1).float()
    real = index >= 0
    counted = real & on_host(batch.observed).flatten()
    if not include_special:
        counted &= ~on_host(batch.special).flatten()
    # An example with nothing to count is pooled over all it has.
    empty = torch.bincount(index[counted], minlength=count) == 0
    counted |= real & empty[index.clamp_min(0)]
    slots = counted.nonzero().flatten()
    states = states[to_device(slots, states.device)]
    owner = index[slots]
    where, sizes = (to_device(t, states.device) for t in (owner, torch.bincount(owner, minlength=count).clamp_min(1)))
    if pooling == "max":
        vectors = states.new_full((count, states.shape[1]), -torch.inf)
        return vectors.scatter_reduce(0, where[:, None].expand_as(states), states, "amax")
    total = states.new_zeros(count, states.shape[1]).index_add_(0, where, states)
    return total / sizes[:, None]
