"""MPNet (Song et al. 2020): BERT's body with relative positions in bucketed biases, shared by all layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from unmask.core.token_codec import TokenCodecConfig
from unmask.encoder.config import EncoderConfig
from unmask.encoder.kinds import RelativeBias
from unmask.families.base import Family, Head, pair, stacked
from unmask.families.bert import head, read_body, write_body


def _read(config: Mapping[str, Any]) -> tuple[EncoderConfig, dict[str, Any]]:
    # The published code counts positions from 2 whatever the padding id is.
    encoder = read_body(config, offset=2)
    attention = RelativeBias(buckets=int(config.get("relative_attention_num_buckets", 32)))
    encoder = dataclasses.replace(encoder, attention=attention)
    return encoder, head(config, encoder) | {"types": 0, "head_activation": "gelu"}


def _write(encoder: EncoderConfig, codec: TokenCodecConfig, special: Mapping[str, int | None]) -> dict[str, Any]:
    assert isinstance(encoder.attention, RelativeBias)
    about = {
        "model_type": "mpnet",
        "architectures": ["MPNetForMaskedLM"],
        "relative_attention_num_buckets": encoder.attention.buckets,
    }
    body = {k: v for k, v in write_body(encoder, codec, special).items() if k != "type_vocab_size"}
    return about | body | {"pad_token_id": 1}


_LAYER, _OURS = "mpnet.encoder.layer.{i}", "encoder.layers.{i}"
_ATTENTION = f"{_LAYER}.attention.attn"

MPNET = Family(
    name="mpnet",
    model_types=("mpnet",),
    architecture="MPNetForMaskedLM",
    read=_read,
    write=_write,
    keys=(
        ("mpnet.embeddings.word_embeddings.weight", "codec.word.weight"),
        ("mpnet.embeddings.position_embeddings.weight", "encoder.stem.positions.weight"),
        *pair("mpnet.embeddings.LayerNorm", "encoder.stem.norm"),
        ("mpnet.encoder.relative_attention_bias.weight", "encoder.relative.weight"),
        *stacked((f"{_ATTENTION}.q", f"{_ATTENTION}.k", f"{_ATTENTION}.v"), f"{_OURS}.attention.qkv"),
        *pair(f"{_ATTENTION}.o", f"{_OURS}.attention.out"),
        *pair(f"{_LAYER}.attention.LayerNorm", f"{_OURS}.attention_norm"),
        *pair(f"{_LAYER}.intermediate.dense", f"{_OURS}.feedforward.up"),
        *pair(f"{_LAYER}.output.dense", f"{_OURS}.feedforward.down"),
        *pair(f"{_LAYER}.output.LayerNorm", f"{_OURS}.feedforward_norm"),
        *pair("lm_head.dense", "codec.transform"),
        *pair("lm_head.layer_norm", "codec.norm"),
        ("lm_head.bias", "codec.bias"),
    ),
    aliases={"lm_head.decoder.bias": "codec.bias", "lm_head.decoder.weight": "codec.word.weight"},
    heads={
        "sequence": Head(steps=(("classifier.dense", "tanh"), ("classifier.out_proj", None))),
        "token": Head(steps=(("classifier", None),), pool="each"),
        "span": Head(steps=(("qa_outputs", None),), pool="each"),
    },
)
