"""What a rule without a network scores on the loss of masked pictures."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from unmask.core.batch import PackedBatch
from unmask.core.corruption import Corruption
from unmask.core.model import MaskedModel
from unmask.modalities.images.network.codec import PatchCodec, PatchPrediction, standardise
from unmask.modalities.images.network.latents import LatentLearner

MEAN = "the mean of the visible pixels"
ALIKE = "representations that are all alike"


def rule_loss(
    model: MaskedModel[PatchCodec], batches: Iterable[PackedBatch], corruption: Corruption, *, seed: int = 0
) -> dict[str, float]:
    """Name of the rule -> its loss on the patches that `corruption` hides of held-out batches: of taking each for the
    mean of its picture's visible pixels (of patches that are predicted standardised: for flat, with the mean and
    deviation that visible ones have in the mean), and where representations are learnt, of one for all pictures. Empty
    where nothing is hidden."""
    total, count = 0.0, 0
    learner = model if isinstance(model, LatentLearner) else None
    pixels = 1.0 if learner is None else learner.settings.pixel_weight
    for batch in batches:
        flat = corruption.draw(batch, seed=seed, epoch=0).flat
        if learner is not None:
            total += len(flat) * learner.loss_if_alike(batch)
        if pixels:
            total += pixels * _mean_loss(model.codec, batch, flat)
        count += len(flat)
    name = " and ".join(([] if learner is None else [ALIKE]) + ([MEAN] if pixels else []))
    return {name: total / count} if count else {}


def _mean_loss(codec: PatchCodec, batch: PackedBatch, flat: Tensor) -> float:
    """The loss of the mean on the patches `flat` of a batch, summed over them."""
    config, patch = codec.config, batch.values["patch"].flatten(0, 1).float()
    visible = batch.maskable.flatten().clone()
    visible[flat] = False
    picture = batch.identity.flatten().unique(return_inverse=True)[1]
    where = torch.nn.functional.one_hot(picture).double() * visible[:, None]

    def means(numbers: Tensor) -> Tensor:
        """(slots, n): of each number, its mean over the visible patches of the slot's picture."""
        known = (~numbers.isnan()).double()
        sums = where.T @ numbers.nan_to_num().double() / (where.T @ known).clamp_min(1)
        return sums.float()[picture]

    if config.normalised:
        pattern, statistics = torch.zeros_like(patch), means(torch.cat(standardise(patch)[1:], -1))
    else:
        pixels = patch.unflatten(-1, (-1, config.channels))
        pattern, statistics = means(pixels.nanmean(1)).repeat(1, pixels.shape[1]), None
    spread = statistics[flat] if statistics is not None and hasattr(codec, "statistics") else None
    return float(PatchPrediction(pattern[flat], spread, config).loss(patch[flat]))
