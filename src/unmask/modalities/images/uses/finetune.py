"""`unmask finetune classify` for images: a pretrained encoder and a linear head, trained together on labelled pictures:
one class per picture, several labels, or a number."""

from __future__ import annotations

import copy
import dataclasses
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.elsewhere import ARGUMENTS
from unmask.errors import UserError, option, setting
from unmask.guessed import also_called
from unmask.modalities.images.classify.classifier import Classifier, ClassifierNet
from unmask.modalities.images.classify.classifier_settings import ClassifierSettings, with_overrides
from unmask.modalities.images.classify.classifier_training import PictureFinetuning
from unmask.modalities.images.classify.objectives import objective_of, strata
from unmask.modalities.images.classify.probe_start import HeadInput, choose_reading, readings, start_as_probe
from unmask.modalities.images.classify.scored_report import finetuned_report
from unmask.modalities.images.network.build import untrained
from unmask.modalities.images.reading.account import account_lines, class_notes, describe
from unmask.modalities.images.reading.arrays import ImageSet, content_digest, picture_count
from unmask.modalities.images.reading.copies import copy_notes
from unmask.modalities.images.reading.lazy import PictureStore
from unmask.modalities.images.reading.split import held_out_by_class, notes_across
from unmask.modalities.images.recipes import ELSEWHERE
from unmask.modalities.images.segment.segmenter import Segmenter
from unmask.modalities.images.uses.finetuned import Finetuned, checkpointer_of, opened, trained
from unmask.modalities.images.uses.model import ImageModel
from unmask.modalities.images.uses.pretrain import pretrain, store_of
from unmask.modalities.images.uses.score import raw_probe_accuracy
from unmask.odd_numbers import number_notes
from unmask.registry import is_model
from unmask.training.finetune import Evaluation
from unmask.training.finetune_checkpoints import Checkpointer
from unmask.training.precision import precision_of, resolve_precision
from unmask.training.processes import first_process_first, join_others
from unmask.training.same_run import digest
from unmask.training.settings import TrainSettings, refuse_unread, settings_from
from unmask.training.tracking import console_logger
from unmask.writing import first_of_all, makes_folder, writes_model, written_folder


@also_called(ELSEWHERE, validation_split="holdout", **ARGUMENTS)
@makes_folder
@writes_model
def finetune_classify(
    model: Any,
    data: Any = None,
    out: str | Path | None = None,
    *,
    task: str | None = None,
    validation: Any = None,
    settings: ClassifierSettings | TrainSettings | Mapping[str, Any] | None = None,
    console: bool = True,
    checkpoints: bool = False,
    resume: bool = False,
    **overrides: Any,
) -> Finetuned:
    """Fine-tune an image model on labelled pictures.

    Args:
        model: a folder, or a loaded `ImageModel` (which is copied). Left out, so that the labelled pictures stand
            first, a model is pretrained on them for `FIRST` minutes, which is said.
        data: labelled pictures; see `sources.read_images`. Of data with a test part the training part alone is used.
        out: left out, a temporary folder, which lives as long as the result.
        task: 'classify', the only one: what the labels are (a class, several, a number) is `problem`.
        settings, overrides: fields of `ClassifierSettings` and of its `train`, as keywords (`epochs=10`), a dict or an
            object.
        validation: labelled pictures to choose the best epoch by; default the validation part of
            the data, or a `holdout` share of each class.
        out: run folder: config.json, model.safetensors, unmask.json, metrics.jsonl, report.html.
        checkpoints: keep them beside `out` while training, one of them at SIGTERM or Ctrl-C, which then ends the run:
            the figures say `stopped` 'signal', and there is no model yet.
        resume: go on from the checkpoint of an interrupted run to `out`, on the same pictures with the same settings.

    Raises:
        UserError: no classes, one class only, an unknown class in the validation pictures, a setting that nothing reads
            for such labels, or `out` holds a model.
    """
    assert out is not None  # of `makes_folder`
    settings, out = settings_from(ClassifierSettings(), settings, overrides, with_overrides), Path(out)
    if task not in (None, "classify"):
        raise UserError(
            f"task={task!r}: not a task of images",
            hint=f"It is 'classify'; of several labels or numbers say {setting('problem', 'multi')} or 'regression'.",
        )
    known = isinstance(model, ImageModel | Classifier | Segmenter)
    if not known and (not isinstance(model, str | Path) or (data is None and not is_model(model))):
        data = model if data is None else (model, data)
        model = _first_pretrained(data, settings, console_logger(console))
    train_settings = settings.train
    resume = join_others(out, train_settings.device, resume=resume, minutes=train_settings.minutes)
    loaded, base = opened(model, train_settings.device)
    store = store_of(settings.store, settings.store_folder or out / "pictures", train_settings, console_logger(console))
    with first_process_first(train_settings):
        train, held = _pictures(base, data, validation, settings, store)
    objective = objective_of(train, settings.problem, settings.threshold)
    smoothing = _smoothing(settings, objective.problem)
    start = _start(settings, objective.problem)
    read = {"threshold": objective.problem == "multi", "holdout": validation is None}
    read |= dict.fromkeys(("probe_rate", "average"), start == "probe")
    refuse_unread(settings, [name for name, does in read.items() if not does])
    truth = objective.truth(train)
    account = describe(train, mirrored=settings.flip)
    if objective.problem == "single":
        account["notes"] = [*class_notes(objective.classes, truth), *account["notes"]]
    elif objective.problem == "regression":
        account["notes"] += number_notes(truth)
    account["notes"] += copy_notes(train) if held is None else notes_across(train, held)
    for line in account_lines(account):
        console_logger(console)(line)
    torch.manual_seed(train_settings.seed)
    started = time.monotonic()
    masked = copy.deepcopy(base.model)
    if isinstance(loaded, Classifier):
        with loaded.net.whole() as whole:
            masked = copy.deepcopy(whole)
    if settings.from_scratch:
        masked = untrained(masked, train_settings.seed)
    precision = resolve_precision(train_settings.precision, base.device)
    net = ClassifierNet(masked, len(objective.classes), "mean", settings.drop_path).to(base.device)
    console_logger(console)(_let_read(net, train, truth, settings, start))
    if (bias := objective.bias(truth)) is not None:
        with torch.no_grad():
            net.head.bias.copy_(torch.from_numpy(bias))
    judged_in = precision_of(masked, train_settings.precision, base.device)  # as the saved folder will compute
    inner = ImageModel(dataclasses.replace(base.folder, model=masked), base.device, judged_in)
    column = train.label_column
    classifier = Classifier(model=inner, net=net, classes=objective.classes, objective=objective, label_column=column)
    targets = objective.prepare(truth, smoothing)
    probed = start == "probe"
    work = PictureFinetuning(classifier, train, targets, held, settings, from_probe=probed, precision=precision.name)
    figures = {
        "pictures": len(train),
        "whole_pictures": picture_count(train),
        "data": account,
        "problem": objective.problem,
        "classes": len(objective.classes),
        "pooling": net.pooling,
        "gradients": net.gradients,
        "start": start,
        "precision": precision.name,
        "device": str(base.device),
    }
    checkpointer = None
    if checkpoints or resume:
        of: dict[str, Any] = {"the training pictures": content_digest(train), "the labels": digest([], targets)}
        of["the validation pictures"] = None if held is None else content_digest(held)
        checkpointer = checkpointer_of(out, settings, of, resume=resume)
    figures = _train(work, out, checkpointer, console) | figures | {"seconds": round(time.monotonic() - started, 2)}
    if figures["stopped"] == "signal":
        return Finetuned(model=classifier, folder=out, figures=figures)
    judged: dict[str, Any] | None = None
    if held is not None:
        judged = classifier.evaluate(dataclasses.replace(held, split=None), seed=train_settings.seed)
        if objective.problem == "single":
            judged["raw_probe_accuracy"] = raw_probe_accuracy(train, held, train_settings.seed)
        figures["validation"] = judged
    with written_folder(out) as new:
        classifier.save(new, pictures=len(train), judged=judged)
        if first_of_all():
            finetuned_report(new, out, figures, settings, account_lines(account))
    if checkpointer is not None:
        checkpointer.remove()
    return Finetuned(model=classifier, folder=out, figures=figures)


FIRST = 1.0
"""Minutes of pretraining where there is no model."""


def _first_pretrained(data: Any, settings: ClassifierSettings, say: Callable[[str], None]) -> ImageModel:
    """A model of the pictures that it is to be fine-tuned on."""
    say(
        f"no model was given: one is pretrained on these pictures for {FIRST:g} minute first (unmask.images.pretrain "
        "makes a better one of more pictures, or in more time)"
    )
    shared = {name: getattr(settings.train, name) for name in ("seed", "device", "precision", "memory")}
    shared |= {name: getattr(settings, name) for name in ("group", "column", "label_column")}
    run = pretrain(data, console=False, minutes=FIRST, probe=False, **shared)
    model: ImageModel = run.model
    return model


def _pictures(
    base: ImageModel, data: Any, validation: Any, settings: ClassifierSettings, store: PictureStore | None
) -> tuple[ImageSet, ImageSet | None]:
    table: dict[str, Any] = {
        "store": store,
        "problem": settings.problem,
        "pictures": settings.pictures,
        "column": settings.column,
        "label_column": settings.label_column,
    }
    train = base.read(data, group=settings.group, **table)
    held, whole = None, train
    if whole.split is not None:
        train = whole.take(np.flatnonzero(whole.split == "train"))
        held_out = whole.take(np.flatnonzero(whole.split != "train"))
        train = dataclasses.replace(train, notes=[*train.notes, *notes_across(train, held_out)])
        if validation is None and (held := whole.part("validation")) is not None:
            refuse_unread(settings, ["holdout"], "with validation pictures in the data")
            note = f"{len(held):,} validation pictures in the data choose the epoch"
            train = dataclasses.replace(train, notes=[*train.notes, note])
    objective = objective_of(train, settings.problem, settings.threshold)
    _smoothing(settings, objective.problem)
    if validation is not None:
        # Validation pictures need not have the column of groups, nor folders the levels.
        group = settings.group if settings.group in ("folder", "file", "name") else None
        table["usual"] = base.folder.reading | {"label_column": train.label_column, "group": settings.group}
        held = base.read(validation, group=group, **table | {"problem": objective.problem})
        held = held.part("validation", "test") or held
        if settings.group and held.groups is None:
            note = f"warning: no {setting('group', settings.group)} of the validation pictures: each counts by itself"
            train = dataclasses.replace(train, notes=[*train.notes, note])
    if held is not None:
        objective.truth(held)
        return train, held
    if not settings.holdout:
        return train, None
    out = held_out_by_class(dataclasses.replace(train, labels=strata(train)), settings.holdout, settings.train.seed)
    if not out.any():
        warnings.warn(
            "no picture is held out: no class has two pictures, or two groups (patients, files, folders), of which one "
            f"could be; nothing is judged ({option('validation')} gives pictures to judge on)",
            stacklevel=3,
        )
    return train.take(np.flatnonzero(~out)), train.take(np.flatnonzero(out)) if out.any() else None


def _start(settings: ClassifierSettings, problem: str) -> str:
    """Where the head starts: 'zero' or 'probe'."""
    if settings.start == "auto":
        return "probe" if problem == "single" and not settings.from_scratch else "zero"
    if settings.start == "probe" and problem != "single":
        raise UserError(
            f"start=probe with problem={problem}",
            hint=f"The probe is of one class per picture: say {setting('start', 'zero')}.",
        )
    return settings.start


def _let_read(net: ClassifierNet, train: ImageSet, truth: np.ndarray, settings: ClassifierSettings, start: str) -> str:
    """Give a network the head that the settings ask for; a line that says what it reads."""
    outputs, seed = net.head.out_features, settings.train.seed
    candidates = readings(settings.pooling, settings.gradients, class_token=net.config.class_token)
    if start == "zero":
        net.read(*candidates[0], outputs)
        return f"the head reads {named(candidates[0])}, and starts at zero"
    why, found = "", choose_reading(net, train, truth, candidates, seed) if len(candidates) > 1 else {}
    if found:
        candidates = sorted(candidates, key=lambda reading: -found[reading].likelihood)  # of equals the smallest
        others = ", ".join(f"{named(reading)} {found[reading].right:.1%}" for reading in candidates[1:])
        right = f"{found[candidates[0]].right:.1%}"
        why = f", chosen by the likelihood of the labels in four folds: {right} of them right (the others: {others})"
    net.read(*candidates[0], outputs)
    start_as_probe(net, train, truth, seed)
    return f"the head reads {named(candidates[0])}, and starts as a linear probe{why}"


def named(reading: HeadInput) -> str:
    """What a head reads, in words."""
    pool, edges = reading
    words = {"mean": "the mean of the patches", "first": "the class token", "grid": "the means over a grid"}
    return words[pool] + (" and oriented gradients" if edges else "")


def _smoothing(settings: ClassifierSettings, problem: str) -> float:
    """The share by which targets are smoothed."""
    if problem == "regression" and (settings.smoothing or settings.cutmix):
        raise UserError(
            f"smoothing={settings.smoothing}, cutmix={settings.cutmix} with problem=regression",
            hint="Numbers are not smoothed, and a cut-out piece does not carry its share of a number: leave both out.",
        )
    if settings.smoothing is not None:
        return settings.smoothing
    return 0.1 if problem == "single" else 0.0


def _train(work: PictureFinetuning, out: Path, checkpointer: Checkpointer | None, console: bool) -> dict[str, Any]:
    """Train; what came of it."""
    started = time.monotonic()
    start = work.start() if work.averages else None

    def first() -> Evaluation:
        work.module.eval()
        return work.evaluate()

    judges = work.from_probe and work.held is not None and work.settings.keep_best  # the probe may be kept
    result, figures = trained(work, out, checkpointer, console=console, first=first if judges else None)
    averaged = start is not None and result.stopped != "signal" and work.average(start)
    figures |= {
        "averaged": averaged,
        "images_per_second": round(work.pictures / max(time.monotonic() - started, 1e-9), 1),
        "micro_batches": -(-work.batch // work.rows),
    }
    if work.held is not None:
        figures["validation_pictures"] = picture_count(work.held)
        figures["kept_step"] = result.kept_step
        for name, value in (work.evaluate().metrics if averaged else result.metrics).items():
            figures |= {"kept_by": name, f"validation_{name}": value}
    return figures
