"""DistilBERT (Sanh et al. 2019): BERT's layers under other names, no token types, no pooler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unmask.core.token_codec import TokenCodecConfig
from unmask.encoder.config import EncoderConfig
from unmask.families.base import Family, Head, pair, stacked
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
    about = {"model_type": "distilbert", "architectures": ["DistilBertForMaskedLM"]}
    return about | {k: v for k, v in body.items() if k not in dropped} | named


_THEIRS, _OURS = "distilbert.transformer.layer.{i}", "encoder.layers.{i}"
_ATTENTION = f"{_THEIRS}.attention"

DISTILBERT = Family(
    name="distilbert",
    model_types=("distilbert",),
    architecture="DistilBertForMaskedLM",
    read=_read,
    write=_write,
    keys=(
        ("distilbert.embeddings.word_embeddings.weight", "codec.word.weight"),
        ("distilbert.embeddings.position_embeddings.weight", "encoder.stem.positions.weight"),
        *pair("distilbert.embeddings.LayerNorm", "encoder.stem.norm"),
        *stacked((f"{_ATTENTION}.q_lin", f"{_ATTENTION}.k_lin", f"{_ATTENTION}.v_lin"), f"{_OURS}.attention.qkv"),
        *pair(f"{_ATTENTION}.out_lin", f"{_OURS}.attention.out"),
        *pair(f"{_THEIRS}.sa_layer_norm", f"{_OURS}.attention_norm"),
        *pair(f"{_THEIRS}.ffn.lin1", f"{_OURS}.feedforward.up"),
        *pair(f"{_THEIRS}.ffn.lin2", f"{_OURS}.feedforward.down"),
        *pair(f"{_THEIRS}.output_layer_norm", f"{_OURS}.feedforward_norm"),
        *pair("vocab_transform", "codec.transform"),
        *pair("vocab_layer_norm", "codec.norm"),
        ("vocab_projector.bias", "codec.bias"),
    ),
    aliases={"vocab_projector.weight": "codec.word.weight"},
    heads={
        "sequence": Head(steps=(("pre_classifier", "relu"), ("classifier", None))),
        "token": Head(steps=(("classifier", None),), pool="each"),
        "span": Head(steps=(("qa_outputs", None),), pool="each"),
    },
)
