"""ELECTRA (Clark et al. 2020): BERT's body, embeddings narrower than the layers; the generator has a GELU head, the
discriminator a head that tells replaced tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unmask.core.token_codec import TokenCodecConfig
from unmask.encoder.config import EncoderConfig
from unmask.families.base import Family, Head, bert_body, pair
from unmask.families.bert import head, read_body, write_body


def _read(config: Mapping[str, Any]) -> tuple[EncoderConfig, dict[str, Any]]:
    encoder = read_body({"embedding_size": 128, **config})
    return encoder, head(config, encoder) | {"head_activation": "gelu"}


def _write(encoder: EncoderConfig, codec: TokenCodecConfig, special: Mapping[str, int | None]) -> dict[str, Any]:
    about = {"model_type": "electra", "architectures": ["ElectraForMaskedLM"], "embedding_size": encoder.input_width}
    return about | write_body(encoder, codec, special)


ELECTRA = Family(
    name="electra",
    model_types=("electra",),
    architecture="ElectraForMaskedLM",
    read=_read,
    write=_write,
    keys=(
        *bert_body("electra"),
        *pair("electra.embeddings_project", "encoder.stem.project"),
        *pair("generator_predictions.dense", "codec.transform"),
        *pair("generator_predictions.LayerNorm", "codec.norm"),
        ("generator_lm_head.bias", "codec.bias"),
    ),
    aliases={"generator_lm_head.weight": "codec.word.weight"},
    heads={
        "sequence": Head(steps=(("classifier.dense", "gelu"), ("classifier.out_proj", None))),
        "token": Head(steps=(("classifier", None),), pool="each"),
        "span": Head(steps=(("qa_outputs", None),), pool="each"),
        "detect": Head(
            steps=(("discriminator_predictions.dense", "hidden"), ("discriminator_predictions.dense_prediction", None)),
            pool="each",
        ),
    },
)
