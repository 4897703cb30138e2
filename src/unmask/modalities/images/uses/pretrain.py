"""`unmask pretrain images`: pictures -> batches of patches -> masked model -> a folder that transformers loads."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.core.batch import PackedBatch
from unmask.core.model import MaskedModel
from unmask.core.sampler import PackedSampler
from unmask.elsewhere import ARGUMENTS
from unmask.errors import UserError, setting
from unmask.evaluation.card import Figure, source_name
from unmask.guessed import also_called
from unmask.memory import data_in_memory
from unmask.modalities.images.network.augment import Augment
from unmask.modalities.images.network.baseline import rule_loss
from unmask.modalities.images.network.batches import batch_maker, channel_statistics, evenly
from unmask.modalities.images.network.build import codec_config, new_model, usual_size, without_learning
from unmask.modalities.images.network.codec import PatchCodec, PatchCodecConfig
from unmask.modalities.images.network.features import features, fit_linear, knn_predict, linear_predict
from unmask.modalities.images.network.folder import save_folder
from unmask.modalities.images.network.masking import image_corruption, unit_block
from unmask.modalities.images.reading.account import account_lines, describe
from unmask.modalities.images.reading.arrays import ImageSet, content_digest
from unmask.modalities.images.reading.copies import copy_notes
from unmask.modalities.images.reading.lazy import PictureStore
from unmask.modalities.images.reading.sources import read_images
from unmask.modalities.images.reading.split import held_out_pictures, split_groups
from unmask.modalities.images.recipes import ELSEWHERE, RECIPES, ImageSettings, sides, with_overrides
from unmask.training.ahead import MadeWhenNeeded
from unmask.training.job import Job, ModelOfRun, RunResult
from unmask.training.pretraining import Pretrainable, pretrained
from unmask.training.settings import TrainSettings, lasting, refuse_unread, settings_from
from unmask.writing import makes_folder

if TYPE_CHECKING:
    from unmask.evaluation.report import Report
from unmask.evaluation.metrics import effective_rank, relative_spread
from unmask.evaluation.report import records
from unmask.evaluation.results import figures_shown, place
from unmask.evaluation.shown import Printed, Shown

VALIDATION = 2048
"""Held-out pictures that the loss is measured on."""
VALIDATION_BYTES, VALIDATION_KEPT = 32e6, 256e6
"""Of a validation batch, about, and of all of them up to which they are kept instead of made at every look."""
PROBE_TRAIN, PROBE_TEST = 1000, 500
"""Pictures the live probe learns from and is tested on: a second or two, 20 times a run."""
PROBE_SHARE = 0.1
"""No probe while probing has taken more than this share of the run: on a busy machine it must not eat the training."""


@dataclass(frozen=True, kw_only=True, repr=False)
class ImageRun(ModelOfRun, Printed):
    """A finished run: where it is, how it ended, what it was trained on; `.model` is the trained model.

    Attributes:
        slots: of a picture, in all of its views.
        drawn: the pictures that the report draws from: held-out ones, of the training where none are held out.
    """

    folder: Path
    result: RunResult
    settings: ImageSettings
    data: dict[str, Any]
    slots: int
    drawn: ImageSet

    @property
    def images_per_second(self) -> float:
        """Pictures trained on per second, of whole steps."""
        return self.result.slots_per_second / self.slots

    def shown(self) -> Shown:
        """The held-out loss beside that of a rule, and what to do next."""
        height, width = self.data["size"]
        rules = [Figure(name="loss", value=v, of=n) for n, v in self.data["rules"].items()]
        return figures_shown(
            f"A masked image model of {self.data['training']:,} pictures of {width} x {height} pixels: "
            f"{self.result.steps:,} steps, {self.result.seconds:.0f} s",
            [Figure(name="loss", value=v) for v in [self.result.validation.get("validation_loss")] if v] + rules,
            notes=[f"{self.data['held_out']:,} pictures held out", place(self.folder)],
            next_step="run.model.finetune(pictures, labels), run.model.embed(pictures) or run.model.fill(pictures)",
            head="held out",
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for --json."""
        return self.result.summary(
            self.folder, self.settings.train.seed, data=self.data, images_per_second=round(self.images_per_second, 1)
        )


class ImagePretraining(Pretrainable[ImageRun]):
    """A new masked image model; see `pretrain`."""

    def __init__(self, data: Any, settings: ImageSettings | None) -> None:
        self.data, self.settings = data, settings or ImageSettings()

    def prepare(self, out: Path, *, resume: bool, first: bool, say: Callable[[str], None]) -> None:
        settings = self.settings
        folder = settings.store_folder or out / "pictures"
        self.images = images = prepare(self.data, settings, store_of(settings.store, folder, settings.train, say))
        self.account, self.say = describe(images, mirrored=settings.flip), say
        self.account["notes"] += copy_notes(images) if settings.holdout else []
        for line in account_lines(self.account):
            say(line)
        self.held = held_out_pictures(images, settings.holdout, settings.train.seed)
        self.training, self.held_out = np.flatnonzero(~self.held), np.flatnonzero(self.held)
        if not len(self.training):
            raise UserError(
                f"{len(images)} pictures and none left to train on",
                hint=f"Give more pictures, or {setting('holdout', 0)}.",
            )

    def job(self, out: Path, say: Callable[[str], None]) -> Job:
        images, settings = self.images, self.settings
        self.size = sides(settings.image_size) if settings.image_size is not None else images.size
        mean, deviation = channel_statistics(images, self.training)
        self.model = new_model(settings, codec_config(settings, self.size, images.channels, mean, deviation))
        job, self.settings = make_job(self.model, images, self.training, self.held_out, settings)
        self.groups = split_groups(images, self.held)
        if self.groups:
            say(
                f"{self.groups['training_groups']} groups for training, {self.groups['held_out_groups']} held out "
                f"whole, {self.groups['groups_on_both_sides']} on both sides"
            )
        self.account["rules"] = rule_loss(self.model, job.validation, job.validation_corruption)
        shape = f"{images.size[1]} x {images.size[0]} x {images.channels}"
        say(
            f"{len(self.training)} training and {len(self.held_out)} held-out pictures of {shape}, "
            f"{self.model.codec.config.patches} patches, "
            f"{sum(p.numel() for p in self.model.parameters()) / 1e6:.2f} M parameters"
        )
        return job

    def save(self, out: Path, model: Any) -> None:
        about = {"images": asdict(self.settings), "classes": self.images.classes, "data": self.account}
        about["source"] = source_name(self.data)
        save_folder(out, without_learning(model), depth=self.images.depth, settings=about)

    def finished(self, out: Path, result: RunResult) -> ImageRun:
        images = self.images
        spread = last_spread(out / "metrics.jsonl")
        if warning := warned(spread):
            self.say(warning)
        about = self.account | {
            **spread,
            "pictures": len(images),
            "training": len(self.training),
            "held_out": len(self.held_out),
            "skipped": len(images.skipped),
            "classes": len(images.classes),
            "size": list(self.size),
            "channels": images.channels,
            "depth": images.depth,
            **self.groups,
        }
        shown = self.held_out if len(self.held_out) else evenly(self.training, VALIDATION)
        return ImageRun(
            folder=out,
            result=result,
            settings=self.settings,
            data=about,
            slots=self.model.codec.config.slots * self.settings.shown_views,
            drawn=images.take(shown),
        )

    def report(self, finished: ImageRun) -> None:
        write_report(finished)


@also_called(ELSEWHERE, **ARGUMENTS)
@makes_folder
def pretrain(
    data: Any,
    out: str | Path | None = None,
    *,
    settings: ImageSettings | TrainSettings | Mapping[str, Any] | None = None,
    resume: bool = False,
    console: bool = True,
    trackers: Sequence[str] = (),
    **overrides: Any,
) -> ImageRun:
    """Pretrain a masked image model.

    Args:
        data: whatever `sources.read_images` reads; of data with a test part, the training part alone is used.
        out: run folder: config.json, model.safetensors, unmask.json, metrics.jsonl, report.html; left out, a temporary
            one, which lives as long as the result.
        settings, overrides: fields of `ImageSettings` and of its `train`, as keywords (`minutes=5, width=192`), a dict
            or an object; default `ImageSettings()`, the recipe `small`.
        resume: continue the run in `out`.

    Raises:
        UserError: for anything wrong with the input, the settings or the folder.
    """
    assert out is not None  # of `makes_folder`
    kind = ImagePretraining(data, settings_from(ImageSettings(), settings, overrides, with_overrides, RECIPES))
    return pretrained(kind, out, resume=resume, console=console, trackers=trackers)


def store_of(
    requested: str, folder: str | Path, settings: TrainSettings, say: Callable[[str], None]
) -> PictureStore | None:
    """Where decoded pictures go: see `ImageSettings.store`."""
    if requested == "memory":
        return None
    return PictureStore(folder=Path(folder), most=data_in_memory(requested, settings.memory), say=say)


def prepare(data: Any, settings: ImageSettings, store: PictureStore | None = None) -> ImageSet:
    """The pictures to train on, at the size they are kept at."""
    images = read_images(
        data,
        size=settings.kept_size or functools.partial(usual_size, patch=settings.patch, whole=settings.compares),
        channels=settings.channels,
        workers=settings.workers,
        strict=settings.strict,
        column=settings.column,
        label_column=settings.label_column,
        group=settings.group,
        store=store,
        **settings.reading,
    )
    if images.split is not None:
        images = images.take(np.flatnonzero(images.split == "train"))
    empty = np.zeros(len(images), bool) if images.missing is None else images.missing.all((1, 2))
    if empty.any():
        note = f"left out: {int(empty.sum())} {'tiles' if images.tiles else 'pictures'} without a measured pixel"
        images = images.take(np.flatnonzero(~empty))
        images = dataclasses.replace(images, notes=[*images.notes, note])
    return images


def make_job(
    model: MaskedModel[PatchCodec], images: ImageSet, train: np.ndarray, held_out: np.ndarray, settings: ImageSettings
) -> tuple[Job, ImageSettings]:
    """Tie a model, pictures and a corruption together for the run; the settings come back with the batch in slots."""
    config, views = model.codec.config, settings.shown_views
    slots, batch = config.slots * views, min(settings.batch, len(train))
    sampler = PackedSampler(
        lengths=np.full(len(images), slots), examples=train, slots=slots, rows=batch, seed=settings.train.seed, pool=4
    )
    changes: dict[str, Any] = {"batch_slots": batch * slots}
    if settings.train.validate_every is not None:
        refuse_unread(settings, ["probe_every"], "with validate_every")
    if settings.probe_every is not None:
        changes["validate_every"] = max(1, round(sampler.steps_per_epoch() * settings.probe_every))
    settings = dataclasses.replace(settings, train=dataclasses.replace(settings.train, **changes))
    block = unit_block(config, settings.unit) if settings.hide == "unit" else 1
    native = settings.view == "crop"
    augment = Augment(
        scale=settings.scale, flip=settings.flip, native=native, turn=settings.turn, jitter=settings.jitter
    )
    make = batch_maker(model.codec, images, seed=settings.train.seed, augment=augment, block=block, views=views)
    # Held-out pictures are looked at as large as those trained on: of crops at native resolution, the middle. Views are
    # what is compared: there always the same ones.
    plain = batch_maker(model.codec, images, seed=settings.train.seed, augment=None, block=block, native=native)
    shown = evenly(held_out, VALIDATION)
    validation = _validation(shown, plain if settings.target == "pixels" else make, batch, config, views)
    corruption = image_corruption(
        config, hide=settings.hide, ratio=settings.ratio, unit=settings.unit, own=settings.select
    )
    job = Job(
        model=model,
        sampler=sampler,
        make_batch=make,
        by_epoch=True,
        corruption=corruption,
        validation=validation,
        validation_corruption=dataclasses.replace(corruption, static=True),
        fingerprint=_fingerprint(settings, images),
        measure=measures(
            live_probe(images, train, held_out, config.image, native) if settings.probe else None,
            live_spread(images, held_out, config.image, native) if settings.target != "pixels" else None,
        ),
        unit="pictures",
        whole_batch="" if settings.target == "pixels" else f"the loss of target={settings.target}",
        prefetch=0 if isinstance(images.pixels, np.ndarray) else 1,
    )
    return job, settings


def _validation(
    numbers: np.ndarray, make: Callable[..., PackedBatch], batch: int, config: PatchCodecConfig, views: int
) -> Sequence[PackedBatch]:
    """Held-out pictures in batches of at most `batch`: kept where they are small, else made whenever they are looked
    at."""
    # A slot holds its patch, and eight numbers of eight bytes or less about it.
    slots = config.slots * views
    each = slots * (4 * config.features + 40)
    rows = min(batch, max(1, int(VALIDATION_BYTES // each)))
    parts = [[[int(n)] for n in numbers[i : i + rows]] for i in range(0, len(numbers), rows)]
    makers = [functools.partial(make, part, rows, 0) for part in parts]
    few = len(numbers) * each <= VALIDATION_KEPT
    return [made() for made in makers] if few else MadeWhenNeeded(makers, rows * slots)


def live_probe(
    images: ImageSet, train: np.ndarray, held_out: np.ndarray, size: tuple[int, int], native: bool = False
) -> Callable[[Any], dict[str, float]] | None:
    """A function of the model: k-NN and linear accuracy on held-out pictures; None where there is nothing to classify.
    `native`: the middle of larger pictures is looked at, not the whole shrunk."""
    if images.labels is None or len(np.unique(images.labels[train])) < 2 or len(held_out) < 20:
        return None
    known, held = (
        images.take(part).centred(size) if native else read_images(images.take(part), size=size)
        for part in (evenly(train, PROBE_TRAIN), evenly(held_out, PROBE_TEST))
    )

    def measure(model: Any) -> dict[str, float]:
        a, b = (features(model, part, contextlib.nullcontext()) for part in (known, held))
        assert known.labels is not None
        near = knn_predict(a, known.labels, b, k=10)
        linear = linear_predict(fit_linear(a, known.labels, penalty=1e-3, steps=30), b)
        return {
            "knn_accuracy": float((near == held.labels).mean()),
            "probe_accuracy": float((linear == held.labels).mean()),
        }

    return seldom(measure, PROBE_SHARE)


def write_report(finished: ImageRun) -> Path:
    """report.html of a run: figures, curves, the live probe; with `examples` pictures."""
    from unmask.evaluation.report import Report, training_curves
    from unmask.modalities.images.uses.report import probe_chart

    r, folder = finished.result, finished.folder
    page = Report("Masked pretraining on images", str(folder))
    unit = loss_unit(finished.settings)
    page.facts(
        {
            "Held-out loss": r.held_out("loss", "{:.4f}"),
            "Steps": r.steps,
            "Time": f"{r.seconds:.0f} s",
            "Images/s": f"{finished.images_per_second:,.0f}",
            "Precision": r.precision,
            "Pictures": f"{finished.data['training']:,}",
            **({"Skipped": finished.data["skipped"]} if finished.data["skipped"] else {}),
        }
    )
    page.section("The pictures", "\n\n".join(account_lines(finished.data)))
    if warning := warned(last_spread(folder / "metrics.jsonl")):
        page.section("The representations have collapsed", warning)
    where = " on hidden slots" if finished.settings.target == "pixels" else ""
    page.section("Training", training_curves(folder / "metrics.jsonl", loss=unit, where=where))
    chart = probe_chart(folder / "metrics.jsonl")
    if chart is not None:
        page.section(
            "Probe on frozen features",
            chart,
            note=f"{min(PROBE_TRAIN, finished.data['training']):,} training and "
            f"{min(PROBE_TEST, finished.data['held_out']):,} held-out pictures, while training.",
        )
    if finished.settings.examples:
        _examples(page, finished)
    page.settings(finished.settings)
    return page.write(folder / "report.html")


def _examples(page: Report, finished: ImageRun) -> None:
    """Pictures: filled ones, where the last layer looks, neighbours and a map."""
    from unmask.modalities.images.uses.drawing import gallery
    from unmask.modalities.images.uses.model import load
    from unmask.modalities.images.uses.report import attention_pictures, drawing_note, embedding_sections, triptychs

    which = "held-out pictures" if finished.data["held_out"] else "pictures of the training, for none are held out"
    model = load(finished.folder)
    if finished.settings.predicts_pixels:
        drawn = triptychs(model, finished.drawn)
        page.section(
            "Original, masked, reconstructed",
            gallery(drawn, "original, masked, reconstructed"),
            note=f"{len(drawn)} {which}; hidden patches are predicted in pixels, visible ones are the original's. "
            + drawing_note(finished.drawn),
        )
    drawn = attention_pictures(model, finished.drawn)
    page.section(
        "Where the last layer looks",
        gallery(drawn, "picture and attention"),
        note=f"{len(drawn)} {which}. Attention of the class token (or the mean over patches), mean over heads.",
    )
    for title, content, note in embedding_sections(model, finished.drawn):
        page.section(title, content, note=note)


def loss_unit(settings: ImageSettings) -> str:
    """What the loss of a run is, for the axis of its curve."""
    names = {"views": "LeJEPA", "contrast": "NT-Xent", "latents": "error of a hidden representation"}
    if settings.target == "pixels":
        return "error of a hidden patch"
    return names[settings.target] + (" and error of a hidden patch" if settings.pixel_weight else "")


def _fingerprint(settings: ImageSettings, images: ImageSet) -> dict[str, Any]:
    """What must not change between a run and its resumption: everything but where it ends and how it is watched."""
    kept = lasting(asdict(settings))
    for name in ("workers", "strict", "examples", "store", "store_folder", "probe", "probe_every"):
        kept.pop(name)
    return {"settings": kept, "the pictures": content_digest(images)}


EXAMINED = 500
"""Held-out pictures whose representations are looked at."""
TIME_SHARE = 0.05
"""No look while looking has taken more than this share of the run."""
LEAST_RANK, LEAST_SPREAD = 1.5, 0.02
"""Below these, representations have collapsed; see `warned`."""

Measure = Callable[[Any], dict[str, float]]


def measures(*wanted: Measure | None) -> Measure | None:
    """All of the functions of the model that there are, as one; None where there is none."""
    there = [measure for measure in wanted if measure is not None]
    if not there:
        return None

    def measure(model: Any) -> dict[str, float]:
        return {name: value for each in there for name, value in each(model).items()}

    return measure


def seldom(measure: Measure, share: float) -> Measure:
    """A function of the model that gives nothing while it has taken more than this share of the run."""
    started, spent = time.monotonic(), 0.0

    def measured(model: Any) -> dict[str, float]:
        nonlocal spent
        before = time.monotonic()
        if spent > share * (before - started):
            return {}
        found = measure(model)
        spent += time.monotonic() - before
        return found

    return measured


def spread_of(vectors: np.ndarray) -> dict[str, float]:
    """Effective rank and relative spread of embeddings, under the names of metrics.jsonl."""
    return {"effective_rank": effective_rank(vectors), "relative_spread": relative_spread(vectors)}


def live_spread(images: ImageSet, held_out: np.ndarray, size: tuple[int, int], native: bool = False) -> Measure | None:
    """A function of the model: how far the embeddings of held-out pictures are spread; None where fewer than ten are
    held out."""
    if len(held_out) < 10:
        return None
    part = images.take(evenly(held_out, EXAMINED))
    pictures = part.centred(size) if native else read_images(part, size=size)
    return seldom(lambda model: spread_of(features(model, pictures, contextlib.nullcontext())), TIME_SHARE)


def warned(found: Mapping[str, Any]) -> str:
    """The warning that these figures give: '' where the embeddings of pictures differ."""
    rank, spread = found.get("effective_rank"), found.get("relative_spread")
    if rank is None or spread is None or (rank >= LEAST_RANK and spread >= LEAST_SPREAD):
        return ""
    return (
        f"warning: the representations have collapsed: those of different pictures are nearly alike (they differ by "
        f"{spread:.1%} of their length, in {rank:.1f} directions), so they say little about a picture. Raise "
        "regulariser, add pixel_weight, or take more pictures per step (batch)."
    )


def last_spread(metrics: Path) -> dict[str, float]:
    """The latest figures of a run's metrics.jsonl; {} where there are none."""
    found = [row for row in records(metrics) if "effective_rank" in row]
    return {} if not found else {name: found[-1][name] for name in ("effective_rank", "relative_spread")}
