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
from unmask.modalities.images.segment.crops import Scene
from unmask.modalities.images.segment.figures import shown_figures, titles
from unmask.modalities.images.segment.legend import Legend
from unmask.modalities.images.segment.quantity import Quantity
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
SCALE = np.array([(68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37)])
"""Of a quantity in drawings, from low to high (viridis)."""
OFF = np.array([(37, 99, 235), (255, 255, 255), (220, 38, 38)])
"""Of what is too low, right, too high."""


def class_colours(count: int) -> np.ndarray:
    """(count, 3) uint8 colours of so many classes in drawings."""
    return COLOURS[np.arange(count) % len(COLOURS)]


def drawn_mask(numbers: np.ndarray) -> np.ndarray:
    """(height, width) numbers of classes as (height, width, 3) colours."""
    found = COLOURS[np.maximum(numbers, 0) % len(COLOURS)]
    found[numbers < 0] = UNKNOWN
    return found


def drawn_quantity(values: np.ndarray, low: float, high: float, colours: np.ndarray = SCALE) -> np.ndarray:
    """(height, width) values as (height, width, 3) colours; white where nothing is known."""
    place = np.nan_to_num((values - low) / max(high - low, 1e-30)) * (len(colours) - 1)
    each = [np.interp(place, np.arange(len(colours)), channel) for channel in colours.T]
    return np.where(np.isnan(values)[..., None], UNKNOWN, np.stack(each, -1).round().astype(np.uint8))


def quantity_ends(masks: Sequence[np.ndarray]) -> tuple[float, float]:
    """What is drawn darkest and brightest: all but the outermost half per cent of the values."""
    known = np.concatenate([m[~np.isnan(m)] for m in masks])
    low, high = np.percentile(known, [0.5, 99.5]) if len(known) else (0, 1)
    return float(0 if abs(low) < (high - low) / 1000 else low), float(high)


def compared(scene: Scene, predicted: np.ndarray, ends: tuple[float, float] | None = None) -> np.ndarray:
    """A picture, its mask, the prediction, and where the two differ (red on the picture), side by side. Of a quantity,
    drawn from the one of `ends` to the other, it is red where it is too high and blue where too low."""
    step = max(1, -(-max(scene.mask.shape) // LARGEST))
    pixels, truth, found = (a[::step, ::step] for a in (scene.pixels, scene.mask, predicted))
    picture = to_rgb(pixels, shown_range(pixels))
    if ends is not None:
        drawn, far = [drawn_quantity(a, *ends) for a in (truth, found)], ends[1] - ends[0]
        differs = drawn_quantity(found - truth, -far, far, OFF)
    else:
        drawn, wrong = [drawn_mask(truth), drawn_mask(found)], (truth != found) & (truth >= 0)
        faded = (255 - RIGHT * (255 - picture.astype(np.float32))).astype(np.uint8)
        differs = np.where(wrong[..., None], MISSED, faded)
    gap = np.full((len(picture), 4, 3), 255, np.uint8)
    return np.concatenate([picture, gap, drawn[0], gap, drawn[1], gap, differs], 1)


def legend_of_page(legend: Legend | Quantity, ends: tuple[float, float] | None) -> Markup:
    """The colours of the classes, or of a quantity."""
    if ends is not None:
        bar = Markup(
            '<p>{:.4g} <span style="display:inline-block;width:8em;height:1em;vertical-align:middle;'
            'background:linear-gradient(to right,{})"></span> {:.4g}</p>'
        )
        return bar.format(ends[0], ",".join(f"rgb({r},{g},{b})" for r, g, b in SCALE.tolist()), ends[1])
    box = Markup('<span style="display:inline-block;width:1em;height:1em;background:rgb({},{},{})"></span> {} &nbsp; ')
    parts = [box.format(*COLOURS[k % len(COLOURS)].tolist(), name) for k, name in enumerate(legend.names)]
    return Markup("<p>{}</p>").format(Markup("").join(parts))


def figure_sections(page: Report, found: Mapping[str, Any]) -> None:
    """Figures beside those of rules, by class, and what is taken for what."""
    known = titles(found)
    rows = [(rule, *shown_figures(one, known)) for rule, one in {"this model": found, **found["rules"]}.items()]
    note = f"{found['pictures']:,} pictures; 95 % intervals by bootstrap of pictures (of groups where there are some)."
    if "by_class" not in found:
        note += f" The sum over a picture is {found['sum']['value']:.4g} on average."
        page.section("Beside rules", table(("of all pixels", *known.values()), rows), note=note)
        return
    page.section("Beside rules", table(("means over classes", *known.values()), rows), note=note)
    rows = [(c, *(with_interval(one[n]) for n in ("dice", "iou", "border_f"))) for c, one in found["by_class"].items()]
    page.section("By class", table(("class", "Dice", "IoU", "F of borders"), rows))
    page.section(
        "What is taken for what",
        confusion_table({"confusion": found["confusion"]}, found["classes"]),
        note="Pixels: the true class by row, the predicted one by column.",
    )


def picture_section(
    page: Report,
    found: Mapping[str, Any],
    scenes: Sequence[Scene],
    masks: Sequence[np.ndarray],
    legend: Legend | Quantity,
) -> None:
    """The pictures by their Dice or RMSE, the worst first."""
    ends = quantity_ends([s.mask for s in scenes]) if isinstance(legend, Quantity) else None
    each, what = (
        found["dice_of_pictures" if ends is None else "rmse_of_pictures"],
        "mean Dice" if ends is None else "RMSE",
    )
    worst = 1 if ends is None else -1
    order = np.argsort([np.inf if one is None else worst * one for one in each], kind="stable")[:DRAWN]
    body = legend_of_page(legend, ends)
    for number in order.tolist():
        title = f"{found['names'][number]}: {what} {'-' if each[number] is None else f'{each[number]:.3g}'}"
        body += Markup("<p>{}</p>").format(title) + gallery([compared(scenes[number], masks[number], ends)], title)
    differs = "in red where they differ" if ends is None else "red where it is too high, blue where it is too low"
    page.section(
        "Pictures, the worst first",
        body,
        note=f"From the left: the picture, its mask, the prediction, and {differs} (white in a mask: nothing known).",
    )


def facts(found: Mapping[str, Any]) -> dict[str, Any]:
    """Header cards."""
    known = {name: title[:1].upper() + title[1:] for name, title in titles(found).items()}
    return dict(zip(known.values(), shown_figures(found, known), strict=True))


def segmented_report(
    new: Path,
    out: Path,
    figures: Mapping[str, Any],
    settings: Any,
    notes: Sequence[str],
    judged: tuple[Sequence[Scene], Sequence[np.ndarray], Legend | Quantity] | None,
) -> None:
    """`report.html` of a fine-tuning into `new`, of the curves in `out`: figures on held-out pictures, and these with
    their masks, where `judged` has them."""
    classes = figures["problem"] == "segment"
    page = Report("Segmentation of images" if classes else "A quantity per pixel of images", str(out))
    found = figures.get("validation")
    shown = {"Pictures": figures["pictures"], "Steps": figures["steps"], "Time": f"{figures['seconds']:.0f} s"}
    page.facts(shown if found is None else facts(found) | shown)
    if found is not None:
        figure_sections(page, found)
    if found is not None and judged is not None:
        picture_section(page, found, *judged)
    loss = "cross-entropy + Dice" if classes else "squared error, in variances"
    score = ("Mean Dice", "", "dice") if classes else ("RMSE", "in the unit of the masks", "rmse")
    curves = training_curves(out / "metrics.jsonl", loss=loss, where="", score=score)
    page.section("Training", curves, note="; ".join(notes))
    page.settings(settings)
    page.write(new / "report.html")


def evaluation_report(
    found: Mapping[str, Any],
    path: str | Path,
    scenes: Sequence[Scene],
    masks: Sequence[np.ndarray],
    legend: Legend | Quantity,
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
