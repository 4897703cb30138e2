"""ALBERT (Lan et al. 2020): layers share their weights, embeddings are narrower than the layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from unmask.core.token_codec import TokenCodecConfig
from unmask.encoder.config import EncoderConfig, Sharing
from unmask.families.base import Family, bert_body, heads, masked_head, pair
from unmask.families.bert import head, read_body, write_body


def _read(config: Mapping[str, Any]) -> tuple[EncoderConfig, dict[str, Any]]:
    defaults = {
        "embedding_size": 128,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    encoder = read_body({**defaults, **config})
    sharing = Sharing(groups=int(config.get("num_hidden_groups", 1)), inner=int(config.get("inner_group_num", 1)))
    return dataclasses.replace(encoder, sharing=sharing), head({**defaults, **config}, encoder)


def _write(encoder: EncoderConfig, codec: TokenCodecConfig, special: Mapping[str, int | None]) -> dict[str, Any]:
    sharing = encoder.sharing or Sharing()
    about = {
        "embedding_size": encoder.input_width,
        "num_hidden_groups": sharing.groups,
        "inner_group_num": sharing.inner,
    }
    return about | write_body(encoder, codec, special)


ALBERT = Family(
    name="albert",
    model_types=("albert",),
    architecture="AlbertForMaskedLM",
    read=_read,
    write=_write,
    keys=(
        *bert_body(
            "albert",
            layer="encoder.albert_layer_groups.{g}.albert_layers.{k}",
            qkv=("attention.query", "attention.key", "attention.value"),
            out="attention.dense",
            attention_norm="attention.LayerNorm",
            up="ffn",
            down="ffn_output",
            norm="full_layer_layer_norm",
        ),
        *pair("albert.encoder.embedding_hidden_mapping_in", "encoder.stem.project"),
        *masked_head("predictions.dense", "predictions.LayerNorm", "predictions.bias"),
    ),
    aliases={"predictions.decoder.bias": "codec.bias", "predictions.decoder.weight": "codec.word.weight"},
    heads=heads(("albert.pooler", "tanh"), ("classifier", None)),
)
