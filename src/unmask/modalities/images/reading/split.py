"""Which pictures are held out: drawn by the seed, and never a part of a group (patient, plate, slide, file) without the
rest, nor a picture without its exact copies; of pictures without groups near ones are kept together too."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from unmask.core.hashing import Salt, uniform
from unmask.errors import UserError, setting
from unmask.modalities.images.reading.arrays import ImageSet
from unmask.modalities.images.reading.copies import Alike, alike, copy_notes


def kept_together(images: ImageSet, *, near: bool = False) -> np.ndarray | None:
    """(pictures,) the number of what must stand on one side of a split: the group, and with it all groups that have an
    exact copy of one of its pictures; None where every picture stands for itself. `near`: of pictures without groups
    near copies too."""
    return joined(images.groups, alike(images, near=near and images.groups is None))


def joined(groups: np.ndarray | None, found: Alike) -> np.ndarray | None:
    """`groups` of pictures, those that copies connect as one; near copies are left apart where they would connect more
    than half of the pictures (one camera, one object), of which then none could be judged."""
    for pairs in (np.concatenate([found.exact, found.near]), found.exact):
        if not len(pairs):
            continue
        size = len(found.same) if groups is None and found.same is not None else len(groups)  # type: ignore[arg-type]
        group = np.arange(size) if groups is None else np.unique(groups, return_inverse=True)[1]
        count = int(group.max()) + 1
        ends = (group[pairs[:, 0]], group[pairs[:, 1]])
        links = coo_array((np.ones(len(pairs)), ends), shape=(count, count))
        together: np.ndarray = connected_components(links, directed=False)[1][group]
        if len(pairs) == len(found.exact) or np.bincount(together).max() <= size / 2:
            return together
    return groups


def notes_across(train: ImageSet, held: ImageSet) -> list[str]:
    """Lines on groups of both, and `copy_notes` of both as one set whose test part is `held`."""
    lines = []
    if train.groups is not None and held.groups is not None:
        shared = np.isin(held.groups, train.groups)
        parts = [len(np.unique(part.groups)) for part in (train, held)]  # type: ignore[arg-type]
        lines = [f"{parts[0]:,} groups (patients, files, folders) for training, {parts[1]:,} held out whole"]
        if shared.any():
            judged = f"{shared.sum():,} of {len(held):,} pictures to judge on"
            lines = [f"warning: {judged} are of groups that have training pictures: figures flatter the model"]
    labels = None
    if train.labels is not None and held.labels is not None:
        labels = np.concatenate([np.array(part.classes)[part.labels] for part in (train, held)])
        labels = np.unique(labels, return_inverse=True)[1]
    whole = ImageSet(
        pixels=np.empty((len(train) + len(held), 0, 0, 0)),
        names=[*train.names, *held.names] if train.names and held.names else [],
        labels=labels,
        classes=[] if labels is None else sorted({*train.classes, *held.classes}),
        groups=None if train.groups is None or held.groups is None else np.concatenate([train.groups, held.groups]),
        split=np.repeat(["train", "test"], [len(train), len(held)]),
    )
    return lines + copy_notes(whole, alike(train, held))


def held_out_pictures(images: ImageSet, share: float, seed: int) -> np.ndarray:
    """Booleans: the pictures that are held out, drawn by the seed; groups stay whole, at least one on each side."""
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
    groups = kept_together(images, near=True)
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


def stratified(labels: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Booleans: a `share` of each class (at least one of a class of two or more), drawn by the seed."""
    chosen = np.zeros(len(labels), bool)
    rng = np.random.default_rng(seed)
    for number in np.unique(labels):
        here = rng.permutation(np.flatnonzero(labels == number))
        count = min(max(round(len(here) * share), int(len(here) > 1)), len(here) - 1)
        chosen[here[: max(count, 0)]] = True
    return chosen
