"""Kinds of attention as settings: which slots of its own example a slot sees, and what is added to the scores.

A kind is one type here and one file beside this one, in which training and inference stand together; `build` maps the
types to their encoders. This module does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from unmask.errors import UserError


@dataclass(frozen=True, kw_only=True)
class AttentionKind:
    """What the kinds share.

    Args:
        bias: the projections to queries, keys, values and output have a bias.
    """

    bias: bool = True

    def layer_window(self, layer: int) -> int | None:
        """Slots that layer number `layer` sees on either side, None for all."""
        return None

    def slots_seen(self, layer: int, context: float) -> float:
        """Slots that a slot of an example of `context` slots sees in a layer."""
        window = self.layer_window(layer)
        return context if window is None else min(context, 2 * window + 1)

    def check(self, *, layers: int, heads: int) -> None:
        """Whether the kind suits an encoder of so many layers and heads."""


@dataclass(frozen=True, kw_only=True)
class Full(AttentionKind):
    """Every slot sees all slots of its example (`full.py`)."""


@dataclass(frozen=True, kw_only=True)
class GroupedQuery(AttentionKind):
    """Full; each head of keys and values serves several heads of queries (Ainslie et al. 2023; `build.py`)."""

    kv_heads: int

    def check(self, *, layers: int, heads: int) -> None:
        if not self.kv_heads or heads % self.kv_heads:
            raise UserError(f"kv_heads={self.kv_heads} does not divide heads={heads}")


@dataclass(frozen=True, kw_only=True)
class Local(AttentionKind):
    """Slots nearby; every so many layers all of them (ModernBERT: Warner et al. 2024; `local_global.py`).

    Args:
        window: slots seen on either side in local layers, inclusive: one number, or one per layer.
        global_every: layer i is full when i % global_every == 0; 0 for never.
    """

    window: int | tuple[int, ...] = 64
    global_every: int = 3

    def layer_window(self, layer: int) -> int | None:
        if self.global_every and layer % self.global_every == 0:
            return None
        return self.window if isinstance(self.window, int) else self.window[layer]

    def check(self, *, layers: int, heads: int) -> None:
        if isinstance(self.window, tuple) and len(self.window) != layers:
            raise UserError(f"{len(self.window)} windows for {layers} layers")


@dataclass(frozen=True, kw_only=True)
class LocalGlobal(Local):
    """Slots nearby, and a first slot with further projections (Longformer: Beltagy et al. 2020; `local_global.py`).

    Args:
        window: slots seen on either side, inclusive: one number, or one per layer.
        first_sees_all: each example's first slot uses its further projections to see all slots, and all see it, as in
            the published classifiers. Without it the projections are kept but not used.
    """

    window: int | tuple[int, ...] = 256
    global_every: int = 0
    first_sees_all: bool = False


@dataclass(frozen=True, kw_only=True)
class RelativeBias(AttentionKind):
    """Full; relative positions add a learned bias per head to the scores (MPNet, T5; `build.py`).

    Args:
        buckets: of distances, 4 or more; far ones share logarithmic buckets.
    """

    buckets: int = 32

    def check(self, *, layers: int, heads: int) -> None:
        if self.buckets < 4:
            raise UserError(f"buckets={self.buckets} must be at least 4")


@dataclass(frozen=True, kw_only=True)
class BlockSparse(AttentionKind):
    """Blocks of slots see a few blocks (BigBird: Zaheer et al. 2020; `local_global.py`).

    Args:
        block: slots per block.
        random_blocks: blocks seen besides the neighbours, the first and the last. Outside training they all are block
            0, as in the published code.
    """

    block: int = 64
    random_blocks: int = 3

    @property
    def full_up_to(self) -> int:
        """Longest example, in slots, that has full attention."""
        return (5 + 2 * self.random_blocks) * self.block

    def slots_seen(self, layer: int, context: float) -> float:
        return min(context, (5 + self.random_blocks) * self.block)

    def check(self, *, layers: int, heads: int) -> None:
        if self.block < 1:
            raise UserError(f"block={self.block} must be at least 1")


KINDS: dict[str, type[AttentionKind]] = {
    k.__name__: k for k in (Full, GroupedQuery, Local, LocalGlobal, RelativeBias, BlockSparse)
}
