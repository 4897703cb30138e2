"""The encoder's choices, each an object with its own settings; published architectures are data on top of these.

This module does not import torch, so configurations can be read and printed at once.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from unmask.errors import UserError, suggest

Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]


@dataclass(frozen=True, kw_only=True)
class Norm:
    """Normalisation and where it stands: `post` after the residual sum (BERT), `pre` before each block (ModernBERT)."""

    placement: Literal["post", "pre"] = "post"
    kind: Literal["layer", "rms"] = "layer"
    epsilon: float = 1e-12
    bias: bool = True
    first_is_identity: bool = False
    """Pre-norm only: layer 0 has no attention norm, the embedding norm just did it (ModernBERT)."""


@dataclass(frozen=True, kw_only=True)
class Learned:
    """Learned absolute positions, added to the embeddings; `offset` is added to each position (RoBERTa: 2)."""

    slots: int = 512
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class SinCos:
    """Fixed sine-cosine positions (Vaswani et al. 2017), added to the embeddings. `columns` > 0: a 2-D grid (MAE)."""

    columns: int = 0


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Rotary positions, split-half (Su et al. 2021); local layers may turn with another base (ModernBERT: 1e4)."""

    base: float = 160_000.0
    local_base: float = 10_000.0
    slots: int = 8192
    """Longest context the published settings were made for."""


@dataclass(frozen=True, kw_only=True)
class Entrance:
    """What happens between the embeddings' sum and the first layer.

    Args:
        norm: they are normalised (not in vision transformers).
    """

    norm: bool = True


@dataclass(frozen=True, kw_only=True)
class MLP:
    """width -> inner -> width with an activation between."""

    inner: int = 3072
    activation: Activation = "gelu"
    bias: bool = True


@dataclass(frozen=True, kw_only=True)
class Gated:
    """width -> 2 x inner, act(first half) * second half -> width (Shazeer 2020)."""

    inner: int = 1152
    activation: Activation = "gelu"
    bias: bool = False


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Every layer full, or local except every `global_every`-th.

    Args:
        window: slots seen on either side in local layers, inclusive; None makes all layers full.
        global_every: layer i is full when i % global_every == 0.
    """

    window: int | None = None
    global_every: int = 3
    bias: bool = True

    def layer_window(self, layer: int) -> int | None:
        return None if self.window is None or layer % self.global_every == 0 else self.window


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """A transformer encoder.

    Args:
        embedding_width: width of the slot embeddings when it differs from `width` (ELECTRA, ALBERT): they are
            normalised, then projected.
        dropout: on embeddings and on the output of each block; 0 by default, which pays when data are not repeated
            many times (Geiping & Goldstein 2023) and is faster.
        attention_dropout: on the attention weights.
        embedding_dropout: on the embeddings where it differs from `dropout` (ModernBERT).
        initial_deviation: standard deviation of the normal initialisation.
    """

    width: int = 256
    layers: int = 4
    heads: int = 4
    embedding_width: int | None = None
    norm: Norm = field(default_factory=Norm)
    positions: Learned | SinCos | Rotary | None = field(default_factory=Learned)
    entrance: Entrance = field(default_factory=Entrance)
    feedforward: MLP | Gated = field(default_factory=lambda: MLP(inner=1024))
    attention: Attention = field(default_factory=Attention)
    dropout: float = 0.0
    attention_dropout: float = 0.0
    embedding_dropout: float | None = None
    initial_deviation: float = 0.02

    def __post_init__(self) -> None:
        if min(self.width, self.layers, self.heads) < 1:
            raise UserError(f"width={self.width}, layers={self.layers}, heads={self.heads} must be at least 1")
        if self.width % self.heads:
            fits = [h for h in range(1, self.width + 1) if self.width % h == 0 and self.width // h >= 16]
            raise UserError(f"heads={self.heads} does not divide width={self.width}", hint=f"Use one of {fits}.")

    @property
    def input_width(self) -> int:
        return self.embedding_width or self.width

    @property
    def longest(self) -> int | None:
        """Longest example the positions allow, None for no limit."""
        return self.positions.slots if isinstance(self.positions, Learned | Rotary) else None

    def flops_per_slot(self, context: float) -> float:
        """Multiply-adds x 2 of one forward pass, per slot that attends to `context` slots (inference; training is 3x)."""
        inner = self.feedforward.inner * (3 if isinstance(self.feedforward, Gated) else 2)
        seen = [
            context if (w := self.attention.layer_window(i)) is None else min(context, 2 * w + 1)
            for i in range(self.layers)
        ]
        return 2 * self.layers * (4 * self.width**2 + inner * self.width) + 4 * self.width * sum(seen)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `from_dict` gives the same config back."""
        out = dataclasses.asdict(self)
        for name in ("positions", "feedforward"):
            if out[name] is not None:
                out[name]["kind"] = type(getattr(self, name)).__name__
        return out

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> EncoderConfig:
        """Rebuild from `to_dict`; an unknown key is an error with a suggestion.

        >>> config = EncoderConfig(positions=Rotary(), feedforward=Gated(inner=64))
        >>> EncoderConfig.from_dict(config.to_dict()) == config
        True
        """
        known = {f.name for f in dataclasses.fields(cls)}
        for key in data:
            if key not in known:
                raise UserError(f"unknown encoder setting {key!r}", hint=suggest(key, known))
        kinds: dict[str, type] = {k.__name__: k for k in (Learned, SinCos, Rotary, MLP, Gated)}
        values = dict(data)
        for name in ("positions", "feedforward"):
            if isinstance(values.get(name), dict):
                inner = dict(values[name])
                values[name] = kinds[inner.pop("kind")](**inner)
        for name, kind in (("norm", Norm), ("attention", Attention), ("entrance", Entrance)):
            if isinstance(values.get(name), dict):
                values[name] = kind(**values[name])
        return cls(**values)
