"""The attention shim: one function, several kernels behind it, a plain reference beside it.

Shape letters: rows, slots (keys), queries (slots, or the few that are needed), heads, depth (width of a head).

Which kernel (2 cores, forward + backward, heads of 64, milliseconds):

    rows x heads x slots    scaled_dot_product fp32 / bf16    explicit fp32 / bf16
    32 x 4 x 128                     16.8 / 30.3                  17.8 / 8.5
    8 x 4 x 512                      54.4 / 52.2                 103.2 / 28.8

so training in bf16 (or with dropout, for which the library has no fast CPU kernel) on a CPU up to 512 slots uses
explicit products with a hand-made gradient; everything else uses `scaled_dot_product_attention`, and CUDA without a
mask of its own uses `torch.nn.attention.varlen`. Long rows, and rows that examples share, are worked out by example:
`packed_attention`.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.kernels.bands import ascending, banded, long_for
from unmask.kernels.explicit import Weights
from unmask.kernels.on_host import on_host, to_device
from unmask.kernels.packed_attention import PackedLayout, QuerySubset, by_example, example_starts

EXPLICIT_UP_TO = 512


@dataclass
class AttentionLayout:
    """Who may see whom, worked out once per batch and shared by all layers.

    Args:
        segment: 0 is padding; attention stays within a segment.
        position: position of each slot in its example; local attention measures distance in it.
        shared: what an encoder's layers share besides, such as a table of relative positions.
        packed: where given, all slots stand side by side in one row and attention is computed by example.
        wanted: then the slots that the last layer must compute.
        causal: no slot sees a later position.
    """

    segment: Int[Tensor, "rows slots"]
    position: Int[Tensor, "rows slots"]
    shared: dict[str, Any] = field(default_factory=dict)
    packed: PackedLayout | None = None
    wanted: QuerySubset | None = None
    causal: bool = False
    _masks: dict[Any, Tensor] = field(default_factory=dict)
    _once: dict[Any, tuple[Tensor | None, Tensor]] = field(default_factory=dict)

    def allowed(
        self, window: int | None, queries: Int[Tensor, "rows queries"] | None = None
    ) -> Bool[Tensor, "rows 1 queries slots"]:
        """Boolean mask. Padding sees padding, so that no softmax is over nothing."""

        def made() -> Tensor:
            seg_q = self.segment if queries is None else self.segment.gather(1, queries)
            mask = seg_q[:, :, None] == self.segment[:, None, :]
            if window is not None or self.causal:
                pos_q = self.position if queries is None else self.position.gather(1, queries)
                back = pos_q[:, :, None] - self.position[:, None, :]
                mask = mask if window is None else mask & (back.abs() <= window)
                mask = mask & (back >= 0) if self.causal else mask
            return mask[:, None]

        return self.once(("bool", window), queries, made)

    def bias(self, window: int | None, queries: Tensor | None, dtype: torch.dtype) -> Tensor:
        """The same mask as numbers to add: 0 or a large negative number."""

        def made() -> Tensor:
            allowed = self.allowed(window, queries)
            low = -3e4 if dtype is torch.float16 else -1e9
            return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, low)

        return self.once(("bias", window, dtype), queries, made)

    def once(self, key: Any, queries: Tensor | None, make: Callable[[], Tensor]) -> Tensor:
        """What `make` gives for these queries, made once per layout. The queries are held, not their address: another
        tensor at the same place, once the first is gone, is another question."""
        key = (key, queries is None)
        cached = self._once.get(key)
        if cached is None or cached[0] is not queries:
            cached = self._once[key] = (queries, make())
        return cached[1]

    def in_bands(self, window: int, slots: int) -> bool:
        """Whether rows of so many slots are worked out in bands, which reach to both sides."""
        return not self.causal and long_for(window, slots) and self.ascending()

    def ascending(self) -> bool:
        """Whether positions rise along each segment, as bands need it."""
        if "ascending" not in self.shared:
            self.shared["ascending"] = ascending(on_host(self.segment), on_host(self.position))
        return bool(self.shared["ascending"])

    def consecutive(self) -> bool:
        """Whether positions go up by one along each segment: then those within a window are the next columns."""
        if "consecutive" not in self.shared:
            segment, position = on_host(self.segment), on_host(self.position)
            same = (segment[:, 1:] == segment[:, :-1]) & (segment[:, 1:] != 0)
            self.shared["consecutive"] = bool(((position[:, 1:] - position[:, :-1] == 1) | ~same).all())
        return bool(self.shared["consecutive"])

    def cumulative(self) -> tuple[Int[Tensor, " starts"], int]:
        """(where each run of slots that see each other begins, counted over all rows, and the number of slots, int32;
        length of the longest run)."""
        if "cumulative" not in self._masks:
            segment = on_host(self.segment)
            first = example_starts(segment).flatten().nonzero().flatten().int()
            starts = torch.cat([first, torch.tensor([segment.numel()], dtype=torch.int32)])
            self._masks["cumulative"] = to_device(starts, self.segment.device)
            self._masks["longest"] = starts.diff().max()
        return self._masks["cumulative"], int(self._masks["longest"])

    def everything_seen(self) -> bool:
        """True when no mask is needed: one example fills each row, and all of it is seen."""
        if torch.jit.is_tracing() or self.causal:  # type: ignore[attr-defined]
            return False  # traced: an exported graph must do for all batches
        if "all" not in self._masks:
            segment = on_host(self.segment)
            self._masks["all"] = (segment == segment[:, :1]).all()
        return bool(self._masks["all"])


class _Explicit(torch.autograd.Function):
    """softmax(q k' * scale + bias) v; keeps only the weights for the backward pass."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, dropout: float) -> Tensor:
        q, k, v = (t.contiguous() for t in (q, k, v))
        found = Weights.of(q, k, bias, scale, dropout)
        ctx.save_for_backward(q, k, v, found.weights, found.keep)
        ctx.scale, ctx.up = scale, found.up
        return found.mix(v)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights, keep = ctx.saved_tensors
        return *Weights(weights, keep, ctx.up).gradients(grad, q, k, v, ctx.scale), None, None, None


def reference(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, scale: float) -> Tensor:
    """Attention as in the textbook, for tests to compare with."""
    scores = (q @ k.transpose(-1, -2)) * scale
    return scores.masked_fill(~allowed, float("-inf")).softmax(-1) @ v


def _varlen(q: Tensor, k: Tensor, v: Tensor, layout: AttentionLayout, window: int | None) -> Tensor | None:
    """CUDA, half precision: flatten to (tokens, cumulative lengths), no padding and no mask. None if not possible."""
    if not q.is_cuda or q.dtype not in (torch.bfloat16, torch.float16) or not _flash_takes(q):
        return None
    if (window is not None or layout.causal) and not layout.consecutive():
        return None
    from torch.nn.attention.varlen import varlen_attn

    cumulative, longest = layout.cumulative()
    rows, heads, slots, depth = q.shape
    flat_q, flat_k, flat_v = (t.transpose(1, 2).reshape(rows * slots, heads, depth) for t in (q, k, v))
    far = -1 if window is None else window
    reach = (far, 0 if layout.causal else far)
    out = varlen_attn(flat_q, flat_k, flat_v, cumulative, cumulative, longest, longest, window_size=reach)
    return out.view(rows, slots, heads, depth).transpose(1, 2)  # type: ignore[union-attr]


def _flash_takes(q: Tensor) -> bool:
    """Whether the kernel behind `varlen_attn` takes heads of this depth on this GPU: a multiple of 8, at most 256, from
    Ampere (8.0) on."""
    depth = q.shape[-1]
    return depth % 8 == 0 and depth <= 256 and _capability(q.device.index) >= (8, 0) and _has_varlen()


@functools.cache
def _capability(device: int | None) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


@functools.cache
def _has_varlen() -> bool:
    return importlib.util.find_spec("torch.nn.attention.varlen") is not None


def attend(
    q: Float[Tensor, "rows heads queries depth"],
    k: Float[Tensor, "rows heads slots depth"],
    v: Float[Tensor, "rows heads slots depth"],
    layout: AttentionLayout,
    *,
    window: int | None = None,
    queries: Int[Tensor, "rows queries"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "rows heads queries depth"]:
    """Scaled dot-product attention within segments (and within `window` positions), by the fastest kernel here."""
    scale = q.shape[-1] ** -0.5
    if layout.packed is not None:
        q, k, v = (t[0].transpose(0, 1) for t in (q, k, v))
        mixed = by_example(q, k, v, layout.packed, None if queries is None else layout.wanted, dropout=dropout)
        return mixed.transpose(0, 1)[None]
    if queries is None and not dropout and (out := _varlen(q, k, v, layout, window)) is not None:
        return out
    if window is not None and queries is None and layout.in_bands(window, int(k.shape[-2])):
        return banded(q, k, v, layout, window, dropout=dropout)
    unmasked = window is None and layout.everything_seen()
    training = torch.is_grad_enabled() and q.requires_grad
    few_queries = q.shape[-2] * 4 <= k.shape[-2]
    short = k.shape[-2] <= EXPLICIT_UP_TO
    if not q.is_cuda and training and short and (q.dtype == torch.bfloat16 or few_queries or dropout):
        bias = None if unmasked else layout.bias(window, queries, q.dtype)
        return _Explicit.apply(q, k, v, bias, scale, dropout)
    mask = None if unmasked else layout.allowed(window, queries)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)
