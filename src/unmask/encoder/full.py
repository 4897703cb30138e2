"""Full attention, and what all kinds of attention have in common.

A kind is a subclass of `SelfAttention`, in a file of its own. It may bring:

- `project`: queries, keys and values of the slots' states;
- `mix`: attention on packed rows, in training and wherever padding or gradients are;
- `inference`: the same attention for whole examples side by side, a subclass of `InferenceAttention`;

and a subclass of `transformer.Encoder`, which says what all layers share (`shared`). Its settings are a type of
`kinds`.

Shape letters: rows, slots, width, heads, depth (width of a head), queries (slots, or the few that are needed).
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.encoder.attention import AttentionLayout, attend
from unmask.encoder.config import EncoderConfig, Rotary
from unmask.kernels.dropout import drop
from unmask.kernels.explicit import rotate, rotation
from unmask.kernels.inference_attention import InferenceAttention


class SelfAttention(nn.Module):
    """Multi-head self-attention; queries, keys and values in one product."""

    def __init__(self, config: EncoderConfig, layer: int) -> None:
        super().__init__()
        self.config = config
        self.qkv = nn.Linear(config.width, config.width + 2 * config.kv_width, bias=config.attention.bias)
        self.out = nn.Linear(config.width, config.width, bias=config.attention.bias)

    @property
    def rotary_base(self) -> float | None:
        """Base of the layer's rotary positions, None without them."""
        positions = self.config.positions
        return positions.base if isinstance(positions, Rotary) else None

    @property
    def weight_dropout(self) -> float:
        """Dropout of the attention weights: none outside training."""
        return self.config.attention_dropout if self.training else 0.0

    def project(self, x: Tensor, queries: Tensor | None, qkv: nn.Linear | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (of the slots named, or all), keys and values, each (rows, heads, slots, depth); where each head of
        keys and values serves several heads of queries (EuroBERT), it stands there as often."""
        qkv = self.qkv if qkv is None else qkv
        width, kv = self.config.width, self.config.kv_width
        if queries is None:
            parts = qkv(x).split([width, kv, kv], -1)
        else:
            weight, bias = qkv.weight, qkv.bias
            few = x.gather(1, queries[..., None].expand(-1, -1, width))
            keys = F.linear(x, weight[width:], None if bias is None else bias[width:])
            parts = (F.linear(few, weight[:width], None if bias is None else bias[:width]), *keys.split(kv, -1))
        q, k, v = (t.view(*t.shape[:2], -1, width // self.config.heads).transpose(1, 2) for t in parts)
        if kv == width:
            return q, k, v
        return q, k.repeat_interleave(width // kv, 1), v.repeat_interleave(width // kv, 1)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, layout: AttentionLayout, queries: Tensor | None) -> Tensor:
        """What each query sees, (rows, heads, queries, depth)."""
        return attend(q, k, v, layout, queries=queries, dropout=self.weight_dropout)

    def forward(
        self, x: Float[Tensor, "rows slots width"], layout: AttentionLayout, queries: Int[Tensor, "rows queries"] | None
    ) -> Float[Tensor, "rows _ width"]:
        """States of the slots that `queries` names, or of all, after attention to their examples."""
        depth = self.config.width // self.config.heads
        q, k, v = self.project(x, queries)
        base = self.rotary_base
        if base is not None:
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

    def inference(self, shared: dict[str, Any], dtype: Any) -> InferenceAttention:
        """The same attention at inference, without padding and gradients.

        Args:
            shared: what the layers share, of `Encoder.shared`; what one layer derives from it may be kept there for
                others.
            dtype: of what is added to the scores.
        """
        return InferenceAttention(**self._for_inference())

    def inference_projections(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of the product whose result `inference` is given."""
        return self.qkv.weight, self.qkv.bias

    def _for_inference(self) -> dict[str, Any]:
        return {"heads": self.config.heads, "kv_heads": self.config.kv_heads, "base": self.rotary_base}
