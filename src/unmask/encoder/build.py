"""Which encoder a config asks for."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from unmask.encoder.attention import AttentionLayout
from unmask.encoder.config import EncoderConfig
from unmask.encoder.disentangled import DisentangledEncoder
from unmask.encoder.full import SelfAttention
from unmask.encoder.kinds import GroupedQuery, RelativeBias
from unmask.encoder.local_global import BlockSparseEncoder, LocalEncoder, LocalGlobalEncoder
from unmask.encoder.transformer import Encoder
from unmask.kernels.inference_attention import InferenceAttention


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


class RelativeBiasAttention(SelfAttention):
    """Attention with a bias per head by relative position."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor, layout: AttentionLayout, queries: Tensor | None) -> Tensor:
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
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=self.weight_dropout)

    def inference(self, shared: dict[str, Any], dtype: torch.dtype) -> InferenceAttention:
        if "bias" not in shared:
            longest, table = self.config.longest or 512, shared["relative"].detach()
            shared["bias"] = table[bucket(torch.arange(1 - longest, longest), len(table))].t().contiguous()
        return RelativeBiasInference(bias=shared["bias"], **self._for_inference())


@dataclass(frozen=True, kw_only=True)
class RelativeBiasInference(InferenceAttention):
    """`RelativeBiasAttention` of whole examples; `bias` is added to the scores, by distance."""

    bias: Float[Tensor, "heads distances"]

    def added(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        return upright_bias(self.bias, q.shape[2]).to(q.dtype)


def upright_bias(bias: Float[Tensor, "heads distances"], length: int) -> Float[Tensor, "1 heads length length"]:
    """Entry [i, j] is the bias of the distance j - i."""
    middle = bias.shape[1] // 2
    place = torch.arange(length)
    return bias[:, place[None] - place[:, None] + middle][None]


class RelativeBiasEncoder(Encoder):
    """MPNet's: all layers share the table of biases (buckets, heads)."""

    made_for = RelativeBias
    attention = RelativeBiasAttention

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        assert isinstance(config.attention, RelativeBias)
        self.relative = nn.Embedding(config.attention.buckets, config.heads)
        self._initialise(self.relative)

    def shared(self) -> dict[str, Any]:
        return {"relative": self.relative.weight}


class GroupedQueryEncoder(Encoder):
    """EuroBERT's."""

    made_for = GroupedQuery


ENCODERS: tuple[type[Encoder], ...] = (
    Encoder,
    GroupedQueryEncoder,
    LocalEncoder,
    LocalGlobalEncoder,
    RelativeBiasEncoder,
    BlockSparseEncoder,
    DisentangledEncoder,
)
"""One per kind of attention: a new kind is a type in `kinds`, a file, and a line here."""


def make_encoder(config: EncoderConfig) -> Encoder:
    """An encoder with random weights."""
    encoder = next(encoder for encoder in ENCODERS if encoder.made_for is type(config.attention_kind))
    return encoder(config)


class Undrawn(TorchFunctionMode):
    """While active, parameters are neither drawn nor set: they stay as memory was, to be filled from a file.

    `draw` does later what was left out, for the tensors that the file did not fill. Setting (biases to 0) is put off
    with drawing, so that the last of both stands; and a model that is too large for its file takes no memory before
    that is seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.left: list[tuple[Tensor, Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        drawing = getattr(func, "__module__", None) == "torch.nn.init" and func.__name__ in _DRAWN
        setting = func in (Tensor.zero_, Tensor.fill_) and bool(args) and isinstance(args[0], nn.Parameter)
        if not (drawing or setting):
            return func(*args, **given)
        tensor = args[0] if args else given["tensor"]
        self.left.append((tensor, func, args, given))
        return tensor

    def draw(self, model: nn.Module, names: Collection[str]) -> None:
        """Draw the model's parameters of these names, in the order they would have been."""
        wanted = {id(p) for name, p in model.named_parameters(remove_duplicate=False) if name in names}
        with torch.no_grad():
            for tensor, func, args, given in self.left:
                if id(tensor) in wanted:
                    func(*args, **given)


_DRAWN = {
    "normal_",
    "uniform_",
    "trunc_normal_",
    "kaiming_uniform_",
    "kaiming_normal_",
    "xavier_uniform_",
    "xavier_normal_",
}
