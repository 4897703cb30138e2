"""The one batch type of every modality: rows of slots, several examples a row, and how examples are packed.

Shape letters: rows, slots (per row), examples (in the whole batch).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.kernels.on_host import on_host, to_device

PADDING = 0


@dataclass(frozen=True, kw_only=True)
class Example:
    """One example before packing: its slots' values and what is known about them.

    Attributes:
        values: channel name -> array with one entry per slot (a channel is e.g. "token", "patch", "code", "value").
        identity: stable number of the example; corruption is a function of it.
        observed: False where the raw data has no value (never hidden, never a target). Default: all observed.
        special: True for slots such as [CLS], observed but never hidden. Default: none.
        unit: slots with the same number are hidden together; -1 for none. Default: one unit per slot.
        position: any integer position, restarts at 0 with each example. Default: 0..n-1.
    """

    values: Mapping[str, np.ndarray]
    identity: int
    observed: np.ndarray | None = None
    special: np.ndarray | None = None
    unit: np.ndarray | None = None
    position: np.ndarray | None = None

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))


@dataclass(frozen=True, kw_only=True)
class PackedBatch:
    """Rows of a fixed number of slots; several examples may share a row; attention never crosses segments.

    Attributes:
        values: channel -> (rows, slots, ...) tensor.
        segment: 0 = padding, 1.. = which example of the row a slot belongs to.
        position: restarts with each example.
        observed: False at padding and where the raw data is missing.
        special: observed, but never hidden ([CLS], [SEP]).
        unit: number of the unit within its example, -1 for none.
        identity: stable id of each slot's example (-1 at padding); corruption is a pure function of it.
        index: which of the packed examples, in the order given to `pack`, a slot belongs to (-1 at padding).
    """

    values: dict[str, Tensor]
    segment: Int[Tensor, "rows slots"]
    position: Int[Tensor, "rows slots"]
    observed: Bool[Tensor, "rows slots"]
    special: Bool[Tensor, "rows slots"]
    unit: Int[Tensor, "rows slots"]
    identity: Int[Tensor, "rows slots"]
    index: Int[Tensor, "rows slots"]
    extra: dict[str, Tensor] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, slots)."""
        return (int(self.segment.shape[0]), int(self.segment.shape[1]))

    @property
    def real_slots(self) -> int:
        """Slots that hold something of an example; the rest is padding waste."""
        return int((on_host(self.segment) != PADDING).sum())

    @property
    def padding_waste(self) -> float:
        """Share of the slots that no example stands in."""
        return 1.0 - self.real_slots / max(1, self.segment.numel())

    @property
    def maskable(self) -> Bool[Tensor, "rows slots"]:
        """Slots that corruption may hide."""
        return self.observed & ~self.special & (self.segment != PADDING)

    def to(self, device: torch.device | str) -> PackedBatch:
        """The batch on another device."""

        def move(t: Tensor) -> Tensor:
            return to_device(t, device)

        return replace(
            self,
            values={k: move(v) for k, v in self.values.items()},
            extra={k: move(v) for k, v in self.extra.items()},
            **{name: move(getattr(self, name)) for name in _ABOUT},
        )

    def cut(self, rows: int) -> list[PackedBatch]:
        """The batch in as few even parts as have at most `rows` rows each; their tensors share its memory."""
        parts = -(-self.shape[0] // max(rows, 1))
        if parts <= 1:
            return [self]
        size = -(-self.shape[0] // parts)
        return [
            replace(
                self,
                values={k: v[start : start + size] for k, v in self.values.items()},
                extra={k: v[start : start + size] for k, v in self.extra.items()},
                **{name: getattr(self, name)[start : start + size] for name in _ABOUT},
            )
            for start in range(0, self.shape[0], size)
        ]


_ABOUT = ("segment", "position", "observed", "special", "unit", "identity", "index")
"""Tensors of a batch that say what its slots are."""


def place_best_fit(lengths: Sequence[int] | np.ndarray, slots: int) -> list[list[int]]:
    """Best-fit decreasing placement of examples into rows of `slots`.

    Each example goes into the fullest row that still has room. Free room is indexed by size, so the cost is
    linear in the number of examples times the number of distinct free sizes.

    Returns:
        One list of example numbers per row. Every example appears exactly once.

    >>> place_best_fit([5, 3, 4, 8], 8)
    [[3], [0, 1], [2]]
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    if len(lengths) and int(lengths.max()) > slots:
        worst = int(lengths.argmax())
        raise ValueError(f"example {worst} has {int(lengths[worst])} slots, a row holds {slots}")
    rows: list[list[int]] = []
    by_room: list[list[int]] = [[] for _ in range(slots + 1)]
    for number in np.argsort(-lengths, kind="stable").tolist():
        need = int(lengths[number])
        row = next((by_room[room].pop() for room in range(need, slots) if by_room[room]), None)
        if row is None:
            rows.append([])
            row, room = len(rows) - 1, slots
        else:
            room = slots - int(lengths[rows[row]].sum())
        rows[row].append(number)
        by_room[room - need].append(row)
    return rows


def pack(
    examples: Sequence[Example],
    *,
    slots: int,
    rows: int | None = None,
    placement: Sequence[Sequence[int]] | None = None,
) -> PackedBatch:
    """Lay examples into rows of `slots` slots.

    Args:
        rows: fixed number of rows (missing ones are all padding), so that shapes stay the same from batch to batch.
        placement: which examples share which row; default best fit. One example per row is an ordinary padded batch.
    """
    placement = place_best_fit([len(e) for e in examples], slots) if placement is None else placement
    count = max(len(placement), 1) if rows is None else rows
    if len(placement) > count:
        raise ValueError(f"{len(placement)} rows are needed, {count} were given")
    shape = (count, slots)
    arrays = {name: np.zeros(shape, np.int64) for name in ("segment", "position")}
    arrays |= {name: np.full(shape, -1, np.int64) for name in ("unit", "identity", "index")}
    flags = {name: np.zeros(shape, bool) for name in ("observed", "special")}
    values: dict[str, np.ndarray] = {}
    if examples:
        for channel, array in examples[0].values.items():
            array = np.asarray(array)
            kind = np.int64 if array.dtype.kind in "iu" else array.dtype
            values[channel] = np.zeros((*shape, *array.shape[1:]), kind)
    for row, members in enumerate(placement):
        start = 0
        for number, member in enumerate(members, start=1):
            e = examples[member]
            n = len(e)
            here = (row, slice(start, start + n))
            for channel, target in values.items():
                target[here] = e.values[channel]
            arrays["segment"][here] = number
            arrays["position"][here] = np.arange(n) if e.position is None else e.position
            arrays["unit"][here] = np.arange(n) if e.unit is None else e.unit
            arrays["identity"][here] = e.identity
            arrays["index"][here] = member
            flags["observed"][here] = True if e.observed is None else e.observed
            flags["special"][here] = False if e.special is None else e.special
            start += n
    return PackedBatch(
        values={k: torch.from_numpy(v) for k, v in values.items()},
        **{k: torch.from_numpy(v) for k, v in (arrays | flags).items()},  # type: ignore[arg-type]
    )


def packer(example: Callable[[int], Example], slots: int) -> Callable[[list[list[int]], int], PackedBatch]:
    """A function (rows of example numbers, rows asked) -> packed batch, each example made when its row is packed.

    A share without rows (fewer rows than micro-batches or processes) is all padding, with the channels of any other.
    """

    def make(planned: list[list[int]], rows: int) -> PackedBatch:
        examples = [example(number) for row in planned for number in row]
        ends = np.cumsum([len(row) for row in planned]).tolist()
        placement = [list(range(end - len(row), end)) for row, end in zip(planned, ends, strict=True)]
        return pack(examples or [example(0)], slots=slots, rows=rows, placement=placement)

    return make
