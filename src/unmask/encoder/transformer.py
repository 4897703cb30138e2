"""The transformer encoder, top to bottom: stem (positions, norm), layers, final norm.

Shape letters: rows, slots, width, needed (slots whose output is asked for).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.encoder.attention import Layout, attend
from unmask.encoder.config import MLP, Disentangled, EncoderConfig, Learned, Norm, Rotary, SinCos
from unmask.encoder.dropout import drop
from unmask.encoder.packed_attention import PackedLayout, cheaper, lay


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """`gelu` is the exact (erf) form; the tanh form is 2.6-5x slower on CPUs and kept for old checkpoints."""
    return {
        "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "relu": F.relu,
        "silu": F.silu,
        "tanh": torch.tanh,
    }[name]


class RootMeanSquareNorm(nn.RMSNorm):
    """RMSNorm, spelled out where a graph is exported that knows no such operation."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.jit.is_tracing():  # type: ignore[attr-defined]
            return super().forward(x)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + (self.eps or 0.0)) * self.weight


def make_norm(config: Norm, width: int) -> nn.Module:
    if config.kind == "rms":
        return RootMeanSquareNorm(width, eps=config.epsilon)
    return nn.LayerNorm(width, eps=config.epsilon, bias=config.bias)


def sin_cos(position: Tensor, width: int) -> Tensor:
    """Fixed positions, [sin | cos] halves with frequencies 10000^(-i / (width / 2)) (Vaswani et al. 2017, sec. 3.5)."""
    half = width // 2
    rate = 10_000.0 ** (-torch.arange(half, device=position.device, dtype=torch.float32) / half)
    angle = position[..., None].float() * rate
    return torch.cat([angle.sin(), angle.cos()], -1)


def rotation(position: Tensor, depth: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine tables (rows, 1, slots, half the depth) for split-half rotary positions."""
    rate = base ** (-torch.arange(0, depth, 2, device=position.device, dtype=torch.float32) / depth)
    angle = position[:, None, :, None].float() * rate
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = table
    first, second = x.chunk(2, -1)
    return torch.cat([torch.addcmul(first * cos, second, sin, value=-1), torch.addcmul(second * cos, first, sin)], -1)


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


class SelfAttention(nn.Module):
    """Multi-head self-attention; queries, keys and values in one product."""

    def __init__(self, config: EncoderConfig, layer: int) -> None:
        super().__init__()
        self.config = config
        self.window = config.attention.layer_window(layer)
        self.qkv = nn.Linear(config.width, config.width + 2 * config.kv_width, bias=config.attention.bias)
        self.out = nn.Linear(config.width, config.width, bias=config.attention.bias)

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.config.heads, self.config.width // self.config.heads).permute(
            2, 0, 3, 1, 4
        )

    def project(self, x: Tensor, queries: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (of the slots named, or all), keys and values, each (rows, heads, slots, depth)."""
        width = self.config.width
        if queries is None:
            q, k, v = self.split(self.qkv(x)).unbind(0)
        else:
            weight, bias = self.qkv.weight, self.qkv.bias
            few = x.gather(1, queries[..., None].expand(-1, -1, width))
            q = self.split(F.linear(few, weight[:width], None if bias is None else bias[:width]))[0]
            k, v = self.split(F.linear(x, weight[width:], None if bias is None else bias[width:])).unbind(0)
        return q, k, v

    def mix(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, queries: Tensor | None) -> Tensor:
        dropout = self.config.attention_dropout if self.training else 0.0
        return attend(q, k, v, layout, window=self.window, queries=queries, dropout=dropout)

    def forward(self, x: Tensor, layout: Layout, queries: Tensor | None) -> Tensor:
        depth = self.config.width // self.config.heads
        q, k, v = self.project(x, queries)
        if isinstance(self.config.positions, Rotary):
            base = self.config.positions.base if self.window is None else self.config.positions.local_base
            key = f"rotation {base} {q.dtype}"
            if key not in layout.shared:
                layout.shared[key] = rotation(layout.position, depth, base, q.dtype)
            table = layout.shared[key]
            k = rotate(k, table)
            if queries is not None:
                table = rotation(layout.position.gather(1, queries), depth, base, q.dtype)
            q = rotate(q, table)
        out = self.out(self.mix(q, k, v, layout, queries).transpose(1, 2).flatten(2))
        return drop(out, self.config.attention_dropout, self.training) if self.config.dropout_inside else out


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

    def forward(self, x: Tensor, layout: Layout, queries: Tensor | None = None) -> Tensor:
        """With `queries` only those slots of each row are computed: (rows, queries, width) comes out."""
        attended = self.attention(self.attention_norm(x) if self.pre else x, layout, queries)
        if queries is not None:
            x = x.gather(1, queries[..., None].expand(-1, -1, x.shape[-1]))
        x = x + drop(attended, self.dropout, self.training)
        if self.pre:
            return x + drop(self.feedforward(self.feedforward_norm(x)), self.dropout, self.training)
        x = self.attention_norm(x)
        return self.feedforward_norm(x + drop(self.feedforward(x), self.dropout, self.training))


def needed_by_row(needed: Int[Tensor, " needed"], rows: int, slots: int) -> tuple[Tensor, Tensor]:
    """Ascending flat indices -> (rows, most) slot numbers padded with 0, and where each needed slot went."""
    row = needed // slots
    count = torch.bincount(row, minlength=rows)
    first = count.cumsum(0) - count
    column = torch.arange(len(needed), device=needed.device) - first[row]
    least, most = (int(count.min()), int(count.max())) if len(needed) else (0, 8)
    if least != most:
        # Multiples of 8 keep the shapes of successive batches alike. Rows that need equally many (images) need no
        # padding, and so no attention mask.
        most = min(max(8, -(-most // 8) * 8), slots)
    queries = torch.zeros(rows, most, dtype=torch.int64, device=needed.device)
    queries[row, column] = needed % slots
    return queries, row * most + column


class Encoder(nn.Module):
    """(rows, slots, input width) embeddings -> (rows, slots, width) states.

    Other kinds of attention are subclasses, each in a file of its own; `unmask.encoder.build.make_encoder` chooses.
    """

    attention: type[SelfAttention] = SelfAttention

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.stem = Stem(config)
        self.layers = nn.ModuleList([Layer(config, i, self.attention) for i in range(config.distinct_layers)])
        self.final_norm = make_norm(config.norm, config.width) if config.norm.placement == "pre" else nn.Identity()
        self.apply(self._initialise)

    def layout(self, segment: Tensor, position: Tensor) -> Layout:
        """Who sees whom, with what the layers share."""
        return Layout(segment=segment, position=position)

    def side_by_side(self, segment: Int[Tensor, "rows slots"]) -> PackedLayout | None:
        """How the batch's examples are laid side by side in one row; None where they are not, or it is not cheaper."""
        config, device = self.config, segment.device
        plain = self.attention is SelfAttention and not config.attention.first_sees_all
        whole = all(config.attention.layer_window(i) is None for i in range(config.layers))
        if not plain or not whole or device.type != "cpu" or torch.jit.is_tracing() or torch.compiler.is_compiling():  # type: ignore[attr-defined]
            return None
        half = torch.is_autocast_enabled("cpu") or next(self.parameters()).dtype == torch.bfloat16
        laid = lay(segment)
        return laid if cheaper(laid, segment, config.width, half=half) else None

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
        needed: Int[Tensor, " needed"] | None = None,
    ) -> Tensor:
        """Encode.

        Args:
            needed: ascending flat slot numbers. Only these are computed in the last layer and returned, as
                (needed, width): exact, and one layer cheaper by most of its cost.
        """
        stack = [self.layers[i] for i in self.config.layer_order]
        x = self.stem(x, position)
        if torch.is_autocast_enabled(x.device.type):
            # The residual stream is kept in the compute type: half the memory traffic of every norm and sum.
            x = x.to(torch.get_autocast_dtype(x.device.type))
        shape = segment.shape
        laid = self.side_by_side(segment)
        if laid is not None:
            x = x.flatten(0, 1).index_select(0, laid.take)[None]
            segment, position = (t.flatten()[laid.take][None] for t in (segment, position))
        layout = self.layout(segment, position)
        layout.laid = laid
        if needed is None:
            for layer in stack:
                x = layer(x, layout)
            x = self.final_norm(x)
            return x if laid is None else x[0].index_select(0, laid.back).view(*shape, -1)
        if laid is None:
            queries, where = needed_by_row(needed, *shape)
        else:
            layout.asked = laid.asked(needed)
            queries, where = layout.asked.slots[None], layout.asked.place
        for layer in stack[:-1]:
            x = layer(x, layout)
        x = stack[-1](x, layout, queries)
        return self.final_norm(x.flatten(0, 1).index_select(0, where))
