"""A bound on the likelihood of examples under a masked model, comparable with the likelihood a causal model gives them.

Filling an example in a random order, one slot at a time, is a distribution; minus its expected log-probability over
orders is at least minus the log-likelihood (Uria et al. 2014; Hoogeboom et al. 2022, section 3). With k of n slots
hidden, k uniform on 1..n and the hidden ones chosen at random, n / k times the summed losses of the hidden slots has
that expectation: the negative evidence lower bound (NELBO) of masked diffusion (Sahoo et al. 2024, MDLM).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unmask.core.batch import Example
from unmask.core.corruption import ALL_MASK, Corruption, Uniform
from unmask.core.density import UniformDensity, by_ratio
from unmask.core.inference import BATCH_SLOTS, inference_mode, packed_batches
from unmask.core.model import MaskedModel
from unmask.core.score import scorable
from unmask.errors import UserError

CORRUPTION = Corruption(select=Uniform(ratio=UniformDensity()), replace=ALL_MASK, weigh=by_ratio)
"""Ratios are spread evenly over the examples of a draw and over the draws of an example (`core.density`)."""


@dataclass(frozen=True, kw_only=True)
class Bound:
    """Negative evidence lower bounds, in nats, of parts that are numbers of a density.

    Attributes:
        nats: (draws, examples) an estimate for each example in each draw; 0 without slots to hide.
        slots: (examples,) how many are counted: observed and not special.
    """

    nats: np.ndarray
    slots: np.ndarray

    @property
    def per_slot(self) -> float:
        """Nats per slot, over all examples."""
        return float(self.nats.mean(0).sum() / max(int(self.slots.sum()), 1))

    @property
    def standard_error(self) -> float:
        """Of `per_slot`, from how the draws differ, for these examples; NaN of a single draw."""
        if len(self.nats) < 2:
            return math.nan
        totals = self.nats.sum(1) / max(int(self.slots.sum()), 1)
        return float(totals.std(ddof=1) / math.sqrt(len(totals)))


def bound(
    model: MaskedModel,
    examples: Sequence[Example],
    *,
    slots: int,
    draws: int = 4,
    seed: int = 0,
    batch_slots: int = BATCH_SLOTS,
) -> Bound:
    """Estimate the bound of every example by hiding other slots in each of `draws` passes.

    Of an example its length, its special slots and what is missing are given, and count for nothing. The same seed
    gives the same masks; each example's are a function of its identity.

    Args:
        slots: longest example the model takes.
    """
    if draws < 1:
        raise UserError(f"draws={draws}", hint="Expected 1 or more.")
    device = next(model.parameters()).device
    nats = np.zeros((draws, len(examples)))
    with inference_mode(model):
        for draw in range(draws):
            for batch, numbers in packed_batches(examples, slots, batch_slots):
                hidden = CORRUPTION.draw(batch, seed=seed, epoch=draw)
                if not len(hidden):
                    continue
                owner = batch.index.flatten()[hidden.flat].numpy()
                assert hidden.weight is not None
                weight = hidden.weight.double().numpy()
                moved, masked = batch.to(device), hidden.to(device)
                log_prob = model(moved, masked).log_prob(model.codec.targets(moved.values, masked.flat))
                found = np.bincount(owner, -weight * log_prob.double().cpu().numpy(), len(numbers))
                nats[draw, numbers] = found
    return Bound(nats=nats, slots=np.array([len(scorable(e)) for e in examples]))
