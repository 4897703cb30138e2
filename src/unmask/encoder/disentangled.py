"""Disentangled attention (DeBERTa v2 and v3: He et al. 2021a, sec. 3.1; 2021b).

A score is content-content + content-position + position-content. The published code gathers, for every head, one number
for each pair of slots, twice. Here the table of relative positions is expanded to one row per distance first. The
product of queries with it then has a column per distance, and reading the same memory with another row length turns
distances into pairs of slots, so that nothing is gathered.

Shape letters: rows, heads, slots, depth; distances (2 slots - 1: from -(slots-1) to slots-1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.encoder.attention import AttentionLayout
from unmask.encoder.config import Disentangled, EncoderConfig
from unmask.encoder.full import SelfAttention
from unmask.encoder.transformer import Encoder, make_norm, wanted_by_row
from unmask.kernels.dropout import drop
from unmask.kernels.fused_linear import activation
from unmask.kernels.inference_attention import InferenceAttention

AT_ONCE = 4_000_000
"""Scores worked on at a time while nothing is trained: rows are taken in parts that stay near the caches."""


def bucket(distance: Tensor, config: Disentangled) -> Int[Tensor, "..."]:
    """Row of the table of relative positions for query position minus key position.

    >>> bucket(torch.tensor([-300, -1, 0, 1, 300]), Disentangled(buckets=256)).tolist()
    [49, 255, 256, 257, 463]
    """
    span, half = config.span, config.buckets // 2
    if config.buckets > 0:
        far = torch.where(distance.abs() < half, half - 1, distance.abs())
        # In fp32 as published: a double's last digit would move a distance to another bucket.
        wide = torch.log(far / half) / torch.log(torch.tensor((config.furthest - 1) / half)) * (half - 1)
        logarithmic = (torch.ceil(wide) + half) * distance.sign()
        distance = torch.where(far <= half, distance, logarithmic.to(torch.int64))
    return (distance + span).clamp(0, 2 * span - 1).to(torch.int64)


def upright(products: Float[Tensor, "... slots distances"]) -> Float[Tensor, "... slots slots"]:
    """Entry [i, j] is products[i, j - i + slots - 1]: diagonals set upright by reading with another row length."""
    slots = products.shape[-2]
    if slots == 1:
        return products
    flat = products.flatten(-2)[..., slots - 1 : slots - 1 + slots * (2 * slots - 2)]
    return flat.unflatten(-1, (slots, 2 * slots - 2))[..., :slots]


class DisentangledAttention(SelfAttention):
    """Self-attention with relative positions as keys and as queries."""

    def __init__(self, config: EncoderConfig, layer: int) -> None:
        super().__init__(config, layer)
        assert isinstance(config.positions, Disentangled)
        self.kind = config.positions
        if not self.kind.shared:
            if self.kind.content_to_position:
                self.position_key = nn.Linear(config.width, config.width)
            if self.kind.position_to_content:
                self.position_query = nn.Linear(config.width, config.width)

    def positional(self, table: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The table as keys and as queries, (heads, positions, depth) each, None where there is no such term."""
        kind, width = self.kind, self.config.width
        if kind.shared:
            query, key = F.linear(table, self.qkv.weight[: 2 * width], self.qkv.bias[: 2 * width]).chunk(2, -1)
        else:
            key = self.position_key(table) if kind.content_to_position else table
            query = self.position_query(table) if kind.position_to_content else table
        key, query = (t.unflatten(-1, (self.config.heads, -1)).transpose(0, 1) for t in (key, query))
        return key if kind.content_to_position else None, query if kind.position_to_content else None

    def mix(self, q: Tensor, k: Tensor, v: Tensor, layout: AttentionLayout, queries: Tensor | None) -> Tensor:
        scale = 1 / math.sqrt(q.shape[-1] * self.kind.terms)
        dropout = self.weight_dropout
        table = drop(layout.shared["table"], self.config.dropout, self.training)
        if queries is not None:
            bias = self._few(q, k, table, layout, queries) * scale + layout.bias(None, queries, q.dtype)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout, scale=scale)
        slots = k.shape[2]
        place = torch.arange(slots - 1, -slots, -1, device=k.device)  # query minus key, along j - i ascending
        key, query = self.positional(table)
        rows = bucket(place, self.kind)
        key, query = (None if t is None else t[:, r] for t, r in ((key, rows), (query, rows.flip(0))))
        mask = None if layout.everything_seen() else layout.bias(None, None, q.dtype)
        part = len(q) if torch.is_grad_enabled() else max(1, AT_ONCE // (q.shape[1] * slots * slots))
        out = []
        for start in range(0, len(q), part):
            here = slice(start, start + part)
            bias = pairs(q[here], k[here], key, query).mul_(scale)
            if mask is not None:
                bias = bias + mask[here] if torch.is_grad_enabled() else bias.add_(mask[here])
            mixed = F.scaled_dot_product_attention(
                q[here], k[here], v[here], attn_mask=bias, dropout_p=dropout, scale=scale
            )
            out.append(mixed)
        return out[0] if len(out) == 1 else torch.cat(out)

    def _few(self, q: Tensor, k: Tensor, table: Tensor, layout: AttentionLayout, queries: Tensor) -> Tensor:
        """Both terms for the few slots asked for, by gathering."""
        key, query = self.positional(table)
        distance = layout.position.gather(1, queries)[..., None] - layout.position[:, None]
        rows = bucket(distance, self.kind)[:, None].expand(-1, q.shape[1], -1, -1)
        bias = q.new_zeros(rows.shape)
        if key is not None:
            bias = bias + (q @ key.transpose(-1, -2)).gather(-1, rows)
        if query is not None:
            back = (k @ query.transpose(-1, -2)).gather(-1, rows.transpose(-1, -2))
            bias = bias + back.transpose(-1, -2)
        return bias

    def inference(self, shared: dict[str, Any], dtype: torch.dtype) -> InferenceAttention:
        key, query = (None if t is None else t.to(dtype) for t in self.positional(shared["table"]))
        return DisentangledInference(kind=self.kind, key=key, query=query, **self._for_inference())


@dataclass(frozen=True, kw_only=True)
class DisentangledInference(InferenceAttention):
    """Attributes:
    key, query: the table of relative positions as keys and as queries, projected once: (heads, positions, depth) each.
    """

    kind: Disentangled
    key: Tensor | None
    query: Tensor | None

    def scale(self, depth: int) -> float:
        return super().scale(depth) * self.kind.terms**-0.5

    def added(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        length = q.shape[2]
        rows = bucket(torch.arange(length - 1, -length, -1), self.kind)
        key = None if self.key is None else self.key[:, rows]
        query = None if self.query is None else self.query[:, rows.flip(0)]
        return pairs(q, k, key, query).mul_(scale)


def pairs(q: Tensor, k: Tensor, key: Tensor | None, query: Tensor | None) -> Tensor:
    """Content-position plus position-content, (rows, heads, slots, slots), not yet scaled."""
    total = None
    if key is not None:
        total = upright(q @ key.transpose(-1, -2))
    if query is not None:
        back = upright(k @ query.transpose(-1, -2)).transpose(-1, -2)
        total = back if total is None else total + back
    return q.new_zeros(*q.shape[:3], k.shape[2]) if total is None else total


class DisentangledEncoder(Encoder):
    """DeBERTa's encoder; with `decoder_steps`, its enhanced mask decoder too."""

    made_for = Disentangled
    attention = DisentangledAttention

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        assert isinstance(config.positions, Disentangled)
        self.kind = config.positions
        self.relative = nn.Embedding(2 * self.kind.span, config.width)
        self.relative_norm = make_norm(config.norm, config.width) if self.kind.normed else nn.Identity()
        if self.kind.convolution:
            self.convolution = nn.Conv1d(config.width, config.width, self.kind.convolution, padding="same")
            self.convolution_norm = make_norm(config.norm, config.width)
            self.convolution_activation = activation(self.kind.convolution_activation)
        if self.kind.decoder_steps:
            self.decoder_positions = nn.Embedding(self.kind.slots, config.width)
            self._initialise(self.decoder_positions)
        self._initialise(self.relative)

    def shared(self) -> dict[str, Any]:
        return {"table": self.relative_norm(self.relative.weight)}

    def forward(
        self,
        x: Float[Tensor, "rows slots width"],
        *,
        segment: Int[Tensor, "rows slots"],
        position: Int[Tensor, "rows slots"],
        wanted: Int[Tensor, " wanted"] | None = None,
        causal: bool = False,
    ) -> Tensor:
        if not self.kind.convolution:
            return super().forward(x, segment=segment, position=position, wanted=wanted, causal=causal)
        if causal:
            raise TypeError("an encoder with a convolution over neighbours is not causal")
        x, _layout = self._below(x, segment, position, self.config.layers)
        return x if wanted is None else x.flatten(0, 1).index_select(0, wanted)

    def _below(self, x: Tensor, segment: Tensor, position: Tensor, layers: int) -> tuple[Tensor, AttentionLayout]:
        """States after the first `layers` layers."""
        layout = self.layout(segment, position)
        x = entered = self.stem(x, position)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        for number in range(layers):
            x = self.layers[number](x, layout)
            if number == 0 and self.kind.convolution:
                x = self.convolution_norm(x + self._convolved(entered, segment))
        return x, layout

    def _convolved(self, x: Tensor, segment: Tensor) -> Tensor:
        """Convolution of the embeddings that stops at an example's ends."""
        kernel = self.kind.convolution
        weight, reach = self.convolution.weight, kernel // 2
        padded, owner = F.pad(x, (0, 0, reach, reach)), F.pad(segment, (reach, reach), value=-1)
        assert self.convolution.bias is not None
        total = x.new_zeros(x.shape) + self.convolution.bias
        for offset in range(kernel):
            same = (owner[:, offset : offset + x.shape[1]] == segment)[..., None]
            total = total + F.linear(padded[:, offset : offset + x.shape[1]] * same, weight[..., offset])
        return self.convolution_activation(drop(total, self.config.dropout, self.training))

    def decode(self, x: Tensor, *, segment: Tensor, position: Tensor, wanted: Tensor | None = None) -> Tensor:
        """States to predict from. With the enhanced mask decoder (He et al. 2021a, sec. 3.2): the last layer, asked
        `decoder_steps` times by the layer before plus absolute positions, each time about that layer's states."""
        if not self.kind.decoder_steps:
            return self(x, segment=segment, position=position, wanted=wanted)
        x, layout = self._below(x, segment, position, self.config.layers - 1)
        last = self.layers[-1]
        queried = x + self.decoder_positions(position).to(x.dtype)
        queries, where = (None, None) if wanted is None else wanted_by_row(wanted, *segment.shape)
        if queries is not None:
            queried = queried.gather(1, queries[..., None].expand(-1, -1, x.shape[-1]))
        for _ in range(self.kind.decoder_steps):
            queried = self._ask(last, queried, x, layout, queries)
        return queried if where is None else queried.flatten(0, 1).index_select(0, where)

    def _ask(
        self, layer: nn.Module, queried: Tensor, x: Tensor, layout: AttentionLayout, queries: Tensor | None
    ) -> Tensor:
        """One layer whose queries (and residual) are `queried` and whose keys and values are those of `x`."""
        attention: DisentangledAttention = layer.attention  # type: ignore[assignment]
        width = self.config.width
        _, k, v = attention.project(x, None)
        q = F.linear(queried, attention.qkv.weight[:width], attention.qkv.bias[:width])
        q = q.unflatten(-1, (self.config.heads, -1)).transpose(1, 2)
        mixed = attention.out(attention.mix(q, k, v, layout, queries).transpose(1, 2).flatten(2))
        share = self.config.dropout
        queried = layer.attention_norm(queried + drop(mixed, share, self.training))  # type: ignore[operator]
        moved = layer.feedforward(queried)  # type: ignore[operator]
        return layer.feedforward_norm(queried + drop(moved, share, self.training))  # type: ignore[operator]
