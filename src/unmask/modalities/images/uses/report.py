"""The pictures and curves that an image run's report shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from markupsafe import Markup

from unmask.evaluation.charts import line_chart
from unmask.evaluation.report import records
from unmask.modalities.images.reading.arrays import ImageSet
from unmask.modalities.images.reading.floats import evenly
from unmask.modalities.images.uses.model import ImageModel, load
from unmask.modalities.images.uses.pictures import gallery, heat, shown_range, triptych


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


def triptychs(model: str | Path | ImageModel, images: ImageSet, count: int = 8, ratio: float | None = None) -> Markup:
    """Original | masked | reconstructed of a few pictures."""
    loaded = model if isinstance(model, ImageModel) else load(model)
    r = loaded.reconstruct(_some(images, count), ratio=ratio)
    shown = shown_range(r.original, r.unknown)
    drawn = [
        triptych(o, h, f, None if r.unknown is None else r.unknown[n], shown)
        for n, (o, h, f) in enumerate(zip(r.original, r.hidden, r.filled, strict=True))
    ]
    return gallery(drawn, "original, masked, reconstructed")


def attention_pictures(model: str | Path | ImageModel, images: ImageSet, count: int = 8) -> Markup:
    """Pictures beside where the last layer looks."""
    loaded = model if isinstance(model, ImageModel) else load(model)
    found = loaded.read(_some(images, count))
    maps = loaded.attention(found).mean(1)
    shown = shown_range(found.pixels, found.missing)
    drawn = [
        heat(p, m, None if found.missing is None else found.missing[n], shown)
        for n, (p, m) in enumerate(zip(found.pixels, maps, strict=True))
    ]
    return gallery(drawn, "picture and attention")
