"""The transformer encoder, top to bottom: stem (positions, norm), layers, final norm.

Shape letters: rows, slots, width, wanted (slots whose output is wanted).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.encoder.attention import AttentionLayout
from unmask.encoder.config import MLP, Disentangled, EncoderConfig, Learned, Norm, SinCos
from unmask.encoder.full import SelfAttention
from unmask.encoder.kinds import AttentionKind, Full
from unmask.kernels.dropout import drop
from unmask.kernels.fused_linear import activation
from unmask.kernels.inference_attention import InferenceAttention
from unmask.kernels.on_host import on_host, to_device
from unmask.kernels.packed_attention import PackedLayout, costs_less, packed_layout


def in_its_format(norm: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A norm in fp32, weights included, whose result is in the number format of its input.

    On CPUs torch's norms are so under autocast; on GPUs they return fp32, and all they are added to becomes fp32.
    Weights in half precision would lose what is learnt: near 1 bf16 has steps of .008.
    """
    return norm(x).to(x.dtype) if x.is_cuda else norm(x)


class LayerNorm(nn.LayerNorm):
    """LayerNorm; see `in_its_format`."""

    def forward(self, x: Tensor) -> Tensor:
        return in_its_format(super().forward, x)


class RootMeanSquareNorm(nn.RMSNorm):
    """RMSNorm, see `in_its_format`; spelled out where a graph is exported that knows no such operation."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.jit.is_tracing():  # type: ignore[attr-defined]
            return in_its_format(super().forward, x)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + (self.eps or 0.0)) * self.weight


def make_norm(config: Norm, width: int) -> nn.Module:
    """The normalisation layer that a config asks for."""
    if config.kind == "rms":
        return RootMeanSquareNorm(width, eps=config.epsilon)
    return LayerNorm(width, eps=config.epsilon, bias=config.bias)


def sin_cos(position: Tensor, width: int) -> Tensor:
    """Fixed positions, [sin | cos] halves with frequencies 10000^(-i / (width / 2)) (Vaswani et al. 2017, sec. 3.5)."""
    half = width // 2
    rate = 10_000.0 ** (-torch.arange(half, device=position.device, dtype=torch.float32) / half)
    angle = position[..., None].float() * rate
    return torch.cat([angle.sin(), angle.cos()], -1)


class Stem(nn.Module):
    """Embeddings + positions -> norm -> dropout -> projection to the encoder's width where they differ."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        width, entrance = config.input_width, config.entrance
        if isinstance(config.positions, Learned):
            self.positions = nn.Embedding(config.positions.slots + config.positions.offset, width)
        elif isinstance(config.positions, Disentangled) and config.positions.absolute:
            self.positions = nn.Embedding(config.positions.slots, width)
        if entrance.norm:
            self.norm = make_norm(config.norm, config.width if entrance.project_first else width)
        else:
            self.norm = nn.Identity()
        if width != config.width:
            self.project = nn.Linear(width, config.width, bias=not entrance.project_first)

    def forward(self, x: Float[Tensor, "rows slots width"], position: Int[Tensor, "rows slots"]) -> Tensor:
        kind = self.config.positions
        if isinstance(kind, Learned):
            x = x + self.positions(position + kind.offset)
        elif isinstance(kind, Disentangled):
            x = x + self.positions(position) if kind.absolute else x
        elif isinstance(kind, SinCos):
            width = x.shape[-1]
            if kind.columns:
                row, column = position // kind.columns, position % kind.columns
                # The column comes first, as in the published MAE checkpoints.
                table = torch.cat([sin_cos(column, width // 2), sin_cos(row, width // 2)], -1)
            else:
                table = sin_cos(position, width)
            x = x + table.to(x.dtype)
        share = self.config.dropout if self.config.embedding_dropout is None else self.config.embedding_dropout
        entrance = self.config.entrance
        if entrance.project_first and hasattr(self, "project"):
            x = self.project(x)
        if entrance.dropout_first:
            return self.norm(drop(x, share, self.training))
        x = drop(self.norm(x), share, self.training)
        return self.project(x) if hasattr(self, "project") and not entrance.project_first else x


class FeedForward(nn.Module):
    """Position-wise network, plain or gated."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        settings = config.feedforward
        self.gated = not isinstance(settings, MLP)
        self.up = nn.Linear(config.width, settings.inner * (2 if self.gated else 1), bias=settings.bias)
        self.down = nn.Linear(settings.inner, config.width, bias=settings.bias)
        self.activation = activation(settings.activation)
        self.dropout = config.dropout if config.dropout_inside else 0.0

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        if self.gated:
            gate, value = x.chunk(2, -1)
            return self.down(drop(self.activation(gate) * value, self.dropout, self.training))
        return self.down(drop(self.activation(x), self.dropout, self.training))


class Layer(nn.Module):
    """Attention and feed-forward, each with its residual and norm."""

    def __init__(self, config: EncoderConfig, number: int, attention: type[SelfAttention] = SelfAttention) -> None:
        super().__init__()
        self.pre = config.norm.placement == "pre"
        self.dropout = 0.0 if config.dropout_inside else config.dropout
        self.attention = attention(config, number)
        identity = self.pre and config.norm.first_is_identity and number == 0
        self.attention_norm = nn.Identity() if identity else make_norm(config.norm, config.width)
        self.feedforward = FeedForward(config)
        self.feedforward_norm = make_norm(config.norm, config.width)

    def forward(self, x: Tensor, layout: AttentionLayout, queries: Tensor | None = None) -> Tensor:
        """With `queries` only those slots of each row are computed: (rows, queries, width) comes out."""
        attended = self.attention(self.attention_norm(x) if self.pre else x, layout, queries)
        if queries is not None:
            x = x.gather(1, queries[..., None].expand(-1, -1, x.shape[-1]))
        x = x + drop(attended, self.dropout, self.training)
        if self.pre:
            return x + drop(self.feedforward(self.feedforward_norm(x)), self.dropout, self.training)
        x = self.attention_norm(x)
        return self.feedforward_norm(x + drop(self.feedforward(x), self.dropout, self.training))


def wanted_by_row(wanted: Int[Tensor, " wanted"], rows: int, slots: int) -> tuple[Tensor, Tensor]:
    """Ascending flat indices -> (rows, most) slot numbers padded with 0, and where each needed slot went."""
    device, wanted = wanted.device, on_host(wanted)
    row = wanted // slots
    count = torch.bincount(row, minlength=rows)
    first = count.cumsum(0) - count
    column = torch.arange(len(wanted)) - first[row]
    least, most = (int(count.min()), int(count.max())) if len(wanted) else (0, 8)
    if least != most:
        # Multiples of 8 keep the shapes of successive batches alike. Rows that need equally many (images) need no
        # padding, and so no attention mask.
        most = min(max(8, -(-most // 8) * 8), slots)
    queries = torch.zeros(rows, most, dtype=torch.int64)
    queries[row, column] = wanted % slots
    return to_device(queries, device), to_device(row * most + column, device)


class Encoder(nn.Module):
    """(rows, slots, input width) embeddings -> (rows, slots, width) states.

    Other kinds of attention are subclasses, each in a file of its own; `unmask.encoder.build.make_encoder` chooses.
    """

    made_for: type[AttentionKind | Disentangled] = Full
    attention: type[SelfAttention] = SelfAttention
    batch_invariant: bool = False
    """At inference an example's states have the same bits in any batch (`inference_encoder.batch_invariant_states`)."""
    trainings: int = 0
    """How often it was put into training mode: what is made of its weights is made anew after that, since fused
    optimisers change them without a trace (`Tensor._version` stays)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        if type(config.attention_kind) is not self.made_for:
            raise TypeError(
                f"{type(self).__name__} has {self.made_for.__name__} attention, the config asks for "
                f"{type(config.attention_kind).__name__}: use unmask.encoder.build.make_encoder"
            )
        self.config = config
        self.stem = Stem(config)
        self.layers = nn.ModuleList([Layer(config, i, self.attention) for i in range(config.distinct_layers)])
        self.final_norm = make_norm(config.norm, config.width) if config.norm.placement == "pre" else nn.Identity()
        self.apply(self._initialise)

    def train(self, mode: bool = True) -> Encoder:
        """As of any module."""
        self.trainings += mode
        return super().train(mode)

    def layout(self, segment: Tensor, position: Tensor) -> AttentionLayout:
        """Who sees whom, with what the layers share."""
        return AttentionLayout(segment=segment, position=position, shared=self.shared())

    def shared(self) -> dict[str, Any]:
        """What the layers' attention shares besides, such as a table of relative positions."""
        return {}

    @property
    def all_layers_full(self) -> bool:
        """Whether all layers are full attention, which can be worked out by example (`packed_attention`)."""
        return self.attention is SelfAttention

    def inference_attention(self, dtype: torch.dtype) -> list[InferenceAttention]:
        """Of each set of layer weights its attention for whole examples side by side.

        Args:
            dtype: of what is added to the scores.
        """
        with torch.no_grad():
            shared = self.shared()
            return [cast(Layer, layer).attention.inference(shared, dtype) for layer in self.layers]

    def decode(
        self,
        x: Float[Tensor, "rows slots width"],
        *,
        segment: Int[Tensor, "rows slots"],
        position: Int[Tensor, "rows slots"],
        wanted: Int[Tensor, " wanted"] | None = None,
    ) -> Tensor:
        """States that masked values are predicted from: here those of the forward pass."""
        return self(x, segment=segment, position=position, wanted=wanted)

    def side_by_side(self, segment: Int[Tensor, "rows slots"]) -> PackedLayout | None:
        """How the batch's examples stand side by side in one row; None where they do not, or it does not cost less."""
        traced = torch.jit.is_tracing() or torch.compiler.is_compiling()  # type: ignore[attr-defined]
        if not self.all_layers_full or segment.device.type != "cpu" or traced:
            return None
        half = torch.is_autocast_enabled("cpu") or next(self.parameters()).dtype == torch.bfloat16
        packed = packed_layout(segment)
        return packed if costs_less(packed, segment, self.config.width, half=half) else None

    def _initialise(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.initial_deviation)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(
        self,
        x: Float[Tensor, "rows slots width"],
        *,
        segment: Int[Tensor, "rows slots"],
        position: Int[Tensor, "rows slots"],
        wanted: Int[Tensor, " wanted"] | None = None,
        causal: bool = False,
    ) -> Tensor:
        """Encode.

        Args:
            wanted: ascending flat slot numbers. Only these are computed in the last layer and returned, as
                (wanted, width): exact, and one layer cheaper by most of its cost.
            causal: no slot sees those behind it (full and local attention).
        """
        stack = [self.layers[i] for i in self.config.layer_order]
        x = self.stem(x, position)
        if torch.is_autocast_enabled(x.device.type):
            # The residual stream is kept in the compute type: half the memory traffic of every norm and sum.
            x = x.to(torch.get_autocast_dtype(x.device.type))
        shape = segment.shape
        packed = None if causal else self.side_by_side(segment)
        if packed is not None:
            x = x.flatten(0, 1).index_select(0, packed.source)[None]
            segment, position = (t.flatten()[packed.source][None] for t in (segment, position))
        layout = self.layout(segment, position)
        layout.packed, layout.causal = packed, causal
        if wanted is None:
            for layer in stack:
                x = layer(x, layout)
            x = self.final_norm(x)
            return x if packed is None else x[0].index_select(0, packed.place).view(*shape, -1)
        if packed is None:
            queries, where = wanted_by_row(wanted, *shape)
        else:
            layout.wanted = packed.queries(wanted)
            queries, where = layout.wanted.places[None], layout.wanted.rank
        for layer in stack[:-1]:
            x = layer(x, layout)
        x = stack[-1](x, layout, queries)
        return self.final_norm(x.flatten(0, 1).index_select(0, where))
