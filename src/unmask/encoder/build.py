"""Which encoder a config asks for."""

from __future__ import annotations

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
