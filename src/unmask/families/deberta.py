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
from unmask.encoder.config import Disentangled, EncoderConfig, Entrance
from unmask.errors import UserError
from unmask.families.base import Family, activation_name, bert_body, heads, masked_head, pair
from unmask.families.bert import ALIASES, HEAD, NAMES, head, read_body, write_body

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
    config = {"layer_norm_eps": 1e-7, "type_vocab_size": 0, **config, "position_embedding_type": "absolute"}
    encoder = dataclasses.replace(
        read_body(config), positions=_positions(config), entrance=Entrance(project_first=True)
    )
    return encoder, head(config, encoder)


def _write(encoder: EncoderConfig, codec: TokenCodecConfig, special: Mapping[str, int | None]) -> dict[str, Any]:
    kind = encoder.positions
    assert isinstance(kind, Disentangled)
    terms = ["c2p"] * kind.content_to_position + ["p2c"] * kind.position_to_content
    return write_body(encoder, codec, special) | {
        "embedding_size": encoder.input_width,
        "relative_attention": True,
        "max_relative_positions": kind.furthest,
        "position_buckets": kind.buckets or -1,
        "pos_att_type": terms,
        "share_att_key": kind.shared,
        "norm_rel_ebd": "layer_norm" if kind.normed else "none",
        "position_biased_input": kind.absolute,
        "conv_kernel_size": kind.convolution,
        "conv_act": NAMES.get(kind.convolution_activation, kind.convolution_activation),
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
