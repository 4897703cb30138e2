"""What fill, score and embed share: a model held still, and examples batched to a budget of slots.

Batches are made of examples of like length: sorted, then cut into rows as wide as the longest of the batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import nn

from unmask.core.batch import Example, PackedBatch, pack
from unmask.errors import UserError

BATCH_SLOTS = 8192


@contextlib.contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """No dropout and no gradients within; the model's mode is put back afterwards."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(training)


def chunks(lengths: np.ndarray, slots: int, batch_slots: int = BATCH_SLOTS) -> Iterator[tuple[np.ndarray, int]]:
    """Cut examples into batches: (their numbers, width of a row), longest first, every example once.

    Longest first, so that a batch too large for the memory fails at once.

    Raises:
        UserError: an example is longer than `slots`.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    if len(lengths) and int(lengths.max()) > slots:
        worst = int(lengths.argmax())
        raise UserError(
            f"example {worst} has {int(lengths[worst])} slots, the model takes {slots}", hint="Cut it into windows."
        )
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        width = min(slots, max(8, -(-int(lengths[order[start]]) // 8) * 8))
        end = start + max(1, batch_slots // width)
        yield order[start:end], width
        start = end


def budgeted(
    examples: Sequence[Example], slots: int, batch_slots: int = BATCH_SLOTS
) -> Iterator[tuple[PackedBatch, np.ndarray]]:
    """Examples in batches of at most `batch_slots` slots, and which examples they are.

    `batch.index` counts within the batch: example `numbers[batch.index]` stands in a slot.
    """
    for numbers, width in chunks(np.array([len(e) for e in examples], np.int64), slots, batch_slots):
        yield pack([examples[i] for i in numbers], slots=width), numbers


def first_slots(batch: PackedBatch, count: int) -> np.ndarray:
    """Flat number of the first slot of each of a batch's `count` examples (an example is contiguous in its row)."""
    index = batch.index.cpu().numpy().ravel()
    found, first = np.unique(index, return_index=True)
    out = np.zeros(count, np.int64)
    out[found[found >= 0]] = first[found >= 0]
    return out
