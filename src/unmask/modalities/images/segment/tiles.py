"""Answers for a whole picture (probabilities, or a quantity), from tiles that overlap: a band of rows at a time, so
that memory does not grow with the picture's height."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from unmask.modalities.images.reading import decode
from unmask.modalities.images.segment.crops import mirrored
from unmask.modalities.images.segment.network import SegmentNet

OVERLAP = 0.5
"""Share of a tile's side that it shares with the next: every pixel is seen by four tiles."""
TOGETHER = 2**18
"""Pixels that go through the network at a time, about."""

Window = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(rows, columns) numbers -> (rows, columns, channels) float32 of a picture as the model sees it."""


def window_of(pixels: np.ndarray) -> Window:
    """Windows of a picture in memory."""
    return lambda rows, columns: pixels[np.ix_(rows, columns)]


def starts(length: int, side: int) -> list[int]:
    """Where tiles begin along a side: evenly, with `OVERLAP` or a little more. A picture smaller than a tile stands in
    its middle.

    >>> starts(200, 100), starts(100, 100), starts(40, 100)
    ([0, 50, 100], [0], [-30])
    """
    if length <= side:
        return [(length - side) // 2]
    return decode.starts(length, side, side - max(1, int(side * (1 - OVERLAP))))


def weights(side: int) -> np.ndarray:
    """(side,) how much each pixel of a tile counts: a raised cosine, so that tiles fade into each other.

    >>> weights(4).round(3).tolist()
    [0.146, 0.854, 0.854, 0.146]
    """
    return np.sin(np.pi * (np.arange(side) + 0.5) / side) ** 2


def answer_bands(
    net: SegmentNet, window: Window, size: tuple[int, int]
) -> Iterator[tuple[int, Float[Tensor, "classes rows width"]]]:
    """(first row, answers) of bands of rows that make up a picture of `size`, from the top down. Beyond its
    borders a picture is mirrored."""
    height, width = size
    high, wide = net.config.image
    lefts, tops = starts(width, wide), starts(height, high)
    weight = torch.from_numpy(np.outer(weights(high), weights(wide)).astype(np.float32))
    classes = net.head.out_channels
    total, share = torch.zeros(classes, high, width), torch.zeros(high, width)
    together = max(1, TOGETHER // (high * wide))
    for number, top in enumerate(tops):
        rows = mirrored(np.arange(top, top + high), height)
        for first in range(0, len(lefts), together):
            some = lefts[first : first + together]
            parts = [window(rows, mirrored(np.arange(left, left + wide), width)) for left in some]
            seen = torch.from_numpy(np.stack(parts).transpose(0, 3, 1, 2).copy()).to(net.device)
            with torch.inference_mode():
                answers = net.answers(seen).cpu()
            for left, found in zip(some, answers, strict=True):
                place = slice(max(left, 0), min(left + wide, width))
                own = slice(place.start - left, place.stop - left)
                total[:, :, place] += found[:, :, own] * weight[:, own]
                share[:, place] += weight[:, own]
        until = tops[number + 1] - top if number + 1 < len(tops) else high
        own_rows = slice(max(-top, 0), min(until, height - top))
        yield max(top, 0), total[:, own_rows] / share[own_rows]
        total, share = total.roll(-until, 1), share.roll(-until, 0)
        total[:, high - until :] = 0
        share[high - until :] = 0


def picture_answers(net: SegmentNet, pixels: np.ndarray) -> Float[Tensor, "classes height width"]:
    """Answers for a picture in memory, (height, width, channels) as the model sees it."""
    bands = [band for _, band in answer_bands(net, window_of(pixels), (pixels.shape[0], pixels.shape[1]))]
    return torch.cat(bands, 1)
