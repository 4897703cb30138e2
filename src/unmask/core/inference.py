"""What fill, score and embed share: a model in evaluation mode, and examples batched to a budget of slots. A slot is
one position of a packed (rows, slots) grid: a token, cell, patch or event.

Examples of mixed lengths share rows (`packed_batches`); scored copies, many of one length, are sorted and cut
(`length_sorted_batches`). Measured on 600 texts of 5 to 128 slots, a 4x256 encoder, one core, fp32, in slots/s: one per
row in the order given 2500, sorted 6900, sorted with best fit 8200-8900, packed rows 10000-10600. Up to 512 slots:
sorted with best fit 9200, rows all as wide as the longest 10300, by powers of two 10900 (about 10 % of noise).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import nn

from unmask.core.batch import Example, PackedBatch, pack, place_best_fit
from unmask.errors import UserError
from unmask.kernels.on_host import on_host
from unmask.progress import counts

BATCH_SLOTS = 8192
"""Slots of a batch, padding included."""
MIN_ROW_SLOTS = 128
"""Slots of a row of packed batches, at least: enough to leave little padding, so few that attention stays cheap."""


@contextlib.contextmanager
def inference_mode(model: nn.Module) -> Iterator[None]:
    """`model.eval()` and `torch.inference_mode()` within; `model.training` is put back afterwards."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(training)


@counts(lambda item: len(item[0]))
def length_sorted_batches(lengths: np.ndarray, slots: int, batch_slots: int) -> Iterator[tuple[np.ndarray, int]]:
    """Examples in batches: (their indices, slots of a row), longest first, every example once.

    Longest first, so that a batch too large for the memory fails at once.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    _check(lengths, slots)
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        width = min(slots, max(8, -(-int(lengths[order[start]]) // 8) * 8))
        end = start + max(1, batch_slots // width)
        yield order[start:end], width
        start = end


@counts(lambda item: len(item[1]))
def packed_batches(
    examples: Sequence[Example], slots: int, batch_slots: int = BATCH_SLOTS
) -> Iterator[tuple[PackedBatch, np.ndarray]]:
    """Examples in batches of at most `batch_slots` slots, and which examples they are; every example once.

    `batch.index` counts within the batch: a slot is of example `numbers[batch.index]`. Several short examples
    share a row: rows are 128 slots wide, or the next power of two for longer examples.
    """
    lengths = np.array([len(e) for e in examples], np.int64)
    _check(lengths, slots)
    wide = np.maximum(MIN_ROW_SLOTS, 2 ** np.ceil(np.log2(np.maximum(lengths, 1))).astype(np.int64))
    for width in np.unique(wide)[::-1]:
        group = np.flatnonzero(wide == width)
        width = min(int(width), slots, max(8, -(-int(lengths[group].max()) // 8) * 8))
        placed = place_best_fit(lengths[group], width)
        rows = max(1, batch_slots // width)
        for start in range(0, len(placed), rows):
            part = placed[start : start + rows]
            ends = np.cumsum([len(row) for row in part])
            placement = [list(range(end - len(row), end)) for row, end in zip(part, ends.tolist(), strict=True)]
            numbers = group[[i for row in part for i in row]]
            yield pack([examples[i] for i in numbers], slots=width, placement=placement), numbers


@counts(lambda item: len(item[1]))
def similar_length_batches(
    examples: Sequence[Example], slots: int, batch_slots: int = BATCH_SLOTS, *, max_padding: float = 0.1
) -> Iterator[tuple[PackedBatch, np.ndarray]]:
    """As `packed_batches`, but one example per row, batched with others of nearly its length: for encoders whose
    attention costs much more than their other products (disentangled), where shared rows would be too wide.

    Args:
        max_padding: the largest share of a row that is padding, rounded up to a slot.
    """
    lengths = np.array([len(e) for e in examples], np.int64)
    _check(lengths, slots)
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        width = int(lengths[order[start]])
        near = int(np.searchsorted(-lengths[order], -np.floor(width * (1 - max_padding)), side="right"))
        end = min(max(near, start + 1), start + max(1, batch_slots // max(width, 1)))
        numbers = order[start:end]
        rows = [[i] for i in range(len(numbers))]
        yield pack([examples[i] for i in numbers], slots=width, placement=rows), numbers
        start = end


def _check(lengths: np.ndarray, slots: int) -> None:
    if len(lengths) and int(lengths.max()) > slots:
        worst = int(lengths.argmax())
        raise UserError(
            f"example {worst} has {int(lengths[worst])} slots, the model takes {slots}", hint="Cut it into windows."
        )


def first_slots(batch: PackedBatch, count: int) -> np.ndarray:
    """Flat number of the first slot of each of a batch's `count` examples (an example is contiguous in its row)."""
    index = on_host(batch.index).numpy().ravel()
    found, first = np.unique(index, return_index=True)
    out = np.zeros(count, np.int64)
    out[found[found >= 0]] = first[found >= 0]
    return out
