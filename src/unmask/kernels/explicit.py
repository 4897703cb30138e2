"""Attention by explicit products, with the gradient written out: what `attention` does to whole rows and
`packed_attention` to groups of examples. Faster than the library's kernels in bf16 training on CPUs, and the weights
are there to drop some of. Rotary positions, split-half (Su et al. 2021), turn queries and keys before.

Shape letters: rows, batch (any dimensions before the last two), heads, queries, slots, depth (width of a head).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.kernels.dropout import keep_mask


@dataclass(frozen=True)
class Weights:
    """softmax(q k' * scale + bias), and which of them dropout keeps.

    Attributes:
        keep: ones and zeros, or None without dropout.
        up: what kept weights are multiplied with.
    """

    weights: Float[Tensor, "*batch queries slots"]
    keep: Tensor | None
    up: float

    @classmethod
    def of(cls, q: Tensor, k: Tensor, bias: Tensor | None, scale: float, dropout: float) -> Weights:
        """Args:
        bias: (rows, 1 or heads, 1 or queries, slots), where the batch is rows x heads, or None.
        """
        keys = matrices(k).transpose(1, 2)
        if bias is None:
            scores = scaled_product(matrices(q), keys, scale)
        else:
            scores = torch.bmm(matrices(q), keys)
            each = scores.view(len(bias), scores.shape[0] // len(bias), *scores.shape[-2:])
            torch.add(bias, each, alpha=scale, out=each)
        weights = torch._softmax(scores, -1, False).view(*q.shape[:-1], k.shape[-2])
        return cls(weights, *(keep_mask(weights.shape, dropout, weights.dtype) if dropout else (None, 1.0)))

    def dropped_out(self, x: Tensor) -> Tensor:
        """Zero what dropout drops, scale up the rest."""
        return x if self.keep is None else (x * self.keep).mul_(self.up)

    def mix(self, v: Tensor, out: Tensor | None = None) -> Tensor:
        """What the queries see."""
        out = v.new_empty(*self.weights.shape[:-1], v.shape[-1]) if out is None else out
        torch.bmm(matrices(self.dropped_out(self.weights)), matrices(v), out=matrices(out))
        return out

    def gradients(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float, out: tuple[Tensor, ...] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of q, k and v, given that of `mix`; written to `out`, contiguous tensors, where they are given."""
        of_q, of_k, of_v = map(torch.empty_like, (q, k, v)) if out is None else out
        grad, q, k, v = (matrices(t) for t in (grad, q, k, v))
        weights = matrices(self.weights)
        torch.bmm(matrices(self.dropped_out(self.weights)).transpose(1, 2), grad, out=matrices(of_v))
        grad_weights = self.dropped_out(torch.bmm(grad, v.transpose(1, 2)).view_as(self.weights))
        grad_scores = torch._softmax_backward_data(matrices(grad_weights), weights, -1, weights.dtype)
        scaled_product(grad_scores.transpose(1, 2), q, scale, out=matrices(of_k))
        scaled_product(grad_scores, k, scale, out=matrices(of_q))
        return of_q, of_k, of_v


def matrices(x: Float[Tensor, "*batch queries slots"]) -> Float[Tensor, "matrices queries slots"]:
    """All dimensions before the last two as one: a view where `x` is contiguous. Given four dimensions, `matmul` copies
    even what it could read transposed."""
    return x.flatten(0, -3)


def scaled_product(a: Tensor, b: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """scale x a b of each pair of matrices; scaling costs nothing within the product."""
    out = a.new_empty(len(a), a.shape[1], b.shape[2]) if out is None else out
    return torch.baddbmm(out, a, b, beta=0, alpha=scale, out=out)


def rotation(position: Int[Tensor, "rows slots"], depth: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine tables, (rows, 1, slots, half the depth) each."""
    rate = base ** (-torch.arange(0, depth, 2, device=position.device, dtype=torch.float32) / depth)
    angle = position[:, None, :, None].float() * rate
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Queries or keys, (..., depth), turned by tables that broadcast to (..., half the depth)."""
    cos, sin = table
    first, second = x.chunk(2, -1)
    return torch.cat([torch.addcmul(first * cos, second, sin, value=-1), torch.addcmul(second * cos, first, sin)], -1)
