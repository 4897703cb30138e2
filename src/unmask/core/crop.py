"""Everything hidden but one run of slots: what a query is to the passage that answers it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unmask.core.corruption import Slots
from unmask.core.hashing import Salt, uniform
from unmask.errors import UserError


@dataclass(frozen=True, kw_only=True)
class AllButCrop:
    """One contiguous run of an example's maskable slots is seen, the rest is hidden (cropping as in Izacard et al.
    2022, 'Unsupervised dense information retrieval with contrastive learning', section 3.2).

    Attributes:
        seen: shortest and longest share of the slots that is seen; drawn evenly between them per example and epoch.
        at_least: slots seen, where there are as many and one is left to hide.
    """

    seen: tuple[float, float] = (0.1, 0.5)
    at_least: int = 4

    def __post_init__(self) -> None:
        low, high = self.seen
        if not 0 < low <= high < 1:
            raise UserError(
                f"seen={low},{high}", hint="Expected two shares above 0 and below 1, the smaller one first."
            )

    def __call__(self, slots: Slots, *, key: tuple[int, int], progress: float = 0.0) -> np.ndarray:
        size = np.bincount(slots.example, minlength=slots.examples)
        identity = np.zeros(slots.examples, np.int64)
        identity[slots.example] = slots.identity
        low, high = self.seen
        share = low + (high - low) * uniform(*key, identity, Salt.SEEN_SHARE)
        seen = np.clip(np.round(share * size).astype(np.int64), self.at_least, None)
        seen = np.minimum(seen, np.maximum(size - 1, 0))
        start = np.floor(uniform(*key, identity, Salt.SEEN_START) * (size - seen + 1)).astype(np.int64)
        rank = np.arange(len(slots.example)) - np.searchsorted(slots.example, slots.example, side="left")
        start, end = start[slots.example], (start + seen)[slots.example]
        return (rank < start) | (rank >= end)
