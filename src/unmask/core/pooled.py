"""One vector per example from masked learning, without labels: what is seen of an example must tell the rest of it.

Two losses on one hidden share. *Reconstruction*: the encoder sees the visible slots alone, their states are pooled to
one vector, and a shallow decoder, which is thrown away afterwards, predicts the hidden slots from that vector and the
embeddings of the visible values (RetroMAE, Xiao et al. 2022, section 3.1, with hidden slots dropped before the encoder
as in MAE, He et al. 2022, section 3). *Contrast*: the vector of the visible part must be nearer to the vector of the
whole example, or of its rest alone, than to those of the other examples in the batch (the loss of SimCSE, Gao et al.
2021, section 3, whose two views differ by dropout; here they differ by what is hidden as well). A part is in its whole,
so that copying is enough to find that; between a part and the rest only what both are about is the same (the inverse
cloze task, Lee et al. 2019).

Shape letters: rows, slots, hidden, examples, width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.core.batch import PackedBatch
from unmask.core.corruption import Hidden, Slots
from unmask.core.embed import pool_states
from unmask.core.hashing import Salt, uniform
from unmask.core.model import CodecT, MaskedModel, WantedSlots, corrupt
from unmask.core.prediction import Prediction
from unmask.encoder.build import make_encoder
from unmask.encoder.config import EncoderConfig
from unmask.encoder.fused_linear import round_up
from unmask.encoder.on_host import on_host, to_device
from unmask.errors import UserError


class PooledPrediction:
    """Prediction of the hidden slots from one vector per example, and how the vectors compare.

    All methods but `loss` are those of the reconstruction.

    Attributes:
        reconstruction: of the hidden slots; None where it has no weight, and is not worked out.
        contrast: mean over examples of the cross-entropy of finding an example's whole, or rest, by its visible part,
            and its part by that.
    """

    def __init__(
        self,
        reconstruction: Prediction | None,
        contrast: Tensor,
        weights: tuple[float, float],
        hidden: int,
        total: float,
    ) -> None:
        self.reconstruction, self.contrast, self.weights = reconstruction, contrast, weights
        self.hidden, self.total = hidden, total

    def __len__(self) -> int:
        return self.hidden

    def loss(self, target: Tensor, weight: Float[Tensor, " hidden"] | None = None) -> Tensor:
        """Both losses by their weights, times what the loop divides by, which leaves means."""
        reconstruct, contrast = self.weights
        total = contrast * self.contrast * self.total
        if self.reconstruction is None:
            return total
        return total + reconstruct * self.reconstruction.loss(target, weight)

    def log_prob(self, value: Tensor) -> Float[Tensor, " hidden"]:
        """
        Raises:
            ValueError: the reconstruction has no weight.
        """
        if self.reconstruction is None:
            raise ValueError("nothing is reconstructed")
        return self.reconstruction.log_prob(value)

    def correct(self, target: Tensor) -> Tensor | None:
        return None if self.reconstruction is None else self.reconstruction.correct(target)


class PooledReconstruction(nn.Module, Generic[CodecT]):
    """A masked model that learns to make vectors; see the module.

    Args:
        masked: its encoder and codec are trained; used in place afterwards.
        decoder: of the codec's width, shallow (one layer is RetroMAE's), with positions that a bare embedding needs.
        reconstruct: weight of the reconstruction, per hidden slot.
        contrast: weight of the contrast, per example.
        temperature: that cosines are divided by; .05 is SimCSE's.
        against: what a part must find: the 'whole' example, or its 'rest', of which it has no slot.

    Raises:
        ValueError: neither loss has a weight.
    """

    def __init__(
        self,
        masked: MaskedModel[CodecT],
        decoder: EncoderConfig,
        *,
        reconstruct: float = 1.0,
        contrast: float = 1.0,
        temperature: float = 0.05,
        against: Literal["whole", "rest"] = "whole",
    ) -> None:
        super().__init__()
        if not (reconstruct or contrast):
            raise ValueError("neither reconstruct nor contrast has a weight")
        self.masked = masked
        width: int = masked.encoder.config.width
        self.vector_in = nn.Linear(width, decoder.width)
        self.context_in = nn.Linear(width, decoder.width)
        self.decoder = make_encoder(decoder)
        self.decoder_out = nn.Linear(decoder.width, width)
        self.reconstruct, self.contrast, self.temperature = reconstruct, contrast, temperature
        self.against = against

    @property
    def codec(self) -> CodecT:
        """The masked model's: values go in and come out through it."""
        return self.masked.codec

    def forward(
        self, batch: PackedBatch, hidden: Hidden, wanted: Int[Tensor, " wanted"] | None = None
    ) -> PooledPrediction:
        """Predict hidden slots from the vector of the visible ones, and compare vectors of parts and wholes."""
        wanted = hidden.flat if wanted is None else wanted
        count = int(on_host(batch.index).max()) + 1
        part = self.part(batch, hidden, count)
        reconstruction = None
        if self.reconstruct:
            states = self._decoded(batch, hidden, part, wanted)
            reconstruction = self.codec.predict(states, WantedSlots(batch, hidden, wanted))
        contrast = part.new_zeros(())
        if self.contrast:
            whole = self.against == "whole"
            other = self.whole(batch, count) if whole else self.rest(batch, hidden, count)
            contrast = between(part, other, self.temperature)
        return PooledPrediction(
            reconstruction, contrast, (self.reconstruct, self.contrast), len(wanted), hidden.total_weight
        )

    def part(self, batch: PackedBatch, hidden: Hidden, count: int) -> Float[Tensor, "examples width"]:
        """Mean state of each example's visible slots, special ones too; the encoder sees no others."""
        there = on_host(batch.segment) != 0
        return self._seen(batch, there.flatten().index_fill(0, on_host(hidden.flat), False), count)

    def rest(self, batch: PackedBatch, hidden: Hidden, count: int) -> Float[Tensor, "examples width"]:
        """Mean state of each example's hidden slots and special ones; the encoder sees no others."""
        seen = (on_host(batch.segment) != 0) & on_host(batch.special)
        return self._seen(batch, seen.flatten().index_fill(0, on_host(hidden.flat), True), count)

    def _seen(
        self, batch: PackedBatch, seen: Bool[Tensor, " all_slots"], count: int
    ) -> Float[Tensor, "examples width"]:
        """Mean state of each example's slots of `seen`, where the encoder sees no others."""
        visible = seen.nonzero().flatten()
        states, real = self.masked._encoded(batch, visible)
        index = to_device(on_host(batch.index).flatten()[visible], states.device)
        states = states.flatten(0, 1).index_select(0, real).float()
        total = states.new_zeros(count, states.shape[-1]).index_add(0, index, states)
        return total / torch.bincount(index, minlength=count).clamp(min=1)[:, None]

    def whole(self, batch: PackedBatch, count: int) -> Float[Tensor, "examples width"]:
        """Mean state of each example with nothing hidden, as `embed` makes it."""
        return pool_states(self.masked.states(batch), batch, count, "mean", True)

    def _decoded(self, batch: PackedBatch, hidden: Hidden, vectors: Tensor, wanted: Tensor) -> Tensor:
        masked = torch.zeros(batch.segment.numel(), dtype=torch.bool, device=batch.segment.device)
        masked[hidden.flat] = True
        context = self.codec.embed(corrupt(self.codec, batch.values, hidden), masked.view(batch.shape))
        condition = self.vector_in(vectors.to(context.dtype))[batch.index.clamp(min=0)]
        x = self.context_in(context) + condition
        states = self.decoder(x, segment=batch.segment, position=batch.position, wanted=wanted)
        return self.decoder_out(round_up(states))[: len(wanted)]


def between(part: Float[Tensor, "n width"], whole: Float[Tensor, "n width"], temperature: float) -> Tensor:
    """Cross-entropy of finding each whole by its part and each part by its whole, among the n of the batch; mean."""
    near = F.normalize(part, dim=-1) @ F.normalize(whole, dim=-1).t() / temperature
    same = torch.arange(len(near), device=near.device)
    return (F.cross_entropy(near, same) + F.cross_entropy(near.t(), same)) / 2


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
