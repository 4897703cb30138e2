"""Using an image model: fill, reconstruct, score, embed, evaluate, look at its attention, inspect."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from unmask.core.batch import PackedBatch
from unmask.core.corruption import Corruption
from unmask.core.fill import Order
from unmask.core.pretrain import validate
from unmask.errors import UserError, option
from unmask.evaluation.card import Figure, figures_of
from unmask.evaluation.results import JudgedFigures, PredictedRows, figures_shown
from unmask.evaluation.shown import Shown
from unmask.files import damaged
from unmask.guessed import also_called
from unmask.modalities.images.network.baseline import MEAN, rule_loss
from unmask.modalities.images.network.batches import evenly, image_batches
from unmask.modalities.images.network.build import at_size
from unmask.modalities.images.network.codec import PatchCodecConfig
from unmask.modalities.images.network.features import PASSING, ImagePooling, features, inference_rows, pooled, settled
from unmask.modalities.images.network.folder import ImageFolder, load_folder, save_folder
from unmask.modalities.images.network.latents import no_pixels
from unmask.modalities.images.network.masking import image_corruption, pixels_in_box
from unmask.modalities.images.reading.account import check_fit, tell_skipped
from unmask.modalities.images.reading.arrays import ImageSet, Tiles
from unmask.modalities.images.reading.copies import copy_notes
from unmask.modalities.images.reading.sources import read_images
from unmask.modalities.images.recipes import ATTRIBUTES
from unmask.modalities.images.uses.reconstruct import Reconstruction, Statistics, chosen_pixels, reconstructed
from unmask.modalities.images.uses.score import Scored, attention_maps, probe_accuracies, score_pictures, scored_of
from unmask.training.precision import computing, precision_of, resolve_device, resolve_precision
from unmask.verbs import Usable


def judged_shown(found: Mapping[str, Any]) -> Shown:
    """What of the figures of a pretrained model a person looks at."""
    judged = {
        "knn_accuracy": ("raw_knn_accuracy", "most_frequent_accuracy"),
        "probe_accuracy": ("raw_probe_accuracy", "most_frequent_accuracy"),
    }
    figures = figures_of(found, [*judged, "loss"])
    for name, rules in judged.items():
        for of, rule in zip(("raw pixels", "most frequent class"), rules, strict=True):
            if name in found and found.get(rule) is not None:
                figures.append(Figure(name=name, value=found[rule], of=of))
    if "loss_of_mean" in found:
        figures.append(Figure(name="loss", value=found["loss_of_mean"], of=MEAN))
    labelled = [] if "knn_accuracy" in found else ["no classes: with labels neighbours and a probe are judged too"]
    return figures_shown(
        f"{found['pictures']:,} pictures, features as they are", figures, notes=[*found["notes"], *labelled]
    )


JUDGED = 2000
"""Pictures that the loss is measured on."""


class ImageModel(Usable):
    """A masked image model ready to use; see `load`."""

    kind = "images"
    guesses: ClassVar[Mapping[str, Any]] = {**ATTRIBUTES, **Usable.guesses}

    def __init__(self, folder: ImageFolder, device: torch.device, precision: str) -> None:
        self.folder, self.model, self.device, self.precision = folder, folder.model, device, precision

    def __repr__(self) -> str:
        config, encoder = self.config, self.model.encoder.config
        count = sum(p.numel() for p in self.model.parameters())
        height, width = config.image
        return (
            f"ImageModel({count / 1e6:.3g} M parameters, {encoder.layers} layers of {encoder.width}, pictures of "
            f"{height} x {width}, {config.channels} channels, patches of {config.patch}, {self.precision} on "
            f"{self.device})"
        )

    @property
    def config(self) -> PatchCodecConfig:
        """Size, channels and patches of the pictures that the model reads."""
        return self.model.codec.config

    def read(self, images: Any, *, rescale: bool = False, **options: Any) -> ImageSet:
        """Pictures of any source, brought to the model's size and channels, read as those it was trained on.

        Args:
            rescale: take pictures of another depth or range than those it was trained on, full range to full range.
            options: see `sources.read_images`.

        Raises:
            UserError: another depth, or values far from those it was trained on.
        """
        chosen = {"usual": self.folder.reading} | self.folder.reading | options
        if isinstance(images, ImageSet) and images.tiles is not None and chosen.get("view") == "tile":
            # Pieces that random crops were taken from: their middle, not the whole shrunk.
            images = images if images.size == self.config.image else images.centred(self.config.image)
        given: dict[str, Any] = {
            "size": self.config.image,
            "channels": self.config.channels,
            "depth": self.folder.depth,
        }
        found = read_images(images, **given, **chosen)
        if not rescale and not found.fits:
            for line in check_fit(found, self.folder.depth, self.folder.range, self.folder.typical):
                warnings.warn(line, stacklevel=2)
        return dataclasses.replace(found, fits=True)

    def _read(self, images: Any, **options: Any) -> ImageSet:
        """`read` into memory, for rows that are those of the pictures."""
        found = self.read(images, **options)
        tell_skipped(images, found)
        return found

    @property
    def predicts_pixels(self) -> bool:
        """Whether it was trained to, and what does so is not random: published encoders come without it."""
        return self.config.pixels and "codec.head.weight" not in self.folder.random

    def _need_pixels(self) -> None:
        if not self.config.pixels:
            raise no_pixels()
        if not self.predicts_pixels:
            raise no_pixels("its file holds an encoder alone, and what would predict them is random")

    def _context(self) -> contextlib.AbstractContextManager[Any]:
        return computing(self.precision, self.device)

    def batches(self, images: ImageSet, rows: int | None = None) -> Iterator[tuple[slice, PackedBatch]]:
        """Pictures in batches on the model's device, of `rows` or what memory asks for; a picture's identity is its
        place."""
        for batch, numbers in image_batches(self.model.codec, images, rows or inference_rows(self.model)):
            yield slice(int(numbers[0]), int(numbers[-1]) + 1), batch.to(self.device)

    @also_called(mask_ratio="ratio")
    def reconstruct(
        self,
        images: Any,
        *,
        ratio: float | None = None,
        box: tuple[int, int, int, int] | None = None,
        mask: np.ndarray | None = None,
        steps: int = 1,
        order: Order = "random",
        temperature: float = 0.0,
        sweeps: int = 0,
        seed: int = 0,
        statistics: Statistics | None = None,
        gaps: bool = False,
    ) -> Reconstruction:
        """Hide a part of pictures and predict it back, in original pixel units also under normalised targets.

        Args:
            ratio: share of the patches to hide at random (default `hidden_ratio` where neither box, mask nor gaps is
                given); missing ones are not among them.
            gaps: hide every patch with a missing pixel, so that what was not measured is predicted.
            box: left, top, width, height in pixels of the model's picture size. The model sees no patch it touches;
                pixels outside of it stay as they are.
            mask: over pixels or patches, for all pictures or one per picture; non-zero is hidden, as a box is.
            steps, order, temperature, sweeps: see `core.fill.fill`; more steps let patches agree with each other.
            statistics: where a normalised patch's mean and deviation come from: 'predicted' by the model, its visible
                'neighbours', or the 'truth' (as published figures of MAE are drawn: it knows two numbers of every
                hidden patch). Default: predicted where the model was trained to, else neighbours.

        Raises:
            UserError: more than one of ratio, box and mask, or one that does not fit the picture; a model that predicts
                no pixels.
        """
        self._need_pixels()
        found = self._read(images)
        if ratio is None and box is None and mask is None and not gaps:
            ratio = self.hidden_ratio
        hidden = chosen_pixels(self.config, found, ratio=ratio, box=box, mask=mask, gaps=gaps, seed=seed)
        with self._context():
            return reconstructed(
                self.model,
                found,
                hidden,
                statistics=statistics,
                seed=seed,
                steps=steps,
                order=order,
                temperature=temperature,
                sweeps=sweeps,
            )

    def fill(self, images: Any, **options: Any) -> np.ndarray:
        """Pictures with the hidden part predicted: `reconstruct(...).filled`."""
        return self.reconstruct(images, **options).filled

    def embed(self, images: Any, *, pooling: ImagePooling = "mean", normalise: bool = False) -> np.ndarray:
        """One vector per picture, (pictures, width) float32, order kept; of a picture cut into tiles the mean over
        them. Files of large sets are decoded as they come.

        Args:
            pooling: 'mean' or 'max' over the patches, 'first' for the class token, 'grid' for the means over a grid of
                4 x 4 cells side by side, (pictures, 16 x width): what is where is kept.
        """
        if pooling == "first" and not self.config.class_token:
            raise UserError("pooling=first, but the model has no class token", hint=f"Use {option('pooling', 'mean')}.")
        found = self.read(images, store=PASSING)
        whole = found.tiles is None
        vectors = features(self.model, found, self._context(), pooling=pooling, normalise=normalise and whole)
        vectors = vectors[settled(found)]
        tell_skipped(images, found)
        if whole:
            return vectors
        vectors = pooled(vectors, found)
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12) if normalise else vectors

    @property
    def scored(self) -> Scored:
        """What `score` is the density of: 'pixels', or of models that predict normalised patches alone 'patterns'."""
        return scored_of(self.model)

    def score(self, images: Any) -> PredictedRows:
        """Pseudo-log-likelihood of pictures, one dictionary per picture: name, score (nats, summed over the patches),
        slots (how many patches were scored).

        Each patch is hidden alone and predicted from all others (Salazar et al. 2020): a pass of the model per patch.
        The density is of the patch's pixels as the model sees them (normalised per channel), under a normal with the
        deviation that the model predicts for the patch, or 1 where it predicts none; of models that predict normalised
        patches alone, of the patch at mean 0 and deviation 1 (see `scored`). Missing pixels and patches have no part;
        of a picture cut into tiles the patches of all tiles are added up. Compare scores of one model, per slot where
        pictures have different numbers of them.
        """
        self._need_pixels()
        found = self.read(images, store=PASSING)
        rows = score_pictures(self.model, found, self._context())
        tell_skipped(images, found)
        return PredictedRows(rows, "Log-density of {} pictures, in nats, by hidden patch")

    def evaluate(
        self,
        images: Any,
        labels: Any = None,
        *,
        k: int = 20,
        seed: int = 0,
        most: int | None = None,
        baselines: bool = True,
        pooling: ImagePooling = "mean",
    ) -> JudgedFigures:
        """k-nearest-neighbour and linear-probe accuracy of frozen features, and the loss on hidden patches
        (where the model predicts them in pixels) with `loss_of_mean`, what their picture's visible mean would score.

        Pictures of a part named test are the test set; without one, a fifth of each class is, drawn by the seed. Tiles
        are judged each by itself; the intervals resample whole groups (patients, and the pictures that tiles and slices
        are of). `notes` says how many pictures to judge on are exact copies of training ones.

        Args:
            labels: of the pictures, where these do not bring them.
            most: at most this many training and a quarter as many test pictures; None takes all, of sets too large for
                memory 50 000.
            pooling: of the features, as `embed` has it.
            baselines: the same two on raw pixels, of small pictures that are in memory.

        Raises:
            UserError: all pictures are of one class.
        """
        found = self.read(images if labels is None else (images, labels), store=PASSING)
        out: dict[str, Any] = {
            "rows": len(found),
            "pictures": len(found),
            "notes": copy_notes(found),
        }
        if self.predicts_pixels:
            out["loss"] = self.loss(found, seed=seed)
            batches, corruption = self._validation(found, None, JUDGED)
            for loss in rule_loss(self.model, batches, corruption, seed=seed).values():
                out["loss_of_mean"] = loss

        def vectors(part: ImageSet) -> np.ndarray:
            return features(self.model, part, self._context(), pooling=pooling)

        if found.labels is not None:
            out |= probe_accuracies(found, vectors, k=k, seed=seed, most=most, baselines=baselines)
        tell_skipped(images, found)
        return JudgedFigures(out | {"skipped": len(found.skipped)}, judged_shown)

    @property
    def hidden_ratio(self) -> float:
        """Share of a picture's patches that was hidden in training; 0.75 where the folder does not say."""
        return float((self.folder.settings.get("images") or {}).get("ratio", 0.75))

    def loss(self, images: Any, *, ratio: float | None = None, seed: int = 0, most: int = JUDGED) -> float:
        """Mean error of hidden patches (in the units of the training loss), with masks that are always the same;
        `ratio` of them is hidden, by default `hidden_ratio`."""
        self._need_pixels()
        batches, corruption = self._validation(self._read(images), ratio, most)
        return validate(self.model, batches, corruption, seed=seed, autocast=self._context, device=self.device)["loss"]

    def _validation(self, found: ImageSet, ratio: float | None, most: int) -> tuple[Iterator[PackedBatch], Corruption]:
        """At most so many pictures in batches, and what is hidden of them."""
        some = found.take(evenly(np.arange(len(found)), min(most, len(found))))
        corruption = image_corruption(self.config, ratio=ratio or self.hidden_ratio, static=True)
        return (batch for _, batch in self.batches(some)), corruption

    def attention(self, images: Any, *, layer: int = -1) -> np.ndarray:
        """Where a layer looks: (n, heads, rows, columns), weights of the class token's query (or the patches' mean)."""
        found = self._read(images)
        with torch.inference_mode():
            # Rows of one picture each where patches are missing: the encoder's columns are then its observed slots.
            rows = None if found.missing is None else 1
            parts = [attention_maps(self.model, batch, layer).cpu().numpy() for _, batch in self.batches(found, rows)]
        return np.concatenate(parts)

    def resized(self, size: int | tuple[int, int]) -> ImageModel:
        """The same model for pictures of another size, its position tables resampled (bicubic)."""
        model = at_size(self.model, size).to(self.device).eval()
        return ImageModel(dataclasses.replace(self.folder, model=model), self.device, self.precision)

    def inspect(self) -> dict[str, Any]:
        """Parameters, shape, FLOPs a picture, memory by precision."""
        config, encoder = self.config, self.model.encoder.config
        count = {
            name: sum(p.numel() for p in part.parameters())
            for name, part in (("all", self.model), ("encoder", self.model.encoder))
        }
        return {
            "kind": "images",
            "architecture": "in_place" if self.config.pixels and not self.model.visible_only else "visible_only",
            "predicts_pixels": self.predicts_pixels,
            "parameters": count["all"],
            "encoder_parameters": count["encoder"],
            "layers": encoder.layers,
            "width": encoder.width,
            "heads": encoder.heads,
            "image_height": config.image[0],
            "image_width": config.image[1],
            "channels": config.channels,
            "patch": config.patch,
            "patches": config.patches,
            "slots": config.slots,
            "flops_per_image": config.slots * encoder.flops_per_slot(config.slots),
            "memory_mb_fp32": count["all"] * 4 / 1e6,
            "memory_mb_bf16": count["all"] * 2 / 1e6,
            "tensors_left_random": self.folder.random,
            "tensors_ignored": self.folder.ignored,
        }

    def save(self, path: str | Path) -> None:
        """Save as a model folder."""
        save_folder(path, self.model, depth=self.folder.depth, settings=self.folder.settings)


def load(path: str | Path, *, device: str = "auto", precision: str = "auto", **shape: Any) -> Any:
    """Load an image model: a folder of unmask, a Hugging Face ViTMAE or ViT folder, or a weights file of the official
    MAE or timm (see `folder.load_folder` for what such a file leaves open). A fine-tuned folder gives a `Classifier`
    or a `Segmenter`.

    Args:
        precision: 'auto' computes as training does, but models under 2 M parameters in fp32; a segmenter, which has
            work per pixel, in whatever is faster (bf16 with AMX: half the time, the same Dice).
    """
    where = resolve_device(device)
    with damaged(path):
        folder = load_folder(path, **shape)
    folder.model.to(where).eval()
    if folder.segmenter is not None:
        from unmask.modalities.images.segment.segmenter import Segmenter

        return Segmenter.restore(ImageModel(folder, where, resolve_precision(precision, where).name))
    model = ImageModel(folder, where, precision_of(folder.model, precision, where))
    if folder.classifier is None:
        return model
    from unmask.modalities.images.classify.classifier import Classifier

    return Classifier.restore(model)


def fill_scenes(
    model: ImageModel,
    images: Any,
    *,
    box: tuple[int, int, int, int] | None = None,
    mask: np.ndarray | None = None,
    ratio: float | None = None,
    gaps: bool = False,
    reading: dict[str, Any] | None = None,
    **options: Any,
) -> list[Reconstruction]:
    """`ImageModel.reconstruct` at the pictures' own resolution: one result for each picture, of its own size.

    A pixel is hidden where it is in every tile that shows it; there the tiles' predictions are averaged, each weighted
    by how far the pixel lies from the tile's edge.

    Args:
        box: left, top, width, height in pixels of the pictures.
        mask: (height, width) of the pictures; non-zero is hidden.
        reading: how files are read, `overlap` among it; see `sources.read_images`.
        options: see `ImageModel.reconstruct`.
    """
    found = images if isinstance(images, ImageSet) and images.tiles is not None else None
    if found is None:
        found = model._read(images, **({"view": "tile"} | (reading or {})))
    tiles = found.tiles
    assert tiles is not None
    chosen: dict[str, Any] = {"ratio": ratio, "gaps": gaps}
    if box is not None or mask is not None:
        if ratio is not None or gaps or (box is not None and mask is not None):
            raise UserError("more than one of ratio, box, mask and gaps", hint="Give one of them.")
        chosen = {"mask": _cut([_wanted(size, box, mask) for size in tiles.sizes], tiles, model.config.image)}
    r = model.reconstruct(found, **chosen, **options)
    out = []
    for scene, size in enumerate(tiles.sizes):
        here = np.flatnonzero(tiles.scene == scene)
        if len(here):
            out.append(_stitched(r, tiles, here, size))
    return out


def _wanted(size: tuple[int, int], box: tuple[int, int, int, int] | None, mask: np.ndarray | None) -> np.ndarray:
    """(height, width) booleans over a picture."""
    if box is not None:
        return pixels_in_box(size, box, "the picture")
    assert mask is not None
    if mask.shape != size:
        raise UserError(
            f"the mask has {mask.shape[1]} x {mask.shape[0]} pixels, the picture {size[1]} x {size[0]}",
            hint="Give a mask of the picture's size.",
        )
    return mask != 0


def _cut(wanted: list[np.ndarray], tiles: Tiles, side: tuple[int, int]) -> np.ndarray:
    """(tiles, height, width): each tile's part of its picture's mask."""
    out = np.zeros((len(tiles.scene), *side), bool)
    for number, (scene, top, left) in enumerate(zip(tiles.scene, tiles.top, tiles.left, strict=True)):
        part = wanted[scene][top : top + side[0], left : left + side[1]]
        out[number, : part.shape[0], : part.shape[1]] = part
    return out


def _stitched(r: Reconstruction, tiles: Tiles, here: np.ndarray, size: tuple[int, int]) -> Reconstruction:
    channels, kind = r.original.shape[-1], r.original.dtype
    high, wide = r.original.shape[1:3]
    ramps = (np.minimum(np.arange(n) + 1, n - np.arange(n)) for n in (high, wide))
    weight = np.multiply.outer(*ramps).astype(np.float64)
    original = np.zeros((*size, channels), kind)
    unknown, hidden = np.ones(size, bool), np.ones(size, bool)
    total, share = np.zeros((*size, channels)), np.zeros(size)
    for number in here:
        top, left = int(tiles.top[number]), int(tiles.left[number])
        part = (slice(top, min(top + high, size[0])), slice(left, min(left + wide, size[1])))
        own = (slice(0, part[0].stop - top), slice(0, part[1].stop - left))
        original[part] = r.original[number][own]
        unknown[part] &= False if r.unknown is None else r.unknown[number][own]
        unmeasured = r.hidden[number][own]
        hidden[part] &= unmeasured
        # Predictions alone: what a tile shows is the original's.
        total[part] += np.where(unmeasured[..., None], r.filled[number][own], 0) * weight[own][..., None]
        share[part] += unmeasured * weight[own]
    mean = total / np.maximum(share, 1e-12)[..., None]
    mean = np.round(mean) if kind.kind in "iu" else mean
    filled = np.where(hidden[..., None], mean.astype(kind), original)
    if kind.kind == "f":
        filled[unknown & ~hidden] = np.nan
    gaps = unknown if unknown.any() else None
    return Reconstruction(
        original=original[None], hidden=hidden[None], filled=filled[None], unknown=None if gaps is None else gaps[None]
    )
