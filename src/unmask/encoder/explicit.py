"""Attention by explicit products, with the gradient written out: what `attention` does to whole rows and
`packed_attention` to groups of examples. Faster than the library's kernels in bf16 training on CPUs, and the weights
are there to drop some of.

Shape letters: batch (any dimensions before the last two), queries, slots, depth.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.encoder.dropout import keep_mask


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
        scores = torch.matmul(q, k.transpose(-1, -2))
        if bias is None:
            scores.mul_(scale)
        else:
            heads = scores.shape[:-2].numel() // len(bias)
            each = scores.view(len(bias), heads, *scores.shape[-2:])
            torch.add(bias, each, alpha=scale, out=each)
        weights = torch._softmax(scores, -1, False)
        return cls(weights, *(keep_mask(weights.shape, dropout, weights.dtype) if dropout else (None, 1.0)))

    def kept(self, x: Tensor) -> Tensor:
        """Zero what dropout drops, scale up the rest."""
        return x if self.keep is None else (x * self.keep).mul_(self.up)

    def mix(self, v: Tensor, out: Tensor | None = None) -> Tensor:
        """What the queries see."""
        return torch.matmul(self.kept(self.weights), v, out=out)

    def gradients(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float, out: tuple[Tensor | None, ...] = (None,) * 3
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of q, k and v, given that of `mix`."""
        grad_v = torch.matmul(self.kept(self.weights).transpose(-1, -2), grad, out=out[2])
        grad_weights = self.kept(torch.matmul(grad, v.transpose(-1, -2)))
        grad_scores = torch._softmax_backward_data(grad_weights, self.weights, -1, self.weights.dtype).mul_(scale)
        grad_k = torch.matmul(grad_scores.transpose(-1, -2), q, out=out[1])
        return torch.matmul(grad_scores, k, out=out[0]), grad_k, grad_v
