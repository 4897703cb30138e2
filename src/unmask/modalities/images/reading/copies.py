"""Copies among pictures: exact ones by their pixels, near ones (encoded, scaled or brightened anew) by a fingerprint.

The fingerprint is what a picture shrunk to 16 x 16 grey pixels has beyond the mean of each one's neighbours, at length
1: two pictures are near copies where the cosine of theirs is 0.99 or more. Among the 10 000 test pictures of
Fashion-MNIST 14 have such a neighbour; a difference hash of 64 bits has 3 813 of them within 3 bits of another.
Pictures that were cropped, mirrored or turned are not found.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image
from scipy.ndimage import uniform_filter

from unmask.errors import first_of
from unmask.modalities.images.reading.arrays import ImageSet
from unmask.modalities.images.reading.decode import with_channels
from unmask.modalities.images.reading.layout import group_notes
from unmask.modalities.images.reading.lazy import StoredArray
from unmask.names import groups_alike
from unmask.progress import counted

SIDE = 16
"""Of the grey picture; pictures with a shorter side have no fingerprint."""
NEAR = 0.99
"""Cosine of near copies."""
FLAT = 1e-3
"""Of its greatest value, a picture's detail that says nothing: a nearly blank one is a copy of none."""
NEAR_MOST = 10_000
"""Pictures of a run among which near copies are looked for, at a second or two; `describe` looks among more."""
_BLOCK = 1024
SHOWN = 3
"""Copies that a line names."""


class Alike(NamedTuple):
    """Copies among pictures.

    Attributes:
        same: (pictures,) a number that pictures with the same pixels share; None where they are not known.
        near: (pairs, 2) numbers of near copies that are no exact ones.
    """

    same: np.ndarray | None
    near: np.ndarray

    @property
    def exact(self) -> np.ndarray:
        """(pairs, 2): each picture that has an exact copy before it, and the first of them."""
        if self.same is None:
            return np.zeros((0, 2), np.int64)
        _, first, inverse = np.unique(self.same, return_index=True, return_inverse=True)
        pairs = np.stack([first[inverse], np.arange(len(self.same))], 1)
        return pairs[pairs[:, 0] != pairs[:, 1]]


def digest(pixels: np.ndarray) -> bytes | None:
    """16 bytes that pictures with the same pixels share; None of a blank one, of one value (the empty slices of every
    scan), which says nothing of another."""
    if not (pixels != pixels.flat[0]).any():
        return None
    shape = f"{pixels.shape} {pixels.dtype}".encode()
    return hashlib.blake2b(np.ascontiguousarray(pixels).data, digest_size=16, key=shape).digest()


def numbered(digests: Iterable[bytes | None]) -> np.ndarray:
    """(pictures,) a number that pictures of one digest share, and no other picture has; None is like no other.

    >>> numbered([b"a", None, b"a", None]).tolist()
    [0, 1, 0, 2]
    """
    first: dict[bytes, int] = {}
    found = [n if key is None else first.setdefault(key, n) for n, key in enumerate(digests)]
    return np.unique(np.array(found, np.int64), return_inverse=True)[1]


def copies(*sets: ImageSet) -> np.ndarray | None:
    """(pictures,) a number that pictures with the same pixels share, of the sets one after another; None where one is
    decoded as it comes. Checksums tell which may be copies, and these are compared whole."""
    if not all(isinstance(images.pixels, np.ndarray | StoredArray) for images in sets):
        return None
    sums = [_checksums(images.pixels) for images in sets]
    _, inverse, counts = np.unique(np.concatenate(sums), return_inverse=True, return_counts=True)
    every = ((images.pixels, i) for images in sets for i in range(len(images)))
    several = counts[inverse] > 1
    return numbered(digest(pixels[i]) if some else None for (pixels, i), some in zip(every, several, strict=True))


def _checksums(pixels: np.ndarray | StoredArray) -> np.ndarray:
    if isinstance(pixels, StoredArray):
        return pixels.checksums
    return np.array([zlib.crc32(np.ascontiguousarray(p).data) for p in pixels], np.uint32)


def shrunk(pixels: np.ndarray, missing: np.ndarray | None = None) -> np.ndarray:
    """(16, 16) float32, what the fingerprint of a picture (height, width, channels) is made of: it in grey and in
    small; zeros of one that is too small.

    Args:
        missing: (height, width) booleans, of pixels that were not measured: they count as the mean of the others.
    """
    if min(pixels.shape[:2]) < SIDE or (missing is not None and missing.all()):
        return np.zeros((SIDE, SIDE), np.float32)
    grey = with_channels(pixels, 1)[..., 0] if pixels.shape[-1] in (1, 3) else pixels.mean(-1, dtype=np.float32)
    if missing is not None and missing.any():
        grey = np.where(missing, grey[~missing].mean(), grey)
    image = Image.fromarray(grey if grey.dtype == np.uint8 else grey.astype(np.float32))
    # Bytes are fast to shrink and floats lose nothing: the first for most of it.
    coarse = image.reduce(max(1, min(image.size) // (8 * SIDE))).convert("F")
    return np.asarray(coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC))


def fingerprints(small: np.ndarray) -> np.ndarray:
    """(pictures, 256) float32 of length 1, of pictures that were `shrunk`, (pictures, 16, 16); zeros of a blank one."""
    detail = small - uniform_filter(small, (0, 3, 3))
    detail = (detail - detail.mean((1, 2), keepdims=True)).reshape(len(small), -1)
    length = np.linalg.norm(detail, axis=1, keepdims=True)
    says = length > FLAT * SIDE * np.abs(small).max((1, 2), initial=1e-30)[:, None]
    return np.where(says, detail / np.maximum(length, 1e-30), 0).astype(np.float32)


def near_pairs(fingerprints: np.ndarray, same: np.ndarray | None = None) -> np.ndarray:
    """(pairs, 2) numbers, rising, of near copies by (pictures, 256) fingerprints; none of exact ones, by `same`."""
    known = np.flatnonzero(fingerprints.any(1))
    if same is not None:  # of exact copies the first
        known = np.intersect1d(known, np.unique(same, return_index=True)[1])
    prints = np.ascontiguousarray(fingerprints[known])
    found = list(counted(_blocks(prints), -(-len(prints) // _BLOCK)))
    return known[np.concatenate(found)] if found else np.zeros((0, 2), np.int64)


def _blocks(prints: np.ndarray) -> Iterator[np.ndarray]:
    """(pairs, 2) near copies of each block of rows among the rows from it on."""
    for start in range(0, len(prints), _BLOCK):
        row, column = np.nonzero(prints[start : start + _BLOCK] @ prints[start:].T >= NEAR)
        yield np.stack([row, column], 1)[column > row] + start


def alike(*sets: ImageSet, near: bool = True) -> Alike:
    """Copies among the pictures of the sets, one after another; near ones where asked for and not too many."""
    same = copies(*sets)
    if same is None or not near:
        return Alike(same, np.zeros((0, 2), np.int64))
    every = ((p, None if one.missing is None else one.missing[n]) for one in sets for n, p in enumerate(one.pixels))
    return _with_near(same, every)


def alike_pictures(pictures: Sequence[np.ndarray]) -> Alike:
    """`alike` of (height, width, channels) pictures of any size."""
    return _with_near(numbered(map(digest, pictures)), ((p, None) for p in pictures))


def _with_near(same: np.ndarray, pictures: Iterable[tuple[np.ndarray, np.ndarray | None]]) -> Alike:
    if not 0 < len(same) <= NEAR_MOST:
        return Alike(same, np.zeros((0, 2), np.int64))
    small = np.stack([shrunk(pixels, missing) for pixels, missing in pictures])
    return Alike(same, near_pairs(fingerprints(small), same))


def copy_notes(images: ImageSet, found: Alike | None = None) -> list[str]:
    """Lines on what would make held-out figures too good: groups that nothing tells, or that may be one; copies, and
    how many of the test part are in training too; copies that have several labels. `found`: where it is known."""
    labels = None if images.labels is None else np.array(images.classes, object)[images.labels]
    if images.groups is None and not images.names:
        lines = []
    elif images.groups is None:
        lines = group_notes(images.names, labels, None if images.split is None else (images.split == "train").tolist())
    else:
        lines = groups_alike(map(str, np.unique(images.groups)))
    found = alike(images) if found is None else found
    lines += [*_exact_notes(images, found), *several_labels(images, found), *_near_notes(images, found.near)]
    return lines


def crossing(pairs: np.ndarray, side: np.ndarray) -> np.ndarray:
    """The pairs whose two differ in `side`."""
    return pairs[side[pairs[:, 0]] != side[pairs[:, 1]]]


def _exact_notes(images: ImageSet, found: Alike) -> list[str]:
    same = found.same
    count = 0 if same is None else len(same) - int(same.max(initial=-1)) - 1
    if same is None or not count:
        return []
    across = np.zeros(0, bool)
    if images.split is not None:
        across = np.isin(same[images.split != "train"], same[images.split == "train"])
    if across.any():
        judged = f"{across.sum():,} of {len(across):,} pictures to judge on"
        pairs = named_pairs(images, crossing(found.exact, np.asarray(images.split == "train")))
        return [f"warning: {judged} are exact copies of training ones: figures flatter the model ({pairs})"]
    return [f"{count:,} pictures are exact copies of others: kept on one side of every split"]


def _near_notes(images: ImageSet, near: np.ndarray) -> list[str]:
    """Of near copies, those across the parts of a data set and those of two classes first."""
    what, lines = "near copies (encoded or scaled anew)", []
    if images.split is not None and len(across := crossing(near, images.split == "train")):
        held = images.split != "train"
        count = len(np.unique(across[held[across]]))
        lines.append(
            f"warning: {count:,} of {held.sum():,} pictures to judge on are {what} of training ones: "
            f"figures flatter the model ({named_pairs(images, across)})"
        )
    elif len(near):
        count = len(np.unique(near[:, 1]))
        kept = "" if images.split is None else ", all on one side of the split"
        lines.append(f"{count:,} pictures are {what} of others{kept}: {named_pairs(images, near)}")
    if images.labels is not None and len(two := crossing(near, images.labels)):
        lines.append(f"warning: {len(two):,} pairs of {what} are of two classes: {named_pairs(images, two)}")
    return lines


def named_pairs(images: ImageSet, pairs: np.ndarray) -> str:
    """The first pairs by the names of their pictures."""
    return first_of((f"{name_at(images, a)} and {name_at(images, b)}" for a, b in pairs), SHOWN, between="; ")


def name_at(images: ImageSet, number: int) -> str:
    """The name of a picture, its number where it has none."""
    return images.names[number] if images.names else str(number)


def several_labels(images: ImageSet, found: Alike | None = None) -> list[str]:
    """A line on pictures whose exact copies have other labels, if there are any. `found`: where copies are known."""
    same, label = copies(images) if found is None else found.same, images.labels
    if images.targets is not None:
        label = np.unique(images.targets.values, axis=0, return_inverse=True)[1]
    if same is None or label is None:
        return []
    (content, _), first = np.unique(np.stack([same, label]), axis=1, return_index=True)
    several = [sorted(first[content == number]) for number in np.flatnonzero(np.bincount(content) > 1)]
    names = sorted(" and ".join(name_at(images, i) for i in where) for where in several)
    return (
        [f"warning: {len(names):,} pictures stand under several labels: {first_of(names, 3, between='; ')}"]
        if names
        else []
    )
