"""Which encoder a config asks for."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from unmask.encoder.block_sparse import BlockSparseEncoder
from unmask.encoder.config import EncoderConfig
from unmask.encoder.disentangled import DisentangledEncoder
from unmask.encoder.grouped_query import GroupedQueryEncoder
from unmask.encoder.local import LocalEncoder
from unmask.encoder.local_global import LocalGlobalEncoder
from unmask.encoder.relative_bias import RelativeBiasEncoder
from unmask.encoder.transformer import Encoder

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
