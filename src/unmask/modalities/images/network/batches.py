"""From pictures to packed batches: one picture a row, the class token in front; pixels as floats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from unmask.core.batch import PackedBatch
from unmask.modalities.images.network.augment import Augment, at_scale
from unmask.modalities.images.network.codec import MISSING_SHARE, PatchCodec, PatchCodecConfig, patchify
from unmask.modalities.images.network.latents import views_together
from unmask.modalities.images.network.masking import unit_numbers
from unmask.modalities.images.reading.arrays import ImageSet
from unmask.modalities.images.reading.decode import scale_of
from unmask.progress import counted

PART_BYTES = 8e6
"""Floats of the pictures that are brought into shape at once: what each step of that takes is a few times as much."""


def image_batch(
    config: PatchCodecConfig, seen: Float[Tensor, "n channels height width"], identity: np.ndarray, *, block: int = 1
) -> PackedBatch:
    """One picture a row.

    Args:
        seen: pictures at the model's mean and deviation and of its size; NaN where not measured. A
            patch with more than half of its numbers missing is not observed.
        identity: stable number of each picture.
        block: side of a mask unit in patches.
    """
    return batch_of_parts(config, [seen], identity, block=block)


def batch_of_parts(
    config: PatchCodecConfig,
    parts: Iterable[Float[Tensor, "some channels height width"]],
    identity: np.ndarray,
    *,
    block: int = 1,
) -> PackedBatch:
    """`image_batch` of pictures that come some at a time: no more than these stand in memory beside the patches.
    `parts`: pictures as `image_batch` takes them, as many in all as there are identities."""
    n, first, slots = len(identity), int(config.class_token), config.slots
    patch = torch.zeros(n, slots, config.features)
    observed = torch.ones(n, slots, dtype=torch.bool)
    done = 0
    for seen in parts:
        here = slice(done, done + len(seen))
        patch[here, first:] = patchify(seen, config.patch)
        missing = patch[here].isnan()
        if bool(missing.any()):
            observed[here] = missing.float().mean(-1) <= MISSING_SHARE
            patch[here].masked_fill_(~observed[here, :, None], torch.nan)
        done = here.stop
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


def image_batches(codec: PatchCodec, images: ImageSet, rows: int) -> Iterator[tuple[PackedBatch, np.ndarray]]:
    """Pictures of the model's size, `rows` to a batch, on the CPU, and their numbers; a picture's identity is its
    number."""
    mean, deviation = codec.mean.cpu(), codec.deviation.cpu()
    for part in chunks(len(images), rows):
        seen = (model_floats(images, part) - mean) / deviation
        numbers = np.arange(part.start, part.stop)
        yield image_batch(codec.config, seen, numbers), numbers


def nothing(config: PatchCodecConfig, rows: int = 1) -> PackedBatch:
    """Rows of padding: what a process without data computes on."""
    batch = image_batch(config, torch.zeros(rows, config.channels, *config.image), np.full(rows, -1))
    empty = torch.zeros_like(batch.segment)
    return PackedBatch(
        values=batch.values,
        segment=empty,
        position=batch.position,
        observed=empty.bool(),
        special=empty.bool(),
        unit=empty - 1,
        identity=empty - 1,
        index=empty - 1,
    )


def batch_maker(
    codec: PatchCodec,
    images: ImageSet,
    *,
    seed: int,
    augment: Augment | None,
    block: int = 1,
    native: bool = False,
    views: int = 1,
) -> Callable[[list[list[int]], int, int], PackedBatch]:
    """A function (rows of picture numbers, rows asked, epoch) -> batch of augmented pictures. `native`: without
    augmentation, the middle of larger pictures is taken, not the whole shrunk; `views`: of each picture, each with
    crops and hidden patches of its own, side by side in its row."""
    mean, deviation = codec.mean.cpu().clone(), codec.deviation.cpu().clone()
    config = codec.config

    def seen(numbers: np.ndarray, identity: np.ndarray, epoch: int) -> Tensor:
        pixels = model_floats(images, numbers)
        if augment is not None:
            pixels = augment(pixels, identity, key=(seed, epoch), size=config.image)
        elif native:
            top, left = ((n - m) // 2 for n, m in zip(pixels.shape[2:], config.image, strict=True))
            pixels = pixels[:, :, top : top + config.image[0], left : left + config.image[1]].contiguous()
        elif pixels.shape[2:] != config.image:
            pixels = at_scale(pixels, config.image)
        pixels = (pixels - mean) / deviation
        return pixels if augment is None else augment.jittered(pixels, identity, key=(seed, epoch))

    def make(rows: list[list[int]], count: int, epoch: int = 0) -> PackedBatch:
        numbers = np.array([n for row in rows for n in row], np.int64)
        if not len(numbers):
            return views_together(nothing(config, views), views)
        identity = numbers
        if views > 1:
            numbers = numbers.repeat(views)
            identity = numbers * views + np.tile(np.arange(views), len(identity))
        some = max(1, int(PART_BYTES / (4 * np.prod(images.pixels.shape[1:]))))
        parts = (seen(numbers[part], identity[part], epoch) for part in chunks(len(numbers), some))
        return views_together(batch_of_parts(config, parts, identity, block=block), views)

    return make


def as_floats(pixels: np.ndarray) -> np.ndarray:
    """Pixels in 0..1 (floats as they are), channels first: (n, channels, height, width) float32."""
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).astype(np.float32) / np.float32(
        scale_of(str(pixels.dtype))
    )


def model_floats(images: ImageSet, which: np.ndarray | slice) -> Float[Tensor, "n channels height width"]:
    """`as_floats` of some pictures, NaN where a pixel is missing, as the model reads them."""
    floats = as_floats(images.pixels[which])
    if images.missing is not None:
        missing = images.missing[which]
        floats[np.broadcast_to(missing[:, None], floats.shape)] = np.nan
    return torch.from_numpy(floats)


def channel_statistics(
    images: ImageSet, which: np.ndarray | None = None, most: int = 5000
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(mean, deviation) per channel of the measured pixels of at most `most` pictures, evenly taken, in the units of
    `as_floats`. `which`: numbers of the pictures to take them from; default all."""
    which = np.arange(len(images)) if which is None else which
    which = which[:: max(1, -(-len(which) // most))]
    # 64 MB of floats at a time; small pictures by 256, as ever: the sum's last digits hang on it.
    rows = min(256, max(1, int(64e6 / (8 * images.size[0] * images.size[1] * images.channels))))
    parts = [which[part] for part in chunks(len(which), rows)]
    count = len(which) * images.size[0] * images.size[1]
    if images.missing is not None:
        count = max(sum(int((~images.missing[part]).sum()) for part in parts), 1)
    mean = sum(_measured(images, part, 0.0).sum((0, 2, 3)) for part in parts) / count
    square = sum((_measured(images, part, mean[:, None, None]) ** 2).sum((0, 2, 3)) for part in parts) / count
    return tuple(map(float, mean)), tuple(float(d) if d > 1e-8 else 1.0 for d in np.sqrt(square))


def _measured(images: ImageSet, which: np.ndarray, shift: np.ndarray | float) -> np.ndarray:
    """Floats less `shift`, 0 where missing."""
    floats = as_floats(images.pixels[which]).astype(np.float64) - shift
    return floats if images.missing is None else floats * ~images.missing[which][:, None]


def chunks(count: int, size: int) -> Iterator[slice]:
    """Slices that cut `count` things into parts of `size`."""
    parts = [slice(i, min(i + size, count)) for i in range(0, count, size)]
    return counted(parts, count, lambda part: part.stop - part.start)


def evenly(things: np.ndarray, most: int) -> np.ndarray:
    """At most `most` of the things, spread evenly over all of them: files come sorted by class.

    >>> evenly(np.arange(10), 4).tolist()
    [0, 3, 6, 9]
    """
    return things[np.linspace(0, len(things) - 1, min(most, len(things))).astype(int)]
