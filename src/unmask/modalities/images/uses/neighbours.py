"""Nearest neighbours by vectors, exactly: which pictures a model takes for alike, beside those that raw pixels do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from unmask.errors import UserError
from unmask.evaluation.charts import drawn
from unmask.evaluation.report import Report
from unmask.evaluation.shown import Printed, Shown
from unmask.modalities.images.network.batches import evenly
from unmask.modalities.images.network.features import PASSING, ImagePooling, pooled
from unmask.modalities.images.reading.arrays import ImageSet
from unmask.modalities.images.reading.decode import resize
from unmask.modalities.images.segment.scenes import whole_pictures
from unmask.modalities.images.uses.drawing import Thumbnail, small, strip
from unmask.modalities.images.uses.vectors import readable, row_groups, row_names, row_pictures

COUNT, DRAWN = 6, 12
"""Neighbours of a picture, and pictures that are printed and drawn with theirs, evenly taken."""
JUDGED = 2000
"""Pictures whose neighbours the shares are of, evenly taken."""
RAW_SIDE = 16
"""Pixels of a side of what raw pixels are compared by."""
_BLOCK = 512
_FACTS = {
    "same_class": "Neighbours of the same class",
    "raw_same_class": "By raw pixels",
    "chance": "By chance",
    "shared": "Neighbours by raw pixels too",
}


def nearest(
    vectors: np.ndarray, queries: np.ndarray, count: int, groups: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """((queries, count) numbers of the vectors nearest to some of them by cosine, (queries, count) these cosines), the
    nearest first, themselves left out, and with `groups` all of their own group; -1 and -inf where there are fewer.
    Exact, a block of queries at a time."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    number = None if groups is None else np.unique(groups, return_inverse=True)[1]
    count = min(count, len(vectors))
    out, cosines = np.empty((len(queries), count), np.int64), np.empty((len(queries), count), np.float32)
    for start in range(0, len(queries), _BLOCK):
        some = queries[start : start + _BLOCK]
        alike = unit[some] @ unit.T
        alike[np.arange(len(some)), some] = -np.inf
        if number is not None:
            alike[number[some][:, None] == number] = -np.inf
        best = np.sort(np.argpartition(-alike, count - 1, axis=1)[:, :count], axis=1)
        near = np.take_along_axis(alike, best, 1)
        order = np.argsort(-near, axis=1, kind="stable")
        cosines[start : start + _BLOCK] = np.take_along_axis(near, order, 1)
        out[start : start + _BLOCK] = np.take_along_axis(best, order, 1)
    out[~np.isfinite(cosines)] = -1
    return out, cosines


def raw_vectors(images: ImageSet) -> np.ndarray:
    """(rows, ...) the trivial rule: pixels of at most 16 x 16, less their mean over all pictures; of tiles the mean
    over those of a picture."""
    height, width = (min(side, RAW_SIDE) for side in images.size)
    found = np.stack([resize(p, height, width).astype(np.float32).ravel() for p in images.pixels])
    found -= found.mean(0)
    return found if images.tiles is None else pooled(found, images)


def picture_of(images: ImageSet, row: int) -> tuple[np.ndarray, np.ndarray | None]:
    """(pixels, which are missing or None) of the picture of a row, whole where tiles were cut from it."""
    if images.tiles is None:
        return images.pixels[row], None if images.missing is None else images.missing[row]
    scene = images.tiles.scene
    whole = next(whole_pictures(images.take(np.flatnonzero(scene == np.unique(scene)[row]))))
    return whole.pixels, whole.missing


def same_class(labels: np.ndarray, queries: np.ndarray, near: np.ndarray) -> float:
    """Share of the neighbours that have their picture's class."""
    there = near >= 0
    return float((labels[near] == labels[queries][:, None])[there].mean()) if there.any() else float("nan")


@dataclass(frozen=True, kw_only=True, repr=False)
class Neighbours(Printed):
    """Pictures and those nearest to them, by a model and by raw pixels; printed, as plain data, and as a page.

    Attributes:
        images: the pictures, at the model's size.
        names: of the rows.
        queries: (queries,) rows whose neighbours are listed.
        near, cosines: (queries, count) rows nearest to each by the model, and their cosines; -1 where there are fewer.
        raw: the same by raw pixels, without cosines.
        shares: over at most 2000 pictures: `shared` (neighbours that are also nearest by raw pixels) and, where there
            are classes, `same_class` (neighbours of the picture's class), `raw_same_class` and `chance`.
        groups: pictures of one group (patient, slide) are left out of each other's neighbours.
    """

    images: ImageSet
    names: list[str]
    queries: np.ndarray
    near: np.ndarray
    cosines: np.ndarray
    raw: np.ndarray
    shares: dict[str, float]
    groups: bool

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for --json."""
        rows = []
        for q, near, cosines, raw in zip(self.queries, self.near, self.cosines, self.raw, strict=True):
            found = [
                {"picture": self.names[n], "cosine": round(float(c), 4)}
                for n, c in zip(near, cosines, strict=True)
                if n >= 0
            ]
            by_pixels = [self.names[n] for n in raw if n >= 0]
            rows.append({"picture": self.names[q], "neighbours": found, "by_raw_pixels": by_pixels})
        return {"neighbours": rows, **{k: round(v, 4) for k, v in self.shares.items()}}

    def shown(self) -> Shown:
        """The pictures with their neighbours."""
        rows = [
            (row["picture"], ", ".join(f"{n['picture']} ({n['cosine']:.2f})" for n in row["neighbours"]))
            for row in self.to_dict()["neighbours"]
        ]
        return Shown(
            title=f"{len(self.names):,} pictures, the nearest of {len(self.queries)} of them",
            columns=("picture", "nearest, with cosine"),
            rows=rows,
            notes=self.notes(),
            next_step="write_report('neighbours.html') to see them",
        )

    def notes(self) -> list[str]:
        """The shares in words, beside those of the trivial rule."""
        s, lines = self.shares, []
        if "same_class" in s:
            lines.append(
                f"of the {self.near.shape[1]} nearest {s['same_class']:.1%} have the picture's class; by raw pixels "
                f"{s['raw_same_class']:.1%}, by chance {s['chance']:.1%}"
            )
        lines.append(f"{s['shared']:.1%} of the neighbours are so by raw pixels of {RAW_SIDE} x {RAW_SIDE} too")
        if self.groups:
            lines.append("pictures of one group (patient, slide, file) are not counted as neighbours of each other")
        return lines

    def caption(self) -> str:
        """What `section` draws, and the shares."""
        queries, count = self.near.shape
        first = f"{queries} pictures, each with the {count} of {len(self.names) - 1} others that are nearest"
        return " ".join(f"{line}." for line in [first, *self.notes()])

    def section(self) -> Markup:
        """The pictures with their neighbours as thumbnails, by the model above, by raw pixels below."""
        shown = {int(n) for n in np.concatenate([self.queries, self.near.ravel(), self.raw.ravel()]) if n >= 0}
        drawn_ = {n: small(*picture_of(self.images, n)) for n in sorted(shown)}
        rows: list[tuple[str, str, Markup]] = []
        for q, near, cosines, raw in zip(self.queries, self.near, self.cosines, self.raw, strict=True):
            first = Thumbnail(drawn_[q], self.names[q], "query")
            ours = [
                Thumbnail(drawn_[n], f"{c:.2f} {self.names[n]}") for n, c in zip(near, cosines, strict=True) if n >= 0
            ]
            rule = [Thumbnail(drawn_[n], self.names[n]) for n in raw if n >= 0]
            rows.append((self.names[q], "nearest by the model, with cosine", strip([first, *ours])))
            rows.append(("", "nearest by raw pixels", strip([first, *rule])))
        return drawn("strips", rows)

    def write_report(self, path: str | Path) -> Path:
        """Write a page with the pictures and their neighbours."""
        page = Report("Nearest neighbours", f"{len(self.names):,} pictures")
        page.facts({_FACTS[name]: f"{share:.1%}" for name, share in self.shares.items()})
        return page.section("Pictures and those nearest to them", self.section(), note=self.caption()).write(path)


def neighbours(
    model: Any,
    data: Any,
    *,
    queries: int = DRAWN,
    count: int = COUNT,
    pooling: ImagePooling = "mean",
    vectors: np.ndarray | None = None,
    **reading: Any,
) -> Neighbours:
    """Pictures and those nearest to them by a model's vectors (cosine, exact), beside those nearest by raw pixels.

    Args:
        model: a folder, or a loaded model of images, pretrained or fine-tuned.
        data: pictures; see `read_images`.
        queries: how many pictures are listed with their neighbours, evenly taken.
        count: neighbours of each.
        pooling: see `ImageModel.embed`.
        vectors: (rows, width) of `embed` of the same pictures; None: they are computed.
        reading: how files are read; see `read_images`.

    Raises:
        UserError: fewer than two pictures, or vectors of other pictures.
    """
    from unmask.modalities.images.uses.model import load

    loaded = load(model) if isinstance(model, str | Path) else model
    reader = loaded.model if hasattr(loaded, "classes") else loaded
    images = reader.read(data, **{"store": PASSING, "problem": "auto"} | reading)
    return neighbours_of(images, loaded.embed(images, pooling=pooling) if vectors is None else vectors, queries, count)


def neighbours_of(images: ImageSet, vectors: np.ndarray, queries: int = DRAWN, count: int = COUNT) -> Neighbours:
    """`neighbours` of pictures that are read, and their vectors."""
    images = readable(images)
    names, groups = row_names(images), row_groups(images)
    if groups is not None and len(np.unique(groups)) in (1, len(groups)):
        groups = None  # each picture for itself, or nothing but one group
    if len(names) != len(vectors):
        raise UserError(f"{len(vectors):,} vectors of {len(names):,} pictures", hint="Give those of the same pictures.")
    if len(names) < 2:
        raise UserError(f"{len(names)} picture", hint="Neighbours need two or more.")
    raw, count = raw_vectors(images), min(count, len(names) - 1)
    judged = evenly(np.arange(len(names)), JUDGED)
    near, by_pixels = (nearest(v, judged, count, groups)[0] for v in (vectors, raw))
    both = (near[:, :, None] == by_pixels[:, None, :]).any(-1)[near >= 0]
    shares = {"shared": float(both.mean()) if len(both) else float("nan")}
    if images.labels is not None and len(images.classes) > 1:
        labels = images.labels[row_pictures(images)]
        group = np.arange(len(labels)) if groups is None else np.unique(groups, return_inverse=True)[1]
        own = np.unique(np.stack([labels, group]), axis=1, return_inverse=True)[1].ravel()  # class and group
        left, same, both_same = (np.bincount(a)[a][judged] for a in (group, labels, own))
        chance = float(((same - both_same) / (len(labels) - left)).mean())
        if chance:  # else the folders of classes are the groups
            same_of, raw_same = (same_class(labels, judged, found) for found in (near, by_pixels))
            shares = {"same_class": same_of, "raw_same_class": raw_same, "chance": chance} | shares
    shown = evenly(np.arange(len(names)), queries)
    near, cosines = nearest(vectors, shown, count, groups)
    return Neighbours(
        images=images,
        names=names,
        queries=shown,
        near=near,
        cosines=cosines,
        raw=nearest(raw, shown, count, groups)[0],
        shares=shares,
        groups=groups is not None,
    )
