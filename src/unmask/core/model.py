"""The masked model: codec -> encoder -> prediction, in both architectures.

*In place* (BERT, SimMIM, BEHRT): a mask embedding stands in hidden slots, the encoder sees the full row.
*Visible only* (MAE): hidden slots are dropped before the encoder; a small decoder, thrown away afterwards, gets the
encoded visible slots plus mask embeddings, all with positions.

Shape letters: rows, slots, width, hidden, wanted (the hidden slots whose prediction is wanted).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from typing_extensions import TypeVar

from unmask.core.batch import PackedBatch
from unmask.core.corruption import Hidden
from unmask.core.prediction import Prediction
from unmask.encoder.build import make_encoder
from unmask.encoder.config import EncoderConfig
from unmask.encoder.inference_encoder import batch_invariant_states
from unmask.encoder.transformer import Encoder, wanted_by_row
from unmask.kernels.fused_linear import round_up
from unmask.kernels.on_host import on_host, to_device


@dataclass(frozen=True)
class WantedSlots:
    """The slots whose prediction is wanted, for codecs whose head needs more of them than their states.

    Attributes:
        batch: whole, hidden values included: what is read of hidden slots must be context (see
            `Codec.context_channels`).
        hidden: what is hidden in it.
        slots: ascending flat slot numbers, a subset of the hidden ones.
    """

    batch: PackedBatch
    hidden: Hidden
    slots: Int[Tensor, " wanted"]

    def context(self, channel: str) -> Tensor:
        """Values of a channel that is known of hidden slots too, one per query."""
        return self.batch.values[channel].flatten()[self.slots]


@runtime_checkable
class Codec(Protocol):
    """What a modality brings: it embeds slot values and predicts them back. This is all that the core reads of it.

    Attributes:
        context_channels: channels of the values that are known of a hidden slot too (the column of a table's cell,
            which sentence a token is of) and stay when it is hidden; every other channel is taken out.
        drops_missing: missing slots do not reach the encoder of the visible-only architecture: nothing stands in them.
    """

    context_channels: tuple[str, ...]
    drops_missing: bool

    def embed(self, values: dict[str, Tensor], masked: Bool[Tensor, "rows slots"]) -> Float[Tensor, "rows slots width"]:
        """Embed values; where `masked`, the mask embedding stands and the value must not be read."""
        ...

    def noise(self, values: dict[str, Tensor], flat: Int[Tensor, " n"], bits: Int[Tensor, " n"]) -> dict[str, Tensor]:
        """Random values, one per slot in `flat`, made from 64 random bits each; never special ones."""
        ...

    def targets(self, values: dict[str, Tensor], flat: Int[Tensor, " n"]) -> Tensor:
        """The true values of the slots in `flat`, as the prediction's loss wants them."""
        ...

    def write(self, values: dict[str, Tensor], flat: Int[Tensor, " n"], new: Tensor) -> dict[str, Tensor]:
        """A copy of `values` with predicted values written into the slots in `flat`."""
        ...

    def predict(self, states: Float[Tensor, "wanted width"], wanted: WantedSlots) -> Prediction:
        """Distribution per slot from its encoder state, and what else the head reads of the slots asked for."""
        ...


def lacking(codec: object) -> list[str]:
    """The members of `Codec` that an object does not have."""
    stated = ("context_channels", "drops_missing", "embed", "noise", "targets", "write", "predict")
    return [name for name in stated if not hasattr(codec, name)]


def codec_of(model: nn.Module) -> Codec:
    """The codec of a model that is trained, be it wrapped for several processes."""
    codec = getattr(getattr(model, "module", model), "codec", None)
    if not isinstance(codec, Codec):
        raise TypeError(f"{type(model).__name__} has no codec: see unmask.core.model.Codec")
    return codec


CodecT = TypeVar("CodecT", bound=Codec, default=Codec, covariant=True)
"""The class of a model's codec, as in `MaskedModel[TokenCodec]`; where it is not said, `Codec` is all that is known."""


@runtime_checkable
class MaskedEncoder(Protocol):
    """What `MaskedModel` asks of an encoder: `unmask.encoder.transformer.Encoder` and those derived from it."""

    config: EncoderConfig

    def __call__(
        self, x: Float[Tensor, "rows slots width"], *, segment: Tensor, position: Tensor, wanted: Tensor | None = None
    ) -> Tensor:
        """(rows, slots, width) states, or (wanted, width) those of the `wanted` flat slots."""
        ...

    def decode(
        self, x: Float[Tensor, "rows slots width"], *, segment: Tensor, position: Tensor, wanted: Tensor | None = None
    ) -> Tensor:
        """States that predictions are made from: the encoder's own, or those of a decoder on top of it (DeBERTa)."""
        ...

    def side_by_side(self, segment: Int[Tensor, "rows slots"]) -> object | None:
        """None where the encoder would rather have rows as they are than all examples of the batch in one row."""
        ...


def corrupt(codec: Codec, values: dict[str, Tensor], hidden: Hidden) -> dict[str, Tensor]:
    """Take the hidden values out: zeros under the mask, noise at random slots, the value itself at kept ones."""
    out = {k: v.clone() for k, v in values.items()}
    flat, bits = hidden.random
    for tensor in (t for name, t in out.items() if name not in codec.context_channels):
        tensor.view(-1, *tensor.shape[2:])[hidden.masked] = 0
    if len(flat):
        for channel, drawn in codec.noise(values, flat, bits).items():
            out[channel].view(-1, *out[channel].shape[2:])[flat] = drawn.to(out[channel].dtype)
    return out


def numbered(segment: Int[Tensor, "rows slots"]) -> Int[Tensor, "rows slots"]:
    """Segments with numbers that no other row's have; 0 stays padding."""
    rows, slots = segment.shape
    return torch.where(segment != 0, segment + slots * torch.arange(rows, device=segment.device)[:, None], 0)


class MaskedModel(nn.Module, Generic[CodecT]):
    """Hide slots, predict them back.

    Args:
        codec: the modality's codec, an `nn.Module`.
        encoder: see `MaskedEncoder`; a model with a forward pass of its own may bring another module.
        decoder: None for the in-place architecture; a decoder's config for the visible-only one (its `width` is
            the decoder's; its positions must be SinCos or Learned, so that mask embeddings know where they stand).
        bridge: the decoder's states are projected to the encoder's width, for codecs that predict from there; without
            it the codec predicts from the decoder's width (MAE).
    """

    codec: CodecT
    encoder: Any  # a `MaskedEncoder`
    decoder: Encoder

    def __init__(
        self,
        codec: CodecT,
        encoder: MaskedEncoder | nn.Module,
        decoder: EncoderConfig | None = None,
        *,
        bridge: bool = True,
    ) -> None:
        super().__init__()
        if lacks := lacking(codec):
            raise TypeError(f"{type(codec).__name__} lacks {', '.join(lacks)}: see unmask.core.model.Codec")
        self.codec, self.encoder = codec, encoder
        if decoder is not None:
            width: int = self.encoder.config.width
            self.decoder_in = nn.Linear(width, decoder.width)
            self.decoder_mask = nn.Parameter(torch.randn(decoder.width) * 0.02)
            self.decoder = make_encoder(decoder)
            self.decoder_out = nn.Linear(decoder.width, width) if bridge else nn.Identity()

    @property
    def visible_only(self) -> bool:
        """Whether the encoder sees the visible slots alone, and a decoder predicts (MAE)."""
        return hasattr(self, "decoder")

    def forward(self, batch: PackedBatch, hidden: Hidden, wanted: Int[Tensor, " wanted"] | None = None) -> Prediction:
        """Predict hidden slots.

        Args:
            wanted: ascending flat slot numbers to predict, a subset of the hidden ones; default all of them.
        """
        if hidden.causal and self.visible_only:
            raise TypeError("the visible-only architecture is not causal: use Corruption(causal=0)")
        wanted = hidden.flat if wanted is None else wanted
        states = (
            self._visible_only(batch, hidden, wanted) if self.visible_only else self._in_place(batch, hidden, wanted)
        )
        return self.codec.predict(states, WantedSlots(batch, hidden, wanted))

    def _in_place(self, batch: PackedBatch, hidden: Hidden, wanted: Tensor) -> Tensor:
        masked = torch.zeros(batch.segment.numel(), dtype=torch.bool, device=batch.segment.device)
        masked[hidden.masked] = True
        x = self.codec.embed(corrupt(self.codec, batch.values, hidden), masked.view(batch.shape))
        if hidden.causal:
            return self.encoder(x, segment=batch.segment, position=batch.position, wanted=wanted - 1, causal=True)
        if (
            out := batch_invariant_states(self.encoder, x, batch.segment, batch.position, wanted, decode=True)
        ) is not None:
            return out
        return self.encoder.decode(x, segment=batch.segment, position=batch.position, wanted=wanted)

    def _visible_only(self, batch: PackedBatch, hidden: Hidden, wanted: Tensor) -> Tensor:
        rows, slots = batch.shape
        there = on_host(batch.segment) != 0
        if self.drops_missing:
            there &= on_host(batch.observed)
        visible = there.flatten().index_fill(0, on_host(hidden.flat), False).nonzero().flatten()
        states, real = self._encoded(batch, visible)
        visible = to_device(visible, batch.segment.device)
        seen = self.decoder_in(states).flatten(0, 1).index_select(0, real)
        full = self.decoder_mask.to(seen.dtype).expand(rows * slots, -1).index_put((visible,), seen)
        full = full.view(rows, slots, -1)
        decoded = self.decoder(full, segment=batch.segment, position=batch.position, wanted=wanted)
        return self.decoder_out(round_up(decoded))[: len(wanted)]

    @property
    def drops_missing(self) -> bool:
        """Missing slots do not reach the encoder: the codec has nothing to stand in them (visible only)."""
        return self.visible_only and self.codec.drops_missing

    def _encoded(self, batch: PackedBatch, visible: Tensor) -> tuple[Tensor, Tensor]:
        """(states of the encoder's rows, where in those each visible slot went): the encoder sees the visible slots
        alone. Which those are, the host says (`visible`)."""
        device, segment = batch.segment.device, on_host(batch.segment)
        take, real = self._rows_of(visible, segment)
        present = torch.zeros(take.shape, dtype=torch.bool)
        present.view(-1)[real] = True
        segment, position = (
            to_device(t.flatten()[take] * present, device) for t in (numbered(segment), on_host(batch.position))
        )
        take, real, absent = (to_device(t, device) for t in (take, real, ~present))
        x = self.codec.embed({k: v.flatten(0, 1)[take] for k, v in batch.values.items()}, absent)
        return self.encoder(x, segment=segment, position=position), real

    def _rows_of(self, visible: Tensor, segment: Tensor) -> tuple[Tensor, Tensor]:
        """Which slots of the batch stand in the encoder's rows, and where in those each visible one went.

        Rows as they are, padded to the fullest; or, where the encoder would rather have their examples side by side,
        one.
        """
        rows, slots = segment.shape
        where, real = wanted_by_row(visible, rows, slots)
        if len(real) < where.numel():
            padded = torch.zeros_like(where)
            padded.view(-1)[real] = segment.flatten()[visible]
            if self.encoder.side_by_side(padded) is not None:
                one = nn.functional.pad(visible, (0, -len(visible) % 64))[None]
                return one, torch.arange(len(visible), device=visible.device)
        return where + slots * torch.arange(rows, device=where.device)[:, None], real

    def states(self, batch: PackedBatch, wanted: Int[Tensor, " wanted"] | None = None) -> Tensor:
        """Encoder states with nothing hidden: (rows, slots, width), or (wanted, width); zeros in slots that are
        dropped."""
        if self.drops_missing:
            there, observed = on_host(batch.segment) != 0, on_host(batch.observed)
            if bool((there & ~observed).any()):
                visible = (there & observed).flatten().nonzero().flatten()
                states, real = self._encoded(batch, visible)
                visible = to_device(visible, batch.segment.device)
                states = states.flatten(0, 1).index_select(0, real)
                full = states.new_zeros(batch.segment.numel(), states.shape[-1]).index_put((visible,), states)
                return full.view(*batch.shape, -1) if wanted is None else full[wanted]
        nothing = torch.zeros(batch.shape, dtype=torch.bool, device=batch.segment.device)
        x = self.codec.embed(batch.values, nothing)
        if (out := batch_invariant_states(self.encoder, x, batch.segment, batch.position, wanted)) is not None:
            return out
        return self.encoder(x, segment=batch.segment, position=batch.position, wanted=wanted)
