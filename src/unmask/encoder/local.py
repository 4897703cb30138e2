"""Local attention: slots see `window` slots on either side, and in every few layers their whole example (ModernBERT).

Long rows are worked out by `bands` in training; at inference some queries at a time see the keys in their reach.

Shape letters: rows, heads, slots, depth, length (slots of each example of a group).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unmask.encoder.attention import Layout, attend
from unmask.encoder.config import EncoderConfig, Rotary
from unmask.encoder.full import SelfAttention
from unmask.encoder.inference_attention import GroupedBatch, InferenceAttention, weighted_sum
from unmask.encoder.kinds import Local
from unmask.encoder.transformer import Encoder

BAND = 128
"""Fewest queries that are worked on at a time at inference."""


class LocalAttention(SelfAttention):
    """Attention within a window, or to the whole example where the layer has none."""

    def __init__(self, config: EncoderConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.window = config.attention.layer_window(layer)

    @property
    def rotary_base(self) -> float | None:
        positions = self.config.positions
        if isinstance(positions, Rotary) and self.window is not None:
            return positions.local_base
        return super().rotary_base

    def mix(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, queries: Tensor | None) -> Tensor:
        return attend(q, k, v, layout, window=self.window, queries=queries, dropout=self.weight_dropout)

    def inference(self, shared: dict[str, Any], dtype: torch.dtype) -> InferenceAttention:
        return LocalInference(window=self.window, **self._for_inference())


@dataclass(frozen=True, kw_only=True)
class LocalInference(InferenceAttention):
    """Attributes:
    window: slots seen on either side, None for all.
    """

    window: int | None

    def attend_group(self, q: Tensor, k: Tensor, v: Tensor, batch: GroupedBatch, out: Tensor) -> None:
        """Some queries at a time with the keys in reach of them: a block's scores stay in the caches."""
        length, scale = q.shape[2], q.shape[-1] ** -0.5
        if self.window is None or length <= self.window + 1:
            super().attend_group(q, k, v, batch, out)
            return
        k, v, size = k.contiguous(), v.contiguous(), max(BAND, self.window)
        for start in range(0, length, size):
            end = min(start + size, length)
            low, high = max(0, start - self.window), min(length, end + self.window)
            added = _near(batch, end - start, start - low, high - end, self.window, q.dtype)
            keys, values = k[:, :, low:high], v[:, :, low:high]
            out[:, :, start:end].copy_(weighted_sum(q[:, :, start:end], keys, values, added, scale, explicit=True))


def _near(batch: GroupedBatch, queries: int, before: int, behind: int, window: int, dtype: torch.dtype) -> Tensor:
    """What is added to scores of `queries` slots and the keys from `before` in front of them to `behind` after them: 0
    within the window, minus infinity beyond."""

    def made() -> Tensor:
        distance = torch.arange(-before, queries + behind)[None] - torch.arange(queries)[:, None]
        return torch.zeros(distance.shape, dtype=dtype).masked_fill_(distance.abs() > window, -torch.inf)

    return batch.once(("near", queries, before, behind, window, dtype), made)


class LocalEncoder(Encoder):
    """ModernBERT's."""

    made_for = Local
    attention = LocalAttention

    @property
    def all_layers_full(self) -> bool:
        return all(self.config.attention.layer_window(i) is None for i in range(self.config.layers))
