"""Pseudo-log-likelihood: how natural an example is to the model, every slot predicted from the others.

Each slot is scored in a copy of its example with that slot hidden; copies are batched like any examples, and only the
slot in question reaches the head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from unmask.core.batch import Example, PackedBatch, pack
from unmask.core.corruption import ALL_MASK, Corruption, Uniform, hide
from unmask.core.density import UniformDensity, by_ratio
from unmask.core.inference import BATCH_SLOTS, first_slots, inference_mode, length_sorted_batches, packed_batches
from unmask.core.model import MaskedModel
from unmask.errors import UserError
from unmask.progress import counted

Mode = Literal["unit", "slot"]
Read = Callable[[Any, Tensor], Tensor]
"""What is taken of a prediction and its targets: (wanted,) or (wanted, parts), which add up to the log-probability."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """Pseudo-log-likelihood of one example, in nats.

    Attributes:
        total: sum over the scored slots.
        per_slot: (slots,) log-probability of each slot's value, or (slots, parts) of it; NaN where not scored (special,
            missing).
        slots: how many were scored.
    """

    total: float
    per_slot: np.ndarray
    slots: int


def score(
    model: MaskedModel,
    examples: Sequence[Example],
    *,
    slots: int,
    batch_slots: int = BATCH_SLOTS,
    mode: Mode = "unit",
    targets: Sequence[np.ndarray] | None = None,
    read: Read | None = None,
) -> list[Score]:
    """Score examples by pseudo-log-likelihood.

    Args:
        slots: longest example the model takes.
        mode: 'slot' hides each slot alone (Salazar et al. 2020). 'unit' hides the later slots of its unit as well
            (Kauf & Ivanova 2023): otherwise the rest of a word gives each of its pieces away, and rare words that
            are cut into many pieces look likely. Where every unit is one slot the two agree.
        targets: slots to score in each example; default all that are observed and not special.
        read: takes the log-probability of a prediction apart; default all of it.
    """
    if mode not in ("unit", "slot"):
        raise UserError(f"mode={mode}", hint="Expected unit or slot.")
    scored = [scorable(e) for e in examples] if targets is None else [np.asarray(t, np.int64) for t in targets]
    # A copy is a pair of numbers until its batch is made: memory does not grow with copies x slots.
    owner = np.repeat(np.arange(len(examples)), [len(s) for s in scored])
    slot = np.concatenate(scored) if len(scored) else np.zeros(0, np.int64)
    found: np.ndarray | None = None
    lengths = np.array([len(e) for e in examples], np.int64)
    device = next(model.parameters()).device
    with inference_mode(model):
        for numbers, width in length_sorted_batches(lengths[owner], slots, batch_slots):
            members = [examples[i] for i in owner[numbers]]
            batch = pack(members, slots=width)
            start = first_slots(batch, len(members))
            flat = start + slot[numbers]
            masked = [flat]
            if mode == "unit":
                masked += [s + later(e, int(i)) for s, e, i in zip(start, members, slot[numbers], strict=True)]
            order = np.argsort(flat)
            wanted = torch.from_numpy(flat[order]).to(device)
            batch = batch.to(device)
            prediction = model(batch, hide(torch.from_numpy(np.concatenate(masked)).to(device)), wanted=wanted)
            true = model.codec.targets(batch.values, wanted)
            log_prob = prediction.log_prob(true) if read is None else read(prediction, true)
            found = np.zeros((len(owner), *log_prob.shape[1:])) if found is None else found
            found[numbers[order]] = log_prob.double().cpu().numpy()
    found = np.zeros(0) if found is None else found
    out, end = [], np.cumsum([len(s) for s in scored])
    for example, w, stop in zip(examples, scored, end, strict=True):
        per_slot = np.full((len(example), *found.shape[1:]), np.nan)
        per_slot[w] = found[stop - len(w) : stop]
        out.append(Score(total=float(per_slot[w].sum()), per_slot=per_slot, slots=len(w)))
    return out


def score_rows(model: MaskedModel, batch: PackedBatch, *, read: Read | None = None) -> Float[Tensor, "rows slots"]:
    """Log-probability of every slot given all others, of a batch of one example per row; NaN where there is no value.

    What `score` says in the mode 'slot', with a pass per slot and no copies: each slot is hidden in all rows at once.

    Args:
        read: takes another log-probability of a prediction, one per slot; default that of the value.
    """
    rows, slots = batch.shape
    out = torch.full((rows, slots), torch.nan, device=batch.segment.device)
    scored = batch.observed & ~batch.special & (batch.segment != 0)
    with inference_mode(model):
        for slot in counted(range(slots), slots):
            here = scored[:, slot].nonzero().flatten()
            if len(here):
                flat = here * slots + slot
                prediction, true = model(batch, hide(flat)), model.codec.targets(batch.values, flat)
                log_prob = prediction.log_prob(true) if read is None else read(prediction, true)
                out[here, slot] = log_prob.to(out.dtype)
    return out


def scorable(example: Example) -> np.ndarray:
    """Slots that are observed and not special."""
    yes = np.ones(len(example), bool)
    if example.observed is not None:
        yes &= example.observed
    if example.special is not None:
        yes &= ~np.asarray(example.special, bool)
    return yes.nonzero()[0]


def later(example: Example, slot: int) -> np.ndarray:
    """Scorable slots behind `slot` that belong to its unit; a unit of -1 is no unit."""
    if example.unit is None or example.unit[slot] < 0:
        return np.zeros(0, np.int64)
    rest = scorable(example)
    rest = rest[rest > slot]
    return rest[np.asarray(example.unit)[rest] == example.unit[slot]]


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
