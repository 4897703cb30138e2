"""DistilBERT (Sanh et al. 2019): BERT's layers under other names, no token types, no pooler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unmask.core.token_codec import TokenCodecConfig
from unmask.encoder.config import EncoderConfig
from unmask.families.base import Family, bert_body, heads, masked_head
from unmask.families.bert import head, read_body, write_body

_NAMES = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}


def _read(config: Mapping[str, Any]) -> tuple[EncoderConfig, dict[str, Any]]:
    # The norms' epsilon is fixed in the published code; sine-cosine positions are stored as a table like learned ones.
    named = {ours: config[theirs] for ours, theirs in _NAMES.items() if theirs in config}
    encoder = read_body({**config, **named, "layer_norm_eps": 1e-12, "position_embedding_type": "absolute"})
    return encoder, head({**config, **named}, encoder) | {"types": 0}


def _write(encoder: EncoderConfig, codec: TokenCodecConfig, special: Mapping[str, int | None]) -> dict[str, Any]:
    body = write_body(encoder, codec, special)
    dropped = ("type_vocab_size", "layer_norm_eps", *_NAMES)
    named = {theirs: body[ours] for ours, theirs in _NAMES.items()}
    return {k: v for k, v in body.items() if k not in dropped} | named


DISTILBERT = Family(
    name="distilbert",
    model_types=("distilbert",),
    architecture="DistilBertForMaskedLM",
    read=_read,
    write=_write,
    keys=(
        *bert_body(
            "distilbert",
            layer="transformer.layer.{i}",
            qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
            out="attention.out_lin",
            attention_norm="sa_layer_norm",
            up="ffn.lin1",
            down="ffn.lin2",
            norm="output_layer_norm",
        ),
        *masked_head("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
    ),
    aliases={"vocab_projector.weight": "codec.word.weight"},
    heads=heads(("pre_classifier", "relu"), ("classifier", None)),
)
