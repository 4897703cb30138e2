"""The pictures and curves that an image run's report shows, and how pictures are drawn: original, masked,
reconstructed, attention maps."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from markupsafe import Markup
from PIL import Image

from unmask.evaluation.charts import line_chart
from unmask.evaluation.report import records
from unmask.modalities.images.network.batches import evenly
from unmask.modalities.images.network.features import features
from unmask.modalities.images.reading.arrays import ImageSet
from unmask.modalities.images.uses.model import ImageModel, load
from unmask.modalities.images.uses.reconstruct import Reconstruction
from unmask.writing import written


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


def triptychs(
    model: str | Path | ImageModel, images: ImageSet, count: int = 8, ratio: float | None = None
) -> list[np.ndarray]:
    """Original | masked | reconstructed of a few pictures."""
    loaded = model if isinstance(model, ImageModel) else load(model)
    r = loaded.reconstruct(_some(images, count), ratio=ratio)
    shown = shown_range(r.original, r.unknown)
    return [
        triptych(o, h, f, None if r.unknown is None else r.unknown[n], shown)
        for n, (o, h, f) in enumerate(zip(r.original, r.hidden, r.filled, strict=True))
    ]


def attention_pictures(model: str | Path | ImageModel, images: ImageSet, count: int = 8) -> list[np.ndarray]:
    """Pictures beside where the last layer looks."""
    loaded = model if isinstance(model, ImageModel) else load(model)
    found = loaded.read(_some(images, count))
    maps = loaded.attention(found).mean(1)
    shown = shown_range(found.pixels, found.missing)
    return [
        heat(p, m, None if found.missing is None else found.missing[n], shown)
        for n, (p, m) in enumerate(zip(found.pixels, maps, strict=True))
    ]


MAPPED = 400
"""Pictures on the map, and among which neighbours are looked for."""
NEIGHBOURS = 6
"""Pictures beside each whose nearest ones are shown."""
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


def embedding_sections(model: ImageModel, images: ImageSet, seed: int = 0) -> list[tuple[str, Markup, str]]:
    """(title, content, note) of two sections of a report: nearest neighbours and the map; [] for less than four."""
    found = model.read(images.take(evenly(np.arange(len(images)), MAPPED)))
    if len(found) < 4:
        return []
    vectors = features(model.model, found, model._context())  # of tiles each its own
    place, how = places(vectors, seed)
    framed = found.labels is not None and len(found.classes) <= len(_COLOURS)
    caption = f"{len(found)} pictures by their embeddings, in two dimensions by {how}."
    if framed:
        known = ", ".join(f"{name} {c}" for name, c in zip(_NAMES, found.classes, strict=False))
        caption += f" Frames are classes, of which the model was told nothing: {known}."
    count = min(NEIGHBOURS, len(found) - 1)
    drawn = neighbour_pictures(found, vectors, count)
    return [
        (
            "Nearest neighbours",
            gallery(drawn, "a picture and its nearest neighbours"),
            f"{len(drawn)} pictures, each with the {count} of {len(found) - 1} others whose embeddings are nearest "
            "(cosine).",
        ),
        ("Map of the embedding", gallery([map_picture(found, place, framed)], "map of the embedding"), caption),
    ]


def nearest(vectors: np.ndarray, queries: np.ndarray, count: int) -> np.ndarray:
    """(queries, count) numbers of the vectors nearest to some of them by cosine, themselves left out."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    alike = unit[queries] @ unit.T
    alike[np.arange(len(queries)), queries] = -np.inf
    return np.argsort(-alike, axis=1, kind="stable")[:, :count]


def neighbour_pictures(images: ImageSet, vectors: np.ndarray, count: int, rows: int = 6) -> list[np.ndarray]:
    """Some pictures, each beside those nearest to it."""
    queries = evenly(np.arange(len(images)), rows)
    near = nearest(vectors, queries, count)
    drawn = _thumbnails(images)
    gap = np.full((len(drawn[0]), 8, 3), 255, np.uint8)
    strips = [
        np.concatenate([drawn[a], gap, *(drawn[i] for i in row)], 1) for a, row in zip(queries, near, strict=True)
    ]
    return [enlarge(strip, 64 * (count + 1)) for strip in strips]


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


DRAWN = 36
"""Pictures on a sheet of filled ones."""
GREY = 0.5
"""What stands for a hidden patch in a drawing."""
MISSING = np.array([190, 160, 220], np.uint8)
"""The colour of pixels that were not measured."""
LARGEST = 512
"""Larger pictures are drawn smaller, every n-th pixel."""


Shown = tuple[np.ndarray, np.ndarray]
"""(lowest, highest) shown value of each channel."""


def shown_range(pixels: np.ndarray, missing: np.ndarray | None = None) -> Shown:
    """What is drawn black and white: the range of the measured values but their outermost half per cent, the same for
    grey and colour, of each channel apart where there are others. 8-bit pictures that use a quarter of their range are
    drawn as they are. `pixels`: (..., channels); `missing`: the same without channels."""
    channels = pixels.shape[-1]
    known = pixels.reshape(-1, channels) if missing is None else pixels[~missing]
    known = known[np.isfinite(known).all(-1)][:: max(1, len(known) // 200_000)].astype(np.float64)
    if not len(known):
        return np.zeros(channels), np.ones(channels)
    low, high = np.percentile(known, [0.5, 99.5], axis=0)
    if channels in (1, 3):
        low, high = np.full(channels, low.min()), np.full(channels, high.max())
    if pixels.dtype == np.uint8 and channels in (1, 3) and high[0] - low[0] >= 64:
        return np.zeros(channels), np.full(channels, 255.0)
    return low, high


def to_rgb(pixels: np.ndarray, shown: Shown | None = None, missing: np.ndarray | None = None) -> np.ndarray:
    """(height, width, channels) of any depth -> (height, width, 3) uint8, stretched; two channels are red and green, of
    more than three the first three are drawn. Missing pixels are violet."""
    low, high = shown_range(pixels, missing) if shown is None else shown
    drawn = (np.nan_to_num(pixels.astype(np.float32)) - low) / np.maximum(high - low, 1e-12)
    channels = drawn.shape[-1]
    if channels == 1:
        drawn = np.repeat(drawn, 3, -1)
    elif channels == 2:
        drawn = np.concatenate([drawn, np.zeros_like(drawn[..., :1])], -1)
    rgb = np.round(np.clip(drawn[..., :3], 0, 1) * 255).astype(np.uint8)
    unmeasured = np.isnan(pixels).any(-1) if pixels.dtype.kind == "f" else np.zeros(pixels.shape[:2], bool)
    rgb[unmeasured if missing is None else unmeasured | missing] = MISSING
    return rgb


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


def enlarge(pixels: np.ndarray, least: int = 96) -> np.ndarray:
    """Small pictures drawn larger, each pixel a square."""
    factor = max(1, -(-least // max(pixels.shape[:2])))
    return pixels.repeat(factor, 0).repeat(factor, 1)


def triptych(
    original: np.ndarray,
    hidden: np.ndarray,
    filled: np.ndarray,
    missing: np.ndarray | None = None,
    shown: Shown | None = None,
) -> np.ndarray:
    """Original, masked and reconstructed, each (height, width, channels), side by side, (height, wide, 3) uint8.
    `hidden`, `missing`: (height, width) booleans over pixels, missing those that the original lacks; drawn is the range
    `shown`, by default the original's."""
    step = max(1, -(-max(original.shape[:2]) // LARGEST))
    original, hidden, filled = original[::step, ::step], hidden[::step, ::step], filled[::step, ::step]
    missing = None if missing is None else missing[::step, ::step]
    shown = shown_range(original, missing) if shown is None else shown
    first = to_rgb(original, shown, missing)
    masked = np.where(hidden[..., None], np.uint8(255 * GREY), first)
    still = None if missing is None else missing & ~hidden
    parts = [enlarge(p) for p in (first, masked, to_rgb(filled, shown, still))]
    gap = np.full((parts[0].shape[0], 4, 3), 255, np.uint8)
    return np.concatenate([parts[0], gap, parts[1], gap, parts[2]], 1)


def heat(
    original: np.ndarray, attention: np.ndarray, missing: np.ndarray | None = None, shown: Shown | None = None
) -> np.ndarray:
    """The picture, and where attention goes: the picture in grey with weights laid over it in orange. `attention`:
    (rows, columns) over the patch grid, non-negative."""
    rgb = to_rgb(original, shown, missing)
    high, wide = rgb.shape[:2]
    weight = attention / max(float(attention.max()), 1e-12)
    weight = weight.repeat(high // weight.shape[0], 0).repeat(wide // weight.shape[1], 1)[..., None]
    grey = rgb.mean(-1, keepdims=True).repeat(3, -1) * 0.6 + 255 * 0.2
    warm = grey * (1 - 0.85 * weight) + np.array([240, 110, 20]) * 0.85 * weight
    parts = [enlarge(rgb), enlarge(warm.astype(np.uint8))]
    return np.concatenate([parts[0], np.full((parts[0].shape[0], 4, 3), 255, np.uint8), parts[1]], 1)


def sheet(pictures: Sequence[np.ndarray], gap: int = 6) -> np.ndarray:
    """Pictures row by row in columns, about as high in all as wide; smaller ones are filled up with white."""
    high, wide = (max(p.shape[axis] for p in pictures) + gap for axis in (0, 1))
    columns = max(1, round(math.sqrt(len(pictures) * high / wide)))
    canvas = np.full((-(-len(pictures) // columns) * high, columns * wide, 3), 255, np.uint8)
    for number, picture in enumerate(pictures):
        top, left = number // columns * high, number % columns * wide
        canvas[top : top + picture.shape[0], left : left + picture.shape[1]] = picture
    return canvas[:-gap, :-gap]


def filled_sheet(done: Sequence[Reconstruction]) -> tuple[np.ndarray, int]:
    """Original | masked | filled of at most `DRAWN` pictures, evenly taken, as one picture; and how many these are."""
    each = [(r, i) for r in done for i in range(len(r.original))]
    drawn = [
        triptych(r.original[i], r.hidden[i], r.filled[i], None if r.unknown is None else r.unknown[i])
        for r, i in (each[n] for n in evenly(np.arange(len(each)), DRAWN))
    ]
    return sheet(drawn), len(drawn)


def png(rgb: np.ndarray) -> bytes:
    """PNG file content of an (height, width, 3) uint8 array."""
    out = io.BytesIO()
    Image.fromarray(rgb).save(out, format="PNG")
    return out.getvalue()


def write_png(path: str | Path, rgb: np.ndarray) -> None:
    """Write a PNG, whole or not at all."""
    with written(path) as temporary:
        temporary.write_bytes(png(rgb))


def gallery(pictures: Sequence[np.ndarray], caption: str) -> Markup:
    """Pictures for a report, side by side where there is room."""
    image = Markup(
        '<img alt="{}" style="margin:4px;image-rendering:pixelated;max-width:100%" src="data:image/png;base64,{}">'
    )
    drawn = [image.format(caption, base64.b64encode(png(p)).decode()) for p in pictures]
    return Markup('<div style="display:flex;flex-wrap:wrap">{}</div>').format(Markup("").join(drawn))
