"""BigBird (Zaheer et al. 2020): BERT's names, blocks of attention in long texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from unmask.core.token_codec import TokenCodecConfig
from unmask.encoder.config import EncoderConfig, Entrance
from unmask.encoder.kinds import AttentionKind, BlockSparse, Full
from unmask.errors import UserError
from unmask.families.base import Family, bert_body, heads
from unmask.families.bert import ALIASES, HEAD, head, read_body, write_body


def _read(config: Mapping[str, Any]) -> tuple[EncoderConfig, dict[str, Any]]:
    if not config.get("use_bias", True):
        raise UserError("use_bias false in config.json is not supported", hint="Known: true.")
    kind = config.get("attention_type", "block_sparse")
    if kind not in ("block_sparse", "original_full"):
        raise UserError(f"attention_type {kind!r} in config.json", hint="Known: block_sparse, original_full.")
    config = {"max_position_embeddings": 4096, "hidden_act": "gelu_new", **config}
    encoder = read_body(config)
    attention: AttentionKind = Full()
    if kind == "block_sparse":
        attention = BlockSparse(
            block=int(config.get("block_size", 64)), random_blocks=int(config.get("num_random_blocks", 3))
        )
    scale = bool(config.get("rescale_embeddings", False))
    entrance = Entrance(dropout_first=True, scale=scale)
    encoder = dataclasses.replace(encoder, attention=attention, entrance=entrance)
    return encoder, head(config, encoder) | {"scale": encoder.width**0.5 if scale else 1.0}


def _write(encoder: EncoderConfig, codec: TokenCodecConfig, special: Mapping[str, int | None]) -> dict[str, Any]:
    sparse = isinstance(encoder.attention, BlockSparse)
    blocks = encoder.attention if isinstance(encoder.attention, BlockSparse) else BlockSparse()
    about = {
        "attention_type": "block_sparse" if sparse else "original_full",
        "block_size": blocks.block,
        "num_random_blocks": blocks.random_blocks,
        "rescale_embeddings": encoder.entrance.scale,
    }
    return about | write_body(encoder, codec, special)


BIGBIRD = Family(
    name="bigbird",
    model_types=("big_bird",),
    architecture="BigBirdForMaskedLM",
    read=_read,
    write=_write,
    keys=(*bert_body("bert"), *HEAD),
    aliases=ALIASES,
    heads=heads(("classifier.dense", "hidden"), ("classifier.out_proj", None), span=False),
)
