"""Some values hidden more often than others, at exact counts: rare words, from which more is learnt."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from unmask.core.corruption import Ratio, Slots, draw_counts, rank_within
from unmask.core.hashing import Salt, uniform
from unmask.errors import UserError


@dataclass(frozen=True, kw_only=True, eq=False)
class Weighted:
    """As `Uniform`, but slots are drawn without replacement in proportion to a weight of their value (Efraimidis &
    Spirakis 2006, algorithm A). Hiding words the more often the rarer they are is part of the field's recipes for
    little text (BabyLM).

    Attributes:
        weight: (values,) what each value of the channel counts, above 0.
        channel: that holds the values, whole numbers.
    """

    ratio: Ratio = 0.15
    weight: np.ndarray = field(repr=False)
    channel: str = "token"
    at_least: int = 1

    def __post_init__(self) -> None:
        if not (np.isfinite(self.weight).all() and (self.weight > 0).all()):
            raise UserError("a weight is not a number above 0", hint="Give every value a weight above 0.")

    def __call__(self, slots: Slots, *, key: tuple[int, int], progress: float = 0.0) -> np.ndarray:
        count = draw_counts(self.ratio, slots, key, progress, self.at_least)
        drawn = uniform(*key, slots.identity, slots.slot, Salt.WEIGHTED_ORDER)
        weight = self.weight[slots.channels[self.channel][slots.flat]]
        return rank_within(slots.example, -np.log1p(-drawn) / weight) < count[slots.example]
