"""Augmentation of a whole batch at once, in torch: random crops, flips and turns, mixup and cutmix.

Missing pixels (NaN) stay missing: what is resampled is made of the measured pixels alone. What is drawn for a picture
is a function of (seed, epoch, identity), as masks are, so resumed runs see the same crops.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from unmask.core.hashing import Salt, uniform

_CROP_SALTS = (Salt.CROP_AREA, Salt.CROP_SHAPE, Salt.CROP_LEFT, Salt.CROP_TOP, Salt.MIRROR)


@dataclass(frozen=True, kw_only=True)
class Augment:
    """Random resized crop (Szegedy et al. 2015), or crop at native resolution; flips and quarter turns.

    Args:
        scale: share of the picture's area a crop covers, drawn evenly; (1, 1) for no crop.
        aspect: width over height of a crop relative to the picture's, drawn evenly in its logarithm.
        flip: mirror half of the pictures.
        native: crops are windows of the pictures' own pixels, anywhere in them; nothing is resampled.
        turn: turn pictures by 0, 90, 180 or 270 degrees (those that are not square by 0 or 180), each as often.
        jitter: how far `jittered` changes brightness and contrast.
    """

    scale: tuple[float, float] = (0.2, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True
    native: bool = False
    turn: bool = False
    jitter: float = 0.0

    def boxes(self, identity: np.ndarray, key: tuple[int, int]) -> np.ndarray:
        """(n, 5): centre x and y, width, height (shares of the picture), and -1 where mirrored, else 1."""
        area, shape, left, top, side = (uniform(*key, identity, salt) for salt in _CROP_SALTS)
        area = self.scale[0] + (self.scale[1] - self.scale[0]) * area
        if self.scale[0] == 1.0:
            ratio = np.ones(len(identity))
        else:
            low, high = math.log(self.aspect[0]), math.log(self.aspect[1])
            ratio = np.exp(low + (high - low) * shape)
        width, height = np.minimum(np.sqrt(area * ratio), 1.0), np.minimum(np.sqrt(area / ratio), 1.0)
        x, y = width / 2 + left * (1 - width), height / 2 + top * (1 - height)
        return np.stack([x, y, width, height, np.where((side < 0.5) & self.flip, -1.0, 1.0)], 1)

    def __call__(
        self,
        images: Float[Tensor, "n channels height width"],
        identity: np.ndarray,
        *,
        key: tuple[int, int],
        size: tuple[int, int] | None = None,
    ) -> Tensor:
        """Crop, flip and resample (bicubic) to `size`, default the pictures' own; `key` is (seed, epoch).

        Of pictures larger than `size` every pixel is the mean of as many samples as lie within it: single ones would
        pick up noise that a shrunk picture does not have (of noise kept at four times the size: 4 times the deviation).
        """
        found = (
            self._windows(images, identity, key, size) if self.native else self._resized(images, identity, key, size)
        )
        return self._turned(found, identity, key) if self.turn else found

    def jittered(
        self, seen: Float[Tensor, "n channels height width"], identity: np.ndarray, *, key: tuple[int, int]
    ) -> Tensor:
        """Each channel of each normalised picture times e^u, plus v: u and v drawn evenly within -jitter and jitter."""
        if not self.jitter:
            return seen
        channel = np.arange(seen.shape[1])
        gain, shift = (
            torch.from_numpy(self.jitter * (2 * uniform(*key, identity[:, None], channel, salt) - 1)).to(seen)
            for salt in (Salt.GAIN, Salt.SHIFT)
        )
        return seen * gain.exp()[..., None, None] + shift[..., None, None]

    def _windows(
        self, images: Tensor, identity: np.ndarray, key: tuple[int, int], size: tuple[int, int] | None
    ) -> Tensor:
        """Windows of `size` at places of their own, half of them mirrored."""
        high, wide = int(images.shape[2]), int(images.shape[3])
        height, width = size or (high, wide)
        top, left = (
            torch.from_numpy(np.floor(uniform(*key, identity, salt) * (room + 1)).astype(np.int64)).to(images.device)
            for salt, room in ((Salt.WINDOW_TOP, high - height), (Salt.WINDOW_LEFT, wide - width))
        )
        rows = top[:, None] + torch.arange(height, device=images.device)
        columns = left[:, None] + torch.arange(width, device=images.device)
        if self.flip:
            mirrored = torch.from_numpy(self.boxes(identity, key)[:, 4] < 0).to(images.device)
            columns = torch.where(mirrored[:, None], columns.flip(1), columns)
        which = torch.arange(len(images), device=images.device)[:, None, None]
        return images.permute(0, 2, 3, 1)[which, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()

    def _turned(self, images: Tensor, identity: np.ndarray, key: tuple[int, int]) -> Tensor:
        square = images.shape[2] == images.shape[3]
        quarters = np.floor(uniform(*key, identity, Salt.TURN) * (4 if square else 2)).astype(int) * (
            1 if square else 2
        )
        out = images.clone()
        for quarter in (1, 2, 3):
            some = torch.from_numpy(np.flatnonzero(quarters == quarter)).to(images.device)
            if len(some):
                out[some] = images[some].rot90(quarter, (2, 3))
        return out

    def _resized(
        self, images: Tensor, identity: np.ndarray, key: tuple[int, int], size: tuple[int, int] | None
    ) -> Tensor:
        height, width = size or (int(images.shape[2]), int(images.shape[3]))
        same = (height, width) == tuple(images.shape[2:])
        if self.scale[0] == 1.0 and same:
            if not self.flip:
                return images
            turned = torch.from_numpy(self.boxes(identity, key)[:, 4] < 0).to(images.device)
            return torch.where(turned[:, None, None, None], images.flip(-1), images)
        box = torch.from_numpy(self.boxes(identity, key)).float().to(images.device)
        x, y, w, h, side = box.unbind(1)
        theta = torch.zeros(len(images), 2, 3, device=images.device)
        theta[:, 0, 0], theta[:, 0, 2] = w * side, 2 * x - 1
        theta[:, 1, 1], theta[:, 1, 2] = h, 2 * y - 1
        within = (-(-images.shape[2] // height), -(-images.shape[3] // width))
        shape = [len(images), images.shape[1], height * within[0], width * within[1]]
        grid = F.affine_grid(theta, shape, align_corners=False)

        def sampled(x: Tensor) -> Tensor:
            found = F.grid_sample(x, grid, mode="bicubic", padding_mode="border", align_corners=False)
            return F.avg_pool2d(found, within) if max(within) > 1 else found

        return of_measured(images, sampled)


def of_measured(images: Tensor, resample: Callable[[Tensor], Tensor]) -> Tensor:
    """A linear resampling of pictures with missing pixels (NaN), from the measured ones alone: their weighted sum
    divided by their weights, missing where those are less than half of all."""
    missing = images.isnan()
    if not bool(missing.any()):
        return resample(images)
    weight = resample((~missing).to(images.dtype))
    found = resample(torch.where(missing, 0.0, images)) / weight.clamp_min(0.5)
    return torch.where(weight < 0.5, torch.nan, found)


def at_scale(images: Float[Tensor, "n channels height width"], size: tuple[int, int]) -> Tensor:
    """Pictures at another size (bicubic, antialiased)."""
    return of_measured(images, lambda x: F.interpolate(x, size, mode="bicubic", antialias=True))


def smoothed(labels: Int[Tensor, " n"], classes: int, smoothing: float) -> Float[Tensor, "n classes"]:
    """One-hot targets with `smoothing` spread over all classes."""
    target = torch.full((len(labels), classes), smoothing / classes, device=labels.device)
    return target.scatter_(1, labels[:, None], 1 - smoothing + smoothing / classes)


def mix_batch(
    images: Float[Tensor, "n channels height width"],
    target: Float[Tensor, "n classes"],
    *,
    mixup: float,
    cutmix: float,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Mixup (Zhang et al. 2018) or cutmix (Yun et al. 2019) of each picture with its mirror place in the batch.
    `mixup`, `cutmix`: parameters of the beta distribution; 0 turns one off. With both on each batch gets one of
    them."""
    if mixup <= 0 and cutmix <= 0:
        return images, target
    first, second = torch.rand(2, generator=generator).tolist()
    cut = cutmix > 0 and (mixup <= 0 or first < 0.5)
    seed, alpha = int(torch.randint(2**31, (1,), generator=generator)), cutmix if cut else mixup
    share = float(np.random.default_rng([seed, int(second * 2**20)]).beta(alpha, alpha))
    partner, partner_target = images.flip(0), target.flip(0)
    if not cut:
        return images * share + partner * (1 - share), target * share + partner_target * (1 - share)
    height, width = images.shape[2:]
    high, wide = round(height * math.sqrt(1 - share)), round(width * math.sqrt(1 - share))
    top = int(torch.randint(height - high + 1, (1,), generator=generator))
    left = int(torch.randint(width - wide + 1, (1,), generator=generator))
    images = images.clone()
    images[:, :, top : top + high, left : left + wide] = partner[:, :, top : top + high, left : left + wide]
    share = 1 - high * wide / (height * width)
    return images, target * share + partner_target * (1 - share)
