"""New masked language models from settings, with random weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from unmask.core.co_occurrence import Factors
from unmask.encoder.config import MLP, EncoderConfig, Rotary, SinCos
from unmask.encoder.neighbours import LAYERS, attend_to_neighbours, pass_on
from unmask.modalities.text.network.folder import new_text_model
from unmask.modalities.text.recipes import TextSettings
from unmask.modalities.text.tokens.tokenizer import Tokenizer


def build_model(settings: TextSettings, tokenizer: Tokenizer) -> tuple[Any, Any]:
    """A new model with random weights, made from the seed alone."""
    torch.manual_seed(settings.train.seed)
    if settings.objective == "detection":
        from unmask.modalities.text.network.detection import new_detection

        return new_detection(settings, tokenizer)
    decoder = None
    if settings.architecture == "visible_only":
        # Narrower and shallower than the encoder, as in MAE (He et al. 2022, table 1).
        width = max(64, settings.width // 4 * 2)  # even, for sines and cosines
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
        heads=settings.attention_heads,
        inner=settings.inner,
        slots=settings.slots,
        tokenizer=tokenizer,
        dropout=settings.dropout,
        decoder=decoder,
    )
    if looks_at_neighbours(settings, model):
        attend_to_neighbours(model.codec.word.weight, [layer.attention for layer in model.encoder.layers[:LAYERS]])
    return model, family


def looks_at_neighbours(settings: TextSettings, model: Any) -> bool:
    """Whether the first heads of a new model look at the slots beside them."""
    return settings.initial_attention == "neighbours" and isinstance(model.encoder.config.positions, Rotary)


def start_from_counts(model: Any, settings: TextSettings, frequencies: np.ndarray, company: Factors | None) -> None:
    """Let a new model begin as a rule that counting gives, before it learns more than that.

    Args:
        model: of `build_model`.
        frequencies: (vocabulary,) count of each token.
        company: which tokens stand near which; None leaves the embeddings random.
    """
    model.codec.start_from(frequencies, company)
    if company is not None and looks_at_neighbours(settings, model):
        pass_on(torch.from_numpy(company.axes), [layer.attention for layer in model.encoder.layers[:LAYERS]])
