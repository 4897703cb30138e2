"""NeoBERT (Le Breton et al. 2025): pre-norm, rotary, gated, 4 096 tokens; its rows stand in another order than ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from unmask.core.token_codec import TokenCodecConfig
from unmask.encoder.config import EncoderConfig, Entrance, Gated, Norm, Rotary
from unmask.encoder.kinds import Full
from unmask.errors import UserError
from unmask.families.base import Family, pair, read_sizes, written_sizes


def inner_width(published: int) -> int:
    """Width within the gated network: two thirds of the published number, rounded up to a multiple of 8.

    >>> inner_width(3072)
    2048
    """
    return 8 * -(-int(2 * published / 3) // 8)


def _read(config: Mapping[str, Any]) -> tuple[EncoderConfig, dict[str, Any]]:
    wanted = {"rope": True, "rms_norm": True, "ngpt": False, "hidden_act": "SwiGLU"}
    for key, value in wanted.items():
        found = config.get(key, value)
        if str(found).lower() != str(value).lower():
            raise UserError(f"{key} {found!r} in config.json is not supported", hint=f"Known: {value}.")
    norm = Norm(placement="pre", kind="rms", epsilon=float(config.get("norm_eps", 1e-6)), bias=False)
    encoder = EncoderConfig(
        **read_sizes(config),
        norm=norm,
        positions=Rotary(base=10_000.0, slots=config.get("max_length", 4096)),
        entrance=Entrance(norm=False),
        feedforward=Gated(inner=inner_width(config["intermediate_size"]), activation="silu"),
        attention=Full(bias=False),
        dropout=float(config.get("dropout_prob", config.get("dropout", 0.0))),
        initial_deviation=float(config.get("decoder_init_range", 0.02)),
    )
    return encoder, {
        "width": encoder.width,
        "encoder_width": encoder.width,
        "head": False,
        "tied": bool(config.get("tie_word_embeddings", False)),
    }


def _write(encoder: EncoderConfig, codec: TokenCodecConfig, special: Mapping[str, int | None]) -> dict[str, Any]:
    assert isinstance(encoder.positions, Rotary)
    return {
        **written_sizes(encoder),
        "intermediate_size": encoder.feedforward.inner * 3 // 2,
        "hidden_act": "SwiGLU",
        "rms_norm": True,
        "rope": True,
        "norm_eps": encoder.norm.epsilon,
        "max_length": encoder.positions.slots,
        "decoder_init_range": encoder.initial_deviation,
    }


def _to_ours(weight: Tensor, config: EncoderConfig) -> Tensor:
    """Rows [head][q|k|v][pair][2] -> [q|k|v][head][2][pair]: rotary pairs stand side by side there, in halves here."""
    heads, depth = config.heads, config.width // config.heads
    q, k, v = weight.view(heads, 3, depth, -1).unbind(1)
    q, k = (t.reshape(heads, depth // 2, 2, -1).transpose(1, 2).reshape(heads, depth, -1) for t in (q, k))
    return torch.stack([q, k, v]).reshape(weight.shape)


def _to_theirs(weight: Tensor, config: EncoderConfig) -> Tensor:
    heads, depth = config.heads, config.width // config.heads
    q, k, v = weight.view(3, heads, depth, -1).unbind(0)
    q, k = (t.reshape(heads, 2, depth // 2, -1).transpose(1, 2).reshape(heads, depth, -1) for t in (q, k))
    return torch.stack([q, k, v], 1).reshape(weight.shape)


_LAYER, _OURS = "model.transformer_encoder.{i}", "encoder.layers.{i}"

NEOBERT = Family(
    name="neobert",
    model_types=("neobert",),
    architecture="NeoBERTLMHead",
    read=_read,
    write=_write,
    keys=(
        ("model.encoder.weight", "codec.word.weight"),
        (f"{_LAYER}.qkv.weight", f"{_OURS}.attention.qkv.weight"),
        (f"{_LAYER}.wo.weight", f"{_OURS}.attention.out.weight"),
        (f"{_LAYER}.attention_norm.weight", f"{_OURS}.attention_norm.weight"),
        (f"{_LAYER}.ffn_norm.weight", f"{_OURS}.feedforward_norm.weight"),
        (f"{_LAYER}.ffn.w12.weight", f"{_OURS}.feedforward.up.weight"),
        (f"{_LAYER}.ffn.w3.weight", f"{_OURS}.feedforward.down.weight"),
        *pair("model.layer_norm", "encoder.final_norm", bias=False),
        ("decoder.bias", "codec.bias"),
    ),
    aliases={"decoder.weight": "codec.word.weight"},
    ignored=(r".*position_ids$", r".*freqs_cis$"),
    turned={".attention.qkv.weight": (_to_ours, _to_theirs)},
)
