"""Grouped-query attention: fewer heads of keys and values than of queries (Ainslie et al. 2023; EuroBERT).

At inference `InferenceAttention` does it, as it is.

Shape letters: rows, heads, slots, depth.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from unmask.encoder.full import SelfAttention
from unmask.encoder.kinds import GroupedQuery
from unmask.encoder.transformer import Encoder


class GroupedQueryAttention(SelfAttention):
    """Each head of keys and values serves several heads of queries."""

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


class GroupedQueryEncoder(Encoder):
    """EuroBERT's."""

    made_for = GroupedQuery
    attention = GroupedQueryAttention
