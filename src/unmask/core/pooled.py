"""Train one vector per example without labels: two losses, reconstruction and contrast, to be used together or alone.

What `PooledReconstruction` does with a batch:

1. Most slots of each example are hidden; `AllButCrop` leaves one contiguous part, the crop, visible.
2. The encoder sees the visible slots alone. The mean of their states is the vector of the visible part.
3. *Reconstruction*: a shallow decoder predicts the hidden slots from that vector and the embeddings of the visible
   values. It is discarded after training.
4. *Contrast*: by cosine similarity, the vector of each visible part must find the vector of its own example among those
   of all examples in the batch, and the reverse. The other vector is that of the whole example (`against="whole"`) or
   of its hidden slots (`against="rest"`).

Inputs: a `PackedBatch` of examples and what is hidden in it; no labels, no pairs.

Requirements:

- Contrast needs many examples per batch, because the other examples are its negatives; a batch must not be split into
  micro-batches. Copies of one example in a batch count as wrong answers for each other.
- Reconstruction needs a decoder whose positions are `SinCos` or `Learned`, as nothing else tells it where a slot is.

Which to choose:

- For a small model of your own that was only pretrained: both, against the whole example (the defaults).
- For a model that makes good vectors already: contrast alone, against the rest, at a low learning rate.
- Where a batch holds only a few examples: reconstruction alone.
- If you have labelled pairs, even a hundred, fine-tune on them instead (`unmask finetune similarity`).

Relation to other losses: reconstruction is RetroMAE's (Xiao et al. 2022, section 3.1), but hidden slots are dropped
before the encoder as in MAE (He et al. 2022, section 3). Contrast is SimCSE's loss (Gao et al. 2021, section 3), that
is, InfoNCE with the batch's negatives in both directions; SimCSE's two views differ by dropout, these also by what is
hidden. Against the whole, some copying is enough, as the part is contained in it. Against the rest, the two share only
what they are about: the inverse cloze task (Lee et al. 2019).

>>> from unmask.core.batch import Example, pack
>>> from unmask.core.corruption import ALL_MASK, Corruption
>>> from unmask.core.token_codec import TokenCodec, TokenCodecConfig
>>> from unmask.encoder.config import SinCos
>>> small = EncoderConfig(width=16, layers=1, heads=2, positions=SinCos())
>>> codec = TokenCodec(TokenCodecConfig(vocabulary=30, width=16, encoder_width=16, mask_id=1, special_ids=(0, 1)))
>>> model = PooledReconstruction(MaskedModel(codec, make_encoder(small)), decoder=small, against="rest")
>>> batch = pack([Example(values={"token": np.arange(2, 14) + i}, identity=i) for i in range(4)], slots=24)
>>> hidden = Corruption(select=AllButCrop(), replace=ALL_MASK).draw(batch, seed=0)
>>> loss = model(batch, hidden).loss(codec.targets(batch.values, hidden.flat)) / hidden.total_weight
>>> loss.backward()
>>> model.whole(batch, 4).shape  # the vectors
torch.Size([4, 16])

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
from unmask.errors import UserError
from unmask.kernels.fused_linear import round_up
from unmask.kernels.on_host import on_host, to_device


class PooledPrediction:
    """Prediction of the hidden slots from one vector per example, and how the vectors compare.

    All methods but `loss` are those of the reconstruction.

    Attributes:
        reconstruction: the prediction of the hidden slots; None where its weight is 0, and it is not computed.
        contrast: cross-entropy of finding each example's whole (or rest) by its visible part and the visible part by
            its whole (or rest), mean over examples and both directions.
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
        """The weighted sum of both losses, as a sum over hidden slots: the loop divides it by their number."""
        reconstruct, contrast = self.weights
        total = contrast * self.contrast * self.total
        if self.reconstruction is None:
            return total
        return total + reconstruct * self.reconstruction.loss(target, weight)

    def log_prob(self, value: Tensor) -> Float[Tensor, " hidden"]:
        if self.reconstruction is None:
            raise ValueError("nothing is reconstructed")
        return self.reconstruction.log_prob(value)

    def correct(self, target: Tensor) -> Tensor | None:
        return None if self.reconstruction is None else self.reconstruction.correct(target)


class PooledReconstruction(nn.Module, Generic[CodecT]):
    """A masked model that learns to make vectors; see the module for what it does and which losses to choose.

    Args:
        masked: the model whose encoder and codec are trained, in place.
        decoder: config of the decoder; shallow (RetroMAE has one layer), with positions `SinCos` or `Learned`.
        reconstruct: weight of the reconstruction's loss, which is a mean over hidden slots; 0 for none.
        contrast: weight of the contrast's loss, which is a mean over examples; 0 for none.
        temperature: what cosines are divided by; SimCSE's is .05.
        against: what a visible part must find: the 'whole' example, or its 'rest', which shares no slot with it.
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
        """The masked model's codec."""
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
    """Leaves one contiguous part of an example's maskable slots visible and hides the rest (cropping as in Izacard et
    al. 2022, 'Unsupervised dense information retrieval with contrastive learning', section 3.2).

    Attributes:
        seen: smallest and largest visible share of the slots; drawn uniformly between them per example and epoch.
        at_least: visible slots at least, as far as the example has them and one is left to hide.
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
