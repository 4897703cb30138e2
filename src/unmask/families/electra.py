"""ELECTRA (Clark et al. 2020): BERT's body, embeddings narrower than the layers; the generator has a GELU head, the
discriminator a head that tells replaced tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unmask.core.token_codec import TokenCodecConfig
from unmask.encoder.config import EncoderConfig
from unmask.families.base import Family, Head, bert_body, heads, masked_head, pair
from unmask.families.bert import head, read_body, write_body


def _read(config: Mapping[str, Any]) -> tuple[EncoderConfig, dict[str, Any]]:
    encoder = read_body({"embedding_size": 128, **config})
    return encoder, head(config, encoder) | {"head_activation": "gelu"}


def _write(encoder: EncoderConfig, codec: TokenCodecConfig, special: Mapping[str, int | None]) -> dict[str, Any]:
    return {"embedding_size": encoder.input_width} | write_body(encoder, codec, special)


ELECTRA = Family(
    name="electra",
    model_types=("electra",),
    architecture="ElectraForMaskedLM",
    read=_read,
    write=_write,
    keys=(
        *bert_body("electra"),
        *pair("electra.embeddings_project", "encoder.stem.project"),
        *masked_head("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head.bias"),
    ),
    aliases={"generator_lm_head.weight": "codec.word.weight"},
    heads=heads(("classifier.dense", "gelu"), ("classifier.out_proj", None))
    | {
        "detect": Head(
            steps=(("discriminator_predictions.dense", "hidden"), ("discriminator_predictions.dense_prediction", None)),
            pool="each",
        )
    },
)
