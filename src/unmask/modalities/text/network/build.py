"""New masked language models from settings, with random weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.core.co_occurrence import Factors
from unmask.core.detection import ReplacedSlotDetection
from unmask.core.model import MaskedModel
from unmask.core.token_codec import TokenCodec
from unmask.encoder.build import make_encoder
from unmask.encoder.config import MLP, EncoderConfig, Learned, Norm, Rotary, SinCos
from unmask.encoder.local_global import LAYERS, attend_to_neighbours, pass_on
from unmask.families import Family, by_name
from unmask.modalities.text.network.folder import assemble, new_text_model, save_folder
from unmask.modalities.text.recipes import TextSettings
from unmask.modalities.text.tokens.tokenizer import Tokenizer


def build_model(settings: TextSettings, tokenizer: Tokenizer) -> tuple[Any, Any]:
    """A new model with random weights, made from the seed alone."""
    torch.manual_seed(settings.train.seed)
    if settings.objective == "detection":
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


def start_from_counts(model: Any, settings: TextSettings, frequencies: np.ndarray, factored: Factors | None) -> None:
    """Let a new model begin as a rule that counting gives, before it learns more than that.

    Args:
        model: of `build_model`.
        frequencies: (vocabulary,) count of each token.
        factored: which tokens stand near which; None leaves the embeddings random.
    """
    model.codec.start_from(frequencies, factored)
    if factored is not None and looks_at_neighbours(settings, model):
        pass_on(torch.from_numpy(factored.axes), [layer.attention for layer in model.encoder.layers[:LAYERS]])


GENERATOR = "generator"
"""Folder of the generator, in the discriminator's."""


def new_detection(settings: TextSettings, tokenizer: Tokenizer) -> tuple[ReplacedSlotDetection[TokenCodec], Family]:
    """Generator and discriminator with random weights, in ELECTRA's shape; the tables of tokens, token types and
    positions are one (section 3.2).

    The generator has the discriminator's layers and `settings.generator` of its width and feed-forward, to the nearest
    even number, in heads about as wide as the discriminator's.
    """
    width, depth = settings.width, settings.width // settings.attention_heads
    norm, inner = Norm(placement="post", epsilon=1e-12), settings.inner or 4 * settings.width
    shape: dict[str, Any] = {
        "layers": settings.layers,
        "norm": norm,
        "positions": Learned(slots=max(settings.slots, 16)),
        "dropout": settings.dropout,
    }
    encoder = EncoderConfig(width=width, heads=settings.attention_heads, feedforward=MLP(inner=inner), **shape)
    narrow = max(2, 2 * round(width * settings.generator / 2))
    heads = next(n for n in range(max(1, round(narrow / depth)), 0, -1) if narrow % n == 0)
    small = EncoderConfig(
        width=narrow,
        heads=heads,
        feedforward=MLP(inner=max(1, round(inner * narrow / width))),
        embedding_width=width,
        **shape,
    )
    codec = {"types": 2, "head_norm": norm, "width": width, "encoder_width": small.width}
    generator = assemble(tokenizer.vocab_size, tokenizer, small, codec, None)
    model = ReplacedSlotDetection(generator, make_encoder(encoder))
    model.encoder.stem.positions = generator.encoder.stem.positions
    return model, by_name("electra")


def save_detection(
    out: Path,
    model: ReplacedSlotDetection[TokenCodec],
    tokenizer: Tokenizer,
    family: Family,
    settings: Mapping[str, Any],
) -> None:
    """Write the discriminator into `out` and the generator into its subfolder; transformers loads both."""
    generator = model.generator
    save_folder(out / GENERATOR, model=generator, tokenizer=tokenizer, family=family, settings=settings)
    bare = dataclasses.replace(
        generator.codec.config, head=False, output_bias=False, encoder_width=generator.codec.config.width
    )
    codec = TokenCodec(bare)
    codec.word, codec.token_type = generator.codec.word, generator.codec.token_type
    head: dict[str, torch.Tensor] = {}
    for name, module in (("dense", model.transform), ("dense_prediction", model.verdict)):
        head |= {f"discriminator_predictions.{name}.{k}": v for k, v in module.state_dict().items()}
    save_folder(
        out,
        model=MaskedModel(codec, model.encoder),
        tokenizer=tokenizer,
        family=family,
        passengers=head,
        hf_config={"architectures": ["ElectraForPreTraining"], "mask_token_id": tokenizer.mask_id},
        settings=settings,
    )
