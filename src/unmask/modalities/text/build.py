"""New masked language models from settings, with random weights."""

from __future__ import annotations

from typing import Any

import torch

from unmask.encoder.config import MLP, EncoderConfig, Rotary, SinCos
from unmask.encoder.neighbours import LAYERS, look_at_neighbours
from unmask.modalities.text.folder import new_text_model
from unmask.modalities.text.recipes import TextSettings
from unmask.modalities.text.tokenizer import Tokenizer


def build_model(settings: TextSettings, tokenizer: Tokenizer) -> tuple[Any, Any]:
    """A new model with random weights, made from the seed alone."""
    torch.manual_seed(settings.train.seed)
    if settings.objective == "detection":
        from unmask.modalities.text.detection import new_detection

        return new_detection(settings, tokenizer)
    decoder = None
    if settings.architecture == "visible_only":
        # Narrower and shallower than the encoder, as in MAE (He et al. 2022, table 1).
        width = max(64, settings.width // 2)
        heads = next(n for n in range(width // 32, 0, -1) if width % n == 0)
        decoder = EncoderConfig(
            width=width,
            layers=max(1, settings.layers // 4),
            heads=heads,
            positions=SinCos(),
            feedforward=MLP(inner=4 * width),
        )
    model, family = new_text_model(
        settings.recipe,
        vocabulary=tokenizer.vocab_size,
        width=settings.width,
        layers=settings.layers,
        heads=settings.heads,
        inner=settings.inner,
        slots=settings.slots,
        tokenizer=tokenizer,
        dropout=settings.dropout,
        decoder=decoder,
    )
    if settings.initial_attention == "neighbours" and isinstance(model.encoder.config.positions, Rotary):
        look_at_neighbours(model.codec.word.weight, [layer.attention for layer in model.encoder.layers[:LAYERS]])
    return model, family
