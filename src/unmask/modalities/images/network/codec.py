"""Patches in, patches back: the patch codec, the distribution of a hidden patch, histograms of oriented gradients.

Shape letters: n (images), channels, height, width_px, rows, slots, width, features (numbers of one patch), asked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from unmask.core.hashing import hash_keys
from unmask.core.model import WantedSlots
from unmask.core.prediction import Gaussian, weighted_sum
from unmask.errors import UserError, setting

Loss = Literal["mse", "l1"]

_VARIANCE_FLOOR = 1e-6
"""Added to a patch's variance before the root, as in the official MAE."""
MISSING_SHARE = 0.5
"""A patch of which more than this share was not measured is missing; of others the missing numbers are left out."""
_SCALE_FLOOR = 0.02
"""Smallest deviation of a predicted patch, as a share of the pictures' own."""


def patchify(images: Float[Tensor, "n channels height width_px"], patch: int) -> Float[Tensor, "n patches features"]:
    """Cut images into patches, row by row; within a patch the order is (row, column, channel), as in the official MAE.

    >>> x = torch.arange(16.0).view(1, 1, 4, 4)
    >>> patchify(x, 2)[0, 1].tolist()
    [2.0, 3.0, 6.0, 7.0]
    """
    n, channels, height, width = images.shape
    rows, columns = height // patch, width // patch
    x = images.reshape(n, channels, rows, patch, columns, patch).permute(0, 2, 4, 3, 5, 1)
    return x.reshape(n, rows * columns, patch * patch * channels)


def unpatchify(
    patches: Float[Tensor, "n patches features"], patch: int, grid: tuple[int, int]
) -> Float[Tensor, "n channels height width_px"]:
    """The exact inverse of `patchify`; `grid` is (rows, columns) of patches."""
    n, _, features = patches.shape
    rows, columns = grid
    channels = features // (patch * patch)
    x = patches.reshape(n, rows, columns, patch, patch, channels).permute(0, 5, 1, 3, 2, 4)
    return x.reshape(n, channels, rows * patch, columns * patch)


def fitting_patches(height: int, width: int) -> list[int]:
    """Patch sides that divide both sides of an image, whole-image patches left out."""
    side = math.gcd(height, width)
    return [p for p in range(1, side + 1) if side % p == 0 and (height // p) * (width // p) > 1]


@dataclass(frozen=True, kw_only=True)
class PatchCodecConfig:
    """What an image looks like to the model, and what is predicted of a patch.

    Args:
        image: (height, width) in pixels.
        channels: of the image.
        patch: side of a patch in pixels; divides both sides.
        width: of the encoder.
        head_width: of the states a patch is predicted from: the decoder's, or the encoder's where there is none.
        mean, deviation: per channel; pixels are normalised with them on the way in and out.
        normalised: patches are predicted as (patch - its mean) / its deviation (He et al. 2022, section 4.1).
        loss: 'mse', or 'l1' (SimMIM, Xie et al. 2022).
        statistics: weight of predicting a hidden patch's mean and deviation beside its normalised form, so that it can
            be drawn in pixels without having seen it; 0 for none (the published loss).
        class_token: a learned slot in front of the patches.
        mask_embedding: a mask embedding stands in hidden slots of the encoder (the in-place architecture).
        pixels: patches are predicted back; False for a model that was trained on representations alone.
        gradients: histograms of oriented gradients of each patch go into its embedding beside its pixels.

    Raises:
        UserError: the patch does not divide the image (naming the sides that would), or lists of another length.
    """

    image: tuple[int, int]
    channels: int
    patch: int
    width: int
    head_width: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    normalised: bool = True
    loss: Loss = "mse"
    statistics: float = 0.0
    class_token: bool = True
    mask_embedding: bool = False
    pixels: bool = True
    gradients: bool = False

    def __post_init__(self) -> None:
        height, width = self.image
        if self.patch < 1 or height % self.patch or width % self.patch:
            raise UserError(
                f"patch={self.patch} does not divide pictures of {width} x {height} pixels",
                hint=f"Use {setting('patch')} one of {fitting_patches(height, width)}, or another image_size.",
            )
        if len(self.mean) != self.channels or len(self.deviation) != self.channels:
            raise UserError(
                f"{len(self.mean)} means and {len(self.deviation)} deviations for {self.channels} channels",
                hint="Give one of each a channel.",
            )
        if self.normalised and self.features < 2:
            raise UserError(
                "a patch of one number has no variance to normalise by", hint=f"Use {setting('norm_targets', False)}."
            )

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of patches."""
        return (self.image[0] // self.patch, self.image[1] // self.patch)

    @property
    def patches(self) -> int:
        """How many patches a picture has."""
        return self.grid[0] * self.grid[1]

    @property
    def slots(self) -> int:
        """Slots of one image: its patches, and the class token where there is one."""
        return self.patches + self.class_token

    @property
    def features(self) -> int:
        """Numbers of a patch: its pixels times the channels."""
        return self.patch * self.patch * self.channels


def standardise(patches: Float[Tensor, "*patches features"]) -> tuple[Tensor, Tensor, Tensor]:
    """(standardised, mean, deviation) of each patch, with the sample variance (n - 1), as in the official MAE; of the
    numbers that are not missing (NaN), which stay so."""
    missing = patches.isnan()
    if missing.is_cuda or bool(missing.any()):  # a GPU is not asked
        count = (~missing).sum(-1, keepdim=True)
        mean = patches.nansum(-1, keepdim=True) / count.clamp_min(1)
        centred = patches - mean
        variance = centred.square().nansum(-1, keepdim=True) / (count - 1).clamp_min(1)
    else:
        mean = patches.mean(-1, keepdim=True)
        centred = patches - mean
        variance = centred.square().sum(-1, keepdim=True) / (patches.shape[-1] - 1)
    deviation = (variance + _VARIANCE_FLOOR).sqrt()
    return centred / deviation, mean, deviation


class PatchPrediction(Gaussian):
    """A hidden patch's distribution over pixels (normalised by channel, as the model sees them).

    With normalised targets the model says what the patch looks like at mean 0 and deviation 1, and its mean and
    deviation apart. Then the patch is a normal with that deviation around the pattern scaled by it: `confidence` is
    largest for flat patches. Without predicted statistics the pattern itself is what `mode` gives. `pattern`: (wanted,
    features), what is compared with the target; `statistics`: (wanted, 2), predicted mean and deviation, or None."""

    def __init__(
        self,
        pattern: Float[Tensor, "wanted features"],
        statistics: Float[Tensor, "wanted 2"] | None,
        config: PatchCodecConfig,
    ) -> None:
        self.pattern, self.statistics, self.config = pattern, statistics, config
        location, log_variance = pattern, None
        if statistics is not None:
            scale = statistics[:, 1:].clamp_min(_SCALE_FLOOR)
            location = pattern * scale + statistics[:, :1]
            log_variance = (2 * scale.log()).expand_as(pattern)
        super().__init__(location, log_variance)

    def loss(self, target: Float[Tensor, "wanted features"], weight: Float[Tensor, " wanted"] | None = None) -> Tensor:
        """Error per patch (mean over its numbers, missing ones (NaN) left out), summed over patches; targets are raw
        patches."""
        target = target.float()
        extra: Tensor | float = 0.0
        if self.config.normalised:
            target, mean, deviation = standardise(target)
            if self.statistics is not None:
                true = torch.cat([mean, deviation], -1)
                extra = self.config.statistics * weighted_sum(((self.statistics - true) ** 2).mean(-1), weight)
        missing = target.isnan()
        partly = missing.is_cuda or bool(missing.any())  # the same where none is; a GPU is not asked
        error = self.pattern - (torch.where(missing, self.pattern.detach(), target) if partly else target)
        error = error.abs() if self.config.loss == "l1" else error**2
        if partly:  # the mean over the numbers that there are
            error = error * (missing.shape[-1] / (~missing).sum(-1, keepdim=True).clamp_min(1))
        return weighted_sum(error.mean(-1), weight) + extra

    def log_prob(self, value: Float[Tensor, "wanted features"]) -> Float[Tensor, " wanted"]:
        """Of the numbers of a patch that are not missing (NaN)."""
        missing = value.isnan()
        if not bool(missing.any()):
            return super().log_prob(value)
        log_variance = torch.zeros_like(self.location) if self.log_variance is None else self.log_variance
        square = (torch.where(missing, self.location, value) - self.location) ** 2 * (-log_variance).exp()
        return -0.5 * ((square + log_variance + math.log(2 * math.pi)) * ~missing).sum(-1)

    def pattern_log_prob(self, value: Float[Tensor, "wanted features"]) -> Float[Tensor, " wanted"]:
        """Of the standardised form of a patch, whatever its mean and deviation: normal with deviation 1."""
        return PatchPrediction(self.pattern, None, self.config).log_prob(standardise(value.float())[0])


class PatchCodec(nn.Module):
    """Embeds patches with one linear layer (a convolution of stride `patch`, said otherwise) of their pixels, with
    `gradients` of their oriented gradients too, and predicts them back.

    Missing numbers are NaN. A patch that is missing wholly looks like a hidden one: the mask embedding stands in it, or
    it is left out of the encoder (visible only). Of others the missing numbers count as the mean colour.
    """

    drops_missing = True
    context_channels: tuple[str, ...] = ("class",)
    mean: Tensor
    deviation: Tensor
    mask: Tensor

    def __init__(self, config: PatchCodecConfig) -> None:
        super().__init__()
        self.config = config
        self.patch = nn.Linear(config.features, config.width)
        if config.gradients:
            self.edges = nn.Linear(gradient_numbers(config.patch, config.channels), config.width, bias=False)
        if config.class_token:
            self.cls = nn.Parameter(torch.randn(config.width) * 0.02)
        if config.mask_embedding:
            self.mask = nn.Parameter(torch.randn(config.width) * 0.02)
        else:
            # Only padding stands behind it.
            self.register_buffer("mask", torch.zeros(config.width), persistent=False)
        if config.pixels:
            self.head = nn.Linear(config.head_width, config.features)
        if config.pixels and config.normalised and config.statistics:
            self.statistics = nn.Linear(config.head_width, 2)
            self.start_statistics()
        for name in ("mean", "deviation"):
            value = torch.tensor(getattr(config, name), dtype=torch.float32).view(-1, 1, 1)
            self.register_buffer(name, value, persistent=False)

    @torch.no_grad()
    def start_statistics(self) -> None:
        """Every patch is first taken to be as the pictures are over all: mean 0 and deviation 1."""
        if hasattr(self, "statistics"):
            nn.init.normal_(self.statistics.weight, std=0.01)
            self.statistics.bias.copy_(torch.tensor([0.0, 1.0]))

    def embed(self, values: dict[str, Tensor], masked: Bool[Tensor, "rows slots"]) -> Float[Tensor, "rows slots width"]:
        patch = values["patch"]
        missing = patch.isnan()
        whole = torch.where(missing, 0.0, patch)
        x = self.patch(whole)
        if self.config.gradients:
            x = x + self.edges(oriented_gradients(whole, self.config.patch, self.config.channels))
        if self.config.class_token:
            x = torch.where(values["class"].bool()[..., None], self.cls.to(x.dtype), x)
        masked = masked | missing.all(-1)
        if masked.is_cuda or bool(masked.any()):  # the same where none is; a GPU is not asked
            x = torch.where(masked[..., None], self.mask.to(x.dtype), x)
        return x

    def noise(self, values: dict[str, Tensor], flat: Tensor, bits: Int[Tensor, " n"]) -> dict[str, Tensor]:
        """Patches of independent normal pixels, made from the bits alone."""
        numbers = hash_keys(bits.cpu().numpy()[:, None], torch.arange(2 * self.config.features).numpy())
        uniform = torch.from_numpy((numbers >> 11).astype("float64") * 2.0**-53).float()
        first, second = uniform.clamp_min(1e-7).chunk(2, -1)
        normal = (-2 * first.log()).sqrt() * (2 * math.pi * second).cos()
        return {"patch": normal.to(values["patch"].device)}

    def targets(self, values: dict[str, Tensor], flat: Int[Tensor, " n"]) -> Float[Tensor, "n features"]:
        return values["patch"].flatten(0, 1)[flat]

    def write(self, values: dict[str, Tensor], flat: Int[Tensor, " n"], new: Tensor) -> dict[str, Tensor]:
        patch = values["patch"].clone()
        patch.view(-1, patch.shape[-1])[flat] = new.to(patch.dtype)
        return values | {"patch": patch}

    def predict(self, states: Float[Tensor, "wanted head_width"], wanted: WantedSlots | None = None) -> PatchPrediction:
        statistics = self.statistics(states).float() if hasattr(self, "statistics") else None
        return PatchPrediction(self.head(states).float(), statistics, self.config)

    def to_pixels(self, seen: Float[Tensor, "n channels height width_px"]) -> Tensor:
        """What the model sees -> pixels of 0..1, or floats as they came."""
        return seen * self.deviation + self.mean


DIRECTIONS = 8
"""Of gradients, over the whole circle."""
_FLOOR = 0.05
"""Added to the sum of squares of a patch's histogram before its root: flat patches stay near 0. Pixels have deviation
1."""
_SCALE = 4.0
"""Length of a histogram with strong edges; the pixels of a patch of 7 x 7 have a length of about 7."""


def cells_of(patch: int) -> int:
    """Rows (and columns) of cells in a patch: of about 2 pixels or more, at most 3."""
    return max(1, min(3, patch // 2))


def gradient_numbers(patch: int, channels: int) -> int:
    """How many numbers `oriented_gradients` gives for a patch."""
    return channels * DIRECTIONS * cells_of(patch) ** 2


def oriented_gradients(
    patches: Float[Tensor, "*patches features"], patch: int, channels: int
) -> Float[Tensor, "*patches numbers"]:
    """How strongly brightness rises in each of 8 directions, in each cell of each patch, relative to the whole patch.

    After Dalal and Triggs 2005 (HOG) and Lowe 2004 (SIFT), with two differences: derivatives take no pixel from beyond
    the patch, so that hidden neighbours cannot be read from it, and a gradient counts for each direction by the cosine
    between them. Numbers of a patch come by channel, direction, row and column of the cell; fp32.
    """
    x = patches.float().reshape(-1, patch, patch, channels).permute(0, 3, 1, 2)
    down, across = (_derivative(x, dim) for dim in (2, 3))
    angle = torch.arange(DIRECTIONS, device=x.device) * (2 * math.pi / DIRECTIONS)
    towards = across[:, :, None] * angle.cos()[:, None, None] + down[:, :, None] * angle.sin()[:, None, None]
    found = adaptive_avg_pool2d(towards.relu().flatten(1, 2), cells_of(patch)).flatten(1)
    found = _SCALE * found / (found.square().sum(1, keepdim=True) + _FLOOR).sqrt()
    return found.view(*patches.shape[:-1], -1)


ORIENTATIONS, CELLS = 8, 7
"""Of a whole picture's histograms: orientations over the half circle, and cells along a side, at most."""
_FLAT = 1e-4
"""Added to the sum of squares of a block of histograms before its root; pixels have deviation 1."""


def picture_cells(image: tuple[int, int]) -> tuple[int, int]:
    """(rows, columns) of cells in a picture: 7 x 7, fewer where they would be smaller than 2 pixels."""
    return (max(1, min(CELLS, image[0] // 2)), max(1, min(CELLS, image[1] // 2)))


def picture_numbers(image: tuple[int, int]) -> int:
    """How many numbers `picture_gradients` gives for a picture of (height, width) pixels."""
    rows, columns = picture_cells(image)
    return ORIENTATIONS * 4 * max(1, rows - 1) * max(1, columns - 1)


@torch.no_grad()
def picture_gradients(seen: Float[Tensor, "n channels height width"]) -> Float[Tensor, "n numbers"]:
    """Histograms of oriented gradients of whole pictures (Dalal and Triggs 2005): how strongly brightness changes in
    each of 8 orientations, in each of 7 x 7 cells, relative to the two by two cells around. fp32, without a gradient.

    Of several channels, each pixel counts by the one in which it changes most. Where a pixel or one of its neighbours
    was not measured (NaN), it does not count. `seen`: pictures as the model sees them: mean 0, deviation 1."""
    x = seen.float()
    down, across = (_derivative(x, dim) for dim in (2, 3))
    missing = down.isnan() | across.isnan() | x.isnan()
    size = torch.hypot(down, across).masked_fill(missing, 0.0)
    strongest = size.argmax(1, keepdim=True)
    size, down, across = (t.gather(1, strongest)[:, 0] for t in (size, down.nan_to_num(), across.nan_to_num()))
    angle = torch.atan2(down, across).remainder(math.pi) * (ORIENTATIONS / math.pi)
    share, low = angle.frac(), angle.long() % ORIENTATIONS
    both = torch.zeros(len(x), ORIENTATIONS, *x.shape[2:], device=x.device)
    both.scatter_(1, low[:, None], (size * (1 - share))[:, None])
    both.scatter_add_(1, (low[:, None] + 1) % ORIENTATIONS, (size * share)[:, None])
    found = adaptive_avg_pool2d(both, picture_cells((x.shape[2], x.shape[3])))
    rows, columns = (max(1, side - 1) for side in found.shape[2:])
    corners = [(i * (found.shape[2] > 1), j * (found.shape[3] > 1)) for i in (0, 1) for j in (0, 1)]
    blocks = torch.cat([found[:, :, i : i + rows, j : j + columns] for i, j in corners], 1)
    return (blocks / (blocks.square().sum(1, keepdim=True) + _FLAT).sqrt()).flatten(1)


def _derivative(x: Tensor, dim: int) -> Tensor:
    """Central differences, one-sided ones at both ends; 0 along a side of one pixel."""
    if x.shape[dim] < 2:
        return torch.zeros_like(x)
    return torch.gradient(x, dim=dim)[0]
