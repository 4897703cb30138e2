"""The model card of an image folder: a masked image model, or a model fine-tuned on labelled pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unmask.errors import first_of, quoted
from unmask.evaluation.card import Card, Figure, Use, figures_of, read_figures
from unmask.evaluation.results import figures_shown
from unmask.evaluation.shown import Shown
from unmask.files import read_object

PIPELINES = {
    "single": "image-classification",
    "multi": "image-classification",
    "segment": "image-segmentation",
    "quantity": "image-to-image",
}
"""By what a fine-tuned model's labels are: the hub's name of its task."""
MASKS = ("macro_dice", "macro_iou", "macro_border_f")
"""The figures of masks, means over classes."""
QUANTITIES = ("r2", "rmse", "mae", "sum_mae")
"""The figures of a quantity per pixel."""
WITHOUT = "rule without a look"
"""Whose figures stand beside: of a rule that looks at no picture."""


def scored(found: Mapping[str, Any]) -> list[Figure]:
    """The figures of `Classifier.evaluate` and `Segmenter.evaluate` that a card shows, beside those of rules."""
    if "rules" in found:
        each, names = {"": found, **found["rules"]}, MASKS if found["problem"] == "segment" else QUANTITIES
        return [f for rule, one in each.items() for f in figures_of({n: one[n]["value"] for n in names}, names, rule)]
    if found["problem"] == "single":
        names, rule = ("accuracy", "macro_auroc", "macro_f1"), {"accuracy": found["most_frequent_accuracy"]}
        if found.get("macro_auroc") is not None:
            rule["macro_auroc"] = 0.5
    elif found["problem"] == "multi":
        names, rule = ("macro_auroc", "macro_auprc", "micro_f1"), dict(found["rule"])
    else:
        names, rule = ("r2", "rmse", "mae"), dict(found["mean_rule"])
    raw = figures_of({"accuracy": found.get("raw_probe_accuracy")}, ["accuracy"], "linear probe of raw pixels")
    return figures_of(found, names) + figures_of(rule, names, WITHOUT) + raw


def judged_shown(found: Mapping[str, Any]) -> Shown:
    """What of the figures of a fine-tuned model a person looks at."""
    return figures_shown(f"{found['pictures']:,} pictures judged", scored(found), notes=found.get("notes", ()))


def card(files: Path, run: Path) -> Card:
    """The card of an image folder, by config.json and unmask.json."""
    config, about = read_object(files / "config.json") or {}, read_object(files / "unmask.json") or {}
    tuned, segments = about.get("classifier"), isinstance(about.get("segmenter"), dict)
    if segments:
        tuned = about["segmenter"]
        legend = tuned.get("legend") or {}
        problem = "quantity" if legend.get("kind") == "quantity" else "segment"
        tuned = {**tuned, "classes": legend.get("names"), "problem": problem}
    tuned = tuned if isinstance(tuned, dict) else None
    mae = config.get("model_type") == "vit_mae" and tuned is None
    codec = about.get("codec") or {}
    python = "import unmask\n\nmodel = unmask.load(MODEL)\n"
    if tuned is None:
        commands = [
            ("hide parts of pictures and draw what the model puts there", "unmask fill MODEL photos/ --out seen.png"),
            ("vectors of pictures", "unmask embed MODEL photos/ --out vectors.npy"),
            ("a classifier, from a folder per class", "unmask finetune classify MODEL labelled/ --out tuned"),
            ("a class for every pixel, from masks", "unmask finetune segment MODEL photos/ --masks masks/ --out tuned"),
        ]
        python += 'model.embed("photos/")'
        what = f"A masked image model ({_shape(about, codec)}), trained without labels."
    elif segments:
        commands = [
            ("a mask per picture", "unmask predict MODEL photos/ --out predicted/"),
            ("its figures on masks of yours", "unmask evaluate MODEL photos/ --masks masks/ --report figures.html"),
        ]
        python += 'model.predict("photos/")[0]["mask"]'
        what = (
            f"A vision transformer ({_shape(about, codec)}) and convolutions, fine-tuned to give every pixel a "
            f"{'class' if problem == 'segment' else 'value of a quantity'}."
        )
    else:
        commands = [
            ("an answer per picture", "unmask predict MODEL photos/ --out predictions.jsonl"),
            ("its figures on labelled pictures of yours", "unmask evaluate MODEL labelled/ --report figures.html"),
        ]
        python += 'model.predict("photos/")'
        what = f"A vision transformer ({_shape(about, codec)}) fine-tuned on labelled pictures."
    transformers = (
        "from transformers import ViTMAEForPreTraining\n\nmodel = ViTMAEForPreTraining.from_pretrained(MODEL)"
        if mae
        else ""
    )
    problem = (tuned or {}).get("problem", "single")
    return Card(
        what=what,
        loaded_by="transformers" if mae else "unmask",
        pipeline=PIPELINES.get(problem, "image-feature-extraction") if tuned else "image-feature-extraction",
        tags=("images", "masked-image-modeling" if tuned is None else PIPELINES.get(problem, PIPELINES["single"])),
        data=_data(about, tuned),
        figures=read_figures((tuned or about).get("figures" if tuned else "results")),
        judged_on="On held-out pictures. Where the best state was chosen on them, expect a little less on new ones."
        if tuned
        else "On hidden patches of held-out pictures; of the patches as the loss sees them.",
        settings=about.get("images") or {},
        limits=[
            "It knows pictures of the kind it was trained on: another scanner, stain, camera or scale needs labelled "
            "pictures of its own to judge it by.",
            "Pictures of one patient, slide or place must be held out together (`--set group=`), or figures are too "
            "good.",
            "The folder holds no picture, but for those that `--examples` put into its report, which `unmask export "
            "--to share` leaves out.",
            *([] if tuned else ["A low loss does not make good features: judge these by a probe beside raw pixels."]),
        ],
        use=Use(
            commands=commands,
            python=python,
            transformers=transformers,
            without_unmask="" if mae else "The folder is unmask's own; transformers does not load it.",
        ),
        shown=tuned is None,
    )


def _shape(about: Mapping[str, Any], codec: Mapping[str, Any]) -> str:
    encoder = about.get("encoder") or {}
    known = [f"{encoder['layers']} layers of {encoder['width']}"] if {"layers", "width"} <= encoder.keys() else []
    if isinstance(codec.get("image"), list | tuple) and len(codec["image"]) == 2:
        known.append(f"pictures of {codec['image'][1]} x {codec['image'][0]}, patches of {_side(codec.get('patch'))}")
    return "; ".join(known) or "a vision transformer"


def _side(patch: Any) -> str:
    return " x ".join(map(str, patch)) if isinstance(patch, list | tuple) else str(patch)


def _data(about: Mapping[str, Any], tuned: Mapping[str, Any] | None) -> list[str]:
    """Counts alone: names of files and what stood in them stay out."""
    data, out = about.get("data") or {}, []
    if source := about.get("source"):
        out.append(f"From {source}.")
    if isinstance(data.get("pictures"), int) and len(data.get("shape") or ()) == 3:
        height, width, channels = data["shape"]
        sentence = f"{data['pictures']:,} pictures of {width} x {height}, {channels} channels, {data.get('depth', '')}"
        out.append(("Pretrained on " if tuned else "") + sentence.rstrip(", ") + ".")
    if isinstance(data.get("missing_share"), float) and math.isfinite(data["missing_share"]) and data["missing_share"]:
        out.append(f"{data['missing_share']:.1%} of the pixels are missing.")
    if tuned is None:
        return out
    if isinstance(tuned.get("pictures"), int):
        labelled = "pictures with masks" if tuned.get("problem") in ("segment", "quantity") else "labelled pictures"
        out.append(f"Fine-tuned on {tuned['pictures']:,} {labelled}.")
    classes = list(map(str, tuned.get("classes") or ()))
    if classes:
        out.append(f"{len(classes)} classes: {first_of(map(quoted, classes), 20)}.")
    return out
