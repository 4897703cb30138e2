"""The pictures and curves that an image run's report shows."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from markupsafe import Markup

from unmask.evaluation.charts import line_chart
from unmask.evaluation.report import records
from unmask.modalities.images.network.batches import evenly
from unmask.modalities.images.network.features import features
from unmask.modalities.images.reading.arrays import ImageSet
from unmask.modalities.images.uses.drawing import LARGEST, gallery, heat, shown_range, to_rgb, triptych
from unmask.modalities.images.uses.model import ImageModel
from unmask.modalities.images.uses.neighbours import neighbours_of


def probe_chart(metrics: Path) -> Markup | None:
    """The live probe's curves, from metrics.jsonl; None where there was none."""
    curves: dict[str, list[tuple[float, float]]] = {"nearest neighbours": [], "linear probe": []}
    for record in records(metrics):
        if record.get("kind") == "probe":
            for name, key in (("nearest neighbours", "knn_accuracy"), ("linear probe", "probe_accuracy")):
                if record.get(key) is not None:
                    curves[name].append((record["step"], record[key]))
    drawn = {name: tuple(np.array(xy, float).T) for name, xy in curves.items() if xy}
    if not drawn:
        return None
    return line_chart(drawn, "Accuracy of frozen features", "step", "right on held-out pictures", percent=True)


def _some(images: ImageSet, count: int) -> ImageSet:
    return images.take(evenly(np.arange(len(images)), count))


def triptychs(model: ImageModel, images: ImageSet, count: int = 8, ratio: float | None = None) -> list[np.ndarray]:
    """Original | masked | reconstructed of a few pictures."""
    r = model.reconstruct(_some(images, count), ratio=ratio)
    shown = shown_range(r.original, r.unknown)
    return [
        triptych(o, h, f, None if r.unknown is None else r.unknown[n], shown)
        for n, (o, h, f) in enumerate(zip(r.original, r.hidden, r.filled, strict=True))
    ]


def attention_pictures(model: ImageModel, images: ImageSet, count: int = 8) -> list[np.ndarray]:
    """Pictures beside where the last layer looks."""
    found = model.read(_some(images, count))
    maps = model.attention(found).mean(1)
    shown = shown_range(found.pixels, found.missing)
    return [
        heat(p, m, None if found.missing is None else found.missing[n], shown)
        for n, (p, m) in enumerate(zip(found.pixels, maps, strict=True))
    ]


MAPPED = 400
"""Pictures on the map, and among which neighbours are looked for."""
NEIGHBOURS = 6
"""Pictures that are drawn with those nearest to them."""
FEW = 100
"""From so many pictures on the map is t-SNE's."""
_SIDE, _THUMB = 960, 28
_COLOURS = np.array(
    [
        (31, 119, 180), (255, 127, 14), (44, 160, 44), (214, 39, 40), (148, 103, 189),
        (140, 86, 75), (227, 119, 194), (127, 127, 127), (188, 189, 34), (23, 190, 207),
    ],
    np.uint8,
)  # fmt: skip
_NAMES = ("blue", "orange", "green", "red", "violet", "brown", "pink", "grey", "olive", "cyan")


def embedding_sections(model: ImageModel, images: ImageSet) -> list[tuple[str, Markup, str]]:
    """(title, content, note) of two sections of a report: nearest neighbours and the map; [] for less than four."""
    found = model.read(images.take(evenly(np.arange(len(images)), MAPPED)))
    if len(found) < 4:
        return []
    vectors = features(model.model, found, model._context())  # of tiles each its own
    place, how = places(vectors)
    framed = found.labels is not None and len(found.classes) <= len(_COLOURS)
    caption = f"{len(found)} pictures by their embeddings, in two dimensions by {how}."
    if framed:
        known = ", ".join(f"{name} {c}" for name, c in zip(_NAMES, found.classes, strict=False))
        caption += f" Frames are classes, of which the model was told nothing: {known}."
    near = neighbours_of(dataclasses.replace(found, tiles=None), vectors, NEIGHBOURS)
    return [
        ("Nearest neighbours", near.section(), near.caption()),
        ("Map of the embedding", gallery([map_picture(found, place, framed)], "map of the embedding"), caption),
    ]


def places(vectors: np.ndarray, seed: int = 0) -> tuple[np.ndarray, str]:
    """((pictures, 2) places between 0 and 1, how they were found): t-SNE (van der Maaten and Hinton 2008), of few
    pictures the first two principal components."""
    centred = vectors - vectors.mean(0)
    if len(vectors) < FEW or not centred.any():
        left, size, _ = np.linalg.svd(centred.astype(np.float64), full_matrices=False)
        two = np.zeros((len(vectors), 2))
        two[:, : min(2, len(size))] = (left * size)[:, :2]
        how = "principal components"
    else:
        from sklearn.manifold import TSNE

        two, how = TSNE(init="pca", random_state=seed).fit_transform(centred), "t-SNE"
    low, high = two.min(0), two.max(0)
    return (two - low) / np.maximum(high - low, 1e-12), how


def map_picture(images: ImageSet, place: np.ndarray, framed: bool) -> np.ndarray:
    """Small pictures at their places, in the colours of their classes, (side, side, 3) uint8."""
    canvas = np.full((_SIDE, _SIDE, 3), 255, np.uint8)
    for i, small in enumerate(_thumbnails(images)):
        high, wide = small.shape[:2]
        edge = _COLOURS[images.labels[i]] if framed and images.labels is not None else np.uint8(200)
        box = np.empty((high + 4, wide + 4, 3), np.uint8)
        box[:] = edge
        box[2:-2, 2:-2] = small
        top, left = (round(float(at) * (_SIDE - n - 4)) for at, n in zip(place[i, ::-1], (high, wide), strict=True))
        canvas[top : top + high + 4, left : left + wide + 4] = box
    return canvas


def _thumbnails(images: ImageSet) -> list[np.ndarray]:
    """Every k-th pixel, so that a side is about that of a thumbnail or less."""
    shown = shown_range(images.pixels[:LARGEST], None if images.missing is None else images.missing[:LARGEST])
    step = max(1, round(max(images.size) / _THUMB))
    return [
        to_rgb(p[::step, ::step], shown, None if images.missing is None else images.missing[i][::step, ::step])
        for i, p in enumerate(images.pixels)
    ]


def drawing_note(images: ImageSet) -> str:
    """How pictures are drawn, in words; '' where it goes without saying."""
    channels = images.channels
    parts = []
    if channels == 2:
        parts.append("Channels 1 and 2 are drawn red and green.")
    if channels > 3:
        parts.append(f"Channels 1, 2 and 3 of {channels} are drawn red, green and blue.")
    low, high = shown_range(images.pixels[:32], None if images.missing is None else images.missing[:32])
    if (images.depth, low[0], high[0]) != ("uint8", 0, 255):
        each = ", each channel by itself" if channels not in (1, 3) else ""
        parts.append(f"Brightness is stretched from {low.min():g} to {high.max():g}{each}.")
    if images.missing is not None:
        parts.append("Violet: not measured.")
    return " ".join(parts)
