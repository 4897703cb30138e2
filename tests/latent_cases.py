"""Tiny models that learn from representations of pictures, and batches of views."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiny_images import NO_DECODER, TINY, bars
from unmask.core.batch import PackedBatch
from unmask.core.corruption import Hidden
from unmask.modalities.images.network.augment import Augment
from unmask.modalities.images.network.batches import batch_maker
from unmask.modalities.images.network.build import codec_config, new_model
from unmask.modalities.images.network.latents import LatentLearner
from unmask.modalities.images.network.masking import image_corruption
from unmask.modalities.images.reading.arrays import ImageSet
from unmask.modalities.images.recipes import ImageSettings, with_overrides

TARGETS = ("views", "contrast", "latents")


def latent_settings(target: str, **more: Any) -> ImageSettings:
    """Of a run of six steps."""
    decoder = {} if target == "latents" or more.get("pixel_weight") else NO_DECODER
    given = TINY | decoder | {"target": target, "patch": 2, "projector": 32, "projection": 8} | more
    return with_overrides(ImageSettings(), given)


def learner(target: str, seed: int, **more: Any) -> LatentLearner:
    """A fresh model for pictures of 12 x 12."""
    settings = latent_settings(target, seed=seed, **more)
    model = new_model(settings, codec_config(settings, (12, 12), 1, (0.2,), (0.3,)))
    assert isinstance(model, LatentLearner)
    return model


def view_batch(model: LatentLearner, seed: int, count: int = 8, epoch: int = 0) -> tuple[PackedBatch, Hidden]:
    """A batch of so many pictures, all views of each in a row, and what is hidden of it."""
    pixels, labels = bars(count)
    images = ImageSet(pixels=pixels[..., None], labels=labels, classes=["0", "1", "2"])
    views = model.settings.shown_views
    make = batch_maker(model.codec, images, seed=seed, augment=Augment(jitter=0.2), views=views)
    batch = make([[int(n)] for n in np.arange(count)], count, epoch)
    return batch, image_corruption(model.codec.config, ratio=0.5).draw(batch, seed=seed, epoch=epoch)
