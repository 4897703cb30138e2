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
from unmask.encoder.config import MLP, EncoderConfig, Learned, Norm, Rotary, SinCos


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """`gelu` is the exact (erf) form; the tanh form is 2.6-5x slower on CPUs and kept for old checkpoints."""
    return {
        "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "relu": F.relu,
        "silu": F.silu,
    }[name]


def make_norm(config: Norm, width: int) -> nn.Module:
    if config.kind == "rms":
        return nn.RMSNorm(width, eps=config.epsilon)
    return nn.LayerNorm(width, eps=config.epsilon, bias=config.bias)


def sin_cos(position: Tensor, width: int) -> Tensor:
    """Fixed positions, [sin | cos] halves with frequencies 10000^(-i / (width / 2)) (Vaswani et al. 2017, sec. 3.5)."""
    half = width // 2
    rate = 10_000.0 ** (-torch.arange(half, device=position.device, dtype=torch.float32) / half)
    angle = position[..., None].float() * rate
    return torch.cat([angle.sin(), angle.cos()], -1)


def rotation(position: Tensor, depth: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine tables (rows, 1, slots, depth) for split-half rotary positions."""
    rate = base ** (-torch.arange(0, depth, 2, device=position.device, dtype=torch.float32) / depth)
    angle = position[:, None, :, None].float() * rate
    angle = torch.cat([angle, angle], -1)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = table
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Stem(nn.Module):
    """Embeddings + positions -> norm -> dropout -> projection to the encoder's width where they differ."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        width = config.input_width
        if isinstance(config.positions, Learned):
            self.positions = nn.Embedding(config.positions.slots + config.positions.offset, width)
        self.norm = make_norm(config.norm, width) if config.entrance.norm else nn.Identity()
        if width != config.width:
            self.project = nn.Linear(width, config.width)

    def forward(self, x: Float[Tensor, "rows slots width"], position: Int[Tensor, "rows slots"]) -> Tensor:
        kind = self.config.positions
        if isinstance(kind, Learned):
            x = x + self.positions(position + kind.offset)
        elif isinstance(kind, SinCos):
            width = x.shape[-1]
            if kind.columns:
                row, column = position // kind.columns, position % kind.columns
                # The column comes first, as in the published MAE checkpoints.
                table = torch.cat([sin_cos(column, width // 2), sin_cos(row, width // 2)], -1)
            else:
                table = sin_cos(position, width)
            x = x + table.to(x.dtype)
        share = self.config.embedding_dropout
        x = F.dropout(self.norm(x), self.config.dropout if share is None else share, self.training)
        return self.project(x) if hasattr(self, "project") else x


class SelfAttention(nn.Module):
    """Multi-head self-attention; queries, keys and values in one product."""

    def __init__(self, config: EncoderConfig, layer: int) -> None:
        super().__init__()
        self.config = config
        self.window = config.attention.layer_window(layer)
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.attention.bias)
        self.out = nn.Linear(config.width, config.width, bias=config.attention.bias)

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.config.heads, self.config.width // self.config.heads).permute(
            2, 0, 3, 1, 4
        )

    def forward(self, x: Tensor, layout: Layout, queries: Tensor | None) -> Tensor:
        width, depth = self.config.width, self.config.width // self.config.heads
        if queries is None:
            q, k, v = self.split(self.qkv(x)).unbind(0)
        else:
            weight, bias = self.qkv.weight, self.qkv.bias
            few = x.gather(1, queries[..., None].expand(-1, -1, width))
            q = self.split(F.linear(few, weight[:width], None if bias is None else bias[:width]))[0]
            k, v = self.split(F.linear(x, weight[width:], None if bias is None else bias[width:])).unbind(0)
        if isinstance(self.config.positions, Rotary):
            base = self.config.positions.base if self.window is None else self.config.positions.local_base
            table = rotation(layout.position, depth, base, q.dtype)
            k = rotate(k, table)
            if queries is not None:
                table = rotation(layout.position.gather(1, queries), depth, base, q.dtype)
            q = rotate(q, table)
        dropout = self.config.attention_dropout if self.training else 0.0
        mixed = attend(q, k, v, layout, window=self.window, queries=queries, dropout=dropout)
        return self.out(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Position-wise network, plain or gated."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        settings = config.feedforward
        self.gated = not isinstance(settings, MLP)
        self.up = nn.Linear(config.width, settings.inner * (2 if self.gated else 1), bias=settings.bias)
        self.down = nn.Linear(settings.inner, config.width, bias=settings.bias)
        self.activation = activation(settings.activation)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        if self.gated:
            gate, value = x.chunk(2, -1)
            return self.down(self.activation(gate) * value)
        return self.down(self.activation(x))


class Layer(nn.Module):
    """Attention and feed-forward, each with its residual and norm."""

    def __init__(self, config: EncoderConfig, number: int) -> None:
        super().__init__()
        self.pre = config.norm.placement == "pre"
        self.dropout = config.dropout
        self.attention = SelfAttention(config, number)
        identity = self.pre and config.norm.first_is_identity and number == 0
        self.attention_norm = nn.Identity() if identity else make_norm(config.norm, config.width)
        self.feedforward = FeedForward(config)
        self.feedforward_norm = make_norm(config.norm, config.width)

    def forward(self, x: Tensor, layout: Layout, queries: Tensor | None = None) -> Tensor:
        """With `queries` only those slots of each row are computed: (rows, queries, width) comes out."""
        attended = self.attention(self.attention_norm(x) if self.pre else x, layout, queries)
        if queries is not None:
            x = x.gather(1, queries[..., None].expand(-1, -1, x.shape[-1]))
        x = x + F.dropout(attended, self.dropout, self.training)
        if self.pre:
            return x + F.dropout(self.feedforward(self.feedforward_norm(x)), self.dropout, self.training)
        x = self.attention_norm(x)
        return self.feedforward_norm(x + F.dropout(self.feedforward(x), self.dropout, self.training))


def needed_by_row(needed: Int[Tensor, "needed"], rows: int, slots: int) -> tuple[Tensor, Tensor]:
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
    """(rows, slots, input width) embeddings -> (rows, slots, width) states."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.stem = Stem(config)
        self.layers = nn.ModuleList([Layer(config, i) for i in range(config.layers)])
        self.final_norm = make_norm(config.norm, config.width) if config.norm.placement == "pre" else nn.Identity()
        self.apply(self._initialise)

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
        needed: Int[Tensor, "needed"] | None = None,
    ) -> Tensor:
        """Encode.

        Args:
            needed: ascending flat slot numbers. Only these are computed in the last layer and returned, as
                (needed, width): exact, and one layer cheaper by most of its cost.
        """
        layout = Layout(segment=segment, position=position)
        x = self.stem(x, position)
        if torch.is_autocast_enabled(x.device.type):
            # The residual stream is kept in the compute type: half the memory traffic of every norm and sum.
            x = x.to(torch.get_autocast_dtype(x.device.type))
        if needed is None:
            for layer in self.layers:
                x = layer(x, layout)
            return self.final_norm(x)
        queries, where = needed_by_row(needed, *segment.shape)
        for layer in self.layers[:-1]:
            x = layer(x, layout)
        x = self.layers[-1](x, layout, queries)
        return self.final_norm(x.flatten(0, 1).index_select(0, where))
