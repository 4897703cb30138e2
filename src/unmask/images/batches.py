"""From pictures to packed batches: one picture a row, the class token in front."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from unmask.core.batch import PackedBatch
from unmask.images.arrays import ImageSet
from unmask.images.augment import Augment, at_scale
from unmask.images.codec import MISSING_SHARE, PatchCodec, PatchCodecConfig, patchify
from unmask.images.floats import model_floats
from unmask.images.masking import unit_numbers


def image_batch(
    config: PatchCodecConfig, seen: Float[Tensor, "n channels height width"], identity: np.ndarray, *, block: int = 1
) -> PackedBatch:
    """One picture a row.

    Args:
        seen: pictures as the model sees them (`PatchCodec.to_model`), of the model's size; NaN where not measured. A patch
            with more than half of its numbers missing is not observed.
        identity: stable number of each picture.
        block: side of a mask unit in patches.
    """
    n, first, slots = len(seen), int(config.class_token), config.slots
    patch = torch.zeros(n, slots, config.features)
    patch[:, first:] = patchify(seen, config.patch)
    observed = torch.ones(n, slots, dtype=torch.bool)
    gone = patch.isnan()
    if bool(gone.any()):
        observed = gone.float().mean(-1) <= MISSING_SHARE
        patch = torch.where(observed[..., None], patch, torch.nan)
    special = torch.zeros(n, slots, dtype=torch.bool)
    special[:, :first] = True
    unit = torch.full((n, slots), -1, dtype=torch.int64)
    unit[:, first:] = torch.from_numpy(unit_numbers(config.grid, block))
    values = {"patch": patch}
    if config.class_token:
        values["class"] = special.long()
    return PackedBatch(
        values=values,
        segment=torch.ones(n, slots, dtype=torch.int64),
        position=torch.arange(slots).expand(n, -1).contiguous(),
        observed=observed,
        special=special,
        unit=unit,
        identity=torch.from_numpy(np.asarray(identity, np.int64))[:, None].expand(-1, slots).contiguous(),
        index=torch.arange(n)[:, None].expand(-1, slots).contiguous(),
    )


def nothing(config: PatchCodecConfig) -> PackedBatch:
    """One row of padding: what a process without data computes on."""
    batch = image_batch(config, torch.zeros(1, config.channels, *config.image), np.array([-1]))
    empty = torch.zeros_like(batch.segment)
    return PackedBatch(
        values=batch.values, segment=empty, position=batch.position, observed=empty.bool(), special=empty.bool(),
        unit=empty - 1, identity=empty - 1, index=empty - 1,
    )  # fmt: skip


def batch_maker(
    codec: PatchCodec, images: ImageSet, *, seed: int, augment: Augment | None, block: int = 1,
    native: bool = False,
) -> Callable[[list[list[int]], int, int], PackedBatch]:  # fmt: skip
    """A function (rows of picture numbers, rows asked, epoch) -> batch of augmented pictures.

    Args:
        native: without augmentation, the middle of larger pictures is taken, not the whole shrunk.
    """
    mean, deviation = codec.mean.cpu().clone(), codec.deviation.cpu().clone()
    config = codec.config

    def make(rows: list[list[int]], count: int, epoch: int = 0) -> PackedBatch:
        numbers = np.array([n for row in rows for n in row], np.int64)
        if not len(numbers):
            return nothing(config)
        missing = None if images.missing is None else images.missing[numbers]
        pixels = torch.from_numpy(model_floats(images.pixels[numbers], missing))
        if augment is not None:
            pixels = augment(pixels, numbers, key=(seed, epoch), size=config.image)
        elif native:
            top, left = ((n - m) // 2 for n, m in zip(pixels.shape[2:], config.image, strict=True))
            pixels = pixels[:, :, top : top + config.image[0], left : left + config.image[1]].contiguous()
        elif pixels.shape[2:] != config.image:
            pixels = at_scale(pixels, config.image)
        return image_batch(config, (pixels - mean) / deviation, numbers, block=block)

    return make
