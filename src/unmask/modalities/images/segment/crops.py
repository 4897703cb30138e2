"""Crops for training: where they lie, how they are turned, scaled, bent and brightened.

What is drawn for a crop is a function of (seed, epoch, number), as masks are, so that resumed runs see the same crops.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Num
from torch import Tensor

from unmask.core.hashing import Salt, uniform
from unmask.modalities.images.segment.settings import SCALE, SegmenterSettings

IGNORED = -1
"""What stands in a mask where no class is known: such pixels are neither learnt from nor judged."""
PLACES = 4096
"""Pixels of each class of a picture that crops may be centred on, evenly taken."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A whole picture at its own resolution, and its mask.

    Attributes:
        pixels: (height, width, channels) float32 as the model sees them: mean 0, deviation 1; missing ones are 0.
        mask: (height, width) int16 numbers of classes, `IGNORED` where none is known, or a float32 quantity, NaN where
            none is.
        name: of the picture.
        group: what it belongs to (patient, slide), which no split parts.
    """

    pixels: np.ndarray
    mask: np.ndarray
    name: str = ""
    group: str = ""


def known_of(mask: np.ndarray) -> np.ndarray:
    """Booleans: where a mask has a class or a value."""
    return ~np.isnan(mask) if mask.dtype.kind == "f" else mask >= 0


def without(mask: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """A mask that knows nothing where `missing`."""
    return np.where(missing, mask.dtype.type(np.nan if mask.dtype.kind == "f" else IGNORED), mask)


AS_THEY_ARE = 0.5
"""Share of the crops that are mirrored and turned by quarters alone. The others are resampled, which blurs thin borders
and takes from the noise: a network that sees no other crops is worse on pictures as they are."""
_DRAWN = ("around", "down", "across", "off", "zoom", "turn", "mirror", "as_it_is")
"""What is drawn once per crop: whether around which class, where (twice, and how far off its centre), its changes."""


def _within(centre: float, side: int, length: int) -> float:
    """The centre of a crop moved so that it stays within a scene that is large enough; else that of the scene."""
    return min(max(centre, side / 2), length - side / 2) if length > side else length / 2


def mirrored(places: np.ndarray, length: int) -> np.ndarray:
    """Places along an axis of some length, those beyond its ends mirrored back into it, as often as it takes.

    >>> mirrored(np.arange(-2, 5), 3).tolist(), mirrored(np.arange(-1, 2), 1).tolist()
    ([2, 1, 0, 1, 2, 1, 0], [0, 0, 0])
    """
    if length == 1:
        return np.zeros_like(places)
    period = 2 * length - 2
    places = np.abs(places) % period
    return np.where(places < length, places, period - places)


@dataclass
class CropSource:
    """Scenes that crops of one size are drawn from.

    Args:
        classes: how many; of a quantity 1.
        size: (height, width) of a crop.
        changes: how crops are drawn and changed: `balance`, and `scale` to `jitter`.
    """

    scenes: Sequence[Scene]
    classes: int
    size: tuple[int, int]
    changes: SegmenterSettings = field(default_factory=SegmenterSettings)

    def __post_init__(self) -> None:
        self.places: list[list[np.ndarray]] = []
        masks = [scene.mask.ravel() for scene in self.scenes]
        self.quantity = masks[0].dtype.kind == "f"
        middle = np.nanmean(np.concatenate(masks)) if self.quantity else 0
        for flat in masks:
            found = []
            if self.quantity:  # what lies above the mean, however seldom, is drawn around as often as what lies below
                flat = np.where(np.isnan(flat), IGNORED, flat > middle)
            for number in range(2 if self.quantity else self.classes):
                here = np.flatnonzero(flat == number)
                found.append(here[np.linspace(0, len(here) - 1, min(PLACES, len(here))).astype(np.int64)])
            self.places.append([f for f in found if len(f)])
        # A large picture has more to show than a small one, but not in proportion: pictures differ more than places.
        weight = np.sqrt([max(1.0, s.pixels[..., 0].size / math.prod(self.size)) for s in self.scenes])
        self.upto = np.cumsum(weight) / weight.sum()

    @property
    def per_epoch(self) -> int:
        """Crops that show about as many pixels as the scenes have."""
        return max(1, round(sum(s.pixels[..., 0].size for s in self.scenes) / math.prod(self.size)))

    def crops(
        self, numbers: np.ndarray, *, key: tuple[int, int]
    ) -> tuple[Float[Tensor, "n channels height width"], Num[Tensor, "n height width"]]:
        """Crops and their masks, int64 or float32; `key` is (seed, epoch)."""
        drawn = uniform(*key, numbers[:, None], np.arange(len(_DRAWN)), Salt.SCENE_CROP)
        # Crops of a step are spread over the scenes: their numbers, times the golden ratio, are evenly laid over them.
        share = (numbers * 0.6180339887498949) % 1.0
        which = np.minimum(np.searchsorted(self.upto, share, side="right"), len(self.scenes) - 1)
        found = []
        for place, (scene, number) in enumerate(zip(which.tolist(), numbers.tolist(), strict=True)):
            own = dict(zip(_DRAWN, drawn[place].tolist(), strict=True))
            if own["as_it_is"] < AS_THEY_ARE:
                found.append(self._cut(scene, own))
            else:
                found.append(self._resampled(scene, own, self._bend(number, key) if self.changes.bend else None))
        pixels, masks = (torch.stack(parts) for parts in zip(*found, strict=True))
        return self._brightened(pixels, numbers, key), masks

    def _centre(self, scene: int, drawn: Mapping[str, float]) -> tuple[float, float]:
        """(y, x) of a crop's centre, in pixels of the scene."""
        height, width = self.scenes[scene].pixels.shape[:2]
        known, first, second = self.places[scene], drawn["down"], drawn["across"]
        if drawn["around"] < self.changes.balance and known:
            of_class = known[int(drawn["around"] / self.changes.balance * len(known))]
            y, x = divmod(int(of_class[int(first * len(of_class))]), width)
            # Anywhere in the crop, so that a class does not always stand in its middle.
            y += (drawn["off"] - 0.5) * self.size[0]
            x += (second - 0.5) * self.size[1]
        else:
            y, x = first * height, second * width
        return _within(y, self.size[0], height), _within(x, self.size[1], width)

    def _cut(self, scene: int, drawn: Mapping[str, float]) -> tuple[Tensor, Tensor]:
        """A crop of (channels, height, width) and its mask of (height, width), of the scene's own pixels."""
        found, changes = self.scenes[scene], self.changes
        quarters = int(4 * drawn["turn"]) if changes.turn else 0
        sides = self.size[::-1] if quarters % 2 else self.size
        places = [
            mirrored(np.arange(side) + math.floor(middle - side / 2 + 0.5), length)
            for middle, side, length in zip(self._centre(scene, drawn), sides, found.mask.shape, strict=True)
        ]
        cut = [np.rot90(array[np.ix_(*places)], quarters) for array in (found.pixels, found.mask)]
        if changes.flip and drawn["mirror"] < 0.5:
            cut = [array[:, ::-1] for array in cut]
        pixels, mask = cut
        kind = np.float32 if self.quantity else np.int64
        return torch.from_numpy(pixels.transpose(2, 0, 1).copy()), torch.from_numpy(mask.astype(kind))

    def _resampled(self, scene: int, drawn: Mapping[str, float], shift: Tensor | None) -> tuple[Tensor, Tensor]:
        """A crop of (channels, height, width) and its mask of (height, width), cut, turned and bent by `shift`."""
        found, changes, (high, wide) = self.scenes[scene], self.changes, self.size
        y, x = self._centre(scene, drawn)
        low, top = (math.log(s) for s in changes.scale or ((1.0, 1.0) if self.quantity else SCALE))
        zoom = math.exp(low + (top - low) * drawn["zoom"])
        angle = 2 * math.pi * drawn["turn"] if changes.turn else 0.0
        flip = -1.0 if changes.flip and drawn["mirror"] < 0.5 else 1.0
        rows = torch.arange(high, dtype=torch.float32) - (high - 1) / 2
        columns = torch.arange(wide, dtype=torch.float32) - (wide - 1) / 2
        down, across = rows[:, None].expand(high, wide), (columns * flip)[None].expand(high, wide)
        if shift is not None:
            down, across = down + shift[0], across + shift[1]
        cos, sin = math.cos(angle) / zoom, math.sin(angle) / zoom
        ys = y - 0.5 + cos * down - sin * across
        xs = x - 0.5 + sin * down + cos * across
        first = math.floor(float(ys.min())) - 1, math.floor(float(xs.min())) - 1
        last = math.ceil(float(ys.max())) + 1, math.ceil(float(xs.max())) + 1
        height, width = found.pixels.shape[:2]
        window = np.ix_(
            mirrored(np.arange(first[0], last[0] + 1), height), mirrored(np.arange(first[1], last[1] + 1), width)
        )
        pixels = torch.from_numpy(np.ascontiguousarray(found.pixels[window].transpose(2, 0, 1)))
        mask = torch.from_numpy(found.mask[window].astype(np.float32))
        size = torch.tensor([mask.shape[1] - 1, mask.shape[0] - 1], dtype=torch.float32)
        grid = torch.stack([xs - first[1], ys - first[0]], -1) * (2 / size) - 1
        cut = F.grid_sample(pixels[None], grid[None], mode="bilinear", align_corners=True)[0]
        classes = F.grid_sample(mask[None, None], grid[None], mode="nearest", align_corners=True)[0, 0]
        return cut, classes if self.quantity else classes.round().long()

    def _bend(self, number: int, key: tuple[int, int]) -> Tensor:
        """(2, height, width) smooth displacement: normal at points about 32 pixels apart, between them bicubic."""
        points = tuple(max(2, side // 32 + 1) for side in self.size)
        where = np.arange(math.prod((2, 2, *points)))
        u, v = uniform(*key, number, where, Salt.SCENE_BEND).reshape(2, -1)
        normal = np.sqrt(-2 * np.log(np.maximum(u, 1e-12))) * np.cos(2 * math.pi * v)
        coarse = torch.from_numpy(normal.astype(np.float32)).view(1, 2, *points) * self.changes.bend
        return F.interpolate(coarse, self.size, mode="bicubic", align_corners=True)[0]

    def _brightened(self, pixels: Tensor, numbers: np.ndarray, key: tuple[int, int]) -> Tensor:
        if not self.changes.jitter:
            return pixels
        channel = np.arange(2 * pixels.shape[1])
        drawn = self.changes.jitter * (2 * uniform(*key, numbers[:, None], channel, Salt.SCENE_TINT) - 1)
        gain, shift = torch.from_numpy(drawn.astype(np.float32)).chunk(2, 1)
        return pixels * gain.exp()[..., None, None] + shift[..., None, None]
