"""BERT (Devlin et al. 2019), and models of its shape: MiniLM, TinyBERT, BioBERT, ..."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unmask.core.token_codec import TokenCodecConfig
from unmask.encoder.config import MLP, Disentangled, EncoderConfig, Learned, Norm
from unmask.errors import UserError
from unmask.families.base import Family, activation_name, bert_body, heads, masked_head, read_sizes, written_sizes

NAMES = {"gelu_tanh": "gelu_new"}
"""Of an activation here and there."""


def read_body(config: Mapping[str, Any], *, offset: int = 0) -> EncoderConfig:
    """The encoder of every model with BERT's body; `offset` is where RoBERTa's positions start."""
    if (kind := config.get("position_embedding_type") or "absolute") != "absolute":
        raise UserError(f"position_embedding_type {kind!r} in config.json is not supported", hint="Known: absolute.")
    norm = Norm(placement="post", epsilon=float(config.get("layer_norm_eps", 1e-12)))
    embedding = config.get("embedding_size")
    return EncoderConfig(
        **read_sizes(config),
        embedding_width=embedding if embedding not in (None, config["hidden_size"]) else None,
        norm=norm,
        positions=Learned(slots=config.get("max_position_embeddings", 512) - offset, offset=offset),
        feedforward=MLP(
            inner=config["intermediate_size"],
            activation=activation_name(config.get("hidden_act", "gelu")),  # type: ignore[arg-type]
        ),
        dropout=float(config.get("hidden_dropout_prob", 0.1)),
        attention_dropout=float(config.get("attention_probs_dropout_prob", 0.1)),
        initial_deviation=float(config.get("initializer_range", 0.02)),
    )


def write_body(encoder: EncoderConfig, codec: TokenCodecConfig, special: Mapping[str, int | None]) -> dict[str, Any]:
    """config.json entries of every model with BERT's body."""
    assert isinstance(encoder.positions, Learned | Disentangled)
    act = encoder.feedforward.activation
    return {
        **written_sizes(encoder),
        "hidden_act": NAMES.get(act, act),
        "hidden_dropout_prob": encoder.dropout,
        "attention_probs_dropout_prob": encoder.attention_dropout,
        "max_position_embeddings": encoder.positions.slots + getattr(encoder.positions, "offset", 0),
        "type_vocab_size": codec.types,
        "layer_norm_eps": encoder.norm.epsilon,
        "initializer_range": encoder.initial_deviation,
    }


def head(config: Mapping[str, Any], encoder: EncoderConfig) -> dict[str, Any]:
    """The shape of the masked-LM head, from a config.json."""
    return {
        "width": encoder.input_width,
        "encoder_width": encoder.width,
        "types": int(config.get("type_vocab_size", 2)),
        "head_activation": activation_name(config.get("hidden_act", "gelu")),
        "head_norm": encoder.norm,
        "tied": bool(config.get("tie_word_embeddings", True)),
    }


def _read(config: Mapping[str, Any]) -> tuple[EncoderConfig, dict[str, Any]]:
    encoder = read_body(config)
    return encoder, head(config, encoder)


def _write(encoder: EncoderConfig, codec: TokenCodecConfig, special: Mapping[str, int | None]) -> dict[str, Any]:
    return {"position_embedding_type": "absolute"} | write_body(encoder, codec, special)


HEAD = masked_head("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias")
ALIASES = {"cls.predictions.decoder.bias": "codec.bias", "cls.predictions.decoder.weight": "codec.word.weight"}


BERT = Family(
    name="bert",
    model_types=("bert",),
    architecture="BertForMaskedLM",
    read=_read,
    write=_write,
    keys=(*bert_body("bert"), *HEAD),
    aliases=ALIASES,
    heads=heads(("bert.pooler.dense", "tanh"), ("classifier", None)),
)
