"""Which encoder a config asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.overrides import TorchFunctionMode

from unmask.encoder.config import Disentangled, EncoderConfig
from unmask.encoder.disentangled import DisentangledEncoder
from unmask.encoder.relative import BiasedEncoder, GroupedEncoder
from unmask.encoder.sparse import BlockEncoder, GlobalEncoder
from unmask.encoder.transformer import Encoder


def make_encoder(config: EncoderConfig) -> Encoder:
    """An encoder with random weights."""
    attention = config.attention
    if isinstance(config.positions, Disentangled):
        return DisentangledEncoder(config)
    if attention.block:
        return BlockEncoder(config)
    if attention.global_projections:
        return GlobalEncoder(config)
    if attention.buckets:
        return BiasedEncoder(config)
    if attention.kv_heads not in (None, config.heads):
        return GroupedEncoder(config)
    return Encoder(config)


class Undrawn(TorchFunctionMode):
    """While active, `torch.nn.init` draws no random weights: they are left as memory was, to be filled from a file."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init" and func.__name__ in _DRAWN:
            return args[0] if args else given["tensor"]
        return func(*args, **given)


_DRAWN = {
    "normal_",
    "uniform_",
    "trunc_normal_",
    "kaiming_uniform_",
    "kaiming_normal_",
    "xavier_uniform_",
    "xavier_normal_",
}
