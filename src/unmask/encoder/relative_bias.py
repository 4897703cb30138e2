"""Relative positions in the scores (MPNet's buckets), and fewer heads of keys than of queries (EuroBERT).

Shape letters: rows, heads, slots, depth.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.encoder.attention import Layout
from unmask.encoder.config import EncoderConfig
from unmask.encoder.transformer import Encoder, SelfAttention


def bucket(distance: Tensor, buckets: int = 32, furthest: int = 128) -> Tensor:
    """Bucket of key position minus query position: half of them for keys behind, exact up to a quarter of them, then
    logarithmic up to `furthest` (Raffel et al. 2020, sec. 2.1).

    >>> bucket(torch.tensor([0, -1, 1, -200, 200])).tolist()
    [0, 1, 17, 15, 31]
    """
    half = buckets // 2
    exact = half // 2
    far = distance.abs()
    wide = torch.log(far.float().clamp_min(1) / exact) / math.log(furthest / exact) * (half - exact)
    found = torch.where(far < exact, far, (exact + wide.to(torch.int64)).clamp_max(half - 1))
    return found + half * (distance > 0)


class BiasedAttention(SelfAttention):
    """Attention with a bias a head by relative position."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, queries: Tensor | None) -> Tensor:
        def made() -> Tensor:
            table: Tensor = layout.shared["relative"]
            if queries is None:
                # Within a segment positions differ as the columns do: one table for all rows.
                place = torch.arange(k.shape[2], device=k.device)
                distance = (place[None] - place[:, None])[None]
            else:
                distance = layout.position[:, None] - layout.position.gather(1, queries)[..., None]
            bias = table[bucket(distance, len(table))].permute(0, 3, 1, 2).to(q.dtype)
            if queries is not None or not layout.everything_seen():
                bias = bias + layout.bias(None, queries, q.dtype)
            return bias

        bias = layout.once(("biased", q.dtype), queries, made)
        dropout = self.config.attention_dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)


class BiasedEncoder(Encoder):
    """MPNet's: all layers share the table of biases (buckets, heads)."""

    attention = BiasedAttention

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.relative = nn.Embedding(config.attention.buckets, config.heads)
        self._initialise(self.relative)

    def layout(self, segment: Tensor, position: Tensor) -> Layout:
        return Layout(segment=segment, position=position, shared={"relative": self.relative.weight})


class GroupedAttention(SelfAttention):
    """Each head of keys and values serves several heads of queries (Ainslie et al. 2023)."""

    def project(self, x: Tensor, queries: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        width, kv = self.config.width, self.config.kv_width
        weight, bias = self.qkv.weight, self.qkv.bias
        few = x if queries is None else x.gather(1, queries[..., None].expand(-1, -1, width))
        q = F.linear(few, weight[:width], None if bias is None else bias[:width])
        both = F.linear(x, weight[width:], None if bias is None else bias[width:])
        depth = width // self.config.heads
        q, k, v = (t.unflatten(-1, (-1, depth)).transpose(1, 2) for t in (q, both[..., :kv], both[..., kv:]))
        several = width // kv
        return q, k.repeat_interleave(several, 1), v.repeat_interleave(several, 1)


class GroupedEncoder(Encoder):
    """EuroBERT's."""

    attention = GroupedAttention
