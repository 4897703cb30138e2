"""An encoder at rest, without padding: slots of all examples side by side, attention by groups of equal length.

For post-norm encoders with full attention (BERT, RoBERTa, DistilBERT, ALBERT, ELECTRA, MPNet, MiniLM, TinyBERT) on a
CPU. Examples come sorted by length, and those of one length form a dense block, so that there is no mask anywhere and
no product works on padding; all other work is done on the slots of the whole batch at once.

Shape letters: slots (of the whole batch), width, rows and length (of a group: examples, and slots of each).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.encoder.config import MLP, EncoderConfig, Learned
from unmask.encoder.products import EightBit, Levels, Product
from unmask.encoder.relative import bucket
from unmask.encoder.transformer import Encoder, FeedForward, Layer, activation

EXPLICIT_UP_TO = 48
"""Slots up to which bf16 attention by plain products beats the fused kernel (12 heads of 32: 7.0 against 8.8 ms at 32)."""
KEPT = 24
"""Channels of a feed-forward that stay in fp32 when all others are quantised."""
GROUPS = list[tuple[int, int]]
"""(rows, length) of the groups in a batch, in the order of their slots."""


def can_be_flat(encoder: Any) -> bool:
    """Whether this encoder is of the kind worked out here."""
    config = getattr(encoder, "config", None)
    return (
        isinstance(config, EncoderConfig)
        and config.norm.placement == "post"
        and config.norm.kind == "layer"
        and isinstance(config.feedforward, MLP)
        and config.feedforward.activation in ("gelu", "gelu_tanh", "relu")
        and (config.positions is None or isinstance(config.positions, Learned))
        and config.attention.window is None
        and not config.attention.block
        and config.attention.kv_heads in (None, config.heads)
        and not config.entrance.project_first
        and config.entrance.norm
        and next(encoder.parameters()).device.type == "cpu"
    )


@dataclass
class Ranges:
    """Smallest, largest and summed values seen, by channel, at each place that is quantised."""

    low: dict[str, Tensor] = field(default_factory=dict)
    high: dict[str, Tensor] = field(default_factory=dict)
    total: dict[str, Tensor] = field(default_factory=dict)
    count: dict[str, int] = field(default_factory=dict)

    def mean(self, place: str) -> Tensor:
        return self.total[place] / self.count[place]

    def watch(self, place: str, x: Tensor) -> None:
        low, high = x.float().amin(0), x.float().amax(0)
        self.total[place] = self.total.get(place, 0) + x.float().sum(0)
        self.count[place] = self.count.get(place, 0) + len(x)
        self.low[place] = torch.minimum(low, self.low[place]) if place in self.low else low
        self.high[place] = torch.maximum(high, self.high[place]) if place in self.high else high


def attend_groups(qkv: Float[Tensor, "slots triple"], groups: GROUPS, heads: int, bias: Tensor | None = None) -> Tensor:
    """Attention within each example, (slots, 3 width) -> (slots, width).

    Args:
        bias: (heads, distances) to add by relative position, for distances of -(longest - 1) to longest - 1.
    """
    slots, triple = qkv.shape
    width = triple // 3
    depth = width // heads
    out = qkv.new_empty(slots, width)
    start = 0
    for rows, length in groups:
        end = start + rows * length
        q, k, v = qkv[start:end].view(rows, length, 3, heads, depth).permute(2, 0, 3, 1, 4).unbind(0)
        added = None if bias is None else upright_bias(bias, length).to(qkv.dtype)
        if length <= EXPLICIT_UP_TO and qkv.dtype == torch.bfloat16:
            scores = torch.matmul(q, k.transpose(-1, -2)).mul_(depth**-0.5)
            scores = scores if added is None else scores.add_(added)
            mixed = torch.matmul(torch.softmax(scores, -1), v)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=added)
        out[start:end].view(rows, length, heads, depth).copy_(mixed.transpose(1, 2))
        start = end
    return out


def upright_bias(bias: Tensor, length: int) -> Tensor:
    """(heads, distances) -> (1, heads, length, length), entry [i, j] for the distance j - i."""
    middle = bias.shape[1] // 2
    place = torch.arange(length)
    return bias[:, place[None] - place[:, None] + middle][None]


class FlatEncoder:
    """The layers of an encoder, in one number format.

    Args:
        precision: fp32, bf16 or int8.
        ranges: of the activations, for int8; from `calibrate`.
    """

    def __init__(
        self, encoder: Encoder, precision: str, ranges: Ranges | None = None, *, compiled: bool = False
    ) -> None:
        self.config = encoder.config
        self.dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self.stem = encoder.stem
        self.norm = _norm(encoder.stem.norm, self.dtype)
        self.project = (
            Product.of(encoder.stem.project.weight, encoder.stem.project.bias, self.dtype)
            if hasattr(encoder.stem, "project")
            else None
        )
        table = self.stem.positions.weight.detach() if hasattr(self.stem, "positions") else None
        self.positions = None if table is None else table.to(self.dtype)
        self.bias = self._bias(encoder)
        made: list[FlatLayer | EightBitLayer] = []
        for number, layer in enumerate(cast(Iterable[Layer], encoder.layers)):
            if precision == "int8":
                assert ranges is not None
                made.append(EightBitLayer(layer, self.config, ranges, number))
            else:
                made.append(FlatLayer(layer, self.config, self.dtype))
        if compiled:
            for laid in made:
                laid.compile()
        self.layers = [made[i] for i in self.config.layer_order]

    def _bias(self, encoder: Encoder) -> Tensor | None:
        if not self.config.attention.buckets:
            return None
        longest = self.config.longest or 512
        distance = torch.arange(1 - longest, longest)
        return encoder.relative.weight.detach()[bucket(distance, self.config.attention.buckets)].t().contiguous()  # type: ignore[union-attr,operator,index]

    def __call__(
        self,
        x: Float[Tensor, "slots inputs"],
        position: Int[Tensor, "slots"],
        groups: GROUPS,
        ranges: Ranges | None = None,
    ) -> Float[Tensor, "slots width"]:
        """Encode embeddings (words and types summed).

        Args:
            ranges: is told what the activations are.
        """
        x = x.to(self.dtype)
        if self.positions is not None:
            offset = self.config.positions.offset  # type: ignore[union-attr]
            x = x + self.positions[position + offset]
        x = self.norm(x)
        if self.project is not None:
            x = self.project(x)
        for number, layer in enumerate(self.layers):
            # Layers that share weights share their ranges too.
            x = layer(x, groups, self.bias, ranges, self.config.layer_order[number])
        return x


def _norm(norm: Any, dtype: torch.dtype) -> Any:
    weight, bias = norm.weight.detach().to(dtype), None if norm.bias is None else norm.bias.detach().to(dtype)
    return lambda x: F.layer_norm(x, weight.shape, weight, bias, norm.eps)


class FlatLayer:
    """One layer in fp32 or bf16."""

    def __init__(self, layer: Layer, config: EncoderConfig, dtype: torch.dtype) -> None:
        attention, forward = layer.attention, layer.feedforward
        self.heads = config.heads
        self.qkv = Product.of(attention.qkv.weight, attention.qkv.bias, dtype)
        self.out = Product.of(attention.out.weight, attention.out.bias, dtype)
        self.up = Product.of(forward.up.weight, forward.up.bias, dtype, config.feedforward.activation)
        self.down = Product.of(forward.down.weight, forward.down.bias, dtype)
        self.first, self.second = _norm(layer.attention_norm, dtype), _norm(layer.feedforward_norm, dtype)

    def compile(self) -> None:
        """Compile what works on all slots alike; attention's groups change with every batch."""
        for name in ("first", "second"):
            setattr(self, name, torch.compile(getattr(self, name), dynamic=True))

    def __call__(self, x: Tensor, groups: GROUPS, bias: Tensor | None, ranges: Ranges | None, number: int) -> Tensor:
        mixed = attend_groups(self.qkv(x), groups, self.heads, bias)
        y = self.first(self.out.plus(mixed, x))
        inner = self.up(y)
        if ranges is not None:
            for place, seen in (("in", x), ("mixed", mixed), ("middle", y), ("inner", inner)):
                ranges.watch(f"{number}.{place}", seen)
        return self.second(self.down.plus(inner, y))


class EightBitLayer:
    """One layer with 8-bit products; the residual stream, norms and softmax stay in higher precision.

    A norm's own factor and offset make the levels of what follows it: quantising costs one more norm and a cut.
    Within the feed-forward a few channels reach several times further than all others (24 against 6 in MiniLM) and
    would cost the others their digits: the `KEPT` widest are worked out in fp32 beside the product. With them in 8 bits
    the mean cosine of embeddings to fp32 was .9963, without .9993.
    """

    def __init__(self, layer: Layer, config: EncoderConfig, ranges: Ranges, number: int) -> None:
        attention, forward = layer.attention, layer.feedforward
        self.heads, self.activation = config.heads, activation(config.feedforward.activation)

        def entering(place: str, linear: nn.Linear, out: torch.dtype = torch.float32) -> tuple[Any, EightBit]:
            key = f"{number}.{place}"
            levels = Levels.around(ranges.low[key], ranges.high[key], linear.weight.detach())
            return levels.affine(), EightBit.of(linear.weight, linear.bias, levels, out=out, mean=ranges.mean(key))

        self.enter, self.qkv = entering("in", attention.qkv, torch.bfloat16)
        self.mixed, self.out = entering("mixed", attention.out)
        self._feedforward(forward, config, ranges, number)
        self.first, self.second = (_norm(n, torch.float32) for n in (layer.attention_norm, layer.feedforward_norm))

    def compile(self) -> None:
        """Compile the norms and the cutting to levels."""
        for name in ("first", "second", "_cut"):
            setattr(self, name, torch.compile(getattr(self, name), dynamic=True))

    def _feedforward(self, forward: FeedForward, config: EncoderConfig, ranges: Ranges, number: int) -> None:
        key, before = f"{number}.inner", f"{number}.middle"
        up, down = forward.up, forward.down
        kept = ranges.high[key].topk(min(KEPT, len(ranges.high[key]) - 1)).indices
        self.up_kept = (up.weight[kept].detach(), up.bias[kept].detach())
        self.down_kept = down.weight[:, kept].detach().t().contiguous()
        rest = torch.ones(len(ranges.high[key]), dtype=torch.bool)
        rest[kept] = False
        low, high = float(ranges.low[key].min()), float(ranges.high[key][rest].max()) * 1.05
        scale = max(high - low, 1e-6) / 255
        zero = round(-low / scale)
        levels = Levels.around(ranges.low[before], ranges.high[before], up.weight.detach())
        self.middle = levels.affine()
        self.up = EightBit.of(
            up.weight * rest[:, None], up.bias * rest, levels, activation=config.feedforward.activation,
            out=torch.uint8, out_scale=scale, out_zero=zero, mean=ranges.mean(before),
        )  # fmt: skip
        inner = Levels(torch.ones(len(rest)), torch.zeros(len(rest)), scale, zero)
        self.down = EightBit.of(down.weight * rest, down.bias, inner, mean=ranges.mean(key))

    @staticmethod
    def _cut(x: Tensor, affine: tuple[Tensor, Tensor]) -> Tensor:
        return torch.addcmul(affine[1], x, affine[0]).clamp_(0, 255).to(torch.uint8)

    def __call__(self, x: Tensor, groups: GROUPS, bias: Tensor | None, ranges: Ranges | None, number: int) -> Tensor:
        mixed = attend_groups(self.qkv(self._cut(x, self.enter)), groups, self.heads, bias)
        y = self.first(self.out.plus(self._cut(mixed.float(), self.mixed), x))
        kept = self.activation(F.linear(y, *self.up_kept))
        return self.second(self.down.plus(self.up(self._cut(y, self.middle)), torch.addmm(y, kept, self.down_kept)))


def length_groups(lengths: Sequence[int]) -> GROUPS:
    """Groups of a batch whose examples are sorted by length.

    >>> length_groups([7, 7, 5])
    [(2, 7), (1, 5)]
    """
    out: GROUPS = []
    for length in lengths:
        if out and out[-1][1] == length:
            out[-1] = (out[-1][0] + 1, length)
        else:
            out.append((1, length))
    return out
