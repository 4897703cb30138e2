"""Which pictures are held out: drawn by the seed, and never a part of a group (patient, plate, slide, file) without the
rest, nor a picture without its exact copies."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from unmask.core.hashing import Salt, uniform
from unmask.errors import UserError, first_of, setting
from unmask.modalities.images.reading.arrays import ImageSet
from unmask.names import groups_alike


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


def copy_notes(images: ImageSet) -> list[str]:
    """Lines on groups that may be one, and on exact copies: how many there are, or how many of the test part are in
    training too; which have several labels."""
    alike = [] if images.groups is None else groups_alike(map(str, np.unique(images.groups)))
    same = copies(images)
    count = 0 if same is None else len(same) - int(same.max(initial=-1)) - 1
    if same is None or not count:
        return alike
    across = np.zeros(0, bool)
    if images.split is not None:
        across = np.isin(same[images.split != "train"], same[images.split == "train"])
    if across.any():
        judged = f"{across.sum():,} of {len(across):,} pictures to judge on"
        lines = [f"{judged} are exact copies of training ones: figures flatter the model"]
    else:
        lines = [f"{count:,} pictures are exact copies of others: kept on one side of every split"]
    return alike + lines + several_labels(images)


def several_labels(images: ImageSet) -> list[str]:
    """A line on pictures whose exact copies have other labels, if there are any."""
    same, label = copies(images), images.labels
    if images.targets is not None:
        label = np.unique(images.targets.values, axis=0, return_inverse=True)[1]
    if same is None or label is None:
        return []
    (content, _), first = np.unique(np.stack([same, label]), axis=1, return_index=True)
    several = [sorted(first[content == number]) for number in np.flatnonzero(np.bincount(content) > 1)]
    names = sorted(" and ".join(images.names[i] if images.names else str(i) for i in where) for where in several)
    return [f"{len(names):,} pictures stand under several labels: {first_of(names, 3, between='; ')}"] if names else []


def notes_across(train: ImageSet, held: ImageSet) -> list[str]:
    """Lines on groups of both, and `copy_notes` of both as one set whose test part is `held`; none of copies where they
    are not in memory, or of several sizes."""
    lines = []
    if train.groups is not None and held.groups is not None:
        shared = np.isin(held.groups, train.groups)
        parts = [len(np.unique(part.groups)) for part in (train, held)]  # type: ignore[arg-type]
        lines = [f"{parts[0]:,} groups (patients, files, folders) for training, {parts[1]:,} held out whole"]
        if shared.any():
            judged = f"{shared.sum():,} of {len(held):,} pictures to judge on"
            lines = [f"warning: {judged} are of groups that have training pictures: figures flatter the model"]
        lines += groups_alike(map(str, np.union1d(train.groups, held.groups)))
    if not isinstance(train.pixels, np.ndarray) or not isinstance(held.pixels, np.ndarray):
        return lines
    if train.pixels.shape[1:] != held.pixels.shape[1:]:
        return lines
    labels = None
    if train.labels is not None and held.labels is not None:
        labels = np.concatenate([np.array(part.classes)[part.labels] for part in (train, held)])
        labels = np.unique(labels, return_inverse=True)[1]
    return lines + copy_notes(
        ImageSet(
            pixels=np.concatenate([train.pixels, held.pixels]),
            names=[*train.names, *held.names],
            labels=labels,
            split=np.repeat(["train", "test"], [len(train), len(held)]),
        )
    )


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


def stratified(labels: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Booleans: a `share` of each class (at least one of a class of two or more), drawn by the seed."""
    chosen = np.zeros(len(labels), bool)
    rng = np.random.default_rng(seed)
    for number in np.unique(labels):
        here = rng.permutation(np.flatnonzero(labels == number))
        count = min(max(round(len(here) * share), int(len(here) > 1)), len(here) - 1)
        chosen[here[: max(count, 0)]] = True
    return chosen
