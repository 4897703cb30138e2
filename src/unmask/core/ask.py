"""Ask a model about hidden slots of examples: each question hides slots in a copy of its example, so that no answer has
seen what it answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from unmask.core.batch import Example
from unmask.core.corruption import hide
from unmask.core.inference import BATCH_SLOTS, first_slots, inference_mode, packed_batches
from unmask.core.model import MaskedModel
from unmask.progress import counted

BLOCK = 256
"""Questions that are batched together."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """Slots of an example to hide, and which of them to predict.

    Attributes:
        hidden: (n,) slot numbers.
        wanted: (m,) those of them whose prediction is wanted; default all.
    """

    example: Example
    hidden: np.ndarray
    wanted: np.ndarray | None = None


def answers(
    model: MaskedModel, questions: Sequence[Question], *, slots: int, batch_slots: int = BATCH_SLOTS
) -> Iterator[tuple[list[int], Any, list[np.ndarray]]]:
    """Batch by batch the numbers of its questions, one prediction for all of them, and of each question the places of
    its wanted slots in that prediction, in their order. Every question comes once, in any order.

    Args:
        slots: longest example the model takes.
    """
    device = next(model.parameters()).device
    with inference_mode(model):
        for start in counted(range(0, len(questions), BLOCK), len(questions), lambda _: BLOCK):
            block = questions[start : start + BLOCK]
            for batch, numbers in packed_batches([q.example for q in block], slots, batch_slots):
                first = first_slots(batch, len(numbers))
                here = [block[n] for n in numbers.tolist()]
                hidden = np.concatenate([at + q.hidden for at, q in zip(first, here, strict=True)])
                flat = [at + (q.hidden if q.wanted is None else q.wanted) for at, q in zip(first, here, strict=True)]
                wanted = np.sort(np.concatenate(flat))
                prediction = model(
                    batch.to(device),
                    hide(torch.from_numpy(hidden).to(device)),
                    wanted=torch.from_numpy(wanted).to(device),
                )
                places = [np.searchsorted(wanted, slots_of_one) for slots_of_one in flat]
                yield [start + n for n in numbers.tolist()], prediction, places
