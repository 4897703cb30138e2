"""Replaced-slot detection (ELECTRA, Clark et al. 2020): a small generator fills the hidden slots, a discriminator says
of every slot whether it is the original. For any codec with discrete values; trained by the same six-step loop.

Shape letters: rows, slots, hidden, width.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Generic

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.core.batch import PackedBatch
from unmask.core.corruption import Hidden
from unmask.core.model import CodecT, MaskedModel
from unmask.core.prediction import Prediction
from unmask.kernels.fused_linear import activation, round_up


class Detection:
    """The generator's prediction of the hidden slots and the discriminator's verdict on all slots, as one prediction.

    `log_prob`, `mode`, `mean`, `probabilities`, `sample` and `confidence` are the generator's.

    Attributes:
        generator: prediction of the hidden slots.
        logits: (real slots,) log-odds that a slot was replaced.
        replaced: (real slots,) whether its value differs from the original.
        weight: of the detection loss.
        per_slot: hidden slots (or what their loss is divided by) per real slot, of the whole step.
    """

    def __init__(
        self,
        generator: Prediction,
        logits: Float[Tensor, " real"],
        replaced: Bool[Tensor, " real"],
        weight: float,
        per_slot: float,
    ) -> None:
        self.generator, self.logits, self.replaced = generator, logits, replaced
        self.weight, self.per_slot = weight, per_slot

    def __len__(self) -> int:
        return len(self.generator)

    def detection_loss(self) -> Tensor:
        """Binary cross-entropy, summed over all real slots."""
        return F.binary_cross_entropy_with_logits(self.logits.float(), self.replaced.float(), reduction="sum")

    def loss(self, target: Tensor, weight: Float[Tensor, " hidden"] | None = None) -> Tensor:
        """Generator loss summed over hidden slots, plus weight x detection loss x hidden slots per real slot.

        The loop divides by the hidden slots of the step, which leaves means of both, as in the paper (section 2).
        """
        return self.generator.loss(target, weight) + self.weight * self.per_slot * self.detection_loss()

    def log_prob(self, value: Tensor) -> Float[Tensor, " hidden"]:
        return self.generator.log_prob(value)

    def mode(self) -> Tensor:
        return self.generator.mode()

    def mean(self) -> Tensor:
        return self.generator.mean()

    def probabilities(self) -> Float[Tensor, "hidden values"]:
        return self.generator.probabilities()

    def sample(
        self, *, generator: torch.Generator | None = None, temperature: float = 1.0, top_k: int | None = None
    ) -> Tensor:
        return self.generator.sample(generator=generator, temperature=temperature, top_k=top_k)

    def confidence(self) -> Float[Tensor, " hidden"]:
        return self.generator.confidence()

    def correct(self, target: Tensor) -> Tensor | None:
        return self.generator.correct(target)


class ReplacedSlotDetection(nn.Module, Generic[CodecT]):
    """Generator and discriminator around one codec: the embeddings are shared, as in the paper (section 3.2).

    Args:
        generator: an in-place masked model; a quarter to a third of the discriminator's width works best (section 3.2).
        encoder: the discriminator's encoder; its input width is the codec's.
        weight: of the detection loss; 50 in the paper.
        temperature: at which the generator's fills are sampled.
    """

    encoder: Any
    over_all_slots = True
    """The loss has a mean over all slots: see `unmask.core.pretrain`."""

    def __init__(
        self, generator: MaskedModel[CodecT], encoder: nn.Module, *, weight: float = 50.0, temperature: float = 1.0
    ) -> None:
        super().__init__()
        if generator.visible_only:
            raise ValueError("replaced-slot detection needs an in-place generator")
        self.generator = generator
        self.encoder = encoder
        width: int = self.encoder.config.width
        self.transform, self.verdict = nn.Linear(width, width), nn.Linear(width, 1)
        self.activation = activation("gelu")
        self.weight, self.temperature = weight, temperature

    @property
    def codec(self) -> CodecT:
        """The generator's: values go in and come out through it."""
        return self.generator.codec

    def forward(self, batch: PackedBatch, hidden: Hidden, wanted: Int[Tensor, " wanted"] | None = None) -> Detection:
        """Predict hidden slots, fill them with samples, judge every slot of the filled row."""
        prediction = self.generator(batch, hidden)
        with torch.no_grad():
            # No gradient passes the sampling: the generator learns from its own loss alone.
            filled = prediction.sample(temperature=self.temperature)
            values = self.codec.write(batch.values, hidden.flat, filled)
        real = (batch.segment.flatten() > 0).nonzero().flatten()
        replaced = torch.zeros(batch.segment.numel(), dtype=torch.bool, device=real.device)
        replaced[hidden.flat] = filled != self.codec.targets(batch.values, hidden.flat)
        states = self.discriminate(replace(batch, values=values), real)
        per_slot = hidden.total_weight / max(len(real), 1) if hidden.per_slot is None else hidden.per_slot
        return Detection(prediction, states, replaced[real], self.weight, per_slot)

    def discriminate(self, batch: PackedBatch, slots: Int[Tensor, " wanted"]) -> Float[Tensor, " wanted"]:
        """Log-odds that each of `slots` was replaced."""
        nothing = torch.zeros(batch.shape, dtype=torch.bool, device=batch.segment.device)
        x = self.codec.embed(batch.values, nothing)
        states = self.encoder(x, segment=batch.segment, position=batch.position, wanted=slots)
        return self.verdict(self.activation(self.transform(round_up(states))))[: len(slots), 0]
