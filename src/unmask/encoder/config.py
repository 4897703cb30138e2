"""The encoder's choices, each an object with its own settings; published architectures are data on top of these.

Kinds of attention are in `kinds`, but for disentangled attention, which comes with its positions.
This module does not import torch, so configurations can be read and printed at once.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Literal

from unmask.encoder.kinds import KINDS, AttentionKind, Full, GroupedQuery
from unmask.errors import UserError, suggest

Activation = Literal["gelu", "gelu_tanh", "relu", "silu", "tanh"]

MOST_HEADS = 128
"""Counts of heads that a message proposes, at most."""


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
class Disentangled:
    """Content and relative position attend to each other by tables of their own (DeBERTa: He et al. 2021).

    Args:
        slots: longest context.
        buckets: distances beyond half of them share logarithmic buckets; 0 for one bucket a distance.
        furthest: largest distance; larger ones count as this one.
        content_to_position, position_to_content: which of the two terms are there.
        shared: relative positions go through the content's own projections (v3); else they have theirs.
        normed: the table of relative positions is normalised before use.
        absolute: learned absolute positions are added to the embeddings too.
        convolution: kernel of the convolution beside layer 0 (v2-xlarge: 3), 0 for none.
        convolution_activation: what follows it.
        decoder_steps: the enhanced mask decoder repeats the last layer this often, asked by absolute positions; 0: off.
    """

    slots: int = 512
    buckets: int = 256
    furthest: int = 512
    content_to_position: bool = True
    position_to_content: bool = True
    shared: bool = True
    normed: bool = True
    absolute: bool = False
    convolution: int = 0
    convolution_activation: Activation = "gelu"
    decoder_steps: int = 0

    @property
    def span(self) -> int:
        """Rows of the table of relative positions, on either side."""
        return self.buckets or self.furthest

    @property
    def terms(self) -> int:
        """Of a score: content and content, and those with positions."""
        return 1 + self.content_to_position + self.position_to_content


@dataclass(frozen=True, kw_only=True)
class Entrance:
    """What happens between the embeddings' sum and the first layer.

    Args:
        norm: they are normalised (not in EuroBERT, NeoBERT, vision transformers).
        dropout_first: before the norm (BigBird) rather than behind it.
        project_first: a narrower embedding is projected, without bias, before the norm (DeBERTa) rather than behind it.
        scale: word embeddings are multiplied by the root of their width (an option of BigBird).
    """

    norm: bool = True
    dropout_first: bool = False
    project_first: bool = False
    scale: bool = False


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """Layers that use the same weights (ALBERT: Lan et al. 2020).

    Args:
        groups: sets of weights; layer i uses set i x groups // layers.
        inner: layers in a set, run one after the other.
    """

    groups: int = 1
    inner: int = 1


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
class EncoderConfig:
    """A transformer encoder.

    Args:
        embedding_width: width of the slot embeddings when it differs from `width` (ELECTRA, ALBERT): they are
            normalised, then projected.
        dropout: on embeddings and on the output of each block; 0 by default, which pays when data are not repeated
            many times (Geiping & Goldstein 2023) and is faster.
        attention_dropout: on the attention weights.
        embedding_dropout: on the embeddings where it differs from `dropout` (ModernBERT).
        dropout_inside: `dropout` acts within the feed-forward, before its last product, and the attention's output
            has `attention_dropout` (ModernBERT), instead of both blocks' outputs having `dropout`.
        initial_deviation: standard deviation of the normal initialisation.
    """

    width: int = 256
    layers: int = 4
    heads: int = 4
    embedding_width: int | None = None
    norm: Norm = field(default_factory=Norm)
    positions: Learned | SinCos | Rotary | Disentangled | None = field(default_factory=Learned)
    entrance: Entrance = field(default_factory=Entrance)
    sharing: Sharing | None = None
    feedforward: MLP | Gated = field(default_factory=lambda: MLP(inner=1024))
    attention: AttentionKind = field(default_factory=Full)
    dropout: float = 0.0
    attention_dropout: float = 0.0
    embedding_dropout: float | None = None
    dropout_inside: bool = False
    initial_deviation: float = 0.02

    def __post_init__(self) -> None:
        if min(self.width, self.layers, self.heads) < 1:
            raise UserError(f"width={self.width}, layers={self.layers}, heads={self.heads} must be at least 1")
        if self.width % self.heads:
            fits = [h for h in range(1, min(self.width // 16, MOST_HEADS) + 1) if self.width % h == 0]
            raise UserError(f"heads={self.heads} does not divide width={self.width}", hint=f"Use one of {fits}.")
        if isinstance(self.positions, Rotary) and self.width // self.heads % 2:
            raise UserError(
                f"width={self.width} with heads={self.heads}: rotary positions turn pairs",
                hint=f"Heads of {self.width // self.heads} are odd: choose a width or heads that make them even.",
            )
        for name in ("dropout", "attention_dropout", "embedding_dropout"):
            share = getattr(self, name)
            if share is not None and not 0 <= share < 1:
                raise UserError(f"{name}={share}", hint="Expected a share from 0 to below 1.")
        self.attention.check(layers=self.layers, heads=self.heads)
        if isinstance(self.positions, Disentangled) and not isinstance(self.attention, Full):
            raise UserError(
                f"disentangled positions with {type(self.attention).__name__} attention",
                hint="Disentangled positions are a kind of attention themselves: leave attention as Full.",
            )

    @property
    def input_width(self) -> int:
        """Width of the embeddings that the encoder reads."""
        return self.embedding_width or self.width

    @property
    def longest(self) -> int | None:
        """Longest example the positions allow, None for no limit."""
        return self.positions.slots if isinstance(self.positions, Learned | Rotary | Disentangled) else None

    @property
    def layer_order(self) -> list[int]:
        """Which set of weights runs, layer by layer; with no sharing 0, 1, 2, ..."""
        if self.sharing is None:
            return list(range(self.layers))
        groups, inner = self.sharing.groups, self.sharing.inner
        return [layer * groups // self.layers * inner + k for layer in range(self.layers) for k in range(inner)]

    @property
    def distinct_layers(self) -> int:
        """Sets of layer weights."""
        return self.layers if self.sharing is None else self.sharing.groups * self.sharing.inner

    @property
    def attention_kind(self) -> AttentionKind | Disentangled:
        """The kind of attention: disentangled positions are one."""
        return self.positions if isinstance(self.positions, Disentangled) else self.attention

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.attention.kv_heads if isinstance(self.attention, GroupedQuery) else self.heads

    @property
    def kv_width(self) -> int:
        """Width of all keys of a slot."""
        return self.width // self.heads * self.kv_heads

    def flops_per_slot(self, context: float) -> float:
        """Multiply-adds x 2 of a forward pass per slot that attends to `context` slots (training is 3x)."""
        inner = self.feedforward.inner * (3 if isinstance(self.feedforward, Gated) else 2)
        seen = sum(self.attention.slots_seen(i, context) for i in range(self.layers))
        # Relative positions cost two more products of queries and keys with a row for each distance.
        pairs = 4.0 if not isinstance(self.positions, Disentangled) else 12.0
        runs = len(self.layer_order) / self.layers
        layers = 2 * self.layers * (2 * self.width * (self.width + self.kv_width) + inner * self.width)
        return runs * (layers + pairs * self.width * seen)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `from_dict` gives the same config back."""
        out = dataclasses.asdict(self)
        for name in ("positions", "feedforward", "attention"):
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
        several: dict[str, dict[str, Any]] = {
            "positions": {k.__name__: k for k in (Learned, SinCos, Rotary, Disentangled)},
            "feedforward": {k.__name__: k for k in (MLP, Gated)},
            "attention": dict(KINDS),
        }
        values = dict(data)
        for name, kinds in several.items():
            if isinstance(values.get(name), dict):
                inner = {k: tuple(v) if isinstance(v, list) else v for k, v in values[name].items()}  # from JSON
                if (kind := inner.pop("kind", None)) not in kinds:
                    raise UserError(f"unknown kind of {name} {kind!r}", hint=suggest(str(kind), kinds))
                values[name] = kinds[kind](**inner)
        fixed = {"norm": Norm, "entrance": Entrance, "sharing": Sharing}
        for name, made in fixed.items():
            if isinstance(values.get(name), dict):
                values[name] = made(**values[name])
        return cls(**values)


LARGEST = 2**27
"""Of all whole numbers of a config: widths, layers, slots. What is larger is damage."""


def check(config: Any, where: str = "") -> None:
    """Check the types and sizes of a config's fields, and of the configs in it."""
    for name, kind in typing.get_type_hints(type(config)).items():
        value, place = getattr(config, name), f"{where}{name}"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            check(value, f"{place}.")
        if not _fits(value, kind):
            raise UserError(f"{place}={value!r} cannot be", hint="Check config.json and unmask.json.")


def _fits(value: Any, kind: Any) -> bool:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, k) for k in typing.get_args(kind))
    if origin is typing.Literal:
        return any(type(value) is type(k) and value == k for k in typing.get_args(kind))
    if origin is tuple:
        inner = typing.get_args(kind)
        return isinstance(value, tuple) and all(_fits(v, inner[0]) for v in value)
    if kind is bool or kind is types.NoneType:
        return isinstance(value, kind)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    return isinstance(value, kind) if isinstance(kind, type) else True
