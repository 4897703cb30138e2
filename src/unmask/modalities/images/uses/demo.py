"""`unmask demo images`: learn handwritten digits without labels, then see what the features are worth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from unmask.modalities.images.recipes import ImageSettings, with_overrides
from unmask.modalities.images.uses.pretrain import ImageRun, loss_unit, pretrain
from unmask.training.signals import interrupt_if
from unmask.writing import demo_folder, replace_json

SETTINGS: dict[str, Any] = {"flip": False, "crop": (0.7, 1.0), "holdout": 0.0}
"""Beside the default recipe; mirrored, a digit is another one."""


HIDDEN = 0.5
"""Share of a digit's patches that is hidden in the report's pictures."""


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """scikit-learn's 1797 digits of 8 x 8 pixels (UCI), their labels, and which of them are for testing (a third)."""
    from sklearn.datasets import load_digits

    found = load_digits()
    test = np.random.default_rng(0).permutation(len(found.target)) < len(found.target) // 3
    return (found.images * 255 / 16).astype(np.uint8), found.target.astype(np.int64), test


def run_demo(
    out: str | Path = "demo-images", *, minutes: float = 1.2, seed: int = 0, console: bool = True
) -> dict[str, Any]:
    """Pretrain on digits without labels, fill, probe, and write report.html.

    Returns:
        The figures; 'report' (path), 'device', 'precision' and 'lines' (what to tell a person) are there in every demo.
    """
    from unmask.modalities.images.reading.arrays import ImageSet

    out = demo_folder(out)
    pixels, labels, test = digits()
    images = ImageSet(
        pixels=pixels[..., None],
        labels=labels,
        classes=[str(i) for i in range(10)],
        split=np.where(test, "test", "train"),
    )
    settings = with_overrides(ImageSettings(), SETTINGS | {"minutes": minutes, "seed": seed})
    finished = pretrain(images, out, settings=settings, console=console)
    interrupt_if(finished.result.stopped)
    found = show(finished, images)
    replace_json(out / "demo.json", found)
    lines = [
        f"linear probe on features learnt without labels: {found['probe_accuracy']:.1%} (raw pixels "
        f"{found['raw_probe_accuracy']:.1%}, the same network untrained {found['untrained_probe_accuracy']:.1%})",
        f"20 nearest neighbours: {found['knn_accuracy']:.1%} (raw pixels {found['raw_knn_accuracy']:.1%})",
        *why_behind(found),
    ]
    return found | {"lines": lines}


def why_behind(found: dict[str, Any]) -> list[str]:
    """Why features lose to raw pixels here, where they do."""
    if found["knn_accuracy"] >= found["raw_knn_accuracy"] and found["probe_accuracy"] >= found["raw_probe_accuracy"]:
        return []
    return [
        "these digits are centred, of one size and 64 pixels: equal pixels are nearly always equal digits, so raw "
        "pixels are hard to beat by distance; features pay where the same thing looks different, after a longer run"
    ]


def show(finished: ImageRun, images: Any) -> dict[str, Any]:
    """What the model learnt, on digits it was not trained on, as figures and as report.html."""
    from unmask.evaluation.report import Report, training_curves
    from unmask.modalities.images.network.build import untrained
    from unmask.modalities.images.network.folder import ImageFolder
    from unmask.modalities.images.uses.drawing import gallery
    from unmask.modalities.images.uses.model import ImageModel, load
    from unmask.modalities.images.uses.report import attention_pictures, triptychs

    out, r = finished.folder, finished.result
    model = load(out)
    found = model.evaluate(images)
    fresh = untrained(model.model, finished.settings.train.seed).to(model.device).eval()
    before = ImageModel(ImageFolder(model=fresh), model.device, model.precision)
    found["untrained_probe_accuracy"] = before.evaluate(images, baselines=False)["probe_accuracy"]
    unseen = images.part("test")
    page = Report("What a masked model learnt from digits without labels", "unmask demo images")
    page.facts(
        {
            "Linear probe": f"{found['probe_accuracy']:.1%}",
            "on raw pixels": f"{found['raw_probe_accuracy']:.1%}",
            "untrained network": f"{found['untrained_probe_accuracy']:.1%}",
            "20-NN": f"{found['knn_accuracy']:.1%}",
            "20-NN on raw pixels": f"{found['raw_knn_accuracy']:.1%}",
            "Training": f"{r.seconds:.0f} s, {r.steps} steps",
            "Images/s": f"{finished.images_per_second:,.0f}",
            "Precision": r.precision,
        }
    )
    if why := why_behind(found):
        page.section("Where raw pixels win", why[0][:1].upper() + why[0][1:] + ".")
    page.section("Training", training_curves(out / "metrics.jsonl", loss=loss_unit(finished.settings)))
    drawn = triptychs(model, unseen, 12, HIDDEN)
    page.section(
        "Original, masked, reconstructed",
        gallery(drawn, "original, masked, reconstructed"),
        note=f"{len(drawn)} digits of the test part, {HIDDEN:.0%} hidden.",
    )
    drawn = attention_pictures(model, unseen, 12)
    page.section("Where the last layer looks", gallery(drawn, "picture and attention"), note=f"{len(drawn)} of them.")
    path = page.write(out / "report.html")
    keys = (
        "knn_accuracy",
        "probe_accuracy",
        "raw_knn_accuracy",
        "raw_probe_accuracy",
        "untrained_probe_accuracy",
        "loss",
    )
    return {k: found[k] for k in keys} | {
        "report": str(path),
        "device": r.device,
        "precision": r.precision,
        "steps": r.steps,
        "seconds": r.seconds,
        "images_per_second": finished.images_per_second,
    }
