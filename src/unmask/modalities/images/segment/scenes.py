"""Whole pictures, each of its own size, from what `read_images` cuts into tiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from unmask.modalities.images.network.batches import as_floats
from unmask.modalities.images.network.codec import PatchCodec
from unmask.modalities.images.reading.arrays import ImageSet
from unmask.modalities.images.segment.crops import Scene


@dataclass(frozen=True, kw_only=True)
class WholePicture:
    """A picture as it was read: (height, width, channels) pixels of its depth; (height, width) `missing` or None."""

    name: str
    pixels: np.ndarray
    missing: np.ndarray | None = None
    group: str = ""

    def seen(self, codec: PatchCodec) -> np.ndarray:
        """Its pixels as the model sees them; what is missing counts as the mean."""
        floats = as_floats(self.pixels[None])[0]
        seen = (floats - codec.mean.cpu().numpy()) / codec.deviation.cpu().numpy()
        if self.missing is not None:
            seen[:, self.missing] = 0.0
        return np.ascontiguousarray(seen.transpose(1, 2, 0), np.float32)

    def scene(self, codec: PatchCodec, mask: np.ndarray) -> Scene:
        """With its mask, to be learnt from or judged."""
        return Scene(pixels=self.seen(codec), mask=mask, name=self.name, group=self.group)


def whole_pictures(images: ImageSet) -> Iterator[WholePicture]:
    """The pictures that tiles were cut from, put together again."""
    tiles = images.tiles
    assert tiles is not None
    high, wide = images.size
    order = np.argsort(tiles.scene, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(tiles.scene[order])) + 1, len(order))
    start = 0
    for end in ends.tolist():
        here = order[start:end]
        start = end
        scene = int(tiles.scene[here[0]])
        height, width = tiles.sizes[scene]
        pixels = np.zeros((height, width, images.channels), images.pixels.dtype)
        missing = None if images.missing is None else np.zeros((height, width), bool)
        for number in here.tolist():
            top, left = int(tiles.top[number]), int(tiles.left[number])
            part = (slice(top, min(top + high, height)), slice(left, min(left + wide, width)))
            own = (slice(0, part[0].stop - top), slice(0, part[1].stop - left))
            pixels[part] = images.pixels[number][own]
            if missing is not None and images.missing is not None:
                missing[part] = images.missing[number][own]
        group = "" if images.groups is None else str(images.groups[here[0]])
        missing = None if missing is None or not missing.any() else missing
        yield WholePicture(name=tiles.names[scene], pixels=pixels, missing=missing, group=group)
