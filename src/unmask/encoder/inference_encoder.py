"""An encoder at inference, without padding: slots of all examples side by side, attention by groups of equal length.

For the encoders of all families of texts, on a CPU (`has_inference_form`); 8-bit products for post-norm ones with a
plain feed-forward (BERT, RoBERTa, DistilBERT, ALBERT, ELECTRA, MPNet, MiniLM, DeBERTa, Longformer, BigBird). Attention
is in `inference_attention`; all other work is done on the slots of the whole batch at once, and no product works on
padding.

Shape letters: slots (of the whole batch), width.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.encoder.config import MLP, EncoderConfig, SinCos
from unmask.encoder.transformer import Encoder, FeedForward, Layer
from unmask.kernels.fused_linear import (
    FEW,
    ROUND,
    ROUND_FEW,
    EightBitLinear,
    FusedLinear,
    Levels,
    multiplies_bf16,
    round_up,
)
from unmask.kernels.inference_attention import GROUPS, GroupedBatch, length_groups
from unmask.kernels.packed_attention import example_starts

KEPT = 24
"""Channels of a feed-forward that stay in fp32 when all others are quantised."""
Attend = Callable[[Tensor], Tensor]
"""(slots, queries, keys and values) -> (slots, width)."""


def has_inference_form(encoder: Any) -> bool:
    """Whether `InferenceEncoder` can do what this encoder does, on the device it is on."""
    known = isinstance(encoder, Encoder) and not isinstance(encoder.config.positions, SinCos)
    return known and next(encoder.parameters()).device.type == "cpu"


def has_eight_bit_form(config: EncoderConfig) -> bool:
    """Whether its products can be done in 8 bits here."""
    plain = isinstance(config.feedforward, MLP) and config.feedforward.bias
    further = getattr(config.positions, "convolution", 0) or getattr(config.attention, "first_sees_all", False)
    return plain and not further and config.norm.placement == "post" and config.norm.kind == "layer"


def attention_dtype() -> torch.dtype:
    """The number format of attention between 8-bit products: bf16 where this CPU multiplies it. Elsewhere oneDNN writes
    bf16 with its plain reference code, 1 400 times slower than fp32: 18 s for one short text."""
    return torch.bfloat16 if multiplies_bf16() else torch.float32


@dataclass
class Ranges:
    """Smallest, largest and summed values seen, by channel, at each place that is quantised."""

    low: dict[str, Tensor] = field(default_factory=dict)
    high: dict[str, Tensor] = field(default_factory=dict)
    total: dict[str, Tensor] = field(default_factory=dict)
    count: dict[str, int] = field(default_factory=dict)

    def mean(self, place: str) -> Tensor:
        """(channels,): mean of what passed a place."""
        return self.total[place] / self.count[place]

    def watch(self, place: str, x: Tensor) -> None:
        """Take note of what passes a place: (slots, channels)."""
        low, high = x.float().amin(0), x.float().amax(0)
        self.total[place] = self.total.get(place, 0) + x.float().sum(0)
        self.count[place] = self.count.get(place, 0) + len(x)
        self.low[place] = torch.minimum(low, self.low[place]) if place in self.low else low
        self.high[place] = torch.maximum(high, self.high[place]) if place in self.high else high


class InferenceEncoder:
    """The layers of an encoder, in one number format.

    Args:
        precision: fp32, bf16 or int8.
        ranges: of the activations, for int8; from `calibrate`.
    """

    def __init__(self, encoder: Encoder, precision: str, ranges: Ranges | None = None) -> None:
        self.config = encoder.config
        self.dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self.stem = encoder.stem
        self.entrance: list[Callable[[Tensor], Tensor]] = [_norm(encoder.stem.norm, self.dtype)]
        if hasattr(encoder.stem, "project"):
            project = FusedLinear.of(encoder.stem.project.weight, encoder.stem.project.bias, self.dtype)
            self.entrance.insert(0 if self.config.entrance.project_first else 1, project)
        table = self.stem.positions.weight.detach() if hasattr(self.stem, "positions") else None
        self.positions = None if table is None else table.to(self.dtype)
        self.final_norm = _norm(encoder.final_norm, self.dtype)
        eight = precision == "int8"
        attentions = encoder.inference_attention(attention_dtype() if eight else self.dtype)
        made: list[InferenceLayer | EightBitLayer] = []
        for number, layer in enumerate(cast(Iterable[Layer], encoder.layers)):
            if eight:
                assert ranges is not None
                made.append(EightBitLayer(layer, self.config, ranges, number))
            else:
                made.append(InferenceLayer(layer, self.config, self.dtype))
        self.convolution = InferenceConvolution(encoder, self.dtype) if hasattr(encoder, "convolution") else None
        self.layers = [(number, made[number], attentions[number]) for number in self.config.layer_order]
        decoded = getattr(self.config.positions, "decoder_steps", 0) and not eight
        self.decoder = InferenceDecoder(encoder, self.layers[-1][1], self.dtype) if decoded else None

    def __call__(
        self,
        x: Float[Tensor, "slots inputs"],
        position: Int[Tensor, " slots"],
        groups: GROUPS,
        ranges: Ranges | None = None,
        wanted: Int[Tensor, " wanted"] | None = None,
        *,
        decode: bool = False,
    ) -> Float[Tensor, "_ width"]:
        """Encode embeddings (words and types summed).

        Args:
            ranges: is told what the activations are.
            wanted: slots whose states are asked for, in any order; default all. The last layer computes no others,
                but for their attention.
            decode: give the states that masked values are predicted from: those of a mask decoder, where there is one.
        """
        slots = len(x)
        if ranges is None:
            x = round_up(x, few=ROUND_FEW)
            position = F.pad(position, (0, len(x) - slots))
        x = x.to(self.dtype)
        if self.positions is not None:
            x = x + self.positions[position + getattr(self.config.positions, "offset", 0)]
        for step in self.entrance:
            x = step(x)
        entered, batch, last = x, GroupedBatch(groups, position), len(self.layers) - 1
        few = (
            None if wanted is None else F.pad(wanted, (0, -len(wanted) % (ROUND_FEW if len(wanted) <= FEW else ROUND)))
        )
        for place, (number, layer, attention) in enumerate(self.layers):
            # Layers that share weights share their ranges too.
            chosen, attend = few if place == last else None, partial(attention, batch=batch)
            if decode and place == last and self.decoder is not None:
                x = self.decoder(x, attend, position, chosen)
                continue
            x = layer(x, attend, ranges, number, chosen)
            if place == 0 and self.convolution is not None:
                x = self.convolution(x, entered, position, chosen)
        return self.final_norm(x[: slots if wanted is None else len(wanted)])


_FORMS: weakref.WeakKeyDictionary[Encoder, dict[str, tuple[Any, InferenceEncoder]]] = weakref.WeakKeyDictionary()


def inference_form(encoder: Encoder, precision: str) -> InferenceEncoder:
    """The encoder's inference form, made once for its weights as they are."""
    versions = [(p.data_ptr(), 0 if p.is_inference() else p._version) for p in encoder.parameters()]
    weights = (encoder.trainings, versions)
    kept = _FORMS.setdefault(encoder, {})
    if precision not in kept or kept[precision][0] != weights:
        kept[precision] = (weights, InferenceEncoder(encoder, precision))
    return kept[precision][1]


def batch_invariant_states(
    encoder: Any,
    x: Float[Tensor, "rows slots width"],
    segment: Int[Tensor, "rows slots"],
    position: Int[Tensor, "rows slots"],
    wanted: Int[Tensor, " wanted"] | None,
    *,
    decode: bool = False,
) -> Tensor | None:
    """What `encoder` makes of a batch, each example's states with the same bits in any batch: by its inference form.

    Returns:
        (rows, slots, width) with zeros in padding, or (wanted, width); None where this is not asked for
        (`Encoder.batch_invariant`), where there is no such form (GPUs), or where something is to be learnt.
    """
    invariant = getattr(encoder, "batch_invariant", False) and torch.is_inference_mode_enabled()
    if not (invariant and has_inference_form(encoder)):
        return None
    flat = segment.flatten().numpy()
    first = example_starts(segment).flatten().nonzero().flatten().numpy()
    first, length = first[flat[first] != 0], np.diff(np.append(first, flat.size))[flat[first] != 0]
    order = np.argsort(-length, kind="stable")
    first, length = first[order], length[order]
    slots = np.repeat(first - np.cumsum(length) + length, length) + np.arange(length.sum())
    source, place = torch.from_numpy(slots), None
    if wanted is not None:
        place = torch.zeros(flat.size, dtype=torch.int64)
        place[source] = torch.arange(len(source))
        place = place[wanted]
    x, position = x.flatten(0, 1)[source], position.flatten()[source]
    form = inference_form(encoder, "bf16" if torch.is_autocast_enabled("cpu") else "fp32")
    with torch.autocast("cpu", enabled=False):
        states = form(x, position, length_groups(length.tolist()), wanted=place, decode=decode)
    if place is not None:
        return states
    return states.new_zeros(flat.size, states.shape[1]).index_copy_(0, source, states).view(*segment.shape, -1)


def _norm(norm: Any, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    if isinstance(norm, nn.Identity):
        return norm
    weight = norm.weight.detach().to(dtype)
    if isinstance(norm, nn.RMSNorm):
        return lambda x: F.rms_norm(x, weight.shape, weight, norm.eps)
    bias = None if norm.bias is None else norm.bias.detach().to(dtype)
    return lambda x: F.layer_norm(x, weight.shape, weight, bias, norm.eps)


class InferenceLayer:
    """One layer in fp32 or bf16."""

    def __init__(self, layer: Layer, config: EncoderConfig, dtype: torch.dtype) -> None:
        attention, forward = layer.attention, layer.feedforward
        self.pre = layer.pre
        self.qkv = FusedLinear.of(*attention.inference_projections(), dtype)
        self.out = FusedLinear.of(attention.out.weight, attention.out.bias, dtype)
        parts = 2 if forward.gated else 1
        weights = forward.up.weight.chunk(parts)
        biases = forward.up.bias.chunk(parts) if forward.up.bias is not None else (None,) * parts
        self.up = FusedLinear.of(weights[0], biases[0], dtype, config.feedforward.activation)
        self.value = FusedLinear.of(weights[1], biases[1], dtype) if forward.gated else None
        self.down = FusedLinear.of(forward.down.weight, forward.down.bias, dtype)
        self.first, self.second = _norm(layer.attention_norm, dtype), _norm(layer.feedforward_norm, dtype)

    def _inner(self, x: Tensor) -> Tensor:
        inner = self.up(x)
        return inner if self.value is None else inner.mul_(self.value(x))

    def __call__(
        self, x: Tensor, attend: Attend, ranges: Ranges | None, number: int, few: Tensor | None = None
    ) -> Tensor:
        mixed = attend(self.qkv(self.first(x) if self.pre else x))
        if few is not None:
            mixed, x = mixed[few], x[few]
        return self.after_attention(mixed, x, ranges, number)

    def after_attention(self, mixed: Tensor, x: Tensor, ranges: Ranges | None = None, number: int = 0) -> Tensor:
        """The rest of the layer, of the slots that `x` holds."""
        if self.pre:
            x = self.out.plus(mixed, x)
            return self.down.plus(self._inner(self.second(x)), x)
        y = self.first(self.out.plus(mixed, x))
        inner = self._inner(y)
        if ranges is not None:
            for place, seen in (("in", x), ("mixed", mixed), ("middle", y), ("inner", inner)):
                ranges.watch(f"{number}.{place}", seen)
        return self.second(self.down.plus(inner, y))


class InferenceDecoder:
    """DeBERTa's mask decoder (`DisentangledEncoder.decode`): the last layer, queried by states and absolute positions,
    so many times about the states of the layer below."""

    def __init__(self, encoder: Any, layer: Any, dtype: torch.dtype) -> None:
        self.layer, self.steps, self.width = layer, encoder.kind.decoder_steps, encoder.config.width
        attention = encoder.layers[-1].attention
        self.query = FusedLinear.of(attention.qkv.weight[: self.width], attention.qkv.bias[: self.width], dtype)
        self.positions = encoder.decoder_positions.weight.detach().to(dtype)

    def __call__(self, x: Tensor, attend: Attend, position: Tensor, few: Tensor | None) -> Tensor:
        few = torch.arange(len(x)) if few is None else few
        queried, qkv = x[few] + self.positions[position[few]], self.layer.qkv(x)
        for _ in range(self.steps):
            qkv[few, : self.width] = self.query(queried)
            queried = self.layer.after_attention(attend(qkv)[few], queried)
        return queried


class InferenceConvolution:
    """Convolution of the embeddings, added behind the first layer; it stops at an example's ends (DeBERTa-v2)."""

    def __init__(self, encoder: Any, dtype: torch.dtype) -> None:
        weight, bias = encoder.convolution.weight, encoder.convolution.bias
        self.reach = weight.shape[2] // 2
        name = encoder.kind.convolution_activation
        self.product = FusedLinear.of(weight.transpose(1, 2).flatten(1), bias, dtype, name)
        self.norm = _norm(encoder.convolution_norm, dtype)

    def __call__(self, x: Tensor, entered: Tensor, position: Tensor, few: Tensor | None) -> Tensor:
        shifts = range(-self.reach, self.reach + 1)
        around = [entered.roll(-n, 0) * (position.roll(-n) - position == n)[:, None] for n in shifts]
        added = self.product(torch.cat(around, 1))
        return self.norm(x + (added if few is None else added[few]))


class EightBitLayer:
    """One layer with 8-bit products; the residual stream, norms and softmax stay in higher precision.

    A norm's own factor and offset make the levels of what follows it: quantising costs one more norm and a cut.
    Within the feed-forward a few channels reach several times further than all others (24 against 6 in MiniLM) and
    would cost the others their digits: the `KEPT` widest are worked out in fp32 beside the product. With them in 8 bits
    the mean cosine of embeddings to fp32 was .9963, without .9993.
    """

    def __init__(self, layer: Layer, config: EncoderConfig, ranges: Ranges, number: int) -> None:
        attention, forward = layer.attention, layer.feedforward

        def entering(place: str, linear: nn.Linear, out: torch.dtype = torch.float32) -> tuple[Any, EightBitLinear]:
            key = f"{number}.{place}"
            levels = Levels.around(ranges.low[key], ranges.high[key], linear.weight.detach())
            return levels.affine(), EightBitLinear.of(
                linear.weight, linear.bias, levels, out=out, mean=ranges.mean(key)
            )

        self.enter, self.qkv = entering("in", attention.qkv, attention_dtype())
        self.mixed, self.out = entering("mixed", attention.out)
        self._feedforward(forward, config, ranges, number)
        self.first, self.second = (_norm(n, torch.float32) for n in (layer.attention_norm, layer.feedforward_norm))

    def _feedforward(self, forward: FeedForward, config: EncoderConfig, ranges: Ranges, number: int) -> None:
        key, before = f"{number}.inner", f"{number}.middle"
        up, down = forward.up, forward.down
        exact = ranges.high[key].topk(min(KEPT, len(ranges.high[key]) - 1)).indices
        self.up_exact = FusedLinear.of(up.weight[exact], up.bias[exact], torch.float32, config.feedforward.activation)
        self.down_exact = FusedLinear.of(down.weight[:, exact], None, torch.float32)
        rest = torch.ones(len(ranges.high[key]), dtype=torch.bool)
        rest[exact] = False
        low, high = float(ranges.low[key].min()), float(ranges.high[key][rest].max()) * 1.05
        scale = max(high - low, 1e-6) / 255
        zero = round(-low / scale)
        levels = Levels.around(ranges.low[before], ranges.high[before], up.weight.detach())
        self.middle = levels.affine()
        self.up = EightBitLinear.of(
            up.weight * rest[:, None],
            up.bias * rest,
            levels,
            activation=config.feedforward.activation,
            out=torch.uint8,
            out_scale=scale,
            out_zero=zero,
            mean=ranges.mean(before),
        )
        inner = Levels(torch.ones(len(rest)), torch.zeros(len(rest)), scale, zero)
        self.down = EightBitLinear.of(down.weight * rest, down.bias, inner, mean=ranges.mean(key))

    @staticmethod
    def _cut(x: Tensor, affine: tuple[Tensor, Tensor]) -> Tensor:
        return torch.addcmul(affine[1], x, affine[0]).clamp_(0, 255).to(torch.uint8)

    def __call__(
        self, x: Tensor, attend: Attend, ranges: Ranges | None, number: int, few: Tensor | None = None
    ) -> Tensor:
        mixed = attend(self.qkv(self._cut(x, self.enter)))
        y = self.first(self.out.plus(self._cut(mixed.float(), self.mixed), x))
        exact = self.down_exact.plus(self.up_exact(y), y)
        return self.second(self.down.plus(self.up(self._cut(y, self.middle)), exact))
