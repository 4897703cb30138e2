"""`unmask finetune classify` for images: a pretrained encoder and a linear head, trained together on labelled pictures."""

from __future__ import annotations

import copy
import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F

from unmask.errors import UserError
from unmask.files import check_new_model
from unmask.images.arrays import ImageSet, model_floats
from unmask.images.augment import Augment, mix_batch, smoothed
from unmask.images.batches import image_batch
from unmask.images.build import untrained
from unmask.images.classifier import Classifier, ClassifierNet, layer_groups, matched_labels
from unmask.images.model import ImageModel, load
from unmask.images.pretrain import store_of
from unmask.images.shards import Store
from unmask.images.split import held_out_by_class
from unmask.training.memory import keep_freed_memory
from unmask.training.optimiser import AdamW, NanGuard, step
from unmask.training.precision import resolve_precision
from unmask.training.run import sayer
from unmask.training.schedule import rate
from unmask.training.settings import (
    TrainSettings,
    apply_run_overrides,
    check_types,
    require,
    require_shares,
)
from unmask.training.tracking import Tracker


@dataclass(frozen=True, kw_only=True)
class FinetuneSettings:
    """How an image classifier is fine-tuned; defaults after MAE's (He et al. 2022, table 9), for small data.

    Attributes:
        pooling: 'mean' of the patches, or the class token ('first').
        layer_decay: each layer has this times the rate of the next.
        drop_path: share of a deepest block's outputs left out, rising evenly from 0 at the first.
        mixup, cutmix: beta parameters, 0 for none; each batch gets one of the two.
        smoothing: share of a target spread over all classes.
        crop, flip: as in pretraining.
        batch: pictures in a step.
        group: what must not be split between training and held-out pictures; see `ImageSettings`.
        holdout: share of each class held out where no validation pictures are given; 0 trains on all and keeps the end.
        keep_best: the state with the best validation accuracy is kept, not the last.
        from_scratch: start from random weights (to see what pretraining is worth).
        store, store_folder: where decoded pictures are kept, as in pretraining.
    """

    pooling: Literal["mean", "first"] = "mean"
    layer_decay: float = 0.75
    drop_path: float = 0.1
    mixup: float = 0.0
    cutmix: float = 0.0
    smoothing: float = 0.1
    crop: tuple[float, float] = (0.6, 1.0)
    flip: bool = True
    batch: int = 64
    group: str | None = None
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
        require_shares(self, "smoothing", "drop_path", "holdout")
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
    store = store_of(settings.store, settings.store_folder or out / "pictures", train_settings, sayer(console))
    train, held = _pictures(base, data, validation, settings, store)
    classes = train.classes
    labels = matched_labels(train, classes)
    torch.manual_seed(train_settings.seed)
    masked = copy.deepcopy(base.model)
    if isinstance(loaded, Classifier):
        with loaded.net.whole() as whole:
            masked = copy.deepcopy(whole)
    if settings.from_scratch:
        masked = untrained(masked, train_settings.seed)
    precision = resolve_precision(train_settings.precision, base.device)
    net = ClassifierNet(masked, len(classes), settings.pooling, settings.drop_path).to(base.device)
    inner = ImageModel(dataclasses.replace(base.folder, model=masked), base.device, precision.name)
    classifier = Classifier(model=inner, net=net, classes=classes)
    figures = _train(classifier, train, labels, held, settings, out, console)
    classifier.net.eval()
    classifier.save(out)
    figures |= {
        "pictures": len(train),
        "classes": len(classes),
        "precision": precision.name,
        "device": str(base.device),
    }
    if held is not None:
        figures["validation"] = classifier.evaluate(dataclasses.replace(held, test=None), seed=train_settings.seed)
    _report(out, figures, settings)
    return Finetuned(classifier=classifier, folder=out, figures=figures)


def _pictures(
    base: ImageModel, data: Any, validation: Any, settings: FinetuneSettings, store: Store | None
) -> tuple[ImageSet, ImageSet | None]:
    train = base.read(data, group=settings.group, store=store)
    if train.labels is None:
        raise UserError("the pictures have no classes", hint="Give a folder with one folder a class, or labels.")
    if train.test is not None:
        train = train.take(np.flatnonzero(~train.test))
    if train.labels is None or len(np.unique(train.labels)) < 2:
        raise UserError(f"all {len(train)} pictures are of one class", hint="Give two classes or more.")
    if validation is not None:
        held = base.read(validation, store=store)
        if held.test is not None:
            held = held.take(np.flatnonzero(held.test))
        matched_labels(held, train.classes)
        return train, held
    if not settings.holdout:
        return train, None
    assert train.labels is not None
    out = held_out_by_class(train, settings.holdout, settings.train.seed)
    # Of one picture a class none is left to hold out.
    return train.take(np.flatnonzero(~out)), train.take(np.flatnonzero(out)) if out.any() else None


def _train(
    classifier: Classifier, train: ImageSet, labels: np.ndarray, held: ImageSet | None, settings: FinetuneSettings,
    out: Path, console: bool,
) -> dict[str, Any]:  # fmt: skip
    net, ts = classifier.net, settings.train
    groups = layer_groups(net, rate=ts.learning_rate, decay=settings.layer_decay, weight_decay=ts.weight_decay)
    optimiser = AdamW(groups, betas=(ts.beta1, ts.beta2), eps=ts.epsilon, fused=True)
    trained = [p for group in groups for p in group["params"]]
    batch = min(settings.batch, len(train))
    per_epoch = -(-len(train) // batch)
    total = ts.steps or max(1, round((ts.epochs or 1) * per_epoch))
    started, guard = time.monotonic(), NanGuard(ts.nan_limit)
    feed = _feeder(classifier, train, labels, settings)
    best: dict[str, Any] = {"accuracy": -1.0}
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
            packed, target = feed(chosen, epoch, number)
            with classifier.model._context():
                logits = net(packed)
            loss = F.cross_entropy(logits, target)
            loss.backward()
            norm = step(optimiser, trained, clip=ts.clip, rate=rate(done, ts))
            guard.check(norm)
            net.zero_grad(set_to_none=True)
            number, images = number + 1, images + len(chosen)
            if number % ts.log_every == 0 or number == 1:
                tracker.log(number, done, loss=float(loss.detach()), gradient_norm=float(norm), epoch=epoch)
            if held is not None and (number % per_epoch == 0 or progress() >= 1.0) and _due(number, per_epoch, total):
                net.eval()
                accuracy = float(
                    (classifier.probabilities(held).argmax(-1) == matched_labels(held, classifier.classes)).mean()
                )
                tracker.log(number, done, kind="validation", validation_accuracy=accuracy)
                if accuracy > best["accuracy"] or not settings.keep_best:
                    best = {"accuracy": accuracy, "step": number, "state": copy.deepcopy(net.state_dict())}
    if held is not None and settings.keep_best and "state" in best:
        net.load_state_dict(best["state"])
    seconds = time.monotonic() - started
    found = {"steps": number, "seconds": round(seconds, 2), "images_per_second": round(images / max(seconds, 1e-9), 1)}
    if held is not None:
        found |= {"validation_accuracy": best["accuracy"], "validation_pictures": len(held)}
    return found


def _due(number: int, per_epoch: int, total: int) -> bool:
    """Validation at the end of an epoch, at most about 25 times over the run."""
    every = max(1, total // per_epoch // 25)
    return (number // per_epoch) % every == 0 or number >= total


def _feeder(
    classifier: Classifier, train: ImageSet, labels: np.ndarray, settings: FinetuneSettings
) -> Callable[[np.ndarray, int, int], tuple[Any, torch.Tensor]]:
    codec = classifier.net.masked.codec
    mean, deviation = codec.mean.cpu(), codec.deviation.cpu()
    augment = Augment(scale=settings.crop, flip=settings.flip)
    seed = settings.train.seed

    def feed(chosen: np.ndarray, epoch: int, number: int) -> tuple[Any, torch.Tensor]:
        generator = torch.Generator().manual_seed(hash((seed, number)) % 2**31)
        missing = None if train.missing is None else train.missing[chosen]
        pixels = augment(torch.from_numpy(model_floats(train.pixels[chosen], missing)), chosen, key=(seed, epoch))
        seen = (pixels - mean) / deviation
        target = smoothed(torch.from_numpy(labels[chosen]), len(classifier.classes), settings.smoothing)
        seen, target = mix_batch(seen, target, mixup=settings.mixup, cutmix=settings.cutmix, generator=generator)
        return image_batch(codec.config, seen, chosen).to(classifier.device), target.to(classifier.device)

    return feed


def _report(out: Path, figures: Mapping[str, Any], settings: FinetuneSettings) -> None:
    from unmask.evaluation.classes import class_table, confusion_table
    from unmask.evaluation.report import Report, training_curves

    page = Report("Image classification", str(out))
    shown = {
        "Pictures": figures["pictures"],
        "Classes": figures["classes"],
        "Steps": figures["steps"],
        "Time": f"{figures['seconds']:.0f} s",
    }
    found = figures.get("validation")
    if found is not None:
        often = f"{found['most_frequent_accuracy']:.1%} ({found['most_frequent']})"
        shown = {"Validation accuracy": f"{found['accuracy']:.1%}", "Most frequent class": often, **shown}
    page.facts(shown)
    if found is not None:
        chosen = (
            " The best epoch was chosen on these pictures: on new ones expect a little less."
            if settings.keep_best
            else ""
        )
        page.section(
            "What is taken for what", confusion_table(found, found["classes"]),
            note=f"{found['n']:,} held-out pictures: the true class by row, the predicted one by column; darker where a larger "
            f"share of the row is.{chosen}",
        )  # fmt: skip
        page.section(
            "By class", class_table(found),
            note="95 % intervals: Wilson's of precision and recall, bootstrap of F1, Hanley and McNeil's of the area under the ROC "
            "curve, one class against the rest. They take pictures as independent of each other.",
        )  # fmt: skip
    page.section("Training", training_curves(out / "metrics.jsonl", loss="nats a picture"))
    page.section("Settings", json.dumps(dataclasses.asdict(settings), indent=1))
    page.write(out / "report.html")


__all__ = ["FinetuneSettings", "Finetuned", "finetune_classify", "with_overrides"]
