"""Which pictures are held out: drawn by the seed, and never a part of a group (patient, plate, slide, file) without the
rest, nor a picture without its exact copies."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from unmask.core.hashing import Salt, uniform
from unmask.errors import UserError, setting
from unmask.modalities.images.arrays import ImageSet
from unmask.modalities.images.probe import stratified


def copies(images: ImageSet) -> np.ndarray | None:
    """(pictures,) a number that pictures with the same pixels share; None where they are not in memory. Blank ones, of
    one value (the empty slices of every scan), say nothing of each other."""
    if not isinstance(images.pixels, np.ndarray):
        return None
    content = [
        hashlib.blake2b(np.ascontiguousarray(p).data, digest_size=16).digest()
        if (p != p.flat[0]).any()
        else number.to_bytes(16)
        for number, p in enumerate(images.pixels)
    ]
    return np.unique(np.array(content), return_inverse=True)[1]


def kept_together(images: ImageSet) -> np.ndarray | None:
    """(pictures,) the number of what must stand on one side of a split: the group, and with it all groups that have an
    exact copy of one of its pictures; None where every picture stands for itself."""
    same = copies(images)
    if same is None or same.max(initial=-1) + 1 == len(images):
        return images.groups
    if images.groups is None:
        return same
    _, group = np.unique(images.groups, return_inverse=True)
    size = int(group.max()) + 1
    joined = coo_array((np.ones(len(group)), (group, size + same)), shape=(size + same.max() + 1,) * 2)
    return connected_components(joined, directed=False)[1][group]


def copies_said(images: ImageSet) -> list[str]:
    """A line on exact copies, if there are any."""
    same = copies(images)
    count = 0 if same is None else len(same) - int(same.max(initial=-1)) - 1
    return [f"{count:,} pictures are exact copies of others: kept on one side of every split"] if count else []


def held_out_pictures(images: ImageSet, share: float, seed: int) -> np.ndarray:
    """Booleans: the pictures that are held out, drawn by the seed; groups stay whole, at least one on each side.

    Raises:
        UserError: a share is to be held out of one group.
    """
    groups = kept_together(images) if share else images.groups
    if groups is None:
        return uniform(seed, np.arange(len(images)), Salt.HELD_OUT_PICTURE) < share
    if not share:
        return np.zeros(len(images), bool)
    numbers, sizes = np.unique(groups, return_counts=True)
    if len(numbers) < 2:
        raise UserError(
            "all pictures belong to one group (patient, file, folder): none can be held out whole",
            hint=f"Give more of them, or {setting('holdout', 0)}.",
        )
    order = np.argsort(uniform(seed, np.arange(len(numbers)), Salt.HELD_OUT_PICTURE_GROUP), kind="stable")
    before = np.cumsum(sizes[order]) - sizes[order]
    # A group is held out while less than the share is; the first always, the last never.
    count = min(max(int((before < share * len(images)).sum()), 1), len(numbers) - 1)
    return np.isin(groups, numbers[order[:count]])


def held_out_by_class(images: ImageSet, share: float, seed: int) -> np.ndarray:
    """Booleans: a share of each class; of grouped pictures a share of the groups of each class (a group's is its most
    frequent one), whole."""
    assert images.labels is not None
    groups = kept_together(images)
    if groups is None:
        return stratified(images.labels, share, seed)
    numbers, place = np.unique(groups, return_inverse=True)
    counts = np.zeros((len(numbers), int(images.labels.max()) + 1), np.int64)
    np.add.at(counts, (place, images.labels), 1)
    return stratified(counts.argmax(1), share, seed)[place]


def split_groups(images: ImageSet, held: np.ndarray) -> dict[str, Any]:
    """How many groups stand on each side of the split, and how many on both (none); {} where there are no groups."""
    if images.groups is None:
        return {}
    train, out = set(images.groups[~held].tolist()), set(images.groups[held].tolist())
    return {"training_groups": len(train), "held_out_groups": len(out), "groups_on_both_sides": len(train & out)}
