"""ALBERT (Lan et al. 2020): layers share their weights, embeddings are narrower than the layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from unmask.core.token_codec import TokenCodecConfig
from unmask.encoder.config import EncoderConfig, Sharing
from unmask.families.base import Family, Head, pair, stacked
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
        "model_type": "albert",
        "architectures": ["AlbertForMaskedLM"],
        "embedding_size": encoder.input_width,
        "num_hidden_groups": sharing.groups,
        "inner_group_num": sharing.inner,
    }
    return about | write_body(encoder, codec, special)


_GROUP, _OURS = "albert.encoder.albert_layer_groups.{g}.albert_layers.{k}", "encoder.layers.{i}"
_ATTENTION = f"{_GROUP}.attention"

ALBERT = Family(
    name="albert",
    model_types=("albert",),
    architecture="AlbertForMaskedLM",
    read=_read,
    write=_write,
    keys=(
        ("albert.embeddings.word_embeddings.weight", "codec.word.weight"),
        ("albert.embeddings.token_type_embeddings.weight", "codec.token_type.weight"),
        ("albert.embeddings.position_embeddings.weight", "encoder.stem.positions.weight"),
        *pair("albert.embeddings.LayerNorm", "encoder.stem.norm"),
        *pair("albert.encoder.embedding_hidden_mapping_in", "encoder.stem.project"),
        *stacked((f"{_ATTENTION}.query", f"{_ATTENTION}.key", f"{_ATTENTION}.value"), f"{_OURS}.attention.qkv"),
        *pair(f"{_ATTENTION}.dense", f"{_OURS}.attention.out"),
        *pair(f"{_ATTENTION}.LayerNorm", f"{_OURS}.attention_norm"),
        *pair(f"{_GROUP}.ffn", f"{_OURS}.feedforward.up"),
        *pair(f"{_GROUP}.ffn_output", f"{_OURS}.feedforward.down"),
        *pair(f"{_GROUP}.full_layer_layer_norm", f"{_OURS}.feedforward_norm"),
        *pair("predictions.dense", "codec.transform"),
        *pair("predictions.LayerNorm", "codec.norm"),
        ("predictions.bias", "codec.bias"),
    ),
    aliases={"predictions.decoder.bias": "codec.bias", "predictions.decoder.weight": "codec.word.weight"},
    heads={
        "sequence": Head(steps=(("albert.pooler", "tanh"), ("classifier", None))),
        "token": Head(steps=(("classifier", None),), pool="each"),
        "span": Head(steps=(("qa_outputs", None),), pool="each"),
    },
)
