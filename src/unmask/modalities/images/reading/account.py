"""What was made of a set of pictures, as figures and in words: shape, channels, depth, range, what was left out and
why."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UserError, first_of, setting
from unmask.evaluation.classes import class_counts, label_notes
from unmask.modalities.images.reading.arrays import ImageSet
from unmask.modalities.images.reading.decode import scale_of
from unmask.modalities.images.reading.lazy import StreamedArray
from unmask.modalities.images.reading.listing import reasons

_RANGED = 2000
"""Pictures whose values are looked at, evenly taken; of files that are decoded as they come fewer."""
_STREAMED = 32
SHOWN = 5
"""Skipped pictures that are named one by one."""


def tell_skipped(given: Any, found: ImageSet) -> None:
    """Warn of pictures of what was `given` that could not be read; not of an `ImageSet`, which names them.

    Raises:
        UserError: they were given one by one, so that a row of what is answered would be taken for another picture's.
    """
    if not found.skipped or isinstance(given, ImageSet):
        return
    named = first_of((f"{name}: {reason}" for name, reason in found.skipped), SHOWN, between="; ")
    paths = [given] if isinstance(given, str | Path) else given if isinstance(given, list) else []
    if not any(isinstance(p, str | Path) and (p is given or Path(p).expanduser().is_dir()) for p in paths):
        raise UserError(f"{len(found.skipped)} pictures cannot be read: {named}", hint="Leave them out.")
    warnings.warn(f"{len(found.skipped)} pictures cannot be read and are left out: {named}", stacklevel=3)


def describe(images: ImageSet, *, mirrored: bool = False) -> dict[str, Any]:
    """Figures of a set: 'shape' (height, width, channels), 'depth', 'range' of the measured pixels in their own units,
    'typical' ends of a picture (see `typical_ends`), 'missing_share', 'skipped' with 'skipped_reasons', 'notes'; of
    tiles the number of 'whole_pictures'. `mirrored`: training mirrors half of them, which is noted."""
    some, notes = sample(images), list(images.notes)
    if mirrored:
        notes.append(f"training mirrors half of them: {setting('flip', False)} if left and right differ")
    if isinstance(images.pixels, StreamedArray):
        notes.append(f"values and missing pixels are those of {len(some)} of the pictures")
        share = 0.0 if some.missing is None else float(np.asarray(some.missing[:]).mean())
    else:
        share = 0.0 if images.missing is None else float(images.missing.mean())
    ends = picture_ends(some)
    found: dict[str, Any] = {
        "pictures": len(images),
        "shape": [*images.size, images.channels],
        "depth": images.depth,
        "range": value_range(ends),
        "typical": typical_ends(ends),
        "missing_share": share,
        "skipped": len(images.skipped),
        "skipped_reasons": reasons(images.skipped),
        "skipped_first": [list(s) for s in images.skipped[:SHOWN]],
        "notes": notes,
    }
    if images.tiles is not None:
        found["whole_pictures"] = len(np.unique(images.tiles.scene))
    return found


def sample(images: ImageSet) -> ImageSet:
    """The pictures whose values are looked at, evenly taken."""
    most = _STREAMED if isinstance(images.pixels, StreamedArray) else _RANGED
    return images if len(images) <= most else images.take(np.arange(0, len(images), -(-len(images) // most)))


def picture_ends(images: ImageSet) -> np.ndarray:
    """(pictures, 2) least and greatest measured pixel of each picture that has one."""
    found = []
    for number, pixels in enumerate(images.pixels):
        known = pixels if images.missing is None else pixels[~images.missing[number]]
        if known.size:
            found.append((float(known.min()), float(known.max())))
    return np.array(found).reshape(-1, 2)


def value_range(ends: np.ndarray) -> list[float]:
    """[least, greatest] pixel of all pictures, [0, 0] where none was measured."""
    return [float(ends[:, 0].min()), float(ends[:, 1].max())] if len(ends) else [0.0, 0.0]


def typical_ends(ends: np.ndarray) -> list[float]:
    """[least, greatest] pixel of a typical picture: the medians, which a few odd pixels do not move."""
    return [float(v) for v in np.median(ends, 0)] if len(ends) else [0.0, 0.0]


def class_notes(classes: Sequence[str], labels: np.ndarray) -> list[str]:
    """Lines with the number of pictures of each class, and classes that may be none or the same."""
    counted = np.bincount(labels, minlength=len(classes)).tolist()
    return [*class_counts(dict(zip(classes, counted, strict=True))), *label_notes(classes[n] for n in labels)]


def account_lines(account: Mapping[str, Any]) -> list[str]:
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
_NARROW = {"uint8": 1 / 16, "uint16": 1 / 8, "float32": 1 / 8}
"""By depth: where no picture spans more than this share of what a typical picture of the training spans, all were
scaled otherwise. Dark photographs span more; labels, 8 bits among 12, 12 among 16, 0 to 1 among other floats less."""


def check_fit(
    images: ImageSet, depth: str, trained: tuple[float, float] | None, typical: tuple[float, float] | None = None
) -> list[str]:
    """`check_ends` of pictures."""
    return check_ends(picture_ends(sample(images)), images.depth, depth, trained, typical)


def check_ends(
    ends: np.ndarray,
    given: str,
    depth: str,
    trained: tuple[float, float] | None,
    typical: tuple[float, float] | None = None,
) -> list[str]:
    """Refuse pictures whose depth or scale is not that of the pictures a model was trained on.

    A scale does not fit where values reach beyond the trained range by more than its width, or where no picture spans
    more than an eighth (of 8 bits a sixteenth) of what a typical one of the training spans, of whole numbers from its
    low end on; blank pictures fit. Floats from 0 to 1 and whole numbers go together, other floats (Hounsfield units,
    say) and whole numbers do not. `ends`: see `picture_ends`, of pictures of the depth `given`. `depth`, `trained`,
    `typical`: of the pictures of the training; least and greatest pixel of all (None where not known: of 8
    bits then 0 and 255), and of a typical one (by default the same). Returns a warning where floats lie elsewhere on
    the scale than those of the training."""
    hint = f"Bring them to the same scale; if they are meant so, say {setting('rescale', True)}."
    low, high = value_range(ends)
    if depth != "float32" and given == "float32":
        if low < -_SLACK or high > 1 + _SLACK:
            raise UserError(
                f"floats from {low:g} to {high:g}, for a model of {depth} pictures",
                hint="Expected 0 to 1 (divide 8-bit pixels by 255), or whole numbers.",
            )
    elif depth != "float32" and given != depth:
        raise UserError(f"pictures of {given}, for a model of {depth} pictures", hint=hint)
    trained = (0.0, 255.0) if trained is None and depth == "uint8" else trained
    if trained is None or not len(ends):
        return []
    if given != "float32" and depth == "float32" and (trained[0] < -_SLACK or trained[1] > 1 + _SLACK):
        raise UserError(f"pictures of {given}, for a model of floats from {trained[0]:g} to {trained[1]:g}", hint=hint)
    scale = scale_of(depth) / scale_of(given)  # in the units of the pictures trained on
    ends = ends * scale
    low, high = value_range(ends)
    width, usual = trained[1] - trained[0], typical or trained
    span, widest = usual[1] - usual[0], float((ends[:, 1] - ends[:, 0]).max())
    narrow = 0 < widest < _NARROW[depth] * span
    if depth != "float32":  # a pale picture is of no other scale
        narrow = narrow and high < usual[0] + 2 * _NARROW[depth] * span
    if low < trained[0] - width or high > trained[1] + width or narrow:
        raise UserError(
            f"pictures with values {low:g} to {high:g}, for a model trained on {trained[0]:g} to {trained[1]:g}",
            hint=hint,
        )
    here = typical_ends(ends)
    if depth == "float32" and max(abs(a - b) for a, b in zip(here, usual, strict=True)) > span / 2:
        return [
            f"a typical picture has values {here[0]:g} to {here[1]:g}, one of those the model was trained on "
            f"{usual[0]:g} to {usual[1]:g}: are they on one scale?"
        ]
    return []
