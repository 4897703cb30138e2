"""`unmask finetune segment`: a pretrained encoder, with convolutions beside it, trained on pictures with masks."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.elsewhere import ARGUMENTS
from unmask.errors import UserError, first_of, option
from unmask.guessed import also_called
from unmask.modalities.images.network.build import at_size, untrained
from unmask.modalities.images.reading.arrays import ImageSet
from unmask.modalities.images.reading.copies import alike_pictures, copy_notes
from unmask.modalities.images.reading.split import joined
from unmask.modalities.images.recipes import ELSEWHERE, sides
from unmask.modalities.images.segment.baselines import FOREST, PixelForest, learnt_rules
from unmask.modalities.images.segment.network import SegmentNet
from unmask.modalities.images.segment.pairs import Pairs, read_pairs
from unmask.modalities.images.segment.scenes import WholePicture
from unmask.modalities.images.segment.segmenter import Segmenter, learnt_as
from unmask.modalities.images.segment.settings import FEWEST, SegmenterSettings, with_overrides
from unmask.modalities.images.segment.training import SegmentFinetuning
from unmask.modalities.images.uses.finetuned import Finetuned, checkpointer_of, opened, trained
from unmask.modalities.images.uses.model import ImageModel
from unmask.modalities.images.uses.segmented_report import segmented_report
from unmask.training.precision import resolve_precision
from unmask.training.processes import join_others
from unmask.training.same_run import digest
from unmask.training.settings import TrainSettings, settings_from
from unmask.training.tracking import console_logger
from unmask.writing import first_of_all, makes_folder, writes_model, written_folder


@also_called(ELSEWHERE, validation_split="holdout", **ARGUMENTS)
@makes_folder
@writes_model
def finetune_segment(
    model: Any,
    data: Any,
    out: str | Path | None = None,
    *,
    masks: Any = None,
    validation: Any = None,
    validation_masks: Any = None,
    settings: SegmenterSettings | TrainSettings | Mapping[str, Any] | None = None,
    console: bool = True,
    checkpoints: bool = False,
    resume: bool = False,
    reading: dict[str, Any] | None = None,
    **overrides: Any,
) -> Finetuned:
    """Fine-tune an image model on pictures with masks, to give every pixel a class, or a quantity.

    Pictures are learnt from at their own resolution, in crops of `crop` pixels, and predicted in tiles that overlap.

    Args:
        model: a folder, or a loaded `ImageModel` (which is copied).
        data: pictures: a folder, files, or arrays. Those without a mask are left out, which is said.
        out: run folder: config.json, model.safetensors, unmask.json, metrics.jsonl, report.html. Left out, a temporary
            folder, which lives as long as the result.
        masks: a folder of masks named as the pictures (the ending may differ), of class numbers, two values, a palette,
            or colours; or of a folder per class with such files of one class. Of pictures in memory arrays in their
            order, (height, width). Masks of many fractions are a quantity, such as a height or a density (of whole
            numbers say `problem='regression'`).
        validation, validation_masks: pictures to judge and to choose the best state by, and their masks (default: in
            `masks`); without them a `holdout` share of the pictures, of five or more.
        settings, overrides: fields of `SegmenterSettings` and of its `train`, as keywords (`steps=500`), a dict or an
            object.
        checkpoints: keep them beside `out` while training, one of them at SIGTERM or Ctrl-C, which then ends the run:
            the figures say `stopped` 'signal', and there is no model yet.
        resume: go on from the checkpoint of an interrupted run to `out`, on the same pictures with the same settings.
        reading: how files are read: planes, alpha, nodata, slice; default as those of the pretraining were.

    Raises:
        UserError: masks that do not fit the pictures, have borders of mixed colours or a single class; a class that the
            validation masks have and the others do not; `out` holds a model.
    """
    assert out is not None  # of `makes_folder`
    settings, out = settings_from(SegmenterSettings(), settings, overrides, with_overrides), Path(out)
    if masks is None:
        raise UserError("pictures without masks", hint=f"Say where they are: {option('masks')}.")
    train_settings, say = settings.train, console_logger(console)
    resume = join_others(out, train_settings.device, resume=resume, minutes=train_settings.minutes)
    _, base = opened(model, train_settings.device)
    pairs, held_pairs, notes = _pairs(base, data, masks, validation, validation_masks, settings, reading)
    names = {"without a mask": pairs.without, "cannot be read": [name for name, _ in pairs.skipped]}
    names["held out"] = [whole.name for whole, _ in held_pairs]
    for line in [*notes, *(f"{what}: {first_of(some, 5)}" for what, some in names.items() if some)]:
        say(line)  # names of files are said, not kept in the folder
    torch.manual_seed(train_settings.seed)
    started = time.monotonic()
    size = base.config.image if settings.crop is None else sides(settings.crop)
    masked = at_size(base.model, size).to(base.device) if size != base.config.image else copy.deepcopy(base.model)
    if settings.from_scratch:
        masked = untrained(masked, train_settings.seed).to(base.device)
    precision = resolve_precision(train_settings.precision, base.device)
    legend = pairs.legend.fitted([mask for _, mask in pairs.pairs])
    net = SegmentNet(masked, len(legend.names), legend.scale)
    net = net.to(base.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    train, held = ([whole.scene(masked.codec, mask) for whole, mask in some] for some in (pairs.pairs, held_pairs))
    work = SegmentFinetuning(net, train, held, settings, precision=precision.name)
    checkpointer = None
    if checkpoints or resume:
        arrays = [a for scene in (*train, *held) for a in (scene.pixels, scene.mask)]
        pictures = {"the pictures": digest([len(train), len(held)], *arrays)}
        checkpointer = checkpointer_of(out, settings, pictures, resume=resume)
    result, trained_figures = trained(work, out, checkpointer, console=console)
    net = work.module.mean.eval()
    inner = ImageModel(dataclasses.replace(base.folder, model=net.masked), base.device, precision.name)
    segmenter = Segmenter(
        model=inner,
        net=net,
        legend=legend,
        rules=learnt_rules(train, len(legend.names)),
        about={"learnt": sorted({known for whole, _ in pairs.pairs if (known := learnt_as(whole.pixels))})},
    )
    figures: dict[str, Any] = {
        "pictures": len(train),
        "problem": legend.problem,
        "classes": list(legend.names),
        "crop": list(size),
        "notes": notes,
        **trained_figures,
        "seconds": round(time.monotonic() - started, 2),
        "crops_per_second": round(result.steps * work.batch / max(result.seconds - result.validation_seconds, 1e-9), 1),
        "precision": precision.name,
        "device": str(base.device),
    }
    if result.stopped == "signal":
        return Finetuned(model=segmenter, folder=out, figures=figures)
    judged = None
    if held:
        figures |= {"kept_step": result.kept_step, "validation_pictures": len(held)}
        forest = PixelForest(train, train_settings.seed)
        found, drawn = segmenter.judge(held, {FOREST: forest.mask}, seed=train_settings.seed)
        figures["validation"], judged = found, (held, drawn, legend) if settings.examples else None
    with written_folder(out) as new:
        segmenter.save(new, pictures=len(train), judged=figures.get("validation"))
        if first_of_all():
            segmented_report(new, out, figures, settings, notes, judged)
    if checkpointer is not None:
        checkpointer.remove()
    return Finetuned(model=segmenter, folder=out, figures=figures)


def _pairs(
    base: ImageModel,
    data: Any,
    masks: Any,
    validation: Any,
    validation_masks: Any,
    settings: SegmenterSettings,
    reading: dict[str, Any] | None,
) -> tuple[Pairs, list[Any], list[str]]:
    """(training pictures with their masks, those held out, what is to be said of them)."""
    how: dict[str, Any] = {"ignore": settings.ignore, "group": settings.group, "reading": reading}
    pairs = read_pairs(base, data, masks, problem=settings.problem, **how)
    notes, legend = [*pairs.notes], pairs.legend
    if pairs.skipped:
        notes.append(f"{len(pairs.skipped):,} pictures cannot be read")
    if (base.folder.settings.get("images") or {}).get("view") == "shrink":
        side = base.config.image
        scale = max(side[0] / pairs.pairs[0][0].pixels.shape[0], side[1] / pairs.pairs[0][0].pixels.shape[1])
        if scale < 0.8:
            notes.append(
                f"the model was pretrained on pictures shrunk to {scale:.2g} of their sides, and masks are learnt "
                f"at their own resolution: pretraining with view=crop, image_size={side[0]} fits better"
            )
    if validation is not None or validation_masks is not None:
        where = masks if validation_masks is None else validation_masks
        other = read_pairs(base, data if validation is None else validation, where, **how, legend=legend)
        same = {w.name for w, _ in pairs.pairs} if validation is None else set()
        held = [(w, m) for w, m in other.pairs if w.name not in same]
        notes += [f"validation: {note}" for note in other.notes]
        return pairs, held, [*notes, *_copy_notes(pairs.pairs, held, settings)]
    wholes = [whole for whole, _ in pairs.pairs]
    found = alike_pictures([whole.pixels for whole in wholes])
    groups = _groups(wholes, settings)
    together = joined(groups, found if groups is None else found._replace(near=found.near[:0]))
    if together is None:
        together = np.arange(len(wholes))
    out = _held_out(together, [m for _, m in pairs.pairs], settings, 0 if legend.scale else len(legend.names))
    held, kept = ([pair for pair, o in zip(pairs.pairs, out, strict=True) if o == side] for side in (True, False))
    if held:
        notes.append(f"{len(held):,} pictures held out")
    elif settings.holdout:
        notes.append(
            f"no picture is held out of {len(pairs.pairs)}: all are needed to learn from, and nothing is judged "
            f"({option('validation')} gives pictures to judge on)"
        )
    return dataclasses.replace(pairs, pairs=kept), held, [*notes, *_copy_notes(kept, held, settings)]


def _groups(wholes: Sequence[WholePicture], settings: SegmenterSettings) -> np.ndarray | None:
    """What pictures belong to; None where each file is for itself and nothing else was asked for."""
    groups = np.array([whole.group or whole.name for whole in wholes])
    return None if settings.group is None and len(set(groups)) == len(groups) else groups


def _copy_notes(
    train: Sequence[tuple[WholePicture, Any]], held: Sequence[tuple[WholePicture, Any]], settings: SegmenterSettings
) -> list[str]:
    """What is to be said of groups and copies among pictures, and across the two parts."""
    wholes = [whole for whole, _ in (*train, *held)]
    both = ImageSet(
        pixels=np.empty((len(wholes), 0, 0, 0)),
        names=[whole.name for whole in wholes],
        groups=_groups(wholes, settings),
        split=np.repeat(["train", "test"], [len(train), len(held)]) if held else None,
    )
    return copy_notes(both, alike_pictures([whole.pixels for whole in wholes]))


def _held_out(groups: np.ndarray, masks: Sequence[np.ndarray], settings: SegmenterSettings, classes: int) -> np.ndarray:
    """Booleans: the pictures that are held out, whole groups of them; none of fewer than `FEWEST` groups, and none
    without which a class would not be learnt."""
    names, each = np.unique(groups, return_inverse=True)
    out = np.zeros(len(names), bool)
    if len(names) < FEWEST or not settings.holdout:
        return out[each]
    has = np.zeros((len(names), classes), bool)
    for number, mask in zip(each, masks, strict=True) if classes else ():
        has[number, np.unique(mask[mask >= 0])] = True
    count = max(1, round(len(names) * settings.holdout))
    for number in np.random.default_rng(settings.train.seed).permutation(len(names)):
        left = ~out
        left[number] = False
        if out.sum() < count and not (has.any(0) & ~has[left].any(0)).any():
            out[number] = True
    return out[each]
