"""An initialisation with which heads look at the slots beside them from the first step.

A new masked model must find out where its neighbours are before it learns anything from them: its loss stays near that
of guessing by frequency for hundreds of steps. With rotary positions a head's scores depend on distance alone where its
queries and keys have a part that is the same for all slots. Here every embedding is given such a part in common, and a
head's projections turn it into a query and a key whose rotations agree best at one distance. Weights alone are set:
the model is of the published shape, and all of it is trained on.

The idea of starting attention from what trained attention looks like is that of Trockman & Kolter (2023, "Mimetic
Initialization of Self-Attention Layers"); the construction for rotary positions is our own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from unmask.encoder.full import SelfAttention

OFFSETS = (-1, 1, -2, 2)
"""Slots to the left (negative) or right that the first heads look at; the other heads start at random."""

PEAK = 8.0
"""Score of the slot looked at, before the softmax; its neighbours have about four fifths of it."""

SLOWEST = 0.25
"""Radians per slot of the slowest rotation used: slower ones make the peak wider, and where there is but one, its peak
comes back every 2 pi slots: two at least are used."""

PASSED = 0.7
"""Of a neighbour's part along an axis, what a head reads of it, and again what it writes (`pass_on`)."""

LAYERS = 2
"""How many layers start so, from the first."""


@torch.no_grad()
def attend_to_neighbours(embedding: Tensor, layers: Sequence[SelfAttention], offsets: Sequence[int] = OFFSETS) -> None:
    """Let heads start out looking at neighbouring slots.

    Args:
        embedding: (values, width), drawn at random; given a part in common, as large as the part drawn.
        layers: attention of the first layers, with rotary positions, behind a normalised embedding.
        offsets: one per head from the first; heads beyond them are left alone.
    """
    width = embedding.shape[1]
    common = torch.randn(width, device=embedding.device, dtype=embedding.dtype)
    common -= common.mean()  # orthogonal to what layer normalisation takes away
    common /= common.norm()
    embedding += embedding.std() * math.sqrt(width) * common
    reader = common / math.sqrt(width / 2)  # a normalised embedding times this is about 1
    for attention in layers:
        heads, base = attention.config.heads, attention.rotary_base
        depth = width // heads
        assert base is not None
        rate = base ** (-torch.arange(depth // 2, device=embedding.device) * 2 / depth)
        used = max(2, int((rate >= SLOWEST).sum()))
        size, rate = math.sqrt(PEAK * math.sqrt(depth) / used), rate[:used]
        weight = attention.qkv.weight
        for head, offset in enumerate(offsets[:heads]):
            query, key = torch.zeros(2, depth, dtype=weight.dtype, device=weight.device)
            query[:used], query[depth // 2 : depth // 2 + used] = (rate * offset).cos(), (rate * offset).sin()
            key[:used] = 1
            rows = slice(head * depth, (head + 1) * depth)
            weight[:width][rows] += size * query[:, None] * reader
            weight[width : 2 * width][rows] += size * key[:, None] * reader


@torch.no_grad()
def pass_on(axes: Tensor, layers: Sequence[SelfAttention], offsets: Sequence[int] = OFFSETS) -> None:
    """Let the heads that look at neighbours add to a slot's state what these are, as far as some axes say it.

    Args:
        axes: (axes, width) orthonormal, the most telling first; a head passes on as many as it is deep.
        layers: as of `attend_to_neighbours`.
        offsets: one per head, as there.
    """
    for attention in layers:
        heads, width = attention.config.heads, attention.config.width
        depth = width // heads
        passed = PASSED * axes[:depth].to(attention.qkv.weight)
        for head in range(min(len(offsets), heads)):
            values = slice(head * depth, head * depth + len(passed))
            attention.qkv.weight[2 * width :][values] += passed
            attention.out.weight[:, values] += passed.T
