"""RoBERTa (Liu et al. 2019), and XLM-RoBERTa and CamemBERT, which differ in tokenizer and size only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unmask.core.token_codec import TokenCodecConfig
from unmask.encoder.config import EncoderConfig, Learned
from unmask.families.base import Family, bert_body, heads, masked_head
from unmask.families.bert import head, read_body, write_body


def _read(config: Mapping[str, Any]) -> tuple[EncoderConfig, dict[str, Any]]:
    # Positions start behind the padding index.
    pad = config.get("pad_token_id")
    encoder = read_body(config, offset=(1 if pad is None else int(pad)) + 1)
    # The head's activation is GELU whatever the body's is.
    return encoder, head(config, encoder) | {"types": int(config.get("type_vocab_size", 1)), "head_activation": "gelu"}


def _write(encoder: EncoderConfig, codec: TokenCodecConfig, special: Mapping[str, int | None]) -> dict[str, Any]:
    assert isinstance(encoder.positions, Learned)
    # Positions start behind this index, whatever the tokenizer pads with.
    return write_body(encoder, codec, special) | {"pad_token_id": encoder.positions.offset - 1}


HEAD = masked_head("lm_head.dense", "lm_head.layer_norm", "lm_head.bias")
ALIASES = {"lm_head.decoder.bias": "codec.bias", "lm_head.decoder.weight": "codec.word.weight"}
CLASSIFIER: tuple[tuple[str, str | None], ...] = (("classifier.dense", "tanh"), ("classifier.out_proj", None))


ROBERTA = Family(
    name="roberta",
    model_types=("roberta", "xlm-roberta", "camembert"),
    architecture="RobertaForMaskedLM",
    read=_read,
    write=_write,
    keys=(*bert_body("roberta"), *HEAD),
    aliases=ALIASES,
    heads=heads(*CLASSIFIER),
)
