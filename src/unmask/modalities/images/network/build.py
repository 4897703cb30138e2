"""Masked image models from settings: the encoder, the decoder, their position tables and initial weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unmask.core.model import MaskedModel
from unmask.encoder.build import make_encoder
from unmask.encoder.config import MLP, Activation, EncoderConfig, Entrance, Learned, Norm
from unmask.encoder.transformer import sin_cos
from unmask.errors import UserError
from unmask.modalities.images.network.codec import PatchCodec, PatchCodecConfig
from unmask.modalities.images.network.latents import EncoderOnly, LatentLearner
from unmask.modalities.images.recipes import ImageSettings, sides


def grid_table(grid: tuple[int, int], width: int, class_token: bool) -> Float[Tensor, "slots width"]:
    """Fixed 2-D positions of a grid of patches, zeros for the class token.

    The column's coordinate stands in the first half, as in the official MAE's tables; each half is [sin | cos].
    """
    position = torch.arange(grid[0] * grid[1])
    row, column = position // grid[1], position % grid[1]
    table = torch.cat([sin_cos(column, width // 2), sin_cos(row, width // 2)], -1)
    return torch.cat([torch.zeros(int(class_token), width), table])


def default_patch(image: tuple[int, int], whole: bool = False) -> int:
    """The largest of 16, 8, 4, 2 that divides both sides and leaves at least 49 patches, else the smallest that
    divides.

    Args:
        whole: pictures are compared as wholes: 16 patches are enough, and a side of 7 is among those tried.

    >>> default_patch((224, 224)), default_patch((32, 32)), default_patch((28, 28)), default_patch((8, 8))
    (16, 4, 4, 2)
    >>> default_patch((224, 224), whole=True), default_patch((32, 32), whole=True), default_patch((28, 28), whole=True)
    (16, 8, 7)
    """
    fits = [p for p in ((16, 8, 7, 4, 2) if whole else (16, 8, 4, 2)) if image[0] % p == 0 and image[1] % p == 0]
    enough = [p for p in fits if (image[0] // p) * (image[1] // p) >= (16 if whole else 49)]
    if enough:
        return enough[0]
    return fits[-1] if fits else 1


USUAL_SIDE, MOST_PATCHES = 128, 400
"""Without an `image_size` the shorter side is at most so long, and a picture has no more than about so many patches:
a step of the default run then takes a second or two on two cores."""


def usual_size(sizes: Sequence[tuple[int, int]], patch: int | None = None, whole: bool = True) -> tuple[int, int]:
    """(height, width) that pictures are brought to where nobody says it: as they are where all are small and have one
    size that patches divide; else with a shorter side of `USUAL_SIDE` at most, and sides that they divide. Pictures of
    several sizes become squares. `sizes`: those that there are, in order; `whole`: see `default_patch`.

    >>> usual_size([(48, 48)]), usual_size([(28, 28)]), usual_size([(101, 101)]), usual_size([(480, 640)])
    ((48, 48), (28, 28), (96, 96), (128, 176))
    >>> usual_size([(30, 40), (300, 400), (480, 640)])
    (128, 128)
    """
    height, width = sizes[len(sizes) // 2]
    if len(sizes) > 1:
        height = width = min(height, width)
    scale = min(1, USUAL_SIDE / min(height, width))
    step = patch or default_patch((height, width), whole)
    if scale == 1 and len(sizes) == 1 and (patch or height * width <= MOST_PATCHES * step**2):
        return height, width
    short = scale * min(height, width)
    step = patch or (16 if short >= 64 else 8 if short >= 32 else 4)
    high, wide = (max(1, round(scale * side / step)) * step for side in (height, width))
    return high, wide


def vit_config(
    width: int,
    layers: int,
    heads: int,
    slots: int,
    *,
    epsilon: float = 1e-6,
    inner: int | None = None,
    activation: Activation = "gelu",
) -> EncoderConfig:
    """A pre-norm vision transformer with one entry of the position table per slot."""
    return EncoderConfig(
        width=width,
        layers=layers,
        heads=heads,
        norm=Norm(placement="pre", epsilon=epsilon),
        positions=Learned(slots=slots),
        entrance=Entrance(norm=False),
        feedforward=MLP(inner=inner or 4 * width, activation=activation),
    )


def codec_config(
    settings: ImageSettings,
    image: tuple[int, int],
    channels: int,
    mean: tuple[float, ...],
    deviation: tuple[float, ...],
) -> PatchCodecConfig:
    """The codec the settings ask for, on pictures of this size."""
    visible_only = settings.architecture == "visible_only"
    return PatchCodecConfig(
        image=image,
        channels=channels,
        patch=settings.patch or default_patch(image, settings.compares),
        width=settings.width,
        head_width=settings.decoder_width if visible_only else settings.width,
        mean=mean,
        deviation=deviation,
        normalised=settings.norm_targets,
        loss=settings.loss,
        statistics=settings.statistics,
        class_token=settings.class_token,
        mask_embedding=not visible_only,
        pixels=settings.predicts_pixels,
        gradients=settings.gradients,
    )


def new_model(settings: ImageSettings, codec: PatchCodecConfig) -> MaskedModel[PatchCodec]:
    """A model with initial weights, made from the seed alone."""
    if codec.patches < 2:
        raise UserError(f"patch={codec.patch} leaves one patch a picture", hint="Use a smaller patch.")
    encoder = vit_config(settings.width, settings.layers, settings.heads, codec.slots)
    decoder = None
    if settings.architecture == "visible_only" and (settings.predicts_pixels or settings.target == "latents"):
        decoder = vit_config(settings.decoder_width, settings.decoder_layers, settings.decoder_heads, codec.slots)
    learned, seed = settings.positions == "learned", settings.train.seed
    return _fresh(codec, encoder, decoder, learned, seed, settings if settings.target != "pixels" else None)


def untrained(model: MaskedModel[PatchCodec], seed: int) -> MaskedModel[PatchCodec]:
    """A model of the same shape with initial weights, made from the seed alone."""
    decoder = model.decoder.config if model.visible_only else None
    learned = position_tables(model)[0].requires_grad
    return _fresh(model.codec.config, model.encoder.config, decoder, learned, seed)


def _fresh(
    codec: PatchCodecConfig,
    encoder: EncoderConfig,
    decoder: EncoderConfig | None,
    learned: bool,
    seed: int,
    learns: ImageSettings | None = None,
) -> MaskedModel[PatchCodec]:
    torch.manual_seed(seed)
    model = assemble(codec, encoder, decoder, learned=learned, learns=learns)
    initialise(model)
    model.codec.start_statistics()
    set_positions(model)
    return model


def assemble(
    codec: PatchCodecConfig,
    encoder: EncoderConfig,
    decoder: EncoderConfig | None,
    *,
    learned: bool,
    learns: ImageSettings | None = None,
) -> MaskedModel[PatchCodec]:
    """Tie codec, encoder and decoder together; position tables that are not learned get no gradient. `learns`: the
    settings of a model that is to learn from representations."""
    model: MaskedModel[PatchCodec]
    if learns is not None:
        model = LatentLearner(PatchCodec(codec), make_encoder(encoder), decoder, learns)
    elif codec.pixels:
        model = MaskedModel(PatchCodec(codec), make_encoder(encoder), decoder, bridge=False)
    else:
        model = EncoderOnly(PatchCodec(codec), make_encoder(encoder))
    for table in position_tables(model):
        table.requires_grad_(learned)
    return model


def without_learning(model: MaskedModel[PatchCodec]) -> MaskedModel[PatchCodec]:
    """What is kept of a model that learnt from representations: projector and predictor are thrown away."""
    if not isinstance(model, LatentLearner):
        return model
    decoder = model.decoder.config if model.visible_only and model.codec.config.pixels else None
    learned = position_tables(model)[0].requires_grad
    kept = assemble(model.codec.config, model.encoder.config, decoder, learned=learned)
    state = model.state_dict()
    kept.load_state_dict({name: state[name] for name in kept.state_dict()})
    return kept.to(next(model.parameters()).device).train(model.training)


def position_tables(model: MaskedModel[PatchCodec]) -> list[Any]:
    """The tables of the encoder and, where there is one, of the decoder."""
    parts = [model.encoder, *([model.decoder] if model.visible_only else [])]
    return [part.stem.positions.weight for part in parts]


@torch.no_grad()
def set_positions(model: MaskedModel[PatchCodec]) -> None:
    """Fill the position tables with 2-D sines and cosines where they are fixed (learned ones start small
    and random)."""
    config = model.codec.config
    for table in position_tables(model):
        if table.requires_grad:
            nn.init.trunc_normal_(table, std=0.02)
        else:
            table.copy_(grid_table(config.grid, table.shape[1], config.class_token))


@torch.no_grad()
def initialise(model: nn.Module) -> None:
    """Xavier-uniform linear layers, zero biases (He et al. 2022, appendix A.1)."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


@torch.no_grad()
def resize_positions(table: Float[Tensor, "slots width"], old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """A position table of another grid: the grid part resampled in two dimensions (bicubic), leading slots kept."""
    first = len(table) - old[0] * old[1]
    if old == new:
        return table.clone()
    grid = table[first:].view(1, *old, -1).permute(0, 3, 1, 2)
    grid = nn.functional.interpolate(grid.float(), new, mode="bicubic", align_corners=False, antialias=True)
    return torch.cat([table[:first], grid.permute(0, 2, 3, 1).reshape(new[0] * new[1], -1).to(table.dtype)])


def at_size(model: MaskedModel[PatchCodec], size: int | tuple[int, int]) -> MaskedModel[PatchCodec]:
    """The same model for pictures of another size, its position tables resampled."""
    old = model.codec.config
    config = dataclasses.replace(old, image=sides(size))
    tables = position_tables(model)
    encoder = dataclasses.replace(model.encoder.config, positions=Learned(slots=config.slots))
    decoder = None
    if model.visible_only:
        decoder = dataclasses.replace(model.decoder.config, positions=Learned(slots=config.slots))
    new = assemble(config, encoder, decoder, learned=tables[0].requires_grad)
    state = model.state_dict()
    for name, table in zip(("encoder", "decoder"), tables, strict=False):
        state[f"{name}.stem.positions.weight"] = resize_positions(table.detach(), old.grid, config.grid)
    new.load_state_dict(state)
    return new.train(model.training)
