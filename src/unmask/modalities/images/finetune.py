"""`unmask finetune classify` for images: a pretrained encoder and a linear head, trained together on labelled pictures: one class
per picture, several labels, or a number."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from unmask.errors import UserError
from unmask.files import check_new_model
from unmask.modalities.images.account import describe, told
from unmask.modalities.images.arrays import ImageSet, picture_count
from unmask.modalities.images.augment import Augment, mix_batch
from unmask.modalities.images.batches import image_batch
from unmask.modalities.images.build import untrained
from unmask.modalities.images.classifier import Classifier, ClassifierNet, layer_groups
from unmask.modalities.images.floats import model_floats
from unmask.modalities.images.label_table import ENDINGS
from unmask.modalities.images.model import ImageModel, load
from unmask.modalities.images.objectives import objective_of, strata
from unmask.modalities.images.pretrain import store_of
from unmask.modalities.images.scored_report import finetuned_report
from unmask.modalities.images.shards import Store
from unmask.modalities.images.split import held_out_by_class
from unmask.training.budget import Fitted, fit, measure_loss
from unmask.training.memory import free_memory, held_memory, keep_freed_memory, peak_memory
from unmask.training.optimiser import AdamW, NanGuard, step
from unmask.training.precision import resolve_precision
from unmask.training.schedule import rate
from unmask.training.settings import (
    TrainSettings,
    apply_run_overrides,
    check_types,
    require,
    require_shares,
)
from unmask.training.tracking import Tracker, console_logger


@dataclass(frozen=True, kw_only=True)
class FinetuneSettings:
    """How an image classifier is fine-tuned; defaults after MAE's (He et al. 2022, table 9), for small data.

    Attributes:
        pooling: 'mean' of the patches, or the class token ('first').
        layer_decay: each layer has this times the rate of the next.
        drop_path: share of a deepest block's outputs left out, rising evenly from 0 at the first.
        problem: what the labels are: one class per picture ('single'), several labels ('multi'), a number ('regression'); 'auto'
            looks at them and says what it took them for. Whole numbers are classes unless told otherwise.
        threshold: several labels: the probability from which on a label is given.
        mixup, cutmix: beta parameters, 0 for none; each batch gets one of the two. Numbers are mixed up, but not cut.
        smoothing: share of a target spread over all classes, of several labels over yes and no; None is 0.1 of one class per
            picture, else 0. Numbers are not smoothed.
        crop, flip: as in pretraining. A number that belongs to the whole picture (a count, an area) wants crop=1,1.
        batch: pictures in a step.
        group: what must not be split between training and held-out pictures; see `ImageSettings`.
        pictures, column, label_column: of a table of labels: the folder its paths are relative to (default its own), its columns
            of files and of labels (several of 0 and 1 parted by commas).
        holdout: share of each class (rarest label, fifth of the numbers) held out where no validation pictures are given; 0 trains
            on all and keeps the end.
        keep_best: the best state on the validation pictures is kept, not the last: by accuracy, of several labels the mean area
            under the precision-recall curve, of numbers the root mean squared error.
        from_scratch: start from random weights (to see what pretraining is worth).
        store, store_folder: where decoded pictures are kept, as in pretraining.
    """

    pooling: Literal["mean", "first"] = "mean"
    layer_decay: float = 0.75
    drop_path: float = 0.1
    problem: Literal["auto", "single", "multi", "regression"] = "auto"
    threshold: float = 0.5
    mixup: float = 0.0
    cutmix: float = 0.0
    smoothing: float | None = None
    crop: tuple[float, float] = (0.6, 1.0)
    flip: bool = True
    batch: int = 64
    group: str | None = None
    pictures: str | None = None
    column: str | None = None
    label_column: str | None = None
    holdout: float = 0.1
    keep_best: bool = True
    from_scratch: bool = False
    store: Literal["auto", "memory", "disk"] = "auto"
    store_folder: str | None = None
    train: TrainSettings = field(
        default_factory=lambda: TrainSettings(
            epochs=50, learning_rate=1e-3, beta2=0.999, epsilon=1e-8, weight_decay=0.05, schedule="cosine", warmup=0.1,
            minimum_rate=1e-3,
        )
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_types(self)
        require(self, lambda v: 0 < v <= 1, "a share above 0 and up to 1", "layer_decay")
        require(self, lambda v: 0 < v < 1, "a probability between 0 and 1", "threshold")
        require(self, lambda v: v is None or 0 <= v < 1, "a share from 0 to below 1, or none", "smoothing")
        require_shares(self, "drop_path", "holdout")
        if self.batch < 1 or min(self.mixup, self.cutmix) < 0:
            raise UserError(
                f"batch={self.batch}, mixup={self.mixup}, cutmix={self.cutmix}",
                hint="Expected batch >= 1, the others >= 0.",
            )
        if not 0 < self.crop[0] <= self.crop[1] <= 1:
            raise UserError(f"crop={self.crop[0]},{self.crop[1]}", hint="Expected low,high with 0 < low <= high <= 1.")


UNREAD = (
    "batch_slots", "accumulate", "optimiser", "compile", "validate_every", "patience", "checkpoint_every",
    "checkpoint_seconds", "keep",
)  # fmt: skip
"""Settings of a run that fine-tuning pictures has no use for."""


def with_overrides(settings: FinetuneSettings, overrides: Mapping[str, Any]) -> FinetuneSettings:
    """Replace settings by key; keys of `train` may be given bare.

    Raises:
        UserError: an unknown key, or one of `train` that fine-tuning pictures does not read.
    """
    return apply_run_overrides(settings, overrides, without=UNREAD)


@dataclass(frozen=True, kw_only=True)
class Finetuned:
    """A finished fine-tuning: the classifier, and what came of it."""

    classifier: Classifier
    folder: Path
    figures: dict[str, Any]


def finetune_classify(
    model: str | Path | ImageModel, data: Any, out: str | Path, *, validation: Any = None,
    settings: FinetuneSettings | None = None, console: bool = True,
) -> Finetuned:  # fmt: skip
    """Fine-tune an image model on labelled pictures.

    Args:
        model: a folder, or a loaded `ImageModel` (which is copied).
        data: labelled pictures; see `sources.read_images`. Of data with a test part the training part alone is used.
        validation: labelled pictures to choose the best epoch by; default a `holdout` share of each class.
        out: run folder: config.json, model.safetensors, unmask.json, metrics.jsonl, report.html.

    Raises:
        UserError: no classes, one class only, an unknown class in the validation pictures, or `out` holds a model.
    """
    settings, out = settings or FinetuneSettings(), check_new_model(out)
    keep_freed_memory()
    train_settings = settings.train
    loaded = load(model, device=train_settings.device) if isinstance(model, str | Path) else model
    base: ImageModel = loaded.model if isinstance(loaded, Classifier) else loaded
    store = store_of(settings.store, settings.store_folder or out / "pictures", train_settings, console_logger(console))
    train, held = _pictures(base, data, validation, settings, store)
    objective = objective_of(train, settings.problem, settings.threshold)
    smoothing = _smoothing(settings, objective.problem)
    truth = objective.truth(train)
    account = describe(train)
    for line in told(account):
        console_logger(console)(line)
    torch.manual_seed(train_settings.seed)
    masked = copy.deepcopy(base.model)
    if isinstance(loaded, Classifier):
        with loaded.net.whole() as whole:
            masked = copy.deepcopy(whole)
    if settings.from_scratch:
        masked = untrained(masked, train_settings.seed)
    precision = resolve_precision(train_settings.precision, base.device)
    net = ClassifierNet(masked, len(objective.classes), settings.pooling, settings.drop_path).to(base.device)
    if (bias := objective.bias(truth)) is not None:
        with torch.no_grad():
            net.head.bias.copy_(torch.from_numpy(bias))
    inner = ImageModel(dataclasses.replace(base.folder, model=masked), base.device, precision.name)
    classifier = Classifier(model=inner, net=net, classes=objective.classes, objective=objective)
    figures = _train(classifier, train, objective.prepare(truth, smoothing), held, settings, out, console)
    classifier.net.eval()
    classifier.save(out)
    figures |= {
        "pictures": len(train),
        "whole_pictures": picture_count(train),
        "data": account,
        "problem": objective.problem,
        "classes": len(objective.classes),
        "precision": precision.name,
        "device": str(base.device),
    }
    if held is not None:
        figures["validation"] = classifier.evaluate(dataclasses.replace(held, test=None), seed=train_settings.seed)
    finetuned_report(out, figures, settings, told(account))
    return Finetuned(classifier=classifier, folder=out, figures=figures)


def _pictures(
    base: ImageModel, data: Any, validation: Any, settings: FinetuneSettings, store: Store | None
) -> tuple[ImageSet, ImageSet | None]:
    table: dict[str, Any] = {
        "store": store, "problem": settings.problem, "pictures": settings.pictures, "column": settings.column,
        "label_column": settings.label_column,
    }  # fmt: skip
    train = base.read(data, group=settings.group, **table)
    if train.test is not None:
        train = train.take(np.flatnonzero(~train.test))
    objective = objective_of(train, settings.problem, settings.threshold)
    _smoothing(settings, objective.problem)
    if validation is not None:
        # The column of groups of a table is not one of labels; folders of validation pictures need not have the levels.
        group = settings.group if str(validation).lower().endswith(ENDINGS) else None
        held = base.read(validation, group=group, **table | {"problem": objective.problem})
        if held.test is not None:
            held = held.take(np.flatnonzero(held.test))
        objective.truth(held)
        return train, held
    if not settings.holdout:
        return train, None
    out = held_out_by_class(dataclasses.replace(train, labels=strata(train)), settings.holdout, settings.train.seed)
    # Of one picture a class none is left to hold out.
    return train.take(np.flatnonzero(~out)), train.take(np.flatnonzero(out)) if out.any() else None


def _smoothing(settings: FinetuneSettings, problem: str) -> float:
    """The share by which targets are smoothed.

    Raises:
        UserError: a setting that has no meaning for numbers.
    """
    if problem == "regression" and (settings.smoothing or settings.cutmix):
        raise UserError(
            f"smoothing={settings.smoothing}, cutmix={settings.cutmix} with problem=regression",
            hint="Numbers are not smoothed, and a cut-out piece does not carry its share of a number: leave both out.",
        )
    if settings.smoothing is not None:
        return settings.smoothing
    return 0.1 if problem == "single" else 0.0


def _train(
    classifier: Classifier, train: ImageSet, targets: torch.Tensor, held: ImageSet | None,
    settings: FinetuneSettings, out: Path, console: bool,
) -> dict[str, Any]:  # fmt: skip
    net, ts = classifier.net, settings.train
    groups = layer_groups(net, rate=ts.learning_rate, decay=settings.layer_decay, weight_decay=ts.weight_decay)
    optimiser = AdamW(groups, betas=(ts.beta1, ts.beta2), eps=ts.epsilon, fused=True)
    trained = [p for group in groups for p in group["params"]]
    batch = min(settings.batch, len(train))
    per_epoch = -(-len(train) // batch)
    total = ts.steps or max(1, round((ts.epochs or 1) * per_epoch))
    started, guard = time.monotonic(), NanGuard(ts.nan_limit)
    feed = _feeder(classifier, train, targets, settings)
    objective = classifier.objective
    fitted = _fitted(classifier, feed, batch, held is not None and settings.keep_best, ts)
    for line in fitted.told():
        console_logger(console)(line)
    best: dict[str, Any] = {"score": -math.inf}
    number = images = 0

    def progress() -> float:
        return (time.monotonic() - started) / (60 * ts.minutes) if ts.minutes is not None else number / total

    ending = f"{ts.minutes:g} minutes" if ts.minutes is not None else f"{total} steps"
    with Tracker(out, total=ending, console=console, config=vars(ts)) as tracker:
        while (done := progress()) < 1.0:
            epoch, place = divmod(number, per_epoch)
            chosen = np.random.default_rng([ts.seed, epoch]).permutation(len(train))[
                place * batch : (place + 1) * batch
            ]
            net.train()
            loss = _backward(classifier, *feed(chosen, epoch, number), chosen, fitted.rows, (ts.seed, number))
            norm = step(optimiser, trained, clip=ts.clip, rate=rate(done, ts))
            guard.check(norm)
            net.zero_grad(set_to_none=True)
            number, images = number + 1, images + len(chosen)
            if number % ts.log_every == 0 or number == 1:
                tracker.log(number, done, loss=float(loss), gradient_norm=float(norm), epoch=epoch)
            ended = number % per_epoch == 0 or progress() >= 1.0
            if held is not None and ended and _due(number, per_epoch, total):
                net.eval()
                name, value, score = objective.watched(*classifier.judged(held)[:2])
                tracker.log(number, done, kind="validation", **{f"validation_{name}": value})
                if score > best["score"] or not settings.keep_best:
                    best = {"name": name, "value": value, "score": score, "state": copy.deepcopy(net.state_dict())}
    if held is not None and settings.keep_best and "state" in best:
        net.load_state_dict(best["state"])
    seconds = time.monotonic() - started
    found = {"steps": number, "seconds": round(seconds, 2), "images_per_second": round(images / max(seconds, 1e-9), 1),
             "micro_batches": fitted.parts, "expected_memory_mb": round(fitted.expected / 1e6, 1),
             "peak_memory_mb": round(peak_memory(), 1)}  # fmt: skip
    if held is not None:
        found["validation_pictures"] = picture_count(held)
        if "name" in best:
            found |= {"kept_by": best["name"], f"validation_{best['name']}": best["value"]}
    return found


def _backward(
    classifier: Classifier, seen: torch.Tensor, target: torch.Tensor, chosen: np.ndarray, rows: int, key: tuple[int, int]
) -> torch.Tensor:  # fmt: skip
    """The loss of a batch, whose gradients are added up over parts of so many pictures: those of the whole batch.

    Args:
        seen: (n, channels, height, width) pictures as the model sees them.
        key: what the blocks that are left out (drop path) are drawn by, for each picture of the whole batch.
    """
    net = classifier.net
    generator = torch.Generator().manual_seed(hash((*key, 1)) % 2**31)
    kept = [d.draw(len(seen), generator) for d in net.drop_paths]
    total = torch.zeros((), device=classifier.device)
    for start in range(0, len(seen), rows):
        part = slice(start, start + rows)
        for hook, which in zip(net.drop_paths, kept, strict=True):
            hook.kept = which[part]
        packed = image_batch(net.config, seen[part], chosen[part]).to(classifier.device)
        with classifier.model._context():
            logits = net(packed)
        here = target[part].to(classifier.device)
        loss = classifier.objective.loss(logits, here) * (len(here) / len(target))
        loss.backward()
        total += loss.detach()
    for hook in net.drop_paths:
        hook.kept = None
    return total


def _fitted(
    classifier: Classifier, feed: Callable[..., tuple[torch.Tensor, torch.Tensor]], batch: int, keeps: bool, settings: TrainSettings,
) -> Fitted:  # fmt: skip
    """How steps are split so that they fit the memory there is, and what they will take.

    Args:
        keeps: the best state is kept beside the present one.
    """
    net, device = classifier.net, classifier.device

    def loss(rows: int) -> torch.Tensor:
        numbers = np.arange(rows)
        seen, target = feed(numbers, 0, 0)
        with classifier.model._context():
            logits = net(image_batch(net.config, seen, numbers).to(device))
        return classifier.objective.loss(logits, target.to(device))

    need = measure_loss(net, loss, device=device)
    weights = sum(t.numel() * t.element_size() for t in net.state_dict().values())
    whole = (
        3 * batch * net.config.channels * math.prod(net.config.image) * 4
    )  # the batch's pixels: read, augmented, mixed
    need = dataclasses.replace(
        need, lasting=need.lasting + keeps * weights, saving=keeps * weights, any_batch=need.any_batch + whole
    )
    free = free_memory(settings.memory, device=device)
    held = held_memory() if device.type == "cpu" else 0.0
    return fit(need, rows=batch, asked=1, free=free, held=held, unit="pictures")


def _due(number: int, per_epoch: int, total: int) -> bool:
    """Validation at the end of an epoch, at most about 25 times over the run."""
    every = max(1, total // per_epoch // 25)
    return (number // per_epoch) % every == 0 or number >= total


def _feeder(
    classifier: Classifier, train: ImageSet, targets: torch.Tensor, settings: FinetuneSettings
) -> Callable[[np.ndarray, int, int], tuple[torch.Tensor, torch.Tensor]]:
    codec = classifier.net.masked.codec
    mean, deviation = codec.mean.cpu(), codec.deviation.cpu()
    augment = Augment(scale=settings.crop, flip=settings.flip)
    seed = settings.train.seed

    def feed(chosen: np.ndarray, epoch: int, number: int) -> tuple[Any, torch.Tensor]:
        generator = torch.Generator().manual_seed(hash((seed, number)) % 2**31)
        missing = None if train.missing is None else train.missing[chosen]
        pixels = augment(torch.from_numpy(model_floats(train.pixels[chosen], missing)), chosen, key=(seed, epoch))
        seen = (pixels - mean) / deviation
        seen, target = mix_batch(
            seen, targets[chosen], mixup=settings.mixup, cutmix=settings.cutmix, generator=generator
        )
        return seen, target

    return feed


__all__ = ["FinetuneSettings", "Finetuned", "finetune_classify", "with_overrides"]
