"""Pictures with hidden patches predicted back, in their own units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from unmask.core.batch import PackedBatch
from unmask.core.corruption import Hidden
from unmask.core.fill import fill
from unmask.core.model import MaskedModel
from unmask.errors import UserError, setting
from unmask.evaluation.card import figures_of as figures_of_rules
from unmask.evaluation.results import figures_shown
from unmask.evaluation.shown import Printed, Shown
from unmask.given import array_of
from unmask.modalities.images.network.baseline import MEAN
from unmask.modalities.images.network.batches import evenly, image_batches
from unmask.modalities.images.network.codec import (
    PatchCodec,
    PatchCodecConfig,
    PatchPrediction,
    standardise,
    unpatchify,
)
from unmask.modalities.images.network.features import inference_rows
from unmask.modalities.images.network.masking import (
    observed_patches,
    patches_in_mask,
    pixels_in_box,
    pixels_in_mask,
    random_patches,
)
from unmask.modalities.images.reading.arrays import ImageSet
from unmask.modalities.images.reading.decode import scale_of
from unmask.modalities.images.uses.drawing import gallery, sheet, triptych, write_png

Statistics = Literal["predicted", "neighbours", "truth"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Reconstruction(Printed):
    """Pictures with hidden patches predicted back, in the units and depth of the input.

    Attributes:
        original: (n, height, width, channels), at the model's size.
        hidden: (n, height, width) booleans: the pixels that are predicted.
        filled: the original where visible, the model's prediction where hidden; floats are NaN where still missing.
        unknown: (n, height, width), True where the original was not measured; None where all was.
    """

    original: np.ndarray
    hidden: np.ndarray
    filled: np.ndarray
    unknown: np.ndarray | None = None

    def shown(self) -> Shown:
        """How far off the hidden pixels are, beside the mean of the visible ones."""
        found = figures_of([self], 1)
        count = f"{found['rows']:,} picture{'s' if found['rows'] > 1 else ''}"
        return figures_shown(
            f"{count} with {found['hidden_share']:.0%} of the pixels hidden and predicted",
            figures_of_rules(found, ["rmse"]) + figures_of_rules({"rmse": found["rmse_of_mean"]}, ["rmse"], MEAN),
            next_step='.plot("filled.png") draws original | masked | filled; .filled are the pixels',
        )

    def plot(self, path: str | Path | None = None) -> Image.Image:
        """Original | masked | filled of at most 36 pictures, evenly taken, as a Pillow image; `path`: a .png for it."""
        drawn = filled_sheet([self])[0]
        if path is not None:
            write_png(path, drawn)
        return Image.fromarray(drawn)

    def _repr_html_(self) -> str:
        return gallery([filled_sheet([self])[0]], "original, masked, filled") + super()._repr_html_()


DRAWN = 36
"""Pictures on a sheet of filled ones."""


def filled_sheet(done: Sequence[Reconstruction]) -> tuple[np.ndarray, int]:
    """Original | masked | filled of at most `DRAWN` pictures, evenly taken, as one picture; and how many these are."""
    each = [(r, i) for r in done for i in range(len(r.original))]
    drawn = [
        triptych(r.original[i], r.hidden[i], r.filled[i], None if r.unknown is None else r.unknown[i])
        for r, i in (each[n] for n in evenly(np.arange(len(each)), DRAWN))
    ]
    return sheet(drawn), len(drawn)


def figures_of(done: Sequence[Reconstruction], patch: int) -> dict[str, Any]:
    """How well hidden pixels were predicted, in the units of the input. Returns `rmse` over all hidden pixels that are
    known (None where none is), `rmse_of_mean`: that of each picture's mean of its visible pixels (None where one has
    none, for its mean would be made of what is to be predicted), `rows`, `filled_slots` (patches) and
    `hidden_share` (of pixels)."""
    squares, of_mean, count, share, slots = 0.0, 0.0, 0, [], 0
    for r in done:
        known = np.ones_like(r.hidden) if r.unknown is None else ~r.unknown
        for original, filled, hidden, there in zip(r.original, r.filled, r.hidden, known, strict=True):
            truth, visible = original[hidden & there].astype(np.float64), original[~hidden & there]
            squares += float(((filled[hidden & there] - truth) ** 2).sum())
            of_mean += float(((visible.mean(0) - truth) ** 2).sum()) if len(visible) else np.nan
            count += truth.size
            share.append(float(hidden.mean()))
        rows, columns = (range(0, n, patch) for n in r.hidden.shape[1:])
        slots += int(np.logical_or.reduceat(np.logical_or.reduceat(r.hidden, rows, 1), columns, 2).sum())
    return {
        "rows": len(share),
        "filled_slots": slots,
        "hidden_share": float(np.mean(share)),
        "rmse": float(np.sqrt(squares / count)) if count else None,
        "rmse_of_mean": float(np.sqrt(of_mean / count)) if count and not np.isnan(of_mean) else None,
    }


def reconstructed(
    model: MaskedModel[PatchCodec],
    images: ImageSet,
    hidden: np.ndarray,
    *,
    statistics: Statistics | None = None,
    seed: int = 0,
    **options: Any,
) -> Reconstruction:
    """Predict the `hidden` pixels, (pictures, height, width) booleans, of pictures of the model's size; it sees none of
    the patches that they are in. `statistics`: see `ImageModel.reconstruct`; `options`: of `core.fill.fill`."""
    config, device = model.codec.config, next(model.parameters()).device
    can = hasattr(model.codec, "statistics")
    if statistics is None:
        statistics = "predicted" if can else "neighbours"
    if statistics == "predicted" and config.normalised and not can:
        raise UserError(
            "the model was not trained to predict a patch's mean and deviation",
            hint=f"Use statistics='neighbours', or pretrain with {setting('statistics', 0.1)}.",
        )
    generator = torch.Generator(device=device).manual_seed(seed)
    first = int(config.class_token)
    patches = np.stack([patches_in_mask(config, one) for one in hidden])
    out = []
    with torch.inference_mode():
        for batch, numbers in image_batches(model.codec, images, inference_rows(model)):
            batch = batch.to(device)
            grid = torch.zeros(batch.shape, dtype=torch.bool, device=device)
            grid[:, first:] = torch.from_numpy(patches[numbers]).to(device)
            filling = model
            if config.normalised and statistics != "predicted":
                filling = _GivenStatistics(model, borrowed_statistics(batch, grid, config, statistics))
            filled = fill(
                filling,
                batch,
                grid.flatten().nonzero().flatten(),
                generator=generator,
                **options,
            )
            seen = unpatchify(filled.values["patch"][:, first:].float(), config.patch, config.grid)
            out.append(model.codec.to_pixels(seen).cpu().numpy())
    predicted = as_depth(np.concatenate(out).transpose(0, 2, 3, 1), images.depth)
    made = np.where(hidden[..., None], predicted, images.pixels)
    if images.missing is not None and images.depth == "float32":
        made[images.missing & ~hidden] = np.nan
    return Reconstruction(original=images.pixels, hidden=hidden, filled=made, unknown=images.missing)


def chosen_pixels(
    config: PatchCodecConfig,
    images: ImageSet,
    *,
    ratio: float | None,
    box: tuple[int, int, int, int] | None,
    mask: np.ndarray | None,
    gaps: bool,
    seed: int,
) -> np.ndarray:
    """(pictures, height, width) booleans: what is predicted; arguments as `ImageModel.reconstruct` has them."""
    count = len(images)
    if sum(x is not None for x in (ratio, box, mask)) + gaps > 1:
        raise UserError("more than one of ratio, box, mask and gaps", hint="Give one of them.")
    if gaps:
        if images.missing is None:
            raise UserError("gaps, but no pixel is missing", hint=f"Say what marks them: {setting('nodata')}.")
        touched = (patches_in_mask(config, m) for m in images.missing)
        return np.stack([pixels_in_mask(config, patches.reshape(config.grid)) for patches in touched])
    if box is not None:
        return np.tile(pixels_in_box(config.image, box, "the model's picture size"), (count, 1, 1))
    if mask is not None:
        mask = array_of(mask)
        if not np.any(mask):
            raise UserError("mask: nothing in it is to be hidden", hint="What is not zero is hidden: mark some of it.")
        if mask.ndim == 3 and len(mask) == count:
            return np.stack([pixels_in_mask(config, m) for m in mask])
        return np.tile(pixels_in_mask(config, mask), (count, 1, 1))
    ratio = 0.75 if ratio is None else ratio
    if not 0 < ratio < 1:
        raise UserError(f"ratio={ratio}", hint="Expected a share between 0 and 1.")
    drawn = random_patches(config, count, ratio, seed) & observed_patches(config, images.missing)
    return np.stack([pixels_in_mask(config, patches.reshape(config.grid)) for patches in drawn])


def as_depth(pixels: np.ndarray, depth: str) -> np.ndarray:
    """Floats in the units of `as_floats` -> pixels of a depth; whole numbers are rounded and cut to their range."""
    if depth == "float32":
        return pixels.astype(np.float32)
    full = scale_of(depth)
    return np.clip(np.round(np.nan_to_num(pixels) * full), 0, full).astype(depth)


def borrowed_statistics(batch: PackedBatch, hidden: Tensor, config: PatchCodecConfig, source: Statistics) -> Tensor:
    """(rows x slots, 2): mean and deviation of every patch, true ones, or means over the visible patches of the picture
    weighted by 1 / distance^4."""
    first = int(config.class_token)
    _, mean, deviation = standardise(batch.values["patch"][:, first:].float())
    known = torch.cat([mean, deviation], -1)
    if source == "neighbours":
        place = torch.arange(config.patches, device=hidden.device)
        at = torch.stack([place // config.grid[1], place % config.grid[1]], -1).float()
        near = torch.cdist(at, at).clamp_min(0.5) ** -4
        weight = near[None] * (~hidden & batch.observed)[:, None, first:]
        known = weight @ known / weight.sum(-1, keepdim=True).clamp_min(1e-12)
    return torch.cat([known.new_zeros(len(known), first, 2), known], 1).flatten(0, 1)


class _GivenStatistics(MaskedModel[PatchCodec]):
    """A model whose patterns get means and deviations from elsewhere."""

    def __init__(self, model: MaskedModel[PatchCodec], statistics: Tensor) -> None:
        nn.Module.__init__(self)
        self.model, self.codec, self.given = model, model.codec, statistics

    def forward(self, batch: PackedBatch, hidden: Hidden, wanted: Tensor | None = None) -> PatchPrediction:
        found = self.model(batch, hidden, wanted=wanted)
        where = hidden.flat if wanted is None else wanted
        return PatchPrediction(found.pattern, self.given[where], found.config)
