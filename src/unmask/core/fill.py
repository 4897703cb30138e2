"""Fill slots with values: in one shot, or a few at a time so that they agree with each other; then Gibbs sweeps.

In one shot every slot is drawn from its own distribution, as if the slots were independent. Iterative filling writes
some values, shows them to the model and predicts the remaining slots again, so each value is drawn given the earlier
ones: the chain rule along the chosen order (any-order sampling: Ghazvininejad et al. 2019 by confidence; Hoogeboom et
al. 2022 at random).

Shape letters: rows, slots, filled (slots to fill), open (those still hidden).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.core.batch import Example, PackedBatch
from unmask.core.corruption import hide
from unmask.core.inference import BATCH_SLOTS, first_slots, inference_mode, packed_batches
from unmask.core.model import MaskedModel
from unmask.core.prediction import Prediction
from unmask.errors import UserError, check_choice, check_whole, option
from unmask.progress import counted

Order = Literal["confidence", "random", "left_to_right"]

Watch = Callable[[Tensor, Prediction, Tensor], None]
"""Called after every commit with (flat slots, the prediction they were drawn from, their places in it)."""
Draw = Callable[[Prediction, Tensor], Tensor]
"""(prediction, its flat slots) -> a value for each, in the codec's form."""


@dataclass(frozen=True, kw_only=True)
class Filled:
    """What was filled in.

    Attributes:
        values: the batch's values with the new ones written in.
        flat: ascending slot numbers that were filled.
        new: their values, in the codec's form.
        log_prob: log-probability of each value when it was drawn, at temperature 1 (0 where not wanted); where values
            are sampled, among those that can be drawn. The sum over an example is its joint log-probability along the
            order. After Gibbs sweeps each value's is conditional on all values outside its share.
    """

    values: dict[str, Tensor]
    flat: Int[Tensor, " filled"]
    new: Tensor
    log_prob: Float[Tensor, " filled"]


def rank_within(group: Int[Tensor, " n"], score: Tensor) -> Int[Tensor, " n"]:
    """Rank of each score within its group, 0 for the largest; ties in the order given.

    >>> rank_within(torch.tensor([1, 1, 2]), torch.tensor([0.1, 0.9, 0.5])).tolist()
    [1, 0, 0]
    """
    order = score.argsort(descending=True, stable=True)
    order = order[group[order].argsort(stable=True)]
    ordered = group[order].contiguous()
    rank = torch.empty_like(group)
    rank[order] = torch.arange(len(group), device=group.device) - torch.searchsorted(ordered, ordered)
    return rank


def fill(
    model: MaskedModel,
    batch: PackedBatch,
    flat: Int[Tensor, " filled"],
    *,
    steps: int = 1,
    order: Order | Int[Tensor, " filled"] = "confidence",
    temperature: float = 0.0,
    top_k: int | None = None,
    sweeps: int = 0,
    shares: int = 8,
    generator: torch.Generator | None = None,
    watch: Watch | None = None,
    draw: Draw | None = None,
    log_prob: bool = True,
    hidden: Int[Tensor, " others"] | None = None,
    remask: float = 0.0,
    remask_by: Literal["random", "confidence"] = "random",
) -> Filled:
    """Fill the slots in `flat`, whatever stands there now; they may be missing ones.

    Args:
        flat: slot numbers in the flattened (rows x slots) grid.
        steps: passes of the model. Each example commits ceil(open / remaining steps) slots per pass, so `steps` equal
            to the number of slots, or more, fills one at a time. 1: all at once, independent of each other.
        order: which slots of an example come first: 'confidence', 'random' or 'left_to_right'. Confidence is that of
            the *distribution*, before any value is drawn, so sampling in this order is not biased. Or a tensor with the
            turn of each slot in `flat`: a pass fills all slots of one turn, lowest turn first, and `steps` is ignored.
        temperature: 0 takes the likeliest value, 1 samples from the model.
        top_k: sample among the k likeliest only.
        sweeps: how often every filled slot is hidden once more and drawn again, given all others (Gibbs; at
            temperature 0 it climbs to a mode).
        shares: a sweep hides a random 1/shares of an example's filled slots at a time.
        generator: on the batch's device.
        watch: called with every commit.
        draw: a function that makes the values; `temperature` and `top_k` are then ignored.
        log_prob: whether the log-probabilities of the values are wanted; they cost time in every pass.
        hidden: further slots that stay hidden throughout and are not filled.
        remask: share of an example's filled slots that is hidden again before each pass except the first and the last,
            and drawn again later, so that early values can be revised (Wang et al. 2025, ReMDM). Each pass then commits
            that many more, and first fills are spread over all `steps`, which may exceed the number of slots. The share
            is reached on average: a tenth of 4 slots is one slot in four of ten passes. Slots outside `flat` never
            change. Not with an `order` by turns.
        remask_by: which slots are hidden again: any ('random'), or those least likely when drawn ('confidence').
    """
    turns = order if isinstance(order, Tensor) else None
    if turns is None and order not in ("confidence", "random", "left_to_right"):
        raise UserError(f"order={order}", hint="Expected confidence, random or left_to_right.")
    if not 0 <= remask < 1:
        raise UserError(option("remask", remask), hint="Expected a share, from 0 up to, not including, 1.")
    if remask and turns is not None:
        raise UserError(f"{option('remask', remask)} with turns", hint="Give one of them.")
    check_choice("remask_by", remask_by, ("random", "confidence"))
    for name, value, least in (("steps", steps, 1), ("shares", shares, 1), ("sweeps", sweeps, 0)):
        check_whole(name, value, least)
    if not 0 <= temperature < math.inf:
        raise UserError(option("temperature", temperature), hint="Expected a number, 0 or more.")
    flat, place = flat.unique(return_inverse=True)
    if turns is not None:
        turns = torch.empty_like(turns).index_copy(0, place, turns)
    device = batch.segment.device
    group = (flat // batch.shape[1]) * (batch.shape[1] + 1) + batch.segment.flatten()[flat]
    group = group.unique(return_inverse=True)[1]
    examples = int(group.max()) + 1 if len(flat) else 0
    observed = batch.observed.flatten().index_fill(0, flat, True).view(batch.shape)
    wants_log_prob = log_prob or (remask > 0 and remask_by == "confidence")
    work = _Work(model, replace(batch, observed=observed), flat, hidden, watch, wants_log_prob)
    work.samples = draw is None and temperature > 0

    def noise(n: int) -> Tensor:
        return torch.rand(n, generator=generator, device=device)

    def drawn(prediction: Prediction, chosen: Tensor) -> Tensor:
        if draw is not None:
            return draw(prediction, flat[chosen])
        if temperature == 0:
            return prediction.mode()
        return prediction.sample(generator=generator, temperature=temperature, top_k=top_k)

    def fill_all(hidden: Tensor, chosen: Tensor) -> None:
        prediction = work.predict(hidden, chosen)
        work.commit(chosen, prediction, torch.arange(len(chosen), device=device), drawn(prediction, chosen))

    def taken_back(unfilled: Tensor) -> Tensor:
        filled = (~unfilled).nonzero().flatten()
        examples_of = group[filled]
        most = (remask * torch.bincount(examples_of, minlength=examples) + noise(examples)).floor()
        score = noise(len(filled)) if remask_by == "random" else -work.log_prob[filled]
        return filled[rank_within(examples_of, score) < most[examples_of]]

    with inference_mode(model):
        unfilled = torch.ones(len(flat), dtype=torch.bool, device=device)
        for turn in () if turns is None else turns.unique():
            chosen = (turns == turn).nonzero().flatten()
            fill_all(unfilled.nonzero().flatten(), chosen)
            unfilled[chosen] = False
        size = torch.bincount(group, minlength=examples)
        for left in range(steps, 0, -1):
            still = unfilled.nonzero().flatten()
            if not len(still) and not (remask and left > 1):
                break
            open_ = torch.bincount(group[still], minlength=examples)
            count = -(-open_ // left)
            if remask:  # an example of fewer slots than steps is not full before the last
                count = count.where(size >= steps, open_ - size * (left - 1) // steps)
            if remask and 1 < left < steps:
                again = taken_back(unfilled)
                unfilled[again] = True
                still = unfilled.nonzero().flatten()
                count += torch.bincount(group[again], minlength=examples)
            here = group[still]
            if not count.any():
                continue
            if order == "confidence" and left > 1:
                prediction = work.predict(still, still)
                places = (rank_within(here, prediction.confidence()) < count[here]).nonzero().flatten()
                chosen = still[places]
                work.commit(chosen, prediction, places, drawn(prediction, still))
            else:
                score = noise(len(still)) if order == "random" else -torch.arange(len(still), device=device).double()
                chosen = still[rank_within(here, score) < count[here]]
                fill_all(still, chosen)
            unfilled[chosen] = False
        for _ in range(sweeps):
            share = rank_within(group, noise(len(flat))) * size.clamp_max(shares)[group] // size[group]
            for number in range(min(shares, int(size.max()) if examples else 0)):
                again = (share == number).nonzero().flatten()
                if not len(again):
                    continue
                fill_all(again, again)
    return work.result()


@dataclass(frozen=True, kw_only=True)
class FilledExample:
    """What was filled in of one example.

    Attributes:
        slots: (filled,) its slots that were filled, ascending.
        new: their values, in the codec's form.
        log_prob: (filled,) as in `Filled`.
        values: the example's values with the new ones written in.
        kept: for each slot what `keep` made of the prediction it was drawn from; empty without `keep`.
    """

    slots: np.ndarray
    new: np.ndarray
    log_prob: np.ndarray
    values: dict[str, np.ndarray]
    kept: list[Any]


def fill_examples(
    model: MaskedModel,
    examples: Sequence[Example],
    missing: Sequence[np.ndarray],
    *,
    slots: int,
    batch_slots: int = BATCH_SLOTS,
    keep: Callable[[Prediction, Tensor], Sequence[Any]] | None = None,
    **options: Any,
) -> list[FilledExample]:
    """Fill slots of examples, batched like any others; in the order given.

    Args:
        missing: of each example the slots to fill, whatever stands there now.
        slots: longest example the model takes.
        keep: makes something of a prediction and places in it, an entry per place: the likeliest values, say.
        options: as `fill` has them.
    """
    device = next(model.parameters()).device
    out: list[FilledExample | None] = [None] * len(examples)
    for batch, numbers in packed_batches(examples, slots, batch_slots):
        first = first_slots(batch, len(numbers))
        batch = batch.to(device)
        flat = [at + np.sort(missing[n]) for at, n in zip(first, numbers.tolist(), strict=True)]
        kept: dict[int, Any] = {}

        def watch(where: Tensor, prediction: Prediction, places: Tensor, kept: dict[int, Any] = kept) -> None:
            if keep is not None:
                kept.update(zip(where.tolist(), keep(prediction, places), strict=True))

        found = fill(model, batch, torch.from_numpy(np.concatenate(flat)).to(device), watch=watch, **options)
        ordered, new, log_prob = (x.cpu().numpy() for x in (found.flat, found.new, found.log_prob))
        values = {channel: x.flatten(0, 1).cpu().numpy() for channel, x in found.values.items()}
        for at, n, own in zip(first.tolist(), numbers.tolist(), flat, strict=True):
            place = np.searchsorted(ordered, own)
            out[n] = FilledExample(
                slots=own - at,
                new=new[place],
                log_prob=log_prob[place],
                values={channel: x[at : at + len(examples[n])] for channel, x in values.items()},
                kept=[kept[slot] for slot in own.tolist()] if keep is not None else [],
            )
    return [one for one in out if one is not None]


class _Work:
    """The values so far; slots are named by their number in `flat`."""

    def __init__(
        self,
        model: MaskedModel,
        batch: PackedBatch,
        flat: Tensor,
        others: Tensor | None,
        watch: Watch | None,
        wants_log_prob: bool,
    ) -> None:
        self.model, self.batch, self.flat, self.watch = model, batch, flat, watch
        self.others, self.wants_log_prob, self.samples = others, wants_log_prob, False
        self.new: Tensor | None = None
        self.log_prob = torch.zeros(len(flat), device=flat.device)

    def predict(self, hidden: Tensor, wanted: Tensor) -> Prediction:
        masked = self.flat[hidden]
        return self.model(
            self.batch,
            hide(masked if self.others is None else torch.cat([masked, self.others])),
            wanted=self.flat[wanted],
        )

    def commit(self, chosen: Tensor, prediction: Prediction, places: Tensor, drawn: Tensor) -> None:
        """Write the drawn values of the chosen slots, `places` of the prediction."""
        new = drawn[places]
        if self.new is None:
            self.new = new.new_zeros((len(self.flat), *new.shape[1:]))
        self.new[chosen] = new
        if self.wants_log_prob:
            of: Any = getattr(prediction, "log_prob_of_draw", None) if self.samples else None
            self.log_prob[chosen] = (of or prediction.log_prob)(drawn)[places].to(self.log_prob.dtype)
        where = self.flat[chosen]
        self.batch = replace(self.batch, values=self.model.codec.write(self.batch.values, where, new))
        if self.watch is not None:
            self.watch(where, prediction, places)

    def result(self) -> Filled:
        new = torch.zeros(0, device=self.flat.device) if self.new is None else self.new
        return Filled(values=self.batch.values, flat=self.flat, new=new, log_prob=self.log_prob)


BLOCK = 256
"""Questions that are batched together."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """Slots of an example to hide, and which of them to predict.

    Attributes:
        hidden: (n,) slot numbers.
        wanted: (m,) those of them whose prediction is wanted; default all.
    """

    example: Example
    hidden: np.ndarray
    wanted: np.ndarray | None = None


def answers(
    model: MaskedModel, questions: Sequence[Question], *, slots: int, batch_slots: int = BATCH_SLOTS
) -> Iterator[tuple[list[int], Any, list[np.ndarray]]]:
    """Batch by batch the numbers of its questions, one prediction for all of them, and of each question the places of
    its wanted slots in that prediction, in their order. Every question comes once, in any order.

    Args:
        slots: longest example the model takes.
    """
    device = next(model.parameters()).device
    with inference_mode(model):
        for start in counted(range(0, len(questions), BLOCK), len(questions), lambda _: BLOCK):
            block = questions[start : start + BLOCK]
            for batch, numbers in packed_batches([q.example for q in block], slots, batch_slots):
                first = first_slots(batch, len(numbers))
                here = [block[n] for n in numbers.tolist()]
                hidden = np.concatenate([at + q.hidden for at, q in zip(first, here, strict=True)])
                flat = [at + (q.hidden if q.wanted is None else q.wanted) for at, q in zip(first, here, strict=True)]
                wanted = np.sort(np.concatenate(flat))
                prediction = model(
                    batch.to(device),
                    hide(torch.from_numpy(hidden).to(device)),
                    wanted=torch.from_numpy(wanted).to(device),
                )
                places = [np.searchsorted(wanted, slots_of_one) for slots_of_one in flat]
                yield [start + n for n in numbers.tolist()], prediction, places
