"""MPNet (Song et al. 2020): BERT's body with relative positions in bucketed biases, shared by all layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from unmask.core.token_codec import TokenCodecConfig
from unmask.encoder.config import EncoderConfig
from unmask.encoder.kinds import RelativeBias
from unmask.families.base import Family, bert_body, heads
from unmask.families.bert import head, read_body, write_body
from unmask.families.roberta import ALIASES, CLASSIFIER, HEAD


def _read(config: Mapping[str, Any]) -> tuple[EncoderConfig, dict[str, Any]]:
    # The published code counts positions from 2 whatever the padding id is.
    encoder = read_body(config, offset=2)
    attention = RelativeBias(buckets=int(config.get("relative_attention_num_buckets", 32)))
    encoder = dataclasses.replace(encoder, attention=attention)
    return encoder, head(config, encoder) | {"types": 0, "head_activation": "gelu"}


def _write(encoder: EncoderConfig, codec: TokenCodecConfig, special: Mapping[str, int | None]) -> dict[str, Any]:
    assert isinstance(encoder.attention, RelativeBias)
    body = {k: v for k, v in write_body(encoder, codec, special).items() if k != "type_vocab_size"}
    return body | {"relative_attention_num_buckets": encoder.attention.buckets, "pad_token_id": 1}


MPNET = Family(
    name="mpnet",
    model_types=("mpnet",),
    architecture="MPNetForMaskedLM",
    read=_read,
    write=_write,
    keys=(
        *bert_body(
            "mpnet",
            qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
            out="attention.attn.o",
            attention_norm="attention.LayerNorm",
        ),
        ("mpnet.encoder.relative_attention_bias.weight", "encoder.relative.weight"),
        *HEAD,
    ),
    aliases=ALIASES,
    heads=heads(*CLASSIFIER),
)
