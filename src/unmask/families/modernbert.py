"""ModernBERT (Warner et al. 2024): pre-norm, rotary, gated, no biases, local attention with every third
layer global."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unmask.core.token_codec import TokenCodecConfig
from unmask.encoder.config import EncoderConfig, Gated, Norm, Rotary
from unmask.encoder.kinds import Local
from unmask.errors import UserError
from unmask.families.base import Family, Head, activation_name, pair, read_sizes, written_sizes


def _bases(config: Mapping[str, Any]) -> tuple[float, float]:
    """Rotary bases, in the spelling of the release or of transformers 5."""
    rope = config.get("rope_parameters") or {}
    kinds = [rope.get(name) or {} for name in ("full_attention", "sliding_attention")]
    for kind in kinds:
        if kind.get("rope_type", "default") != "default":
            raise UserError(f"rope_type {kind['rope_type']!r} in config.json is not supported", hint="Known: default.")
    full = kinds[0].get("rope_theta", config.get("global_rope_theta", 160_000.0))
    local = kinds[1].get("rope_theta", config.get("local_rope_theta", 10_000.0))
    return float(full), float(local)


def _every(config: Mapping[str, Any]) -> int:
    """Layer i is global when this divides i."""
    types = config.get("layer_types")
    if not types:
        return int(config.get("global_attn_every_n_layers", 3))
    whole = [i for i, t in enumerate(types) if t == "full_attention"]
    every = whole[1] if len(whole) > 1 else len(types)
    if whole != list(range(0, len(types), every)):
        raise UserError(f"layer_types {types} in config.json is not supported", hint="Every n-th layer must be full.")
    return every


def _read(config: Mapping[str, Any]) -> tuple[EncoderConfig, dict[str, Any]]:
    full, local = _bases(config)
    bias = bool(config.get("norm_bias", False))
    norm = Norm(placement="pre", epsilon=float(config.get("norm_eps", 1e-5)), bias=bias, first_is_identity=True)
    act = activation_name(config.get("hidden_activation", "gelu"))
    encoder = EncoderConfig(
        **read_sizes(config),
        norm=norm,
        positions=Rotary(base=full, local_base=local, slots=config.get("max_position_embeddings", 8192)),
        feedforward=Gated(
            inner=config["intermediate_size"],
            activation=act,  # type: ignore[arg-type]
            bias=bool(config.get("mlp_bias", False)),
        ),
        attention=Local(
            window=config.get("local_attention", 128) // 2,
            global_every=_every(config),
            bias=bool(config.get("attention_bias", False)),
        ),
        dropout=float(config.get("mlp_dropout", 0.0)),
        embedding_dropout=float(config.get("embedding_dropout", 0.0)),
        attention_dropout=float(config.get("attention_dropout", 0.0)),
        dropout_inside=True,
        initial_deviation=float(config.get("initializer_range", 0.02)),
    )
    return encoder, {
        "width": encoder.width,
        "encoder_width": encoder.width,
        "head_activation": activation_name(config.get("classifier_activation", "gelu")),
        "head_norm": Norm(epsilon=norm.epsilon, bias=bias),
        "head_bias": bool(config.get("classifier_bias", False)),
        "output_bias": bool(config.get("decoder_bias", True)),
        "tied": bool(config.get("tie_word_embeddings", True)),
    }


_NAMES = {"gelu_tanh": "gelu_pytorch_tanh"}


def _write(encoder: EncoderConfig, codec: TokenCodecConfig, special: Mapping[str, int | None]) -> dict[str, Any]:
    assert isinstance(encoder.positions, Rotary)
    local = encoder.attention if isinstance(encoder.attention, Local) else None
    assert local is None or isinstance(local.window, int)
    types = [
        "full_attention" if encoder.attention.layer_window(i) is None else "sliding_attention"
        for i in range(encoder.layers)
    ]
    return {
        **written_sizes(encoder),
        "hidden_activation": _NAMES.get(encoder.feedforward.activation, encoder.feedforward.activation),
        "classifier_activation": _NAMES.get(codec.head_activation, codec.head_activation),
        "classifier_bias": codec.head_bias,
        "decoder_bias": codec.output_bias,
        "max_position_embeddings": encoder.positions.slots,
        "norm_eps": encoder.norm.epsilon,
        "norm_bias": encoder.norm.bias,
        "attention_bias": encoder.attention.bias,
        "mlp_bias": encoder.feedforward.bias,
        "global_attn_every_n_layers": Local().global_every if local is None else local.global_every,
        "local_attention": 2 * encoder.positions.slots if local is None else 2 * local.window,
        "layer_types": types,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": encoder.positions.base},
            "sliding_attention": {"rope_type": "default", "rope_theta": encoder.positions.local_base},
        },
        "mlp_dropout": encoder.dropout,
        "embedding_dropout": encoder.dropout if encoder.embedding_dropout is None else encoder.embedding_dropout,
        "attention_dropout": encoder.attention_dropout,
        "initializer_range": encoder.initial_deviation,
        "cls_token_id": special.get("cls"),
        "sep_token_id": special.get("sep"),
        "bos_token_id": special.get("cls"),
        "eos_token_id": special.get("sep"),
    }


_LAYER = "model.layers.{i}"

MODERNBERT = Family(
    name="modernbert",
    model_types=("modernbert",),
    architecture="ModernBertForMaskedLM",
    read=_read,
    write=_write,
    keys=(
        ("model.embeddings.tok_embeddings.weight", "codec.word.weight"),
        *pair("model.embeddings.norm", "encoder.stem.norm"),
        *pair(f"{_LAYER}.attn_norm", "encoder.layers.{i}.attention_norm"),
        *pair(f"{_LAYER}.attn.Wqkv", "encoder.layers.{i}.attention.qkv"),
        *pair(f"{_LAYER}.attn.Wo", "encoder.layers.{i}.attention.out"),
        *pair(f"{_LAYER}.mlp_norm", "encoder.layers.{i}.feedforward_norm"),
        *pair(f"{_LAYER}.mlp.Wi", "encoder.layers.{i}.feedforward.up"),
        *pair(f"{_LAYER}.mlp.Wo", "encoder.layers.{i}.feedforward.down"),
        *pair("model.final_norm", "encoder.final_norm"),
        *pair("head.dense", "codec.transform"),
        *pair("head.norm", "codec.norm"),
        ("decoder.bias", "codec.bias"),
    ),
    aliases={"decoder.weight": "codec.word.weight"},
    heads={
        "sequence": Head(steps=(("=head", None), ("classifier", None)), pooling_key=("classifier_pooling", "cls")),
        "token": Head(steps=(("=head", None), ("classifier", None)), pool="each"),
        "span": Head(steps=(("=head", None), ("classifier", None)), pool="each"),
    },
)
