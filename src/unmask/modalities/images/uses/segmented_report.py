"""The pages on a segmenter: pictures, truth, prediction and where they differ, worst first; figures beside rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from unmask.evaluation.charts import table
from unmask.evaluation.classes import confusion_table
from unmask.evaluation.report import Report, training_curves
from unmask.evaluation.resampling import with_interval
from unmask.modalities.images.network.card import MASKS
from unmask.modalities.images.segment.crops import Scene
from unmask.modalities.images.segment.figures import TOLERANCE
from unmask.modalities.images.segment.legend import Legend
from unmask.modalities.images.uses.drawing import LARGEST, gallery, shown_range, to_rgb

DRAWN = 12
"""Pictures that a page shows."""
COLOURS = np.array(
    [
        (31, 41, 55), (96, 165, 250), (251, 146, 60), (74, 222, 128), (244, 114, 182), (250, 204, 21),
        (167, 139, 250), (45, 212, 191), (248, 113, 113), (163, 163, 163),
    ],
    np.uint8,
)  # fmt: skip
"""Of classes in drawings, in turn."""
UNKNOWN = np.array([255, 255, 255], np.uint8)
"""Where no class is known."""
MISSED, RIGHT = np.array([220, 38, 38], np.uint8), 0.35


def class_colours(count: int) -> np.ndarray:
    """(count, 3) uint8 colours of so many classes in drawings."""
    return COLOURS[np.arange(count) % len(COLOURS)]


def drawn_mask(numbers: np.ndarray) -> np.ndarray:
    """(height, width) numbers of classes as (height, width, 3) colours."""
    found = COLOURS[np.maximum(numbers, 0) % len(COLOURS)]
    found[numbers < 0] = UNKNOWN
    return found


def compared(scene: Scene, predicted: np.ndarray) -> np.ndarray:
    """A picture, its mask, the prediction, and where the two differ (red on the picture), side by side."""
    assert scene.mask is not None
    step = max(1, -(-max(scene.mask.shape) // LARGEST))
    pixels, truth, found = (a[::step, ::step] for a in (scene.pixels, scene.mask, predicted))
    picture = to_rgb(pixels, shown_range(pixels))
    wrong = (truth != found) & (truth >= 0)
    faded = (255 - RIGHT * (255 - picture.astype(np.float32))).astype(np.uint8)
    differs = np.where(wrong[..., None], MISSED, faded)
    gap = np.full((len(picture), 4, 3), 255, np.uint8)
    return np.concatenate([picture, gap, drawn_mask(truth), gap, drawn_mask(found), gap, differs], 1)


def legend_of_page(legend: Legend) -> Markup:
    """The colours of the classes."""
    box = Markup('<span style="display:inline-block;width:1em;height:1em;background:rgb({},{},{})"></span> {} &nbsp; ')
    parts = [box.format(*COLOURS[k % len(COLOURS)].tolist(), name) for k, name in enumerate(legend.names)]
    return Markup("<p>{}</p>").format(Markup("").join(parts))


def figure_sections(page: Report, found: Mapping[str, Any]) -> None:
    """Figures beside those of rules, by class, and what is taken for what."""
    rows = [("this model", *(with_interval(found[n]) for n in MASKS))]
    rows += [(rule, *(with_interval(one[n]) for n in MASKS)) for rule, one in found["rules"].items()]
    head = ("means over classes", "Dice", "IoU", f"F of borders within {TOLERANCE} pixels")
    note = f"{found['pictures']:,} pictures; 95 % intervals by bootstrap of pictures (of groups where there are some)."
    page.section("Beside rules", table(head, rows), note=note)
    rows = [(c, *(with_interval(one[n]) for n in ("dice", "iou", "border_f"))) for c, one in found["by_class"].items()]
    page.section("By class", table(("class", "Dice", "IoU", "F of borders"), rows))
    page.section(
        "What is taken for what",
        confusion_table({"confusion": found["confusion"]}, found["classes"]),
        note="Pixels: the true class by row, the predicted one by column.",
    )


def picture_section(
    page: Report, found: Mapping[str, Any], scenes: Sequence[Scene], masks: Sequence[np.ndarray], legend: Legend
) -> None:
    """The pictures by their Dice, the worst first."""
    order = np.argsort([np.inf if d is None else d for d in found["dice_of_pictures"]], kind="stable")[:DRAWN]
    body = legend_of_page(legend)
    for number in order.tolist():
        dice = found["dice_of_pictures"][number]
        title = f"{found['names'][number]}: mean Dice {'-' if dice is None else f'{dice:.3f}'}"
        body += Markup("<p>{}</p>").format(title) + gallery([compared(scenes[number], masks[number])], title)
    page.section(
        "Pictures, the worst first",
        body,
        note="From the left: the picture, its mask, the prediction, and in red where they differ (white in a mask: no "
        "class known).",
    )


def facts(found: Mapping[str, Any]) -> dict[str, Any]:
    """Header cards."""
    shown = {"Mean Dice": found["macro_dice"], "Mean IoU": found["macro_iou"], "Borders (F)": found["macro_border_f"]}
    return {title: with_interval(one) for title, one in shown.items()}


def segmented_report(
    new: Path,
    out: Path,
    figures: Mapping[str, Any],
    settings: Any,
    notes: Sequence[str],
    judged: tuple[Sequence[Scene], Sequence[np.ndarray], Legend] | None,
) -> None:
    """`report.html` of a fine-tuning into `new`, of the curves in `out`: figures on held-out pictures, and these with
    their masks, where `judged` has them."""
    page = Report("Segmentation of images", str(out))
    found = figures.get("validation")
    shown = {"Pictures": figures["pictures"], "Steps": figures["steps"], "Time": f"{figures['seconds']:.0f} s"}
    page.facts(shown if found is None else facts(found) | shown)
    if found is not None:
        figure_sections(page, found)
    if found is not None and judged is not None:
        picture_section(page, found, *judged)
    curves = training_curves(out / "metrics.jsonl", loss="cross-entropy + Dice", where="")
    page.section("Training", curves, note="; ".join(notes))
    page.settings(settings)
    page.write(new / "report.html")


def evaluation_report(
    found: Mapping[str, Any],
    path: str | Path,
    scenes: Sequence[Scene],
    masks: Sequence[np.ndarray],
    legend: Legend,
    *,
    model: str,
    data: str,
    notes: Sequence[str],
) -> None:
    """The page of `unmask evaluate MODEL DATA --masks FOLDER --report FILE`."""
    page = Report(f"{model} on {data}").facts(facts(found) | {"Pictures": found["pictures"]})
    figure_sections(page, found)
    picture_section(page, found, scenes, masks, legend)
    page.section("The pictures", "\n\n".join(notes))
    page.of_model(model).write(path)
