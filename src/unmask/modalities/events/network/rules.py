"""What rules without a model score on hidden events: what the accuracy of pretraining stands beside."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from unmask.core.batch import PackedBatch
from unmask.core.corruption import Corruption
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.meds import STATIC

FREQUENT, OWN = "most frequent code", "most frequent code of the patient"


def code_counts(histories: Histories, subjects: np.ndarray) -> np.ndarray:
    """(codes,) how many timed events of these subjects have each code of the vocabulary."""
    events, counts = histories.events, np.zeros(len(histories.vocabulary), np.int64)
    chosen = np.zeros(len(events), bool)
    chosen[subjects] = True
    for owners, here in events.blocks():
        code = histories.code[here]
        known = chosen[events.owner(owners)] & (code >= 0) & (events.time[here] != STATIC)
        counts += np.bincount(code[known], minlength=len(counts))
    return counts


def code_rules(counts: np.ndarray, batches: Iterable[PackedBatch], corruption: Corruption) -> dict[str, float]:
    """Accuracy on the events that validation hides, of always guessing the most frequent code, and of guessing the most
    frequent one among the visible events of the same history (of several the one that `counts` has more of; of a
    history without visible events the most frequent of all). Empty where nothing is hidden.

    Args:
        counts: (codes,) of the training events, see `code_counts`.
        batches, corruption: those of the validation.
    """
    best, hidden = int(counts.argmax()), 0
    right = {FREQUENT: 0, OWN: 0}
    for batch in batches:
        code, owner = (part.flatten().numpy() for part in (batch.values["code"], batch.identity))
        flat = corruption.draw(batch, seed=0, epoch=0).flat.numpy()
        visible = batch.maskable.flatten().numpy().copy()
        visible[flat] = False
        pairs, times = np.unique(np.stack([owner[visible], code[visible]]), axis=1, return_counts=True)
        order = np.lexsort((counts[pairs[1]], times))  # the code that a history has most often is written last
        own = dict(zip(pairs[0][order].tolist(), pairs[1][order].tolist(), strict=True))
        right[FREQUENT] += int((code[flat] == best).sum())
        right[OWN] += sum(own.get(o, best) == c for o, c in zip(owner[flat].tolist(), code[flat].tolist(), strict=True))
        hidden += len(flat)
    return {name: count / hidden for name, count in right.items()} if hidden else {}


__all__ = ["FREQUENT", "OWN", "code_counts", "code_rules"]
