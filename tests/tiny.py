"""Tiny examples and models, made in milliseconds: text, and a second modality that core has never heard of."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import tiny_events
import tiny_table
from unmask.core.batch import Example, PackedBatch
from unmask.core.corruption import Hidden
from unmask.core.model import MaskedModel, WantedSlots
from unmask.core.prediction import Categorical, Gaussian
from unmask.core.token_codec import TokenCodec, TokenCodecConfig
from unmask.encoder.build import make_encoder
from unmask.encoder.config import MLP, EncoderConfig, Gated, Learned, Norm, Rotary, SinCos
from unmask.encoder.kinds import Local
from unmask.encoder.transformer import Encoder
from unmask.kernels.packed_attention import packed_layout
from unmask.modalities.events.network.codec import EventPrediction
from unmask.modalities.images.network.codec import PatchCodec, PatchCodecConfig

ARCHITECTURES = ("in_place", "visible_only")
RECIPES = ("bert", "modern", "by_example")
VOCABULARY, CLS, SEP, MASK_ID, NEVER = 40, 1, 2, 3, 5
SPECIAL_IDS = (0, CLS, SEP, MASK_ID, 4, NEVER)
"""NEVER is a special id that noise never draws, so a test can put it where only a leak would show it."""
WIDTH = 32


TEXT_CODEC = TokenCodecConfig(
    vocabulary=VOCABULARY,
    width=WIDTH,
    encoder_width=WIDTH,
    mask_id=MASK_ID,
    special_ids=SPECIAL_IDS,
    tied=False,
    deviation=0.3,
)


class Text:
    """Token ids between [CLS] and [SEP], words of one to three pieces."""

    name = "text"

    def example(self, identity: int, length: int, seed: int = 0) -> Example:
        rng = np.random.default_rng([seed, identity])
        inner = length - 2
        ids = np.concatenate([[CLS], rng.integers(len(SPECIAL_IDS), VOCABULARY, inner), [SEP]])
        special = np.zeros(length, bool)
        special[[0, -1]] = True
        words = np.repeat(np.arange(inner), rng.integers(1, 4, inner))[:inner]
        return Example(
            values={"token": ids}, identity=identity, special=special, unit=np.concatenate([[-1], words, [-1]])
        )

    def codec(self) -> nn.Module:
        return TokenCodec(TEXT_CODEC)

    def changed(self, values: dict[str, Tensor], flat: Tensor) -> dict[str, Tensor]:
        token = values["token"].clone()
        low = len(SPECIAL_IDS)
        token.view(-1)[flat] = (token.view(-1)[flat] - low + 7) % (VOCABULARY - low) + low
        return {"token": token}

    def repeated(self, length: int) -> Example:
        """Every slot holds the same value: nothing but its position tells one from another."""
        return Example(values={"token": np.full(length, 9)}, identity=1)


class VectorCodec(nn.Module):
    """Three numbers per slot, a learned mask embedding and a learned embedding for missing values."""

    context_channels = ()
    drops_missing = False

    def __init__(self, width: int = WIDTH, features: int = 3) -> None:
        super().__init__()
        self.read, self.write_back = nn.Linear(features, width), nn.Linear(width, 2 * features)
        self.mask, self.missing = nn.Parameter(torch.randn(width)), nn.Parameter(torch.randn(width))
        self.features = features

    def embed(self, values: dict[str, Tensor], masked: Tensor) -> Tensor:
        seen = values["seen"].bool()[..., None]
        x = torch.where(seen, self.read(values["vector"].nan_to_num() * seen), self.missing)
        return torch.where(masked[..., None], self.mask, x)

    def noise(self, values: dict[str, Tensor], flat: Tensor, bits: Tensor) -> dict[str, Tensor]:
        parts = torch.stack([(bits >> (20 * i)) & 0xFFFFF for i in range(self.features)], -1)
        return {"vector": parts.float() / 2**19 - 1, "seen": torch.ones_like(flat)}

    def targets(self, values: dict[str, Tensor], flat: Tensor) -> Tensor:
        return values["vector"].flatten(0, 1)[flat]

    def write(self, values: dict[str, Tensor], flat: Tensor, new: Tensor) -> dict[str, Tensor]:
        vector = values["vector"].clone()
        vector.view(-1, self.features)[flat] = new
        return values | {"vector": vector}

    def predict(self, states: Tensor, wanted: WantedSlots) -> Gaussian:
        location, log_variance = self.write_back(states).chunk(2, -1)
        return Gaussian(location, log_variance)


class Vector:
    """Numbers with gaps: a quarter of the slots is missing, and holds NaN."""

    name = "vector"
    raw = "vector"

    def example(self, identity: int, length: int, seed: int = 0) -> Example:
        rng = np.random.default_rng([seed, identity])
        vector = rng.normal(size=(length, 3)).astype(np.float32)
        seen = rng.random(length) > 0.25
        seen[:2] = True
        vector[~seen] = np.nan
        return Example(
            values={"vector": vector, "seen": seen.astype(np.int64)},
            identity=identity,
            observed=seen,
            unit=np.arange(length) // 2,
        )

    def codec(self) -> nn.Module:
        return VectorCodec()

    def changed(self, values: dict[str, Tensor], flat: Tensor) -> dict[str, Tensor]:
        """The value and the indicator that is derived from it."""
        vector, seen = values["vector"].clone(), values["seen"].clone()
        vector.view(-1, 3)[flat] += 5.0
        seen.view(-1)[flat] = 0
        return {"vector": vector, "seen": seen}

    def repeated(self, length: int) -> Example:
        values = {"vector": np.full((length, 3), 0.7, np.float32), "seen": np.ones(length, np.int64)}
        return Example(values=values, identity=1)


class Images:
    """Patches of four pixels behind a class token; the decoder predicts from its own width."""

    name = "images"
    raw = "patch"
    bridge = False

    def example(self, identity: int, length: int, seed: int = 0) -> Example:
        rng = np.random.default_rng([seed, identity])
        special = np.arange(length) == 0
        patch = rng.normal(size=(length, 4)).astype(np.float32)
        patch[0] = 0
        return Example(
            values={"patch": patch, "class": special.astype(np.int64)},
            identity=identity,
            special=special,
            unit=np.where(special, -1, (np.arange(length) - 1) // 2),
        )

    def codec(self, head_width: int = WIDTH) -> nn.Module:
        config = PatchCodecConfig(
            image=(2, 128),
            channels=1,
            patch=2,
            width=WIDTH,
            head_width=head_width,
            mean=(0.0,),
            deviation=(1.0,),
            statistics=0.1,
            mask_embedding=head_width == WIDTH,
        )
        return PatchCodec(config)

    def changed(self, values: dict[str, Tensor], flat: Tensor) -> dict[str, Tensor]:
        patch = values["patch"].clone()
        patch.view(-1, 4)[flat] += torch.tensor([5.0, -3.0, 1.0, 0.5])
        return values | {"patch": patch}

    def repeated(self, length: int) -> Example:
        values = {"patch": np.full((length, 4), 0.7, np.float32), "class": np.zeros(length, np.int64)}
        return Example(values=values, identity=1)


class ImagesWithHoles(Images):
    """The same with gaps: a quarter of the patches was not measured (NaN), and a few numbers of others."""

    name = "images-holes"

    def example(self, identity: int, length: int, seed: int = 0) -> Example:
        whole = super().example(identity, length, seed)
        rng = np.random.default_rng([seed, identity, 1])
        seen = rng.random(length) > 0.25
        seen[:3] = True
        patch = whole.values["patch"].copy()
        patch[~seen] = np.nan
        patch[2, 3] = np.nan
        return dataclasses.replace(whole, values=whole.values | {"patch": patch}, observed=seen)


MODALITIES: dict[str, Any] = {
    "text": Text(),
    "vector": Vector(),
    "images": Images(),
    "images-holes": ImagesWithHoles(),
    "table": tiny_table.Table(),
    "events": tiny_events.Events("events", known=False),
    "events-known": tiny_events.Events("events-known", known=True),
}


def encoder_config(recipe: str, *, width: int = WIDTH, layers: int = 3, sin_cos: bool = False) -> EncoderConfig:
    """The two published shapes, small, and one whose attention is worked out by example; weights large enough that
    every effect can be seen."""
    if recipe == "by_example":
        bert = encoder_config("bert", width=width, layers=layers)
        return dataclasses.replace(bert, positions=SinCos() if sin_cos else Rotary())
    if recipe == "bert":
        return EncoderConfig(
            width=width,
            layers=layers,
            heads=2,
            positions=SinCos() if sin_cos else Learned(slots=64),
            feedforward=MLP(inner=48),
            initial_deviation=0.2,
        )
    return EncoderConfig(
        width=width,
        layers=layers,
        heads=2,
        norm=Norm(placement="pre", epsilon=1e-5, bias=False, first_is_identity=True),
        positions=SinCos() if sin_cos else Rotary(),
        feedforward=Gated(inner=24),
        attention=Local(window=3, global_every=3, bias=False),
        initial_deviation=0.2,
    )


def make_model(modality: Any, architecture: str, recipe: str, seed: int = 0) -> MaskedModel:
    torch.manual_seed(seed)
    decoder = encoder_config(recipe, width=16, layers=2, sin_cos=True) if architecture == "visible_only" else None
    make, bridge = getattr(modality, "model", MaskedModel), getattr(modality, "bridge", True)
    codec = modality.codec() if bridge or decoder is None else modality.codec(head_width=decoder.width)
    model = make(codec, make_encoder(encoder_config(recipe)), decoder, bridge=bridge).eval()
    if recipe == "by_example":
        for encoder in (e for e in (model.encoder, getattr(model, "decoder", None)) if isinstance(e, Encoder)):
            encoder.side_by_side = packed_layout  # type: ignore[method-assign]
    return model


@dataclass
class Setup:
    """One combination of modality, architecture and recipe."""

    modality: Any
    architecture: str
    recipe: str
    seed: int

    def __post_init__(self) -> None:
        self.model = make_model(self.modality, self.architecture, self.recipe, self.seed)

    @property
    def in_place(self) -> bool:
        return self.architecture == "in_place"

    def examples(self, *lengths: int) -> list[Example]:
        return [self.modality.example(100 + i, n, self.seed) for i, n in enumerate(lengths)]


def numbers(prediction: Any) -> Tensor:
    """Everything a prediction says, one row per slot."""
    if isinstance(prediction, Categorical):
        return prediction.logits
    if isinstance(prediction, EventPrediction):
        return tiny_events.numbers(prediction)
    if hasattr(prediction, "pieces"):
        return tiny_table.numbers(prediction)
    return torch.cat([prediction.location, prediction.log_variance], -1)


def true_values(modality: Any, example: Example) -> Any:
    """The raw values of an example's slots, as targets should be: its first channel, or what the modality says."""
    named = getattr(modality, "true_values", None)
    return next(iter(example.values.values())) if named is None else named(example)


def with_action(hidden: Hidden, action: int) -> Hidden:
    return dataclasses.replace(hidden, action=torch.full_like(hidden.action, action))


def places(batch: PackedBatch, hidden: Hidden) -> list[tuple[int, int]]:
    """(example identity, position) of every hidden slot, in order."""
    identity, position = batch.identity.flatten()[hidden.flat], batch.position.flatten()[hidden.flat]
    return list(zip(identity.tolist(), position.tolist(), strict=True))


def ratio_corruption(ratio: float = 0.4, **shares: float) -> Any:
    from unmask.core.corruption import Corruption, Replacement, Uniform

    return Corruption(select=Uniform(ratio=ratio), replace=Replacement(**shares) if shares else Replacement())
