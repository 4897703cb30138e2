"""Longformer (Beltagy et al. 2020): RoBERTa with a window in every layer, and slots that see everything."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from unmask.core.token_codec import TokenCodecConfig
from unmask.encoder.config import EncoderConfig
from unmask.encoder.kinds import LocalGlobal
from unmask.errors import UserError
from unmask.families.base import Family, bert_body, heads, stacked
from unmask.families.bert import head, read_body, write_body
from unmask.families.roberta import ALIASES, CLASSIFIER, HEAD


def _read(config: Mapping[str, Any]) -> tuple[EncoderConfig, dict[str, Any]]:
    pad = config.get("pad_token_id")
    encoder = read_body(config, offset=(1 if pad is None else int(pad)) + 1)
    widths = config.get("attention_window", 512)
    widths = [widths] * encoder.layers if isinstance(widths, int) else list(widths)
    if len(widths) != encoder.layers or any(w <= 0 or w % 2 for w in widths):
        raise UserError(
            f"attention_window {widths} in config.json", hint=f"Expected {encoder.layers} even numbers above 0."
        )
    attention = LocalGlobal(
        window=tuple(w // 2 for w in widths),
        # As in the published classifier: its first slot sees everything. A masked-LM head is used without.
        first_sees_all=any("ForSequenceClassification" in a for a in config.get("architectures") or ()),
    )
    encoder = dataclasses.replace(encoder, attention=attention)
    return encoder, head(config, encoder) | {"head_activation": "gelu"}


def _write(encoder: EncoderConfig, codec: TokenCodecConfig, special: Mapping[str, int | None]) -> dict[str, Any]:
    about = {"attention_window": [2 * (encoder.attention.layer_window(i) or 0) for i in range(encoder.layers)]}
    offset = getattr(encoder.positions, "offset", 2)
    return about | write_body(encoder, codec, special) | {"pad_token_id": offset - 1}


_SELF = "longformer.encoder.layer.{i}.attention.self"

LONGFORMER = Family(
    name="longformer",
    model_types=("longformer",),
    architecture="LongformerForMaskedLM",
    read=_read,
    write=_write,
    keys=(
        *bert_body("longformer"),
        *stacked(
            (f"{_SELF}.query_global", f"{_SELF}.key_global", f"{_SELF}.value_global"),
            "encoder.layers.{i}.attention.qkv_global",
        ),
        *HEAD,
    ),
    aliases=ALIASES,
    heads=heads(*CLASSIFIER, span=False),
)
