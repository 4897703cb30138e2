"""EuroBERT (Boizard et al. 2025): Llama's layers, seeing both ways; the projection alone is the masked-LM head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unmask.core.token_codec import TokenCodecConfig
from unmask.encoder.config import EncoderConfig, Entrance, Gated, Norm, Rotary
from unmask.encoder.kinds import AttentionKind, Full, GroupedQuery
from unmask.errors import UserError
from unmask.families.base import Family, Head, activation_name, pair, read_sizes, written_sizes


def rope_base(config: Mapping[str, Any], default: float) -> float:
    """The rotary base, in the spelling of the release or of transformers 5; scaled rotary positions are refused."""
    rope = config.get("rope_parameters") or {}
    kind = rope.get("rope_type", "default") if isinstance(rope, Mapping) else "default"
    scaling = config.get("rope_scaling")
    if kind != "default" or scaling:
        raise UserError(f"rope_type {kind!r}, rope_scaling {scaling!r} in config.json", hint="Known: default, none.")
    return float(rope.get("rope_theta", config.get("rope_theta", default)))


def _read(config: Mapping[str, Any]) -> tuple[EncoderConfig, dict[str, Any]]:
    heads, width = config["num_attention_heads"], config["hidden_size"]
    if (depth := config.get("head_dim")) not in (None, width // heads):
        raise UserError(f"head_dim {depth} in config.json", hint=f"Known: hidden_size / heads = {width // heads}.")
    bias = bool(config.get("mlp_bias", False))
    norm = Norm(placement="pre", kind="rms", epsilon=float(config.get("rms_norm_eps", 1e-5)), bias=False)
    encoder = EncoderConfig(
        **read_sizes(config),
        norm=norm,
        positions=Rotary(base=rope_base(config, 250_000.0), slots=config.get("max_position_embeddings", 8192)),
        entrance=Entrance(norm=False),
        feedforward=Gated(
            inner=config["intermediate_size"],
            activation=activation_name(config.get("hidden_act", "silu")),  # type: ignore[arg-type]
            bias=bias,
        ),
        attention=_attention(config, heads),
        attention_dropout=float(config.get("attention_dropout", 0.0)),
        initial_deviation=float(config.get("initializer_range", 0.02)),
    )
    return encoder, {
        "width": width,
        "encoder_width": width,
        "head": False,
        "output_bias": bias,
        "tied": bool(config.get("tie_word_embeddings", False)),
    }


def _attention(config: Mapping[str, Any], heads: int) -> AttentionKind:
    bias, kv_heads = bool(config.get("attention_bias", False)), config.get("num_key_value_heads")
    return Full(bias=bias) if kv_heads in (None, 0, heads) else GroupedQuery(bias=bias, kv_heads=kv_heads)


def _write(encoder: EncoderConfig, codec: TokenCodecConfig, special: Mapping[str, int | None]) -> dict[str, Any]:
    assert isinstance(encoder.positions, Rotary)
    return {
        **written_sizes(encoder),
        "num_key_value_heads": encoder.kv_heads,
        "hidden_act": encoder.feedforward.activation,
        "max_position_embeddings": encoder.positions.slots,
        "rms_norm_eps": encoder.norm.epsilon,
        "attention_bias": encoder.attention.bias,
        "mlp_bias": encoder.feedforward.bias,
        "attention_dropout": encoder.attention_dropout,
        "rope_parameters": {"rope_type": "default", "rope_theta": encoder.positions.base},
        "initializer_range": encoder.initial_deviation,
        "bos_token_id": special.get("cls"),
        "eos_token_id": special.get("sep"),
        "mask_token_id": special.get("mask"),
    }


_LAYER, _OURS = "model.layers.{i}", "encoder.layers.{i}"
_PARTS = tuple(f"{_LAYER}.self_attn.{n}_proj" for n in "qkv")

EUROBERT = Family(
    name="eurobert",
    model_types=("eurobert",),
    architecture="EuroBertForMaskedLM",
    read=_read,
    write=_write,
    keys=(
        ("model.embed_tokens.weight", "codec.word.weight"),
        *((tuple(f"{n}.{p}" for n in _PARTS), f"{_OURS}.attention.qkv.{p}") for p in ("weight", "bias")),
        *pair(f"{_LAYER}.self_attn.o_proj", f"{_OURS}.attention.out"),
        (f"{_LAYER}.input_layernorm.weight", f"{_OURS}.attention_norm.weight"),
        (f"{_LAYER}.post_attention_layernorm.weight", f"{_OURS}.feedforward_norm.weight"),
        *(
            ((f"{_LAYER}.mlp.gate_proj.{p}", f"{_LAYER}.mlp.up_proj.{p}"), f"{_OURS}.feedforward.up.{p}")
            for p in ("weight", "bias")
        ),
        *pair(f"{_LAYER}.mlp.down_proj", f"{_OURS}.feedforward.down"),
        ("model.norm.weight", "encoder.final_norm.weight"),
        ("lm_head.bias", "codec.bias"),
    ),
    aliases={"lm_head.weight": "codec.word.weight"},
    heads={
        "sequence": Head(steps=(("dense", "gelu"), ("classifier", None)), pooling_key=("classifier_pooling", "late")),
        "token": Head(steps=(("classifier", None),), pool="each"),
    },
)
