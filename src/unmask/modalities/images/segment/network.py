"""The network that gives every pixel a class, or a quantity: a pretrained encoder of patches, and convolutions over the
pixels beside it, which know where a border runs.

Shape letters: n (crops), channels, height, width_px, rows and columns (of the grid of patches), classes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from unmask.core.model import MaskedModel
from unmask.encoder.transformer import LayerNorm
from unmask.modalities.images.network.codec import PatchCodec, PatchCodecConfig, patchify

DEPTHS = 4
"""Depths of the encoder that are read: at most so many, evenly spaced, the last among them (Li et al. 2022, ViTDet;
Ranftl et al. 2021, DPT)."""
WIDTH = 16
"""Channels of the convolutions at full resolution; twice as many at each halving, at most four times."""
HALVINGS = 3
"""How often the convolutions halve the resolution, fewer times where a crop is too small for it."""
JOINED = 96
"""Channels into which the encoder's states are brought."""


def convolutions(inputs: int, outputs: int) -> nn.Sequential:
    """Two 3 x 3 convolutions, each with a batch norm: statistics of a whole batch, which at rest are constants, so
    that a tile's answer does not depend on what else the tile shows."""
    parts: list[nn.Module] = []
    for wide in (inputs, outputs):
        parts += [nn.Conv2d(wide, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*parts)


def read_depths(layers: int) -> list[int]:
    """The layers, counted from 1, behind which states are read.

    >>> read_depths(12), read_depths(4), read_depths(2)
    ([3, 6, 9, 12], [1, 2, 3, 4], [1, 2])
    """
    count = min(DEPTHS, layers)
    return [round(layers * (k + 1) / count) for k in range(count)]


class SegmentNet(nn.Module):
    """A U-Net (Ronneberger et al. 2015) whose lowest level also reads the states of a pretrained encoder, of several of
    its depths, as in TransUNet and UNETR (Chen et al. 2021; Hatamizadeh et al. 2022). Nothing is hidden from the
    encoder; its decoder is not used.

    Args:
        model: the masked model; crops are of its picture size.
        classes: how many; 1 of a quantity.
        scale: the mean of the quantity and the deviation, in which it is answered; None of classes.
    """

    def __init__(self, model: MaskedModel[PatchCodec], classes: int, scale: tuple[float, float] | None = None) -> None:
        super().__init__()
        self.masked, self.scale = model, scale
        config, width = model.codec.config, model.encoder.config.width
        self.depths = read_depths(len(model.encoder.config.layer_order))
        self.norms = nn.ModuleList([LayerNorm(width) for _ in self.depths])
        self.merge = nn.Linear(width * len(self.depths), JOINED)
        halvings = max(k for k in range(HALVINGS + 1) if min(config.image) >> k >= 2)
        wide = [WIDTH * min(2**k, 4) for k in range(halvings + 1)]
        self.down = nn.ModuleList([convolutions(config.channels, wide[0])])
        self.down.extend(convolutions(a, b) for a, b in pairwise(wide))
        self.join = convolutions(wide[-1] + JOINED, wide[-1])
        self.up = nn.ModuleList(convolutions(a + b, a) for a, b in reversed(list(pairwise(wide))))
        self.head = nn.Conv2d(wide[0], classes, 1)
        for module in (self.merge, self.head):
            nn.init.trunc_normal_(module.weight, std=0.02)
            assert module.bias is not None
            nn.init.zeros_(module.bias)

    @property
    def config(self) -> PatchCodecConfig:
        """What the encoder was built for: size, patch and channels of crops."""
        return self.masked.codec.config

    @property
    def device(self) -> torch.device:
        """Where the network lies."""
        return self.head.weight.device

    def forward(self, seen: Float[Tensor, "n channels height width_px"]) -> Float[Tensor, "n classes height width_px"]:
        """Logits of every pixel, fp32, of crops as the model sees them (of mean 0 and deviation 1), none missing."""
        x = seen.contiguous(memory_format=torch.channels_last)
        levels = [self.down[0](x)]
        for block in list(self.down)[1:]:
            levels.append(block(F.max_pool2d(levels[-1], 2)))
        low = levels.pop()
        states = self.states(seen)
        states = F.interpolate(states, low.shape[2:], mode="bilinear", align_corners=False).to(low.dtype)
        x = self.join(torch.cat([low, states], 1))
        for block in self.up:
            level = levels.pop()
            x = F.interpolate(x, level.shape[2:], mode="nearest")
            x = block(torch.cat([level, x], 1))
        return self.head(x).float()

    def answers(self, seen: Float[Tensor, "n channels height width_px"]) -> Float[Tensor, "n classes height width_px"]:
        """Probabilities of the classes, or the quantity in its own unit."""
        found = self(seen)
        return found.softmax(1) if self.scale is None else found * self.scale[1] + self.scale[0]

    def states(self, seen: Float[Tensor, "n channels height width_px"]) -> Float[Tensor, "n joined rows columns"]:
        """The encoder's states at several depths, merged, on the grid of patches."""
        config, encoder = self.config, self.masked.encoder
        first = int(config.class_token)
        patch = patchify(seen, config.patch)
        special = torch.zeros(len(seen), config.slots, dtype=torch.int64, device=seen.device)
        special[:, :first] = 1
        values: dict[str, Any] = {"patch": F.pad(patch, (0, 0, first, 0))} | ({"class": special} if first else {})
        position = torch.arange(config.slots, device=seen.device).expand(len(seen), -1)
        segment = torch.ones_like(position)
        x = encoder.stem(self.masked.codec.embed(values, segment == 0), position)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        layout = encoder.layout(segment, position)
        found: list[Tensor] = []
        for number, layer in enumerate(encoder.config.layer_order, 1):
            x = encoder.layers[layer](x, layout)
            if number in self.depths:
                found.append(self.norms[len(found)](x[:, first:]))
        merged = self.merge(torch.cat(found, -1))
        return merged.transpose(1, 2).unflatten(2, config.grid)
