"""What was made of a set of pictures, as figures and in words: shape, channels, depth, range, what was left out and
why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from unmask.errors import UserError, setting
from unmask.modalities.images.arrays import ImageSet
from unmask.modalities.images.decode import scale_of
from unmask.modalities.images.listing import reasons
from unmask.modalities.images.streaming import StreamedArray

_RANGED = 2000
"""Pictures whose range is looked at, evenly taken."""
_STREAMED = 32
SHOWN = 5
"""Skipped pictures that are named one by one."""


def describe(images: ImageSet) -> dict[str, Any]:
    """Figures of a set: 'shape' (height, width, channels), 'depth', 'range' of the measured pixels in their own units,
    'missing_share', 'skipped' with 'skipped_reasons', 'notes'; of tiles the number of 'whole_pictures'."""
    notes = list(images.notes)
    if isinstance(images.pixels, StreamedArray):
        # Files that are decoded as they come are looked at again here: a few of them.
        some = images.take(np.unique(np.linspace(0, len(images) - 1, _STREAMED).astype(int)))
        low, high = value_range(some)
        share = float(np.asarray(some.missing[:]).mean()) if some.missing is not None else 0.0
        notes.append(f"values and missing pixels are those of {len(some)} of the pictures")
    else:
        low, high = value_range(images)
        share = 0.0 if images.missing is None else float(images.missing.mean())
    found: dict[str, Any] = {
        "pictures": len(images),
        "shape": [*images.size, images.channels],
        "depth": images.depth,
        "range": [low, high],
        "missing_share": share,
        "skipped": len(images.skipped),
        "skipped_reasons": reasons(images.skipped),
        "skipped_first": [list(s) for s in images.skipped[:SHOWN]],
        "notes": notes,
    }
    if images.tiles is not None:
        found["whole_pictures"] = len(np.unique(images.tiles.scene))
    return found


def value_range(images: ImageSet, most: int = _RANGED) -> tuple[float, float]:
    """(least, greatest) measured pixel of at most `most` pictures, evenly taken; (0, 0) where none was measured."""
    step = max(1, -(-len(images) // most))
    low, high = np.inf, -np.inf
    for number in range(0, len(images), step):
        pixels = images.pixels[number]
        known = pixels if images.missing is None else pixels[~images.missing[number]]
        if known.size:
            low, high = min(low, float(known.min())), max(high, float(known.max()))
    return (low, high) if low <= high else (0.0, 0.0)


def told(account: Mapping[str, Any]) -> list[str]:
    """An account in words, a line for each thing."""
    height, width, channels = account["shape"]
    low, high = account["range"]
    each = "tiles" if "whole_pictures" in account else "pictures"
    line = f"{account['pictures']:,} {each} of {width} x {height} pixels, {channels} channel{'s' * (channels > 1)}"
    line += f" of {account['depth']}, values {low:g} to {high:g}"
    if "whole_pictures" in account:
        line += f", cut from {account['whole_pictures']:,} pictures"
    lines = [line]
    if account.get("missing_share"):
        lines.append(f"{account['missing_share']:.1%} of the pixels are missing: never hidden, never predicted")
    lines += account["notes"]
    lines += [f"skipped {name}: {reason}" for name, reason in account["skipped_first"]]
    if account["skipped"] > len(account["skipped_first"]):
        counted = "; ".join(f"{count} x {reason}" for reason, count in account["skipped_reasons"].items())
        lines.append(f"... skipped {account['skipped']} in all: {counted}")
    return lines


_SLACK = 1e-3
"""How far floats may lie outside 0 to 1: rounding."""
_NARROW = 0.02
"""Pictures whose values all lie within this share of the trained range were scaled otherwise."""


def check_fit(images: ImageSet, depth: str, trained: tuple[float, float] | None) -> None:
    """Refuse pictures whose depth or range is not that of the pictures a model was trained on.

    A range does not fit where it reaches beyond the trained one by more than that one's width, or fills less than a
    fiftieth of it. Of 8 bits only the depth is compared. Floats from 0 to 1 and whole numbers go together, other floats
    (Hounsfield units, say) and whole numbers do not.

    Args:
        depth: of the pictures it was trained on.
        trained: their least and greatest pixel, None where that is not known.

    Raises:
        UserError: naming both, and what to do.
    """
    hint = f"Bring them to the same scale; if they are meant so, say {setting('rescale', True)}."
    if depth != "float32" and images.depth == "float32":
        low, high = value_range(images)
        if low < -_SLACK or high > 1 + _SLACK:
            raise UserError(
                f"floats from {low:g} to {high:g}, for a model of {depth} pictures",
                hint="Expected 0 to 1 (divide 8-bit pixels by 255), or whole numbers.",
            )
        return
    if depth != "float32" and images.depth != depth:
        raise UserError(f"pictures of {images.depth}, for a model of {depth} pictures", hint=hint)
    if depth == "uint8" or trained is None:
        return
    if images.depth != "float32" and depth == "float32" and (trained[0] < -_SLACK or trained[1] > 1 + _SLACK):
        raise UserError(
            f"pictures of {images.depth}, for a model of floats from {trained[0]:g} to {trained[1]:g}", hint=hint
        )
    full = scale_of(images.depth) if depth == "float32" else 1.0
    low, high = (v / full for v in value_range(images))
    width = trained[1] - trained[0]
    narrow = 0 < high - low < _NARROW * width or high < trained[0] + _NARROW * width
    if low < trained[0] - width or high > trained[1] + width or narrow:
        raise UserError(
            f"pictures with values {low:g} to {high:g}, for a model trained on {trained[0]:g} to {trained[1]:g}",
            hint=hint,
        )
