"""Corruption = which slots are hidden (a selector) x what stands there instead (a replacement).

Both are pure functions of (seed, epoch, example identity, slot of the example): counter-based hashing, no generator
state. A mask survives resume, worker count, world size and packing, and can be drawn again and looked at.
Everything is vectorised over the whole packed batch (no loop over examples).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from unmask.core.batch import PackedBatch
from unmask.core.density import Density, Weigh, spread_evenly
from unmask.core.hashing import Salt, hash_keys, uniform
from unmask.errors import UserError, setting
from unmask.kernels.on_host import to_device
from unmask.plugins import resolve

MASK, RANDOM, KEEP = 0, 1, 2
"""What stands in a hidden slot: the mask embedding, codec noise, or the value itself."""


@dataclass(frozen=True, kw_only=True)
class Slots:
    """The maskable slots of a packed batch as flat arrays: what selectors work on.

    Attributes:
        flat: index of each slot in the flattened (rows x slots) grid.
        example: which example of the batch, 0.. in order of appearance.
        identity: the example's stable identity.
        slot: number of the slot within its example (0.. over all its slots, maskable or not).
        unit: unit number within the example (singletons made of -1 included).
        position: the batch's position.
        channels: channel -> (rows*slots, ...) raw values, for user functions.
    """

    flat: np.ndarray
    example: np.ndarray
    identity: np.ndarray
    slot: np.ndarray
    unit: np.ndarray
    position: np.ndarray
    channels: dict[str, np.ndarray]

    @property
    def examples(self) -> int:
        """How many examples there are."""
        return int(self.example[-1]) + 1 if len(self.example) else 0


def maskable_slots(batch: PackedBatch) -> Slots:
    """List the maskable slots of a batch, example by example."""
    maskable = batch.maskable.cpu().numpy().ravel()
    segment = batch.segment.cpu().numpy()
    rows, slots = segment.shape
    # An example is contiguous in its row: it starts where the segment number changes, or at the row's start.
    starts = np.ones((rows, slots), bool)
    starts[:, 1:] = segment[:, 1:] != segment[:, :-1]
    run = np.cumsum(starts.ravel()) - 1
    first = np.flatnonzero(starts.ravel())
    flat = np.flatnonzero(maskable)
    slot = flat - first[run[flat]]
    example = np.unique(run[flat], return_inverse=True)[1].reshape(-1)
    unit = batch.unit.cpu().numpy().ravel()[flat]
    unit = np.where(unit < 0, slot + (1 << 40), unit)
    return Slots(
        flat=flat,
        example=example,
        identity=batch.identity.cpu().numpy().ravel()[flat],
        slot=slot,
        unit=unit,
        position=batch.position.cpu().numpy().ravel()[flat],
        channels={k: v.detach().cpu().numpy().reshape(rows * slots, *v.shape[2:]) for k, v in batch.values.items()},
    )


Ratio = float | tuple[float, float] | Callable[[float], float] | Density
"""A number, a range drawn per example (MCM: (0.1, 0.9)), a schedule over training progress in [0, 1], or a density that
each example's is drawn from."""


def draw_counts(ratio: Ratio, slots: Slots, key: tuple[int, int], progress: float, at_least: int) -> np.ndarray:
    """How many slots to hide in each example: ratio x maskable slots, rounded up or down at random so that the
    long-run frequency is exact, then held between `at_least` and all of them. Of a density: rounded up, so that uniform
    ratios make every number from 1 to all of them equally likely."""
    size = np.bincount(slots.example, minlength=slots.examples)
    identity = np.zeros(slots.examples, np.int64)
    identity[slots.example] = slots.identity
    if isinstance(ratio, Density):
        share = ratio.ratio(spread_evenly(*key, identity), progress)
        return np.minimum(np.maximum(np.ceil(share * size).astype(np.int64), at_least), size)
    if callable(ratio):
        ratio = float(ratio(progress))
    low, high = ratio if isinstance(ratio, tuple) else (ratio, ratio)
    if not 0.0 <= low <= high <= 1.0:
        raise UserError(f"hidden ratio {ratio!r} is not within 0 to 1", hint="Give e.g. 0.15, or a range 0.1,0.9.")
    share = low + (high - low) * uniform(*key, identity, Salt.HIDDEN_SHARE)
    count = np.floor(share * size + uniform(*key, identity, Salt.HIDDEN_COUNT)).astype(np.int64)
    return np.minimum(np.maximum(count, at_least if high > 0 else 0), size)


@runtime_checkable
class Selector(Protocol):
    """Chooses which maskable slots are hidden."""

    def __call__(self, slots: Slots, *, key: tuple[int, int], progress: float) -> np.ndarray:
        """Return a boolean array over `slots`; `key` is (seed, epoch)."""
        ...


def rank_within(example: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Rank (0..) of each score among the entries of the same example; `example` is ascending."""
    order = np.lexsort((score, example))
    first = np.searchsorted(example, example, side="left")
    rank = np.empty(len(score), np.int64)
    rank[order] = np.arange(len(score)) - first[order]
    return rank


@dataclass(frozen=True, kw_only=True)
class Uniform:
    """Every maskable slot alike, an exact count per example (BERT: 0.15; MAE: 0.75)."""

    ratio: Ratio = 0.15
    at_least: int = 1

    def __call__(self, slots: Slots, *, key: tuple[int, int], progress: float = 0.0) -> np.ndarray:
        count = draw_counts(self.ratio, slots, key, progress, self.at_least)
        rank = rank_within(slots.example, uniform(*key, slots.identity, slots.slot, Salt.SLOT_ORDER))
        return rank < count[slots.example]


def _in_random_order(
    slots: Slots, unit: np.ndarray, key: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The units of each example in random order: (rank of each slot in its example, unit of each slot as a number of
    the batch, slots of each unit, slots before it)."""
    score = uniform(*key, slots.identity, unit, Salt.UNIT_ORDER)
    order = np.lexsort((slots.slot, unit, score, slots.example))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    rank -= np.searchsorted(slots.example, slots.example, side="left")
    new = np.ones(len(order), bool)
    new[1:] = (unit[order[1:]] != unit[order[:-1]]) | (slots.example[order[1:]] != slots.example[order[:-1]])
    group = np.empty(len(order), np.int64)
    group[order] = np.cumsum(new) - 1
    return rank, group, np.bincount(group), rank[order[new]]


def _select_units(slots: Slots, unit: np.ndarray, count: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Hide whole units in random order until an example's count is reached.

    The unit that crosses the count is taken when more than half of it fits; the first unit is always taken.
    """
    _, group, size, before = _in_random_order(slots, unit, key)
    first = np.unique(group, return_index=True)[1]
    take = (before + size / 2 <= count[slots.example[first]]) | (before == 0)
    return take[group] & (count[slots.example] > 0)


def _select_evenly(slots: Slots, unit: np.ndarray, count: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Hide whole units, each with the same probability whatever its size, so that an example's count is met on average:
    the units that begin in the arc of `_in_arc`, which may be none."""
    _, group, _, before = _in_random_order(slots, unit, key)
    return _in_arc(slots, before[group], count, key)


def _in_arc(slots: Slots, place: np.ndarray, count: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Which places of an example lie in an arc of `count` places that begins at a random place, with the last place
    followed by the first. On this circle every place is hidden with the same probability; on a line the last places
    would be hidden less often."""
    around = np.bincount(slots.example, minlength=slots.examples)[slots.example]
    begin = (uniform(*key, slots.identity, Salt.UNIT_FITS) * around).astype(np.int64)
    return (place - begin) % around < count[slots.example]


@dataclass(frozen=True, kw_only=True)
class Units:
    """Slots hidden together: a word's pieces, a visit's events, a one-hot group (whole-word masking).

    The share of hidden slots is `ratio` in the long run, whatever the sizes of units; `at_least` is counted before
    units are made whole, so that an example may hide nothing in an epoch. Long units are hidden as often as short ones
    (BERT's whole-word masking passes over a word that would exceed the number).
    """

    ratio: Ratio = 0.15
    at_least: int = 1

    def __call__(self, slots: Slots, *, key: tuple[int, int], progress: float = 0.0) -> np.ndarray:
        count = draw_counts(self.ratio, slots, key, progress, self.at_least)
        return _select_evenly(slots, slots.unit, count, key)


@dataclass(frozen=True, kw_only=True)
class Spans:
    """Contiguous spans of whole units with geometric lengths (SpanBERT, Joshi et al. 2020, sec. 3.1: p=0.2, max 10).

    The units of an example are cut into consecutive spans: each unit starts a new one with probability
    `1 / mean_length` (so lengths are geometric), or when the span has `longest` units. Then spans are hidden in
    random order, the first and the last one cut, so that counts are exact and every slot is hidden as often.
    """

    ratio: Ratio = 0.15
    mean_length: float = 5.0
    longest: int = 10
    at_least: int = 1

    def __call__(self, slots: Slots, *, key: tuple[int, int], progress: float = 0.0) -> np.ndarray:
        count = draw_counts(self.ratio, slots, key, progress, self.at_least)
        new_unit = np.ones(len(slots.flat), bool)
        same = (slots.unit[1:] == slots.unit[:-1]) & (slots.example[1:] == slots.example[:-1])
        new_unit[1:] = ~same
        edge = np.ones(len(slots.flat), bool)
        edge[1:] = slots.example[1:] != slots.example[:-1]
        starts = edge | (
            new_unit & (uniform(*key, slots.identity, slots.unit, Salt.SPAN_START) < 1.0 / self.mean_length)
        )
        # Cut spans over the longest length: count units since the span's start.
        unit_number = np.cumsum(new_unit)
        since = unit_number - unit_number[np.maximum.accumulate(np.where(starts, np.arange(len(starts)), 0))]
        starts |= new_unit & (since > 0) & (since % self.longest == 0)
        first = np.maximum.accumulate(np.where(starts, np.arange(len(starts)), 0))
        span = slots.slot[first] if len(first) else first
        rank, *_ = _in_random_order(slots, span, key)
        return _in_arc(slots, rank, count, key)


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Square blocks of a 2-D grid, hidden together (SimMIM: 32-px units; block 1 is `Uniform`).

    Args:
        width: slots in a grid row; the slot at position p stands at (p // width, p % width).
        block: side of a block in slots; must divide the width.
    """

    ratio: Ratio = 0.6
    width: int
    block: int = 2
    at_least: int = 1

    def __post_init__(self) -> None:
        if self.block < 1 or self.width % self.block:
            fits = [b for b in range(1, self.width + 1) if self.width % b == 0]
            raise UserError(
                f"block={self.block} does not divide the grid width {self.width}", hint=f"Use one of {fits}."
            )

    def __call__(self, slots: Slots, *, key: tuple[int, int], progress: float = 0.0) -> np.ndarray:
        count = draw_counts(self.ratio, slots, key, progress, self.at_least)
        row, column = np.divmod(slots.position, self.width)
        unit = (row // self.block) * (self.width // self.block) + column // self.block
        return _select_units(slots, unit, count, key)


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """One of two selectors for each example, drawn anew every epoch: the first one for `share` of them."""

    first: Selector
    second: Selector
    share: float = 0.5

    def __call__(self, slots: Slots, *, key: tuple[int, int], progress: float = 0.0) -> np.ndarray:
        chosen = [select(slots, key=key, progress=progress) for select in (self.first, self.second)]
        return np.where(uniform(*key, slots.identity, Salt.MIXTURE) < self.share, *chosen)


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """What stands in hidden slots, as shares that add up to 1. BERT (Devlin et al. 2019, app. A.1): 0.8/0.1/0.1.

    `random` values come from the codec's noise and are never special ones.
    """

    mask: float = 0.8
    random: float = 0.1
    keep: float = 0.1

    def __post_init__(self) -> None:
        shares = (self.mask, self.random, self.keep)
        if min(shares) < 0 or abs(sum(shares) - 1.0) > 1e-9:
            raise UserError(
                f"mask={self.mask}, random={self.random}, keep={self.keep} must be shares that add up to 1",
                hint=f"For example {setting('mask', 0.8)}, {setting('random', 0.1)}, {setting('keep', 0.1)}.",
            )

    def __call__(self, slots: Slots, hidden: np.ndarray, *, key: tuple[int, int]) -> np.ndarray:
        """Return MASK, RANDOM or KEEP for every hidden slot."""
        u = uniform(*key, slots.identity[hidden], slots.slot[hidden], Salt.REPLACEMENT)
        return np.where(u < self.mask, MASK, np.where(u < self.mask + self.random, RANDOM, KEEP)).astype(np.int8)


ALL_MASK = Replacement(mask=1.0, random=0.0, keep=0.0)


@dataclass(frozen=True, kw_only=True)
class Hidden:
    """The hidden slots of one batch, in ascending flat order; every array has one entry per hidden slot.

    Attributes:
        flat: index into the flattened (rows x slots) grid.
        action: MASK, RANDOM or KEEP.
        bits: 64 random bits as int64, for the codec's noise.
        weight: what each counts in the loss, fp32; None where all count 1.
        maskable: where they have weights, slots of the batch that could have been hidden.
        per_slot: for losses over all slots: `total_weight` / real slots of the whole optimiser step; None: that of this
            batch.
        causal: nothing is replaced, and each slot is predicted from those before it in its example.
    """

    flat: Tensor
    action: Tensor
    bits: Tensor
    weight: Tensor | None = None
    maskable: int | None = None
    per_slot: float | None = None
    causal: bool = False

    def __len__(self) -> int:
        return int(self.flat.shape[0])

    @functools.cached_property
    def total_weight(self) -> float:
        """What the loss is divided by: the number of hidden slots where all count 1, else that of maskable slots, which
        is the expected sum of the weights (`unmask.core.density`): the sum itself is random, and dividing by it would
        bias the gradients. Where weights came without `maskable`, their sum."""
        if self.weight is None:
            return float(len(self))
        return float(self.weight.sum(dtype=torch.float64)) if self.maskable is None else float(self.maskable)

    @functools.cached_property
    def masked(self) -> Tensor:
        """Flat indices of the slots behind the mask embedding."""
        return self.flat[self.action == MASK]

    @functools.cached_property
    def random(self) -> tuple[Tensor, Tensor]:
        """(flat indices, bits) of the slots that get a random value."""
        drawn = self.action == RANDOM
        return self.flat[drawn], self.bits[drawn]

    def to(self, device: torch.device | str) -> Hidden:
        """The same on another device; which slots get what is worked out before they are moved."""
        names = ("flat", "action", "bits", *(() if self.weight is None else ("weight",)))
        tensors: dict[str, Any] = {name: to_device(getattr(self, name), device) for name in names}
        moved = replace(self, **tensors)
        if moved.flat.device != self.flat.device:
            flat, bits = self.random
            moved.__dict__["masked"] = to_device(self.masked, device)
            moved.__dict__["random"] = to_device(flat, device), to_device(bits, device)
        return moved

    def grid(self, shape: tuple[int, int]) -> Tensor:
        """A (rows, slots) boolean mask of the hidden slots."""
        out = torch.zeros(shape[0] * shape[1], dtype=torch.bool, device=self.flat.device)
        out[self.flat] = True
        return out.view(shape)


@dataclass(frozen=True, kw_only=True)
class Corruption:
    """A selector and a replacement; `draw` is a pure function of (seed, epoch, example identities).

    Attributes:
        weigh: what the hidden slots of an example count in the loss, from how many they are; default each alike.
    """

    select: Selector = field(default_factory=Uniform)
    replace: Replacement = field(default_factory=Replacement)
    static: bool = False
    """Static masks are the same in every epoch (the original BERT data preparation); dynamic is the default."""
    weigh: Weigh | None = None
    causal: float = 0.0
    """Share of the run, from its start, in which nothing is hidden and every slot is predicted from those before it."""

    def draw(self, batch: PackedBatch, *, seed: int, epoch: int = 0, progress: float = 0.0) -> Hidden:
        """Draw the hidden slots of a batch and what replaces them."""
        if progress < self.causal:
            return each_from_those_before(batch)
        key = (seed, 0 if self.static else epoch)
        slots = maskable_slots(batch)
        chosen = self.select(slots, key=key, progress=progress)
        order = np.argsort(slots.flat[chosen], kind="stable")
        action = self.replace(slots, chosen, key=key)[order]
        bits = hash_keys(*key, slots.identity[chosen], slots.slot[chosen], Salt.NOISE)[order].view(np.int64)
        weight = None if self.weigh is None else self._weights(slots, chosen, self.weigh, progress)[order]
        return Hidden(
            flat=torch.from_numpy(slots.flat[chosen][order]),
            action=torch.from_numpy(action),
            bits=torch.from_numpy(bits.copy()),
            weight=None if weight is None else torch.from_numpy(weight),
            maskable=None if weight is None else len(slots.flat),
        )

    @staticmethod
    def _weights(slots: Slots, chosen: np.ndarray, weigh: Weigh, progress: float) -> np.ndarray:
        """The weight of every chosen slot."""
        example = slots.example[chosen]
        hidden, maskable = (np.bincount(e, minlength=slots.examples) for e in (example, slots.example))
        return weigh(hidden, maskable, progress).astype(np.float32)[example]


def hide(flat: Tensor) -> Hidden:
    """Hide exactly these slots behind the mask embedding (used by fill, score and evaluation)."""
    flat = flat.sort().values
    return Hidden(
        flat=flat,
        action=torch.full(flat.shape, MASK, dtype=torch.int8, device=flat.device),
        bits=torch.zeros_like(flat),
    )


def each_from_those_before(batch: PackedBatch) -> Hidden:
    """Every maskable slot that has one before it in its example, to be predicted from those (causal modelling)."""
    follows = torch.zeros(batch.shape, dtype=torch.bool)
    follows[:, 1:] = batch.segment[:, 1:] == batch.segment[:, :-1]
    hidden = hide((batch.maskable & follows).flatten().nonzero().flatten())
    return replace(hidden, action=torch.full_like(hidden.action, KEEP), causal=True)


@dataclass(frozen=True, kw_only=True)
class PluginSelector:
    """A selector of the user's, whose results are checked."""

    reference: str
    select: Callable[..., Any]

    def __call__(self, slots: Slots, *, key: tuple[int, int], progress: float = 0.0) -> np.ndarray:
        chosen = np.asarray(self.select(slots, key=key, progress=progress))
        if chosen.dtype != bool or chosen.shape != slots.flat.shape:
            raise UserError(
                f"select={self.reference}: it gave {chosen.dtype} of shape {chosen.shape}",
                hint=f"Expected one boolean per maskable slot, shape {slots.flat.shape}.",
            )
        return chosen


def own_selector(reference: str, ratio: Ratio) -> Selector:
    """The selector behind "package.module:name": a function of (slots, key=, progress=), or a class of such objects.

    Args:
        ratio: what the settings ask for; a class whose constructor has an argument `ratio` is given it.
    """
    found = resolve(reference)
    if isinstance(found, type):
        found = found(ratio=ratio) if "ratio" in inspect.signature(found).parameters else found()
    if not callable(found):
        raise UserError(
            f"select={reference}: a {type(found).__name__}", hint="Expected a selector, or a class of them."
        )
    return PluginSelector(reference=reference, select=found)


@dataclass(frozen=True, kw_only=True, eq=False)
class Weighted:
    """As `Uniform`, but slots are drawn without replacement in proportion to a weight of their value (Efraimidis &
    Spirakis 2006, algorithm A). Hiding words the more often the rarer they are is part of the field's recipes for
    little text (BabyLM).

    Attributes:
        weight: (values,) what each value of the channel counts, above 0.
        channel: that holds the values, whole numbers.
    """

    ratio: Ratio = 0.15
    weight: np.ndarray = field(repr=False)
    channel: str = "token"
    at_least: int = 1

    def __post_init__(self) -> None:
        if not (np.isfinite(self.weight).all() and (self.weight > 0).all()):
            raise UserError("a weight is not a number above 0", hint="Give every value a weight above 0.")

    def __call__(self, slots: Slots, *, key: tuple[int, int], progress: float = 0.0) -> np.ndarray:
        count = draw_counts(self.ratio, slots, key, progress, self.at_least)
        drawn = uniform(*key, slots.identity, slots.slot, Salt.WEIGHTED_ORDER)
        weight = self.weight[slots.channels[self.channel][slots.flat]]
        return rank_within(slots.example, -np.log1p(-drawn) / weight) < count[slots.example]
