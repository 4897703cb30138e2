"""DeBERTa v2 and v3 (He et al. 2021a, b): relative positions as keys and queries of their own.

Checkpoints carry one of three heads. `lm_predictions` is the masked-LM head of the release, which transformers builds
only with `legacy=False` (by default it makes a random one instead); with a table of absolute positions beside it, the
release predicts through the enhanced mask decoder, and so do we. `cls.predictions` is what transformers trains by
default. `mask_predictions` is v3's detector of replaced tokens: such a checkpoint never was a masked language model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from unmask.core.token_codec import TokenCodecConfig
from unmask.encoder.config import MLP, Disentangled, EncoderConfig, Entrance, Norm
from unmask.errors import UserError
from unmask.families.base import Family, activation_name, bert_body, heads, masked_head, pair
from unmask.families.bert import ALIASES, HEAD

DECODER_STEPS = 2
"""Times the last layer is asked by the enhanced mask decoder, as released."""
_STEPS = "unmask_decoder_steps"


def _positions(config: Mapping[str, Any]) -> Disentangled:
    slots = int(config.get("max_position_embeddings", 512))
    furthest = int(config.get("max_relative_positions", -1))
    terms = config.get("pos_att_type") or []
    terms = terms.lower().split("|") if isinstance(terms, str) else list(terms)
    if not config.get("relative_attention", False):
        raise UserError("relative_attention false in config.json is not supported", hint="Known: true.")
    if unknown := set(terms) - {"c2p", "p2c"}:
        raise UserError(f"pos_att_type {sorted(unknown)} in config.json is not supported", hint="Known: c2p, p2c.")
    if int(config.get("conv_kernel_size", 0)) and int(config.get("conv_groups", 1)) != 1:
        raise UserError("conv_groups in config.json is not supported", hint="Known: 1.")
    return Disentangled(
        slots=slots,
        buckets=max(0, int(config.get("position_buckets", -1))),
        furthest=furthest if furthest > 0 else slots,
        content_to_position="c2p" in terms,
        position_to_content="p2c" in terms,
        shared=bool(config.get("share_att_key", False)),
        normed="layer_norm" in str(config.get("norm_rel_ebd", "none")).lower(),
        absolute=bool(config.get("position_biased_input", True)),
        convolution=int(config.get("conv_kernel_size", 0)),
        convolution_activation=activation_name(config.get("conv_act", "tanh")),  # type: ignore[arg-type]
        decoder_steps=int(config.get(_STEPS, 0)),
    )


def _read(config: Mapping[str, Any]) -> tuple[EncoderConfig, dict[str, Any]]:
    norm = Norm(placement="post", epsilon=float(config.get("layer_norm_eps", 1e-7)))
    act = activation_name(config.get("hidden_act", "gelu"))
    embedding = config.get("embedding_size")
    encoder = EncoderConfig(
        width=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        embedding_width=embedding if embedding not in (None, config["hidden_size"]) else None,
        norm=norm,
        positions=_positions(config),
        entrance=Entrance(project_first=True),
        feedforward=MLP(inner=config["intermediate_size"], activation=act),  # type: ignore[arg-type]
        dropout=float(config.get("hidden_dropout_prob", 0.1)),
        attention_dropout=float(config.get("attention_probs_dropout_prob", 0.1)),
        initial_deviation=float(config.get("initializer_range", 0.02)),
    )
    return encoder, {
        "width": encoder.input_width,
        "encoder_width": encoder.width,
        "types": int(config.get("type_vocab_size", 0)),
        "head_activation": act,
        "head_norm": norm,
        "tied": bool(config.get("tie_word_embeddings", True)),
    }


def _write(encoder: EncoderConfig, codec: TokenCodecConfig, special: Mapping[str, int | None]) -> dict[str, Any]:
    kind = encoder.positions
    assert isinstance(kind, Disentangled)
    names = {"gelu_tanh": "gelu_new"}
    terms = ["c2p"] * kind.content_to_position + ["p2c"] * kind.position_to_content
    return {
        "hidden_size": encoder.width,
        "embedding_size": encoder.input_width,
        "num_hidden_layers": encoder.layers,
        "num_attention_heads": encoder.heads,
        "intermediate_size": encoder.feedforward.inner,
        "hidden_act": names.get(encoder.feedforward.activation, encoder.feedforward.activation),
        "hidden_dropout_prob": encoder.dropout,
        "attention_probs_dropout_prob": encoder.attention_dropout,
        "max_position_embeddings": kind.slots,
        "relative_attention": True,
        "max_relative_positions": kind.furthest,
        "position_buckets": kind.buckets or -1,
        "pos_att_type": terms,
        "share_att_key": kind.shared,
        "norm_rel_ebd": "layer_norm" if kind.normed else "none",
        "position_biased_input": kind.absolute,
        "conv_kernel_size": kind.convolution,
        "conv_act": names.get(kind.convolution_activation, kind.convolution_activation),
        "type_vocab_size": codec.types,
        "layer_norm_eps": encoder.norm.epsilon,
        "initializer_range": encoder.initial_deviation,
    }


_SELF = "attention.self"
_BODY: tuple[tuple[Any, str], ...] = (
    *bert_body("deberta", qkv=(f"{_SELF}.query_proj", f"{_SELF}.key_proj", f"{_SELF}.value_proj")),
    ("deberta.embeddings.position_embeddings.weight", "encoder.decoder_positions.weight"),
    ("deberta.embeddings.embed_proj.weight", "encoder.stem.project.weight"),
    ("deberta.encoder.rel_embeddings.weight", "encoder.relative.weight"),
    *pair("deberta.encoder.LayerNorm", "encoder.relative_norm"),
    *pair("deberta.encoder.conv.conv", "encoder.convolution"),
    *pair("deberta.encoder.conv.LayerNorm", "encoder.convolution_norm"),
    *pair("deberta.encoder.layer.{i}.attention.self.pos_key_proj", "encoder.layers.{i}.attention.position_key"),
    *pair("deberta.encoder.layer.{i}.attention.self.pos_query_proj", "encoder.layers.{i}.attention.position_query"),
)


def _settle(config: Mapping[str, Any], names: Collection[str]) -> tuple[Family, dict[str, Any]]:
    """Which head the file carries, and whether its predictions go through the enhanced mask decoder."""
    released = any(n.startswith("lm_predictions.") for n in names)
    if not released and any(n.startswith("cls.predictions.") for n in names):
        return DEBERTA_LEGACY, dict(config)
    decoder = (
        released
        and not config.get("position_biased_input", True)
        and "deberta.embeddings.position_embeddings.weight" in names
        and not any(n.startswith("mask_predictions.") for n in names)
    )
    return DEBERTA, dict(config) | ({_STEPS: DECODER_STEPS} if decoder else {})


DEBERTA = Family(
    name="deberta",
    model_types=("deberta-v2",),
    architecture="DebertaV2ForMaskedLM",
    read=_read,
    write=_write,
    settle=_settle,
    keys=(
        *_BODY,
        *masked_head("lm_predictions.lm_head.dense", "lm_predictions.lm_head.LayerNorm", "lm_predictions.lm_head.bias"),
    ),
    forced={"legacy": False},
    heads=heads(("pooler.dense", "pooler"), ("classifier", None)),
    not_a_masked_model=(
        r"mask_predictions\..*",
        "a DeBERTa-v3 discriminator, trained to tell replaced tokens: it never was a masked language model",
    ),
)

DEBERTA_LEGACY = dataclasses.replace(DEBERTA, name="deberta-legacy", keys=(*_BODY, *HEAD), aliases=ALIASES, forced={})
